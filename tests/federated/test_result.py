"""A federation's result drawn, in rows, saved and printed says what its records and ledger say."""

import logging
import math
import pickle
from dataclasses import asdict, fields
from unittest.mock import patch

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure

from federated import Ledger, RoundRecord, make_federation, simulate
from federated.engine.federation import History
from federated.engine.result import FederatedResult
from federated.testing import Fault, Quadratic, faulty
from optimizers.core.archive import save_archive

OPTIONS = {"local_steps": 2, "directions": 3}


class Failing(Quadratic):
    """A client whose every tenth query fails, in its second round for the first time."""

    calls = 0

    def __call__(self, x):
        self.calls += 1
        return math.nan if self.calls % 10 == 0 else super().__call__(x)


def mean_value(x):
    return sum(Quadratic(i).value(x) for i in range(4)) / 4


def made(dtype=torch.float64, fun=mean_value, rounds=4, **options):
    clients = [Quadratic(0), Quadratic(1), Quadratic(2), Failing(3)]
    x0 = torch.linspace(0.1, 0.9, 5, dtype=dtype)

    def losing(*given, **named):
        return faulty(make_federation(*given, **named), [Fault("drop", round=3, client=1)])

    with patch("federated.simulate.make_federation", losing):
        return simulate("fedzo", clients, x0, rounds=rounds, fun=fun, **OPTIONS | options)


def same(one, other):
    rows = [[[asdict(r) for r in result.history], result.ledger.to_rows()] for result in (one, other)]
    rest = [{k: v for k, v in result.items() if k not in ("history", "ledger", "x")} for result in (one, other)]
    x = one.x.dtype == other.x.dtype and one.x.numpy().tobytes() == other.x.numpy().tobytes()
    return x and repr(rows[0]) == repr(rows[1]) and repr(rest[0]) == repr(rest[1]) and one.keys() == other.keys()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("fun", [mean_value, None])
def test_saved_results_come_back_bitwise(dtype, fun, tmp_path):
    result = made(dtype, fun)
    assert result.nfail > 0 and any(record.refused for record in result.history)
    result.message = "Gestoppt – nach 4 Runden"
    result.save(tmp_path / "run")
    loaded = FederatedResult.load(tmp_path / "run")
    assert type(loaded) is FederatedResult and type(loaded.history) is History and same(loaded, result)
    assert all(type(record) is RoundRecord for record in loaded.history)
    assert same(pickle.loads(pickle.dumps(result)), result)


def test_other_files_are_refused(tmp_path):
    path, result = tmp_path / "run", made(rounds=1)
    save_archive(path, "Comparison", {})
    with pytest.raises(ValueError, match="run is not a saved FederatedResult: it holds a Comparison"):
        FederatedResult.load(path)
    result.save(path)
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(ValueError, match="run is not a saved FederatedResult"):
        FederatedResult.load(path)


def line_data(ax, label):
    (line,) = (line for line in ax.lines if line.get_label() == label)
    return [list(line.get_xdata()), list(line.get_ydata())]


def spent_by_round(result):
    """Cumulative queries and payload bytes from the rows of the ledger, and the rounds in which something failed."""
    rows = result.ledger.to_rows()
    rounds = np.array([row["round"] for row in rows])

    def so_far(*names):
        costs = np.array([sum(row[name] for name in names) for row in rows])
        return np.cumsum([0] + [costs[rounds == r].sum() for r in range(1, result.nit + 1)])

    return {
        "rounds": np.arange(result.nit + 1),
        "queries": so_far("queries"),
        "bytes": so_far("payload_up", "payload_down"),
    }


@pytest.mark.parametrize("against", ["rounds", "queries", "bytes"])
def test_lines_are_values_and_costs(against):
    result = made()
    spent = spent_by_round(result)
    ax = result.plot(Figure().add_subplot(), against=against)
    x, y = line_data(ax, "fedzo")
    np.testing.assert_array_equal(x, spent[against])
    assert y == [record.fun for record in result.history] and y[-1] == float(mean_value(result.x))
    failed = {row["round"] for row in result.ledger.to_rows() if row["failures"]}
    assert failed and failed != {1, 2, 3, 4}
    assert line_data(ax, "rounds with failures")[0] == [spent[against][r] for r in sorted(failed)]
    ax.figure.canvas.draw()


def test_rounds_that_were_taken_back_are_marked():
    history = [RoundRecord(r, 5.0 - r, skipped="none" if r == 2 else None, rejected=r == 3) for r in range(5)]
    ax = FederatedResult(history=History(history), algorithm="fedzo").plot(Figure().add_subplot())
    assert line_data(ax, "rounds with failures")[0] == [2, 3]


