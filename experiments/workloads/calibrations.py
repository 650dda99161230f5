"""Two fits of a differential equation to 30 synthetic observations, with parameters of sizes from 1e-6 to 1e4."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from itertools import count

import numpy as np
from scipy.integrate import solve_ivp

from experiments.workloads.more_wild import LeastSquaresProblem

COUNT, NOISE, SEED = 30, 0.02, 0
"""Number of observations, and their noise relative to the largest observation."""

MOST = 20_000
"""Largest number of evaluations of a right-hand side per solution; some stiff solutions would take hours."""

Signal = Callable[[np.ndarray, np.ndarray], np.ndarray]


def epidemic(p: np.ndarray, t: np.ndarray) -> np.ndarray:
    """Returns the number of infected people in an SIR epidemic at times in days, shape ``m``.

    ``p`` has the infection rate per person and day, the recovery rate per day, and the numbers of infected and of
    susceptible people at time 0.
    """
    contagion, recovery, infected, susceptible = p

    def slope(_: float, y: np.ndarray) -> list[float]:
        new = contagion * y[0] * y[1]
        return [-new, new - recovery * y[1]]

    return _solved(slope, [susceptible, infected], t)[1]


def enzyme(p: np.ndarray, t: np.ndarray) -> np.ndarray:
    """Returns the signal of the product of an enzyme (Michaelis and Menten) at times in seconds, shape ``m``.

    ``p`` has the largest rate in mol/(l s), Michaelis' constant in mol/l, the enzyme's rate of decay per second, and
    the signal per mol/l of the product. The substrate starts at 1e-3 mol/l.
    """
    rate, half, decay, gain = p

    def slope(time: float, y: np.ndarray) -> list[float]:
        return [rate * math.exp(-decay * time) * (1e-3 - y[0]) / (half + 1e-3 - y[0])]

    return gain * _solved(slope, [0.0], t)[0]


def _solved(slope: Callable[[float, np.ndarray], list[float]], start: list[float], t: np.ndarray) -> np.ndarray:
    """Returns the solution at times, ``states x m``; NaN if the solver fails or exceeds ``MOST`` evaluations."""
    calls = count(1)

    def counted(time: float, y: np.ndarray) -> list[float]:
        try:
            return slope(time, y) if next(calls) <= MOST else [0.0] * len(y)
        except (OverflowError, ZeroDivisionError):
            return [math.nan] * len(y)

    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = solve_ivp(counted, (0.0, t[-1]), start, t_eval=t, method="LSODA", rtol=1e-10, atol=1e-14)
    complete = found.y.shape[1] == len(t) and next(calls) <= MOST
    return found.y if complete else np.full((len(start), len(t)), math.nan)


def _calibration(name: str, signal: Signal, truth: list[float], x0: list[float], last: float) -> LeastSquaresProblem:
    t, truth_ = np.linspace(last / COUNT, last, COUNT), np.array(truth)
    exact = signal(truth_, t)
    data = exact + NOISE * exact.max() * np.random.default_rng(SEED).standard_normal(COUNT)
    return LeastSquaresProblem(name, lambda x: (signal(np.asarray(x), t) - data) / exact.max(), np.array(x0))


def calibrations() -> list[LeastSquaresProblem]:
    """Returns the two problems; each parameter starts within a factor of two of its true value."""
    return [
        _calibration("epidemic 4x30", epidemic, [5e-5, 0.1, 10.0, 1e4], [4e-5, 0.15, 15.0, 9e3], 60.0),
        _calibration("enzyme 4x30", enzyme, [2e-6, 5e-4, 1e-3, 1e4], [3e-6, 8e-4, 6e-4, 7e3], 1500.0),
    ]
