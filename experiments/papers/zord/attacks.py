"""What ZoRD's Table 1 and Figure 9 share: attacks on images, each method from δ = 0 until the victim falls for it.

Readings: f is the margin of log-probabilities, and an attack has succeeded at its first query with f ≤ 0; every query
counts, those of initial designs too. The box [−ε, ε]^d is searched as [0, 10]^d, as the synthetic functions are (Appx.
C), in which Adam's 0.5 is a twentieth of the box. RGF, PRGF and GLD have n = 10 and λ = 0.01; ZoRD's lengthscale is
0.67 √d with at most 10 virtual steps, as in Figure 3. The victim is one small CNN, the images are test images that it
recognizes, other ones with every seed.

Each method has one number that is tuned, by factors of two on a grid of five (``KNOBS``; less where it says so below):
Adam's rate; GLD's widest radius; TuRBO's first side. ``tune`` gives the mean log10 of the queries over
``tuning_seeds``, which no figure uses; means over different images do not compare between methods.
On digits (d = 64, reduced scale): RGF 2.11 at 0.5, 1.77 at 4, 1.75 at 8; PRGF 2.12, 1.91, 1.87; GLD 2.33 at 5, 2.02 at
40, 1.99 at 80 (ten images a seed and set); ZoRD 1.97 at 0.5, 1.85 at 4, 1.97 at 8; with kept information 1.84 at 0.5,
1.58 at 4, 1.61 at 8 (three images); TuRBO-1 1.70 at 0.2, 1.61 at 0.8, 1.6 not tried, and TuRBO-10 at its default (two
images, ε = 0.2 alone: a run takes ten seconds). At the upper ends a step of Adam reaches the box's sides: attacks like
these want signs.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
import torch

from experiments.harness import style
from experiments.harness.records import Rows, seeds_of
from experiments.harness.verdicts import Verdict, judge
from experiments.papers.zord.descent import as_printed
from experiments.workloads.attack import Attack, chosen
from experiments.workloads.cache import FOLDER
from experiments.workloads.images import TITLES, Images, load_images, stand_in
from experiments.workloads.victims import FULL, Training, Victim, trained_victim
from experiments.workloads.victims import QUICK as QUICK_TRAINING
from optimizers import Evaluator, Optimizer, run
from optimizers.registry import method_class

RATES = (0.5, 1.0, 2.0, 4.0, 8.0)
KNOBS: dict[str, tuple[float, ...]] = {
    "zord": RATES,
    "zord_kept": RATES,
    "rgf": RATES,
    "prgf": RATES,
    "gld": (5.0, 10.0, 20.0, 40.0, 80.0),
    "turbo1": (0.1, 0.2, 0.4, 0.8, 1.6),
    "turbom": (0.1, 0.2, 0.4, 0.8, 1.6),
}
"""The grid of each method."""

BASELINES = ("rgf", "prgf", "gld", "turbo1", "turbom")
PRINTED = {"zord": 0.5, "zord_kept": 0.5, "rgf": 0.5, "prgf": 0.5, "gld": 5.0, "turbo1": 0.8, "turbom": 0.8}
"""The paper's, and where it is silent the methods' own."""


@dataclasses.dataclass(frozen=True)
class Settings:
    """What is attacked and with what.

    Attributes:
        datasets: names of the images.
        bounds: ε of each.
        methods: the attackers.
        images: attacked with each seed.
        max_queries: after which an attack has failed.
        knobs: each method's tuned number, in the order of ``methods``; empty: ``PRINTED``.
        side: pixels a side of the stand-in.
        training: the victim's.
        victim_seed: the victim's.
        turbo_points: initial queries of TuRBO, over all of its regions; None: 2d a region.
        turbo_candidates: Thompson sampling's; None: its default.
        every: queries from one point of a curve to the next.
        tuning_seeds: for ``tune``.
        data: folder of the data sets.
        cache: folder of the victims.
    """

    datasets: tuple[str, ...] = ("mnist", "cifar10")
    bounds: tuple[float, ...] = (0.3, 0.2)
    methods: tuple[str, ...] = ("zord", "zord_kept", *BASELINES)
    images: int = 15
    max_queries: int = 10_000
    knobs: tuple[float, ...] = ()
    side: int = 28
    training: Training = FULL
    victim_seed: int = 0
    turbo_points: int | None = 100
    turbo_candidates: int | None = None
    every: int = 50
    tuning_seeds: tuple[int, ...] = (1000, 1001)
    data: str = ""
    cache: str = FOLDER

    def knob(self, method: str) -> float:
        """A method's tuned number."""
        return self.knobs[self.methods.index(method)] if self.knobs else PRINTED[method]


REDUCED: dict[str, Any] = {
    "knobs": (4.0, 4.0, 8.0, 8.0, 80.0, 0.8, 0.8),
    "side": 8,
    "max_queries": 500,
    "turbo_candidates": 500,
    "every": 10,
    "turbo_points": 20,
}
"""For two cores: the digits' own size, d = 64."""

QUICK: dict[str, Any] = {
    "methods": ("zord", "zord_kept", "rgf", "gld", "turbo1", "turbom"),
    "side": 8,
    "images": 1,
    "max_queries": 16,
    "turbo_points": 12,
    "turbo_candidates": 50,
    "every": 4,
    "training": QUICK_TRAINING,
    "cache": "",
}


