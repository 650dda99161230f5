import numpy as np
import pytest
import torch

from federated import Host, algorithm_class, make_federation, simulate
from federated.methods.fedzo import FedProx, FedZO
from federated.methods.local_descent import LocalDescent
from federated.testing import Quadratic
from optimizers import L1, Directions, FiniteDifferences, Simplex

D, N = 6, 3
X0 = torch.linspace(0.1, 0.9, D, dtype=torch.float64)


def sgd(p):
    return torch.optim.SGD([p], lr=0.05)


def clients():
    return [Quadratic(i, dimension=D) for i in range(N)]


def reference_estimate(f, x, seed, address, distribution, n=4, smoothing_radius=0.01):
    """FZooS eq. 87 with the scale that makes it unbiased."""
    u = Directions(seed, D, distribution).block(address, n)
    moment = 1.0 if distribution in ("normal", "rademacher") else 1.0 / D
    slopes = [(f.value(x + smoothing_radius * row) - f.value(x)) / smoothing_radius for row in u]
    return sum(s * row for s, row in zip(slopes, u, strict=True)) / (n * moment)


@pytest.mark.parametrize("distribution", ["normal", "sphere", "orthonormal", "rademacher", "coordinate"])
@pytest.mark.parametrize("redraw", ["step", "round", "never"])
def test_rounds_are_the_papers_equations(distribution, redraw):
    options = {"directions": 4, "distribution": distribution, "redraw": redraw, "update_rule": sgd}
    pull, weights, steps = 0.7, [1.0, 2.0, 4.0], 3
    result = simulate(
        "fedprox", clients(), X0, rounds=2, local_steps=steps, weights=weights, pull=pull, seed=5, **options
    )
    algorithm = FedProx(X0, clients=N, local_steps=steps, seed=5, **options)
    x = X0
    for r in (1, 2):
        ends = []
        for i, f in enumerate(clients()):
            seed, z = algorithm.client(i).optimizer.seed, x
            for t in range(steps):
                first = 0 if redraw == "never" else r * (steps + 1)
                address = first + (t if redraw == "step" else 0)
                g = reference_estimate(f, z, seed, address, distribution) + pull * (z - x)
                z = z - 0.05 * g
            ends.append(z)
        x = sum(w * z for w, z in zip(weights, ends, strict=True)) / sum(weights)
    torch.testing.assert_close(result.x, x, rtol=0, atol=1e-13)


@pytest.mark.parametrize(
    "distribution",
    ["normal", "coordinate", *(pytest.param(name, marks=pytest.mark.slow) for name in ("sphere", "orthonormal"))],
)
def test_estimates_are_unbiased(distribution):
    f, draws, n = Quadratic(0, dimension=D), 600, 2
    optimizer = LocalDescent(X0, estimator=FiniteDifferences(n, 1e-6, distribution=distribution), max_queries=1 << 40)
    optimizer.begin(X0, address=0, steps=draws, moves=False)
    estimates = []
    while optimizer.busy:
        batch = optimizer.ask()
        before = optimizer.state.total
        optimizer.tell(batch, [f.value(x) for x in batch])
        estimates.append(optimizer.state.total - before)
    stacked = torch.stack(estimates).numpy()
    error = stacked.mean(0) - f.gradient(X0).numpy()
    assert (np.abs(error) < 4.5 * stacked.std(0) / np.sqrt(draws)).all()
    np.testing.assert_allclose(optimizer.mean_estimate, stacked.mean(0), atol=1e-12)


def test_a_failed_query_is_left_out_and_without_a_difference_there_is_no_step():
    f = Quadratic(0, dimension=D)
    estimator = FiniteDifferences(4, 0.01, distribution="sphere")
    optimizer = LocalDescent(X0, estimator=estimator, update_rule=sgd, max_queries=1 << 40)
    for lost, rest in (([], 4), ([2, 4], 2), ([1, 2, 3, 4], 0), ([0], 0)):
        optimizer.begin(X0, address=3, steps=1)
        batch = optimizer.ask()
        values = torch.stack([f.value(x) for x in batch])
        values[lost] = float("nan")
        optimizer.tell(batch, values)
        assert not optimizer.busy and (optimizer.mean_estimate is None) == (rest == 0)
        expected = torch.zeros(D, dtype=torch.float64)
        for i in set(range(1, 5)) - set(lost) if rest else ():
            expected += D / rest * (values[i] - values[0]) / 0.01 * batch.direction_rows([i])[0]
        torch.testing.assert_close((X0 - optimizer.x) / 0.05, expected, rtol=1e-11, atol=1e-11)


def test_fedprox_without_pull_is_fedzo_bitwise():
    options = {"rounds": 3, "local_steps": 4, "directions": 3}
    a = simulate("fedzo", clients(), X0, **options)
    b = simulate("fedprox", clients(), X0, pull=0.0, **options)
    c = simulate("fedprox", clients(), X0, **options)
    assert torch.equal(a.x, b.x) and not torch.equal(a.x, c.x)


def test_queries_and_payload_are_those_stated():
    q, t, r = 20, 5, 2
    for name, queries, floats in (
        ("fedzo", t * (q + 1), D),
        ("fedprox", t * (q + 1), D),
        ("scaffold1", (t + 1) * (q + 1), 2 * D),
        ("scaffold2", t * (q + 1), 2 * D),
    ):
        result = simulate(name, clients(), X0, rounds=r, local_steps=t)
        assert result.nfev == N * r * queries
        for row in result.ledger.to_rows():
            assert row["payload_up"] == row["payload_down"] == 8 * floats
            assert row["queries"] == queries


