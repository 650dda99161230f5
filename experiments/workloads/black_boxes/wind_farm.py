"""16 wind turbines in FLORIS: their layout, and their yaw in a given layout.

*Layout* (d = 32): f is a penalty for turbines that are too close, minus the annual energy in GWh.

The turbines are NREL's 5 MW turbines from FLORIS, with its Gaussian wakes (velocity deficit after Bastankhah and
Porté-Agel, added turbulence after Crespo and Hernández, sum of squared deficits). The wind has 9 m/s; each tenth degree
θ has the probability (2 exp(4 cos(θ − θ₀)) + exp(8 cos(θ − θ₀ − 2π/3)))/Z, where the seed draws θ₀.

*Yaw* (d = 16): a turbine that is turned out of the wind has less power and deflects its wake from others. f is minus
the mean power in MW for three wind directions 4° apart, for yaw angles within ±30°. The layout is a grid of 4 x 4
turbines five diameters apart, whose turbines the seed moves; it also draws the wind.

A query takes about a tenth of a second, half of which is FLORIS's set-up. f is deterministic, with kinks where a
turbine passes another turbine's row or the power curve bends. FLORIS and its turbine: BSD 3-clause.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np

from experiments.workloads.black_boxes.black_box import PROBLEM, START, BlackBox, central, cube

TURBINES = 16
SIDE = 2000.0
"""Side of the square site in metres, about 16 rotor diameters."""

DIAMETER = 126.0
"""Rotor diameter in metres."""

SPACING = 2.0 * DIAMETER
PENALTY = 100.0
"""Penalty in GWh for two turbines at the same place."""

SPEED = 9.0
"""Wind speed in m/s at hub height."""

TURBULENCE = 0.06
HOURS = 8760.0


def wind_rose(theta_0: float, count: int = 36) -> tuple[np.ndarray, np.ndarray]:
    """Returns equally spaced directions in degrees from north, and their frequencies (sum 1).

    Args:
        theta_0: direction of the more frequent lobe in radians.
        count: number of directions.
    """
    theta = 2.0 * np.pi * np.arange(count) / count
    density = 2.0 * np.exp(4.0 * np.cos(theta - theta_0)) + np.exp(8.0 * np.cos(theta - theta_0 - 2.0 * np.pi / 3.0))
    return np.degrees(theta), density / density.sum()


def penalty(east: np.ndarray, north: np.ndarray) -> float:
    """Returns 100 GWh Σ max(0, 1 − distance/(2 D))² over all pairs of turbines at positions in metres."""
    i, j = np.triu_indices(len(east), 1)
    shortfall = 1.0 - np.hypot(east[i] - east[j], north[i] - north[j]) / SPACING
    return PENALTY * float(np.square(shortfall.clip(0.0)).sum())


class WindFarm:
    """f(u) = penalty − energy in GWh per year for a layout u in [0, 1]^32, the x of all turbines and then their y.

    Args:
        theta_0: direction of the wind rose, in radians.
        side: side of the site, in metres.
        directions: number of directions of the wind rose.
    """

    def __init__(self, theta_0: float, side: float = SIDE, directions: int = 36) -> None:
        from floris import FlorisModel

        self.side = side
        self.directions, self.frequencies = wind_rose(theta_0, directions)
        self.model = FlorisModel(_configuration())
        self.model.set(
            wind_directions=self.directions,
            wind_speeds=np.full(directions, SPEED),
            turbulence_intensities=np.full(directions, TURBULENCE),
        )

    def layout(self, u: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns the positions of the turbines in metres to the east and to the north."""
        east, north = np.split(self.side * u, 2)
        return east, north

    def energy(self, u: np.ndarray) -> float:
        """Returns the annual energy of a layout in GWh.

        FLORIS runs in a separate thread, where the call stack is short, because it inspects the whole stack twice per
        turbine (``floris.type_dec.convert_to_path``).
        """
        with ThreadPoolExecutor(1) as thread:
            return thread.submit(self._energy, u).result()

    def _energy(self, u: np.ndarray) -> float:
        east, north = self.layout(u)
        self.model.set(layout_x=east, layout_y=north)
        self.model.run()
        return HOURS * 1e-9 * float(self.frequencies @ self.model.get_turbine_powers().sum(1))

    def __call__(self, u: np.ndarray) -> float:
        """Returns f at u, shape 32."""
        return penalty(*self.layout(u)) - self.energy(u)


