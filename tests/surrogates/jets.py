"""Jets of kernels by nested forward differentiation of their formulas, all pairs of points at once."""

import torch
from torch.func import jacfwd, vmap

NAN = float("nan")


def rbf(a, b, lengthscale=0.8):
    return (-0.5 * ((a - b) / lengthscale).square().sum()).exp()


def rational(a, b, lengthscale=0.9, alpha=1.7):
    return (1 + ((a - b) / lengthscale).square().sum() / (2 * alpha)) ** -alpha


def entries(function, d, order):
    """x to the value, the first and, for order 2, the second derivatives ∂ᵢ∂ⱼ, i ≤ j, of a function of x."""
    i, j = torch.triu_indices(d, d)

    def jet(x):
        parts = [function(x).reshape(-1, 1), jacfwd(function)(x).reshape(-1, d)]
        if order == 2:
            parts.append(jacfwd(jacfwd(function))(x).reshape(-1, d, d)[:, i, j])
        return torch.cat(parts, -1)

    return jet


def covariance(kernel, x1, x2, order1, order2):
    """The covariance of all entries at x1, point by point, with those at x2."""
    d = x1.shape[-1]

    def pair(a, b):
        return entries(lambda s: entries(lambda t: kernel(s, t), d, order2)(b).squeeze(0), d, order1)(a).mT

    blocks = vmap(lambda a: vmap(lambda b: pair(a, b))(x2))(x1)
    return blocks.transpose(1, 2).flatten(2).flatten(0, 1)


def conditioned(kernel, X, targets, noise, at, order):
    """Mean and covariance of all entries up to the second order at points, and the log density of what was observed.

    The prior mean is 0. Targets are all entries up to ``order`` at X, point by point, NaN where nothing was observed.
    """
    seen = ~targets.isnan()
    A = covariance(kernel, X, X, order, order)[seen][:, seen] + torch.diag(noise[seen])
    across = covariance(kernel, at, X, 2, order)[:, seen]
    mean = across @ torch.linalg.solve(A, targets[seen])
    left = covariance(kernel, at, at, 2, 2) - across @ torch.linalg.solve(A, across.mT)
    zeros = torch.zeros(int(seen.sum()), dtype=X.dtype)
    return mean, left, torch.distributions.MultivariateNormal(zeros, A).log_prob(targets[seen])
