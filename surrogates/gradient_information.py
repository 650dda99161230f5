"""An acquisition function: the expected reduction of the uncertainty of a gradient.

References:
    S. Müller, A. von Rohr and S. Trimpe, Local policy search with Bayesian optimization, NeurIPS 2021.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Self, cast

import torch
from botorch.acquisition import AcquisitionFunction
from botorch.models.model import Model
from botorch.posteriors.torch import TorchPosterior
from botorch.sampling.base import MCSampler
from botorch.sampling.get_sampler import get_sampler
from botorch.utils.transforms import average_over_ensemble_models, concatenate_pending_points, t_batch_mode_transform
from torch import Tensor

from surrogates.checks import check_floating, check_points, nonnegative
from surrogates.conditioning import Conditioning
from surrogates.kernels.blocks import kernel_values
from surrogates.linalg.cholesky import laddered_factor
from surrogates.linalg.rounding import remaining_covariance
from surrogates.models.derived_gp import DerivedGP
from surrogates.moving import move_attributes

Constraint = Callable[[Tensor], Tensor]

SAMPLES = 128
"""The default number of posterior samples of the constraints."""

TEMPERATURE = 0.1
"""The width of the smoothed feasibility indicator, in standard deviations of the constraint's samples."""


class GradientInformation(AcquisitionFunction):
    """The expected reduction of the trace of the gradient covariance at x* if f were observed at X.

    Let C be the ``q x d`` covariance of the q values with ∇f(x*), Σ the covariance of the values, and S the noise
    covariance, all under the current posterior. The reduction is

        GI(X) = trace ∂σ²(x* | D) − trace ∂σ²(x* | D, X) = tr(Cᵀ (Σ + S)⁻¹ C)

    in squared outcome units per squared input unit. For q = 1 it is ‖cov(∇f(x*), f(x))‖² / (var f(x) + s²). It does not
    depend on the values that will be observed. It is never negative, and larger values are better.

    **Outcome constraints.** With ``constraints``, an infeasible point gives no value of f (the experiment fails), and
    the result is E_w[tr(C_wᵀ (Σ_w + S)⁻¹ C_w)] over posterior samples of the outcomes. Here wᵢ ∈ [0, 1] is the smoothed
    feasibility of point i, C_w = √w ∘ C, and Σ_w has the diagonal of Σ and √(wᵢwⱼ) Σᵢⱼ elsewhere, so that points with
    wᵢ = 0 have no effect. For q = 1 this is P(x is feasible) · GI(x). With τ = ``TEMPERATURE`` and constraint values c,
    w is the product of sigmoid(−c / (τ sd(c))) over the constraints. If infeasible points give values too, pass
    P(feasible) as a nonlinear constraint to ``optimize_acqf`` instead.

    Use it with ``optimize_acqf`` near x*, or to score a set of candidates: ``GradientInformation(gp, x)(candidates)``
    for ``m x 1 x d`` candidates costs O(n²m + nmd). It is registered with BoTorch's input constructors, so that it can
    be used in Ax's ``botorch_acqf_classes_with_options``.

    Args:
        model: A ``DerivedGP``, or a ``ModelListGP`` whose model of outcome ``objective_index`` is a ``DerivedGP``,
            without batch dimensions. Both may have several outcomes.
        X_target: The point x*, ``d`` or ``1 x d``.
        X_pending: The points that are being evaluated, ``m x d``, or None. They are treated as observed with X.
        noise: The noise variance s² of the new observations in the user's units. None stands for the model's noise
            variance, or the mean of ``train_Yvar``.
        objective_index: The index of the outcome f. It is required if the model has several outcomes.
        constraints: BoTorch's outcome constraints: functions that map samples of the outcomes, ``... x q x m``, to
            ``... x q``, with values ≤ 0 for feasible points.
        sampler: The sampler of the outcomes for ``constraints``. None stands for ``SAMPLES`` Sobol' samples, seed 0.

    Raises:
        TypeError: If the outcome's model is not a ``DerivedGP`` or the noise is not a number.
        ValueError: If the model is batched, ``objective_index`` is missing for several outcomes, the outcome transform
            is nonlinear, the kernel is Matérn 1/2, x* has the wrong shape, or the noise is negative or not finite.
    """

    def __init__(
        self,
        model: Model,
        X_target: Tensor,
        *,
        X_pending: Tensor | None = None,
        noise: float | None = None,
        objective_index: int | None = None,
        constraints: Sequence[Constraint] | None = None,
        sampler: MCSampler | None = None,
    ) -> None:
        outcome = _outcome_model(model, objective_index)
        _ = outcome.conditioning.prior_variance  # raises for Matérn 1/2
        super().__init__(model)
        self._outcome = outcome
        self.X_target: Tensor
        check_floating("X_target", X_target)
        target = torch.atleast_2d(X_target)
        check_points(target, outcome.num_inputs, outcome.conditioning.X, "X_target")
        if target.shape[:-1] != (1,):
            raise ValueError(f"X_target must be one point, shape d or 1 x d, got {tuple(X_target.shape)}.")
        self.register_buffer("X_target", target.clone())
        self.noise = None if noise is None else nonnegative("noise", noise)
        self.constraints = tuple(constraints or ())
        self.sampler = sampler
        self.set_X_pending(X_pending)

    def _apply(self, fn: Any, *args: Any) -> Self:
        super()._apply(fn, *args)
        move_attributes(self, fn)
        return self

    @concatenate_pending_points
    @t_batch_mode_transform()
    @average_over_ensemble_models  # type: ignore[arg-type]
    def forward(self, X: Tensor) -> Tensor:
        """Computes GI(X), ``batch``, for points X, ``batch x q x d``."""
        check_points(X, self.X_target.shape[-1], self.X_target)
        model = self._outcome
        scale = model.outcome_scale
        variance = 1.0 if scale is None else scale.double().square().squeeze(-1)
        # In the model's units of outcome, as the values' covariance may be singular to working precision.
        noise = model.observation_noise if self.noise is None else self.noise / variance
        flat = X.reshape(-1, X.shape[-1])
        across = model.value_gradient_covariance(flat, self.X_target).reshape(X.shape).double() / variance
        values = _posterior_covariance(model.conditioning, model.transform_inputs(X))
        eye = torch.eye(X.shape[-2], dtype=values.dtype, device=values.device)
        if self.constraints:
            root = self._root_feasibility(X)
            across = root.unsqueeze(-1) * across
            values = torch.where(eye > 0, values, root.unsqueeze(-1) * root.unsqueeze(-2) * values)
        if X.shape[-2] == 1:
            information = across.square().sum((-2, -1)) / (values[..., 0, 0] + noise)
        else:
            factor, _ = laddered_factor(values + noise * eye)
            information = torch.linalg.solve_triangular(factor, across, upper=False).square().sum((-2, -1))
        information = information.mean(0) if self.constraints else information
        return (information * variance).to(X)

    def _root_feasibility(self, X: Tensor) -> Tensor:
        """√w for the smoothed feasibility indicators w of the points, ``samples x batch x q``, float64."""
        posterior = cast(TorchPosterior, self.model.posterior(X))
        self.sampler = self.sampler or get_sampler(posterior, torch.Size([SAMPLES]), seed=0)
        samples = self.sampler(posterior).double()
        log_feasibility = torch.zeros_like(samples[..., 0])
        for constraint in self.constraints:
            value = constraint(samples)
            deviation = value.std(0).clamp_min(torch.finfo(value.dtype).tiny)
            log_feasibility = log_feasibility + torch.nn.functional.logsigmoid(-value / (TEMPERATURE * deviation))
        # The derivative of a root of w would be infinite where w is rounded to 0.
        return (0.5 * log_feasibility).exp()


