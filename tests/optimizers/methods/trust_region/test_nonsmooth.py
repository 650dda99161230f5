"""Functions with kinks, and functions in steps."""

import math

import numpy as np
import pytest
import torch

from optimizers import SurrogateTrustRegion, run
from optimizers.methods.trust_region.portfolio import PortfolioRule
from optimizers.methods.trust_region.rules import GeometryRule, NoiseRule, TrustRegionRules
from optimizers.subproblems.region import Region
from surrogates.pinned.engine import PinnedData, ShapeSearch
from surrogates.pinned.prior import Hyperparameters

NEVER = TrustRegionRules(noise=NoiseRule(kinks=math.inf, plateaus=0))


def found(fun, seed, d, budget, rules):
    rng = np.random.default_rng(seed)
    center, Q = torch.from_numpy(rng.uniform(-3.0, 3.0, d)), np.linalg.qr(rng.standard_normal((d, d)))[0]
    start = rng.uniform(-4.0, 4.0, d)
    opt = SurrogateTrustRegion(start, bounds=[(-5.0, 5.0)] * d, max_queries=budget, seed=seed, rules=rules)
    return run(opt, lambda x: float(fun(torch.from_numpy(Q) @ (x - center)))).fun


@pytest.mark.slow
def test_a_kink_in_ten_variables_is_approached_closer_than_without_its_rules():
    """The mean over 12 seeds of log10 of max|Q(x − c)|, paired, with twice its standard error."""
    largest = lambda y: y.abs().max()  # noqa: E731
    both = [[found(largest, seed, 10, 300, rules) for rules in (NEVER, TrustRegionRules())] for seed in range(12)]
    gains = [math.log10(before / after) for before, after in both]
    assert np.mean(gains) - 2.0 * np.std(gains, ddof=1) / math.sqrt(len(gains)) > 0.0


@pytest.mark.slow
def test_the_least_step_of_a_rounded_quadratic_is_found():
    """With the rule every seed's run reaches the least step; without it some do not."""
    D = torch.logspace(0, 1, 6, dtype=torch.float64)
    rounded = lambda y: (D * y.square()).sum().round()  # noqa: E731
    assert all(found(rounded, seed, 6, 150, TrustRegionRules()) == 0.0 for seed in range(6))
    assert any(found(rounded, seed, 6, 150, NEVER) > 0.0 for seed in range(6))


def test_equal_values_of_a_symmetric_function_are_no_steps():
    """From a symmetric start, the design's five values are equal: its run ended after the design."""

    def f(x):
        return float((x.sum() - 6.0) ** 2 + 50.0 * (x.prod() - 1.0) ** 2)

    rules = TrustRegionRules(portfolio=PortfolioRule(least=0))
    opt, kinds = SurrogateTrustRegion([0.5] * 5, bounds=[(-5.0, 5.0)] * 5, max_queries=60, rules=rules), []
    while not opt.stopped:
        batch = opt.ask()
        kinds.append(batch.info["kind"])
        opt.tell(batch, [f(x) for x in batch.points()])
    # How low the run gets depends on the processor's rounding, because the function is not convex.
    assert "Restart" not in kinds and opt.result().fun < 0.5 * f(torch.full((5,), 0.5))


def points_and(fun, seed, n=86, d=10):
    U = torch.from_numpy(np.random.default_rng(seed).standard_normal((n, d))) / math.sqrt(d)
    return U, fun(U)


@pytest.mark.parametrize(
    ("fun", "kinked"),
    [
        (lambda U: U.abs().amax(dim=1), True),
        (lambda U: U.abs().sum(dim=1), True),
        (lambda U: U.sum(dim=1).cos(), False),
    ],
    ids=["max", "l1", "cosine"],
)
def test_errors_at_kinks_are_found_for_norms_and_not_for_a_smooth_function(fun, kinked):
    rule, search = NoiseRule(), ShapeSearch()
    for seed in range(5):
        U, values = points_and(fun, seed)
        data = PinnedData.of(U, values - fun(U[:1] * 0.0), weights=rule.kink_weights(U))
        assert (rule.kinks_fitted(data, Hyperparameters(), search).noise > 0.0) is kinked


def test_the_variance_of_errors_grows_with_the_distance_from_the_center():
    """The posterior mean at the data is K(K + s² diag‖u‖)⁻¹y."""
    U, values = points_and(lambda U: U.abs().sum(dim=1), 0)
    params = Hyperparameters(amplitude=2.0, noise=0.5)
    data = PinnedData.of(U, values, weights=NoiseRule().kink_weights(U))
    polynomial, bracket = data.prior.parts(U)
    K = polynomial + 2.0 * bracket
    mean = K @ torch.linalg.solve(K + 0.5 * torch.diag(U.norm(dim=1)), values)
    np.testing.assert_allclose(data.model(params).means(), mean, rtol=1e-6, atol=1e-9)


def test_repeated_values_are_steps_and_not_kinks():
    rule, few, many = NoiseRule(), torch.tensor([1.0, 2.0, 3.0, 3.0]), torch.tensor([1.0, 1.0, 1.0, 2.0])
    assert rule.may_be_kinked(few, 6) and not rule.may_be_kinked(few, 5) and not rule.may_be_kinked(many, 6)
    assert NoiseRule(plateaus=0).may_be_kinked(many, 6) and not NoiseRule(kinks=math.inf).may_be_kinked(few, 6)


@pytest.mark.parametrize("fixed", [False, True])
def test_the_direction_least_covered_by_near_queries_points_downhill(fixed):
    """The near rows lie almost in a plane; the direction is its normal, among variables that may move."""
    rng, rule = np.random.default_rng(0), GeometryRule()
    rows = torch.from_numpy(rng.standard_normal((9, 4)) * [1.0, 1.0, 1e-2, 1.0])
    far = torch.tensor([[0.0, 0.0, 99.0, 0.0]]).double()
    upper = torch.tensor([9.0, 9.0, 0.0 if fixed else 9.0, 9.0]).double()
    region = Region(1.5, torch.minimum(-upper, upper * 0.0), upper)
    slope = torch.tensor([1.0, 1.0, 5.0, 1.0]).double()
    direction = rule.uncovered(torch.cat([rows, far]), slope, region)
    if fixed:
        assert direction is None
        return
    near = rows[rows.norm(dim=1) <= 3.0]
    trials = torch.nn.functional.normalize(torch.from_numpy(rng.standard_normal((4000, 4))), dim=1)
    assert float((near @ direction).square().sum()) <= float((near @ trials.mT).square().sum(0).min())
    assert float(direction.norm()) == pytest.approx(1.0) and float(direction @ slope) < 0.0
    assert GeometryRule(coverage=0).uncovered(rows, slope, region) is None


def test_a_constant_function_is_searched_at_its_first_scale():
    opt = SurrogateTrustRegion([0.0, 0.0], bounds=[(-5.0, 5.0)] * 2, max_queries=60)
    kinds = []
    while not opt.stopped:
        batch = opt.ask()
        kinds.append(batch.info["kind"])
        opt.tell(batch, [1.0] * len(batch))
        assert opt.state.run.radius.rho == 2.0
    assert kinds.count("Restart") > 3
