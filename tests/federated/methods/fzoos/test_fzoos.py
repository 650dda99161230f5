"""FZooS against ZoRD, pooled surrogates, brute force, and its own promises."""

import copy
import logging
import math
import os
import subprocess
import sys
from functools import partial
from itertools import pairwise

import numpy as np
import pytest
import torch
from scipy.stats import trim_mean

from experiments.papers.fzoos.quadratics import quadratics
from federated import BehindError, algorithm_class, make_federation, simulate
from federated.methods.fzoos.fzoos import FZooS
from federated.methods.fzoos.gamma import Adaptive
from federated.testing import Fault, Quadratic, faulty, problem, start
from federated.testing.harness import states_equal
from optimizers.methods.zord.zord import ZoRD
from optimizers.prox import L1
from surrogates import FourierFeatures, FourierSurrogate, rbf_kernel
from tests.federated.core.test_aggregation import clipped_mean, krum
from tests.federated.methods.fzoos.checks import disparity, floats_of_a_round, vertex

F64 = torch.float64
SMALL = {"rate_schedule": "constant", "num_features": 64, "active_queries": 2, "candidates": 8, "initial_queries": 3}


def sgd(p):
    return torch.optim.SGD([p], lr=0.02)


def make(clients=4, **options):
    given = [Quadratic(i) for i in range(clients)] if isinstance(clients, int) else clients
    options = {"local_steps": 3} | SMALL | options
    return make_federation(FZooS, given, start(), **options)


def work(client, objective=None):
    objective = objective or problem()[client.number]
    while (batch := client.ask()) is not None:
        client.tell(batch, [objective(x) for x in batch])


def models(federation):
    """Each client's (m, ∇μ̂ᵢ) at the server's x."""
    x = federation.server.x
    means, gradients = [], []
    for i in range(federation.algorithm.clients):
        optimizer = federation.host.client(i).optimizer
        z = federation.algorithm.search(x)
        means.append(optimizer.state.models.gradient(z))
        gradients.append(federation.algorithm.features.gradient(z[None], optimizer.state.weights)[0])
    return torch.stack(means), torch.stack(gradients)


def shares(federation):
    return torch.tensor(federation.algorithm.weights, dtype=F64)


# Steps.


@pytest.mark.parametrize("kernel_window", [4, 150])
def test_one_client_without_correction_steps_as_zord(kernel_window):
    algorithm = FZooS(
        start(),
        clients=1,
        gamma=0.0,
        kernel="matern52",
        lengthscale=0.7,
        window=kernel_window,
        update_rule=sgd,
        local_steps=6,
        **SMALL,
    )
    client, objective = algorithm.client(0), problem()[0]
    client.receive(algorithm.server().broadcast(0))
    optimizer, moved = client.optimizer, 0.0
    while (batch := client.ask()) is not None:
        x = optimizer.x
        client.tell(batch, [objective(p) for p in batch])
        trajectory = optimizer.state.models.local.trajectory
        zord = ZoRD(
            x,
            max_queries=10,
            history=(trajectory.X.clone(), trajectory.y.clone()),
            initial_points=0,
            start="last",
            max_virtual_steps=1,
            lengthscale=0.7,
            window=kernel_window,
            update_rule=sgd,
        )
        torch.testing.assert_close(optimizer.x, zord.x, atol=1e-9, rtol=0)
        moved += float((optimizer.x - x).norm())
    assert moved > 0.1


@pytest.mark.parametrize("correction_at", ["iterate", "start"])
@pytest.mark.parametrize("gamma", [0.7, "inverse"])
def test_a_step_is_along_the_corrected_gradient(gamma, correction_at):
    federation = make(gamma=gamma, correction_at=correction_at, update_rule=sgd)
    federation.run_round()
    algorithm, broadcast = federation.algorithm, federation.server.broadcast(1)
    client = federation.host.client(1)
    own, w, first = client.optimizer.state.weights, broadcast.tensors["w"], federation.server.x
    client.receive(broadcast)
    surrogate = {name: FourierSurrogate.from_weights(algorithm.features, v) for name, v in (("w", w), ("own", own))}
    for t in range(1, 4):
        x, batch = client.optimizer.x, client.ask()
        client.tell(batch, [problem()[1](p) for p in batch])
        at = (x if correction_at == "iterate" else first)[None]
        factor = 1 / t if gamma == "inverse" else gamma
        correction = surrogate["w"].gradient(at)[0] - surrogate["own"].gradient(at)[0]
        assert float(correction.norm()) > 1e-2
        expected = client.optimizer.state.models.gradient(x) + factor * correction
        torch.testing.assert_close((x - client.optimizer.x) / 0.02, expected, atol=1e-9, rtol=1e-9)


