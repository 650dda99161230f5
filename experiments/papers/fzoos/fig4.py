"""FZooS, Figure 4: federated baselines on quadratics, C = 5, with three numbers of local steps.

Readings as in ``fig1``; T = 5, 10 and 20.
"""

from __future__ import annotations

from matplotlib.figure import Figure

from experiments.harness import style
from experiments.harness.experiment import Experiment
from experiments.harness.records import Rows, seeds_of
from experiments.harness.verdicts import Verdict, judge
from experiments.papers.fzoos import comparison
from experiments.papers.fzoos.comparison import THREE_GAMMAS, Settings, leads


def plot(settings: Settings, rows: Rows) -> Figure:
    """A column for each T."""
    return comparison.plot(settings, rows, "T = {:g}")


def claims(settings: Settings, rows: Rows) -> list[Verdict]:
    """FZooS against every baseline at equal queries and rounds, for every T."""
    return [
        judge(
            f"{style.METHODS[method].label} is below every baseline at equal {equal} for every T",
            "lead in log10 of the gap",
            leads(rows, settings, settings.values, method, equal=equal),
            seeds_of(rows),
            above=0.0,
            control=method != "fzoos",
        )
        for method in THREE_GAMMAS
        for equal in ("queries", "rounds")
    ]


EXPERIMENT = Experiment(
    id="fzoos-fig4",
    source="FZooS, Fig. 4",
    shows="gap of FZooS and its baselines for three numbers of local steps, against rounds and total queries",
    claim="FZooS leads whatever the number of local steps is.",
    scales={
        "paper": Settings("local_steps", (5, 10, 20)),
        "reduced": Settings("local_steps", (5, 10, 20), rounds=25),
        "quick": Settings("local_steps", (2, 4), dim=10, clients=3, rounds=3, num_features=100),
    },
    run_seed=comparison.run_seed,
    plot=plot,
    claims=claims,
    seeds={"quick": 3, "reduced": 2, "paper": 5},
    cost={"paper": "45 min", "reduced": "6 min"},
)
