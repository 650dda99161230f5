"""What FZooS's Figures 8 to 12 share: federated search on a classifier's metric, N = 7 clients with their own points.

All clients start from one MLP 54-30-14-7 (2,189 parameters) that cross-entropy has trained on Covertype, and minimize
F = (1/N) Σ f_i, f_i(θ) = 1 − metric on client i's points: those of P of the seven classes, i to i + P − 1 (cyclic), so
that a smaller P is more heterogeneous. Drawn is 100 F at the server's model after each round, in per cent; F's values
are no queries.

Readings: the paper gives neither the grids of P and T nor the clients' points. P = 2, 4, 7 with T = 10, and T = 5, 10,
20 with P = 4; 1,000 points a client, other than those trained on, classes averaged as scikit-learn's ``macro``. θ is
within ±1 of the trained network and searched as z in [0, 1]^d. The metric is piecewise constant: Adam's rate and a
radius are the best pair of one grid (``RATES`` by ``RADII``) over ``tuning_seeds``, which no figure uses; the radius is
λ for the baselines and that of active queries for FZooS. On the stand-in (reduced scale, precision, P = 4, one seed) F
falls in 10 rounds from 0.637 to 0.525 with FedZO at (0.01, 0.3), from 0.558 to 0.626 at others; (0.03, 0.3) and (0.01,
1) gave 0.692 and 0.578. FZooS has its lengthscale besides: with the printed ℓ = 1 0.612 is the best of nine pairs, at
ℓ = 3 0.588 at (0.01, 0.8), the end of five pairs, at ℓ = 10 0.557 there, of eight (0.02 and 0.03: 0.66; radius 0.27:
0.60), all with the adaptive γ; a Matérn kernel ends at 0.591. The other γ and the other baselines take FZooS's and
FedZO's. Q = 20, and 5 in the comparison at equal queries.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure

from experiments.harness import style
from experiments.harness.experiment import Experiment
from experiments.harness.records import Row, Rows, seeds_of
from experiments.harness.verdicts import Verdict, judge
from experiments.papers.fzoos import comparison
from experiments.papers.fzoos.comparison import BASELINES, FZOOS, UnitBoxProblem, leads, variants
from experiments.workloads.cache import FOLDER
from experiments.workloads.covertype import CLASSES, STAND_IN, Points, load_points
from experiments.workloads.metrics import (
    DIMENSION,
    FULL,
    MetricObjective,
    Training,
    cached_network,
)
from experiments.workloads.metrics import QUICK as QUICK_TRAINING
from experiments.workloads.unit_box import InUnitBox

METHODS = ("fzoos", "fzoos_adaptive", *BASELINES)
RATES = (0.001, 0.003, 0.01)
RADII = (0.03, 0.1, 0.3, 0.8)


@dataclasses.dataclass(frozen=True)
class Settings(comparison.Settings):
    """One figure.

    Attributes:
        metric: its name.
        classes: P.
        points: of a client.
        bound: half of the box's side.
        tuned: rate and radius of each method; empty: 0.001 and 0.1.
        lengthscale: FZooS's ℓ in [0, 1]^d.
        training: the first network's.
        tuning_seeds: for ``tune``.
        data: folder of the data sets.
        cache: folder of the networks.
    """

    methods: tuple[str, ...] = METHODS
    dim: int = DIMENSION
    clients: int = 7
    metric: str = "precision"
    classes: int = 4
    points: int = 1000
    bound: float = 1.0
    tuned: tuple[tuple[float, float], ...] = ()
    lengthscale: float = 10.0
    training: Training = FULL
    tuning_seeds: tuple[int, ...] = (1000,)
    data: str = ""
    cache: str = FOLDER

    def options(self, method: str, directions: int) -> dict[str, Any]:
        """A method's own options."""
        rate, radius = self.tuned[self.methods.index(method)] if self.tuned else (0.001, 0.1)
        options = super().options(method, directions)
        options["update_rule"] = lambda p: torch.optim.Adam([p], lr=rate)
        if method in FZOOS:  # ± radius in each coordinate is √(d/3) radius away
            options |= {"active_radius": radius / (DIMENSION / 3.0) ** 0.5, "lengthscale": self.lengthscale}
        else:
            options["smoothing_radius"] = radius
        return options


REDUCED: dict[str, Any] = {
    "local_steps": 5,
    "rounds": 10,
    "num_features": 300,
    "points": 500,
    "tuned": ((0.01, 0.8),) * 2 + ((0.01, 0.3),) * 4,
}
QUICK: dict[str, Any] = {
    "methods": ("fzoos", "fzoos_adaptive", "fedzo"),
    "clients": 2,
    "local_steps": 2,
    "rounds": 2,
    "num_features": 20,
    "directions": (3,),
    "points": 50,
    "training": QUICK_TRAINING,
    "cache": "",
}