def describe(settings: Settings) -> str:
    """The stand-in's name."""
    return stand_in(settings.datasets, settings.data, settings.side)


def check(settings: Settings) -> None:
    """Read the data; raises ``DataError`` where they are not what is expected."""
    for name in settings.datasets:
        load_images(name, settings.data, settings.side)


def title(settings: Settings, dataset: str) -> str:
    """A panel's title."""
    bound = settings.bounds[settings.datasets.index(dataset)]
    name = TITLES[dataset] if settings.data else f"digits for {TITLES[dataset]}"
    return f"{name}, ε = {bound:g}"


@lru_cache(maxsize=4)
def task(settings: Settings, dataset: str) -> tuple[Images, Victim, torch.Tensor]:
    """Images, the victim, and which test images it recognizes."""
    images = load_images(dataset, settings.data, settings.side)
    victim = trained_victim(images, settings.training, settings.victim_seed, cache=settings.cache)
    return images, victim, victim.predict(images.test) == images.test_labels


def attacks(settings: Settings, dataset: str, seed: int) -> list[Attack]:
    """The seed's attacks on one data set."""
    images, victim, recognized = task(settings, dataset)
    bound = settings.bounds[settings.datasets.index(dataset)]
    picked = chosen(images, recognized, settings.images, seed)
    return [Attack(victim, image, label, bound) for image, label in picked]


def attacker(settings: Settings, method: str, attack: Attack, knob: float, seed: int) -> Optimizer:
    """A method at δ = 0 that stops where f ≤ 0."""
    options: dict[str, Any]
    if method in ("turbo1", "turbom"):
        regions = 1 if method == "turbo1" else 10
        points = settings.turbo_points
        options = {
            "regions": regions,
            "batch_size": 10,
            "initial_points": None if points is None else max(2, points // regions),
            "candidates": settings.turbo_candidates,
            "length_init": knob,
        }
    elif method == "gld":
        options = {"widest": knob}
    else:
        options = {"update_rule": lambda p: torch.optim.Adam([p], lr=knob)}
    if method == "zord":
        options |= as_printed(attack.dimension)
    name = {"turbo1": "turbo", "turbom": "turbo", "zord_kept": "zord"}.get(method, method)
    common: dict[str, Any] = {"bounds": attack.bounds, "max_queries": settings.max_queries, "seed": seed}
    return method_class(name)(attack.start, target=0.0, **common, **options)


def queries_to_success(optimizer: Optimizer, attack: Attack) -> tuple[int, bool]:
    """The query that succeeded, counted from 1, and True; or the budget and False."""
    values = run(optimizer, Evaluator(attack, batched=True)).history.y
    hits = (values <= 0.0).nonzero().flatten()
    return (int(hits[0]) + 1, True) if len(hits) else (optimizer.max_queries, False)


def run_seed(settings: Settings, seed: int) -> Rows:
    """Every method on every image: queries to success, or the budget where ``success`` is 0."""
    rows: Rows = []
    for dataset in settings.datasets:
        for i, attack in enumerate(attacks(settings, dataset, seed)):
            for method in settings.methods:
                optimizer = attacker(settings, method, attack, settings.knob(method), seed)
                queries, success = queries_to_success(optimizer, attack)
                rows.append(
                    {
                        "seed": seed,
                        "dataset": dataset,
                        "method": method,
                        "image": i,
                        "success": int(success),
                        "largest": float(optimizer.best_x.abs().max()),
                        "value": queries,
                    }
                )
    return rows


def compared(
    settings: Settings, rows: Rows, lead: Callable[[str, str], np.ndarray], claim: str, statistic: str
) -> list[Verdict]:
    """ZoRD, and the library's default where it ran, against every baseline on the same images.

    Args:
        settings: what was attacked.
        rows: the records.
        lead: of a data set and a method, one number a seed, larger where the method is better.
        claim: formats the labels of two methods.
        statistic: what the difference of their leads is.
    """

    def better(method: str, other: str) -> Verdict:
        cells = {title(settings, name): lead(name, method) - lead(name, other) for name in settings.datasets}
        text = claim.format(style.METHODS[method].label, style.METHODS[other].label)
        return judge(text, statistic, cells, seeds_of(rows), above=0.0, control=method != "zord")

    others = [method for method in BASELINES if method in settings.methods]
    verdicts = [better("zord", other) for other in others]
    if "zord_kept" in settings.methods:
        verdicts += [better("zord_kept", other) for other in (*others, "zord")]
    return verdicts


def tune(settings: Settings, method: str) -> dict[float, float]:
    """For each number of the method's grid the mean log10 of the queries over ``tuning_seeds``, images and sets."""
    found = {}
    for knob in KNOBS[method]:
        logs = []
        for seed in settings.tuning_seeds:
            for dataset in settings.datasets:
                for attack in attacks(settings, dataset, seed):
                    queries, _ = queries_to_success(attacker(settings, method, attack, knob, seed), attack)
                    logs.append(math.log10(queries))
        found[knob] = float(np.mean(logs))
    return found
