import csv
import math
import random

import numpy as np
import pytest

from federated import Ledger
from federated.core.ledger import COLUMNS


def filled():
    ledger = Ledger()
    ledger.add(2, 1, queries=5, payload_up=8, seconds=0.5)
    ledger.add(1, 0, queries=3, failures=1, wire_up=100, wire_down=None)
    ledger.add(1, 0, queries=4, wire_up=50)
    ledger.refuse(1, 0, "late, by one")
    ledger.refuse(1, 0, "NaN")
    return ledger


def test_counts_add_up_by_round_and_client():
    ledger = filled()
    assert ledger.total("queries") == 12
    assert ledger.total("queries", client=0) == 7 and ledger.total("queries", round=2) == 5
    assert ledger.total("wire_up") == 150 and ledger.total("wire_down") is None
    assert ledger.total("wire_up", client=1) is None
    assert ledger.total("queries", client=9) == 0
    assert [(row["round"], row["client"]) for row in ledger.to_rows()] == [(1, 0), (2, 1)]


def test_csv_reads_back(tmp_path):
    filled().to_csv(tmp_path / "ledger.csv")
    rows = list(csv.DictReader((tmp_path / "ledger.csv").read_text().splitlines()))
    assert list(rows[0]) == list(COLUMNS)
    assert rows[0]["refused"] == "late, by one; NaN" and rows[0]["wire_up"] == "150"
    assert rows[1]["wire_up"] == "" and rows[1]["queries"] == "5"


def reference(calls):
    """The rows after calls of ``add`` (round, client, counts), by a dictionary of dictionaries."""
    rows = {}
    for number, client, counts in calls:
        entry = dict.fromkeys(COLUMNS[2:], 0) | {"wire_up": None, "wire_down": None, "seconds": 0.0, "refused": ""}
        row = rows.setdefault((number, client), {"round": number, "client": client} | entry)
        for name, count in counts.items():
            if isinstance(count, str):
                row[name] = f"{row[name]}; {count}" if row[name] else count
            elif count is not None:
                row[name] = (row[name] or 0) + count
    return rows


def test_running_totals_are_those_of_the_rows_in_any_order():
    draw = random.Random(0)
    ledger, resumed, calls = Ledger(), Ledger(), []
    for i in range(400):
        if i == 200:
            resumed.load_state_dict(ledger.state_dict())
        number, client = draw.randint(1, 6), draw.randint(0, 5)
        counts = {name: draw.randint(0, 9) for name in draw.sample(COLUMNS[2:10], 3)} | {"seconds": draw.random()}
        if number == 2:
            counts |= {"wire_up": draw.choice([None, 7])}
        if draw.random() < 0.1:
            ledger.refuse(number, client, "late"), resumed.refuse(number, client, "late")
            calls.append((number, client, {"refused": "late"}))
        ledger.add(number, client, **counts), resumed.add(number, client, **counts)
        calls.append((number, client, counts))
    rows = reference(calls)
    assert ledger.to_rows() == [rows[key] for key in sorted(rows)]
    assert resumed.state_dict() == ledger.state_dict()
    assert list(zip(*(ledger.state_dict()[name] for name in ("round", "client")), strict=True)) == list(rows)
    for name in COLUMNS[2:-1]:
        for where in ({}, {"round": 2}, {"client": 3}, {"round": 5, "client": 0}):
            found = [r[name] for r in rows.values() if all(r[k] == v for k, v in where.items())]
            known = [count for count in found if count is not None]
            wanted = sum(known) if known or not found else None
            for each in (ledger, resumed):
                assert each.total(name, **where) == (pytest.approx(wanted) if name == "seconds" else wanted)


def test_a_new_round_and_the_totals_look_at_no_earlier_entry(monkeypatch):
    ledger = filled()
    monkeypatch.setattr(Ledger, "_column", None)  # all that reads a column
    for number in range(3, 6):
        for client in range(3):
            ledger.add(number, client, queries=2, seconds=0.1)
            ledger.refuse(number, client, "late")
        ledger.add(number, 1, queries=1)
    assert ledger.total("queries") == 12 + 3 * 7 and len(ledger) == 2 + 9 and ledger.total("wire_down") is None


