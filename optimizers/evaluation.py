"""Calling the user's objective on a batch: conversions, exceptions, retries, executors."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from concurrent.futures import BrokenExecutor, Executor
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from optimizers.batch import Batch
from optimizers.values import InvalidValueError, parse_values

logger = logging.getLogger(__name__)

FailurePolicy = Literal["skip", "retry", "raise"]


class FailedQueryError(RuntimeError):
    """A query gave NaN or inf under ``on_failure="raise"``."""


@dataclass(frozen=True)
class Evaluator:
    """Evaluates an objective at the points of a batch.

    A query fails when the objective raises an ``Exception`` or gives NaN or ±inf. What it returns must be a
    floating point number otherwise, plain or in a tensor or array of one element: anything else (complex, integer,
    a tensor that carries a gradient) is a mistake in the program and not a failed query, and raises
    ``InvalidValueError``, a ``TypeError`` and ``ValueError``, whatever the policy.

    Attributes:
        fun: the objective: of one point, shape ``d``, a number; with ``batched`` of ``q x d``, q numbers. One
            with a method ``evaluate_at(batch, i)``, as ``ModuleObjective``, is given that and no point.
        numpy: hand out NumPy arrays instead of tensors.
        batched: evaluate a batch in one call.
        executor: a ``concurrent.futures.Executor`` to which points go one by one; values are put in the order
            of the points, whatever the order they come in. With processes ``fun`` must be picklable.
        on_failure: ``"skip"`` reports NaN; ``"retry"`` evaluates a failed point again, at most ``retries``
            times and while the budget lasts, each counted, and then skips; ``"raise"`` raises the objective's
            exception, or ``FailedQueryError``. The first exception of each type is logged as a warning with its
            traceback, later ones at the level of debugging; results count them all (``nfail``).
        retries: evaluations beyond the first under ``"retry"``.
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
        if self.on_failure not in ("skip", "retry", "raise"):
            raise ValueError(f"on_failure must be 'skip', 'retry' or 'raise', got {self.on_failure!r}")
        if self.batched and self.executor is not None:
            raise ValueError("batched=True evaluates a batch in one call: it goes without an executor")
        if self._evaluate_at is not None and (self.batched or self.executor is not None):
            raise ValueError(f"{type(self.fun).__name__} is evaluated in place, one point at a time")
        if self.executor is not None and not hasattr(self.executor, "submit"):
            raise TypeError(f"executor must be a concurrent.futures.Executor, got {type(self.executor).__name__}")
        if isinstance(self.retries, bool) or not isinstance(self.retries, int) or self.retries < 0:
            raise ValueError(f"retries must be an integer of at least 0, got {self.retries!r}")

    def __call__(self, batch: Batch, spare: int = 0) -> tuple[Tensor, int]:
        """Values of the batch's points, float64, shape ``q``, NaN where failed; and the retries it took.

        Args:
            batch: the batch to evaluate.
            spare: queries that the budget holds beyond the batch, the most that may go to retries.
        """
        values = self._whole(batch) if self.batched else self._each(batch, range(len(batch)))
        retried = 0
        for _ in range(self.retries if self.on_failure == "retry" else 0):
            again = [i for i, value in enumerate(values) if math.isnan(value)][: spare - retried]
            if not again:
                break
            retried += len(again)
            new = self._some(batch, again) if self.batched else self._each(batch, again)
            for i, value in zip(again, new, strict=True):
                values[i] = value
        return torch.tensor(values, dtype=torch.float64), retried

    @property
    def _evaluate_at(self) -> Callable[[Batch, int], Any] | None:
        return getattr(self.fun, "evaluate_at", None)

    def _whole(self, batch: Batch) -> list[float]:
        return self._call(batch.points())

    def _some(self, batch: Batch, rows: list[int]) -> list[float]:
        return self._call(batch.points(rows))

    def _call(self, points: Tensor) -> list[float]:
        try:
            given = self.fun(self._hand_out(points))
        except Exception as error:
            self._failed(error, "the batch")
            return [math.nan] * len(points)
        return [self._finite(v, f"row {i}") for i, v in enumerate(parse_values(given, len(points)).tolist())]

    def _each(self, batch: Batch, rows: Any) -> list[float]:
        executor, in_place = self.executor, self._evaluate_at
        if in_place is not None:
            return [self._outcome(partial(_evaluate, in_place, batch, i), i) for i in rows]
        calls = ((i, partial(_evaluate, self.fun, self._hand_out(x))) for i, x in batch.each(rows))
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


def _evaluate(fun: Callable[..., Any], *point: Any) -> float:
    return float(parse_values(fun(*point), 1))
