"""Beyond FZooS: a settling rate of the local steps against constant rates, on the quadratics of Appx. G.1.

With a constant rate every algorithm with local steps stalls once successive rounds move in opposite directions: the
gap stays on a plateau whose height depends on the length of the steps. ``rate_schedule="settling"`` then shortens the
steps (``federated.core.settling``); in FZooS it also shrinks the radius of active queries and adapts the surrogates.
The baselines run with this rule, with the paper's rate 0.01, and with 0.001. In each cell (d, C, noise) a baseline is
shown with the rule that ends lowest, chosen on the same seeds.

FZooS uses the adaptive γ, and the baselines Q = 20. The noise is normal, and its standard deviation is in units of f.
The gap at the starts is about 3.
"""

from __future__ import annotations

import dataclasses
import itertools
from functools import partial
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.harness.experiment import Experiment
from experiments.harness.verdicts import Table, Verdict, judge
from experiments.papers.fzoos.comparison import federation_of, gaps, log_final, total_queries
from experiments.papers.fzoos.quadratics import Cell, conditions, quadratics
from optimizers.comparison.interval import with_interval
from optimizers.comparison.records import Row, Rows, curve, seeds_of, where
from optimizers.first_order import adam
from surrogates import plotting

FZOOS, SETTLING = "fzoos_adaptive", "fzoos_settling"
BASELINES = ("fedzo", "fedprox_d", "scaffold1", "scaffold2")
RULES: dict[str, dict[str, Any]] = {
    "rate 0.01": {"rate_schedule": "constant"},
    "rate 0.001": {"update_rule": partial(adam, lr=0.001)},
    "settling": {"rate_schedule": "settling"},
}
"""Rules for the rate of the local steps."""

OURS = ("settling", "rate 0.01")
"""The rules for FZooS; the first is its default."""

LEAD = 2.0
"""Required lead of the settling rate over the constant rate in cells without noise, in log10."""

LED = (0.5, 5.0)
"""The values of C at which this lead is required."""

FIRST_SEED = 100
"""Added to the experiment's seeds, because other seeds were used during development."""


@dataclasses.dataclass(frozen=True)
class Settings:
    """Settings of the comparison.

    Attributes:
        sizes: d, M, and the number of seeds that run.
        heterogeneities: C.
        noises: standard deviations of the noise.
        rounds: R.
        clients: N.
        local_steps: T.
        directions: Q of the baselines.
    """

    sizes: tuple[tuple[int, int, int], ...] = ((50, 1000, 1000), (300, 2000, 3))
    heterogeneities: tuple[float, ...] = (0.5, 5.0, 50.0)
    noises: tuple[float, ...] = (0.0, 1e-2)
    rounds: int = 50
    clients: int = 5
    local_steps: int = 10
    directions: int = 20

    @property
    def cells(self) -> list[Cell]:
        """d, C and noise of the panels."""
        dims = [dim for dim, _, _ in self.sizes]
        return [(dim, c, s) for dim, s, c in itertools.product(dims, self.noises, self.heterogeneities)]


def _label(cell: Cell) -> str:
    return f"d = {cell[0]}, C = {cell[1]:g}" + (f", noise {cell[2]:g}" if cell[2] else "")


def run_seed(settings: Settings, seed: int) -> Rows:
    """Records gap and queries after each round for all methods, rules and cells."""
    rows: Rows = []
    fresh = FIRST_SEED + seed
    features = {dim: count for dim, count, seeds in settings.sizes if seed < seeds}
    for cell in settings.cells:
        dim, heterogeneity, noise = cell
        if dim not in features:
            continue
        problem = quadratics(dim, settings.clients, heterogeneity, fresh, noise)
        ours = [(FZOOS, rule) for rule in OURS]
        for method, rule in (*ours, *itertools.product(BASELINES, RULES)):
            own = {"num_features": features[dim], "gamma": "adaptive"} if method == FZOOS else {}
            options = (own or {"directions": settings.directions}) | RULES[rule]
            federation = federation_of(problem, method, local_steps=settings.local_steps, seed=fresh, options=options)
            key: Row = {"seed": seed, **conditions(cell), "method": method, "rule": rule}
            rows += [key | row for row in gaps(federation, problem, settings.rounds)]
    return rows


def finals(rows: Rows, cell: Cell, method: str, rule: str, queries: int | None = None) -> np.ndarray:
    """Returns log10 of the last gap within a number of queries by all clients (None: no limit), one number per seed."""
    return log_final(rows, queries, method=method, rule=rule, **conditions(cell))


def spent(rows: Rows, cell: Cell) -> int:
    """Returns the total queries of FZooS."""
    return total_queries(rows, method=FZOOS, rule="settling", **conditions(cell))


def best_rule(rows: Rows, cell: Cell, method: str) -> str:
    """Returns the rule with a method's lowest mean log10 gap after FZooS's number of queries."""
    return min(RULES, key=lambda rule: float(finals(rows, cell, method, rule, spent(rows, cell)).mean()))


