"""Exact search for the k rows of a growing matrix nearest to a moving point, without reading every row.

Distances are computed from differences, Σⱼ (xⱼ − Xᵢⱼ)² in float64, and not from ‖x‖² + ‖X‖² − 2x·X, which loses digits
if the data are far from the origin.

Most moves do not need all distances. By the triangle inequality, bounds on the distances to an earlier point, widened
by the step from this point, hold at the new point. Lower bounds are kept for the last few points, because a path that
turns back may be closer to an older point than to the last one. Distances are computed only for rows that the bounds do
not decide. The bounds include rounding errors, so that the result equals that of a full search.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

# Squares of differences under 1e-154 are lost to underflow, which no relative error covers.
_TINY = 1e-150
_EPS = float(np.finfo(np.float64).eps)
_CHUNK = 1 << 16
# The number of last points whose lower bounds are kept, and of the nearest of them whose bounds are used.
_POINTS, _NEAR = 12, 3


def _split(lower, upper, k, kth):  # type: ignore[no-untyped-def]
    """The rows that are among the k nearest, and those that may be; ``kth`` bounds the k-th least of ``upper``."""
    near = np.flatnonzero(lower <= kth)
    if near.size == k:
        return near, near[:0]
    # At most k rows have lower bounds below this one: a row with a smaller distance is one of the k.
    beyond = np.partition(lower[near], k)[k]
    sure = upper[near] < beyond
    return near[sure], near[~sure]


def _smallest(squared, index, k):  # type: ignore[no-untyped-def]
    """The k entries of ``index``, ascending, with the smallest values; ties go to the lower ones."""
    if not 0 < k < index.size:
        return index[:k]
    last = np.partition(squared, k - 1)[k - 1]
    less = squared < last
    tied = np.flatnonzero(squared == last)
    less[tied[: k - less.sum()]] = True
    return index[less]


def _bound(lower, upper, index, squared, slack):  # type: ignore[no-untyped-def]
    """Sets the bounds of rows whose squared distances were evaluated."""
    distances = np.sqrt(squared)
    lower[index] = distances * (1 - slack) - _TINY
    upper[index] = distances * (1 + slack) + _TINY


def _search(X, x, k, slack, points, lowers, uppers, last, nearest, held, copies):  # type: ignore[no-untyped-def]
    """The k nearest rows, ascending, and x at the next place of ``points``; also the number of other rows read.

    If a full pass costs less, no rows are returned. The third result is the squared distances of the rows held.

    Args:
        X: The rows, ``n x d``.
        x: The point.
        k: The number of rows wanted.
        slack: Twice a bound on a distance's relative rounding error.
        points: The last points, in a ring.
        lowers: Lower bounds at each of them, ``len(points) x at least n``.
        uppers: Upper bounds at the last one, at least ``n``; afterwards those at x.
        last: Its place among the points.
        nearest: The answer there.
        held: The indices of rows with copies.
        copies: These rows, contiguous.
    """
    n, of_held = X.shape[0], np.empty(held.size)
    evaluate_rows(copies, x, np.arange(held.size), of_held)
    squares = np.empty(points.shape[0])
    evaluate_rows(points, x, np.arange(points.shape[0]), squares)
    if not np.isfinite(squares).all():
        return nearest[:0], 0, of_held
    steps = np.sqrt(squares)
    far = steps * (1 + 2 * slack) + _TINY
    upper = uppers[:n] * (1 + 4 * _EPS) + far[last]
    lower = np.zeros(n)
    for _ in range(_NEAR):
        i = steps.argmin()
        raise_bounds(lower, lowers[i, :n], far[i])
        steps[i] = np.inf
    _bound(lower, upper, held, of_held, slack)
    kth = upper[nearest].max() if nearest.size == k else np.inf
    squared = np.full(n, np.nan)  # NaN for rows whose distances are unknown
    squared[held] = of_held
    evaluated = 0
    while True:
        sure, doubtful = _split(lower, upper, k, kth)
        new = doubtful[np.isnan(squared[doubtful])]
        if not new.size:
            break
        if evaluated and (2 * new.size > n or 4 * evaluated > max(n, 16 * k)):
            return nearest[:0], evaluated, of_held
        most = max(k, evaluated)
        many = new.size > most
        if many:  # the nearest of these rows may show that the others are too far
            new = _smallest(lower[new], new, most)
        values = np.empty(new.size)
        evaluate_rows(X, x, new, values)
        squared[new] = values
        evaluated += new.size
        _bound(lower, upper, new, values, slack)
        if not many:
            break
        kth = np.partition(upper, k - 1)[k - 1]
    after = (last + 1) % points.shape[0]
    points[after], lowers[after, :n], uppers[:n] = x, lower, upper
    found = _smallest(squared[doubtful], doubtful, k - sure.size)
    return np.sort(np.concatenate((sure, found))), evaluated, of_held


def assign_slots(slots, wanted):  # type: ignore[no-untyped-def]
    """The slots that change, ascending, and the new row of each.

    Args:
        slots: The current row of each slot.
        wanted: The rows that the slots shall hold, ascending.
    """
    at = np.minimum(np.searchsorted(wanted, slots), len(wanted) - 1)
    stays = wanted[at] == slots
    new = np.ones(len(wanted), dtype=np.bool_)
    new[at[stays]] = False
    left, came = np.flatnonzero(~stays), wanted[new]
    return np.concatenate((left, np.arange(len(slots), len(slots) + len(came) - len(left)))), came


def raise_bounds(lower, there, far):  # type: ignore[no-untyped-def]
    """Raises lower bounds to those that follow from the bounds ``there`` at a point at distance ``far``."""
    np.maximum(lower, there * (1 - 4 * _EPS) - far, out=lower)


def evaluate_rows_by_torch(X, x, index, out):  # type: ignore[no-untyped-def]
    """Writes Σⱼ (Xᵢⱼ − xⱼ)² for the rows i in ``index`` to ``out``; all arguments are arrays."""
    _evaluate_in_chunks(*map(torch.from_numpy, (X, x, index, out)))


def _evaluate_in_chunks(X: Tensor, x: Tensor, index: Tensor, out: Tensor) -> None:
    """``evaluate_rows_by_torch`` for tensors on any device."""
    chunk = max(1, (_CHUNK if X.device.type == "cpu" else 64 * _CHUNK) // max(1, X.shape[1]))
    x = x.double()
    for start in range(0, index.shape[0], chunk):
        square = X[index[start : start + chunk]].double().sub_(x).square()
        torch.sum(square, dim=-1, out=out[start : start + chunk])


evaluate_rows: Callable[..., None] = evaluate_rows_by_torch
with contextlib.suppress(ImportError):
    import numba

    # Memory serves four streams of rows faster than one. Reassociation lets the sums use vector registers. Every row is
    # processed by the same code, so that equal rows have equal distances and the answer does not depend on which rows
    # are evaluated together. ``reordered_numba`` explains the order of the sums.
    @numba.njit(cache=True, nogil=True, fastmath={"reassoc", "nsz"}, forceinline=True)
    def _four(a, b, c, d, x):  # type: ignore[no-untyped-def]
        total_a = total_b = total_c = total_d = 0.0
        for j in range(x.shape[0]):
            xj = np.float64(x[j])
            t = np.float64(a[j]) - xj
            total_a += t * t
            t = np.float64(b[j]) - xj
            total_b += t * t
            t = np.float64(c[j]) - xj
            total_c += t * t
            t = np.float64(d[j]) - xj
            total_d += t * t
        return total_a, total_b, total_c, total_d

    @numba.njit(cache=True, nogil=True)
    def evaluate_rows(X, x, index, out):  # type: ignore[no-untyped-def]  # noqa: D103
        last = index.shape[0] - 1
        for i in range(0, last + 1, 4):
            j, k, m = min(i + 1, last), min(i + 2, last), min(i + 3, last)
            out[i], out[j], out[k], out[m] = _four(X[index[i]], X[index[j]], X[index[k]], X[index[m]], x)

    @numba.njit(cache=True, nogil=True)
    def raise_bounds(lower, there, far):  # type: ignore[no-untyped-def]  # noqa: D103
        for i in range(lower.size):  # NumPy's maximum has branches for NaN
            bound = there[i] * (1 - 4 * _EPS) - far
            lower[i] = bound if bound > lower[i] else lower[i]

    assign_slots, _split, _smallest, _bound, _search = (
        numba.njit(cache=True, nogil=True)(f) for f in (assign_slots, _split, _smallest, _bound, _search)
    )


def row_squared_distances(X: Tensor, x: Tensor, index: Tensor | None = None) -> Tensor:
    """The squared distances Σⱼ (Xᵢⱼ − xⱼ)² from x to the rows i in ``index``, float64, shape ``len(index)``.

    A distance is bitwise independent of the other rows in ``index``, and unchanged if the row and x are swapped.

    Args:
        X: The rows, ``n x d``, contiguous.
        x: The point, ``d``.
        index: The indices of the rows, int64, or None for all rows.
    """
    index = torch.arange(len(X), device=X.device) if index is None else index
    out = torch.empty(len(index), dtype=torch.float64, device=X.device)
    if X.is_cpu:
        evaluate_rows(X.numpy(), x.numpy(), index.numpy(), out.numpy())
    else:
        _evaluate_in_chunks(X, x, index, out)
    return out


class NearestSearch:
    """A search for the k nearest rows of a matrix to which rows are only appended.

    The object caches about 12 (2n + d) floats, or none if X is not on the CPU. Results do not depend on the cache.

    Args:
        few: The largest n d without bounds. All distances take no longer there, and the loops with bounds need seconds
            to compile.
    """

    def __init__(self, few: int = 1 << 14) -> None:
        self._few = few
        self._n = 0  # rows that have bounds; 0: none
        self._points = np.empty((0, 0))  # the last points, as in ``_search``
        self._lowers, self._upper = np.empty((0, 0)), np.empty(0)
        self._last = 0
        self._nearest = np.empty(0, dtype=np.int64)  # the answer at the last point
        self.rows_evaluated = 0

    def nearest(self, X: Tensor, x: Tensor, k: int) -> Tensor:
        """The indices of the k rows nearest to x, int64, nearest first; equal distances are ordered by index."""
        found, _ = self.nearest_beside(X, x, k, np.empty(0, dtype=np.int64), X[:0])
        index = torch.from_numpy(found).to(X.device)
        return index[row_squared_distances(X, x, index).argsort(stable=True)]

    def nearest_beside(
        self, X: Tensor, x: Tensor, k: int, held: np.ndarray, copies: Tensor
    ) -> tuple[np.ndarray, Tensor]:
        """The indices of the k rows nearest to x, int64, ascending, and squared distances from x to the rows ``held``.

        Ties go to the lower index. The squared distances equal those from ``row_squared_distances``.

        Args:
            X: The rows, ``n x d``, contiguous. The rows of the last call must be unchanged.
            x: The point, ``d``.
            k: The number of nearest rows, 1 <= k <= n.
            held: The indices of rows that the caller has copied.
            copies: Contiguous copies of the rows ``held``, which are faster to read than X.

        Raises:
            ValueError: If x is not finite.
        """
        if X.is_cpu and self._n and 2 * k <= len(X):
            self._extend(len(X))
            state = (self._points, self._lowers, self._upper, self._last, self._nearest)
            point = (X.numpy(), x.numpy(), k, _slack(X.shape[1]))
            found, evaluated, squared = _search(*point, *state, held, copies.numpy())
            self.rows_evaluated += evaluated
            if found.size:
                self._nearest, self._last = found, (self._last + 1) % _POINTS
                return found.copy(), torch.from_numpy(squared)
        return self._whole_pass(X, x, k).copy(), row_squared_distances(copies, x)

    def _whole_pass(self, X: Tensor, x: Tensor, k: int) -> np.ndarray:
        """The k nearest rows from all distances."""
        squared = row_squared_distances(X, x).cpu().numpy()
        if not (finite := bool(np.isfinite(squared).all())) and not bool(torch.isfinite(x).all()):
            raise ValueError("x must be finite, got NaN or infinity.")
        self.rows_evaluated += len(X)
        n, d = X.shape
        smallest = getattr(_smallest, "py_func", _smallest)  # NumPy's partition is compiled already
        self._nearest = smallest(squared, np.arange(n), k)
        if not X.is_cpu or not finite or n * d <= self._few:
            self._n = 0  # distances that overflow give no bounds
            return self._nearest
        if not self._n:
            self._points, self._lowers = np.repeat(x.numpy()[None], _POINTS, axis=0), np.zeros((_POINTS, 2 * n))
            self._upper = np.empty(2 * n)
        self._extend(n)
        self._last = (self._last + 1) % _POINTS
        self._points[self._last] = x.numpy()
        _bound(self._lowers[self._last], self._upper, np.arange(n), squared, _slack(d))
        return self._nearest

    def _extend(self, n: int) -> None:
        """Adds appended rows, whose distances are unknown."""
        if n > len(self._upper):
            larger = np.empty((_POINTS + 1, 2 * n))
            larger[:-1, : self._n], larger[-1, : self._n] = self._lowers[:, : self._n], self._upper[: self._n]
            self._lowers, self._upper = larger[:-1], larger[-1]
        self._lowers[:, self._n : n], self._upper[self._n : n] = 0.0, np.inf
        self._n = n


def _slack(d: int) -> float:
    """Twice a bound on the relative rounding error of a distance, which is (d/2 + 3) units of 2⁻⁵³, with a margin."""
    return (d + 16) * _EPS
