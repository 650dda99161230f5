"""HiSo and DeComFL: replay to the bit, bytes to the byte, and the single-machine methods as N = 1."""

import dataclasses
from typing import get_args

import pytest
import torch

import optimizers
from federated import BehindError, MessageError, make_federation, simulate
from federated.core.codec import decode, encode
from federated.methods.scalar.hiso import HiSo
from federated.methods.scalar.model import model_digest
from federated.testing import Fault, faulty
from federated.testing.harness import Quadratic, quiet
from optimizers import Displacement
from optimizers.methods.hiso.displacement import Update
from tests.memory import printed, reads_peak

UPDATES = get_args(Update)
PER_ROUND = Displacement(update="per_round")
VARIANTS = {
    "decomfl": ("decomfl", {}),
    "per_step": ("hiso", {"local_steps": 3, "curvature": Displacement(lower=0.2, upper=2.0)}),
    "per_round": ("hiso", {"local_steps": 3, "curvature": PER_ROUND, "momentum": 0.5}),
    "printed": ("hiso", {"local_steps": 3, "curvature": Displacement(update="printed", reset=4), "momentum": 0.5}),
    "last_step": ("hiso", {"local_steps": 3, "curvature": Displacement(update="last_step", upper=2.0)}),
    "signs": ("hiso", {"distribution": "rademacher", "projection": True, "curvature": Displacement(reset=3)}),
    "prox": ("hiso", {"prox": optimizers.L1(0.1), "scheme": "central", "server_rate": 0.7}),
    "box": ("hiso", {"bounds": [(-1.0, 0.6)] * 7, "local_steps": 2}),
}


def quadratics(count=3, d=7):
    return [Quadratic(i, dimension=d) for i in range(count)]


def start(dtype=torch.float32, d=7):
    return torch.linspace(0.1, 0.5, d, dtype=dtype)


def federation(name, faults=(), count=3, x0=None, **options):
    options = {"local_steps": 1, "perturbations": 5, "rate": 0.03} | options
    x0 = start() if x0 is None else x0
    return faulty(make_federation(name, quadratics(count, len(x0)), x0, **options), faults)


def run(made, rounds):
    with quiet():
        return [made.run_round() for _ in range(rounds)]


def bits(tensors):
    return {name: tensor.view(torch.uint8).tolist() for name, tensor in tensors.items()}


def assert_rebuilt(made):
    """Every client that is up stands, after a broadcast, where the server stands, bit for bit."""
    server = made.server
    for number in server.participants:
        client = made.host.client(number)
        try:
            client.receive(encode(server.broadcast(number)))
        except BehindError:
            client.catch_up(encode(server.catch_up(encode(client.position()), client.number)))
            client.receive(encode(server.broadcast(number)))
        assert bits(client.optimizer.vectors()) == bits(server.state.model.vectors())
        assert client.optimizer.state.learned.floor == server.state.model.state.learned.floor


# One method in two shapes.


def test_hiso_with_h_of_1_is_decomfl_bitwise():
    for options in ({}, {"local_steps": 3, "momentum": 0.3}):
        plain, hiso = (
            federation("decomfl", **options),
            federation("hiso", curvature=Displacement(weight=0.0), **options),
        )
        run(plain, 5), run(hiso, 5)
        assert bits({"x": plain.server.x}) == bits({"x": hiso.server.x})
        assert not torch.equal(plain.server.x, start())
    learning = federation("hiso")
    run(learning, 5)
    assert not torch.equal(learning.server.x, plain.server.x)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    ("name", "options", "own"),
    [
        ("decomfl", {"momentum": 0.4}, {}),
        ("hiso", {}, {}),
        ("hiso", {"local_steps": 3}, {}),
        ("hiso", {"projection": True, "prox": optimizers.L1(0.1)}, {}),
        *(
            ("hiso", {"local_steps": 4, "curvature": Displacement(update=rule), "momentum": 0.3}, {"local_steps": 4})
            for rule in UPDATES
        ),
    ],
)
def test_one_client_is_the_single_machine_method(dtype, name, options, own):
    made = federation(name, count=1, x0=start(dtype), scalar_dtype="float64", seed=3, **options)
    run(made, 4)
    given = {k: v for k, v in options.items() if k != "local_steps"} | own | {"rate": 0.03, "seed": 3}
    method = {"decomfl": optimizers.DeComFL, "hiso": optimizers.HiSo}[name]
    alone = method(start(dtype), max_queries=10**6, **given)
    objective = quadratics(1)[0]
    for _ in range(4 * options.get("local_steps", 1)):
        batch = alone.ask()
        alone.tell(batch, torch.stack([objective(x) for x in batch]))
    assert bits({"x": made.server.x}) == bits({"x": alone.x})
    assert made.ledger.total("queries") == alone.queries
    if name == "hiso":
        assert bits({"h": made.server.state.model.hessian}) == bits({"h": alone.hessian})


