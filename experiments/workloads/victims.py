"""Image classifiers that the attacks query: trained from a seed, or supplied with the data.

Supplied networks are ``cnn.pt`` for MNIST and ``resnet20*.th`` for CIFAR-10, a ResNet-20 in the format of
https://github.com/akamaster/pytorch_resnet_cifar10 (He et al. 2016, shortcuts of option A). Supplied networks run in
float64.

One small CNN serves images of any size: two 3 x 3 convolutions, each with ReLU and 2 x 2 max-pooling, and two linear
layers. The CNN is trained in the images' dtype and queried in float64, where rounding errors are far below the
differences of values that attacks use. Trained in float32, networks differ between machines with different rounding;
trained in float64, they agree to about twelve digits.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import batch_norm, conv2d, cross_entropy, linear, pad

from experiments.workloads.cache import cached, values_of
from experiments.workloads.data import file_of, reading
from experiments.workloads.images import Images

CLASSES = 10
MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""Mean and standard deviation of each channel, with which the supplied ResNet standardizes images."""


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


def pooled(x: Tensor) -> Tensor:
    """Returns the largest number of each 2 x 2 block, ``... x h/2 x w/2``: ``max_pool2d`` in a tenth of its time."""
    x = torch.maximum(x[..., :-1:2, :], x[..., 1::2, :])
    return torch.maximum(x[..., :-1:2], x[..., 1::2])


@dataclasses.dataclass(frozen=True)
class Victim:
    """A trained CNN.

    Attributes:
        parameters: weight and bias of each layer: two convolutions, which keep the size, and linear layers.
    """

    parameters: tuple[Tensor, ...]

    def logits(self, pixels: Tensor) -> Tensor:
        """Returns the scores of the ten classes, ``n x 10``, for images ``n x c x h x w``."""
        p = self.parameters
        pixels = pooled(conv2d(pixels, p[0], p[1], padding="same").relu())
        pixels = pooled(conv2d(pixels, p[2], p[3], padding="same").relu())
        scores = linear(pixels.flatten(1), p[4], p[5])
        return linear(scores.relu(), p[6], p[7]) if len(p) > 6 else scores


def supplied(folder: Path) -> Victim | ResNet | None:
    """Returns the trained network in a data set's folder, or None if there is none.

    Raises:
        DataError: if the file is not as expected.
    """
    path = file_of(folder, "cnn.pt", "resnet20*.th")
    if path is None:
        return None
    with reading(f"{path} has no network that this version knows"):
        found = torch.load(path, map_location="cpu", weights_only=True)
        if path.suffix == ".pt":
            return Victim(tuple(weight.double() for weight in found.values()))
        return ResNet({name.removeprefix("module."): w.double() for name, w in found["state_dict"].items()})


@dataclasses.dataclass(frozen=True)
class ResNet:
    """A residual network for 32 x 32 pixels with batch normalization, in evaluation mode.

    Attributes:
        weights: the tensors by their names in the state dict.
    """

    weights: Mapping[str, Tensor]

    def logits(self, pixels: Tensor) -> Tensor:
        """Returns the scores of the ten classes, ``n x 10``, for images ``n x 3 x 32 x 32``."""
        mean, deviation = (pixels.new_tensor(each).view(3, 1, 1) for each in (MEAN, DEVIATION))
        x = self._convolved((pixels - mean) / deviation, "", 1, 1).relu()
        for layer in (1, 2, 3):
            blocks = [name for name in self.weights if re.fullmatch(rf"layer{layer}\.\d+\.conv1\.weight", name)]
            for block in range(len(blocks)):
                name, stride = f"layer{layer}.{block}.", 2 if layer > 1 and block == 0 else 1
                inner = self._convolved(self._convolved(x, name, 1, stride).relu(), name, 2, 1)
                added = (inner.shape[1] - x.shape[1]) // 2
                x = (inner + pad(x[:, :, ::stride, ::stride], (0, 0, 0, 0, added, added))).relu()
        return linear(x.mean((2, 3)), self.weights["linear.weight"], self.weights["linear.bias"])

    def _convolved(self, x: Tensor, name: str, number: int, stride: int) -> Tensor:
        w, norm = self.weights, f"{name}bn{number}."
        x = conv2d(x, w[f"{name}conv{number}.weight"], stride=stride, padding=1)
        statistics = w[f"{norm}running_mean"], w[f"{norm}running_var"]
        return batch_norm(x, *statistics, w[f"{norm}weight"], w[f"{norm}bias"])


def predict(victim: Victim | ResNet, pixels: Tensor) -> Tensor:
    """Returns the class with the largest score, shape ``n``; evaluates images in chunks, in float64."""
    with torch.no_grad():
        return torch.cat([victim.logits(chunk).argmax(1) for chunk in pixels.double().split(1000)])


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
    kind = f"{images.name}{len(images.train)}-{images.shape}-{images.train.dtype}"
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
