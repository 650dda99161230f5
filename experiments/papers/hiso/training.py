"""Federated training on MNIST, or on scikit-learn's digits: networks, losses, and the clients' shares of the data."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, linear

from experiments.papers.hiso.controls import ScalarHessian
from experiments.workloads.data import DataError
from experiments.workloads.images import load_images
from experiments.workloads.victims import Victim
from federated import make_federation
from federated.methods.scalar.scalar_only import ScalarOnlyServer
from optimizers.comparison.records import Row, Rows, seeds_of, where

ALGORITHMS: dict[str, Any] = {"hiso_scalar": ScalarHessian, "group_probe": "hiso"}
"""Algorithms of the methods that are not named like their algorithm."""

TEST_SHARE = 0.2
"""Share of the digits used for testing; MNIST has its own test images."""

CHUNK = 2000
"""Number of images evaluated at once."""

MNIST_NETWORK = "mnist_cnn"
MNIST_MEAN, MNIST_DEVIATION = 0.1307, 0.3081
"""Mean and standard deviation of MNIST's pixels, with which the authors' program standardizes them."""

SHAPES: dict[str, tuple[tuple[int, ...], ...]] = {
    "mlp": ((32, 64), (32,), (10, 32), (10,)),
    MNIST_NETWORK: ((16, 1, 5, 5), (16,), (32, 16, 5, 5), (32,), (10, 1568), (10,)),
}
"""Shapes of each network's parameters, in order.

The MLP 64-32-10 is for the 8 x 8 digits. The CNN of the authors' programs, for MNIST, has 5 x 5 convolutions to 16 and
32 channels and one linear layer, 28,938 parameters. The paper gives no layers.
"""


def tensors(network: str) -> list[range]:
    """Returns the coordinates of each of a network's tensors."""
    ends = [0, *itertools.accumulate(math.prod(shape) for shape in SHAPES[network])]
    return [range(a, b) for a, b in itertools.pairwise(ends)]


def dimension(network: str) -> int:
    """Returns the number of parameters d."""
    return tensors(network)[-1].stop


def logits(network: str, x: Tensor, inputs: Tensor) -> Tensor:
    """Returns the scores of the ten digits, ``n x 10``, for parameters ``d`` and pixels ``n x side²`` in [0, 1]."""
    pieces = x.split([len(part) for part in tensors(network)])
    p = [piece.view(shape) for piece, shape in zip(pieces, SHAPES[network], strict=True)]
    if network == "mlp":
        return linear(linear(inputs, p[0], p[1]).relu(), p[2], p[3])
    side = math.isqrt(inputs.shape[1])
    return Victim(tuple(p)).logits(inputs.view(-1, 1, side, side))


def initial(network: str, seed: int) -> Tensor:
    """Draws initial parameters: weights uniform within ±1/√(fan in), as in torch, biases 0; float32, shape ``d``."""
    generator = torch.Generator().manual_seed(seed)
    pieces = []
    for shape in SHAPES[network]:
        bound = math.prod(shape[1:]) ** -0.5 if len(shape) > 1 else 0.0
        pieces.append((2.0 * torch.rand(math.prod(shape), generator=generator) - 1.0) * bound)
    return torch.cat(pieces)


@dataclass(frozen=True)
class Loss:
    """Mean cross-entropy of a network on some images, as a function of its parameters.

    Attributes:
        network: a key of ``SHAPES``.
        inputs: pixels, ``n x side²``.
        labels: digits, shape ``n``.
    """

    network: str
    inputs: Tensor
    labels: Tensor

    @property
    def dimension(self) -> int:
        """Number of parameters d."""
        return dimension(self.network)

    def __call__(self, x: Tensor) -> Tensor:
        """Returns the loss at x, shape ``d``."""
        return torch.stack(list(self._shares(x))).sum()

    def _shares(self, x: Tensor) -> Iterator[Tensor]:
        """Yields the contribution of each chunk of images to the loss."""
        for inputs, labels in zip(self.inputs.split(CHUNK), self.labels.split(CHUNK), strict=True):
            share = len(labels) / len(self.labels)
            yield share * cross_entropy(logits(self.network, x, inputs), labels)

    def accuracy(self, x: Tensor) -> float:
        """Returns the share of images that are classified correctly."""
        found = torch.cat([logits(self.network, x, inputs).argmax(1) for inputs in self.inputs.split(CHUNK)])
        return float((found == self.labels).float().mean())

    def gradient(self, x: Tensor) -> Tensor:
        """Returns the gradient at x, shape ``d``."""
        leaf, total = x.detach().clone().requires_grad_(), torch.zeros_like(x)
        for share in self._shares(leaf):
            total += torch.autograd.grad(share, leaf)[0]
        return total


