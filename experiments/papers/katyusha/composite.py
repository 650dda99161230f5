"""Composite problems with a known minimum, and the gap along a run, for both of Katyusha's figures."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from torch import Tensor

from experiments.harness.records import distinct
from optimizers import Box, BoxRidge, NoProx, Optimizer, Prox
from optimizers.comparison.records import Row, Rows, seeds_of
from surrogates import plotting

FLOOR = 1e-14
"""Smaller gaps, which are rounding errors, are set to this value."""


@dataclasses.dataclass(frozen=True)
class Composite:
    """Minimization of f + ψ from x0 = 0; ∇f is Lipschitz continuous, ψ the indicator of a box plus μ_ψ/2 ‖x‖².

    Attributes:
        function: f, ``... x d`` to ``...``.
        prox: proximal operator of ψ.
        L: Lipschitz constant of ∇f.
        mu_f: strong convexity of f.
        mu_psi: strong convexity of ψ.
        minimizer: minimizer of f + ψ, shape ``d``.
    """

    function: Callable[[Tensor], Tensor]
    prox: Prox
    L: float
    mu_f: float
    mu_psi: float
    minimizer: Tensor

    @property
    def dim(self) -> int:
        """The dimension d."""
        return self.minimizer.shape[-1]

    @property
    def kappa(self) -> float:
        """L/(μ_f + μ_ψ)."""
        return self.L / (self.mu_f + self.mu_psi)

    def active_share(self) -> float:
        """Returns the share of the coordinates that lie at a bound at the minimum."""
        if not isinstance(self.prox, Box | BoxRidge):
            return 0.0
        bound = torch.as_tensor(self.prox.upper)
        return float((self.minimizer.abs() >= bound - 1e-9).double().mean())

    def gap(self, x: Tensor) -> float:
        """Returns f + ψ at a feasible x minus its minimum."""
        ridge = 0.5 * self.mu_psi * (x.square().sum() - self.minimizer.square().sum())
        return float(self.function(x) - self.function(self.minimizer) + ridge)


def logistic(dim: int, num_rows: int, mu: float, side: float, seed: int) -> Composite:
    """f = (1/n) Σ log(1 + exp(−bᵢ aᵢ·x)), ψ = μ/2 ‖x‖² on a box; aᵢ and c standard normal, bᵢ the sign of aᵢ·c."""
    generator = np.random.default_rng(seed)
    A = generator.standard_normal((num_rows, dim))
    signed = torch.from_numpy(A * np.sign(A @ generator.standard_normal(dim))[:, None])

    def function(x: Tensor) -> Tensor:
        return torch.nn.functional.softplus(-x @ signed.T).mean(-1)

    def gradient(x: Tensor) -> Tensor:
        return -torch.sigmoid(-x @ signed.T) @ signed / num_rows

    L = float(torch.linalg.matrix_norm(signed, 2)) ** 2 / (4 * num_rows)
    return _minimized(function, gradient, BoxRidge(-side, side, mu), L, 0.0, mu, dim)


def quadratic(dim: int, kappa: float, side: float | None, seed: int) -> Composite:
    """½ (x − c)ᵀ H (x − c), H's eigenvalues from 1 to κ in equal ratios in a random basis, c standard normal."""
    generator = np.random.default_rng(seed)
    basis = np.linalg.qr(generator.standard_normal((dim, dim)))[0]
    H = torch.from_numpy(basis @ np.diag(np.geomspace(1.0, kappa, dim)) @ basis.T)
    center = torch.from_numpy(generator.standard_normal(dim))

    def function(x: Tensor) -> Tensor:
        return 0.5 * (((x - center) @ H) * (x - center)).sum(-1)

    prox = NoProx() if side is None else Box(-side, side)
    return _minimized(function, lambda x: (x - center) @ H, prox, kappa, 1.0, 0.0, dim)


Function = Callable[[Tensor], Tensor]


def _minimized(
    function: Function, gradient: Function, prox: Prox, L: float, mu_f: float, mu_psi: float, dim: int
) -> Composite:
    """Creates the problem; its minimizer is computed to rounding by exact proximal gradient descent."""
    x = torch.zeros(dim, dtype=torch.float64)
    for _ in range(math.ceil(45 * L / (mu_f + mu_psi))):
        x = prox(x - gradient(x) / L, 1.0 / L)
    return Composite(function, prox, L, mu_f, mu_psi, x)


def gaps(problem: Composite, optimizer: Optimizer, every: int) -> np.ndarray:
    """Returns the gap at the iterate after at most 0, every, 2 every … queries; smaller gaps are set to FLOOR.

    A run stops when it reaches FLOOR, and the remaining entries are FLOOR.
    """
    grid = np.arange(0, optimizer.max_queries + 1, every)
    found = np.full(len(grid), np.nan)
    at, gap = 0, problem.gap(optimizer.x)
    while at < len(grid):
        batch = None if optimizer.stopped else optimizer.ask()
        after = math.inf if batch is None else optimizer.queries + len(batch)
        if after > grid[at]:
            gap = max(problem.gap(optimizer.x), FLOOR)
            while at < len(grid) and grid[at] < after:
                found[at], at = gap, at + 1
        if batch is None or gap <= FLOOR:
            break
        optimizer.tell(batch, problem.function(batch.points()))
    found[at:] = gap
    return found


def start_and_options(problem: Composite, max_queries: int, seed: int, radius: float) -> tuple[Tensor, dict[str, Any]]:
    """Returns x0 = 0 and the options that all methods share.

    The prox does not compute the value of ψ, which no method uses here and which would slow down every query.
    """
    prox = problem.prox

    def prox_alone(z: Tensor, step: float) -> Tensor:
        return prox(z, step)

    options = {"prox": prox_alone, "max_queries": max_queries, "seed": seed, "smoothing_radius": radius}
    options |= {"strong_convexity": problem.mu_f, "prox_strong_convexity": problem.mu_psi}
    return torch.zeros(problem.dim, dtype=torch.float64), options | {"track_best": False}


def gap_rows(key: Row, found: np.ndarray, every: int, keep: int) -> Rows:
    """Returns every ``keep``-th entry of ``gaps`` as a record."""
    return [key | {"quantity": "gap", "num_queries": every * i, "value": found[i]} for i in range(0, len(found), keep)]


def queries_until(found: np.ndarray, every: int, tolerance: float) -> int:
    """Returns the queries to the first gap within the tolerance, rounded up to ``every``; all queries if none."""
    reached = np.flatnonzero(found <= tolerance)
    return every * int(reached[0] if len(reached) else len(found) - 1)


BANDS = "Lines are means over trials; bands omit the largest and the smallest twentieth."
"""Caption of both figures."""


def draw_band(axes: Axes, rows: Rows, method: str, label: str | None = None, every: int = 10) -> None:
    """Draws the mean over seeds and the band from the 5% to the 95% quantile against queries, on a log scale."""
    look, x = plotting.METHODS[method], np.array(distinct(rows, "num_queries"), dtype=float)
    table = np.array([row["value"] for row in rows], dtype=float).reshape(len(seeds_of(rows)), len(x))
    drawn: Any = {"color": look.color, "ls": look.line, "marker": look.marker, "label": label or look.label}
    axes.semilogy(x, table.mean(0), markevery=every, **drawn)
    axes.fill_between(x, *np.quantile(table, [0.05, 0.95], axis=0), color=look.color, alpha=0.2, lw=0)
