"""Active queries: how much a query would teach about the gradient at a point.

References:
    S. Müller, A. von Rohr and S. Trimpe, Local policy search with Bayesian optimization, NeurIPS 2021 (the
    drop in trace as an acquisition). FZooS, Appx. G, queries where the surrogate is least certain instead.
"""

from __future__ import annotations

import torch
from botorch.acquisition import AcquisitionFunction
from botorch.utils.transforms import (
    average_over_ensemble_models,
    concatenate_pending_points,
    t_batch_mode_transform,
)
from torch import Tensor

from surrogates.checks import check_points
from surrogates.conditioning import Conditioning
from surrogates.kernels.blocks import kernel_values
from surrogates.models.derived_gp import DerivedGP


class GradientInformation(AcquisitionFunction):
    """The drop in the trace of the gradient covariance at x* if f were observed at X.

    With C the q x d covariance of the q values with ∇f(x*), Σ theirs among themselves and S their noise, all of
    the present posterior,

        GI(X) = trace ∂σ²(x* | D) − trace ∂σ²(x* | D, X) = tr(Cᵀ (Σ + S)⁻¹ C),

    for q = 1: ‖cov(∇f(x*), f(x))‖² / (var(x) + s²). It does not depend on the values to come. Larger is
    better; 0 where a query teaches nothing. In squared outcome units per squared unit of input.

    Use it in ``optimize_acqf`` near x*, or to score a candidate set: ``GradientInformation(gp, x)(candidates)``
    with candidates ``m x 1 x d`` costs O(n²m + nmd).

    Args:
        model: A ``DerivedGP`` without batch shape.
        X_target: x*, shape d or 1 x d.
        X_pending: Points that are being evaluated, ``m x d``; they count as observed together with X.
        noise: s² of the new observations in the user's units; None for the model's own (the mean one where
            every observation has its own).

    Raises:
        TypeError: If the model is no ``DerivedGP``.
        ValueError: For a batched model, Matérn 1/2, an x* of the wrong shape, or a negative noise.
    """

    def __init__(
        self, model: DerivedGP, X_target: Tensor, X_pending: Tensor | None = None, noise: float | None = None
    ) -> None:
        if not isinstance(model, DerivedGP):
            raise TypeError(f"GradientInformation needs a DerivedGP, got {type(model).__name__}.")
        if len(model.batch_shape):
            raise ValueError(
                f"GradientInformation needs a model without batches, got batch {tuple(model.batch_shape)}."
            )
        if noise is not None and not noise >= 0:
            raise ValueError(f"noise must be a non-negative number, got {noise!r}.")
        model.conditioning.require_gradient()
        super().__init__(model)
        self.model: DerivedGP
        self.X_target: Tensor
        target = torch.atleast_2d(X_target)
        check_points(target, model.conditioning.d, model.conditioning.X, "X_target")
        if target.shape[:-1] != (1,):
            raise ValueError(f"X_target must be one point, shape d or 1 x d, got {tuple(X_target.shape)}.")
        self.register_buffer("X_target", target)
        self.noise = noise
        self.set_X_pending(X_pending)

    @concatenate_pending_points
    @t_batch_mode_transform()
    @average_over_ensemble_models  # type: ignore[arg-type]
    def forward(self, X: Tensor) -> Tensor:
        """The acquisition value.

        Args:
            X: ``batch x q x d``.

        Returns:
            ``batch``.
        """
        check_points(X, self.X_target.shape[-1], self.X_target)
        model = self.model
        conditioning, scale = model.conditioning, model.outcome_scale
        z, target = model.transform_inputs(X), model.transform_inputs(self.X_target)
        noise = model.observation_noise if self.noise is None else self._in_model_units(scale)
        across, values = _posterior_covariances(conditioning, z, target)
        eye = torch.eye(X.shape[-2], dtype=values.dtype, device=values.device)
        if X.shape[-2] == 1:
            information = across.square().sum((-2, -1)) / (values[..., 0, 0].clamp_min(0.0) + noise)
        else:
            factor = torch.linalg.cholesky(values + noise * eye)
            information = torch.linalg.solve_triangular(factor, across, upper=False).square().sum((-2, -1))
        return (information if scale is None else information * scale.double().square().squeeze(-1)).to(X)

    def _in_model_units(self, scale: Tensor | None) -> Tensor | float:
        assert self.noise is not None
        return self.noise if scale is None else self.noise / scale.double().square().squeeze(-1)


def _posterior_covariances(conditioning: Conditioning, z: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """cov(f(X), ∇f(x*)), ``batch x q x d``, and cov(f(X)), ``batch x q x q``.

    The candidates of all t-batches share one solve against the data.
    """
    d = z.shape[-1]
    flat = z.reshape(-1, d)
    across = conditioning.value_gradient_covariance(flat, target).squeeze(-2).reshape(*z.shape[:-1], d)
    data = kernel_values(conditioning.kernel, flat, conditioning.X)
    whitened = torch.linalg.solve_triangular(conditioning.factor, data.mT, upper=False)
    whitened = whitened.mT.reshape(*z.shape[:-1], -1)
    values = kernel_values(conditioning.kernel, z, z) - whitened @ whitened.mT
    return across, values
