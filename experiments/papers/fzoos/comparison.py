"""What the figures of FZooS share: who is compared, how a federation is run, drawn and judged.

FZooS stands under three γ (the paper's 1/t, 1 and the adaptive one) against FedZO, FedProx and SCAFFOLD of both types.
FedProx stands under two: the γ = 1 of the authors' program, and γ = d, the same pull beside an estimate that has the
factor d, which the program's lacks (`federated.methods.fedzo.FedProx`). Beside ours γ = 1 is nearly FedZO.
Every method starts from the same point of the same problem, and gaps are compared at equal rounds and at equal queries
of all clients.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

import numpy as np
from matplotlib.figure import Figure

from experiments.harness.curves import label_panels
from experiments.harness.experiment import MEANS
from experiments.harness.records import final
from experiments.harness.verdicts import Verdict, judge
from experiments.papers.fzoos.quadratics import Federated
from experiments.workloads.unit_box import UnitBoxProblem
from federated import Federation, make_federation
from optimizers.comparison.records import Row, Rows, curve, seeds_of, where
from surrogates import plotting

FZOOS: dict[str, dict[str, Any]] = {
    "fzoos": {"gamma": "inverse"},
    "fzoos_one": {"gamma": 1.0},
    "fzoos_adaptive": {"gamma": "adaptive"},
    "fzoos_start": {"gamma": "inverse", "correction_at": "start"},
    "fzoos_one_start": {"gamma": 1.0, "correction_at": "start"},
}
BASELINES = ("fedzo", "fedprox", "fedprox_d", "scaffold1", "scaffold2")
THREE_GAMMAS = ("fzoos", "fzoos_one", "fzoos_adaptive")
APPLIED = ("fzoos", "fzoos_adaptive", *BASELINES)
"""What attacks and metrics are compared with."""
SYMBOLS = {"heterogeneity": "C", "local_steps": "T", "num_features": "M", "classes": "P"}
"""What the papers call the settings that panels differ in."""

ANOTHER_PROBLEM = ("heterogeneity", "classes")
"""Those that make another F."""

FEWER_STEPS = {5: 2, 10: 5, 20: 10}
"""T of the paper's attacks and metrics to that of their reduced scale."""

Problem = Federated | UnitBoxProblem
"""What a federation minimizes: both have the clients' functions, the start x0, bounds, and the gap of a point."""

BEYOND = 1.5
"""To how many times FZooS's queries they are drawn."""

FLOOR = 1e-16
"""Smaller gaps are drawn and compared as this one."""


@dataclasses.dataclass(frozen=True)
class Settings:
    """One figure: a panel for each value of what is varied.

    Attributes:
        varied: name of the field that the panels differ in.
        values: that field's value in each panel.
        methods: FZooS's variants and baselines.
        dim: d.
        clients: N.
        local_steps: T.
        rounds: R.
        heterogeneity: C.
        num_features: M.
        directions: Q of the baselines; the figure's first, then others that are compared at equal queries.
        noise: standard deviation of the clients' values.
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
        """The settings of one panel."""
        changed: dict[str, Any] = {self.varied: value}
        return dataclasses.replace(self, **changed)

    def options(self, method: str, directions: int) -> dict[str, Any]:
        """Options of a method; of the baselines with Q directions."""
        return options_of(method, self.num_features, directions)


def options_of(method: str, num_features: int, directions: int) -> dict[str, Any]:
    """γ and M of one of ``FZOOS``, with the paper's constant rate, or Q of a baseline."""
    return (
        {"num_features": num_features, "rate": "constant"} | FZOOS[method]
        if method in FZOOS
        else {"directions": directions}
    )


def variants(methods: Sequence[str], directions: Sequence[int]) -> list[tuple[str, int]]:
    """What is run: each baseline with each Q, FZooS's variants with 0 in its place."""
    return [(method, q) for method in methods for q in (directions if method in BASELINES else (0,))]


