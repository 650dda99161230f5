"""The scales of variables: those that are given, those of a box, those of x0, and those that a design teaches."""

import contextlib
import math

import numpy as np
import pytest
import torch
from scipy.optimize import minimize as scipy_minimize

from optimizers import RGF, SurrogateTrustRegion, minimize
from optimizers.methods.trust_region.box import FreeBox
from optimizers.methods.trust_region.scales import Parabolas, ScaleRule

UNITS = np.array([1e-4, 1e3, 1.0])


def in_very_different_units(x):
    return float(np.square(np.asarray(x) / UNITS - 3.0).sum())


@pytest.mark.parametrize(
    ("x0", "bounds", "x_scale"),
    [
        (UNITS, [(0.0, 1e-3), (0.0, 1e4), (0.0, 10.0)], None),
        (UNITS, [(0.0, 1e-3), (0.0, 1e4), (0.0, None)], None),
        (UNITS, [(0.0, 1e-3), (None, None), (None, 10.0)], None),
        (UNITS, None, None),
        (0.0 * UNITS, None, None),
        (0.0 * UNITS, None, UNITS),
        (0.0 * UNITS, [(0.0, 1e4)] * 3, UNITS),
    ],
    ids=str,
)
def test_variables_in_very_different_units(x0, bounds, x_scale):
    """One open side turned off the scaling of all, and the first run without a whole box ended at 4 of 12."""
    result = minimize(in_very_different_units, x0, bounds=bounds, x_scale=x_scale, max_queries=80, progress=False)
    assert result.fun < 1e-12


def rosenbrock(x):
    return 100.0 * (x[1] - x[0] ** 2) ** 2 + (1.0 - x[0]) ** 2


class Spent(Exception):
    pass


def by_cobyqa(f, x0, bounds, radius, budget):
    best, count = math.inf, 0

    def counted(x):
        nonlocal best, count
        if count == budget:
            raise Spent
        best, count = min(best, f(x)), count + 1
        return f(x)

    with contextlib.suppress(Spent):
        scipy_minimize(counted, x0, method="COBYQA", bounds=bounds, options={"initial_tr_radius": radius})
    return best


@pytest.mark.slow
@pytest.mark.parametrize("half", [1e2, 1e3, 1e4])
def test_in_a_box_that_is_far_too_wide_a_run_is_no_worse_than_cobyqa_from_the_same_radius(half):
    """The median was 0.7 in ±1e3."""
    rng, bounds, ours, theirs = np.random.default_rng(0), [(-half, half)] * 2, [], []
    for _ in range(10):
        x0 = np.array([-1.2, 1.0]) + 0.1 * rng.standard_normal(2)
        optimizer = SurrogateTrustRegion(x0, bounds=bounds, max_queries=100)
        radius = optimizer.state.run.radius.delta * 2.0 * half / 10.0
        ours.append(float(minimize(rosenbrock, x0, bounds=bounds, max_queries=100, progress=False).fun))
        theirs.append(by_cobyqa(rosenbrock, x0, bounds, radius, 100))
    assert np.median(ours) <= np.median(theirs)


def test_a_scale_is_that_which_is_given_or_a_sides_or_that_of_x0():
    x0 = torch.tensor([0.0, 3e-6, 4.0, 5.0, 0.1, 7.0], dtype=torch.float64)
    sides = [(None, None), (None, 1.0), (0.0, None), (None, None), (0.0, 40.0), (7.0, 7.0)]
    scale = SurrogateTrustRegion(x0, bounds=sides, max_queries=60).state.scale
    mean = (3e-6 * 4.0 * 5.0) ** (1.0 / 3.0)
    near = [mean, 3e-6, 4.0, 5.0, 1.0]
    np.testing.assert_array_equal(scale, 2.0 ** np.round(np.log2(near)))
    given = SurrogateTrustRegion(x0, bounds=sides, x_scale=[1, 2, 4, 8, 16, 32], max_queries=60)
    assert given.state.scale.tolist() == [1, 2, 4, 8, 16] and given.state.run.radius.delta == 1.0
    same = torch.randn(100, generator=torch.Generator().manual_seed(0)).double()
    assert len(SurrogateTrustRegion(same, max_queries=60).state.scale.unique()) == 1  # what differs by chance is alike
    for nothing in ({}, {"rescale": False}):
        start = torch.zeros(3) if not nothing else torch.full((3,), 8.0)
        assert SurrogateTrustRegion(start, max_queries=60, **nothing).state.scale.tolist() == [1, 1, 1]


