"""Bayesian linear regression to which rows can be appended."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import torch
from torch import Tensor

from surrogates.linalg.cholesky import factor
from surrogates.linalg.growing import GrowingCholesky, GrowingRows

BLOCK_ROWS = 512
_CONVERTED_NUMBERS = 2**19


class LinearPosterior:
    """The posterior N(w̄, A⁻¹) of weights w ~ N(0, I) given t = U w + ε, ε ~ N(0, I), so A = I + UᵀU.

    Each column of t is a target; all targets have the same rows U.

    The first rows are absorbed into a mean w₀ (0 at first) and a Cholesky factor L₀ of A (I at first). For the p later
    rows U let W = U L₀⁻ᵀ, C = I + W Wᵀ, ``p x p``, and e = t − U w₀. Then A = L₀(I + WᵀW)L₀ᵀ and

        w̄ = w₀ + L₀⁻ᵀ Wᵀ C⁻¹ e,        A⁻¹ = L₀⁻ᵀ (I − Wᵀ C⁻¹ W) L₀⁻¹.

    When p would exceed M, all rows are absorbed: L₀ ← L₀ chol(I + WᵀW). Matrices are thus ``n x n`` for n ≤ M rows and
    ``M x M`` for more. Appending a row costs O(p² + pM), or on average O(M²) once rows have been absorbed. As C ⪰ I,
    its factorisation can fail only by rounding. Rows are stored in the given dtype; all algebra is float64.

    Args:
        num_weights: M, the number of weights.
        dtype: The dtype of stored rows.
        device: The device of all tensors.
        num_targets: k, the number of columns of t.
    """

    def __init__(self, num_weights: int, dtype: torch.dtype, device: torch.device, num_targets: int = 1) -> None:
        self.num_weights = num_weights
        self.num_rows = 0
        self._base: Tensor | None = None
        self._base_mean = torch.zeros(num_weights, num_targets, dtype=torch.float64, device=device)
        self._base_quadratic = self._base_mean.new_zeros(num_targets, num_targets)
        self._dtype = dtype
        self._forget_rows()
        self._solved: tuple[Tensor, Tensor] | None = None

    def _forget_rows(self, capacity: int = 64) -> None:
        mean = self._base_mean
        self._rows = GrowingRows(mean.new_empty(0, self.num_weights, dtype=self._dtype), capacity)
        self._residuals = mean.new_empty(0, mean.shape[1])
        self._cholesky = GrowingCholesky(capacity=capacity, device=mean.device)

    def append(self, blocks: Iterable[tuple[Tensor, Tensor]], count: int) -> None:
        """Appends ``count`` rows, given as blocks (U, t) of ``m x M`` and ``m x k``.

        Raises:
            NotPositiveDefiniteError: If C is singular by rounding. Nothing is appended then.
        """
        if len(self._rows) + count > self.num_weights:
            self._absorb(blocks)
        else:
            self._extend(blocks, count)
        self.num_rows += count
        self._solved = None

    @property
    def nbytes(self) -> int:
        """The bytes used by rows (p·M numbers) and factors (p², and M² more once rows have been absorbed)."""
        factors = self._cholesky.nbytes + (0 if self._base is None else self._base.nbytes)
        return self._rows.rows.nbytes + factors

    @property
    def mean(self) -> Tensor:
        """The posterior mean w̄ for each target, ``M x k``, float64."""
        return self._solution()[0]

    @property
    def quadratic(self) -> Tensor:
        """tᵀ(I + UUᵀ)⁻¹t over all rows, ``k x k``, float64."""
        return self._solution()[1]

    def _solution(self) -> tuple[Tensor, Tensor]:
        """``mean`` and ``quadratic``, cached until rows are appended."""
        if self._solved is None:
            self._solved = self._base_mean, self._base_quadratic
            if len(self._rows):
                solved = self._cholesky.solve(self._residuals)
                step = self._unwhitened(self._transposed_product(solved))
                self._solved = self._base_mean + step, self._base_quadratic + self._residuals.mT @ solved
        return self._solved

    def covariance_factors(
        self, B: Callable[[], Tensor], product: Callable[[Tensor], Tensor]
    ) -> tuple[Tensor | None, Tensor]:
        """Computes Y = L₀⁻¹B and Z = C^(−1/2) W Y, so that Bᵀ A⁻¹ B = YᵀY − ZᵀZ, for B of ``M x m``.

        Args:
            B: A function that returns B, called only if rows have been absorbed.
            product: A function that multiplies rows of W, ``k x M``, by B, called only if no rows have been absorbed.

        Returns:
            Y, ``M x m`` (None if Y = B), and Z, ``p x m``.
        """
        Y = None if self._base is None else self._whitened(B().double())
        parts = [product(rows) if Y is None else rows @ Y for rows in self._blocks()]
        return Y, self._cholesky.half_solve(torch.cat(parts))

    def _extend(self, blocks: Iterable[tuple[Tensor, Tensor]], count: int) -> None:
        """Adds rows to C."""
        first = not len(self._rows)
        if first:
            self._forget_rows(max(64, count + count // 4))
        else:
            U, t = (torch.cat(parts) for parts in zip(*blocks, strict=True))
            blocks = ((U, t),)
        try:
            for U, t in blocks:
                self._extend_by_block(U.double(), t.double())
        except ValueError:
            if first:
                self._forget_rows()
            raise

    def _extend_by_block(self, U: Tensor, t: Tensor) -> None:
        W = self._whitened(U.mT).mT
        cross = [W @ rows.mT for rows in self._blocks()]
        square = W @ W.mT
        square.diagonal().add_(1.0)
        self._cholesky.append(torch.cat(cross, dim=-1), square)
        self._rows.append(W)
        self._residuals = torch.cat((self._residuals, t - U @ self._base_mean))

    def _absorb(self, blocks: Iterable[tuple[Tensor, Tensor]]) -> None:
        """Absorbs new rows, and those of C, into L₀."""
        B = torch.eye(self.num_weights, dtype=torch.float64, device=self._base_mean.device)
        moment = self._transposed_product(self._residuals)
        square = self._residuals.mT @ self._residuals
        for rows in self._blocks():
            B.addmm_(rows.mT, rows)
        for U, t in blocks:
            W = self._whitened(U.double().mT).mT
            B.addmm_(W.mT, W)
            innovation = t.double() - U.double() @ self._base_mean
            moment += W.mT @ innovation
            square += innovation.mT @ innovation
        step = factor(B)
        solved = torch.cholesky_solve(moment, step)
        mean = self._base_mean + self._unwhitened(solved)
        # eᵀ(I + WWᵀ)⁻¹e = eᵀe − (Wᵀe)ᵀB⁻¹(Wᵀe).
        self._base_quadratic = self._base_quadratic + square - moment.mT @ solved
        self._base = step if self._base is None else self._base @ step
        self._base_mean = mean
        self._forget_rows()

    def _blocks(self) -> Iterator[Tensor]:
        """Yields the rows W in float64, a few at a time; narrower rows are converted in pieces that fit the cache."""
        block = min(BLOCK_ROWS, self.num_weights)
        piece = block if self._dtype == torch.float64 else max(16, _CONVERTED_NUMBERS // self.num_weights)
        for rows in self._rows.rows.split(block):
            yield from (part.double() for part in rows.split(piece))

    def _transposed_product(self, v: Tensor) -> Tensor:
        """Wᵀv, ``M x k``, float64, for v of ``p x k``."""
        total, start = torch.zeros_like(self._base_mean), 0
        for rows in self._blocks():
            total += rows.mT @ v[start : start + len(rows)]
            start += len(rows)
        return total

    def _whitened(self, B: Tensor) -> Tensor:
        return B if self._base is None else torch.linalg.solve_triangular(self._base, B, upper=False)

    def _unwhitened(self, v: Tensor) -> Tensor:
        if self._base is None:
            return v
        return torch.linalg.solve_triangular(self._base.mT, v, upper=True)
