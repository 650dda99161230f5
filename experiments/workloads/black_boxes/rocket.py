"""A sounding rocket that should reach a given height and land at the pad, simulated by rocketpy.

The twelve variables are the shape of four fins, ballast in the nose, the mass and burn time of the propellant, the tilt
of the rail, and the two parachutes. All data are defined here; the standard atmosphere is part of rocketpy. The seed
draws the target height and the wind profile.

A query solves the differential equation of a flight to a relative error of 1e-6 in a few tenths of a second. f has
kinks at the target and at the pad, and steps of some metres, because parachutes open at tenths of a second. rocketpy:
MIT.
"""

from __future__ import annotations

import dataclasses
import math
import warnings
from functools import partial
from typing import Any

import numpy as np

from experiments.workloads.black_boxes.black_box import PROBLEM, BlackBox, central, cube, kept_generator
from experiments.workloads.black_boxes.variables import Variable, named

DESIGN = (
    Variable("root_chord", 0.10, 0.25),
    Variable("tip_chord", 0.03, 0.12),
    Variable("span", 0.08, 0.16),
    Variable("sweep_length", 0.0, 0.15),
    Variable("ballast", 0.0, 3.0),
    Variable("propellant", 1.8, 3.5),
    Variable("burn_time", 2.0, 5.0),
    Variable("lean_east", -10.0, 10.0),
    Variable("lean_north", -10.0, 10.0),
    Variable("drogue", 0.2, 2.0, log=True),
    Variable("main", 2.0, 12.0, log=True),
    Variable("main_height", 150.0, 600.0),
)
"""The variables in m, kg (ballast, propellant), s, degrees from upright, m² (drag areas) and m above ground."""

GRAVITY = 9.80665
EXHAUST_SPEED = 2000.0
"""Exhaust speed in m/s; the thrust is this speed times the mass that burns per second."""

RADIUS = 0.0635
MASS = 14.4
"""Mass of the rocket in kilograms without motor and ballast."""

MOTOR_MASS = 1.8
MOTOR, NOSE, BALLAST, FINS = -1.255, 1.278, 1.0, -1.0
"""Heights above the empty rocket's center of mass in m: nozzle, tip of the nose, ballast, upper end of the fins."""

NOSE_LENGTH = 0.558
INERTIA = (6.321, 6.321, 0.034)
"""Moments of inertia in kg m² without motor and ballast."""

BODY_DRAG = 0.4
FIN_FRICTION = 0.01
"""Drag coefficients of the body (reference area: cross-section) and of the fins (reference area: both sides).
"""

RAIL = 5.2
MARGIN = 1.0
"""Smallest allowed distance between the centers of pressure and mass at launch, in calibres."""

SOFT = 7.0
HARD = 100.0
"""Largest landing speed without a penalty in m/s, and the penalty in metres for each m/s above it."""

LONGEST = 900.0
"""Seconds after which a flight that has not landed counts as failed."""


