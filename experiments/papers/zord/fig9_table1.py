"""ZoRD, Table 1 and Figure 9: black-box attacks on images, each method from δ = 0 until it succeeds.

Table 1 lists the queries to a successful attack on a random image, mean ± sd of five runs, for MNIST (ε = 0.3) and
CIFAR-10 (ε = 0.2). Figure 9 shows, against queries, the share of 15 images on which the attack has succeeded, without
TuRBO; a curve is the mean over seeds with its standard error. The paper's MNIST victims are from Cheng et al. (2021),
its CIFAR-10 victim is a ResNet-18, and its f is the loss of Cheng et al. (Appx. C.3).

Our choices where the paper gives no details: f is the margin of log-probabilities, and an attack succeeds at its first
query with f ≤ 0. Every query counts, including initial designs. An entry of Table 1 is the mean over a seed's images,
and an attack that fails within the budget counts as the budget. The box [−ε, ε]^d is searched as [0, 10]^d like all of
the paper's boxes (Appx. C.1), so Adam's 0.5 is a twentieth of the box. RGF, PRGF and GLD use n = 10 and λ = 0.01.
ZoRD's lengthscale is 0.67 √d with at most 10 virtual steps, as in Figure 3. On the stand-in the victim is one small
CNN. The images are test images that the victim classifies correctly, drawn with the seed.

With ``--data`` the victims are the supplied networks, a CNN with two convolutions and one linear layer for MNIST and a
ResNet-20 for CIFAR-10, if the data contain them. RGF, PRGF and ZoRD have the paper's parameters, GLD and TuRBO their
defaults. ``tune`` compares five values of one parameter of each method (``KNOBS``, each twice the previous one), on
``tuning_seeds``, which no figure uses. We add the library's default method, ZoRD with kept information in Table 1, and
uniform random δ in Figure 9. At the reduced scale TuRBO has 500 candidates instead of 5,000.

On CIFAR-10 noise is enough: the first uniform δ succeeds in 56 of Figure 9's 75 attacks, and in none on MNIST. TuRBO's
design is spread over the box, so it succeeds on CIFAR-10 with its second query, before it has a model, while the other
methods need some tens of queries to leave δ = 0. On MNIST ZoRD with kept information stalls on half of the images. The
default method needs fewest queries on most images (median 139, ZoRD 323), but 2 of its 75 attacks fail, and none of
ZoRD's.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.harness.curves import draw_strips
from experiments.harness.experiment import Experiment, counted
from experiments.harness.records import grid_means
from experiments.harness.verdicts import Table, Verdict, judge_pairs, with_sd
from experiments.papers.zord.descent import search
from experiments.workloads.attack import Attack, chosen, success_rate
from experiments.workloads.cache import FOLDER
from experiments.workloads.data import folder_of
from experiments.workloads.images import TITLES, Images, load_images, stand_in
from experiments.workloads.victims import FULL, ResNet, Training, Victim, predict, supplied, trained_victim
from experiments.workloads.victims import QUICK as QUICK_TRAINING
from optimizers import Evaluator, Optimizer, run
from optimizers.comparison.records import Row, Rows, by_seed, mean_curve, seeds_of, where
from surrogates import plotting

RATES = (0.5, 1.0, 2.0, 4.0, 8.0)
RADII = (5.0, 10.0, 20.0, 40.0, 80.0)
SIDES = (0.1, 0.2, 0.4, 0.8, 1.6)
KNOBS: dict[str, tuple[float, ...]] = {
    **dict.fromkeys(("zord", "zord_kept", "rgf", "prgf"), RATES),
    "gld": RADII,
    **dict.fromkeys(("turbo1", "turbom"), SIDES),
}
"""The grid of each method's tuned parameter."""

BASELINES = ("rgf", "prgf", "gld", "turbo1", "turbom")
PRINTED = {"zord": 0.5, "zord_kept": 0.5, "rgf": 0.5, "prgf": 0.5, "gld": 5.0, "turbo1": 0.8, "turbom": 0.8}
"""Values of the tuned parameters: the paper's, or a method's default where the paper gives none."""

