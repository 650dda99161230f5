"""A disk that is full for some time: the run goes on, says it, and the files are right as soon as they can be."""

import errno
import io
import logging
import os

import pytest
import torch

from federated import simulate
from optimizers import minimize
from optimizers.core.files import write_state
from optimizers.running import checkpoint, journal
from tests.faults.harness import CASES, Objective, call, calls, counted, events, forked, same, summary, undisturbed

CASE = CASES["rgf"]
FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


class Disk:
    """A disk on which writes fail while it is full; of the first that fails some bytes are written."""

    def __init__(self, patch):
        self.full, self.refused, fsync, disk = False, 0, os.fsync, self

        class File(io.FileIO):
            def write(self, data):
                if not disk.full:
                    return super().write(bytes(data)[: max(1, len(data) // 2)])  # short writes are no errors
                disk.refuse(lambda: super(File, self).write(bytes(data)[:7]))

        def flush(fd):
            if disk.full:
                disk.refuse()
            fsync(fd)

        patch.setattr(journal, "open", lambda path, mode, buffering: File(path, "a"), raising=False)
        patch.setattr(checkpoint.os, "fsync", flush)

    def refuse(self, some=lambda: None):
        self.refused += 1
        if self.refused % 2:
            some()
        raise FULL


@pytest.fixture
def disk(monkeypatch):
    monkeypatch.setattr(checkpoint, "LEAST_BETWEEN", 0.0)
    monkeypatch.setattr(checkpoint, "MOST_SHARE", 1e9)
    return Disk(monkeypatch)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return undisturbed(CASE, tmp_path_factory.mktemp("whole") / "run")


def run(folder, disk, full):
    """A run during whose calls of the given numbers the disk is full."""
    objective = Objective(folder / "calls")
    objective.hooks["begin"] = lambda: setattr(disk, "full", calls(folder).total() in full)
    return call(CASE, objective, folder / "run.pt")


@pytest.mark.parametrize("full", [range(4, 5), range(3, 20), range(1, 30), (2, 4, 6, 8, 10, 11, 14)], ids=repr)
def test_a_disk_that_was_full_leaves_right_files(full, disk, whole, tmp_path, caplog):
    with caplog.at_level(logging.ERROR):
        result = run(tmp_path, disk, full)
    assert disk.refused and "the run continues" in caplog.text
    assert same(summary(result), whole) and "could not be written" not in result.message
    assert counted(tmp_path / "run.pt.journal") == result.nfev
    assert [event[0] for event in events(tmp_path / "run.pt.journal")] == list(
        range(len(events(tmp_path / "run.pt.journal")))
    )
    assert sorted(path.name for path in tmp_path.iterdir()) == ["calls", "run.pt", "run.pt.journal"]
    (tmp_path / "run.pt").unlink()
    again = run(tmp_path, disk, ())
    assert same(summary(again), whole) and calls(tmp_path).total() == result.nfev


def test_a_disk_that_stays_full_is_said_and_what_was_written_goes_on(disk, whole, tmp_path):
    result = run(tmp_path, disk, range(11, 99))
    assert same(summary(result), whole)
    assert "The checkpoint could not be written" in result.message and os.strerror(errno.ENOSPC) in result.message
    assert not (tmp_path / "run.pt.partial").exists()
    had = counted(tmp_path / "run.pt.journal")
    assert had == 10
    disk.full = False
    again = run(tmp_path, disk, ())
    assert same(summary(again), whole) and "could not be written" not in again.message
    assert calls(tmp_path).total() == 2 * result.nfev - had


def test_a_disk_that_is_full_from_the_start(disk, whole, tmp_path):
    disk.full = True
    result = run(tmp_path, disk, range(99))
    assert same(summary(result), whole) and "could not be written" in result.message
    disk.full = False
    assert same(summary(run(tmp_path, disk, ())), whole)


def test_a_folder_that_is_not_there_is_an_error_before_a_query(tmp_path):
    objective = Objective(tmp_path / "calls")
    with pytest.raises(FileNotFoundError):
        call(CASE, objective, tmp_path / "none" / "run.pt")
    assert calls(tmp_path).total() == 0


def test_a_file_that_the_system_lets_grow_no_further(whole, tmp_path):
    """The same by the system's own hand, in the middle of a line."""

    def attempt():
        resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))
        result = call(CASE, Objective(tmp_path / "calls"), tmp_path / "run.pt")
        assert same(summary(result), whole)
        assert "could not be written" in result.message and os.strerror(errno.EFBIG) in result.message

    resource = pytest.importorskip("resource")
    assert forked(attempt) == 0
    had = counted(tmp_path / "run.pt.journal")
    assert 10 < had < CASE.budget and not (tmp_path / "run.pt").exists()
    assert same(summary(call(CASE, Objective(tmp_path / "calls"), tmp_path / "run.pt")), whole)
    assert calls(tmp_path).total() == 2 * CASE.budget - had


def limited(size, work):
    """Works in a process whose files grow to so many bytes at most, as on a disk without more room."""
    resource = pytest.importorskip("resource")

    def attempt():
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
        work()

    assert forked(attempt) == 0


def sphere(x):
    return float(x.square().sum())


LARGE = torch.ones(20_000, dtype=torch.float64)


def test_a_state_that_torch_cannot_write_keeps_the_older_file_and_the_run_goes_on(tmp_path, caplog):
    """``torch.save`` hides the device's error behind one of positions in a file."""
    path = tmp_path / "run.pt"
    options = {"method": "rgf", "directions": 4, "checkpoint": path, "store_values": True, "progress": False}
    minimize(sphere, LARGE, max_queries=10, **options)
    before = path.read_bytes()
    assert len(before) > 200_000

    def go_on():
        with caplog.at_level(logging.ERROR):
            result = minimize(sphere, LARGE, max_queries=20, **options)
        assert (result.nfev, result.stop_reason) == (20, "budget") and str(path) in caplog.text
        assert "The checkpoint could not be written" in result.message and os.strerror(errno.EFBIG) in result.message

    limited(200_000, go_on)
    assert path.read_bytes() == before and not (tmp_path / "run.pt.partial").exists()
    assert minimize(sphere, LARGE, max_queries=20, **options).nfev == 20


def test_a_federation_that_torch_cannot_write_keeps_the_older_checkpoint(tmp_path, caplog):
    path = tmp_path / "f.pt"
    options = {"local_steps": 1, "directions": 2, "progress": False, "checkpoint": path}
    simulate("fedzo", [sphere, sphere], LARGE, rounds=1, **options)
    before = path.read_bytes()

    def go_on():
        with caplog.at_level(logging.ERROR):
            result = simulate("fedzo", [sphere, sphere], LARGE, rounds=3, **options)
        assert result.nit == 3 and str(path) in caplog.text
        assert "The checkpoint could not be written" in result.message and os.strerror(errno.EFBIG) in result.message

    limited(100_000, go_on)
    assert path.read_bytes() == before


def test_an_error_of_torch_that_is_not_the_device_s_stays_what_it_is(tmp_path):
    with pytest.raises((RuntimeError, TypeError, AttributeError), match="pickle"):
        write_state(tmp_path / "state", {"no": lambda: 0}, 1)
    assert list(tmp_path.iterdir()) == []


def test_what_a_cache_cannot_write_is_made_and_said(tmp_path, caplog):
    pytest.importorskip("experiments")
    from experiments.workloads.cache import cached

    def make():
        with caplog.at_level(logging.WARNING):
            made = cached(str(tmp_path), "large", lambda: LARGE)
        assert torch.equal(made, LARGE) and str(tmp_path / "large.pt") in caplog.text

    limited(50_000, make)
    assert list(tmp_path.iterdir()) == []
