"""FZooS's default number of features follows d and the queries, as its docstring derives."""

import math

import pytest
import torch

from federated import algorithm_class, make_federation
from federated.methods.fzoos.options import BLOCKS, HELD_ROUNDS, MOST_FEATURES, default_features
from federated.testing import Quadratic
from surrogates import FourierFeatures, matern_kernel, rbf_kernel


@pytest.mark.parametrize(
    ("d", "options", "M"),
    [
        (10, {"rate_schedule": "constant"}, 480),  # 8 rounds of 10 (1 + 5) queries are more than 32 · 10
        (10, {"local_steps": 5}, 320),
        (300, {}, 9600),
        (313, {}, MOST_FEATURES),
        (50_000, {}, MOST_FEATURES),
        (2, {"rate_schedule": "constant", "local_steps": 300}, MOST_FEATURES),
        (3, {"rate_schedule": "constant", "local_steps": 20, "active": "round"}, 8 * 25),
        (3, {"rate_schedule": "constant", "local_steps": 20, "active": None}, 8 * 20),
        (2, {"local_steps": 20, "active": None, "feature_window": 75}, 76),
        (10, {"local_steps": 5, "feature_window": 50}, 320),
        (3, {}, 150),  # the queries of the window
        (3, {"feature_window": 200}, 200),
        (10, {"num_features": 10_000}, 10_000),
    ],
)
def test_the_number_follows_d_and_the_queries_of_a_round(d, options, M):
    if d > 1000:
        assert default_features(d, 480) == M
        return
    algorithm = algorithm_class("fzoos")(torch.zeros(d, dtype=torch.float64), clients=2, **options)
    assert algorithm.num_features == M == algorithm.features.num_features
    assert algorithm.configuration["num_features"] == M and algorithm.state_vectors["w"].shape == (M,)


def test_the_queries_of_the_rule_are_those_that_are_made():
    """A client's round after the first, whose batches are no longer than others."""
    for active in ("step", "round", None):
        objectives = [Quadratic(i) for i in range(2)]
        queries = {"active": active, "initial_queries": 5, "active_queries": 5}
        options = {"rate_schedule": "constant", "local_steps": 4} | queries
        made = make_federation("fzoos", objectives, torch.full((5,), 0.5, dtype=torch.float64), **options)
        made.run_round()
        before = objectives[0].queries
        made.run_round()
        assert HELD_ROUNDS * (objectives[0].queries - before) == made.algorithm.held


@pytest.mark.parametrize("kind", ["paired", "orthogonal"])
@pytest.mark.parametrize(("kernel", "second"), [(rbf_kernel, 1.0), (matern_kernel, 5.0 / 3.0)])
@pytest.mark.parametrize("d", [2, 12])
def test_the_gradients_error_is_under_the_bound_whatever_d(kind, kernel, second, d):
    """√(E‖∇φ(x)ᵀφ(x') − ∇k‖²) over seeds, against autograd of the exact kernel, at several distances."""
    lengthscale, M = 0.7, default_features(d, 0)
    assert 2 * BLOCKS * d == M
    exact = kernel(lengthscale)
    g = torch.Generator().manual_seed(d)
    other = torch.rand(1, d, generator=g, dtype=torch.float64)
    for distance in (0.3, 1.0, 2.5):
        step = torch.randn(1, d, generator=g, dtype=torch.float64)
        x = (other + distance * step / step.norm()).requires_grad_()
        (wanted,) = torch.autograd.grad(exact(x, other).to_dense().sum(), x)
        errors = []
        for seed in range(40):
            features = FourierFeatures(exact, d, M, seed, kind)
            found = features.gradient(x.detach(), features.features(other)[0].detach())
            errors.append(float((found - wanted).square().sum()))
        bound = math.sqrt(second) / (4.0 * lengthscale)
        assert math.sqrt(sum(errors) / len(errors)) < bound
