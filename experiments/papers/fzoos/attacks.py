"""FZooS, Figures 2, 6 and 7: federated attacks on images, with one victim network on each of N = 10 clients.

Figure 2 varies P on CIFAR-10, Figure 6 varies the number T of local steps, and Figure 7 varies both on MNIST. The
victim of client i is trained on the images of P of the ten classes, i to i + P − 1 (cyclic), so that each class is
known to P victims. A smaller P is more heterogeneous. F is the mean of the clients' f_i. An attack succeeds in the
first round after which another class has the largest probability at x_r, averaged over the victims; the evaluations for
this test are not counted as queries.

The paper uses N = 10, R = 100, T = 10 unless T is varied, and 15 images that all victims classify correctly. The
paper's P is a share of the ten classes, drawn at random for each client. The paper's f_i is the logit of the true class
minus the largest other logit, and an attack succeeds if the victims' averaged output misclassifies the image. MNIST
victims are CNNs with two convolutions and two linear layers; CIFAR-10 victims are ResNet-18.

Our choices where the paper gives no details: P counts classes. The attacked images are those that the mean of the
victims' probabilities classifies correctly, because a victim cannot recognize a class that it has not seen. f_i is
log(1 + exp(margin)) with the paper's f_i as the margin, so that victims that do not know the class have little weight.
All victims are the small CNN. The paper gives neither the bound nor the grids of P and T: we use ZoRD's ε = 0.3 for
MNIST and 0.2 for CIFAR-10; P = 3, 5, 8 with T = 10; and T = 5, 10, 20 with P = 5. The perturbation δ is searched as z
in the unit cube. Q = 20 (and also 5 at equal queries) and λ = 0.01 as in Figure 1. Adam's rate is the best of ``RATES``
on the digits of ``tuning_seeds``, which no figure uses, for FZooS with γ = 1/t, FedZO and SCAFFOLD II. FZooS with other
γ has FZooS's rate, the other baselines FedZO's. We add FZooS with a settling rate (``beyond-plateau``).

A baseline with Q = 20 makes 2,100 queries in a round with T = 10, so 100 rounds cost 210,000 queries per image. All
methods on 15 images, five panels and five seeds make some billion queries. The reduced scale has T = 5 and 10 rounds.

Without ``--data`` the same digits replace both data sets, so Figure 7 has other seeds (``FIRST_SEED``).

At the reduced scale Figures 6 and 7 have 72 attacks on real images. FZooS succeeds in 19 with γ = 1/t and in 31 with
the adaptive γ, FedZO in 47 with Q = 20 and in 32 with Q = 5, which has as many queries in a round as FZooS. The
adaptive γ differs in γ alone, so most of FZooS's loss at equal queries is due to the correction along the averaged
Fourier surrogates.
"""

from __future__ import annotations

import dataclasses
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from experiments.harness.curves import matrix, name_lines
from experiments.harness.experiment import Experiment, counted
from experiments.harness.records import grid_means
from experiments.harness.verdicts import Verdict
from experiments.papers.fzoos import comparison
from experiments.papers.fzoos.comparison import BASELINES, variants
from experiments.workloads.attack import Attack, chosen, fooled, success_rate
from experiments.workloads.cache import FOLDER
from experiments.workloads.images import TITLES, Images, load_images, stand_in
from experiments.workloads.unit_box import InUnitBox, UnitBoxProblem
from experiments.workloads.victims import CLASSES, FULL, Training, Victim, trained_victim
from experiments.workloads.victims import QUICK as QUICK_TRAINING
from optimizers.comparison.records import Row, Rows, seeds_of, where
from surrogates import plotting

RATES = (0.01, 0.02, 0.05, 0.1)

Panels = tuple[tuple[int, int], ...]
"""P and T of each column of panels."""


