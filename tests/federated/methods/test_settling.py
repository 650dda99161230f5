"""``rate_schedule="settling"``: the rule, what clients do with it, what it reaches, and what is refused."""

import dataclasses
import math

import numpy as np
import pytest
import torch

from federated import make_federation
from federated.core.messages import MessageError
from federated.core.settling import MIN_SCALE, Settling
from federated.methods.fzoos.client_surrogates import ClientSurrogates
from surrogates import FourierFeatures
from surrogates.window.local_options import KERNELS, LocalSurrogateOptions

METHODS = ("fedzo", "fedprox", "scaffold1", "scaffold2", "fzoos")


def quadratic(center, weights):
    return lambda x: (weights * (x - center).square()).sum()


def problem(d, clients, seed):
    """Quadratics of different minima and curvatures, and the minimum of their mean."""
    draws = np.random.default_rng(seed)
    centers = torch.from_numpy(draws.uniform(0.3, 0.7, (clients, d)))
    weights = torch.from_numpy(draws.uniform(0.5, 1.5, (clients, d)))
    least = (weights * centers).sum(0) / weights.sum(0)
    return [quadratic(*pair) for pair in zip(centers, weights, strict=True)], least


def federation(method, seed=0, d=6, clients=3, **options):
    functions, least = problem(d, clients, seed)
    x0 = torch.full((d,), 0.1, dtype=torch.float64)
    options = {"local_steps": 5} | options
    return make_federation(method, functions, x0, bounds=[(0.0, 1.0)] * d, seed=seed, **options), least


def test_the_rate_is_halved_where_the_model_turns_back_and_grows_where_it_goes_on():
    at = lambda *x: torch.tensor(x, dtype=torch.float64)  # noqa: E731
    rule = Settling(at(0.0, 0.0), at(0.0, 0.0))
    seen = []
    for x in [(1, 0), (2, 0), (1.5, 0), (1.5, 1), (1.5, 2), (1.4, 3), (1.4, 3), (1.4, 2), (1.4, 3)]:
        rule = rule.after(at(*map(float, x)), False)
        seen.append(rule.scale)
    # On, on, back, across (cosine 0), on, nearly on, none (skipped), back, back.
    assert seen == [1.0, 1.0, 0.5, 0.5, 0.625, 0.78125, 0.78125, 0.390625, 0.1953125]
    assert rule.after(at(9.0, 9.0), True).scale == 0.09765625
    for _ in range(60):
        rule = rule.after(rule.x, True)
    assert rule.scale == MIN_SCALE


def round_of(server, clients, functions):
    """One round by hand; the steps from the model that was sent to where the clients end."""
    x, number = server.x, server.round
    while server.round == number:
        reports, phase = [], server.phase
        for client, fun in zip(clients, functions, strict=True):
            client.receive(server.broadcast(client.number if server.algorithm.personal else None))
            while (batch := client.ask()) is not None:
                client.tell(batch, torch.stack([fun(z) for z in batch.points()]))
            reports.append(client.report())
        if phase == "local":
            steps = [report.tensors["x"] - x for report in reports]
        assert not server.aggregate(reports).refused
    return steps


@pytest.mark.parametrize("method", METHODS)
def test_clients_step_by_the_rate_that_the_server_sends(method):
    """Adam's first step is its rate long in every coordinate, whatever the gradient."""
    options = {"num_features": 50, "active": None} if method == "fzoos" else {}
    run, _ = federation(method, rate_schedule="settling", local_steps=1, **options)
    algorithm, (functions, _) = run.algorithm, problem(6, 3, 0)
    server, clients = algorithm.server_class(algorithm), [algorithm.client_class(algorithm, i) for i in range(3)]
    for scale in (1.0, 0.125):
        server._settling = dataclasses.replace(server._settling, scale=scale)
        for _ in range(2):  # FZooS's clients have a gradient from the second round on
            server._settling = dataclasses.replace(server._settling, scale=scale)
            steps = round_of(server, clients, functions)
        for step in steps:
            torch.testing.assert_close(step.abs(), torch.full_like(step, 0.01 * scale), rtol=1e-3, atol=0.0)


@pytest.mark.parametrize("rate", [0.0, -1.0, 1.5, math.nan])
def test_a_rate_out_of_range_is_refused(rate):
    run, _ = federation("fedzo", rate_schedule="settling")
    algorithm = run.algorithm
    client, message = algorithm.client_class(algorithm, 0), algorithm.server_class(algorithm).broadcast()
    with pytest.raises(MessageError, match="rate"):
        client.receive(dataclasses.replace(message, values={"rate": rate}))
    assert client.round == 0
    client.receive(message)


def test_without_it_nothing_more_is_sent():
    run, _ = federation("fedzo")
    assert run.server.broadcast().values == {}


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_fzoos_goes_on_falling(seed):
    """Where the rule's constant rate ends at the length of its steps."""
    gaps = {}
    for rate in ("constant", "settling"):
        run, least = federation("fzoos", seed, num_features=200, rate_schedule=rate)
        for _ in range(20):
            run.run_round()
        gaps[rate] = float((run.server.x - least).norm())
    assert gaps["settling"] < 0.03 * gaps["constant"], gaps


@pytest.mark.parametrize(("given", "wider"), [(20, 45), (7, 7), (60, 60)])
def test_a_wider_window_leaves_the_feature_window_that_was_asked_for(given, wider):
    """3d/2 = 45 queries at d = 30; the Fourier surrogate had the window's 20, or as many as somebody wanted."""
    features = FourierFeatures(KERNELS["rbf"](1.0), 30, 64, 0)
    x = torch.zeros(30, dtype=torch.float64)
    models = ClientSurrogates(x, features, LocalSurrogateOptions(20, 1.0, 1e-6), 1e-6, given)
    X = torch.linspace(-1.0, 1.0, 50 * 30, dtype=torch.float64).sin().reshape(50, 30)
    models.local.append(X, X.square().sum(-1))
    models.settle(x, wider=True)
    assert (models.local.size, models.feature_window) == (45, wider)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("count", [16, 60])
def test_queries_at_one_point_are_factored_with_fewer_features_too(dtype, count):
    """Where steps have become shorter than the points' last digit, or queries are clamped to a corner."""
    X = torch.full((150, 3), 0.5, dtype=dtype)
    features = FourierFeatures(KERNELS["rbf"](1.0), 3, count, 0, "orthogonal")
    made = ClientSurrogates(X[0], features, LocalSurrogateOptions(150, 1.0, 1e-6, kernel="rbf"), 1e-6, 150)
    made.local.append(X, torch.zeros(150, dtype=torch.float64))
    made.local._change(
        dataclasses.replace(made.local.hyperparameters, noise_ratio=4 * torch.finfo(torch.float64).eps * 150)
    )
    made.settle(X[0], False)
    assert bool(made.fitted_weights(X[0]).isfinite().all())


def test_a_window_of_features_that_is_larger_than_the_process_is_factored():
    """Queries that lie as near to each other as where descent ends."""
    draws = np.random.default_rng(0)
    X = 0.5 + 1e-6 * torch.from_numpy(draws.uniform(-1.0, 1.0, (200, 2)))
    features = FourierFeatures(KERNELS["rbf"](1.0), 2, 256, 0)
    made = ClientSurrogates(X[0], features, LocalSurrogateOptions(10, 1.0, 1e-6, kernel="rbf"), 1e-6, 200)
    made.local.append(X, X.sum(1))
    made.settle(X[0], False)
    assert bool(made.fitted_weights(X[0]).isfinite().all())
