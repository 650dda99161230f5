"""Evaluation of the user's objective at the points of a batch: conversions, exceptions, retries, executors."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from concurrent.futures import BrokenExecutor, Executor
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor

from optimizers.core.batch import Batch
from optimizers.core.options import check_choice, check_integer
from optimizers.core.values import InvalidValueError, parse_values

logger = logging.getLogger(__name__)

FailurePolicy = Literal["skip", "retry", "raise"]


class FailedQueryError(RuntimeError):
    """Raised for a query that gave NaN or inf under ``on_failure="raise"``."""


@dataclass(frozen=True)
class Evaluator:
    """Evaluates an objective at the points of a batch.

    A query fails if the objective raises an ``Exception`` or returns NaN or ±inf. Any other value must be a real
    number, plain or in a tensor or array of one element; integers and booleans are numbers. A value of another kind
    (complex, a string, a tensor that carries a gradient) is a mistake in the program and not a failed query; it raises
    ``InvalidValueError``, a ``TypeError`` and ``ValueError``, under every policy.

    Attributes:
        fun: the objective. It takes a point of shape ``d`` and returns a number, or, with ``batched``, ``q x d``
            points and returns q numbers. An objective with a method ``evaluate_at(batch, i)``, such as
            ``ModuleObjective``, is called by that method instead.
        numpy: whether points are NumPy arrays instead of tensors.
        batched: whether a batch is evaluated in one call.
        executor: a ``concurrent.futures.Executor`` to which the points are submitted one by one; the values do not
            depend on the order of completion. ``fun`` must be picklable for an executor of processes.
        on_failure: ``"skip"`` reports NaN; ``"retry"`` evaluates a failed point again, at most ``retries`` times and
            while the budget lasts, counts every evaluation, and then skips; ``"raise"`` raises the objective's
            exception, or ``FailedQueryError``. The first exception of each type is logged as a warning with its
            traceback, later ones at the level of debugging; a result's ``nfail`` counts all.
        retries: the most evaluations of a point beyond the first under ``"retry"``.
    """

    fun: Callable[[Any], Any]
    numpy: bool = False
    batched: bool = False
    executor: Executor | None = None
    on_failure: FailurePolicy = "skip"
    retries: int = 1
    _met: set[str] = field(default_factory=set, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not callable(self.fun):
            raise TypeError(f"fun must be callable, got {type(self.fun).__name__}")
        check_choice("on_failure", self.on_failure, get_args(FailurePolicy))
        if self.batched and self.executor is not None:
            raise ValueError("batched=True evaluates a batch in one call: it goes without an executor")
        if self._evaluate_at is not None and (self.batched or self.executor is not None):
            raise ValueError(f"{type(self.fun).__name__} is evaluated in place, one point at a time")
        if self.executor is not None and not hasattr(self.executor, "submit"):
            raise TypeError(f"executor must be a concurrent.futures.Executor, got {type(self.executor).__name__}")
        check_integer("retries", self.retries, 0)

    def __call__(self, batch: Batch, spare: int = 0, which: Sequence[int] | None = None) -> tuple[Tensor, int]:
        """The values of k points of a batch, float64, shape ``k``, NaN for failed queries, and the number of retries.

        Args:
            batch: the batch to evaluate.
            spare: the most retries, which is what the budget holds beyond the batch.
            which: the numbers of the points. None stands for all of them.
        """
        evaluate = self._together if self.batched else self._one_by_one
        rows = range(len(batch)) if which is None else which
        values = dict(zip(rows, evaluate(batch, rows), strict=True))
        retried = 0
        for _ in range(self.retries if self.on_failure == "retry" else 0):
            again = [i for i, value in values.items() if math.isnan(value)][: spare - retried]
            if not again:
                break
            retried += len(again)
            values |= dict(zip(again, evaluate(batch, again), strict=True))
        return torch.tensor([*values.values()], dtype=torch.float64), retried

    @property
    def _evaluate_at(self) -> Callable[[Batch, int], Any] | None:
        return getattr(self.fun, "evaluate_at", None)

    def _together(self, batch: Batch, rows: Sequence[int]) -> list[float]:
        points = batch.points(rows)
        try:
            given = self.fun(self._hand_out(points))
        except Exception as error:
            self._failed(error, "the batch")
            return [math.nan] * len(points)
        return [self._finite(v, f"row {i}") for i, v in enumerate(parse_values(given, len(points)).tolist())]

    def _one_by_one(self, batch: Batch, rows: Sequence[int]) -> list[float]:
        executor, in_place = self.executor, self._evaluate_at
        if in_place is not None:
            return [self._outcome(partial(_number, in_place, batch, i), i) for i in rows]
        calls = ((i, partial(_number, self.fun, self._hand_out(x))) for i, x in batch.each(rows))
        if executor is None:
            return [self._outcome(call, i) for i, call in calls]
        futures = [(i, executor.submit(call)) for i, call in calls]
        try:
            return [self._outcome(future.result, i) for i, future in futures]
        except BaseException:
            for _, future in futures:
                future.cancel()
            raise

    def _outcome(self, call: Callable[[], float], i: int) -> float:
        try:
            value = call()
        except BrokenExecutor:
            raise
        except InvalidValueError as error:
            error.add_note(f"what the objective gave at point {i} of the batch is no value")
            raise
        except Exception as error:
            self._failed(error, f"point {i} of the batch")
            return math.nan
        return self._finite(value, f"point {i}")

    def _failed(self, error: Exception, where: str) -> None:
        if self.on_failure == "raise":
            error.add_note(f"raised by the objective at {where}")
            raise error
        kind = type(error).__name__
        new = kind not in self._met
        self._met.add(kind)
        logger.log(
            logging.WARNING if new else logging.DEBUG,
            "the objective raised %s at %s, a failed query: %s%s",
            kind,
            where,
            error,
            "; later ones are logged as debugging" if new else "",
            exc_info=error if new else None,
        )

    def _finite(self, value: float, where: str) -> float:
        if math.isnan(value) and self.on_failure == "raise":
            raise FailedQueryError(f"the objective gave no finite value at {where} of the batch")
        return value

    def _hand_out(self, point: Tensor) -> Tensor | np.ndarray:
        return point.cpu().numpy() if self.numpy else point


def _number(fun: Callable[..., Any], *point: Any) -> float:
    return float(parse_values(fun(*point), 1))
