"""Active subspaces of a function, with the uncertainty of their directions.

References:
    P. G. Constantine, E. Dow and Q. Wang, Active subspace methods in theory and practice, SIAM Journal on Scientific
        Computing 36, 2014.
    Å. Björck and G. H. Golub, Numerical methods for computing angles between linear subspaces, Mathematics of
        Computation 27, 1973.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from surrogates.checks import check_finite, check_floating, check_integer
from surrogates.sensitivity.estimate import Estimate


@dataclass(frozen=True)
class ActiveSubspace:
    """The posterior of C = E ∇f ∇fᵀ, whose leading eigenvectors are the directions in which f varies most.

    Gradients are with respect to u = x/scale, so that all entries of C are in squared outcome units and the directions
    do not depend on the units of the inputs. A direction w is the combination Σᵢ wᵢ xᵢ/scaleᵢ of the inputs. Create it
    with ``surrogates.GradientSensitivity.active_subspace``.

    Attributes:
        matrix: The posterior mean of C, ``batch x d x d``.
        samples: Samples from the posterior of C, ``S x batch x d x d``.
        scale: The units of the inputs, ``d``.
    """

    matrix: Tensor
    samples: Tensor
    scale: Tensor

    @cached_property
    def _eigen(self) -> tuple[Tensor, Tensor]:
        return _descending(self.matrix)

    @property
    def eigenvalues(self) -> Tensor:
        """The eigenvalues of the posterior mean of C, ``batch x d``, largest first."""
        return self._eigen[0]

    @property
    def eigenvectors(self) -> Tensor:
        """The eigenvectors of the posterior mean of C, ``batch x d x d``: columns in the order of ``eigenvalues``."""
        return self._eigen[1]

    def eigenvalue_posterior(self) -> Estimate:
        """The posterior of the eigenvalues of C, largest first, ``batch x d``, from the samples of C.

        The mean of the largest eigenvalue is at least the largest eigenvalue of the mean of C.
        """
        return Estimate.from_samples(_descending(self.samples)[0])

    def angles(self, basis: Tensor | int) -> Tensor:
        """The principal angles, in radians, between a subspace and the leading eigenvectors of each sample of C.

        Small angles mean that the data determine the subspace. The algorithm is that in Björck and Golub (1973).

        Args:
            basis: A basis of the subspace in coordinates u = x/scale, ``d x k``, or an integer k for the span of the
                first k ``eigenvectors``.

        Returns:
            The angles in [0, π/2] in ascending order, ``S x batch x k``.

        Raises:
            TypeError: If the basis is neither a floating point tensor nor an integer.
            ValueError: If k is not in [1, d], or the columns of the basis are not finite or not linearly independent.
        """
        d = self.matrix.shape[-1]
        if isinstance(basis, Tensor):
            check_floating("basis", basis)
            check_finite("basis", basis)
            if basis.dim() != 2 or basis.shape[0] != d or not 1 <= basis.shape[1] <= d:
                raise ValueError(f"basis must be of shape {d} x k with k from 1 to {d}, got {tuple(basis.shape)}.")
            if int(torch.linalg.matrix_rank(basis)) < basis.shape[1]:
                raise ValueError(f"The {basis.shape[1]} columns of basis must be linearly independent.")
            given = torch.linalg.qr(basis.to(self.matrix))[0]
        else:
            given = self.eigenvectors[..., : check_integer("basis", basis, 1, d + 1)]
        leading = _descending(self.samples)[1][..., : given.shape[-1]]
        shared = given.mT @ leading
        cosines = torch.linalg.svdvals(shared)
        sines = torch.linalg.svdvals(leading - given @ shared)[..., : given.shape[-1]].flip(-1)
        return torch.atan2(sines, cosines)


def _descending(matrices: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvalues, ``... x d``, and eigenvectors, ``... x d x d``, largest first, of symmetric matrices."""
    values, vectors = torch.linalg.eigh(matrices)
    return values.flip(-1), vectors.flip(-1)
