"""Checks of runs: descent, ledger, seeds, participation, resuming, workers, invalid arguments."""

from __future__ import annotations

import copy
import io
import math
from typing import Any

import torch
from torch import Tensor

from federated.core.configuration import sample_clients
from federated.engine.federation import Federation
from federated.testing.faults import Fault
from federated.testing.harness import (
    CLIENTS,
    DIMENSION,
    Factory,
    Promises,
    make,
    mean_value,
    problem,
    run,
    solution,
    start,
    states_equal,
    trace,
)
from optimizers.core.files import saved
from optimizers.testing.harness import disturb_generators, generator_states, raises


def check_descent(factory: Factory, promises: Promises) -> None:
    """F − F* falls as promised, and the history contains the values of F."""
    federation = make(factory, promises, fun=mean_value)
    records = run(federation, promises.rounds)
    least = mean_value(solution())
    before, after = mean_value(start()) - least, mean_value(federation.server.x) - least
    assert after <= promises.convergence * before, f"F − F* went from {before} to {after}"
    assert records[-1].fun == mean_value(federation.server.x)
    assert federation.history[0].fun == mean_value(start())
    assert [record.round for record in federation.history] == list(range(promises.rounds + 1))


def check_ledger(factory: Factory, promises: Promises) -> None:
    """The ledger's queries equal the objectives' counts, and bytes are recorded for every client and round."""
    objectives = problem()
    federation = make(factory, promises, objectives)
    records = run(federation, 3)
    ledger = federation.ledger
    assert ledger.total("queries") == sum(f.queries for f in objectives) == records[-1].queries > 0
    for f in objectives:
        assert ledger.total("queries", client=f.number) == f.queries
    assert ledger.total("failures") == 0
    rows = ledger.to_rows()
    assert len(rows) == 3 * CLIENTS and all(row["refused"] == "" for row in rows), rows
    assert all(row["payload_up"] > 0 for row in rows) and ledger.total("payload_down") > 0
    assert all(row["message_up"] > row["payload_up"] for row in rows)
    assert all(row["message_down"] > row["payload_down"] for row in rows)
    assert all(row["wire_up"] is None and row["wire_down"] is None for row in rows)
    assert ledger.total("wire_up") is None


def check_codec(factory: Factory, promises: Promises) -> None:
    """Messages passed as objects or as bytes give the same iterates and payloads."""
    encoded, passed = make(factory, promises), make(factory, promises, codec=False)
    run(encoded, 3), run(passed, 3)
    assert torch.equal(encoded.server.x, passed.server.x)
    for name in ("queries", "payload_up", "payload_down"):
        assert encoded.ledger.total(name) == passed.ledger.total(name)
    assert passed.ledger.total("message_up") == 0


def check_seeds(factory: Factory, promises: Promises) -> None:
    """The same seed gives the same run, and another seed another run, if promised."""
    runs = []
    for seed in (3, 3, 4):
        federation = make(factory, promises, seed=seed)
        run(federation, 2)
        runs.append(trace(federation)[:2])
    assert runs[0] == runs[1], "the same seed gave a different run"
    assert (runs[0] != runs[2]) == promises.seeded


def check_generators(factory: Factory, promises: Promises) -> None:
    """The global random generators of torch, NumPy and Python are neither used nor changed."""
    runs = []
    for seed in (0, 1):
        disturb_generators(seed)
        before = generator_states()
        federation = make(factory, promises, participation=0.5)
        run(federation, 2)
        assert generator_states() == before, "a global generator was advanced"
        runs.append(trace(federation))
    assert runs[0] == runs[1], "a global generator was used"


def check_participation(factory: Factory, promises: Promises) -> None:
    """A round's participants are the sample given by seed and round, and every client is sampled eventually."""
    for participation, count in ((0.5, 2), (3, 3), (1, 1), (1.0, CLIENTS), (0.01, 1)):
        federation = make(factory, promises, participation=participation)
        for record in run(federation, 2):
            expected = sample_clients(federation.algorithm.seed, record.round, CLIENTS, count)
            assert record.participants == expected == record.accepted, record
    drawn = [sample_clients(0, r, CLIENTS, 1)[0] for r in range(40)]
    assert set(drawn) == set(range(CLIENTS))


