"""A Cholesky factor that grows at its end, in storage that doubles."""

from __future__ import annotations

import torch
from torch import Tensor

from surrogates.linalg.cholesky import check_append, check_factor, factor, schur_factor

_BLOCK = 256


class GrowingCholesky:
    """The factor of a matrix that grows at its end, in storage that doubles when it is full.

    Appending one row to n costs a triangular solve, n² operations, against n³/3 for a new factor, and copies
    nothing but that row.

    Args:
        A: n x n to begin with, or None for n = 0.
        capacity: Rows that storage is made for at first.
        device: Where it lives if A is None.

    Raises:
        NotPositiveDefiniteError: If A is not positive definite.
    """

    def __init__(
        self, A: Tensor | None = None, *, capacity: int = 64, device: torch.device | str | None = None
    ) -> None:
        n = 0 if A is None else check_factor(A)
        rows = max(capacity, n)
        self._n = n
        self._storage = torch.zeros(rows, rows, dtype=torch.float64, device=device if A is None else A.device)
        if A is not None:
            self._storage[:n, :n] = factor(A)

    @classmethod
    def from_factor(cls, L: Tensor) -> GrowingCholesky:
        """The same from a factor that is there already, n x n lower; L is copied."""
        grown = cls(capacity=2 * check_factor(L), device=L.device)
        grown._n = L.shape[0]
        grown._storage[: grown._n, : grown._n] = L.tril()
        return grown

    def __len__(self) -> int:
        """The number of rows, n."""
        return self._n

    @property
    def L(self) -> Tensor:
        """The factor, n x n, zero above the diagonal; a view, not to be written to."""
        return self._storage[: self._n, : self._n]

    @property
    def log_determinant(self) -> Tensor:
        """The logarithm of det A."""
        return 2 * self.L.diagonal().log().sum()

    def append(self, K_new_old: Tensor, K_new_new: Tensor | float) -> None:
        """Append m rows of A.

        Args:
            K_new_old: m x n, or n for one row.
            K_new_new: m x m, or a number for one row.

        Raises:
            NotPositiveDefiniteError: If the larger matrix is not positive definite. Nothing is appended then.
            ValueError: If shapes do not fit.
        """
        K_new_old = (K_new_old.unsqueeze(0) if K_new_old.ndim == 1 else K_new_old).double()
        K_new_new = torch.as_tensor(K_new_new, dtype=torch.float64, device=self._storage.device)
        if K_new_new.ndim == 0:
            K_new_new = K_new_new.reshape(1, 1)
        n, m = check_append(self.L, K_new_old, K_new_new)
        below = self.half_solve(K_new_old.mT)
        corner = schur_factor(below, K_new_new, n + m)
        if n + m > self._storage.shape[0]:
            rows = max(2 * self._storage.shape[0], n + m)
            grown = self._storage.new_zeros(rows, rows)
            grown[:n, :n] = self.L
            self._storage = grown
        self._storage[n : n + m, :n] = below.mT
        self._storage[n : n + m, n : n + m] = corner
        self._n += m

    def half_solve(self, B: Tensor) -> Tensor:
        """L⁻¹ B, B of n or n x m."""
        X = (B.unsqueeze(-1) if B.ndim == 1 else B).to(torch.float64, copy=True)
        # Block by block: a triangular solve copies what is not contiguous, which the whole factor is not.
        for i in range(0, self._n, _BLOCK):
            block = slice(i, min(i + _BLOCK, self._n))
            if i:
                X[block] -= self.L[block, :i] @ X[:i]
            X[block] = torch.linalg.solve_triangular(self.L[block, block], X[block], upper=False)
        return X.reshape(B.shape)

    def solve(self, B: Tensor) -> Tensor:
        """A⁻¹ B, B of n or n x m."""
        X = self.half_solve(B.unsqueeze(-1) if B.ndim == 1 else B)
        for i in reversed(range(0, self._n, _BLOCK)):
            block = slice(i, min(i + _BLOCK, self._n))
            if block.stop < self._n:
                X[block] -= self.L[block.stop :, block].mT @ X[block.stop :]
            X[block] = torch.linalg.solve_triangular(self.L[block, block].mT, X[block], upper=True)
        return X.reshape(B.shape)
