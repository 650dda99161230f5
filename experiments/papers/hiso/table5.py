"""HiSo, Table 5: the best score of seven algorithms and the bytes until it.

See ``experiments.papers.hiso.language`` for the federation, the readings and the stand-ins. Total bytes are read as
those of one client until the method's own best score: then a method may, as in the print, have more of them than
another that it beats to the other's best (96.67 KB of HiSo and 43.95 KB of DeComFL, OPT-1.3B on QQP). Bytes of vector
methods are proportional to d, so beside the tiny models' the table has what as many rounds cost at the size that a
model is named by. Printed bytes that are at hand (``accounting.CELLS``) stand beside.
"""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

from experiments.harness import style
from experiments.harness.experiment import Experiment
from experiments.harness.records import Rows, by_seed, seeds_of
from experiments.harness.tables import Table, with_interval
from experiments.harness.verdicts import Verdict, judge
from experiments.papers.hiso import language
from experiments.papers.hiso.accounting import CELLS
from experiments.papers.hiso.bytes import MODELS as NAMED_SIZES
from experiments.papers.hiso.bytes import predicted
from experiments.papers.hiso.language import (
    FIRST_ORDER,
    MODELS,
    SCALAR_ONLY,
    TASKS,
    Settings,
    best,
    bytes_until_best,
    caption,
    cells_of,
    in_units,
    rounds_until,
    title,
)

AT_PRINTED_SIZE = {model: NAMED_SIZES[name] for model, name in zip(MODELS, NAMED_SIZES, strict=True)}
"""The d that a model is named by."""


def at_printed_size(settings: Settings, rows: Rows, method: str, model: str, task: str) -> np.ndarray:
    """Bytes of as many rounds as a run needed to its best score, at the d that the model is named by; one a seed."""
    given = {"method": method, "model": model, "task": task}
    rounds, _ = rounds_until(rows, best(rows, **given), **given)
    return np.asarray(rounds * predicted(method, AT_PRINTED_SIZE[model], settings.perturbations))


def printed(method: str, model: str, task: str) -> str:
    """The paper's bytes of a cell where they are at hand."""
    name = f", Table 5, {MODELS[model]}, {TASKS[task]}, {style.METHODS[method].label}".upper()
    return next((cell.partition(",")[0] for cell in CELLS if cell.upper().endswith(name)), "")


def plot(settings: Settings, rows: Rows) -> Figure:
    """The best score against the bytes until it, a panel for each model and task."""
    models, tasks = (list(dict.fromkeys(part)) for part in zip(*cells_of(rows), strict=True))
    figure, axes = style.panels(len(models), len(tasks), width=3.4, height=2.7, sharex=True, sharey=True)
    for i, model in enumerate(models):
        for j, task in enumerate(tasks):
            panel = axes[i, j]
            for method in settings.methods:
                look, given = style.METHODS[method], {"method": method, "model": model, "task": task}
                score, spent = best(rows, **given), bytes_until_best(rows, **given)
                error = score.std(ddof=1) / len(score) ** 0.5 if len(score) > 1 else 0.0
                panel.errorbar(
                    spent.mean(), score.mean(), error, color=look.color, marker=look.marker, ls="", label=look.label
                )
            panel.set_xscale("log")
            panel.set_title(title(settings, model, task))
            if i == len(models) - 1:
                panel.set_xlabel("bytes of a client until the best score")
        axes[i, 0].set_ylabel("best accuracy" + " (SQuAD: F1)" * ("squad" in tasks))
    style.shared_legend(figure, axes[0, 0], 4)
    return figure


def claims(settings: Settings, rows: Rows) -> list[Verdict]:
    """HiSo's score against DeComFL's and FedZO's, its bytes against all, and what gradients give."""
    seeds, cells = seeds_of(rows), cells_of(rows)

    def score(method: str, cell: tuple[str, str]) -> np.ndarray:
        return best(rows, method=method, model=cell[0], task=cell[1])

    def better(claim: str, pairs: list[tuple[str, str]], bar: float = 0.0, control: bool = False) -> Verdict:
        cells_ = {
            f"{title(settings, *cell)}, {a} − {b}": score(a, cell) - score(b, cell) for cell in cells for a, b in pairs
        }
        return judge(claim, "difference of the best scores", cells_, seeds, above=bar, control=control)

    def spent(method: str, cell: tuple[str, str]) -> np.ndarray:
        return np.asarray(np.log10(bytes_until_best(rows, method=method, model=cell[0], task=cell[1])))

    def fewer(others: tuple[str, ...]) -> dict[str, np.ndarray]:
        return {
            f"{title(settings, *cell)}, {m}": spent(m, cell) - spent("hiso", cell) for m in others for cell in cells
        }

    vectors = tuple(method for method in settings.methods if method not in SCALAR_ONLY)
    first_order = [(method, "hiso") for method in FIRST_ORDER if method in settings.methods]
    ratio = "log10 of the other's bytes over HiSo's"
    return [
        better("HiSo's best score is above DeComFL's", [("hiso", "decomfl")]),
        better("HiSo's best score is within a twentieth of FedZO's, or above", [("hiso", "fedzo")], -0.05),
        judge(
            "HiSo reaches its best score with fewer bytes than DeComFL",
            ratio,
            fewer(("decomfl",)),
            seeds,
            above=0.0,
        ),
        judge(
            "HiSo reaches its best score with fewer bytes than every vector method, at the d that was tuned",
            ratio,
            fewer(vectors),
            seeds,
            above=0.0,
        ),
        better("every method with gradients has a best score above HiSo's", first_order, control=True),
    ]


def table(settings: Settings, rows: Rows) -> Table:
    """Score, rounds and bytes of each method in each cell, with the printed bytes that are at hand."""
    columns = (
        "model and task",
        "method",
        "best score",
        "rounds",
        "bytes, this d",
        "bytes, d as named",
        "paper's bytes",
    )
    lines = []
    for model, task in cells_of(rows):
        for method in settings.methods:
            given = {"method": method, "model": model, "task": task}
            rounds, _ = rounds_until(rows, best(rows, **given), **given)
            each = by_seed(rows, quantity="bytes", **given)
            lines.append(
                (
                    title(settings, model, task),
                    style.METHODS[method].label,
                    with_interval(best(rows, **given)),
                    with_interval(rounds),
                    in_units(float((rounds * each).mean())),
                    in_units(float(at_printed_size(settings, rows, method, model, task).mean())),
                    printed(method, model, task),
                )
            )
    note = (
        "Mean over seeds with its 95% interval. Bytes of a client that takes part in every round, until the method's "
        "best score; KB = 1024. The paper's bytes are of OPT itself; its other cells are not at hand."
    ) + caption(settings)
    return Table(columns, tuple(lines), note)


EXPERIMENT = Experiment(
    id="hiso-table5",
    source="HiSo, Table 5",
    shows="best score of seven algorithms that tune language models, and the bytes until it",
    claim="HiSo is as accurate as or better than FedZO and DeComFL with a small part of the bytes of vector methods.",
    scales={
        "paper": Settings(),
        "reduced": Settings(**(language.REDUCED | {"tasks": ("sst2", "qqp")})),
        "quick": Settings(**language.QUICK),
    },
    run_seed=language.run_seed,
    plot=plot,
    claims=claims,
    table=table,
    seeds={"quick": 3, "reduced": 3, "paper": 5},
    data=(*language.MODELS, *language.TASKS),
    stand_in=language.describe,
    check=language.check,
    cost={"paper": "days on a GPU with real models"},
)
