"""Image classifiers that the attacks query, trained from a seed.

One small CNN serves images of any size: two 3 x 3 convolutions, each with ReLU and 2 x 2 max-pooling, and two linear
layers. It is trained in the images' dtype and queried in float64, where the differences of values that attacks use are
far above rounding errors. In float32 machines with different rounding train different networks; in float64 the networks
agree to about twelve digits.
"""

from __future__ import annotations

import dataclasses
import math

import torch
from torch import Tensor
from torch.nn.functional import conv2d, cross_entropy, linear, max_pool2d

from experiments.workloads.cache import cached, values_of
from experiments.workloads.images import Images

CLASSES = 10


@dataclasses.dataclass(frozen=True)
class Training:
    """Training of a victim: channels of its convolutions, width of its hidden layer, and Adam's settings."""

    channels: tuple[int, int] = (16, 32)
    hidden: int = 64
    epochs: int = 10
    batch: int = 32
    rate: float = 2e-3


FULL = Training()
QUICK = Training(channels=(4, 8), hidden=16, epochs=2, rate=5e-3)
"""Fast training for tests; accurate enough on digits to be attacked."""


@dataclasses.dataclass(frozen=True)
class Victim:
    """A trained CNN.

    Attributes:
        parameters: weight and bias of each of the four layers.
    """

    parameters: tuple[Tensor, ...]

    def logits(self, pixels: Tensor) -> Tensor:
        """Returns the scores of the ten classes, ``n x 10``, for images ``n x c x h x w``."""
        p = self.parameters
        pixels = max_pool2d(conv2d(pixels, p[0], p[1], padding=1).relu(), 2)
        pixels = max_pool2d(conv2d(pixels, p[2], p[3], padding=1).relu(), 2)
        return linear(linear(pixels.flatten(1), p[4], p[5]).relu(), p[6], p[7])

    def predict(self, pixels: Tensor) -> Tensor:
        """Returns the class with the largest score, shape ``n``; evaluates images in chunks."""
        chunks = pixels.to(self.parameters[0]).split(1000)
        return torch.cat([self.logits(chunk).argmax(1) for chunk in chunks])


def shapes(image: tuple[int, int, int], training: Training) -> tuple[tuple[int, ...], ...]:
    """Returns the shapes of the parameters for images of shape ``c, h, w``."""
    (c, h, w), (first, second), hidden = image, training.channels, training.hidden
    flat = second * (h // 4) * (w // 4)
    weights = ((first, c, 3, 3), (second, first, 3, 3), (hidden, flat), (CLASSES, hidden))
    return tuple(shape for weight in weights for shape in (weight, weight[:1]))


def trained_victim(
    images: Images, training: Training, seed: int, classes: tuple[int, ...] = (), cache: str = ""
) -> Victim:
    """Trains a victim with Adam on the cross-entropy of the images of some classes (empty: all), stored in a folder.

    The seed draws the initial weights (He's uniform; biases 0) and the order of the batches.
    """
    kind = f"{images.name}-{images.shape}-{images.train.dtype}"
    name = f"victim-{kind}-{values_of(training)}-{seed}-{''.join(map(str, classes))}"
    return Victim(tuple(cached(cache, name, lambda: _trained(images, training, seed, classes))))


def _trained(images: Images, training: Training, seed: int, classes: tuple[int, ...]) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    parameters = []
    for shape in shapes(images.shape, training):
        bound = math.sqrt(6.0 / math.prod(shape[1:])) if len(shape) > 1 else 0.0
        drawn = (2.0 * torch.rand(shape, generator=generator) - 1.0) * bound
        parameters.append(drawn.to(images.train.dtype).requires_grad_())
    rows = torch.arange(len(images.train_labels))
    if classes:
        rows = rows[torch.isin(images.train_labels, torch.tensor(classes))]
    victim, rule = Victim(tuple(parameters)), torch.optim.Adam(parameters, lr=training.rate)
    for _ in range(training.epochs):
        order = rows[torch.randperm(len(rows), generator=generator)]
        for batch in order.split(training.batch):
            rule.zero_grad()
            with torch.enable_grad():
                cross_entropy(victim.logits(images.train[batch]), images.train_labels[batch]).backward()
            rule.step()
    return [p.detach().double() for p in parameters]
