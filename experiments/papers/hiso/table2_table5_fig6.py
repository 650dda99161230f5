"""HiSo, Tables 2 and 5 and Figure 6: fine-tuning of language models, its scores, rounds and bytes.

``experiments.papers.hiso.language`` describes the federation, our choices and the stand-ins. The paper's numbers,
measured with OPT itself, are listed beside ours.

*Table 2* lists rounds and bytes until DeComFL's best score, for DeComFL, HiSo, and HiSo with a scalar H. The target is
the best record of DeComFL's run on the same seed. A run that does not reach the target counts with all of its rounds;
the table lists how many runs reached it. All three methods use rates from the same grid. ``hiso-bytes`` checks the
paper's bytes against its rounds. The scalar H (``experiments.papers.hiso.controls``) is our control: it only adapts the
step size. At the reduced scale runs end early, so the other methods may have few rounds to reach DeComFL's best score.

*Table 5* lists seven algorithms' best scores and the bytes until then. The paper prints the total bytes of a single
client "until convergence". We take this as the bytes until the method's own best score. A method may then need more
bytes than a worse one, as in the printed table (96.67 KB for HiSo and 43.95 KB for DeComFL, OPT-1.3B on QQP). Since the
bytes of vector methods are proportional to d, the table also lists the bytes of these rounds at the nominal d.

*Figure 6* shows the bytes as bars on a logarithmic axis, grouped by model: pale at the model's nominal d, in full
colour at the d of the tuned model. The task is SST-2, as in the paper's caption. The statement of Sec. 6 about this
figure is judged with these bytes (``accounting.claims_on_savings``).
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.harness.curves import draw_methods, draw_strips, matrix
from experiments.harness.experiment import MEANS, Experiment
from experiments.harness.records import distinct
from experiments.harness.verdicts import Table, Verdict, judge
from experiments.papers.hiso import accounting, language
from experiments.papers.hiso.accounting import FIRST_ORDER, SCALAR_ONLY, TABLE_2, TABLE_5, bytes_a_round
from experiments.papers.hiso.controls import SCALAR
from experiments.papers.hiso.language import MODELS, TASKS, Cell, Settings, best, cells_of, place_of, rounds_until
from optimizers.comparison.interval import with_interval
from optimizers.comparison.records import Rows, by_seed, mean_curve
from surrogates import plotting

PAIRED = ("decomfl", "hiso", "hiso_scalar")
"""The methods of Table 2."""

OVER = "log10 of the other's bytes over HiSo's"
NOTE = (
    "Mean over seeds with its 95% interval. Bytes are counted for a client that participates in every round{}; "
    "KB = 1024. The paper measured OPT itself."
)


def reached(rows: Rows, method: str, cell: Cell) -> tuple[np.ndarray, np.ndarray]:
    """Returns for each seed the rounds until DeComFL's best score, and whether the method reached it."""
    return rounds_until(rows, best(rows, method="decomfl", **cell), method=method, **cell)


def plot_table2(settings: Settings, rows: Rows) -> Figure:
    """Draws scores over rounds, and DeComFL's best score as a horizontal line, with a panel per model and task."""

    def draw_cell(panel: Axes, cell: Cell) -> None:
        draw_methods(panel, rows, "round", settings.methods, quantity="score", **cell)
        level = best(rows, method="decomfl", **cell).mean()
        panel.axhline(level, color=plotting.GREY, ls=":", label="DeComFL's best")

    tasks = distinct(rows, "task")
    ylabel = "accuracy (SQuAD: F1)" if "squad" in tasks else "accuracy"
    options: dict[str, Any] = {"columns": len(tasks), "height": 1.8, "sharex": True, "sharey": True}
    return plotting.grid(cells_of(settings, rows), draw_cell, xlabel="round", ylabel=ylabel, **options)


