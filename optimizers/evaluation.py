"""Evaluation of the user's objective: conversions, exceptions, retries."""

from __future__ import annotations

import logging
import math
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import BrokenExecutor
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from optimizers.core.batch import Batch
from optimizers.core.constraints import ConstrainedObjective, is_success
from optimizers.core.options import check_boolean, check_choice, check_integer
from optimizers.core.space import handed_out
from optimizers.core.values import InvalidValueError, parse_numbers

logger = logging.getLogger(__name__)

FailurePolicy = Literal["skip", "retry", "raise"]

Call = Callable[[], list[Any]]
"""A function that evaluates points and returns their values, or rows (f, c); NaN and ±inf mark failed queries."""


class FailedQueryError(RuntimeError):
    """Raised for a query that returned NaN or inf under ``on_failure="raise"``."""


@dataclass(frozen=True)
class Evaluator:
    """Evaluates an objective at the points of a batch.

    A query fails if the objective raises an ``Exception`` or returns NaN or ±inf. Otherwise the objective must return a
    real number, plain or in a one-element tensor or array; integers and booleans are allowed. Any other value, such as
    a complex number or a tensor that requires a gradient, raises ``InvalidValueError`` under every policy.

    Attributes:
        fun: the objective, a function from a point, shape ``d``, to a number, or with ``batched`` from points, ``q x
            d``, to q numbers. If the variables have names (``Space``), a point is a dictionary, and q points are a list
            of these. An objective with a method ``evaluate_at(batch, i)``, such as ``ModuleObjective``, gets the batch
            and an index instead of a point.
        numpy: whether points are NumPy arrays instead of tensors.
        batched: whether a batch is evaluated in one call.
        on_failure: ``"skip"`` reports NaN. ``"retry"`` evaluates a failed point at most ``retries`` more times while
            the budget lasts, then reports NaN; every evaluation counts. ``"raise"`` raises the objective's exception,
            or ``FailedQueryError``. The first exception of each type is logged as a warning, later ones at level DEBUG;
            ``nfail`` of a result counts all failures.
        retries: the largest number of further evaluations of a point under ``"retry"``.
        name: the objective's name in messages.
        traced: the types and places of exceptions whose traceback has been logged; evaluators may share this set.
    """

    fun: Callable[[Any], Any]
    _: KW_ONLY
    numpy: bool = False
    batched: bool = False
    on_failure: FailurePolicy = "skip"
    retries: int = 1
    name: str = "the objective"
    traced: set[tuple[str, str, int]] = field(default_factory=set, repr=False, compare=False)
    _met: set[str] = field(default_factory=set, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not callable(self.fun):
            raise TypeError(f"fun must be callable, got {type(self.fun).__name__}")
        check_boolean("numpy", self.numpy)
        check_boolean("batched", self.batched)
        check_choice("on_failure", self.on_failure, get_args(FailurePolicy))
        if self.in_place and self.batched:
            raise ValueError(f"{type(self.fun).__name__} is evaluated in place, one point at a time: leave out batched")
        check_integer("retries", self.retries, 0)

    @property
    def in_place(self) -> bool:
        """Whether the objective has ``evaluate_at``, which is called in this process, one point at a time."""
        return hasattr(self.fun, "evaluate_at")

    @property
    def max_retries(self) -> int:
        """The largest number of further evaluations of a point."""
        return self.retries if self.on_failure == "retry" else 0

    def __call__(self, batch: Batch, spare: int = 0) -> tuple[Tensor, int]:
        """The values of a batch, float64, shape ``q``, NaN for failed queries, and the number of retries.

        Args:
            batch: the batch to evaluate.
            spare: the largest number of retries, which is the budget left after the batch.
        """
        values, rows, retried = dict[int, float](), list(range(len(batch))), 0
        for attempt in range(1 + self.max_retries):
            retried += len(rows) if attempt else 0
            for part, call in self.calls(batch, rows):
                found = self.outcome(partial(_unless_ended, call), f"point {part[0]} of batch {batch.id}")
                values.update(zip(part, found or [math.nan] * len(part), strict=True))
            rows = [i for i, value in values.items() if math.isnan(value)][: spare - retried]
            if not rows:
                break
        return torch.tensor([*values.values()], dtype=torch.float64), retried

    def calls(self, batch: Batch, rows: Sequence[int]) -> Iterator[tuple[Sequence[int], Call]]:
        """Yields pairs of point indices and a call that evaluates these points.

        If ``batched``, there is one pair with all indices; otherwise one for each index, in order, made when it is
        yielded. A call can be pickled if the objective can.
        """
        if self.batched:
            yield rows, partial(_numbers, self.fun, len(rows), self._hand_out(batch, batch.points(rows)))
        elif self.in_place:
            yield from (([i], partial(_numbers, self.fun.evaluate_at, 1, batch, i)) for i in rows)  # type: ignore[attr-defined]
        else:
            yield from (([i], partial(_numbers, self.fun, 1, self._hand_out(batch, x))) for i, x in batch.each(rows))

    def _hand_out(self, batch: Batch, points: Tensor) -> Any:
        return handed_out(points, None if batch.domain is None else batch.domain.space, arrays=self.numpy)

    def outcome(self, call: Callable[[], list[Any]], where: str, *, first: bool = False) -> list[Any] | None:
        """Runs a call and returns its values, NaN for failed queries; None if it raised an exception that is skipped.

        Args:
            call: a call of ``calls``, or a future's ``result``.
            where: a description of the query for messages.
            first: whether the query is the first of a run; its exception is always raised.

        Raises:
            StopIteration: if the objective raises it, which ends a run under every ``on_failure``.
        """
        try:
            values = call()
        except (BrokenExecutor, StopIteration):
            raise
        except InvalidValueError as error:
            error.add_note(f"{self.name} returned an invalid value at {where}")
            raise
        except Exception as error:
            if first or self.on_failure == "raise":
                error.add_note(f"raised by {self.name} at {where}" + (", the first of the run" if first else ""))
                raise
            self._log(error, where)
            return None
        if self.on_failure == "raise" and not is_success(values):
            raise FailedQueryError(f"{self.name} returned no finite value at {where}")
        return values

    def _log(self, error: Exception, where: str) -> None:
        kind = type(error).__name__
        new = kind not in self._met
        self._met.add(kind)
        (*_, (frame, line)) = traceback.walk_tb(error.__traceback__)
        place = kind, frame.f_code.co_filename, line
        logger.log(
            logging.WARNING if new else logging.DEBUG,
            "%s raised %s at %s, a failed query: %s%s",
            self.name,
            kind,
            where,
            error,
            "; further ones are logged at level DEBUG" if new else "",
            exc_info=error if new and place not in self.traced else None,
        )
        self.traced.add(place)


def _numbers(fun: Callable[..., Any], count: int, *point: Any) -> list[Any]:
    if isinstance(fun, ConstrainedObjective):
        return fun(*point)
    return parse_numbers(fun(*point), count)


def _unless_ended(call: Call) -> list[float]:
    """The values of a call; outside a run StopIteration is an error like any other."""
    try:
        return call()
    except StopIteration as error:
        raise RuntimeError("StopIteration") from error