def _configuration(yawed: bool = False) -> dict:
    """Returns FLORIS's defaults; the terms that only affect yawed turbines are left out unless ``yawed``."""
    from floris import FlorisModel

    found: dict = FlorisModel.get_defaults()
    for term in ("secondary_steering", "yaw_added_recovery", "transverse_velocities"):
        found["wake"][f"enable_{term}"] = yawed
    found["logging"]["console"]["level"] = "ERROR"
    return found


LARGEST_YAW = 30.0
"""Largest yaw angle in degrees."""


class Yaw:
    """f(u) = −(mean power in MW) for yaw angles u in [−1, 1]^16, in units of ``LARGEST_YAW``.

    Args:
        east: positions of the turbines in metres, shape 16.
        north: likewise.
        wind: the middle wind direction in degrees from north.
    """

    def __init__(self, east: np.ndarray, north: np.ndarray, wind: float) -> None:
        from floris import FlorisModel

        self.model = FlorisModel(_configuration(yawed=True))
        directions = np.mod(wind + np.array([-4.0, 0.0, 4.0]), 360.0)
        flow = {"wind_speeds": np.full(3, SPEED), "turbulence_intensities": np.full(3, TURBULENCE)}
        self.model.set(layout_x=east, layout_y=north, wind_directions=directions, **flow)

    def __call__(self, u: np.ndarray) -> float:
        """Returns f at u, shape 16; runs FLORIS in a separate thread as ``WindFarm.energy`` does."""
        with ThreadPoolExecutor(1) as thread:
            return thread.submit(self._power, u).result()

    def _power(self, u: np.ndarray) -> float:
        self.model.set(yaw_angles=np.tile(LARGEST_YAW * u, (3, 1)))
        self.model.run()
        return -1e-6 * float(self.model.get_turbine_powers().sum(1).mean())


def yaw(seed: int) -> Yaw:
    """Draws each turbine's place, within half a diameter of the grid's, and a wind within 10° of the grid's rows."""
    random = np.random.default_rng([seed, PROBLEM])
    rows = 5.0 * DIAMETER * np.arange(4)
    places = np.concatenate([axis.ravel() for axis in np.meshgrid(rows, rows)])
    east, north = np.split(places + DIAMETER * random.uniform(-0.5, 0.5, len(places)), 2)
    return Yaw(east, north, 270.0 + random.uniform(-10.0, 10.0))


def start(seed: int) -> np.ndarray:
    """Returns a grid of 4 x 4 turbines, each moved by up to a twentieth of the side."""
    places = (np.arange(4) + 0.5) / 4
    grid = np.concatenate([axis.ravel() for axis in np.meshgrid(places, places)])
    return grid + np.random.default_rng([seed, START]).uniform(-0.05, 0.05, len(grid))


def wind_farm(seed: int) -> WindFarm:
    """Returns a wind farm whose wind direction is drawn with the seed."""
    return WindFarm(np.random.default_rng([seed, PROBLEM]).uniform(0.0, 2.0 * np.pi))


_YAW = cube(TURBINES, 1.0)

PROBLEMS = (
    BlackBox("wind_farm", *cube(2 * TURBINES, 0.5, 0.5), start, wind_farm, budget=400, needs=("floris",)),
    BlackBox("wind_farm_yaw", *_YAW, partial(central, *_YAW), yaw, budget=320, needs=("floris",)),
)