def test_the_prox_follows_every_step():
    federation = make(gamma=1.0, prox=L1(3.0), update_rule=sgd)
    federation.run_round()
    broadcast, client = federation.server.broadcast(1), federation.host.client(1)
    difference = broadcast.tensors["w"] - client.optimizer.state.weights
    client.receive(broadcast)
    for _ in range(3):
        x, batch = client.optimizer.x, client.ask()
        client.tell(batch, [problem()[1](p) for p in batch])
        g = client.optimizer.state.models.gradient(x) + federation.algorithm.features.gradient(x[None], difference)[0]
        z = x - 0.02 * g
        shrunk = z.sign() * (z.abs() - 0.06).clamp(min=0.0)
        torch.testing.assert_close(client.optimizer.x, shrunk, atol=1e-9, rtol=0)


def test_gamma_of_a_round():
    def lengths(gamma, round_number, shared=None):
        return FZooS(start(), clients=2, gamma=gamma, **SMALL).rule.lengths(round_number, 4, shared)

    assert lengths("inverse", 3) == [1.0, 1 / 2, 1 / 3, 1 / 4]
    assert lengths(0.3, 3) == [0.3] * 4
    assert lengths(lambda r, t: 1 / (r + t), 2) == [1 / 3, 1 / 4, 1 / 5, 1 / 6]
    assert lengths("adaptive", 2, 0.25) == lengths(Adaptive(), 2, 0.25) == [0.25] * 4


@pytest.mark.slip(
    "federated/methods/fzoos/client_surrogates.py",
    "traces.sort(descending=True, stable=True)",
    "traces.sort(descending=False, stable=True)",
    "active queries where the gradient is best known (FZooS, Appx. G)",
    of="federated/fzoos",
)
def test_active_queries_are_the_least_certain_candidates_in_the_box():
    bounds = [(-1.0, 1.0)] * 5
    federation = make_federation(
        FZooS, problem(), start(), bounds=bounds, local_steps=3, num_features=64, candidates=30, active_queries=4
    )
    federation.run_round()
    client = federation.host.client(2)
    client.receive(federation.server.broadcast(2))
    optimizer = client.optimizer
    batch = client.ask()
    x, chosen = federation.algorithm.search(optimizer.x), batch.explicit[1:]
    assert torch.equal(batch.explicit[0], x) and len(batch) == 5
    assert float((chosen - x).abs().max()) <= 0.01 and float(chosen.max()) <= 1.0
    local = optimizer.state.models.local
    uniform = optimizer._generator(step=federation.algorithm.address(2)).random((30, 5))
    candidates = torch.clamp(x + 0.01 * (2 * torch.from_numpy(uniform) - 1), 0.0, 1.0)
    local.conditioning_at(x)
    traces = torch.stack(
        [local.posterior(c, local.pass_at(c, reselect=False)).covariance_matrix[0].trace() for c in candidates]
    )
    best = candidates[traces.argsort(descending=True)[:4]]
    assert torch.equal(best, chosen)
    assert float(chosen.max()) == 1.0 or float(x.max()) < 0.99


def test_a_box_is_searched_as_the_unit_cube():
    def run(low, width):
        class Moved(Quadratic):
            def __call__(self, x):
                return super().__call__((x - low) / width)

        x0, bounds = low + width * torch.linspace(0.5, 0.75, 5, dtype=F64), [(low, low + width)] * 5
        federation = make_federation(FZooS, [Moved(0), Moved(1)], x0, bounds=bounds, local_steps=3, **SMALL)
        for _ in range(3):
            federation.run_round()
        return (federation.server.x - low) / width

    torch.testing.assert_close(run(0.0, 1.0), run(-8.0, 16.0), atol=1e-9, rtol=0)


# Surrogates.


