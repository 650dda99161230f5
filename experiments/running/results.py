"""The files of a run: figures, data, settings and verdicts, and the finished seeds of an interrupted run.

A finished run leaves ``ID.png``, ``ID.pdf``, ``ID.csv``, ``ID.settings.json`` and ``ID.verdicts.json``, and for a
second figure ``ID-more.png`` and ``ID-more.pdf``. Each file is complete or absent. During a run ``ID.partial.jsonl``
holds the finished seeds, from which an interrupted run resumes.
"""

from __future__ import annotations

import dataclasses
import datetime
import importlib
import importlib.metadata
import inspect
import io
import json
import lzma
import os
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure

from experiments import registry
from experiments.harness.experiment import Experiment
from experiments.harness.records import from_csv, to_csv
from experiments.harness.verdicts import Verdict
from optimizers.comparison.records import Rows, seeds_of, where
from optimizers.core.files import replacing
from optimizers.running.finished import FinishedUnits, differences
from surrogates import plotting

FORMAT = 1
"""Format number of the files; incremented when earlier files can no longer be read."""

_LIBRARIES = ("torch", "gpytorch", "linear_operator", "botorch", "numpy", "scipy", "numba", "matplotlib")


PARTIAL = ".partial.jsonl"
"""Suffix of the files with the finished seeds of a run."""

_OTHERWISE = "run without --resume to start over, or write to another folder with --out"


class ResultsError(ValueError):
    """Raised for a results folder that cannot be read or resumed."""


def versions(*further: str) -> dict[str, str]:
    """Returns the versions of Python, this project, the numerical libraries and further packages."""
    found = {"python": platform.python_version()}
    for name in ("gradient-surrogates", *_LIBRARIES, *further):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "not installed"
    return found


def machine(device: str = "cpu") -> dict[str, Any]:
    """Describes the machine: processor, cores, system, and the accelerator if one was used."""
    found = {
        "processor": _processor(),
        "cores": os.cpu_count() or 1,
        "architecture": platform.machine(),
        "system": platform.system(),
    }
    if device.startswith("cuda"):
        found["accelerator"] = torch.cuda.get_device_name(device)
    return found


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.processor() or platform.machine()


def as_json(value: Any) -> Any:
    """Converts a settings dataclass to JSON data; a folder of data sets becomes ``DIR``, since its path is private."""
    found = json.loads(json.dumps(dataclasses.asdict(value), default=str))
    return found | {"data": "DIR"} if found.get("data") else found


class PartialRun:
    """The finished seeds of a run, appended to one file as they finish.

    Args:
        path: the file. Without ``resume`` the seeds of an earlier run are moved to ``….bak``.
        header: experiment, settings and versions, on which the seeds' records depend.
        resume: keep the seeds in the file or, without a file, the seeds of finished results.

    Attributes:
        path: the file; it is removed once its seeds are in the results.
        done: the records and processor seconds of each seed.

    Raises:
        ResultsError: if the seeds were computed with other settings or versions, or the file is unreadable or in use.
    """

    def __init__(self, path: Path, header: dict[str, Any], resume: bool) -> None:
        self.path, self._header = path, header
        self._units: FinishedUnits | None = None
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists() and path.stat().st_size and not resume:
            os.replace(path, path.with_name(f"{path.name}.bak"))
        self.done = {} if path.exists() or not resume else self._of_results()
        if not self.done:
            self._open()

    def _open(self) -> FinishedUnits:
        try:
            self._units = units = FinishedUnits(self.path, "run of an experiment", self._header)
        except (ValueError, RuntimeError) as error:
            raise ResultsError(f"{error}; {_OTHERWISE}") from error
        for seed, found in self.done.items():
            units.add(seed, *found)
        self.done |= {seed: (rows, seconds) for seed, rows, seconds in units.read}
        return units

    def _of_results(self) -> dict[int, tuple[Rows, float]]:
        name = self.path.name.removesuffix(PARTIAL)
        path = self.path.with_name(f"{name}.settings.json")
        if not path.exists():
            return {}
        facts = read_json(path)
        if found := differences({key: facts.get(key) for key in self._header}, self._header):
            raise ResultsError(f"{path} belongs to a run that differs in {'; '.join(found)}; {_OTHERWISE}")
        rows = read_rows(self.path.parent, name)
        seeds = seeds_of(rows)
        each = facts.get("processor_seconds", 0.0) / len(seeds)
        return {seed: (where(rows, seed=seed), each) for seed in seeds}

    def add(self, seed: int, rows: Rows, seconds: float) -> None:
        """Stores a finished seed.

        Raises:
            OSError: if it cannot be written, for example because the disk is full.
        """
        units = self._units or self._open()
        self.done[seed] = rows, seconds
        units.add(seed, rows, seconds)
        if units.journal is not None and units.journal.error is not None:
            raise units.journal.error

    def close(self, *, remove: bool = False) -> None:
        """Closes the file; ``remove`` deletes it."""
        if self._units is not None:
            self._units.close()
            self._units = None
        if remove:
            self.path.unlink(missing_ok=True)


def header(experiment: Experiment, settings: Any) -> dict[str, Any]:
    """Returns everything that the records of a seed depend on."""
    found = {"experiment": experiment.id, "settings": as_json(settings), "versions": versions()}
    differs = experiment.differs(settings) if experiment.differs and not experiment.stands_in(settings) else ""
    return found | ({"differs": differs} if differs else {})