def _outcome_model(model: Model, index: int | None) -> DerivedGP:
    """The model of the outcome whose gradient is meant, checked."""
    several = model.num_outputs > 1
    if several and index is None:
        raise ValueError(
            f"GradientInformation needs the gradient of one outcome, got a model of {model.num_outputs} outcomes: pass "
            "objective_index, or a model of one outcome (model.subset_output)."
        )
    outcome = model.subset_output([cast(int, index)]) if several else model
    if not isinstance(outcome, DerivedGP):
        raise TypeError(f"GradientInformation needs a DerivedGP of the outcome, got {type(outcome).__name__}.")
    if len(outcome.batch_shape):
        raise ValueError(
            f"GradientInformation needs a model without batch dimensions, got batch shape {tuple(outcome.batch_shape)}."
        )
    return outcome


def _posterior_covariance(conditioning: Conditioning, z: Tensor) -> Tensor:
    """The covariance of the values at the points of each t-batch, ``batch x q x q``, by one solve against the data."""
    data = kernel_values(conditioning.kernel, z.reshape(-1, z.shape[-1]), conditioning.X)
    whitened = torch.linalg.solve_triangular(conditioning.factor, data.mT, upper=False)
    whitened = whitened.mT.reshape(*z.shape[:-1], -1)
    return remaining_covariance(kernel_values(conditioning.kernel, z, z), whitened @ whitened.mT)