def check_single_precision(factory: Factory, promises: Promises) -> None:
    """A float32 initial point gives a float32 run."""
    federation = factory(problem(), start(torch.float32), local_steps=promises.local_steps)
    (record,) = run(federation, 1)
    assert federation.server.x.dtype == torch.float32 and record.skipped is None
    assert bool(torch.isfinite(federation.server.x).all())


def check_resume(factory: Factory, promises: Promises) -> None:
    """A run saved to a file after any round resumes bitwise."""
    delayed, crashed, dropped = (sample_clients(0, r, CLIENTS, 3)[0] for r in (1, 2, 3))
    crash = [Fault("crash", 2, crashed), Fault("rejoin", 4, crashed)]
    faults = [Fault("delay", 1, delayed, by=2), *crash, Fault("drop", 3, dropped)]
    whole = make(factory, promises, faults=faults, participation=3)
    saved, under_way = [_through_file(whole)], [_under_way(whole)]
    for _ in range(4):
        run(whole, 1)
        saved.append(_through_file(whole))
        under_way.append(_under_way(whole))
    for done, state in enumerate(saved):
        disturb_generators(done)
        fresh = make(factory, promises, faults=faults, participation=3)
        fresh.load_state_dict(state)
        vars(fresh.host).update(under_way[done])
        run(fresh, 4 - done)
        assert trace(fresh) == trace(whole), f"resumed after round {done}, the run differs"
        assert states_equal(fresh.state_dict(), saved[-1]), f"resumed after round {done}, the state differs"
    other = make(factory, promises, seed=1, participation=3)
    before = other.state_dict()
    error = raises(ValueError, lambda: other.load_state_dict(saved[-1]))
    assert "seed" in str(error), f"the message does not name the seed: {error}"
    assert states_equal(other.state_dict(), before), "a refused state changed the federation"


def check_workers(factory: Factory, promises: Promises) -> None:
    """A run with worker processes equals the run in one process bitwise, including the state."""
    faults = [Fault("crash", 2, 1), Fault("rejoin", 3, 1), Fault("corrupt", 2, 0, how="nan")]
    alone = make(factory, promises, faults=faults)
    run(alone, 3)
    spread = make(factory, promises, faults=faults, workers=2, start_method="fork")
    try:
        run(spread, 3)
        assert trace(spread) == trace(alone)
        assert states_equal(spread.state_dict(), alone.state_dict())
    finally:
        spread.host.close()


def check_bad_arguments(factory: Factory, promises: Promises) -> None:
    """Invalid arguments are refused before any query, with an error that names them."""
    objectives = problem()
    x0, nan = start(), torch.full((DIMENSION,), math.nan, dtype=torch.float64)

    def attempt(x: Tensor = x0, **options: Any) -> Federation:
        return factory(objectives, x, **options)

    bad: list[tuple[type[Exception], str, dict[str, Any]]] = [
        (ValueError, "share", {"participation": 1.5}),
        (TypeError, "local_steps", {"local_step": 2}),
        (ValueError, "local_steps", {"local_steps": 0}),
        (ValueError, "seed", {"seed": -1}),
        (ValueError, "weights", {"weights": [1.0]}),
        (ValueError, "finite", {"x": nan}),
        (ValueError, "median", {"aggregation": "medain"}),
        (ValueError, "server_rate", {"server_rate": 0.0}),
    ]
    for kind, word, options in bad:
        error = raises(kind, lambda options=options: attempt(**options))  # type: ignore[misc]
        assert word in str(error), f"the message does not say {word!r}: {error}"
    assert sum(f.queries for f in objectives) == 0, "queries were spent before an argument was refused"


def _under_way(federation: Federation) -> dict[str, Any]:
    """Returns the state of faults: clients that are down, and late reports."""
    return {name: copy.copy(getattr(federation.host, name)) for name in ("down", "late")}


def _through_file(federation: Federation) -> dict[str, Any]:
    loaded: dict[str, Any] = torch.load(io.BytesIO(saved(federation.state_dict())), weights_only=True)
    return loaded
