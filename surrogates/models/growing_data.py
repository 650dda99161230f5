"""Training data and their Cholesky factor in storage that grows, for appending an observation in O(n²)."""

from __future__ import annotations

from torch import Tensor

from surrogates.linalg.growing_cholesky import GrowingCholesky


class GrowingRows:
    """Rows in storage that doubles when it is full; the rows are a view of it.

    Args:
        rows: n x ..., copied.
    """

    def __init__(self, rows: Tensor) -> None:
        self._length = rows.shape[0]
        self._storage = rows.new_empty(max(2 * self._length, 64), *rows.shape[1:])
        self._storage[: self._length] = rows

    @property
    def rows(self) -> Tensor:
        """All rows, a view; not to be written to."""
        return self._storage[: self._length]

    def append(self, rows: Tensor) -> Tensor:
        """Append rows and return all of them."""
        end = self._length + rows.shape[0]
        if end > self._storage.shape[0]:
            grown = self._storage.new_empty(2 * end, *self._storage.shape[1:])
            grown[: self._length] = self.rows
            self._storage = grown
        self._storage[self._length : end] = rows
        self._length = end
        return self.rows


class GrowingData:
    """Inputs, targets, noise and factor of one data set, appended to together.

    Args:
        inputs: Transformed inputs, n x d.
        original_inputs: Inputs in the user's units, n x d, or None where they are the same.
        targets: Transformed targets, n.
        noise: Fixed noise, n, or None.
        factor: L, n x n.
    """

    def __init__(
        self,
        inputs: Tensor,
        original_inputs: Tensor | None,
        targets: Tensor,
        noise: Tensor | None,
        factor: Tensor,
    ) -> None:
        self.inputs = GrowingRows(inputs)
        self.original_inputs = None if original_inputs is None else GrowingRows(original_inputs)
        self.targets = GrowingRows(targets)
        self.noise = None if noise is None else GrowingRows(noise)
        self.factor = GrowingCholesky.from_factor(factor)

    def alpha(self, residuals: Tensor) -> Tensor:
        """A⁻¹ residuals, n, float64."""
        return self.factor.solve(residuals.double())
