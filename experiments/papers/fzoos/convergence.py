"""FZooS, Figures 1, 3, 4, 5a and 5b: the gap on heterogeneous quadratics, and the directions of local steps.

*Figure 1* varies the heterogeneity C, *Figure 4* the number T of local steps, and *Figure 5a* the number M of Fourier
features; all show the gap against rounds and total queries. *Figure 5b*, with M = 1000, compares γ = 1/t with γ = 1,
and corrections at x' = x'' = x_{t−1} with corrections at x_{r−1}. The paper shows Figure 5a for several C; it prefers
many features if C is large and fewer for C ≤ 5. For Figure 5b it prefers fixed corrections at C = 50.

*Figure 3* shows the cosine between a client's step direction and ∇F at its iterate, averaged over the clients and over
the steps of the round so far, within a round of T = 20 steps. FZooS makes 5 active queries per step, the baselines 20.
The paper does not say which round it shows. All rounds are recorded; the first, in which only SCAFFOLD I has a
correction, is drawn beside the last.

Our choices where the paper gives no details: Figures 4 and 5a use C = 5; their T and M are ours. The paper gives the
update rule, Adam with rate 0.01 (Appx. G). The paper does not give the baselines' Q in these figures, the start, or
whether Adam is reset every round. Q = 20 is from Figure 3 and λ = 0.01 from the authors' program. A second run of the
baselines with Q = 5, which needs about as many queries as FZooS, is added to the comparison at equal queries. Adam is
reset every round, which was best for the baselines at equal queries on a seed that no figure uses. The start is uniform
in the box. ℓ = 1 is the paper's, although a larger ℓ suits FZooS better. The paper's γ is 1/t; γ = 1 and the adaptive γ
are our additions.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from functools import partial
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
from experiments.papers.fzoos import comparison
from experiments.papers.fzoos.comparison import BASELINES, FIVE_GAMMAS, THREE_GAMMAS, Settings, leads, log_gap, over
from experiments.papers.fzoos.quadratics import Federated, quadratics
from optimizers.comparison.records import Rows, by_seed
from surrogates import plotting

MODERATE = 5.0
"""The largest C at which every γ is expected to lead."""

TOLERATED = 0.25
"""Largest regret of the adaptive γ against the better fixed γ, in log10."""

CORRECTIONS = {
    "γ = 1/t ends below γ = 1": ("fzoos", "fzoos_one", False),
    "with γ = 1/t a correction at the iterate ends below one at x_{r−1}": ("fzoos", "fzoos_start", False),
    "with γ = 1 a correction at the iterate ends below one at x_{r−1}": ("fzoos_one", "fzoos_one_start", True),
    "the adaptive γ ends below γ = 1/t": ("fzoos_adaptive", "fzoos", True),
}
"""Claims of Figure 5b for C up to ``MODERATE``: the better variant, the worse one, and whether the claim is ours."""

HIGH_CORRECTIONS = {
    "γ = 1, corrected at x_{r−1}, ends below γ = 1/t, corrected at the iterate": ("fzoos_one_start", "fzoos", False),
    "with γ = 1/t a correction at x_{r−1} ends below one at the iterate": ("fzoos_start", "fzoos", True),
    "γ = 1/t ends below γ = 1": ("fzoos", "fzoos_one", True),
    "the adaptive γ ends below γ = 1/t": ("fzoos_adaptive", "fzoos", True),
}
"""Claims of Figure 5b for larger C. We take the paper's "fixed" to mean fixed in length and in place."""

LEAD = "lead in log10 of the gap"
AGAINST = "against rounds and total queries"
SEEDS = {"quick": 3, "reduced": 2, "paper": 5}
QUICK: dict[str, Any] = {"dim": 10, "clients": 3, "local_steps": 3, "rounds": 3, "num_features": 100}


def problem_of(settings: Settings, seed: int) -> Federated:
    """Returns the quadratics of a panel's settings and a seed."""
    return quadratics(settings.dim, settings.clients, settings.heterogeneity, seed, settings.noise)


def run_seed(settings: Settings, seed: int) -> Rows:
    """Records gap and queries after each round for all methods in all panels."""
    return comparison.run_panels(settings, seed, problem_of)