PAPER = {
    "mnist": ("1780 ± 222", "1192 ± 260", "1236 ± 145", "654 ± 70", "747 ± 60", "248 ± 50"),
    "cifar10": ("964 ± 175", "3622 ± 1155", "4133 ± 1525", "638 ± 108", "708 ± 105", "384 ± 59"),
}
PAPERS_METHODS = ("gld", "rgf", "prgf", "turbo1", "turbom", "zord")
"""The columns of Table 1."""


@dataclasses.dataclass(frozen=True)
class Settings:
    """Settings of the attacks.

    Attributes:
        datasets: names of the data sets.
        bounds: ε of each data set.
        methods: the attacking methods.
        images: number of images attacked per seed.
        max_queries: the budget, after which an attack has failed.
        knobs: each method's tuned parameter in the order of ``methods``; if empty, ``PRINTED``.
        side: pixels per side of the stand-in.
        training: training of the victim.
        victim_seed: seed of the victim.
        turbo_points: TuRBO's initial queries, over all regions; None: 2d per region.
        turbo_candidates: number of candidates of Thompson sampling; None: TuRBO's default.
        every: queries between points of a curve.
        tuning_seeds: seeds for ``tune``.
        data: folder of the data sets.
        cache: folder of the trained victims.
    """

    datasets: tuple[str, ...] = ("mnist", "cifar10")
    bounds: tuple[float, ...] = (0.3, 0.2)
    methods: tuple[str, ...] = ("zord", "zord_kept", *BASELINES, "default")
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
        """Returns a method's tuned parameter."""
        return self.knobs[self.methods.index(method)] if self.knobs else PRINTED.get(method, 0.0)

    def titles(self) -> dict[str, str]:
        """Returns the data sets by the titles of their panels."""
        stand_in = "" if self.data else "digits for "
        return {f"{stand_in}{TITLES[name]}, ε = {self.bounds[i]:g}": name for i, name in enumerate(self.datasets)}


QUICK: dict[str, Any] = {
    "side": 8,
    "max_queries": 16,
    "turbo_candidates": 50,
    "every": 4,
    "turbo_points": 12,
    "training": QUICK_TRAINING,
    "cache": "",
}
WITHOUT_TURBO = ("zord", "rgf", "prgf", "gld", "noise", "default")


@lru_cache(maxsize=4)
def task(settings: Settings, dataset: str) -> tuple[Images, Victim | ResNet, torch.Tensor]:
    """Returns the images, the victim, and which test images it classifies correctly."""
    images = load_images(dataset, settings.data, settings.side)
    victim = supplied(folder_of(settings.data, dataset)) if settings.data else None
    victim = victim or trained_victim(images, settings.training, settings.victim_seed, cache=settings.cache)
    return images, victim, predict(victim, images.test) == images.test_labels


def attacks(settings: Settings, dataset: str, seed: int) -> list[Attack]:
    """Returns the seed's attacks on one data set."""
    images, victim, recognized = task(settings, dataset)
    bound = settings.bounds[settings.datasets.index(dataset)]
    picked = chosen(images, recognized, settings.images, seed)
    return [Attack(victim, image, label, bound) for image, label in picked]


