"""Data in other units give the same numbers in those units, from every surrogate and every posterior.

What is exact and what is bounded:

- By powers of 2, with transforms that learn the units, every number is bitwise the same.
- By other factors (X by 1e±6, y by 1e±9) and by offsets numbers agree to what the dtype can do: hyper-parameters are
  rounded to the dtype, and an offset takes digits off the data.
- In float32 what leaves the range of the dtype, as the variance of a second derivative may, is left out.
- GradientObservationGP with an inferred noise follows the unit of y alone: it has one noise for values and for partial
  derivatives. FullyBayesianDerivedGP follows units through transforms, as priors have units of their own.
"""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from math import log10

import pytest
import torch
from botorch.models import ModelListGP
from botorch.models.transforms.input import InputStandardize, Log10, Normalize
from botorch.models.transforms.outcome import ChainedOutcomeTransform, Log, Standardize
from gpytorch.kernels import Kernel, RBFKernel, ScaleKernel
from gpytorch.kernels.rbf_kernel_grad import RBFKernelGrad
from gpytorch.means import ConstantMean

from surrogates import (
    DerivedGP,
    FourierFeatures,
    FourierSurrogate,
    GradientInformation,
    GradientObservationGP,
    GradientSensitivity,
    gaussian_likelihood,
    gradient_posterior,
    map_outcomes,
    matern_kernel,
    partial_dependence,
    rbf_kernel,
    sample_hyperparameters,
)
from surrogates.window.window_surrogate import Hyperparameters, WindowSurrogate
from tests.surrogates.gp_models import generator

D = 2
NOISE = {torch.float64: 1e-6, torch.float32: 1e-2}
BOX = torch.tensor([[0.4, 0.5], [1.5, 1.7]], dtype=torch.float64)
TOLERANCE = {torch.float64: 1e-6, torch.float32: 3e-2}


@dataclass(frozen=True)
class Units:
    """Data are ``x * X + x_offset`` and ``y * Y + y_offset`` of those in the plain units."""

    x: float = 1.0
    y: float = 1.0
    x_offset: float = 0.0
    y_offset: float = 0.0
    dtype: torch.dtype = torch.float64

    def inputs(self, X):
        return (self.x * X + self.x_offset).to(self.dtype)

    def outcomes(self, Y):
        return (self.y * Y + self.y_offset).to(self.dtype)


def data():
    X = 0.5 + torch.rand(9, D, generator=generator(0), dtype=torch.float64)
    Y = 3.0 + (3 * X[:, :1]).sin() + X[:, 1:] * X[:, :1]
    G = torch.cat([3 * (3 * X[:, :1]).cos() + X[:, 1:], X[:, :1]], dim=-1)
    return X, Y, G


def places():
    """A point far from the data, one near them and one on a datum."""
    X, _, _ = data()
    return torch.stack([torch.tensor([0.4, 1.6], dtype=torch.float64), X[0] + 0.05, X[1]])


Numbers = dict[str, tuple[torch.Tensor, int, int]]
"""Numbers by name, with the powers of the units of y and 1/x that they are in."""


def of_values(posterior, units) -> Numbers:
    torch.manual_seed(0)
    return {
        "mean": (posterior.mean - units.y_offset, 1, 0),
        "variance": (posterior.variance, 2, 0),
        "samples": (posterior.rsample(torch.Size([3])) - units.y_offset, 1, 0),
        "quantile": (posterior.quantile(torch.tensor([0.1, 0.9], dtype=units.dtype)) - units.y_offset, 1, 0),
    }


def of_gradients(posterior, units) -> Numbers:
    u = torch.tensor([0.6, 0.8], dtype=units.dtype)
    return {
        "gradient": (posterior.mean, 1, 1),
        "gradient variance": (posterior.variance, 2, 2),
        "trace": (posterior.trace, 2, 2),
        "prior trace": (posterior.prior_trace, 2, 2),
        "gradient covariance": (posterior.covariance_matrix, 2, 2),
        "joint gradient covariance": (posterior.joint_covariance(), 2, 2),
        "spectral norm": (posterior.spectral_norm, 2, 2),
        "directional variance": (posterior.directional_variance(u), 2, 2),
        "descent probability": (posterior.descent_probability(), 0, 0),
        "positive probability": (posterior.positive_probability(), 0, 0),
        "positive probability along a direction": (posterior.positive_probability(u), 0, 0),
        "gradient quantile": (posterior.quantile(torch.tensor([0.1, 0.9])), 1, 1),
        "gradient samples": (posterior.rsample(torch.Size([3]), generator=generator(1)), 1, 1),
    }


