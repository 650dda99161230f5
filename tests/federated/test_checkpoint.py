"""Checkpoints of federations: written whole or not at all, loaded whole or not at all."""

import copy
import errno
import logging
import os
from dataclasses import dataclass, field

import pytest
import torch

from federated import make_federation, simulate
from federated.core.messages import MessageError
from federated.core.restoring import check_saved
from federated.engine.checkpoint import FORMAT, Checkpoint
from federated.testing import Quadratic
from federated.testing.harness import run, states_equal, trace
from optimizers.core import files
from optimizers.core.files import read_state, replacing, write_state
from tests.federated.mutants import at, changed, leaves

FULL = os.strerror(errno.ENOSPC)
THREE = ["f.pt", "f.pt.history.jsonl", "f.pt.ledger.csv"]
X0 = torch.linspace(0.2, 0.8, 5, dtype=torch.float64)
STATES = ("fzoos", "fedzo", "scaffold1", "scaffold2", "hiso", "fedadam")
"""An algorithm for each kind of state."""

SMALL = {
    "fzoos": {"num_features": 32, "initial_queries": 3, "active_queries": 2, "candidates": 8},
    "fedzo": {"directions": 3, "accept": "monotone"},
    "scaffold2": {"rate_schedule": "settling"},
}


def federation(name="fedzo", n=4, **options):
    given = {"local_steps": 2, "participation": 3} | SMALL.get(name, {}) | options
    return make_federation(name, [Quadratic(i) for i in range(n)], X0, **given)


def refused(made, state):
    """Whether a federation refuses a state, by ``ValueError`` and unchanged."""
    before = made.state_dict()
    try:
        made.load_state_dict(state)
    except ValueError as error:
        assert states_equal(made.state_dict(), before) and str(error).isprintable() and len(str(error)) <= 400
        return True
    return False


@pytest.fixture(scope="module")
def saved():
    """States after three rounds."""
    states = {}
    for name in STATES:
        made = federation(name)
        run(made, 3)
        states[name] = made.state_dict()
    return states


@pytest.mark.parametrize("name", STATES)
def test_a_tensor_of_another_length_or_dtype_is_refused(name, saved):
    state, made = saved[name], federation(name)
    fresh, server = made.server.state_dict()["state"], saved[name]["server"]["state"]
    assert not refused(made, state) and states_equal(made.state_dict(), state)
    found = [path for path in leaves(server) if torch.is_tensor(at(server, path)) and at(server, path).numel()]
    assert found
    for path in found:
        tensor = at(server, path)
        lacking = [None] if path[-1] in fresh and fresh[path[-1]] is not None else []
        for bad in (
            tensor[..., :3],
            torch.cat([tensor, tensor], -1),
            tensor.to(torch.float16),
            tensor.tolist(),
            *lacking,
        ):
            assert refused(made, changed(state, ("server", "state", *path), bad)), (path, bad)


def test_an_x_of_another_length_is_named(saved):
    made = federation("fedzo")
    with pytest.raises(ValueError, match=r"x is torch.float64 of shape \(3,\), expected torch.float64 of shape \(5,\)"):
        made.load_state_dict(changed(saved["fedzo"], ("server", "state", "x"), X0[:3]))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fedzo", "fzoos", "hiso", "scaffold2"])
def test_every_part_of_another_type_is_refused(name, saved):
    """Also where the broken part is the last that is read: the ledger, the history, a report in flight."""
    state, made = saved[name], federation(name)
    for path in leaves(state):
        for key in [path[:i] for i in range(1, len(path) + 1)]:
            if key[0] != "configuration" and (was := at(state, key)) is not None:
                for bad in ("text", -1, object):
                    fits = type(bad) is type(was) or (type(bad), type(was)) == (int, float)
                    taken = not fits and not refused(made, changed(state, key, bad))
                    assert not taken or "rule" in key, (key, bad)  # torch's own


@pytest.mark.parametrize("name", ["gammas", "scalars"])
@pytest.mark.parametrize("bad", [["text"], "text", [None]])
def test_numbers_of_a_client_that_are_none_are_refused(name, bad, saved):
    made, path = federation("fzoos"), ("clients", 0, "optimizer", "state", name)
    assert not refused(made, saved["fzoos"]) and refused(made, changed(saved["fzoos"], path, bad))


