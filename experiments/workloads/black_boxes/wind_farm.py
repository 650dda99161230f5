"""Where 16 turbines should stand: the annual energy of a wind farm by FLORIS, and a penalty for turbines too close.

Turbines are NREL's of 5 MW, which FLORIS brings, with its Gaussian wakes (velocity deficit after Bastankhah and
Porté-Agel, added turbulence after Crespo and Hernández, deficits added as squares). The wind is a formula: 9 m/s, and
two lobes of directions, (2 exp(4 cos(θ − θ₀)) + exp(8 cos(θ − θ₀ − 2π/3)))/Z at every tenth degree. A seed draws θ₀.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np

from experiments.workloads.black_boxes.black_box import PROBLEM, START, BlackBox, cube

TURBINES = 16
SIDE = 2000.0
"""Metres of a side of the square site: about 16 diameters of the rotor."""

DIAMETER = 126.0
"""Metres of the turbine's rotor."""

SPACING = 2.0 * DIAMETER
PENALTY = 100.0
"""GWh for two turbines at one place."""

SPEED = 9.0
"""m/s at the hub's height."""

TURBULENCE = 0.06
HOURS = 8760.0


def wind_rose(theta_0: float, count: int = 36) -> tuple[np.ndarray, np.ndarray]:
    """Directions in degrees, at equal distances from north, and how frequent each is (sum 1).

    Args:
        theta_0: the more frequent lobe's direction in radians.
        count: number of directions.
    """
    theta = 2.0 * np.pi * np.arange(count) / count
    density = 2.0 * np.exp(4.0 * np.cos(theta - theta_0)) + np.exp(8.0 * np.cos(theta - theta_0 - 2.0 * np.pi / 3.0))
    return np.degrees(theta), density / density.sum()


def penalty(east: np.ndarray, north: np.ndarray) -> float:
    """100 GWh Σ max(0, 1 − distance/(2 D))² over all pairs of turbines, given where they stand in metres."""
    i, j = np.triu_indices(len(east), 1)
    shortfall = 1.0 - np.hypot(east[i] - east[j], north[i] - north[j]) / SPACING
    return PENALTY * float(np.square(shortfall.clip(0.0)).sum())


class WindFarm:
    """f(u) = penalty − energy in GWh a year of a layout u in [0, 1]^32, the x of all turbines and then their y.

    Args:
        theta_0: the wind rose's, in radians.
        side: of the site, in metres.
        directions: number of the rose's directions.
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
        """Metres to the east and to the north of each turbine."""
        east, north = np.split(self.side * u, 2)
        return east, north

    def energy(self, u: np.ndarray) -> float:
        """GWh in a year at a layout.

        FLORIS inspects the whole call stack twice for each turbine, for paths that are relative to the program
        (``floris.type_dec.convert_to_path``). In a thread of its own the stack is short.
        """
        with ThreadPoolExecutor(1) as thread:
            return thread.submit(self._energy, u).result()

    def _energy(self, u: np.ndarray) -> float:
        east, north = self.layout(u)
        self.model.set(layout_x=east, layout_y=north)
        self.model.run()
        return HOURS * 1e-9 * float(self.frequencies @ self.model.get_turbine_powers().sum(1))

    def __call__(self, u: np.ndarray) -> float:
        """f at u, shape 32."""
        return penalty(*self.layout(u)) - self.energy(u)


def _configuration() -> dict:
    """FLORIS's defaults without what only turbines turned out of the wind have."""
    from floris import FlorisModel

    found: dict = FlorisModel.get_defaults()
    for term in ("secondary_steering", "yaw_added_recovery", "transverse_velocities"):
        found["wake"][f"enable_{term}"] = False
    found["logging"]["console"]["level"] = "ERROR"
    return found


def start(seed: int) -> np.ndarray:
    """A grid of 4 x 4 turbines, each moved by up to a twentieth of the side."""
    places = (np.arange(4) + 0.5) / 4
    grid = np.concatenate([axis.ravel() for axis in np.meshgrid(places, places)])
    return grid + np.random.default_rng([seed, START]).uniform(-0.05, 0.05, len(grid))


def wind_farm(seed: int) -> WindFarm:
    """A farm whose wind comes from where the seed draws."""
    return WindFarm(np.random.default_rng([seed, PROBLEM]).uniform(0.0, 2.0 * np.pi))


PROBLEMS = (
    BlackBox(
        "wind_farm",
        *cube(2 * TURBINES, 0.5, 0.5),
        start,
        wind_farm,
        budget=400,
        cost="about a tenth of a second: the wakes of 16 turbines in 36 directions, half of it FLORIS's set-up",
        noise="none; f has kinks where a turbine passes another one's row or the power curve bends",
        licence="FLORIS BSD 3-clause, its turbine with it; the wind is a formula",
        needs=("floris",),
    ),
)
