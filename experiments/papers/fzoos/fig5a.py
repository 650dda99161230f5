"""FZooS, Figure 5a: how many Fourier features the correction needs, C = 5.

Readings as in ``fig1``; M = 100, 300, 1000 and 10,000. In prototypes (d = 50) M made no difference from 500 on.
"""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

from experiments.harness import style
from experiments.harness.experiment import Experiment
from experiments.harness.records import Rows, seeds_of
from experiments.harness.verdicts import Verdict, judge
from experiments.papers.fzoos import comparison
from experiments.papers.fzoos.comparison import THREE_GAMMAS, Settings, log_gap


def plot(settings: Settings, rows: Rows) -> Figure:
    """A column for each M."""
    return comparison.plot(settings, rows, "M = {:g}")


def claims(settings: Settings, rows: Rows) -> list[Verdict]:
    """Whether the most features end lower than the fewest, for each γ."""

    def gained(method: str) -> np.ndarray:
        fewest, most = (log_gap(rows, settings, m, method) for m in (settings.values[0], settings.values[-1]))
        return np.asarray(fewest - most)

    return [
        judge(
            f"more features end lower ({style.METHODS[method].label})",
            f"lead of M = {settings.values[-1]:g} over {settings.values[0]:g} in log10 of the last gap",
            {"all rounds": gained(method)},
            seeds_of(rows),
            above=0.0,
            control=method != "fzoos",
        )
        for method in THREE_GAMMAS
    ]


EXPERIMENT = Experiment(
    id="fzoos-fig5a",
    source="FZooS, Fig. 5a",
    shows="gap of FZooS for four numbers of Fourier features, against rounds and total queries",
    claim="More features make better corrections.",
    scales={
        "paper": Settings("num_features", (100, 300, 1000, 10_000), methods=THREE_GAMMAS),
        "reduced": Settings("num_features", (100, 300, 1000, 10_000), methods=THREE_GAMMAS, rounds=25),
        "quick": Settings("num_features", (20, 100), methods=THREE_GAMMAS, dim=10, clients=3, local_steps=3, rounds=3),
    },
    run_seed=comparison.run_seed,
    plot=plot,
    claims=claims,
    seeds={"quick": 3, "reduced": 2, "paper": 5},
    cost={"paper": "20 min", "reduced": "3 min"},
)
