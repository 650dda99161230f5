"""The ask/tell optimizer: what a user of any method calls; ``optimizers.core.method`` says how to write a method."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from scipy.optimize import OptimizeResult
from torch import Tensor

from optimizers.core.answers import Answers, Pending
from optimizers.core.batch import Batch
from optimizers.core.bounds import SEARCH_WIDTH, BoundsLike, Domain, parse_bounds
from optimizers.core.method import MethodTools
from optimizers.core.options import (
    CommonOptions,
    ProxLike,
    check_boolean,
    check_integer,
    check_prox,
    check_run,
    optional,
    refuse_unknown,
)
from optimizers.core.record import Record
from optimizers.core.result import Result
from optimizers.core.state import check_complete, check_match, marked
from optimizers.core.stopping import MostFailures, StopReason, describe, reason_to_stop
from optimizers.core.values import parse_point, parse_values

__all__ = ["CommonOptions", "Optimizer"]


class Optimizer(MethodTools):
    """Minimizes f + ψ from values of f by ask and tell.

    Example::

        opt = RGF(x0, max_queries=200, seed=0)
        while not opt.stopped:
            batch = opt.ask()
            opt.tell(batch, f(batch.points()))
        result = opt.result()

    ``state_dict()`` may be saved between any two calls. An optimizer that is made with the same arguments and loads
    it continues the run bitwise; its ``max_queries``, ``target`` and ``stagnation`` may differ.

    Args:
        x0: initial point, shape ``d``; the run has its floating dtype (float64 for integers) and its device.
        bounds: the box on which f is defined, ``scipy.optimize.Bounds`` or d pairs; it must contain x0.
        prox: proximal operator of ψ, called ``prox(z, step)``. ``best_y`` includes ψ if the operator has a method
            ``value(x)``; a point at which ψ is inf is infeasible and never the best. With bounds the projection
            follows the prox, which is exact only for separable ψ; other ψ are refused.
        max_queries: query budget, never exceeded.
        seed: seed of every random number of the run, 0 ≤ seed < 2⁶⁴.
        target: the run stops at f + ψ ≤ target.
        stagnation: the run stops after so many queries without a new best value.
        max_failures: the run stops after so many failed queries in a row; None: never. ``"auto"`` stops it after 1500
            where no query has succeeded, and never once one has.
        rescale: whether a finite box is searched as [0, 10]^d (ZoRD, Appx. C.1), to which step sizes and radii then
            refer; None: the method's own default, and False with a prox.
        confine_queries: whether queried points are projected onto the box.
        track_best: whether the best point and x0 are kept; if not, ``best_x`` is the current iterate.
        store_points: whether every queried point is kept, for ``result().history.x``.
        store_values: whether the value of every query is kept, for ``result().history``; if not, it is empty.

    Raises:
        TypeError: for a misspelt option, with the nearest name.
        ValueError: for x0, bounds or numbers out of range, or a budget too small for the method.
    """

    method: ClassVar[str]
    version: ClassVar[int] = 1
    rescale_by_default: ClassVar[bool] = True
    search_width: ClassVar[float] = SEARCH_WIDTH

    def __init__(
        self,
        x0: Tensor | np.ndarray | Sequence[float],
        *,
        max_queries: int,
        bounds: BoundsLike | None = None,
        prox: ProxLike | None = None,
        seed: int = 0,
        target: float | None = None,
        stagnation: int | None = None,
        max_failures: MostFailures = "auto",
        rescale: bool | None = None,
        confine_queries: bool = True,
        track_best: bool = True,
        store_points: bool = False,
        store_values: bool = True,
        **unknown: Any,
    ) -> None:
        refuse_unknown(type(self), unknown)
        x = self._parse_x0(x0)
        check_run(max_queries, seed, target, stagnation, max_failures)
        check_prox(prox, bounds is not None, rescale)
        self.max_queries, self.seed, self.target = int(max_queries), int(seed), target
        self.stagnation, self.max_failures = stagnation, max_failures
        self.confine_queries = check_boolean("confine_queries", confine_queries)
        self.track_best = check_boolean("track_best", track_best)
        self.store_points = check_boolean("store_points", store_points)
        self.store_values = check_boolean("store_values", store_values)
        rescale = optional(check_boolean, "rescale", rescale)
        self.rescale = (prox is None and self.rescale_by_default) if rescale is None else rescale
        self.prox = prox
        self.domain: Domain | None = None
        if bounds is not None:
            box, width = parse_bounds(bounds, x), self.search_width
            self.domain = Domain.of(*box, rescale=self.rescale, confine=confine_queries, width=width)
        self._x0 = x if track_best else x.new_empty(0)
        self._x = x if self.domain is None else self.domain.to_search(x)
        self.iterations = 0
        self._record = Record()
        self._out = Pending()
        self._broken: BaseException | None = None
        self._stop_reason: StopReason | None = None
        self._start()
        needed = self._next_queries()
        if needed > self.max_queries:
            raise ValueError(
                f"{type(self).__name__} needs at least {needed} queries for its first batch in "
                f"{self.dimension} dimensions, got max_queries={self.max_queries}"
            )

    @property
    def x(self) -> Tensor:
        """The current iterate in user units, shape ``d``."""
        return self._to_user(self._x)

    @property
    def x0(self) -> Tensor:
        """The initial point, shape ``d``; of none without ``track_best``, which does not keep it."""
        return self._x0

    @property
    def best_x(self) -> Tensor:
        """The queried point of least f + ψ, shape ``d``; x0 before the first success."""
        if not self.track_best:
            return self.x
        return self._x0 if self._record.best_x is None else self._record.best_x

    @property
    def best_y(self) -> float:
        """The least f + ψ of all queries; inf before the first success."""
        return self._record.best_y

    @property
    def queries(self) -> int:
        """The number of queries told, with failed ones and retries."""
        return self._record.queries

    @property
    def failures(self) -> int:
        """The number of failed queries."""
        return self._record.failures

    @property
    def pending(self) -> tuple[Batch, ...]:
        """The batches that were asked and are not told whole yet, the oldest first."""
        return self._out.batches

    def untold(self, batch: Batch) -> list[int]:
        """The numbers of the points of a pending batch whose values have not come yet.

        Raises:
            ValueError: if the batch is not pending.
        """
        return self._out.of(batch).missing

    @property
    def stop_reason(self) -> StopReason | None:
        """The reason why the run is over, or None; each reason equals its string, as in ``== "budget"``."""
        if self._stop_reason is not None:
            return self._stop_reason
        if not self._out and not 0 < self._next_queries() <= self.remaining:
            none_left = self.queries > 0 and self.failures == self.queries
            return StopReason.ALL_FAILED if none_left else StopReason.BUDGET
        return None

    @property
    def stopped(self) -> bool:
        """Whether the run is over."""
        return self.stop_reason is not None

    def cancel(self) -> None:
        """Drops what is pending, and ``ask`` makes a new batch; what has been told stays counted."""
        if len(self._out) > 1 or any(batch.id != self.iterations for batch in self.pending):
            self.iterations = self.number
        self._out = Pending()

    def restart(self, x: Any) -> None:
        """Moves the iterate to another point and cancels what is pending.

        Counts, history, best point and the method's state stay as they are.

        Args:
            x: the new iterate in user units, shape ``d``.

        Raises:
            ValueError: if x has another dimension, is not finite, or is outside of the bounds.
        """
        point = parse_point(x, "x").to(self._x)
        if point.shape != self._x.shape:
            raise ValueError(f"x must have shape ({self.dimension},), got {tuple(point.shape)}")
        if self.domain is not None and not bool(self.domain.contains(point)):
            raise ValueError("x must lie within the bounds")
        self.cancel()
        self._x = self._to_search(point)

    def stop(self, reason: str | StopReason = StopReason.CALLBACK) -> None:
        """Ends the run for a reason, unless it has ended for another before."""
        self._stop_reason = self._stop_reason or StopReason(reason)

    def reconsider(self) -> None:
        """Forgets why the run ended, and ends it again where target, failures or stagnation say so now."""
        self._stop_reason = None
        if self.queries:
            self._check_stop()

    def ask(self) -> Batch:
        """The batch to evaluate, which is the same until it is told; of several that are pending the oldest.

        Raises:
            RuntimeError: if the run is over.
        """
        self._check_whole()
        if not self._out:
            if self.stopped:
                raise RuntimeError(f"the run is over ({self.stop_reason}): there is nothing to ask")
            promised = self._next_queries()
            batch = self._ask()
            name = type(self).__name__
            if not isinstance(batch, Batch):
                raise TypeError(f"{name}._ask must return a Batch, as _points_batch makes one, got {batch!r:.80}")
            if len(batch) != promised:
                raise RuntimeError(f"{name}._next_queries returned {promised}, {name}._ask a batch of {len(batch)}")
            self._out = self._out.with_batch(batch)
        return self.pending[0]

    def ask_another(self) -> Batch | None:
        """One more batch to evaluate, chosen given those that are pending; the first one is ``ask``'s.

        None says that the method waits for pending values, that the budget holds no more, or that the run is over.
        Batches may be told in any order, and each is the method's when it is whole. The run is a function of the order
        of asking and telling.
        """
        if not self._out:
            return None if self.stopped else self.ask()
        self._check_whole()
        spare = self.spare
        if self._stop_reason is not None or spare < 1:
            return None
        batch = self._ask_another(self.pending, spare)
        if batch is None:
            return None
        if not 1 <= len(batch) <= spare:
            name = type(self).__name__
            raise RuntimeError(f"{name}._ask_another may return 1 to {spare} points, returned {len(batch)}")
        self._out = self._out.with_batch(batch)
        return batch

    def tell(self, batch: Batch, values: Any, *, which: Sequence[int] | None = None, retries: int = 0) -> None:
        """Takes values of a pending batch, all at once or as they come.

        Each value is counted, and may be the best or end the run, the moment that it is told, and ``state_dict``
        holds it. The method takes a batch in when all its values have come; their order does not change what it does.
        Telling is atomic: where the method raises or is interrupted in the middle, record and method are as before
        (but for ``HiSo`` with ``in_place``, see there).

        Args:
            batch: a batch that ``ask`` or ``ask_another`` returned.
            values: k real numbers in the order of ``which`` (tensor, array or list). NaN and ±inf are failed queries,
                which are counted and not used.
            which: the numbers of the k points of the batch whose values these are, none of which has been told. None
                stands for all q. It may be empty where there are retries.
            retries: the number of failed queries beyond these k, which count against the budget.

        Raises:
            ValueError: if the batch is not pending, for numbers that are no points of it or have been told, values
                of a wrong shape or number, or more retries than the budget holds. The state stays as it was.
            TypeError: for complex or non-numeric values, and tensors that carry a gradient.
        """
        self._check_whole()
        answers = self._out.of(batch)
        rows = answers.rows(which)
        check_integer("retries", retries, 0)
        if not rows and not retries:
            raise ValueError("which names no point of the batch")
        if retries > self.spare:
            raise ValueError(f"{retries} retries exceed the budget: {self.spare} are left")
        y = parse_values(values, len(rows)).to(self._x.device)
        totals = self._composite(batch, y, rows)
        whole = len(answers.told) + len(rows) == len(batch)
        back = self._marked(answers, rows, whole)
        try:
            kept = {"keep_values": self.store_values, "keep_points": self.store_points and self.store_values}
            self._record.add(batch, rows, y, totals, retries, track_best=self.track_best, **kept)
            answers.add(rows, y)
            if whole:
                self._out = self._out.without(answers)
                before = self._x
                self._tell(batch, answers.values(y))
                self.iterations += 1
                record = self._record
                record.moved = record.moved or self._moves_in_place or not torch.equal(before, self._x)
            self._check_stop()
        except BaseException as error:
            back(error)
            raise

    @property
    def spare(self) -> int:
        """The number of queries that the budget holds beyond those that are pending."""
        return self.remaining - self._out.untold

    def _marked(self, answers: Answers, rows: Sequence[int], whole: bool) -> Callable[[BaseException], None]:
        """What undoes a tell: of the record, and where the batch is ``whole`` then of the method too."""
        record, out, iterations, x, reason = self._record.mark(), self._out, self.iterations, self._x, self._stop_reason
        state = marked(self.state) if whole and not self._moves_in_place else None

        def back(error: BaseException) -> None:
            self._record.roll_back(record)
            answers.remove(rows)
            self._out, self.iterations, self._stop_reason = out, iterations, reason
            if state is not None:
                self._x, self.state = x, state()
            elif whole:
                self._broken = error

        return back

    @property
    def whole(self) -> bool:
        """Whether no step ended in the middle, which only those can that move x in place."""
        return self._broken is None

    def _check_whole(self) -> None:
        if self._broken is not None:
            raise RuntimeError(
                "a step that moves x in place ended in the middle, by "
                f"{type(self._broken).__name__}: {self._broken}; x is lost, load a state"
            )

    def _check_stop(self) -> None:
        reason = reason_to_stop(self._record, self.target, self.stagnation, self.max_failures)
        if reason is not None:
            self.stop(reason)

    def intermediate_result(self) -> OptimizeResult:
        """The entries x, fun, nfev, nit and nfail of the run so far; callbacks get them."""
        # A callback may change what it gets. Without a record x is the iterate, of which there may be no room for two.
        x = self.best_x.clone() if self.track_best else self.x
        return OptimizeResult(x=x, fun=self.best_y, nfev=self.queries, nit=self.iterations, nfail=self.failures)

    def result(self, reason: StopReason | None = None) -> Result:
        """The run so far.

        Its entries are x, fun, nfev, nit, nfail; status (0 target, 1 budget, 2 stagnation, 3 all failed, 4
        time, 98 interrupted, 99 callback or function, −1 running), success, message, stop_reason; and history, which
        holds for the queries in the order asked ``y`` (NaN: failed), ``best_y`` (the least f + ψ so far) and, with
        ``store_points``, ``x``, ``queries x d``.

        Args:
            reason: why the run was left where it is not over.
        """
        reason, record = self.stop_reason or reason, self._record
        history = OptimizeResult(record.history())
        if self.store_points and not record.points:
            history.x = self._x.new_empty(0, self.dimension)
        limits = {name: getattr(self, name) for name in ("target", "max_queries", "max_failures")}
        ending = describe(reason, record, **limits, follows_estimates=self._must_move)
        return Result(self.intermediate_result() | ending | {"history": history})

    def state_dict(self) -> dict[str, Any]:
        """All that the rest of the run depends on, as tensors and plain values that ``torch.save`` takes.

        Raises:
            RuntimeError: if a step that moves x in place ended in the middle.
        """
        self._check_whole()
        return {
            "method": self.method,
            "version": self.version,
            "options": self._options(),
            "seed": self.seed,
            "iterations": self.iterations,
            "x0": self._x0.clone(),
            "x": self._x.clone(),
            "record": self._record.state_dict(),
            "stop_reason": None if self._stop_reason is None else str(self._stop_reason),
            "pending": self._out.state_dict(),
            "state": self._state(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continues the run of a ``state_dict``.

        Raises:
            ValueError: if method, version, dimension, dtype or options differ; this optimizer stays as it was.
        """
        self._check_state(state)
        device = self._x.device
        out = Pending.from_state_dict(state["pending"], self.domain, device)
        record = Record.from_state_dict(state["record"], device)
        seed, iterations, reason = (state[name] for name in ("seed", "iterations", "stop_reason"))
        reason = None if reason is None else StopReason(reason)
        self._load_state(state["state"])
        self._record, self._out, self._broken = record, out, None
        self.seed, self.iterations, self._stop_reason = seed, iterations, reason
        self._x0, self._x = (state[name].to(device).clone() for name in ("x0", "x"))

    def _check_state(self, state: Mapping[str, Any]) -> None:
        check_complete(state, ("method", "version", "options", "x", "x0", "record", "pending", "state"))
        theirs = {name: state[name] for name in ("method", "version")} | state["options"]
        theirs |= {"dimension": state["x"].numel(), "dtype": str(state["x"].dtype)}
        check_match(theirs, {name: value for name, value in self.description().items() if name != "seed"})

    def description(self) -> dict[str, Any]:
        """What determines the run but x0, the objective and when to stop: plain values by name."""
        about = {"method": self.method, "version": self.version, "dimension": self.dimension}
        return about | {"dtype": str(self._x.dtype), "seed": self.seed} | self._options()
