import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from federated import Arrival, Report, algorithm_class, simulate
from federated.testing import Quadratic

CLIENTS, DIMENSION, ROUNDS = 3, 6, 5
WEIGHTS = [10.0, 25.0, 7.0]
RATES = {"eta": 0.3, "tau": 1e-3}
BETAS = {"beta_1": 0.8, "beta_2": 0.95}


def make(name, **options):
    x0 = torch.linspace(-1, 1, DIMENSION, dtype=torch.float64)
    return algorithm_class(name)(x0, clients=CLIENTS, weights=WEIGHTS, **options)


def own_options(name):
    if name == "fedavg":
        return {}
    options = {"server_rate": RATES["eta"], "tau": RATES["tau"], "conventions": "flower"}
    return options if name == "fedadagrad" else options | {"beta1": 0.8, "beta2": 0.95}


def displaced(x, number):
    """What the clients report in a round: x moved by fixed random numbers."""
    generator = np.random.default_rng(number)
    return [x + generator.normal(size=DIMENSION) * 10.0 ** (-2 * (j % 3)) for j in range(CLIENTS)]


def our_models(name, **options):
    server = make(name, **options).server()
    models = [server.x.numpy()]
    for number in range(1, ROUNDS + 1):
        reports = displaced(models[-1], number)
        arrivals = [
            Arrival(
                i,
                Report(
                    algorithm=name,
                    fingerprint=server.algorithm.fingerprint,
                    round=number,
                    phase="local",
                    client=i,
                    tensors={"x": torch.from_numpy(x)},
                ),
            )
            for i, x in enumerate(reports)
        ]
        assert server.aggregate(arrivals).skipped is None
        models.append(server.x.numpy())
    return models


def reference_models(name, *, initial_v, corrected, eta=0.3, tau=1e-3, beta1=0.8, beta2=0.95):
    """Reddi et al., Alg. 2, in NumPy."""
    x = np.linspace(-1, 1, DIMENSION)
    models, m, v = [x], np.zeros(DIMENSION), np.full(DIMENSION, initial_v)
    for t in range(1, ROUNDS + 1):
        mean = np.average(displaced(x, t), axis=0, weights=WEIGHTS)
        if name == "fedavg":
            x = mean
        else:
            delta = mean - x
            m = beta1 * m + (1 - beta1) * delta
            if name == "fedadam":
                v = beta2 * v + (1 - beta2) * delta**2
            elif name == "fedyogi":
                v = v - (1 - beta2) * delta**2 * np.sign(v - delta**2)
            else:
                v = v + delta**2
            scale = math.sqrt(1 - beta2 ** (t + 1)) / (1 - beta1 ** (t + 1)) if corrected else 1.0
            x = x + eta * scale * m / (np.sqrt(v) + tau)
        models.append(x)
    return models


@pytest.mark.slip(
    "federated/methods/fedopt.py",
    "m = a.beta1 * s.m + (1.0 - a.beta1) * delta",
    "m = (1.0 - a.beta1) * s.m + a.beta1 * delta",
    "the weights of β₁, swapped (Reddi et al., Alg. 2)",
    of="federated/fedadam federated/fedyogi",
)
@pytest.mark.slip(
    "federated/methods/fedopt.py",
    'delta = self.combine("x", reports) - s.x',
    'delta = s.x - self.combine("x", reports)',
    "a server that moves away from its clients",
    of="federated/fedadam federated/fedyogi federated/fedadagrad",
)
@pytest.mark.slip(
    "federated/methods/fedopt.py",
    "return self.beta2 * v + (1.0 - self.beta2) * square",
    "return (1.0 - self.beta2) * v + self.beta2 * square",
    "the weights of β₂, swapped (Reddi et al., Alg. 2)",
    of="federated/fedadam",
)
@pytest.mark.slip(
    "federated/methods/fedopt.py",
    "self.server_rate * math.sqrt(1.0 - self.beta2**t)",
    "self.server_rate * (1.0 - self.beta2**t)",
    "the bias correction without its root",
    of="federated/fedadam",
)
@pytest.mark.slip(
    "federated/methods/fedopt.py",
    "* torch.sign(v - square)",
    "* torch.sign(square - v)",
    "the sign of Yogi's difference (Reddi et al., Alg. 2)",
    of="federated/fedyogi",
)
@pytest.mark.slip(
    "federated/methods/fedopt.py",
    "return v + square\n",
    "return v + square.sqrt()\n",
    "a sum of |Δ|, not of Δ² (Reddi et al., Alg. 2)",
    of="federated/fedadagrad",
)
@pytest.mark.parametrize("name", ["fedavg", "fedadam", "fedyogi", "fedadagrad"])
@pytest.mark.parametrize("conventions", ["reddi", "flower"])
def test_server_steps_are_the_papers_or_flowers(name, conventions):
    options = own_options(name)
    if options:
        options["conventions"] = conventions
    betas = {"beta1": 0.0} if name == "fedadagrad" else {}
    expected = reference_models(
        name,
        initial_v=1e-6 if conventions == "reddi" else 0.0,
        corrected=name == "fedadam" and conventions == "flower",
        **betas,
    )
    for ours, theirs in zip(our_models(name, **options), expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-12)


