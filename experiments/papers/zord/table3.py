"""ZoRD, Table 3: the reward of controllers after a search, mean ± sd of the trials.

In the paper 500 controllers of a Latin hypercube of the box are queried first, once for all methods. ES, RGF, PRGF and
ZoRD then start at the best of them with 1,000 queries; ZoRD uses the 300 nearest points of the trajectory. There are
ten trials. Adam's rate is 1.0 for all methods, and θ in [−1, 1]^d is searched as [0, 10]^d. A query is the mean return
of 32 episodes, whose starts are the same for all queries of a trial. The paper omits GLD and TuRBO, which are controls
here.

Our choices where the paper gives no details: ZoRD also uses the Latin hypercube (its ``history``). The printed
smoothing radius 0.01 hardly changes any return, so all methods place the queries of an estimate at a root mean square
distance of 1 from the iterate, in [0, 10]^d. Where actions are discrete the paper uses a softmax layer; we take the
most likely action, so that f is deterministic. The reward is the best so far. With one rate and radius for all methods,
nothing is tuned.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from experiments.harness.experiment import Experiment
from experiments.harness.records import checkpoints
from experiments.harness.verdicts import Table, Verdict, judge_pairs, with_sd
from experiments.papers.zord.descent import search
from experiments.workloads.controllers import ENVIRONMENTS, TITLES, Controller
from optimizers import Evaluator, Optimizer, latin_hypercube, run
from optimizers.comparison.records import Row, Rows, best_so_far, by_seed, curve
from surrogates import plotting

PAPERS_BASELINES = ("es", "rgf", "prgf")
BASELINES = (*PAPERS_BASELINES, "gld", "turbo1")
TWO = ("acrobot", "lunar_lander")
FEW = ("zord", "zord_kept", "es", "rgf", "gld")
"""Environments and methods of the smaller scales."""

PAPER = {
    "es": ("-86.2 ± 11.0", "176.0 ± 56.8", "-94.7 ± 24.4", "-34.7 ± 27.3", "340.4 ± 143.0", "1042.4 ± 753.9"),
    "rgf": ("-83.0 ± 5.6", "213.2 ± 65.1", "-93.8 ± 19.1", "-30.3 ± 40.3", "368.4 ± 223.1", "1129.3 ± 748.5"),
    "prgf": ("-86.3 ± 9.9", "218.6 ± 66.2", "-100.1 ± 16.0", "-29.9 ± 35.2", "344.6 ± 152.3", "1083.3 ± 722.2"),
    "zord": ("-73.3 ± 2.4", "280.5 ± 77.6", "-45.1 ± 38.3", "12.9 ± 37.8", "729.1 ± 304.2", "1950.5 ± 576.1"),
}
"""The entries of Table 3 for each method, in the order of ``ENVIRONMENTS``."""

WINDOW = 300
RADIUS = 1.0


@dataclasses.dataclass(frozen=True)
class Settings:
    """Settings of the search.

    Attributes:
        environments: names of the environments.
        methods: the search methods.
        episodes: number of episodes per query.
        design: number of controllers of the Latin hypercube.
        max_queries: number of queries after it.
        every: queries between records.
        rate: Adam's rate.
        horizon: largest number of steps of an episode; None: the environment's own.
        turbo_candidates: number of candidates of Thompson sampling; None: TuRBO's default.
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
    """Returns the controllers of the Latin hypercube, ``n x d``, and f there."""
    X = fun.bound * (2.0 * latin_hypercube(settings.design, fun.dimension, seed) - 1.0)
    return X, torch.tensor([fun(x) for x in X], dtype=torch.float64)


