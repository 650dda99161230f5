"""Counts the evaluations that ``optimizers.least_squares`` and other methods need on Moré and Wild's problems.

A run has solved a problem to τ when its cost F satisfies F(x) − F* ≤ τ (F(x0) − F*), where F* is the least cost that
any of the compared runs found. A run has 50 (d + 1) evaluations, but ends early if the last fifth of this budget
lowered the cost by less than 1e-9 of the decrease so far. A data profile is the share of problems solved within α (d +
1) evaluations, as a function of α (DIR/least-squares.png). Use ``--perturbed`` starts to tune a method; the
calibrations are left out of them, because their differential equations may become stiff.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import scipy.optimize
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.benchmarks.output import options_of, write
from experiments.running.results import save_figure
from experiments.workloads.calibrations import calibrations
from experiments.workloads.more_wild import LeastSquaresProblem, problems
from optimizers import least_squares, minimize
from optimizers.comparison.interval import with_interval
from surrogates import plotting
from surrogates.plotting import MethodStyle

BUDGET, ENOUGH, TAUS, ALPHAS = 50, 1e-9, (1e-3, 1e-5), (2, 3, 5, 10, 20, 50)
DPI = 200
PERTURBED = 0.3
"""Largest relative change of a coordinate in a perturbed start; a 0 changes relative to a tenth of the largest |x|."""


class RunEnds(StopIteration):
    """Raised by ``Counted`` to end a run."""


class Counted:
    """A residual function that records the cost ½‖r‖² of each evaluation, and ends the run by the module's rule.

    Args:
        r: the residual function.
        budget: largest number of evaluations.
    """

    def __init__(self, r: Callable[[np.ndarray], np.ndarray], budget: int) -> None:
        self._r, self.budget, self.costs = r, budget, list[float]()

    def __call__(self, x: np.ndarray) -> np.ndarray:
        """The residuals of a point."""
        with np.errstate(all="ignore"):
            found = np.asarray(self._r(np.array(x, dtype=float)))
            cost = 0.5 * float(found @ found)
        self.costs.append(cost if math.isfinite(cost) else math.inf)
        least, before = min(self.costs), min(self.costs[: -self.budget // 5], default=math.inf)
        if len(self.costs) == self.budget or before - least <= ENOUGH * (self.costs[0] - least):
            raise RunEnds
        return found


OURS = "ours"

Run = Callable[[Counted, np.ndarray], Any]


def ours(r: Counted, x0: np.ndarray) -> Any:
    """Runs ``optimizers.least_squares``."""
    return least_squares(r, x0, max_queries=r.budget, progress=False)


def scalar(r: Counted, x0: np.ndarray) -> Any:
    """Runs the default method on the cost ½‖r‖²."""
    return minimize(lambda x: 0.5 * float((r(x) ** 2).sum()), x0, max_queries=r.budget, progress=False)


def scipy_2_point(r: Counted, x0: np.ndarray) -> Any:
    """Runs SciPy's ``least_squares`` with finite differences, whose evaluations are counted."""
    return scipy.optimize.least_squares(r, x0, "2-point", ftol=1e-15, xtol=1e-15, gtol=1e-15, max_nfev=r.budget)


def dfo_ls(r: Counted, x0: np.ndarray) -> Any:
    """Runs DFO-LS with its defaults."""
    import dfols

    return dfols.solve(r, x0, maxfun=r.budget)


RUNS: dict[str, Run] = {"dfo-ls": dfo_ls, "scipy": scipy_2_point, OURS: ours, "scalar": scalar}

LOOKS = {
    "dfo-ls": MethodStyle("DFO-LS", plotting.VERMILION, "s", "--"),
    "scipy": MethodStyle("SciPy's least_squares", plotting.ORANGE, "P", "-."),
    OURS: MethodStyle("least_squares", plotting.BLUE, "o"),
    "scalar": MethodStyle("the default method on the cost", plotting.BLACK, "*", ":"),
}


def costs_of(run: Run, problem: LeastSquaresProblem, x0: np.ndarray) -> list[float]:
    """Runs a method on a problem; returns the costs in the order of evaluation."""
    counted = Counted(problem.r, BUDGET * (len(x0) + 1))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            run(counted, x0)
    except (RunEnds, ValueError, np.linalg.LinAlgError):
        pass  # other libraries raise where a residual is NaN
    return counted.costs


