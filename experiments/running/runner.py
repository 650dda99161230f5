"""Runs experiments seed by seed; the records do not depend on the number of processes."""

from __future__ import annotations

import dataclasses
import errno
import os
import shlex
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from experiments import registry
from experiments.harness.experiment import Experiment
from experiments.harness.verdicts import Verdict
from experiments.running import results
from experiments.workloads.data import folder_of
from optimizers.comparison.records import Rows
from optimizers.running.pool import run_tasks

DIED = "its process died, perhaps because it ran out of memory; fewer --jobs need less"
FULL_DISK = (errno.ENOSPC, errno.EDQUOT)


class Run:
    """One experiment of a run, and its outcome.

    Attributes:
        experiment: the experiment.
        settings: settings of the run.
        verdicts: empty if the experiment did not finish.
        failure: traceback of the first seed that failed, or empty.
    """

    def __init__(
        self, experiment: Experiment, settings: Any, out: Path, seeds: int | None, scale: str, resume: bool, typed: str
    ) -> None:
        self.experiment, self.settings, self.out = experiment, settings, out
        self.verdicts: list[Verdict] = []
        self.failure = ""
        self._scale = scale if scale in experiment.scales else "paper"
        self._seeds = range(seeds or experiment.num_seeds(scale))
        self._command = typed or shlex.join(["python", "-m", "experiments", "run", experiment.id])
        path = out / f"{experiment.id}{results.PARTIAL}"
        self._partial = results.PartialRun(path, results.header(experiment, settings), resume)
        self._failed: set[int] = set()

    def missing(self) -> list[int]:
        """Returns the seeds without records."""
        return [seed for seed in self._seeds if seed not in self._partial.done]

    @property
    def finished(self) -> int:
        """The number of finished seeds."""
        return len(self._seeds) - len(self.missing())

    def take(self, seed: int, rows: Rows, seconds: float, failure: str) -> bool:
        """Stores the records or the failure of a seed; returns whether it was the last one."""
        if failure:
            self._failed.add(seed)
            self.failure = self.failure or f"seed {seed}: {failure}"
        else:
            self._partial.add(seed, rows, seconds)
        return self.finish_if_complete() or len(self._failed) == len(self.missing())

    def finish_if_complete(self) -> bool:
        """Writes the results if all seeds are finished; returns whether they are."""
        if self.missing():
            return False
        if not self._partial.path.exists():
            self.verdicts = results.read_verdicts(self.out, self.experiment.id)
            return True
        done = [self._partial.done[seed] for seed in self._seeds]
        rows, seconds = [row for rows, _ in done for row in rows], sum(seconds for _, seconds in done)
        about: dict[str, Any] = {"scale": self._scale, "command": self._command, "seconds": seconds}
        try:
            self.verdicts = results.write(self.experiment, self.settings, rows, self.out, **about)
        except Exception as error:
            if isinstance(error, OSError) and error.errno in FULL_DISK:
                raise
            self.failure = traceback.format_exc()
        else:
            self._partial.close(remove=True)
        return True

    def close(self) -> None:
        """Closes the file of finished seeds."""
        self._partial.close()


class Interrupted(Exception):
    """Raised when the user stops a run; ``runs`` have the finished seeds."""

    def __init__(self, runs: list[Run]) -> None:
        super().__init__("interrupted")
        self.runs = runs