def test_conventions_differ():
    for name in ("fedadam", "fedyogi", "fedadagrad"):
        ours = our_models(name, **own_options(name) | {"conventions": "reddi"})[1]
        theirs = our_models(name, **own_options(name))[1]
        assert np.abs(ours - theirs).max() > 1e-6


@pytest.mark.parametrize("name", ["fedavg", "fedadam", "fedyogi", "fedadagrad"])
def test_server_steps_equal_flowers_strategies(name, monkeypatch, tmp_path):
    monkeypatch.setenv("FLWR_HOME", str(tmp_path))
    monkeypatch.setenv("FLWR_TELEMETRY_ENABLED", "0")
    strategies = pytest.importorskip("flwr.serverapp.strategy")
    from flwr.app import Array, ArrayRecord, MetricRecord, RecordDict

    classes = {"fedavg": "FedAvg", "fedadam": "FedAdam", "fedyogi": "FedYogi", "fedadagrad": "FedAdagrad"}
    given = {} if name == "fedavg" else dict(RATES)
    given |= BETAS if name in ("fedadam", "fedyogi") else {}
    strategy = getattr(strategies, classes[name])(**given)
    x = np.linspace(-1, 1, DIMENSION)
    models = our_models(name, **own_options(name))
    for number in range(1, ROUNDS + 1):
        strategy.current_arrays = {"x": x}
        replies = []
        for i, reported in enumerate(displaced(x, number)):
            content = RecordDict(
                {
                    "arrays": ArrayRecord({"x": Array(reported)}),
                    "metrics": MetricRecord({"num-examples": WEIGHTS[i]}),
                }
            )
            sender = SimpleNamespace(src_node_id=i + 1)
            replies.append(SimpleNamespace(content=content, metadata=sender, has_error=lambda: False))
        arrays, _ = strategy.aggregate_train(number, replies)
        x = arrays["x"].numpy()
        np.testing.assert_allclose(models[number], x, rtol=0, atol=1e-12)


@pytest.mark.slip(
    "federated/methods/fedopt.py",
    "steps=a.local_steps, reset",
    "steps=a.local_steps - 1, reset",
    "T - 1 local steps",
    of="federated/fedavg",
)
def test_fedavg_is_gradient_descent_with_one_step_of_every_client():
    objectives = [Quadratic(i, dimension=DIMENSION) for i in range(CLIENTS)]
    x0 = torch.linspace(-1, 1, DIMENSION, dtype=torch.float64)
    result = simulate("fedavg", objectives, x0, rounds=4, local_steps=1, weights=WEIGHTS)
    x = x0
    for _ in range(4):
        gradients = [w * f.gradient(x) for w, f in zip(WEIGHTS, objectives, strict=True)]
        x = x - 0.01 * sum(gradients) / sum(WEIGHTS)
    torch.testing.assert_close(result.x, x, rtol=0, atol=1e-15)
    assert result.ledger.total("gradients") == result.nfev == 4 * CLIENTS


def test_autograd_and_own_gradient_agree():
    own = [Quadratic(i) for i in range(CLIENTS)]
    x0 = torch.zeros(5, dtype=torch.float64)
    with_method = simulate("fedadam", own, x0, rounds=3, local_steps=4)
    without = simulate("fedadam", [f.value for f in own], x0, rounds=3, local_steps=4)
    torch.testing.assert_close(with_method.x, without.x, rtol=0, atol=1e-14)
    with pytest.raises(TypeError, match="no gradient"):
        simulate("fedavg", [lambda x: 1.0], x0, rounds=1)


def test_a_step_too_large_for_the_second_moment_skips_the_round():
    server = make("fedadam").server()
    report = Report(
        algorithm="fedadam",
        fingerprint=server.algorithm.fingerprint,
        round=1,
        phase="local",
        client=0,
        tensors={"x": torch.full((DIMENSION,), 1e200, dtype=torch.float64)},
    )
    before = server.x
    outcome = server.aggregate([report])
    assert "not finite" in outcome.skipped and torch.equal(server.x, before)
    assert server.round == 2


def test_bounds_hold_and_a_prox_is_refused():
    objectives = [Quadratic(i) for i in range(2)]
    x0 = torch.full((5,), 0.55, dtype=torch.float64)
    result = simulate("fedadam", objectives, x0, rounds=5, bounds=[(0.5, 0.6)] * 5)
    assert bool((result.x >= 0.5).all()) and bool((result.x <= 0.6).all())
    with pytest.raises(ValueError, match="prox"):
        simulate("fedadam", objectives, x0, rounds=1, prox=lambda z, step: z)
    with pytest.raises(ValueError, match="beta"):
        simulate("fedadam", objectives, x0, rounds=1, beta1=1.0)
    with pytest.raises(ValueError, match="'flower'"):
        simulate("fedyogi", objectives, x0, rounds=1, conventions="flwr")
