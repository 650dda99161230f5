"""HiSo, Table 5 and Figure 6: the best score of seven algorithms and the bytes until it.

``experiments.papers.hiso.language`` describes the federation, our choices and the stand-ins. The paper prints the total
bytes of a single client "until convergence". We take this as the bytes until the method's own best score. A method may
then need more bytes than another that it outperforms, as in the print (96.67 KB for HiSo and 43.95 KB for DeComFL,
OPT-1.3B on QQP). Bytes of vector methods are proportional to d, so the table also lists the bytes of the same number of
rounds at the model's nominal size. The paper's values, measured with OPT itself, are listed beside ours.

Figure 6 shows the bytes as bars on a logarithmic axis, grouped by model, at the model's nominal d. A line across each
bar shows the bytes at the d of the tuned model. Its task is SST-2, as in the paper's caption. The statement of Sec. 6
about it is judged with these bytes (``experiments.papers.hiso.savings``).
"""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.harness.curves import draw_strips, label_panels
from experiments.harness.experiment import Experiment
from experiments.harness.records import distinct
from experiments.harness.verdicts import Table, Verdict, judge
from experiments.papers.hiso import accounting, language, savings
from experiments.papers.hiso.accounting import FIRST_ORDER, SCALAR_ONLY, TABLE_5, bytes_a_round
from experiments.papers.hiso.language import (
    MODELS,
    TASKS,
    Cell,
    Settings,
    best,
    bytes_until_best,
    cells_of,
    in_units,
    place_of,
    rounds_until,
    tuned_dimension,
)
from optimizers.comparison.interval import with_interval
from optimizers.comparison.records import Rows, by_seed, mean_curve
from surrogates import plotting

OVER = "log10 of the other's bytes over HiSo's"


def at_printed_size(settings: Settings, rows: Rows, method: str, cell: Cell) -> np.ndarray:
    """Returns the bytes of the rounds until a run's best score at the model's nominal d, one number per seed."""
    rounds, _ = rounds_until(rows, best(rows, method=method, **cell), method=method, **cell)
    d = accounting.MODELS[MODELS[cell["model"]]]
    return np.asarray(rounds * bytes_a_round(method, d, settings.perturbations))


def plot_scores(settings: Settings, rows: Rows) -> Figure:
    """Draws the best score and the bytes until it: a row per model, two columns per task, a line per method."""
    models, tasks = ([str(value) for value in distinct(rows, key)] for key in ("model", "task"))
    size: dict[str, Any] = {"height": 1.35, "width": plotting.PAGE, "sharex": "col", "sharey": True}
    figure, axes = plotting.panels(len(models), 2 * len(tasks), **size)
    for (model, task), panels in zip(itertools.product(models, tasks), axes.reshape(-1, 2), strict=True):
        for panel, measure in zip(panels, (best, bytes_until_best), strict=True):
            found = {method: measure(rows, method=method, model=model, task=task) for method in settings.methods}
            draw_strips(panel, found, np.mean)
        panels[1].set_xscale("log")
    titles = [f"{TASKS[task]}: {what}" for task in tasks for what in ("best score", "bytes until it")]
    xlabels = ("score", "bytes of a client") * len(tasks)
    label_panels(axes, titles=titles, xlabels=xlabels, ylabels=[MODELS[model] for model in models])
    return figure


def plot_bytes(settings: Settings, rows: Rows) -> Figure:
    """Draws a group of bars for each model, a panel for each task."""
    models, width = [str(value) for value in distinct(rows, "model")], 0.8 / len(settings.methods)
    labels = [f"{MODELS[model]}\nmeasured at d = {tuned_dimension(rows, model):,}" for model in models]

    def draw(panel: Axes, task: str) -> None:
        cells: list[Cell] = [{"model": model, "task": task} for model in models]
        for i, method in enumerate(settings.methods):
            look, places = plotting.METHODS[method], np.arange(len(models)) + (i + 0.5) * width - 0.4
            bars = mean_curve(places, [at_printed_size(settings, rows, method, cell) for cell in cells])
            fill: dict[str, Any] = {"color": look.color, "ecolor": plotting.GREY}
            panel.bar(places, bars.mean, 0.92 * width, yerr=bars.standard_error, alpha=0.35, **fill)
            small = [bytes_until_best(rows, method=method, **cell).mean() for cell in cells]
            panel.bar(places, small, 0.92 * width, label=look.label, **fill)
        panel.set_xticks(range(len(models)), labels)
        panel.set(yscale="log", ylim=(10.0, None))

    cells = {TASKS[task]: task for task in (str(value) for value in distinct(rows, "task"))}
    ylabel = "bytes of a client\n(pale: extrapolated to the named d)"
    return plotting.grid(cells, draw, xlabel="model", ylabel=ylabel, width=plotting.PAGE, height=2.6, sharey=True)


def claims_on_scores(settings: Settings, rows: Rows) -> list[Verdict]:
    """Judges HiSo's score against DeComFL's and FedZO's, its bytes against all, and what gradients gain."""
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
            (t, m): np.log10(bytes_until_best(rows, method=m, **c)) for t, c in cells.items() for m in settings.methods
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
    """Judges that scalars do not grow with the model, and by what factor they are fewer at the models' nominal d.

    Bytes at the tuned d are judged with Table 5, whose runs include these.
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
        for method in savings.METHODS
    }
    claim = f"a round of HiSo or DeComFL costs {flat} bytes per client with every model"
    return [
        judge(claim, f"bytes − {flat}", scalar_only, above=-0.5, below=0.5),
        *savings.claims(named, "until the best scores, at the models' nominal d"),
    ]


def table(settings: Settings, rows: Rows) -> Table:
    """Lists score, rounds and bytes of each method in each cell, with the paper's values."""
    lines = []
    for title, cell in cells_of(settings, rows).items():
        for method in settings.methods:
            score = best(rows, method=method, **cell)
            rounds, _ = rounds_until(rows, score, method=method, **cell)
            each = bytes_until_best(rows, method=method, **cell)
            named = at_printed_size(settings, rows, method, cell)
            spent = [in_units(float(count.mean())) for count in (each, named)]
            scored = [with_interval(score), with_interval(rounds)]
            lines.append(
                (title, plotting.METHODS[method].label, *scored, *spent, TABLE_5.get(place_of(method, cell), ""))
            )
    columns = "model and task", "method", "best score", "rounds", "bytes, this d", "bytes, d as named", "paper"
    note = (
        "Mean over seeds with its 95% interval. Bytes are counted for a client that participates in every round, until "
        "the method's best score; KB = 1024. The paper measured OPT itself."
    )
    return Table(columns, tuple(lines), note)


SHARED: dict[str, Any] = {
    "run_seed": language.run_seed,
    "seeds": {"quick": 3, "reduced": 3, "paper": 5},
    "stand_in": language.describe,
    "check": language.check,
    "cost": {"paper": "days on a GPU with real models"},
}
QUICK, REDUCED = Settings(**language.QUICK), Settings(**language.REDUCED)


EXPERIMENTS = (
    Experiment(
        id="hiso-table5",
        source="HiSo, Table 5",
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
        table=table,
        data=(*MODELS, *TASKS),
        **SHARED,
    ),
    Experiment(
        id="hiso-fig6",
        source="HiSo, Fig. 6",
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
        data=(*MODELS, "sst2"),
        **SHARED,
    ),
)
