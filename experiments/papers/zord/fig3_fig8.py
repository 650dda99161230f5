"""ZoRD, Figures 3 and 8: gap against queries on Ackley and Levy, all methods from the same starts.

The starts are the best of 300 queries of TuRBO; ``experiments.papers.zord.descent`` lists our choices. Figure 3 has d =
20 and 40 (200 queries) and d = 100 (400 queries) with ten runs, and claims that ZoRD outperforms RGF, PRGF, GLD and
TuRBO. ``zord`` is the paper's rule (spectral norm) at a fixed ℓ; as in the authors' code each iteration starts at the
best query. ``zord_last`` starts at the last query, as in Algorithm 2; ``zord_history`` also uses TuRBO's 300 queries.
``zord_kept`` is the library's default (kept information, fitted ℓ). ``zord_gated`` adds active queries behind a gate on
a probability (``query_rules.ProbabilityGate``; ``beyond-zord`` has the library's gate). We add CMA-ES and COBYQA.
Gradient descent uses the true gradient, and TuRBO continues from its own 300 queries. Figure 8 runs CobBO from x₀ with
CobBO's initial design, which counts as queries. The paper gives no dimensions for Figure 8; we use d = 20 and 40. At
the reduced scale TuRBO uses batches of 20, and the largest dimension of each figure is omitted.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Sequence
from typing import Any

from matplotlib.figure import Figure

from experiments.harness.curves import grid_of_methods
from experiments.harness.experiment import Experiment
from experiments.harness.records import final
from experiments.harness.verdicts import Table, Verdict, judge_pairs
from experiments.papers.zord import descent
from optimizers.comparison.interval import with_interval
from optimizers.comparison.records import Row, Rows
from surrogates import plotting

BASELINES = ("rgf", "prgf", "gld", "turbo1")
CONTROLS = ("least_squares_gradient", "gradient_descent", "cma_es", "cobyqa")
VARIANTS = ("zord_last", "zord_history", "zord_kept", "zord_gated")
FEW = ("zord", "zord_history", "zord_gated", "rgf", "gld", "turbo1", "cma_es", "cobyqa")
COBBO = ("zord", "zord_kept", "zord_gated", "cobbo", "rgf")
"""The methods of Figure 3 at its quick scale, and of Figure 8."""

PAIRS = (
    *(("zord", other, False) for other in BASELINES),
    *(("zord", other, True) for other in CONTROLS),
    *((variant, other, True) for variant in VARIANTS for other in ("rgf", "zord")),
)
COBBO_PAIRS = (("zord", "cobbo", False), ("zord_kept", "cobbo", True), ("zord_gated", "cobbo", True))
"""The pairs of methods that are compared in Figure 3 and in Figure 8, and whether the comparison is a control."""

MAIN = ("zord", "zord_kept", "rgf", "prgf", "gld", "turbo1", "gradient_descent", "cobbo")
"""The methods of the first figure; the second figure shows the others and ZoRD."""

MARGIN = -0.3
"""Required difference of ZoRD's log10 gap from RGF's on Ackley's function, d = 20."""


@dataclasses.dataclass(frozen=True)
class Settings:
    """Settings of a figure; ``problems`` lists the half-width of each box."""

    problems: tuple[tuple[str, float], ...] = descent.HALF_WIDTHS
    budgets: tuple[tuple[int, int], ...] = ((20, 200), (40, 200), (100, 400))
    methods: tuple[str, ...] = ("zord", *VARIANTS, *BASELINES, *CONTROLS)
    start_queries: int = 300
    every: int = 5
    cache: str = "results/cache"
    turbo: descent.TurboOptions = ()
    ours: str = "zord_kept"

    def cells(self) -> dict[str, dict[str, Any]]:
        """Returns the problem and dimension of each panel by its title."""
        return {
            f"{name.capitalize()}, d = {dim}": {"problem": name, "dim": dim}
            for (name, _), (dim, _) in itertools.product(self.problems, self.budgets)
        }


def run_seed(settings: Settings, seed: int) -> Rows:
    """Runs every method on every problem in every dimension."""
    rows: Rows = []
    for (name, half_width), (dim, queries) in itertools.product(settings.problems, settings.budgets):
        how = (settings.start_queries, seed, settings.cache, settings.turbo)
        problem, start = descent.problem_and_start(name, half_width, dim, *how)
        for method in settings.methods:
            values = descent.METHODS[method](problem, start, queries, seed)
            key: Row = {"seed": seed, "problem": name, "dim": dim, "method": method}
            rows += descent.gap_rows(key, problem, start, values, queries, settings.every)
    return rows


def plot(settings: Settings, rows: Rows) -> Figure:
    """Draws the paper's methods, or all if they are few: a row for each problem, a column for each dimension."""
    return _drawn(settings, rows, [method for method in settings.methods if not _many(settings) or method in MAIN])


