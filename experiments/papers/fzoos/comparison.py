"""The comparison that the figures of FZooS share: methods, runs, drawing and verdicts.

FZooS runs with three γ (the paper's 1/t, 1, and the adaptive γ) against FedZO, FedProx and both types of SCAFFOLD.
FedProx runs with two γ: γ = 1 as in the authors' program, and γ = d. Our gradient estimate has a factor d that the
authors' estimate lacks, so γ = d gives the same relative pull; with γ = 1 FedProx is nearly FedZO
(`federated.methods.fedzo.FedProx`). All methods start from the same point of the same problem. Gaps are compared at
equal rounds and at equal queries of all clients. Our gate (``federated.core.gate``) is off, because the paper has none:
on real data it excludes honest clients, whose gradients differ by a factor of more than a hundred.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.harness.curves import matrix
from experiments.harness.experiment import MEANS
from experiments.harness.records import final
from experiments.harness.verdicts import Verdict, judge
from experiments.papers.fzoos.quadratics import Federated
from experiments.workloads.unit_box import UnitBoxProblem
from federated import Federation, make_federation
from optimizers.comparison.records import Row, Rows, Value, curve, where
from surrogates import plotting

FZOOS: dict[str, dict[str, Any]] = {
    "fzoos": {"gamma": "inverse"},
    "fzoos_one": {"gamma": 1.0},
    "fzoos_adaptive": {"gamma": "adaptive"},
    "fzoos_settling": {"gamma": "adaptive", "rate_schedule": "settling"},
    "fzoos_start": {"gamma": "inverse", "correction_at": "start"},
    "fzoos_one_start": {"gamma": 1.0, "correction_at": "start"},
}
BASELINES = ("fedzo", "fedprox", "fedprox_d", "scaffold1", "scaffold2")
THREE_GAMMAS = ("fzoos", "fzoos_one", "fzoos_adaptive")
FIVE_GAMMAS = (*THREE_GAMMAS, "fzoos_start", "fzoos_one_start")
APPLIED = ("fzoos", "fzoos_adaptive", "fzoos_settling", *BASELINES)
"""The baselines of the figures on attacks and metrics."""
SYMBOLS = {"heterogeneity": "C", "local_steps": "T", "num_features": "M", "classes": "P"}
"""The papers' symbols for the settings that panels differ in."""

ANOTHER_PROBLEM = ("heterogeneity", "classes")
"""Settings that change F."""

FEWER_STEPS = {5: 2, 10: 5, 20: 10}
"""Maps each T of the paper's attacks and metrics to the T at the reduced scale."""

Problem = Federated | UnitBoxProblem
"""A problem for a federation: the clients' functions, the start x0, bounds, and the gap of a point."""

BEYOND = 1.5
"""The query axis ends at this multiple of FZooS's queries."""

FLOOR = 1e-16
"""Smaller gaps are set to this value."""


@dataclasses.dataclass(frozen=True)
class Settings:
    """Settings of one figure, with a panel for each value of the varied field.

    Attributes:
        varied: name of the field that the panels differ in.
        values: value of that field in each panel.
        methods: variants of FZooS and baselines.
        dim: d.
        clients: N.
        local_steps: T.
        rounds: R.
        heterogeneity: C.
        num_features: M.
        directions: Q of the baselines: first the value for the figure, then further values for equal queries.
        noise: standard deviation of the noise on the clients' values.
    """

    varied: str
    values: tuple[float, ...]
    methods: tuple[str, ...] = THREE_GAMMAS + BASELINES
    dim: int = 300
    clients: int = 5
    local_steps: int = 10
    rounds: int = 50
    heterogeneity: float = 5.0
    num_features: int = 10_000
    directions: tuple[int, ...] = (20, 5)
    noise: float = 0.0

    def at(self, value: float) -> Self:
        """Returns the settings of one panel."""
        changed: dict[str, Any] = {self.varied: value}
        return dataclasses.replace(self, **changed)

    def options(self, method: str, directions: int) -> dict[str, Any]:
        """Returns the options of a method; a baseline uses Q directions."""
        return options_of(method, self.num_features, directions)

    def height(self, gap: float) -> float:
        """Returns the quantity that figures draw for a gap."""
        return math.log10(gap)

    def label(self) -> str:
        """The name of the quantity that figures draw."""
        return "log₁₀ of F(x) − F*"


