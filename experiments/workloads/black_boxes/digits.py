"""Attacks on a network that reads digits: the perturbation of an image with which the network is least right.

The margin log p_y − max_{j≠y} log p_j in nats, below 0 once the digit is taken for another, of perturbations within an
L∞ bound, as in ZoRD's Sec. 5.3 on scikit-learn's digits: 8 x 8, and enlarged to MNIST's 28 x 28. A seed trains the
network and draws the image among those that it recognizes.
"""

from __future__ import annotations

import dataclasses
from functools import lru_cache, partial

from experiments.workloads import images
from experiments.workloads.attack import Attack, chosen
from experiments.workloads.black_boxes.black_box import BlackBox, OfArrays, cube, middle
from experiments.workloads.victims import FULL, Training, Victim, trained_victim
from surrogates.threads import small_algebra

BOUND = {8: 0.2, 28: 0.1}
"""ε of ‖δ‖∞ ≤ ε by the pixels of a side; pixels are in [0, 1]."""


@lru_cache(maxsize=4)
def victim(side: int, training: Training, seed: int) -> Victim:
    """The network of a seed for digits of ``side`` pixels a side, trained in float64, in which machines agree.

    It is trained on one thread, as others round otherwise.
    """
    digits = images.digits(side)
    with small_algebra(0):
        return trained_victim(dataclasses.replace(digits, train=digits.train.double()), training, seed)


def perturbation(side: int, training: Training, seed: int) -> OfArrays:
    """The attack of a seed."""
    digits, network = images.digits(side), victim(side, training, seed)
    recognized = network.predict(digits.test) == digits.test_labels
    ((image, label),) = chosen(digits, recognized, 1, seed)
    return OfArrays(Attack(network, image, label, BOUND[side]))


def _drawn(side: int, seed: int) -> OfArrays:
    return perturbation(side, FULL, seed)


def _problem(side: int, budget: int) -> BlackBox:
    dimension = side**2
    return BlackBox(
        f"attack_digits_{dimension}",
        *cube(dimension, BOUND[side]),
        partial(middle, dimension),
        partial(_drawn, side),
        budget,
        cost="under a millisecond: a small convolutional network; making it takes seconds",
        noise="none; f is continuous, with kinks",
        licence="scikit-learn BSD 3-clause; data of UCI, CC BY 4.0",
    )


PROBLEMS = (_problem(8, 640), _problem(28, 1500))
