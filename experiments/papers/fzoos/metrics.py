"""FZooS, Figures 8 to 12: federated optimization of a classifier's metric, on N = 7 clients with their own points.

Figures 8 and 9 show precision for several P and several T. Figures 10, 11 and 12 show recall, F1 and Jaccard's index,
here for several P; the paper also varies T. All clients start from one MLP 54-30-14-7 (2,189 parameters), trained with
cross-entropy on Covertype. The clients minimize F = (1/N) Σ f_i with f_i(θ) = 1 − metric on client i's points, which
belong to P of the seven classes, i to i + P − 1 (cyclic). A smaller P is more heterogeneous. The figures show F in per
cent at the server's model after each round; these evaluations of F are not counted as queries.

The paper uses N = 7, T = 10 unless T is varied, and R = 50. The paper's P is a share of the seven classes, drawn at
random from the test set for each client.

Our choices where the paper gives no details: P counts classes. The paper does not give the grids of P and T or the
number of points per client. We use P = 2, 4, 7 with T = 10; T = 5, 10, 20 with P = 4; and 1,000 points per client that
were not used for training. Classes are averaged as in scikit-learn's ``macro``. θ is within ±1 of the trained network
and is searched as z in [0, 1]^d. Since the metric is piecewise constant, Adam's rate and a radius are the best pair of
a grid (``RATES`` by ``RADII``) on ``tuning_seeds``, which no figure uses. The radius is λ for the baselines and the
radius of active queries for FZooS. FZooS's lengthscale was also tuned, on the stand-in: ℓ = 10, because the printed ℓ =
1 and a Matérn kernel end higher. FZooS with the adaptive γ uses the rate and radius of FZooS with γ = 1/t, unless its
rate is settling; the other baselines use those of FedZO. Q = 20, and also 5 at equal queries. We add FZooS with a
settling rate (``beyond-plateau``).

If the data are samples of Covertype, the class-balanced sample is added to the natural one, because clients with two
rare classes need more rows than the natural sample has; rare classes are therefore more frequent than in Covertype.

On Covertype FZooS with γ = 1/t ends behind finite differences in nearly every setting, even at equal queries, and often
no better than it started. FZooS with the adaptive γ is a control, because it differs in γ alone; it ends better in
every setting. On recall and F1 this control is about level with finite differences at equal queries (Q = 5), so
the loss there is due to the correction along the averaged Fourier surrogates. On precision the control makes up most of
the loss with seven and four classes, about half of it with more local steps, and little of it with two classes, where
the gradients of the clients' own surrogates are to blame as well. FedProx with γ = d, which also pulls hard toward the
server's model, loses like FZooS with γ = 1/t.
"""

from __future__ import annotations

import dataclasses
import itertools
from functools import partial
from typing import Any

import numpy as np
import torch

from experiments.harness.experiment import Experiment
from experiments.harness.records import grid_means
from experiments.harness.verdicts import Verdict, judge_pairs
from experiments.papers.fzoos import comparison
from experiments.papers.fzoos.comparison import APPLIED, BASELINES, FEWER_STEPS, FZOOS, against_baselines, leads
from experiments.workloads.cache import FOLDER
from experiments.workloads.covertype import CLASSES, STAND_IN, Points, differs, load_points
from experiments.workloads.metrics import DIMENSION, FULL, MetricObjective, Training, trained_network
from experiments.workloads.metrics import QUICK as QUICK_TRAINING
from experiments.workloads.unit_box import InUnitBox, UnitBoxProblem
from optimizers.comparison.records import Rows

RATES = (0.001, 0.003, 0.01)
RADII = (0.03, 0.1, 0.3, 0.8)
LABELS = {"precision": "precision", "recall": "recall", "f1": "F1", "jaccard": "Jaccard"}
VARIED = {
    "classes": ((2, 4, 7), (2, 4, 7), "numbers of classes per client"),
    "local_steps": ((5, 10, 20), tuple(FEWER_STEPS.values()), "numbers of local steps"),
}
"""Maps each varied setting to its values at the paper's scale and at the reduced scale, and a description."""


@dataclasses.dataclass(frozen=True)
class Settings(comparison.Settings):
    """Settings of one figure.

    Attributes:
        metric: name of the metric.
        classes: P.
        points: number of points per client.
        bound: half the side of the box.
        tuned: rate and radius of each method; if empty, 0.001 and 0.1.
        lengthscale: FZooS's ℓ in [0, 1]^d.
        training: training of the initial network.
        tuning_seeds: seeds of the problems that ``tune`` solves.
        data: folder of the data sets.
        cache: folder of the trained networks.
    """

    methods: tuple[str, ...] = APPLIED
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
        """Returns the options of a method with Q directions."""
        rate, radius = self.tuned[self.methods.index(method)] if self.tuned else (0.001, 0.1)
        options = super().options(method, directions)
        options["update_rule"] = lambda p: torch.optim.Adam([p], lr=rate)
        if method in FZOOS:  # ± radius in each coordinate is √(d/3) radius away
            options |= {"active_radius": radius / (DIMENSION / 3.0) ** 0.5, "lengthscale": self.lengthscale}
        else:
            options["smoothing_radius"] = radius
        return options

    def height(self, gap: float) -> float:
        """Returns 1 − metric in per cent."""
        return 100.0 * gap

    def label(self) -> str:
        """The name of the quantity that figures draw."""
        return f"(1 − {LABELS[self.metric]}) in %"