@pytest.mark.parametrize("rule", UPDATES)
def test_a_round_is_alg_2_by_hand(rule):
    """Local scalars along each client's own path; the mean scalars move x and H along the shared directions."""
    curvature = Displacement(update=rule, weight=0.3)
    options = {"local_steps": 3, "perturbations": 2, "scalar_dtype": "float64", "curvature": curvature}
    made = federation("hiso", count=2, x0=start(torch.float64), **options)
    run(made, 2)
    u = optimizers.Directions(0, 7)
    eta, mu, nu, eps, tau, stepwise = 0.03, 1e-3, 0.3, 1e-8, 3, rule == "per_step"

    def learned(h, delta):
        return (1 - nu) * h + nu * (delta**2 + eps)

    x_r, h_r = start(torch.float64), torch.ones(7, dtype=torch.float64)
    for r in range(2):
        sent = []
        for f in quadratics(2):
            x, h, own = x_r, h_r, []
            for k in range(tau):
                w = u.block(r * tau + k, 2) / h.sqrt()
                c = torch.stack([(f(x + mu * w[p]) - f(x)) / mu / 2 for p in range(2)])
                x, h = x - eta * (c @ w), learned(h, c @ w) if stepwise else h
                own.append(c)
            sent.append(torch.stack(own))
        mean, h, deltas = (sent[0] + sent[1]) / 2, h_r, []
        for k in range(tau):
            deltas.append(mean[k] @ (u.block(r * tau + k, 2) / (h if stepwise else h_r).sqrt()))
            if rule in ("per_step", "printed"):
                h = learned(h, deltas[k])
        x_r = x_r - eta * sum(deltas)
        h_r = {"per_round": learned(h_r, sum(deltas)), "last_step": learned(h_r, deltas[-1])}.get(rule, h)
    torch.testing.assert_close(made.server.x, x_r, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(made.server.state.model.hessian, h_r, rtol=1e-8, atol=0)
    assert float((h_r - 1.0).abs().max()) > 0.1


@pytest.mark.parametrize("options", [{}, {"momentum": 0.4, "projection": True, "participation": 2}])
def test_with_one_local_step_all_rules_of_h_are_one_bit_for_bit(options):
    runs = []
    for rule in UPDATES:
        made = federation("hiso", curvature=Displacement(update=rule), **options)
        run(made, 6)
        runs.append(bits(made.server.state.model.vectors()))
    assert all(one == runs[0] for one in runs[1:])


@pytest.mark.parametrize("options", [{}, {"momentum": 0.5, "prox": optimizers.L1(0.1)}], ids=["plain", "momentum"])
@pytest.mark.parametrize("name", ["decomfl", "hiso"])
def test_the_servers_rate_multiplies_the_clients(name, options):
    """Alg. 2, line 16: for τ = 1 no client makes a step of its own, and the product of the rates is all that counts."""
    found, options = [], {"rounds": 5, "local_steps": 1} | options
    for rate, server_rate in ((0.04, 0.5), (0.08, 0.25), (0.02, 1.0), (0.04, 1.0)):
        shared = {"rate": rate, "server_rate": server_rate}
        found.append(simulate(name, quadratics(), start(torch.float64), **shared, **options).x)
    half, quarter, one, other = found
    assert torch.equal(half, one) and torch.equal(quarter, one) and not torch.equal(other, one)


def test_weights_are_those_of_the_clients():
    a = federation("decomfl", weights=[1.0, 3.0, 2.0], scalar_dtype="float64", x0=start(torch.float64))
    requests = [a.server.broadcast(c) for c in range(3)]
    scalars = []
    for c, message in enumerate(requests):
        client = a.host.client(c)
        client.receive(message)
        while (batch := client.ask()) is not None:
            client.tell(batch, torch.stack([quadratics()[c](x) for x in batch]))
        scalars.append(client.report().tensors["scalars"])
    b = federation("decomfl", weights=[1.0, 3.0, 2.0], scalar_dtype="float64", x0=start(torch.float64))
    run(b, 1)
    wanted = (scalars[0] + 3 * scalars[1] + 2 * scalars[2]) / 6
    (entry,) = b.server.state.log.between(1, 2)
    torch.testing.assert_close(entry.scalars, wanted, rtol=1e-14, atol=0)


# Replay.


@pytest.mark.parametrize("codec", [True, False])
@pytest.mark.parametrize("variant", VARIANTS)
def test_clients_rebuild_the_server_bitwise_after_any_fault(variant, codec):
    name, options = VARIANTS[variant]
    faults = [
        *(Fault("unreachable", r, 0) for r in (2, 3, 4)),
        Fault("drop", 3, 1),
        Fault("delay", 5, 1, by=2),
        Fault("crash", 4, 2, after=1 if options.get("local_steps", 1) > 1 else 0),
        Fault("rejoin", 6, 2),
        *(Fault("drop", 7, c) for c in range(3)),
    ]
    made = federation(name, faults, codec=codec, **options)
    records = run(made, 9)
    assert records[6].skipped and records[5].accepted == records[8].accepted == (0, 1, 2)
    scalars = 20 * options.get("local_steps", 1)
    assert all(r["payload_down"] % scalars == 0 for r in made.ledger.to_rows()), "someone needed the whole state"
    assert_rebuilt(made)


@pytest.mark.parametrize("rule", UPDATES)
def test_partial_participation_replays(rule):
    """Clients that come late rebuild H_r, and no rule of H's sends another byte."""
    made = federation("hiso", count=8, participation=2, local_steps=2, curvature=Displacement(update=rule))
    run(made, 12)
    assert made.history[-1].refused == ()
    assert_rebuilt(made)
    row = made.ledger.to_rows()
    assert all(r["payload_up"] == 40 for r in row)
    assert {r["payload_down"] % 40 for r in row} == {0} and max(r["payload_down"] for r in row) > 40


@pytest.mark.parametrize("rule", UPDATES)
def test_a_log_that_is_too_short_costs_the_whole_state(rule):
    faults = [Fault("unreachable", r, 0) for r in range(2, 7)]
    options = {"local_steps": 2, "perturbations": 3, "curvature": Displacement(update=rule)}
    made = federation("hiso", faults, log_rounds=3, **options)
    run(made, 7)
    rows = {(r["round"], r["client"]): r for r in made.ledger.to_rows()}
    assert rows[7, 0]["payload_down"] == 7 * (4 + 4) and rows[7, 1]["payload_down"] == 24
    assert made.history[-1].accepted == (0, 1, 2)
    assert len(made.server.state.log) == 3
    assert_rebuilt(made)


def test_a_crashed_client_gets_only_what_it_lacks():
    made = federation("hiso", [Fault("crash", 3, 1), Fault("rejoin", 5, 1)])
    run(made, 5)
    rows = {(r["round"], r["client"]): r for r in made.ledger.to_rows()}
    broadcast = 20 * 3
    assert rows[5, 1]["payload_down"] == broadcast + 20 * 1 + broadcast
    assert rows[5, 0]["payload_down"] == 20
    assert rows[5, 1]["refused"] == ""


def test_a_client_with_another_x0_gets_the_servers():
    made = federation("hiso")
    client = made.host.client(1)
    client.optimizer.vectors()["x"].add_(1.0)
    assert run(made, 1)[0].accepted == (0, 1, 2)
    assert made.ledger.total("payload_down", client=1) == 7 * 8
    assert_rebuilt(made)


def test_a_client_whose_memory_went_bad_is_found_and_mended():
    made = federation("hiso", local_steps=2)
    run(made, 2)
    made.host.client(1).optimizer.vectors()["x"][3] += 1e-6
    record = run(made, 1)[0]
    assert record.accepted == (0, 1, 2)
    rows = {(r["round"], r["client"]): r for r in made.ledger.to_rows()}
    assert rows[3, 1]["payload_down"] == 40 + 7 * 8 + 40 and rows[3, 0]["payload_down"] == 40
    assert_rebuilt(made)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["decomfl", "hiso"])
