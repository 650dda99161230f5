"""Beyond ZoRD: q concurrent queries on the five problems of ``beyond-zord``, at equal queries and at equal rounds.

``informed`` queries the iterate and the q − 1 points that are most informative about ∇f there, and waits for all q
values (``queries_per_step``). ``workers`` keeps q queries running: whenever a query finishes, the free worker gets the
next point (``ask_another``); the time of a query is log-normal with mean 1. ``random`` is the control: its q − 1 points
lie in random directions from the iterate, at the radius of the design. With q = 1 all make one query per iteration.
Problems, starts and Adam's steps are taken from ``zord_kept`` in ``beyond-zord``; each step was tuned for q = 1 on
seeds that neither figure uses.

Time is measured in rounds; one round is the mean time of a query. A batch of q takes one round, and an initial design
of n points takes ⌈n/q⌉. With workers, the queries that finish within r rounds count. A gap is noise-free f at the point
with the smallest observed value.
"""

from __future__ import annotations

import dataclasses
import heapq
import itertools
import math
from functools import partial
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.beyond import zord
from experiments.beyond.query_rules import RandomBatch
from experiments.harness.curves import matrix
from experiments.harness.experiment import Experiment
from experiments.harness.records import checkpoints, final, log10_gap
from experiments.harness.verdicts import Table, Verdict, judge
from experiments.papers.zord import descent
from optimizers import Batch, Optimizer, ZoRD
from optimizers.comparison.interval import with_interval
from optimizers.comparison.records import Row, Rows, curve
from optimizers.first_order import adam
from surrogates import plotting

MARGIN = 0.3
"""Claimed bound on the log10 gap with q concurrent queries minus that with one, at equal queries."""

AHEAD = -0.5
"""Required change of the log10 gap by q concurrent queries instead of one, at equal rounds: to a third of the gap."""

COLORS = {1: plotting.BLACK, 4: plotting.SKY, 8: plotting.BLUE, 16: plotting.PURPLE}
LINES = {"informed": ("o", "-"), "workers": ("s", "-."), "random": ("^", ":")}
SPREAD = 0.5
"""Standard deviation of the logarithm of a query's time."""


@dataclasses.dataclass(frozen=True)
class Settings:
    """Settings of the comparison.

    Attributes:
        problems: names, as in ``beyond-zord``.
        sizes: batch sizes q besides 1.
        workers: numbers of workers q.
        dim: dimension of the standard problems.
        quadratic_dim: dimension of the quadratics.
        queries: budget of every run.
        rounds: number of rounds at which runs are compared.
        start_points, start_queries, turbo, cache: settings of the starts, see ``beyond-zord``.
        first_seed: seed of the first run.
        every: queries between records.
    """

    problems: tuple[str, ...] = zord.PROBLEMS
    sizes: tuple[int, ...] = (4, 8, 16)
    workers: tuple[int, ...] = (8,)
    dim: int = 20
    quadratic_dim: int = 50
    queries: int = 400
    rounds: int = 25
    start_points: int = 50
    start_queries: int = 300
    turbo: descent.TurboOptions = ()
    cache: str = "results/cache"
    first_seed: int = 200
    every: int = 20


def ground(settings: Settings) -> zord.Settings:
    """Returns the settings of the problems and starts."""
    names = ("dim", "quadratic_dim", "start_points", "start_queries", "turbo", "cache")
    return zord.Settings(**{name: getattr(settings, name) for name in names})


def told(opt: Optimizer, fun: Any, q: int, seed: int | None) -> list[float]:
    """Runs a method to the end of its budget; returns the time at which it received each value.

    Args:
        opt: the method.
        fun: f at ``n x d``.
        q: number of concurrent batches; if ``seed`` is None, the batch size.
        seed: seed of the query times; None: each query takes 1, and a batch ⌈n/q⌉.
    """
    times: list[float] = []
    if seed is None:
        now = 0
        while not opt.stopped:
            batch = opt.ask()
            now += math.ceil(len(batch) / q)
            opt.tell(batch, fun(batch.points()))
            times += [now] * len(batch)
        return times
    generator, clock, order = np.random.default_rng(seed), 0.0, itertools.count()
    running: list[tuple[float, int, Batch, int]] = []
    waiting: list[tuple[Batch, int]] = []
    while True:
        while len(running) < q:
            if not waiting:
                another = opt.ask_another()
                if another is None:
                    break
                waiting = [(another, i) for i in range(len(another))]
            batch, i = waiting.pop(0)
            ends = clock + generator.lognormal(-0.5 * SPREAD**2, SPREAD)
            heapq.heappush(running, (ends, next(order), batch, i))
        if not running:
            return times
        clock, _, batch, i = heapq.heappop(running)
        opt.tell(batch, fun(batch.points([i])), which=[i])
        times.append(clock)


