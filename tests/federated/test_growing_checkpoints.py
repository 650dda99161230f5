"""Checkpoints at a cost that does not grow: entries and records are appended, and fit the file that is replaced."""

import csv
import errno
import json
import math
import os
from dataclasses import asdict

import pytest
import torch

from federated import make_federation, simulate
from federated.core.ledger import COLUMNS
from federated.engine import checkpoint
from federated.engine.checkpoint import Checkpoint, read_checkpoint
from federated.testing import Quadratic
from federated.testing.harness import run, states_equal, trace
from optimizers.core import files
from optimizers.core.files import GrowingFile, read_state, write_state

X0 = torch.linspace(0.2, 0.8, 5, dtype=torch.float64)
OPTIONS = {"local_steps": 1, "directions": 3, "participation": 3}
NAMES = ["f.pt", "f.pt.history.jsonl", "f.pt.ledger.csv"]
GROWING = NAMES[1:]


def federation(failing=0, **options):
    return make_federation("fedzo", [Quadratic(i, failing=failing) for i in range(4)], X0, **OPTIONS | options)


def full_disk(*_):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_save_writes_what_is_new_and_a_state_of_the_same_size(tmp_path):
    made, kept = federation(), Checkpoint(tmp_path / "f.pt")
    before, sizes = dict.fromkeys(GROWING, b""), []
    for _ in range(12):
        run(made, 1)
        kept.save(made)
        after = {name: (tmp_path / name).read_bytes() for name in GROWING}
        assert all(after[name].startswith(before[name]) for name in GROWING)
        entries = after["f.pt.ledger.csv"][len(before["f.pt.ledger.csv"]) :].decode().splitlines()
        records = after["f.pt.history.jsonl"][len(before["f.pt.history.jsonl"]) :].decode().splitlines()
        sizes.append((len(entries), len(records), (tmp_path / "f.pt").stat().st_size))
        before = after
    assert [s[:2] for s in sizes] == [(4, 2)] + [(3, 1)] * 11  # first a line with the columns, and the start
    assert sizes[3][2] == sizes[-1][2]
    assert states_equal(read_checkpoint(tmp_path / "f.pt")[0], made.state_dict())


def test_both_are_read_while_the_run_goes_on(tmp_path):
    seen, made = [], federation(failing=7)

    def look(record, x):
        if record.round > 1:
            with (tmp_path / "f.pt.ledger.csv").open(newline="") as file:
                rows = list(csv.DictReader(file))
            history = [json.loads(line) for line in (tmp_path / "f.pt.history.jsonl").read_text().splitlines()]
            seen.append((record.round, rows, history))

    simulate("fedzo", [Quadratic(i, failing=7) for i in range(4)], X0, rounds=4, checkpoint=tmp_path / "f.pt",
             callback=look, progress=False, **OPTIONS)  # fmt: skip
    run(made, 4)
    for number, rows, history in seen:
        known = [row for row in made.ledger.to_rows() if row["round"] < number]
        assert list(rows[0]) == list(COLUMNS)
        for row, wanted in zip(rows, known, strict=True):
            assert {**row, "seconds": 0} == {k: "" if v is None else str(v) for k, v in wanted.items()} | {"seconds": 0}
        assert [h["queries"] for h in history] == [record.queries for record in made.history[:number]]


@pytest.mark.parametrize("torn", [b"", b"4,2,7\n" * 200, b'4,2,7,0,0,8,8,1,1,,,0.5,"half of a rea', b"\xff\n\n{"])
def test_a_run_that_ended_while_it_was_saved_goes_on_bitwise(torn, tmp_path):
    """What is beyond the last whole save, a torn line or whole rounds, is not read, and is cut off by the next."""
    path = tmp_path / "f.pt"
    whole, made, kept = federation(), federation(), Checkpoint(path)
    run(whole, 6), run(made, 3)
    kept.save(made)
    for name in GROWING:
        with (tmp_path / name).open("ab") as file:
            file.write(torn)
    again = federation()
    kept = Checkpoint(path).load(again)
    assert states_equal(again.state_dict(), made.state_dict())
    run(again, 3)
    kept.save(again)
    assert trace(again) == trace(whole) and sorted(os.listdir(tmp_path)) == NAMES
    lines = (tmp_path / "f.pt.ledger.csv").read_bytes().count(b"\n")
    assert lines == 1 + len(whole.ledger) and len(read_checkpoint(path)[0]["history"]) == 7


def test_a_save_that_fails_after_it_has_appended_leaves_the_older_one(tmp_path, monkeypatch):
    made, kept = federation(), Checkpoint(tmp_path / "f.pt")
    run(made, 2)
    kept.save(made)
    older = made.state_dict()
    run(made, 1)
    for broken in ((checkpoint, "write_state"), (files.os, "fsync")):
        with monkeypatch.context() as patch, pytest.raises(OSError, match="space"):
            patch.setattr(*broken, full_disk)
            kept.save(made)
        assert states_equal(read_checkpoint(tmp_path / "f.pt")[0], older)
        assert sorted(os.listdir(tmp_path)) == NAMES
    kept.save(made)
    assert states_equal(read_checkpoint(tmp_path / "f.pt")[0], made.state_dict())


