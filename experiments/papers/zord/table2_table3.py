"""ZoRD, Tables 2 and 3: controllers for environments of reinforcement learning.

A controller is an MLP with two hidden layers of 10 units and biases (Appx. C.5).

*Table 2* lists environments and dimensions. Our text of the paper does not contain its numbers. The expected size, with
biases in all layers, follows from the environments' published spaces; the counted size is measured on gymnasium's
environments (``experiments.workloads.controllers``). The table also lists the mean reward of controllers drawn
uniformly from the box, where the search begins.

*Table 3* lists the reward after a search, mean ± sd of the trials. In the paper 500 controllers of a Latin hypercube of
the box are queried first, once for all methods. ES, RGF, PRGF and ZoRD then start at the best of these controllers and
make 1,000 queries; ZoRD uses the 300 nearest points of the trajectory. There are ten trials. Adam's rate is 1.0 for all
methods, and θ in [−1, 1]^d is searched as [0, 10]^d. A query is the mean return of 32 episodes, whose starts are the
same for all queries of a trial. The paper omits GLD and TuRBO, which are controls here.

Our choices where the paper gives no details: ZoRD also uses the Latin hypercube (its ``history``). The printed
smoothing radius 0.01 hardly changes any return, so all methods place the queries of an estimate at a root mean square
distance of 1 from the iterate, in [0, 10]^d. Where actions are discrete the paper uses a softmax layer; we take the
most likely action, so that f is deterministic. The reward is the best so far. Rate and radius are not tuned.
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
from experiments.harness.verdicts import Table, Verdict, judge_pairs, never, with_sd
from experiments.papers.zord.descent import search
from experiments.workloads.controllers import ENVIRONMENTS, TITLES, Controller, environment, layers
from optimizers import Evaluator, Optimizer, latin_hypercube, run
from optimizers.comparison.interval import with_interval
from optimizers.comparison.records import Row, Rows, best_so_far, by_seed, curve, seeds_of, where
from surrogates import plotting


@dataclasses.dataclass(frozen=True)
class Table2:
    """Settings of the measurement.

    Attributes:
        environments: names of the environments.
        controllers: number of controllers per seed.
        episodes: number of episodes per controller.
        horizon: largest number of steps of an episode; None: the environment's own.
    """

    environments: tuple[str, ...] = tuple(ENVIRONMENTS)
    controllers: int = 20
    episodes: int = 4
    horizon: int | None = None


def run_table2(settings: Table2, seed: int) -> Rows:
    """Records the sizes, and the mean reward of the seed's controllers."""
    rows: Rows = []
    for name in settings.environments:
        widths, fun = layers(environment(name)), Controller(name, settings.episodes, seed, settings.horizon)
        generator = torch.Generator().manual_seed(seed)
        thetas = 2 * torch.rand(settings.controllers, fun.dimension, generator=generator, dtype=torch.float64) - 1
        measured = {
            "observation": widths[0],
            "action": widths[-1],
            "parameters": fun.dimension,
            "expected": ENVIRONMENTS[name][1],
            "random_reward": -float(np.mean([fun(theta) for theta in thetas])),
        }
        rows += [{"seed": seed, "environment": name, "quantity": k, "value": v} for k, v in measured.items()]
    return rows


def claims_of_table2(settings: Table2, rows: Rows) -> list[Verdict]:
    """Judges whether the sizes are as expected."""
    seeds = seeds_of(rows)
    wrong = np.zeros(len(seeds))
    for name in settings.environments:
        found, expected = (by_seed(rows, environment=name, quantity=q) for q in ("parameters", "expected"))
        wrong += found != expected
    trials = np.full(len(seeds), len(settings.environments))
    claim = "controllers have the expected dimensions"
    return [never(claim, "share of environments that differ", wrong, trials)]


