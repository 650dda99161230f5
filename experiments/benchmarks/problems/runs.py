"""Runs methods on problems, stores each run as it finishes, and does not repeat stored runs."""

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
from experiments.benchmarks.problems.rivals import MIXED, RIVALS
from experiments.benchmarks.problems.suites import BOXES, SIDE, Opened, Problem, opened
from experiments.running.results import ResultsError
from optimizers import Space
from optimizers.comparison.queries import Queries
from optimizers.core.bounds import Domain
from optimizers.core.constraints import ReturnedConstraints
from optimizers.running.finished import FinishedUnits
from optimizers.running.pool import run_tasks

RECORDS = "problems.runs"
"""The file of finished runs in a results folder."""

PACKED = ".jsonl.xz"
"""Suffix of the files that hold the records behind a table."""

COCO = "coco"
"""The folder of COCO's files in a results folder; ``cocopp`` reads ``coco/SUITE-20d/METHOD``."""

WARM = 12
"""Number of queries of the warm-up run that each method makes once per process."""

DIED = "its process died"


@dataclasses.dataclass(frozen=True, order=True)
class Run:
    """A pair of a method and a problem."""

    method: str
    problem: Problem

    @property
    def folder(self) -> Path:
        """The folder of the run's COCO files, relative to ``COCO``."""
        problem = self.problem
        return Path(f"{problem.suite}-{problem.queries // problem.dimension}d") / self.method / problem.name


@dataclasses.dataclass(frozen=True)
class Record:
    """A finished run.

    Attributes:
        run: the run.
        asked: number of queries that it made.
        final: the smallest gap or, on a real problem, the least value; inf without a success.
        seconds: processor seconds of the whole run.
        objective_seconds: processor seconds of the objective.
        least: pairs of a query count (ten per decade, or the suite's stages) and the smallest gap or least value then.
        reached: query count at which each of COCO's 51 targets was reached; None for the others.
        failure: the error that ended the method, or empty.
        strict: ``least`` with the strict tolerance of constraints; empty without constraints.
    """

    run: Run
    asked: int
    final: float
    seconds: float
    objective_seconds: float
    least: tuple[tuple[int, float], ...]
    reached: tuple[int | None, ...]
    failure: str = ""
    strict: tuple[tuple[int, float], ...] = ()

    @property
    def milliseconds(self) -> float:
        """Processor time of the method itself per query."""
        return 1e3 * (self.seconds - self.objective_seconds) / max(self.asked, 1)

    def as_json(self) -> dict[str, Any]:
        """Returns the record as JSON data; ``final`` is None without a success."""
        found = {**dataclasses.asdict(self.run.problem), "method": self.run.method}
        final = self.final if np.isfinite(self.final) else None
        times = {name: float(f"{getattr(self, name):.4g}") for name in ("seconds", "objective_seconds")}
        rest = {"least": self.least, "reached": self.reached, "failure": self.failure}
        strict = {"strict": self.strict} if self.strict else {}
        return {**found, "asked": self.asked, "final": final, **times, **rest, **strict}

    @staticmethod
    def from_json(found: dict[str, Any]) -> Record:
        """Creates a record from the result of ``as_json``."""
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
            tuple((n, value) for n, value in found.get("strict", ())),
        )


def read(out: Path) -> list[Record]:
    """Reads the finished runs of a results folder."""
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
    """Reads the records behind a table.

    Raises:
        ResultsError: if they do not exist or cannot be read.
    """
    path = folder / f"{name}{PACKED}"
    try:
        lines = lzma.decompress(path.read_bytes()).decode().splitlines()
        return [Record.from_json(json.loads(line)) for line in lines]
    except (OSError, ValueError, KeyError, lzma.LZMAError) as error:
        raise ResultsError(f"{path} cannot be read ({error}); run the benchmark problems again") from error


def make(runs: Sequence[Run], out: Path, jobs: int, resume: bool, told: Callable[[Record], object]) -> list[Record]:
    """Makes the runs that the folder does not have, and returns the records of all selected runs.

    Args:
        runs: the runs.
        out: results folder.
        jobs: number of processes, each with one thread; 1 runs in this process.
        resume: keep the runs in the folder. If the folder has no runs but tables, such as a copy of the published ones,
            the records behind the tables are used; COCO's files are not created again.
        told: called with each record when its run ends.

    Raises:
        ResultsError: if another process writes there.
        ValueError: if the folder has runs but ``resume`` is False, or if its runs cannot be read.
    """
    out.mkdir(parents=True, exist_ok=True)
    with closing(_opened(out)) as finished:
        found = _read(finished)
        if found and not resume:
            raise ValueError(
                f"{out / RECORDS} already has runs; continue with --resume, or write to another folder with --out"
            )
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
    """Makes one run; an exception that the method raises is stored in the record."""
    running = out / COCO / ".running"
    running.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=running) as place:
        folder = Path(place) / "files"
        folder.mkdir()
        _warm(run.method, run.problem.suite)
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
            target = out / COCO / run.folder
            shutil.rmtree(target, ignore_errors=True)
            target.parent.mkdir(parents=True, exist_ok=True)
            os.replace(folder, target)
    return record_of(run, progress, problem.strict, seconds, clock[0], failure)


@functools.cache
def _warm(method: str, suite: str) -> None:
    """Runs a method once on a quadratic per process, so that imports and compilation are not timed."""
    start, about = np.array([1.0, 2.0]), Problem(suite, 1, 2, 0, WARM)
    count = about.constraints
    bowl = Opened(lambda x: (float(x @ x), 1.0 - x[:count]) if count else float(x @ x), start, count)
    bowl.space = Space([(-SIDE, SIDE)] * 2) if suite in MIXED else None
    with suppress(Exception):  # the record of the run itself has the error
        RIVALS[method].run(_queries(bowl, about)[0], start, 0)


def _queries(problem: Opened, about: Problem) -> tuple[Queries, list[float]]:
    """Returns the objective with its budget, and a list with its processor seconds so far."""
    clock = [0.0]

    def timed(x: np.ndarray) -> Any:
        start = time.process_time()
        try:
            return problem.fun(x)
        finally:
            clock[0] += time.process_time() - start

    m, limits, space = problem.constraints, None, problem.space or Space([(-SIDE, SIDE)] * about.dimension)
    if m:
        limits = ReturnedConstraints(np.full(m, -np.inf), np.zeros(m))
    domain = Domain.of(torch.as_tensor(space.lb), torch.as_tensor(space.ub), rescale=False, space=space)
    queries = Queries(
        timed,
        domain.search_lower,
        domain.search_upper,
        about.queries,
        True,
        integrality=torch.from_numpy(space.integrality & ~space.log) if problem.space else None,
        domain=domain if problem.space else None,
        constraints=limits,
        x0=torch.from_numpy(problem.start),
    )
    return queries, clock


def record_of(
    run: Run,
    progress: Progress,
    strict: Progress | None = None,
    seconds: float = 0.0,
    objective: float = 0.0,
    failure: str = "",
) -> Record:
    """Creates the record of a run from its progress with the main and with the strict tolerance of constraints."""
    reached = () if run.problem.suite in BOXES else tuple(progress.reached())
    stages = [factor * run.problem.dimension for factor in run.problem.stages]
    stages = sorted({1, *stages, progress.asked}) if stages else []
    least, strictly = (() if p is None else tuple(p.thinned(*stages)) for p in (progress, strict))
    return Record(run, progress.asked, progress.final, seconds, objective, least, reached, failure, strictly)
