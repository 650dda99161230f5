"""One pool of processes: what arrives is kept, whatever ends the others."""

import multiprocessing
import os
import time

import pytest
import torch

from optimizers.running.pool import THREAD_VARIABLES, run_tasks


def surroundings(task):
    return torch.get_num_threads(), torch.get_default_dtype(), [os.environ.get(name) for name in THREAD_VARIABLES]


def dies_at_two(task):
    if task == 2:
        os._exit(1)
    return task


class FirstThenWaits:
    """Task 0 ends at once, the others note that they began and take minutes."""

    def __init__(self, folder):
        self.folder = folder

    def __call__(self, task):
        (self.folder / str(task)).touch()
        if task:
            time.sleep(200)
        return task


def test_one_job_runs_here_in_order_and_puts_threads_back(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    monkeypatch.delenv("MKL_NUM_THREADS", raising=False)
    before, found = torch.get_num_threads(), []
    run_tasks(surroundings, [3, 1], lambda *pair: found.append(pair), jobs=1, threads=1)
    assert [task for task, _ in found] == [3, 1] and all(inside[0] == 1 for _, inside in found)
    assert torch.get_num_threads() == before and os.environ["OMP_NUM_THREADS"] == "7"
    assert "MKL_NUM_THREADS" not in os.environ


def test_a_lambda_is_refused_before_anything_starts():
    def double(task):
        return 2 * task

    for function, named in ((lambda task: task, "<lambda>"), (double, "double")):
        with pytest.raises(TypeError, match=f"{named} must be picklable for more than one job"):
            run_tasks(function, [1, 2], pytest.fail, jobs=2)


def test_processes_have_the_threads_and_the_dtype_asked_for(monkeypatch):
    monkeypatch.setenv("NUMBA_NUM_THREADS", "5")
    threads, dtype, found = torch.get_num_threads(), torch.get_default_dtype(), {}
    torch.set_default_dtype(torch.float64)
    try:
        run_tasks(surroundings, [0, 1, 2], found.__setitem__, jobs=2, threads=1)
    finally:
        torch.set_default_dtype(dtype)
    assert found == dict.fromkeys(range(3), (1, torch.float64, ["1"] * 4)) and torch.get_num_threads() == threads


@pytest.mark.slow
def test_what_ends_its_process_is_named_and_the_others_are_kept():
    found, dead = {}, []
    run_tasks(dies_at_two, range(5), found.__setitem__, jobs=2, died=dead.append)
    assert found == {0: 0, 1: 1, 3: 3, 4: 4} and dead == [2]
    with pytest.raises(RuntimeError, match=r"the process of 2 died"):
        run_tasks(dies_at_two, [2, 3], lambda *pair: None, jobs=2)


@pytest.mark.slow
@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError])
def test_an_interrupt_or_an_error_ends_all_processes_at_once(tmp_path, error):
    start = time.monotonic()

    def stops(task, result):
        while not (tmp_path / "1").exists():
            time.sleep(0.05)
        raise error

    with pytest.raises(error):
        run_tasks(FirstThenWaits(tmp_path), [0, 1, 2], stops, jobs=2)
    for worker in multiprocessing.active_children():
        worker.join(10)
    assert not multiprocessing.active_children() and time.monotonic() - start < 100


def fails_at_one(task):
    if task == 1:
        time.sleep(1)
        raise ArithmeticError("lost")
    return task


@pytest.mark.slow
def test_an_exception_is_raised_after_what_had_arrived_was_kept():
    found = {}
    with pytest.raises(ArithmeticError, match="lost"):
        run_tasks(fails_at_one, [0, 1, 2], found.__setitem__, jobs=2)
    assert found[0] == 0 and 1 not in found
