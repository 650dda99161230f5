"""Times updates against recomputation: appending data, moving a window, scoring candidates, and Fourier weights."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from experiments.benchmarks.output import Target
from experiments.benchmarks.peers import NOISE, Problem
from experiments.benchmarks.timing import Call, interleaved
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
class Update:
    """One update, by our code and by recomputation.

    Attributes:
        gives: name of the update.
        n: number of observations.
        d: number of inputs.
        q: number of points, candidates or rows.
        calls: our call, then the alternative, by name.
        target: description of the speedup and its lower limit.
        share: number of the alternative's calls in one update.
    """

    gives: str
    n: int
    d: int
    q: int
    calls: dict[str, Call]
    target: tuple[str, float] | None = None
    share: int = 1


def measure(seconds: float) -> tuple[list[dict[str, Any]], list[Target]]:
    """Returns the rows of all updates, and the targets for their speedups."""
    rows, targets = [], []
    for make in (appending, moving, scoring, weights):
        update = make()
        (ours, mine), (other, theirs) = interleaved(update.calls, seconds).items()
        theirs, note = theirs.times(update.share), f"1 of {update.share}, scaled" if update.share > 1 else ""
        cell = {"gives": update.gives, "n": update.n, "d": update.d, "q": update.q, "baseline": ours}
        for name, timing, said in ((ours, mine, ""), (other, theirs, note)):
            rows.append({"name": name, **cell, **timing._asdict(), "megabytes": math.nan, "note": said})
        if update.target:
            text, times = update.target
            targets.append(Target(f"times faster {text}", theirs.median / mine.median, times, at_least=True))
    return rows, targets


def appending() -> Update:
    """Appends one observation to 3000, until the gradient mean can be predicted."""
    n, d = 3000, 100
    problem = Problem(n, d, 1)
    fresh = iter(torch.rand(10_000, 1, d, dtype=torch.float64, generator=torch.Generator().manual_seed(1)))
    gp = problem.gp

    def append() -> Tensor:
        x = next(fresh)
        gp.add_observations(x, x[:, :1].sin())
        return gp.conditioning.alpha

    calls: dict[str, Call] = {
        "DerivedGP.add_observations": append,
        "DerivedGP made anew": lambda: problem.model(DerivedGP).conditioning.alpha,
    }
    return Update("append", n, d, 1, calls, (f"to append one observation at n = {n} than to refit", 40))


def moving() -> Update:
    """Moves a 150-point window over 5000 points with d = 2189 to points one step apart."""
    n, d, k = 5000, 2189, 150
    generator = torch.Generator().manual_seed(2)
    history = torch.randn(n, d, dtype=torch.float64, generator=generator).cumsum(0) / math.sqrt(d)
    trajectory = Trajectory(d, capacity=n)
    trajectory.append(history, history[:, 0])
    lengthscale = float((history[1:] - history[:-1]).norm(dim=-1).mean() * 10)
    profile = radial_profile(matern_kernel(lengthscale).base_kernel)
    window = NearestWindow(trajectory, k, precision=1 / lengthscale**2, profile=profile, noise=NOISE)
    walk = iter(torch.randn(4000, d, dtype=torch.float64, generator=generator) * 0.02)
    at = history[2500].clone()
    window.move_to(at)

    def move() -> Tensor:
        at.add_(next(walk))
        window.move_to(at)
        return window.L

    def anew() -> Tensor:
        nearest = (history - at).norm(dim=-1).topk(k, largest=False).indices
        X = history[nearest]
        covariance = profile.h(torch.cdist(X, X).square() / lengthscale**2)
        return torch.linalg.cholesky(covariance + NOISE * torch.eye(k, dtype=torch.float64))

    calls: dict[str, Call] = {"NearestWindow.move_to": move, "select and factorise anew": anew}
    return Update("window", n, d, k, calls)


def scoring() -> Update:
    """Computes the gradient's uncertainty at 100 candidates, n = 3000, d = 300; the alternative is timed on one."""
    n, d, q = 3000, 300, 100
    problem = Problem(n, d, q, seed=3)
    conditioning = problem.gp.conditioning
    problem.gp.gradient_posterior(problem.x).trace  # noqa: B018
    calls: dict[str, Call] = {
        "DerivedGP": lambda: problem.gp.gradient_posterior(problem.x).trace,
        "triangular solve for each": lambda: conditioning.whitened_jacobian(problem.x[:1]).square().sum(),
    }
    claim = f"to score {q} candidates at n = {n} than by a triangular solve for each"
    return Update("score", n, d, q, calls, (claim, 50), share=q)


def weights() -> Update:
    """Computes w of FZooS's shared features: 60 rows added to 2940, and 3000 from scratch, M = 10000, d = 300."""
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

    calls: dict[str, Call] = {f"append {new} rows": append, "from scratch": scratch}
    claim = f"to have w at n = {n}, M = {m} by appending {new} rows than from scratch"
    return Update("weights", n, d, new, calls, (claim, 10))
