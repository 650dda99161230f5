"""How much a query would teach about the gradient at a point, as an acquisition function.

References:
    S. Müller, A. von Rohr and S. Trimpe, Local policy search with Bayesian optimization, NeurIPS 2021 (the drop in
    the trace as an acquisition). FZooS, Appx. G, queries where the surrogate is least certain instead.
"""

from __future__ import annotations

from typing import Any, Self

import torch
from botorch.acquisition import AcquisitionFunction
from botorch.utils.transforms import average_over_ensemble_models, concatenate_pending_points, t_batch_mode_transform
from torch import Tensor

from surrogates.checks import check_floating, check_points, nonnegative
from surrogates.conditioning import Conditioning
from surrogates.kernels.blocks import kernel_values
from surrogates.linalg.cholesky import laddered_factor
from surrogates.linalg.rounding import remaining_covariance
from surrogates.models.derived_gp import DerivedGP
from surrogates.moving import move_attributes


class GradientInformation(AcquisitionFunction):
    """The drop in the trace of the gradient covariance at x* if f were observed at X.

    With C the ``q x d`` covariance of the q values with ∇f(x*), Σ theirs among themselves and S their noise, all
    under the present posterior, it is

        GI(X) = trace ∂σ²(x* | D) − trace ∂σ²(x* | D, X) = tr(Cᵀ (Σ + S)⁻¹ C),

    in squared outcome units per squared unit of input; for q = 1: ‖cov(∇f(x*), f(x))‖² / (var(x) + s²). It does not
    depend on the values to come. Larger is better, and 0 says that a query teaches nothing.

    It is used in ``optimize_acqf`` near x*, or to score a candidate set: ``GradientInformation(gp, x)(candidates)``
    with candidates of ``m x 1 x d`` costs O(n²m + nmd).

    Args:
        model: A ``DerivedGP`` without batch shape.
        X_target: The point x*, ``d`` or ``1 x d``.
        X_pending: The points that are being evaluated, ``m x d``, or None. They count as observed together with X.
        noise: s² of the new observations in the user's units. None stands for the model's own noise (its mean where
            every observation has its own).

    Raises:
        TypeError: If the model is no ``DerivedGP`` or the noise no number.
        ValueError: If the model is batched, has several outcomes, a nonlinear outcome transform or a Matérn 1/2
            kernel, x* has the wrong shape, or the noise is negative or not finite.
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
        if model.num_outputs > 1:
            raise ValueError(
                f"GradientInformation needs a model of one outcome, got {model.num_outputs}: take one of them by "
                "model.subset_output."
            )
        _ = model.conditioning.prior_variance  # which Matérn 1/2 does not have
        super().__init__(model)
        self.model: DerivedGP
        self.X_target: Tensor
        check_floating("X_target", X_target)
        target = torch.atleast_2d(X_target)
        check_points(target, model.num_inputs, model.conditioning.X, "X_target")
        if target.shape[:-1] != (1,):
            raise ValueError(f"X_target must be one point, shape d or 1 x d, got {tuple(X_target.shape)}.")
        self.register_buffer("X_target", target.clone())
        self.noise = None if noise is None else nonnegative("noise", noise)
        self.set_X_pending(X_pending)

    def _apply(self, fn: Any, *args: Any) -> Self:
        super()._apply(fn, *args)
        move_attributes(self, fn)
        return self

    @concatenate_pending_points
    @t_batch_mode_transform()
    @average_over_ensemble_models  # type: ignore[arg-type]
    def forward(self, X: Tensor) -> Tensor:
        """GI(X), ``batch``, for points X of ``batch x q x d``."""
        check_points(X, self.X_target.shape[-1], self.X_target)
        model = self.model
        scale = model.outcome_scale
        variance = 1.0 if scale is None else scale.double().square().squeeze(-1)
        # In the model's units of outcome, as the values' covariance may be singular to working precision.
        noise = model.observation_noise if self.noise is None else self.noise / variance
        flat = X.reshape(-1, X.shape[-1])
        across = model.value_gradient_covariance(flat, self.X_target).reshape(X.shape).double() / variance
        values = _posterior_covariance(model.conditioning, model.transform_inputs(X))
        if X.shape[-2] == 1:
            information = across.square().sum((-2, -1)) / (values[..., 0, 0] + noise)
        else:
            eye = torch.eye(X.shape[-2], dtype=values.dtype, device=values.device)
            factor, _ = laddered_factor(values + noise * eye)
            information = torch.linalg.solve_triangular(factor, across, upper=False).square().sum((-2, -1))
        return (information * variance).to(X)


def _posterior_covariance(conditioning: Conditioning, z: Tensor) -> Tensor:
    """The covariance of the values at the points of each t-batch, ``batch x q x q``, by one solve against the data."""
    data = kernel_values(conditioning.kernel, z.reshape(-1, z.shape[-1]), conditioning.X)
    whitened = torch.linalg.solve_triangular(conditioning.factor, data.mT, upper=False)
    whitened = whitened.mT.reshape(*z.shape[:-1], -1)
    return remaining_covariance(kernel_values(conditioning.kernel, z, z), whitened @ whitened.mT)
