"""The 53 least-squares problems of Moré and Wild, with their starting points.

Each problem combines one of 22 vector functions, numbers of variables and residuals, and the standard start or ten
times this start. Functions 1 to 18 and their data are from the first reference, the others from the set's code, BenDFO.

References:
    J. J. Moré, B. S. Garbow, K. E. Hillstrom, Testing unconstrained optimization software, ACM Trans. Math. Softw. 7,
        1981.
    J. J. Moré, S. M. Wild, Benchmarking derivative-free optimization algorithms, SIAM J. Optim. 20, 2009;
        https://github.com/POptUS/BenDFO.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

BARD = "0.14 0.18 0.22 0.25 0.29 0.32 0.35 0.39 0.37 0.58 0.73 0.96 1.34 2.1 4.39"
KOWALIK_T = "4 2 1 0.5 0.25 0.167 0.125 0.1 0.0833 0.0714 0.0625"
KOWALIK = "0.1957 0.1947 0.1735 0.16 0.0844 0.0627 0.0456 0.0342 0.0323 0.0235 0.0246"
MEYER = "34780 28610 23650 19630 16370 13720 11540 9744 8261 7030 6005 5147 4427 3820 3307 2872"
OSBORNE_1 = """0.844 0.908 0.932 0.936 0.925 0.908 0.881 0.85 0.818 0.784 0.751 0.718 0.685 0.658 0.628 0.603 0.58 0.558
0.538 0.522 0.506 0.49 0.478 0.467 0.457 0.448 0.438 0.431 0.424 0.42 0.414 0.411 0.406"""
OSBORNE_2 = """\
1.366 1.191 1.112 1.013 0.991 0.885 0.831 0.847 0.786 0.725 0.746 0.679 0.608 0.655 0.616 0.606 0.602 0.626 0.651
0.724 0.649 0.649 0.694 0.644 0.624 0.661 0.612 0.558 0.533 0.495 0.5 0.423 0.395 0.375 0.372 0.391 0.396 0.405 0.428
0.429 0.523 0.562 0.607 0.653 0.672 0.708 0.633 0.668 0.645 0.632 0.591 0.559 0.597 0.625 0.739 0.71 0.729 0.72 0.636
0.581 0.428 0.292 0.162 0.098 0.054"""


def _data(text: str) -> np.ndarray:
    return np.array(text.split(), dtype=float)


def linear(x: np.ndarray, m: int) -> np.ndarray:
    """Linear function of full rank."""
    return np.append(x, np.zeros(m - len(x))) - 2.0 * x.sum() / m - 1.0


def linear_rank_one(x: np.ndarray, m: int) -> np.ndarray:
    """Linear function of rank 1."""
    return np.arange(1, m + 1) * (np.arange(1, len(x) + 1) @ x) - 1.0


def linear_with_zeros(x: np.ndarray, m: int) -> np.ndarray:
    """Linear function of rank 1 with zero columns and rows."""
    rows = np.append(np.arange(m - 1), 0)
    return rows * (np.arange(2, len(x)) @ x[1:-1]) - 1.0


def rosenbrock(x: np.ndarray, m: int) -> np.ndarray:
    """Rosenbrock's function."""
    return np.array([10.0 * (x[1] - x[0] ** 2), 1.0 - x[0]])


def helical_valley(x: np.ndarray, m: int) -> np.ndarray:
    """Helical valley of Fletcher and Powell; the angle jumps where x₁ changes its sign and x₂ < 0."""
    if x[0] == 0.0:
        angle = 0.0 if x[1] == 0.0 else 0.25
    else:
        angle = np.arctan(x[1] / x[0]) / (2.0 * np.pi) + (0.5 if x[0] < 0.0 else 0.0)
    return np.array([10.0 * (x[2] - 10.0 * angle), 10.0 * (np.hypot(x[0], x[1]) - 1.0), x[2]])


def powell_singular(x: np.ndarray, m: int) -> np.ndarray:
    """Powell's singular function."""
    linear_part = [x[0] + 10.0 * x[1], np.sqrt(5.0) * (x[2] - x[3])]
    return np.array([*linear_part, (x[1] - 2.0 * x[2]) ** 2, np.sqrt(10.0) * (x[0] - x[3]) ** 2])


def freudenstein_roth(x: np.ndarray, m: int) -> np.ndarray:
    """Freudenstein and Roth's function."""
    y = x[1]
    return x[0] + np.array([((5.0 - y) * y - 2.0) * y - 13.0, ((1.0 + y) * y - 14.0) * y - 29.0])


def bard(x: np.ndarray, m: int) -> np.ndarray:
    """Bard's function."""
    u = np.arange(1.0, 16.0)
    return _data(BARD) - x[0] - u / (x[1] * (16.0 - u) + x[2] * np.minimum(u, 16.0 - u))