def of_joint(joint, units, d=D) -> Numbers:
    torch.manual_seed(0)
    mean, variance, samples = joint.mean, joint.variance, joint.rsample(torch.Size([3]))
    covariance = joint.distribution.covariance_matrix
    covariance = covariance.unflatten(-1, (-1, d + 1)).unflatten(-3, (-1, d + 1))
    return {
        "joint: mean": (mean[..., 0] - units.y_offset, 1, 0),
        "joint: gradient": (mean[..., 1:], 1, 1),
        "joint: variance": (variance[..., 0], 2, 0),
        "joint: gradient variance": (variance[..., 1:], 2, 2),
        "joint: samples": (samples[..., 0] - units.y_offset, 1, 0),
        "joint: gradient samples": (samples[..., 1:], 1, 1),
        "joint: value covariance": (covariance[..., 0, :, 0], 2, 0),
        "joint: value with gradient": (covariance[..., 0, :, 1:], 2, 1),
        "joint: gradient covariance": (covariance[..., 1:, :, 1:], 2, 2),
    }


def of_hessians(posterior, units) -> Numbers:
    return {
        "hessian entries": (posterior.variance, 2, 4),
        "joint hessians": (posterior.joint_covariance(), 2, 4),
        "hessian samples": (posterior.rsample(torch.Size([3]), generator=generator(1)), 1, 2),
        "hessian": (posterior.mean, 1, 2),
    }


def of_averages(model, units) -> Numbers:
    at = units.inputs(places())
    over_box = GradientSensitivity(model, bounds=units.inputs(BOX), num_points=8, num_samples=4)
    over_sample = GradientSensitivity(model, X=at, num_samples=4)
    measure, bound, norm = over_box.derivative_measure(), over_box.total_index_bound(), over_box.gradient_norm()
    subspace, own_units = over_box.active_subspace(), over_sample.active_subspace(torch.ones(D, dtype=units.dtype))
    dependence = partial_dependence(model, 1, bounds=units.inputs(BOX), grid=3, num_points=4)
    slice_at = partial_dependence(model, 0, X=at[:1], grid=at[:, 0])
    return {
        "derivative measure": (measure.mean, 2, 2),
        "variance of the derivative measure": (measure.variance, 4, 4),
        "derivative measure's interval": (measure.interval(), 2, 2),
        "derivative measure over a sample": (over_sample.derivative_measure().mean, 2, 2),
        "bound on total indices": (bound.mean, 0, 0),
        "bound's interval": (bound.interval(), 0, 0),
        "gradient norm": (norm.mean, 1, 0),
        "gradient norm over a sample": (over_sample.gradient_norm().mean, 1, 0),
        "outer product of the gradient": (subspace.matrix, 2, 0),
        "its eigenvalues": (subspace.eigenvalues, 2, 0),
        "its eigenvalues' samples": (subspace.eigenvalue_posterior().samples, 2, 0),
        "angles": (subspace.angles(1), 0, 0),
        "outer product in the user's units": (own_units.matrix, 2, 2),
        "partial dependence": (dependence.value.mean - units.y_offset, 1, 0),
        "its variance": (dependence.value.variance, 2, 0),
        "its interval": (dependence.value.interval() - units.y_offset, 1, 0),
        "slope of the partial dependence": (dependence.slope.mean, 1, 1),
        "its slope's variance": (dependence.slope.variance, 2, 2),
        "its slope's interval": (dependence.slope.interval(), 1, 1),
        "its slope's sign": (dependence.slope.positive_probability(), 0, 0),
        "slope of a slice": (slice_at.slope.mean, 1, 1),
        "grid of a slice": (slice_at.grid - units.x_offset, 0, -1),
    }


def of_model(model, units) -> Numbers:
    at = units.inputs(places())
    found = of_values(model.posterior(at), units) | of_gradients(model.gradient_posterior(at), units)
    found |= of_joint(model.joint_posterior(at), units)
    found["value with gradient"] = (model.value_gradient_covariance(at, at), 2, 1)
    return found | of_hessians(model.hessian_posterior(at), units) | of_averages(model, units)


