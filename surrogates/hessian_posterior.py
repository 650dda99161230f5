"""The Gaussian posterior of a Hessian."""

from __future__ import annotations

import torch
from torch import Tensor

from surrogates.conditioning import Conditioning
from surrogates.gradient_posterior import outputs_last
from surrogates.inference import cached_with_graph, outside_inference_mode
from surrogates.kernels.hessians import check_has_hessian, mean_hessian
from surrogates.kernels.jets import jet_width, per_user_unit, prior_jets, unit_jets, upper_triangle
from surrogates.linalg.cholesky import covariance_root
from surrogates.linalg.rounding import remaining_covariance
from surrogates.point_posterior import PointPosterior


class HessianPosterior(PointPosterior):
    """The Gaussian posterior of ∇²f at ``batch x q`` points.

    All shapes below are for one outcome. With m > 1 independent outcomes m follows q: the mean, for example, is
    ``batch x q x m x d x d``.

    Second derivatives ∂²f are linear in f. With A = K + diag(s²) their mean is ∂²m(x) + ∂²k(x, X) A⁻¹ (y − m(X)), and
    their covariance is ∂²∂'²k(x, x') − ∂²k(x, X) A⁻¹ ∂'²k(X, x').

    Results are dense, computed when they are first read, and in outcome units per squared unit of input. Covariances
    and samples are of the D = d(d+1)/2 entries ∂ᵢ∂ⱼf, i ≤ j, row by row, and are meant for small d. All results are
    differentiable in the points and, if the posterior was made under ``botorch.settings.propagate_grads``, in the data,
    the noise and the hyper-parameters. Later changes of the model or of the points do not affect the posterior. Create
    one with ``surrogates.DerivedGP.hessian_posterior``.

    Variances exist if k has four derivatives at x = x': RBF, RQ, Matérn 5/2, their sums and products, and other smooth
    kernels; otherwise methods that need a variance raise a ValueError. Under Matérn 3/2 only the mean exists; at a data
    point it is the limit of the means nearby.

    Args:
        conditioning: The GP conditioned on the data.
        x: The transformed points, ``batch x q x d``.
        scale: dy/dy' of the outcome transform, ``batch x 1``, or None if it is 1.
        several_outputs: Whether the last batch dimension of ``conditioning`` counts m > 1 outcomes, and the points have
            size 1 in that dimension.
        chain: dz/dx and d²z/dx² of the input transform at the points, each ``batch x q x d``, if dz/dx depends on the
            point; None if dz/dx is constant and therefore in ``conditioning``.

    Raises:
        ValueError: For Matérn 1/2, alone or in a sum or product.
    """

    def __init__(
        self,
        conditioning: Conditioning,
        x: Tensor,
        scale: Tensor | None = None,
        several_outputs: bool = False,
        chain: tuple[Tensor, Tensor] | None = None,
    ) -> None:
        check_has_hessian(conditioning.kernel)
        batch = torch.broadcast_shapes(x.shape[:-2], conditioning.alpha.shape[:-1])
        super().__init__(x.expand(*batch, *x.shape[-2:]), several_outputs)
        self._conditioning, self._scale = conditioning, scale
        self._slope: Tensor | None
        self._bend: Tensor | None
        self._slope, self._bend = (conditioning.slope, None) if chain is None else chain

    @property
    def _about(self) -> str:
        return f"outcome per squared unit of input; given n = {self._conditioning.num_observations} values"

    @cached_with_graph
    @outside_inference_mode
    def mean(self) -> Tensor:
        """The posterior mean E ∇²f(x), dense, ``batch x q x d x d``."""
        conditioning, x = self._conditioning, self._x
        mean = conditioning.hessian(x).to(x.dtype)
        if conditioning.prior_mean is not None:
            mean = mean + mean_hessian(conditioning.prior_mean, x, conditioning.requires_grad).dense()
        if self._slope is not None:
            mean = mean * self._slope.unsqueeze(-1) * self._slope.unsqueeze(-2)
        if self._bend is not None:
            mean = mean + torch.diag_embed(self._bend * conditioning.mean(x))
        return outputs_last(self._scaled(mean), 2, self._several_outputs)

    @cached_with_graph
    @outside_inference_mode
    def variance(self) -> Tensor:
        """The variance of every entry of ∇²f(x), ``batch x q x d x d``."""
        diagonal = torch.diagonal(self._scaled(self._covariance.to(self.dtype), 2), dim1=-2, dim2=-1)
        return outputs_last(diagonal[..., self._square], 2, self._several_outputs)

    @outside_inference_mode
    def joint_covariance(self) -> Tensor:
        """The covariance of the entries ∂ᵢ∂ⱼf, i ≤ j, at all q points, ``batch (x m) x qD x qD``, ordered by point."""
        joint = self._joint if self._scale is None else self._joint * self._scale.double().square().unsqueeze(-1)
        return joint.to(self.dtype)

    @outside_inference_mode
    def rsample_from_base_samples(self, sample_shape: torch.Size, base_samples: Tensor) -> Tensor:
        """Symmetric samples from standard normal base samples, ``sample_shape x base_sample_shape``.

        Raises:
            ValueError: If the base samples have another shape, or k does not have four derivatives at x = x'.
        """
        self.check_base_samples(sample_shape, base_samples)
        base = outputs_last(base_samples.double(), 1, self._several_outputs)
        drawn = (self._root @ base.flatten(-2).unsqueeze(-1)).squeeze(-1).reshape(base.shape).to(self.dtype)
        square = self._scaled(drawn[..., self._square])
        return self.mean + outputs_last(square, 2, self._several_outputs)

    @property
    def base_sample_shape(self) -> torch.Size:
        """``batch x q x D``: a standard normal number for each entry ∂ᵢ∂ⱼf, i ≤ j."""
        *shape, d = self._shape
        return torch.Size([*shape, d * (d + 1) // 2])

    def _extended_shape(self, sample_shape: torch.Size = torch.Size()) -> torch.Size:  # noqa: B008
        return sample_shape + self._shape + self._shape[-1:]

    @property
    def _shape(self) -> torch.Size:
        """``batch x q x d``, or ``batch x q x m x d``."""
        return outputs_last(self._x, 1, self._several_outputs).shape

    @property
    def _square(self) -> Tensor:
        """The position of each entry of a symmetric matrix, ``d x d``, among the entries with i ≤ j, row by row."""
        d = self._x.shape[-1]
        i, j = upper_triangle(d, self._x.device)
        at = torch.zeros(d, d, dtype=torch.long, device=self._x.device)
        at[i, j] = at[j, i] = torch.arange(len(i), device=self._x.device)
        return at

    @cached_with_graph
    def _root(self) -> Tensor:
        """A root of the joint covariance in the model's units of outcome, float64."""
        return covariance_root(self._joint)

    @cached_with_graph
    def _joint(self) -> Tensor:
        """The joint covariance in the model's units of outcome, ``... x qD x qD``, float64."""
        conditioning, q = self._conditioning, self._x.shape[-2]
        if q == 1:
            return self._covariance.squeeze(-3)
        with torch.enable_grad():
            prior = unit_jets(conditioning.kernel, self._x, self._x, 2, 2)
            prior = self._second(prior, pairs=True).transpose(-4, -3).mT
            prior = self._second(prior, pairs=True).transpose(-4, -3).mT.transpose(-3, -2)
        across = self._across.flatten(-3, -2)
        whitened = torch.linalg.solve_triangular(conditioning.factor, across.mT, upper=False)
        joint = remaining_covariance(prior.flatten(-2).flatten(-3, -2), whitened.mT @ whitened)
        return 0.5 * (joint + joint.mT)

    @cached_with_graph
    def _covariance(self) -> Tensor:
        """The covariance at every point in the model's units of outcome, ``... x q x D x D``, float64."""
        conditioning, x, width = self._conditioning, self._x, jet_width(self._x.shape[-1], 2)
        eye = torch.eye(x.shape[-1], dtype=x.dtype, device=x.device).expand(*x.shape[:-2], -1, -1)
        points = [x[..., j : j + 1, :] for j in range(x.shape[-2])]
        prior = [prior_jets(conditioning.kernel, point, eye, conditioning.X) for point in points]
        none = torch.zeros(*x.shape[:-2], 0, width, width, dtype=torch.float64, device=x.device)
        stacked = self._second(self._second(torch.stack(prior, dim=-3) if prior else none).mT)
        whitened = torch.linalg.solve_triangular(conditioning.factor.unsqueeze(-3), self._across.mT, upper=False)
        return remaining_covariance(stacked, whitened.mT @ whitened)

    @cached_with_graph
    def _across(self) -> Tensor:
        """The prior covariance of the second derivatives at every point with the data, ``... x q x D x N``, float64."""
        with torch.enable_grad():
            return self._second(self._conditioning.across_jets(self._x)).mT

    def _second(self, jets: Tensor, pairs: bool = False) -> Tensor:
        """Covariances with jets at the points, ``... x q x r x (1 + d + D)``, as those with their second derivatives.

        With ``pairs`` a dimension of other points precedes q.
        """
        slope, bend = (t if t is None or not pairs else t.unsqueeze(-3) for t in (self._slope, self._bend))
        return per_user_unit(jets, slope, bend)[..., 1 + self._x.shape[-1] :]

    def _scaled(self, value: Tensor, power: int = 1) -> Tensor:
        """A value of ``batch x q x ... x ...`` in the outcome's units, of which it has the ``power``."""
        return value if self._scale is None else value * self._scale.to(value).pow(power)[..., None, None]