def test_the_mean_of_the_weights_is_the_surrogate_of_the_pooled_clients():
    federation = make(weights=[1.0, 2.0, 3.0, 2.0], gamma=1.0)
    for _ in range(3):
        federation.run_round()
    algorithm, p = federation.algorithm, shares(federation) / 8
    refitted = []
    for i in range(4):
        state = federation.host.client(i).optimizer.state
        trajectory = state.models.local.trajectory
        fresh = FourierSurrogate(algorithm.features, algorithm.nugget, "estimated").fit(trajectory.X, trajectory.y)
        at = torch.rand(3, 5, dtype=F64, generator=torch.Generator().manual_seed(i))
        ours = FourierSurrogate.from_weights(algorithm.features, state.weights).gradient(at)
        torch.testing.assert_close(ours, fresh.gradient(at), atol=1e-4, rtol=1e-4)
        assert len(trajectory) == 4 + 8 * 3
        refitted.append(state.weights)
    torch.testing.assert_close(federation.server.state.w, p @ torch.stack(refitted), atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize("feature_window", [None, 9])
def test_weights_are_the_same_after_a_restart(feature_window):
    federation = make(1, gamma=1.0, feature_window=feature_window)
    for _ in range(3):
        federation.run_round()
    original = federation.host.client(0)
    copied = federation.algorithm.client(0)
    copied.load_state_dict(original.state_dict())
    for client in (original, copied):
        client.receive(federation.server.broadcast(0))
        work(client)
    assert torch.equal(original.report().tensors["w"], copied.report().tensors["w"])


def test_a_feature_window_holds_the_nearest_queries():
    federation = make(1, gamma=1.0, feature_window=7)
    for _ in range(2):
        federation.run_round()
    state = federation.host.client(0).optimizer.state
    trajectory = state.models.local.trajectory
    nearest = (trajectory.X - federation.host.client(0).optimizer.x).norm(dim=-1).argsort()[:7].sort().values
    fresh = FourierSurrogate(federation.algorithm.features, 1e-6, "estimated")
    fresh.fit(trajectory.X[nearest], trajectory.y[nearest])
    torch.testing.assert_close(state.weights, fresh.weights, atol=1e-9, rtol=1e-9)


# γ.


@pytest.mark.parametrize("options", [{}, {"weights": [1.0, 2.0, 3.0, 2.0]}, {"active": "round"}])
def test_the_adaptive_gamma_is_the_best_at_x(options):
    federation = make(gamma="adaptive", **options)
    assert federation.server.state.gamma == 0.0
    found = []
    for _ in range(3):
        federation.run_round()
        means, gradients = models(federation)
        p, truth = shares(federation), torch.randn(5, dtype=F64, generator=torch.Generator().manual_seed(1))
        best = min(max(vertex(partial(disparity, means, gradients, p, truth)), 0.0), 1.0)
        assert federation.server.state.gamma == pytest.approx(best, abs=1e-9)
        found.append(best)
    assert min(found) > 0.0 and any(g < 1.0 for g in found)
    for client in range(4):
        assert float(federation.server.broadcast(client).tensors["gamma"][0]) == federation.server.state.gamma


def test_the_adaptive_gamma_of_some_clients_is_the_one_under_which_they_agree_best():
    federation = make(gamma="adaptive", participation=2, seed=3)
    for _ in range(4):
        present = federation.server.participants
        federation.run_round()
    optimizers = [federation.host.client(i).optimizer for i in present]
    x = federation.server.x
    m = torch.stack([o.state.models.gradient(x) for o in optimizers])
    g = torch.stack([federation.algorithm.features.gradient(x[None], o.state.weights)[0] for o in optimizers])

    def scatter(gamma):
        corrected = m + gamma * (g.mean(0) - g)
        return float((corrected - corrected.mean(0)).square().sum())

    best = min(max(vertex(scatter), 0.0), 1.0)
    assert federation.server.state.gamma == pytest.approx(best, abs=1e-9)


def test_identical_clients_get_no_correction():
    """Their own random candidates apart, they are one client N times."""
    federation = make([Quadratic(0)] * 3, gamma="adaptive", active=None)
    for i in range(3):
        federation.host.client(i).optimizer.seed = 5
    plain = make([Quadratic(0)], gamma=0.0, active=None)
    plain.host.client(0).optimizer.seed = 5
    for _ in range(3):
        federation.run_round()
        plain.run_round()
        assert federation.server.state.gamma == 0.0
    torch.testing.assert_close(federation.server.x, plain.server.x, atol=1e-12, rtol=0)


def test_another_unit_of_y_changes_nothing():
    class Scaled(Quadratic):
        def value(self, x):
            return 1024.0 * super().value(x)

    def run(cls, rate):
        federation = make(
            [cls(i) for i in range(3)], gamma="adaptive", update_rule=lambda p: torch.optim.SGD([p], lr=rate)
        )
        gammas = []
        for _ in range(3):
            federation.run_round()
            gammas.append(federation.server.state.gamma)
        return gammas, federation.server.x

    (gammas, x), (scaled, z) = run(Quadratic, 0.016), run(Scaled, 0.016 / 1024)
    assert gammas == pytest.approx(scaled, abs=1e-12) and min(gammas) > 0
    torch.testing.assert_close(x, z, atol=1e-12, rtol=0)


def test_an_estimate_that_is_not_finite_is_0_counted_and_logged(caplog):
    class Lost(Adaptive):
        def estimate(self, scalars, gradients, shares):
            return math.nan if len(found) == 1 else super().estimate(scalars, gradients, shares)

    federation, found = make(gamma=Lost()), []
    with caplog.at_level(logging.WARNING, "federated.methods.fzoos.fzoos"):
        for _ in range(3):
            federation.run_round()
            found.append(federation.server.state.gamma)
    assert found[0] > 0.0 and found[1] == 0.0 and found[2] > 0.0
    assert federation.server.state.fallbacks == 1 and caplog.text.count("not finite") == 1


@pytest.mark.parametrize("aggregation", ["median", "trimmed_mean", "multi_krum", "norm_clipping"])
def test_a_robust_mean_is_of_products_and_of_squares(aggregation):
    federation = make(clients=5, gamma="adaptive", aggregation=aggregation, trim=0.2)
    means = {
        "median": lambda v: np.median(v, 0),
        "trimmed_mean": lambda v: trim_mean(v, 0.2, 0),
        "multi_krum": lambda v: krum(v, 1),
        "norm_clipping": clipped_mean,
    }
    for _ in range(3):
        federation.run_round()
        m, gradients = (part.numpy() for part in models(federation))
        weights = np.stack([federation.host.client(i).optimizer.state.weights.numpy() for i in range(5)])
        w, z = torch.from_numpy(means[aggregation](weights)), federation.algorithm.search(federation.server.x)
        c = federation.algorithm.features.gradient(z[None], w)[0].numpy() - gradients
        products, squares = (m * c).sum(1, keepdims=True), np.square(c).sum(1, keepdims=True)
        gamma = -float(means[aggregation](products)[0] / means[aggregation](squares)[0])
        assert federation.server.state.gamma == pytest.approx(min(max(gamma, 0.0), 1.0), abs=1e-9)


def test_where_a_product_is_missing_gamma_stays():
    federation = faulty(make(gamma="adaptive"), [Fault("drop", 2, 1, phase=2)])
    federation.run_round()
    gamma = federation.server.state.gamma
    record = federation.run_round()
    assert federation.server.state.gamma == gamma and record.skipped is None and record.accepted == (0, 2, 3)
    federation.run_round()
    assert federation.server.state.gamma != gamma


# Rounds.

FLOATS = {
    "together": ({"gamma": 1.0}, 1, 5 + 64, 5 + 64),
    "round": ({"gamma": "inverse", "active": "round"}, 2, 5 + 64, 5 + 64),
    "adaptive": ({"gamma": "adaptive"}, 3, 5 + 64 + 1, 5 + 64 + 1),
    "adaptive_round": ({"gamma": "adaptive", "active": "round"}, 3, 5 + 64 + 1, 5 + 64 + 1),
    "uncorrected": ({"gamma": 0.0}, 1, 5, 5),
}


@pytest.mark.parametrize("options, phases, up, down", FLOATS.values(), ids=FLOATS)
def test_floats_of_a_round(options, phases, up, down):
    assert floats_of_a_round(make(**options)) == (phases, up, down)


@pytest.mark.parametrize("active, first, later", [("step", 4 + 2 * 3, 9), ("round", 4 + 2 + 2, 5), (None, 6, 3)])
@pytest.mark.parametrize("accept", ["always", "monotone"])
def test_queries_of_a_round(active, first, later, accept):
    objectives = [Quadratic(i) for i in range(4)]
    federation = make(objectives, active=active, accept=accept)
    # The first round's model and the one before it; then one.
    judged = [0, 0] if accept == "always" else [8, 12]
    assert federation.run_round().queries == 4 * first + judged[0]
    assert federation.run_round().queries == 4 * (first + later) + judged[1]
    assert sum(f.queries for f in objectives) == 4 * (first + later) + judged[1]


@pytest.mark.parametrize("options", [{}, {"active": "round"}, {"gamma": "adaptive"}])
def test_monotone_rounds_never_raise_the_mean(options):
    def mean(x):
        return sum(float(f.value(x)) for f in problem()) / 4

    def run(accept):
        # A step of 0.8 along gradients of Lipschitz constant 4.
        wild = lambda p: torch.optim.SGD([p], lr=0.8)  # noqa: E731
        federation = make(accept=accept, update_rule=wild, local_steps=2, **{"gamma": 1.0} | options)
        values = [mean(federation.server.x)]
        for _ in range(8):
            federation.run_round()
            values.append(mean(federation.server.x))
        return values, sum(record.rejected for record in federation.history)

    values, rejected = run("monotone")
    assert rejected > 0 and all(b <= a for a, b in pairwise(values)) and values[-1] < values[0]
    always, none = run("always")
    assert none == 0 and any(b > a for a, b in pairwise(always))


@pytest.mark.parametrize("options", [{"gamma": "adaptive"}, {"active": "round"}])
def test_a_client_that_lost_its_state_is_caught_up(options):
    federation = make(**options)
    for _ in range(2):
        federation.run_round()
    federation.host.restart(1)
    with pytest.raises(BehindError, match="does not have"):
        federation.algorithm.client(1).receive(federation.server.broadcast(1))
    record = federation.run_round()
    assert record.accepted == (0, 1, 2, 3) and not record.refused
    assert all(torch.equal(federation.host.client(i).state.x, federation.server.x) for i in range(4))


@pytest.mark.slip(
    "federated/methods/fzoos/exchange.py",
    "w = w_present = server.mean_of_latest(surrogates)",
    "w = w_present = server.mean_of(sent)",
    "w without the absent clients (FZooS eq. 4)",
    of="federated/fzoos",
)
def test_the_last_surrogate_of_an_absent_client_counts():
    federation = make(gamma=1.0, participation=3, seed=1)
    for _ in range(5):
        federation.run_round()
    state = federation.server.state
    clients, vectors = zip(*state.surrogates.items(), strict=True)
    assert clients == (0, 1, 2, 3)
    kept = torch.stack([federation.host.client(i).optimizer.state.weights for i in range(4)])
    assert torch.equal(torch.stack(vectors), kept)
    torch.testing.assert_close(state.w, kept.mean(0), atol=1e-12, rtol=0)


@pytest.mark.parametrize("accept", ["always", "monotone"])
def test_without_surrogates_the_iterate_of_the_round_stands_unless_it_must_be_accepted(accept):
    lost = [Fault("drop", 2, i, phase=1) for i in range(4)]
    federation = faulty(make(gamma=1.0, active="round", accept=accept), lost)
    federation.run_round()
    x, w = federation.server.x, federation.server.state.w
    assert "no valid report" in federation.run_round().skipped
    assert torch.equal(federation.server.x, x) == (accept == "monotone")
    assert torch.equal(federation.server.state.w, w)
    assert federation.run_round().skipped is None


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_it_beats_scaffold_with_under_half_of_the_queries(seed):
    p = quadratics(50, 5, 5.0, seed)
    common = {"rounds": 5, "local_steps": 10, "bounds": p.bounds, "seed": seed}
    gaps = {}
    for name, options in {
        "scaffold2": {},
        "fixed": {"gamma": 1.0},
        "adaptive": {"gamma": "adaptive"},
        "inverse": {"gamma": "inverse"},
        "uncorrected": {"gamma": 0.0},
    }.items():
        features = {} if name == "scaffold2" else {"num_features": 600}
        algorithm = name if name == "scaffold2" else "fzoos"
        result = simulate(algorithm, p.clients, p.x0, **common, **options, **features)
        gaps[name] = math.log10(p.gap(result.x)), result.nfev
    (theirs, queries), best = gaps["scaffold2"], gaps["fixed"]
    assert best[1] < 0.5 * queries and gaps["adaptive"][1] == best[1] == 1500
    assert best[0] < theirs - 0.5 and gaps["adaptive"][0] < theirs - 0.5 and gaps["inverse"][0] < theirs
    assert best[0] < gaps["uncorrected"][0] - 1.0


def test_float32():
    clients = [Quadratic(i) for i in range(3)]
    federation = make_federation(FZooS, clients, start(torch.float32), local_steps=3, gamma="adaptive", **SMALL)
    for _ in range(4):
        federation.run_round()
    assert federation.server.x.dtype == federation.server.state.w.dtype == torch.float32
    f = [sum(float(c.value(x)) for c in clients) for x in (start(torch.float32), federation.server.x)]
    assert f[1] < f[0] and 0.0 <= federation.server.state.gamma <= 1.0


BAD = [
    ({"gamma": "adaptve"}, ValueError, "adaptive"),
    ({"gamma": -0.5}, ValueError, "at least 0"),
    ({"gamma": math.nan}, ValueError, "finite"),
    ({"gamma": None}, TypeError, "gamma must be"),
    ({"gamma": lambda r, t: "x"}, None, None),
    ({"gamma": "empirical_bayes"}, ValueError, "accepted: adaptive, inverse"),
    ({"gamma": Adaptive}, TypeError, "gamma must be"),
    ({"correction_at": "end"}, ValueError, "correction_at"),
    ({"accept": "never"}, ValueError, "accept"),
    ({"active": "always"}, ValueError, "active"),
    ({"active_queries": 0}, ValueError, "active_queries"),
    ({"candidates": 1}, ValueError, "candidates"),
    ({"initial_queries": 0}, ValueError, "initial_queries"),
    ({"nugget": 1e-9}, ValueError, "nugget"),
    ({"feature_nugget": 0.0}, ValueError, "feature_nugget"),
    ({"num_features": 63}, ValueError, "even"),
    ({"feature_kind": "fourier"}, ValueError, "kind"),
    ({"kernel": "rq"}, ValueError, "kernel"),
    ({"feature_kernel": "rq"}, ValueError, "feature_kernel"),
    ({"window": 1}, ValueError, "window"),
    ({"feature_seed": -1}, ValueError, "seed"),
    ({"gama": 1.0}, TypeError, "gamma"),
]


@pytest.mark.parametrize("options, error, words", BAD, ids=lambda v: str(v)[:30])
def test_bad_options(options, error, words):
    if error is None:
        with pytest.raises(TypeError, match="number"):
            FZooS(start(), clients=2, **SMALL | options).rule.lengths(1, 3, None)
        return
    with pytest.raises(error, match=words):
        FZooS(start(), clients=2, **SMALL | options)


def test_another_seed_of_features_is_refused():
    ours, theirs = (FZooS(start(), clients=2, feature_seed=seed, **SMALL) for seed in (1, 2))
    with pytest.raises(ValueError, match="feature"):
        ours.check_configuration(theirs.configuration)
    assert algorithm_class("fzoos") is FZooS
    expected = FourierFeatures(rbf_kernel(1.0), 5, 64, 1)
    assert ours.configuration["features"] == expected.fingerprint


@pytest.mark.parametrize("wider", [False, True])
@pytest.mark.parametrize("feature_window", [None, 6])
def test_surrogates_roll_back_to_a_mark_bit_for_bit(wider, feature_window):
    federation = make(window=6, feature_window=feature_window, active_radius=0.1)
    federation.run_round()
    models, x = federation.host.client(0).optimizer.state.models, federation.server.x
    before, twin, mark = models.state_dict(), copy.deepcopy(models), models.mark()
    models.settle(x, wider)
    models.local.append(torch.rand(9, len(x), dtype=F64), torch.rand(9, dtype=F64))
    models.fitted_weights(x)
    assert not states_equal(models.state_dict(), before)
    models.roll_back(mark)
    assert states_equal(models.state_dict(), before)
    assert torch.equal(models.fitted_weights(x), twin.fitted_weights(x))
    assert torch.equal(models.gradient(x), twin.gradient(x))


@pytest.mark.slow
@pytest.mark.skipif(not os.path.isdir("/proc/self/task"), reason="counts the threads of a process by Linux's /proc")
def test_a_small_federation_starts_no_thread():
    script = """
import os
import torch
from federated import simulate
torch.set_num_threads(4)
before = len(os.listdir("/proc/self/task"))
clients = [lambda x, c=c: float((x - c).square().sum()) for c in (0.1, 0.5, 0.9)]
simulate("fzoos", clients, torch.zeros(20).double(), rounds=4, num_features=200, bounds=[(0, 1)] * 20)
print(before, len(os.listdir("/proc/self/task")))
"""
    free = {name: value for name, value in os.environ.items() if not name.endswith("_NUM_THREADS")}
    found = subprocess.run([sys.executable, "-c", script], env=free, capture_output=True, text=True, check=True)
    before, after = map(int, found.stdout.split())
    assert after == before
