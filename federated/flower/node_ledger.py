"""A client's own ledger: every query it spent, in a file that outlives the process that spent it."""

from __future__ import annotations

import csv
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from federated.core.algorithm import Gradient
from optimizers.batch import Batch
from optimizers.evaluation import Evaluator

COLUMNS = ("book", "round", "phase", "event", "queries", "failures", "gradients")


@dataclass(frozen=True)
class Spent:
    """Totals of a ledger: queries, failed ones too and those begun and never ended, failed ones, gradients."""

    queries: int = 0
    failures: int = 0
    gradients: int = 0


class NodeLedger:
    """Rows of what one client spent in one run.

    A batch has a row ``begun`` before its queries and a row ``done`` after them, written through to the operating
    system at once: when the process is killed between the two, the batch counts as spent. A ``gradient`` has
    one row.

    Args:
        folder: where the file is, made where missing.
        run: Flower's number of the run.
        client: number of the client.

    Attributes:
        path: the file, CSV with the columns of ``COLUMNS``.
        book: an identifier made with the file, by which totals of another file are told apart.
    """

    def __init__(self, folder: Path, run: int, client: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / f"run-{run}-client-{client}.csv"
        rows = self._rows()
        self.book = rows[0]["book"] if rows else uuid.uuid4().hex
        if not rows:
            self._append(",".join(COLUMNS) + f"\n{self.book},0,,opened,0,0,0")

    def begun(self, round_number: int, phase: str, queries: int) -> None:
        """A batch of so many queries begins."""
        self._append(f"{self.book},{round_number},{phase},begun,{queries},0,0")

    def done(self, round_number: int, phase: str, queries: int, failures: int) -> None:
        """It ended, with so many queries, retries too."""
        self._append(f"{self.book},{round_number},{phase},done,{queries},{failures},0")

    def gradient(self, round_number: int, phase: str) -> None:
        """A gradient is evaluated."""
        self._append(f"{self.book},{round_number},{phase},gradient,0,0,1")

    def spent(self) -> Spent:
        """The totals so far."""
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
        """Whole rows; one that a crash cut short has not begun."""
        if not self.path.exists():
            return []
        with self.path.open(encoding="utf-8", newline="") as file:
            return [row for row in csv.DictReader(file) if None not in row and None not in row.values()]

    def _append(self, line: str) -> None:
        with self.path.open("a+b") as file:
            end = file.seek(0, 2)
            file.seek(max(end - 1, 0))
            cut = end > 0 and file.read(1) != b"\n"
            file.write((b"\n" if cut else b"") + line.encode() + b"\n")


@dataclass(frozen=True)
class CountedEvaluator:
    """An ``Evaluator`` that writes what it spends into a ledger."""

    evaluator: Evaluator
    ledger: NodeLedger
    round: int
    phase: str

    @property
    def fun(self) -> Any:
        """The objective."""
        return self.evaluator.fun

    def __call__(self, batch: Batch, spare: int = 0) -> tuple[Tensor, int]:
        """See ``Evaluator``."""
        self.ledger.begun(self.round, self.phase, len(batch))
        values, retried = self.evaluator(batch, spare)
        failed = int(torch.isnan(values).sum()) + retried
        self.ledger.done(self.round, self.phase, len(batch) + retried, failed)
        return values, retried


@dataclass(frozen=True)
class CountedGradient:
    """A gradient whose evaluations a ledger has."""

    evaluate: Gradient
    ledger: NodeLedger
    round: int
    phase: str

    def __call__(self, x: Tensor) -> Any:
        """The gradient at x."""
        self.ledger.gradient(self.round, self.phase)
        return self.evaluate(x)
