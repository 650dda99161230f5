"""The derived GP: BoTorch's SingleTaskGP with the Gaussian posterior of its gradient.

References:
    Y. Shu, Z. Dai, W. Sng, A. Verma, P. Jaillet and B. K. H. Low, Zeroth-order optimization with
    trajectory-informed derivative estimation, ICLR 2023 (ZoRD): eqs. 3-6.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any, cast

from botorch.models.transforms.input import InputTransform
from botorch.models.transforms.outcome import OutcomeTransform
from botorch.utils.types import DEFAULT, _DefaultType
from gpytorch.kernels import Kernel
from gpytorch.likelihoods.likelihood import Likelihood
from gpytorch.means import Mean
from torch import Tensor

from surrogates.checks import check_data, check_every_outcome
from surrogates.kernels.blocks import check_kernel
from surrogates.kernels.errors import OpaqueKernelError
from surrogates.models import pathwise as _pathwise  # noqa: F401  its import registers the update of paths
from surrogates.models.gradient_model import GradientModel
from surrogates.models.gradient_observations import GradientObservationGP
from surrogates.models.transforms import keeps_inputs
from surrogates.models.unobserved import observed_rows


class DerivedGP(GradientModel):
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

    All posteriors are exact given the hyper-parameters, and ignore their uncertainty. If these were fitted to the same
    data, bands of partial derivatives are too narrow, most of all for a weak input, whose long lengthscale decides how
    small its partial derivative is. Priors on the hyper-parameters (``SingleTaskGP``'s default kernel and likelihood
    have them) and averaging over samples from their posterior (``surrogates.sample_hyperparameters``) recover much of
    the coverage. ``python -m experiments run calibration`` compares the coverage of the four.

    ``Normalize`` and ``InputStandardize`` keep the coefficients that they learn here; refits do not change them.

    Example:
        >>> X = torch.rand(20, 3, dtype=torch.float64)
        >>> Y = X.sin().sum(-1, keepdim=True)
        >>> gp = DerivedGP(X, Y, covar_module=matern_kernel(1.0), likelihood=gaussian_likelihood(1e-6))
        >>> gradient = gp.gradient_posterior(torch.rand(5, 3, dtype=torch.float64))
        >>> gradient.mean.shape, gradient.trace.shape
        (torch.Size([5, 3]), torch.Size([5]))

    Args:
        train_X: The inputs, ``batch x n x d``.
        train_Y: The outcomes, ``batch x n x m``, which are modelled independently of each other. NaN means that an
            outcome was not observed: each outcome is conditioned on its observed rows alone.
        train_Yvar: The noise variances in the user's units, ``batch x n x m``, or None to infer one noise. A variance
            may be NaN where its outcome is.
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
        TypeError: If data are not floating point tensors, or the kernel has several outputs.
        ValueError: If shapes do not fit, an outcome has no observed value, an entry is infinite, or NaN where it may
            not be, dtypes or devices are mixed, a variance is negative, or a hyper-parameter is not positive.
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
