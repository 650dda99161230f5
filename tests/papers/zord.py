"""ZoRD, line by line from the paper, in plain NumPy: nothing here comes from the project.

Y. Shu, Z. Dai, W. Sng, A. Verma, P. Jaillet, B. K. H. Low, "Zeroth-order optimization with trajectory-informed
derivative estimation", ICLR 2023. Equations, lines, sections and appendices below are its. Random draws are arguments.

The paper takes the prior mean mu(x) = 0 and a prior variance k(x, x) <= 1 "w.l.o.g." (Sec. 2.1). Data have neither:
what stands for them is an explicit reading, the arguments ``mean`` (m) and ``scale`` (s) of ``zord``: the GP is
conditioned on (y - m)/s. The paper's own are m = 0 and s = 1, the defaults; the project's are ``gls_mean``, anew for
every window, and ``spread`` of the window in which an iteration begins.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy import ndarray as Array

Function = Callable[[Array], float]
Projection = Callable[[Array], Array]
Step = Callable[[Array, Array], Array]

C = 0.35
"""Appx. C.1, "Confidence Threshold"."""

NEAREST = 150
"""Appx. C.1, "Derived GP"."""


# Kernels, as k(z, X), d_z k(z, X) and d_z d_z' k(z, z').


class Kernel(NamedTuple):
    """A differentiable kernel (Sec. 2.1).

    Attributes:
        values: k(z, x_tau) of ``n x d`` and ``m x d`` points, ``n x m``.
        first: d_z k(z, x_tau) of a point and ``m x d`` points, ``m x d``.
        cross: d_z d_z' k(z, z') of two points, ``d x d``.
    """

    values: Callable[[Array, Array], Array]
    first: Callable[[Array, Array], Array]
    cross: Callable[[Array, Array], Array]


def squared_exponential(lengthscale: float) -> Kernel:
    """The SE kernel exp(-||z - z'||^2/(2 l^2)) (Sec. 2.1; FZooS, Appx. D)."""
    l2 = lengthscale**2

    def values(Z: Array, X: Array) -> Array:
        return np.exp(-((Z[:, None] - X) ** 2).sum(-1) / (2 * l2))

    def first(z: Array, X: Array) -> Array:
        return -values(z[None], X)[0][:, None] * (z - X) / l2

    def cross(z: Array, z2: Array) -> Array:
        return values(z[None], z2[None])[0, 0] * (np.eye(len(z)) / l2 - np.outer(z - z2, z - z2) / l2**2)

    return Kernel(values, first, cross)


def matern52(lengthscale: float) -> Kernel:
    """The Matern kernel with nu = 2.5 (Appx. C.1): (1 + a + a^2/3) exp(-a), a = sqrt(5) ||z - z'||/l."""
    l2 = lengthscale**2

    def a(Z: Array, X: Array) -> Array:
        return np.sqrt(5 * ((Z[:, None] - X) ** 2).sum(-1) / l2)

    def values(Z: Array, X: Array) -> Array:
        return (1 + a(Z, X) + a(Z, X) ** 2 / 3) * np.exp(-a(Z, X))

    def first(z: Array, X: Array) -> Array:
        r = a(z[None], X)[0]
        return -5 / (3 * l2) * ((1 + r) * np.exp(-r))[:, None] * (z - X)

    def cross(z: Array, z2: Array) -> Array:
        r = a(z[None], z2[None])[0, 0]
        return 5 / (3 * l2) * np.exp(-r) * ((1 + r) * np.eye(len(z)) - 5 / l2 * np.outer(z - z2, z - z2))

    return Kernel(values, first, cross)


# Eqs. 3 and 5: the posterior GP of f and the derived GP of its gradient.


def covariance(kernel: Kernel, X: Array, noise: float) -> Array:
    """K_{t-1} + sigma^2 I (under eq. 3), ``n x n``."""
    return kernel.values(X, X) + noise * np.eye(len(X))


def posterior(kernel: Kernel, X: Array, y: Array, noise: float, x: Array, x2: Array) -> tuple[float, float]:
    """Eq. 3: mu_{t-1}(x) and sigma^2_{t-1}(x, x')."""
    A = covariance(kernel, X, noise)
    k, k2 = kernel.values(X, x[None])[:, 0], kernel.values(X, x2[None])[:, 0]
    mean = k @ np.linalg.solve(A, y)
    variance = kernel.values(x[None], x2[None])[0, 0] - k @ np.linalg.solve(A, k2)
    return mean, variance


def gradient_mean(kernel: Kernel, X: Array, y: Array, noise: float, x: Array) -> Array:
    """Eq. 5, first line, and eq. 6: the gradient estimate at x, ``d``; 0 without data."""
    return kernel.first(x, X).T @ np.linalg.solve(covariance(kernel, X, noise), y)


def gradient_covariance(kernel: Kernel, X: Array, noise: float, x: Array, x2: Array | None = None) -> Array:
    """Eq. 5, second line: d sigma^2_{t-1}(x, x'), ``d x d``; x' = x where it is not given."""
    x2 = x if x2 is None else x2
    explained = kernel.first(x, X).T @ np.linalg.solve(covariance(kernel, X, noise), kernel.first(x2, X))
    return kernel.cross(x, x2) - explained


def uncertainty(kernel: Kernel, X: Array, noise: float, x: Array) -> float:
    """||d sigma^2_{t-1}(x)||_2 (Sec. 3.2): what is compared with c."""
    return float(np.linalg.norm(gradient_covariance(kernel, X, noise, x), 2))


# What "w.l.o.g. mu(x) = 0 and k(x, x') <= 1" (Sec. 2.1) is read as.


def gls_mean(kernel: Kernel, X: Array, y: Array, noise: float) -> float:
    """The project's m: 1'A^{-1}y/1'A^{-1}1, generalised least squares under A = K + sigma^2 I."""
    solved = np.linalg.solve(covariance(kernel, X, noise), np.stack([y, np.ones(len(y))], axis=1))
    return solved[:, 0].sum() / solved[:, 1].sum()


def zero_mean(kernel: Kernel, X: Array, y: Array, noise: float) -> float:
    """The paper's m."""
    return 0.0


def spread(y: Array) -> float:
    """The project's s: the standard deviation of the values of a window, with n - 1."""
    return float(np.std(y, ddof=1))


def unit_scale(y: Array) -> float:
    """The paper's s."""
    return 1.0


# Eq. 2 and Algorithm 1.


def differences_as_printed(y: Function, x: Array, smoothing: float, directions: Array, at_x: float) -> Array:
    """Eq. 2 as printed: sum_i (y(x + lambda u_i) - y(x))/lambda u_i, without 1/n.

    Its expectation is n grad f for normal directions and (n/d) grad f for unit vectors, up to O(lambda): an estimate of
    grad f only for n = 1, or n = d orthonormal directions.
    """
    return sum((y(x + smoothing * u) - at_x) / smoothing * u for u in directions)


def differences_as_read(
    y: Function, x: Array, smoothing: float, directions: Array, at_x: float, second_moment: float
) -> Array:
    """Eq. 2 as read: times 1/(n E u_j^2), which is 1/n for normal directions and d/n for unit vectors."""
    n = len(directions)
    return differences_as_printed(y, x, smoothing, directions, at_x) / (n * second_moment)


class Descent(NamedTuple):
    """A run: x_1 ... x_T, ``T x d``, what was observed there, ``T``, and the steps V_t of Algorithm 2, ``T``."""

    x: Array
    y: Array
    steps: Array

    @property
    def returned(self) -> Array:
        """Line 7 of Algorithm 1 and line 10 of Algorithm 2: argmin of y over x_{1:T}."""
        return self.x[self.y.argmin()]


def gradient_descent(
    y: Function,
    x0: Array,
    *,
    estimate: Callable[[int, Array, float], Array],
    iterations: int,
    step: Step,
    project: Projection = lambda x: x,
) -> Descent:
    """Algorithm 1: (projected) GD with estimated derivatives.

    Args:
        y: the noisy objective.
        x0: x_0, ``d``.
        estimate: g(x_{t-1}) of (t, x_{t-1}, y(x_{t-1})).
        iterations: T.
        step: x - eta_{t-1} g, or another rule (Appx. C.2: Adam).
        project: P_X.
    """
    x, at_x, run = x0, y(x0), []
    for t in range(1, iterations + 1):  # line 2
        g = estimate(t, x, at_x)  # line 3
        x = project(step(x, g))  # line 4
        at_x = y(x)  # line 5
        run.append((x, at_x))
    return Descent(np.array([x for x, _ in run]), np.array([at for _, at in run]), np.ones(iterations, dtype=int))


# Algorithm 2.


def nearest(X: Array, x: Array, count: int) -> Array:
    """Rows of the ``count`` queries of smallest Euclidean distance to x (Appx. C.1)."""
    return np.argsort(np.linalg.norm(X - x, axis=1), kind="stable")[:count]


def zord(
    y: Function,
    x0: Array,
    *,
    X: Array,
    values: Array,
    iterations: int,
    kernel: Kernel,
    noise: Callable[[float], float],
    step: Step,
    most: int,
    threshold: float = C,
    project: Projection = lambda x: x,
    window: int = NEAREST,
    mean: Callable[[Kernel, Array, Array, float], float] = zero_mean,
    scale: Callable[[Array], float] = unit_scale,
    from_best: bool = False,
) -> Descent:
    """Algorithm 2 with the dynamic virtual updates of Sec. 3.2.

    Args:
        y: the noisy objective.
        x0: x_0, ``d``.
        X: inputs that were queried before, ``n x d``; the paper has none, and cannot start (D_0 is empty, so that
            grad mu_0 = 0, x_1 = x_0, and grad mu_1(x_0) = 0 again).
        values: what was observed there, ``n``.
        iterations: T.
        kernel: k.
        noise: sigma^2 of a value (y - m)/s, from s.
        step: x - eta_{t,tau-1} g, or another rule, whose state is kept (Appx. C.2: Adam).
        most: the largest V_t; the paper has no bound.
        threshold: c.
        project: P_X.
        window: queries nearest to x_{t,tau} that the GP is conditioned on (Appx. C.1).
        mean: m of a window (module docstring).
        scale: s of the window in which an iteration begins (module docstring).
        from_best: x_{t,0} is the best input known (the authors' program), not x_{t-1}.
    """
    x, run = x0, []
    for _ in range(iterations):  # line 2
        if from_best:
            x = X[values.argmin()]
        rows = nearest(X, x, window)  # line 3: x_{t,0} is x_{t-1}
        s = scale(values[rows])
        steps = 0
        while steps < most:  # lines 4 to 6
            rows = nearest(X, x, window)
            inputs, variance = X[rows], noise(s)
            # Sec. 3.2 and footnote 2: go on only if the gradient is certain enough; the first step is always made.
            if steps > 0 and uncertainty(kernel, inputs, variance, x) > threshold:
                break
            m = mean(kernel, inputs, values[rows], variance) if len(rows) else 0.0
            gradient = s * gradient_mean(kernel, inputs, (values[rows] - m) / s, variance, x)  # eq. 6
            x = project(step(x, gradient))  # line 5, eq. 7
            steps += 1
        observed = y(x)  # line 7
        X, values = np.concatenate([X, x[None]]), np.append(values, observed)  # line 8
        run.append((x, observed, steps))
    return Descent(*(np.array(column) for column in zip(*run, strict=True)))


# Update rules and the domain.


def plain(rate: float) -> Step:
    """x - eta g (line 4 of Algorithm 1)."""
    return lambda x, g: x - rate * g


def adam(rate: float, beta1: float = 0.9, beta2: float = 0.999, epsilon: float = 1e-8) -> Step:
    """Kingma and Ba (2015), Algorithm 1, with the rates of Appx. C.2; its moments live as long as the rule."""
    m, v, t = 0.0, 0.0, 0

    def step(x: Array, g: Array) -> Array:
        nonlocal m, v, t
        t += 1
        m = beta1 * m + (1 - beta1) * g
        v = beta2 * v + (1 - beta2) * g**2
        return x - rate * (m / (1 - beta1**t)) / (np.sqrt(v / (1 - beta2**t)) + epsilon)

    return step


def box(lower: float, upper: float) -> Projection:
    """P_X(x) = argmin_{z in X} ||x - z||^2/2 (Sec. 3.2) for a box."""
    return lambda x: np.clip(x, lower, upper)


def rescaled(y: Function, lower: Array, upper: Array, side: float = 10.0) -> Function:
    """Appx. C.1, "Domain Transformation": y of an input in [0, 10]^d."""
    return lambda z: y(lower + (upper - lower) * z / side)


def ackley(x: Array) -> float:
    """Eq. 56, first line."""
    d = len(x)
    return -20 * np.exp(-0.2 * np.sqrt((x**2).sum() / d)) - np.exp(np.cos(2 * np.pi * x).sum() / d) + 20 + np.exp(1)


def levy(x: Array) -> float:
    """Eq. 56, second line."""
    w = 1 + (x - 1) / 4
    inner = (w[:-1] - 1) ** 2 * (1 + 10 * np.sin(np.pi * w[:-1] + 1) ** 2)
    return np.sin(np.pi * w[0]) ** 2 + inner.sum() + (w[-1] - 1) ** 2 * (1 + np.sin(2 * np.pi * w[-1]) ** 2)


# Theorems 1 and 2.


def beta(d: int, delta: float) -> float:
    """Theorem 1: sqrt(d + 2 (sqrt(d) + 1) ln(1/delta))."""
    return np.sqrt(d + 2 * (np.sqrt(d) + 1) * np.log(1 / delta))


def least_ratio(noise: float) -> float:
    """Lemma B.6 (eq. 24): ||d sigma_t^2|| is at least this share of ||d sigma_{t-1}^2||."""
    return 1 / (1 + 1 / noise)