@dataclasses.dataclass(frozen=True)
class Launch:
    """The conditions of a launch.

    Attributes:
        target: target height above ground, in metres.
        wind: speed in m/s ten metres above ground.
        exponent: growth of the wind with height, speed = wind (height/10 m)^exponent.
        towards: direction that the wind blows to at the ground, radians from east to north.
        veer: change of this direction per kilometre of height, in radians.
    """

    target: float
    wind: float
    exponent: float
    towards: float
    veer: float

    def winds(self) -> tuple[list[tuple[float, float]], list[tuple[float, float]]]:
        """Returns wind speeds towards east and north in m/s, each with its height in metres."""
        heights = np.concatenate([[0.0, 10.0, 30.0, 100.0, 250.0], np.arange(500.0, 6001.0, 500.0)])
        speeds = self.wind * (np.maximum(heights, 1.0) / 10.0) ** self.exponent
        angles = self.towards + self.veer * heights / 1000.0
        east, north = speeds * np.cos(angles), speeds * np.sin(angles)
        return list(zip(heights, east, strict=True)), list(zip(heights, north, strict=True))

    def __call__(self, u: np.ndarray) -> float:
        """Returns |height − target| + distance from the pad + 100 s max(0, landing speed − 7 m/s) in metres.

        The value is NaN if the center of pressure at launch is less than one calibre behind the center of mass, if the
        simulation fails, or if the rocket does not land.
        """
        values = named(DESIGN, u)
        with kept_generator(), warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            rocket = self.rocket(values)
            if rocket.static_margin(0.0) < MARGIN:
                return float("nan")
            try:
                flight = self.flight(rocket, values)
            except (ValueError, ArithmeticError, RuntimeError):
                return float("nan")
        if flight.t_final >= LONGEST:
            return float("nan")
        too_fast = max(0.0, abs(flight.impact_velocity) - SOFT)
        drift = math.hypot(flight.x_impact, flight.y_impact)
        return abs(float(flight.apogee) - self.target) + drift + HARD * too_fast

    def rocket(self, values: dict[str, float]) -> Any:
        """Creates the rocket from the values of the variables in ``DESIGN``."""
        from rocketpy import GenericMotor, Rocket

        burn, propellant = values["burn_time"], values["propellant"]
        motor = GenericMotor(
            thrust_source=EXHAUST_SPEED * propellant / burn,
            burn_time=burn,
            chamber_radius=0.037,
            chamber_height=0.6,
            chamber_position=0.3,
            propellant_initial_mass=propellant,
            nozzle_radius=0.033,
            dry_mass=MOTOR_MASS,
            center_of_dry_mass_position=0.3,
            dry_inertia=(0.125, 0.125, 0.002),
        )
        mass, ballast = MASS + values["ballast"], values["ballast"]
        across = INERTIA[0] + MASS * ballast / mass * BALLAST**2
        fins = 2 * 4 * values["span"] * (values["root_chord"] + values["tip_chord"]) / 2
        drag = BODY_DRAG + FIN_FRICTION * fins / (math.pi * RADIUS**2)
        rocket = Rocket(RADIUS, mass, (across, across, INERTIA[2]), drag, drag, BALLAST * ballast / mass)
        rocket.add_motor(motor, position=MOTOR)
        rocket.add_nose(length=NOSE_LENGTH, kind="vonKarman", position=NOSE)
        shape = {name: values[name] for name in ("root_chord", "tip_chord", "span", "sweep_length")}
        rocket.add_trapezoidal_fins(4, position=FINS, **shape)
        rocket.add_parachute("drogue", values["drogue"], "apogee", sampling_rate=10, lag=1.5)
        rocket.add_parachute("main", values["main"], values["main_height"], sampling_rate=10, lag=1.5)
        return rocket

    def flight(self, rocket: Any, values: dict[str, float]) -> Any:
        """Simulates the flight to the ground."""
        from rocketpy import Environment, Flight

        environment = Environment(gravity=GRAVITY)
        wind_u, wind_v = self.winds()
        environment.set_atmospheric_model("custom_atmosphere", wind_u=wind_u, wind_v=wind_v)
        east, north = values["lean_east"], values["lean_north"]
        heading = math.degrees(math.atan2(east, north)) % 360.0
        lean = math.hypot(east, north)
        return Flight(rocket, environment, RAIL, inclination=90.0 - lean, heading=heading, max_time=LONGEST)


def launch(seed: int) -> Launch:
    """Draws the conditions of a launch: a target of 2.2 to 3 km and a wind of 2 to 7 m/s."""
    low, high = (2200.0, 2.0, 0.12, 0.0, -0.15), (3000.0, 7.0, 0.22, 2.0 * math.pi, 0.15)
    return Launch(*np.random.default_rng([seed, PROBLEM]).uniform(low, high).tolist())


_BOX = cube(len(DESIGN), 0.5, 0.5)

PROBLEMS = (BlackBox("rocket", *_BOX, partial(central, *_BOX), launch, budget=240, needs=("rocketpy",)),)