def kowalik_osborne(x: np.ndarray, m: int) -> np.ndarray:
    """Kowalik and Osborne's function."""
    t = _data(KOWALIK_T)
    return _data(KOWALIK) - x[0] * t * (t + x[1]) / (t * (t + x[2]) + x[3])


def meyer(x: np.ndarray, m: int) -> np.ndarray:
    """Meyer's function."""
    return x[0] * np.exp(x[1] / (45.0 + 5.0 * np.arange(1, 17) + x[2])) - _data(MEYER)


def watson(x: np.ndarray, m: int) -> np.ndarray:
    """Watson's function."""
    j, t = np.arange(len(x)), np.arange(1, 30)[:, None] / 29.0
    slope = (j[1:] * t ** (j[1:] - 1.0)) @ x[1:]
    return np.concatenate([slope - (t**j @ x) ** 2 - 1.0, [x[0], x[1] - x[0] ** 2 - 1.0]])


def box(x: np.ndarray, m: int) -> np.ndarray:
    """Box's function of three variables."""
    t = np.arange(1, m + 1) / 10.0
    return np.exp(-t * x[0]) - np.exp(-t * x[1]) + (np.exp(-10.0 * t) - np.exp(-t)) * x[2]


def jennrich_sampson(x: np.ndarray, m: int) -> np.ndarray:
    """Jennrich and Sampson's function."""
    i = np.arange(1, m + 1)
    return 2.0 + 2.0 * i - np.exp(i * x[0]) - np.exp(i * x[1])


def brown_dennis(x: np.ndarray, m: int) -> np.ndarray:
    """Brown and Dennis's function."""
    t = np.arange(1, m + 1) / 5.0
    return (x[0] + t * x[1] - np.exp(t)) ** 2 + (x[2] + x[3] * np.sin(t) - np.cos(t)) ** 2


def chebyquad(x: np.ndarray, m: int) -> np.ndarray:
    """Chebyquad: means of Chebyshev polynomials at the points minus their integrals over [0, 1]."""
    i = np.arange(1, m + 1)
    values, before = 2.0 * x - 1.0, np.ones_like(x)
    means = np.empty(m)
    for k in range(m):
        means[k] = values.mean()
        values, before = 2.0 * (2.0 * x - 1.0) * values - before, values
    return means + np.where(i % 2 == 0, 1.0 / np.maximum(i**2 - 1, 1), 0.0)


def brown_almost_linear(x: np.ndarray, m: int) -> np.ndarray:
    """Brown's almost linear function."""
    return np.append(x[:-1] + x.sum() - len(x) - 1.0, x.prod() - 1.0)


def osborne_1(x: np.ndarray, m: int) -> np.ndarray:
    """Osborne's first function."""
    t = 10.0 * np.arange(33)
    return _data(OSBORNE_1) - x[0] - x[1] * np.exp(-t * x[3]) - x[2] * np.exp(-t * x[4])


def osborne_2(x: np.ndarray, m: int) -> np.ndarray:
    """Osborne's second function."""
    t = np.arange(65) / 10.0
    bumps = sum(x[k] * np.exp(-x[k + 4] * (t - x[k + 7]) ** 2) for k in (1, 2, 3))
    return _data(OSBORNE_2) - x[0] * np.exp(-t * x[4]) - bumps


def bdqrtic(x: np.ndarray, m: int) -> np.ndarray:
    """BDQRTIC from the test set CUTE."""
    n = len(x) - 4
    squares = sum((k + 1) * x[k : n + k] ** 2 for k in range(4))
    return np.concatenate([3.0 - 4.0 * x[:n], squares + 5.0 * x[-1] ** 2])


def cube(x: np.ndarray, m: int) -> np.ndarray:
    """CUBE from the test set CUTE."""
    return np.append(x[0] - 1.0, 10.0 * (x[1:] - x[:-1] ** 3))


def _waves(v: np.ndarray) -> np.ndarray:
    return np.sin(np.log(v)) ** 5 + np.cos(np.log(v)) ** 5


def mancino(x: np.ndarray, m: int) -> np.ndarray:
    """Mancino's function."""
    i = np.arange(1, len(x) + 1)
    v = np.sqrt(x[:, None] ** 2 + i[:, None] / i)
    return 1400.0 * x + (i - 50.0) ** 3 + (v * _waves(v)).sum(1)


