"""Run experiments seed by seed, in this process or in several, with the same records either way."""

from __future__ import annotations

import dataclasses
import multiprocessing
import os
import shlex
import signal
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from experiments import registry, results
from experiments.experiment import Experiment
from experiments.records import Rows
from experiments.verdicts import Verdict

THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS")


@dataclasses.dataclass
class Outcome:
    """How one experiment ended.

    Attributes:
        experiment: the experiment.
        verdicts: empty if it did not finish.
        failure: the traceback of the first seed that failed, or empty.
        finished: how many seeds finished.
    """

    experiment: Experiment
    verdicts: list[Verdict] = dataclasses.field(default_factory=list)
    failure: str = ""
    finished: int = 0


class Interrupted(Exception):
    """A run that the user stopped; ``outcomes`` say what was finished."""

    def __init__(self, outcomes: list[Outcome]) -> None:
        super().__init__("interrupted")
        self.outcomes = outcomes


def default_jobs() -> int:
    """One process for each core that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def run_experiments(
    names: Sequence[str],
    out: Path,
    *,
    seeds: int | None = None,
    scale: str = "paper",
    jobs: int | None = None,
    resume: bool = False,
    command: str = "",
    show_progress: bool | None = None,
) -> list[Outcome]:
    """Run experiments and write their results; a seed is one task.

    Args:
        names: ids of experiments.
        out: where results go.
        seeds: seeds 0 to ``seeds`` − 1 of each; each experiment's own default if None. At least two, for an
            interval.
        scale: which of the experiments' settings.
        jobs: processes, each with one thread; one for each core by default, 1 stays in this process.
        resume: go on from the finished seeds of a run that was cut short.
        command: what was typed, for the record.
        show_progress: a progress bar; by default where standard error is a terminal.

    Returns:
        An outcome for each experiment; a seed that failed does not stop the others.

    Raises:
        UnknownNameError: for an unknown id, before anything runs.
        ValueError: for fewer than two seeds or no job.
        ResultsError: if what is to be resumed was made with other settings.
        Interrupted: on an interrupt; finished seeds are on disk.
    """
    if seeds is not None and seeds < 2:
        raise ValueError(f"a verdict's interval needs at least two seeds, got {seeds}")
    if jobs is not None and jobs < 1:
        raise ValueError(f"jobs must be at least 1, got {jobs}")
    experiments = [registry.get(name) for name in dict.fromkeys(names)]
    runs = [_Run(experiment, out, seeds, scale, resume, command) for experiment in experiments]
    tasks = [(run, seed) for run in runs for seed in run.missing()]
    disable = None if show_progress is None else not show_progress
    with tqdm(total=len(tasks), unit="seed", disable=disable, file=sys.stderr, dynamic_ncols=True) as bar:
        try:
            for run in runs:
                run.finish_if_complete()
            for run, seed, rows, seconds, failure in _execute(tasks, jobs or default_jobs()):
                bar.set_postfix_str(run.experiment.id, refresh=False)
                run.take(seed, rows, seconds, failure)
                bar.update()
        except KeyboardInterrupt:
            raise Interrupted([run.outcome for run in runs]) from None
    return [run.outcome for run in runs]


class _Run:
    """One experiment under way."""

    def __init__(
        self, experiment: Experiment, out: Path, seeds: int | None, scale: str, resume: bool, command: str
    ) -> None:
        self.experiment = experiment
        self.out = out
        self.settings = experiment.settings(scale)
        self.seeds = range(seeds or experiment.num_seeds(scale))
        self.command = command or shlex.join(["python", "-m", "experiments", "run", experiment.id])
        path = out / f"{experiment.id}.partial.jsonl"
        self.partial = results.PartialRun(path, results.header(experiment, self.settings), resume)
        self.outcome = Outcome(experiment, finished=len(self.seeds) - len(self.missing()))
        self.seconds = 0.0

    def missing(self) -> list[int]:
        return [seed for seed in self.seeds if seed not in self.partial.rows]

    def take(self, seed: int, rows: Rows, seconds: float, failure: str) -> None:
        self.seconds += seconds
        if failure:
            self.outcome.failure = self.outcome.failure or f"seed {seed}: {failure}"
            return
        self.partial.add(seed, rows)
        self.outcome.finished += 1
        self.finish_if_complete()

    def finish_if_complete(self) -> None:
        if self.missing():
            return
        try:
            self.outcome.verdicts = results.write(
                self.experiment,
                self.settings,
                self.seeds,
                self.partial.collected(self.seeds),
                self.out,
                command=self.command,
                seconds=self.seconds,
            )
        except Exception:
            self.outcome.failure = traceback.format_exc()
        else:
            self.partial.remove()


_Finished = tuple[_Run, int, Rows, float, str]


def _execute(tasks: list[tuple[_Run, int]], jobs: int) -> Iterator[_Finished]:
    if jobs == 1 or len(tasks) < 2:
        with _one_thread():
            for run, seed in tasks:
                yield run, seed, *_run_seed(run.experiment.id, run.settings, seed)
        return
    before = set(multiprocessing.active_children())
    with _exported_thread_limit():
        pool = ProcessPoolExecutor(
            min(jobs, len(tasks)), mp_context=multiprocessing.get_context("spawn"), initializer=_start_worker
        )
        futures: dict[Future[tuple[Rows, float, str]], tuple[_Run, int]] = {
            pool.submit(_run_seed, run.experiment.id, run.settings, seed): (run, seed) for run, seed in tasks
        }
        try:
            for future in as_completed(futures):
                yield *futures[future], *_result(future)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for worker in set(multiprocessing.active_children()) - before:
                worker.terminate()
            raise
        pool.shutdown()


def _result(future: Future[tuple[Rows, float, str]]) -> tuple[Rows, float, str]:
    try:
        return future.result()
    except BrokenProcessPool:
        return [], 0.0, "a worker process died (for want of memory, perhaps: fewer --jobs need less)"


def _run_seed(name: str, settings: Any, seed: int) -> tuple[Rows, float, str]:
    """Records, processor seconds, and the traceback if it failed."""
    experiment = registry.get(name)
    start = time.process_time()
    try:
        rows = experiment.run(settings, [seed])
    except Exception:
        return [], time.process_time() - start, traceback.format_exc()
    return rows, time.process_time() - start, ""


def _start_worker() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)


@contextmanager
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@contextmanager
def _exported_thread_limit() -> Iterator[None]:
    """One thread for the libraries of processes started inside the block."""
    before: dict[str, Any] = {name: os.environ.get(name) for name in THREAD_VARIABLES}
    os.environ.update(dict.fromkeys(THREAD_VARIABLES, "1"))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