def kernel_in(units, standardised=True, make=matern_kernel):
    return make(units.x * 0.7, 1.0 if standardised else units.y**2, dtype=units.dtype)


def observed(units):
    X, Y, _ = data()
    return units.inputs(X), units.outcomes(Y)


def standardised(units) -> Numbers:
    likelihood = gaussian_likelihood(NOISE[units.dtype], dtype=units.dtype)
    return of_model(DerivedGP(*observed(units), likelihood=likelihood, covar_module=kernel_in(units)), units)


def untransformed(units, **options) -> Numbers:
    X, Y = observed(units)
    mean = ConstantMean().to(X)
    mean.constant.data.fill_(units.y_offset + 3.0 * units.y)
    if not options:
        options["likelihood"] = gaussian_likelihood(NOISE[units.dtype] * units.y**2, dtype=units.dtype)
    kernel = kernel_in(units, False)
    return of_model(DerivedGP(X, Y, covar_module=kernel, mean_module=mean, outcome_transform=None, **options), units)


def fixed_noise(units) -> Numbers:
    variance = NOISE[units.dtype] * 1e-3 * units.y**2
    return untransformed(units, train_Yvar=torch.full((9, 1), variance, dtype=units.dtype))


def little_noise(units) -> Numbers:
    noise = torch.full((9, 1), NOISE[units.dtype] * 1e-3 * units.y**2, dtype=units.dtype)
    model = DerivedGP(*observed(units), noise, covar_module=kernel_in(units))
    X = units.inputs(places()[:2] + 0.2)
    model.add_observations(X, units.outcomes(X[:, :1] * 0 + 3.1), noise[:2])
    return of_model(model, units)


def normalised(units) -> Numbers:
    return of_model(DerivedGP(*observed(units), input_transform=Normalize(D)), units)


def input_standardised(units) -> Numbers:
    return of_model(DerivedGP(*observed(units), input_transform=InputStandardize(D)), units)


def two_outcomes(units) -> Numbers:
    X, Y = observed(units)
    model = DerivedGP(X, torch.cat([Y, units.outcomes(data()[1].flip(0))], -1), input_transform=Normalize(D))
    at = units.inputs(places())
    found = of_gradients(model.gradient_posterior(at), units) | of_joint(model.joint_posterior(at), units)
    return found | of_values(model.posterior(at), units) | of_averages(model, units)


def unobserved(units) -> Numbers:
    """Two outcomes that were observed at different points, in a list with a third."""
    X, Y = observed(units)
    Y = torch.cat([Y, units.outcomes(data()[1].flip(0))], -1)
    Y[1, 0] = Y[4:6, 1] = Y[7] = torch.nan
    at, dtype, pair = units.inputs(places()), units.dtype, torch.Size([2])
    likelihood = gaussian_likelihood(NOISE[dtype], dtype=dtype, batch_shape=pair)
    model = DerivedGP(X, Y, likelihood=likelihood, covar_module=kernel_in(units))
    likelihood = gaussian_likelihood(NOISE[units.dtype], dtype=units.dtype)
    third = DerivedGP(X[2:7], Y[2:7, :1], covar_module=kernel_in(units), likelihood=likelihood)
    slopes = gradient_posterior(ModelListGP(model, third), at)
    found = of_gradients(model.gradient_posterior(at), units) | of_joint(model.joint_posterior(at), units)
    model.add_observations(at[:1], units.outcomes(torch.tensor([[torch.nan, 3.1]], dtype=torch.float64)))
    return (
        found
        | of_values(model.posterior(at), units)
        | {
            "list: mean": (map_outcomes(lambda gradient: gradient.mean, slopes), 1, 1),
            "list: trace": (map_outcomes(lambda gradient: gradient.trace, slopes), 2, 2),
        }
    )


def automatic(units) -> Numbers:
    class OwnKernel(Kernel):
        has_lengthscale = True

        def forward(self, x1, x2, diag=False, **params):
            r = self.covar_dist(x1 / self.lengthscale, x2 / self.lengthscale, square_dist=True, diag=diag)
            return (1 + r) ** -2

    kernel = ScaleKernel(OwnKernel()).to(units.dtype)
    kernel.base_kernel.lengthscale = torch.tensor(units.x * 1.0, dtype=units.dtype)
    kernel.outputscale = torch.tensor(1.0, dtype=units.dtype)
    likelihood = gaussian_likelihood(NOISE[units.dtype], dtype=units.dtype)
    model = DerivedGP(*observed(units), likelihood=likelihood, covar_module=kernel)
    at = units.inputs(places()[1:2])
    gradient = model.gradient_posterior(at)
    return {
        "gradient": (gradient.mean, 1, 1),
        "gradient covariance": (gradient.covariance_matrix, 2, 2),
        "hessian entries": (model.hessian_posterior(at).variance, 2, 4),
    }


