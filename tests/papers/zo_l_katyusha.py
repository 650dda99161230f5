"""ZO-L-Katyusha, transcribed line by line in plain NumPy.

Paper: Zhang and Tang, Zeroth-order Katyusha: an accelerated derivative-free method for composite convex optimization,
2024: eqs. 2-6, Alg. 1 with both options, Theorem 1, Corollaries 1-3, Lemmas 1 and 2 (eqs. 7-10), eq. 14.

Every function names its equation or its line. What is random in the paper is an argument: the directions S_k of each
iteration, ``|S| x d``, and whether line 7 renews w. Letters are the paper's: F = f + psi, L the smoothness of f, mu_f
and mu_psi the strong convexity of f and psi and mu their sum, beta the smoothing radius, ``size`` = |S|. ``prox(v,
step)`` is prox_{step psi}(v) = argmin_y 1/2 ||v - y||^2 + step psi(y).

A function whose name ends in ``_printed`` is a line that does not hold as printed; beside it stands the line as read,
and ``test_zo_l_katyusha.py`` shows why it is read so.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

# Sec. 2.1 and 3: gradient estimators.


def eq_2(f, x, u, beta):
    """Eq. 2: the 2-point estimate d (f(x + beta u) - f(x))/beta u, u uniform on the unit sphere."""
    return len(x) * (f(x + beta * u) - f(x)) / beta * u


def eq_3_printed(f, x, beta):
    """Eq. 3 as printed: sum_i (f(x + beta e_i) - f(x))/(2 beta) e_i; that estimates half of the gradient."""
    return sum((f(x + beta * e) - f(x)) / (2.0 * beta) * e for e in np.eye(len(x)))


def eq_5(f, x, S, beta):
    """Eq. 5: 1/|S| sum_{u in S} d (f(x + beta u) - f(x))/beta u, from |S| + 1 values."""
    d, at_x = len(x), f(x)
    return 1.0 / len(S) * sum(d * (f(x + beta * u) - at_x) / beta * u for u in S)


def eq_6(f, x, beta):
    """Eq. 6: the (d + 1)-point estimate sum_i (f(x + beta e_i) - f(x))/beta e_i; eq. 3 as read."""
    at_x = f(x)
    return sum((f(x + beta * e) - at_x) / beta * e for e in np.eye(len(x)))


def eq_4(f, x, S, reference, beta):
    """Eq. 4: g = eq. 5 at x - 1/|S| sum_{u in S} d <reference, u> u + reference, the reference being eq. 6 at w."""
    d = len(x)
    return eq_5(f, x, S, beta) - 1.0 / len(S) * sum(d * (reference @ u) * u for u in S) + reference


def line_4_printed(f, x, S, reference, beta):
    """Alg. 1, line 4 as printed: eq. 4 without the d of its middle term."""
    return eq_5(f, x, S, beta) - 1.0 / len(S) * sum((reference @ u) * u for u in S) + reference


# Alg. 1, line 3: the two ways to draw S.


def option_I(rng, d, size):
    """Option I: |S| of e_1 ... e_d, uniform without replacement."""
    return np.eye(d)[rng.permutation(d)[:size]]


def option_II(rng, d, size):
    """Option II: |S| independent draws from the uniform distribution on the unit sphere."""
    normal = rng.standard_normal((size, d))
    return normal / np.linalg.norm(normal, axis=1, keepdims=True)


# Alg. 1.


class Parameters(NamedTuple):
    """What Theorem 1 and the corollaries choose; sigma = mu_f/M and eta = 1/(3 theta) follow.

    Attributes:
        M: step size parameter, in units of L.
        theta: step size parameter.
        p: probability of renewing w.
    """

    M: float
    theta: float
    p: float


class Points(NamedTuple):
    """The points of one iteration.

    Attributes:
        x: x^k, where f is queried (None at the end of the run).
        y: y^k.
        z: z^k.
        w: w^k.
    """

    x: np.ndarray | None
    y: np.ndarray
    z: np.ndarray
    w: np.ndarray


def algorithm_1(f, prox, x_0, draws, renewals, parameters, mu_f, beta, line_4=eq_4):
    """Alg. 1: the points of k = 0 ... K; ``draws[k]`` is S_k, ``renewals[k]`` whether line 7 takes y^k.

    The reference, eq. 6 at w^k, is queried once for each w. An iteration queries |S| + 1 points, a reference d + 1.
    """
    M, theta, _ = parameters
    sigma, eta = mu_f / M, 1.0 / (3.0 * theta)
    y = z = w = x_0
    reference, run = eq_6(f, w, beta), []
    for S, renew in zip(draws, renewals, strict=True):  # line 1, line 3
        x = theta * z + 0.5 * w + (0.5 - theta) * y  # line 2
        run.append(Points(x, y, z, w))
        g = line_4(f, x, S, reference, beta)  # line 4
        step = eta / ((1.0 + eta * sigma) * M)
        z_next = prox((eta * sigma * x + z - eta / M * g) / (1.0 + eta * sigma), step)  # line 5
        y_next = x + theta * (z_next - z)  # line 6
        if renew:  # line 7
            w = y
            reference = eq_6(f, w, beta)
        y, z = y_next, z_next
    return [*run, Points(None, y, z, w)]


# Theorem 1.


def theorem_1_A(option, d, size):
    """A of Theorem 1: max{4d(d - |S|)/((d - 1)|S|), 1} for option I, 4d/|S| for option II.

    For d = 1 option I's fraction is 0/0; S is then full and has no variance, as for every |S| = d: A = 1.
    """
    if option == "II":
        return 4.0 * d / size
    return max(4.0 * d * (d - size) / ((d - 1.0) * size), 1.0) if d > 1 else 1.0


def theorem_1_M(A, L):
    """M of Theorem 1: (A + 1) L/3."""
    return (A + 1.0) * L / 3.0


def theorem_1_psi(parameters, mu, z_distance, y_gap, w_gap):
    """Psi^k of Theorem 1, the z-distance being ||z^k - x*||^2 and the gaps F(y^k) - F(x*) and F(w^k) - F(x*)."""
    M, theta, p = parameters
    return (mu + 3.0 * theta * M) / 2.0 * z_distance + y_gap / theta + (1.0 + theta) / (2.0 * p * theta) * w_gap


def theorem_1_delta(parameters, mu):
    """Delta of Theorem 1: min{mu/(2 mu + 6 theta M), theta/2, p theta/(1 + theta)}."""
    M, theta, p = parameters
    return min(mu / (2.0 * mu + 6.0 * theta * M), theta / 2.0, p * theta / (1.0 + theta))


def theorem_1_bound(k, psi_0, parameters, A, mu, L, d, beta):
    """Theorem 1: E Psi^k <= (1 - Delta)^k Psi^0 + beta^2 d^2 L/Delta (L/(d mu) + 1/(A theta)).

    Printed for every theta in (0, 1). The proof takes y^{k+1} for a convex combination of z^{k+1}, w^k and y^k
    (Jensen's inequality) and weighs <grad f(x^k), x^k - y^k> by 1 - 2 theta: both want theta <= 1/2, which all three
    corollaries have.
    """
    delta = theorem_1_delta(parameters, mu)
    smoothing = beta**2 * d**2 * L / delta * (L / (d * mu) + 1.0 / (A * parameters.theta))
    return (1.0 - delta) ** k * psi_0 + smoothing


# Corollaries 1 to 3; beta is theirs up to a constant that they do not give.


def corollary_1(L, mu, d, size):
    """Corollary 1: option I, |S| <= sqrt(d); its M is Theorem 1's.

    Raises:
        ValueError: for |S| over sqrt(d), where it says nothing.
    """
    _small(size, d)
    M = 4.0 * d * (d - size) * L / (3.0 * (d - 1.0) * size) + L / 3.0
    return Parameters(M, min(math.sqrt(d * mu / M), 0.5), 1.0 / d)


def corollary_2_printed(L, mu, d, size):
    """Corollary 2 as printed: option II, |S| <= sqrt(d), M = 4dL/|S| + L/3, which is not Theorem 1's."""
    _small(size, d)
    M = 4.0 * d * L / size + L / 3.0
    return Parameters(M, min(math.sqrt(d * mu / M), 0.5), 1.0 / d)


def corollary_2(L, mu, d, size):
    """Corollary 2 as read: with Theorem 1's M = 4dL/(3|S|) + L/3, the 3 that the print lacks."""
    _small(size, d)
    M = 4.0 * d * L / (3.0 * size) + L / 3.0
    return Parameters(M, min(math.sqrt(d * mu / M), 0.5), 1.0 / d)


def corollary_3(L, mu):
    """Corollary 3: S_k = {e_1 ... e_d}, hence p = 1 and w^{k+1} = y^k."""
    M = 2.0 * L / 3.0
    return Parameters(M, min(math.sqrt(mu / M), 0.5), 1.0)


def _small(size, d):
    if size > math.sqrt(d):
        raise ValueError(f"the corollary is for |S| <= sqrt(d) = {math.sqrt(d):.3g}, got {size}")


# Lemmas 1 and 2.


def lemma_bias(option, L, d, beta):
    """Eqs. 7 and 9: bounds of ||E g^k - grad f(x^k)||^2."""
    return L**2 * beta**2 * d / 4.0 if option == "I" else L**2 * beta**2


def lemma_error(option, L, d, size, beta, f_w, f_x, gradient_x, w, x):
    """Eqs. 8 and 10: bounds of E ||g^k - grad f(x^k)||^2.

    The appendix writes + <grad f(x), w - x> in both proofs' last lines: that can be negative, and the convexity that
    they use gives the - of eqs. 8 and 10.
    """
    factor = 4.0 * d * (d - size) * L / ((d - 1.0) * size) if option == "I" else 4.0 * d * L / size
    return factor * (f_w - f_x - gradient_x @ (w - x)) + 2.0 * L**2 * beta**2 * d**2


# Sec. 5.


def projected_zo(estimate, prox, x_0, draws, step):
    """Sec. 5.1's projected ZO-gradient descent, "to be found in [7]": x^{k+1} = prox_{step psi}(x^k - step g^k).

    The paper prints neither this formula nor its diminishing steps; ``estimate(x, draw)`` is eq. 2 there.
    """
    x, run = x_0, [x_0]
    for draw in draws:
        x = prox(x - step * estimate(x, draw), step)
        run.append(x)
    return run


def eq_14(estimate, project, x_0, draws, L, mu, sign=1.0):
    """Eq. 14: x^0 ... x^K of the accelerated iteration along ``estimate(y, u)``, with constant momentum.

    With m = (1 - sqrt(mu/L))/(1 + sqrt(mu/L)), printed is y^{k+1} = x^{k+1} - m (x^{k+1} - x^k), ``sign=-1``; as read
    it is + (the constant-momentum scheme of the paper's [29]). The estimate is "generated by the simple 2-point
    estimator (3)": the 2-point estimator is eq. 2, and eq. 3 has d + 1 points.
    """
    d = len(x_0)
    momentum = (1.0 - math.sqrt(mu / L)) / (1.0 + math.sqrt(mu / L))
    x = y = x_0
    run = [x]
    for u in draws:
        x_next = project(y - 1.0 / (d * L) * estimate(y, u))
        y = x_next + sign * momentum * (x_next - x)
        x = x_next
        run.append(x)
    return run
