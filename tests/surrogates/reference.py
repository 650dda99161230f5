"""Gaussian posteriors of values and gradients from their definitions, in 60-digit arithmetic.

No derivative of a kernel is written down here: gradients are central differences of the posterior mean, gradient
covariances are mixed central differences of the posterior covariance, with steps of 1e-16 in 60 digits. Everything
is in the user's units: transforms are probed, not read.
"""

from collections.abc import Callable

import mpmath
import torch
from gpytorch.kernels import (
    AdditiveKernel,
    CosineKernel,
    LinearKernel,
    MaternKernel,
    PeriodicKernel,
    PiecewisePolynomialKernel,
    PolynomialKernel,
    ProductKernel,
    RBFKernel,
    RQKernel,
    ScaleKernel,
    SpectralMixtureKernel,
)
from gpytorch.means import ConstantMean, LinearMean, ZeroMean

mp = mpmath.mp.clone()
mp.dps = 60
STEP = mp.mpf(10) ** -16

Point = list
Kernel = Callable[[Point, Point], object]


def to_mp(tensor) -> list:
    """A tensor as nested lists of mpf, exactly."""
    values = tensor.detach().double().tolist() if isinstance(tensor, torch.Tensor) else tensor
    return [to_mp(v) for v in values] if isinstance(values, list) else mp.mpf(values)


def to_tensor(values) -> torch.Tensor:
    """Nested lists of mpf as float64."""
    return torch.tensor(_floats(values), dtype=torch.float64)


def _floats(values):
    return [_floats(v) for v in values] if isinstance(values, list) else float(values)


def kernel_function(kernel, index: tuple = ()) -> Kernel:
    """k(x, x') of a GPyTorch kernel, one element of its batch, with the hyper-parameters that it has now."""

    def value(tensor, tail: int) -> list:
        tensor = tensor.detach()
        lead = tensor.shape[: tensor.dim() - tail]
        chosen = index[len(index) - len(lead) :]
        position = tuple(i if size > 1 else 0 for i, size in zip(chosen, lead, strict=True))
        return to_mp(tensor[position])

    def called(node) -> Kernel:
        function = forward(node)
        if node.active_dims is None:
            return function
        chosen = node.active_dims.tolist()
        return lambda x, y: function([x[i] for i in chosen], [y[i] for i in chosen])

    def forward(node) -> Kernel:
        if type(node) is ScaleKernel:
            scale, base = value(node.outputscale, 0), forward(node.base_kernel)
            return lambda x, y: scale * base(x, y)
        if type(node) is AdditiveKernel:
            parts = [called(part) for part in node.kernels]
            return lambda x, y: mp.fsum(part(x, y) for part in parts)
        if type(node) is ProductKernel:
            parts = [called(part) for part in node.kernels]
            return lambda x, y: mp.fprod(part(x, y) for part in parts)
        if type(node) is LinearKernel:
            variances = value(node.variance, 2)[0]
            return lambda x, y: mp.fsum(v * a * b for v, a, b in zip(spread(variances, x), x, y, strict=True))
        if type(node) is PolynomialKernel:
            offset, power = value(node.offset, 1)[0], node.power
            return lambda x, y: (mp.fdot(x, y) + offset) ** power
        if type(node) is CosineKernel:
            period = value(node.period_length, 2)[0][0]
            return lambda x, y: mp.cos(
                mp.pi * mp.sqrt(mp.fsum((a - b) ** 2 for a, b in zip(x, y, strict=True))) / period
            )
        if type(node) is SpectralMixtureKernel:
            weights, means = value(node.mixture_weights, 1), value(node.mixture_means, 3)
            widths = value(node.mixture_scales, 3)

            def mixture(i, delta):
                bells = [mp.exp(-2 * (mp.pi * delta * s[0][i]) ** 2) for s in widths]
                waves = [mp.cos(2 * mp.pi * delta * m[0][i]) for m in means]
                return mp.fsum(w * b * c for w, b, c in zip(weights, bells, waves, strict=True))

            return lambda x, y: mp.fprod(mixture(i, a - b) for i, (a, b) in enumerate(zip(x, y, strict=True)))
        scales = value(node.lengthscale, 2)[0]
        if type(node) is PeriodicKernel:
            periods = value(node.period_length, 2)[0]

            def periodic(x, y):
                terms = zip(x, y, spread(periods, x), spread(scales, x), strict=True)
                return mp.exp(-2 * mp.fsum(mp.sin(mp.pi * (a - b) / p) ** 2 / s for a, b, p, s in terms))

            return periodic
        radial, inverses = profile(node), [1 / scale for scale in scales]

        def of_distance(x, y):
            scaled = [(a - b) * c for a, b, c in zip(x, y, spread(inverses, x), strict=True)]
            return radial(mp.fdot(scaled, scaled), len(x))

        return of_distance

    def profile(node):
        """k of r² and d."""
        if type(node) is PiecewisePolynomialKernel:
            q = node.q

            def piecewise(r2, d):
                r = mp.sqrt(r2)
                j = d // 2 + q + 1
                # The coefficient of r² for q = 2 is GPyTorch's; Rasmussen and Williams, eq. 4.21, have j² for its
                # first j.
                factor = {
                    0: 1,
                    1: 1 + (j + 1) * r,
                    2: 1 + (j + 2) * r + mp.mpf(j + 4 * j + 3) / 3 * r2,
                    3: 1
                    + (j + 3) * r
                    + mp.mpf(6 * j**2 + 36 * j + 45) / 15 * r2
                    + mp.mpf(j**3 + 9 * j**2 + 23 * j + 15) / 15 * r * r2,
                }[q]
                return max(0, 1 - r) ** (j + q) * factor

            return piecewise
        if type(node) is RBFKernel:
            return lambda r2, d: mp.exp(-r2 / 2)
        if type(node) is RQKernel:
            alpha = value(node.alpha, 1)[0]
            return lambda r2, d: (1 + r2 / (2 * alpha)) ** -alpha
        assert type(node) is MaternKernel
        nu, factor = node.nu, mp.sqrt(mp.mpf(2 * node.nu))

        def matern(r2, d):
            a = factor * mp.sqrt(r2)
            return {0.5: 1, 1.5: 1 + a, 2.5: 1 + a + a * a / 3}[nu] * mp.exp(-a)

        return matern

    return called(kernel)


