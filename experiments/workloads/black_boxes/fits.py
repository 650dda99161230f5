"""Three models fitted to data by a measure without a gradient.

*Predator and prey* (d = 6): the rates and initial sizes of Lotka and Volterra's equations h' = αh − βhl, l' = δhl − γl
for the pelts of hares h and lynxes l that Hudson's Bay Company collected from 1900 to 1920, in thousands (Howard 2009;
table in the case study of Stan by Carpenter 2018). f is the root mean square of the differences of logarithms. The seed
draws 16 of the 21 years. f is smooth with a narrow curved valley.

*Accuracy* (d = 31): the share of wrong classifications of tumours by a linear function of 30 standardized inputs, for
weights in [−1, 1]. f has steps of 1/455. *Absolute error* (d = 11): the mean absolute error of a linear function of ten
standardized inputs, relative to that of the median, for diabetes' progression and weights in [−2, 2] standard
deviations. f is convex with kinks. In both, the seed draws four fifths of the patients.

A query takes milliseconds for the differential equations, and less than a tenth of one for the others. f is
deterministic. scikit-learn: BSD 3-clause.
"""

from __future__ import annotations

import dataclasses
from functools import partial

import numpy as np
from scipy.integrate import solve_ivp
from sklearn.datasets import load_breast_cancer, load_diabetes

from experiments.workloads.black_boxes.black_box import PROBLEM, BlackBox, central, cube
from experiments.workloads.black_boxes.variables import Variable, named

HARES = "30 47.2 70.2 77.4 36.3 20.6 18.1 21.4 22 25.4 27.1 40.3 57 76.6 52.3 19.5 11.2 7.6 14.6 16.2 24.7"
LYNXES = "4 6.1 9.8 35.2 59.4 41.7 19 13 8.3 9.1 7.4 8 12.3 19.5 45.7 51.1 29.7 15.8 9.7 10.1 8.6"
PELTS = np.array([HARES.split(), LYNXES.split()], dtype=float)
"""Hares and lynxes by year, in thousands, ``2 x 21``."""

KEPT_YEARS = 16

RATES = (
    Variable("alpha", 0.1, 3.0, log=True),
    Variable("beta", 0.003, 0.3, log=True),
    Variable("gamma", 0.1, 3.0, log=True),
    Variable("delta", 0.003, 0.3, log=True),
    Variable("hares", 5.0, 100.0, log=True),
    Variable("lynxes", 1.0, 50.0, log=True),
)
"""Rates per year, and per year and thousand pelts; sizes in 1900 in thousands."""


@dataclasses.dataclass(frozen=True)
class Populations:
    """f(u) = root mean square of log(model/data) in some years.

    Attributes:
        years: the years after 1900, in ascending order.
    """

    years: np.ndarray

    def sizes(self, u: np.ndarray) -> np.ndarray:
        """Returns hares and lynxes in 1900 to 1920, ``2 x 21``, by Dormand and Prince's method; NaN if it fails."""
        v = named(RATES, u)

        def change(time: float, logs: np.ndarray) -> list[float]:
            hares, lynxes = np.exp(logs)
            return [v["alpha"] - v["beta"] * lynxes, v["delta"] * hares - v["gamma"]]

        start = np.log([v["hares"], v["lynxes"]])
        found = solve_ivp(change, (0.0, 20.0), start, t_eval=np.arange(21.0), rtol=1e-6, atol=1e-8)
        return np.exp(found.y) if found.success else np.full((2, 21), np.nan)

    def __call__(self, u: np.ndarray) -> float:
        """Returns f at u, shape 6."""
        logs = np.log(self.sizes(u) / PELTS)[:, self.years]
        return float(np.sqrt(np.mean(np.square(logs))))


def populations(seed: int) -> Populations:
    """Draws the years."""
    drawn = np.random.default_rng([seed, PROBLEM]).choice(21, KEPT_YEARS, replace=False)
    return Populations(np.sort(drawn))


@dataclasses.dataclass(frozen=True)
class Linear:
    """A linear function of standardized inputs and its targets.

    Attributes:
        inputs: ``n x (d − 1)``.
        targets: shape ``n``: ±1, or numbers.
    """

    inputs: np.ndarray
    targets: np.ndarray

    def predicted(self, weights: np.ndarray) -> np.ndarray:
        """Returns the function's values; the last weight is the intercept."""
        found: np.ndarray = self.inputs @ weights[:-1] + weights[-1]
        return found

    def wrong(self, weights: np.ndarray) -> float:
        """Returns the share of targets with another sign."""
        return float(np.mean(np.where(self.predicted(weights) > 0.0, 1.0, -1.0) != self.targets))

    def absolute_error(self, weights: np.ndarray) -> float:
        """Returns the mean absolute error relative to the median's."""
        residuals = self.targets - self.predicted(weights)
        return float(np.abs(residuals).mean() / np.abs(self.targets - np.median(self.targets)).mean())


def drawn(data: dict[str, np.ndarray], seed: int) -> Linear:
    """Draws four fifths of the data and standardizes the inputs; targets of two classes become ±1, others are too."""
    count = len(data["target"])
    rows = np.random.default_rng([seed, PROBLEM]).permutation(count)[: 4 * count // 5]
    inputs, targets = data["data"][rows], data["target"][rows].astype(float)
    two = len(np.unique(targets)) == 2
    targets = 2.0 * targets - 1.0 if two else (targets - targets.mean()) / targets.std()
    return Linear((inputs - inputs.mean(0)) / inputs.std(0), targets)


_RATES, _WEIGHTS, _FEW = cube(len(RATES), 0.5, 0.5), cube(31, 1.0), cube(11, 2.0)

PROBLEMS = (
    BlackBox("lynx_hare", *_RATES, partial(central, *_RATES), populations, budget=120),
    BlackBox(
        "accuracy_breast_cancer",
        *_WEIGHTS,
        partial(central, *_WEIGHTS),
        lambda seed: drawn(load_breast_cancer(), seed).wrong,
        budget=620,
    ),
    BlackBox(
        "absolute_error_diabetes",
        *_FEW,
        partial(central, *_FEW),
        lambda seed: drawn(load_diabetes(), seed).absolute_error,
        budget=220,
    ),
)
