"""What a run leaves behind: picture, data, settings and verdicts, and the seeds of a run that was cut short.

``ID.png``, ``ID.pdf``, ``ID.csv``, ``ID.settings.json``, ``ID.verdicts.json``. A file is complete or is not
there: each is written beside its place and moved. While a run goes on its finished seeds stand in
``ID.partial.jsonl``, which stays when the run is cut short and from which it can go on.
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
import json
import os
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from experiments import style
from experiments.experiment import Experiment
from experiments.records import Rows, to_csv
from experiments.verdicts import Verdict

_LIBRARIES = ("torch", "gpytorch", "linear_operator", "botorch", "numpy", "scipy", "numba", "matplotlib")


class ResultsError(ValueError):
    """A results folder that cannot be gone on with."""


def versions() -> dict[str, str]:
    """Versions of Python, of this project and of the libraries that the numbers depend on."""
    found = {"python": platform.python_version()}
    for name in ("gradient-surrogates", *_LIBRARIES):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "not installed"
    return found


def as_json(value: Any) -> Any:
    """A settings dataclass as what JSON can hold."""
    return json.loads(json.dumps(dataclasses.asdict(value), default=str))


class PartialRun:
    """The finished seeds of a run under way, appended to one file and flushed seed by seed.

    Args:
        path: the file.
        header: what the seeds belong to: settings and versions.
        resume: keep the seeds that the file holds already.

    Raises:
        ResultsError: if the file's seeds were made with other settings or versions.
    """

    def __init__(self, path: Path, header: dict[str, Any], resume: bool) -> None:
        self.path = path
        self.rows: dict[int, Rows] = {}
        path.parent.mkdir(parents=True, exist_ok=True)
        if resume and path.exists():
            self._read(header)
        _write(
            path,
            "".join(json.dumps(line) + "\n" for line in [header, *map(list, self.rows.items())]).encode(),
        )

    def _read(self, header: dict[str, Any]) -> None:
        lines = self.path.read_text().splitlines()
        try:
            found = json.loads(lines[0])
        except (IndexError, json.JSONDecodeError) as error:
            raise ResultsError(f"{self.path} is not a partial run: {error}") from error
        if different := [key for key in header if found.get(key) != header[key]]:
            raise ResultsError(
                f"{self.path} was made with other {' and '.join(different)}; "
                "run without --resume to start over, or write elsewhere with --out"
            )
        for line in lines[1:]:
            try:
                seed, rows = json.loads(line)
            except json.JSONDecodeError:
                continue  # the line that an interrupt cut
            self.rows[seed] = rows

    def add(self, seed: int, rows: Rows) -> None:
        """Keep a finished seed."""
        self.rows[seed] = rows
        with self.path.open("a") as file:
            file.write(json.dumps([seed, rows]) + "\n")

    def collected(self, seeds: Sequence[int]) -> Rows:
        """The records of the given seeds, in their order."""
        return [row for seed in seeds for row in self.rows[seed]]

    def remove(self) -> None:
        """Delete the file, once its seeds stand in the results."""
        self.path.unlink(missing_ok=True)


def header(experiment: Experiment, settings: Any) -> dict[str, Any]:
    """What a seed's records depend on."""
    return {"experiment": experiment.id, "settings": as_json(settings), "versions": versions()}


def write(
    experiment: Experiment,
    settings: Any,
    seeds: Sequence[int],
    rows: Rows,
    out: Path,
    *,
    command: str,
    seconds: float,
) -> list[Verdict]:
    """Write all files of one finished experiment.

    Args:
        experiment: the experiment.
        settings: what it ran with.
        seeds: the seeds that it ran.
        rows: their records.
        out: the folder, made if need be.
        command: what was typed.
        seconds: processor time of the seeds.

    Returns:
        The verdicts.
    """
    out.mkdir(parents=True, exist_ok=True)
    _write(out / f"{experiment.id}.csv", to_csv(rows).encode())
    facts = header(experiment, settings) | {
        "source": experiment.source,
        "shows": experiment.shows,
        "seeds": list(seeds),
        "command": command,
        "processor_seconds": round(seconds, 2),
        "machine": {"processor": platform.machine(), "system": platform.system()},
    }
    _write(out / f"{experiment.id}.settings.json", _pretty(facts))
    verdicts = experiment.claims(settings, rows)
    _write(
        out / f"{experiment.id}.verdicts.json", _pretty([dataclasses.asdict(verdict) for verdict in verdicts])
    )
    with style.applied():
        figure = experiment.draw(settings, rows)
        for kind, metadata in (("png", {"Software": None}), ("pdf", {"CreationDate": None})):
            target = out / f"{experiment.id}.{kind}"
            beside = target.with_name(f".{target.name}")
            figure.savefig(beside, format=kind, metadata=metadata)
            os.replace(beside, target)
    return verdicts


def _pretty(value: Any) -> bytes:
    return (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode()


def _write(path: Path, content: bytes) -> None:
    beside = path.with_name(f".{path.name}")
    beside.write_bytes(content)
    os.replace(beside, path)
