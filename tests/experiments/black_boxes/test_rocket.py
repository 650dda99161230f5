"""A flight's height and landing against closed forms, and designs that may not fly."""

import math

import numpy as np
import pytest

from experiments.workloads.black_boxes import rocket
from experiments.workloads.black_boxes.variables import named

CALM = rocket.Launch(2500.0, 0.0, 0.2, 0.0, 0.0)
NAMES = [variable.name for variable in rocket.DESIGN]


def design(**shares):
    return np.array([shares.get(name, 0.5) for name in NAMES])


def flown(launch, u):
    values = named(rocket.DESIGN, u)
    return launch.flight(launch.rocket(values), values)


@pytest.fixture(scope="module")
def rocketpy():
    return pytest.importorskip("rocketpy", reason="pip install '.[problems]'")


def test_the_wind_is_a_power_of_the_height_that_veers():
    wind_u, wind_v = rocket.Launch(2500.0, 4.0, 0.2, math.pi / 2, 0.1).winds()
    assert dict(wind_v)[10.0] == pytest.approx(4.0 * math.cos(0.001)) and abs(dict(wind_u)[10.0]) < 0.01
    speed = math.hypot(dict(wind_u)[3000.0], dict(wind_v)[3000.0])
    assert speed == pytest.approx(4.0 * 300.0**0.2)
    assert math.atan2(dict(wind_v)[3000.0], dict(wind_u)[3000.0]) == pytest.approx(math.pi / 2 + 0.3)


def test_days_differ_and_are_the_seeds():
    days = [rocket.launch(seed) for seed in range(20)]
    assert days[0] == rocket.launch(0) and len(set(days)) == 20
    assert all(2200 <= day.target <= 3000 and 2 <= day.wind <= 7 for day in days)


def test_without_drag_the_height_is_the_rocket_equations(rocketpy, monkeypatch):
    monkeypatch.setattr(rocket, "BODY_DRAG", 0.0)
    monkeypatch.setattr(rocket, "FIN_FRICTION", 0.0)
    values = named(rocket.DESIGN, design())
    empty = rocket.MASS + rocket.MOTOR_MASS + values["ballast"]
    full, burn, c = empty + values["propellant"], values["burn_time"], rocket.EXHAUST_SPEED
    log = math.log(full / empty)
    speed = c * log - rocket.GRAVITY * burn
    height = c * burn * (1 - empty / (full - empty) * log) - rocket.GRAVITY * burn**2 / 2
    expected = height + speed**2 / (2 * rocket.GRAVITY)
    assert flown(CALM, design()).apogee == pytest.approx(expected, rel=2e-3)


def test_it_lands_at_the_mains_speed_where_the_wind_and_the_rail_take_it(rocketpy):
    calm = flown(CALM, design())
    values = named(rocket.DESIGN, design())
    mass = rocket.MASS + rocket.MOTOR_MASS + values["ballast"]
    landing = math.sqrt(2 * mass * rocket.GRAVITY / (1.225 * values["main"]))
    assert abs(calm.impact_velocity) == pytest.approx(landing, rel=5e-3)
    assert math.hypot(calm.x_impact, calm.y_impact) < 5.0
    slow = flown(CALM, design(main=1.0))
    assert abs(slow.impact_velocity) < 7.0
    missed = abs(slow.apogee - 2500.0) + math.hypot(slow.x_impact, slow.y_impact)
    assert CALM(design(main=1.0)) == pytest.approx(missed, rel=1e-12)
    east, north = flown(CALM, design(lean_east=0.8)), flown(CALM, design(lean_north=0.8))
    assert east.x_impact > 100 > abs(east.y_impact) and north.y_impact > 100 > abs(north.x_impact)
    fast = named(rocket.DESIGN, design(main=0.0))["main"]
    small = flown(CALM, design(main=0.0))
    speed = math.sqrt(2 * mass * rocket.GRAVITY / (1.225 * fast))
    added = CALM(design(main=0.0)) - abs(small.apogee - 2500.0) - math.hypot(small.x_impact, small.y_impact)
    assert added == pytest.approx(100 * (speed - 7.0), rel=2e-2)


def test_an_unstable_design_is_not_flown(rocketpy, monkeypatch):
    monkeypatch.setattr(rocket.Launch, "flight", None)
    small = design(root_chord=0.0, tip_chord=0.0, span=0.0, ballast=0.0, propellant=1.0)
    assert np.isnan(CALM(small))


def test_a_flight_that_breaks_off_or_never_lands_is_nan(rocketpy, monkeypatch):
    def broken(self, *arguments):
        raise ValueError("the integrator gave up")

    monkeypatch.setattr(rocket.Launch, "flight", broken)
    assert np.isnan(CALM(design()))
    monkeypatch.setattr(rocket.Launch, "flight", lambda self, *_: type("Flight", (), {"t_final": rocket.LONGEST}))
    assert np.isnan(CALM(design()))