def perturbed(x0: np.ndarray, seed: int, number: int) -> np.ndarray:
    """Returns a random start near the standard start x0, shape ``d``."""
    change = np.random.default_rng([seed, number]).uniform(-PERTURBED, PERTURBED, len(x0))
    return x0 + change * np.where(x0 != 0.0, np.abs(x0), max(1e-2, 0.1 * float(np.abs(x0).max())))


def evaluations(costs: Sequence[float], least: float, tau: float) -> float:
    """Returns the number of evaluations until a run has solved its problem to τ; inf if it has not."""
    target = least + tau * (costs[0] - least)
    return next((n for n, cost in enumerate(costs, 1) if cost <= target), math.inf)


def counts_of(rows: Sequence[dict[str, Any]], names: Sequence[str], tau: float) -> dict[str, np.ndarray]:
    """Returns for each method the number of evaluations until it has solved each problem to τ."""
    least = [min(min(row["costs"][name]) for name in names) for row in rows]
    return {
        name: np.array([evaluations(row["costs"][name], low, tau) for row, low in zip(rows, least, strict=True)])
        for name in names
    }


def figure(rows: Sequence[dict[str, Any]], names: Sequence[str]) -> Figure:
    """Draws the data profiles, with a panel for each τ."""
    dims = np.array([row["d"] + 1 for row in rows])

    def draw_cell(panel: Axes, tau: float) -> None:
        for name, counts in counts_of(rows, names, tau).items():
            x, look = np.sort((counts / dims)[np.isfinite(counts)]), LOOKS[name]
            y = np.arange(1, len(x) + 1) / len(rows)
            marks: Any = {"marker": look.marker, "markevery": max(1, len(x) // 5), "label": look.label}
            panel.plot(
                np.append(x, BUDGET),
                np.append(y, len(x) / len(rows)),
                color=look.color,
                ls=look.line,
                drawstyle="steps-post",
                **marks,
            )
        panel.set(xscale="log", xlim=(1.0, BUDGET), ylim=(0.0, 1.0))

    cells, labels = {f"τ = {tau:g}": tau for tau in TAUS}, ("evaluations / (d + 1)", "share of problems solved")
    return plotting.grid(
        cells, draw_cell, xlabel=labels[0], ylabel=labels[1], width=plotting.PAGE, height=2.3, sharey=True
    )


def summary(rows: Sequence[dict[str, Any]], names: Sequence[str]) -> list[str]:
    """Formats the table of medians, differences and profiles from the costs of each method on each problem."""
    lines, dims = [], np.array([row["d"] + 1 for row in rows])
    for tau in TAUS:
        counts = counts_of(rows, names, tau)
        lines.append(f"τ = {tau:g}: median evaluations; log2 of the ratio to ours (95%); solved; profile at {ALPHAS}")
        for name, own in counts.items():
            capped = [np.minimum(n, 2 * BUDGET * dims) for n in (own, counts[OURS])]
            ratio = with_interval(np.log2(capped[0] / capped[1]))
            profile = " ".join(f"{float((own / dims <= alpha).mean()):.2f}" for alpha in ALPHAS)
            lines.append(f"  {name:15} {np.median(own):6.1f}  {ratio:24} {np.isfinite(own).mean():.3f}  {profile}")
        for number, row in enumerate(rows):
            if row["name"] in {problem.name for problem in calibrations()}:
                lines.append(f"  {row['name']}: {', '.join(f'{name} {counts[name][number]:g}' for name in names)}")
    return lines


def main(arguments: Sequence[str]) -> int:
    """Runs the benchmark."""
    options = options_of(
        "least-squares",
        __doc__,
        arguments,
        methods=(tuple(RUNS), "the methods to compare; dfo-ls needs the package DFO-LS", RUNS),
        perturbed=(0, "the number of perturbed starts of each problem instead of the standard one"),
    )
    rows = []
    for seed in range(options.perturbed) or [None]:
        for number, problem in enumerate([*problems(), *(calibrations() if seed is None else ())]):
            x0 = problem.x0 if seed is None else perturbed(problem.x0, seed, number)
            costs = {method: costs_of(RUNS[method], problem, x0) for method in options.methods}
            rows.append({"name": problem.name, "d": len(x0), "costs": costs})
    status = write(options.out, "least-squares", summary(rows, options.methods), problems=rows)
    with plotting.applied():
        save_figure(figure(rows, options.methods), options.out / "least-squares.png", DPI)
    return status
