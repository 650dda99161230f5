"""What FZooS's Figures 2, 6 and 7 share: federated attacks on images, N = 10 clients with a victim each.

A client's victim has been trained on the images of P of the ten classes, i to i + P − 1 for client i (cyclic), so that
every class is known to P victims: a smaller P is more heterogeneous. F is the mean of the clients' f_i, and an image is
attacked with success after the first round whose x_r the victims together, by the mean of their probabilities, take for
another class. F's values for that are no queries.

Readings: the paper gives neither f_i, the bound nor the grids of P and T. f_i = log(1 + exp(margin)), so that a victim
which does not know the class has little say; ε = 0.3 for MNIST and 0.2 for CIFAR-10, ZoRD's; P = 3, 5, 8 with T = 10,
and T = 5, 10, 20 with P = 5. δ is searched as z in [0, 1]^d. Q = 20 (and 5 in the comparison at equal queries) and
λ = 0.01 as in Figure 1. Adam's rate is the best of ``RATES`` over ``tuning_seeds``, which no figure uses. On digits
(reduced scale, P = T = 5, two images), mean rounds to success of 10 at most: FZooS 10, 8, 7.5 and 10 for 0.01, 0.02,
0.05 and 0.1; FedZO 10, 9.5, 7 and 6; SCAFFOLD II 10, 8, 6.5 and 6. The other γ and the other baselines take FZooS's and
FedZO's. The reduced scale has ε = 0.15 and T = 5 because at 0.2 one round was enough for every method and at 0.1 FZooS
never succeeded; this was seen before methods were compared at 0.15.
"""

from __future__ import annotations

import dataclasses
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor

from experiments.harness import style
from experiments.harness.experiment import Experiment
from experiments.harness.records import Curve, Row, Rows, seeds_of, where
from experiments.harness.verdicts import Verdict, judge
from experiments.papers.fzoos.comparison import BASELINES, FZOOS, UnitBoxProblem, federation_of
from experiments.workloads.attack import Attack, FederatedAttack, chosen
from experiments.workloads.cache import FOLDER
from experiments.workloads.images import Images, load_images, stand_in
from experiments.workloads.unit_box import InUnitBox
from experiments.workloads.victims import CLASSES, FULL, Training, Victim, cached_victim
from experiments.workloads.victims import QUICK as QUICK_TRAINING

METHODS = ("fzoos", "fzoos_adaptive", *BASELINES)
RATES = (0.01, 0.02, 0.05, 0.1)

Panels = tuple[tuple[int, int], ...]
"""P and T of each column."""


@dataclasses.dataclass(frozen=True)
class Settings:
    """One figure.

    Attributes:
        dataset: name of the images.
        panels: P and T of each column.
        methods: FZooS's variants and baselines.
        rates: Adam's, of each method; empty: 0.01 for all.
        clients: N.
        rounds: R.
        images: attacked with each seed.
        bound: ε.
        num_features: M.
        directions: Q of the baselines; the figure's first, then others that are compared at equal queries.
        side: pixels a side of the stand-in.
        training: the victims'.
        tuning_seeds: for ``tune``.
        data: folder of the data sets.
        cache: folder of the victims.
    """

    dataset: str = "cifar10"
    panels: Panels = ((3, 10), (5, 10), (8, 10))
    methods: tuple[str, ...] = METHODS
    rates: tuple[float, ...] = ()
    clients: int = 10
    rounds: int = 100
    images: int = 15
    bound: float = 0.2
    num_features: int = 10_000
    directions: tuple[int, ...] = (20, 5)
    side: int = 32
    training: Training = FULL
    tuning_seeds: tuple[int, ...] = (1000,)
    data: str = ""
    cache: str = FOLDER

    def options(self, method: str, directions: int) -> dict[str, Any]:
        """A method's own options."""
        rate = self.rates[self.methods.index(method)] if self.rates else 0.01
        options: dict[str, Any] = {"update_rule": lambda p: torch.optim.Adam([p], lr=rate)}
        if method in FZOOS:
            return options | {"num_features": self.num_features} | FZOOS[method]
        return options | {"directions": directions}


REDUCED: dict[str, Any] = {
    "rates": (0.05, 0.05, 0.1, 0.1, 0.1, 0.1),
    "bound": 0.15,
    "side": 8,
    "rounds": 10,
    "images": 3,
    "num_features": 300,
    "training": Training(channels=(8, 16), hidden=32, epochs=8),
}
"""For two cores: the digits' own size, d = 64, and a bound at which one round is not enough; to go with T = 5."""

