"""The rules for FZooS's γ that lost: they compute what they say, over messages of the size that they say."""

import pytest
import torch

from experiments.beyond.gamma_rules import AdaptiveAlong, EmpiricalBayes
from federated import algorithm_class, make_federation
from federated.testing import CHECKS, Promises, Quadratic, algorithm_factory, start
from federated.testing.fault_checks import check_failed_queries
from federated.testing.message_checks import check_bad_broadcasts
from federated.testing.run_checks import check_ledger, check_participation, check_resume
from tests.federated.methods.fzoos.checks import corrections, floats_of_a_round

F64 = torch.float64
N, D = 5, 6
SMALL = {"num_features": 64, "active_queries": 2, "candidates": 8, "initial_queries": 3}
ON_STATE = [check_ledger, check_participation, check_resume, check_bad_broadcasts, check_failed_queries]
FACTORY = algorithm_factory("fzoos", gamma=EmpiricalBayes(margin=True), active=None, **SMALL)


def make(**options):
    return make_federation("fzoos", [Quadratic(i) for i in range(4)], start(), **{"local_steps": 3} | SMALL | options)


def random(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=F64)


@pytest.mark.parametrize("count", [2, 3])
def test_gamma_over_several_points_and_its_one_number(count):
    federation = make(gamma=AdaptiveAlong(count))
    federation.run_round()
    before = federation.server.x
    federation.run_round()
    after, server = federation.server.x, federation.server.state
    numerator = denominator = 0.0
    for x in (before, after) if count == 2 else (before, (before + after) / 2, after):
        g = torch.stack([federation.algorithm.features.gradient(x[None], w)[0] for _, w in server.surrogates.items()])
        c = g.mean(0) - g
        m = torch.stack([federation.host.client(i).optimizer.state.models.gradient(x) for i in range(4)])
        numerator, denominator = numerator - (m * c).sum(), denominator + c.square().sum()
    assert server.gamma == pytest.approx(float((numerator / denominator).clamp(0, 1)), abs=1e-9)


@pytest.mark.parametrize("margin", [False, True])
@pytest.mark.parametrize("active", ["step", "round"])
def test_the_one_way_rule_measures_at_the_new_model(active, margin):
    federation = make(gamma=EmpiricalBayes(margin), active=active)
    for _ in range(2):
        federation.run_round()
    x, errors, gradients, t = federation.server.x, [], [], []
    for i in range(4):
        state = federation.host.client(i).optimizer.state
        gradients.append(federation.algorithm.features.gradient(x[None], state.weights)[0])
        errors.append(float((gradients[-1] - state.models.gradient(x)).square().sum()))
        posterior, local = state.models.local.gradient_posterior(x), state.models.local
        A = local.window.covariance
        ones, y = torch.ones(len(A), dtype=F64), local.window.y
        y = y - (ones @ torch.linalg.solve(A, y)) / (ones @ torch.linalg.solve(A, ones))
        t.append(float(posterior.trace) * float(y @ torch.linalg.solve(A, y)) / len(y))
    scalars = torch.tensor([errors, t] if margin else [errors], dtype=F64).T
    expected = EmpiricalBayes(margin).estimate(scalars, torch.stack(gradients), torch.ones(4, dtype=F64))
    assert federation.server.state.gamma == pytest.approx(expected, abs=1e-6)
    assert 0.0 < expected < 1.0


def test_the_one_way_rule():
    """γ = 1 − v/((1/N)Σ‖cᵢ‖²), v = (1 − 1/N)(1/N)Σ‖∇μ̂ᵢ − mᵢ‖², with (1/N²)Σ tⱼ added for the margin."""
    gradients, shares = random(N, D), torch.full((N,), 0.2, dtype=F64)
    errors, t = 1 + 0.1 * random(N, seed=1).abs(), 0.1 + 0.01 * random(N, seed=2).abs()
    squares = (gradients.mean(0) - gradients).square().sum(-1).mean()
    v = (1 - 1 / N) * errors.mean()
    plain = EmpiricalBayes().estimate(errors[:, None], gradients, shares)
    assert plain == pytest.approx(float(1 - v / squares), abs=1e-13)
    margin = EmpiricalBayes(margin=True).estimate(torch.stack([errors, t], dim=1), gradients, shares)
    assert margin == pytest.approx(float(1 - (v + t.sum() / N**2) / squares), abs=1e-13)
    assert 0 < margin < plain < 1
    assert EmpiricalBayes().estimate(errors[:, None], gradients[:1].expand(N, D), shares) == 0.0


def test_the_one_way_rule_is_right_for_independent_errors():
    """E Σ pᵢ‖cᵢ‖² = Σ pᵢ‖∇F − ∇fᵢ‖² + v, weighted: what it takes for noise is the noise."""
    shares = torch.arange(1.0, N + 1, dtype=F64)
    shares = shares / shares.sum()
    truth, deviations = random(N, 50), torch.linspace(0.5, 1.5, N, dtype=F64)
    noisy = truth + deviations[:, None] * random(20_000, N, 50, seed=5)
    total = (corrections(noisy, shares).square().sum(-1) @ shares).mean()
    signal = corrections(truth, shares).square().sum(-1) @ shares
    v = (shares * (1 - shares) * 50 * deviations.square()).sum()
    assert float(total) == pytest.approx(float(signal + v), rel=2e-3)


FLOATS = {
    "two points": (AdaptiveAlong(2), 3, 5 + 64 + 1, 5 + 64 + 1),
    "one way": (EmpiricalBayes(), 2, 5 + 64 + 1, 5 + 64 + 1),
    "margin": (EmpiricalBayes(margin=True), 2, 5 + 64 + 2, 5 + 64 + 1),
}


@pytest.mark.parametrize("rule, phases, up, down", FLOATS.values(), ids=FLOATS)
def test_floats_of_a_round(rule, phases, up, down):
    assert floats_of_a_round(make(gamma=rule)) == (phases, up, down)


def test_rules_and_their_options_are_of_the_configuration():
    def fingerprint(rule):
        return algorithm_class("fzoos")(start(), clients=2, gamma=rule, **SMALL).fingerprint

    rules = ("adaptive", AdaptiveAlong(2), AdaptiveAlong(3), EmpiricalBayes(), EmpiricalBayes(margin=True))
    assert len({fingerprint(rule) for rule in rules}) == len(rules)
    assert fingerprint(AdaptiveAlong(2)) == fingerprint(AdaptiveAlong(2))
    with pytest.raises(ValueError, match="aggregation='mean'"):
        algorithm_class("fzoos")(start(), clients=2, gamma=EmpiricalBayes(), aggregation="median", **SMALL)


@pytest.mark.parametrize("check", ON_STATE, ids=lambda check: check.__name__)
def test_the_battery(check):
    check(FACTORY, Promises())


@pytest.mark.slow
@pytest.mark.parametrize("check", [check for check in CHECKS if check not in ON_STATE], ids=lambda c: c.__name__)
def test_the_whole_battery(check):
    check(FACTORY, Promises())
