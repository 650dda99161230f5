"""Tools of the checks: promises, problems, factories, runs and saved states."""

from __future__ import annotations

import io
import random
from collections.abc import Callable, Iterable
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from optimizers.core.optimizer import Optimizer
from optimizers.registry import method_class

Objective = Callable[[Tensor], Tensor]
Factory = Callable[..., Optimizer]


@dataclass(frozen=True)
class Promises:
    """Properties that a method promises beyond the interface.

    Attributes:
        convergence: the factor by which the method reduces f − f* of ``quadratic`` within ``convergence_queries``
            queries; None: the method only promises descent, a factor of one half.
        convergence_queries: the query budget for convergence and descent.
        descent: whether the method decreases ``quadratic`` and ``rosenbrock``.
        feasible_queries: whether every queried point lies within the bounds.
        seeded: whether runs with different seeds differ.
        max_queries: the query budget of the other checks' runs, increased if the first batch needs more.
    """

    convergence: float | None = None
    convergence_queries: int = 1000
    descent: bool = True
    feasible_queries: bool = True
    seeded: bool = True
    max_queries: int = 60


def quadratic(x: Tensor) -> Tensor:
    """Σⱼ aⱼ (xⱼ − 1)², with aⱼ from 1 to 10 in geometric progression; the minimum is 0, at xⱼ = 1."""
    weights = torch.logspace(0.0, 1.0, x.shape[-1], dtype=x.dtype, device=x.device)
    return (weights * (x - 1.0).square()).sum(dim=-1)


def rosenbrock(x: Tensor) -> Tensor:
    """Σⱼ 100 (xⱼ₊₁ − xⱼ²)² + (1 − xⱼ)²; the minimum is 0, at xⱼ = 1."""
    head, tail = x[..., :-1], x[..., 1:]
    return (100.0 * (tail - head.square()).square() + (1.0 - head).square()).sum(dim=-1)


def start(d: int = 5, dtype: torch.dtype = torch.float64) -> Tensor:
    """A point with coordinates between 2 and 3, shape ``d``."""
    return torch.linspace(2.0, 3.0, d, dtype=dtype)


def method_factory(method: str | type[Optimizer], **options: Any) -> Factory:
    """Returns a factory of a method with these options; ``jac=True`` gives the method the gradient by autograd."""
    cls = method_class(method)

    def factory(fun: Objective, x0: Tensor, **common: Any) -> Optimizer:
        chosen = options | common
        if chosen.get("jac") is True:
            chosen["jac"] = lambda x: torch.autograd.functional.jacobian(fun, x)
        return cls(x0, **chosen)

    return factory


def first_batch(factory: Factory) -> int:
    """The least budget that the factory accepts in five dimensions."""
    for budget in range(1, 10_000):
        try:
            factory(quadratic, start(), max_queries=budget)
        except ValueError:
            continue
        return budget
    raise AssertionError("the factory accepts no max_queries below 10,000")


def make(factory: Factory, promises: Promises, x0: Any = None, **common: Any) -> Optimizer:
    """A new optimizer of ``quadratic``, with the promised budget unless another is given."""
    if "max_queries" not in common:
        common["max_queries"] = max(promises.max_queries, 2 * first_batch(factory))
    return factory(quadratic, start() if x0 is None else x0, **common)


def with_failures(values: Tensor, told: int) -> Tensor:
    """Replaces the value of every seventh query of a run by NaN; ``told`` is the number of earlier queries."""
    failed = torch.arange(told, told + len(values)) % 7 == 5
    return torch.where(failed, torch.nan, values)


def trace(opt: Optimizer) -> list[Tensor]:
    """Runs an optimizer until it stops, with every seventh query failed; returns the points of every batch."""
    asked = []
    while not opt.stopped:
        batch = opt.ask()
        asked.append(batch.points())
        opt.tell(batch, with_failures(quadratic(batch.points()), opt.queries))
    return asked


def reloaded(opt: Optimizer, fresh: Optimizer) -> Optimizer:
    """Loads the state of ``opt`` into ``fresh`` through a file, returns ``fresh``, disturbs the global generators."""
    buffer = io.BytesIO()
    torch.save(opt.state_dict(), buffer)
    disturb_generators(opt.queries)
    buffer.seek(0)
    fresh.load_state_dict(torch.load(buffer, weights_only=True))
    return fresh


def state_bytes(opt: Optimizer, *without: str) -> bytes:
    """The state as ``torch.save`` writes it, without the named entries."""
    buffer = io.BytesIO()
    torch.save({name: value for name, value in opt.state_dict().items() if name not in without}, buffer)
    return buffer.getvalue()


def disturb_generators(seed: int) -> None:
    """Seeds the global generators of torch, NumPy and Python and draws from them."""
    torch.manual_seed(seed)
    np.random.seed(seed)  # noqa: NPY002
    random.seed(seed)
    torch.rand(3), np.random.rand(3), random.random()  # noqa: NPY002


def generator_states() -> tuple[object, ...]:
    """The states of the global generators of torch, NumPy and Python."""
    numpy_state = np.random.get_state(legacy=False)  # noqa: NPY002
    return torch.get_rng_state().tolist(), str(numpy_state["state"]), random.getstate()


def raises(kind: type[Exception] | tuple[type[Exception], ...], call: Callable[[], Any]) -> Exception:
    """Returns the exception of this type that a call raises; ``AssertionError`` if it raises none."""
    try:
        call()
    except kind as error:
        return error
    raise AssertionError(f"{kind} was not raised")


@contextmanager
def default_dtype(dtype: torch.dtype) -> Any:
    """Sets torch's default dtype in a block."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def run_checks(checks: Iterable[Callable[[Any, Any], None]], factory: Any, promises: Any) -> None:
    """Calls every check with the factory and the promises.

    Raises:
        AssertionError: for the first check that fails, with its name in a note.
    """
    for check in checks:
        try:
            check(factory, promises)
        except AssertionError as error:
            error.add_note(f"in {check.__name__}")
            raise
