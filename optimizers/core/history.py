"""Evaluations from outside a run: how users give them, and what a run takes from them."""

from __future__ import annotations

import hashlib
import logging
import math
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any, TypeAlias

import torch
from torch import Tensor

from optimizers.core.bounds import BoundsLike, Domain, middle
from optimizers.core.constraint_set import ConstraintSet
from optimizers.core.feasibility import Feasibility
from optimizers.core.values import numeric, parse_point, parse_values

logger = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class History:
    """Evaluations of the objective that a run did not ask for.

    Attributes:
        X: the points in user units, ``n x d``, in the bounds or outside.
        y: f at the points, shape ``n``. NaN and ±inf mark failed evaluations.
        yvar: the variance of each value's noise, one number or shape ``n``, in f's units squared. None: not known.
        c: the values of the constraints that are evaluated with f, in the order given, ``n x m``. NaN: not known.
    """

    X: Any
    y: Any
    yvar: Any = None
    c: Any = None

    @classmethod
    def parse(cls, given: HistoryLike, like: Tensor) -> History:
        """The evaluations as tensors on a device, float64 but for X.

        Args:
            given: a history, or its attributes as a tuple.
            like: a point, shape ``d``, whose dtype and device X takes.

        Raises:
            TypeError: for another type, or entries that are not real numbers.
            ValueError: for a wrong shape, points that are not finite, or a variance that is negative or not finite.
        """
        raw = as_history(given)
        X, d = numeric("history: X", raw.X).to(like), like.numel()
        if X.ndim != 2 or X.shape[1] != d:
            raise ValueError(f"history: X must have shape (n, {d}), one row for each point, got {tuple(X.shape)}")
        if not bool(torch.isfinite(X).all()):
            raise ValueError(f"history: X must be finite, row {int((~torch.isfinite(X)).any(1).nonzero()[0])} is not")
        y = parse_values(raw.y, len(X)).to(X.device)
        yvar, c = (
            None if part is None else numeric(f"history: {name}", part).to(y)
            for name, part in (("yvar", raw.yvar), ("c", raw.c))
        )
        if yvar is not None:
            if yvar.numel() not in (1, len(X)) or not bool((torch.isfinite(yvar) & (yvar >= 0.0)).all()):
                raise ValueError(
                    f"history: yvar must be one variance or {len(X)}, finite and at least 0, got {raw.yvar!r:.80}"
                )
            yvar = yvar.reshape(-1).expand(len(X))
        if c is not None and (c.ndim == 0 or len(c) != len(X)):
            raise ValueError(f"history: c must have {len(X)} rows, one for each point, got shape {tuple(c.shape)}")
        c = None if c is None else torch.where(torch.isfinite(c), c, torch.nan)
        return cls(X, y, yvar, c if c is None or c.ndim > 1 else c[:, None])

    @property
    def _parts(self) -> tuple[Any, ...]:
        return self.X, self.y, self.yvar, self.c

    def values(self) -> Tensor:
        """The parsed values as ``Optimizer.tell`` takes them: f, shape ``n``, or rows (f, c), ``n x 1 + m``."""
        return self.y if self.c is None else torch.cat([self.y[:, None], self.c], dim=1)

    def rows(self, which: Any) -> History:
        """The parsed evaluations with some indices or a mask."""
        return History(*(None if part is None else part[which] for part in self._parts))

    def digest(self) -> str:
        """A fingerprint of the parsed evaluations."""
        found = hashlib.sha256()
        for part in self._parts:
            found.update(b"-" if part is None else part.cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
        return found.hexdigest()[:16]


HistoryLike: TypeAlias = History | tuple[Any, ...]


def as_history(given: HistoryLike) -> History:
    """A tuple (X, y), (X, y, yvar) or (X, y, yvar, c) as a ``History``; ``TypeError`` for anything else."""
    if isinstance(given, History):
        return given
    if not isinstance(given, tuple | list) or not 2 <= len(given) <= len(fields(History)):
        raise TypeError(f"history must be a pair (X, y) or a History, got {type(given).__name__}")
    return History(*given)


def reference_point(x0: Any, history: HistoryLike | None, bounds: BoundsLike | None) -> Tensor:
    """A point with the dimension, dtype and device of the run: x0, the box's middle, or the history's first point.

    Raises:
        ValueError: if there is none of these.
    """
    if x0 is not None:
        return parse_point(x0)
    X = None if history is None else numeric("history: X", as_history(history).X)
    if bounds is not None:
        return middle(bounds) if X is None else middle(bounds).to(X)
    if X is None or X.ndim != 2 or not len(X):
        raise ValueError("a run without x0 needs bounds, or a history with at least one point")
    return parse_point(X[0], "history: X[0]")


@dataclass(frozen=True, eq=False)
class DataAtHand:
    """Evaluations that a run has entered in its record, which its model learns from.

    Attributes:
        points: the points in search coordinates, ``n x d``.
        values: f, shape ``n``, NaN for a failed evaluation; with constraints rows (f, c), ``n x 1 + m``.
        totals: f + ψ, shape ``n``; NaN for a failed evaluation, inf outside the bounds or where it is infeasible.
        yvar: the variances of the values' noise, shape ``n``, or None.
    """

    points: Tensor
    values: Tensor
    totals: Tensor
    yvar: Tensor | None = None


def entered(
    given: History,
    domain: Domain | None,
    psi: Callable[[Tensor], Any] | None,
    known: ConstraintSet | None,
    feasibility: Feasibility | None,
    tolerance: float,
) -> tuple[History, DataAtHand, Feasibility | None]:
    """Judges parsed evaluations.

    Args:
        given: the evaluations.
        domain: the box, or None.
        psi: ψ of a point in user units, or None.
        known: the constraints, or None.
        feasibility: the feasibility of the run so far, or None.
        tolerance: the largest relative violation of a feasible point.

    Returns:
        The evaluations that belong to the problem, which are all but those that differ from the value of a variable
        with equal bounds; the same as data of the run; and the feasibility with them.
    """
    inside = torch.ones(len(given.X), dtype=torch.bool, device=given.X.device)
    if domain is not None:
        fixed = domain.lower == domain.upper
        belongs = (given.X[:, fixed] == domain.lower[fixed]).all(dim=1)
        if not bool(belongs.all()):
            logger.warning(
                "%d of %d given evaluations are left out: they differ from the value of a variable with equal bounds",
                int((~belongs).sum()),
                len(belongs),
            )
        given = given.rows(belongs)
        inside = domain.contains(given.X)
    points, values = given.X if domain is None else domain.to_search(given.X), given.values()
    if known is None or feasibility is None:
        if given.c is not None:
            raise ValueError("history: c holds values of constraints, and the run has none that is evaluated with f")
        totals = values.clone()
        if psi is not None:
            for i in torch.isfinite(values).nonzero().flatten().tolist():
                totals[i] += float(psi(given.X[i]))
    else:
        if (given.c is None) != (not known.evaluated):
            raise ValueError(
                "history: c must hold the values of the constraints that are evaluated with f, and no others"
            )
        rows, sizes = known.parse(values, len(values), feasibility.sizes)
        values, totals = rows.to(values), rows[:, 0].to(values)
        chosen = inside.nonzero().flatten().cpu()
        places = [(-1, i) for i in chosen.tolist()]
        told = replace(feasibility, sizes=sizes).told(known, rows[chosen], given.X[chosen], places, 0, tolerance)
        totals[chosen], feasibility = told[1].to(totals), replace(told[2], violations=feasibility.violations)
    totals[~inside & torch.isfinite(totals)] = math.inf
    return given, DataAtHand(points, values, totals, given.yvar), feasibility


def told_history(X: Any, values: Any, known: ConstraintSet | None, sizes: tuple[int, ...] | None) -> History:
    """Points and their values, which are rows (f, c) with constraints, as a history; a history stays as it is."""
    if isinstance(X, History):
        return X
    points = numeric("X", X)
    if known is None:
        return History(points, values)
    rows = known.parse(values, len(points), sizes)[0]
    return History(points, rows[:, 0], c=rows[:, 1:] if known.evaluated else None)


def finite_middle(domain: Domain | None) -> Tensor:
    """The middle of a box in user units, shape ``d``; ``ValueError`` if a side of it is infinite."""
    if domain is None or not bool(torch.isfinite(domain.upper - domain.lower).all()):
        raise ValueError(
            "a run needs x0, a history with a point in the bounds that succeeded, or bounds that are all finite"
        )
    point = domain.lower + 0.5 * (domain.upper - domain.lower)
    return point if domain.space is None else domain.space.rounded(point)
