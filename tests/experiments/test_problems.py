"""Test functions against BoTorch's, and what a problem promises about its minimum and its box."""

import pytest
import torch
from botorch.test_functions import Ackley, Levy, Rosenbrock

from experiments.workloads.problems import quadratic, standard_problem

BOTORCH = {"ackley": Ackley, "levy": Levy, "rosenbrock": Rosenbrock}


def _generator(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("name", BOTORCH)
@pytest.mark.parametrize("dim", [2, 10])
def test_values_bounds_and_minimum_equal_botorchs(name, dim):
    ours, theirs = standard_problem(name, dim), BOTORCH[name](dim=dim).to(torch.float64)
    X = ours.sample(20, _generator()).reshape(4, 5, dim)
    torch.testing.assert_close(ours(X), theirs(X), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(ours.bounds, theirs.bounds, rtol=0, atol=1e-12)
    assert ours.minimum == theirs.optimal_value
    assert abs(float(ours(ours.minimizer)) - ours.minimum) < 1e-12


@pytest.mark.parametrize("name", BOTORCH)
def test_gradient_equals_central_differences(name):
    problem = standard_problem(name, 3)
    X = problem.sample(7, _generator(1))
    steps = 1e-6 * torch.eye(3, dtype=X.dtype)
    differences = (problem(X.unsqueeze(-2) + steps) - problem(X.unsqueeze(-2) - steps)) / 2e-6
    torch.testing.assert_close(problem.gradient(X), differences, rtol=1e-6, atol=1e-5)


def test_gradient_leaves_its_argument_without_one():
    problem = standard_problem("levy", 2)
    X = problem.sample(3, _generator())
    assert not problem.gradient(X).requires_grad and not X.requires_grad


def test_scaled_problem_is_the_same_function_on_another_box():
    problem = standard_problem("rosenbrock", 4)
    unit = problem.scaled()
    Z = unit.sample(9, _generator(2))
    assert Z.min() >= 0 and Z.max() <= 1
    X = problem.lower + Z * (problem.upper - problem.lower)
    torch.testing.assert_close(unit(Z), problem(X))
    torch.testing.assert_close(unit.gradient(Z), problem.gradient(X) * (problem.upper - problem.lower))
    assert abs(float(unit(unit.minimizer))) < 1e-20


def test_dtype_follows_the_input():
    assert standard_problem("ackley", 3)(torch.rand(2, 3, dtype=torch.float32)).dtype == torch.float32


def test_a_quadratic_is_its_formula_and_its_gradient_is_linear():
    root, X = torch.randn(2, 3, 3, generator=_generator(3), dtype=torch.float64)
    curvature, shift = root @ root.mT, torch.tensor([0.3, -0.1, 0.2], dtype=torch.float64)
    curvature = 0.5 * (curvature + curvature.mT)
    problem = quadratic(curvature, shift, (-1.0, 2.0))
    torch.testing.assert_close(problem(X), torch.stack([0.5 * (x - shift) @ curvature @ (x - shift) for x in X]))
    torch.testing.assert_close(problem.gradient(X), (X - shift) @ curvature)
    assert float(problem(shift)) == problem.minimum == 0.0
    assert problem.bounds.tolist() == [[-1.0] * 3, [2.0] * 3] and problem.lower.dtype == torch.float64


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: standard_problem("sphere", 3), "choose from ackley, levy, rosenbrock"),
        (lambda: standard_problem("rosenbrock", 1), "at least 2 dimensions, got 1"),
        (lambda: standard_problem("levy", 2, bounds=(1.0, 1.0)), "increasing"),
    ],
)
def test_bad_input_is_named(make, message):
    with pytest.raises(ValueError, match=message):
        make()
