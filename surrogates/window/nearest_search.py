"""The k rows of a growing matrix that are nearest to a moving point, exactly, without reading every row.

Distances are always evaluated from differences, Σⱼ wⱼ (xⱼ − Xᵢⱼ)² in float64, never from ‖x‖² + ‖X‖² − 2x·X: one
pass over X reads the same memory and loses no digits however far the data lie from the origin.

Most moves need no pass. Bounds on the distance of every row to the last point asked for, less or more the step from
there, are bounds at the new point (triangle inequality); exact distances to the last few points for which a whole pass
was made (the pivots p) give |‖X − p‖ − ‖x − p‖|. Only rows are evaluated of which the bounds leave open whether they
are among the k nearest. Bounds are widened by the rounding errors of what they are made of, so the answer is that of a
whole pass, whatever was asked before.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

# Squares of differences under 1e-154 are lost to underflow, which no relative error covers.
_TINY = 1e-150
_EPS = float(np.finfo(np.float64).eps)


def _moved(lower, upper, step, slack):  # type: ignore[no-untyped-def]
    """The bounds at a point that is ``step`` away; the last terms cover rounding."""
    far = step * (1 + slack) + _TINY
    below, above = lower - far, upper + far
    return below - _EPS * (np.abs(below) + step), above + _EPS * (np.abs(above) + step)


def _raised(lower, distance, step, slack):  # type: ignore[no-untyped-def]
    """The lower bounds raised to |‖X − p‖ − ‖x − p‖| for a pivot p."""
    return np.maximum(lower, np.abs(distance - step) - (2 * slack * (distance + step) + _TINY))


def _split(lower, upper, k, kth):  # type: ignore[no-untyped-def]
    """The rows that are among the k nearest, and those that may be; kth: a bound on the k-th least of ``upper``."""
    near = np.flatnonzero(lower <= kth)
    if near.size == k:
        return near, near[:0]
    # At most k rows have bounds under this one: whichever surely has its distance there is one of the k.
    beyond = np.partition(lower[near], k)[k]
    sure = upper[near] < beyond
    return near[sure], near[~sure]


_rows: Callable[..., Any] | None = None
with contextlib.suppress(ImportError):
    import numba

    # Reassociation lets the sum use vector registers. Every row goes through the same code, so equal rows get equal
    # distances and the answer does not depend on which rows are evaluated together.
    @numba.njit(cache=True, nogil=True, fastmath={"reassoc", "nsz"})
    def _rows(X, x, weights, index, out):  # type: ignore[no-untyped-def]
        for i in range(index.shape[0]):
            row = X[index[i]]
            total = 0.0
            for j in range(x.shape[0]):
                t = np.float64(row[j]) - np.float64(x[j])
                if weights is None:
                    total += t * t
                else:
                    total += t * t * weights[j]
            out[i] = total

    _moved, _raised, _split = (numba.njit(cache=True, nogil=True)(f) for f in (_moved, _raised, _split))

_CHUNK = 1 << 16
_PIVOTS = 4


def row_squared_distances(X: Tensor, x: Tensor, weights: Tensor | None = None, index: Tensor | None = None) -> Tensor:
    """Σⱼ wⱼ (Xᵢⱼ − xⱼ)² for the rows i in ``index``, float64, from the differences.

    It is symmetric in its two points bit for bit, 0 for equal points, and the same for a row whichever other rows are
    asked for with it.

    Args:
        X: The rows, ``n x d``, contiguous.
        x: The point, ``d``.
        weights: The weights wⱼ > 0, ``d``, float64, or None for ones.
        index: The numbers of the rows, int64, or None for all of them.
    """
    if index is None:
        index = torch.arange(X.shape[0], device=X.device)
    out = torch.empty(index.shape[0], dtype=torch.float64, device=X.device)
    if _rows is not None and X.device.type == "cpu":
        _rows(X.numpy(), x.numpy(), None if weights is None else weights.numpy(), index.numpy(), out.numpy())
        return out
    chunk = max(1, (_CHUNK if X.device.type == "cpu" else 64 * _CHUNK) // max(1, X.shape[1]))
    x = x.double()
    for start in range(0, index.shape[0], chunk):
        difference = X[index[start : start + chunk]].double().sub_(x)
        square = difference.square() if weights is None else difference.square().mul_(weights)
        torch.sum(square, dim=-1, out=out[start : start + chunk])
    return out


class NearestSearch:
    """A search for the k nearest rows of a matrix that only ever grows by rows at its end.

    The state is a cache of 6 (n + d) floats: answers do not depend on it, and ``reset`` may be called at any time.
    Bounds live on the CPU, distances are evaluated where X is.
    """

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forgets every bound, as is needed after rows of X were changed."""
        self._precision: Tensor | None = None
        self._points: Tensor | None = None  # (1 + pivots) x d: the last point asked for, then the pivots
        self._lower, self._upper = np.empty(0), np.empty(0)  # bounds on the distances to the last point
        self._nearest = np.empty(0, dtype=np.int64)  # the answer there
        self._distances: list[np.ndarray] = []  # distances to each pivot
        self._oldest = 0  # the pivot that is replaced next
        self.rows_evaluated = 0

    def nearest(self, X: Tensor, x: Tensor, k: int, precision: Tensor | None = None) -> Tensor:
        """The numbers of the k rows nearest to x, int64, nearest first, ties by lower number; see ``nearest_set``."""
        index = self.nearest_set(X, x, k, precision).numpy()
        values = self._evaluate(X, x, index)
        return torch.from_numpy(index[np.lexsort((index, values))]).to(X.device)

    def nearest_set(self, X: Tensor, x: Tensor, k: int, precision: Tensor | None = None) -> Tensor:
        """The numbers of the k rows nearest to x, int64, on the CPU, ascending; ties go to the lower number.

        Args:
            X: The rows, ``n x d``, contiguous. Those of the last call must be unchanged.
            x: The point, ``d``.
            k: The number of rows asked for, 1 <= k <= n.
            precision: The weights 1/ℓⱼ² of the metric, ``d``, float64, or None for the Euclidean one.
        """
        if not _same(self._precision, precision):
            self.reset()
            self._precision = None if precision is None else precision.clone()
        n = X.shape[0]
        if self._points is None or 2 * k > n:
            return self._whole_pass(X, x, k)
        step = np.sqrt(self._evaluate(self._points[:1], x))[0]
        if not self._extend(X) or not np.isfinite(step):
            return self._whole_pass(X, x, k)
        slack = _slack(X)
        lower, upper = _moved(self._lower, self._upper, step, slack)
        squared = np.full(n, np.nan)  # of the rows that were evaluated, NaN of the others
        pivots_used, evaluated = False, 0
        kth = upper[self._nearest].max() if len(self._nearest) == k else math.inf
        while True:
            sure, doubtful = _split(lower, upper, k, kth)
            new = doubtful[np.isnan(squared[doubtful])] if evaluated else doubtful
            if not new.size:
                break
            if not pivots_used and sure.size + doubtful.size > 2 * k:
                steps = np.sqrt(self._evaluate(self._points[1:], x))
                for distance, step in zip(self._distances, steps, strict=True):
                    if np.isfinite(step):
                        lower = _raised(lower, distance, step, slack)
                pivots_used = True
                continue
            if evaluated and (2 * new.size > n or 4 * evaluated > max(n, 16 * k)):
                self.rows_evaluated += evaluated
                return self._whole_pass(X, x, k)
            many = new.size > max(k, evaluated)
            if many:  # the nearest of them may show that the others are too far
                new = new[np.argpartition(lower[new], max(k, evaluated) - 1)[: max(k, evaluated)]]
            squared[new] = self._evaluate(X, x, new)
            evaluated += new.size
            lower[new], upper[new] = _bounds(squared[new], slack)
            if not many:
                break
            kth = np.partition(upper, k - 1)[k - 1]
        self._points[0], self._lower, self._upper = x, lower, upper
        self.rows_evaluated += evaluated
        self._nearest = _smallest(squared[doubtful], doubtful, k - sure.size, sure)
        return torch.from_numpy(self._nearest.copy())

    def learn(self, x: Tensor, index: np.ndarray, squared: np.ndarray) -> None:
        """Takes squared distances of rows to the last point asked for that others have evaluated, from differences.

        They must be as near to the exact ones as d sums and products in float64 are. Those to another point are not
        taken.
        """
        if self._points is not None and torch.equal(self._points[0], x):
            self._lower[index], self._upper[index] = _bounds(squared, _slack(self._points))

    def _evaluate(self, X: Tensor, x: Tensor, index: np.ndarray | None = None) -> np.ndarray:
        rows = None if index is None else torch.from_numpy(index).to(X.device)
        return row_squared_distances(X, x, self._precision, rows).cpu().numpy()

    def _whole_pass(self, X: Tensor, x: Tensor, k: int) -> Tensor:
        """The k nearest rows from all distances, which are kept as a pivot's."""
        squared = self._evaluate(X, x)
        self.rows_evaluated += X.shape[0]
        distance = np.sqrt(squared)
        if not np.isfinite(distance).all():
            self._points = None  # overflow: nothing can be inferred from it
        elif self._points is None or not self._extend(X):
            self._points = x.repeat(2, 1)
            self._distances = [distance]
        else:
            if len(self._distances) < _PIVOTS:
                self._points = torch.cat((self._points, x.unsqueeze(0)))
                self._distances.append(distance)
            else:
                self._points[1 + self._oldest] = x
                self._distances[self._oldest] = distance
                self._oldest = (self._oldest + 1) % _PIVOTS
            self._points[0] = x
        self._lower, self._upper = _bounds(squared, _slack(X))
        candidates = np.flatnonzero(squared <= np.partition(squared, k - 1)[k - 1])
        self._nearest = _smallest(squared[candidates], candidates, k, candidates[:0])
        return torch.from_numpy(self._nearest.copy())

    def _extend(self, X: Tensor) -> bool:
        """Takes the rows that were appended: their distances to the pivots, and no bounds at the last point.

        Returns False, and changes nothing, where a distance overflows.
        """
        assert self._points is not None
        new = np.arange(self._lower.size, X.shape[0])
        if not new.size:
            return True
        distances = [np.sqrt(self._evaluate(X, pivot, new)) for pivot in self._points[1:]]
        if not all(np.isfinite(distance).all() for distance in distances):
            return False
        self._lower = np.concatenate((self._lower, np.zeros(new.size)))
        self._upper = np.concatenate((self._upper, np.full(new.size, np.inf)))
        self._distances = [np.concatenate(pair) for pair in zip(self._distances, distances, strict=True)]
        return True


def _slack(X: Tensor) -> float:
    """Twice a bound on the relative rounding error of a distance, which is (d/2 + 3) units of 2⁻⁵³, and some room."""
    return (X.shape[1] + 16) * _EPS


def _bounds(squared: np.ndarray, slack: float) -> tuple[np.ndarray, np.ndarray]:
    """The bounds of distances whose squares were evaluated."""
    distance = np.sqrt(squared)
    return distance * (1 - slack) - _TINY, distance * (1 + slack) + _TINY


def _smallest(squared: np.ndarray, index: np.ndarray, k: int, others: np.ndarray) -> np.ndarray:
    """The k entries of ``index`` with the smallest values, ties by lower index, and the others; ascending."""
    return np.sort(np.concatenate((others, index[np.lexsort((index, squared))[:k]])))


def _same(a: Tensor | None, b: Tensor | None) -> bool:
    if a is None or b is None:
        return a is b
    return torch.equal(a, b)
