"""Runs of methods on problems: each is kept the moment that it ends, and those that are kept are not run again."""

from __future__ import annotations

import dataclasses
import functools
import json
import lzma
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch

from experiments.benchmarks.problems.coco_files import TARGETS, Progress
from experiments.benchmarks.problems.rivals import RIVALS
from experiments.benchmarks.problems.suites import SIDE, Opened, Problem, opened
from experiments.running.results import ResultsError
from optimizers.comparison.outside import Queries
from optimizers.running.finished import FinishedUnits
from optimizers.running.pool import run_tasks

RECORDS = "problems.runs"
"""The file of finished runs in a results folder."""

PACKED = ".jsonl.xz"
"""How the names of files end that have the records of a table."""

COCO = "coco"
"""The folder of COCO's files in a results folder: ``coco/SUITE-20d/METHOD`` is what ``cocopp`` takes."""

WARM = 12
"""Queries that a method makes before its first run in a process."""

DIED = "its process died"


@dataclasses.dataclass(frozen=True, order=True)
class Run:
    """A method on a problem."""

    method: str
    problem: Problem

    @property
    def folder(self) -> Path:
        """Where COCO's files of the run are, in the folder of all."""
        problem = self.problem
        return Path(f"{problem.suite}-{problem.queries // problem.dimension}d") / self.method / problem.name


@dataclasses.dataclass(frozen=True)
class Record:
    """A finished run.

    Attributes:
        run: the run.
        asked: how many queries it made.
        final: the least gap, on a real problem the least value; inf without a success.
        seconds: processor seconds of the whole run.
        objective_seconds: those of the objective.
        least: counts of queries with the least gap, or value, after each; ten a decade.
        reached: counts of queries at which COCO's 51 targets were reached; None for one that was not.
        failure: the error that ended the method; empty where none did.
    """

    run: Run
    asked: int
    final: float
    seconds: float
    objective_seconds: float
    least: tuple[tuple[int, float], ...]
    reached: tuple[int | None, ...]
    failure: str = ""

    @property
    def milliseconds(self) -> float:
        """Processor time of the method itself for each query."""
        return 1e3 * (self.seconds - self.objective_seconds) / max(self.asked, 1)

    def as_json(self) -> dict[str, Any]:
        """What a line holds; no success is None."""
        found = {**dataclasses.asdict(self.run.problem), "method": self.run.method}
        final = self.final if np.isfinite(self.final) else None
        times = {name: float(f"{getattr(self, name):.4g}") for name in ("seconds", "objective_seconds")}
        rest = {"least": self.least, "reached": self.reached, "failure": self.failure}
        return {**found, "asked": self.asked, "final": final, **times, **rest}

    @staticmethod
    def from_json(found: dict[str, Any]) -> Record:
        """The inverse of ``as_json``."""
        problem = Problem(*(found[field.name] for field in dataclasses.fields(Problem)))
        return Record(
            Run(found["method"], problem),
            found["asked"],
            np.inf if found["final"] is None else found["final"],
            found["seconds"],
            found["objective_seconds"],
            tuple((n, value) for n, value in found["least"]),
            tuple(found["reached"]),
            found["failure"],
        )


def read(out: Path) -> list[Record]:
    """The finished runs of a results folder, each once."""
    if not (out / RECORDS).exists():
        return []
    with closing(_opened(out)) as finished:
        return list(_read(finished).values())


def _opened(out: Path) -> FinishedUnits:
    try:
        return FinishedUnits(out / RECORDS, "benchmark of problems", {})
    except RuntimeError as error:
        raise ResultsError(str(error)) from error


def _read(finished: FinishedUnits) -> dict[Run, Record]:
    return {record.run: record for record in (Record.from_json(found) for (found,) in finished.read)}


def read_records(folder: Path, name: str) -> list[Record]:
    """The records of a table in a folder.

    Raises:
        ResultsError: if they are not there or cannot be read.
    """
    path = folder / f"{name}{PACKED}"
    try:
        lines = lzma.decompress(path.read_bytes()).decode().splitlines()
        return [Record.from_json(json.loads(line)) for line in lines]
    except (OSError, ValueError, KeyError, lzma.LZMAError) as error:
        raise ResultsError(f"{path} cannot be read ({error}); run the benchmark problems again") from error


