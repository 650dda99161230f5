"""Ten constrained engineering designs from the literature, whose optima are computed from the formulas.

Each maps a point of a box to f and the constraints g ≤ 0. The formulas are from:

- K. Deb, GeneAS: a robust optimal design technique for mechanical component design, 1997 (welded beam).
- J. Golinski, Optimal synthesis problems solved by means of nonlinear programming, J. Mechanisms 5, 1970 (reducer).
- J. S. Arora, Introduction to Optimum Design, 1989 (spring).
- T. Ray, P. Saini, Engineering design optimization using a swarm, Engineering Optimization 33, 2001 (truss).
- C. S. Beightler, D. T. Phillips, Applied Geometric Programming, 1976 (gas transmission compressor).
- S. S. Rao, Engineering Optimization, 1996 (tubular column).
- H. Chickermane, H. C. Gea, Structural optimization using a new local approximation method, Int. J. Numer. Meth.
  Engng 39, 1996 (cantilever beam).
- W. Hock, K. Schittkowski, Test Examples for Nonlinear Programming Codes, 1981, problem 106 (heat exchanger).
- K. M. Ragsdell, D. T. Phillips, Optimal design of a class of welded structures, 1976; C. L. Karr, 1991 (bulkhead).
- D. M. Himmelblau, Applied Nonlinear Programming, 1972 (Himmelblau's).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.optimize import minimize

Values = tuple[float, np.ndarray]
"""f, and the constraints g ≤ 0, shape ``m``."""


@dataclass(frozen=True)
class Design:
    """A constrained design.

    Attributes:
        fun: maps a point, shape ``d``, to f and g.
        lower: lower bounds of the box, shape ``d``.
        upper: upper bounds of the box, shape ``d``.
    """

    fun: Callable[[np.ndarray], Values]
    lower: tuple[float, ...]
    upper: tuple[float, ...]

    def optimum(self, starts: int = 30, seed: int = 0, tolerance: float = 1e-8) -> tuple[float, np.ndarray]:
        """Returns the least f with g ≤ ``tolerance`` that SLSQP reaches from uniform starts, and the minimizer.

        Raises:
            RuntimeError: if no run ends at a feasible point.
        """
        lower, upper = np.array(self.lower), np.array(self.upper)
        point = lambda u: lower + np.clip(u, 0.0, 1.0) * (upper - lower)  # noqa: E731
        random, best = np.random.default_rng(seed), (math.inf, lower)
        for _ in range(starts):
            start = random.random(len(lower))
            f, g = self.fun(point(start))
            unit, units = abs(f) or 1.0, np.maximum(np.abs(g), 1e-3)
            with np.errstate(all="ignore"):
                end = minimize(
                    lambda u, unit=unit: self.fun(point(u))[0] / unit,
                    start,
                    method="SLSQP",
                    bounds=[(0.0, 1.0)] * len(lower),
                    constraints={"type": "ineq", "fun": lambda u, units=units: -self.fun(point(u))[1] / units},
                    options={"maxiter": 500, "ftol": 1e-13},
                )
            f, g = self.fun(point(end.x))
            if f < best[0] and bool((g <= tolerance * np.maximum(1.0, units)).all()):
                best = f, point(end.x)
        if best[0] == math.inf:
            raise RuntimeError(f"SLSQP reached no feasible point from {starts} starts; pass more starts")
        return best


def welded_beam(x: np.ndarray) -> Values:
    """Returns the cost of a beam of thickness b and height t, welded with a seam of height h and length l."""
    h, l, t, b = x
    load, span, young, shear = 6000.0, 14.0, 30e6, 12e6
    arm = math.sqrt(l**2 / 4.0 + ((h + t) / 2.0) ** 2)
    first = load / (math.sqrt(2.0) * h * l)
    inertia = 2.0 * math.sqrt(2.0) * h * l * (l**2 / 12.0 + ((h + t) / 2.0) ** 2)
    second = load * (span + l / 2.0) * arm / inertia
    stress = math.sqrt(first**2 + first * second * l / arm + second**2)
    buckling = 4.013 * young * t * b**3 / 6.0 / span**2 * (1.0 - t / (2.0 * span) * math.sqrt(young / (4.0 * shear)))
    plate = 0.04811 * t * b * (14.0 + l)
    g = [
        stress - 13600.0,
        6.0 * load * span / (b * t**2) - 30000.0,
        h - b,
        0.10471 * h**2 + plate - 5.0,
        0.125 - h,
        4.0 * load * span**3 / (young * t**3 * b) - 0.25,
        load - buckling,
    ]
    return 1.10471 * h**2 * l + plate, np.array(g)


def speed_reducer(x: np.ndarray) -> Values:
    """Returns the weight of a gear box of face width, module, teeth, two shafts' lengths and two diameters."""
    b, m, z, l1, l2, d1, d2 = x
    f = 0.7854 * b * m**2 * (3.3333 * z**2 + 14.9334 * z - 43.0934) - 1.508 * b * (d1**2 + d2**2)
    f += 7.4777 * (d1**3 + d2**3) + 0.7854 * (l1 * d1**2 + l2 * d2**2)
    g = [
        27.0 / (b * m**2 * z),
        397.5 / (b * m**2 * z**2),
        1.93 * l1**3 / (m * z * d1**4),
        1.93 * l2**3 / (m * z * d2**4),
        math.sqrt((745.0 * l1 / (m * z)) ** 2 + 16.9e6) / (110.0 * d1**3),
        math.sqrt((745.0 * l2 / (m * z)) ** 2 + 157.5e6) / (85.0 * d2**3),
        m * z / 40.0,
        5.0 * m / b,
        b / (12.0 * m),
        (1.5 * d1 + 1.9) / l1,
        (1.1 * d2 + 1.9) / l2,
    ]
    return f, np.array(g) - 1.0


