"""The ask/tell optimizer: what all methods share, and what an author of a new one implements.

**A new method** is a subclass in a file of its own and a line in ``optimizers/registry.py``::

    class RandomSearch(Optimizer):
        method = "random_search"          # its name; `version` is raised when the state's meaning changes

        def __init__(self, x0, *, radius: float = 1.0, **common: Unpack[CommonOptions]):
            self.radius = radius          # every option is kept under its own name, before super().__init__
            super().__init__(x0, **common)

        def _start(self): ...                              # self.state; x, bounds, prox, seed, d are known here
        def _next_queries(self): return 1                  # queries of the next batch, cheap to say
        def _ask(self): return self._directions_batch([0], [self.radius])     # CHANGES NO STATE
        def _tell(self, batch, values): ...                # values: float64, shape q, NaN = failed

- ``_ask`` is a pure function of the state, as the base may drop what it returned: virtual steps, model fits
  and whatever else moves the method belong in ``_tell``. What ``_tell`` wants to know again of the asking
  goes into ``Batch.info``. The base keeps the pending batch, so ``ask`` is idempotent of itself.
- **Budget.** ``_next_queries`` may look at ``self.remaining`` and shrink a batch that can do with fewer
  points. A run stops with "budget" when the next batch does not fit and is never given a part of one. A
  constructor whose first batch exceeds ``max_queries`` raises and says how many it needs.
- **Coordinates.** ``self._x`` and everything that a hook sees is in *search* coordinates: [0, 10]^d where all
  bounds are finite and ``rescale`` (a class says by ``rescale_by_default``), the user's units otherwise.
  ``Batch.points()``, ``best_x`` and ``x`` are in user units; ``_to_user`` and ``_to_search`` convert.
- **Queries and the box.** ``bounds`` is the domain of f: iterates and, with ``confine_queries``, queried
  points are projected onto it. ``prox`` is part of the problem, ψ: iterates go through it, queries do not.
  ``self._prox(z, step)`` does both, after every step; ``self._descend(rule, g)`` is a first-order step with it.
- **Failures.** ``_tell`` is called also when values are NaN, all of them perhaps; ``retreat()`` goes back to
  the best point where the iterate's own query failed. A hook raises before it changes the state, not after.
- **State.** ``self.state`` is one dataclass. Its fields are tensors, numbers, strings, None, lists, tuples and
  dicts of these, or objects with ``state_dict``/``load_state_dict`` (``FirstOrder``), and the base saves and
  restores them; other state needs ``_state`` and ``_load_state``. ``self._x`` is never modified in place:
  batches alias it.
- **Randomness** has no stream, hence no state: directions are ``self._directions_batch(rows, scales)`` at
  ``step = self.iterations``, which moves with each tell, also after failures; other numbers come from
  ``self._generator(stream)``, which is a pure function of (seed, iterations, stream).
- **Tests.** ``optimizers.testing.check_optimizer`` holds a method to all of this.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from scipy.optimize import OptimizeResult
from torch import Tensor

from optimizers.batch import Batch
from optimizers.bounds import SEARCH_WIDTH, BoundsLike, Domain, parse_bounds
from optimizers.method import MethodTools
from optimizers.options import (
    CommonOptions,
    ProxLike,
    check_integer,
    check_prox,
    check_run,
    option_names,
    prox_description,
    refuse_unknown,
)
from optimizers.record import Record
from optimizers.result import StopReason, describe
from optimizers.state import check_complete, check_match, load_fields, save_fields
from optimizers.values import parse_point, parse_values

__all__ = ["CommonOptions", "Optimizer"]


class Optimizer(MethodTools, ABC):
    """Minimizes f + ψ from values of f by ask and tell.

    Example::

        opt = RGF(x0, max_queries=200, seed=0)
        while not opt.stopped:
            batch = opt.ask()
            opt.tell(batch, f(batch.points()))
        result = opt.result()

    Save ``state_dict()`` between any two calls, load it into an optimizer made with the same arguments, and
    the run goes on bitwise the same; ``max_queries``, ``target`` and ``stagnation`` may differ.

    Args:
        x0: initial point, shape ``d``; its floating dtype and its device are the run's (else float64).
        bounds: the box that f is defined on, ``scipy.optimize.Bounds`` or d pairs; x0 outside is refused.
        prox: proximal operator of ψ, called ``prox(z, step)``; its ``value(x)``, where it has one, is added
            to f for ``best_y`` (inf: the point is infeasible and never best). With bounds it is followed by
            the projection, which is exact for separable ψ, and others are refused.
        max_queries: query budget, never exceeded.
        seed: seed of every random number of the run, 0 ≤ seed < 2⁶⁴.
        target: stop at f + ψ ≤ target.
        stagnation: stop after so many queries without a new best value.
        max_failures: stop after so many failed queries in a row.
        rescale: search a finite box as [0, 10]^d (ZoRD, Appx. C), to which step sizes and radii then refer;
            None: as the method has it, and not with a prox.
        confine_queries: project queried points onto the box.
        track_best: False keeps neither the best point nor x0: ``best_x`` is then the current iterate.
        store_points: keep every queried point, for ``result().history.x``.

    Raises:
        TypeError: for a misspelt option, with the nearest name.
        ValueError: for x0, bounds or numbers out of range, or a budget too small for the method.
    """

    method: ClassVar[str]
    version: ClassVar[int] = 1
    rescale_by_default: ClassVar[bool] = True
    search_width: ClassVar[float] = SEARCH_WIDTH
    state: Any = None

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
        max_failures: int | None = 100,
        rescale: bool | None = None,
        confine_queries: bool = True,
        track_best: bool = True,
        store_points: bool = False,
        **unknown: Any,
    ) -> None:
        refuse_unknown(type(self), unknown)
        x = self._parse_x0(x0)
        check_run(max_queries, seed, target, stagnation, max_failures)
        check_prox(prox, bounds is not None, rescale)
        self.max_queries, self.seed, self.target = int(max_queries), int(seed), target
        self.stagnation, self.max_failures = stagnation, max_failures
        self.confine_queries, self.track_best, self.store_points = confine_queries, track_best, store_points
        self.rescale = (prox is None and self.rescale_by_default) if rescale is None else bool(rescale)
        self.prox = prox
        self.domain: Domain | None = None
        if bounds is not None:
            box, width = parse_bounds(bounds, x), self.search_width
            self.domain = Domain.of(*box, rescale=self.rescale, confine=confine_queries, width=width)
        self._x0 = x if track_best else x.new_empty(0)
        self._x = x if self.domain is None else self.domain.to_search(x)
        self.iterations = 0
        self._record = Record()
        self._pending: Batch | None = None
        self._stop_reason: StopReason | None = None
        self._start()
        needed = self._next_queries()
        if needed > self.max_queries:
            raise ValueError(
                f"{type(self).__name__} needs at least {needed} queries for its first batch in "
                f"{self.dimension} dimensions, got max_queries={self.max_queries}"
            )

    # What a method implements.

    def _parse_x0(self, x0: Any) -> Tensor:
        """The initial point, checked; a new tensor unless the method moves the user's own."""
        return parse_point(x0)

    def _start(self) -> None:
        """Make the initial ``self.state``; called once, at the end of construction."""
        return

    @abstractmethod
    def _next_queries(self) -> int:
        """Queries of the next batch; a pure and cheap function of the state and ``self.remaining``."""

    @abstractmethod
    def _ask(self) -> Batch:
        """The next batch of ``_next_queries()`` points; a pure function of the state."""

    @abstractmethod
    def _tell(self, batch: Batch, values: Tensor) -> None:
        """Move the state by the values of a batch, float64, shape ``q``; NaN where a query failed."""

    def _state(self) -> dict[str, Any]:
        return {} if self.state is None else save_fields(self.state)

    def _load_state(self, state: Mapping[str, Any]) -> None:
        if self.state is not None:
            self.state = load_fields(self.state, state, self._x.device)

    # What a user calls.

    @property
    def x(self) -> Tensor:
        """The current iterate in user units, shape ``d``."""
        return self._to_user(self._x)

    @property
    def best_x(self) -> Tensor:
        """The queried point of least f + ψ, shape ``d``; x0 while no query has succeeded."""
        if not self.track_best:
            return self.x
        return self._x0 if self._record.best_x is None else self._record.best_x

    @property
    def best_y(self) -> float:
        """The least f + ψ of any query; inf while no query has succeeded."""
        return self._record.best_y

    @property
    def queries(self) -> int:
        """Queries told so far, failed ones and retries too."""
        return self._record.queries

    @property
    def failures(self) -> int:
        """Failed queries so far."""
        return self._record.failures

    @property
    def pending(self) -> Batch | None:
        """The batch that was asked and not told yet."""
        return self._pending

    @property
    def stop_reason(self) -> StopReason | None:
        """Why the run is over, or None; each reason equals its string, as in ``== "budget"``."""
        if self._stop_reason is not None:
            return self._stop_reason
        if self._pending is None and self._next_queries() > self.remaining:
            none_left = self.queries > 0 and self.failures == self.queries
            return StopReason.ALL_FAILED if none_left else StopReason.BUDGET
        return None

    @property
    def stopped(self) -> bool:
        """Whether the run is over."""
        return self.stop_reason is not None

    def cancel(self) -> None:
        """Forget the batch that is pending, if any: nothing of it is counted, and ``ask`` makes a new one."""
        self._pending = None

    def restart(self, x: Any) -> None:
        """Go on from another point; the batch that is pending is cancelled.

        Counts, history, the best point and the method's state stay as they are.

        Args:
            x: the new iterate in user units, shape ``d``.

        Raises:
            ValueError: if x is of another dimension, not finite, or outside of the bounds.
        """
        point = parse_point(x).to(self._x)
        if point.shape != self._x.shape:
            raise ValueError(f"x must have shape ({self.dimension},), got {tuple(point.shape)}")
        if self.domain is not None and not bool(self.domain.contains(point)):
            raise ValueError("x must lie within the bounds")
        self.cancel()
        self._x = self._to_search(point)

    def stop(self, reason: str | StopReason = StopReason.CALLBACK) -> None:
        """End the run; the first reason stays."""
        self._stop_reason = self._stop_reason or StopReason(reason)

    def ask(self) -> Batch:
        """The batch to evaluate; the same one until it is told.

        Raises:
            RuntimeError: if the run is over.
        """
        if self._pending is None:
            if self.stopped:
                raise RuntimeError(f"the run is over ({self.stop_reason}): there is nothing to ask")
            promised = self._next_queries()
            batch = self._ask()
            if len(batch) != promised:
                raise RuntimeError(f"{type(self).__name__} promised {promised} queries, asks {len(batch)}")
            self._pending = batch
        return self._pending

    def tell(self, batch: Batch, values: Any, *, retries: int = 0) -> None:
        """Take the values of the pending batch.

        Args:
            batch: what ``ask`` returned.
            values: q floating point numbers in the order of the points (tensor, array or list); NaN and ±inf
                are failed queries, counted and not used.
            retries: failed queries of this batch beyond q, which count against the budget.

        Raises:
            ValueError: if the batch is not the pending one, or for values of wrong shape or count, or more
                retries than the budget holds. The state stays as it was.
            TypeError: for complex, integer or non-numeric values, and tensors that carry a gradient.
        """
        if self._pending is None:
            raise ValueError("tell without ask: no batch is pending")
        if not isinstance(batch, Batch):
            raise TypeError(f"tell takes the Batch that ask returned, got {type(batch).__name__}")
        if not batch.same_as(self._pending):
            other = "has other points" if batch.id == self._pending.id else f"is batch {self._pending.id}"
            raise ValueError(f"batch {batch.id} is not the pending one, which {other}")
        check_integer("retries", retries, 0)
        if retries > self.remaining - len(batch):
            raise ValueError(f"{retries} retries exceed the budget: {self.remaining - len(batch)} are left")
        y = parse_values(values, len(batch)).to(self._x.device)
        totals, mark = self._composite(batch, y), self._record.mark()
        self._record.add(batch, y, totals, retries, track_best=self.track_best, keep=self.store_points)
        try:
            self._tell(batch, y)
        except BaseException:
            self._record.roll_back(mark)
            raise
        self._pending = None
        self.iterations += 1
        self._check_stop()

    def _check_stop(self) -> None:
        record = self._record
        if self.target is not None and record.best_y <= self.target:
            self.stop(StopReason.TARGET)
        if self.max_failures is not None and record.failed_in_a_row >= self.max_failures:
            self.stop(StopReason.ALL_FAILED)
        if self.stagnation is not None and record.queries - record.last_improvement >= self.stagnation:
            self.stop(StopReason.STAGNATION)

    def intermediate_result(self) -> OptimizeResult:
        """x, fun, nfev, nit, nfail so far: what a callback is given."""
        return OptimizeResult(
            x=self.best_x, fun=self.best_y, nfev=self.queries, nit=self.iterations, nfail=self.failures
        )

    def result(self) -> OptimizeResult:
        """The run so far as scipy's ``OptimizeResult``.

        x, fun, nfev, nit, nfail; status (0 target, 1 budget, 2 stagnation, 3 all failed, 99 callback,
        −1 running), success, message, stop_reason; history with, one entry a query in the order asked, ``y``
        (NaN: failed), ``best_y`` (least f + ψ so far) and, with ``store_points``, ``x`` (``queries x d``).
        """
        reason, record = self.stop_reason, self._record
        history = OptimizeResult(record.history())
        if self.store_points:
            history.x = torch.cat(record.points) if record.points else self._x.new_empty(0, self.dimension)
        ending = describe(reason, self.target, record.queries, record.failures, self.max_queries)
        return OptimizeResult(self.intermediate_result() | ending | {"history": history})

    def state_dict(self) -> dict[str, Any]:
        """All that the run's future depends on: tensors and plain values, ``torch.save`` ready."""
        history = self._record.history()
        record = save_fields(self._record) | {"values": history["y"], "best_values": history["best_y"]}
        return {
            "method": self.method,
            "version": self.version,
            "options": self._options(),
            "seed": self.seed,
            "iterations": self.iterations,
            "x0": self._x0.clone(),
            "x": self._x.clone(),
            "record": record,
            "stop_reason": None if self._stop_reason is None else str(self._stop_reason),
            "pending": None if self._pending is None else self._pending.state_dict(),
            "state": self._state(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a ``state_dict`` of the same method, version, dimension, dtype and options.

        Raises:
            ValueError: if the state is of another one; this optimizer stays as it was.
        """
        self._check_state(state)
        device = self._x.device
        pending = state["pending"]
        batch = None if pending is None else Batch.from_state_dict(pending, self.domain, device)
        record = load_fields(self._record, state["record"], device)
        record.values, record.best_values = record.values.tolist(), record.best_values.tolist()
        self._load_state(state["state"])
        self._record, self._pending = record, batch
        self.seed, self.iterations = state["seed"], state["iterations"]
        self._x0, self._x = (state[name].to(device).clone() for name in ("x0", "x"))
        reason = state["stop_reason"]
        self._stop_reason = None if reason is None else StopReason(reason)

    def _check_state(self, state: Mapping[str, Any]) -> None:
        check_complete(state, ("method", "version", "options", "x", "x0", "record", "pending", "state"))
        theirs = {name: state[name] for name in ("method", "version")} | state["options"]
        ours = {"method": self.method, "version": self.version} | self._options()
        theirs |= {"dimension": state["x"].numel(), "dtype": state["x"].dtype}
        check_match(theirs, ours | {"dimension": self.dimension, "dtype": self._x.dtype})

    def _options(self) -> dict[str, Any]:
        """The bounds, the prox and the plain-valued options that shape a run, by name."""
        free = {"seed", "max_queries", "target", "stagnation"}
        values = {name: getattr(self, name, None) for name in option_names(type(self)) - free}
        plain = {k: v for k, v in sorted(values.items()) if isinstance(v, bool | int | float | str)}
        box = self.domain
        return plain | {
            "prox": prox_description(self.prox),
            "bounds": None if box is None else [box.lower.tolist(), box.upper.tolist()],
        }