def test_a_hundred_missed_rounds_at_a_million_coordinates(name):
    d = 1_000_000
    made = make_federation(
        name,
        [lambda x: float(x[:10].double().square().sum())] * 2,
        torch.ones(d, dtype=torch.float32),
        local_steps=1,
        perturbations=1,
    )
    faulty(made, [Fault("unreachable", r, 1) for r in range(2, 102)])
    run(made, 102)
    row = made.ledger.to_rows()[-1]
    assert (row["round"], row["client"], row["payload_down"], row["refused"]) == (102, 1, 4 * 101, "")
    assert_rebuilt(made)


# Digests.


def tampered(message, **values):
    return dataclasses.replace(message, values={**message.values, **values})


def test_a_report_with_another_digest_is_refused():
    made = federation("hiso")
    client = made.host.client(0)
    client.receive(made.server.broadcast(0))
    while (batch := client.ask()) is not None:
        client.tell(batch, torch.stack([quadratics()[0](x) for x in batch]))
    report = client.report()
    made.server.check(report, 0)
    with pytest.raises(MessageError, match="the digest of the client's model is '0000"):
        made.server.check(tampered(report, digest="0" * 64), 0)
    long = dataclasses.replace(report, tensors={"scalars": torch.zeros(4)})
    with pytest.raises(MessageError, match="has 4 scalars, expected 5"):
        made.server.check(long, 0)


