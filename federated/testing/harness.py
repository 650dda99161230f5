"""Parts of the checks: promises, a problem, factories, and functions that run and compare federations."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from federated.core.algorithm import Algorithm
from federated.core.configuration import describe_tensor
from federated.engine.federation import Federation, RoundRecord
from federated.simulate import make_federation
from federated.testing.faults import Fault, faulty

Factory = Callable[..., Federation]

CLIENTS = 4
DIMENSION = 5


@dataclass(frozen=True)
class Promises:
    """Properties that an algorithm promises in addition to the interface.

    Attributes:
        convergence: maximal ratio of the gap F − F* on ``problem`` after ``rounds`` rounds to the initial gap.
        rounds: number of rounds for ``convergence``.
        local_steps: T of the federations in all checks.
        seeded: whether runs with different seeds differ.
    """

    convergence: float = 0.5
    rounds: int = 10
    local_steps: int = 3
    seeded: bool = True


@dataclass
class Quadratic:
    """A function that counts its queries: fᵢ(x) = Σⱼ aᵢⱼ (xⱼ − bᵢⱼ)², aᵢⱼ in [1/2, 2], bᵢⱼ in [0.2, 0.8].

    Attributes:
        number: i.
        dimension: d.
        failing: every ``failing``-th query fails, alternately by an exception and NaN; 0 means none.
        queries: number of queries.
        failures: number of failed queries.
    """

    number: int
    dimension: int = DIMENSION
    failing: int = 0
    queries: int = 0
    failures: int = 0

    def coefficients(self, like: Tensor) -> tuple[Tensor, Tensor]:
        """Returns a and b, each of shape ``d``."""
        j = torch.arange(self.dimension, dtype=like.dtype, device=like.device)
        a = 1.25 + 0.75 * torch.sin(1.0 + 3.0 * self.number + 2.0 * j)
        return a, 0.5 + 0.3 * torch.cos(2.0 + 5.0 * self.number + 3.0 * j)

    def __call__(self, x: Tensor) -> Tensor:
        """Returns the value at x or fails, and counts a query."""
        self.queries += 1
        if self.failing and self.queries % self.failing == 0:
            self.failures += 1
            if self.failures % 2:
                raise ArithmeticError("no value here")
            return x.new_tensor(math.nan)
        return self.value(x)

    def value(self, x: Tensor) -> Tensor:
        """Returns the value at x without counting a query."""
        a, b = self.coefficients(x)
        return (a * (x - b).square()).sum()

    def gradient(self, x: Tensor) -> Tensor:
        """Returns ∇fᵢ, shape ``d``."""
        a, b = self.coefficients(x)
        return 2.0 * a * (x - b)


def problem(failing: int = 0) -> list[Quadratic]:
    """Returns the functions of four clients in five dimensions."""
    return [Quadratic(i, failing=failing) for i in range(CLIENTS)]


def mean_value(x: Tensor) -> float:
    """Returns F(x) for equal weights."""
    return float(sum(float(f.value(x)) for f in problem()) / CLIENTS)


def solution() -> Tensor:
    """Returns the minimizer of F, shape ``d``."""
    like = torch.empty(0, dtype=torch.float64)
    pairs = [f.coefficients(like) for f in problem()]
    weight = torch.stack([a for a, _ in pairs]).sum(0)
    return torch.stack([a * b for a, b in pairs]).sum(0) / weight


def start(dtype: torch.dtype = torch.float64) -> Tensor:
    """Returns the initial point, shape ``d``."""
    return torch.linspace(0.9, 1.0, DIMENSION, dtype=dtype)


def algorithm_factory(algorithm: str | type[Algorithm], **options: Any) -> Factory:
    """Returns a factory of federations with an algorithm and options."""

    def factory(objectives: Sequence[Callable[[Any], Any]], x0: Tensor, **common: Any) -> Federation:
        return make_federation(algorithm, objectives, x0, **(options | common))

    return factory


def make(
    factory: Factory,
    promises: Promises,
    objectives: Sequence[Quadratic] | None = None,
    faults: Sequence[Fault] = (),
    **options: Any,
) -> Federation:
    """Creates a federation on ``problem``, or other objectives, with faults."""
    options = {"local_steps": promises.local_steps} | options
    federation = factory(problem() if objectives is None else objectives, start(), **options)
    return faulty(federation, faults) if faults else federation


def run(federation: Federation, rounds: int) -> list[RoundRecord]:
    """Runs rounds and returns their records."""
    with quiet():
        return [federation.run_round() for _ in range(rounds)]


def trace(federation: Federation) -> tuple[Any, ...]:
    """Returns the data that a repeated run must reproduce: model, ledger without seconds, and history."""
    rows = [{k: v for k, v in row.items() if k != "seconds"} for row in federation.ledger.to_rows()]
    history = [(r.round, r.accepted, r.refused, r.skipped) for r in federation.history]
    return federation.server.x.dtype, federation.server.x.tolist(), rows, history


def states_equal(a: Any, b: Any) -> bool:
    """Whether two states are bitwise equal, ignoring seconds."""
    if isinstance(a, Tensor) or isinstance(b, Tensor):
        return isinstance(a, Tensor) and isinstance(b, Tensor) and describe_tensor(a) == describe_tensor(b)
    if isinstance(a, dict) and isinstance(b, dict):
        return set(a) == set(b) and all(states_equal(a[k], b[k]) for k in a if k != "seconds")
    if isinstance(a, list | tuple) and isinstance(b, list | tuple):
        return len(a) == len(b) and all(states_equal(x, y) for x, y in zip(a, b, strict=True))
    return type(a) is type(b) and (a == b or (isinstance(a, float) and math.isnan(a) and math.isnan(b)))


@contextmanager
def quiet() -> Iterator[None]:
    """Suppresses warnings about faults and failed queries."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(before)
