"""FZooS, Figure 5b: what adapting the correction gives: γ = 1/t against γ = 1, and x' = x'' = x_{t−1} against x_{r−1}.

M = 1000, as the paper's; readings as in ``fig1``. The adaptive γ stands beside the paper's.
"""

from __future__ import annotations

from matplotlib.figure import Figure

from experiments.harness.experiment import Experiment
from experiments.harness.records import Rows, seeds_of
from experiments.harness.verdicts import Verdict, judge
from experiments.papers.fzoos import comparison
from experiments.papers.fzoos.comparison import FZOOS, Settings, apart

METHODS = tuple(FZOOS)
AGAINST = {
    "γ = 1/t ends below γ = 1": ("fzoos", "fzoos_one", False),
    "with γ = 1/t a correction at the iterate ends below one at x_{r−1}": ("fzoos", "fzoos_start", False),
    "with γ = 1 a correction at the iterate ends below one at x_{r−1}": ("fzoos_one", "fzoos_one_start", True),
    "the adaptive γ ends below γ = 1/t": ("fzoos_adaptive", "fzoos", True),
}


def plot(settings: Settings, rows: Rows) -> Figure:
    """A column for each heterogeneity."""
    return comparison.plot(settings, rows, "C = {:g}")


def claims(settings: Settings, rows: Rows) -> list[Verdict]:
    """Each choice against its alternative, in every column."""
    return [
        judge(
            claim,
            "lead in log10 of the last gap",
            apart(rows, settings, better, worse),
            seeds_of(rows),
            above=0.0,
            control=control,
        )
        for claim, (better, worse, control) in AGAINST.items()
    ]


EXPERIMENT = Experiment(
    id="fzoos-fig5b",
    source="FZooS, Fig. 5b",
    shows="gap of FZooS with other choices of γ and of where corrections are taken",
    claim="Corrections that adapt, in length and place, end lower than fixed ones.",
    scales={
        "paper": Settings("heterogeneity", (0.5, 5.0, 50.0), methods=METHODS, num_features=1000),
        "reduced": Settings("heterogeneity", (0.5, 5.0, 50.0), methods=METHODS, num_features=1000, rounds=25),
        "quick": Settings(
            "heterogeneity",
            (0.5, 50.0),
            methods=METHODS,
            dim=10,
            clients=3,
            local_steps=3,
            rounds=3,
            num_features=100,
        ),
    },
    run_seed=comparison.run_seed,
    plot=plot,
    claims=claims,
    seeds={"quick": 3, "reduced": 2, "paper": 5},
    cost={"paper": "20 min", "reduced": "4 min"},
)
