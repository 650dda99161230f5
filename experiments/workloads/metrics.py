"""A classifier's metrics as piecewise constant functions of its parameters.

The network is an MLP 54-30-14-7 with biases, d = 2,189 (ZoRD, Sec. 5.4 and Appx. C.4); the ReLU is our choice. Training
with cross-entropy gives θ*, and f(θ) = 1 − metric of the network with parameters θ* + θ.
"""

from __future__ import annotations

import dataclasses
import itertools
import math

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from experiments.workloads.cache import cached, values_of
from experiments.workloads.covertype import CLASSES, FEATURES, Points

LAYERS = (FEATURES, 30, 14, CLASSES)
DIMENSION = sum((inputs + 1) * outputs for inputs, outputs in itertools.pairwise(LAYERS))
"""The number d of parameters, 2,189."""

METRICS = ("precision", "recall", "f1", "jaccard")


def logits(parameters: Tensor, inputs: Tensor) -> Tensor:
    """Returns the scores of q networks, ``q x n x 7``.

    Args:
        parameters: ``q x d``: weight (outputs x inputs) and bias of each layer in turn.
        inputs: ``n x 54``.
    """
    hidden = inputs.expand(len(parameters), *inputs.shape)
    for i, (fan_in, fan_out) in enumerate(itertools.pairwise(LAYERS)):
        weight, bias, parameters = parameters.tensor_split((fan_in * fan_out, (fan_in + 1) * fan_out), dim=1)
        hidden = torch.baddbmm(bias.unsqueeze(1), hidden, weight.view(-1, fan_out, fan_in).mT)
        if i < len(LAYERS) - 2:
            hidden = hidden.relu()
    return hidden


def confusion(predicted: Tensor, labels: Tensor) -> Tensor:
    """Counts true class by predicted class, ``q x 7 x 7``, for predictions ``q x n``."""
    cells = predicted + CLASSES * labels + CLASSES**2 * torch.arange(len(predicted)).unsqueeze(1)
    counts = torch.bincount(cells.flatten(), minlength=len(predicted) * CLASSES**2)
    return counts.view(-1, CLASSES, CLASSES)


def metric(name: str, counts: Tensor) -> Tensor:
    """Computes a metric's mean over the classes that occur or are predicted, from counts ``... x 7 x 7``; 0/0 is 0.

    Precision TP/(TP+FP), recall TP/(TP+FN), F1 2TP/(2TP+FP+FN), Jaccard TP/(TP+FP+FN); scikit-learn's ``macro``.

    Raises:
        ValueError: for another name.
    """
    counts = counts.double()
    hits, predicted, true = counts.diagonal(dim1=-2, dim2=-1), counts.sum(-2), counts.sum(-1)
    if name not in METRICS:
        raise ValueError(f"unknown metric {name!r}; choose from {', '.join(METRICS)}")
    union = predicted + true - hits
    below = {"precision": predicted, "recall": true, "f1": (predicted + true) / 2.0, "jaccard": union}[name]
    present = (predicted + true) > 0
    return (hits / below.clamp_min(1e-9)).sum(-1) / present.sum(-1)


@dataclasses.dataclass(frozen=True)
class MetricObjective:
    """f(θ) = 1 − metric of the network with parameters θ* + θ on some points.

    Attributes:
        name: one of ``METRICS``.
        trained: θ*, shape ``d``.
        points: the points on which the metric is computed.
        bound: half the side of the box [−bound, bound]^d in which θ is searched.
    """

    name: str
    trained: Tensor
    points: Points
    bound: float

    @property
    def dimension(self) -> int:
        """The dimension d."""
        return DIMENSION

    def __call__(self, theta: Tensor) -> Tensor:
        """Returns f at ``d`` or ``q x d``."""
        scores = logits(self.trained + theta.view(-1, DIMENSION), self.points.inputs)
        found = 1.0 - metric(self.name, confusion(scores.argmax(-1), self.points.labels))
        return found if theta.ndim > 1 else found[0]


@dataclasses.dataclass(frozen=True)
class Training:
    """Training of θ*: number of points, epochs, batch size and Adam's rate."""

    points: int = 2000
    epochs: int = 20
    batch: int = 100
    rate: float = 5e-3


FULL = Training()
QUICK = Training(points=200, epochs=5, batch=20, rate=1e-2)


def trained_network(points: Points, training: Training, seed: int, source: str = "", cache: str = "") -> Tensor:
    """Trains θ*, float64, shape ``d``, with Adam on the cross-entropy of a sample of the points.

    The seed draws the sample, the initial weights (uniform within ±1/√(fan in)) and the order of the batches. The
    result is stored in the folder ``cache`` under a name that contains ``source``, the name of the points.
    """
    name = f"mlp-{source}{len(points)}-{values_of(training)}-{seed}"
    theta: Tensor = cached(cache, name, lambda: _trained(points, training, seed))
    return theta


def _trained(points: Points, training: Training, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    sample = points.sample(training.points, seed)
    pieces = []
    for fan_in, fan_out in itertools.pairwise(LAYERS):
        draw = torch.rand((fan_in + 1) * fan_out, generator=generator, dtype=torch.float64)
        pieces.append((2.0 * draw - 1.0) / math.sqrt(fan_in))
    theta = torch.cat(pieces).requires_grad_()
    rule = torch.optim.Adam([theta], lr=training.rate)
    for _ in range(training.epochs):
        for batch in torch.randperm(len(sample), generator=generator).split(training.batch):
            rule.zero_grad()
            with torch.enable_grad():
                cross_entropy(logits(theta[None], sample.inputs[batch])[0], sample.labels[batch]).backward()
            rule.step()
    return theta.detach()