def claims_of_table2(settings: Settings, rows: Rows) -> list[Verdict]:
    """Judges whether HiSo needs fewer rounds than DeComFL and than a scalar H, and whether DeComFL learns."""
    cells = cells_of(settings, rows)
    log_rounds = {
        (method, title): np.log10(reached(rows, method, cell)[0])
        for method in settings.methods
        for title, cell in cells.items()
    }
    gain = {
        title: best(rows, method="decomfl", **cell) - by_seed(rows, quantity="score", round=0, method="decomfl", **cell)
        for title, cell in cells.items()
    }
    verdicts, than = [], {"decomfl": ", and so fewer bytes, than DeComFL", "hiso_scalar": f" than {SCALAR}"}
    statistic = "log10 of the ratio of the rounds"
    for other in [method for method in than if method in settings.methods]:
        claim = f"HiSo needs fewer rounds{than[other]} to DeComFL's best score"
        differences = {title: log_rounds["hiso", title] - log_rounds[other, title] for title in cells}
        verdicts.append(judge(claim, statistic, differences, below=0.0, control=other != "decomfl"))
    claim, statistic = "DeComFL improves the model by more than a twentieth", "best score minus the first"
    return [*verdicts, judge(claim, statistic, gain, above=0.05, control=True)]


def printed(method: str, cell: Cell) -> str:
    """Formats the cell of Table 2, such as ``275 (10.78 KB)``; empty if there is none."""
    rounds, kilobytes = TABLE_2.get(place_of(method, cell), (0, 0.0))
    return f"{rounds:,} ({kilobytes:.2f} KB)" if rounds else ""


def table2(settings: Settings, rows: Rows) -> Table:
    """Lists rounds with their interval, bytes, the number of runs that reached the target, and the paper's numbers."""
    papers = {method for _, _, method in TABLE_2}
    columns = ["model and task", "DeComFL's best score"]
    for method in settings.methods:
        label = plotting.METHODS[method].label
        columns += [f"rounds, {label}", f"bytes, {label}", f"reached it, {label}"]
        columns += [f"paper, {label}"] if method in papers else []
    lines = []
    for title, cell in cells_of(settings, rows).items():
        line = [title, with_interval(best(rows, method="decomfl", **cell))]
        for method in settings.methods:
            rounds, there = reached(rows, method, cell)
            each = by_seed(rows, quantity="bytes", method=method, **cell)
            line += [
                with_interval(rounds),
                language.in_units(float((rounds * each).mean())),
                f"{there.sum()} of {len(there)}",
            ]
            line += [printed(method, cell)] if method in papers else []
        lines.append(tuple(line))
    return Table(tuple(columns), tuple(lines), NOTE.format(""))


def at_printed_size(settings: Settings, rows: Rows, method: str, cell: Cell) -> np.ndarray:
    """Returns the bytes that the rounds until a run's best score would need at the model's nominal d, one per seed."""
    each = bytes_a_round(method, accounting.MODELS[MODELS[cell["model"]]], settings.perturbations)
    return language.rounds_until_best(rows, method=method, **cell) * each


def plot_scores(settings: Settings, rows: Rows) -> Figure:
    """Draws the best score and the bytes sent to reach it: a row of panels per model, two columns per task."""
    models, tasks = ([str(value) for value in distinct(rows, key)] for key in ("model", "task"))
    measures = {"best score": best, "bytes until it": language.bytes_until_best}

    def draw(panel: Axes, model: str, column: tuple[str, str]) -> None:
        task, what = column
        found = {m: measures[what](rows, method=m, model=model, task=task) for m in settings.methods}
        draw_strips(panel, found, np.mean)
        if what != "best score":
            panel.set_xscale("log")

    columns = {f"{TASKS[task]}: {what}": (task, what) for task in tasks for what in measures}
    labels: dict[str, Any] = {"xlabels": ("score", "bytes of a client") * len(tasks), "legend": False}
    size: dict[str, Any] = {"height": 1.35, "width": plotting.PAGE, "sharex": "col", "sharey": True}
    return matrix(models, columns, draw, ylabels=[MODELS[model] for model in models], **labels, **size)


