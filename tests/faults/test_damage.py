"""Files that are cut or whose bits are flipped: the undisturbed run, or an error that names the file."""

import logging

import numpy as np
import pytest

from optimizers.running import checkpoint
from tests.faults.harness import CASES, Case, Objective, call, calls, same, summary, undisturbed

CASE = Case("rgf", {**CASES["rgf"].options, "directions": 2}, budget=12)
FILES = ("run.pt", "run.pt.journal")


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return undisturbed(CASE, tmp_path_factory.mktemp("whole") / "run")


@pytest.fixture(scope="module")
def halfway(tmp_path_factory):
    """The files after seven queries, with a state of five or so, and the calls of these."""
    folder = tmp_path_factory.mktemp("halfway")
    left_halfway(folder)
    return {name: (folder / name).read_bytes() for name in FILES}


def left_halfway(folder, calls_before=7):
    objective = Objective(folder / "calls")

    def ends():
        if calls(folder).total() == calls_before:
            raise SystemExit  # no failed query, and the state of before stays

    objective.hooks["begin"] = ends
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpoint, "LEAST_BETWEEN", 0.0)
        patch.setattr(checkpoint, "MOST_SHARE", 1e9)
        patch.setattr(checkpoint.Checkpoint, "close", lambda self: self._journal.close())
        with pytest.raises(SystemExit):
            call(CASE, objective, folder / "run.pt")


def goes_on(folder, files, whole, may_be_refused=True):
    """Goes on from files: whether it gave the undisturbed run, else it was refused for one of them."""
    for name in FILES:
        (folder / name).unlink(missing_ok=True)
        if files.get(name) is not None:
            (folder / name).write_bytes(files[name])
    (folder / "calls").unlink(missing_ok=True)
    try:
        ours = summary(call(CASE, Objective(folder / "calls"), folder / "run.pt"))
    except ValueError as error:
        assert may_be_refused, error
        assert any(str(folder / name) in str(error) for name in FILES), error
        return False
    assert same(ours, whole)
    return True


def test_the_halves_are_as_they_should_be(halfway, tmp_path, whole):
    assert b'"value"' in halfway["run.pt.journal"] and halfway["run.pt"].startswith(b"checkpoint 1 ")
    assert goes_on(tmp_path, halfway, whole, may_be_refused=False)
    assert calls(tmp_path).total() == CASE.budget - 6


@pytest.mark.parametrize("missing", FILES)
def test_one_of_the_files_is_enough(missing, halfway, whole, tmp_path):
    assert goes_on(tmp_path, halfway | {missing: None}, whole, may_be_refused=False)


def test_a_journal_that_is_cut_at_any_byte_goes_on(halfway, whole, tmp_path):
    """A power cut takes the end of a journal; the state that is there or the values that are left are used."""
    journal = halfway["run.pt.journal"]
    first = journal.index(b"\n") + 1
    for at in sorted({*range(0, len(journal), 61), first - 1, first, len(journal) - 1}):
        assert goes_on(tmp_path, halfway | {"run.pt.journal": journal[:at]}, whole, may_be_refused=False)
        assert goes_on(tmp_path, {"run.pt.journal": journal[:at]}, whole, may_be_refused=False)


@pytest.mark.slow
def test_every_byte_at_which_a_journal_can_be_cut(halfway, whole, tmp_path):
    journal = halfway["run.pt.journal"]
    for at in range(len(journal)):
        assert goes_on(tmp_path, halfway | {"run.pt.journal": journal[:at]}, whole, may_be_refused=False)
        assert goes_on(tmp_path, {"run.pt.journal": journal[:at]}, whole, may_be_refused=False)


def test_a_state_that_is_cut_is_rebuilt_from_the_journal(halfway, whole, tmp_path, caplog):
    state = halfway["run.pt"]
    for at in range(0, len(state), 1 + len(state) // 12):
        with caplog.at_level(logging.WARNING):
            assert goes_on(tmp_path, halfway | {"run.pt": state[:at]}, whole, may_be_refused=False)
        assert "run.pt is damaged" in caplog.text and "rebuilt from its journal" in caplog.text
        assert calls(tmp_path).total() == CASE.budget - 6
        caplog.clear()


@pytest.mark.slow
def test_every_byte_at_which_a_state_can_be_cut(halfway, whole, tmp_path):
    state = halfway["run.pt"]
    for at in range(0, len(state), 7):
        assert goes_on(tmp_path, halfway | {"run.pt": state[:at]}, whole, may_be_refused=False)
        assert calls(tmp_path).total() == CASE.budget - 6


def flipped(data, rng, bits):
    """Data with some bits flipped."""
    array = np.frombuffer(data, dtype=np.uint8).copy()
    for at, bit in zip(rng.integers(len(array), size=bits), rng.integers(8, size=bits), strict=True):
        array[at] ^= 1 << int(bit)
    return array.tobytes()


def flip(names, halfway, whole, folder, seeds):
    ends = []
    for seed in seeds:
        rng = np.random.default_rng(seed)
        damaged = {name: flipped(halfway[name], rng, int(rng.integers(1, 4))) for name in names}
        ends.append(goes_on(folder, halfway | damaged, whole, may_be_refused="run.pt.journal" in names))
    return ends


@pytest.mark.parametrize("names", [FILES[:1], FILES[1:], FILES], ids=["state", "journal", "both"])
def test_flipped_bits_never_give_another_run(names, halfway, whole, tmp_path):
    flip(names, halfway, whole, tmp_path, range(12))


@pytest.mark.slow
@pytest.mark.parametrize("names", [FILES[:1], FILES[1:], FILES], ids=["state", "journal", "both"])
def test_many_flipped_bits_never_give_another_run(names, halfway, whole, tmp_path):
    ends = flip(names, halfway, whole, tmp_path, range(12, 512))
    assert any(ends) and (names == FILES[:1] or not all(ends))


@pytest.mark.slow
@pytest.mark.parametrize("name", FILES)
def test_every_bit_of_the_beginning(name, halfway, whole, tmp_path):
    """Where the formats and the digests are."""
    data = halfway[name]
    for at in range(0, 8 * 300, 3):
        damaged = bytearray(data)
        damaged[at // 8] ^= 1 << at % 8
        goes_on(tmp_path, halfway | {name: bytes(damaged)}, whole)
        if name == "run.pt.journal":
            goes_on(tmp_path, {name: bytes(damaged)}, whole)


@pytest.mark.parametrize("journal", [b"", b"nothing of a journal", b"[0,"])
@pytest.mark.parametrize("state", [b"", b"nothing of a state", b"checkpoint 2 00\n"])
def test_what_is_neither_is_refused_and_stays(state, journal, tmp_path, whole):
    assert not goes_on(tmp_path, {"run.pt": state, "run.pt.journal": journal}, whole)
    assert (tmp_path / "run.pt").read_bytes() == state and calls(tmp_path).total() == 0


def test_lines_that_are_there_twice_or_in_another_order_are_no_other_run(halfway, whole, tmp_path):
    lines = halfway["run.pt.journal"].splitlines(keepends=True)
    for i in range(len(lines) - 1):
        swapped = [*lines[:i], lines[i + 1], lines[i], *lines[i + 2 :]]
        for changed in (swapped, lines[: i + 1] + lines[i:], lines[:i] + lines[i + 1 :]):
            goes_on(tmp_path, {"run.pt.journal": b"".join(changed)}, whole)
