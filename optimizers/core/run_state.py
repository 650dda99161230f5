"""The state of a run: its progress, why it stops, its result and its checkpoint."""

from __future__ import annotations

import math
from collections.abc import Mapping
from numbers import Integral
from typing import Any
from warnings import warn

import torch
from scipy.optimize import OptimizeResult
from torch import Tensor

from optimizers.core.answers import Answers, Pending
from optimizers.core.batch import Batch
from optimizers.core.constraint_set import ConstraintSet
from optimizers.core.feasibility import Feasibility
from optimizers.core.method import MethodTools
from optimizers.core.record import Record
from optimizers.core.result import Result
from optimizers.core.state import check_complete, check_match, load_fields, save_fields
from optimizers.core.stopping import MostFailures, StopReason, describe, reason_to_stop

OPENING = 16
"""The most points in the design of a run without x0, which has at most 2d points and a quarter of the budget."""


class RunState(MethodTools):
    """The part of ``Optimizer`` that reports on a run, stops it, saves it and restores it."""

    x0: Tensor
    target: float | None
    stagnation: int | None
    max_failures: MostFailures
    track_best: bool
    store_points: bool
    constraint_set: ConstraintSet | None = None
    feasibility_tol: float = 0.0
    _feasibility: Feasibility | None

    @property
    def x(self) -> Tensor:
        """The current iterate in user units, shape ``d``."""
        return self._to_user(self._x)

    @property
    def best_x(self) -> Tensor:
        """The best queried point, of least f + ψ, shape ``d``; x0 before the first success.

        With constraints it is the best feasible point or, before there is one, the point of least relative violation.
        """
        if not self.track_best:
            return self.x
        closest = None if self._feasibility is None else self._feasibility.x
        return next(x for x in (self._record.best_x, closest, self.x0) if x is not None)

    @property
    def best_fun(self) -> float:
        """The least f + ψ of all queries; inf before the first success."""
        return self._record.best_y

    @property
    def best_y(self) -> float:
        """The former name of ``best_fun``."""
        warn("best_y is now called best_fun", DeprecationWarning, stacklevel=2)
        return self.best_fun

    @property
    def queries(self) -> int:
        """The number of evaluations told, failed ones and retries included."""
        return self._record.queries

    @property
    def failures(self) -> int:
        """The number of failed queries."""
        return self._record.failures

    @property
    def spare(self) -> int:
        """The number of queries left in the budget after the pending ones."""
        return self.remaining - self._out.untold

    @property
    def pending(self) -> tuple[Batch, ...]:
        """The batches whose values are not all told yet, the oldest first."""
        return self._out.batches

    def untold(self, batch: Batch) -> list[int]:
        """The indices of a batch's points without a value; ``ValueError`` if the batch is not pending."""
        return self._out.of(batch).missing

    def is_pending(self, X: Tensor) -> Tensor:
        """Whether each of the points, ``n x d`` in user units, is a pending query."""
        pending = torch.ones(len(X), dtype=torch.bool)
        pending[self._out.matches(X)[1]] = False
        return pending

    @property
    def stop_reason(self) -> StopReason | None:
        """Why the run is over, or None; a reason equals its string, as in ``== "budget"``."""
        if self._stop_reason is not None:
            return self._stop_reason
        if not self._out and not 0 < self._due() <= self.remaining:
            none_left = self.queries > 0 and self.failures == self.queries
            return StopReason.ALL_FAILED if none_left else StopReason.BUDGET
        return None

    @property
    def stopped(self) -> bool:
        """Whether the run is over."""
        return self.stop_reason is not None

    def stop(self, reason: str | StopReason = StopReason.CALLBACK) -> None:
        """Ends the run for a reason, unless it has ended already."""
        self._stop_reason = self._stop_reason or StopReason(reason)

    def reapply_stopping_rules(self) -> None:
        """Clears the stop reason, then applies the current ``target``, ``max_failures`` and ``stagnation``."""
        self._stop_reason = None
        if self.queries:
            self._stop_if_due()

    def _stop_if_due(self) -> None:
        rules = self.target, self.stagnation, self.max_failures
        self._stop_reason = self._stop_reason or reason_to_stop(self._record, *rules)

    @property
    def _is_opening(self) -> bool:
        """Whether the next batch is a design of the box, because the run has no x0 and no query has succeeded."""
        return self._opens and (self.iterations == 0 or self.failures == self.queries)

    def _due(self) -> int:
        """The number of queries of the next batch."""
        if self._is_opening:
            return max(1, min(2 * self.dimension, OPENING, self.remaining // 4))
        count = self._next_queries()
        if not isinstance(count, Integral):
            raise TypeError(f"{type(self).__name__}._next_queries must return an integer, got {count!r:.80}")
        return count

    @property
    def intact(self) -> bool:
        """Whether the state is consistent: False if a step that moves x in place was interrupted."""
        return self._broken is None

    def _check_intact(self) -> None:
        if self._broken is not None:
            raise RuntimeError(
                f"a step that moves x in place was interrupted by {type(self._broken).__name__}: {self._broken}; "
                "x is lost, load a saved state"
            )

    def intermediate_result(self) -> OptimizeResult:
        """The result so far, as callbacks receive it: x, fun, nfev, nit and nfail."""
        # A callback may modify x, hence the copy; without track_best memory may not hold a second iterate.
        x = self.best_x.clone() if self.track_best else self.x
        known, fun = self._feasibility, self.best_fun
        fun = fun if known is None or fun < math.inf else known.y
        return OptimizeResult(x=x, fun=fun, nfev=self.queries, nit=self.iterations, nfail=self.failures)

    def result(self, reason: StopReason | None = None) -> Result:
        """The result of the run so far; ``reason`` is the stop reason of a run that the caller ends early."""
        reason, record = self.stop_reason or reason, self._record
        history = OptimizeResult(record.history())
        if self.store_points and not record.points:
            history.x = self._x.new_empty(0, self.dimension)
        limits = {name: getattr(self, name) for name in ("target", "max_queries", "max_failures")}
        ending = describe(reason, record, **limits, follows_estimates=self._must_move)
        best = self.intermediate_result()
        found = {"fun_std": 0.0, "best_x": best.x, "best_fun": best.fun}
        if (estimate := self._estimate()) is not None:
            found |= {"x": self._to_user(estimate.x), "fun": estimate.fun, "fun_std": estimate.fun_std}
        found = best | found | ending | {"history": history}
        if self._feasibility is not None and self.constraint_set is not None:
            c = None if estimate is None else estimate.constr
            told = self.constraint_set, record, self._multipliers(found["x"]), self.feasibility_tol, c
            found = self._feasibility.described(found, *told)
        if (domain := self.domain) is not None and domain.space is not None and domain.space.names is not None:
            found["params"] = domain.space.named(found["x"])
        return Result(self._described(found))

    def state_dict(self) -> dict[str, Any]:
        """The state that determines the rest of the run: tensors and plain values that ``torch.save`` takes.

        Raises:
            RuntimeError: if a step that moves x in place was interrupted.
        """
        self._check_intact()
        about = {"method": self.method, "version": self.version, "options": self._options(), "seed": self.seed}
        points = {"x0": self.x0.clone(), "x": self._x.clone(), "state": self._state()}
        reason = None if self._stop_reason is None else str(self._stop_reason)
        pending = [answers.state_dict() for answers in self._out.answers]
        told = {"iterations": self.iterations, "record": self._record.state_dict(), "pending": pending}
        known = {} if self._feasibility is None else {"feasibility": save_fields(self._feasibility)}
        return about | points | told | known | {"stop_reason": reason}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores a state, so that this optimizer continues its run.

        Raises:
            ValueError: if method, version, dimension, dtype or options differ; this optimizer does not change.
        """
        check_complete(state, ("method", "version", "options", "x", "x0", "record", "pending", "state"))
        theirs = {name: state[name] for name in ("method", "version")} | state["options"]
        theirs |= {"dimension": state["x"].numel(), "dtype": str(state["x"].dtype)}
        check_match(theirs, {name: value for name, value in self.description().items() if name != "seed"})
        device = self._x.device
        out = Pending(tuple(Answers.from_state_dict(told, self.domain, device) for told in state["pending"]))
        record = Record.from_state_dict(state["record"], device)
        seed, iterations, reason = (state[name] for name in ("seed", "iterations", "stop_reason"))
        reason = None if reason is None else StopReason(reason)
        known = self._feasibility and load_fields(self._feasibility, state["feasibility"], torch.device("cpu"))
        self._load_state(state["state"])
        self._record, self._out, self._feasibility, self._broken = record, out, known, None
        self.seed, self.iterations, self._stop_reason = seed, iterations, reason
        self.x0, self._x = (state[name].to(device).clone() for name in ("x0", "x"))