def federation_of(
    problem: Problem, method: str, *, local_steps: int, seed: int, options: dict[str, Any], batched: bool = False
) -> Federation:
    """A federation by one of ``FZOOS`` or of the baselines; ``batched``: the clients' functions take ``q x d``."""
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
        **options,
    )


def run(
    settings: Settings, problem: Problem, method: str, directions: int, seed: int, *, batched: bool = False
) -> Rows:
    """Gap and queries of all clients after each round, from round 0."""
    options = settings.options(method, directions)
    federation = federation_of(
        problem, method, local_steps=settings.local_steps, seed=seed, options=options, batched=batched
    )
    rows: Rows = []
    for r in range(settings.rounds + 1):
        if r:
            federation.run_round()
        gap = max(problem.gap(federation.server.x), FLOOR)
        rows.append({"round": r, "num_queries": federation.history[-1].queries, "value": gap})
    return rows


def run_panels(
    settings: Settings, seed: int, problem_of: Callable[[Any, int], Problem], *, batched: bool = False
) -> Rows:
    """All methods in all panels; ``problem_of`` makes a panel's problem from its settings and the seed."""
    rows: Rows = []
    for value in settings.values:
        one = settings.at(value)
        problem = problem_of(one, seed)
        for method, directions in variants(one.methods, one.directions):
            key: Row = {"seed": seed, settings.varied: value, "method": method, "directions": directions}
            rows += [key | row for row in run(one, problem, method, directions, seed, batched=batched)]
    return rows


def over(settings: Settings) -> str:
    """What the panels differ in, with its values."""
    return f"{SYMBOLS[settings.varied]} = {', '.join(f'{value:,g}' for value in settings.values)}"


def shown(methods: Sequence[str]) -> list[str]:
    """The methods of a first figure: all, or where baselines are among them FZooS under two γ and the baselines."""
    few = [method for method in methods if method in APPLIED]
    return few if any(method in BASELINES for method in methods) else list(methods)


def plot(
    settings: Settings, rows: Rows, height: Callable[[float], Any] = np.log10, label: str = "log₁₀ of F(x) − F*"
) -> Figure:
    """A column for each value of what is varied, the baselines with the first Q; over rounds and over queries.

    FZooS's variants make as many queries a round: alone, they are drawn over the rounds only. ``height`` is what is
    drawn of a gap, and ``label`` says what that is.
    """
    methods, directions = shown(settings.methods), settings.directions[0]
    axes_of = {"rounds": ("round", directions)}
    if any(method in BASELINES for method in methods):
        axes_of["total queries"] = ("num_queries", directions)
    figure = _drawn(settings, rows, methods, axes_of, height, label)
    for value, panel in zip(settings.values, figure.axes[len(settings.values) :], strict=False):
        most = max(total_queries(rows, settings, value, method) for method in methods if method in FZOOS)
        panel.set_xlim(-0.05 * most, BEYOND * most)
    return figure


def plot_more(
    settings: Settings, rows: Rows, height: Callable[[float], Any] = np.log10, label: str = "log₁₀ of F(x) − F*"
) -> Figure | None:
    """FZooS under 1/t and under the γ that the first figure has not, and the baselines with each other Q."""
    other = [method for method in settings.methods if method in FZOOS and method not in APPLIED]
    methods = [m for m in settings.methods if m in ("fzoos", *(other or ("fzoos_adaptive",)), *BASELINES)]
    axes_of = {f"total queries, Q = {q}": ("num_queries", q) for q in settings.directions[1:]}
    if not axes_of or not any(method in BASELINES for method in methods):
        return None
    return _drawn(settings, rows, methods, axes_of, height, label)


