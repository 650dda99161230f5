"""HiSo with a measured curvature: two scalars in a probe round, replay to the bit, one client as one machine."""

import dataclasses

import pytest
import torch

import optimizers
from federated import BehindError, MessageError, make_federation
from federated.core.codec import decode, encode
from federated.methods.scalar.hiso import HiSo
from federated.methods.scalar.model import follow, model_digest
from federated.testing import CHECKS, Fault, Promises, algorithm_factory, faulty
from optimizers import GroupProbe
from optimizers.core.options import take_options
from tests.federated.methods.scalar.test_hiso import assert_rebuilt, bits, federation, quadratics, run, start

VARIANTS = {
    "single": {},
    "groups": {"groups": 2, "initial_probes": 1, "probe_every": 3, "local_steps": 3, "server_rate": 0.7},
    "given": {"groups": [[0, 2, 5], [1, 3, 4, 6]], "initial_probes": 2, "probe_every": 2, "prox": optimizers.L1(0.1)},
    "box": {"groups": 1, "probe_every": 2, "bounds": [(-1.0, 0.6)] * 7, "local_steps": 2, "distribution": "rademacher"},
}


def probing(faults=(), **options):
    curvature = take_options(GroupProbe, options)
    return federation("hiso", faults, **({"curvature": curvature, "rate": None} | options))


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_battery(check):
    if check.__name__ == "check_ledger":
        pytest.skip("the first broadcast has no payload: the bytes are below")
    factory = algorithm_factory("hiso", curvature=GroupProbe(groups=1, initial_probes=1, probe_every=3))
    check(factory, Promises())


@pytest.mark.parametrize("variant", VARIANTS)
def test_clients_rebuild_the_server_bitwise_after_any_fault(variant):
    faults = [
        *(Fault("unreachable", r, 0) for r in (2, 3, 4)),
        Fault("drop", 3, 1),
        Fault("delay", 5, 1, by=2),
        Fault("crash", 4, 2),
        Fault("rejoin", 6, 2),
        *(Fault("drop", 9, c) for c in range(3)),
    ]
    made = probing(faults, **VARIANTS[variant])
    records = run(made, 14)
    assert records[8].skipped and records[5].accepted == records[13].accepted == (0, 1, 2)
    state = 7 * 4
    assert all(r["payload_down"] < state * 20 for r in made.ledger.to_rows())
    assert_rebuilt(made)
    one, other = (made.host.client(c).optimizer.state.learned for c in (0, 1))
    assert torch.equal(one.gain, other.gain) and float(one.gain[1]) > 0.0


def test_messages_have_the_groups_state_where_the_log_is_too_short():
    made = probing([Fault("unreachable", r, 0) for r in range(2, 8)], log_rounds=3, groups=2, initial_probes=1)
    run(made, 8)
    rows = {(r["round"], r["client"]): r for r in made.ledger.to_rows()}
    assert rows[8, 0]["payload_down"] == 7 * 4 + 2 * 8 + 2 * 1 + 3 * 8
    assert made.history[-1].accepted == (0, 1, 2)
    assert_rebuilt(made)
    fresh = made.algorithm.client(0)
    state = made.server.catch_up(dataclasses.replace(fresh.position(), round=0), 0)
    spoilt = dataclasses.replace(state, tensors={**state.tensors, "curvature": -state.tensors["curvature"]})
    with pytest.raises(MessageError, match="curvature must not be negative"):
        fresh.catch_up(spoilt)


@pytest.mark.parametrize("d", [3, 3000])
@pytest.mark.parametrize(("steps", "count"), [(1, 1), (4, 5)])
def test_a_probe_round_is_two_scalars_each_way_and_three_queries(d, steps, count):
    x0 = torch.full((d,), 0.3, dtype=torch.float32)
    made = probing(x0=x0, groups=3, initial_probes=1, probe_every=2, local_steps=steps, perturbations=count)
    run(made, 8)
    rows = [r for r in made.ledger.to_rows() if r["client"] == 1]
    kinds = [made.algorithm.curvature.probe(0, r) is not None for r in range(1, 9)]
    assert kinds == [True, True, True, False, True, False, True, False]
    ups = [8 if probe else 4 * steps * count for probe in kinds]
    assert [r["payload_up"] for r in rows] == ups
    assert [r["payload_down"] for r in rows] == [0, *ups[:-1]]
    assert [r["queries"] for r in rows] == [3 if probe else 2 * steps * count for probe in kinds]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("options", [{}, {"groups": 2, "prox": optimizers.L1(0.1)}])
def test_one_client_is_the_single_machine_method(dtype, options):
    made = probing(count=1, x0=start(dtype), scalar_dtype="float64", seed=3, **options)
    run(made, 25)
    own = dict(options)
    curvature = take_options(GroupProbe, own)
    alone = optimizers.HiSo(start(dtype), max_queries=10**6, curvature=curvature, seed=3, **own)
    objective = quadratics(1)[0]
    for _ in range(25):
        batch = alone.ask()
        alone.tell(batch, torch.stack([objective(x) for x in batch]))
    assert bits({"x": made.server.x}) == bits({"x": alone.x}) and not torch.equal(alone.x, start(dtype))
    assert torch.equal(made.server.state.model.state.learned.curvature, alone.state.learned.curvature)
    assert made.ledger.total("queries") == alone.queries