def plot_bytes(settings: Settings, rows: Rows) -> Figure:
    """Draws a group of bars for each model, a panel for each task."""
    models, width = [str(value) for value in distinct(rows, "model")], 0.8 / len(settings.methods)
    labels = [f"{MODELS[model]}\nmeasured at d = {language.tuned_dimension(rows, model):,}" for model in models]

    def draw(panel: Axes, task: str) -> None:
        cells: list[Cell] = [{"model": model, "task": task} for model in models]
        for i, method in enumerate(settings.methods):
            look, places = plotting.METHODS[method], np.arange(len(models)) + (i + 0.5) * width - 0.4
            bars = mean_curve(places, [at_printed_size(settings, rows, method, cell) for cell in cells])
            fill: dict[str, Any] = {"color": look.color, "ecolor": plotting.GREY}
            panel.bar(places, bars.mean, 0.92 * width, yerr=bars.standard_error, alpha=0.35, **fill)
            small = [language.bytes_until_best(rows, method=method, **cell).mean() for cell in cells]
            panel.bar(places, small, 0.92 * width, label=look.label, **fill)
        panel.set_xticks(range(len(models)), labels)
        panel.set(yscale="log", ylim=(10.0, None))

    cells = {TASKS[task]: task for task in (str(value) for value in distinct(rows, "task"))}
    ylabel = "bytes of a client\n(pale: extrapolated to the named d)"
    return plotting.grid(cells, draw, xlabel="model", ylabel=ylabel, width=plotting.PAGE, height=2.6, sharey=True)


def claims_on_scores(settings: Settings, rows: Rows) -> list[Verdict]:
    """Judges HiSo's score against DeComFL and FedZO, its bytes against all methods, and the gain from gradients."""
    cells = cells_of(settings, rows)

    def better(claim: str, pairs: list[tuple[str, str]], control: bool = False) -> Verdict:
        differences = {
            f"{title}, {a} − {b}": best(rows, method=a, **cell) - best(rows, method=b, **cell)
            for title, cell in cells.items()
            for a, b in pairs
        }
        return judge(claim, "difference of the best scores", differences, above=0.0, control=control)

    def fewer(than: str, others: list[str]) -> Verdict:
        claim = f"HiSo reaches its best score with fewer bytes than {than}"
        spent = {
            (t, m): np.log10(language.bytes_until_best(rows, method=m, **c))
            for t, c in cells.items()
            for m in settings.methods
        }
        ratios = {f"{t}, {other}": spent[t, other] - spent[t, "hiso"] for t in cells for other in others}
        return judge(claim, OVER, ratios, above=0.0)

    vector_methods = [method for method in settings.methods if method not in SCALAR_ONLY]
    first_order = [(method, "hiso") for method in FIRST_ORDER if method in settings.methods]
    return [
        better("HiSo's best score is above DeComFL's", [("hiso", "decomfl")]),
        better("HiSo's best score is above FedZO's", [("hiso", "fedzo")]),
        fewer("DeComFL", ["decomfl"]),
        fewer("every vector method, at the d of the tuned model", vector_methods),
        better("every method with gradients has a best score above HiSo's", first_order, control=True),
    ]


def claims_on_bytes(settings: Settings, rows: Rows) -> list[Verdict]:
    """Judges whether the bytes of scalars grow with the model, and HiSo's savings at the models' nominal d.

    Bytes at the tuned d are judged with Table 5, which has the same runs.
    """
    cells, flat = cells_of(settings, rows), 8 * settings.perturbations
    scalar_only = {
        f"{title}, {method}": by_seed(rows, quantity="bytes", method=method, **cell) - flat
        for title, cell in cells.items()
        for method in settings.methods
        if method in SCALAR_ONLY
    }
    named = {
        (MODELS[cell["model"]], method): np.log10(at_printed_size(settings, rows, method, cell))
        - np.log10(at_printed_size(settings, rows, "hiso", cell))
        for cell in cells.values()
        for method in accounting.COMPARED
    }
    claim = f"a round of HiSo or DeComFL costs {flat} bytes per client with every model"
    return [
        judge(claim, f"bytes − {flat}", scalar_only, above=-0.5, below=0.5),
        *accounting.claims_on_savings(named, "until the best scores, at the models' nominal d"),
    ]


