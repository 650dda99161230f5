import csv

import pytest

from federated import Ledger
from federated.core.ledger import COLUMNS
from optimizers.core.archive import save_archive


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


def test_states_come_back():
    ledger, other = filled(), Ledger()
    other.load_state_dict(ledger.state_dict())
    assert other.to_rows() == ledger.to_rows()
    other.add(1, 0, queries=1)
    assert ledger.total("queries") == 12
    with pytest.raises(ValueError, match="columns"):
        other.load_state_dict({"round": []})


def test_files_come_back(tmp_path):
    ledger, path = filled(), tmp_path / "kosten"
    ledger.add(3, 2, seconds=1 / 3, queries=2**40, wire_down=0)
    ledger.save(path)
    loaded = Ledger.load(path)
    assert loaded.to_rows() == ledger.to_rows() and list(loaded.state_dict()["round"]) == [2, 1, 3]
    assert loaded.to_rows()[0]["wire_down"] is None
    save_archive(path, "Ledger", {"round": []})
    with pytest.raises(ValueError, match="kosten is no saved Ledger: the ledger's columns"):
        Ledger.load(path)


def test_it_is_printed_in_five_lines():
    lines = repr(filled()).splitlines()
    assert len(lines) == 5 and lines[0] == "Ledger of 2 rounds and 2 clients, 0.5 s of work:"
    assert lines[1:3] == ["  queries: 12, failures: 1, gradients: 0", "  payload bytes: 8 up, 0 down"]
    assert lines[4] == "  reports refused or missing in 1 of 2 entries"


def test_unknown_names_are_refused():
    with pytest.raises(TypeError, match="query"):
        Ledger().add(1, 0, query=1)
    with pytest.raises(ValueError, match="refused"):
        Ledger().total("refused")