def test_a_new_run_at_an_old_path_leaves_the_old_one_until_it_is_saved(tmp_path, monkeypatch):
    path, old, new = tmp_path / "f.pt", federation(), federation(seed=1)
    run(old, 3), run(new, 1)
    Checkpoint(path).save(old)
    for broken in ((checkpoint, "write_state"), (files.os, "fsync")):
        with monkeypatch.context() as patch, pytest.raises(OSError, match="space"):
            patch.setattr(*broken, full_disk)
            Checkpoint(path).save(new)
        assert sorted(os.listdir(tmp_path)) == NAMES
        assert states_equal(read_checkpoint(path)[0], old.state_dict())
    Checkpoint(path).save(new)
    assert states_equal(read_checkpoint(path)[0], new.state_dict())
    assert sorted(os.listdir(tmp_path)) == ["f.pt", "f.pt.history-2.jsonl", "f.pt.ledger-2.csv"]
    Checkpoint(path).save(old)
    assert states_equal(read_checkpoint(path)[0], old.state_dict()) and sorted(os.listdir(tmp_path)) == NAMES


def spoil(path, change):
    state = read_state(path, checkpoint.FORMAT)
    change(state)
    write_state(path, state, checkpoint.FORMAT)


OTHERS = {
    "cut": lambda folder, name: (folder / name).write_bytes((folder / name).read_bytes()[:-1]),
    "another byte": lambda folder, name: (folder / name).write_bytes(
        (folder / name).read_bytes().replace(b"1", b"7", 1)
    ),
    "gone": lambda folder, name: (folder / name).unlink(),
    "a folder": lambda folder, name: ((folder / name).unlink(), (folder / name).mkdir()),
    "of another run": lambda folder, name: (folder / name).write_bytes((folder / "other" / name).read_bytes()),
}


@pytest.mark.parametrize("name", GROWING)
@pytest.mark.parametrize("change", OTHERS.values(), ids=OTHERS)
def test_files_that_do_not_fit_are_refused_by_their_names(name, change, tmp_path):
    (tmp_path / "other").mkdir()
    made, other = federation(), federation(seed=1)
    run(made, 2), run(other, 3)
    Checkpoint(tmp_path / "f.pt").save(made)
    Checkpoint(tmp_path / "other" / "f.pt").save(other)
    change(tmp_path, name)
    before = other.state_dict()
    with pytest.raises(ValueError, match=rf"f\.pt is not a checkpoint of this federation: .*{name}"):
        Checkpoint(tmp_path / "f.pt").load(other)
    assert states_equal(other.state_dict(), before)


def test_a_checkpoint_that_names_no_file_beside_it_is_refused(tmp_path):
    made, path = federation(), tmp_path / "f.pt"
    run(made, 1)
    for wrong in (["../f.pt.ledger.csv", 1, "a"], ["f.pt.ledger.csv", -1, "a"], ["f.pt.ledger.csv", 1], None, []):
        Checkpoint(path).save(made)
        spoil(path, lambda state, wrong=wrong: state.update(ledger=wrong))
        with pytest.raises(ValueError, match="does not state which file contains its ledger"):
            Checkpoint(path).load(made)


@pytest.mark.parametrize("text", ["", "round\n", "a,b\n1,2\n", '"', "\x00"])
def test_entries_that_are_none_are_refused(text, tmp_path):
    made, path = federation(), tmp_path / "f.pt"
    run(made, 1)
    before = made.state_dict()
    Checkpoint(path).save(made)
    growing = GrowingFile(tmp_path / "any")
    growing.append(text.encode())
    for name in ("ledger", "history"):
        if name == "ledger" or text:
            spoil(path, lambda state, name=name: state.update({name: ["any", growing.size, growing.sha256]}))
            with pytest.raises(ValueError, match="is not a checkpoint"):
                Checkpoint(path).load(made)
    assert states_equal(made.state_dict(), before)


def test_entries_that_change_after_they_were_written_are_written_again(tmp_path):
    made, kept = federation(), Checkpoint(tmp_path / "f.pt")
    run(made, 2)
    kept.save(made)
    made.ledger.add(1, made.ledger.to_rows()[0]["client"], wire_up=11)
    kept.save(made)
    assert states_equal(read_checkpoint(tmp_path / "f.pt")[0], made.state_dict())
    (tmp_path / "f.pt.ledger-2.csv").unlink()
    run(made, 1)
    kept.save(made)
    assert states_equal(read_checkpoint(tmp_path / "f.pt")[0], made.state_dict())
    assert repr([asdict(r) for r in made.history]) == repr(read_checkpoint(tmp_path / "f.pt")[0]["history"])


