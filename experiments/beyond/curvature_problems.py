"""Problems for ``beyond-curvature`` with coordinates of different scale, or with a wide spectrum in rotated axes."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from experiments.papers.hiso import training

QUADRATICS = ("log_uniform", "correlated", "five_large", "rotated", "blocks")
NETWORKS = ("mlp", "mlp_scaled")
SCALES = (0.1, 1.0, 10.0, 1.0)
"""Units of the scaled MLP's tensors W₁, b₁, W₂, b₂: its function is the plain MLP's at θ = scale · x."""

PLAIN_RATE, SCALED_RATE = 0.02, 0.004
"""Rates of DeComFL with P = 1 that are nearly best for the MLP, and for the badly scaled MLP."""

Function = Callable[[Tensor], Tensor]


@dataclasses.dataclass(frozen=True)
class CurvatureProblem:
    """A function to minimize, with known properties.

    Attributes:
        clients: the clients' functions of a point of shape ``d``; a single one without a federation.
        x0: start of all methods, shape ``d``.
        minimum: minimum of the mean of the clients' functions; 0 for networks, whose minimum is unknown.
        diagonal: the oracle's diagonal, shape ``d``: the Hessian's at the minimum, or a network's squared ``SCALES``.
        groups: groups for ``group_probe``; None for single coordinates.
        num_random: number of random groups of the control.
        base: base rate of methods without a diagonal, for P perturbations.
        oracle_base: base rate with ``diagonal``; 0 selects P/(d + P + 1), for the diagonal of a Hessian.
        whole: the mean of the clients' functions, or the loss on all training images.
    """

    clients: tuple[Function, ...]
    x0: Tensor
    minimum: float
    diagonal: Tensor
    groups: Any
    num_random: int
    base: Callable[[int], float]
    whole: Function
    oracle_base: float = 0.0


def stable_rate(trace: float, largest: float, count: int) -> float:
    """Returns 1/(tr A/P + (1 + 1/P) λ_max), DeComFL's step with the largest expected decrease in the worst case."""
    return 1.0 / (trace / count + (1.0 + 1.0 / count) * largest)