def by_size(settings: Settings) -> list[list[float]]:
    """Returns the values of C up to ``MODERATE``, and the larger ones."""
    return [[value for value in settings.values if (value > MODERATE) == large] for large in (False, True)]


def claims_on_heterogeneity(settings: Settings, rows: Rows) -> list[Verdict]:
    """Judges FZooS against every baseline at equal queries and rounds, and the three γ against each other."""
    verdicts, regret = [], {}
    for method, values in itertools.product(THREE_GAMMAS, filter(None, by_size(settings))):
        claim = f"{{0}} is below every baseline at equal {{1}} (C = {', '.join(f'{value:g}' for value in values)})"
        verdicts += comparison.against_baselines((method,), partial(leads, rows, settings, values), claim, LEAD)
    for value in settings.values:
        inverse, one, adaptive = (log_gap(rows, settings, value, method) for method in THREE_GAMMAS)
        regret[f"C = {value:g}"] = np.asarray(adaptive - min(inverse, one, key=np.mean))
    claim = f"the adaptive γ is within {TOLERATED} of the better fixed one"
    return [*verdicts, judge(claim, "regret in log10 of the last gap", regret, below=TOLERATED, control=True)]


def claims_on_local_steps(settings: Settings, rows: Rows) -> list[Verdict]:
    """Judges FZooS against every baseline at equal queries and rounds, for every T."""
    lead = partial(leads, rows, settings, settings.values)
    claim = "{0} is below every baseline at equal {1} for every T"
    return comparison.against_baselines(settings.methods, lead, claim, LEAD)


def claims_on_features(settings: Settings, rows: Rows) -> list[Verdict]:
    """Judges for each γ whether runs with the most features end lower than runs with the fewest."""
    fewest, most, verdicts = settings.values[0], settings.values[-1], []
    statistic = f"lead of M = {most:g} over {fewest:g} in log10 of the last gap"
    for method in THREE_GAMMAS:
        claim = f"more features end lower at C = {settings.heterogeneity:g} ({plotting.METHODS[method].label})"
        lead = {"all rounds": log_gap(rows, settings, fewest, method) - log_gap(rows, settings, most, method)}
        verdicts.append(judge(claim, statistic, lead, above=0.0, control=method != "fzoos"))
    return verdicts


def claims_on_corrections(settings: Settings, rows: Rows) -> list[Verdict]:
    """Judges each correction against its alternative, for moderate and for large C."""
    verdicts = []
    for corrections, values in zip((CORRECTIONS, HIGH_CORRECTIONS), by_size(settings), strict=True):
        for claim, (better, worse, control) in corrections.items() if values else ():
            ends = {value: [log_gap(rows, settings, value, method) for method in (worse, better)] for value in values}
            lead = {f"{settings.varied} {value:g}": first - second for value, (first, second) in ends.items()}
            said = f"{claim} (C = {', '.join(f'{value:g}' for value in values)})"
            verdicts.append(judge(said, "lead in log10 of the last gap", lead, above=0.0, control=control))
    return verdicts


def scales(paper: Settings, few: tuple[float, ...], **reduced: Any) -> dict[str, Settings]:
    """Returns the settings of the paper's, the reduced and the quick scale."""
    return {
        "paper": paper,
        "reduced": dataclasses.replace(paper, **reduced),
        "quick": dataclasses.replace(paper, values=few, **QUICK),
    }


SHARED: dict[str, Any] = {
    "run_seed": run_seed,
    "plot": comparison.plot,
    "plot_more": comparison.plot_more,
    "caption": comparison.caption,
}


@dataclasses.dataclass(frozen=True)
class Fig3:
    """Settings of Figure 3, with the names of ``comparison.Settings`` and one Q."""

    methods: tuple[str, ...] = THREE_GAMMAS + BASELINES
    dim: int = 300
    clients: int = 5
    local_steps: int = 20
    rounds: int = 5
    heterogeneity: float = 5.0
    num_features: int = 10_000
    directions: int = 20