def problem_of(settings: Settings, seed: int) -> UnitBoxProblem:
    """The seed's network and the clients' points."""
    points = load_points(settings.data)
    source = "covertype" if settings.data else "synthetic"
    trained = cached_network(points, settings.training, seed, source, settings.cache)
    unseen = points.sample(len(points), seed).after(settings.training.points)

    def client(i: int) -> InUnitBox:
        classes = tuple((i + k) % CLASSES for k in range(int(settings.classes)))
        own: Points = unseen.sample(settings.points, seed * settings.clients + i, classes)
        return InUnitBox(MetricObjective(settings.metric, trained, own, settings.bound))

    return UnitBoxProblem([client(i) for i in range(settings.clients)])


def run_seed(settings: Settings, seed: int) -> Rows:
    """All methods in all panels."""
    rows: Rows = []
    for value in settings.values:
        one = settings.at(value)
        problem = problem_of(one, seed)
        for method, directions in variants(one):
            key: Row = {"seed": seed, settings.varied: value, "method": method, "directions": directions}
            rows += [key | row for row in comparison.run(one, problem, method, directions, seed, batched=True)]
    return rows


def tune(settings: Settings, method: str) -> dict[tuple[float, float], float]:
    """For each rate and radius the mean last F over ``tuning_seeds``, Q the figure's, in the middle panel."""
    found = {}
    directions = settings.directions[0] if method in BASELINES else 0
    one: Any = settings.at(settings.values[len(settings.values) // 2])
    for pair in itertools.product(RATES, RADII):
        each = dataclasses.replace(one, tuned=(pair,) * len(one.methods))
        ends = [
            comparison.run(each, problem_of(each, seed), method, directions, seed, batched=True)[-1]["value"]
            for seed in one.tuning_seeds
        ]
        found[pair] = float(np.mean([float(end) for end in ends]))
    return found


def per_cent(row: Row) -> float:
    """100 F."""
    return 100.0 * float(row["value"])


def plotter(title: str) -> Callable[[Settings, Rows], Figure]:
    """The figure whose columns ``title`` names."""

    def plot(settings: Settings, rows: Rows) -> Figure:
        label = f"(1 − {LABELS[settings.metric]}) in %"
        return comparison.plot(settings, rows, title, height=per_cent, label=label)

    return plot


LABELS = {"precision": "precision", "recall": "recall", "f1": "F1", "jaccard": "Jaccard"}


def claims(settings: Settings, rows: Rows) -> list[Verdict]:
    """FZooS against every baseline at equal queries and rounds, and against the trained network."""
    seeds = seeds_of(rows)
    verdicts = []
    for method in [m for m in settings.methods if m in FZOOS]:
        label, control = style.METHODS[method].label, method != "fzoos"
        for equal in ("queries", "rounds"):
            claim = f"{label} ends with a better {LABELS[settings.metric]} than every baseline at equal {equal}"
            cells = leads(rows, settings, settings.values, method, equal=equal)
            statistic = "log10 of the ratio of 1 − metric"
            verdicts.append(judge(claim, statistic, cells, seeds, above=0.0, control=control))
    return verdicts


def experiment(number: int, metric: str, varied: str) -> Experiment:
    """One of Figures 8 to 12.

    Args:
        number: the figure's.
        metric: its name.
        varied: ``"classes"`` or ``"local_steps"``.
    """
    values: dict[str, tuple[float, ...]] = {"classes": (2, 4, 7), "local_steps": (5, 10, 20)}
    few: dict[str, tuple[float, ...]] = {"classes": (2, 4, 7), "local_steps": (2, 5, 10)}
    name, over = ("P", "numbers of classes a client") if varied == "classes" else ("T", "numbers of local steps")
    return Experiment(
        id=f"fzoos-fig{number}",
        source=f"FZooS, Fig. {number}",
        shows=f"federated search on {LABELS[metric]}, for three {over}, against rounds and total queries",
        claim=f"FZooS needs fewer rounds and queries than FedZO, FedProx and SCAFFOLD, whatever {name} is.",
        scales={
            "paper": Settings(varied, values[varied], metric=metric),
            "reduced": Settings(varied, few[varied], metric=metric, **REDUCED),
            "quick": Settings(varied, (2,), metric=metric, **QUICK),
        },
        run_seed=run_seed,
        plot=plotter(name + " = {:g}"),
        claims=claims,
        seeds={"quick": 3, "reduced": 3, "paper": 5},
        extra="experiments",
        data=("covertype",),
        stand_in=STAND_IN,
        check=lambda settings: load_points(settings.data),
    )