def make(runs: Sequence[Run], out: Path, jobs: int, resume: bool, told: Callable[[Record], object]) -> list[Record]:
    """Makes the runs that the folder does not have, and returns the records of all that were asked for.

    Args:
        runs: the runs.
        out: the results folder.
        jobs: processes, each with one thread; 1 stays in this one.
        resume: keep the runs that the folder has. A folder with tables only, such as a copy of the published ones,
            has their records as runs; COCO's files of these are not made again.
        told: called with each record when its run ends.

    Raises:
        ResultsError: if another process writes there.
        ValueError: if the folder has runs and is not to be resumed, or they cannot be read.
    """
    out.mkdir(parents=True, exist_ok=True)
    with closing(_opened(out)) as finished:
        found = _read(finished)
        if found and not resume:
            raise ValueError(f"{out / RECORDS} has runs already: resume them with --resume, or write elsewhere, --out")
        for path in sorted(out.glob(f"problems-*{PACKED}")) if resume and not found else ():
            for record in read_records(out, path.name.removesuffix(PACKED)):
                finished.add(record.as_json())
                found[record.run] = record

        def keep(run: Run, record: Record) -> None:
            finished.add(record.as_json())
            found[run] = record
            told(record)

        def died(run: Run) -> None:
            keep(run, Record(run, 0, np.inf, 0.0, 0.0, (), (None,) * len(TARGETS), DIED))

        missing = [run for run in runs if run not in found]
        run_tasks(functools.partial(run_one, out=out), missing, keep, jobs=jobs, threads=1, died=died)
    return [found[run] for run in runs]


def run_one(run: Run, out: Path) -> Record:
    """Make one run; what its method raises is in the record."""
    running = out / COCO / ".running"
    running.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=running) as place:
        folder = Path(place) / "files"
        folder.mkdir()
        _warm(run.method)
        with opened(run.problem, run.method, folder) as problem:
            queries, clock = _queries(problem, run.problem)
            start, failure = time.process_time(), ""
            try:
                RIVALS[run.method].run(queries, problem.start, run.problem.instance)
            except Exception as error:
                failure = f"{type(error).__name__}: {error}".partition("\n")[0][:200]
            seconds = time.process_time() - start
        progress = problem.progress
        assert progress is not None
        if any(folder.iterdir()):
            _move(folder, out / COCO / run.folder)
    return record_of(run, progress, seconds, clock[0], failure)


@functools.cache
def _warm(method: str) -> None:
    """What a method imports and compiles is not counted: it runs once on a bowl in each process."""
    side = torch.full((2,), SIDE, dtype=torch.float64)
    queries = Queries(lambda x: float(x @ x), -side, side, WARM, numpy=True)
    with suppress(Exception):  # the runs themselves have it in their records
        RIVALS[method].run(queries, np.array([1.0, 2.0]), 0)


def _queries(problem: Opened, about: Problem) -> tuple[Queries, list[float]]:
    """The objective with its budget, and the processor seconds that it has taken."""
    clock = [0.0]

    def timed(x: np.ndarray) -> float:
        start = time.process_time()
        try:
            return problem.fun(x)
        finally:
            clock[0] += time.process_time() - start

    side = torch.full((about.dimension,), SIDE, dtype=torch.float64)
    return Queries(timed, -side, side, about.queries, numpy=True), clock


def record_of(run: Run, progress: Progress, seconds: float = 0.0, objective: float = 0.0, failure: str = "") -> Record:
    """The record of a run that went as its progress says."""
    reached = () if run.problem.suite == "real" else tuple(progress.reached())
    least = tuple(progress.thinned())
    return Record(run, progress.asked, progress.final, seconds, objective, least, reached, failure)


def _move(folder: Path, target: Path) -> None:
    """A finished run's files take their place, of which a cut one may have left some."""
    shutil.rmtree(target, ignore_errors=True)
    target.parent.mkdir(parents=True, exist_ok=True)
    os.replace(folder, target)