def default_jobs() -> int:
    """Returns the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def run_experiments(
    names: Sequence[str],
    out: Path,
    *,
    seeds: int | None = None,
    scale: str = "paper",
    jobs: int | None = None,
    resume: bool = False,
    device: str | None = None,
    data: Path | None = None,
    command: str = "",
    report: Callable[[Run], object] | None = None,
) -> list[Run]:
    """Runs experiments and writes their results; a seed that fails does not stop the others.

    Args:
        names: ids of experiments.
        out: folder of the results.
        seeds: number of seeds, from 0 on, at least two; by default each experiment's own number.
        scale: scale of the settings.
        jobs: number of processes, each with one thread; by default one per core. 1 runs in this process.
        resume: keep finished results and the finished seeds of an interrupted run.
        device: device of the experiments that have such a setting, such as ``cuda``.
        data: folder of the data sets; by default stand-ins are used.
        command: command line, for the record.
        report: called with each ``Run`` when its experiment ends or fails.

    Returns:
        A ``Run`` for each experiment.

    Raises:
        UnknownNameError: for an unknown id; this error and the next three are raised before anything runs.
        MissingExtraError: if an experiment needs a package that is not installed.
        ValueError: for fewer than two seeds, no job, an unavailable device or unreadable data.
        ResultsError: if the results to resume were computed with other settings.
        Interrupted: on an interrupt; the finished seeds are on disk.
    """
    if seeds is not None and seeds < 2:
        raise ValueError(f"--seeds must be at least 2, since a verdict's interval needs two seeds; got {seeds}")
    if jobs is not None and jobs < 1:
        raise ValueError(f"jobs must be at least 1, got {jobs}")
    experiments = [available(name) for name in dict.fromkeys(names)]
    chosen = [configured(experiment, scale, device, data) for experiment in experiments]
    jobs = jobs or default_jobs()
    with ExitStack() as stack:
        runs = {
            experiment.id: stack.enter_context(closing(Run(experiment, settings, out, seeds, scale, resume, command)))
            for experiment, settings in zip(experiments, chosen, strict=True)
        }
        try:
            _run_all(runs, jobs, report)
        except KeyboardInterrupt:
            raise Interrupted([*runs.values()]) from None
        return [*runs.values()]


def _run_all(runs: dict[str, Run], jobs: int, report: Callable[[Run], object] | None) -> None:
    tasks: list[_Task] = [(name, run.settings, seed) for name, run in runs.items() for seed in run.missing()]
    with tqdm(total=len(tasks), unit="seed", disable=None, file=sys.stderr, dynamic_ncols=True) as bar:

        def take(task: _Task, found: tuple[Rows, float, str]) -> None:
            run = runs[task[0]]
            ended = run.take(task[2], *found)
            bar.set_postfix_str(run.experiment.id, refresh=False)
            bar.update()
            if ended and report:
                report(run)

        for run in runs.values():
            if run.finish_if_complete() and report:
                report(run)
        run_tasks(_run_seed, tasks, take, jobs=jobs, threads=1, died=lambda task: take(task, ([], 0.0, DIED)))


def available(name: str) -> Experiment:
    """Returns the experiment with an id, if its extra is installed.

    Raises:
        UnknownNameError: for an unknown id.
        MissingExtraError: if its extra is not installed.
    """
    experiment = registry.get(name)
    registry.require(experiment.extra, name)
    return experiment


def configured(experiment: Experiment, scale: str, device: str | None, data: Path | None) -> Any:
    """Returns the settings of a scale, with the given device and data folder if the experiment has these settings.

    Raises:
        ValueError: for a scale or device that does not exist, or data that the experiment cannot read.
    """
    settings = experiment.settings(scale)
    fields = {field.name for field in dataclasses.fields(settings)}
    if device is not None:
        _check_device(device)
        if "device" in fields:
            settings = dataclasses.replace(settings, device=device)
    if data is not None:
        if not data.is_dir():
            raise ValueError(f"--data must be a folder with a subfolder for each data set; {data} is not a folder")
        if "data" in fields and any(folder_of(data, name).exists() for name in experiment.data):
            settings = dataclasses.replace(settings, data=str(data))
    if experiment.check is not None:
        try:
            experiment.check(settings)
        except (ValueError, OSError) as error:
            raise ValueError(f"{experiment.id}: {error}") from error
    return settings


def _check_device(device: str) -> None:
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        first = str(error).splitlines()[0]
        raise ValueError(f"device {device!r} is not available here: {first}; use cpu") from error


_Task = tuple[str, Any, int]
"""Id of an experiment, its settings and a seed."""


def _run_seed(task: _Task) -> tuple[Rows, float, str]:
    name, settings, seed = task
    experiment = registry.get(name)
    start = time.process_time()
    try:
        rows = experiment.run(settings, [seed])
    except Exception:
        return [], time.process_time() - start, traceback.format_exc()
    return rows, time.process_time() - start, ""
