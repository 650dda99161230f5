"""Runs that are killed at random moments and called again lose nothing, and end as if nothing had happened."""

import os
import signal
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch

from tests.faults.harness import CASES, FAULTS, WORKERS, calls, counted, same, save_often, undisturbed, work

KILLS = 14
"""At least so many for each method and each of the cases with workers, more than 300 in all."""


@dataclass
class Tally:
    """What killed attempts have cost: kills, calls that were in flight, and values that a power cut took."""

    kills: int = 0
    in_flight: int = 0
    cut: int = 0


def run_to_the_end(case, folder, rng, faults, most=100):
    """Calls again until a run ends, with a fault in each attempt; checks each kill, and gives result and tally."""
    folder.mkdir()
    path, tally = folder / "run.pt", Tally()
    journal = folder / "run.pt.journal"
    for attempt in range(most):
        begun, had = calls(folder).total(), counted(journal)
        fault = FAULTS[faults[attempt % len(faults)]] if attempt < most - 1 else None

        def inject(objective, fault=fault):
            save_often(rng)
            if fault is not None:
                fault(rng, case, objective)

        status = work(case, folder, inject, path)
        rng.integers(1 << 30)  # the child's moves of its copy are not seen here
        if status == 0:
            assert not (folder / "run.pt.partial").exists()
            return torch.load(folder / "summary", weights_only=True), tally
        assert status == -signal.SIGKILL, f"the attempt ended with status {status}"
        lost = calls(folder).total() - begun - (counted(journal) - had)
        assert 0 <= lost <= case.in_flight, f"{lost} calls are not in the journal"
        tally.kills += 1
        tally.in_flight += lost
        if not rng.integers(4):
            had = counted(journal)
            cut_the_end(journal, int(rng.integers(1, 120)))
            tally.cut += had - counted(journal)
    raise AssertionError("the run does not end")


def cut_the_end(path, size):
    """What a power cut may do to a file that was not flushed to the device."""
    if path.exists():
        os.truncate(path, max(0, path.stat().st_size - size))


def check(case, tmp_path, kills, seed, faults=tuple(FAULTS)):
    """Kills runs of a case so often, and compares each with the undisturbed one."""
    rng = np.random.default_rng(seed)
    whole = undisturbed(case, tmp_path / "undisturbed")
    points = calls(tmp_path / "undisturbed")
    done = 0
    for number in range(100):
        folder = tmp_path / str(number)
        order = [str(name) for name in rng.permutation(faults)]
        ours, tally = run_to_the_end(case, folder, rng, order)
        done += tally.kills
        spent = calls(folder).total() - tally.in_flight
        assert ours["nfev"] <= case.budget and ours["nfev"] <= spent <= ours["nfev"] + tally.cut
        if case.crew == "threads":
            assert len(ours["history.y"]) == ours["nfev"]
            assert ours["fun"] == float(ours["history.best_y"][-1])
        else:
            assert same(ours, whole)
            assert not points - calls(folder)
        if done >= kills:
            return done
    raise AssertionError(f"{done} kills only")


@pytest.mark.parametrize(("name", "fault"), [("rgf", "loop"), ("zord", "objective"), ("es", "write")])
def test_a_killed_run_ends_as_the_undisturbed_one(name, fault, tmp_path):
    check(replace(CASES[name], budget=14), tmp_path, 2, seed=1, faults=(fault,))


def test_a_run_with_workers_that_is_killed_ends_as_the_undisturbed_one_with_that_order_of_answers(tmp_path):
    check(replace(WORKERS["rgf-scripted"], budget=14), tmp_path, 2, seed=1, faults=("objective", "loop"))


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_every_method_is_killed_anywhere(name, tmp_path):
    check(CASES[name], tmp_path, KILLS, seed=2 + list(CASES).index(name))


@pytest.mark.slow
@pytest.mark.parametrize("name", WORKERS)
def test_every_crew_is_killed_anywhere(name, tmp_path):
    check(WORKERS[name], tmp_path, KILLS, seed=20 + list(WORKERS).index(name))
