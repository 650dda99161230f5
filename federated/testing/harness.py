"""What the checks run on: promises, a problem, factories, and ways to run and to compare."""

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
from federated.engine.faults import Fault, FaultPlan
from federated.engine.federation import Federation, RoundRecord
from federated.simulate import make_federation

Factory = Callable[..., Federation]

CLIENTS = 4
DIMENSION = 5


@dataclass(frozen=True)
class Promises:
    """What an algorithm promises beyond the interface.

    Attributes:
        convergence: the factor by which it reduces F − F* of ``problem`` within ``rounds``.
        rounds: rounds for that, of ``local_steps`` steps.
        local_steps: T of every check.
        seeded: two seeds give two runs.
        workers: whether the options can be shared with worker processes that were forked.
    """

    convergence: float = 0.5
    rounds: int = 10
    local_steps: int = 3
    seeded: bool = True
    workers: bool = True


@dataclass
class Quadratic:
    """fᵢ(x) = Σⱼ aᵢⱼ (xⱼ − bᵢⱼ)², a in [1/2, 2], b in [0.2, 0.8], with its gradient; counts its queries.

    Attributes:
        number: i.
        dimension: d.
        failing: every so many queries one fails, by NaN and by an exception in turn; 0: none, 1: all.
        queries: values asked for.
        failures: those that failed.
    """

    number: int
    dimension: int = DIMENSION
    failing: int = 0
    queries: int = 0
    failures: int = 0

    def coefficients(self, like: Tensor) -> tuple[Tensor, Tensor]:
        """The coefficients a and b, each of shape ``d``."""
        j = torch.arange(self.dimension, dtype=like.dtype, device=like.device)
        a = 1.25 + 0.75 * torch.sin(1.0 + 3.0 * self.number + 2.0 * j)
        return a, 0.5 + 0.3 * torch.cos(2.0 + 5.0 * self.number + 3.0 * j)

    def __call__(self, x: Tensor) -> Tensor:
        """The value, counted; or a failure."""
        self.queries += 1
        if self.failing and self.queries % self.failing == 0:
            self.failures += 1
            if self.failures % 2:
                raise ArithmeticError("no value here")
            return x.new_tensor(math.nan)
        return self.value(x)

    def value(self, x: Tensor) -> Tensor:
        """The value without counting."""
        a, b = self.coefficients(x)
        return (a * (x - b).square()).sum()

    def gradient(self, x: Tensor) -> Tensor:
        """∇fᵢ, shape ``d``."""
        a, b = self.coefficients(x)
        return 2.0 * a * (x - b)


def problem(failing: int = 0) -> list[Quadratic]:
    """Four clients' functions in five dimensions."""
    return [Quadratic(i, failing=failing) for i in range(CLIENTS)]


def mean_value(x: Tensor) -> float:
    """F at x for equal weights."""
    return float(sum(float(f.value(x)) for f in problem()) / CLIENTS)


def solution() -> Tensor:
    """The minimizer of F, shape ``d``."""
    like = torch.empty(0, dtype=torch.float64)
    pairs = [f.coefficients(like) for f in problem()]
    weight = torch.stack([a for a, _ in pairs]).sum(0)
    return torch.stack([a * b for a, b in pairs]).sum(0) / weight


def start(dtype: torch.dtype = torch.float64) -> Tensor:
    """The initial point, shape ``d``."""
    return torch.linspace(0.9, 1.0, DIMENSION, dtype=dtype)


def algorithm_factory(algorithm: str | type[Algorithm], **options: Any) -> Factory:
    """A factory that makes federations of an algorithm with the given options."""

    def factory(objectives: Sequence[Callable[[Any], Any]], x0: Tensor, **common: Any) -> Federation:
        return make_federation(algorithm, objectives, x0, **(options | common))

    return factory


def make(
    factory: Factory, promises: Promises, objectives: Sequence[Quadratic] | None = None, **options: Any
) -> Federation:
    """A new federation on ``problem``."""
    options.setdefault("local_steps", promises.local_steps)
    return factory(problem() if objectives is None else objectives, start(), **options)


def run(federation: Federation, rounds: int) -> list[RoundRecord]:
    """The records of so many rounds."""
    with quiet():
        return [federation.run_round() for _ in range(rounds)]


def faulty(factory: Factory, promises: Promises, faults: Sequence[Fault], **options: Any) -> Federation:
    """A new federation in which the faults happen."""
    return make(factory, promises, faults=FaultPlan(faults), **options)


def trace(federation: Federation) -> tuple[Any, ...]:
    """All of a federation that must be the same when it is run again; seconds are not."""
    rows = [{k: v for k, v in row.items() if k != "seconds"} for row in federation.ledger.to_rows()]
    x = federation.server.x
    return (
        x.dtype,
        x.tolist(),
        rows,
        [(r.round, r.accepted, r.refused, r.skipped) for r in federation.history],
    )


def states_equal(a: Any, b: Any) -> bool:
    """Whether two states are bitwise the same, seconds apart."""
    if isinstance(a, Tensor) or isinstance(b, Tensor):
        both = isinstance(a, Tensor) and isinstance(b, Tensor)
        return both and a.dtype == b.dtype and a.shape == b.shape and _bits(a) == _bits(b)
    if isinstance(a, dict) and isinstance(b, dict):
        return set(a) == set(b) and all(states_equal(a[k], b[k]) for k in a if k != "seconds")
    if isinstance(a, list | tuple) and isinstance(b, list | tuple):
        return len(a) == len(b) and all(states_equal(x, y) for x, y in zip(a, b, strict=True))
    return type(a) is type(b) and (a == b or (isinstance(a, float) and math.isnan(a) and math.isnan(b)))


def _bits(tensor: Tensor) -> bytes:
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().tobytes() if len(flat) else b""


@contextmanager
def quiet() -> Iterator[None]:
    """Silence the engine's and the evaluator's warnings: the faults are the checks' own."""
    loggers = [logging.getLogger(name) for name in ("federated.core.server", "optimizers.evaluation")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