QUICK: dict[str, Any] = {
    "methods": ("fzoos", "fzoos_adaptive", "fedzo", "scaffold2"),
    "rates": (0.2, 0.2, 0.2, 0.2),
    "clients": 2,
    "rounds": 2,
    "images": 1,
    "num_features": 20,
    "directions": (3,),
    "side": 8,
    "training": QUICK_TRAINING,
    "cache": "",
}


IMAGES: dict[str, dict[str, Any]] = {
    "cifar10": {"dataset": "cifar10", "bound": 0.2, "side": 32},
    "mnist": {"dataset": "mnist", "bound": 0.3, "side": 28},
}


@dataclasses.dataclass(frozen=True)
class Problem(UnitBoxProblem):
    """One image: the clients' functions of z and how to see that they are fooled."""

    attack: FederatedAttack

    def fooled(self, z: Tensor) -> bool:
        """Whether the victims together are."""
        return self.attack.fooled(self.clients[0].centred(z))


def describe(settings: Settings) -> str:
    """The stand-in's name."""
    return stand_in((settings.dataset,), settings.data, settings.side)


def check(settings: Settings) -> None:
    """Read the data; raises ``DataError`` where they are not what is expected."""
    load_images(settings.dataset, settings.data, settings.side)


def classes_of(client: int, count: int) -> tuple[int, ...]:
    """The P classes that a client's victim knows."""
    return tuple(sorted((client + k) % CLASSES for k in range(count)))


@lru_cache(maxsize=8)
def victims(
    dataset: str, data: str, side: int, training: Training, clients: int, count: int, cache: str
) -> tuple[Images, tuple[Victim, ...], Tensor]:
    """Images, the clients' victims, and which test images these recognize together."""
    images = load_images(dataset, data, side)
    found = tuple(cached_victim(images, training, i, classes_of(i, count), cache) for i in range(clients))
    pixels = images.test.double()
    probabilities = sum(torch.cat([v.logits(part) for part in pixels.split(1000)]).softmax(-1) for v in found)
    assert isinstance(probabilities, Tensor)
    return images, found, probabilities.argmax(-1) == images.test_labels


def problems(settings: Settings, count: int, seed: int) -> list[Problem]:
    """The seed's images under victims that know P = ``count`` classes each."""
    of = (settings.dataset, settings.data, settings.side, settings.training, settings.clients, count, settings.cache)
    images, found, recognized = victims(*of)
    picked = chosen(images, recognized, settings.images, seed)
    attacks = [
        FederatedAttack(tuple(Attack(v, image, label, settings.bound, smooth=True) for v in found))
        for image, label in picked
    ]
    return [Problem([InUnitBox(client) for client in attack.clients], attack) for attack in attacks]


def attacked(settings: Settings, problem: Problem, method: str, directions: int, local_steps: int, seed: int) -> Row:
    """Rounds and queries until the image is attacked with success, or all of them, and F there."""
    options = settings.options(method, directions)
    federation = federation_of(problem, method, local_steps=local_steps, seed=seed, options=options, batched=True)
    success = False
    while federation.rounds < settings.rounds and not success:
        federation.run_round()
        success = problem.fooled(federation.server.x)
    queries = federation.history[-1].queries
    rounds, last = federation.rounds, problem.gap(federation.server.x)
    return {"success": int(success), "num_queries": queries, "rounds": rounds, "value": last}


def run_seed(settings: Settings, seed: int) -> Rows:
    """All methods on all images in all panels: a record's ``value`` is F at the last iterate."""
    rows: Rows = []
    for count, local_steps in settings.panels:
        for i, problem in enumerate(problems(settings, count, seed)):
            for method in settings.methods:
                for directions in settings.directions if method in BASELINES else (0,):
                    key: Row = {"seed": seed, "classes": count, "local_steps": local_steps, "image": i}
                    key |= {"method": method, "directions": directions}
                    rows.append(key | attacked(settings, problem, method, directions, local_steps, seed))
    return rows


def tune(settings: Settings, method: str) -> dict[float, float]:
    """For each rate the mean rounds to success over ``tuning_seeds``, images and panels, Q the figure's."""
    found = {}
    directions = settings.directions[0] if method in BASELINES else 0
    for rate in RATES:
        one = dataclasses.replace(settings, rates=(rate,) * len(settings.methods))
        rounds = [
            attacked(one, problem, method, directions, local_steps, seed)["rounds"]
            for seed in settings.tuning_seeds
            for count, local_steps in settings.panels
            for problem in problems(one, count, seed)
        ]
        found[rate] = float(np.mean([float(r) for r in rounds]))
    return found


def rates_along(rows: Rows, x: str, counts: np.ndarray, **conditions: Any) -> np.ndarray:
    """The share of a seed's images attacked with success by so many rounds or queries, ``seeds x counts``.

    Args:
        rows: the records.
        x: ``"rounds"`` or ``"num_queries"``.
        counts: of them.
        **conditions: panel and method.
    """
    shares = []
    for seed in seeds_of(rows):
        found = where(rows, seed=seed, **conditions)
        needed = np.array([float(row[x]) if row["success"] else np.inf for row in found])
        shares.append((needed[:, None] <= counts).mean(0))
    return np.array(shares)