def table2(settings: Table2, rows: Rows) -> Table:
    """Lists the sizes, and the reward of random controllers."""
    columns = ("environment", "gymnasium", "observation", "action", "parameters", "expected", "random reward")
    cells = []
    for name in settings.environments:
        own = where(rows, environment=name)
        counts = [f"{by_seed(own, quantity=q)[0]:.0f}" for q in ("observation", "action", "parameters", "expected")]
        reward = with_interval(by_seed(own, quantity="random_reward"))
        cells.append((TITLES[name], ENVIRONMENTS[name][0], *counts, reward))
    return Table(columns, tuple(cells), "Sizes, and the mean reward of random controllers with its 95% interval.")


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
class Table3:
    """Settings of the search.

    Attributes:
        environments: names of the environments.
        methods: the search methods.
        episodes: number of episodes per query.
        design: number of controllers of the Latin hypercube.
        max_queries: number of queries after the Latin hypercube.
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


def start_of(settings: Table3, fun: Controller, seed: int) -> tuple[Tensor, Tensor]:
    """Returns the controllers of the Latin hypercube, ``n x d``, and f there."""
    X = fun.bound * (2.0 * latin_hypercube(settings.design, fun.dimension, seed) - 1.0)
    return X, torch.tensor([fun(x) for x in X], dtype=torch.float64)


def searcher(settings: Table3, method: str, fun: Controller, X: Tensor, y: Tensor, seed: int) -> Optimizer:
    """Creates a method at the best controller of the Latin hypercube."""
    box = [(-fun.bound, fun.bound)] * fun.dimension
    options: dict[str, Any] = {"bounds": box, "max_queries": settings.max_queries, "seed": seed}
    if method == "turbo1":
        options |= {"candidates": settings.turbo_candidates, "initial_points": min(50, settings.max_queries // 2)}
    if method.startswith("zord"):
        options |= {"history": (X, y), "window": WINDOW}
    return search(method, X[int(y.argmin())], rate=settings.rate, radius=RADIUS, **options)


def run_table3(settings: Table3, seed: int) -> Rows:
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


def last(settings: Table3, rows: Rows, environment: str, method: str) -> np.ndarray:
    """Returns the final best reward, one number per seed."""
    return by_seed(rows, environment=environment, method=method, queries=settings.max_queries)


def plot(settings: Table3, rows: Rows) -> Figure:
    """Draws the best reward against queries, a panel for each environment."""

    def draw(axes: Axes, name: str) -> None:
        for i, method in enumerate(settings.methods):
            found, look = curve(rows, "queries", environment=name, method=method), plotting.METHODS[method]
            plotting.draw(axes, method, found._replace(standard_error=np.zeros(len(found.x))))
            end = settings.max_queries * (1.03 + 0.02 * i)
            axes.errorbar(end, found.mean[-1], found.standard_error[-1], color=look.color, marker=look.marker)

    cells = {TITLES[name]: name for name in settings.environments}
    return plotting.grid(cells, draw, xlabel="queries", ylabel="best reward", height=1.8)


def claims_of_table3(settings: Table3, rows: Rows) -> list[Verdict]:
    """Judges the final rewards of ZoRD and the default against the others, in standard deviations of an environment."""
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


def table3(settings: Table3, rows: Rows) -> Table:
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


EXPERIMENTS = (
    Experiment(
        id="zord-table2",
        shows="environments of reinforcement learning and the dimensions of their controllers",
        claim="A controller's number of parameters is determined by the dimensions of the observation and of the "
        "action.",
        scales={
            "paper": Table2(),
            "reduced": Table2(controllers=3, episodes=1, horizon=200),
            "quick": Table2(controllers=1, episodes=1, horizon=5),
        },
        run_seed=run_table2,
        plot=None,
        claims=claims_of_table2,
        table=table2,
        seeds=3,
        extra="rl",
    ),
    Experiment(
        id="zord-table3",
        shows=lambda settings: (
            f"reward of controllers after {settings.max_queries:,} queries in "
            + ", ".join(TITLES[name] for name in settings.environments)
        ),
        claim="ZoRD's controllers earn more reward than those of ES, RGF and PRGF in every environment.",
        scales={
            "paper": Table3(),
            "reduced": Table3(episodes=1, design=50, max_queries=100, every=5, turbo_candidates=500),
            "quick": Table3(TWO, FEW, episodes=1, design=6, max_queries=8, every=4, horizon=10),
        },
        run_seed=run_table3,
        plot=plot,
        caption=lambda settings: (
            f"All methods start at the best of a Latin hypercube of {settings.design:,} controllers, whose queries are "
            "not counted. Lines are means over seeds; bars on the right show ± one standard error at the end."
        ),
        claims=claims_of_table3,
        table=table3,
        seeds={"quick": 3, "reduced": 10, "paper": 10},
        extra="rl",
        cost={"paper": "days: one algorithm takes 2 to 70 core-hours an environment"},
    ),
)
