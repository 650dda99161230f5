"""HiSo, Figure 8: local steps τ, for HiSo and DeComFL.

Readings: see ``experiments.papers.hiso.training``. The rate falls as 1/√τ, as the round's displacement is a sum of τ
steps along random directions. A round costs 8τP bytes, so the second panel has the bytes in its axis.
"""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
from matplotlib.figure import Figure

from experiments.harness import style
from experiments.harness.experiment import Experiment
from experiments.harness.records import Curve, Rows, curve, seeds_of, where
from experiments.harness.verdicts import Verdict, judge
from experiments.papers.hiso.accounting import scalar_only
from experiments.papers.hiso.training import Digits, check, last, train

METHODS = ("hiso", "hiso_scalar", "decomfl")
LINES = ("-", "--", "-.", ":")


@dataclasses.dataclass(frozen=True)
class Settings(Digits):
    """What Figure 8 is drawn with."""

    rounds: int = 500
    local_steps: tuple[int, ...] = (1, 2, 5, 10)


def run_seed(settings: Settings, seed: int) -> Rows:
    """All methods at every τ."""
    rows: Rows = []
    for method in METHODS:
        for tau in settings.local_steps:
            rate = settings.with_data().rate / tau**0.5
            rows += train(settings, method, seed, {"local_steps": tau}, local_steps=tau, rate=rate).rows
    return rows


def plot(settings: Settings, rows: Rows) -> Figure:
    """Accuracy over rounds and over bytes."""
    figure, axes = style.panels(1, 2, width=4.4, height=3.4)
    over_rounds, over_bytes = axes[0]
    for method in METHODS:
        look = style.METHODS[method]
        for tau, line in zip(settings.local_steps, LINES, strict=False):
            found: Curve = curve(where(rows, quantity="accuracy", method=method, local_steps=tau), "round")
            label = f"{look.label}, τ = {tau}"
            cost = scalar_only(settings.perturbations, tau).bytes(1)
            over_rounds.plot(found.x, found.mean, color=look.color, ls=line, label=label)
            over_bytes.plot(found.x * cost, found.mean, color=look.color, ls=line)
    over_rounds.set_xlabel("round")
    over_bytes.set_xlabel("bytes of a client that takes part in every round")
    over_rounds.set_ylabel("test accuracy")
    over_bytes.set_ylabel("test accuracy")
    style.shared_legend(figure, over_rounds, 3)
    return figure


def claims(settings: Settings, rows: Rows) -> list[Verdict]:
    """More local steps at equal rounds, and HiSo against DeComFL and the scalar at each τ."""
    seeds = seeds_of(rows)

    def log_loss(method: str, tau: int) -> np.ndarray:
        return np.log10(last(settings, rows, "loss", method=method, local_steps=tau))

    taus = settings.local_steps
    pairs = list(itertools.pairwise(taus))
    statistic = "log10 of the ratio of the last losses"

    def against(other: str) -> dict[str, np.ndarray]:
        return {f"τ={tau}": log_loss("hiso", tau) - log_loss(other, tau) for tau in taus}

    return [
        judge(
            "more local steps of HiSo lower the loss at equal rounds",
            statistic,
            {f"τ={b} against {a}": log_loss("hiso", b) - log_loss("hiso", a) for a, b in pairs},
            seeds,
            below=0.0,
        ),
        judge(
            "HiSo ends with a lower loss than DeComFL at every τ",
            statistic,
            against("decomfl"),
            seeds,
            below=0.0,
        ),
        judge(
            "HiSo ends with a lower loss than one number in the place of H at every τ",
            statistic,
            against("hiso_scalar"),
            seeds,
            below=0.0,
            control=True,
        ),
    ]


EXPERIMENT = Experiment(
    id="hiso-fig8",
    source="HiSo, Fig. 8",
    shows="local steps τ of HiSo, DeComFL and a scalar H on MNIST, over rounds and bytes",
    claim="HiSo gains from local steps.",
    scales={
        "paper": Settings(),
        "reduced": Settings(rounds=150, every=10, local_steps=(1, 2, 5)),
        "quick": Settings(clients=6, participants=2, rounds=4, every=2, local_steps=(1, 3)),
    },
    run_seed=run_seed,
    plot=plot,
    claims=claims,
    seeds={"reduced": 5, "paper": 10},
    extra="experiments",
    data=("mnist",),
    check=check,
    stand_in="scikit-learn's digits for MNIST, a small MLP for the CNN",
    cost={"paper": "35 min", "reduced": "2 min"},
)
