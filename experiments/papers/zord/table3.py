"""ZoRD, Table 3: the reward of controllers after 1,000 queries, mean ± sd of 10 trials.

500 controllers of a Latin hypercube of the box are queried first, once for all methods; each then begins at the best of
them and has 1,000 queries, which are drawn after those 500. ZoRD also knows the 500 (its ``history``) and holds 300
queries, as in the paper.

Readings: Adam's rate is 1.0 for all in [0, 10]^d, as printed. θ is in [−1, 1]^d. The printed smoothing radius 0.01
changes hardly any return: queries of an estimate are 1 from the iterate (root mean square, in [0, 10]^d), in all
methods alike. A query is the mean return of 32 episodes whose starts are the same for all queries of a trial, so that
f is a function; the reward is the best so far. With one rate and radius for all, nothing is tuned.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor

from experiments.harness import style
from experiments.harness.experiment import Experiment
from experiments.harness.records import Row, Rows, by_seed, curve, seeds_of
from experiments.harness.tables import Table
from experiments.harness.verdicts import Verdict, judge
from experiments.papers.zord.descent import as_printed
from experiments.workloads.controllers import ENVIRONMENTS, TITLES, Controller
from optimizers import Evaluator, Optimizer, latin_hypercube, run
from optimizers.registry import method_class

BASELINES = ("es", "rgf", "prgf", "gld", "turbo1")
WINDOW = 300
RADIUS = 1.0


@dataclasses.dataclass(frozen=True)
class Settings:
    """What is searched and with what.

    Attributes:
        environments: names.
        methods: the searches.
        episodes: of a query.
        design: controllers of the Latin hypercube.
        max_queries: after them.
        every: queries from one record to the next.
        rate: Adam's.
        horizon: most steps of an episode; None: the environment's own.
        turbo_candidates: Thompson sampling's; None: its default.
    """

    environments: tuple[str, ...] = tuple(ENVIRONMENTS)
    methods: tuple[str, ...] = ("zord", "zord_kept", *BASELINES)
    episodes: int = 32
    design: int = 500
    max_queries: int = 1000
    every: int = 20
    rate: float = 1.0
    horizon: int | None = None
    turbo_candidates: int | None = None


def start_of(settings: Settings, fun: Controller, seed: int) -> tuple[Tensor, Tensor]:
    """The Latin hypercube's controllers, ``n x d``, and f there."""
    X = fun.bound * (2.0 * latin_hypercube(settings.design, fun.dimension, seed) - 1.0)
    return X, torch.tensor([fun(x) for x in X], dtype=torch.float64)


