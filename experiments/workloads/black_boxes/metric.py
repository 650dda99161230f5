"""A classifier's F1 by its weights: ZoRD's Fig. 4, a network of 2,189 weights and biases moved about its trained ones.

f(θ) = 1 − F1 of the network with weights θ* + θ on 2,000 points that it was not trained on, the mean over seven
classes. The points are scikit-learn's ``make_classification`` in Covertype's shape, as nothing is downloaded. A seed
draws the points and trains the network.
"""

from __future__ import annotations

import dataclasses
from functools import partial

import numpy as np
import torch

from experiments.workloads.black_boxes.black_box import BlackBox, InBox, Objective, cube
from experiments.workloads.covertype import load_points
from experiments.workloads.metrics import DIMENSION, FULL, MetricObjective, Training, trained_network
from surrogates.threads import small_algebra

POINTS = 2000
BOUND = 1.0


@dataclasses.dataclass(frozen=True)
class OneMinusF1:
    """A metric that NumPy's arrays are given to."""

    metric: MetricObjective

    def __call__(self, theta: np.ndarray) -> float:
        """1 − F1 at θ, shape 2,189."""
        with small_algebra(0):
            return float(self.metric(torch.from_numpy(theta)))


def one_minus_f1(training: Training, seed: int) -> OneMinusF1:
    """The objective of a seed, trained on one thread: others round otherwise."""
    points = load_points()
    order = points.sample(training.points + POINTS, seed)
    with small_algebra(0):
        trained = trained_network(points, training, seed)
    return OneMinusF1(MetricObjective("f1", trained, order.after(training.points), BOUND))


def _make(box: tuple[np.ndarray, np.ndarray], seed: int) -> Objective:
    return InBox(one_minus_f1(FULL, seed), *box)


def _trained(seed: int) -> np.ndarray:
    return np.zeros(DIMENSION)


_BOX = cube(DIMENSION, BOUND)

PROBLEMS = (
    BlackBox(
        "metric_f1",
        DIMENSION,
        *_BOX,
        _trained,
        partial(_make, _BOX),
        budget=2000,
        cost="about a millisecond: a network with three layers on 2,000 points",
        noise="none; f is constant between steps of a point's size",
        licence="scikit-learn BSD 3-clause; the points are a formula's",
        needs=("sklearn",),
    ),
)