def test_what_has_changed_is_known():
    ledger = filled()
    assert not ledger.is_written("file", 0)
    ledger.mark_written("file")
    assert ledger.is_written("file", len(ledger))
    ledger.add(3, 0)
    assert ledger.is_written("file", 2) and not ledger.is_written("file", 3)
    ledger.mark_written("file")
    ledger.refuse(1, 0, "again")
    ledger.add(3, 0, queries=1)
    assert ledger.is_written("file", 1) and not ledger.is_written("file", 2)
    ledger.mark_written("another")
    assert not ledger.is_written("file", 0)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda s: s["queries"].__setitem__(0, -1),
        lambda s: s["queries"].__setitem__(0, 2**63),
        lambda s: s["round"].__setitem__(0, True),
        lambda s: s["wire_up"].__setitem__(0, -1),
        lambda s: s["seconds"].__setitem__(1, float("nan")),
        lambda s: s["refused"].append("more"),
        lambda s: s.update({name: column * 2 for name, column in s.items()}),
    ],
)
def test_states_that_are_none_are_refused(spoil):
    ledger = filled()
    state, before = ledger.state_dict(), ledger.state_dict()
    spoil(state)
    with pytest.raises(ValueError, match="the ledger"):
        ledger.load_state_dict(state)
    assert ledger.state_dict() == before


def test_states_come_back():
    ledger, other = filled(), Ledger()
    other.load_state_dict(ledger.state_dict())
    assert other.to_rows() == ledger.to_rows()
    other.add(1, 0, queries=1)
    assert ledger.total("queries") == 12
    with pytest.raises(ValueError, match="columns"):
        other.load_state_dict({"round": []})


def test_it_is_printed_in_five_lines():
    lines = repr(filled()).splitlines()
    assert len(lines) == 5 and lines[0] == "Ledger of 2 rounds and 2 clients, 0.5 s of work:"
    assert lines[1:3] == ["  queries: 12, failures: 1, gradients: 0", "  payload bytes: 8 up, 0 down"]
    assert lines[4] == "  reports refused or missing in 1 of 2 entries"


def test_what_a_client_says_to_have_spent_neither_overflows_an_entry_nor_a_sum():
    """A client may say so in every phase of a round, and every client may."""
    ledger = Ledger()
    for client in (0, 1, 1, 1):
        ledger.add(1, client, queries=2**62, seconds=1.5)
    assert [row["queries"] for row in ledger.to_rows()] == [2**62, 2**63 - 1]
    assert ledger.total("queries") == 2**62 + 2**63 - 1 == ledger.total("queries", round=1)
    again = Ledger.from_state_dict(ledger.state_dict())
    assert again.total("queries") == ledger.total("queries") and again.total("seconds") == 6.0


@pytest.mark.parametrize(
    ("place", "counts", "error"),
    [
        ((1, 0), {"failures": 1, "queries": 1.5}, TypeError),
        ((1, 0), {"queries": "3"}, TypeError),
        ((1, 0), {"queries": -3}, ValueError),
        ((1, 0), {"seconds": math.nan}, ValueError),
        ((1, 0), {"seconds": -1.0}, ValueError),
        ((1, "0"), {"queries": 1}, TypeError),
        ((1, -1), {"queries": 1}, ValueError),
        ((1.5, 0), {"queries": 1}, TypeError),
        ((None, 0), {}, TypeError),
    ],
)
def test_what_is_no_count_is_refused_and_nothing_is_added(place, counts, error):
    """It could be saved, and never loaded again."""
    ledger = filled()
    before = ledger.state_dict()
    with pytest.raises(error, match=r"round|client|queries|seconds"):
        ledger.add(*place, **counts)
    assert ledger.state_dict() == before
    ledger.add(1, 0, queries=np.int64(2))
    assert Ledger.from_state_dict(ledger.state_dict()).total("queries") == 14


def test_unknown_names_are_refused():
    with pytest.raises(TypeError, match="query"):
        Ledger().add(1, 0, query=1)
    with pytest.raises(ValueError, match="refused"):
        Ledger().total("refused")
