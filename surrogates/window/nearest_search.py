"""The k rows of a growing matrix that are nearest to a moving point, exactly, without reading every row.

Distances are always evaluated from differences, Σⱼ wⱼ (xⱼ − Xᵢⱼ)² in float64, never from ‖x‖² + ‖X‖² − 2x·X: one
pass over X reads the same memory and loses no digits however far the data lie from the origin.

Most moves need no pass. A lower bound on the distance of every row to the last point asked for, less the step from
there, is a lower bound at the new point (triangle inequality); exact distances to the last few points for which a
whole pass was made (the pivots p) give |‖X − p‖ − ‖x − p‖|. Rows are evaluated in the order of their bounds until the
k-th smallest distance is under all bounds that are left. Bounds are widened by the rounding errors of what they are
made of, so the answer is that of a whole pass, whatever was asked before.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

# Squares of differences under 1e-154 are lost to underflow, which no relative error covers.
_TINY = 1e-150
_EPS = float(np.finfo(np.float64).eps)


def _moved(lower, step, slack):  # type: ignore[no-untyped-def]
    """The lower bounds at a point that is ``step`` away; the last term covers rounding upwards."""
    moved = lower - (step * (1 + slack) + _TINY)
    return moved - _EPS * (np.abs(moved) + step)


def _raised(lower, distance, step, slack):  # type: ignore[no-untyped-def]
    """The lower bounds raised to |‖X − p‖ − ‖x − p‖| for a pivot p."""
    return np.maximum(lower, np.abs(distance - step) - (2 * slack * (distance + step) + _TINY))


def _pending(lower, index, values, k, slack):  # type: ignore[no-untyped-def]
    """The rows not in ``index`` whose bound does not exceed the k-th smallest distance there."""
    kth = np.sqrt(np.partition(values, k - 1)[k - 1]) * (1 + slack) + _TINY
    mask = lower <= kth
    mask[index] = False
    return np.flatnonzero(mask)


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

    _moved, _raised, _pending = (numba.njit(cache=True, nogil=True)(f) for f in (_moved, _raised, _pending))

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

    The state is a cache of 5 (n + d) floats: answers do not depend on it, and ``reset`` may be called at any time.
    Bounds live on the CPU, distances are evaluated where X is.
    """

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forgets every bound, as is needed after rows of X were changed."""
        self._precision: Tensor | None = None
        self._points: Tensor | None = None  # (1 + pivots) x d: the last point asked for, then the pivots
        self._lower = np.empty(0)  # lower bounds on the distances to the last point
        self._distances: list[np.ndarray] = []  # distances to each pivot
        self._oldest = 0  # the pivot that is replaced next
        self.rows_evaluated = 0

    def nearest(
        self,
        X: Tensor,
        x: Tensor,
        k: int,
        precision: Tensor | None = None,
        held: tuple[list[int], Tensor] | None = None,
    ) -> Tensor:
        """The numbers of the k rows nearest to x, int64, nearest first, ties by lower number.

        Args:
            X: The rows, ``n x d``, contiguous. Those of the last call must be unchanged.
            x: The point, ``d``.
            k: The number of rows asked for, 1 <= k <= n.
            precision: The weights 1/ℓⱼ² of the metric, ``d``, float64, or None for the Euclidean one.
            held: At least k different row numbers and a copy of these rows, which are likely to be near. They are
                evaluated first, and from the copy, which is compact and warm in a processor's cache.
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
        lower, pivots_used = _moved(self._lower, step, slack), False
        if held is None:
            index = np.flatnonzero(lower <= np.partition(lower, k - 1)[k - 1])
            values = self._evaluate(X, x, index)
        else:
            index = np.array(held[0])
            values = self._evaluate(held[1], x)
        while True:
            candidates = _pending(lower, index, values, k, slack)
            if not candidates.size:
                break
            if not pivots_used and 4 * candidates.size > k:
                steps = np.sqrt(self._evaluate(self._points[1:], x))
                for distance, step in zip(self._distances, steps, strict=True):
                    if np.isfinite(step):
                        lower = _raised(lower, distance, step, slack)
                pivots_used = True
                continue
            if 2 * candidates.size > n or 4 * index.size > max(n, 16 * k):
                self.rows_evaluated += index.size
                return self._whole_pass(X, x, k)
            batch = max(k, index.size)
            if candidates.size > batch:
                candidates = candidates[np.argpartition(lower[candidates], batch - 1)[:batch]]
            index = np.concatenate((index, candidates))
            values = np.concatenate((values, self._evaluate(X, x, candidates)))
        lower[index] = np.sqrt(values) * (1 - slack) - _TINY
        self._points[0], self._lower = x, lower
        self.rows_evaluated += index.size
        return _smallest(values, index, k).to(X.device)

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
        self._lower = distance * (1 - _slack(X)) - _TINY
        candidates = np.flatnonzero(squared <= np.partition(squared, k - 1)[k - 1])
        return _smallest(squared[candidates], candidates, k).to(X.device)

    def _extend(self, X: Tensor) -> bool:
        """Takes the rows that were appended: their distances to the pivots, and no bound at the last point.

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
        self._distances = [np.concatenate(pair) for pair in zip(self._distances, distances, strict=True)]
        return True


def _slack(X: Tensor) -> float:
    """Twice a bound on the relative rounding error of a distance, which is (d/2 + 3) units of 2⁻⁵³, and some room."""
    return (X.shape[1] + 16) * _EPS


def _smallest(values: np.ndarray, index: np.ndarray, k: int) -> Tensor:
    """The k entries of ``index`` with the smallest values, ties by lower index."""
    return torch.from_numpy(index[np.lexsort((index, values))[:k]])


def _same(a: Tensor | None, b: Tensor | None) -> bool:
    if a is None or b is None:
        return a is b
    return torch.equal(a, b)