def test_a_broadcast_with_another_digest_is_refused_and_says_so():
    made = federation("hiso", count=1)
    run(made, 2)
    client, message = made.host.client(0), made.server.broadcast(0)
    with pytest.raises(BehindError, match="has digest"):
        client.receive(tampered(message, digest="0" * 64))
    client.receive(message)


def test_a_catch_up_with_another_digest_is_refused():
    made = federation("hiso", count=1)
    run(made, 4)
    fresh = made.algorithm.client(0)
    fresh.state.at = 1
    with pytest.raises(BehindError, match=r"at round 1, .*scalars begin with round 4"):
        fresh.receive(made.server.broadcast(0))
    answer = made.server.catch_up(fresh.position(), 0)
    assert answer.payload_bytes == 3 * 20
    with pytest.raises(MessageError, match="the digest of the rebuilt model"):
        fresh.catch_up(tampered(answer, digest="0" * 64))
    damaged = answer.tensors["scalars"].clone()
    damaged[2] += 1.0
    fresh = made.algorithm.client(0)
    with pytest.raises(MessageError, match="the digest of the rebuilt model"):
        fresh.catch_up(dataclasses.replace(answer, tensors={"scalars": damaged}))
    state = made.server.catch_up(fresh.position(), 0)
    assert state.payload_bytes == 7 * 8
    fresh.catch_up(state)
    fresh.receive(made.server.broadcast(0))


def test_catch_ups_that_are_no_catch_ups_are_refused():
    made = federation("hiso", [Fault("crash", 2, 0), Fault("rejoin", 9, 0)], log_rounds=2, count=2)
    run(made, 4)
    fresh = made.algorithm.client(0)
    state = made.server.catch_up(dataclasses.replace(fresh.position(), round=0), 0)
    assert state.payload_bytes == 56
    for bad, reason in [
        (dataclasses.replace(state, tensors={"x": state.tensors["x"]}), "lacks \\['hessian'\\]"),
        (dataclasses.replace(state, tensors={}), "neither"),
        (tampered(state, hessian_floor=-1.0), "hessian_floor"),
        (
            dataclasses.replace(state, tensors={**state.tensors, "hessian": -state.tensors["hessian"]}),
            "must be positive",
        ),
    ]:
        before = model_digest(fresh.optimizer)
        with pytest.raises(MessageError, match=reason):
            fresh.catch_up(bad)
        assert model_digest(fresh.optimizer) == before and fresh.state.at == 1
    position = tampered(fresh.position(), at=99)
    with pytest.raises(MessageError, match="round 99"):
        made.server.catch_up(position, 0)


def test_broadcasts_whose_rounds_and_scalars_do_not_agree_are_refused():
    made = federation("hiso", count=1)
    run(made, 2)
    client, message = made.host.client(0), made.server.broadcast(0)
    for rounds, reason in [("", "need 0 scalars, got 5"), ("2-3", "from 2 to 2"), ("x", "rounds are 'x'")]:
        with pytest.raises(MessageError, match=reason):
            client.receive(tampered(message, rounds=rounds))
    client.receive(message)


# Bytes.


def test_bytes_are_40_a_round_whatever_d_is():
    for d in (3, 3000):
        made = federation("hiso", x0=torch.full((d,), 0.3, dtype=torch.float32))
        run(made, 6)
        rows = [r for r in made.ledger.to_rows() if r["client"] == 0]
        assert [r["payload_up"] + r["payload_down"] for r in rows] == [20, 40, 40, 40, 40, 40]
        assert made.ledger.total("payload_up") + made.ledger.total("payload_down") == 3 * (40 * 6 - 20)


