"""What changes as queries come: appending, moving a window, scoring candidates, Fourier weights; against redoing it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import sqrt

import torch
from torch import Tensor

from experiments.benchmarks.peers import NOISE, Problem
from experiments.benchmarks.timing import interleaved
from surrogates import (
    DerivedGP,
    FourierFeatures,
    FourierSurrogate,
    NearestWindow,
    Trajectory,
    matern_kernel,
    radial_profile,
    rbf_kernel,
)


@dataclass(frozen=True)
class Row:
    """One competitor of one update, in the benchmark's table.

    Attributes:
        name: The competitor.
        gives: The update.
        n: Observations.
        d: Inputs.
        q: Points, candidates or rows.
        median: Seconds of one.
        fastest: Seconds.
        slowest: Seconds.
        repetitions: Measured.
        baseline: The name of ours, which ratios are taken to.
        megabytes: Not measured here.
        note: Whatever the reader should know.
    """

    name: str
    gives: str
    n: int
    d: int
    q: int
    median: float
    fastest: float
    slowest: float
    repetitions: int
    baseline: str
    megabytes: float = float("nan")
    note: str = ""


def measure(seconds: float) -> list[Row]:
    """All updates, one after another."""
    return [*_appending(seconds), *_moving(seconds), *_scoring(seconds), *_weights(seconds)]


def targets(rows: list[dict[str, object]]) -> list[tuple[str, float | None, float, bool]]:
    """(text, ratio measured, limit, whether the ratio should be at least the limit)."""

    def ratio(gives: str, name: str) -> float | None:
        same = [row for row in rows if row["gives"] == gives]
        other = next((row["median"] for row in same if row["name"] == name), None)
        ours = next((row["median"] for row in same if row["name"] == row["baseline"]), None)
        return None if other is None or ours is None else other / ours  # type: ignore[operator]

    return [
        (
            "appending one observation at n = 3000 at least 40 times faster than refitting",
            ratio("append", "DerivedGP made anew"),
            40,
            True,
        ),
        (
            "scoring 100 candidates at n = 3000 at least 50 times faster than a triangular solve for each",
            ratio("score", "triangular solve for each"),
            50,
            True,
        ),
        (
            "w at n = 3000, M = 10000 by appending 60 rows at least 10 times faster than from scratch",
            ratio("weights", "from scratch"),
            10,
            True,
        ),
    ]


def _rows(
    gives: str, n: int, d: int, q: int, baseline: str, calls: dict[str, Callable[[], object]], s: float
) -> list[Row]:
    return [Row(name, gives, n, d, q, *t, baseline=baseline) for name, t in interleaved(calls, s).items()]


def _appending(seconds: float) -> list[Row]:
    """One observation onto 3000, ready to predict the gradient mean."""
    n, d = 3000, 100
    problem = Problem(n, d, 1)
    fresh = iter(torch.rand(10_000, 1, d, dtype=torch.float64, generator=torch.Generator().manual_seed(1)))
    gp = problem.gp

    def append() -> Tensor:
        x = next(fresh)
        gp.add_observations(x, x[:, :1].sin())
        return gp.conditioning.alpha

    def anew() -> Tensor:
        return DerivedGP(
            problem.X,
            problem.Y,
            likelihood=gp.likelihood,
            covar_module=gp.covar_module,
            mean_module=gp.mean_module,
            outcome_transform=None,
        ).conditioning.alpha

    return _rows(
        "append",
        n,
        d,
        1,
        "DerivedGP.add_observations",
        {"DerivedGP.add_observations": append, "DerivedGP made anew": anew},
        seconds,
    )


def _moving(seconds: float) -> list[Row]:
    """A 150-point window over 5000 points of d = 2189, to points a step apart."""
    n, d, k = 5000, 2189, 150
    generator = torch.Generator().manual_seed(2)
    history = torch.randn(n, d, dtype=torch.float64, generator=generator).cumsum(0) / sqrt(d)
    trajectory = Trajectory(d, capacity=n)
    trajectory.append(history, history[:, 0])
    lengthscale = float((history[1:] - history[:-1]).norm(dim=-1).mean() * 10)
    kernel = matern_kernel(lengthscale).base_kernel
    window = NearestWindow(trajectory, k, precision=1 / lengthscale**2, profile=radial_profile(kernel), noise=NOISE)
    walk = iter(torch.randn(4000, d, dtype=torch.float64, generator=generator) * 0.02)
    at = history[2500].clone()

    def move() -> Tensor:
        at.add_(next(walk))
        window.move_to(at)
        return window.L

    def anew() -> Tensor:
        nearest = (history - at).norm(dim=-1).topk(k, largest=False).indices
        X = history[nearest]
        return torch.linalg.cholesky(
            radial_profile(kernel).h(torch.cdist(X, X).square() / lengthscale**2)
            + NOISE * torch.eye(k, dtype=torch.float64)
        )

    return _rows(
        "window",
        n,
        d,
        k,
        "NearestWindow.move_to",
        {"NearestWindow.move_to": move, "select and factorise anew": anew},
        seconds,
    )


def _scoring(seconds: float) -> list[Row]:
    """The gradient's uncertainty at 100 candidates, n = 3000, d = 300."""
    problem = Problem(3000, 300, 100, seed=3)
    conditioning = problem.gp.conditioning
    problem.gp.gradient_posterior(problem.x).trace  # noqa: B018

    def ours() -> Tensor:
        return problem.gp.gradient_posterior(problem.x).trace

    def solved() -> Tensor:
        """One candidate; its time is scaled to 100."""
        return conditioning.whitened_jacobian(problem.x[:1]).square().sum()

    rows = _rows(
        "score", 3000, 300, 100, "DerivedGP", {"DerivedGP": ours, "triangular solve for each": solved}, seconds
    )
    return [
        row
        if row.name == row.baseline
        else Row(
            row.name,
            row.gives,
            row.n,
            row.d,
            row.q,
            100 * row.median,
            100 * row.fastest,
            100 * row.slowest,
            row.repetitions,
            row.baseline,
            note="1 of 100, scaled",
        )
        for row in rows
    ]


def _weights(seconds: float) -> list[Row]:
    """w of FZooS's shared features, 60 rows onto 2940 and 3000 from scratch, M = 10000, d = 300."""
    n, d, m, new = 3000, 300, 10_000, 60
    generator = torch.Generator().manual_seed(4)
    X = torch.rand(n + 40 * new, d, dtype=torch.float64, generator=generator)
    y = X.sin().sum(-1)
    features = FourierFeatures(rbf_kernel(1.0), d, m, seed=0)
    growing = FourierSurrogate(features, noise=NOISE).fit(X[: n - new], y[: n - new])
    growing.weights  # noqa: B018
    start = iter(range(n - new, n + 39 * new, new))

    def append() -> Tensor:
        i = next(start)
        return growing.append(X[i : i + new], y[i : i + new]).weights

    def scratch() -> Tensor:
        return FourierSurrogate(features, noise=NOISE).fit(X[:n], y[:n]).weights

    return _rows("weights", n, d, new, "append 60 rows", {"append 60 rows": append, "from scratch": scratch}, seconds)