@pytest.mark.parametrize("name", ["fedzo", "hiso"])
def test_a_part_that_is_missing_is_refused(name, saved):
    state, made = saved[name], federation(name)
    for part in state:
        assert refused(made, {k: v for k, v in state.items() if k != part})
    for part in (("server",), ("server", "state"), ("ledger",), ("clients", 1), ("clients", 1, "optimizer")):
        for inner in at(state, part) or ():
            assert refused(made, changed(state, part, {k: v for k, v in at(state, part).items() if k != inner})), inner


def test_a_client_that_has_diverged_is_no_broken_state(tmp_path):
    """A server refuses its report, which has inf; the run goes on from the checkpoint as it would have."""
    made, again = (federation("fedprox", participation=4) for _ in range(2))
    run(made, 1)
    optimizer = made.host.client(1).optimizer
    optimizer._x = optimizer._x / 0.0
    Checkpoint(tmp_path / "f.pt").save(made)
    Checkpoint(tmp_path / "f.pt").load(again)
    run(made, 1), run(again, 1)
    assert trace(made) == trace(again)


@dataclass
class Declared:
    """A state of a third party's, whose declarations only a type checker can read."""

    step: "Unknown | None" = None  # noqa: F821
    rate: float = 0
    known: "list[int]" = field(default_factory=list)


def test_a_number_may_be_whole_and_a_type_unknown():
    saved_ = {"step": torch.ones(3), "rate": 0.5, "known": [1]}
    check_saved("state", Declared(), saved_, {})
    for bad in ({"rate": True}, {"rate": "0.5"}, {"known": 3}, {"step": object()}):
        with pytest.raises(MessageError):
            check_saved("state", Declared(), saved_ | bad, {})


BROKEN = {
    "ledger of another length": lambda s: s["ledger"]["queries"].pop(),
    "ledger of text": lambda s: s["ledger"]["queries"].__setitem__(0, "many"),
    "history without a round": lambda s: s["history"].pop(1),
    "history of another name": lambda s: s["history"][2].update(more=1),
    "a client too many": lambda s: s["clients"].__setitem__(9, s["clients"][0]),
    "a client's x": lambda s: s["clients"][1]["optimizer"].update(x=torch.zeros(3)),
    "a client's seed": lambda s: s["clients"][1]["optimizer"].update(seed=7),
    "a client in anothers place": lambda s: s["clients"].__setitem__(0, s["clients"][1]),
    "participants": lambda s: s["server"].update(participants=[0, 1]),
    "a round past all addresses": lambda s: s["server"].update(round=2**60),
    "another version": lambda s: s.update(version=1),
    "another x0": lambda s: s["x0"].update(digest="0"),
}


@pytest.mark.parametrize("workers", [1, 2])
def test_half_of_a_state_is_never_taken(workers, saved):
    spread = {"workers": workers, "start_method": "fork"} if workers > 1 else {}
    made = federation("fedzo", **spread)
    try:
        run(made, 1)
        for spoil in BROKEN.values():
            state = copy.deepcopy(saved["fedzo"])
            spoil(state)
            assert refused(made, state)
        alone = federation("fedzo")
        run(alone, 3), run(made, 2)
        assert trace(made)[:2] == trace(alone)[:2]
    finally:
        made.host.close()