def write(
    experiment: Experiment, settings: Any, rows: Rows, out: Path, *, scale: str, command: str, seconds: float
) -> list[Verdict]:
    """Writes all files of a finished experiment and returns its verdicts.

    ``command`` is the command line of the run, ``seconds`` the processor time of all seeds; ``out`` is created.
    """
    out.mkdir(parents=True, exist_ok=True)
    replace(out / f"{experiment.id}.csv", to_csv(rows).encode())
    facts = header(experiment, settings) | {
        "scale": scale,
        "seeds": list(seeds_of(rows)),
        "command": command,
        "processor_seconds": round(seconds, 2),
        "machine": machine(getattr(settings, "device", "cpu")),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
    }
    return render(experiment, settings, rows, out, facts)


def render(
    experiment: Experiment,
    settings: Any,
    rows: Rows,
    out: Path,
    facts: Mapping[str, Any],
    *,
    kinds: Sequence[str] = ("png", "pdf"),
    dpi: int | None = None,
) -> list[Verdict]:
    """Writes the settings, verdicts and figures that follow from the records; returns the verdicts.

    Args:
        experiment: the experiment.
        settings: settings of the run.
        rows: its records.
        out: an existing folder.
        facts: settings, seeds, versions, command, machine and date of the run.
        kinds: file formats of the figures.
        dpi: dots per inch of the PNG files; by default the project's.
    """
    verdicts = experiment.judged(settings, rows, facts.get("differs", ""))
    with plotting.applied():
        figures = experiment.figures(settings, rows)
        for suffix, figure in figures.items():
            for kind in kinds:
                save_figure(figure, out / f"{experiment.id}{suffix}.{kind}", dpi)
    about = {
        "format": FORMAT,
        "paper": experiment.paper,
        "source": experiment.source,
        "shows": experiment.shown(settings),
        "claim": experiment.claim,
        "caption": experiment.captioned(settings) if figures else "",
        "figures": list(figures),
        "reading": inspect.cleandoc(importlib.import_module(registry.MODULES[experiment.id]).__doc__ or ""),
        "differences": experiment.differences(settings),
        "stand_in": experiment.stands_in(settings),
        "table": dataclasses.asdict(experiment.table(settings, rows)) if experiment.table else None,
    }
    write_facts(out, experiment.id, {**facts, **about}, verdicts)
    return verdicts


def write_facts(out: Path, name: str, facts: Mapping[str, Any], verdicts: Sequence[Verdict]) -> None:
    """Writes ``ID.settings.json`` and ``ID.verdicts.json``."""
    judged = [dataclasses.asdict(verdict) for verdict in verdicts]
    for kind, value in (("settings", facts), ("verdicts", judged)):
        text = json.dumps(value, indent=2, ensure_ascii=False, default=lambda number: number.item())
        replace(out / f"{name}.{kind}.json", f"{text}\n".encode())


def save_figure(figure: Figure, path: Path, dpi: int | None = None) -> None:
    """Writes a figure in the format of the path's suffix, ``.png`` or ``.pdf``; the bytes are reproducible."""
    picture, kind = io.BytesIO(), path.suffix.removeprefix(".")
    figure.savefig(
        picture, format=kind, metadata={"png": {"Software": None}, "pdf": {"CreationDate": None}}[kind], dpi=dpi
    )
    replace(path, picture.getvalue())


def read_json(path: Path) -> Any:
    """Reads a JSON file of a results folder.

    Raises:
        ResultsError: if the file is truncated or not JSON.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ResultsError(f"{path} cannot be read ({error}); run its experiment again") from error


def read_rows(folder: Path, name: str) -> Rows:
    """Reads the records of a finished experiment from ``ID.csv`` or ``ID.csv.xz``.

    Raises:
        ResultsError: if neither file exists, or a row has no seed.
    """
    plain, packed = folder / f"{name}.csv", folder / f"{name}.csv.xz"
    if not plain.exists() and not packed.exists():
        raise ResultsError(f"{plain} does not exist; run {name} again")
    text = plain.read_text() if plain.exists() else lzma.decompress(packed.read_bytes()).decode()
    rows = from_csv(text)
    if not rows or any(not isinstance(row.get("seed"), int) for row in rows):
        raise ResultsError(f"{plain} has no records with seeds; run {name} again")
    return rows


def read_verdicts(folder: Path, name: str) -> list[Verdict]:
    """Reads the verdicts of a finished experiment.

    Raises:
        ResultsError: if the file is missing, truncated or from another version.
    """
    path = folder / f"{name}.verdicts.json"
    if not path.exists():
        raise ResultsError(f"{path} does not exist; run {name} again")
    try:
        pairs = [(found, {key: tuple(found[key]) for key in ("interval", "seeds")}) for found in read_json(path)]
        return [Verdict(**{**found, **tuples}) for found, tuples in pairs]
    except (TypeError, KeyError) as error:
        raise ResultsError(f"{path} was written by another version ({error}); run {name} again") from error


def replace(path: Path, content: bytes) -> None:
    """Writes a file atomically."""
    with replacing(path) as file:
        file.write(content)
