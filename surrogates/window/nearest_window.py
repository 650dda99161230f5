"""A window of a trajectory's nearest queries that moves with the current point.

References:
    Y. Shu et al., Zeroth-order optimization with trajectory-informed derivative estimation, ICLR 2023 (ZoRD).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from surrogates.checks import positive_integer
from surrogates.kernels.stationary import RadialProfile
from surrogates.linalg.cholesky import NotPositiveDefiniteError, factor, not_definite
from surrogates.threads import small_algebra
from surrogates.window.nearest_search import row_squared_distances
from surrogates.window.trajectory import Trajectory
from surrogates.window.window_kernel import WindowKernel


def _assign(slots, wanted):  # type: ignore[no-untyped-def]
    """The slots that change and their new rows, in order: slots of rows that left first, then new slots.

    Args:
        slots: the row in each slot.
        wanted: the new rows, ascending.
    """
    at = np.minimum(np.searchsorted(wanted, slots), len(wanted) - 1)
    stays = wanted[at] == slots
    new = np.ones(len(wanted), dtype=np.bool_)
    new[at[stays]] = False
    left, came = np.flatnonzero(~stays), wanted[new]
    return np.concatenate((left, np.arange(len(slots), len(slots) + len(came) - len(left)))), came


replace_rows: Callable[..., tuple[bool, bool]] | None = None
with contextlib.suppress(ImportError):  # numba is the optional extra `fast`
    import numba

    _assign = numba.njit(cache=True, nogil=True)(_assign)
    from surrogates.window.replace_rows_numba import replace_rows

# Number of replaced rows after which the factor is recomputed even if no error was found.
_REBUILD_AFTER = 64


class NearestWindow:
    """The min(size, n) queries nearest to a point, with their distances and factor (ZoRD, Appx. C.1: 150).

    A move writes new rows into the slots of those that leave, and recomputes only what depends on the new rows: m k d
    operations for the distances of m rows among k, and O(k²) for the factor of

        A = o h(D) + diag(s²),   Dᵢⱼ = Σₗ (Xᵢₗ − Xⱼₗ)²/ℓₗ²

    if an update is faster than a new factor. An updated factor is compared with A on a fixed vector, and recomputed if
    they differ by more than rounding, and after every 64 rows. The order of the slots depends on the moves; ``indices``
    has the row of each. While the trajectory has fewer queries than ``size``, new ones take new slots.

    Args:
        trajectory: The history, which is not changed. After its ``load_state_dict``, or any change other than
            appending, ``reset`` must be called.
        size: The largest number of slots.
        precision: 1/ℓₗ² of the kernel, one number or ``d``. None means 1.
        profile: h of the kernel, as a ``RadialProfile`` or a function of r². None: there is no factor.
        outputscale: o > 0.
        noise: A variance >= 0 that is added to every query's own noise variance, if the trajectory has these.

    Raises:
        TypeError: If size is not an integer, a hyper-parameter not a number, or the profile not a function.
        ValueError: If size or a hyper-parameter is not finite and in its range.
    """

    def __init__(
        self,
        trajectory: Trajectory,
        size: int,
        *,
        precision: Tensor | float | None = None,
        profile: RadialProfile | Callable[[Tensor], Tensor] | None = None,
        outputscale: float = 1.0,
        noise: float = 0.0,
    ) -> None:
        self.trajectory = trajectory
        self.size = positive_integer("size", size)
        self._kernel = WindowKernel.of(trajectory, precision, profile, outputscale, noise)
        self.reset()

    def reset(self) -> None:
        """Empties every slot."""
        double: dict[str, Any] = {"dtype": torch.float64, "device": self.trajectory.device}
        self._slots = np.empty(0, dtype=np.int64)
        self._X = torch.empty(self.size, self.trajectory.d, dtype=self.trajectory.dtype, device=self.trajectory.device)
        self._D = torch.zeros(self.size, self.size, **double)
        self._A = torch.zeros(self.size, self.size, **double)
        with small_algebra(self.size):
            self._probe = torch.arange(self.size, **double).cos_()
        self._L: Tensor | None = None
        self._gradient_D: Tensor | None = None
        self._replaced = 0
        self._distances: Tensor | None = None

    def __len__(self) -> int:
        """The number of slots in use, k."""
        return len(self._slots)

    @property
    def indices(self) -> Tensor:
        """The trajectory's row in each slot, ``k``, int64."""
        return torch.tensor(self._slots, device=self.trajectory.device)

    @property
    def rows(self) -> np.ndarray:
        """``indices`` as an array, which is never modified: a move makes a new one."""
        return self._slots

    @property
    def X(self) -> Tensor:
        """The queries, ``k x d``, contiguous: a view that the next move changes."""
        return self._X if len(self) == self.size else self._X[: len(self)]

    @property
    def y(self) -> Tensor:
        """The queries' values, ``k``."""
        return self.trajectory.y[self.indices]

    @property
    def noise(self) -> Tensor:
        """s², ``k``, float64: the window's noise plus the queries' own."""
        result = torch.full((len(self),), self._kernel.noise, dtype=torch.float64, device=self.trajectory.device)
        own = self.trajectory.noise
        return result if own is None else result + own[self.indices]

    @property
    def squared_distances(self) -> Tensor:
        """D, ``k x k``, float64, symmetric with a zero diagonal."""
        return self._kernel.scaled(self._D[: len(self), : len(self)])

    def gradient_squared_distances(self) -> Tensor:
        """E, ``k x k``: the squared distances in the metric 1/ℓₗ⁴, which traces of gradient covariances need.

        It is D/ℓ² for one ℓ; d different ones cost k² d/2 operations at the first use after a move.
        """
        precision = self._kernel.precision
        if precision.ndim == 0:
            return precision * self.squared_distances
        if self._gradient_D is None:
            squared, result = precision.square(), torch.zeros_like(self.squared_distances)
            for i in range(1, len(self)):
                result[i, :i] = row_squared_distances(self._X[:i], self._X[i], squared)
            self._gradient_D = result + result.mT
        return self._gradient_D

    @property
    def covariance(self) -> Tensor:
        """A, ``k x k``, a view that the next move changes; raises a ``ValueError`` without a profile."""
        self._require_profile()
        return self._A[: len(self), : len(self)]

    @property
    def L(self) -> Tensor:
        """The lower Cholesky factor of A, ``k x k``.

        Raises:
            ValueError: If there is no profile, or before the first move.
        """
        self._require_profile()
        if self._L is None:
            raise ValueError("the window is empty: move it to a point first.")
        return self._L

    def move_to(self, x: Tensor) -> Tensor:
        """Moves the window to the queries nearest to x, ``d``, and returns the changed slots, ascending, int64.

        Raises:
            TypeError, ValueError: As ``Trajectory.nearest``.
            NotPositiveDefiniteError: If A is not positive definite to working precision (duplicate queries without
                noise). The window does not move then.
        """
        nearest, squared = self.trajectory.nearest_beside(
            (self._slots, self.X), x, self.size, self._kernel.ard_precision
        )
        changed, rows = _assign(self._slots, nearest)
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
        self._gradient_D = None
        if len(squared) < len(self):
            squared = torch.cat((squared, squared.new_empty(len(self) - len(squared))))
        self._distances = squared
        self._distances[at] = row_squared_distances(self._X, x, self._kernel.ard_precision, at)
        return at

    @property
    def distances(self) -> Tensor:
        """The squared distances of the queries to the point of the last move, ``k``, float64; in units of ℓₗ² if ARD.

        Raises:
            ValueError: Before the first move, after a failed move, and after another change of the queries or of ℓₗ.
        """
        if self._distances is None:
            raise ValueError("the window has not been moved to a point.")
        return self._distances

    def set_kernel(
        self,
        *,
        precision: Tensor | float | None,
        profile: RadialProfile | Callable[[Tensor], Tensor] | None,
        outputscale: float,
        noise: float,
    ) -> None:
        """Sets other hyper-parameters, as after a fit; the queries stay until the next move.

        Distances are recomputed if an ARD precision changes, and rescaled if both are isotropic.

        Raises:
            TypeError, ValueError: As the constructor.
            NotPositiveDefiniteError: If A is not positive definite with them. Nothing changes then.
        """
        kernel, k = WindowKernel.of(self.trajectory, precision, profile, outputscale, noise), len(self)
        saved = {name: getattr(self, name) for name in ("_kernel", "_D", "_A", "_L", "_replaced")}
        self._kernel, self._D, self._A = kernel, self._D.clone(), self._A.clone()
        try:
            if not kernel.has_metric_of(saved["_kernel"]):
                self._measure(np.arange(k))
                self._distances = None
            if k:
                self._cover(slice(0, k))
                self._refactor()
        except NotPositiveDefiniteError:
            self.__dict__.update(saved)
            raise
        self._gradient_D = None

    def state_dict(self) -> dict[str, Any]:
        """The slots and the factor; the rest follows from the trajectory and the hyper-parameters."""
        return {
            "version": 1,
            "size": self.size,
            "indices": self.indices,
            "L": None if self._L is None else self._L.clone(),
            "replaced": self._replaced,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores a state bitwise, with the same trajectory and hyper-parameters.

        Raises:
            ValueError: If the state has another version or size, or does not fit the trajectory.
        """
        expected = {"version", "size", "indices", "L", "replaced"}
        if set(state) != expected or state["version"] != 1 or state["size"] != self.size:
            raise ValueError(
                f"a NearestWindow's state has {sorted(expected)}, here of version 1 and size {self.size}; "
                f"got {sorted(state)}, version {state.get('version')} and size {state.get('size')}."
            )
        slots, L = state["indices"].cpu().numpy(), state["L"]
        known = bool(((slots >= 0) & (slots < len(self.trajectory))).all())
        if len(slots) > self.size or len(np.unique(slots)) != len(slots) or not known:
            raise ValueError(f"the state's indices do not fit a trajectory of {len(self.trajectory)} queries.")
        if (len(slots) and (L is None) != (self._kernel.h is None)) or (L is not None and L.shape != (len(slots),) * 2):
            raise ValueError("the state's factor does not fit its indices and this window's profile.")
        self.reset()
        self._write(np.arange(len(slots)), slots)
        self._L = None if L is None else L.to(self._D).mT.contiguous().mT
        self._replaced = state["replaced"]

    def mark(self) -> tuple[Any, ...]:
        """The present state, to which ``roll_back`` returns; nothing is copied."""
        return self._kernel, self._slots, self._L, self._replaced

    def roll_back(self, mark: tuple[Any, ...]) -> None:
        """Restores the state of the mark bitwise; the trajectory must still have the queries of that time."""
        self.reset()
        self._kernel, slots, L, replaced = mark
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
        if len(changed) == 1:
            slot, k = int(changed[0]), len(slots)
            distances = row_squared_distances(self.X, self._X[slot], self._kernel.ard_precision)
            self._D[slot, :k] = distances
            self._D[:k, slot] = distances
            self._cover(slice(slot, slot + 1))
            return
        self._measure(changed)
        self._cover(torch.from_numpy(changed).to(self._X.device))

    def _measure(self, changed: np.ndarray) -> None:
        """Evaluates the distances between the changed slots and all slots, each pair once."""
        missing = torch.ones(len(self), dtype=torch.bool, device=self._X.device)
        for slot in changed.tolist():
            missing[slot] = False
            self._D[slot, slot] = 0
            others = missing.nonzero().squeeze(-1)
            distances = row_squared_distances(self._X, self._X[slot], self._kernel.ard_precision, others)
            self._D[slot, others] = distances
            self._D[others, slot] = distances

    def _cover(self, slots: Tensor | slice) -> None:
        """Writes the covariances of these slots with all, from the distances."""
        if self._kernel.h is None:
            return
        k = len(self)
        K = self._kernel.covariance(self._D[slots, :k])
        self._A[slots, :k] = K
        self._A[:k, slots] = K.mT
        self._A.diagonal()[:k][slots] += self._kernel.noise if self.trajectory.noise is None else self.noise[slots]

    def _replace(self, changed: np.ndarray, rows: np.ndarray) -> bool:
        """Does ``_write`` and ``_refactor`` if updating the factor is faster; returns whether it did."""
        k, L, X, kernel = len(self), self._L, self._X, self._kernel
        if replace_rows is None or L is None or kernel.numbers is None or not X.is_cpu:
            return False
        if not _replacing_pays(k, len(changed)) or changed[-1] >= k or self._replaced + len(changed) > _REBUILD_AFTER:
            return False
        noise, own = np.full(len(rows), kernel.noise), self.trajectory.noise
        if own is not None:
            noise += own.numpy()[rows]
        U = L.mT.clone(memory_format=torch.contiguous_format)
        matrices = (matrix.numpy() for matrix in (X, self._D, self._A, U, self._probe[:k]))
        history = self.trajectory.X.numpy()
        definite, holds = replace_rows(history, changed, rows, noise, *matrices, *kernel.compiled_arguments)
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
        if self._kernel.h is None:
            self._L = None
            return
        self._L = factor(self.covariance)
        self._replaced = 0

    def _require_profile(self) -> None:
        if self._kernel.h is None:
            raise ValueError("this window has no kernel profile, hence no covariance and no factor.")


def _replacing_pays(n: int, rows: int) -> bool:
    """Whether ``replace_rows`` beats a new factor: one row in 50 or fewer."""
    return 50 * rows <= n
