"""BFGS in a rectangle against closed forms, the conditions of a minimum, and scipy."""

import math

import numpy as np
import pytest
from scipy.optimize import minimize

from surrogates.window.box_descent import Rectangle, minimize_in_rectangle

WIDE = Rectangle((-5.0, -5.0), (5.0, 5.0))


class Counted:
    def __init__(self, f):
        self.f, self.points = f, []

    def __call__(self, x):
        self.points.append(x)
        return self.f(x)


def rosenbrock(x):
    a, b = x
    return 100 * (b - a * a) ** 2 + (1 - a) ** 2, (-400 * a * (b - a * a) - 2 * (1 - a), 200 * (b - a * a))


def quadratic(A, centre):
    def f(x):
        gradient = A @ (np.array(x) - centre)
        return 0.5 * float(gradient @ (np.array(x) - centre)), (float(gradient[0]), float(gradient[1]))

    return f


def test_the_valley_of_rosenbrock_is_followed_to_its_end():
    f = Counted(rosenbrock)
    found = minimize_in_rectangle(f, (-1.2, 1.0), WIDE, 100)
    assert found.x == pytest.approx((1.0, 1.0), abs=1e-4) and len(f.points) < 80
    assert (found.value, tuple(found.gradient)) == rosenbrock(found.x)


def test_a_bound_across_the_valley_holds():
    # For a <= 1/2 the least value is that of (1/2, 1/4).
    found = minimize_in_rectangle(rosenbrock, (-1.2, 1.0), Rectangle((-2.0, -2.0), (0.5, 2.0)), 100)
    assert found.x[0] == 0.5 and found.x[1] == pytest.approx(0.25, abs=1e-5)


@pytest.mark.parametrize("seed", range(40))
def test_convex_quadratics_end_at_their_minimum_in_the_rectangle(seed):
    rng = np.random.default_rng(seed)
    R = rng.normal(size=(2, 2))
    A, centre = R @ R.T + 0.05 * np.eye(2), rng.uniform(-8, 8, 2)
    f = Counted(quadratic(A, centre))
    x = np.array(minimize_in_rectangle(f, tuple(rng.uniform(-5, 5, 2)), WIDE, 60).x)
    gradient = A @ (x - centre)
    # Karush-Kuhn-Tucker: no derivative within the rectangle, none that leads inwards at its bounds.
    for value, slope in zip(x, gradient, strict=True):
        inside = abs(value) < 5.0
        assert abs(slope) < 2e-3 if inside else slope * value < 2e-3
    assert all(np.abs(point).max() <= 5.0 for point in f.points)


@pytest.mark.parametrize("seed", range(20))
def test_it_ends_no_higher_than_lbfgsb_and_needs_about_as_many_evaluations(seed):
    rng = np.random.default_rng(seed)
    a, b, start = rng.uniform(0.3, 3, 2), rng.uniform(-2, 2, 2), tuple(rng.uniform(-1, 1, 2))

    def f(x):
        u = (a[0] * (x[0] - b[0]), a[1] * (x[1] - b[1] + 0.3 * x[0]))
        du = (math.tanh(u[0]) + 0.02 * u[0], math.tanh(u[1]) + 0.02 * u[1])
        value = math.log(math.cosh(u[0])) + math.log(math.cosh(u[1])) + 0.01 * (u[0] ** 2 + u[1] ** 2)
        return value, (a[0] * du[0] + 0.3 * a[1] * du[1], a[1] * du[1])

    ours = Counted(f)
    found = minimize_in_rectangle(ours, start, WIDE, 60)
    peer = minimize(
        lambda x: (f(x)[0], np.array(f(x)[1])), start, jac=True, method="L-BFGS-B", bounds=[(-5, 5), (-5, 5)]
    )
    assert found.value <= peer.fun + 1e-6
    assert len(ours.points) <= peer.nfev + 8


def test_a_start_where_bounds_hold_everything_is_the_answer():
    f = Counted(lambda x: (x[0] + x[1], (1.0, 1.0)))
    assert tuple(minimize_in_rectangle(f, (-5.0, -5.0), WIDE, 10).x) == (-5.0, -5.0) and len(f.points) == 1
    assert tuple(minimize_in_rectangle(f, (5.0, 5.0), WIDE, 20).x) == (-5.0, -5.0)


def test_a_rectangle_of_no_width_is_a_line():
    line = Rectangle((0.25, -5.0), (0.25, 5.0))
    found = minimize_in_rectangle(quadratic(np.eye(2), np.array([1.0, 2.0])), (0.25, 0.0), line, 20)
    assert found.x == pytest.approx((0.25, 2.0), abs=1e-6)


def test_steps_stay_out_of_where_the_value_is_infinite():
    def f(x):
        # -log of the distance to the circle of radius 1, beyond which it is infinite.
        left = 1 - x[0] ** 2 - x[1] ** 2
        if left <= 0:
            return math.inf, (0.0, 0.0)
        return -math.log(left) - 3 * x[0], (2 * x[0] / left - 3, 2 * x[1] / left)

    found = minimize_in_rectangle(f, (-0.9, 0.3), WIDE, 60)
    # 2a/(1 - a²) = 3 at the minimum.
    assert found.x == pytest.approx(((math.sqrt(10) - 1) / 3, 0.0), abs=1e-4)
    assert minimize_in_rectangle(f, (2.0, 2.0), WIDE, 60).value == math.inf


@pytest.mark.parametrize("steps", [1, 2, 3, 5, 8])
def test_no_number_of_steps_ends_higher_than_the_start(steps):
    for seed in range(20):
        start = tuple(np.random.default_rng(seed).uniform(-5, 5, 2))
        assert minimize_in_rectangle(rosenbrock, start, WIDE, steps).value <= rosenbrock(start)[0]
