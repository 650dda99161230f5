"""The history of queries of one optimizer or client.

References:
    Y. Shu et al., Zeroth-order optimization with trajectory-informed derivative estimation, ICLR 2023 (ZoRD).
"""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from typing import Any

import numpy as np
import torch
from torch import Tensor

from surrogates.checks import positive_integer
from surrogates.linalg.growing import GrowingRows
from surrogates.window.nearest_search import NearestSearch


class Trajectory:
    """The list of all queries of a run, to which queries are appended at constant amortised cost.

    Failed queries (y NaN or infinite) are stored separately, and models do not use them. ``X`` and ``y`` are views into
    storage that doubles when it is full; earlier views keep their values. Values are float64 for every dtype of X,
    because gradients are computed from differences of values.

    Args:
        d: The dimension of the inputs.
        dtype: The dtype of X, torch.float64 or torch.float32.
        device: The device of X and y. None means the CPU.
        capacity: The number of rows for which storage is allocated at first.

    Raises:
        TypeError: If d or capacity is not an integer, or dtype is not torch.float64 or torch.float32.
        ValueError: If d or capacity is not positive.
    """

    def __init__(
        self,
        d: int,
        *,
        dtype: torch.dtype = torch.float64,
        device: torch.device | str | None = None,
        capacity: int = 64,
    ) -> None:
        self.d = positive_integer("d", d)
        capacity = positive_integer("capacity", capacity)
        if dtype not in (torch.float32, torch.float64):
            raise TypeError(f"dtype must be torch.float32 or torch.float64, got {dtype}.")
        points = torch.empty(0, self.d, dtype=dtype, device=torch.device("cpu" if device is None else device))
        self.dtype, self.device = points.dtype, points.device
        self._X, self._failed_X = GrowingRows(points, capacity), GrowingRows(points, 0)
        self._y = GrowingRows(points.new_empty(0, dtype=torch.float64), capacity)
        self._search = NearestSearch()

    def __len__(self) -> int:
        """The number of successful queries, n."""
        return len(self._X)

    def __contains__(self, x: Tensor) -> bool:
        """Whether a query at x, ``d``, has been appended, including failed ones."""
        return any(bool((x == X[X[:, 0] == x[0]]).all(dim=1).any()) for X in (self.X, self.failed_X))

    def __repr__(self) -> str:
        """n, d and the further contents."""
        return (
            f"Trajectory(n = {len(self)} queries ({self.failures} more failed), d = {self.d}, {self.dtype}, "
            f"{self.device}; values in f's units)"
        )

    @property
    def X(self) -> Tensor:
        """The inputs, ``n x d``, in the order of appending: a view that must not be written to."""
        return self._X.rows

    @property
    def y(self) -> Tensor:
        """The values, ``n``, all finite: a view that must not be written to."""
        return self._y.rows

    @property
    def failed_X(self) -> Tensor:
        """The inputs of failed queries, in the order of appending."""
        return self._failed_X.rows

    @property
    def failures(self) -> int:
        """The number of failed queries."""
        return len(self._failed_X)

    def append(self, X: Tensor, y: Tensor | float) -> int:
        """Appends one query or several; nothing is appended if an error is raised.

        Args:
            X: The inputs, ``m x d``, or ``d`` for one query.
            y: The values, ``m``, or a number for one query. NaN and infinities are failures.

        Returns:
            The number of failed queries among the m.

        Raises:
            TypeError: If X has another dtype or device than the trajectory, or y is not real or on another device.
            ValueError: If shapes differ, or X is not finite.
        """
        X = self._check_points(X)
        y = self._check_values(y, X.shape[0])
        failed = ~torch.isfinite(y)
        count = int(failed.sum())
        if count:
            self._failed_X.append(X[failed])
            X, y = X[~failed], y[~failed]
        self._X.append(X)
        self._y.append(y)
        return count

    def nearest(self, x: Tensor, k: int) -> Tensor:
        """The rows of the k queries nearest to x in the Euclidean metric, nearest first; ties are ordered by row.

        The result is exact, from float64 differences, and independent of earlier calls. A call near a point of an
        earlier call computes only few distances more than k (``surrogates.window.nearest_search``).

        Args:
            x: The point, ``d``.
            k: The number of queries; if k > n, all n are returned.

        Returns:
            The row indices, min(k, n), int64.

        Raises:
            TypeError: If x is not a tensor of the trajectory's dtype and device, or k is not an integer.
            ValueError: If the trajectory is empty, k < 1, shapes differ, or x is not finite.
        """
        return self._search.nearest(self.X, *self._checked(x, k))

    def nearest_beside(self, held: np.ndarray, copies: Tensor, x: Tensor, k: int) -> tuple[np.ndarray, Tensor]:
        """The rows that ``nearest`` returns, in ascending order, and the squared distances from x to the rows ``held``.

        ``copies`` is a contiguous copy of the rows ``held``, faster to read than X. Errors are as in ``nearest``.
        """
        return self._search.nearest_beside(self.X, *self._checked(x, k), held, copies)

    def _checked(self, x: Tensor, k: int) -> tuple[Tensor, int]:
        """The point and the number of rows."""
        self._require_data()
        self._check_kind(x)
        if x.shape != (self.d,):
            raise ValueError(f"x must be one point, of shape ({self.d},), got {tuple(x.shape)}.")
        return x.detach().contiguous(), min(positive_integer("k", k), len(self))

    def state_dict(self) -> dict[str, Any]:
        """Copies of all queries, for ``load_state_dict``."""
        return {
            "version": 1,
            "d": self.d,
            "X": self.X.clone(),
            "y": self.y.clone(),
            "failed_X": self.failed_X.clone(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores a state bitwise, on this trajectory's device; nothing changes if an error is raised.

        Raises:
            ValueError: If the state has another version or dimension, or is inconsistent.
            TypeError: If the state has another dtype than the trajectory.
        """
        expected = {"version", "d", "X", "y", "failed_X"}
        state = {name: part for name, part in state.items() if name != "noise" or part is not None}  # in older states
        if set(state) != expected or state["version"] != 1 or state["d"] != self.d:
            raise ValueError(
                f"the state must have {sorted(expected)}, version 1 and dimension {self.d}; got "
                f"{sorted(state)}, version {state.get('version')} and dimension {state.get('d')}."
            )
        X, y, failed_X = (state[name].to(self.device) for name in ("X", "y", "failed_X"))
        other = Trajectory(self.d, dtype=self.dtype, device=self.device, capacity=max(1, len(X)))
        if len(X) and other.append(X, y):
            raise ValueError("the state's y has values that are not finite.")
        if len(failed_X):
            other.append(failed_X, torch.full(failed_X.shape[:1], torch.nan, device=self.device))
        self.__dict__.update(other.__dict__)

    def mark(self) -> tuple[int, int]:
        """The current numbers of queries, for ``roll_back``."""
        return len(self._X), len(self._failed_X)

    def roll_back(self, mark: tuple[int, int]) -> None:
        """Removes all queries appended since the mark."""
        succeeded, failed = mark
        self._failed_X.truncate(failed)
        for rows in (self._X, self._y):
            rows.truncate(succeeded)
        self._search = NearestSearch()

    def _require_data(self) -> None:
        if not len(self):
            raise ValueError(f"the trajectory has no successful query ({self.failures} failed); append one first.")

    def _check_kind(self, X: Tensor) -> None:
        if not isinstance(X, Tensor):
            raise TypeError(f"points must be a torch tensor, got {type(X).__name__}.")
        if X.dtype != self.dtype or X.device != self.device:
            raise TypeError(f"points must be {self.dtype} on {self.device}, got {X.dtype} on {X.device}.")

    def _check_points(self, X: Tensor) -> Tensor:
        self._check_kind(X)
        X = X.detach()
        if X.ndim == 1:
            X = X.unsqueeze(0)
        if X.ndim != 2 or X.shape[1] != self.d:
            raise ValueError(f"points must be of shape m x {self.d} or {self.d}, got {tuple(X.shape)}.")
        # A finite sum proves that every term is; an infinite one may be overflow.
        if not isfinite(float(X.sum())) and not torch.isfinite(X).all():
            raise ValueError("points must be finite, got NaN or infinity.")
        return X.contiguous()

    def _check_values(self, values: Tensor | float, m: int) -> Tensor:
        if not isinstance(values, Tensor):
            if isinstance(values, bool | complex) or not hasattr(values, "__float__"):
                raise TypeError(f"y must be a torch tensor or a number, got {type(values).__name__}.")
            values = torch.tensor(float(values), dtype=torch.float64, device=self.device)
        if not values.dtype.is_floating_point or values.device != self.device:
            raise TypeError(f"y must be real on {self.device}, got {values.dtype} on {values.device}.")
        values = values.detach().double()
        if values.ndim == 0 and m == 1:
            return values.expand(1)
        if values.shape != (m,):
            raise ValueError(f"y must be of shape ({m},) for {m} points, got {tuple(values.shape)}.")
        return values
