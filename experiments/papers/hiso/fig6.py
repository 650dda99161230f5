"""HiSo, Figure 6: bytes of seven algorithms, bars on a logarithmic axis, grouped by model.

See ``experiments.papers.hiso.language``. A bar is the bytes of one client until the method's best score, as in Table 5,
at the d that a model is named by; the same at the d of the model that was tuned is a line across it. The figure's task
is read as SST-2.
"""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

from experiments.harness import style
from experiments.harness.experiment import Experiment
from experiments.harness.records import Rows, by_seed, distinct, seeds_of
from experiments.harness.verdicts import Verdict, judge
from experiments.papers.hiso import language
from experiments.papers.hiso.language import (
    MODELS,
    SCALAR_ONLY,
    TASKS,
    Settings,
    bytes_until_best,
    cells_of,
    title,
    tuned_dimension,
)
from experiments.papers.hiso.table5 import at_printed_size


def plot(settings: Settings, rows: Rows) -> Figure:
    """A group of bars for each model, a panel for each task."""
    models, tasks = ([str(value) for value in distinct(rows, key)] for key in ("model", "task"))
    figure, axes = style.panels(1, len(tasks), width=6.0 if len(tasks) == 1 else 4.6, height=3.4, sharey=True)
    width = 0.8 / len(settings.methods)
    for panel, task in zip(axes[0], tasks, strict=True):
        for i, method in enumerate(settings.methods):
            look, places = style.METHODS[method], np.arange(len(models)) + (i - len(settings.methods) / 2 + 0.5) * width
            spent = [at_printed_size(settings, rows, method, model, task) for model in models]
            error = [values.std(ddof=1) / len(values) ** 0.5 if len(values) > 1 else 0.0 for values in spent]
            heights = [values.mean() for values in spent]
            panel.bar(places, heights, 0.92 * width, yerr=error, color=look.color, label=look.label, ecolor=style.GREY)
            small = [bytes_until_best(rows, method=method, model=model, task=task).mean() for model in models]
            panel.hlines(small, places - 0.46 * width, places + 0.46 * width, color="white", lw=1.2)
        panel.set_yscale("log")
        panel.set_ylim(bottom=10.0)
        labels = [f"{MODELS[model]}\ntuned: d = {tuned_dimension(rows, model):,}" for model in models]
        panel.set_xticks(range(len(models)), labels)
        panel.set_xlabel(f"model, {TASKS[task]}; bars: at the d of its name, white lines: at the d that was tuned")
    axes[0, 0].set_ylabel("bytes of a client until the best score")
    style.shared_legend(figure, axes[0, 0], 4)
    return figure


def claims(settings: Settings, rows: Rows) -> list[Verdict]:
    """That scalars alone do not grow with the model, and by how much they are fewer."""
    seeds, cells = seeds_of(rows), cells_of(rows)
    spent = {
        (m, *cell): np.log10(bytes_until_best(rows, method=m, model=cell[0], task=cell[1]))
        for m in settings.methods
        for cell in cells
    }
    ratios = {
        f"{title(settings, *cell)}, {other}": spent[other, *cell] - spent["hiso", *cell]
        for cell in cells
        for other in settings.methods
        if other not in SCALAR_ONLY
    }
    flat = {
        f"{title(settings, *cell)}, {method}": by_seed(
            rows, quantity="bytes", method=method, model=cell[0], task=cell[1]
        )
        - 8 * settings.perturbations
        for cell in cells
        for method in settings.methods
        if method in SCALAR_ONLY
    }

    def named(method: str, cell: tuple[str, str]) -> np.ndarray:
        return np.asarray(np.log10(at_printed_size(settings, rows, method, *cell)))

    return [
        judge(
            f"a round of HiSo or DeComFL is {8 * settings.perturbations} bytes a client with every model",
            f"bytes − {8 * settings.perturbations}",
            flat,
            seeds,
            above=-0.5,
            below=0.5,
        ),
        judge(
            "HiSo communicates less than every vector method until the best scores, at the d that was tuned",
            "log10 of the other's bytes over HiSo's",
            ratios,
            seeds,
            above=0.0,
        ),
        judge(
            "HiSo communicates 90 million times less than FedZO until the best scores, at d as the models are named",
            "log10 of FedZO's bytes over HiSo's",
            {title(settings, *cell): named("fedzo", cell) - named("hiso", cell) for cell in cells},
            seeds,
            above=np.log10(9e7),
        ),
    ]


EXPERIMENT = Experiment(
    id="hiso-fig6",
    source="HiSo, Fig. 6",
    shows="bytes of seven algorithms until their best score, for three language models",
    claim="HiSo's and DeComFL's communication is millions of times less than that of vector methods, at every size.",
    scales={
        "paper": Settings(tasks=("sst2",)),
        "reduced": Settings(**(language.REDUCED | {"tasks": ("sst2",)})),
        "quick": Settings(**(language.QUICK | {"tasks": ("sst2",)})),
    },
    run_seed=language.run_seed,
    plot=plot,
    claims=claims,
    seeds={"quick": 3, "reduced": 3, "paper": 5},
    data=(*language.MODELS, "sst2"),
    stand_in=language.describe,
    check=language.check,
    cost={"paper": "days on a GPU with real models"},
)