def searcher(settings: Settings, method: str, fun: Controller, X: Tensor, y: Tensor, seed: int) -> Optimizer:
    """Creates a method at the best controller of the Latin hypercube."""
    options: dict[str, Any] = {"bounds": fun.bounds, "max_queries": settings.max_queries, "seed": seed}
    if method == "turbo1":
        options |= {"candidates": settings.turbo_candidates, "initial_points": min(50, settings.max_queries // 2)}
    if method.startswith("zord"):
        options |= {"history": (X, y), "window": WINDOW}
    return search(method, X[int(y.argmin())], rate=settings.rate, radius=RADIUS, **options)


def run_seed(settings: Settings, seed: int) -> Rows:
    """Records the best reward so far of every method in every environment."""
    rows: Rows = []
    for name in settings.environments:
        fun = Controller(name, settings.episodes, 1000 * seed, settings.horizon)
        X, y = start_of(settings, fun, seed)
        for method in ("latin_hypercube", *settings.methods):
            found = np.empty(0)
            if method != "latin_hypercube":
                found = run(searcher(settings, method, fun, X, y, seed), Evaluator(fun)).history.y.numpy()
            best = best_so_far(found, settings.max_queries, float(y.min()))
            key: Row = {"seed": seed, "environment": name, "method": method}
            counts = checkpoints(settings.max_queries, settings.every)
            rows += [key | {"queries": n, "value": -float(best[n])} for n in counts]
    return rows


def last(settings: Settings, rows: Rows, environment: str, method: str) -> np.ndarray:
    """Returns the final best reward, one number per seed."""
    return by_seed(rows, environment=environment, method=method, queries=settings.max_queries)


def plot(settings: Settings, rows: Rows) -> Figure:
    """Draws the best reward against queries, a panel for each environment."""

    def draw(axes: Axes, name: str) -> None:
        for i, method in enumerate(settings.methods):
            found, look = curve(rows, "queries", environment=name, method=method), plotting.METHODS[method]
            plotting.draw(axes, method, found._replace(standard_error=np.zeros(len(found.x))))
            end = settings.max_queries * (1.03 + 0.02 * i)
            axes.errorbar(end, found.mean[-1], found.standard_error[-1], color=look.color, marker=look.marker)

    cells = {TITLES[name]: name for name in settings.environments}
    return plotting.grid(cells, draw, xlabel="queries", ylabel="best reward", height=1.8)


def claims(settings: Settings, rows: Rows) -> list[Verdict]:
    """Judges the final reward of ZoRD and of the default against the others, in units of the environment's spread."""
    ran = ("latin_hypercube", *settings.methods)
    rewards = {(name, m): last(settings, rows, name, m) for name in settings.environments for m in ran}
    spreads = {name: float(np.concatenate([rewards[name, m] for m in ran]).std()) for name in settings.environments}
    pairs = [
        (method, other, method != "zord" or other not in PAPERS_BASELINES)
        for method in ("zord", "zord_kept")
        for other in (*BASELINES, "latin_hypercube")
        if method in ran and other in ran
    ]
    return judge_pairs(
        pairs,
        "{} ends with more reward than {}",
        "difference in standard deviations of the environment's last rewards",
        lambda name, method: rewards[name, method] / (spreads[name] or 1.0),
        {TITLES[name]: name for name in settings.environments},
        above=0.0,
    )


def table(settings: Settings, rows: Rows) -> Table:
    """Lists mean ± sd of the final reward, and the paper's values."""
    methods, titles = ("latin_hypercube", *settings.methods), [TITLES[name] for name in settings.environments]
    columns = ("method", *(text for title in titles for text in (title, f"paper, {title}")))
    cells = []
    for method in methods:
        line = [plotting.METHODS[method].label]
        printed = dict(zip(ENVIRONMENTS, PAPER.get(method, ("",) * len(ENVIRONMENTS)), strict=True))
        for name in settings.environments:
            line += [with_sd(last(settings, rows, name, method)), printed[name]]
        cells.append(tuple(line))
    after = f"after {settings.max_queries:,} queries and a Latin hypercube of {settings.design:,}"
    returned = "return of an episode" if settings.episodes == 1 else f"mean return of {settings.episodes} episodes"
    caption = f"Best {returned} {after}, mean ± sd of the trials."
    return Table(columns, tuple(cells), caption)


EXPERIMENT = Experiment(
    id="zord-table3",
    shows=lambda settings: (
        f"reward of controllers after {settings.max_queries:,} queries in "
        + ", ".join(TITLES[name] for name in settings.environments)
    ),
    claim="ZoRD's controllers earn more reward than those of ES, RGF and PRGF in every environment.",
    scales={
        "paper": Settings(),
        "reduced": Settings(episodes=1, design=50, max_queries=100, every=5, turbo_candidates=500),
        "quick": Settings(TWO, FEW, episodes=1, design=6, max_queries=8, every=4, horizon=10),
    },
    run_seed=run_seed,
    plot=plot,
    caption=lambda settings: (
        f"All methods start at the best of a Latin hypercube of {settings.design:,} controllers, whose queries are not "
        "counted. Lines are means over seeds; bars on the right show ± one standard error at the end."
    ),
    claims=claims,
    table=table,
    seeds={"quick": 3, "reduced": 10, "paper": 10},
    extra="rl",
    cost={"paper": "days: one algorithm takes 2 to 70 core-hours an environment"},
)