def test_messages_do_not_grow_with_d():
    sizes = []
    for d in (100, 5000):
        made = federation("hiso", x0=torch.full((d,), 0.3, dtype=torch.float32))
        run(made, 3)
        sizes.append([r["message_down"] for r in made.ledger.to_rows()])
    assert sizes[0] == sizes[1] and max(sizes[0]) < 600


@pytest.mark.parametrize(("steps", "count", "dtype", "size"), [(4, 3, "float32", 4), (2, 5, "float64", 8)])
def test_a_round_is_tau_p_scalars_each_way(steps, count, dtype, size):
    made = federation("hiso", local_steps=steps, perturbations=count, scalar_dtype=dtype)
    run(made, 2)
    row = made.ledger.to_rows()[-1]
    assert row["payload_up"] == row["payload_down"] == steps * count * size
    assert row["queries"] == steps * (count + 1)


# Restoring.


@pytest.mark.parametrize("rule", UPDATES)
def test_local_steps_leave_nothing_behind(rule):
    options = {"local_steps": 3, "momentum": 0.2, "curvature": Displacement(update=rule)}
    made = federation("hiso", x0=torch.full((7,), 0.1, dtype=torch.float32), **options)
    run(made, 2)
    client, objective = made.host.client(0), quadratics()[0]
    client.receive(made.server.broadcast(0))
    before, moved, learned = bits(client.optimizer.vectors()), [], []
    while (batch := client.ask()) is not None:
        client.tell(batch, torch.stack([objective(x) for x in batch]))
        now = bits(client.optimizer.vectors())
        moved.append(now != before), learned.append(now["hessian"] != before["hessian"])
    assert moved == [True, True, False] and client.state.start is None
    assert learned == [rule == "per_step"] * 2 + [False] and client.optimizer.state.learned.round == []
    assert model_digest(client.optimizer) == client.state.digest == made.server.state.digest


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_client_saved_between_any_two_steps_goes_on_bitwise(variant):
    name, options = VARIANTS[variant]
    made = federation(name, **options | {"local_steps": 3})
    run(made, 2)
    client, objective = made.host.client(0), quadratics()[0]
    client.receive(made.server.broadcast(0))
    saved = []
    while (batch := client.ask()) is not None:
        saved.append(client.state_dict())
        client.tell(batch, torch.stack([objective(x) for x in batch]))
    report = encode(client.report())
    for state in saved:
        other = made.algorithm.client(0)
        other.load_state_dict(state)
        while (batch := other.ask()) is not None:
            other.tell(batch, torch.stack([objective(x) for x in batch]))
        assert decode(encode(other.report())).tensors["scalars"].tolist() == decode(report).tensors["scalars"].tolist()
        assert bits(other.optimizer.vectors()) == bits(client.optimizer.vectors())


@pytest.mark.parametrize("rule", UPDATES)
def test_h_is_reset(rule):
    initial = torch.linspace(0.5, 1.5, 7)
    made = federation("hiso", curvature=Displacement(update=rule, reset=3, initial=initial), local_steps=2)
    run(made, 2)
    assert not torch.equal(made.server.state.model.hessian, initial)
    run(made, 1)
    assert torch.equal(made.server.state.model.hessian, initial)
    assert made.server.state.model.state.learned.floor == 0.5
    run(made, 1)
    assert_rebuilt(made)


def test_h_stays_between_its_bounds():
    made = federation("hiso", curvature=Displacement(lower=0.9, upper=1.1))
    run(made, 10)
    h = made.server.state.model.hessian
    assert pytest.approx(float(h.min())) == 0.9 and float(h.max()) <= 1.1 and float(h.max() - h.min()) > 0


def test_failed_perturbations_leave_the_mean_of_the_others():
    made = federation("decomfl", count=1, scalar_dtype="float64", x0=start(torch.float64))
    objective = quadratics(1)[0]
    client = made.host.client(0)
    client.receive(made.server.broadcast(0))
    batch = client.ask()
    values = torch.stack([objective(x) for x in batch])
    whole = (values[1:] - values[0]) / 1e-3
    values[2] = torch.nan
    client.tell(batch, values)
    sent = client.report().tensors["scalars"]
    assert sent[1] == 0.0
    torch.testing.assert_close(sent[[0, 2, 3, 4]], whole[[0, 2, 3, 4]] / 4, rtol=1e-15, atol=0)
    alone = optimizers.DeComFL(start(torch.float64), max_queries=1000, rate=0.03)
    alone.tell(alone.ask(), values)
    made.server.aggregate([client.report()])
    assert torch.equal(made.server.x, alone.x)