@dataclasses.dataclass(frozen=True)
class Settings:
    """Settings of one figure.

    Attributes:
        dataset: name of the data set.
        panels: P and T of each column of panels.
        methods: variants of FZooS and baselines.
        rates: Adam's rate for each method; if empty, 0.01 for all.
        clients: N.
        rounds: R.
        images: number of images attacked per seed.
        bound: ε.
        num_features: M.
        directions: Q of the baselines: first the value for the figure, then further values for equal queries.
        side: pixels per side of the stand-in.
        training: training of the victims.
        tuning_seeds: seeds of the images that ``tune`` attacks.
        data: folder of the data sets.
        cache: folder of the trained victims.
    """

    dataset: str = "cifar10"
    panels: Panels = ((3, 10), (5, 10), (8, 10))
    methods: tuple[str, ...] = comparison.APPLIED
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
        """Returns the options of a method with Q directions."""
        rate = self.rates[self.methods.index(method)] if self.rates else 0.01
        rule = {"update_rule": lambda p: torch.optim.Adam([p], lr=rate)}
        return rule | comparison.options_of(method, self.num_features, directions)


IMAGES: dict[str, dict[str, Any]] = {
    "cifar10": {"dataset": "cifar10", "bound": 0.2, "side": 32},
    "mnist": {"dataset": "mnist", "bound": 0.3, "side": 28},
}
FULL_TRAINING = {"mnist": 60_000, "cifar10": 50_000}
"""Number of training images of each data set."""

EPOCHS = {"mnist": 2, "cifar10": 20}
"""Epochs of the victims at the reduced scale."""

REDUCED: dict[str, Any] = {
    "rates": (0.05,) * 3 + (0.1,) * len(BASELINES),
    "rounds": 10,
    "images": 3,
    "num_features": 300,
}
"""Settings for two cores, used with T = 5."""

FIRST_SEED = {"cifar10": 0, "mnist": 50_000}
"""Offsets of the seeds of victims and images; both stand-ins have the same images."""

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


def classes_of(client: int, count: int) -> tuple[int, ...]:
    """Returns the P classes on which the victim network of a client is trained."""
    return tuple(sorted((client + k) % CLASSES for k in range(count)))


@lru_cache(maxsize=8)
def victims(settings: Settings, count: int) -> tuple[Images, list[Victim], Tensor]:
    """Returns the images, the clients' victims for P = ``count``, and whether their mean recognizes each test image."""
    images, training = load_images(settings.dataset, settings.data, settings.side), settings.training
    clients, first = range(settings.clients), FIRST_SEED[settings.dataset]
    found = [trained_victim(images, training, first + i, classes_of(i, count), settings.cache) for i in clients]
    pixels = images.test.double()
    probabilities = sum(torch.cat([v.logits(part) for part in pixels.split(1000)]).softmax(-1) for v in found)
    assert isinstance(probabilities, Tensor)
    return images, found, probabilities.argmax(-1) == images.test_labels


def attacks(settings: Settings, count: int, seed: int) -> list[list[Attack]]:
    """Returns the clients' attacks on each of the seed's images, with victims that know P = ``count`` classes."""
    images, found, recognized = victims(settings, count)
    picked = chosen(images, recognized, settings.images, FIRST_SEED[settings.dataset] + seed)
    return [[Attack(v, image, label, settings.bound, smooth=True) for v in found] for image, label in picked]


def attacked(
    settings: Settings, clients: list[Attack], method: str, directions: int, local_steps: int, seed: int
) -> Row:
    """Runs one attack; returns rounds, queries and F at the first success, or after all rounds."""
    options, problem = settings.options(method, directions), UnitBoxProblem([InUnitBox(client) for client in clients])
    federation = comparison.federation_of(
        problem, method, local_steps=local_steps, seed=seed, options=options, batched=True
    )
    success = False
    while federation.rounds < settings.rounds and not success:
        federation.run_round()
        success = fooled(clients, problem.clients[0].centred(federation.server.x))
    queries = federation.history[-1].queries
    rounds, last = federation.rounds, problem.gap(federation.server.x)
    return {"success": int(success), "num_queries": queries, "rounds": rounds, "value": last}


