"""FZooS, Figure 3: cosine between the directions of local steps and ∇F, within a round of T = 20 steps.

The figure shows the cosine between a client's step direction and ∇F at its iterate, averaged over the clients and over
the steps of the round so far. FZooS makes 5 active queries per step, the baselines 20. The paper does not say which
round it shows. All rounds are recorded; the first, in which only SCAFFOLD I has a correction, is drawn beside the last.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from experiments.harness.curves import draw_methods
from experiments.harness.experiment import Experiment
from experiments.harness.records import distinct
from experiments.harness.verdicts import Verdict, judge
from experiments.papers.fzoos.comparison import BASELINES, THREE_GAMMAS, federation_of, options_of, shown
from experiments.papers.fzoos.quadratics import Federated, quadratics
from optimizers.comparison.records import Rows, by_seed
from surrogates import plotting


@dataclasses.dataclass(frozen=True)
class Settings:
    """Settings of Figure 3.

    Attributes:
        methods: variants of FZooS and baselines.
        dim: d.
        clients: N.
        local_steps: T.
        rounds: R.
        heterogeneity: C.
        num_features: M.
        directions: Q of the baselines.
    """

    methods: tuple[str, ...] = THREE_GAMMAS + BASELINES
    dim: int = 300
    clients: int = 5
    local_steps: int = 20
    rounds: int = 5
    heterogeneity: float = 5.0
    num_features: int = 10_000
    directions: int = 20


def cosines(problem: Federated, method: str, settings: Settings, seed: int) -> Tensor:
    """Returns the cosine of each step with ∇F, ``rounds x clients x T``."""
    found: list[Tensor] = []

    def recorded(p: Tensor) -> torch.optim.Optimizer:
        def record(*_: Any) -> None:
            assert p.grad is not None
            found.append(torch.cosine_similarity(p.grad.detach(), problem.mean.gradient(p.detach()), dim=0))

        rule = torch.optim.Adam([p], lr=0.01)
        rule.register_step_pre_hook(record)
        return rule

    options = options_of(method, settings.num_features, settings.directions) | {"update_rule": recorded}
    federation = federation_of(problem, method, local_steps=settings.local_steps, seed=seed, options=options)
    for _ in range(settings.rounds):
        federation.run_round()
    return torch.stack(found).reshape(settings.rounds, settings.clients, settings.local_steps)


def run_seed(settings: Settings, seed: int) -> Rows:
    """Records the cumulative means of the cosines for every method and round."""
    problem = quadratics(settings.dim, settings.clients, settings.heterogeneity, seed)
    rows: Rows = []
    for method in settings.methods:
        running = cosines(problem, method, settings, seed).mean(1).cumsum(-1)
        for (r, t), total in np.ndenumerate(running.numpy()):
            mean = float(total) / (t + 1)
            rows.append({"seed": seed, "method": method, "round": r + 1, "step": t + 1, "value": mean})
    return rows


def _drawn(settings: Settings, rows: Rows, methods: Sequence[str]) -> Figure:
    """Draws the cosines over the local steps of the first and the last round."""

    def draw(panel: Axes, r: int) -> None:
        draw_methods(panel, rows, "step", methods, round=r)
        panel.locator_params(axis="x", integer=True)

    return plotting.grid(
        {f"round {r}": r for r in (1, settings.rounds)},
        draw,
        columns=2,
        xlabel="local steps",
        ylabel="cosine with ∇F, mean so far",
        height=2.0,
        sharey=True,
    )


def claims(settings: Settings, rows: Rows) -> list[Verdict]:
    """Judges FZooS against every baseline over the whole last round."""
    steps = max(int(step) for step in distinct(rows, "step"))

    def mean(method: str) -> np.ndarray:
        return by_seed(rows, method=method, round=settings.rounds, step=steps)

    verdicts, others = [], [method for method in BASELINES if method in settings.methods]
    for method in THREE_GAMMAS:
        name, statistic, control = plotting.METHODS[method].label, "difference of mean cosines", method != "fzoos"
        claim = f"the mean cosine of {name} in round {settings.rounds} is above every baseline's"
        leads = {plotting.METHODS[other].label: mean(method) - mean(other) for other in others}
        verdicts.append(judge(claim, statistic, leads, above=0.0, control=control))
    return verdicts


EXPERIMENT = Experiment(
    id="fzoos-fig3",
    shows="cosine between the directions of local steps and the global gradient within a round",
    claim="FZooS's directions are closer to the global gradient, with fewer queries.",
    scales={"paper": Settings(), "quick": Settings(dim=10, clients=3, local_steps=3, rounds=2, num_features=100)},
    run_seed=run_seed,
    plot=lambda settings, rows: _drawn(settings, rows, shown(settings.methods)),
    plot_more=lambda settings, rows: _drawn(settings, rows, [m for m in settings.methods if m in THREE_GAMMAS]),
    claims=claims,
    seeds={"quick": 3, "reduced": 3, "paper": 5},
)