def _counts(settings: Settings, rows: Rows, x: str, panel: tuple[int, int]) -> np.ndarray:
    if x == "rounds":
        return np.arange(settings.rounds + 1)
    most = max(float(row[x]) for row in where(rows, classes=panel[0], local_steps=panel[1]))
    return np.linspace(0.0, most, 51)


def _lines(settings: Settings) -> list[tuple[str, int]]:
    """Methods with the Q that they are drawn with."""
    return [(m, settings.directions[0] if m in BASELINES else 0) for m in settings.methods]


def plot(settings: Settings, rows: Rows) -> Figure:
    """Success rate against rounds above, against the clients' total queries below."""
    figure, axes = style.panels(2, len(settings.panels), width=3.0, height=2.6, sharey="row")
    for column, of in enumerate(settings.panels):
        for panel, x, label in zip(
            axes[:, column], ("rounds", "num_queries"), ("rounds", "total queries"), strict=True
        ):
            counts = _counts(settings, rows, x, of)
            for method, directions in _lines(settings):
                key = {"classes": of[0], "local_steps": of[1], "method": method, "directions": directions}
                shares = rates_along(rows, x, counts, **key)
                error = shares.std(0, ddof=1) / np.sqrt(len(shares)) if len(shares) > 1 else np.zeros(len(counts))
                style.draw(panel, method, Curve(counts, shares.mean(0), error))
                panel.lines[-1].set_markevery(max(1, len(counts) // 6))
            panel.set_xlabel(label)
            panel.locator_params(axis="x", nbins=5, integer=True)
        axes[0, column].set_title(f"P = {of[0]}, T = {of[1]}")
    for panel in axes[:, 0]:
        panel.set_ylabel("success rate, mean ± SE")
        panel.set_ylim(-0.03, 1.03)
    style.shared_legend(figure, axes[0, 0], min(3, 2 * len(settings.panels)))
    return figure


def claims(settings: Settings, rows: Rows) -> list[Verdict]:
    """Success rates of FZooS against every baseline's, over the rounds and over the queries."""
    verdicts = []
    for method in [m for m in settings.methods if m in FZOOS]:
        for x, over in (("num_queries", "queries"), ("rounds", "rounds")):
            cells = {}
            for panel in settings.panels:
                where_ = {"classes": panel[0], "local_steps": panel[1]}
                counts = _counts(settings, rows, x, panel)
                ours = rates_along(rows, x, counts, method=method, directions=0, **where_).mean(1)
                for baseline in [m for m in settings.methods if m in BASELINES]:
                    for q in settings.directions if x == "num_queries" else settings.directions[:1]:
                        theirs = rates_along(rows, x, counts, method=baseline, directions=q, **where_).mean(1)
                        label = f"P = {panel[0]}, T = {panel[1]}, {style.METHODS[baseline].label}, Q = {q}"
                        cells[label] = ours - theirs
            verdicts.append(
                judge(
                    f"{style.METHODS[method].label} succeeds more often than every baseline at equal {over}",
                    f"difference of the success rate, mean over the {over}",
                    cells,
                    seeds_of(rows),
                    above=0.0,
                    control=method != "fzoos",
                )
            )
    return verdicts


def experiment(
    number: int,
    dataset: str,
    over: str,
    whatever: str,
    *,
    paper: Panels,
    reduced: Panels,
    quick: Panels,
) -> Experiment:
    """One of Figures 2, 6 and 7.

    Args:
        number: the figure's.
        dataset: name of the images.
        over: what the panels are, for the line that says what it shows.
        whatever: what the claim holds for.
        paper: P and T of each column.
        reduced: the same.
        quick: the same.
    """
    images = IMAGES[dataset]
    return Experiment(
        id=f"fzoos-fig{number}",
        source=f"FZooS, Fig. {number}",
        shows=f"success rate of federated attacks {over}, against rounds and total queries",
        claim=f"FZooS succeeds with fewer rounds and queries than FedZO, FedProx and SCAFFOLD, whatever {whatever}.",
        scales={
            "paper": Settings(panels=paper, **images),
            "reduced": Settings(panels=reduced, **images | REDUCED),
            "quick": Settings(panels=quick, **images | QUICK),
        },
        run_seed=run_seed,
        plot=plot,
        claims=claims,
        seeds={"quick": 3, "reduced": 3, "paper": 5},
        extra="experiments",
        data=(dataset,),
        stand_in=describe,
        check=check,
    )
