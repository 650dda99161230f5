"""A client's own ledger: a file of its queries that outlives the processes that make them."""

from __future__ import annotations

import csv
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from federated.core.algorithm import Gradient
from federated.core.ledger import Spent
from optimizers.core.batch import Batch
from optimizers.evaluation import Evaluator

COLUMNS = ("book", "round", "phase", "event", *Spent._fields)


class NodeLedger:
    """The queries of one client in one run.

    A batch has a row ``begun`` before its queries and a row ``done`` after them, each written immediately. If the
    process is killed between the two, the batch counts as spent. A gradient evaluation has one row, ``gradient``.

    Args:
        folder: folder of the file, which is created if necessary.
        run: Flower's number of the run.
        client: the client's number.

    Attributes:
        path: the CSV file, with columns ``COLUMNS``.
        book: identifier of the file, which distinguishes its totals from another file's.
    """

    def __init__(self, folder: Path, run: int, client: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / f"run-{run}-client-{client}.csv"
        rows = self._rows()
        self.book = rows[0]["book"] if rows else uuid.uuid4().hex
        if not rows:
            self._append(*COLUMNS)
            self.write(0, "", "opened", Spent())

    def write(self, round_number: int, phase: str, event: str, spent: Spent) -> None:
        """Appends a row with the counts of an event of a phase; the event is ``begun``, ``done`` or ``gradient``."""
        self._append(self.book, round_number, phase, event, *spent)

    def spent(self) -> Spent:
        """Returns the totals so far, including batches that were begun but not completed."""
        queries = failures = gradients = pending = 0
        for row in self._rows():
            if row["event"] == "begun":
                queries, pending = queries + pending, int(row["queries"])
            else:
                queries, failures = queries + int(row["queries"]), failures + int(row["failures"])
                gradients += int(row["gradients"])
                pending = 0 if row["event"] == "done" else pending
        return Spent(queries + pending, failures, gradients)

    def _rows(self) -> list[dict[str, str]]:
        """Returns the rows, without one that was truncated when a process ended."""
        if not self.path.exists():
            return []
        with self.path.open(encoding="utf-8", newline="") as file:
            return [row for row in csv.DictReader(file) if None not in row and None not in row.values()]

    def _append(self, *cells: object) -> None:
        """Appends a row, after a line break if the last row is truncated."""
        with self.path.open("a+b") as file:
            end = file.seek(0, 2)
            file.seek(max(end - 1, 0))
            cut = end > 0 and file.read(1) != b"\n"
            file.write((b"\n" if cut else b"") + ",".join(map(str, cells)).encode() + b"\n")


@dataclass(frozen=True)
class CountedEvaluator:
    """An ``Evaluator`` that records its queries by ``write``, called with an event and counts."""

    evaluator: Evaluator
    write: Callable[[str, Spent], None]

    @property
    def fun(self) -> Any:
        """The objective."""
        return self.evaluator.fun

    def __call__(self, batch: Batch, spare: int = 0) -> tuple[Tensor, int]:
        """See ``Evaluator``."""
        self.write("begun", Spent(len(batch)))
        values, retried = self.evaluator(batch, spare)
        self.write("done", Spent(len(batch) + retried, int(torch.isnan(values).sum()) + retried))
        return values, retried


@dataclass(frozen=True)
class CountedGradient:
    """A gradient that records its evaluations by ``write``, called with an event and counts."""

    evaluate: Gradient
    write: Callable[[str, Spent], None]

    def __call__(self, x: Tensor) -> Any:
        """Returns the gradient at x."""
        self.write("gradient", Spent(gradients=1))
        return self.evaluate(x)