def test_a_file_that_is_cut_or_flipped_names_itself(tmp_path):
    path, made = tmp_path / "f.pt", federation()
    run(made, 1)
    Checkpoint(path).save(made)
    whole, before = path.read_bytes(), made.state_dict()
    for i in range(0, len(whole), max(1, len(whole) // 60)):
        for damaged in (whole[:i], whole[:i] + bytes([whole[i] ^ 16]) + whole[i + 1 :]):
            path.write_bytes(damaged)
            with pytest.raises(ValueError, match=r"f\.pt is not a checkpoint"):
                Checkpoint(path).load(made)
    assert states_equal(made.state_dict(), before)
    for content in ([1.0], {"version": 1}, {}):
        write_state(path, content, FORMAT) if isinstance(content, dict) else torch.save(content, path)
        with pytest.raises(ValueError, match=r"f\.pt is not a checkpoint"):
            Checkpoint(path).load(made)
    path.write_bytes(whole.replace(b"checkpoint 3", b"checkpoint 7", 1))
    with pytest.raises(ValueError, match="its format is 7, not 3"):
        Checkpoint(path).load(made)


class FullDisk:
    """Makes writes to the device fail, as a full disk does, while it is full."""

    def __init__(self, patch):
        self.full, sync = False, os.fsync

        def fsync(fd):
            if self.full:
                raise OSError(errno.ENOSPC, FULL)
            sync(fd)

        patch.setattr(files.os, "fsync", fsync)


def test_a_full_disk_leaves_the_older_file_and_is_said(tmp_path, monkeypatch, caplog):
    disk, path = FullDisk(monkeypatch), tmp_path / "f.pt"
    options = {"local_steps": 2, "directions": 3, "progress": False, "checkpoint": path}

    def fill(record, x):
        disk.full = record.round >= 3

    with caplog.at_level(logging.ERROR):
        result = simulate("fedzo", [Quadratic(i) for i in range(2)], X0, rounds=4, callback=fill, **options)
    assert str(path) in caplog.text and "the run goes on" in caplog.text and FULL in caplog.text
    assert result.nit == 4 and result.message.startswith("4 rounds done. The checkpoint could not be written")
    assert FULL in result.message
    assert sorted(os.listdir(tmp_path)) == THREE and read_state(path, FORMAT)["server"]["round"] == 3
    disk.full = False
    again = simulate("fedzo", [Quadratic(i) for i in range(2)], X0, rounds=4, **options)
    assert torch.equal(again.x, result.x) and again.message == "4 rounds done."


def test_a_file_of_the_ledger_is_written_whole_or_names_its_path(tmp_path, monkeypatch):
    disk, made = FullDisk(monkeypatch), federation()
    run(made, 1)
    path = tmp_path / "ledger.csv"
    made.ledger.to_csv(path)
    before, disk.full = path.read_bytes(), True
    with pytest.raises(OSError, match=rf"{FULL}.*{path}"):
        made.ledger.to_csv(path)
    assert path.read_bytes() == before and os.listdir(tmp_path) == ["ledger.csv"]


def test_names_are_on_the_device_with_what_they_stand_for(tmp_path, monkeypatch):
    """POSIX brings a rename to the device with the folder alone."""
    synced, fsync = [], os.fsync
    monkeypatch.setattr(files.os, "fsync", lambda fd: (synced.append(os.fstat(fd).st_ino), fsync(fd)))
    with replacing(tmp_path / "a") as file:
        file.write(b"a")
    assert synced == [(tmp_path / "a").stat().st_ino, tmp_path.stat().st_ino]
    grown = files.GrowingFile(tmp_path / "b")
    for _ in range(2):
        grown.append(b"b")
    b = (tmp_path / "b").stat().st_ino
    assert synced[2:] == [b, tmp_path.stat().st_ino, b]


def test_a_block_that_ends_in_the_middle_leaves_nothing(tmp_path):
    with pytest.raises(KeyboardInterrupt), replacing(tmp_path / "a") as file:
        file.write(b"half")
        raise KeyboardInterrupt
    assert os.listdir(tmp_path) == []
    with pytest.raises(FileNotFoundError, match="none/a"), replacing(tmp_path / "none" / "a"):
        pass


def test_a_folder_that_is_not_there_is_said_before_a_query(tmp_path):
    objectives = [Quadratic(i) for i in range(2)]
    with pytest.raises(FileNotFoundError, match="whose folder does not exist"):
        simulate("fedzo", objectives, X0, rounds=1, directions=3, checkpoint=tmp_path / "none" / "f.pt")
    assert sum(f.queries for f in objectives) == 0


@pytest.mark.parametrize("path", [".", ""])
def test_a_folder_is_no_checkpoint_before_a_query(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    objectives = [Quadratic(i) for i in range(2)]
    with pytest.raises(IsADirectoryError, match=r"checkpoint is .*, which is a folder"):
        simulate("fedzo", objectives, X0, rounds=1, directions=3, checkpoint=path)
    assert sum(f.queries for f in objectives) == 0
