"""Atomic checkpoints of a federation, whose cost per save does not grow with the number of rounds.

A checkpoint ``run.pt`` consists of several files. Each save replaces ``run.pt`` and appends to the others:
``run.pt.ledger.csv`` with the ledger's entries in order of creation, ``run.pt.history.jsonl`` with the rounds' records,
one JSON object per line, and, for FZooS, ``run.pt.rows.bin`` with the clients' queries (``growing_rows``). ``run.pt``
states which bytes of the other files belong to the checkpoint: bytes appended by an interrupted save are ignored, and
files that do not match are refused. To copy a checkpoint, copy all its files.
"""

from __future__ import annotations

import csv
import io
import json
import math
import os
import re
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, Self, get_args, get_type_hints

from federated.core.ledger import COLUMNS, Entry
from federated.core.messages import plain
from federated.core.reception import refusing
from federated.engine.federation import Federation, RoundRecord
from federated.engine.growing_rows import GrowingRows, restore_rows
from optimizers.core.files import GrowingFile, check_path, read_state, write_state

FORMAT = 3
GROWING = {"ledger": "csv", "history": "jsonl", "rows": "bin"}
"""The files beside a checkpoint that are only appended to, and their extensions."""


class Checkpoint:
    """A checkpoint to which a run saves its federation repeatedly.

    Args:
        path: the file; the appended files are beside it.

    Raises:
        TypeError, OSError: as ``check_path``.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = check_path("checkpoint", path)
        self._files: dict[str, GrowingFile] = {}
        self._entries = self._records = 0
        self._rows, self._mark = GrowingRows(), object()

    def save(self, federation: Federation) -> None:
        """Saves a federation between two rounds, writing only new entries and records.

        Raises:
            OSError: if a file cannot be written, with its path; the previous checkpoint is then kept.
        """
        state = federation.present_state()
        appending = self._can_append(federation) and self._rows.begins(state["clients"])
        if not appending:
            self._choose_files()
        try:
            clients, rows, written = self._rows.take(state["clients"])
            self._append(federation, rows)
            self._rows = written
            files = {name: [f.path.name, f.size, f.sha256] for name, f in self._files.items() if f.size}
            write_state(self.path, state | {"clients": clients} | files, FORMAT)
        except BaseException:
            if not appending:
                _remove(file.path for file in self._files.values())
                self._files = {}
            raise
        if not appending:
            _remove(self._obsolete_files())

    def load(self, federation: Federation) -> Self:
        """Restores a federation from a file written in process or over Flower; later saves append to its files.

        Raises:
            OSError: if a file cannot be read.
            ValueError: if the file is not a checkpoint, is damaged, lacks its appended files, or does not fit the
                federation's options; the federation is then unchanged.
        """
        try:
            state, self._files, self._rows = read_checkpoint(self.path)
            federation.load_state_dict(state)
        except ValueError as error:
            raise ValueError(f"{plain(self.path)} is not a checkpoint of this federation: {error}") from error
        self._entries, self._records = len(federation.ledger), len(federation.history)
        federation.ledger.mark_written(self._mark)
        return self

    def _can_append(self, federation: Federation) -> bool:
        """Whether the files contain the beginning of the federation's ledger and history."""
        ledger, history = federation.ledger, federation.history
        unchanged = ledger.is_written(self._mark, self._entries) and len(history) >= self._records
        return bool(self._files) and unchanged and all(file.there for file in self._files.values() if file.size)

    def _choose_files(self) -> None:
        """Chooses names for new files that keep those of an existing checkpoint, until it is replaced."""
        number, self._files = 1, {}
        while not self._files or any(file.path.exists() for file in self._files.values()):
            part = "" if number == 1 else f"-{number}"
            names = {name: f"{self.path.name}.{name}{part}.{ending}" for name, ending in GROWING.items()}
            self._files = {name: GrowingFile(self.path.with_name(file)) for name, file in names.items()}
            number += 1
        self._entries, self._records, self._rows = 0, 0, GrowingRows()

    def _append(self, federation: Federation, rows: bytes) -> None:
        ledger, history, files = federation.ledger, federation.history, self._files
        text = io.StringIO()
        writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
        if not files["ledger"].size:
            writer.writeheader()
        writer.writerows(ledger.entries(self._entries))
        files["ledger"].append(text.getvalue().encode())
        self._entries = len(ledger)
        ledger.mark_written(self._mark)
        files["history"].append("".join(map(_line_of, history[self._records :])).encode())
        self._records = len(history)
        if rows:
            files["rows"].append(rows)

    def _obsolete_files(self) -> list[Path]:
        """Returns appended files with this checkpoint's name that no longer belong to it."""
        own = {file.path.name for file in self._files.values()}
        endings = "|".join(rf"{name}(-\d+)?\.{ending}" for name, ending in GROWING.items())
        beside = [p for p in self.path.absolute().parent.iterdir() if p.name.startswith(f"{self.path.name}.")]
        return [p for p in beside if re.fullmatch(endings, p.name[len(self.path.name) + 1 :]) and p.name not in own]