def test_curvature_is_that_of_the_clients_mean():
    made = probing(x0=start(torch.float64), scalar_dtype="float64", weights=[1.0, 2.0, 5.0])
    run(made, 7)
    weights = (1.0, 2.0, 5.0)
    basis = torch.eye(7, dtype=torch.float64)
    origin = torch.zeros(7, dtype=torch.float64)
    wanted = torch.zeros(7, dtype=torch.float64)
    for w, f in zip(weights, quadratics(), strict=True):
        second = torch.stack([f(e) + f(-e) - 2 * f(origin) for e in basis])
        wanted += w / 8.0 * second
    torch.testing.assert_close(made.server.state.model.hessian, wanted, rtol=1e-6, atol=0)


def test_a_client_saved_between_any_two_steps_goes_on_bitwise():
    made = probing(**VARIANTS["groups"])
    run(made, 3)
    client, objective = made.host.client(0), quadratics()[0]
    client.receive(made.server.broadcast(0))
    saved = []
    while (batch := client.ask()) is not None:
        saved.append(client.state_dict())
        client.tell(batch, torch.stack([objective(x) for x in batch]))
    report = decode(encode(client.report())).tensors["scalars"]
    assert len(saved) == 3 and model_digest(client.optimizer) == made.server.state.digest
    for state in saved:
        other = made.algorithm.client(0)
        other.load_state_dict(state)
        while (batch := other.ask()) is not None:
            other.tell(batch, torch.stack([objective(x) for x in batch]))
        assert torch.equal(other.report().tensors["scalars"], report)
        assert bits(other.optimizer.vectors()) == bits(client.optimizer.vectors())


def test_clipping_is_replayed_state():
    made = probing(groups=1, initial_probes=1, probe_every=100, perturbations=1, count=1)
    run(made, 14)
    model = made.server.state.model
    limit = 1.5 * float(model.state.learned.gain[0]) ** 0.5
    replicas = [made.algorithm.model() for _ in range(3)]
    for replica, scalar in zip(replicas, (1.0, limit, 1e6 * limit), strict=True):
        for entry in made.server.state.log.between(1, 15):
            follow(replica, entry.round, entry.scalars)
        follow(replica, 15, torch.tensor([scalar]))
    ordinary, at, beyond = (r.x for r in replicas)
    torch.testing.assert_close(at, beyond, rtol=1e-6, atol=0)
    assert not torch.allclose(ordinary, at)


@pytest.mark.slow
def test_it_preconditions_over_clients():
    """Three clients, coordinates with scales from 1e-3 to 1e3: far below DeComFL at either side of its best rate."""
    d = 8
    scales = 10 ** torch.linspace(-3.0, 3.0, d, dtype=torch.float64)

    def make(name, **options):
        clients = [lambda x, i=i: float((scales * (x - 0.1 * i) ** 2).sum()) for i in range(3)]
        x0 = torch.ones(d, dtype=torch.float64)
        made = make_federation(name, clients, x0, perturbations=1, local_steps=1, scheme="central", **options)
        run(made, 120)
        return float((scales * (made.server.x - 0.1) ** 2).sum())

    ours = make("hiso", curvature="group_probe")
    assert ours < 1e-2 * min(make("decomfl", rate=10.0**-k) for k in (3, 4))


@pytest.mark.parametrize(
    ("options", "kind", "message"),
    [
        ({"curvature": GroupProbe(groups=[range(4)])}, ValueError, "do not cover"),
        ({"hessian_weight": 0.1}, TypeError, "did you mean 'curvature=Displacement"),
        ({"momentum": 0.5}, ValueError, "does not support momentum"),
        ({"projection": True}, ValueError, "does not support projection"),
        ({"scheme": "forward"}, ValueError, "scheme='central'"),
        ({"groups": 2}, TypeError, "did you mean 'curvature=GroupProbe"),
        ({"curvature": "group"}, ValueError, "did you mean 'group_probe'"),
        ({"curvature": {"name": "group_probe", "group": 2}}, TypeError, "did you mean 'groups'"),
    ],
)
def test_bad_options_are_refused(options, kind, message):
    with pytest.raises(kind, match=message):
        HiSo(start(), clients=2, **({"curvature": "group_probe"} | options))


def test_clients_of_other_groups_are_refused():
    made = probing(groups=2)
    other = HiSo(start(), clients=3, curvature=GroupProbe(groups=[range(2), range(2, 7)]), perturbations=5)
    with pytest.raises(MessageError, match="fingerprint"):
        other.client(0).receive(made.server.broadcast(0))
    assert other.configuration["curvature"]["groups"] != made.algorithm.configuration["curvature"]["groups"]


def test_a_damaged_running_value_is_found():
    made = probing(groups=1, initial_probes=1)
    run(made, 4)
    client = made.host.client(1)
    client.optimizer.state.learned.gain[0] *= 2.0
    client.state.digest = ""
    with pytest.raises(BehindError, match="has digest"):
        client.receive(made.server.broadcast(1))


@pytest.mark.slow
def test_a_hundred_missed_rounds_at_a_million_coordinates():
    made = make_federation(
        "hiso",
        [lambda x: float(x[:10].double().square().sum())] * 2,
        torch.ones(1_000_000, dtype=torch.float32),
        local_steps=1,
        perturbations=1,
        curvature={"name": "group_probe", "groups": 5},
    )
    faulty(made, [Fault("unreachable", r, 1) for r in range(2, 102)])
    run(made, 102)
    assert made.ledger.to_rows()[-1]["refused"] == ""
    assert_rebuilt(made)
