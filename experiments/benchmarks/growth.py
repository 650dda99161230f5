"""Measures how the time of each documented cost of ``DerivedGP`` grows: the exponents of t ~ nᵃ dᵇ."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from experiments.benchmarks.output import Target
from experiments.benchmarks.peers import Problem
from experiments.benchmarks.timing import Call, interleaved
from surrogates import DerivedGP, GradientPosterior
from surrogates.stationary_conditioning import StationaryConditioning

N, D = (2000, 3000, 4500), (1000, 2000, 4000)
FEW, MANY = 4, 150
"""d while n grows, and n while d grows."""

MARGIN = 0.5
"""Allowed excess over the documented exponent, because of cache sizes and the overhead of small sizes."""


@dataclass(frozen=True)
class Cost:
    """A documented cost.

    Attributes:
        name: the computed quantity.
        make: creates its call for a problem.
        over_n: exponent of n, with d = ``FEW``.
        over_d: exponent of d, with n = ``MANY``; None if another rule holds for d > n.
    """

    name: str
    make: Callable[[Problem], Call]
    over_n: float
    over_d: float | None = 1.0


def first_trace(problem: Problem) -> Call:
    """Returns a call that computes the first trace for new data."""
    known = problem.gp.conditioning
    assert isinstance(known, StationaryConditioning)
    return lambda: GradientPosterior(known.over(known.X, known.factor, known.alpha), problem.x).trace


def later_trace(problem: Problem) -> Call:
    """Returns a call that computes a trace with known A⁻¹."""
    known = problem.gp.conditioning
    assert isinstance(known, StationaryConditioning)
    _ = known.inverse_times_distances
    return lambda: GradientPosterior(known, problem.x).trace


def appending(problem: Problem) -> Call:
    """Returns a call that appends one observation."""
    gp = problem.model(DerivedGP)
    points = iter(torch.rand(10_000, 1, problem.d, dtype=torch.float64, generator=torch.Generator().manual_seed(1)))

    def append() -> None:
        x = next(points)
        gp.add_observations(x, x[:, :1].sin())

    return append


def along(problem: Problem) -> Call:
    """Returns a call that computes the covariance of gradient and Hessian along two directions."""
    U = torch.eye(problem.d, 2, dtype=torch.float64)
    return lambda: problem.gp.hessian_posterior(problem.x).along(U).covariance_matrix


COSTS = (
    Cost("mean", lambda p: lambda: p.gp.gradient_posterior(p.x).mean, 1),
    Cost("first trace", first_trace, 2, None),
    Cost("later trace", later_trace, 2, 1),
    Cost("variance", lambda p: lambda: p.gp.gradient_posterior(p.x).variance, 2),
    Cost("directional variance", lambda p: lambda: p.gp.gradient_posterior(p.x).directional_variance(p.x), 2),
    Cost("add_observations", appending, 2),
    Cost("Hessian along two directions", along, 2),
    Cost("Newton direction", lambda p: lambda: p.gp.hessian_posterior(p.x).newton_direction(1.0), 1),
)


def measure(seconds: float) -> tuple[list[dict[str, Any]], list[Target]]:
    """Returns the rows of all costs and sizes, and the targets for the exponents from the first to the last size."""
    rows, targets = [], []
    for over, sizes in (("n", [(n, FEW) for n in N]), ("d", [(MANY, d) for d in D])):
        times: dict[str, list[float]] = {cost.name: [] for cost in COSTS}
        for n, d in sizes:
            problem = Problem(n, d, 1)
            for name, timing in interleaved({cost.name: cost.make(problem) for cost in COSTS}, seconds).items():
                times[name].append(timing.fastest)
                cell = {"name": name, "gives": f"growth over {over}", "n": n, "d": d, "q": 1}
                rows.append({**cell, **timing._asdict(), "megabytes": math.nan, "note": ""})
        for cost in COSTS:
            documented = cost.over_n if over == "n" else cost.over_d
            if documented is not None:
                first, *_, last = times[cost.name]
                exponent = math.log(last / first) / math.log(N[-1] / N[0] if over == "n" else D[-1] / D[0])
                targets.append(Target(f"{cost.name}: exponent of {over}", exponent, documented + MARGIN))
    return rows, targets