def product(units) -> Numbers:
    def make():
        own = RBFKernel(ard_num_dims=1, active_dims=[0]).to(units.dtype)
        own.lengthscale = torch.tensor([[units.x * 0.8]], dtype=units.dtype)
        return own

    kernel = kernel_in(units) * make() + kernel_in(units, make=rbf_kernel)
    likelihood = gaussian_likelihood(NOISE[units.dtype], dtype=units.dtype)
    return of_model(DerivedGP(*observed(units), likelihood=likelihood, covar_module=kernel), units)


def fantasies(units) -> Numbers:
    likelihood = gaussian_likelihood(NOISE[units.dtype], dtype=units.dtype)
    model = DerivedGP(*observed(units), likelihood=likelihood, covar_module=kernel_in(units))
    X = units.inputs(places()[:2] + 0.2)
    model = model.condition_on_observations(X, units.outcomes(torch.full((2, 1), 3.1, dtype=torch.float64)))
    return of_model(model, units)


def information(units) -> Numbers:
    likelihood = gaussian_likelihood(NOISE[units.dtype], dtype=units.dtype)
    model = DerivedGP(*observed(units), likelihood=likelihood, covar_module=kernel_in(units))
    at = units.inputs(places())
    one, pending = GradientInformation(model, at[0]), GradientInformation(model, at[0], noise=1e-3 * units.y**2)
    pending.set_X_pending(at[1:2])
    level = units.outcomes(torch.tensor(3.5, dtype=torch.float64))
    feasible = GradientInformation(model, at[0], constraints=[lambda Y: level - Y[..., 0]])
    return {
        "one": (one(at[:, None]), 2, 2),
        "several": (pending(at[None]), 2, 2),
        "constrained": (feasible(at[None, 1:]), 2, 2),
    }


def log_inputs(units) -> Numbers:
    likelihood = gaussian_likelihood(NOISE[units.dtype], dtype=units.dtype)
    kernel = matern_kernel(0.3, dtype=units.dtype)
    transform = Log10(list(range(D)))
    return of_model(
        DerivedGP(*observed(units), likelihood=likelihood, covar_module=kernel, input_transform=transform), units
    )


def log_outcomes(units) -> Numbers:
    X, Y = observed(units)
    transform = ChainedOutcomeTransform(log=Log(), scale=Standardize(1))
    likelihood = gaussian_likelihood(NOISE[units.dtype], dtype=units.dtype)
    model = DerivedGP(X, Y, likelihood=likelihood, covar_module=kernel_in(units), outcome_transform=transform)
    at = units.inputs(places())
    torch.manual_seed(0)
    posterior, gradient = model.posterior(at), model.transformed_gradient_posterior(at)
    return {
        "mean": (posterior.mean, 1, 0),
        "variance": (posterior.variance, 2, 0),
        "samples": (posterior.rsample(torch.Size([3])), 1, 0),
        "gradient": (gradient.delta_method_mean, 1, 1),
        "gradient samples": (gradient.rsample(torch.Size([3]), generator=generator(1)), 1, 1),
    }


def mixture(units) -> Numbers:
    model = DerivedGP(*observed(units), input_transform=Normalize(D))
    averaged = sample_hyperparameters(model, 3, generator(2), warmup_steps=1)
    at = units.inputs(places())
    values, gradients = averaged.posterior(at), averaged.gradient_posterior(at)
    found = of_values(values, units) | of_gradients(gradients, units)
    return (
        found
        | {
            "mixture mean": (values.mixture_mean - units.y_offset, 1, 0),
            "mixture variance": (values.mixture_variance, 2, 0),
            "mixture of gradients": (gradients.mixture_mean, 1, 1),
            "mixture variance of gradients": (gradients.mixture_variance, 2, 2),
            "mixture trace": (gradients.mixture_trace, 2, 2),
            "mixture covariance": (gradients.mixture_covariance_matrix, 2, 2),
            "mixture positive probability": (gradients.mixture_positive_probability(), 0, 0),
        }
        | of_averages(averaged, units)
    )


