"""The window of a trajectory: the queries nearest to the current point, with their factor.

References:
    Y. Shu et al., Zeroth-order optimization with trajectory-informed derivative estimation, ICLR 2023 (ZoRD).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from surrogates.checks import nonnegative, positive
from surrogates.compiled import compiled
from surrogates.kernels.stationary import RadialProfile
from surrogates.linalg.cholesky import NotPositiveDefiniteError, factor, not_definite
from surrogates.threads import small_algebra
from surrogates.window.nearest_search import assign_slots, row_squared_distances
from surrogates.window.trajectory import Trajectory

# Number of replaced rows after which the factor is recomputed even if no error was found.
_REBUILD_AFTER = 64


class NearestWindow:
    """The min(size, n) queries nearest to a point, with their distances and factor (ZoRD, Appx. C.1: 150).

    Each of k queries has a slot. A move replaces the m queries that leave by new queries, in O(mkd) for the distances,
    and updates the Cholesky factor of

        A = h(D/ℓ²) + s² I,   Dᵢⱼ = ‖Xᵢ − Xⱼ‖²

    in O(k²) per query, unless a new factor is faster. A new factor is also computed after 64 updates, and if A z and L
    Lᵀ z differ by more than rounding for a fixed vector z. The order of the slots depends on the moves; ``indices`` has
    the row of each slot. While the trajectory has fewer queries than ``size``, new queries get new slots.

    Args:
        trajectory: The trajectory, which is not changed. Call ``reset`` after the trajectory has changed other than by
            appending, as by ``load_state_dict``.
        size: The largest number of slots.
        profile: h of the kernel.
        precision: 1/ℓ² > 0.
        noise: s² >= 0, the noise variance of a value.

    Raises:
        ValueError: If precision or noise is not finite or out of range.
    """

    def __init__(
        self,
        trajectory: Trajectory,
        size: int,
        *,
        profile: RadialProfile,
        precision: float = 1.0,
        noise: float = 0.0,
    ) -> None:
        self.trajectory, self.size, self._profile = trajectory, size, profile
        self._precision, self._noise = positive("precision", precision), nonnegative("noise", noise)
        loops = compiled("surrogates.kernels.one_pass_numba")
        self.numbers: Any = None if loops is None else loops.numbers_of(profile)
        self.reset()

    def reset(self) -> None:
        """Removes all queries from the window."""
        double: dict[str, Any] = {"dtype": torch.float64, "device": self.trajectory.device}
        self._slots = np.empty(0, dtype=np.int64)
        self._X = torch.empty(self.size, self.trajectory.d, dtype=self.trajectory.dtype, device=self.trajectory.device)
        self._D = torch.zeros(self.size, self.size, **double)
        self._A = torch.zeros(self.size, self.size, **double)
        with small_algebra(self.size):
            self._probe = torch.arange(self.size, **double).cos_()
        self._L: Tensor | None = None
        self._replaced = 0
        self._distances: Tensor | None = None

    def __len__(self) -> int:
        """The number of slots in use, k."""
        return len(self._slots)

    @property
    def indices(self) -> Tensor:
        """The row of the trajectory that is in each slot, ``k``, int64."""
        return torch.tensor(self._slots, device=self.trajectory.device)

    @property
    def rows(self) -> np.ndarray:
        """``indices`` as a NumPy array, which later moves do not modify."""
        return self._slots

    @property
    def X(self) -> Tensor:
        """The points of the queries, ``k x d``, contiguous: a view that the next move changes."""
        return self._X if len(self) == self.size else self._X[: len(self)]

    @property
    def y(self) -> Tensor:
        """The values of the queries, ``k``."""
        return self.trajectory.y[self.indices]

    @property
    def squared_distances(self) -> Tensor:
        """The scaled squared distances D/ℓ², ``k x k``, float64, symmetric with a zero diagonal."""
        return self._precision * self._D[: len(self), : len(self)]

    def gradient_squared_distances(self) -> Tensor:
        """The squared distances E = D/ℓ⁴, ``k x k``, used for traces of gradient covariances."""
        return self._precision * self.squared_distances

    @property
    def covariance(self) -> Tensor:
        """The covariance A, ``k x k``: a view that the next move changes."""
        return self._A[: len(self), : len(self)]

    @property
    def L(self) -> Tensor:
        """The lower Cholesky factor of A, ``k x k``; a ValueError before the first move."""
        if self._L is None:
            raise ValueError("the window is empty; call move_to first.")
        return self._L

    def move_to(self, x: Tensor) -> Tensor:
        """Moves the window to the queries nearest to x, ``d``, and returns the changed slots, ascending, int64.

        Raises:
            TypeError, ValueError: As in ``Trajectory.nearest``.
            NotPositiveDefiniteError: If A is not positive definite to working precision (duplicate queries without
                noise). The window is unchanged then.
        """
        nearest, squared = self.trajectory.nearest_beside(self._slots, self.X, x, self.size)
        changed, rows = assign_slots(self._slots, nearest)
        at = torch.from_numpy(changed).to(self._X.device)
        if not changed.size:
            self._distances = squared
            return at
        before, L = self._slots, self._L
        try:
            if not self._replace(changed, rows):
                self._write(changed, rows)
                self._refactor()
        except NotPositiveDefiniteError:
            replaced = changed[changed < len(before)]
            self._slots, self._L, self._distances = before, L, None
            self._write(replaced, before[replaced])
            raise
        if len(squared) < len(self):
            squared = torch.cat((squared, squared.new_empty(len(self) - len(squared))))
        self._distances = squared
        self._distances[at] = row_squared_distances(self._X, x, at)
        return at

    @property
    def distances(self) -> Tensor:
        """The squared distances of the queries to the point of the last move, ``k``, float64.

        Raises:
            ValueError: Before the first move, and after a failed move, ``reset``, ``roll_back`` or ``load_state_dict``.
        """
        if self._distances is None:
            raise ValueError("the window has not been moved to a point; call move_to first.")
        return self._distances

    def set_kernel(self, *, precision: float, noise: float) -> None:
        """Changes the hyper-parameters and computes a new factor; the queries stay until the next move.

        Raises:
            TypeError, ValueError: As in the constructor.
            NotPositiveDefiniteError: If A is not positive definite. Nothing changes then.
        """
        saved = {name: getattr(self, name) for name in ("_precision", "_noise", "_A", "_L", "_replaced")}
        self._precision, self._noise = positive("precision", precision), nonnegative("noise", noise)
        self._A = self._A.clone()
        try:
            if len(self):
                self._cover(slice(0, len(self)))
                self._refactor()
        except NotPositiveDefiniteError:
            self.__dict__.update(saved)
            raise

    def state_dict(self) -> dict[str, Any]:
        """The slots and the factor; the trajectory and the hyper-parameters are not included."""
        return {
            "version": 1,
            "size": self.size,
            "indices": self.indices,
            "L": None if self._L is None else self._L.clone(),
            "replaced": self._replaced,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores a state bitwise; the trajectory and the hyper-parameters must be the same as when it was saved.

        Raises:
            ValueError: If the state has another version or size, or does not fit the trajectory.
        """
        expected = {"version", "size", "indices", "L", "replaced"}
        if set(state) != expected or state["version"] != 1 or state["size"] != self.size:
            raise ValueError(
                f"the state must have {sorted(expected)}, version 1 and size {self.size}; "
                f"got {sorted(state)}, version {state.get('version')} and size {state.get('size')}."
            )
        slots, L = state["indices"].cpu().numpy(), state["L"]
        known = bool(((slots >= 0) & (slots < len(self.trajectory))).all())
        if len(slots) > self.size or len(np.unique(slots)) != len(slots) or not known:
            raise ValueError(f"the state's indices do not fit a trajectory of {len(self.trajectory)} queries.")
        if (L is None and len(slots)) or (L is not None and L.shape != (len(slots),) * 2):
            raise ValueError("the state's factor does not fit its indices.")
        self.reset()
        self._write(np.arange(len(slots)), slots)
        self._L = None if L is None else L.to(self._D).mT.contiguous().mT
        self._replaced = state["replaced"]

    def mark(self) -> tuple[Any, ...]:
        """The current state for ``roll_back``; nothing is copied."""
        return self._precision, self._noise, self._slots, self._L, self._replaced

    def roll_back(self, mark: tuple[Any, ...]) -> None:
        """Restores the state of the mark bitwise; the trajectory must still have the queries of the marked state."""
        self.reset()
        self._precision, self._noise, slots, L, replaced = mark
        self._write(np.arange(len(slots)), slots)
        self._L, self._replaced = L, replaced

    def _write(self, changed: np.ndarray, rows: np.ndarray) -> None:
        """Puts queries into slots, with their distances and covariances to all others."""
        slots = np.zeros(max(len(self._slots), changed.max(initial=-1) + 1), dtype=np.int64)
        slots[: len(self._slots)] = self._slots
        slots[changed] = rows
        for slot, row in zip(changed.tolist(), rows.tolist(), strict=True):
            self._X[slot] = self.trajectory.X[row]
        self._slots = slots
        missing = torch.ones(len(self), dtype=torch.bool, device=self._X.device)
        for slot in changed.tolist():
            missing[slot] = False
            self._D[slot, slot] = 0
            others = missing.nonzero().squeeze(-1)
            distances = row_squared_distances(self._X, self._X[slot], others)
            self._D[slot, others] = distances
            self._D[others, slot] = distances
        self._cover(torch.from_numpy(changed).to(self._X.device))

    def _cover(self, slots: Tensor | slice) -> None:
        """Writes the covariances of these slots with all, from the distances."""
        k = len(self)
        loops, D = compiled("surrogates.kernels.one_pass_numba"), self._D[slots, :k]
        if loops is None or not D.is_cpu:
            K = self._profile.h(self._precision * D).reshape(D.shape)
        else:  # bitwise equal to ``replace_rows``
            K = torch.empty(D.shape, dtype=torch.float64)
            loops.correlations(self.numbers, D.numpy(), self._precision, K.numpy())
        self._A[slots, :k] = K
        self._A[:k, slots] = K.mT
        self._A.diagonal()[:k][slots] += self._noise

    def _replace(self, changed: np.ndarray, rows: np.ndarray) -> bool:
        """Does ``_write`` and ``_refactor`` if updating the factor is faster; returns whether it did."""
        k, L, X, loops = len(self), self._L, self._X, compiled("surrogates.window.replace_rows_numba")
        if loops is None or L is None or not X.is_cpu or not _replacing_pays(k, len(changed)):
            return False
        if changed[-1] >= k or self._replaced + len(changed) > _REBUILD_AFTER:
            return False
        U = L.mT.clone(memory_format=torch.contiguous_format)
        arrays = (array.numpy() for array in (X, self._D, self._A, U, self._probe[:k]))
        kernel = (self.numbers, self._precision, self._noise)
        definite, holds = loops.replace_rows(self.trajectory.X.numpy(), changed, rows, *arrays, *kernel)
        if not definite:
            raise not_definite(k)
        self._slots = self._slots.copy()
        self._slots[changed] = rows
        self._L = U.mT
        self._replaced += len(changed)
        if not holds:
            self._refactor()
        return True

    def _refactor(self) -> None:
        self._L = factor(self.covariance)
        self._replaced = 0


def _replacing_pays(n: int, rows: int) -> bool:
    """Whether ``replace_rows`` beats a new factor: one row in 50 or fewer."""
    return 50 * rows <= n