def attacker(settings: Settings, method: str, attack: Attack, knob: float, seed: int) -> Optimizer:
    """Creates a method that starts at δ = 0 and stops once f ≤ 0."""
    zero, box = torch.zeros(attack.dimension, dtype=torch.float64), [(-attack.bound, attack.bound)] * attack.dimension
    options: dict[str, Any] = {"bounds": box, "max_queries": settings.max_queries, "target": 0.0}
    if method == "gld":
        options["widest"] = knob
    if method in ("turbo1", "turbom"):
        regions, points = 1 if method == "turbo1" else 10, settings.turbo_points
        options |= {
            "regions": regions,
            "batch_size": 10,
            "initial_points": None if points is None else max(2, points // regions),
            "candidates": settings.turbo_candidates,
            "length_init": knob,
        }
    return search(method, zero, rate=knob, seed=seed, **options)


def queries_to_success(optimizer: Optimizer, attack: Attack) -> tuple[int, bool]:
    """Returns the number of the successful query and True, or the budget and False."""
    values = run(optimizer, Evaluator(attack, batched=True)).history.y
    hits = (values <= 0.0).nonzero().flatten()
    return (int(hits[0]) + 1, True) if len(hits) else (optimizer.max_queries, False)


def run_seed(settings: Settings, seed: int) -> Rows:
    """Runs every method on every image; records the queries to success, or the budget with ``success`` 0."""
    rows: Rows = []
    for dataset in settings.datasets:
        for i, attack in enumerate(attacks(settings, dataset, seed)):
            for method in settings.methods:
                if method == "noise":
                    queries, success = draws_to_success(attack, settings.max_queries, [seed, i])
                else:
                    optimizer = attacker(settings, method, attack, settings.knob(method), seed)
                    queries, success = queries_to_success(optimizer, attack)
                facts: Row = {"seed": seed, "dataset": dataset, "method": method, "image": i, "success": int(success)}
                rows.append({**facts, "value": queries})
    return rows


def draws_to_success(attack: Attack, most: int, seed: Sequence[int]) -> tuple[int, bool]:
    """Returns the number of the first successful δ among uniform ones and True, or ``most`` and False."""
    generator, count = np.random.default_rng(seed), 0
    while count < most:
        size = min(50, most - count)
        delta = torch.from_numpy(generator.uniform(-attack.bound, attack.bound, (size, attack.dimension)))
        hits = (attack(delta) <= 0.0).nonzero().flatten()
        if len(hits):
            return count + int(hits[0]) + 1, True
        count += size
    return most, False


def tune(settings: Settings, method: str) -> dict[float, float]:
    """Returns the mean log10 of the queries over ``tuning_seeds``, images and data sets for each value of the grid."""

    def needed(knob: float, seed: int, dataset: str) -> float:
        tried = attacks(settings, dataset, seed)
        queries = [queries_to_success(attacker(settings, method, one, knob, seed), one)[0] for one in tried]
        return float(np.mean(np.log10(queries)))

    return grid_means(needed, KNOBS[method], settings.tuning_seeds, settings.datasets)


def success_rates(settings: Settings, rows: Rows, dataset: str, method: str) -> tuple[np.ndarray, np.ndarray]:
    """Returns query counts, and each seed's share of images successfully attacked by then, ``seeds x counts``."""
    counts, own = np.arange(0, settings.max_queries + 1, settings.every), where(rows, dataset=dataset, method=method)
    return counts, np.array([success_rate(where(own, seed=seed), "value", counts) for seed in seeds_of(rows)])


def plot_table1(settings: Settings, rows: Rows) -> Figure:
    """Draws each seed's mean over its images and the median over seeds, a panel for each data set."""

    def draw(panel: Axes, dataset: str) -> None:
        found = {method: by_seed(rows, dataset=dataset, method=method) for method in settings.methods}
        draw_strips(panel, found, np.median)
        panel.set_xscale("log")

    return _grid(settings, draw, xlabel="queries to success", ylabel="method", sharex=True, legend=False)


def plot_fig9(settings: Settings, rows: Rows) -> Figure:
    """Draws success rates against queries, a panel for each data set."""

    def draw(panel: Axes, dataset: str) -> None:
        for method in settings.methods:
            counts, shares = success_rates(settings, rows, dataset, method)
            plotting.draw(panel, method, mean_curve(counts, shares.T))
        panel.set_ylim(-0.03, 1.03)

    return _grid(settings, draw, xlabel="queries", ylabel="success rate")


def _grid(settings: Settings, draw: Callable[[Axes, str], None], **options: Any) -> Figure:
    return plotting.grid(settings.titles(), draw, height=1.9, width=plotting.PAGE, sharey=True, **options)


def compared(
    settings: Settings, rows: Rows, lead: Callable[[str, str], np.ndarray], claim: str, statistic: str
) -> list[Verdict]:
    """Judges ZoRD against every baseline on the same images and, as controls, our own methods against these and ZoRD.

    ``lead`` maps a data set and a method to one number per seed, larger for the better method.
    """
    others = [method for method in BASELINES if method in settings.methods]
    pairs = [("zord", other, False) for other in others]
    ours = [method for method in ("zord_kept", "default") if method in settings.methods]
    pairs += [(method, other, True) for method in ours for other in (*others, "zord")]
    pairs += [(method, "noise", True) for method in ("zord", *ours) if "noise" in settings.methods]
    return judge_pairs(pairs, claim, statistic, lead, settings.titles(), above=0.0)


def claims_of_table1(settings: Settings, rows: Rows) -> list[Verdict]:
    """Judges the queries of ZoRD and of our own methods against those of every baseline."""

    def lead(dataset: str, method: str) -> np.ndarray:
        return -np.log10(by_seed(rows, dataset=dataset, method=method))

    return compared(settings, rows, lead, "{} needs fewer queries than {}", "log10 of the ratio of the queries")


def claims_of_fig9(settings: Settings, rows: Rows) -> list[Verdict]:
    """Judges the success rates of ZoRD and of our own methods, over all numbers of queries, against every baseline."""

    def lead(dataset: str, method: str) -> np.ndarray:
        return success_rates(settings, rows, dataset, method)[1].mean(1)

    statistic = "difference of the success rate, mean over the numbers of queries"
    return compared(settings, rows, lead, "{} succeeds more often than {} at equal queries", statistic)


def table(settings: Settings, rows: Rows) -> Table:
    """Lists mean ± sd of the queries, the share of successful attacks, and the printed numbers."""
    columns = ["method"]
    for title, dataset in settings.titles().items():
        columns += [title, "succeeded", f"paper, {TITLES[dataset]}"]
    cells = []
    for method in settings.methods:
        line = [plotting.METHODS[method].label]
        for dataset in settings.datasets:
            won = [int(row["success"]) for row in where(rows, dataset=dataset, method=method)]
            printed = dict(zip(PAPERS_METHODS, PAPER[dataset], strict=True)).get(method, "")
            found = with_sd(by_seed(rows, dataset=dataset, method=method), ".0f", ".0f")
            line += [found, f"{sum(won)} of {len(won)}", printed]
        cells.append(tuple(line))
    caption = f"Queries to success, mean ± sd over seeds; a failed attack counts as {settings.max_queries}."
    return Table(tuple(columns), tuple(cells), caption)


def per_seed(settings: Settings) -> str:
    """Formats the number of images per seed."""
    return f"{counted(settings.images, 'image')} per seed"


VICTIMS = {
    "mnist": "MNIST: a CNN trained for this comparison instead of the networks of Cheng et al.",
    "cifar10": "CIFAR-10: ResNet-20 instead of ResNet-18",
}


def differs(settings: Settings) -> str:
    """Describes how networks and images of a run on real data differ from the paper's."""
    found = []
    for name in settings.datasets:
        count = len(load_images(name, settings.data).test)
        found.append(VICTIMS[name] + f", {count:,} of 10,000 test images" * (count < 10_000))
    return "; ".join(found)


SHARED: dict[str, Any] = {
    "run_seed": run_seed,
    "data": ("mnist", "cifar10"),
    "stand_in": lambda settings: stand_in(settings.datasets, settings.data, settings.side),
    "differs": differs,
    "check": lambda settings: [load_images(name, settings.data, settings.side) for name in settings.datasets],
}

EXPERIMENTS = (
    Experiment(
        id="zord-table1",
        shows=lambda settings: f"queries to a successful black-box attack within an L∞ bound, {per_seed(settings)}",
        claim="RGF, PRGF, GLD, TuRBO-1 and TuRBO-10 need 1.7 to 10.8 times as many queries as ZoRD.",
        scales={
            "paper": Settings(),
            "reduced": Settings(images=3, turbo_candidates=500),
            "quick": Settings(images=1, methods=("zord", "zord_kept", "rgf", "gld", "turbo1", "turbom"), **QUICK),
        },
        plot=plot_table1,
        caption="Each dot is a seed's mean over its images; vertical marks are medians. A failed attack counts as the "
        "budget.",
        claims=claims_of_table1,
        table=table,
        seeds={"reduced": 2, "paper": 5},
        **SHARED,
    ),
    Experiment(
        id="zord-fig9",
        shows=lambda settings: f"success rate of black-box attacks against queries, {per_seed(settings)}",
        claim="At equal queries ZoRD's success rate is considerably higher than those of RGF, PRGF and GLD.",
        scales={
            "paper": Settings(methods=WITHOUT_TURBO),
            "quick": Settings(("mnist",), (0.3,), images=1, methods=WITHOUT_TURBO, **QUICK),
        },
        plot=plot_fig9,
        claims=claims_of_fig9,
        seeds=5,
        **SHARED,
    ),
)