def run_seed(settings: Settings, seed: int) -> Rows:
    """Runs all methods on all images in all panels; ``value`` is F at the last iterate."""
    rows: Rows = []
    for count, local_steps in settings.panels:
        for i, clients in enumerate(attacks(settings, count, seed)):
            for method, directions in variants(settings.methods, settings.directions):
                key: Row = {"seed": seed, "classes": count, "local_steps": local_steps, "image": i}
                key |= {"method": method, "directions": directions}
                rows.append(key | attacked(settings, clients, method, directions, local_steps, seed))
    return rows


def tune(settings: Settings, method: str) -> dict[float, float]:
    """Returns the mean rounds to success over ``tuning_seeds``, images and panels for each rate, at the figure's Q."""
    ((_, directions),) = variants((method,), settings.directions[:1])

    def rounds(rate: float, seed: int, panel: tuple[int, int]) -> float:
        one, (count, local_steps) = dataclasses.replace(settings, rates=(rate,) * len(settings.methods)), panel
        runs = [attacked(one, found, method, directions, local_steps, seed) for found in attacks(one, count, seed)]
        return float(np.mean([float(row["rounds"]) for row in runs]))

    return grid_means(rounds, RATES, settings.tuning_seeds, settings.panels)


def success_rates(
    settings: Settings, rows: Rows, panel: tuple[int, int], method: str, directions: int, x: str
) -> tuple[np.ndarray, np.ndarray]:
    """Returns counts along an axis, shape ``n``, and each seed's share of images that succeed by then, ``seeds x n``.

    The axis x is ``"rounds"``, or ``"num_queries"`` up to the largest number that any method made in the panel (P, T).
    """
    chosen = where(rows, classes=panel[0], local_steps=panel[1])
    most = max(float(row["num_queries"]) for row in chosen)
    counts = np.arange(settings.rounds + 1) if x == "rounds" else np.linspace(0.0, most, 51)
    own = where(chosen, method=method, directions=directions)
    return counts, np.array([success_rate(where(own, seed=seed), x, counts) for seed in seeds_of(rows)])


def plot(settings: Settings, rows: Rows) -> Figure:
    """Draws rounds (top) and queries (bottom) until success, one line of dots per method, with the success rate."""
    axes_of = {"rounds": "rounds", "num_queries": "total queries"}

    def draw(panel: Axes, key: str, column: tuple[int, int]) -> None:
        count, local_steps = column
        for i, (method, q) in enumerate(variants(settings.methods, settings.directions[:1])):
            found = where(rows, classes=count, local_steps=local_steps, method=method, directions=q)
            _draw_attacks(panel, found, key, -i, plotting.METHODS[method].color)
        name_lines(panel, settings.methods)
        panel.set_xlabel(axes_of[key])
        least, most = (f(float(row[key]) for row in rows) for f in (min, max))
        if key == "rounds":
            panel.set_xlim(0.0, 1.4 * most)  # the success rates stand at the right
            panel.locator_params(axis="x", nbins=3, integer=True)
        else:
            panel.set(xscale="log", xlim=(least / 1.5, most * (most / least) ** 0.4))

    columns = {f"P = {count}, T = {local_steps}": (count, local_steps) for count, local_steps in settings.panels}
    size: dict[str, Any] = {"height": 1.7, "width": plotting.PAGE, "sharex": "row", "sharey": True}
    return matrix([*axes_of], columns, draw, ylabels="method", legend=False, **size)


def _draw_attacks(panel: Axes, found: Rows, key: str, at: float, color: str) -> None:
    needed = np.sort([float(row[key]) for row in found if row["success"]])
    rank = np.array([(needed[:i] == value).sum() for i, value in enumerate(needed)], dtype=int)
    apart = min(0.16, 0.7 / max(rank.max(initial=0), 1))
    panel.plot(needed, at + apart * rank - 0.25, ls="", color=color, marker="o", ms=2.0)
    right: Any = {"transform": panel.get_yaxis_transform(), "va": "center", "ha": "right", "fontsize": plotting.SMALL}
    panel.text(1.0, at, f"{100 * len(needed) / max(len(found), 1):.0f}%", **right)


