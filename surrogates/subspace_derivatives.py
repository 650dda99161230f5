"""The joint Gaussian posterior of a gradient and a Hessian along a few directions."""

from __future__ import annotations

import torch
from torch import Tensor

from surrogates.conditioning import Conditioning
from surrogates.gradient_posterior import outputs_last
from surrogates.inference import cached_with_graph, outside_inference_mode
from surrogates.kernels.hessians import AutomaticHessian
from surrogates.kernels.jets import cross_jets, prior_jets, upper_triangle
from surrogates.linalg.rounding import remaining_covariance


class SubspaceDerivatives:
    """The joint Gaussian posterior of Uᵀ∇f(x) and Uᵀ∇²f(x)U at ``batch x q`` points, in the user's units.

    Along p directions it has N = p + p(p+1)/2 entries: u₁ᵀ∇f, …, u_pᵀ∇f, and then uᵢᵀ∇²f uⱼ for i ≤ j, row by row:
    (1,1), (1,2), …, (1,p), (2,2), …, (p,p). Results are computed when they are first read. With m > 1 outcomes, m
    follows q in all shapes. ``HessianPosterior.along`` makes one.

    Args:
        conditioning: The GP conditioned on the data.
        x: The transformed points, ``batch x q x d``.
        U: The directions in transformed units, dz/dx ∘ u, ``batch x q x d x p``.
        bends: d²z/dx² ∘ uᵢ ∘ uⱼ for i ≤ j, ``batch x q x d x p(p+1)/2``: the directions along which a first derivative
            is added to each second derivative. None if d²z/dx² is 0.
        of_prior_mean: The gradient and Hessian of the prior mean at the points, or None where they vanish.
        scale: dy/dy' of the outcome transform, ``batch x 1``, or None where it is 1.
        several_outputs: Whether the last dimension of the batch counts m > 1 outcomes.
    """

    def __init__(
        self,
        conditioning: Conditioning,
        x: Tensor,
        U: Tensor,
        bends: Tensor | None = None,
        of_prior_mean: AutomaticHessian | None = None,
        scale: Tensor | None = None,
        several_outputs: bool = False,
    ) -> None:
        self._conditioning, self._x, self._scale, self._of_prior_mean = conditioning, x, scale, of_prior_mean
        self._several_outputs = several_outputs
        self._U = U
        # With bends the entries are sums of two entries of the jet along U and the bends.
        self._directions = U if bends is None else torch.cat([U, bends], dim=-1)

    def __repr__(self) -> str:
        """The number of points, directions and entries, their units, and the data that they are conditioned on."""
        *points, d, p = outputs_last(self._U, 2, self._several_outputs).shape
        shape = " x ".join(map(str, points))
        return (
            f"SubspaceDerivatives({shape} points, {p} of {d} directions, {self._entries} entries, "
            f"{self._x.dtype}, {self._x.device}; outcome per unit of input and per its square; "
            f"given n = {self._conditioning.num_observations} values)"
        )

    @cached_with_graph
    @outside_inference_mode
    def mean(self) -> Tensor:
        """The mean of all entries, ``batch x q x N``."""
        mean = (self._jets @ self._conditioning.alpha[..., None, :, None]).squeeze(-1)
        if self._of_prior_mean is not None:
            mean = mean + self._prior_mean(self._of_prior_mean)
        return self._scaled(mean, 1, trailing=1)

    @property
    def gradient_mean(self) -> Tensor:
        """E Uᵀ∇f(x), ``batch x q x p``."""
        return self.mean[..., : self._U.shape[-1]]

    @property
    def hessian_mean(self) -> Tensor:
        """E Uᵀ∇²f(x)U, ``batch x q x p x p``."""
        p = self._U.shape[-1]
        return self.mean[..., p:][..., square_of_entries(p, self._x.device)]

    @cached_with_graph
    @outside_inference_mode
    def covariance_matrix(self) -> Tensor:
        """The covariance of all entries, ``batch x q x N x N``.

        Raises:
            ValueError: If k does not have four derivatives at x = x', which Matérn 3/2 does not.
        """
        return self._scaled(self._covariance, 2, trailing=2)

    @outside_inference_mode
    def joint_covariance(self) -> Tensor:
        """The covariance of all entries at all q points, dense, ``batch (x m) x qN x qN``, point by point."""
        joint = self.unscaled_joint_covariance()
        joint = joint if self._scale is None else joint * self._scale.double().square().unsqueeze(-1)
        return joint.to(self._x.dtype)

    def unscaled_joint_covariance(self) -> Tensor:
        """``joint_covariance`` in the model's units of outcome, float64."""
        own, q = self._covariance, self._x.shape[-2]
        if q == 1:
            return own.squeeze(-3)
        conditioning, U = self._conditioning, self._directions
        with torch.enable_grad():
            rows = self._entries_of(cross_jets(conditioning.kernel, self._x, U, self._x, U))
            prior = self._entries_of(rows.mT).mT.transpose(-3, -2)
        prior = prior.reshape(*prior.shape[:-4], q * self._entries, q * self._entries)
        across = self._jets.flatten(-3, -2)
        whitened = torch.linalg.solve_triangular(conditioning.factor, across.mT, upper=False)
        joint = remaining_covariance(prior, whitened.mT @ whitened)
        return 0.5 * (joint + joint.mT)

    @cached_with_graph
    def _covariance(self) -> Tensor:
        """``covariance_matrix`` in the model's units of outcome, ``batch x q x N x N``, float64."""
        conditioning = self._conditioning
        prior = [prior_jets(conditioning.kernel, x, U, conditioning.X) for x, U in self._points]
        prior = [self._entries_of(self._entries_of(jets).mT) for jets in prior]
        whitened = torch.linalg.solve_triangular(conditioning.factor.unsqueeze(-3), self._jets.mT, upper=False)
        return remaining_covariance(self._stacked(prior, self._entries), whitened.mT @ whitened)

    @cached_with_graph
    def _jets(self) -> Tensor:
        """The covariance of the entries with the values at the data, in the model's units of outcome, float64."""
        conditioning = self._conditioning
        with torch.enable_grad():
            jets = [self._entries_of(conditioning.data_jets(x, U)) for x, U in self._points]
            return self._stacked(jets, conditioning.num_observations)

    def _stacked(self, of_points: list[Tensor], width: int) -> Tensor:
        """Stacks one tensor per point, ``batch x N x width``, to ``batch x q x N x width``, float64."""
        if of_points:
            return torch.stack(of_points, dim=-3)
        return torch.zeros(*self._x.shape[:-1], self._entries, width, dtype=torch.float64, device=self._x.device)

    @property
    def _entries(self) -> int:
        p = self._U.shape[-1]
        return p + p * (p + 1) // 2

    @property
    def _points(self) -> list[tuple[Tensor, Tensor]]:
        """Each point, ``batch x 1 x d``, and its directions, ``batch x d x p``."""
        return [(self._x[..., j : j + 1, :], self._directions[..., j, :, :]) for j in range(self._x.shape[-2])]

    def _entries_of(self, jets: Tensor) -> Tensor:
        """The entries, ``... x N x l``, of the rows of a jet along all directions, ``... x l`` each."""
        p, P = self._U.shape[-1], self._directions.shape[-1]
        if p == P:
            return jets[..., 1:, :]
        among_U = (upper_triangle(P, jets.device)[1] < p).nonzero().squeeze(-1)
        first, second = jets[..., 1 : 1 + p, :], jets[..., 1 + P :, :][..., among_U, :]
        return torch.cat([first, second + jets[..., 1 + p : 1 + P, :]], dim=-2)

    def _prior_mean(self, of_prior_mean: AutomaticHessian) -> Tensor:
        p, device = self._U.shape[-1], self._x.device
        first = (of_prior_mean.gradient.unsqueeze(-2) @ self._directions).squeeze(-2)
        second = of_prior_mean.times(self._U.movedim(-1, 0)).movedim(0, -1)
        i, j = upper_triangle(p, device)
        second = (self._U.mT @ second)[..., i, j]
        mean = torch.cat([first[..., :p], second if self._directions is self._U else second + first[..., p:]], dim=-1)
        return mean if self._conditioning.requires_grad or self._x.requires_grad else mean.detach()

    def _scaled(self, value: Tensor, power: int, trailing: int) -> Tensor:
        value = value.to(self._x.dtype)
        if self._scale is not None:
            value = value * self._scale.to(value).pow(power)[(..., *(None,) * trailing)]
        return outputs_last(value, trailing, self._several_outputs)


def square_of_entries(d: int, device: torch.device) -> Tensor:
    """The position of each entry of a symmetric matrix, ``d x d``, among the entries with i ≤ j, row by row."""
    i, j = upper_triangle(d, device)
    at = torch.zeros(d, d, dtype=torch.long, device=device)
    at[i, j] = at[j, i] = torch.arange(len(i), device=device)
    return at
