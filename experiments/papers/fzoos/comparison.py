"""Federations on the quadratics of Appx. G.1: the runs, the picture and the comparisons that FZooS's figures share."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, Protocol, Self

import numpy as np
from matplotlib.figure import Figure
from torch import Tensor

from experiments.harness import style
from experiments.harness.records import Row, Rows, by_seed, curve, distinct, where
from experiments.papers.fzoos.quadratics import quadratics
from experiments.workloads.unit_box import InUnitBox
from federated import Federation, make_federation

FZOOS: dict[str, dict[str, Any]] = {
    "fzoos": {"gamma": "inverse"},
    "fzoos_one": {"gamma": 1.0},
    "fzoos_adaptive": {"gamma": "adaptive"},
    "fzoos_start": {"gamma": "inverse", "correction_at": "start"},
    "fzoos_one_start": {"gamma": 1.0, "correction_at": "start"},
}
BASELINES = ("fedzo", "fedprox", "scaffold1", "scaffold2")
THREE_GAMMAS = ("fzoos", "fzoos_one", "fzoos_adaptive")

FLOOR = 1e-16
"""Gaps under it are drawn and compared as it."""


class Problem(Protocol):
    """What a federation minimizes: the clients' functions, where it starts, and how far it is from done."""

    @property
    def clients(self) -> Sequence[Callable[[Any], Any]]: ...  # noqa: D102
    @property
    def x0(self) -> Tensor: ...  # noqa: D102
    @property
    def bounds(self) -> list[tuple[float, float]]: ...  # noqa: D102
    def gap(self, x: Tensor) -> float: ...  # noqa: D102


@dataclasses.dataclass(frozen=True)
class UnitBoxProblem:
    """The clients' objectives in [0, 1]^d; the gap is F, which is at least 0."""

    clients: Sequence[InUnitBox]

    @property
    def x0(self) -> Tensor:
        """The middle of the box."""
        return self.clients[0].start

    @property
    def bounds(self) -> list[tuple[float, float]]:
        """[0, 1]^d."""
        return self.clients[0].bounds

    def gap(self, z: Tensor) -> float:
        """F(z)."""
        return float(np.mean([float(client(z)) for client in self.clients]))


@dataclasses.dataclass(frozen=True)
class Settings:
    """One figure: a panel for each value of what is varied.

    Attributes:
        varied: name of the field that the panels differ in.
        values: its values.
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
        """A method's own options."""
        if method in FZOOS:
            return {"num_features": self.num_features} | FZOOS[method]
        return {"directions": directions}


def federation_of(
    problem: Problem, method: str, *, local_steps: int, seed: int, options: dict[str, Any], batched: bool = False
) -> Federation:
    """A federation by one of ``FZOOS`` or of the baselines."""
    return make_federation(
        "fzoos" if method in FZOOS else method,
        problem.clients,
        problem.x0,
        bounds=problem.bounds,
        local_steps=local_steps,
        seed=seed,
        codec=False,
        evaluation={"batched": batched},
        **options,
    )


def run(
    settings: Settings, problem: Problem, method: str, directions: int, seed: int, *, batched: bool = False
) -> Rows:
    """Gap and queries after each round, from round 0; ``batched``: the clients' functions take ``q x d``."""
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


def variants(settings: Settings) -> list[tuple[str, int]]:
    """What is run in a panel: methods, the baselines with each Q, FZooS's variants with 0."""
    return [(m, q) for m in settings.methods for q in (settings.directions if m in BASELINES else (0,))]


def run_seed(settings: Settings, seed: int) -> Rows:
    """All methods in all panels."""
    rows: Rows = []
    for value in settings.values:
        one = settings.at(value)
        problem = quadratics(one.dim, one.clients, one.heterogeneity, seed, one.noise)
        for method, directions in variants(one):
            key: Row = {"seed": seed, settings.varied: value, "method": method, "directions": directions}
            rows += [key | row for row in run(one, problem, method, directions, seed)]
    return rows


def log10(row: Row) -> float:
    """log10 of a record's gap."""
    return float(np.log10(row["value"]))


def plot(
    settings: Settings,
    rows: Rows,
    title: str,
    *,
    height: Callable[[Row], float] = log10,
    label: str = "log10 of F(x) − F*",
) -> Figure:
    """Gap against rounds above, against the clients' total queries below, there with every Q of the baselines.

    Args:
        settings: the figure's.
        rows: the records.
        title: formats what is varied.
        height: what is drawn of a record.
        label: what that is.
    """
    figure, axes = style.panels(2, len(settings.values), width=3.0, height=2.6, sharey="col")
    drawn = [row | {"value": height(row)} for row in rows]
    for column, value in enumerate(settings.values):
        for panel, x, name in zip(axes[:, column], ("round", "num_queries"), ("rounds", "total queries"), strict=True):
            for method in settings.methods:
                directions = settings.directions[0] if method in BASELINES else 0
                chosen = where(drawn, method=method, directions=directions, **{settings.varied: value})
                found = curve(chosen, x)
                style.draw(panel, method, found)
                panel.lines[-1].set_markevery(max(1, len(found.x) // 6))
            panel.set_xlabel(name)
        for method, directions in variants(settings):
            if directions in settings.directions[1:]:
                chosen = where(drawn, method=method, directions=directions, **{settings.varied: value})
                other = curve(chosen, "num_queries")
                axes[1, column].plot(other.x, other.mean, color=style.METHODS[method].color, ls=":", lw=1.2)
        axes[0, column].set_title(title.format(value))
        if any(method in BASELINES for method in settings.methods) and settings.directions[1:]:
            others = ", ".join(str(q) for q in settings.directions[1:])
            axes[1, column].set_xlabel(f"total queries; dotted: Q = {others}")
    for panel in axes[:, 0]:
        panel.set_ylabel(f"{label}, mean ± SE")
    style.shared_legend(figure, axes[0, 0], min(4, len(settings.values) + 1))
    return figure


def log_gap(
    rows: Rows, settings: Settings, value: float, method: str, *, queries: int | None = None, directions: int = 0
) -> np.ndarray:
    """log10 of the gap, one number a seed: after the last round within so many queries; None: of all."""
    chosen = where(rows, method=method, directions=directions, **{settings.varied: value})
    counts = [int(count) for count in distinct(chosen, "num_queries")]
    last = max(count for count in counts if queries is None or count <= queries)
    return np.log10(by_seed(chosen, num_queries=last))


def total_queries(rows: Rows, settings: Settings, value: float, method: str) -> int:
    """Queries of all clients in all rounds."""
    chosen = where(rows, method=method, **{settings.varied: value})
    return max(int(row["num_queries"]) for row in chosen)


def leads(rows: Rows, settings: Settings, values: Sequence[float], method: str, *, equal: str) -> dict[str, np.ndarray]:
    """How much lower log10 of a method's gap is than each baseline's, a cell for each panel and baseline.

    Args:
        rows: the records.
        settings: the figure's.
        values: of what is varied.
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
                label = f"{settings.varied} {value:g}, {style.METHODS[baseline].label}, Q = {directions}"
                cells[label] = theirs - ours
    return cells


def apart(rows: Rows, settings: Settings, better: str, worse: str) -> dict[str, np.ndarray]:
    """How much lower one variant's last log10 gap is than another's, in each panel."""
    return {
        f"{settings.varied} {value:g}": log_gap(rows, settings, value, worse) - log_gap(rows, settings, value, better)
        for value in settings.values
    }
