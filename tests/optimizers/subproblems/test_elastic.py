import numpy as np
import pytest
import torch
from scipy.optimize import minimize as scipy_minimize

from optimizers.subproblems.elastic import Values, minimize_elastic, multipliers, violation
from optimizers.subproblems.region import HalfSpace, Region


class Problem:
    """A convex quadratic under curved constraints g = aᵀs + ½κ‖s‖² − b."""

    def __init__(self, d, m, seed, curvature=0.2):
        rng = np.random.default_rng(seed)
        M = rng.standard_normal((d, d))
        self.H, self.g = M @ M.T + 0.1 * np.eye(d), rng.standard_normal(d)
        self.A = rng.standard_normal((m, d))
        self.A /= np.linalg.norm(self.A, axis=1, keepdims=True)
        self.b, self.curvature = rng.uniform(-0.05, 0.2, m), curvature

    def values(self, s):
        rows = self.A @ s + 0.5 * self.curvature * s @ s - self.b
        return Values(float(self.g @ s + 0.5 * s @ self.H @ s), rows)

    def slopes(self, s):
        return self.g + self.H @ s, self.A + self.curvature * s


def region(d, delta, side=np.inf, half_space=None):
    sides = torch.full((d,), side, dtype=torch.float64)
    return Region(delta, -sides, sides, half_space)


def solved(problem, where, price, d, m):
    hessian = getattr(problem, "H", np.eye(d))
    return minimize_elastic(
        problem.values, problem.slopes, price, where, np.zeros(d), np.zeros(m), np.zeros(m, dtype=bool), hessian
    )


@pytest.mark.parametrize("seed", range(8))
def test_with_a_high_price_the_step_is_the_constrained_minimum(seed):
    d, m, delta, side = 4, 3, 2.0, 0.6
    problem = Problem(d, m, seed)
    known = scipy_minimize(
        lambda s: problem.values(s).f,
        np.zeros(d),
        method="trust-constr",
        bounds=[(-side, side)] * d,
        constraints=[
            {"type": "ineq", "fun": lambda s: -problem.values(s).rows},
            {"type": "ineq", "fun": lambda s: delta**2 - s @ s},
        ],
        options={"gtol": 1e-10, "xtol": 1e-12, "maxiter": 3000},
    )
    s = solved(problem, region(d, delta, side), 100.0, d, m)
    assert violation(problem.values(s).rows) < 1e-6
    assert problem.values(s).f == pytest.approx(known.fun, abs=1e-4)
    assert np.abs(s).max() <= side + 1e-15 and np.linalg.norm(s) <= delta * (1 + 1e-12)


@pytest.mark.parametrize("seed", range(5))
def test_multipliers_meet_the_conditions_of_the_minimum(seed):
    d, m = 4, 3
    problem, where = Problem(d, m, seed), region(4, 5.0)
    s = solved(problem, where, 100.0, d, m)
    found = multipliers(problem.values(s).rows, problem.slopes(s), s, where, 1e-5)
    slope, slopes = problem.slopes(s)
    assert (found >= 0.0).all()
    assert slope + found @ slopes == pytest.approx(np.zeros(d), abs=1e-4)


def test_under_the_multiplier_the_price_lets_a_constraint_be_violated():
    class Line:
        def values(self, s):
            return Values(float(-s[0]), np.array([s[0] - 0.1]))

        def slopes(self, s):
            return np.array([-1.0]), np.array([[1.0]])

    for price, end in ((0.5, 1.0), (2.0, 0.1)):
        assert solved(Line(), region(1, 1.0), price, 1, 1) == pytest.approx([end], abs=1e-9)


def test_constraints_that_contradict_each_other_are_violated_alike():
    class Contradiction:
        def values(self, s):
            return Values(0.01 * float(s.sum()), np.array([s[0] + 0.3, 0.5 - s[0], s[0] + 0.3]))

        def slopes(self, s):
            return np.full(2, 0.01), np.array([[1.0, 0.0], [-1.0, 0.0], [1.0, 0.0]])

    s = solved(Contradiction(), region(2, 1.0), 10.0, 2, 3)
    assert s[0] == pytest.approx(0.1, abs=1e-7)
    assert violation(Contradiction().values(s).rows) == pytest.approx(0.4, abs=1e-7)


@pytest.mark.parametrize("delta", [1e-9, 1.0, 1e6])
def test_the_step_follows_the_scale_of_lengths(delta):
    class Scaled:
        def values(self, s):
            return Values(1e5 * float(s[0] + s[1]), np.array([-s[0] - 0.2 * delta]))

        def slopes(self, s):
            return np.full(2, 1e5), np.array([[-1.0, 0.0]])

    s = solved(Scaled(), region(2, delta), 1e6, 2, 1) / delta
    assert s == pytest.approx([-0.2, -np.sqrt(1.0 - 0.04)], abs=1e-6)


def test_margins_hard_constraints_and_the_plane_hold():
    problem = Problem(3, 2, 1)
    problem.b = np.array([0.1, 0.1])
    normal = -torch.from_numpy(problem.g / np.linalg.norm(problem.g))
    where, margin = region(3, 1.0, half_space=HalfSpace(2.0 * normal)), np.array([0.05, 0.0])
    s = minimize_elastic(
        problem.values, problem.slopes, 1e-3, where, np.zeros(3), margin, np.ones(2, dtype=bool), np.eye(3)
    )
    rows = problem.values(s).rows
    assert rows[0] <= -0.05 + 1e-7 and rows[1] <= 1e-7
    assert 2.0 * float(normal @ torch.from_numpy(s)) <= where.half_space.allowed(1.0) + 1e-7