def observed_gradients(units, given=True, hessians=False) -> Numbers:
    X, Y = observed(units)
    G = (data()[2] * units.y / units.x).to(X)
    G[0, 1] = Y[2] = torch.nan
    kernel = ScaleKernel(RBFKernelGrad()).to(X)
    kernel.base_kernel.lengthscale = torch.tensor(units.x * 0.7, dtype=units.dtype)
    kernel.outputscale = torch.tensor(1.0, dtype=units.dtype)
    noise = {}
    if given:
        variance = NOISE[units.dtype] * units.y**2
        noise = {"train_Yvar": torch.full_like(Y, variance), "train_Gvar": torch.full_like(X, variance / units.x**2)}
    if hessians:
        noise["train_H"] = (-2.0 * units.y / units.x**2 * torch.eye(D).expand(9, D, D)).to(X)
        noise["train_Hvar"] = torch.full_like(noise["train_H"], NOISE[units.dtype] * (units.y / units.x**2) ** 2)
    model = GradientObservationGP(X, Y, G, covar_module=kernel, **noise)
    at = units.inputs(places())
    found = of_values(model.posterior(at), units) | of_joint(model.joint_posterior(at), units)
    found |= of_gradients(model.gradient_posterior(at), units) | of_hessians(model.hessian_posterior(at), units)
    more = {"noise": torch.full((1, 1), 1e-3, dtype=units.dtype)} if given else {}
    later = model.condition_on_observations(
        at[:1], units.outcomes(torch.full((1, 1), 3.2, dtype=torch.float64)), **more
    )
    fantasy = {"mean of a fantasy": (later.posterior(at).mean - units.y_offset, 1, 0)}
    return found | of_averages(model, units) | fantasy


def observed_hessians(units) -> Numbers:
    return observed_gradients(units, hessians=True)


def observed_gradients_inferred(units) -> Numbers:
    return observed_gradients(units, given=False)


def fourier(units, data_count=9) -> Numbers:
    X, Y = observed(units)
    X, Y = X[:data_count], Y[:data_count]
    kernel = kernel_in(units, False, make=rbf_kernel)
    features = FourierFeatures(kernel, D, 12, seed=3)
    surrogate = FourierSurrogate(features, NOISE[units.dtype] * units.y**2, "estimated").fit(X[:4], Y[:4])
    surrogate.append(X[4:], Y[4:])
    at = units.inputs(places())
    gradient = surrogate.gradient_posterior(at)
    return of_values(surrogate.posterior(at), units) | {
        "value": (surrogate.value(at) - units.y_offset, 1, 0),
        "gradient": (gradient.mean, 1, 1),
        "gradient variance": (gradient.variance, 2, 2),
        "trace": (gradient.trace, 2, 2),
        "prior trace": (gradient.prior_trace, 2, 2),
        "gradient covariance": (gradient.covariance_matrix, 2, 2),
        "spectral norm": (gradient.spectral_norm, 2, 2),
    }


def window(units) -> Numbers:
    X, Y = observed(units)
    at = units.inputs(places())
    surrogate = WindowSurrogate(X[0], 6, Hyperparameters(0.7 * units.x, 1.0, NOISE[units.dtype]))
    surrogate.trajectory.append(X, Y[:, 0])
    surrogate.begin(at[1])
    posterior, model = surrogate.gradient_posterior(at[1]), surrogate.model(at[1])
    return {
        "gradient": (posterior.mean * surrogate.scale, 1, 1),
        "trace": (posterior.trace * surrogate.scale**2, 2, 2),
        "spectral norm": (posterior.spectral_norm * surrogate.scale**2, 2, 2),
        "gradient of the model": (model.gradient_posterior(at).mean, 1, 1),
    }


