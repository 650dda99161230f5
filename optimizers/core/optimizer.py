"""The ask/tell interface that all methods share; ``optimizers.core.method`` says how to write a method."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, cast

import numpy as np
import torch
from torch import Tensor

from optimizers.core.answers import Pending
from optimizers.core.batch import Batch
from optimizers.core.bounds import SEARCH_WIDTH, BoundsLike, Domain, check_rescalable, check_within, parse_box
from optimizers.core.feasibility import Feasibility
from optimizers.core.history import DataAtHand, History, HistoryLike, as_history, entered, reference_point
from optimizers.core.options import ProxLike, check_integer, check_prox, check_run, refuse_unknown
from optimizers.core.record import Record
from optimizers.core.run_state import RunState
from optimizers.core.space import Space
from optimizers.core.state import marked
from optimizers.core.stopping import MostFailures
from optimizers.core.values import numeric, parse_point, parse_values
from optimizers.designs import sobol

OPENING_STREAM = 40
"""The stream of random numbers for the opening design."""

MODELS = "trust_region, zord, least_squares_gradient, turbo and cobbo"


class Optimizer(RunState):
    """Minimizes f + ψ from values of f, through ``ask`` and ``tell``.

    Example::

        opt = RGF(x0, max_queries=200, seed=0)
        while not opt.stopped:
            batch = opt.ask()
            opt.tell(batch, f(batch.points()))
        result = opt.result()

    ``state_dict()`` can be called between any two calls. An optimizer that is made with the same arguments and loads
    the state continues the run bitwise; its ``max_queries``, ``target`` and ``stagnation`` may differ.

    Args:
        x0: initial point, shape ``d``. The run uses its device and its floating dtype (float64 for integers). If None,
            a method with a model of f begins at the best point of the history or, without one, of a Sobol' design in
            the box.
        bounds: the box on which f is defined, ``scipy.optimize.Bounds`` or d pairs; it must contain x0. ``Space`` adds
            integers, log scales and names.
        history: evaluations made before the run, a ``History`` or a pair (X, y), for methods that have a model of f.
            These evaluations do not count against the budget, but ``best_x`` may be one of their points. Some models
            also use points outside the bounds, which never become the best. If equal bounds fix a variable, points with
            another value of this variable are left out.
        prox: proximal operator of ψ, called as ``prox(z, step)``. ``best_fun`` includes ψ if the operator has a method
            ``value(x)``; a point where ψ is inf is infeasible. With bounds, ψ must be separable.
        max_queries: query budget, never exceeded.
        seed: seed of all random numbers, 0 ≤ seed < 2⁶⁴.
        target: stop when f + ψ ≤ target.
        stagnation: stop after this many queries without a new best value.
        max_failures: stop after this many failed queries in a row; None: never; ``"auto"``: 1500 before the first
            success.
        rescale: whether each variable with two finite bounds is searched on [0, 10] (ZoRD, Appx. C.1); step sizes and
            radii then refer to it. True needs a finite box; None: the method's default, and False with a prox.
        confine_queries: whether queried points are projected onto the box.
        track_best: whether the best point and x0 are kept; if not, ``best_x`` is the iterate and ``x0`` is empty.
        store_points: whether ``result().history.x`` holds every queried point.
        store_values: whether ``result().history`` holds every value; if not, it is empty.

    Raises:
        TypeError: for an unknown option; the message names the nearest one.
        ValueError: for a history, or no x0, in a method without a model of f; for x0, bounds or numbers out of range,
            or a budget smaller than the first batch.
    """

    rescale_by_default: ClassVar[bool] = True
    search_width: ClassVar[float] = SEARCH_WIDTH
    takes_integers: ClassVar[bool] = False

    def __init__(
        self,
        x0: Tensor | np.ndarray | Sequence[float] | None = None,
        *,
        max_queries: int,
        bounds: BoundsLike | None = None,
        history: HistoryLike | None = None,
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
        if (x0 is None or history is not None) and not self.has_model:
            what = "needs an x0" if x0 is None else "takes no history"
            raise ValueError(f"{type(self).__name__} {what} because it has no model of f; {MODELS} have one")
        x = reference_point(None, history, bounds) if x0 is None else self._parse_x0(x0)
        kept = {"track_best": track_best, "store_points": store_points, "store_values": store_values}
        check_run(max_queries, seed, target, stagnation, max_failures, confine_queries=confine_queries, **kept)
        check_prox(prox, bounds is not None, rescale)
        space = bounds if isinstance(bounds, Space) else None
        x = x if space is None else self._in_space(space, x, prox)
        self.max_queries, self.seed, self.target = int(max_queries), int(seed), target
        self.stagnation, self.max_failures, self.confine_queries = stagnation, max_failures, bool(confine_queries)
        self.track_best, self.store_points, self.store_values = map(bool, kept.values())
        self.rescale = (prox is None and self.rescale_by_default) if rescale is None else bool(rescale)
        if rescale and bounds is None:
            raise ValueError("rescale=True needs a finite box, and there are no bounds")
        self.prox, self.domain = prox, None
        if bounds is not None:
            box, width = parse_box(bounds, x), self.search_width
            if rescale:
                check_rescalable(*box)
            if x0 is not None:
                check_within(x, *box)
            self.domain = Domain.of(*box, rescale=self.rescale, confine=confine_queries, width=width, space=space)
        self._x = x if self.domain is None else self.domain.to_search(x)
        self.iterations, self._record, self._out = 0, Record(), Pending()
        self._feasibility = None if self.constraint_set is None else Feasibility(self.constraint_set.sizes_given)
        given = None if history is None else History.parse(history, x, self.constraint_set)
        self._history = None if given is None else given.digest()
        self._history_size = 0 if given is None else len(given.X)
        data = None if given is None else self._taken(given)
        x = self._best_given(x) if x0 is None else x
        self.x0, self._x = x if track_best else x.new_empty(0), self._to_search(x)
        self._start()
        if data is not None:
            self._take_history(data)
            self._stop_if_due()
        if (needed := self._due()) > self.max_queries:
            raise ValueError(
                f"{type(self).__name__} needs at least {needed} queries for its first batch in "
                f"{self.dimension} dimensions, got max_queries={self.max_queries}"
            )

    def _best_given(self, x: Tensor) -> Tensor:
        """The history's best point, at which a run without x0 begins; x if a design must be evaluated first."""
        closest = None if self._feasibility is None else self._feasibility.x
        found = [point for point in (self._record.best_x, closest) if point is not None]
        self._opens, box = not found, self.domain
        if self._opens and (box is None or not bool(torch.isfinite(box.upper - box.lower).all())):
            raise ValueError(
                "a run needs x0, a history with a successful point in the bounds, or bounds that are all finite"
            )
        return found[0] if found else x

    def _in_space(self, space: Space, x: Tensor, prox: ProxLike | None) -> Tensor:
        """x0 with integers rounded; raises ``ValueError`` if the method or the prox does not support the space."""
        if space.integrality.any() and not self.takes_integers:
            raise ValueError(
                f"{type(self).__name__} takes no integers because it follows gradients; use the method 'trust_region', "
                "'turbo', 'cobbo' or 'gld'"
            )
        if prox is not None and (space.integrality.any() or space.log.any()):
            raise ValueError("a prox cannot be combined with integrality or log; use bounds or constraints instead")
        return space.rounded(x) if space.integrality.shape == x.shape else x

    def cancel(self) -> None:
        """Drops the pending batches, so that ``ask`` makes a new one; values already told stay counted."""
        if len(self._out) > 1 or any(batch.id != self.iterations for batch in self.pending):
            self.iterations = self.next_id
        self._out = Pending()

    def move_to(self, x: Any) -> None:
        """Moves the iterate to x, in user units, and drops the pending batches; all else stays as it is.

        Raises:
            ValueError: if x has another dimension, is not finite, or lies outside the bounds.
        """
        point = parse_point(x, "x").to(self._x)
        if point.shape != self._x.shape:
            raise ValueError(f"x must have shape ({self.dimension},), got {tuple(point.shape)}")
        if self.domain is not None and not bool(self.domain.contains(point)):
            raise ValueError("x must lie within the bounds")
        self.cancel()
        self._x = self._to_search(point)

    def ask(self) -> Batch:
        """The batch to evaluate: the oldest pending one, or a new one if none is pending.

        Raises:
            RuntimeError: if the run is over.
        """
        self._check_intact()
        if not self._out:
            if self.stopped:
                raise RuntimeError(f"the run is over ({self.stop_reason}): there is nothing to ask")
            promised, name = self._due(), type(self).__name__
            batch = self._opening_batch(promised) if self._is_opening else self._checked("_ask", self._ask())
            if len(batch) != promised:
                raise RuntimeError(
                    f"{name}._next_queries returned {promised}, but {name}._ask a batch of {len(batch)} points"
                )
            self._out = self._out.with_batch(batch)
        return self.pending[0]

    def ask_another(self) -> Batch | None:
        """A further batch to evaluate while others are pending; the same as ``ask`` if none is pending.

        Returns None if the method waits for pending values, the budget allows no further query, or the run is over.
        Batches may be told in any order; a batch is used when all its values are told. The order of calls determines
        the run.
        """
        if not self._out:
            return None if self.stopped else self.ask()
        self._check_intact()
        spare = self.spare
        if self._stop_reason is not None or spare < 1 or self._is_opening:
            return None
        found = self._ask_another(self.pending, spare)
        if found is None:
            return None
        batch = self._checked("_ask_another", found)
        if not 1 <= len(batch) <= spare:
            name = type(self).__name__
            raise RuntimeError(f"{name}._ask_another may return 1 to {spare} points, returned {len(batch)}")
        self._out = self._out.with_batch(batch)
        return batch

    def _checked(self, hook: str, batch: Any) -> Batch:
        if not isinstance(batch, Batch):
            name = f"{type(self).__name__}.{hook}"
            raise TypeError(f"{name} must return a Batch, as _points_batch makes one, got {batch!r:.80}")
        return batch

    def tell(
        self, batch: Batch | History | Any, values: Any = None, *, which: Sequence[int] | None = None, retries: int = 0
    ) -> None:
        """Records values of a pending batch, all at once or as they arrive, or values of other points.

        Each value is counted at once: it may become the best or end the run, and ``state_dict`` includes it. The method
        uses a batch when all its values are told, in whatever order they came. If the method raises or is interrupted,
        the optimizer's state is as before the call (except for ``HiSo`` with ``in_place``).

        Args:
            batch: a batch that ``ask`` or ``ask_another`` returned; or points in user units, ``n x d``, or a
                ``History``. The value of a row that equals a pending point is recorded as the value of that point. The
                other rows are treated like ``history``: they do not count against the budget.
            values: k real numbers (tensor, array or list) in the order of ``which``. NaN and ±inf are failed queries,
                which are counted but not used. With constraints, k rows (f, c), where c are the values of the
                constraints evaluated with f; a row with a NaN is a failed query, but the models use its other numbers.
            which: the indices of the values' points, none of them told before; None: all q. May be empty if there are
                retries.
            retries: the number of failed evaluations in addition to these k, which count against the budget.

        Raises:
            ValueError: if the batch is not pending, an index is out of range or told before, values have a wrong shape,
                or retries exceed the budget. The state does not change.
            TypeError: for complex or non-numeric values, and tensors that require a gradient.
        """
        if not isinstance(batch, Batch):
            return self._tell_points(batch, values)
        self._check_intact()
        answers = self._out.of(batch)
        rows = answers.rows(which)
        check_integer("retries", retries, 0)
        if not rows and not retries:
            raise ValueError("which must name a point of the batch if retries is 0")
        if retries > self.spare:
            raise ValueError(f"{retries} retries exceed the budget: queries left: {self.spare}")
        told, y, totals, feasibility = self._judged(batch, values, rows, retries)
        answers = answers.with_values(rows, told)
        changed = ["_record", "_out", "iterations", "_stop_reason", "_feasibility"]
        if answers.complete and not self._moves_in_place:
            changed += ["_x", "state"]
        with self._undone_on_error(changed, in_place=answers.complete and self._moves_in_place):
            kept = {"keep_values": self.store_values, "keep_points": self.store_points and self.store_values}
            self._record.add(batch, rows, y, totals, retries, track_best=self.track_best, **kept)
            self._out, self._feasibility = self._out.updated(answers), feasibility
            if answers.complete:
                before = self._x
                if batch.info.get("opening"):
                    self._end_opening(batch, answers.values(y))
                else:
                    self._tell(batch, answers.values(y))
                self.iterations += 1
                self._record.moved |= self._moves_in_place or not torch.equal(before, self._x)
            self._stop_if_due()

    @contextmanager
    def _undone_on_error(self, changed: Sequence[str], *, in_place: bool = False) -> Iterator[None]:
        """Restores the attributes if an exception is raised; x cannot be restored with ``in_place``."""
        undo = {name: marked(getattr(self, name)) for name in changed}
        try:
            yield
        except BaseException as error:
            for name, restored in undo.items():
                setattr(self, name, restored())
            if in_place:
                self._broken = error
            raise

    def _tell_points(self, X: Any, values: Any) -> None:
        """Tells values of points: those of pending points to their batches, and the others as history."""
        self._check_intact()
        given = as_history(X if values is None else (X, values))
        sizes = None if self._feasibility is None else self._feasibility.sizes
        parsed = History.parse(given, self.x, self.constraint_set, sizes)
        answers, others = self._out.matches(numeric("X", given.X).to(self._x.device))
        if others and not self.has_model:
            raise ValueError(f"{type(self).__name__} has no model of f: tell it only the values of its own batches")
        for batch, which, rows in answers:
            self.tell(batch, parsed.y[rows], which=which)
        if others:
            with self._undone_on_error(["_record", "_stop_reason", "_feasibility", "_x", "state"]):
                self._record.given += len(others)
                self._take_history(self._taken(parsed.rows(others)))
                self._stop_if_due()

    def _taken(self, given: History) -> DataAtHand:
        """Adds the evaluations that belong to the problem to the record."""
        if given.yvar is not None and not self.takes_variances:
            raise ValueError(f"{type(self).__name__} assumes one noise variance for all values; leave out yvar")
        psi, known = getattr(self.prox, "value", None), self.constraint_set
        given, data, self._feasibility = entered(
            given, self.domain, psi, known, self._feasibility, self.feasibility_tol
        )
        self._record.include(given.X, data.totals)
        return data

    def _opening_batch(self, count: int) -> Batch:
        """Sobol' points of the box."""
        box, generator = cast(Domain, self.domain), self._generator(OPENING_STREAM)
        unit = sobol(count, self.dimension, generator).to(self._x)
        points = self._to_search(self._to_user(box.search_lower + (box.search_upper - box.search_lower) * unit))
        points = self._admitted(points)
        return self._points_batch(points, info={"design": True, "opening": True})

    def _end_opening(self, batch: Batch, values: Tensor) -> None:
        """Begins the run at the best point of the opening design."""
        points, y = cast(Tensor, batch.explicit), values.reshape(len(batch), -1)[:, 0]
        if self.failures < self.queries:
            self._x = self._to_search(self.best_x)
        self._take_history(DataAtHand(points, values, self._composite(batch, y)))

    def _judged(
        self, batch: Batch, values: Any, rows: Sequence[int], retries: int
    ) -> tuple[Tensor, Tensor, Tensor, Feasibility | None]:
        """f and f + ψ at each point, NaN for failed queries, and the updated feasibility of a constrained run."""
        device = self._x.device
        if self.constraint_set is None or self._feasibility is None:
            y = parse_values(values, len(rows)).to(device)
            return y, y, self._composite(batch, y, rows), None
        points, places = batch.points(rows) if rows else self.x[None][:0], [(batch.id, i) for i in rows]
        known, tolerance = self.constraint_set, self.feasibility_tol
        told, totals, feasibility = self._feasibility.told(known, values, points, places, retries, tolerance)
        y = torch.where(torch.isnan(totals), totals, told[:, 0])
        return told.to(device), y.to(device), totals.to(device), feasibility
