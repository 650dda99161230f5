"""The errors for kernels, gradients and Hessians that are not supported or do not exist."""

from __future__ import annotations


class UnsupportedKernelError(TypeError):
    """A kernel has no gradient posterior; the message states the reason."""

    def __init__(self, kernel: object, reason: str) -> None:
        super().__init__(f"{type(kernel).__name__} {reason}")


class OpaqueKernelError(UnsupportedKernelError):
    """A kernel is not a differentiable function of two points; models of it, by GPyTorch, have values only."""


def no_gradient_covariance(title: str = "MaternKernel(nu=0.5)") -> ValueError:
    """The error for the gradient covariance of a kernel with a kink at r = 0, such as Matérn 1/2."""
    return ValueError(
        f"{title} has no gradient covariance: its sample paths are not differentiable "
        "(-2h'(0) is infinite). Use MaternKernel with nu=1.5 or nu=2.5, RBFKernel or RQKernel; only the gradient mean "
        "away from the data exists."
    )


def gradient_at_datum(title: str = "MaternKernel(nu=0.5)") -> ValueError:
    """The error for the gradient of a mean at a datum, where the kernel and therefore the mean has a kink."""
    return ValueError(
        f"A point coincides with a datum, where the gradient mean of {title} does not exist; "
        "ask for it away from the data, or use MaternKernel with nu=1.5 or nu=2.5, RBFKernel or RQKernel."
    )


def no_gradient(title: str) -> ValueError:
    """The error for a kernel given by functions of (x, x') without a derivative between two points."""
    return ValueError(
        f"{title} has no gradient between two of the points, most often a point and itself or a datum: its "
        "derivative there is infinite, or differs from one side to the other. The mean exists away from the data; the "
        "covariance only for kernels whose sample paths are differentiable."
    )


def no_hessian(title: str = "MaternKernel(nu=0.5)") -> ValueError:
    """The error for second derivatives under a kernel with a kink at r = 0, such as Matérn 1/2."""
    return ValueError(
        f"{title} has no Hessian posterior: its sample paths have no first derivatives. "
        "Use MaternKernel with nu=2.5, RBFKernel or RQKernel (nu=1.5: the mean only)."
    )


def no_hessian_covariance(title: str = "MaternKernel(nu=1.5)") -> ValueError:
    """The error for the covariance of second derivatives under a kernel without four derivatives at r = 0."""
    return ValueError(
        f"{title} has no covariance of second derivatives: its sample paths are not twice differentiable, as the "
        "kernel has not four derivatives between a point and itself, or these cannot be found. The mean exists. Use "
        "MaternKernel with nu=2.5, RBFKernel or RQKernel, or give h, h' and h'' of r² to surrogates.register_kernel."
    )