def test_scalars_too_large_for_float32_count_as_failed():
    made = make_federation("hiso", [lambda x: 1e40 * float(x.sum())], torch.zeros(3), local_steps=1)
    record = run(made, 1)[0]
    assert bool(torch.isfinite(made.server.x).all()) and torch.equal(made.server.x, torch.zeros(3)), record


def test_it_minimizes_a_neural_networks_loss_in_place():
    g = torch.Generator().manual_seed(0)
    inputs = torch.randn(60, 4, generator=g)
    labels = (inputs[:, 0] > 0).long()

    def objective(i):
        torch.manual_seed(0)
        net = torch.nn.Linear(4, 2)
        part = (inputs[20 * i : 20 * i + 20], labels[20 * i : 20 * i + 20])
        loss = lambda m, b: torch.nn.functional.cross_entropy(m(b[0]), b[1])  # noqa: E731
        return optimizers.ModuleObjective(net, loss, data=part, batch_size=8)

    objectives = [objective(i) for i in range(3)]
    fun = lambda x: sum(f(x) for f in objectives) / 3  # noqa: E731
    found = simulate("hiso", objectives, objectives[0].x0(), rounds=60, local_steps=2, rate=0.1, fun=fun)
    assert found.history[-1].fun < 0.5 * found.history[0].fun


@pytest.mark.parametrize(
    ("options", "kind", "word"),
    [
        ({"perturbations": 0}, ValueError, "perturbations"),
        ({"rate": 0.0}, ValueError, "rate"),
        (
            {"curvature": {"name": "displacement", "update": "per_epoch"}},
            ValueError,
            "^update must be" + "".join(f"(?=.*{name})" for name in UPDATES),
        ),
        ({"curvature": Displacement(initial=0.0)}, ValueError, "positive"),
        ({"hessian_weight": 0.1}, TypeError, "did you mean 'curvature=Displacement"),
        ({"scalar_dtype": "float16"}, ValueError, "scalar_dtype"),
        ({"log_rounds": 0}, ValueError, "log_rounds"),
        ({"distribution": "sphere"}, ValueError, "rademacher"),
        ({"prox": optimizers.Simplex()}, ValueError, "separable"),
        ({"perturbation": 5}, TypeError, "perturbations"),
    ],
)
def test_bad_options_are_refused(options, kind, word):
    with pytest.raises(kind, match=word):
        HiSo(start(), clients=2, **options)


@pytest.mark.parametrize("rule", UPDATES)
def test_a_rule_of_h_is_a_table_in_flowers_run_config(rule):
    configuration = pytest.importorskip("federated.flower.configuration")
    options = f"rate = 0.1, curvature = {{name = 'displacement', update = '{rule}', weight = 0.2}}"
    made = configuration.RunConfig(algorithm="hiso", dimension=4, options=options).make_algorithm()
    same = HiSo(made.x0, clients=made.clients, rate=0.1, curvature=Displacement(update=rule, weight=0.2))
    assert made.curvature.update == rule and made.configuration == same.configuration
    wrong = configuration.RunConfig(algorithm="hiso", dimension=4, options=options.replace(rule, "per_epoch"))
    with pytest.raises(ValueError, match="^.*update must be" + "".join(f"(?=.*{name})" for name in UPDATES)):
        wrong.make_algorithm()


MEMORY = """
import torch
from federated.methods.scalar.hiso import HiSo
from federated.methods.scalar.model import follow, model_digest

torch.set_num_threads(1)
d = 8_000_000
algorithm = HiSo(torch.ones(d), clients=1, local_steps=1)
model, client, server = algorithm.model(), algorithm.client(0), algorithm.server()
small = HiSo(torch.ones(10), clients=1, local_steps=1).model()
follow(small, 1, torch.ones(5)), model_digest(small)
start_meter()
follow(model, 1, 0.1 * torch.ones(5))
model_digest(model)
client.receive(server.broadcast(0))
client.tell(client.ask(), [float(i) for i in range(6)])
follow(client.optimizer, 1, client.report().tensors["scalars"])
print(grown())
"""


@pytest.mark.slow
@reads_peak
def test_a_round_and_its_replay_need_no_vector():
    """A vector of d would be 32 MB."""
    (grown,) = printed(MEMORY)
    assert grown < 8e6