def spring(x: np.ndarray) -> Values:
    """Returns the weight of a coil spring of wire diameter d, coil diameter D and N active coils."""
    d, D, N = x
    g = [
        1.0 - D**3 * N / (71785.0 * d**4),
        (4.0 * D**2 - d * D) / (12566.0 * (D * d**3 - d**4)) + 1.0 / (5108.0 * d**2) - 1.0,
        1.0 - 140.45 * d / (D**2 * N),
        (d + D) / 1.5 - 1.0,
    ]
    return (N + 2.0) * D * d**2, np.array(g)


def three_bar_truss(x: np.ndarray) -> Values:
    """Returns the volume of a truss of two outer bars of section a and an inner one of section b."""
    a, b = x
    root, area = math.sqrt(2.0), math.sqrt(2.0) * a**2 + 2.0 * a * b
    g = [(root * a + b) / area, b / area, 1.0 / (root * b + a)]
    return 100.0 * (2.0 * root * a + b), 2.0 * np.array(g) - 2.0


def gas_compressor(x: np.ndarray) -> Values:
    """Returns the yearly cost of a gas pipeline by distance, compression ratio, diameter and a pressure's share."""
    a, b, c, e = x
    f = 8.61e5 * math.sqrt(a / e) * b * c ** (-2.0 / 3.0) + 3.69e4 * c + 7.72e8 * b**0.219 / a - 765.43e6 / a
    return f, np.array([(e + 1.0) / b**2 - 1.0])


def tubular_column(x: np.ndarray) -> Values:
    """Returns the cost of a column of mean diameter d and thickness t under compression."""
    d, t = x
    buckling = 8.0 * 2500.0 * 250.0**2 / (math.pi**3 * 0.85e6 * d * t * (d**2 + t**2))
    return 9.8 * d * t + 2.0 * d, np.array([2500.0 / (math.pi * d * t * 500.0), buckling]) - 1.0