def run_one(settings: Settings, name: str, rule: str, q: int, drawn: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns the log10 gaps after 0, 1, ... values, and the time of each value."""
    base = ground(settings)
    problem, noise = zord.problem_of(base, name, drawn), zord.NOISE.get(name, 0.0)
    start, recorder = zord.start_of(base, name, problem, drawn), zord.Recorder(problem, noise, drawn)
    step = zord.number_of("zord_kept", name)
    opt = (RandomBatch if rule == "random" else ZoRD)(
        start.x,
        bounds=problem.bounds.T,
        max_queries=settings.queries,
        seed=drawn,
        update_rule=partial(adam, lr=step),
        queries_per_step=1 if rule == "workers" else q,
    )
    times = told(opt, recorder, q, drawn if rule == "workers" else None)
    held = recorder.held(start.value, settings.queries)
    return np.array([log10_gap(value, problem.minimum) for value in held]), np.array(times)


def runs(settings: Settings) -> list[tuple[str, int]]:
    """Returns each pair of a rule and a number q of concurrent queries; the first pair has q = 1."""
    sizes = {"informed": (1, *settings.sizes), "workers": settings.workers, "random": settings.sizes}
    return [(rule, q) for rule, counts in sizes.items() for q in counts]


def run_seed(settings: Settings, seed: int) -> Rows:
    """Runs every rule and size on every problem from the same start."""
    rows = list[Row]()
    for name, (rule, q) in itertools.product(settings.problems, runs(settings)):
        gaps, times = run_one(settings, name, rule, q, settings.first_seed + seed)
        facts: Row = {"seed": seed, "problem": name, "method": rule, "q": q}
        for n in checkpoints(settings.queries, settings.every):
            rows.append({**facts, "axis": "queries", "x": n, "value": float(gaps[n])})
        for r in range(settings.rounds + 1):
            come = int((times <= r).sum())
            rows.append({**facts, "axis": "rounds", "x": r, "value": float(gaps[come])})
    return rows


def look(rule: str, q: int) -> plotting.MethodStyle:
    """Returns the style of a rule and q: each q has a colour, and each rule a line style."""
    label = "one at a time" if q == 1 else f"q = {q}, {rule}"
    return plotting.MethodStyle(label, COLORS.get(q, plotting.GREY), *(("", "-") if q == 1 else LINES[rule]))


def _drawn(settings: Settings, rows: Rows, without: str) -> Figure:
    """Draws gaps over queries (top) and over rounds (bottom), without one of the rules."""
    shown = [(rule, q) for rule, q in runs(settings) if rule != without and (q > 1 or without == "random")]

    def draw(panel: Axes, axis: str, name: str) -> None:
        for rule, q in shown:
            plotting.draw(panel, look(rule, q), curve(rows, "x", axis=axis, problem=name, method=rule, q=q))
        panel.set_xlabel(axis)
        panel.locator_params(axis="x", nbins=3)

    columns = {title(settings, name).replace(", d", ",\nd"): name for name in settings.problems}
    return matrix(("queries", "rounds"), columns, draw, ylabels="log₁₀ of the gap", height=1.7, sharey="col")


def title(settings: Settings, name: str) -> str:
    """Formats a problem."""
    return zord.title(ground(settings), name)


def measured(rows: Rows, axis: str, name: str, rule: str, q: int) -> np.ndarray:
    """Returns the last log10 gap of each seed."""
    return final(rows, "x", axis=axis, problem=name, method=rule, q=q)


def table(settings: Settings, rows: Rows) -> Table:
    """Lists final gaps at equal queries and at equal rounds."""
    cells = []
    for axis in ("queries", "rounds"):
        for rule, q in runs(settings):
            finals = (with_interval(measured(rows, axis, name, rule, q)) for name in settings.problems)
            cells.append((f"{look(rule, q).label}, equal {axis}", *finals))
    return Table(
        ("queries at a time", *(title(settings, name) for name in settings.problems)),
        tuple(cells),
        f"log10 of the gap after {settings.queries} queries, and after {settings.rounds} rounds, mean over seeds "
        "(95% interval)",
    )


def claims(settings: Settings, rows: Rows) -> list[Verdict]:
    """Judges the cost and the gain of concurrent queries, and informed points against random points."""

    def against(claim: str, axis: str, ours: tuple[str, int], other: tuple[str, int], below: float) -> Verdict:
        cells = {
            title(settings, name): measured(rows, axis, name, *ours) - measured(rows, axis, name, *other)
            for name in settings.problems
        }
        statistic = f"difference of the log10 gap at equal {axis}"
        return judge(claim, statistic, cells, below=below)

    one, verdicts = ("informed", 1), []
    several = [("informed", q, f"batches of {q}") for q in settings.sizes if q in settings.workers]
    several += [("workers", q, f"{q} workers") for q in settings.workers]
    for rule, q, how in several:
        claim = f"{how} end at most {MARGIN:g} above one query at a time, at equal queries"
        verdicts.append(against(claim, "queries", (rule, q), one, MARGIN))
        claim = f"{how} are {-AHEAD:g} below one query at a time, at equal rounds"
        verdicts.append(against(claim, "rounds", (rule, q), one, AHEAD))
    for size in settings.sizes:
        claim = f"batches of {size} end lower than {size} random points at a time, at equal queries"
        verdicts.append(against(claim, "queries", ("informed", size), ("random", size), 0.0))
    return verdicts


EXPERIMENT = Experiment(
    id="beyond-parallel",
    source="ours, beyond ZoRD",
    shows=lambda settings: (
        f"{', '.join(str(q) for q in (1, *settings.sizes))} queries at a time, after {settings.queries:,} queries and "
        f"{settings.rounds} rounds"
    ),
    claim="Batches that are informative about the gradient lose little per query and gain much per round.",
    scales={
        "paper": Settings(),
        "reduced": Settings(turbo=descent.QUICK_TURBO),
        "quick": Settings(
            problems=("ackley", "ill", "noisy"),
            sizes=(4,),
            workers=(4,),
            dim=2,
            quadratic_dim=3,
            queries=34,
            rounds=5,
            start_points=3,
            start_queries=7,
            turbo=(("batch_size", 6), ("candidates", 100)),
            cache="",
            every=8,
        ),
    },
    run_seed=run_seed,
    plot=lambda settings, rows: _drawn(settings, rows, without="random"),
    plot_more=lambda settings, rows: _drawn(settings, rows, without="workers"),
    claims=claims,
    table=table,
)