def options_of(method: str, num_features: int, directions: int) -> dict[str, Any]:
    """Returns the options of a method: γ, M and the constant rate for one of ``FZOOS``, or Q for a baseline."""
    return (
        {"num_features": num_features, "rate_schedule": "constant"} | FZOOS[method]
        if method in FZOOS
        else {"directions": directions}
    )


def variants(methods: Sequence[str], directions: Sequence[int]) -> list[tuple[str, int]]:
    """Returns the runs: each baseline with each Q, each variant of FZooS with Q = 0."""
    return [(method, q) for method in methods for q in (directions if method in BASELINES else (0,))]


def federation_of(
    problem: Problem, method: str, *, local_steps: int, seed: int, options: dict[str, Any], batched: bool = False
) -> Federation:
    """Creates the federation of a method; with ``batched`` the clients' functions take ``q x d``."""
    if method == "fedprox_d":
        method, options = "fedprox", options | {"pull": float(problem.x0.numel())}
    return make_federation(
        "fzoos" if method in FZOOS else method,
        problem.clients,
        problem.x0,
        bounds=problem.bounds,
        local_steps=local_steps,
        seed=seed,
        codec=False,
        batched=batched,
        gate=math.inf,
        **options,
    )


def run(
    settings: Settings, problem: Problem, method: str, directions: int, seed: int, *, batched: bool = False
) -> Rows:
    """Runs one method in one panel; returns the records of ``gaps``."""
    options = settings.options(method, directions)
    federation = federation_of(
        problem, method, local_steps=settings.local_steps, seed=seed, options=options, batched=batched
    )
    return gaps(federation, problem, settings.rounds)


def gaps(federation: Federation, problem: Problem, rounds: int) -> Rows:
    """Runs a federation and records the gap and the queries of all clients after each round, from round 0."""
    rows: Rows = []
    for r in range(rounds + 1):
        if r:
            federation.run_round()
        gap = max(problem.gap(federation.server.x), FLOOR)
        rows.append({"round": r, "num_queries": federation.history[-1].queries, "value": gap})
    return rows


def run_panels(
    settings: Settings, seed: int, problem_of: Callable[[Any, int], Problem], *, batched: bool = False
) -> Rows:
    """Runs all methods in all panels; ``problem_of`` creates a problem from a panel's settings and the seed."""
    rows: Rows = []
    for value in settings.values:
        one = settings.at(value)
        problem = problem_of(one, seed)
        for method, directions in variants(one.methods, one.directions):
            key: Row = {"seed": seed, settings.varied: value, "method": method, "directions": directions}
            rows += [key | row for row in run(one, problem, method, directions, seed, batched=batched)]
    return rows


def over(settings: Settings) -> str:
    """Formats the varied quantity and its values."""
    return f"{SYMBOLS[settings.varied]} = {', '.join(f'{value:,g}' for value in settings.values)}"


def shown(methods: Sequence[str]) -> list[str]:
    """Returns the methods of the first figure: all of them, or two variants of FZooS and the baselines."""
    ours = "fzoos_settling" if "fzoos_settling" in methods else "fzoos_adaptive"
    few = [method for method in methods if method in ("fzoos", ours, *BASELINES)]
    return few if any(method in BASELINES for method in methods) else list(methods)


def plot(settings: Settings, rows: Rows) -> Figure:
    """Draws a column for each value of the varied field, over rounds and over queries; the baselines use the first Q.

    All variants of FZooS make the same number of queries per round, so without baselines only rounds are drawn.
    """
    methods, directions = shown(settings.methods), settings.directions[0]
    axes_of = {"rounds": ("round", directions)}
    if any(method in BASELINES for method in methods):
        axes_of["total queries"] = ("num_queries", directions)
    figure = _drawn(settings, rows, methods, axes_of)
    for value, panel in zip(settings.values, figure.axes[len(settings.values) :], strict=False):
        most = max(total_queries(rows, method=m, **{settings.varied: value}) for m in methods if m in FZOOS)
        panel.set_xlim(-0.05 * most, BEYOND * most)
    return figure


def plot_more(settings: Settings, rows: Rows) -> Figure | None:
    """Draws the variants of FZooS that the first figure omits, with FZooS's 1/t and the baselines at each further Q."""
    other = [method for method in settings.methods if method in FZOOS and method not in shown(settings.methods)]
    methods = [m for m in settings.methods if m in ("fzoos", *(other or ("fzoos_adaptive",)), *BASELINES)]
    axes_of = {f"total queries, Q = {q}": ("num_queries", q) for q in settings.directions[1:]}
    if not axes_of or not any(method in BASELINES for method in methods):
        return None
    return _drawn(settings, rows, methods, axes_of)