def searcher(settings: Settings, method: str, fun: Controller, X: Tensor, y: Tensor, seed: int) -> Optimizer:
    """A method at the best of the Latin hypercube."""
    options: dict[str, Any] = {"update_rule": lambda p: torch.optim.Adam([p], lr=settings.rate)}
    d = fun.dimension
    if method == "turbo1":
        options = {"candidates": settings.turbo_candidates, "initial_points": min(50, settings.max_queries // 2)}
    elif method == "gld":
        options = {}
    elif method.startswith("zord"):
        options |= {"history": (X, y), "window": WINDOW, "radius": RADIUS}
        if method == "zord":
            options |= as_printed(d)
    else:  # ES's directions are normal, the others' unit vectors
        options["smoothing_radius"] = RADIUS / (math.sqrt(d) if method == "es" else 1.0)
    name = {"zord_kept": "zord", "turbo1": "turbo"}.get(method, method)
    common: dict[str, Any] = {"bounds": fun.bounds, "max_queries": settings.max_queries, "seed": seed}
    return method_class(name)(X[int(y.argmin())], **common, **options)


def run_seed(settings: Settings, seed: int) -> Rows:
    """The best reward so far of every method in every environment, from that of the Latin hypercube."""
    rows: Rows = []
    counts = sorted({*range(0, settings.max_queries + 1, settings.every), settings.max_queries})
    for name in settings.environments:
        fun = Controller(name, settings.episodes, 1000 * seed, settings.horizon)
        X, y = start_of(settings, fun, seed)
        for method in ("latin_hypercube", *settings.methods):
            values = np.full(settings.max_queries + 1, np.nan)
            values[0] = float(y.min())
            if method != "latin_hypercube":
                found = run(searcher(settings, method, fun, X, y, seed), Evaluator(fun)).history.y.numpy()
                values[1 : len(found) + 1] = found
            best = np.fmin.accumulate(values)
            key: Row = {"seed": seed, "environment": name, "method": method}
            rows += [key | {"queries": n, "value": -float(best[n])} for n in counts]
    return rows


def last(settings: Settings, rows: Rows, environment: str, method: str) -> np.ndarray:
    """The best reward of all, one number a seed."""
    return by_seed(rows, environment=environment, method=method, queries=settings.max_queries)


def plot(settings: Settings, rows: Rows) -> Figure:
    """The best reward against queries, a panel for each environment."""
    columns = min(3, len(settings.environments))
    lines = math.ceil(len(settings.environments) / columns)
    figure, axes = style.panels(lines, columns, width=3.6, height=2.8)
    for panel in axes.flat[len(settings.environments) :]:
        panel.remove()
    for panel, name in zip(axes.flat, settings.environments, strict=False):
        for method in ("latin_hypercube", *settings.methods):
            found = curve(rows, "queries", environment=name, method=method)
            style.draw(panel, method, found)
            panel.lines[-1].set_markevery(max(1, len(found.x) // 6))
        panel.set_title(TITLES[name])
        panel.set_xlabel(f"queries after {settings.design} of a Latin hypercube")
    for row in range(lines):
        axes[row, 0].set_ylabel("best reward, mean ± SE")
    style.shared_legend(figure, axes[0, 0], min(2 * columns, 4))
    return figure


def claims(settings: Settings, rows: Rows) -> list[Verdict]:
    """ZoRD's last reward, and the default's, against the others', in units of the environment's spread."""
    seeds = seeds_of(rows)

    def more(method: str, other: str) -> Verdict:
        cells = {}
        for name in settings.environments:
            all_methods = ("latin_hypercube", *settings.methods)
            spread = float(np.concatenate([last(settings, rows, name, m) for m in all_methods]).std())
            difference = last(settings, rows, name, method) - last(settings, rows, name, other)
            cells[TITLES[name]] = difference / (spread or 1.0)
        labels = [style.METHODS[name].label for name in (method, other)]
        claim = f"{labels[0]} ends with more reward than {labels[1]}"
        statistic = "difference in standard deviations of the environment's last rewards"
        control = method != "zord" or other == "latin_hypercube"
        return judge(claim, statistic, cells, seeds, above=0.0, control=control)

    ours = [m for m in ("zord", "zord_kept") if m in settings.methods]
    others = [m for m in BASELINES if m in settings.methods]
    return [more(method, other) for method in ours for other in (*others, "latin_hypercube")]


def table(settings: Settings, rows: Rows) -> Table:
    """Mean ± sd of the last reward."""
    columns = ("environment", *(style.METHODS[m].label for m in ("latin_hypercube", *settings.methods)))
    cells = []
    for name in settings.environments:
        line = [TITLES[name]]
        for method in ("latin_hypercube", *settings.methods):
            found = last(settings, rows, name, method)
            sd = found.std(ddof=1) if len(found) > 1 else 0.0
            line.append(f"{found.mean():.4g} ± {sd:.2g}")
        cells.append(tuple(line))
    caption = (
        f"Best mean return of {settings.episodes} episodes, mean ± sd of the trials; the printed values are not known."
    )
    return Table(columns, tuple(cells), caption)


EXPERIMENT = Experiment(
    id="zord-table3",
    source="ZoRD, Table 3",
    shows="reward of controllers after 1,000 queries in six environments",
    claim="ZoRD's controllers earn the most reward.",
    scales={
        "paper": Settings(),
        "reduced": Settings(
            environments=("acrobot", "lunar_lander"),
            episodes=3,
            design=50,
            max_queries=100,
            every=5,
            turbo_candidates=500,
        ),
        "quick": Settings(
            environments=("acrobot", "lunar_lander"),
            methods=("zord", "zord_kept", "es", "rgf", "gld"),
            episodes=1,
            design=6,
            max_queries=8,
            every=4,
            horizon=10,
        ),
    },
    run_seed=run_seed,
    plot=plot,
    claims=claims,
    table=table,
    seeds={"quick": 3, "reduced": 3, "paper": 10},
    extra="rl",
    cost={"paper": "days: one algorithm takes 2 to 70 core-hours an environment"},
)