class BatchLoss:
    """The loss on a batch of a client's images, drawn anew with replacement for each call.

    Args:
        loss: the loss on all images of the client.
        size: number of images in a batch.
        seed: seed of the batches.
    """

    def __init__(self, loss: Loss, size: int, seed: Sequence[int]) -> None:
        self.loss, self.size, self.generator = loss, size, np.random.default_rng(seed)

    def __call__(self, points: Tensor) -> Tensor:
        """Returns the losses at points ``q x d`` on the same batch, shape ``q``."""
        rows = self.generator.integers(len(self.loss.labels), size=self.size)
        batch = Loss(self.loss.network, self.loss.inputs[rows], self.loss.labels[rows])
        return torch.stack([batch(x) for x in points])


def federation_of(network: str, clients: int, alpha: float, seed: int, data: str = "") -> tuple[list[Loss], Loss, Loss]:
    """Returns the clients' losses, the loss on all training images and the loss on the test images.

    The training images of each digit, in an order drawn from the seed, are dealt to the clients with proportions from
    Dirichlet(α, …, α), which are drawn again if a client has no image. The test images are MNIST's own, or a random
    fifth of the stand-in. ``data`` is the folder that contains ``mnist``; if it is empty, the digits are used.

    Raises:
        ValueError: if there are too many clients for each to have an image.
        DataError: if the folder does not contain MNIST.
    """
    generator = np.random.default_rng([seed, clients])
    train, test = _split(network, data, generator)
    for _ in range(100):
        dealt = _deal(train.labels.numpy(), clients, alpha, generator)
        if all(len(rows) for rows in dealt):
            break
    else:
        raise ValueError(
            f"with {clients} clients and Dirichlet({alpha:g}) some clients have no image; use fewer clients"
        )
    return [Loss(network, train.inputs[rows], train.labels[rows]) for rows in dealt], train, test


def _split(network: str, data: str, generator: np.random.Generator) -> tuple[Loss, Loss]:
    images = load_images("mnist", data)
    pixels, labels = images.train.flatten(1), images.train_labels
    if data:
        order = generator.permutation(len(labels))
        given, shown = ((each - MNIST_MEAN) / MNIST_DEVIATION for each in (pixels, images.test.flatten(1)))
        return Loss(network, given[order], labels[order]), Loss(network, shown, images.test_labels)
    pixels, labels = torch.cat([pixels, images.test.flatten(1)]), torch.cat([labels, images.test_labels])
    order = generator.permutation(len(labels))
    test, train = np.split(order, [int(TEST_SHARE * len(labels))])
    return Loss(network, pixels[train], labels[train]), Loss(network, pixels[test], labels[test])


def _deal(labels: np.ndarray, clients: int, alpha: float, generator: np.random.Generator) -> list[np.ndarray]:
    parts: list[list[np.ndarray]] = [[] for _ in range(clients)]
    for digit in range(10):
        rows = np.flatnonzero(labels == digit)
        ends = np.cumsum(generator.dirichlet(np.full(clients, alpha)))[:-1]
        for part, piece in zip(parts, np.split(rows, (ends * len(rows)).astype(int)), strict=True):
            part.append(piece)
    return [np.concatenate(part) for part in parts]