SURROGATES: dict[str, Callable[[Units], Numbers]] = {
    "DerivedGP": standardised,
    "DerivedGP, no outcome transform": untransformed,
    "DerivedGP, no outcome transform, train_Yvar": fixed_noise,
    "DerivedGP, train_Yvar, add_observations": little_noise,
    "DerivedGP, Normalize, defaults": normalised,
    "DerivedGP, InputStandardize, defaults": input_standardised,
    "DerivedGP, two outcomes": two_outcomes,
    "DerivedGP, outcomes not observed, ModelListGP": unobserved,
    "DerivedGP, automatic kernel": automatic,
    "DerivedGP, sum and product": product,
    "DerivedGP, fantasies": fantasies,
    "DerivedGP, Log10": log_inputs,
    "DerivedGP, Log": log_outcomes,
    "GradientInformation": information,
    "FullyBayesianDerivedGP": mixture,
    "GradientObservationGP": observed_gradients,
    "GradientObservationGP, inferred noise": observed_gradients_inferred,
    "GradientObservationGP, Hessians": observed_hessians,
    "FourierSurrogate": fourier,
    "WindowSurrogate": window,
}
NO_X_UNIT = {"GradientObservationGP, inferred noise"}
NO_X_OFFSET = {"DerivedGP, Log10"}
NO_Y_OFFSET = {"DerivedGP, Log"}
LEARNS_UNITS = ("DerivedGP, Normalize, defaults", "FullyBayesianDerivedGP", "DerivedGP, two outcomes")

UNITS = {
    "X by 1e6": Units(x=1e6),
    "X by 1e-6": Units(x=1e-6),
    "y by 1e9": Units(y=1e9),
    "y by 1e-9": Units(y=1e-9),
    "X by 1e6, y by 1e-9": Units(x=1e6, y=1e-9),
    "X by 1e-6, y by 1e9": Units(x=1e-6, y=1e9),
    "offset of X": Units(x_offset=1e3),
    "offset of y": Units(y_offset=1e4),
    "X by 1e6, y by 1e-9, offsets": Units(x=1e6, y=1e-9, x_offset=1e9, y_offset=1e-6),
}

ALONE = ("X by 1e6", "X by 1e-6", "y by 1e9", "y by 1e-9", "offset of X", "offset of y")
"""Slow, as units and offsets of X and of y together show what each does alone; some surrogates take no other."""


@cache
def numbers(name, units):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of data that are not standardised
        found = SURROGATES[name](units)
    return {what: (value.detach().double(), y, x) for what, (value, y, x) in found.items()}


@pytest.mark.parametrize("dtype", [torch.float64, pytest.param(torch.float32, marks=pytest.mark.slow)], ids=str)
@pytest.mark.parametrize(
    ("name", "unit"),
    [
        pytest.param(
            name,
            unit,
            marks=pytest.mark.slow if unit in ALONE and name not in NO_X_UNIT | NO_X_OFFSET | NO_Y_OFFSET else (),
        )
        for name in SURROGATES
        for unit in UNITS
    ],
)
def test_other_units_give_the_same_numbers(name, unit, dtype):
    units = UNITS[unit]
    if dtype == torch.float32:
        shrunk = {"x_offset": units.x_offset / 1e2, "y_offset": units.y_offset / 1e3}
        units = Units(**{**vars(units), **shrunk, "dtype": dtype})
    if name in NO_X_UNIT and units.x != 1.0:
        pytest.skip("one noise for values and partial derivatives: it follows the unit of y alone")
    if name == "GradientObservationGP, Hessians" and dtype == torch.float32 and abs(log10(units.y / units.x**2)) > 12:
        pytest.skip("the given variances of second derivatives leave the range of float32")
    if (name in NO_X_OFFSET and units.x_offset) or (name in NO_Y_OFFSET and units.y_offset):
        pytest.skip("a logarithm has no offset")
    plain, found = numbers(name, Units(dtype=dtype)), numbers(name, units)
    limits = torch.finfo(dtype)
    for what, (value, y, x) in found.items():
        # Variances are known to rounding of the prior's, not each of its own.
        factor = units.y**y / units.x**x
        expected = plain[what][0] * factor
        size = float(expected.abs().max())
        if not limits.tiny / limits.eps < size < limits.max:
            continue
        error = float((value - expected).abs().max()) / size
        assert error < TOLERANCE[dtype], f"{what} differs by {error:.2g}"


@pytest.mark.parametrize("name", LEARNS_UNITS)
def test_powers_of_two_change_no_bit(name):
    plain, found = numbers(name, Units()), numbers(name, Units(x=2.0**20, y=2.0**-30))
    for what, (value, y, x) in found.items():
        assert torch.equal(value, plain[what][0] * (2.0 ** (-30 * y - 20 * x))), what
