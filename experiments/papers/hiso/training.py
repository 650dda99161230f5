"""Runs of HiSo, DeComFL and the scalar control on MNIST or, with a small MLP, on scikit-learn's digits in its place."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, cast

import numpy as np

from experiments.papers.hiso.controls import ScalarHessian
from experiments.papers.hiso.digits import MNIST_NETWORK, Loss, federation_of, initial
from experiments.workloads.images import DataError, load_images
from federated import make_federation
from federated.methods.scalar.scalar_only import ScalarOnlyServer
from optimizers.comparison.records import Row, Rows, seeds_of, where

ALGORITHMS: dict[str, Any] = {"decomfl": "decomfl", "hiso": "hiso", "hiso_scalar": ScalarHessian}


@dataclasses.dataclass(frozen=True)
class Digits:
    """The federation that is trained, and for how long.

    Attributes:
        network: the stand-in's network, ``"mlp"`` or ``"cnn"``; MNIST's is the CNN of the authors' programs.
        rate: step size on the stand-in.
        mnist_rate: step size on MNIST.
        clients: N.
        participants: number of clients in a round.
        alpha: α of the Dirichlet shares.
        perturbations: P.
        smoothing_radius: μ.
        rounds: R.
        every: number of rounds from one record to the next.
        target: the test accuracy that runs are timed to.
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
    mnist_rate: float = 0.001

    def with_data(self) -> Digits:
        """The same with MNIST's network and rate where MNIST is given."""
        return dataclasses.replace(self, network=MNIST_NETWORK, rate=self.mnist_rate) if self.data else self


def check(settings: Digits) -> None:
    """Read the data; raises ``DataError`` where they are not what is expected."""
    images = load_images("mnist", settings.data)
    if settings.data and images.shape != (1, 28, 28):
        raise DataError(f"{settings.data}/mnist should hold images of 1 x 28 x 28, it has {images.shape}")


def train(settings: Digits, method: str, seed: int, key: Row, **options: Any) -> tuple[Rows, ScalarOnlyServer, Loss]:
    """One run: records of accuracy and loss every so many rounds from round 0, the server at its end, and the loss.

    Data, initial parameters and directions come from the seed alone, so that methods are paired.
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
    federation = make_federation(ALGORITHMS[method], objectives, initial(settings.network, seed), **given | options)
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
    """The first recorded round that reaches a target, else the last round, and whether it was reached; one a seed."""
    rounds, reached = [], []
    for seed, target in zip(seeds_of(rows), targets, strict=True):
        own = where(rows, seed=seed)
        there = [row for row in own if float(row["value"]) >= target]
        rounds.append(float((there or own[-1:])[0]["round"]))
        reached.append(bool(there))
    return np.array(rounds), np.array(reached)
