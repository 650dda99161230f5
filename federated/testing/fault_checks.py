"""Checks with faults: a round continues without the affected clients."""

from __future__ import annotations

from typing import Any

import torch

from federated.engine.federation import Federation, RoundRecord
from federated.testing.faults import CORRUPTIONS, Fault
from federated.testing.harness import CLIENTS, Factory, Promises, make, problem, run

KINDS = ("unreachable", "drop", "delay", "crash")


def check_faults(factory: Factory, promises: Promises) -> None:
    """After any fault in any phase the round ends with the other clients, and its record states the reason."""
    for phase in range(_phases(factory, promises)):
        for kind in KINDS:
            faults = [Fault(kind, 2, 1, phase=phase)]
            if kind == "crash":
                faults.append(Fault("rejoin", 4, 1))
            objectives = problem()
            federation = make(factory, promises, objectives, faults)
            records = run(federation, 4)
            _completed(records[1], 1, phase, federation)
            assert records[0].accepted == records[3].accepted == tuple(range(CLIENTS)), (kind, records)
            rejoined = (0, 2, 3) if kind == "crash" else tuple(range(CLIENTS))
            assert records[2].accepted == rejoined, (kind, records[2])
            late = [client for client, _, reason in records[2].refused if "late" in reason]
            assert kind != "delay" or 1 in late, records[2]
            _counts_agree(federation, objectives)


def check_corruptions(factory: Factory, promises: Promises) -> None:
    """A report corrupted in any way, in any phase, is refused with a reason."""
    for phase in range(_phases(factory, promises)):
        faults = [Fault("corrupt", number, 2, phase=phase, how=how) for number, how in enumerate(CORRUPTIONS, 1)]
        objectives = problem()
        federation = make(factory, promises, objectives, faults)
        *corrupted, last = run(federation, len(faults) + 1)
        for record in corrupted:
            _completed(record, 2, phase, federation)
        assert last.accepted == tuple(range(CLIENTS)), last
        _counts_agree(federation, objectives)


def check_all_reports_lost(factory: Factory, promises: Promises) -> None:
    """A round is skipped if a phase has no valid report, and the next round is not skipped."""
    for phase in range(_phases(factory, promises)):
        faults = [Fault("drop", 2, client, phase=phase) for client in range(CLIENTS)]
        objectives = problem()
        federation = make(factory, promises, objectives, faults)
        run(federation, 1)
        before = federation.server.x.clone()
        (record,) = run(federation, 1)
        assert record.skipped and record.accepted == (), record
        assert {client for client, _, _ in record.refused} == set(range(CLIENTS))
        if phase == 0:
            assert torch.equal(federation.server.x, before), "a skipped round moved the model"
        (record,) = run(federation, 1)
        assert record.skipped is None and record.accepted == tuple(range(CLIENTS)), record
        _counts_agree(federation, objectives)


def check_failed_queries(factory: Factory, promises: Promises) -> None:
    """Failed queries are counted and tolerated: one in seven, all of one client, or all."""
    one_client = problem()
    one_client[1].failing = 1
    for objectives in (problem(failing=7), one_client, problem(failing=1)):
        federation = make(factory, promises, objectives)
        before = federation.server.x.clone()
        records = run(federation, 3)
        assert federation.ledger.total("failures") > 0
        assert objectives is not one_client or all(record.skipped is None for record in records), records
        _finite(federation)
        _counts_agree(federation, objectives)
    assert torch.equal(federation.server.x, before), "the model moved although all queries failed"


def _phases(factory: Factory, promises: Promises) -> int:
    return len(make(factory, promises).algorithm.exchanges)


def _completed(record: RoundRecord, client: int, phase: int, federation: Federation) -> None:
    """Asserts that a round used all reports except one client's, and that the ledger states the reason."""
    name = federation.algorithm.exchanges[phase]
    reasons = [reason for c, p, reason in record.refused if c == client and p == name]
    assert len(reasons) == 1 and reasons[0], f"{name}: {record}"
    assert record.skipped is None, record
    rest = tuple(c for c in range(CLIENTS) if c != client)
    assert set(rest) <= set(record.accepted), record
    assert phase + 1 < len(federation.algorithm.exchanges) or record.accepted == rest, record
    row = next(r for r in federation.ledger.to_rows() if (r["round"], r["client"]) == (record.round, client))
    assert reasons[0] in row["refused"], row
    _finite(federation)


def _counts_agree(federation: Federation, objectives: Any) -> None:
    ledger = federation.ledger
    for f in objectives:
        assert ledger.total("queries", client=f.number) == f.queries, f"client {f.number}: {f.queries}"
    assert ledger.total("failures") == sum(f.failures for f in objectives)


def _finite(federation: Federation) -> None:
    assert bool(torch.isfinite(federation.server.x).all()), federation.server.x
