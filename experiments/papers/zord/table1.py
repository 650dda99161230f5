"""ZoRD, Table 1: queries to a successful black-box attack, mean ± sd of 5 runs.

See ``experiments.papers.zord.attacks`` for the problem and the readings. The paper does not say how many images a run
is over: here the mean of the images of a seed, and an attack that fails within the budget counts as the budget. Printed
for MNIST (ε = 0.3): ZoRD 248, the others 654 to 1780; for CIFAR-10 (ε = 0.2): 384, and 638 to 4133.
"""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

from experiments.harness import style
from experiments.harness.experiment import Experiment
from experiments.harness.records import Rows, by_seed, where
from experiments.harness.tables import Table
from experiments.harness.verdicts import Verdict
from experiments.papers.zord import attacks
from experiments.papers.zord.attacks import Settings
from experiments.workloads.images import TITLES

PAPER = {"mnist": ("248", "654 to 1780"), "cifar10": ("384", "638 to 4133")}
"""What is printed: ZoRD's queries, and the range of the others'."""


def queries(rows: Rows, dataset: str, method: str) -> np.ndarray:
    """Mean queries over a seed's images, one number a seed."""
    return by_seed(rows, dataset=dataset, method=method)


def plot(settings: Settings, rows: Rows) -> Figure:
    """Mean and standard deviation over seeds, a panel for each data set."""
    figure, axes = style.panels(1, len(settings.datasets), width=3.8, height=3.0, sharey=True)
    for panel, dataset in zip(axes[0], settings.datasets, strict=True):
        for i, method in enumerate(settings.methods):
            found, look = queries(rows, dataset, method), style.METHODS[method]
            sd = found.std(ddof=1) if len(found) > 1 else 0.0
            panel.errorbar(found.mean(), -i, xerr=sd, color=look.color, marker=look.marker, capsize=3, label=look.label)
        panel.set_yticks(-np.arange(len(settings.methods)), [style.METHODS[m].label for m in settings.methods])
        panel.set_xlabel("queries to success, mean ± sd of the seeds")
        panel.set_title(attacks.title(settings, dataset))
    axes[0, 0].set_ylabel("method")
    style.shared_legend(figure, axes[0, 0], 2 * len(settings.datasets))
    return figure


def claims(settings: Settings, rows: Rows) -> list[Verdict]:
    """ZoRD, and the library's default, against every baseline on the same images."""

    def lead(dataset: str, method: str) -> np.ndarray:
        return -np.log10(queries(rows, dataset, method))

    claim, statistic = "{} needs fewer queries than {}", "log10 of the ratio of the queries"
    return attacks.compared(settings, rows, lead, claim, statistic)


def table(settings: Settings, rows: Rows) -> Table:
    """Mean ± sd of the queries and the share of successful attacks, the printed numbers beside them."""
    columns = ["method"]
    for dataset in settings.datasets:
        columns += [attacks.title(settings, dataset), "succeeded", f"paper, {TITLES[dataset]}"]
    cells = []
    for method in settings.methods:
        line = [style.METHODS[method].label]
        for dataset in settings.datasets:
            found = queries(rows, dataset, method)
            sd = found.std(ddof=1) if len(found) > 1 else 0.0
            won = [int(row["success"]) for row in where(rows, dataset=dataset, method=method)]
            ours, others = PAPER[dataset]
            printed = ours if method == "zord" else "" if method == "zord_kept" else f"in {others}"
            line += [f"{found.mean():.0f} ± {sd:.0f}", f"{sum(won)} of {len(won)}", printed]
        cells.append(tuple(line))
    caption = f"Queries to success, mean ± sd over seeds; a failed attack counts as {settings.max_queries}."
    return Table(tuple(columns), tuple(cells), caption)


EXPERIMENT = Experiment(
    id="zord-table1",
    source="ZoRD, Table 1",
    shows="queries to a successful black-box attack within an L∞ bound",
    claim="ZoRD needs 2 to 10 times fewer queries than RGF, PRGF, GLD, TuRBO-1 and TuRBO-10.",
    scales={
        "paper": Settings(),
        "reduced": Settings(images=3, **attacks.REDUCED),
        "quick": Settings(**attacks.QUICK),
    },
    run_seed=attacks.run_seed,
    plot=plot,
    claims=claims,
    table=table,
    seeds=5,
    extra="experiments",
    data=("mnist", "cifar10"),
    stand_in=attacks.describe,
    check=attacks.check,
)