def claims(settings: Settings, rows: Rows) -> list[Verdict]:
    """Judges the success rates of FZooS against those of every baseline, over rounds and over queries."""

    def lead(method: str, equal: str) -> dict[str, np.ndarray]:
        cells, x = {}, "num_queries" if equal == "queries" else "rounds"
        directions = settings.directions if equal == "queries" else settings.directions[:1]
        for panel in settings.panels:
            ours = success_rates(settings, rows, panel, method, 0, x)[1].mean(1)
            for baseline, q in variants([m for m in settings.methods if m in BASELINES], directions):
                label = f"P = {panel[0]}, T = {panel[1]}, {plotting.METHODS[baseline].label}, Q = {q}"
                cells[label] = ours - success_rates(settings, rows, panel, baseline, q, x)[1].mean(1)
        return cells

    return comparison.against_baselines(
        settings.methods,
        lead,
        "{0} succeeds more often than every baseline at equal {1}",
        "difference of the success rate, mean over the {1}",
    )


def said(settings: Settings) -> str:
    """Describes the figure by the values of P and T."""
    counts, steps = (sorted(set(values)) for values in zip(*settings.panels, strict=True))
    over = " and ".join(f"{name} = {', '.join(map(str, values))}" for name, values in (("P", counts), ("T", steps)))
    per = f"{counted(settings.images, 'image')} per seed"
    where = f"on {TITLES[settings.dataset]}"
    return f"success rate of federated attacks {where}, {over}, {per}, against rounds and total queries"


def differs(settings: Settings) -> str:
    """Describes how networks and images of a run on real data differ from the paper's; empty if they do not."""
    images = load_images(settings.dataset, settings.data)
    found = ["small CNNs instead of ResNet-18"] * (settings.dataset == "cifar10")
    pairs = (("test", len(images.test), 10_000), ("training", len(images.train), FULL_TRAINING[settings.dataset]))
    found += [f"{count:,} of {full:,} {name} images" for name, count, full in pairs if count < full]
    return ", ".join(found)


def experiment(number: int, dataset: str, every: str, panels: Panels, quick: Panels) -> Experiment:
    """Returns one of the figures: its number, data set, varied quantity, and P and T of each column."""
    images, training = IMAGES[dataset], Training(epochs=EPOCHS[dataset])
    few = tuple((p, comparison.FEWER_STEPS[t]) for p, t in panels)
    return Experiment(
        id=f"fzoos-fig{number}",
        shows=said,
        claim=f"FZooS succeeds with fewer rounds and queries than FedZO, FedProx and SCAFFOLD, for every {every}.",
        scales={
            "paper": Settings(panels=panels, **images),
            "reduced": Settings(panels=few, training=training, **images | REDUCED),
            "quick": Settings(panels=quick, **images | QUICK),
        },
        run_seed=run_seed,
        plot=plot,
        caption="Each dot is a successful attack, over all seeds and images; coinciding dots are stacked. The number "
        "on the right is the share of attacks that succeeded. Queries are summed over all clients until the success.",
        claims=claims,
        seeds={"quick": 3, "reduced": 3, "paper": 5},
        data=(dataset,),
        stand_in=lambda settings: stand_in((dataset,), settings.data, settings.side),
        differs=differs,
        check=lambda settings: load_images(dataset, settings.data, settings.side),
    )


EXPERIMENTS = (
    experiment(2, "cifar10", "P", ((3, 10), (5, 10), (8, 10)), ((3, 2), (8, 2))),
    experiment(6, "cifar10", "T", ((5, 5), (5, 10), (5, 20)), ((8, 2), (8, 3))),
    experiment(7, "mnist", "P and T", ((3, 10), (5, 10), (8, 10), (5, 5), (5, 20)), ((8, 2),)),
)