def test_a_client_that_lost_its_state_draws_new_directions():
    federation = make_federation("fedzo", clients(), X0, local_steps=2, directions=2)
    asked = []
    for _ in range(2):
        message = federation.server.broadcast()
        client = federation.algorithm.client(0)
        client.receive(message)
        asked.append(client.ask().addresses)
        federation.run_round()
    assert asked[0] != asked[1]


def test_the_rule_is_reset_or_kept():
    def adam(p):
        return torch.optim.Adam([p], lr=0.01)

    def run(reset):
        return simulate("fedzo", clients(), X0, rounds=2, local_steps=3, update_rule=adam, reset_rule=reset).x

    def first(reset):
        return simulate("fedzo", clients(), X0, rounds=1, local_steps=3, update_rule=adam, reset_rule=reset).x

    assert torch.equal(first(True), first(False))
    assert not torch.equal(run(True), run(False))


def test_server_rate_moves_beyond_or_short_of_the_mean():
    mean = simulate("fedzo", clients(), X0, rounds=1, local_steps=2).x
    for rate in (0.5, 2.0):
        x = simulate("fedzo", clients(), X0, rounds=1, local_steps=2, server_rate=rate).x
        torch.testing.assert_close(x, X0 + rate * (mean - X0), rtol=0, atol=1e-15)


def test_bounds_and_prox_hold():
    box = [(0.1, 0.9)] * D
    asked = []

    class Watched(Quadratic):
        def __call__(self, x):
            asked.append(x.clone())
            return super().__call__(x)

    watched = [Watched(i, dimension=D) for i in range(N)]
    result = simulate("scaffold1", watched, X0, rounds=3, bounds=box, server_rate=3.0, smoothing_radius=0.3)
    for x in [*asked, result.x]:
        assert bool((x >= 0.1).all()) and bool((x <= 0.9).all())
    x0 = torch.full((D,), 1.0 / D, dtype=torch.float64)
    x = simulate("fedzo", clients(), x0, rounds=3, local_steps=4, prox=Simplex()).x
    assert float(x.sum()) == pytest.approx(1.0, abs=1e-12) and bool((x >= 0).all())
    heavy = simulate("fedzo", clients(), X0, rounds=8, local_steps=4, prox=L1(50.0), update_rule=sgd).x
    assert torch.equal(heavy, torch.zeros_like(heavy))
    with pytest.raises(ValueError, match="at most 1"):
        simulate("fedzo", clients(), X0, rounds=1, prox=L1(1.0), server_rate=2.0)
    with pytest.raises(ValueError, match="separable"):
        simulate("fedzo", clients(), X0, rounds=1, prox=Simplex(), bounds=box)


def test_robust_aggregation_survives_a_client_that_lies():
    class Liar(Quadratic):
        def value(self, x):
            return -5.0 * super().value(x)

        __call__ = value

    honest = [Quadratic(0, dimension=D) for _ in range(4)]
    options = {"rounds": 8, "local_steps": 5, "directions": D, "update_rule": sgd, "trim": 0.2}
    best = honest[0].coefficients(X0)[1]
    distances = {}
    for aggregation in ("mean", "median", "trimmed_mean"):
        everyone = [*honest, Liar(0, dimension=D)]
        x = simulate("fedzo", everyone, X0, aggregation=aggregation, **options).x
        distances[aggregation] = float((x - best).norm())
    assert max(distances["median"], distances["trimmed_mean"]) < 0.1, distances
    assert distances["mean"] > 1.0, distances
    with pytest.raises(ValueError, match="weights"):
        simulate("fedzo", clients(), X0, rounds=1, aggregation="median", weights=[1.0, 2.0, 1.0])


@pytest.mark.parametrize(
    ("options", "kind", "word"),
    [
        ({"directions": 0}, ValueError, "directions"),
        ({"smoothing_radius": 0.0}, ValueError, "smoothing_radius"),
        ({"distribution": "gaussian"}, ValueError, "distribution"),
        ({"redraw": "always"}, ValueError, "redraw"),
        ({"update_rule": lambda p: None}, TypeError, "update_rule"),
        ({"direction": 3}, TypeError, "'directions'"),
        ({"pull": 1.0}, TypeError, "pull"),
    ],
)
def test_bad_options_are_refused_at_once(options, kind, word):
    with pytest.raises(kind, match=word):
        FedZO(X0, clients=2, **options)
    with pytest.raises(ValueError, match="pull"):
        FedProx(X0, clients=2, pull=-1.0)


def test_hosts_make_small_batches_at_once_to_the_same_bits():
    for dimension in (6, 2000):
        algorithm = algorithm_class("fedzo")(
            torch.zeros(dimension, dtype=torch.float64),
            clients=1,
            local_steps=2,
            bounds=[(-1, 1)] * dimension,
        )
        seen = []

        def record(x, seen=seen):
            seen.append(x.clone())
            return float(x.square().sum() + x[0])

        from optimizers import Evaluator

        Host(algorithm, {0: Evaluator(record)}).serve(_request(algorithm))
        client = algorithm.client(0)
        client.receive(algorithm.server().broadcast())
        asked = []
        while (batch := client.ask()) is not None:
            asked += list(batch)
            client.tell(batch, [float(x.square().sum() + x[0]) for x in batch])
        assert len(asked) == len(seen) and all(torch.equal(a, b) for a, b in zip(asked, seen, strict=True))


def _request(algorithm):
    from federated.engine.host import Request

    return Request(0, algorithm.server().broadcast())
