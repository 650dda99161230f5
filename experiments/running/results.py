"""What a run leaves behind: picture, data, settings and verdicts, and the seeds of a run that was cut short.

``ID.png``, ``ID.pdf``, ``ID.csv``, ``ID.settings.json``, ``ID.verdicts.json``, and where there is a second figure
``ID-more.png`` and ``ID-more.pdf``. A file is complete or is not there: each is written beside its place and moved.
While a run goes on, ``ID.partial.jsonl`` has its finished seeds; it stays if the run is cut short, and the run can
resume from it.
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
from optimizers.running.finished import FinishedUnits, differences
from surrogates import plotting

FORMAT = 1
"""Of the files; counted up when one that was written before can no longer be read."""

_LIBRARIES = ("torch", "gpytorch", "linear_operator", "botorch", "numpy", "scipy", "numba", "matplotlib")


PARTIAL = ".partial.jsonl"
"""How the names of files with the finished seeds of a run under way end."""

_OTHERWISE = "run without --resume to start over, or write elsewhere with --out"


class ResultsError(ValueError):
    """A results folder that cannot be read or gone on with."""


def versions(*further: str) -> dict[str, str]:
    """Versions of Python, of this project and of the libraries that the numbers depend on, and of further packages."""
    found = {"python": platform.python_version()}
    for name in ("gradient-surrogates", *_LIBRARIES, *further):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "not installed"
    return found


def machine(device: str = "cpu") -> dict[str, Any]:
    """What the numbers and times were made on: processor, cores, system, and the accelerator where one was used."""
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
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.processor() or platform.machine()


def as_json(value: Any) -> Any:
    """A settings dataclass as what JSON can hold."""
    return json.loads(json.dumps(dataclasses.asdict(value), default=str))


class PartialRun:
    """The finished seeds of a run under way, each appended to one file as it ends.

    Args:
        path: the file. Without ``resume`` the seeds of an earlier run are moved to ``….bak``.
        header: what the seeds depend on: experiment, settings and versions.
        resume: keep the seeds that the file holds, or, without a file, those of finished results.

    Attributes:
        path: the file; it is removed once its seeds are in the results.
        done: seed to its records and its processor seconds.

    Raises:
        ResultsError: if the seeds there were made with other settings or versions, or the file cannot be read or is in
            use.
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
            raise ResultsError(f"{path} holds another run, which differs in {'; '.join(found)}; {_OTHERWISE}")
        rows = read_rows(self.path.parent, name)
        seeds = seeds_of(rows)
        each = facts.get("processor_seconds", 0.0) / len(seeds)
        return {seed: (where(rows, seed=seed), each) for seed in seeds}

    def add(self, seed: int, rows: Rows, seconds: float) -> None:
        """Keeps a finished seed.

        Raises:
            OSError: if it cannot be written, such as on a full disk.
        """
        units = self._units or self._open()
        self.done[seed] = rows, seconds
        units.add(seed, rows, seconds)
        if units.journal is not None and units.journal.error is not None:
            raise units.journal.error

    def close(self, *, remove: bool = False) -> None:
        """Closes the file, and removes it if its seeds are in the results."""
        if self._units is not None:
            self._units.close()
            self._units = None
        if remove:
            self.path.unlink(missing_ok=True)


def header(experiment: Experiment, settings: Any) -> dict[str, Any]:
    """What a seed's records depend on."""
    return {"experiment": experiment.id, "settings": as_json(settings), "versions": versions()}


def write(
    experiment: Experiment, settings: Any, rows: Rows, out: Path, *, scale: str, command: str, seconds: float
) -> list[Verdict]:
    """Write all files of one finished experiment, and return its verdicts.

    Args:
        experiment: the experiment.
        settings: the settings of the run.
        rows: the records of all seeds.
        out: the folder, made if need be.
        scale: the name of the settings.
        command: what was typed.
        seconds: processor time of the seeds.
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
    """Write what follows from the records: settings with table and reading, verdicts, picture; return the verdicts.

    Args:
        experiment: the experiment.
        settings: the settings of the run.
        rows: its records.
        out: an existing folder.
        facts: what the run was: settings, seeds, versions, command, machine, date.
        kinds: kinds of pictures.
        dpi: dots per inch of the PNG; the project's by default.
    """
    verdicts = experiment.judged(settings, rows)
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
    """Write ``ID.settings.json`` and ``ID.verdicts.json``."""
    judged = [dataclasses.asdict(verdict) for verdict in verdicts]
    for kind, value in (("settings", facts), ("verdicts", judged)):
        text = json.dumps(value, indent=2, ensure_ascii=False, default=lambda number: number.item())
        replace(out / f"{name}.{kind}.json", f"{text}\n".encode())


def save_figure(figure: Figure, path: Path, dpi: int | None = None) -> None:
    """Write a figure as the path's suffix says, ``.png`` or ``.pdf``, the same bytes at every call."""
    picture, kind = io.BytesIO(), path.suffix.removeprefix(".")
    figure.savefig(
        picture, format=kind, metadata={"png": {"Software": None}, "pdf": {"CreationDate": None}}[kind], dpi=dpi
    )
    replace(path, picture.getvalue())


def read_json(path: Path) -> Any:
    """What a JSON file of a results folder holds.

    Raises:
        ResultsError: if it is cut or is not JSON.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ResultsError(f"{path} cannot be read, {error}; run its experiment again") from error


def read_rows(folder: Path, name: str) -> Rows:
    """The records of a finished experiment, from ``ID.csv`` or ``ID.csv.xz``.

    Raises:
        ResultsError: if neither is there, or a row has no seed.
    """
    plain, packed = folder / f"{name}.csv", folder / f"{name}.csv.xz"
    if not plain.exists() and not packed.exists():
        raise ResultsError(f"{plain} is not there; run {name} again")
    text = plain.read_text() if plain.exists() else lzma.decompress(packed.read_bytes()).decode()
    rows = from_csv(text)
    if not rows or any(not isinstance(row.get("seed"), int) for row in rows):
        raise ResultsError(f"{plain} holds no records of seeds; run {name} again")
    return rows


def read_verdicts(folder: Path, name: str) -> list[Verdict]:
    """The verdicts of a finished experiment.

    Raises:
        ResultsError: if the file is not there, is cut, or is of another version.
    """
    path = folder / f"{name}.verdicts.json"
    if not path.exists():
        raise ResultsError(f"{path} is not there; run {name} again")
    try:
        pairs = [(found, {key: tuple(found[key]) for key in ("interval", "seeds")}) for found in read_json(path)]
        return [Verdict(**{**found, **tuples}) for found, tuples in pairs]
    except (TypeError, KeyError) as error:
        raise ResultsError(f"{path} was written by another version ({error}); run {name} again") from error


def replace(path: Path, content: bytes) -> None:
    """Write a file whole or not at all."""
    beside = path.with_name(f".{path.name}")
    try:
        beside.write_bytes(content)
        os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)