def plot_more(settings: Settings, rows: Rows) -> Figure | None:
    """Draws ZoRD and all other methods."""
    rest = [method for method in settings.methods if method not in MAIN]
    return _drawn(settings, rows, ["zord", *rest]) if _many(settings) else None


def _many(settings: Settings) -> bool:
    return len(settings.methods) > plotting.MOST


def _drawn(settings: Settings, rows: Rows, methods: Sequence[str]) -> Figure:
    size: dict[str, Any] = {"columns": len(settings.budgets), "height": 1.9, "sharey": "row"}
    relative = descent.relative_to_first(rows)
    return grid_of_methods(relative, "queries", methods, settings.cells(), ylabel=descent.RELATIVE, **size)


def compared(
    settings: Settings,
    rows: Rows,
    pairs: Iterable[tuple[str, str, bool]],
    claim: str = "{} ends with a smaller gap than {}",
    below: float = 0.0,
) -> list[Verdict]:
    """Judges the final gaps of each pair of methods that ran, in every panel."""
    return judge_pairs(
        [pair for pair in pairs if {*pair[:2]} <= {*settings.methods}],
        claim,
        "difference of the final log10 gap",
        lambda cell, method: final(rows, method=method, **cell),
        {f"{cell['problem']} d={cell['dim']}": cell for cell in settings.cells().values()},
        below=below,
    )


def claims_of_fig3(settings: Settings, rows: Rows) -> list[Verdict]:
    """Judges ZoRD against the paper's baselines and the added methods."""
    verdicts = compared(settings, rows, PAIRS)
    if "ackley" in dict(settings.problems) and 20 in dict(settings.budgets):
        one = dataclasses.replace(
            settings, problems=descent.HALF_WIDTHS[:1], budgets=((20, dict(settings.budgets)[20]),)
        )
        pairs = [(method, "rgf", True) for method in ("zord", "zord_kept", "zord_gated")]
        claim = f"{{}} ends {-MARGIN:g} below {{}} on Ackley's function, d = 20"
        verdicts += compared(one, rows, pairs, claim, MARGIN)
    return verdicts


def table(settings: Settings, rows: Rows) -> Table:
    """Lists final gaps, and the gain of the library's ZoRD over each method with the same queries."""
    cells, lines = settings.cells(), []
    for method in settings.methods:
        line = [plotting.METHODS[method].label]
        for cell in cells.values():
            gap, ours = (final(rows, method=m, **cell) for m in (method, settings.ours))
            line += [with_interval(gap), "" if method == settings.ours else with_interval(ours - gap)]
        lines.append(tuple(line))
    budgets, label = dict(settings.budgets), plotting.METHODS[settings.ours].label
    headings = [(f"{title}, {budgets[cell['dim']]} queries", "gain") for title, cell in cells.items()]
    return Table(
        ("method", *itertools.chain.from_iterable(headings)),
        tuple(lines),
        f"log10 of the final gap, mean over seeds (95% interval). Gain: log10 gap of “{label}” minus the method's, "
        "paired.",
    )


def over(settings: Settings) -> str:
    """Formats problems, dimensions and queries."""
    names = " and ".join(name.capitalize() for name, _ in settings.problems)
    return f"{names}, {', '.join(f'd = {dim} ({queries:,} queries)' for dim, queries in settings.budgets)}"


EXPERIMENTS = (
    Experiment(
        id="zord-fig3",
        shows=lambda settings: f"gap against queries on {over(settings)}, all methods from TuRBO's best point",
        claim="ZoRD needs fewer queries than RGF, PRGF, GLD and TuRBO for the same gap.",
        scales={
            "paper": Settings(),
            "quick": Settings(descent.HALF_WIDTHS[:1], ((3, 15),), FEW, start_queries=11, cache="", ours="zord_gated"),
            "reduced": Settings(budgets=((20, 200), (40, 200)), turbo=descent.QUICK_TURBO),
        },
        run_seed=run_seed,
        plot=plot,
        plot_more=plot_more,
        caption=descent.CAPTION,
        claims=claims_of_fig3,
        table=table,
    ),
    Experiment(
        id="zord-fig8",
        shows=lambda settings: f"gap against queries on {over(settings)}, with CobBO",
        claim="ZoRD reaches smaller gaps than CobBO with the same queries.",
        scales={
            "paper": Settings(budgets=((20, 200), (40, 200)), methods=COBBO),
            "quick": Settings(descent.HALF_WIDTHS[:1], ((3, 12),), COBBO, start_queries=7, cache=""),
            "reduced": Settings(budgets=((20, 200),), methods=COBBO, turbo=descent.QUICK_TURBO),
        },
        run_seed=run_seed,
        plot=plot,
        plot_more=plot_more,
        caption=descent.CAPTION,
        claims=lambda settings, rows: compared(settings, rows, COBBO_PAIRS),
        table=table,
        seeds={"reduced": 5, "paper": 10},
    ),
)
