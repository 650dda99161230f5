"""ZoRD, Figure 3: gap against queries on Ackley and Levy, d = 20 and 40 (200 queries) and 100 (400).

All methods from the same starts, the best of 300 queries of TuRBO; see ``experiments.papers.zord.descent`` for the
readings. ``zord`` is the paper's rule (spectral norm, fixed ℓ) with its code's start of an iteration, the best query;
``zord_last`` starts at the last one, as Algorithm 2 says; ``zord_history`` also knows TuRBO's 300 queries.
``zord_kept`` is the library's default (kept information, fitted ℓ), ``zord_gated`` has queries of its own for
learning, behind the gate of a probability (``query_rules.ProbabilityGate``; ``beyond-zord`` has the library's). Outside
comparators: CMA-ES and COBYQA. Gradient descent has the true gradient, TuRBO goes on from its own 300 queries. The
reduced scale leaves d = 100 out, and TuRBO has batches of 20.
"""

from __future__ import annotations

import dataclasses
import itertools

from matplotlib.figure import Figure

from experiments.harness import style
from experiments.harness.experiment import Experiment
from experiments.harness.records import Row, Rows, seeds_of
from experiments.harness.tables import Table, with_interval
from experiments.harness.verdicts import Verdict, judge
from experiments.papers.zord import descent
from experiments.workloads.problems import standard_problem

BASELINES = ("rgf", "prgf", "gld")
CONTROLS = ("least_squares_gradient", "gradient_descent", "turbo1", "cma_es", "cobyqa")
VARIANTS = ("zord_last", "zord_history", "zord_kept", "zord_gated")
MARGIN = -0.3
"""What ZoRD's log10 gap is to be below RGF's on Ackley's function, d = 20."""


@dataclasses.dataclass(frozen=True)
class Settings:
    """What Figure 3 is drawn with."""

    problems: tuple[str, ...] = ("ackley", "levy")
    budgets: tuple[tuple[int, int], ...] = ((20, 200), (40, 200), (100, 400))
    methods: tuple[str, ...] = ("zord", *VARIANTS, *BASELINES, *CONTROLS)
    start_queries: int = 300
    every: int = 5
    cache: str = "results/cache"
    turbo: descent.TurboOptions = ()
    ours: str = "zord_kept"


def run_seed(settings: Settings, seed: int) -> Rows:
    """Every method on every problem in every dimension."""
    rows: Rows = []
    for name, (dim, queries) in itertools.product(settings.problems, settings.budgets):
        problem = standard_problem(name, dim)
        start = descent.cached_start(name, dim, settings.start_queries, seed, settings.cache, settings.turbo)
        for method in settings.methods:
            values = descent.METHODS[method](problem, start, queries, seed)
            facts: Row = {"seed": seed, "problem": name, "dim": dim, "method": method}
            for n, gap in descent.log_gaps(problem, start, values, queries, settings.every):
                rows.append({**facts, "queries": n, "value": gap})
    return rows


def plot(settings: Settings, rows: Rows) -> Figure:
    """A row for each problem, a column for each dimension."""
    figure, axes = style.panels(len(settings.problems), len(settings.budgets), width=4.2, height=3.2)
    for i, name in enumerate(settings.problems):
        for j, (dim, _) in enumerate(settings.budgets):
            descent.panel(axes[i, j], rows, settings.methods, problem=name, dim=dim)
            axes[i, j].set_title(f"{name.capitalize()}, d = {dim}")
            axes[i, j].set_xlabel("queries")
        axes[i, 0].set_ylabel("log₁₀ of the gap")
    style.shared_legend(figure, axes[0, 0], 2 * len(settings.budgets) - 1)
    return figure


def claims(settings: Settings, rows: Rows) -> list[Verdict]:
    """ZoRD against the paper's baselines, and what is beside them."""
    seeds = seeds_of(rows)

    def against(method: str, other: str, claim: str, control: bool) -> Verdict:
        cells = {
            f"{name} d={dim}": descent.final(rows, problem=name, dim=dim, method=method)
            - descent.final(rows, problem=name, dim=dim, method=other)
            for name, (dim, _) in itertools.product(settings.problems, settings.budgets)
        }
        return judge(claim, "difference of the final log10 gap", cells, seeds, below=0.0, control=control)

    labels = {method: style.METHODS[method].label for method in settings.methods}
    verdicts = [
        against("zord", other, f"ZoRD ends with a smaller gap than {labels[other]}", False)
        for other in BASELINES
        if other in settings.methods
    ]
    for other in CONTROLS:
        if other in settings.methods:
            verdicts.append(against("zord", other, f"ZoRD ends with a smaller gap than {labels[other]}", True))
    for variant in VARIANTS:
        if variant in settings.methods:
            verdicts.append(against(variant, "rgf", f"{labels[variant]} ends with a smaller gap than RGF", True))
            verdicts.append(against(variant, "zord", f"{labels[variant]} ends with a smaller gap than ZoRD", True))
    return verdicts + _margins(settings, rows)


def _margins(settings: Settings, rows: Rows) -> list[Verdict]:
    """ZoRD below RGF by ``MARGIN`` on Ackley's function, d = 20."""
    if "ackley" not in settings.problems or 20 not in dict(settings.budgets):
        return []
    gaps = {method: descent.final(rows, problem="ackley", dim=20, method=method) for method in settings.methods}
    return [
        judge(
            f"{style.METHODS[method].label} ends {-MARGIN:g} below RGF on Ackley's function, d = 20",
            "difference of the final log10 gap",
            {"ackley d=20": gaps[method] - gaps["rgf"]},
            seeds_of(rows),
            below=MARGIN,
            control=True,
        )
        for method in ("zord", "zord_kept", "zord_gated")
        if method in gaps and "rgf" in gaps
    ]


def table(settings: Settings, rows: Rows) -> Table:
    """Final gaps, and what the library's ZoRD gains over each method with the same queries."""
    cells = list(itertools.product(settings.problems, settings.budgets))
    lines = []
    for method in settings.methods:
        line = [style.METHODS[method].label]
        for name, (dim, _) in cells:
            gap, ours = (descent.final(rows, problem=name, dim=dim, method=m) for m in (method, settings.ours))
            line += [with_interval(gap), "" if method == settings.ours else with_interval(ours - gap)]
        lines.append(tuple(line))
    headings = [f"{name.capitalize()}, d = {dim}, {queries} queries" for name, (dim, queries) in cells]
    label = style.METHODS[settings.ours].label
    return Table(
        ("method", *itertools.chain.from_iterable((heading, "gain") for heading in headings)),
        tuple(lines),
        f"log10 of the final gap, mean over seeds (95% interval); gain: that of “{label}” less the method's, paired",
    )


EXPERIMENT = Experiment(
    id="zord-fig3",
    source="ZoRD, Fig. 3",
    shows="gap against queries on Ackley and Levy, all methods from TuRBO's best point",
    claim="ZoRD needs fewer queries than RGF, PRGF and GLD for the same gap.",
    scales={
        "paper": Settings(),
        "quick": Settings(
            problems=("ackley",),
            budgets=((3, 15),),
            methods=("zord", "zord_history", "zord_gated", "rgf", "gld", "turbo1", "cma_es", "cobyqa"),
            start_queries=11,
            cache="",
            ours="zord_gated",
        ),
        "reduced": Settings(budgets=((20, 200), (40, 200)), turbo=descent.QUICK_TURBO),
    },
    run_seed=run_seed,
    plot=plot,
    claims=claims,
    table=table,
    extra="experiments",
)
