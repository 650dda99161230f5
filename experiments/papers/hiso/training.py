"""Trains HiSo, DeComFL and the scalar control on MNIST, or a small MLP on scikit-learn's digits instead."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, cast

import numpy as np

from experiments.papers.hiso.controls import ScalarHessian
from experiments.papers.hiso.digits import MNIST_NETWORK, BatchLoss, Loss, federation_of, initial
from experiments.workloads.data import DataError
from experiments.workloads.images import load_images
from federated import make_federation
from federated.methods.scalar.scalar_only import ScalarOnlyServer
from optimizers.comparison.records import Row, Rows, seeds_of, where

ALGORITHMS: dict[str, Any] = {
    "decomfl": "decomfl",
    "hiso": "hiso",
    "hiso_scalar": ScalarHessian,
    "group_probe": "hiso",
}


@dataclasses.dataclass(frozen=True)
class Digits:
    """Settings of the federation and its training.

    Attributes:
        network: network of the stand-in, ``"mlp"`` or ``"cnn"``; MNIST uses the CNN of the authors' programs.
        rate: step size on the stand-in.
        mnist_rate: step size on MNIST.
        batch: number of images in a client's batch on MNIST, as in the authors' program; the stand-in uses all images.
        scored: largest number of training and of test images on which loss and accuracy are recorded.
        clients: N.
        participants: number of clients per round.
        alpha: α of the Dirichlet shares.
        perturbations: P.
        smoothing_radius: μ.
        rounds: R.
        every: rounds between records.
        target: test accuracy to which runs are timed.
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
    mnist_rate: float = 5e-4
    batch: int = 8
    scored: int = 60_000

    def with_data(self) -> Digits:
        """Returns these settings, with the network and rate for MNIST if ``data`` is set."""
        return dataclasses.replace(self, network=MNIST_NETWORK, rate=self.mnist_rate) if self.data else self


def check(settings: Digits) -> None:
    """Reads the data; raises ``DataError`` if they are not as expected."""
    images = load_images("mnist", settings.data)
    if settings.data and images.shape != (1, 28, 28):
        raise DataError(f"{settings.data}/mnist must have images of shape (1, 28, 28), got {images.shape}")


def train(settings: Digits, method: str, seed: int, key: Row, **options: Any) -> tuple[Rows, ScalarOnlyServer, Loss]:
    """Trains once; returns records of accuracy and loss, the server at the end, and the training loss.

    Data, initial parameters and directions depend on the seed alone, so that methods are paired.
    """
    settings = settings.with_data()
    objectives, training, test = federation_of(settings.network, settings.clients, settings.alpha, seed, settings.data)
    given: dict[str, Any] = {
        "local_steps": 1,
        "participation": settings.participants,
        "perturbations": settings.perturbations,
        "smoothing_radius": settings.smoothing_radius,
        "rate": settings.rate,
        "log_rounds": settings.rounds,
        "seed": seed,
        "codec": False,
    }
    functions: Sequence[Loss | BatchLoss] = objectives
    if settings.data:
        functions = [BatchLoss(loss, settings.batch, [seed, i]) for i, loss in enumerate(objectives)]
        given["batched"] = True
    training, test = (
        dataclasses.replace(each, inputs=each.inputs[: settings.scored], labels=each.labels[: settings.scored])
        for each in (training, test)
    )
    federation = make_federation(ALGORITHMS[method], functions, initial(settings.network, seed), **given | options)
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
    """Returns the first recorded round that reaches a target (else the last), and whether one did, per seed."""
    rounds, reached = [], []
    for seed, target in zip(seeds_of(rows), targets, strict=True):
        own = where(rows, seed=seed)
        there = [row for row in own if float(row["value"]) >= target]
        rounds.append(float((there or own[-1:])[0]["round"]))
        reached.append(bool(there))
    return np.array(rounds), np.array(reached)
