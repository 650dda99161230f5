"""The result of a federation's run, to be seen and kept."""

from __future__ import annotations

import math
import os
from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Any, Self

from scipy.optimize import OptimizeResult

from federated.core.ledger import AGAINST, Ledger, check_against
from federated.engine.federation import History, RoundRecord
from optimizers.core.archive import load_archive, save_archive
from optimizers.core.display import axes_or_new, import_pandas, in_one_line, mark_failures

if TYPE_CHECKING:
    import pandas
    from matplotlib.axes import Axes


class FederatedResult(OptimizeResult):
    """A federation's run: scipy's ``OptimizeResult`` that can be drawn, saved and printed.

    Attributes:
        x: the last model, shape ``d``; an array where the run took and gave NumPy arrays.
        fun: F(x); NaN if the global function is not given.
        nfev: the number of queries, failed ones included.
        nfail: the number of failed queries.
        nit: the number of rounds.
        skipped: the number of rounds without a valid report.
        rejected: the number of rounds that ``accept="monotone"`` took back.
        success: whether the run made its rounds, of which not all were skipped, not all queries failed, and half of
            the reports were used at least.
        message: why it ended, and what was not done.
        algorithm: the algorithm's name.
        history: a ``RoundRecord`` of each round, from round 0.
        ledger: each client's costs by round.
    """

    x: Any
    fun: float
    nfev: int
    nfail: int
    nit: int
    skipped: int
    rejected: int
    success: bool
    message: str
    algorithm: str
    history: History
    ledger: Ledger

    def __repr__(self) -> str:
        def counts(*names: str) -> str:
            return ", ".join(f"{name}: {in_one_line(self.get(name))}" for name in names)

        known = any(not math.isnan(record.fun) for record in self.get("history", ()))
        unknown = "" if known else " (no value of F, which simulate takes as fun)"
        return "\n".join(
            [
                f" message: {in_one_line(self.get('message'))}",
                f" success: {counts('success', 'algorithm').removeprefix('success: ')}",
                f"     fun: {in_one_line(self.get('fun'))}{unknown}",
                f"       x: {in_one_line(self.get('x'))}",
                f"     nit: {counts('nit', 'skipped', 'rejected', 'nfev', 'nfail').removeprefix('nit: ')}",
            ]
        )

    def to_dataframe(self) -> pandas.DataFrame:
        """One row a round, from round 0, which is the index, with the other entries of ``RoundRecord`` as columns.

        Raises:
            ImportError: if pandas is not installed.
        """
        columns = [field.name for field in fields(RoundRecord)]
        rows = [[getattr(record, name) for name in columns] for record in self.history]
        return import_pandas().DataFrame(rows, columns=columns).set_index("round")

    def plot(self, ax: Axes | None = None, against: str = "rounds") -> Axes:
        """Draws F at the model after each round, and marks rounds with failures on the horizontal axis.

        Those are rounds in which queries failed, and rounds that were skipped or taken back.

        Args:
            ax: the axes to draw on. None makes a figure, which pyplot shows; pyplot's current figure, where there is
                one, stays so.
            against: ``"rounds"``, ``"queries"`` or ``"bytes"``, those of the payload up and down, of all clients.

        Raises:
            ValueError: if ``against`` is none of these, or the run had no ``fun``.
        """
        check_against(against)
        values = [record.fun for record in self.history]
        if all(map(math.isnan, values)):
            raise ValueError("there are no values to draw: simulate was not given the global function, fun")
        spent = [_spent(record)[against] for record in self.history]
        rounds = zip(spent[1:], self.history, self.history[1:], strict=False)
        failed = [at for at, last, now in rounds if now.failures > last.failures or now.skipped or now.rejected]
        ax = axes_or_new(ax)
        ax.plot(spent, values, label=self.get("algorithm"))
        mark_failures(ax, failed, "rounds with failures")
        ax.set_xlabel(AGAINST[against])
        ax.set_ylabel("F")
        return ax

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the result to a file, exactly and without pickling; ``load`` reads it.

        The file is a zip archive of JSON and, for each tensor and array, an npy file, which ``numpy.load`` opens too.

        Args:
            path: the file, which keeps the name given.

        Raises:
            TypeError: for an entry that is no tensor, array or plain value, or nest of these; the file stays as it was.
        """
        history, ledger = [asdict(record) for record in self.history], self.ledger.state_dict()
        save_archive(path, "FederatedResult", dict(self) | {"history": history, "ledger": ledger})

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """The result in a file of ``save``, bitwise; tensors come to the CPU.

        Raises:
            OSError: if the file cannot be read.
            ValueError: if it is none of ``save`` or damaged.
        """
        return load_archive(path, "FederatedResult", cls._from_content)

    @classmethod
    def _from_content(cls, content: dict[str, Any]) -> Self:
        history = History(RoundRecord(**entry) for entry in content["history"])
        return cls(content | {"history": history, "ledger": Ledger.from_state_dict(content["ledger"])})


def _spent(record: RoundRecord) -> dict[str, Any]:
    payload = record.payload_up + record.payload_down
    return {"rounds": record.round, "queries": record.queries, "bytes": payload}
