"""The errors for kernels, gradients and Hessians that are not supported or do not exist."""

from __future__ import annotations


class UnsupportedKernelError(TypeError):
    """A kernel has no gradient posterior; the message states the reason."""

    def __init__(self, kernel: object, reason: str) -> None:
        super().__init__(f"{type(kernel).__name__} {reason}")


class OpaqueKernelError(UnsupportedKernelError):
    """A kernel is not a differentiable function of two points, so that its models have a posterior of values only."""


def no_gradient_covariance(title: str = "MaternKernel(nu=0.5)") -> ValueError:
    """The error for the gradient covariance of a kernel with a kink at r = 0, such as Matérn 1/2."""
    return ValueError(
        f"{title} has no gradient covariance: its sample paths are not differentiable "
        "(-2h'(0) is infinite). Use MaternKernel with nu=1.5 or nu=2.5, RBFKernel or RQKernel. Only the gradient mean "
        "exists, away from the data."
    )


def gradient_at_datum(title: str = "MaternKernel(nu=0.5)") -> ValueError:
    """The error for the gradient mean at a data point, where the kernel and therefore the mean has a kink."""
    return ValueError(
        f"A point coincides with a data point, where the gradient mean of {title} does not exist; "
        "evaluate other points, or use MaternKernel with nu=1.5 or nu=2.5, RBFKernel or RQKernel."
    )


def no_gradient(title: str) -> ValueError:
    """The error for a kernel without a derivative between two points, if the kernel is not a function of r²."""
    return ValueError(
        f"{title} has no gradient between two of the points, usually a point and itself or a data point: the "
        "derivative there is infinite, or differs from one side to the other. The gradient mean exists away from the "
        "data; the gradient covariance requires a kernel whose sample paths are differentiable."
    )


def no_hessian(title: str = "MaternKernel(nu=0.5)") -> ValueError:
    """The error for second derivatives under a kernel with a kink at r = 0, such as Matérn 1/2."""
    return ValueError(
        f"{title} has no Hessian posterior: its sample paths have no first derivatives. "
        "Use MaternKernel with nu=2.5, RBFKernel or RQKernel; nu=1.5 has only the Hessian's mean."
    )


def no_hessian_covariance(title: str = "MaternKernel(nu=1.5)") -> ValueError:
    """The error for the covariance of second derivatives under a kernel without four derivatives at r = 0."""
    return ValueError(
        f"{title} has no covariance of second derivatives: the kernel does not have four derivatives at x = x', or "
        "they cannot be computed. The mean exists. For the covariance, use MaternKernel with nu=2.5, RBFKernel or "
        "RQKernel, or pass h, h' and h'' of r² to surrogates.register_kernel."
    )
