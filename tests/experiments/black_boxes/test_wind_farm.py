"""The farm's energy is FLORIS's own of the same wind rose, and that of lone turbines where they stand far apart."""

import math

import numpy as np
import pytest

from experiments.workloads.black_boxes.wind_farm import DIAMETER, HOURS, SPEED, TURBULENCE, penalty, start, wind_rose


@pytest.fixture(scope="module")
def floris():
    return pytest.importorskip("floris", reason="pip install '.[problems]'")


def farm(*arguments, **options):
    from experiments.workloads.black_boxes.wind_farm import WindFarm

    return WindFarm(*arguments, **options)


def test_the_wind_rose_turns_with_its_lobe():
    directions, frequencies = wind_rose(0.0)
    assert directions[:3].tolist() == [0.0, 10.0, 20.0] and frequencies.sum() == pytest.approx(1.0, rel=1e-12)
    assert frequencies.argmax() == 12
    turned = wind_rose(math.radians(70.0))[1]
    assert turned == pytest.approx(np.roll(frequencies, 7), rel=1e-12)
    fine = wind_rose(0.0, 3600)[1]
    lobes = [2 * np.i0(4.0), np.i0(8.0)]
    first = (2 * np.exp(4.0) + np.exp(8 * np.cos(2 * np.pi / 3))) / (3600 * sum(lobes))
    assert fine[0] == pytest.approx(first, rel=1e-9)


def test_the_penalty_is_its_formula_by_pairs():
    east, north = np.array([0.0, DIAMETER, DIAMETER]), np.array([0.0, 0.0, 3 * DIAMETER])
    assert penalty(east, north) == pytest.approx(100 * 0.25, rel=1e-12)
    assert penalty(np.zeros(3), np.zeros(3)) == pytest.approx(300.0, rel=1e-12)
    assert penalty(*np.split(2000.0 * start(0), 2)) == 0.0


def test_energy_is_floris_annual_energy_production(floris):
    found, u = farm(1.3, directions=8), start(2)
    directions, frequencies = wind_rose(1.3, 8)
    rose = floris.WindRose(directions, np.array([SPEED]), ti_table=TURBULENCE, freq_table=frequencies[:, None])
    configuration = floris.FlorisModel.get_defaults()
    for term in ("secondary_steering", "yaw_added_recovery", "transverse_velocities"):
        configuration["wake"][f"enable_{term}"] = False
    model = floris.FlorisModel(configuration)
    model.set(layout_x=2000.0 * u[:16], layout_y=2000.0 * u[16:], wind_data=rose)
    model.run()
    assert found.energy(u) == pytest.approx(model.get_farm_AEP() * 1e-9, rel=1e-12)
    assert found(u) == -found.energy(u)
    u[0], u[16] = u[1] + 0.05, u[17]
    assert found(u) == pytest.approx(100 * (1 - 100.0 / 252.0) ** 2 - found.energy(u), rel=1e-12)


def test_far_apart_there_are_no_wakes(floris):
    model = floris.FlorisModel(floris.FlorisModel.get_defaults())
    model.set(
        wind_directions=np.array([270.0]), wind_speeds=np.array([SPEED]), turbulence_intensities=np.array([TURBULENCE])
    )
    model.run()
    alone = HOURS * 1e-9 * float(model.get_turbine_powers()[0, 0])
    assert farm(0.4, side=2e6, directions=8).energy(start(0)) == pytest.approx(16 * alone, rel=1e-4)
    assert farm(0.4, directions=8).energy(start(0)) < 0.99 * 16 * alone


def test_yawed_power_is_floris_own_and_a_turned_front_turbine_helps_the_one_behind(floris):
    from experiments.workloads.black_boxes.wind_farm import Yaw

    east, north = np.array([0.0, 5 * DIAMETER]), np.zeros(2)
    problem, angles = Yaw(east, north, 270.0), np.array([0.5, -0.2])
    model = floris.FlorisModel(floris.FlorisModel.get_defaults())
    flow = {"wind_directions": np.array([266.0, 270.0, 274.0]), "wind_speeds": np.full(3, SPEED)}
    model.set(layout_x=east, layout_y=north, turbulence_intensities=np.full(3, TURBULENCE), **flow)
    model.set(yaw_angles=np.tile(30.0 * angles, (3, 1)))
    model.run()
    assert problem(angles) == pytest.approx(-1e-6 * model.get_farm_power().mean(), rel=1e-9)
    assert problem(np.array([0.8, 0.0])) < problem(np.zeros(2)) < problem(np.array([0.0, 0.8]))