def _drawn(settings: Settings, rows: Rows, methods: Sequence[str], axes_of: Mapping[str, tuple[str, int]]) -> Figure:
    """Draws a row of panels for each horizontal axis, given its label, its column in the records and baselines' Q."""

    def draw(panel: Axes, axis: tuple[str, tuple[str, int]], value: float) -> None:
        xlabel, (x, directions) = axis
        for method, q in variants(methods, (directions,)):
            found = where(rows, method=method, directions=q, **{settings.varied: value})
            heights = [row | {"value": settings.height(float(row["value"]))} for row in found]
            plotting.draw(panel, method, curve(heights, x))
        panel.set_xlabel(xlabel)
        panel.locator_params(axis="x", nbins=4)

    sharey: Any = "col" if settings.varied in ANOTHER_PROBLEM else True  # another F starts at another gap
    columns = {f"{SYMBOLS[settings.varied]} = {value:,g}": value for value in settings.values}
    size: dict[str, Any] = {"height": 1.8, "width": plotting.PAGE, "sharey": sharey}
    return matrix([*axes_of.items()], columns, draw, ylabels=settings.label(), **size)


def caption(settings: Settings) -> str:
    """Returns the caption of the figures."""
    said = f"{MEANS} Queries are summed over all clients"
    if any(method in BASELINES for method in settings.methods):
        first = f"The baselines use Q = {settings.directions[0]} directions unless another Q is given"
        return f"{said}; their axis ends at one and a half times FZooS's total. {first}."
    return f"{said} and are equal for all methods in every round."


def log_gap(
    rows: Rows, settings: Settings, value: float, method: str, *, queries: int | None = None, directions: int = 0
) -> np.ndarray:
    """Returns log10 of the gap after the last round within a number of queries (None: no limit), per seed."""
    return log_final(rows, queries, method=method, directions=directions, **{settings.varied: value})


def log_final(rows: Rows, queries: int | None = None, **conditions: Value) -> np.ndarray:
    """Returns log10 of the last gap within a number of queries (None: no limit), one number per seed."""
    within = [row for row in where(rows, **conditions) if queries is None or int(row["num_queries"]) <= queries]
    return np.log10(final(within, "num_queries"))


def total_queries(rows: Rows, **conditions: Value) -> int:
    """Returns the queries of all clients in all rounds, from the records that meet the conditions."""
    return max(int(row["num_queries"]) for row in where(rows, **conditions))


def leads(rows: Rows, settings: Settings, values: Sequence[float], method: str, equal: str) -> dict[str, np.ndarray]:
    """Computes each baseline's log10 gap minus a method's, in a cell for each panel and baseline.

    Args:
        rows: records of the figure.
        settings: settings of the figure.
        values: values of the varied field.
        method: one of ``FZOOS``.
        equal: ``"queries"``: after the method's total number of queries, with every Q of the baselines; ``"rounds"``:
            after the last round, with the figure's Q.
    """
    cells = {}
    for value in values:
        budget = total_queries(rows, method=method, **{settings.varied: value}) if equal == "queries" else None
        ours = log_gap(rows, settings, value, method)
        for baseline in (name for name in settings.methods if name in BASELINES):
            for directions in settings.directions if equal == "queries" else settings.directions[:1]:
                theirs = log_gap(rows, settings, value, baseline, queries=budget, directions=directions)
                label = f"{settings.varied} {value:g}, {plotting.METHODS[baseline].label}, Q = {directions}"
                cells[label] = theirs - ours
    return cells


def against_baselines(
    methods: Sequence[str], lead: Callable[[str, str], Mapping[str, np.ndarray]], claim: str, statistic: str
) -> list[Verdict]:
    """Judges each variant of FZooS against the baselines at equal queries and at equal rounds.

    Args:
        methods: the methods that ran.
        lead: returns the cells of a variant at equal ``"queries"`` or ``"rounds"``, positive where the variant leads.
        claim: format string with ``{0}`` for the variant's label and ``{1}`` for what is equal.
        statistic: description of a cell's numbers, with the same fields.
    """
    verdicts = []
    for method, equal in itertools.product([name for name in methods if name in FZOOS], ("queries", "rounds")):
        said, measured = (text.format(plotting.METHODS[method].label, equal) for text in (claim, statistic))
        control = method != "fzoos"
        verdicts.append(judge(said, measured, lead(method, equal), above=0.0, control=control))
    return verdicts