def _drawn(
    settings: Settings,
    rows: Rows,
    methods: Sequence[str],
    axes_of: Mapping[str, tuple[str, int]],
    height: Callable[[float], Any],
    label: str,
) -> Figure:
    """A row of panels for each horizontal axis, given by its label: its column in the records and the baselines' Q."""
    sharey: Any = "col" if settings.varied in ANOTHER_PROBLEM else True  # what makes another F begins elsewhere
    titles = [f"{SYMBOLS[settings.varied]} = {value:,g}" for value in settings.values]
    figure, axes = plotting.panels(len(axes_of), len(titles), height=1.8, width=plotting.PAGE, sharey=sharey)
    for line, (xlabel, (x, directions)) in zip(axes, axes_of.items(), strict=True):
        for panel, value in zip(line, settings.values, strict=True):
            for method in methods:
                q = directions if method in BASELINES else 0
                found = where(rows, method=method, directions=q, **{settings.varied: value})
                heights = [row | {"value": float(height(float(row["value"])))} for row in found]
                plotting.draw(panel, method, curve(heights, x))
            panel.set_xlabel(xlabel)
            panel.locator_params(axis="x", nbins=4)
    label_panels(axes, titles=titles, ylabels=label)
    plotting.shared_legend(figure, axes[0, 0])
    return figure


def caption(settings: Settings) -> str:
    """What stands below the figures."""
    said = f"{MEANS} Queries are those of all clients"
    if any(method in BASELINES for method in settings.methods):
        first = f"the baselines have Q = {settings.directions[0]} directions where no other Q is named"
        return f"{said}, drawn to one and a half times FZooS's; {first}."
    return f"{said}, as many in each round whatever the method."


def log_gap(
    rows: Rows, settings: Settings, value: float, method: str, *, queries: int | None = None, directions: int = 0
) -> np.ndarray:
    """log10 of the gap, one number a seed: after the last round within so many queries; None: of all."""
    chosen = where(rows, method=method, directions=directions, **{settings.varied: value})
    within = [row for row in chosen if queries is None or int(row["num_queries"]) <= queries]
    return np.log10(final(within, "num_queries"))


def total_queries(rows: Rows, settings: Settings, value: float, method: str) -> int:
    """Queries of all clients in all rounds."""
    chosen = where(rows, method=method, **{settings.varied: value})
    return max(int(row["num_queries"]) for row in chosen)


def leads(rows: Rows, settings: Settings, values: Sequence[float], method: str, equal: str) -> dict[str, np.ndarray]:
    """How much lower log10 of a method's gap is than each baseline's, a cell for each panel and baseline.

    Args:
        rows: records of the figure.
        settings: settings of the figure.
        values: the panels' values of the varied field.
        method: one of ``FZOOS``.
        equal: ``"queries"``: after as many as the method has made in all, the baselines with each Q; ``"rounds"``:
            after the last round, with the figure's Q.
    """
    cells = {}
    for value in values:
        budget = total_queries(rows, settings, value, method) if equal == "queries" else None
        ours = log_gap(rows, settings, value, method)
        for baseline in (name for name in settings.methods if name in BASELINES):
            for directions in settings.directions if equal == "queries" else settings.directions[:1]:
                theirs = log_gap(rows, settings, value, baseline, queries=budget, directions=directions)
                label = f"{settings.varied} {value:g}, {plotting.METHODS[baseline].label}, Q = {directions}"
                cells[label] = theirs - ours
    return cells


def against_baselines(
    methods: Sequence[str], rows: Rows, lead: Callable[[str, str], Mapping[str, np.ndarray]], claim: str, statistic: str
) -> list[Verdict]:
    """A verdict on each of FZooS's variants at equal queries and at equal rounds.

    Args:
        methods: the methods that ran.
        rows: records of the figure.
        lead: gives the cells of a variant at equal ``"queries"`` or ``"rounds"``, above 0 where the variant leads.
        claim: text with places for the variant's label, ``{0}``, and for what is equal, ``{1}``.
        statistic: what a cell's numbers are, with the same places.
    """
    verdicts = []
    for method, equal in itertools.product([name for name in methods if name in FZOOS], ("queries", "rounds")):
        said, measured = (text.format(plotting.METHODS[method].label, equal) for text in (claim, statistic))
        control = method != "fzoos"
        verdicts.append(judge(said, measured, lead(method, equal), seeds_of(rows), above=0.0, control=control))
    return verdicts