def spread(values: list, x: Point) -> list:
    """One number for each coordinate, of as many or of one for all."""
    return values if len(values) > 1 else values * len(x)


def mean_function(module, index: tuple = ()):
    """m(x) of a GPyTorch mean, one element of its batch."""
    if type(module) is ZeroMean:
        return lambda x: mp.mpf(0)
    if type(module) is ConstantMean:
        constant = module.constant.detach()
        constant = to_mp(constant[index] if constant.dim() else constant)
        return lambda x: constant
    assert type(module) is LinearMean
    weights, bias = module.weights.detach(), module.bias.detach()
    weights = to_mp(weights[index][:, 0] if weights.dim() > 2 else weights[:, 0])
    bias = to_mp(bias[index][0] if bias.dim() > 1 else bias[0])
    return lambda x: mp.fdot(weights, x) + bias


class Reference:
    """GP regression of y on X under k and m with the given noise variances, all in the user's units."""

    def __init__(self, kernel: Kernel, mean, X, Y, noise) -> None:
        self.kernel, self.prior_mean = kernel, mean
        self._whites: dict[tuple, list] = {}
        self.X, y, noise = to_mp(X), to_mp(Y), to_mp(noise)
        n = len(self.X)
        A = mp.matrix(n, n)
        for i in range(n):
            for j in range(n):
                A[i, j] = kernel(self.X[i], self.X[j]) + (noise[i] if i == j else 0)
        self.L = mp.cholesky(A)
        self.residual = [y[i] - mean(self.X[i]) for i in range(n)]
        self.white_residual = self._whiten(self.residual)

    def _whiten(self, b: list) -> list:
        result: list = []
        for i in range(len(b)):
            done = mp.fdot([self.L[i, j] for j in range(i)], result)
            result.append((b[i] - done) / self.L[i, i])
        return result

    def white(self, x: Point) -> list:
        """L⁻¹ k(X, x)."""
        key = tuple(x)
        if key not in self._whites:
            self._whites[key] = self._whiten([self.kernel(x, row) for row in self.X])
        return self._whites[key]

    def value_mean(self, x: Point):
        return self.prior_mean(x) + mp.fdot(self.white(x), self.white_residual)

    def log_likelihood(self):
        n = len(self.X)
        log_determinant = mp.fsum(mp.log(self.L[i, i]) for i in range(n))
        return -mp.fdot(self.white_residual, self.white_residual) / 2 - log_determinant - n * mp.log(2 * mp.pi) / 2

    def gradient_mean(self, x) -> torch.Tensor:
        x = to_mp(x)
        pairs = (moved(x, i) for i in range(len(x)))
        return to_tensor([(self.value_mean(up) - self.value_mean(down)) / (2 * STEP) for up, down in pairs])

    def value_covariance(self, x1, x2) -> torch.Tensor:
        x1, x2 = to_mp(x1), to_mp(x2)
        return to_tensor(self.kernel(x1, x2) - mp.fdot(self.white(x1), self.white(x2)))

    def value_gradient_covariance(self, x1, x2) -> torch.Tensor:
        """cov(f(x1), ∂f(x2)), d."""
        x1, x2 = to_mp(x1), to_mp(x2)
        white, result = self.white(x1), []
        for i in range(len(x2)):
            up, down = (self.kernel(x1, p) - mp.fdot(white, self.white(p)) for p in moved(x2, i))
            result.append((up - down) / (2 * STEP))
        return to_tensor(result)

    def gradient_covariance(self, x1, x2=None) -> torch.Tensor:
        """cov(∂f(x1), ∂f(x2)), d x d."""
        x1 = to_mp(x1)
        x2 = x1 if x2 is None else to_mp(x2)
        first, second = ([[(p, self.white(p)) for p in moved(x, i)] for i in range(len(x))] for x in (x1, x2))

        def mixed(a, b):
            total = mp.mpf(0)
            for sign_a, (p, white_p) in zip((1, -1), a, strict=True):
                for sign_b, (q, white_q) in zip((1, -1), b, strict=True):
                    total += sign_a * sign_b * (self.kernel(p, q) - mp.fdot(white_p, white_q))
            return total / (4 * STEP**2)

        return to_tensor([[mixed(a, b) for b in second] for a in first])

    def joint(self, points) -> tuple[torch.Tensor, torch.Tensor]:
        """Mean, q x (d+1), and covariance, q(d+1) x q(d+1), of (f, ∇f), point by point."""
        points = list(points)
        mean = torch.stack([torch.cat([to_tensor([self.value_mean(to_mp(x))]), self.gradient_mean(x)]) for x in points])
        q, d = len(points), len(points[0])
        covariance = torch.zeros(q, d + 1, q, d + 1, dtype=torch.float64)
        for i, x1 in enumerate(points):
            for j, x2 in enumerate(points[i:], start=i):
                top = torch.cat([self.value_covariance(x1, x2).reshape(1), self.value_gradient_covariance(x1, x2)])
                rest = torch.cat(
                    [self.value_gradient_covariance(x2, x1).unsqueeze(-1), self.gradient_covariance(x1, x2)], dim=-1
                )
                block = torch.cat([top.unsqueeze(0), rest])
                covariance[i, :, j], covariance[j, :, i] = block, block.mT
        return mean, covariance.reshape(q * (d + 1), q * (d + 1))