def read_checkpoint(path: Path) -> tuple[dict[str, Any], dict[str, GrowingFile], GrowingRows]:
    """Returns the ``Federation.state_dict`` in a checkpoint, its appended files and the rows in them.

    Raises:
        OSError, ValueError: as ``Checkpoint.load``.
    """
    state, written = read_state(path, FORMAT), GrowingRows()
    files = {"rows": GrowingFile(path.with_name(f"{path.name}.rows.{GROWING['rows']}"))}
    parts: dict[str, Callable[[bytes], Any]] = {"ledger": _ledger_of, "history": _history_of}
    if "rows" in state:
        parts["rows"] = partial(restore_rows, state["clients"])
    for name, parse in parts.items():
        match state.get(name):
            case [str(file), int(size), str(sha256)] if Path(file).name == file and size >= 0:
                beside = path.with_name(file)
            case _:
                raise ValueError(f"it does not state which file contains its {name}")
        try:
            files[name], data = GrowingFile.opened(beside, size, sha256)
        except OSError as error:
            raise ValueError(f"the file of its {name}, {plain(beside)}, cannot be read: {error.strerror}") from error
        with refusing():
            state[name] = parse(data)
    if "rows" in parts:
        state["clients"], written = state.pop("rows")
    return state, files, written


def _ledger_of(data: bytes) -> dict[str, list[Any]]:
    """Returns the ``Ledger.state_dict`` of entries in CSV."""
    header, *rows = csv.reader(io.StringIO(data.decode(), newline=""), strict=True)
    if header != list(COLUMNS) or any(len(row) != len(header) for row in rows):
        raise ValueError(f"the ledger's columns are {header!r:.200}, expected {list(COLUMNS)}")
    columns = {name: list(column) for name, column in zip(header, zip(*rows, strict=True), strict=True)} if rows else {}
    made: dict[str, list[Any]] = {}
    for name, hint in get_type_hints(Entry).items():
        kind, *others = get_args(hint) or (hint,)
        made[name] = [None if others and cell == "" else kind(cell) for cell in columns.get(name, ())]
    return made


def _line_of(record: RoundRecord) -> str:
    """Returns a record as a line of JSON, with null for NaN and a string for infinity."""
    fun = record.fun if math.isfinite(record.fun) else None if math.isnan(record.fun) else str(record.fun)
    return json.dumps(asdict(record) | {"fun": fun}, allow_nan=False) + "\n"


def _history_of(data: bytes) -> list[dict[str, Any]]:
    """Returns the records in lines of JSON, with tuples as in ``RoundRecord``."""
    records = [json.loads(line) for line in data.decode().splitlines()]
    for record in records:
        record["fun"] = math.nan if record["fun"] is None else float(record["fun"])
        for name in ("participants", "accepted"):
            record[name] = tuple(record[name])
        record["refused"] = tuple(tuple(refusal) for refusal in record["refused"])
    return records


def _remove(paths: Iterable[Path]) -> None:
    for path in paths:
        with suppress(OSError):
            path.unlink()