@dataclasses.dataclass(frozen=True)
class Digits:
    """Settings of the federation and its training.

    Attributes:
        network: network of the stand-in; MNIST uses the CNN of the authors' programs.
        rate: step size on the stand-in.
        mnist_rates: step sizes on MNIST of DeComFL and of HiSo, with a vector or a number as H.
        batch: number of images in a client's batch on MNIST, as in the authors' program; the stand-in uses all images.
        scored: largest number of training and of test images on which loss and accuracy are recorded.
        clients: N.
        participants: number of clients per round.
        alpha: α of the Dirichlet shares.
        perturbations: P.
        smoothing_radius: μ.
        rounds: R.
        every: rounds between records.
        target: test accuracy; the rounds until a run reaches it are counted.
        data: folder of the data sets.
    """

    network: str = "mlp"
    clients: int = 64
    participants: int = 8
    alpha: float = 1.0
    perturbations: int = 1
    smoothing_radius: float = 1e-3
    rate: float = 0.01
    rounds: int = 1000
    every: int = 25
    target: float = 0.8
    data: str = ""
    mnist_rates: tuple[float, float] = (3e-4, 7e-4)
    batch: int = 8
    scored: int = 60_000

    def with_data(self) -> Digits:
        """Returns these settings, with the network for MNIST if ``data`` is set."""
        return dataclasses.replace(self, network=MNIST_NETWORK) if self.data else self

    def rate_of(self, method: str) -> float:
        """Returns a method's step size."""
        return self.mnist_rates[method != "decomfl"] if self.data else self.rate


def check(settings: Digits) -> None:
    """Reads the data; raises ``DataError`` if they are not as expected."""
    images = load_images("mnist", settings.data)
    if settings.data and images.shape != (1, 28, 28):
        raise DataError(f"{settings.data}/mnist must have images of shape (1, 28, 28), got {images.shape}")


def train(settings: Digits, method: str, seed: int, key: Row, **options: Any) -> tuple[Rows, ScalarOnlyServer, Loss]:
    """Trains once; returns the records of accuracy and loss, the final server, and the loss on all training images.

    Data, initial parameters and directions depend on the seed alone, so that methods are paired.
    """
    settings = settings.with_data()
    objectives, training, test = federation_of(settings.network, settings.clients, settings.alpha, seed, settings.data)
    given: dict[str, Any] = {
        "local_steps": 1,
        "participation": settings.participants,
        "perturbations": settings.perturbations,
        "smoothing_radius": settings.smoothing_radius,
        "rate": settings.rate_of(method),
        "log_rounds": settings.rounds,
        "seed": seed,
        "codec": False,
        "gate": math.inf,
    }
    functions: Sequence[Loss | BatchLoss] = objectives
    if settings.data:
        functions = [BatchLoss(loss, settings.batch, [seed, i]) for i, loss in enumerate(objectives)]
        given["batched"] = True
    training, test = (
        dataclasses.replace(each, inputs=each.inputs[: settings.scored], labels=each.labels[: settings.scored])
        for each in (training, test)
    )
    federation = make_federation(
        ALGORITHMS.get(method, method), functions, initial(settings.network, seed), **given | options
    )
    rows: Rows = []
    for r in range(settings.rounds + 1):
        if r:
            federation.run_round()
        if r % settings.every == 0 or r == settings.rounds:
            x = federation.server.x
            here: Row = {"seed": seed, "method": method, **key, "round": r}
            rows.append(here | {"quantity": "accuracy", "value": test.accuracy(x)})
            rows.append(here | {"quantity": "loss", "value": float(training(x))})
    return rows, cast(ScalarOnlyServer, federation.server), training


def rounds_until(rows: Rows, targets: Sequence[float] | np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns for each seed the first recorded round that reaches a target (or the last round), and whether one did."""
    rounds, reached = [], []
    for seed, target in zip(seeds_of(rows), targets, strict=True):
        own = where(rows, seed=seed)
        there = [row for row in own if float(row["value"]) >= target]
        rounds.append(float((there or own[-1:])[0]["round"]))
        reached.append(bool(there))
    return np.array(rounds), np.array(reached)