def moved(x: Point, i: int) -> tuple[Point, Point]:
    up, down = list(x), list(x)
    up[i], down[i] = x[i] + STEP, x[i] - STEP
    return up, down


def reference(model, X, Y, Yvar=None, index: tuple = ()) -> Reference:
    """The reference of one element of a model's batch, given the data in the user's units.

    Hyper-parameters are read from the model, its transforms are probed.
    """
    d = X.shape[-1]
    offset, slope = torch.zeros(d, dtype=X.dtype), torch.ones(d, dtype=X.dtype)
    if hasattr(model, "input_transform"):
        transform = model.input_transform.eval()
        corners = torch.cat([torch.zeros(1, d, dtype=X.dtype), torch.eye(d, dtype=X.dtype)])
        images = transform(corners)
        images = images[index] if images.dim() > 2 else images
        offset, slope = images[0], (images[1:] - images[0]).diagonal()
    shift, scale = mp.mpf(0), mp.mpf(1)
    if hasattr(model, "outcome_transform"):
        probes = torch.tensor([[0.0], [1.0]], dtype=X.dtype).expand(*model.train_targets.shape[:-1], 2, 1)
        images = model.outcome_transform.eval().untransform(probes)[0][index].squeeze(-1)
        shift, scale = to_mp(images[0]), to_mp(images[1]) - to_mp(images[0])
    offset, slope = to_mp(offset), to_mp(slope)
    kernel, mean = kernel_function(model.covar_module, index), mean_function(model.mean_module, index)

    def z(x):
        return [a + b * c for a, b, c in zip(offset, slope, x, strict=True)]

    if Yvar is None:
        noise = model.likelihood.noise.detach()
        noise = noise[index] if noise.dim() > 1 else noise
        variances = [to_mp(noise)[0] * scale**2] * X.shape[-2]
    else:
        variances = to_mp(Yvar[index].squeeze(-1))
    return Reference(
        lambda a, b: scale**2 * kernel(z(a), z(b)),
        lambda x: shift + scale * mean(z(x)),
        X[index],
        Y[index].squeeze(-1),
        variances,
    )


def relative_error(value, expected) -> float:
    """The largest error in units of the largest expected entry."""
    value, expected = torch.as_tensor(value).detach().double(), torch.as_tensor(expected)
    assert value.shape == expected.shape, f"{tuple(value.shape)} is not {tuple(expected.shape)}"
    return ((value - expected).abs().max() / expected.abs().max()).item()


def assert_close(value, expected, tolerance: float = 1e-9) -> None:
    error = relative_error(value, expected)
    assert error <= tolerance, f"relative error {error:.3g} is above {tolerance:g}"