def test_parabolas_of_a_quadratic_are_its_slopes_and_curvatures_with_unequal_sides_too():
    g, c = torch.tensor([2.0, -3.0]).double(), torch.tensor([5.0, -7.0]).double()
    rows = torch.cat([torch.diag(torch.tensor([1.0, -0.5])), torch.diag(torch.tensor([-2.0, 1.0]))]).double()
    found = Parabolas.of(rows, rows @ g + 0.5 * rows.square() @ c)
    torch.testing.assert_close(found.slopes, g * torch.tensor([1.0, -1.0]))  # along the first point of each axis
    torch.testing.assert_close(found.curvatures, c)


def test_after_a_design_the_new_scales_hold_its_minimum_and_curvatures_are_alike():
    box = FreeBox(torch.zeros(4, dtype=torch.float64), None)
    found = Parabolas(torch.tensor([6e4, 6e-3, 6.0, 1.0]).double(), torch.tensor([2e8, 2e-6, 2.0, -1.0]).double())
    factors = ScaleRule().factors(box, found, 1.0)
    assert factors[2:].tolist() == [1.0, 1.0] and bool((factors.log2() == factors.log2().round()).all())
    curvatures = found.curvatures * factors.square()
    assert 0.25 <= float(curvatures[0] / curvatures[1]) <= 4.0


def test_a_resumed_run_has_the_scales_that_it_has_learned():
    first = SurrogateTrustRegion([0.0] * 3, max_queries=30)
    for _ in range(3):
        first.tell(batch := first.ask(), [in_very_different_units(x) for x in batch])
    second = SurrogateTrustRegion([0.0] * 3, max_queries=30)
    second.load_state_dict(first.state_dict())
    assert first.state.scale.unique().numel() > 1
    for optimizer in (first, second):
        while not optimizer.stopped:
            optimizer.tell(batch := optimizer.ask(), [in_very_different_units(x) for x in batch])
    assert torch.equal(first.best_x, second.best_x) and first.best_fun < 1e-6


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"x_scale": 0.0}, "x_scale must be .* got 0.0"),
        ({"x_scale": [1.0, math.inf]}, "x_scale must be"),
        ({"x_scale": [1.0, 2.0, 3.0]}, r"x_scale must .* 2 variables"),
        ({"x_scale": "jac"}, "x_scale must be real numbers, got .* 'jac'"),
        ({"x_scale": 1.0, "rescale": True, "bounds": [(-1, 1)] * 2}, "x_scale cannot be combined with rescale=True"),
    ],
)
def test_scales_that_cannot_be_are_refused(options, words):
    with pytest.raises((ValueError, TypeError), match=words):
        SurrogateTrustRegion([0.5, 0.5], max_queries=10, **options)


def test_a_scale_that_float32_does_not_hold_is_taken():
    for scale in (1e-50, 1e50):
        design = SurrogateTrustRegion([0.0, 0.0], max_queries=10, x_scale=scale).ask().points()
        assert 0.7 * scale < float(design.abs().max()) < 1.5 * scale


def test_a_method_without_scales_says_so():
    with pytest.raises(TypeError, match="RGF has no option 'x_scale'"):
        RGF([0.5, 0.5], max_queries=10, x_scale=1.0)
