"""Rows and Cholesky factors in storage that doubles when it is full, so that appending rarely copies."""

from __future__ import annotations

import torch
from torch import Tensor

from surrogates.linalg.cholesky import schur_factor
from surrogates.threads import small_algebra

_BLOCK = 256


class GrowingRows:
    """A matrix to which rows are appended at constant amortised cost; earlier views keep their values.

    Attributes:
        rows: All rows, ``n x ...``: a view that must not be written to.

    Args:
        rows: The initial rows, ``n x ...``, which are copied.
        capacity: The number of rows for which storage is allocated at first.
    """

    def __init__(self, rows: Tensor, capacity: int) -> None:
        self._length = rows.shape[0]
        self._storage = rows.new_empty(max(capacity, self._length), *rows.shape[1:])
        self._storage[: self._length] = rows
        self.rows = self._storage[: self._length]

    def __len__(self) -> int:
        """The number of rows."""
        return self._length

    def append(self, rows: Tensor) -> None:
        """Appends m rows, ``m x ...``, converted to the dtype of the earlier rows."""
        end = self._length + rows.shape[0]
        if end > self._storage.shape[0]:
            grown = self._storage.new_empty(max(2 * self._storage.shape[0], end), *self._storage.shape[1:])
            with small_algebra(grown.numel()):
                grown[: self._length] = self.rows
            self._storage = grown
        self._storage[self._length : end] = rows
        self._length, self.rows = end, self._storage[:end]

    def truncate(self, length: int) -> None:
        """Removes all rows beyond the first ``length``."""
        self._length = min(length, self._length)
        self.rows = self._storage[: self._length]


class GrowingCholesky:
    """The lower Cholesky factor L of a matrix A = L Lᵀ to which rows are appended, in float64.

    Appending a row to n rows takes one triangular solve, n² operations, instead of n³/3 for a new factor.

    Args:
        capacity: The number of rows for which storage is allocated at first.
        device: The device of the factor.
    """

    def __init__(self, *, capacity: int = 64, device: torch.device | str | None = None) -> None:
        self._n = 0
        self._storage = torch.zeros(capacity, capacity, dtype=torch.float64, device=device)

    @classmethod
    def from_factor(cls, L: Tensor) -> GrowingCholesky:
        """Makes a growing factor from a copy of a lower factor L, ``n x n``."""
        grown = cls(capacity=2 * L.shape[0], device=L.device)
        grown._n = L.shape[0]
        grown._storage[: grown._n, : grown._n] = L.tril()
        return grown

    def __len__(self) -> int:
        """The number of rows, n."""
        return self._n

    @property
    def nbytes(self) -> int:
        """The bytes of the allocated storage."""
        return self._storage.nbytes

    @property
    def L(self) -> Tensor:
        """The factor, ``n x n``, zero above the diagonal: a view that must not be written to."""
        return self._storage[: self._n, : self._n]

    def append(self, K_new_old: Tensor, K_new_new: Tensor) -> None:
        """Appends m rows and columns to A, and extends L.

        Args:
            K_new_old: The entries of the new rows in the existing columns, ``m x n``.
            K_new_new: The entries of the new rows in the new columns, ``m x m``.

        Raises:
            NotPositiveDefiniteError: If the larger matrix is not positive definite; nothing is appended then.
            ValueError: If shapes do not match.
        """
        K_new_old, K_new_new = K_new_old.double(), K_new_new.double()
        n, m = self._n, K_new_new.shape[-1]
        if K_new_old.shape != (m, n) or K_new_new.shape != (m, m) or not m:
            raise ValueError(
                f"Rows to append to a factor of order {n} must be of shapes m x {n} and m x m, got "
                f"{tuple(K_new_old.shape)} and {tuple(K_new_new.shape)}."
            )
        below = self.half_solve(K_new_old.mT)
        corner = schur_factor(K_new_new - below.mT @ below, K_new_new.diagonal(), n + m)
        if n + m > self._storage.shape[0]:
            rows = max(2 * self._storage.shape[0], n + m)
            grown = self._storage.new_zeros(rows, rows)
            grown[:n, :n] = self.L
            self._storage = grown
        self._storage[n : n + m, :n] = below.mT
        self._storage[n : n + m, n : n + m] = corner
        self._n += m

    def half_solve(self, B: Tensor) -> Tensor:
        """Solves L Y = B for Y, with B of ``n`` or ``n x m``."""
        X = (B.unsqueeze(-1) if B.ndim == 1 else B).to(torch.float64, copy=True)
        # A triangular solve copies a matrix that is not contiguous, as the whole factor; blocks are small.
        for i in range(0, self._n, _BLOCK):
            block = slice(i, min(i + _BLOCK, self._n))
            if i:
                X[block] -= self.L[block, :i] @ X[:i]
            X[block] = torch.linalg.solve_triangular(self.L[block, block], X[block], upper=False)
        return X.reshape(B.shape)

    def solve(self, B: Tensor) -> Tensor:
        """Solves A Y = B for Y, with B of ``n`` or ``n x m``."""
        X = self.half_solve(B.unsqueeze(-1) if B.ndim == 1 else B)
        for i in reversed(range(0, self._n, _BLOCK)):
            block = slice(i, min(i + _BLOCK, self._n))
            if block.stop < self._n:
                X[block] -= self.L[block.stop :, block].mT @ X[block.stop :]
            X[block] = torch.linalg.solve_triangular(self.L[block, block].mT, X[block], upper=True)
        return X.reshape(B.shape)