def quadratic_problem(family: str, d: int, seed: int) -> CurvatureProblem:
    """Returns ½ xᵀAx with a standard normal start.

    ``log_uniform``: A is diagonal with eigenvalues 10^U(−2, 2). ``correlated``: A = SCS, where C_ij = 0.5^|i−j| and the
    entries of the diagonal S² are distributed like these eigenvalues. ``five_large``: A is diagonal; a twentieth of the
    eigenvalues are 1000, the others 1. ``rotated``: the log-uniform spectrum in random axes. ``blocks``: blocks of d/10
    coordinates with random axes and eigenvalues from 0.5 to 2, each block multiplied by 10^U(−2, 2).
    """
    generator = torch.Generator().manual_seed(7000 + seed)

    def uniform(n: int) -> Tensor:
        return 10.0 ** (4.0 * torch.rand(n, generator=generator, dtype=torch.float64) - 2.0)

    def rotation(n: int) -> Tensor:
        return torch.linalg.qr(torch.randn(n, n, generator=generator, dtype=torch.float64))[0]

    groups: Any = None
    if family == "log_uniform":
        A = torch.diag(uniform(d))
    elif family == "correlated":
        index = torch.arange(d, dtype=torch.float64)
        root = uniform(d).sqrt()
        A = root[:, None] * 0.5 ** (index[:, None] - index).abs() * root
    elif family == "five_large":
        values = torch.ones(d, dtype=torch.float64)
        values[torch.randperm(d, generator=generator)[: max(1, d // 20)]] = 1000.0
        A = torch.diag(values)
    elif family == "rotated":
        Q = rotation(d)
        A = Q @ torch.diag(uniform(d)) @ Q.T
    else:
        size = d // 10
        inside = torch.logspace(math.log10(0.5), math.log10(2.0), size, dtype=torch.float64)
        A = torch.block_diag(*(v * (Q := rotation(size)) @ torch.diag(inside) @ Q.T for v in uniform(d // size)))
        groups = d // size
    x0 = torch.randn(len(A), generator=generator, dtype=torch.float64)
    A = 0.5 * (A + A.T)
    trace, largest = float(A.trace()), float(torch.linalg.eigvalsh(A)[-1])

    def fun(x: Tensor) -> Tensor:
        return 0.5 * ((x @ A) * x).sum(-1)

    rate = functools.partial(stable_rate, trace, largest)
    return CurvatureProblem((fun,), x0, 0.0, A.diagonal().clone(), groups, 10, rate, fun)


def logistic_problem(seed: int, ridge: float = 1e-3) -> CurvatureProblem:
    """Returns logistic regression on scikit-learn's breast-cancer data from w = 0, with an intercept.

    The 30 features are standardized and then multiplied by 10^U(−1, 1), drawn by the seed. The ridge applies to the
    weights of the standardized features, so that the minimum is the same for every seed.
    """
    from sklearn.datasets import load_breast_cancer

    found = load_breast_cancer()
    X = torch.from_numpy(found.data)
    X = torch.cat([(X - X.mean(0)) / X.std(0), torch.ones(len(X), 1, dtype=torch.float64)], dim=1)
    y = torch.from_numpy(2.0 * found.target - 1.0)
    generator = torch.Generator().manual_seed(7000 + seed)
    scales = 10.0 ** (2.0 * torch.rand(X.shape[1], generator=generator, dtype=torch.float64) - 1.0)
    w = torch.zeros(X.shape[1], dtype=torch.float64)

    def value(w: Tensor) -> Tensor:
        return torch.nn.functional.softplus(-y * (w @ X.T)).mean(-1) + 0.5 * ridge * w.square().sum(-1)

    for _ in range(50):
        p = torch.sigmoid(-y * (X @ w))
        H = (X.T * (p * (1.0 - p))) @ X / len(y) + ridge * torch.eye(len(w), dtype=torch.float64)
        w = w - torch.linalg.solve(H, ridge * w - X.T @ (p * y) / len(y))
    at_start = scales[:, None] * (0.25 * X.T @ X / len(y) + ridge * torch.eye(len(w), dtype=torch.float64)) * scales
    rate = functools.partial(stable_rate, float(at_start.trace()), float(torch.linalg.eigvalsh(at_start)[-1]))

    def fun(v: Tensor) -> Tensor:
        return value(scales * v)

    return CurvatureProblem(
        (fun,), torch.zeros_like(w), float(value(w)), scales.square() * H.diagonal(), None, 8, rate, fun
    )


def network_problem(name: str, seed: int, clients: int = 1, images: int = 300) -> CurvatureProblem:
    """Returns the digits MLP in float64: one client with few images, or many with Dirichlet(1) shares of all.

    ``mlp_scaled`` is the same network with tensors in the units of ``SCALES``.
    """
    groups, scales = training.tensors("mlp"), SCALES if name == "mlp_scaled" else (1.0,) * len(SCALES)
    unit = torch.cat([torch.full((len(g),), s, dtype=torch.float64) for g, s in zip(groups, scales, strict=True)])
    parts, pooled, _ = training.federation_of("mlp", max(clients, 2), 1.0, seed)
    whole = _scaled(pooled, unit, None if clients > 1 else images)
    functions = tuple(_scaled(part, unit, None) for part in parts) if clients > 1 else (whole,)
    rate = SCALED_RATE if name == "mlp_scaled" else PLAIN_RATE
    x0 = training.initial("mlp", seed).double() / unit
    return CurvatureProblem(
        functions, x0, 0.0, unit.square(), groups, len(groups), lambda count: rate * min(count, 5), whole, PLAIN_RATE
    )


def _scaled(loss: training.Loss, unit: Tensor, images: int | None) -> Function:
    inner = training.Loss(loss.network, loss.inputs[:images].double(), loss.labels[:images])
    return lambda x: inner(unit * x)


def problem_of(name: str, d: int, seed: int, clients: int = 1) -> CurvatureProblem:
    """Returns a problem by its name."""
    if name == "logistic":
        return logistic_problem(seed)
    return network_problem(name, seed, clients) if name in NETWORKS else quadratic_problem(name, d, seed)