def heart_8(x: np.ndarray, m: int) -> np.ndarray:
    """Heart dipole of eight variables."""
    a, b, c, d, t, u, v, w = x
    p, q = t * (t**2 - 3.0 * v**2), v * (v**2 - 3.0 * t**2)
    r, s = u * (u**2 - 3.0 * w**2), w * (w**2 - 3.0 * u**2)
    return np.array(
        [
            a + b + 0.69,
            c + d + 0.044,
            t * a + u * b - v * c - w * d + 1.57,
            v * a + w * b + t * c + u * d + 1.31,
            a * (t**2 - v**2) - 2.0 * c * t * v + b * (u**2 - w**2) - 2.0 * d * u * w + 2.65,
            c * (t**2 - v**2) + 2.0 * a * t * v + d * (u**2 - w**2) + 2.0 * b * u * w - 2.0,
            a * p + c * q + b * r + d * s + 12.6,
            c * p - a * q + d * r - b * s - 9.48,
        ]
    )


Start = float | tuple[float, ...] | Callable[[int], np.ndarray]
"""One number for all variables, the numbers themselves, or a function of the number of variables."""

FUNCTIONS: tuple[tuple[Callable[[np.ndarray, int], np.ndarray], Start], ...] = (
    (linear, 1.0),
    (linear_rank_one, 1.0),
    (linear_with_zeros, 1.0),
    (rosenbrock, (-1.2, 1.0)),
    (helical_valley, (-1.0, 0.0, 0.0)),
    (powell_singular, (3.0, -1.0, 0.0, 1.0)),
    (freudenstein_roth, (0.5, -2.0)),
    (bard, (1.0, 1.0, 1.0)),
    (kowalik_osborne, (0.25, 0.39, 0.415, 0.39)),
    (meyer, (0.02, 4000.0, 250.0)),
    (watson, 0.5),
    (box, (0.0, 10.0, 20.0)),
    (jennrich_sampson, (0.3, 0.4)),
    (brown_dennis, (25.0, 5.0, -5.0, -1.0)),
    (chebyquad, lambda n: np.arange(1, n + 1) / (n + 1.0)),
    (brown_almost_linear, 0.5),
    (osborne_1, (0.5, 1.5, 1.0, 0.01, 0.02)),
    (osborne_2, (1.3, 0.65, 0.65, 0.7, 0.6, 3.0, 5.0, 7.0, 2.0, 4.5, 5.5)),
    (bdqrtic, 1.0),
    (cube, 0.5),
    (mancino, lambda n: -8.710996e-4 * mancino(np.zeros(n), n)),
    (heart_8, (-0.3, -0.39, 0.3, -0.344, -1.2, 2.69, 1.59, -1.5)),
)
"""The functions with their standard starts, in the order of the set's numbers from 1."""

SET = """1:9:45:0 1:9:45:1 2:7:35:0 2:7:35:1 3:7:35:0 3:7:35:1 4:2:2:0 4:2:2:1 5:3:3:0 5:3:3:1 6:4:4:0 6:4:4:1 7:2:2:0
7:2:2:1 8:3:15:0 8:3:15:1 9:4:11:0 10:3:16:0 11:6:31:0 11:6:31:1 11:9:31:0 11:9:31:1 11:12:31:0 11:12:31:1 12:3:10:0
13:2:10:0 14:4:20:0 14:4:20:1 15:6:6:0 15:7:7:0 15:8:8:0 15:9:9:0 15:10:10:0 15:11:11:0 16:10:10:0 17:5:33:0 18:11:65:0
18:11:65:1 19:8:8:0 19:10:12:0 19:11:14:0 19:12:16:0 20:5:5:0 20:6:6:0 20:8:8:0 21:5:5:0 21:5:5:1 21:8:8:0 21:10:10:0
21:12:12:0 21:12:12:1 22:8:8:0 22:8:8:1"""
"""The problems: function, number of variables, number of residuals, and the power of ten that multiplies the start."""


@dataclass(frozen=True)
class LeastSquaresProblem:
    """A least-squares problem.

    Attributes:
        name: its name.
        r: the residual function, which maps shape ``d`` to ``m``.
        x0: the starting point, shape ``d``.
    """

    name: str
    r: Callable[[np.ndarray], np.ndarray]
    x0: np.ndarray


def problems() -> list[LeastSquaresProblem]:
    """Returns the 53 problems in the set's order."""
    found = []
    for number, n, m, power in (map(int, text.split(":")) for text in SET.split()):
        function, start = FUNCTIONS[number - 1]
        x0 = start(n) if callable(start) else np.broadcast_to(start, n)
        name = f"{function.__name__} {n}x{m}" + (", 10 x0" if power else "")
        r = lambda x, f=function, m=m: f(np.asarray(x, dtype=float), m)  # noqa: E731
        found.append(LeastSquaresProblem(name, r, 10.0**power * x0))
    return found
