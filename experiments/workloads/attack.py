"""Black-box attacks as minimization problems: find a perturbation within an L∞ bound that makes a classifier err.

δ has one number per pixel, which is added to every channel, and the perturbed image is clipped to [0, 1]. ZoRD (Sec.
5.3) states d = 28² for MNIST and 32² for CIFAR-10, from which we infer that the channels share δ.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import softplus

from experiments.workloads.images import Images
from experiments.workloads.victims import ResNet, Victim
from optimizers.comparison.records import Rows


def margin(logits: Tensor, label: int) -> Tensor:
    """Computes log p_y − max_{j≠y} log p_j of scores ``... x 10``; it is at most 0 if a class is as likely as y."""
    others = logits.clone()
    others[..., label] = -torch.inf
    return logits[..., label] - others.amax(-1)


@dataclasses.dataclass(frozen=True)
class Attack:
    """The objective f(δ) for one image and one victim.

    Attributes:
        victim: the classifier.
        image: float64, ``c x h x w``.
        label: its class y.
        bound: ε of ‖δ‖∞ ≤ ε.
        smooth: whether f is log(1 + exp(margin)), in which victims that do not recognize the image have little weight.
    """

    victim: Victim | ResNet
    image: Tensor
    label: int
    bound: float
    smooth: bool = False

    @property
    def dimension(self) -> int:
        """Number of pixels d."""
        return int(self.image[0].numel())

    def perturbed(self, delta: Tensor) -> Tensor:
        """Returns the perturbed images, ``q x c x h x w``, for perturbations ``q x d``."""
        _, h, w = self.image.shape
        return (self.image + delta.view(-1, 1, h, w)).clamp(0.0, 1.0)

    def logits(self, delta: Tensor) -> Tensor:
        """Returns the victim's scores, ``q x 10``, for perturbations ``q x d``."""
        with torch.no_grad():
            return self.victim.logits(self.perturbed(delta))

    def __call__(self, delta: Tensor) -> Tensor:
        """Returns f at ``d`` or ``q x d``: margins, or their softplus."""
        found = margin(self.logits(delta), self.label)
        found = softplus(found) if self.smooth else found
        return found if delta.ndim > 1 else found[0]


def fooled(attacks: Sequence[Attack], delta: Tensor) -> bool:
    """Returns whether the victims' mean probabilities for the image perturbed by δ favour another class."""
    probabilities = torch.stack([attack.logits(delta)[0].softmax(-1) for attack in attacks])
    return float(margin(probabilities.mean(0), attacks[0].label)) <= 0.0


def success_rate(found: Rows, needed: str, counts: np.ndarray) -> np.ndarray:
    """Returns the share of attacks that succeeded within each count, from the column ``needed`` of their records."""
    each = np.array([float(row[needed]) if row["success"] else np.inf for row in found])
    return np.asarray((each[:, None] <= counts).mean(0))


def chosen(images: Images, recognized: Tensor, count: int, seed: int) -> list[tuple[Tensor, int]]:
    """Draws ``count`` of the recognized test images without replacement; also returns their classes.

    Raises:
        ValueError: if fewer images are recognized.
    """
    rows = recognized.nonzero().flatten().numpy()
    if len(rows) < count:
        raise ValueError(f"count must be at most {len(rows)}, the number of recognized test images, got {count}")
    picked = np.random.default_rng([seed, 1]).choice(rows, size=count, replace=False)
    return [(images.test[i].double(), int(images.test_labels[i])) for i in picked.tolist()]
