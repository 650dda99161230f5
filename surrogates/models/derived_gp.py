"""The derived GP: BoTorch's SingleTaskGP with the Gaussian posterior of the gradient.

References:
    Y. Shu, Z. Dai, W. Sng, A. Verma, P. Jaillet and B. K. H. Low, Zeroth-order optimization with
    trajectory-informed derivative estimation, ICLR 2023 (ZoRD): eqs. 3-6.
"""

from __future__ import annotations

from contextlib import suppress

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
from surrogates.models import sampling as _sampling  # noqa: F401  its import registers samplers with BoTorch
from surrogates.models.gradient_model import GradientModel
from surrogates.models.transforms import keeps_inputs
from surrogates.models.unobserved import observed_rows


class DerivedGP(GradientModel):
    r"""A ``SingleTaskGP`` with the exact posterior of the gradient of f, given values of f only.

    With A = K + diag(s²) and J(x) the ``n x d`` matrix of rows ∂k(x, x_τ)/∂x, the gradient of f at x given (X, y) is
    Gaussian (ZoRD eqs. 3-6; FZooS eq. 8) with

        mean ∇m(x) + J(x)ᵀ A⁻¹ (y − m(X))   and covariance   ∂ₓ∂ₓ'k(x, x') − J(x)ᵀ A⁻¹ J(x').

    It is a drop-in replacement of ``SingleTaskGP``, with the same arguments, fit and value posterior. All computations
    use Cholesky factors at any n (GPyTorch switches to conjugate gradients above n = 800). Batched models are
    supported. The coefficients of ``Normalize`` and ``InputStandardize`` are learned at construction; refits keep them.

    Results scale with the units of the data. Unlike ``SingleTaskGP``, it standardises outcomes whose standard deviation
    is below 1e-8, does not raise ``train_Yvar`` (to 1e-6 in the model's units, 1e-4 in float32), and has no minimum
    variance. Three absolute thresholds remain. The default likelihood keeps the noise above 1e-4 in the model's units
    (``surrogates.gaussian_likelihood`` does not). ``Normalize``, ``InputStandardize`` and a given ``Standardize`` do
    not scale columns whose range or standard deviation is below 1e-8. BoTorch's analytic acquisition functions raise
    variances to 1e-12.

    All posteriors are exact given the hyper-parameters and ignore hyper-parameter uncertainty. If the hyper-parameters
    were fitted to the same data, credible intervals of partial derivatives are too narrow, especially for inputs with
    little influence. Priors, as in the default kernel and likelihood, and averaging over hyper-parameter samples
    (``surrogates.sample_hyperparameters``) recover much of the coverage (``python -m experiments run calibration``).

    Example:
        >>> X = torch.rand(20, 3, dtype=torch.float64)
        >>> Y = X.sin().sum(-1, keepdim=True)
        >>> gp = DerivedGP(X, Y, covar_module=matern_kernel(1.0), likelihood=gaussian_likelihood(1e-6))
        >>> gradient = gp.gradient_posterior(torch.rand(5, 3, dtype=torch.float64))
        >>> gradient.mean.shape, gradient.trace.shape
        (torch.Size([5, 3]), torch.Size([5]))

    Args:
        train_X: The inputs, ``batch x n x d``.
        train_Y: The outcomes, ``batch x n x m``, modelled independently. NaN means not observed.
        train_Yvar: The noise variances in the user's units, ``batch x n x m``, or None to infer one noise variance. The
            variance of a NaN outcome may be NaN.
        likelihood: A Gaussian likelihood.
        covar_module: Any GPyTorch kernel, also with ``ScaleKernel``, sums, products and ``active_dims``; the default is
            ``SingleTaskGP``'s ARD RBF kernel. Gradients are fastest for RBF, RQ, Matérn 3/2 and 5/2 (Matérn 1/2 has a
            mean only). Cosine, piecewise polynomial, linear, polynomial, periodic, spectral mixture and registered
            kernels (``register_kernel``) have closed forms. Other kernels are differentiated automatically, which is
            exact and slower. If the kernel or a factor has no derivative in an input (``CategoricalKernel``, Matérn
            1/2), partial derivatives in this input are NaN, with a warning. A kernel that is not a function of two
            points, such as ``InducingPointKernel``, has no gradient posterior.
        mean_module: Any GPyTorch mean.
        outcome_transform: Any outcome transform; the default is ``Standardize``. With None, kernel, noise and mean are
            in outcome units, and the default priors may not fit. Under a nonlinear transform (``Log``, ``Power``,
            ``Bilog``) the gradient is not Gaussian: use ``transformed_gradient_posterior``.
        input_transform: Any input transform. The gradient exists if the transform is elementwise and differentiable
            (``Normalize``, ``InputStandardize``, ``AffineInputTransform``, ``Log10``, ``Warp``,
            ``Round(approximate=True)``, chains of them); otherwise ``gradient_posterior`` raises a ValueError.

    Raises:
        TypeError: If data are not floating point tensors, or the kernel has several outputs.
        ValueError: If shapes, dtypes or devices do not match, an outcome has no observed value, an entry is infinite,
            an input or an observed outcome's variance is NaN, a variance is negative, or a hyper-parameter not
            positive.
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
                f"likelihood must be a GPyTorch likelihood, got {type(likelihood).__name__}; "
                "surrogates.gaussian_likelihood(noise) makes one with a given noise variance."
            )
        if covar_module is not None and keeps_inputs(input_transform):
            with suppress(OpaqueKernelError):
                check_kernel(covar_module, train_X.shape[-1])
        # These are copies, so that the model shares no storage with the caller's tensors.
        X, Y, Yvar = observed_rows(train_X, train_Y, train_Yvar)
        super().__init__(X, Y, Yvar, likelihood, covar_module, mean_module, outcome_transform, input_transform)