REDUCED: dict[str, Any] = {
    "local_steps": 5,
    "rounds": 10,
    "num_features": 300,
    "points": 500,
    "training": Training(points=10_000),
    "tuned": ((0.01, 0.3), (0.01, 0.3), (0.01, 0.03)) + ((0.01, 0.8),) * len(BASELINES),
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
    """Returns the problem of one seed: its trained network, and a sample of points for each client."""
    points = load_points(settings.data, every_class=True)
    source = "covertype" if settings.data else "synthetic"
    trained = trained_network(points, settings.training, seed, source, settings.cache)
    unseen = points.sample(len(points), seed).after(settings.training.points)

    def client(i: int) -> InUnitBox:
        classes = tuple((i + k) % CLASSES for k in range(int(settings.classes)))
        own: Points = unseen.sample(settings.points, seed * settings.clients + i, classes)
        return InUnitBox(MetricObjective(settings.metric, trained, own, settings.bound))

    return UnitBoxProblem([client(i) for i in range(settings.clients)])


def run_seed(settings: Settings, seed: int) -> Rows:
    """Records F and queries after each round for all methods in all panels."""
    return comparison.run_panels(settings, seed, problem_of, batched=True)


def tune(settings: Settings, method: str) -> dict[tuple[float, float], float]:
    """Returns the final F in the middle panel for each pair of a rate and a radius, averaged over ``tuning_seeds``."""
    ((_, directions),) = comparison.variants((method,), settings.directions[:1])
    one = settings.at(settings.values[len(settings.values) // 2])

    def last(pair: tuple[float, float], seed: int) -> float:
        each = dataclasses.replace(one, tuned=(pair,) * len(one.methods))
        return float(comparison.run(each, problem_of(each, seed), method, directions, seed, batched=True)[-1]["value"])

    return grid_means(last, itertools.product(RATES, RADII), one.tuning_seeds)


def claims(settings: Settings, rows: Rows) -> list[Verdict]:
    """Judges FZooS against every baseline at equal queries and at equal rounds; the adaptive γ is a control."""
    name, ratio = LABELS[settings.metric], "log10 of the ratio of 1 − metric"
    verdicts = against_baselines(
        settings.methods,
        partial(leads, rows, settings, settings.values),
        f"{{0}} ends with a better {name} than every baseline at equal {{1}}",
        ratio,
    )

    def lead(value: float, method: str) -> np.ndarray:
        return -comparison.log_gap(rows, settings, value, method)

    panels = {f"{settings.varied} {value:g}": value for value in settings.values}
    pair = ("fzoos_adaptive", "fzoos", True)
    return verdicts + judge_pairs([pair], f"{{}} ends with a better {name} than {{}}", ratio, lead, panels, above=0.0)


def experiment(number: int, metric: str, varied: str) -> Experiment:
    """Returns the figure of a metric that varies ``"classes"`` or ``"local_steps"``."""
    values, few, over = VARIED[varied]
    return Experiment(
        id=f"fzoos-fig{number}",
        shows=lambda settings: (
            f"federated optimization of {LABELS[metric]} for several {over}, {comparison.over(settings)}, "
            "against rounds and total queries"
        ),
        claim="FZooS needs fewer rounds and queries than FedZO, FedProx and SCAFFOLD, "
        f"for every {comparison.SYMBOLS[varied]}.",
        scales={
            "paper": Settings(varied, values, metric=metric),
            "reduced": Settings(varied, few, metric=metric, **REDUCED),
            "quick": Settings(varied, (2,), metric=metric, **QUICK),
        },
        run_seed=run_seed,
        plot=comparison.plot,
        plot_more=comparison.plot_more,
        caption=comparison.caption,
        claims=claims,
        seeds={"quick": 3, "reduced": 3, "paper": 5},
        data=("covertype",),
        stand_in=STAND_IN,
        differs=lambda settings: differs(load_points(settings.data, every_class=True), settings.training.points),
        check=lambda settings: load_points(settings.data, every_class=True),
    )


EXPERIMENTS = (
    experiment(8, "precision", "classes"),
    experiment(9, "precision", "local_steps"),
    experiment(10, "recall", "classes"),
    experiment(11, "f1", "classes"),
    experiment(12, "jaccard", "classes"),
)
