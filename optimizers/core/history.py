"""Evaluations that were made outside a run."""

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
from optimizers.core.values import numeric, parse_point, parse_points, parse_values

logger = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class History:
    """Evaluations of the objective that were made outside the run.

    Attributes:
        X: the points in user units, ``n x d``; they may lie outside the bounds.
        y: f at the points, shape ``n``. NaN and ±inf mark failed evaluations.
        yvar: the noise variances of the values, one number or shape ``n``, in f's units squared; None: unknown.
        c: the values of the constraints that are evaluated with f, ``n x m``, in the run's order; NaN: unknown.
    """

    X: Any
    y: Any
    yvar: Any = None
    c: Any = None

    @classmethod
    def parse(
        cls,
        given: HistoryLike,
        like: Tensor,
        known: ConstraintSet | None = None,
        sizes: tuple[int, ...] | None = None,
    ) -> History:
        """Converts evaluations to tensors on the device of ``like``, with y and yvar in float64.

        Args:
            given: a history, or a tuple of its attributes; instead of c, y may hold rows (f, c).
            like: a point, shape ``d``, with the dtype and device for X.
            known: the constraints of the run, or None.
            sizes: the number of components of each constraint that is evaluated with f, if known.

        Raises:
            TypeError: for another type, or entries that are not real numbers.
            ValueError: for a wrong shape, points that are not finite, or a variance that is negative or not finite.
        """
        raw = as_history(given)
        X = parse_points("history: X", numeric("history: X", raw.X).to(like), like.numel())
        yvar = None if raw.yvar is None else numeric("history: yvar", raw.yvar).to(X.device, torch.float64).reshape(-1)
        if yvar is not None and (len(yvar) not in (1, len(X)) or not bool(((yvar >= 0.0) & (yvar < math.inf)).all())):
            raise ValueError(
                f"history: yvar must be one variance or {len(X)} variances, finite and at least 0, got {raw.yvar!r:.80}"
            )
        y = raw.y if raw.c is None else _rows(raw.y, raw.c, len(X))
        if known is not None:
            y = known.parse(y, len(X), sizes)[0].to(X.device)
            if known.evaluated and y.shape[1] == 1 and bool(torch.isfinite(y).any()):
                raise ValueError("history: pass the values of the constraints that are evaluated with f as c")
        elif raw.c is not None:
            raise ValueError(
                "history: c has constraint values, but no constraint of the run is evaluated with f; leave c out"
            )
        else:
            y = parse_values(y, len(X)).to(X.device)
        return cls(X, y, None if yvar is None else yvar.expand(len(X)))

    def rows(self, which: Any) -> History:
        """Selects parsed evaluations by indices or a mask."""
        return History(self.X[which], self.y[which], None if self.yvar is None else self.yvar[which])

    def digest(self) -> str:
        """A fingerprint of the parsed evaluations."""
        parts = [None if part is None else part.tolist() for part in (self.X, self.y, self.yvar)]
        return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]


HistoryLike: TypeAlias = History | tuple[Any, ...]


def as_history(given: HistoryLike) -> History:
    """Converts (X, y), (X, y, yvar) or (X, y, yvar, c) to a ``History``; raises ``TypeError`` for anything else."""
    if isinstance(given, History):
        return given
    if not isinstance(given, tuple | list) or not 2 <= len(given) <= len(fields(History)):
        raise TypeError(f"history must be a pair (X, y) or a History, got {type(given).__name__}")
    return History(*given)


def _rows(y: Any, c: Any, n: int) -> Tensor:
    f, c = parse_values(y, n)[:, None], numeric("history: c", c).double().cpu()
    if c.ndim == 0 or len(c) != n:
        raise ValueError(f"history: c must have {n} rows, one for each point, got shape {tuple(c.shape)}")
    return torch.cat([f, c.reshape(n, -1) if n else c.new_empty(0, 1)], dim=1)


def reference_point(x0: Any, history: HistoryLike | None, bounds: BoundsLike | None) -> Tensor:
    """Returns a point with the run's dimension, dtype and device: x0, the box's middle, or the history's first point.

    Raises:
        ValueError: if none of these exists.
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
    """Evaluations from outside a run that the run's model uses.

    Attributes:
        points: the points in search coordinates, ``n x d``.
        values: f, shape ``n``, NaN for a failed evaluation; with constraints rows (f, c), ``n x 1 + m``.
        totals: f + ψ, shape ``n``; NaN for a failed evaluation, inf at a point that is infeasible or out of bounds.
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
    """Selects the evaluations that belong to a run's problem, and computes their totals and feasibility.

    Points are left out if a variable with equal bounds has another value there, or a ``log`` variable is not positive.

    Args:
        given: the evaluations.
        domain: the box, or None.
        psi: ψ of a point in user units, or None.
        known: the constraints, or None.
        feasibility: the feasibility of the run so far, or None.
        tolerance: see ``Feasibility.told``.

    Returns:
        The selected evaluations, once as given and once as ``DataAtHand``, and the updated feasibility.

    Raises:
        ValueError: if an integer variable has a value that is not whole.
    """
    inside = torch.ones(len(given.X), dtype=torch.bool, device=given.X.device)
    if domain is not None:
        if domain.space is not None and not torch.equal(domain.space.rounded(given.X), given.X):
            raise ValueError(
                "history: X has values that are not whole for variables with integrality; leave out these rows"
            )
        fixed = domain.lower == domain.upper
        belongs = (given.X[:, fixed] == domain.lower[fixed]).all(dim=1)
        belongs &= torch.isfinite(domain.to_search(given.X)).all(dim=1)
        if not bool(belongs.all()):
            logger.warning(
                "%d of %d given evaluations are left out: a variable with equal bounds has another value, "
                "or a variable with log=True is not positive",
                int((~belongs).sum()),
                len(belongs),
            )
        given = given.rows(belongs)
        inside = domain.contains(given.X)
    points, values = given.X if domain is None else domain.to_search(given.X), given.y
    totals = (values if values.ndim == 1 else values[:, 0]).clone()
    if known is not None and feasibility is not None:
        chosen = inside.nonzero().flatten().cpu()
        places, rows = [(-1, i) for i in chosen.tolist()], values.cpu()
        sizes = known.parse(rows, len(rows), feasibility.sizes)[1]
        told = replace(feasibility, sizes=sizes).told(known, rows[chosen], given.X[chosen], places, 0, tolerance)
        totals[chosen], feasibility = told[1].to(totals), replace(told[2], violations=feasibility.violations)
    elif psi is not None:
        for i in torch.isfinite(values).nonzero().flatten().tolist():
            totals[i] += float(psi(given.X[i]))
    totals[~inside & torch.isfinite(totals)] = math.inf
    return given, DataAtHand(points, values, totals, given.yvar), feasibility