def cosines(problem: Federated, method: str, settings: Fig3, seed: int) -> Tensor:
    """Returns the cosine of each step with ∇F, ``rounds x clients x T``."""
    found: list[Tensor] = []

    def recorded(p: Tensor) -> torch.optim.Optimizer:
        def record(*_: Any) -> None:
            assert p.grad is not None
            found.append(torch.cosine_similarity(p.grad.detach(), problem.mean.gradient(p.detach()), dim=0))

        rule = torch.optim.Adam([p], lr=0.01)
        rule.register_step_pre_hook(record)
        return rule

    options = comparison.options_of(method, settings.num_features, settings.directions) | {"update_rule": recorded}
    federation = comparison.federation_of(problem, method, local_steps=settings.local_steps, seed=seed, options=options)
    for _ in range(settings.rounds):
        federation.run_round()
    return torch.stack(found).reshape(settings.rounds, settings.clients, settings.local_steps)


def run_fig3(settings: Fig3, seed: int) -> Rows:
    """Records the cumulative means of the cosines for every method and round."""
    problem = quadratics(settings.dim, settings.clients, settings.heterogeneity, seed)
    rows: Rows = []
    for method in settings.methods:
        running = cosines(problem, method, settings, seed).mean(1).cumsum(-1)
        for (r, t), total in np.ndenumerate(running.numpy()):
            mean = float(total) / (t + 1)
            rows.append({"seed": seed, "method": method, "round": r + 1, "step": t + 1, "value": mean})
    return rows


def plot_fig3(settings: Fig3, rows: Rows, methods: Sequence[str]) -> Figure:
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


def claims_on_directions(settings: Fig3, rows: Rows) -> list[Verdict]:
    """Judges FZooS's mean cosine in the last round against every baseline's."""
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


EXPERIMENTS = (
    Experiment(
        id="fzoos-fig1",
        shows=lambda settings: (
            f"gap of FZooS and its baselines on heterogeneous quadratics, {over(settings)}, {AGAINST}"
        ),
        claim="FZooS needs fewer rounds and fewer queries than FedZO, FedProx and SCAFFOLD at every heterogeneity.",
        scales=scales(Settings("heterogeneity", (0.5, 5.0, 50.0)), (0.5, 50.0), values=(5.0,)),
        claims=claims_on_heterogeneity,
        seeds={"quick": 3, "reduced": 5, "paper": 5},
        **SHARED,
    ),
    Experiment(
        id="fzoos-fig3",
        shows="cosine between the directions of local steps and the global gradient within a round",
        claim="FZooS's directions are closer to the global gradient, with fewer queries.",
        scales={"paper": Fig3(), "quick": Fig3(dim=10, clients=3, local_steps=3, rounds=2, num_features=100)},
        run_seed=run_fig3,
        plot=lambda settings, rows: plot_fig3(settings, rows, comparison.shown(settings.methods)),
        plot_more=lambda settings, rows: plot_fig3(settings, rows, [m for m in settings.methods if m in THREE_GAMMAS]),
        claims=claims_on_directions,
        seeds={"quick": 3, "reduced": 3, "paper": 5},
    ),
    Experiment(
        id="fzoos-fig4",
        shows=lambda settings: (
            f"gap of FZooS and its baselines for several numbers of local steps, {over(settings)}, {AGAINST}"
        ),
        claim="FZooS leads for every number of local steps.",
        scales=scales(Settings("local_steps", (5, 10, 20)), (2, 4), rounds=25),
        claims=claims_on_local_steps,
        seeds=SEEDS,
        **SHARED,
    ),
    Experiment(
        id="fzoos-fig5a",
        shows=lambda settings: (
            f"gap of FZooS for several numbers of Fourier features, {over(settings)}, against rounds"
        ),
        claim="More features are preferred if C is large; for C ≤ 5 a moderate number is competitive.",
        scales=scales(Settings("num_features", (100, 300, 1000, 10_000), methods=THREE_GAMMAS), (20, 100), rounds=25),
        claims=claims_on_features,
        seeds=SEEDS,
        **SHARED,
    ),
    Experiment(
        id="fzoos-fig5b",
        shows=lambda settings: f"gap of FZooS for different γ and different points of correction, {over(settings)}",
        claim="Corrections with adaptive length and point are better than fixed ones, except at C = 50.",
        scales=scales(
            Settings("heterogeneity", (0.5, 5.0, 50.0), methods=FIVE_GAMMAS, num_features=1000), (0.5, 50.0), rounds=25
        ),
        claims=claims_on_corrections,
        seeds=SEEDS,
        **SHARED,
    ),
)
