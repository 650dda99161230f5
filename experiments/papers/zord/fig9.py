"""ZoRD, Figure 9: share of 15 images that are attacked with success, against queries.

See ``experiments.papers.zord.attacks`` for the problem and the readings. A curve is the mean over seeds, each with
images of its own, with its standard error.
"""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

from experiments.harness import style
from experiments.harness.experiment import Experiment
from experiments.harness.records import Curve, Rows, seeds_of, where
from experiments.harness.verdicts import Verdict
from experiments.papers.zord import attacks
from experiments.papers.zord.attacks import Settings


def success_rates(settings: Settings, rows: Rows, dataset: str, method: str) -> tuple[np.ndarray, np.ndarray]:
    """Numbers of queries, and the share of a seed's images that have succeeded by then, ``seeds x counts``."""
    counts = np.arange(0, settings.max_queries + 1, settings.every)
    shares = []
    for seed in seeds_of(rows):
        found = where(rows, dataset=dataset, method=method, seed=seed)
        needed = [float(row["value"]) if row["success"] else np.inf for row in found]
        shares.append((np.array(needed)[:, None] <= counts).mean(0))
    return counts, np.array(shares)


def plot(settings: Settings, rows: Rows) -> Figure:
    """A panel for each data set."""
    figure, axes = style.panels(1, len(settings.datasets), width=4.2, height=3.0, sharey=True)
    for panel, dataset in zip(axes[0], settings.datasets, strict=True):
        for method in settings.methods:
            counts, shares = success_rates(settings, rows, dataset, method)
            error = shares.std(0, ddof=1) / np.sqrt(len(shares)) if len(shares) > 1 else np.zeros(len(counts))
            style.draw(panel, method, Curve(counts, shares.mean(0), error))
            panel.lines[-1].set_markevery(max(1, len(counts) // 6))
        panel.set_xlabel("queries")
        panel.set_title(attacks.title(settings, dataset))
    axes[0, 0].set_ylabel("success rate, mean ± SE")
    axes[0, 0].set_ylim(-0.03, 1.03)
    style.shared_legend(figure, axes[0, 0], 2 * len(settings.datasets))
    return figure


def claims(settings: Settings, rows: Rows) -> list[Verdict]:
    """The success rate over all numbers of queries, ZoRD's and the default's against every baseline's."""

    def lead(dataset: str, method: str) -> np.ndarray:
        return success_rates(settings, rows, dataset, method)[1].mean(1)

    claim = "{} succeeds more often than {} at equal queries"
    statistic = "difference of the success rate, mean over the numbers of queries"
    return attacks.compared(settings, rows, lead, claim, statistic)


EXPERIMENT = Experiment(
    id="zord-fig9",
    source="ZoRD, Fig. 9",
    shows="success rate of black-box attacks over 15 images against queries",
    claim="ZoRD has the highest success rate at every number of queries.",
    scales={
        "paper": Settings(),
        "reduced": Settings(images=5, **attacks.REDUCED),
        "quick": Settings(datasets=("mnist",), bounds=(0.3,), **attacks.QUICK),
    },
    run_seed=attacks.run_seed,
    plot=plot,
    claims=claims,
    seeds=5,
    extra="experiments",
    data=("mnist", "cifar10"),
    stand_in=attacks.describe,
    check=attacks.check,
)
