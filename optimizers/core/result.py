"""The result of a run, which prints, plots, saves and loads."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np
import torch
from scipy.optimize import OptimizeResult
from torch import Tensor

from optimizers.core.archive import has_numpy_dtype, load_archive, save_archive
from optimizers.core.display import axes_or_new, import_pandas, in_one_line, mark_failures

if TYPE_CHECKING:
    import pandas
    from matplotlib.axes import Axes


class Estimate(NamedTuple):
    """A query and a model's posterior at the query.

    Attributes:
        x: the query, shape ``d``.
        fun: the posterior mean of f + ψ.
        fun_std: the posterior standard deviation of f + ψ.
        constr: the posterior means of the constraints, shape ``m``; None without constraints.
    """

    x: Tensor
    fun: float
    fun_std: float
    constr: np.ndarray | None = None


class Result(OptimizeResult):
    """The result of a run, or of the run so far: SciPy's ``OptimizeResult`` with printing, plotting and saving.

    Vectors are NumPy arrays if the run was made with arrays, otherwise tensors.

    **Noisy values.** If values are noisy, the least value is too low by chance. For a method with a Gaussian process
    ``x`` is then the query of least posterior mean in its last window, ``fun`` this mean, and ``fun_std`` the posterior
    standard deviation, which ignores hyperparameter uncertainty. With constraints, the posterior means of the
    constraints must be feasible at ``x``; ``constr``, ``maxcv`` and ``success`` refer to these means. Values count as
    noisy for ``SurrogateTrustRegion`` and ``ZoRD`` if ``noise`` is positive, for ``SurrogateTrustRegion`` also if it
    detects noise, and for ``TuRBO`` with ``noisy=True``. Otherwise ``x`` and ``fun`` are the best query and its value,
    and ``fun_std`` is 0. Callbacks, ``target``, ``history.best_y`` and comparisons of methods use observed values.

    Attributes:
        x: the best point, shape ``d``, or the point of least posterior mean; x0 before the first success.
        fun: f + ψ at x, or its posterior mean.
        fun_std: the standard deviation of ``fun``; 0 if ``fun`` was observed.
        best_x: the query of the least value, shape ``d``; x0 before the first success.
        best_fun: f + ψ at ``best_x``.
        nfev: the number of queries, failed ones and retries included.
        nit: the number of complete batches.
        nfail: the number of failed queries.
        status: 0 target, 1 budget, 2 stagnation, 3 all failed, 4 time, 5 all integer points evaluated,
            98 interrupted, 99 callback or function, −1 running.
        success: whether the run ended as planned, with at least two successful queries and some progress.
        message: why the run ended.
        stop_reason: the ``StopReason``; None while running.
        history: for the queries in the order asked: ``y`` (NaN: failed), ``best_y`` (the least f + ψ so far) and, if
            points were stored, ``x``, ``queries x d``.

    A run whose variables have names (``Space``) also has ``params``, the values of x by name.

    A run with constraints has further attributes. ``x`` is the best feasible query. If there is none, ``success`` is
    False, and ``x`` has the least violation relative to the constraint's first nonzero distance from a bound.

    Attributes:
        constr_violation, maxcv: the largest violation of a constraint at x, in the constraint's units.
        constr: the constraints' values at x, shape ``m``, in the order given.
        multipliers: Lagrange multipliers λ at x, estimated by the models, shape ``m``: ∇f + Σ λⱼ∇cⱼ = 0 in the
            variables that are not at a bound. λ ≥ 0 at an upper bound of a constraint, λ ≤ 0 at a lower one.
        active: whether each constraint is at a bound, is violated, or has a nonzero multiplier, shape ``m``.
        history: also ``maxcv``, the largest violation of each query.
    """

    x: Any
    fun: float
    fun_std: float
    best_x: Any
    best_fun: float
    nfev: int
    nit: int
    nfail: int
    status: int
    success: bool
    message: str
    stop_reason: str | None
    history: OptimizeResult

    def __repr__(self) -> str:
        shown = {name: in_one_line(self.get(name)) for name in ("message", "status", "success", "fun", "x")}
        counts = ", ".join(f"{name}: {self.get(name)}" for name in ("nit", "nfail"))
        active, of = int(sum(self.get("active", ()))), len(self.get("active", ()))
        return "\n".join(
            [
                f" message: {shown['message']}",
                f" success: {shown['success']}, status: {shown['status']}",
                f"     fun: {shown['fun']}" + (f" ± {self.fun_std:.3g}" if self.get("fun_std") else ""),
                f"       x: {shown['x']}" if "params" not in self else f"  params: {self.params}",
                *([f"   maxcv: {self.maxcv:.3g}, active: {active} of {of} constraints"] if "maxcv" in self else []),
                f"    nfev: {self.get('nfev')}, {counts}",
            ]
        )

    def numpy(self) -> Self:
        """The result with arrays instead of tensors; see ``to_numpy``."""
        return to_numpy(self)

    def to_dataframe(self) -> pandas.DataFrame:
        """A data frame with a row for each query, in the order asked; the index is the query's number, from 1.

        The columns are y, best_y, failed and, if points were stored, the variables by name, or x0, x1, ….

        Raises:
            ImportError: if pandas is not installed.
        """
        pd, history = import_pandas(), to_numpy(self.history)
        columns = {"y": history.y, "best_y": history.best_y, "failed": np.isnan(history.y)}
        index = pd.RangeIndex(1, len(history.y) + 1, name="query")
        frame = pd.DataFrame(columns, index=index)
        if "x" not in history:
            return frame
        names = self.get("params") or [f"x{i}" for i in range(history.x.shape[1])]
        points = pd.DataFrame(history.x, index=index, columns=[*names])
        return pd.concat([frame, points], axis=1)

    def plot(self, ax: Axes | None = None) -> Axes:
        """Plots the best value against the queries; failed queries are marked on the horizontal axis.

        Args:
            ax: the axes; None: axes of a new figure, which does not become pyplot's current figure.
        """
        history, ax = to_numpy(self.history), axes_or_new(ax)
        queries = np.arange(1, len(history.y) + 1)
        ax.plot(queries, history.best_y, drawstyle="steps-post", label="best value")
        mark_failures(ax, queries[np.isnan(history.y)], "failed queries")
        ax.set_xlabel("queries")
        ax.set_ylabel("best value")
        return ax

    def save(self, path: str | os.PathLike[str]) -> None:
        """Saves the result exactly, without pickling, in a zip archive of JSON and npy files that ``numpy.load`` opens.

        Args:
            path: the file; no suffix is added.

        Raises:
            TypeError: for an entry that is not a tensor, array, plain value or a container of these.
        """
        save_archive(path, "Result", self)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Loads a result from a file of ``save``, bitwise; tensors are on the CPU.

        Raises:
            OSError: if the file cannot be read.
            ValueError: if it is damaged or not a saved result.
        """
        return load_archive(path, "Result", cls)


def to_numpy(value: Any) -> Any:
    """Converts a tensor, or all tensors in a mapping, to arrays; anything else is returned unchanged.

    Floating dtypes that NumPy lacks, such as bfloat16, become float32, which is exact.
    """
    if isinstance(value, dict):
        return type(value)({name: to_numpy(entry) for name, entry in value.items()})
    if not isinstance(value, Tensor):
        return value
    known = value if has_numpy_dtype(value) else value.to(torch.float32)
    return known.detach().cpu().numpy().copy()