def leads(rows: Rows, cells: list[Cell], method: str) -> dict[str, np.ndarray]:
    """Returns the lead of FZooS with a settling rate over a baseline's best rule, at equal queries."""
    found = {}
    for cell in cells:
        theirs = finals(rows, cell, method, best_rule(rows, cell, method), spent(rows, cell))
        found[_label(cell)] = theirs - finals(rows, cell, FZOOS, "settling")
    return found


def gains(rows: Rows, cells: list[Cell]) -> dict[str, np.ndarray]:
    """Returns the lead of FZooS with a settling rate over the constant one."""
    ends = {cell: [finals(rows, cell, FZOOS, rule) for rule in OURS] for cell in cells}
    return {_label(cell): constant - settling for cell, (settling, constant) in ends.items()}


def plot(settings: Settings, rows: Rows) -> Figure:
    """Draws the gap against the clients' queries for FZooS with both rates and for the baselines with their best rules.

    There is a panel for each d, noise and C.
    """

    def draw_cell(panel: Axes, cell: Cell) -> None:
        heights = [row | {"value": float(np.log10(float(row["value"])))} for row in where(rows, **conditions(cell))]
        shown = {look: (FZOOS, rule) for look, rule in zip((SETTLING, FZOOS), OURS, strict=True)}
        shown |= {method: (method, best_rule(rows, cell, method)) for method in BASELINES}
        for look, (method, rule) in shown.items():
            plotting.draw(panel, look, curve(heights, "num_queries", method=method, rule=rule))
        panel.set_xlim(0, 1.02 * spent(rows, cell))

    cells = {_label(cell): cell for cell in settings.cells}
    return plotting.grid(
        cells,
        draw_cell,
        xlabel="queries of all clients",
        ylabel="log₁₀ of the gap",
        columns=len(settings.heterogeneities),
        height=1.5,
    )


def table(settings: Settings, rows: Rows) -> Table:
    """Lists the last gaps at equal queries; each baseline uses its best rule, which is named."""
    lines = []
    for cell in settings.cells:
        line = [_label(cell), *(with_interval(finals(rows, cell, FZOOS, rule), 2) for rule in OURS)]
        for method in BASELINES:
            rule = best_rule(rows, cell, method)
            line.append(f"{with_interval(finals(rows, cell, method, rule, spent(rows, cell)), 2)}, {rule}")
        lines.append(tuple(line))
    columns = ("cell", *(f"FZooS, {rule}" for rule in OURS), *(plotting.METHODS[method].label for method in BASELINES))
    measured = "log10 of the gap after as many queries as FZooS makes, mean over seeds (95% interval)"
    return Table(columns, tuple(lines), f"{measured}; each baseline uses its best rate, which is named.")


def claims(settings: Settings, rows: Rows) -> list[Verdict]:
    """Judges FZooS with a settling rate against a constant rate, and against every baseline with its best rule."""
    gained, led = "gain in log10 of the last gap", "lead in log10 of the gap at equal queries"
    verdicts: list[Verdict] = []
    for (dim, _, _), noise in itertools.product(settings.sizes, settings.noises):
        cells = [cell for cell in settings.cells if cell[0] == dim and cell[2] == noise]
        moderate = [cell for cell in cells if cell[1] in LED]
        seeds = seeds_of(where(rows, dim=dim))
        found = []
        said = f"d = {dim}, " + (f"noise {noise:g}" if noise else "no noise")
        at = ", ".join(f"{c:g}" for c in sorted({cell[1] for cell in moderate or cells}))
        if noise:
            claim = f"{said}: a settling rate ends no higher"
            found.append(judge(claim, gained, gains(rows, cells), above=0.0))
        elif moderate:
            claim = f"{said}: a settling rate ends {LEAD:g} orders of magnitude lower, C = {at}"
            found.append(judge(claim, gained, gains(rows, moderate), above=LEAD))
        for method in BASELINES:
            name = plotting.METHODS[method].label
            claim = f"{said}: FZooS with a settling rate ends below {name} with its best rule, C = {at}"
            chosen = leads(rows, moderate or cells, method)
            found.append(judge(claim, led, chosen, above=0.0))
        verdicts += [dataclasses.replace(verdict, seeds=seeds) for verdict in found]
    return verdicts


EXPERIMENT = Experiment(
    id="beyond-plateau",
    source="ours, beyond FZooS",
    shows="gap of FZooS with a settling and a constant rate, and of the baselines with their best rate",
    claim="With a settling rate FZooS's gap keeps falling where constant rates reach a plateau.",
    scales={
        "paper": Settings(),
        "reduced": Settings(sizes=((50, 1000, 1000),), rounds=40),
        "quick": Settings(sizes=((6, 40, 1000),), heterogeneities=(5.0,), rounds=4, clients=2, local_steps=2),
    },
    run_seed=run_seed,
    plot=plot,
    claims=claims,
    table=table,
    seeds={"quick": 3, "reduced": 3, "paper": 5},
    cost={"paper": "3 h", "reduced": "20 min"},
)