def test_what_cannot_be_drawn_is_refused():
    result = made(rounds=1, fun=None)
    with pytest.raises(ValueError, match="not given the global function"):
        result.plot()
    with pytest.raises(ValueError, match=r"against must .*got 'seconds'.*bytes, queries, rounds"):
        result.plot(against="seconds")


def test_rows():
    pytest.importorskip("pandas")
    result = made()
    frame = result.to_dataframe()
    assert frame.index.name == "round" and list(frame.index) == [0, 1, 2, 3, 4]
    assert [frame.index.name, *frame.columns] == [field.name for field in fields(RoundRecord)]
    assert list(frame.fun) == [record.fun for record in result.history]
    assert list(frame.accepted) == [record.accepted for record in result.history]
    frame, rows = result.ledger.to_dataframe(), result.ledger.to_rows()
    assert list(frame.columns) == list(rows[0]) and frame.wire_up.isna().all() and frame.queries.dtype == np.int64
    for name in ("round", "client", "queries", "payload_up", "seconds", "refused"):
        assert list(frame[name]) == [row[name] for row in rows]
    assert len(Ledger().to_dataframe()) == 0
    ledger = Ledger()
    ledger.add(1, 0, wire_up=5)
    ledger.add(1, 1)
    assert ledger.to_dataframe().wire_up.sum() == 5 and ledger.to_dataframe().wire_up.isna().tolist() == [False, True]


def test_five_lines():
    result = made()
    assert repr(result).splitlines() == [
        " message: 4 rounds done, 3 of 128 queries failed, 1 of 16 reports were not used.",
        " success: True, algorithm: fedzo",
        f"     fun: {float(mean_value(result.x))}",
        "       x: [{:.6g}, {:.6g}, {:.6g}, {:.6g}, {:.6g}] (Tensor, float64, 5)".format(*result.x.tolist()),
        f"     nit: 4, skipped: 0, rejected: 0, nfev: {result.nfev}, nfail: {result.nfail}",
    ]
    total, lines = result.ledger.total, repr(result.ledger).splitlines()
    assert len(lines) == 5 and lines[0].startswith("Ledger of 4 rounds and 4 clients, ")
    assert lines[1:] == [
        f"  queries: {total('queries')}, failures: {total('failures')}, gradients: 0",
        f"  payload bytes: {total('payload_up')} up, {total('payload_down')} down",
        f"  message bytes: {total('message_up')} up, {total('message_down')} down",
        "  reports refused or missing in 1 of 16 entries",
    ]
    for shown in (FederatedResult(), Ledger(), made(rounds=0)):
        assert len(repr(shown).splitlines()) == 5


def test_histories_are_printed_in_five_lines():
    record = RoundRecord(3, 0.123456789, 96, 2, participants=tuple(range(500)), accepted=(1, 2))
    assert repr(record) == "<round 3: fun 0.123457, 96 queries, 2 failed, 500 participants, 2 accepted>"
    lost = RoundRecord(
        4, 1.0, participants=(1,), refused=((1, "phase", "why " * 100),), skipped="no " * 999, rejected=True
    )
    assert "skipped: no no" in repr(lost) and repr(lost).endswith("taken back>") and len(repr(lost)) < 200
    long = History([record] * 100 + [lost])
    assert repr(long).splitlines() == ["101 rounds:", f"  {record}", f"  {record}", "  ...", f"  {lost}"]
    assert len(repr(made().history).splitlines()) == 5 and len(repr(made(rounds=3).history).splitlines()) == 5


def test_progress_shows_rounds(monkeypatch, caplog, capsys):
    made(progress=True)
    shown = capsys.readouterr().err.split("\r")[-1]
    assert "fedzo: 100%" in shown and "4/4" in shown and "queries" in shown and "round" in shown
    result = made()
    best, nfail = min(record.fun for record in result.history), result.nfail
    assert f"best {best:.6g}, {result.nfev} queries, {nfail} failed" in shown
    caplog.set_level(logging.INFO, "optimizers.progress")
    monkeypatch.setattr("optimizers.progress.LOG_EVERY", 0.0)
    for progress, lines in (("auto", 4), (False, 0)):
        caplog.clear()
        made(progress=progress)
        told = [record for record in caplog.records if record.name == "optimizers.progress"]
        assert len(told) == lines and capsys.readouterr().err == ""
    with pytest.raises(ValueError, match="progress must be"):
        made(progress="bar")


def test_an_unknown_value_is_told_from_a_failed_one():
    clients, x0 = [Quadratic(i) for i in range(2)], torch.zeros(5, dtype=torch.float64)
    options = {"rounds": 1, "local_steps": 1, "directions": 2}
    assert "fun: nan (unknown: pass F to simulate as fun)" in repr(simulate("fedzo", clients, x0, **options))
    assert "no value" not in repr(simulate("fedzo", clients, x0, fun=lambda x: float(x @ x), **options))