def test_checkpoints_that_alternate_each_have_what_changed(tmp_path):
    """What one of them has written again, the other has not."""
    made, kept, other = federation(), Checkpoint(tmp_path / "f.pt"), Checkpoint(tmp_path / "g.pt")
    run(made, 2)
    kept.save(made)
    made.ledger.add(1, made.ledger.to_rows()[0]["client"], wire_up=11)
    for _ in range(2):
        for one in (other, kept):
            one.save(made)
            assert states_equal(read_checkpoint(one.path)[0], made.state_dict())
        run(made, 1)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1.5])
def test_the_history_is_json_whatever_f_is(value, tmp_path):
    """NaN, where F is not given, and infinities are no JSON; Python alone reads what it writes of them."""
    made = federation(fun=None if math.isnan(value) else lambda x: value)
    run(made, 1)
    Checkpoint(tmp_path / "f.pt").save(made)
    for line in (tmp_path / "f.pt.history.jsonl").read_text().splitlines():
        json.loads(line, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    again = federation()
    Checkpoint(tmp_path / "f.pt").load(again)
    assert list(map(str, (record.fun for record in again.history))) == [str(value)] * 2


def fzoos(failing=0, **options):
    small = {"num_features": 32, "active_queries": 2, "candidates": 8, "window": 10, "feature_window": 10}
    objectives = [Quadratic(i, failing=failing if i == 1 else 0) for i in range(3)]
    return make_federation("fzoos", objectives, X0, local_steps=3, **small | options)


def test_queries_of_fzoos_are_appended(tmp_path):
    """``f.pt`` stays as large as it was once the windows are full, whatever the clients have queried."""
    path, rows = tmp_path / "f.pt", tmp_path / "f.pt.rows.bin"
    made, kept, sizes, before = fzoos(), Checkpoint(path), [], b""
    for _ in range(8):
        run(made, 1)
        kept.save(made)
        after = rows.read_bytes()
        assert after.startswith(before)
        sizes.append((path.stat().st_size, len(after) - len(before)))
        before = after
        assert states_equal(read_checkpoint(path)[0], made.state_dict())
    queries = made.ledger.total("queries")
    assert sizes[-1][0] <= sizes[3][0] + 100 and sizes[-1][1] < sizes[3][1] + 100
    assert 0 < len(before) - queries * 8 * 6 < 8 * 3 * 120  # 48 bytes a query, and a line for each client and save
    again = fzoos()
    kept = Checkpoint(path).load(again)
    for one in (made, again):
        run(one, 2)
    kept.save(again)
    assert trace(again) == trace(made) and rows.read_bytes().startswith(before)
    assert states_equal(read_checkpoint(path)[0], made.state_dict())


def test_queries_of_a_client_that_is_new_are_written_again(tmp_path):
    path, made = tmp_path / "f.pt", fzoos()
    kept = Checkpoint(path)
    run(made, 2)
    kept.save(made)
    made.host.restart(1)
    run(made, 1)
    kept.save(made)
    assert states_equal(read_checkpoint(path)[0], made.state_dict())
    assert (tmp_path / "f.pt.rows-2.bin").exists() and not (tmp_path / "f.pt.rows.bin").exists()


def test_a_save_of_queries_that_fails_is_made_up_for(tmp_path, monkeypatch):
    path, made = tmp_path / "f.pt", fzoos(failing=5)
    kept = Checkpoint(path)
    run(made, 1)
    kept.save(made)
    older = made.state_dict()
    for broken in ((checkpoint, "write_state"), (files.os, "fsync")):
        run(made, 1)
        with monkeypatch.context() as patch, pytest.raises(OSError, match="space"):
            patch.setattr(*broken, full_disk)
            kept.save(made)
        assert states_equal(read_checkpoint(path)[0], older)
    kept.save(made)
    assert states_equal(read_checkpoint(path)[0], made.state_dict())


@pytest.mark.parametrize("change", OTHERS.values(), ids=OTHERS)
def test_rows_that_do_not_fit_are_refused(change, tmp_path):
    (tmp_path / "other").mkdir()
    made, other = fzoos(), fzoos(seed=1)
    run(made, 2), run(other, 3)
    Checkpoint(tmp_path / "f.pt").save(made)
    Checkpoint(tmp_path / "other" / "f.pt").save(other)
    change(tmp_path, "f.pt.rows.bin")
    with pytest.raises(ValueError, match=r"f\.pt is not a checkpoint of this federation: .*rows\.bin"):
        Checkpoint(tmp_path / "f.pt").load(fzoos())


@pytest.mark.parametrize("data", [b"x", b"{}\n", b'{"place": "0", "bytes": [8, 8, 0], "dtype": "float64"}\n12345678'])
def test_records_that_are_none_are_refused(data, tmp_path):
    made, path = fzoos(), tmp_path / "f.pt"
    run(made, 1)
    Checkpoint(path).save(made)
    growing = GrowingFile(tmp_path / "any")
    growing.append(data)
    spoil(path, lambda state: state.update(rows=["any", growing.size, growing.sha256]))
    with pytest.raises(ValueError, match="is not a checkpoint"):
        Checkpoint(path).load(fzoos())
