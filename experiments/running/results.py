"""What a run leaves behind: picture, data, settings and verdicts, and the seeds of a run that was cut short.

``ID.png``, ``ID.pdf``, ``ID.csv``, ``ID.settings.json``, ``ID.verdicts.json``, and where there is a second figure
``ID-more.png`` and ``ID-more.pdf``. A file is complete or is not there: each is written beside its place and moved.
While a run goes on its finished seeds stand in ``ID.partial.jsonl``, which stays when the run is cut short and from
which it can go on.
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

from experiments import registry
from experiments.harness.experiment import Experiment
from experiments.harness.records import from_csv, to_csv
from experiments.harness.verdicts import Verdict
from optimizers.comparison.records import Rows, seeds_of
from surrogates import plotting

FORMAT = 1
"""Of the files; counted up when one that was written before can no longer be read."""

_LIBRARIES = ("torch", "gpytorch", "linear_operator", "botorch", "numpy", "scipy", "numba", "matplotlib")


class ResultsError(ValueError):
    """A results folder that cannot be read or gone on with."""


def versions() -> dict[str, str]:
    """Versions of Python, of this project and of the libraries that the numbers depend on."""
    found = {"python": platform.python_version()}
    for name in ("gradient-surrogates", *_LIBRARIES):
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
    """The finished seeds of a run under way, appended to one file and flushed seed by seed.

    Args:
        path: the file. Seeds of an earlier run that are not to be kept go to ``….bak``, so that nothing is lost.
        header: what the seeds belong to: settings and versions.
        resume: keep the seeds that the file holds already; those of finished results where there is none.

    Attributes:
        path: the file; it goes once its seeds stand in the results.
        done: seed to its records and its processor seconds.

    Raises:
        ResultsError: if the seeds there were made with other settings or versions.
    """

    def __init__(self, path: Path, header: dict[str, Any], resume: bool) -> None:
        self.path, self.header = path, header
        self.done: dict[int, tuple[Rows, float]] = {}
        path.parent.mkdir(parents=True, exist_ok=True)
        if resume and path.exists():
            self._read()
        elif resume:
            self._read_finished()
        elif path.exists() and len(path.read_bytes().splitlines()) > 1:
            os.replace(path, path.with_name(f"{path.name}.bak"))
        if not self.done:
            self._open()

    def _read(self) -> None:
        first, *lines = self.path.read_text().splitlines() or [""]
        try:
            found = json.loads(first)
        except json.JSONDecodeError as error:
            raise ResultsError(f"{self.path} is not a partial run: {error}") from error
        self._compare(self.path, found)
        for line in lines:
            try:
                seed, rows, seconds = json.loads(line)
            except ValueError:
                continue  # the line that an interrupt cut
            self.done[seed] = rows, seconds
        self._open()

    def _read_finished(self) -> None:
        stem = self.path.name.removesuffix(".partial.jsonl")
        path = self.path.with_name(f"{stem}.settings.json")
        if not path.exists():
            return
        facts = read_json(path)
        self._compare(path, facts)
        rows = read_rows(self.path.parent, stem)
        seeds = seeds_of(rows)
        each = facts.get("processor_seconds", 0.0) / len(seeds)
        self.done = {seed: ([row for row in rows if row["seed"] == seed], each) for seed in seeds}

    def _compare(self, path: Path, found: Mapping[str, Any]) -> None:
        if different := [key for key in self.header if found.get(key) != self.header[key]]:
            raise ResultsError(
                f"{path} was made with other {' and '.join(different)}; "
                "run without --resume to start over, or write elsewhere with --out"
            )

    def _open(self) -> None:
        lines = [self.header, *([seed, *done] for seed, done in self.done.items())]
        replace(self.path, "".join(json.dumps(line) + "\n" for line in lines).encode())

    def add(self, seed: int, rows: Rows, seconds: float) -> None:
        """Keep a finished seed."""
        self.done[seed] = rows, seconds
        if not self.path.exists():
            self._open()
            return
        with self.path.open("a") as file:
            file.write(json.dumps([seed, rows, seconds]) + "\n")


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
                picture = io.BytesIO()
                metadata = {"Software": None} if kind == "png" else {"CreationDate": None}
                figure.savefig(picture, format=kind, metadata=metadata, dpi=dpi)
                replace(out / f"{experiment.id}{suffix}.{kind}", picture.getvalue())
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
    replace(out / f"{experiment.id}.settings.json", _pretty({**facts, **about}))
    replace(out / f"{experiment.id}.verdicts.json", _pretty([dataclasses.asdict(verdict) for verdict in verdicts]))
    return verdicts


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


def _pretty(value: Any) -> bytes:
    return (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode()