def cantilever_beam(x: np.ndarray) -> Values:
    """Returns the weight of a stepped beam of five hollow squares, whose tip may bend by a limit."""
    return 0.0624 * float(x.sum()), np.array([float((np.array([61.0, 37.0, 19.0, 7.0, 1.0]) / x**3).sum()) - 1.0])


def heat_exchanger(x: np.ndarray) -> Values:
    """Returns the area of a network of three heat exchangers, x₁ + x₂ + x₃, by areas and temperatures."""
    a, b, c, t1, t2, t3, t4, t5 = x
    g = [
        0.0025 * (t1 + t3) - 1.0,
        0.0025 * (t2 + t4 - t1) - 1.0,
        0.01 * (t5 - t2) - 1.0,
        -a * t3 + 833.33252 * t1 + 100.0 * a - 83333.333,
        -b * t4 + 1250.0 * t2 + b * t1 - 1250.0 * t1,
        -c * t5 + 1.25e6 + c * t2 - 2500.0 * t2,
    ]
    return a + b + c, np.array(g)


def bulkhead(x: np.ndarray) -> Values:
    """Returns the weight of a corrugated bulkhead of width, depth, length and plate thickness."""
    w, h, l, t = x
    pitch = w + math.sqrt(abs(l**2 - h**2))
    g = [
        8.94 * pitch - t * h * (0.4 * w + l / 6.0),
        2.2 * (8.94 * pitch) ** (4.0 / 3.0) - t * h**2 * (0.2 * w + l / 12.0),
        0.0156 * w + 0.15 - t,
        0.0156 * l + 0.15 - t,
        1.05 - t,
        h - l,
    ]
    return 5.885 * t * (w + l) / pitch, np.array(g)


def himmelblau(x: np.ndarray) -> Values:
    """Returns the quadratic cost of Himmelblau's process under three two-sided quadratic constraints."""
    a, b, c, e, h = x
    sides = np.array(
        [
            85.334407 + 0.0056858 * b * h + 0.0006262 * a * e - 0.0022053 * c * h,
            80.51249 + 0.0071317 * b * h + 0.0029955 * a * b + 0.0021813 * c**2,
            9.300961 + 0.0047026 * c * h + 0.0012547 * a * c + 0.0019085 * c * e,
        ]
    )
    f = 5.3578547 * c**2 + 0.8356891 * a * h + 37.293239 * a - 40792.141
    return f, np.concatenate([sides - [92.0, 110.0, 25.0], [0.0, 90.0, 20.0] - sides])


DESIGNS = {
    "welded beam": Design(welded_beam, (0.1, 0.1, 0.1, 0.1), (2.0, 10.0, 10.0, 2.0)),
    "speed reducer": Design(speed_reducer, (2.6, 0.7, 17.0, 7.3, 7.3, 2.9, 5.0), (3.6, 0.8, 28.0, 8.3, 8.3, 3.9, 5.5)),
    "spring": Design(spring, (0.05, 0.25, 2.0), (2.0, 1.3, 15.0)),
    "three-bar truss": Design(three_bar_truss, (0.01, 0.01), (1.0, 1.0)),
    "gas compressor": Design(gas_compressor, (20.0, 1.0, 20.0, 0.1), (50.0, 10.0, 50.0, 60.0)),
    "tubular column": Design(tubular_column, (2.0, 0.2), (14.0, 0.8)),
    "cantilever beam": Design(cantilever_beam, (0.01,) * 5, (100.0,) * 5),
    "heat exchanger": Design(heat_exchanger, (100.0, 1e3, 1e3, *[10.0] * 5), (1e4, 1e4, 1e4, *[1e3] * 5)),
    "bulkhead": Design(bulkhead, (1.0, 1.0, 1.0, 0.1), (100.0, 100.0, 100.0, 5.0)),
    "himmelblau": Design(himmelblau, (78.0, 33.0, 27.0, 27.0, 27.0), (102.0, 45.0, 45.0, 45.0, 45.0)),
}
"""The designs by name."""
