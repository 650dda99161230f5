"""The derived GP: BoTorch's SingleTaskGP with the Gaussian posterior of its gradient.

References:
    Y. Shu, Z. Dai, W. Sng, A. Verma, P. Jaillet and B. K. H. Low, Zeroth-order optimization with
    trajectory-informed derivative estimation, ICLR 2023 (ZoRD): eqs. 3-6.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any, cast

import torch
from botorch.models.transforms.input import InputTransform
from botorch.models.transforms.outcome import OutcomeTransform
from botorch.posteriors import GPyTorchPosterior
from botorch.utils.types import DEFAULT, _DefaultType
from gpytorch.kernels import Kernel
from gpytorch.likelihoods.likelihood import Likelihood
from gpytorch.means import Mean
from torch import Tensor

from surrogates.checks import check_data, check_every_outcome, check_not_traced, check_points
from surrogates.conditioning import Conditioning
from surrogates.gradient_posterior import GradientPosterior
from surrogates.hessian_posterior import HessianPosterior
from surrogates.inference import outside_inference_mode
from surrogates.kernels.blocks import check_kernel, kernel_values
from surrogates.kernels.errors import OpaqueKernelError
from surrogates.models.cholesky_gp import CholeskyGP, derivatives_are_asked_for
from surrogates.models.gradient_observations import GradientObservationGP
from surrogates.models.transforms import (
    check_input_slope,
    is_affine_input,
    is_affine_outcome,
    keeps_inputs,
    outcome_scale,
    outcome_shift,
    transformed_with_slope,
)
from surrogates.models.unobserved import observed_rows
from surrogates.normal import UnitFreeMultitaskNormal
from surrogates.transformed_gradient_posterior import TransformedGradientPosterior


class DerivedGP(CholeskyGP):
    r"""A ``SingleTaskGP`` that also gives the posterior of the gradient, from function values only.

    With A = K + diag(s²) and J(x) the ``n x d`` matrix of rows ∂k(x, x_τ)/∂x, the gradient of f at x given (X, y)
    is Gaussian (ZoRD eqs. 3-6; FZooS eq. 8) with

        mean ∇m(x) + J(x)ᵀ A⁻¹ (y − m(X))   and covariance   ∂ₓ∂ₓ'k(x, x') − J(x)ᵀ A⁻¹ J(x').

    The arguments, their order and their defaults are ``SingleTaskGP``'s: with the name changed, the fit and the value
    posterior are the same, computed by Cholesky at any n (GPyTorch alone turns to conjugate gradients above n = 800).
    Batched models are supported.

    Numbers follow every change of units. Floors of BoTorch and GPyTorch that are absolute numbers are not followed:
    outcomes with a deviation under 1e-8 are standardised too, ``train_Yvar`` is taken as given (``SingleTaskGP``
    raises it to 1e-6, or 1e-4 in float32, in the model's units), and variances and samples have no floor in the user's
    units (there 1e-10 and 1e-8; in float32 1e-6). Three are: the default likelihood does not go under a noise of 1e-4
    in the model's units, where priors are made for standardised outcomes (the papers' optimizers pass
    ``surrogates.matern_kernel`` and ``surrogates.gaussian_likelihood``); ``Normalize`` and ``InputStandardize`` leave
    an input with a range under 1e-8 as it is, and a given ``Standardize`` such an outcome (``min_range``, ``min_std``,
    ``min_stdv``); BoTorch's analytic acquisition functions raise variances to 1e-12 of the squared outcome unit.

    All posteriors are exact given the hyper-parameters, and know nothing of how these came about. Where they were
    fitted to the same data, bands of partial derivatives are too narrow: most of all those of a weak input, whose long
    lengthscale decides how small its partial derivative is, at the maximum of a likelihood without priors. Priors on
    the hyper-parameters (``SingleTaskGP``'s default kernel and likelihood have them) and averaging over samples from
    their posterior (``surrogates.sample_hyperparameters``) give back much of it. ``python -m experiments run
    calibration`` compares the coverage of the four.

    ``Normalize`` and ``InputStandardize`` keep the coefficients that they learn here: refits do not move them.

    Example:
        >>> X = torch.rand(20, 3, dtype=torch.float64)
        >>> Y = X.sin().sum(-1, keepdim=True)
        >>> gp = DerivedGP(X, Y, covar_module=matern_kernel(1.0), likelihood=gaussian_likelihood(1e-6))
        >>> gradient = gp.gradient_posterior(torch.rand(5, 3, dtype=torch.float64))
        >>> gradient.mean.shape, gradient.trace.shape
        (torch.Size([5, 3]), torch.Size([5]))

    Args:
        train_X: The inputs, ``batch x n x d``.
        train_Y: The outcomes, ``batch x n x m``, which are modelled independently of each other.
        train_Yvar: The noise variances in the user's units, ``batch x n x m``, or None to infer one noise.
        likelihood: A Gaussian likelihood.
        covar_module: Any kernel of two points, in ``ScaleKernel``s, sums and products, on any ``active_dims``. Least
            work are RBF, Matérn 3/2 and 5/2 (1/2: mean only) and RQ; further closed forms and ``register_kernel``
            follow; other kernels are differentiated automatically, which is exact and slower. Of kernels that are no
            functions of two points, such as ``InducingPointKernel``, there is a posterior of values only. Partial
            derivatives in an input in which a factor has none (``CategoricalKernel``, Matérn 1/2) are NaN, with a
            warning. The default is ``SingleTaskGP``'s ARD RBF kernel.
        mean_module: Any GPyTorch mean.
        outcome_transform: Any outcome transform; ``Standardize`` is the default, None stands for none, under which
            kernel, noise and mean are in the units of the outcomes and the defaults of none of them fit. Through a
            nonlinear one (``Log``, ``Power``, ``Bilog``) the gradient is not Gaussian:
            ``transformed_gradient_posterior`` gives its samples and a delta-method mean.
        input_transform: Any input transform. The gradient goes through elementwise, differentiable ones by the chain
            rule (``Normalize``, ``InputStandardize``, ``AffineInputTransform``, ``Log10``, ``Warp``,
            ``Round(approximate=True)``, chains of them) and is refused through others.

    Raises:
        TypeError: If data are not floating point tensors, or the kernel is that of several outputs.
        ValueError: If shapes do not fit, there are no data, an entry is NaN or infinite, dtypes or devices are mixed,
            a variance is negative, or a hyper-parameter is not positive.
    """

    def __init__(
        self,
        train_X: Tensor,
        train_Y: Tensor,
        train_Yvar: Tensor | None = None,
        likelihood: Likelihood | None = None,
        covar_module: Kernel | None = None,
        mean_module: Mean | None = None,
        outcome_transform: OutcomeTransform | _DefaultType | None = DEFAULT,
        input_transform: InputTransform | None = None,
    ) -> None:
        check_data(train_X, train_Y, train_Yvar, num_outputs=None, unobserved=True)
        check_every_outcome(train_Y)
        if likelihood is not None and not isinstance(likelihood, Likelihood):
            raise TypeError(
                f"likelihood must be a likelihood of GPyTorch, got {type(likelihood).__name__}; "
                "surrogates.gaussian_likelihood(noise) makes one of a noise variance."
            )
        if covar_module is not None and keeps_inputs(input_transform):
            with suppress(OpaqueKernelError):
                check_kernel(covar_module, train_X.shape[-1])
        # Copies, so that the model shares no storage with what it was given.
        X, Y, Yvar = cast(tuple[Tensor, Tensor, Tensor | None], observed_rows(train_X, train_Y, train_Yvar))
        super().__init__(X, Y, Yvar, likelihood, covar_module, mean_module, outcome_transform, input_transform)

    @staticmethod
    def with_gradients(train_X: Tensor, train_Y: Tensor, train_G: Tensor, **options: Any) -> GradientObservationGP:
        """A GP conditioned on observed gradients too.

        Args:
            train_X: The inputs, ``n x d``.
            train_Y: The outcomes, ``n x 1``.
            train_G: The gradients in outcome units per unit of input, ``n x d``.
            **options: What else ``GradientObservationGP`` takes; it documents all arguments.
        """
        return GradientObservationGP(train_X, train_Y, train_G, **options)

    @outside_inference_mode
    def gradient_posterior(self, X: Tensor) -> GradientPosterior:
        """The Gaussian posterior of ∇f at X, in the user's units of outcome per unit of input.

        With m > 1 outcomes its shapes are those of a gradient for each of them, ``batch x q x m x d``.

        Args:
            X: The points, ``batch x q x d``.

        Raises:
            TypeError: If X is no floating point tensor.
            ValueError: If X has another d, dtype or device than the data, or holds NaN or inf, there is no gradient
                through the input transform, or the outcome transform is not linear, so that the gradient is not
                Gaussian (see ``transformed_gradient_posterior``).
        """
        current = self._current()
        self._affine_outcome_transform()
        z, slope = self._points(X)
        return GradientPosterior(current.conditioning, z, current.outcome_scale, None, slope, self.num_outputs > 1)

    @outside_inference_mode
    def hessian_posterior(self, X: Tensor) -> HessianPosterior:
        """The Gaussian posterior of ∇²f at X, in the user's units of outcome per squared unit of input.

        With m > 1 outcomes its shapes are those of a Hessian for each of them, ``batch x q x m x d x d``.

        Args:
            X: The points, ``batch x q x d``.

        Raises:
            TypeError: If X is no floating point tensor.
            ValueError: As in ``gradient_posterior``, and for Matérn 1/2.
        """
        current = self._current()
        self._affine_outcome_transform()
        z, slope = self._points(X)
        chain = None if slope is None else (slope, self._bend(X))
        return HessianPosterior(current.conditioning, z, current.outcome_scale, self.num_outputs > 1, chain)

    @outside_inference_mode
    def transformed_gradient_posterior(self, X: Tensor) -> TransformedGradientPosterior:
        """The posterior of ∇f at X through any outcome transform: samples, and a delta-method mean.

        Args:
            X: The points, ``batch x q x d``.

        Raises:
            TypeError: If X is no floating point tensor.
            ValueError: As in ``gradient_posterior``, but for the outcome transform, and for Matérn 1/2.
        """
        conditioning = self.conditioning
        joint = self._joint(conditioning, *self._points(X))
        return TransformedGradientPosterior(joint, getattr(self, "outcome_transform", None), X, self.num_outputs)

    @outside_inference_mode
    def joint_posterior(self, X: Tensor) -> GPyTorchPosterior:
        """The joint posterior of (f, ∇f), event shape ``q x (d+1)``, point by point: GPyTorch's interleaved order.

        It equals conditioning ``RBFKernelGrad`` or ``Matern52KernelGrad`` on values only. Its covariance is dense,
        ``q(d+1) x q(d+1)``. m > 1 outcomes are independent, and the last of its batch dimensions.

        Args:
            X: The points, ``batch x q x d``.

        Raises:
            TypeError: If X is no floating point tensor.
            ValueError: As in ``gradient_posterior``, and for Matérn 1/2 and a nonlinear outcome transform.
        """
        conditioning = self.conditioning
        z, slope = self._points(X)
        scale, shift = self.outcome_scale, self.outcome_shift
        mean, covariance = self._joint(conditioning, z, slope)
        if scale is not None:
            mean = mean * scale.unsqueeze(-1)
            covariance = covariance * scale.unsqueeze(-1).square()
        if shift is not None:
            mean = torch.cat([mean[..., :1] + shift.unsqueeze(-1), mean[..., 1:]], dim=-1)
        return GPyTorchPosterior(UnitFreeMultitaskNormal(mean, covariance))

    @outside_inference_mode
    def value_gradient_covariance(self, X: Tensor, X_gradient: Tensor) -> Tensor:
        """The posterior covariance of f(x) and ∇f(x') for every pair, ``batch (x m) x q x q' x d``, in user's units.

        Args:
            X: The points x of the values, ``batch x q x d``.
            X_gradient: The points x' of the gradients, ``batch x q' x d``.

        Raises:
            TypeError: If either is no floating point tensor.
            ValueError: As in ``joint_posterior``.
        """
        conditioning = self.conditioning
        check_points(X_gradient, self.num_inputs, conditioning.X, "X_gradient")
        values, (gradients, slope) = self._points(X)[0], self._points(X_gradient)
        covariance = conditioning.value_gradient_covariance(values, gradients).to(X)
        covariance = covariance if slope is None else covariance * slope.unsqueeze(-3)
        scale = self.outcome_scale
        return covariance if scale is None else covariance * scale.square()[..., None, None]

    @property
    def outcome_scale(self) -> Tensor | None:
        """dy/dy' of the outcome transform, ``batch (x m) x 1``, or None where it is 1.

        Raises:
            ValueError: If the outcome transform is not linear.
        """
        return outcome_scale(self._affine_outcome_transform())

    @property
    def outcome_shift(self) -> Tensor | None:
        """The outcome that the transformed outcome 0 stands for, ``batch (x m) x 1``, or None where it is 0.

        Raises:
            ValueError: If the outcome transform is not linear.
        """
        return outcome_shift(self._affine_outcome_transform())

    def _affine_outcome_transform(self) -> OutcomeTransform | None:
        transform = cast(OutcomeTransform | None, self._modules.get("outcome_transform"))
        if transform is not None and not is_affine_outcome(transform):
            raise ValueError(
                f"Through outcome_transform {type(transform).__name__}, which is not linear, the gradient is not "
                "Gaussian. transformed_gradient_posterior gives its samples and a delta-method mean; a model of the "
                "transformed outcomes, without the transform, gives the Gaussian gradient of these."
            )
        return transform

    def _points(self, X: Tensor) -> tuple[Tensor, Tensor | None]:
        """The transformed points, ``batch (x 1) x q x d``, and dz/dx there, or None where the conditioning has it.

        They share no storage with X.
        """
        check_points(X, self.num_inputs, self.train_inputs[0])
        check_not_traced("X", X)
        # A missing attribute costs a module's __getattr__ several microseconds, a missing entry none.
        transform = cast(InputTransform | None, self._modules.get("input_transform"))
        slope: Tensor | None = None
        if transform is None:
            z = X.clone()
        elif is_affine_input(transform):
            z = transform(X)
            z = z.clone() if z is X else z
        else:
            check_input_slope(transform)
            wanted = torch.is_grad_enabled() and (X.requires_grad or derivatives_are_asked_for())
            z, slope = transformed_with_slope(transform, X, wanted)
        if self.num_outputs == 1:
            return z, slope
        return z.unsqueeze(-3), None if slope is None else slope.unsqueeze(-3)

    def _bend(self, X: Tensor) -> Tensor:
        """d²z/dx² of an elementwise input transform at the points, shaped as dz/dx is by ``_points``."""
        wanted = torch.is_grad_enabled() and (X.requires_grad or derivatives_are_asked_for())
        with torch.enable_grad():
            x = X if X.requires_grad else X.detach().clone().requires_grad_(True)
            slope = self._points(x)[1]
            assert slope is not None
            if x.numel() == 0:
                return torch.zeros_like(slope)
            # Of a batch of transforms at the same points each has its own.
            copies = slope.reshape(-1, *x.shape)
            bends = [
                torch.autograd.grad(copy.sum(), x, retain_graph=True, create_graph=wanted, materialize_grads=True)[0]
                for copy in copies
            ]
        return torch.stack(bends).reshape(slope.shape)

    def _joint(self, conditioning: Conditioning, z: Tensor, slope: Tensor | None) -> tuple[Tensor, Tensor]:
        """Mean, ``... x q x (d+1)``, and covariance of (f, ∇f) in the model's units of outcome, dense."""
        across = kernel_values(conditioning.kernel, z, conditioning.X)
        value = self.mean_module(z) + (across @ conditioning.alpha.unsqueeze(-1)).squeeze(-1).to(z.dtype)
        gradient, covariance = conditioning.mean(z), conditioning.joint_covariance(z).to(z.dtype)
        if slope is not None:
            gradient = gradient * slope
            units = torch.cat([torch.ones_like(slope[..., :1]), slope], dim=-1).flatten(-2)
            covariance = covariance * units.unsqueeze(-1) * units.unsqueeze(-2)
        return torch.cat([value.unsqueeze(-1), gradient], dim=-1), covariance
