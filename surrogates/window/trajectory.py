"""The history of queries of one optimizer or client.

References:
    Y. Shu et al., Zeroth-order optimization with trajectory-informed derivative estimation, ICLR 2023 (ZoRD).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from surrogates.linalg.growing import GrowingRows
from surrogates.window.nearest_search import NearestSearch

_CAPACITY = 64


class Trajectory:
    """The list of all queries of a run, to which queries are appended at constant amortised cost.

    Failed queries (y NaN or infinite) are stored separately, and models do not use them. ``X`` and ``y`` are views into
    storage that doubles when it is full; earlier views keep their values. Values are float64 for every dtype of X,
    because gradients are computed from differences of values.

    Args:
        d: The dimension of the inputs.
        dtype: The dtype of X, torch.float64 or torch.float32.
        device: The device of X and y. None means the CPU.

    Raises:
        TypeError: If dtype is not torch.float64 or torch.float32.
    """

    def __init__(self, d: int, *, dtype: torch.dtype = torch.float64, device: torch.device | str | None = None) -> None:
        if dtype not in (torch.float32, torch.float64):
            raise TypeError(f"dtype must be torch.float32 or torch.float64, got {dtype}.")
        points = torch.empty(0, d, dtype=dtype, device=torch.device("cpu" if device is None else device))
        self.d, self.dtype, self.device = d, points.dtype, points.device
        self._X, self._failed_X = GrowingRows(points, _CAPACITY), GrowingRows(points, 0)
        self._y = GrowingRows(points.new_empty(0, dtype=torch.float64), _CAPACITY)
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

    def append(self, X: Tensor, y: Tensor) -> None:
        """Appends m queries at points X, ``m x d``, with values y, ``m``; NaN and infinities are failures.

        Raises:
            ValueError: If X has another dtype or d than the trajectory, or y another length; nothing is appended.
        """
        if X.dtype != self.dtype or X.shape != (len(y), self.d):
            raise ValueError(
                f"{len(y)} queries must have {self.dtype} points of shape {len(y)} x {self.d}, got {X.dtype} of shape "
                f"{tuple(X.shape)}."
            )
        failed = ~torch.isfinite(y)
        if bool(failed.any()):
            self._failed_X.append(X[failed])
            X, y = X[~failed], y[~failed]
        self._X.append(X)
        self._y.append(y)

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
            ValueError: If the trajectory is empty, or x is not finite.
        """
        return self._search.nearest(self.X, *self._checked(x, k))

    def nearest_beside(self, held: np.ndarray, copies: Tensor, x: Tensor, k: int) -> tuple[np.ndarray, Tensor]:
        """The rows that ``nearest`` returns, in ascending order, and the squared distances from x to the rows ``held``.

        ``copies`` is a contiguous copy of the rows ``held``, faster to read than X. Errors are as in ``nearest``.
        """
        return self._search.nearest_beside(self.X, *self._checked(x, k), held, copies)

    def _checked(self, x: Tensor, k: int) -> tuple[Tensor, int]:
        """The point and the number of rows."""
        if not len(self):
            raise ValueError(f"the trajectory has no successful query ({self.failures} failed); append one first.")
        return x.detach().contiguous(), min(k, len(self))

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
            ValueError: If the state has another version, dimension or dtype, or is inconsistent.
        """
        expected = {"version", "d", "X", "y", "failed_X"}
        state = {name: part for name, part in state.items() if name != "noise" or part is not None}  # in older states
        if set(state) != expected or state["version"] != 1 or state["d"] != self.d:
            raise ValueError(
                f"the state must have {sorted(expected)}, version 1 and dimension {self.d}; got "
                f"{sorted(state)}, version {state.get('version')} and dimension {state.get('d')}."
            )
        X, y, failed_X = (state[name].to(self.device) for name in ("X", "y", "failed_X"))
        other = Trajectory(self.d, dtype=self.dtype, device=self.device)
        other.append(X, y)
        other.append(failed_X, y.new_full((len(failed_X),), torch.nan))
        if len(other) < len(X):
            raise ValueError("the state's y has values that are not finite.")
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
