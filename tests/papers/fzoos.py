"""FZooS and its baselines, line by line from the paper, in plain NumPy: nothing here comes from the project.

Y. Shu, X. Lin, Z. Dai, B. K. H. Low, "Heterogeneous federated zeroth-order optimization using gradient surrogates",
2024. Equations, lines, sections and appendices below are its. Random draws are arguments. Rounds r, clients i and steps
t count from 0 in arrays and from 1 in what is called with them. The derived GP is ZoRD's (its [3]): eq. 8 is
``tests.papers.zord``'s eq. 5.

Where the paper is silent the reading is an argument: the prior mean m of the values, which both surrogates are
conditioned on the rest of (``mean``; the paper's m is 0, the project's ``gls_mean``; a scale of the values would cancel
in every gradient), and what a step queries (``queries``). An update rule's moments do not outlive a round.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

import numpy as np
from numpy import ndarray as Array

from tests.papers.zord import (
    Function,
    Kernel,
    Projection,
    Step,
    gradient_mean,
    nearest,
    uncertainty,
    zero_mean,
)

Gamma = Callable[[int, int], float]


# Eq. 7: finite differences.


def differences(y: Function, x: Array, smoothing: float, directions: Array, second_moment: float = 1.0) -> Array:
    """Eq. 7: Delta(x) = 1/Q sum_q (y(x + lambda u_q) - y(x))/lambda u_q.

    Args:
        y: the client's noisy function.
        x: where, ``d``.
        smoothing: lambda.
        directions: u, ``Q x d``.
        second_moment: E u_j^2. The paper prints 1/Q, which is right for E uu' = I (Lemma F.1: normal directions); unit
            vectors have 1/d and need d/Q.
    """
    at_x = y(x)
    total = sum((y(x + smoothing * u) - at_x) / smoothing * u for u in directions)
    return total / len(directions) / second_moment


# Appx. D and eqs. 3 and 4: random Fourier features.


def printed_scale(num_features: int) -> float:
    """Appx. D: 2/sqrt(M)."""
    return 2 / np.sqrt(num_features)


def feature_scale(num_features: int) -> float:
    """As read: sqrt(2/M), with which E phi(x)'phi(x') = k(x, x'), as the proof of Lemma E.3 has it (above eq. 14)."""
    return np.sqrt(2 / num_features)


class Features(NamedTuple):
    """phi (Appx. D).

    Attributes:
        v: frequencies, ``M x d``.
        b: phases, ``M``.
        scale: of the cosines.
    """

    v: Array
    b: Array
    scale: float

    def values(self, X: Array) -> Array:
        """phi(x) of ``n x d`` points as columns: Phi of eq. 3, ``M x n``."""
        return self.scale * np.cos(self.v @ X.T + self.b[:, None])

    def jacobian(self, x: Array) -> Array:
        """nabla phi(x), ``M x d``."""
        return -self.scale * np.sin(self.v @ x + self.b)[:, None] * self.v

    @property
    def kernel(self) -> Kernel:
        """phi(x)'phi(x') as a kernel: K-hat of eq. 3, and what its prior mean is estimated under."""
        return Kernel(
            lambda Z, X: self.values(Z).T @ self.values(X),
            lambda z, X: (self.jacobian(z).T @ self.values(X)).T,
            lambda z, z2: self.jacobian(z).T @ self.jacobian(z2),
        )


def surrogate_weights(features: Features, X: Array, y: Array, noise: float) -> Array:
    """Eq. 3 and below: w = Phi (K-hat + sigma^2 I)^{-1} y, ``M``."""
    phi = features.values(X)
    return phi @ np.linalg.solve(phi.T @ phi + noise * np.eye(len(X)), y)


def surrogate_gradient(features: Features, w: Array, x: Array) -> Array:
    """Eqs. 3 and 4: nabla phi(x)'w, ``d``."""
    return features.jacobian(x).T @ w


# Eqs. 5 and 6: corrected gradients.


def corrected(own: Array, gamma: float, reference: Array, own_then: Array) -> Array:
    """Eq. 6, and eq. 5: g_i + gamma (g_{r-1}(x') - g_{r-1}^{(i)}(x''))."""
    return own + gamma * (reference - own_then)


def best_gamma(truth: Array, own: Array, correction: Array) -> float:
    """Prop. B.1: (grad F - g_i)'c ||c||^{-2} for the correction vector c."""
    return (truth - own) @ correction * np.linalg.norm(correction) ** -2


def best_gamma_of_equation_10(truth: Array, own: Array, correction: Array) -> float:
    """Eq. 10 as printed: divided by ||c||, not by its square."""
    return (truth - own) @ correction / np.linalg.norm(correction)


def disparity(truth: Array, estimate: Array) -> float:
    """Xi of Sec. 4: ||g - grad F||^2."""
    return float(((estimate - truth) ** 2).sum())


def inverse(r: int, t: int) -> float:
    """gamma_{r,t-1} = 1/t (below Cor. E.1, Appx. G)."""
    return 1 / t


def corollary_1(G: float, omega: float, kappa: float, rho: float, T: int, clients: int, epsilon: float) -> Gamma:
    """Cor. 1: gamma = G/(G + 2 omega kappa rho^{(r-1)T} + 2 N epsilon)."""
    return lambda r, t: G / (G + 2 * omega * kappa * rho ** ((r - 1) * T) + 2 * clients * epsilon)


# Algorithm 1.


class Run(NamedTuple):
    """A federated run.

    Attributes:
        x: x_1 ... x_R, ``R x d``.
        local: x_{r,0}^{(i)} ... x_{r,T}^{(i)}, ``R x N x (T + 1) x d``.
        w: w_1 ... w_R of FZooS, ``R x M``; empty where none are sent.
    """

    x: Array
    local: Array
    w: Array


def federated(
    x0: Array,
    *,
    clients: int,
    rounds: int,
    steps: int,
    rule: Callable[[], Step],
    estimate: Callable[[int, int, int, Array, Array], Array],
    begin: Callable[[int, Array], None] = lambda r, x: None,
    reached: Callable[[int, Array], None] = lambda i, x: None,
    finish: Callable[[int, Array], Array] = lambda r, x: np.empty(0),
    project: Projection = lambda x: x,
) -> Run:
    """Algorithm 1.

    Args:
        x0: x_0.
        clients: N.
        rounds: R.
        steps: T.
        rule: makes a client's update rule for a round: x - eta g (line 5), or Adam (Appx. G).
        estimate: g-hat of line 5, from (r, i, t, x_{r,t-1}^{(i)}, x_{r-1}).
        begin: called with (r, x_{r-1}) where a round begins.
        reached: called with (i, x_{r,t}^{(i)}) after each step.
        finish: called with (r, x_r) where it ends (Algorithm 2, lines 7 to 11); returns w_r.
        project: onto X after each step (Sec. 2's X; the algorithm has no projection).
    """
    x, models, local, weights = x0, [], [], []
    for r in range(1, rounds + 1):  # line 1
        begin(r, x)
        paths = []
        for i in range(1, clients + 1):  # line 2
            path, step = [x], rule()  # line 3
            for t in range(1, steps + 1):  # line 4
                path.append(project(step(path[-1], estimate(r, i, t, path[-1], x))))  # line 5
                reached(i, path[-1])
            paths.append(path)  # line 6
        x = sum(path[-1] for path in paths) / clients  # line 7
        models.append(x)
        local.append(paths)
        weights.append(finish(r, x))  # line 8
    return Run(np.array(models), np.array(local), np.array(weights))


# Its instances in Appx. F. Directions are ``R x N x T x Q x d``.


def fedzo(y: Sequence[Function], x0: Array, directions: Array, *, smoothing: float, moment: float, **options) -> Run:
    """Eq. 87: gamma = 0, g = Delta^{(i)}(x_{r,t-1}^{(i)})."""
    return fedprox(y, x0, directions, smoothing=smoothing, moment=moment, pull=0.0, **options)


def fedprox(
    y: Sequence[Function], x0: Array, directions: Array, *, smoothing: float, moment: float, pull: float, **options
) -> Run:
    """Eq. 89: Delta^{(i)}(x_{r,t-1}^{(i)}) + gamma (x_{r,t-1}^{(i)} - x_{r-1}).

    Appx. B.1 prints x_r in the place of x_{r-1}, which no client knows yet.
    """

    def estimate(r: int, i: int, t: int, x: Array, start: Array) -> Array:
        own = differences(y[i - 1], x, smoothing, directions[r - 1, i - 1, t - 1], moment)
        return corrected(own, pull, x, start)

    return federated(x0, estimate=estimate, **_shape(directions), **options)


def scaffold1(
    y: Sequence[Function],
    x0: Array,
    directions: Array,
    control_directions: Array,
    *,
    smoothing: float,
    moment: float,
    **options,
) -> Run:
    """Eq. 91: Delta^{(i)}(x_{r,t-1}^{(i)}) + 1/N sum_j Delta^{(j)}(x_{r-1}) - Delta^{(i)}(x_{r-1}).

    Args:
        y: the clients' noisy functions.
        x0: x_0.
        directions: of the steps.
        control_directions: of the estimates at x_{r-1}, ``R x N x Q x d``.
        smoothing: lambda.
        moment: E u_j^2.
        **options: of ``federated``.
    """
    controls = np.zeros((len(y), len(x0)))

    def begin(r: int, x: Array) -> None:
        for j, own in enumerate(y):
            controls[j] = differences(own, x, smoothing, control_directions[r - 1, j], moment)

    def estimate(r: int, i: int, t: int, x: Array, start: Array) -> Array:
        own = differences(y[i - 1], x, smoothing, directions[r - 1, i - 1, t - 1], moment)
        return corrected(own, 1.0, controls.mean(0), controls[i - 1])

    return federated(x0, estimate=estimate, begin=begin, **_shape(directions), **options)


def scaffold2(
    y: Sequence[Function], x0: Array, directions: Array, *, smoothing: float, moment: float, **options
) -> Run:
    """Eq. 93: the means over the T iterates of round r - 1 in the place of eq. 91's estimates at x_{r-1}.

    There are none before round 1, which corrects nothing.
    """
    R, N, T = directions.shape[:3]
    delta = np.zeros((R, N, T, len(x0)))

    def estimate(r: int, i: int, t: int, x: Array, start: Array) -> Array:
        own = differences(y[i - 1], x, smoothing, directions[r - 1, i - 1, t - 1], moment)
        delta[r - 1, i - 1, t - 1] = own
        if r == 1:
            return own
        return corrected(own, 1.0, delta[r - 2].mean((0, 1)), delta[r - 2, i - 1].mean(0))

    return federated(x0, estimate=estimate, **_shape(directions), **options)


def _shape(directions: Array) -> dict[str, int]:
    return {"rounds": directions.shape[0], "clients": directions.shape[1], "steps": directions.shape[2]}


# Algorithm 2.


def fzoos(
    y: Sequence[Function],
    x0: Array,
    *,
    rounds: int,
    steps: int,
    features: Features,
    kernel: Kernel,
    noise: float,
    gamma: Gamma,
    rule: Callable[[], Step],
    before: Sequence[Array],
    around: Sequence[Sequence[Array]] | None = None,
    along: Sequence[Sequence[Sequence[Array]]] | None = None,
    queries: Literal["reached", "left"] = "reached",
    correction_at: Literal["iterate", "start"] = "iterate",
    window: int | None = None,
    mean: Callable[[Kernel, Array, Array, float], float] = zero_mean,
    project: Projection = lambda x: x,
) -> Run:
    """Algorithm 2.

    Args:
        y: the clients' noisy functions.
        x0: x_0.
        rounds: R.
        steps: T.
        features: phi.
        kernel: k of the local GPs.
        noise: sigma^2.
        gamma: gamma_{r,t-1} of (r, t).
        rule: as in ``federated``.
        before: the clients' queries before round 1, ``n x d`` each. The paper lists none, and cannot start without:
            D_{1,0} is empty, and the gradient at x_0 given the value at x_0 only is 0.
        around: line 7's active queries about x_r, ``R x N`` arrays of ``k x d``.
        along: Appx. G's active queries about x_{r,t-1}^{(i)} before step t, ``R x N x T`` arrays of ``k x d``.
        queries: each step queries the point that it has ``"reached"``, as D_{r,t-1} of Sec. 3.1 counts them, or the one
            that it has ``"left"``, before it is left (the project: as many queries, and the first has its own step).
        correction_at: x' = x'' of eq. 6, the iterate (eq. 5) or x_{r-1} (Fig. 5b).
        window: nearest queries that a local GP holds; None: all, as in eq. 8.
        mean: the prior mean of the values (module docstring).
        project: as in ``federated``.
    """
    N = len(y)
    X = [np.array(points, dtype=float).reshape(-1, len(x0)) for points in before]
    values = [np.array([f(x) for x in points]) for f, points in zip(y, X, strict=True)]
    own: list[Array | None] = [None] * N
    w: Array | None = None

    def query(i: int, points: Array) -> None:
        X[i] = np.concatenate([X[i], points])
        values[i] = np.append(values[i], [y[i](x) for x in points])

    def local(i: int, x: Array) -> Array:
        """Eq. 8."""
        rows = nearest(X[i], x, window or len(X[i]))
        inputs, observed = X[i][rows], values[i][rows]
        m = mean(kernel, inputs, observed, noise) if len(rows) else 0.0
        return gradient_mean(kernel, inputs, observed - m, noise, x)

    def estimate(r: int, i: int, t: int, x: Array, start: Array) -> Array:
        if along is not None:
            query(i - 1, along[r - 1][i - 1][t - 1])
        if queries == "left":
            query(i - 1, x[None])
        g = local(i - 1, x)  # line 5
        if w is None:
            return g
        at = x if correction_at == "iterate" else start
        reference, then = surrogate_gradient(features, w, at), surrogate_gradient(features, own[i - 1], at)
        return corrected(g, gamma(r, t), reference, then)  # line 6, eq. 5

    def finish(r: int, x: Array) -> Array:
        nonlocal w
        for i in range(N):
            if around is not None:
                query(i, around[r - 1][i])  # line 7
            m = mean(features.kernel, X[i], values[i], noise)
            own[i] = surrogate_weights(features, X[i], values[i] - m, noise)  # line 8
        w = sum(own) / N  # line 10, eq. 4
        return w

    def reached(i: int, x: Array) -> None:
        if queries == "reached":
            query(i - 1, x[None])

    return federated(
        x0,
        clients=N,
        rounds=rounds,
        steps=steps,
        rule=rule,
        estimate=estimate,
        reached=reached,
        finish=finish,
        project=project,
    )


def most_uncertain(kernel: Kernel, X: Array, noise: float, candidates: Array, count: int) -> Array:
    """Appx. G: the ``count`` candidates x + delta of the greatest ||d sigma^2(x + delta)||, the first of equals."""
    norms = np.array([uncertainty(kernel, X, noise, x) for x in candidates])
    return candidates[np.argsort(-norms, kind="stable")[:count]]


# Bounds.


def kernel_error(num_features: int, delta: float) -> float:
    """Lemma E.3, first line: sqrt(8 ln(2/delta)/M)."""
    return np.sqrt(8 * np.log(2 / delta) / num_features)


def kernel_gradient_error(num_features: int, delta: float, V: float) -> float:
    """Lemma E.3, second line: sqrt(4 V/(M delta))."""
    return np.sqrt(4 * V / (num_features * delta))


def theorem_1_terms(
    omega: float, kappa: float, rho: float, r: int, T: int, clients: int, epsilon: float, G: float
) -> tuple[float, float]:
    """The terms 2 and 3 of Thm. 1, which gamma^2 and (1 - gamma)^2 multiply."""
    return 8 * omega * kappa * rho ** ((r - 1) * T) + 8 * clients * epsilon, 4 * G


def equation_37(G: float, omega: float, rho: float, r: int, T: int, clients: int, epsilon: float) -> float:
    """Eq. 37's minimiser of Thm. 1's bound as printed: Cor. 1 without kappa."""
    return G / (G + 2 * omega * rho ** ((r - 1) * T) + 2 * clients * epsilon)


def equation_47(kappa: float, iota: float, slope: float, d: int, n: int, noise: float) -> float:
    """Eq. 47's bound of ||d sigma^2(x)||: kappa - 4 iota k'(iota)^2/(k(0) d + sigma^2 d/n), with k(0) = 1.

    Args:
        kappa: the prior's variance of a partial derivative.
        iota: the mean squared distance of x to the queries.
        slope: k'(iota), of k as a function of the squared distance.
        d: the dimension.
        n: r T, the number of queries.
        noise: sigma^2.
    """
    return kappa - 4 * iota * slope**2 / (d + noise * d / n)


def proposition_e1(kappa: float, iota: float, slope: float, d: int, n: int, noise: float) -> float:
    """The same in Prop. E.1 as printed, with iota^2 in the place of iota (over omega)."""
    return kappa - 4 * iota**2 * slope**2 / (d + noise * d / n)


# Appx. G.


def client_quadratics(a: Array, b: Array, C: float) -> list[Function]:
    """Eq. 98: the clients' functions, from a and b of ``N x d``, each column of which sums to 1."""
    N, d = a.shape

    def quadratic(i: int) -> Function:
        square, line = 1 + C * (a[i] - 1 / N), 1 + C * (b[i] - 1 / N)
        return lambda x: float((square * x**2 + line * x).sum() + 1) / (10 * d)

    return [quadratic(i) for i in range(N)]


def global_quadratic(x: Array) -> float:
    """Eq. 99."""
    return float((x**2 + x).sum() + 1) / (10 * len(x))


def label_heterogeneity(labels: Sequence[Sequence[int]], classes: int) -> float:
    """How much the clients' data differ (Appx. G.2): the mean over pairs of the total variation of uniform labels."""
    shares = np.zeros((len(labels), classes))
    for row, given in zip(shares, labels, strict=True):
        row[list(given)] = 1 / len(given)
    i, j = np.triu_indices(len(labels), 1)
    return float(0.5 * np.abs(shares[i] - shares[j]).sum(1).mean())


def normalised(y: Function, lower: Array, upper: Array) -> Function:
    """Appx. G: y of an input in [0, 1]^d, by min-max normalisation."""
    return lambda z: y(lower + (upper - lower) * z)
