"""The result of a federation's run."""

from __future__ import annotations

import math
import os
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Self

from scipy.optimize import OptimizeResult

from federated.core.ledger import Ledger
from federated.engine.federation import History, RoundRecord
from optimizers.core.archive import load_archive, save_archive
from optimizers.core.display import axes_or_new, import_pandas, in_one_line, mark_failures
from optimizers.core.options import check_choice

if TYPE_CHECKING:
    import pandas
    from matplotlib.axes import Axes


AGAINST = {"rounds": "rounds", "queries": "queries", "bytes": "payload bytes, up and down"}
"""Choices of the horizontal axis in plots, with their labels."""


class FederatedResult(OptimizeResult):
    """The result of a run: SciPy's ``OptimizeResult`` with plots and saving.

    Attributes:
        x: the last model, shape ``d``; an array if the run used NumPy arrays.
        fun: F(x); NaN if the global function is not given.
        nfev: number of queries, including failed ones.
        nfail: number of failed queries.
        nit: number of rounds.
        skipped: number of rounds without a usable report.
        rejected: number of rounds whose model ``accept="monotone"`` rejected.
        status: 1 all rounds done, 98 interrupted, 99 stopped by the callback, as in ``optimizers.Result``.
        success: whether all rounds were run but not all skipped, a query succeeded, and at least half of the reports
            were used.
        message: why the run ended, with the numbers of failures.
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
    status: int
    success: bool
    message: str
    algorithm: str
    history: History
    ledger: Ledger

    def __repr__(self) -> str:
        def line(*names: str) -> str:
            shown = ", ".join(f"{name}: {in_one_line(self.get(name))}" for name in names)
            return " " * (len(" message") - len(names[0])) + shown

        known = any(not math.isnan(record.fun) for record in self.get("history", ()))
        fun = line("fun") + ("" if known else " (unknown: pass F to simulate as fun)")
        counts = line("nit", "skipped", "rejected", "nfev", "nfail")
        return "\n".join([line("message"), line("success", "algorithm"), fun, line("x"), counts])

    def to_dataframe(self) -> pandas.DataFrame:
        """Returns one row per round, indexed by round from 0, with the entries of ``RoundRecord`` as columns."""
        return import_pandas().DataFrame([vars(record) for record in self.history]).set_index("round")

    def plot(self, ax: Axes | None = None, against: str = "rounds") -> Axes:
        """Plots F at the model after each round.

        Rounds that were skipped, rejected or had failed queries are marked on the horizontal axis.

        Args:
            ax: the axes; None creates a figure and does not change pyplot's current one.
            against: ``"rounds"``, ``"queries"`` or ``"bytes"``, the payload of all clients in both directions.

        Raises:
            ValueError: if ``against`` has another value, or the run had no ``fun``.
        """
        check_choice("against", against, AGAINST)
        values = [record.fun for record in self.history]
        if all(map(math.isnan, values)):
            raise ValueError("there are no values to plot: simulate was not given the global function, fun")
        history, ax = self.history, axes_or_new(ax)
        costs = ({"rounds": r.round, "queries": r.queries, "bytes": r.payload_up + r.payload_down} for r in history)
        spent = [cost[against] for cost in costs]
        rounds = zip(spent[1:], history, history[1:], strict=False)
        failed = [at for at, last, now in rounds if now.failures > last.failures or now.skipped or now.rejected]
        ax.plot(spent, values, label=self.get("algorithm"))
        mark_failures(ax, failed, "rounds with failures")
        ax.set(xlabel=AGAINST[against], ylabel="F")
        return ax

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the result to a zip archive of JSON and npy files, exactly, for ``load`` and ``numpy.load``.

        Raises:
            TypeError: if an entry is not a tensor, array, plain value or container of these; the file is unchanged.
        """
        history, ledger = [asdict(record) for record in self.history], self.ledger.state_dict()
        save_archive(path, "FederatedResult", dict(self) | {"history": history, "ledger": ledger})

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Reads a result from a file of ``save``, bitwise; tensors are on the CPU.

        Raises:
            ValueError: if the file was written by something else, or is damaged.
        """
        return load_archive(path, "FederatedResult", cls._from_content)

    @classmethod
    def _from_content(cls, content: dict[str, Any]) -> Self:
        history = History(RoundRecord(**entry) for entry in content["history"])
        return cls(content | {"history": history, "ledger": Ledger.from_state_dict(content["ledger"])})
