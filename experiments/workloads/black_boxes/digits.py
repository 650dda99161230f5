"""Attacks on a network that reads digits: the perturbation of an image that minimizes the margin.

f is the margin log p_y − max_{j≠y} log p_j in nats, which is negative if the digit is misclassified. Perturbations have
an L∞ bound, as in ZoRD's Sec. 5.3. Images are scikit-learn's digits, 8 x 8 pixels or enlarged to MNIST's 28 x 28. The
seed trains the network, which takes seconds, and draws an image that the network classifies correctly. A query takes
less than a millisecond; f is continuous, with kinks. scikit-learn: BSD 3-clause; data of UCI: CC BY 4.0.
"""

from __future__ import annotations

import dataclasses
from functools import lru_cache, partial

from experiments.workloads import images
from experiments.workloads.attack import Attack, chosen
from experiments.workloads.black_boxes.black_box import BlackBox, OfArrays, cube, middle
from experiments.workloads.victims import FULL, Training, Victim, predict, trained_victim
from surrogates.threads import small_algebra

BOUND = {8: 0.2, 28: 0.1}
"""ε of ‖δ‖∞ ≤ ε by the pixels per side; pixels are in [0, 1]."""


@lru_cache(maxsize=4)
def victim(side: int, training: Training, seed: int) -> Victim:
    """Returns the seed's network for digits with ``side`` pixels per side.

    The network is trained in float64 on one thread, because rounding depends on precision and number of threads.
    """
    digits = images.digits(side)
    with small_algebra(0):
        return trained_victim(dataclasses.replace(digits, train=digits.train.double()), training, seed)


def perturbation(side: int, training: Training, seed: int) -> OfArrays:
    """Returns the attack of a seed."""
    digits, network = images.digits(side), victim(side, training, seed)
    recognized = predict(network, digits.test) == digits.test_labels
    ((image, label),) = chosen(digits, recognized, 1, seed)
    return OfArrays(Attack(network, image, label, BOUND[side]))


def _problem(side: int, budget: int) -> BlackBox:
    d = side**2
    bounds, start = cube(d, BOUND[side]), partial(middle, d)
    return BlackBox(f"attack_digits_{d}", *bounds, start, lambda seed: perturbation(side, FULL, seed), budget)


PROBLEMS = (_problem(8, 640), _problem(28, 1500))