def table5(settings: Settings, rows: Rows) -> Table:
    """Lists score, rounds and bytes of each method in each cell, with the paper's values."""
    lines = []
    for title, cell in cells_of(settings, rows).items():
        for method in settings.methods:
            scored = [with_interval(found(rows, method=method, **cell)) for found in (best, language.rounds_until_best)]
            each = language.bytes_until_best(rows, method=method, **cell)
            named = at_printed_size(settings, rows, method, cell)
            spent = [language.in_units(float(count.mean())) for count in (each, named)]
            printed_there = TABLE_5.get(place_of(method, cell), "")
            lines.append((title, plotting.METHODS[method].label, *scored, *spent, printed_there))
    columns = "model and task", "method", "best score", "rounds", "bytes, this d", "bytes, d as named", "paper"
    return Table(columns, tuple(lines), NOTE.format(", until the method's best score"))


SHARED: dict[str, Any] = {
    "run_seed": language.run_seed,
    "stand_in": language.describe,
    "check": language.check,
    "cost": {"paper": "days on a GPU with real models"},
}
QUICK, REDUCED = Settings(**language.QUICK), Settings(**language.REDUCED)
LARGER = ("opt-350m", "opt-1.3b")


EXPERIMENTS = (
    Experiment(
        id="hiso-table2",
        shows=lambda settings: f"rounds and bytes until DeComFL's best score in fine-tuning {language.over(settings)}",
        claim="HiSo needs fewer rounds than DeComFL to DeComFL's best accuracy, and proportionally fewer bytes.",
        scales={
            "paper": Settings(models=LARGER, methods=PAIRED),
            "reduced": dataclasses.replace(REDUCED, models=LARGER, methods=PAIRED),
            "quick": dataclasses.replace(QUICK, methods=PAIRED),
        },
        plot=plot_table2,
        caption=f"{MEANS} The dotted line is DeComFL's best score.",
        claims=claims_of_table2,
        table=table2,
        seeds=5,
        data=(*LARGER, *TASKS),
        **SHARED,
    ),
    Experiment(
        id="hiso-table5",
        shows=lambda settings: (
            f"best score of {len(settings.methods)} algorithms on {language.over(settings)}, and the bytes until it"
        ),
        claim="HiSo is more accurate than all zeroth-order baselines on all tasks, communicates less than DeComFL, and "
        "sends kilobytes where vector methods send hundreds of gigabytes to terabytes.",
        scales={"paper": Settings(), "reduced": dataclasses.replace(REDUCED, tasks=("sst2", "qqp")), "quick": QUICK},
        plot=plot_scores,
        caption="Each dot is a seed; vertical marks are means. Bytes are counted for one client until the method's "
        "best score.",
        claims=claims_on_scores,
        table=table5,
        seeds={"reduced": 3, "paper": 5},
        data=(*MODELS, *TASKS),
        **SHARED,
    ),
    Experiment(
        id="hiso-fig6",
        shows=lambda settings: (
            f"bytes of {len(settings.methods)} algorithms until their best score, {language.over(settings)}"
        ),
        claim="HiSo communicates over 40 million times less than FedAvg, FedZO and FedAdam for the 125M and 350M "
        "models, up to 90 million times for the 1.3B model, and noticeably less than DeComFL.",
        scales={
            scale: dataclasses.replace(settings, tasks=("sst2",))
            for scale, settings in (("paper", Settings()), ("reduced", REDUCED), ("quick", QUICK))
        },
        plot=plot_bytes,
        caption="Bytes of a client until the best score: full colour, measured at the d of the tuned model; pale, "
        "extrapolated to the model's nominal d by the rule of ``hiso-bytes``, ± one standard error over seeds.",
        claims=claims_on_bytes,
        seeds={"reduced": 3, "paper": 5},
        data=(*MODELS, "sst2"),
        **SHARED,
    ),
)
