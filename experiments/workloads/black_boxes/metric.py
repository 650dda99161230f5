"""A classifier's F1 as a function of its weights: ZoRD's Fig. 4, a network with 2,189 weights and biases.

f(θ) = 1 − F1 of the network with weights θ* + θ on 2,000 points that were not used for training, averaged over seven
classes. The points are from scikit-learn's ``make_classification`` in Covertype's shape. The seed draws the points and
trains the network to θ*. A query takes about a millisecond; f is piecewise constant. scikit-learn: BSD 3-clause.
"""

from __future__ import annotations

from functools import partial

from experiments.workloads.black_boxes.black_box import BlackBox, OfArrays, cube, middle
from experiments.workloads.covertype import load_points
from experiments.workloads.metrics import DIMENSION, FULL, MetricObjective, Training, trained_network
from surrogates.threads import small_algebra

POINTS = 2000
BOUND = 1.0


def one_minus_f1(training: Training, seed: int) -> OfArrays:
    """Returns the objective of a seed; the network is trained on one thread, since threads change rounding."""
    points = load_points()
    order = points.sample(training.points + POINTS, seed)
    with small_algebra(0):
        trained = trained_network(points, training, seed)
    return OfArrays(MetricObjective("f1", trained, order.after(training.points), BOUND))


PROBLEMS = (
    BlackBox(
        "metric_f1",
        *cube(DIMENSION, BOUND),
        partial(middle, DIMENSION),
        lambda seed: one_minus_f1(FULL, seed),
        budget=2000,
    ),
)
