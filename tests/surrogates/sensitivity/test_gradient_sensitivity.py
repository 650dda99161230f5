"""Derivative-based sensitivities against closed forms, SALib, Monte Carlo and functions drawn from the prior."""

from math import pi

import numpy as np
import pytest
import torch
from botorch.models.transforms.input import Normalize
from gpytorch.kernels import RBFKernel, ScaleKernel
from scipy.stats import binom

from surrogates import (
    DerivedGP,
    FourierFeatures,
    FourierSurrogate,
    GradientSensitivity,
    gaussian_likelihood,
    matern_kernel,
    rbf_kernel,
    sample_hyperparameters,
)
from tests.surrogates.gp_models import D, configured, derived_gp, generator, kernel_named, outcomes, points
from tests.surrogates.sensitivity.functions import Ishigami, SobolG, fitted, polynomial

UNIT = torch.tensor([[-1.0] * D, [1.0] * D], dtype=torch.float64)

# SALib 1.6.0: SALib.sample.finite_diff.sample(problem, 16384, delta=1e-4, seed=1), then SALib.analyze.dgsm.analyze:
# "vi", the standard error vi_std/√16384, and "dgsm", its bound on total Sobol' indices.
SALIB = {
    Ishigami: ((7.7200, 24.4988, 10.9906), (0.129, 0.135, 0.185), (2.2305, 7.0782, 3.1754)),
    SobolG: ((4.05756, 0.574913, 0.175243), (0.0076, 0.0025, 0.0008), (4.15597, 0.588857, 0.179494)),
}


@pytest.mark.slip(
    "surrogates/sensitivity/gradient_sensitivity.py",
    "/ (pi**2 * variance)",
    "/ (pi * variance)",
    "the bound on total indices with π for π² (Sobol' and Kucherenko 2009)",
)
@pytest.mark.parametrize(
    ("case", "n", "tolerance"), [(Ishigami, 512, 0.02), pytest.param(SobolG, 256, 0.06, marks=pytest.mark.slow)]
)
def test_functions_with_known_sensitivities_and_salib(case, n, tolerance):
    found = GradientSensitivity(fitted(case, n), bounds=case.bounds, num_samples=128)
    measure, bound = found.derivative_measure().mean, found.total_index_bound().mean
    widths = (case.bounds[1] - case.bounds[0]).square()
    assert torch.allclose(measure, case.measure.double(), rtol=tolerance)
    assert torch.allclose(bound, (case.measure * widths / (pi**2 * case.variance)).double(), rtol=2 * tolerance)
    theirs, errors, their_bound = (torch.tensor(numbers, dtype=torch.float64) for numbers in SALIB[case])
    assert bool(((measure - theirs).abs() < tolerance * theirs + 3 * errors).all())
    assert torch.allclose(bound, their_bound, rtol=2 * tolerance)


def test_a_linear_and_a_quadratic_function_are_exact():
    X, sample = points(40), points(17, seed=5)
    slope = torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)
    Q = torch.tensor([[2.0, 0.5, 0.0], [0.5, -1.0, 0.3], [0.0, 0.3, 0.0]], dtype=torch.float64)

    linear = GradientSensitivity(polynomial(X, 3 + X @ slope[:, None]), bounds=UNIT, num_samples=16)
    assert torch.allclose(linear.derivative_measure().mean, slope.square(), rtol=1e-5)
    assert torch.allclose(linear.gradient_norm().mean, 2 * slope.norm(), rtol=1e-5)
    # V = Σ aᵢ² width²/12, here by 256 points.
    expected = slope.square() * 12 / (pi**2 * slope.square().sum())
    assert torch.allclose(linear.total_index_bound().mean, expected, rtol=1e-2)

    gradients = sample @ Q + slope
    f = 0.5 * ((X @ Q) * X).sum(-1, keepdim=True) + X @ slope[:, None]
    quadratic = GradientSensitivity(polynomial(X, f), X=sample, num_samples=16)
    ones = torch.ones(D, dtype=torch.float64)
    assert torch.allclose(quadratic.active_subspace(ones).matrix, gradients.mT @ gradients / 17, atol=1e-5)
    assert torch.allclose(quadratic.gradient_norm(ones).mean, gradients.norm(dim=-1).mean(), rtol=1e-5)
    assert torch.allclose(quadratic.gradient_norm().mean, (gradients * sample.std(0)).norm(dim=-1).mean(), rtol=1e-5)
    over_box = GradientSensitivity(polynomial(X, f), bounds=UNIT, num_points=128, num_samples=16)
    assert torch.allclose(over_box.active_subspace(ones).matrix, Q @ Q / 3 + torch.outer(slope, slope), atol=2e-3)


@pytest.mark.slip(
    "surrogates/sensitivity/gradient_sensitivity.py",
    "+ 4 * along",
    "+ 2 * along",
    "the variance of a quadratic form with 2 mᵀΣm",
)
@pytest.mark.slip(
    "surrogates/sensitivity/gradient_sensitivity.py",
    "own = torch.diagonal(covariance, dim1=-3, dim2=-1)[..., 1:].double()",
    "own = torch.diagonal(covariance, dim1=-3, dim2=-1)[..., 1:].double(); own = own * torch.eye(N)[..., None]",
    "the variance of a measure from marginal variances alone",
)
def test_moments_are_those_of_joint_samples_and_not_of_marginal_ones():
    model, sample = derived_gp(n=5), 0.3 * points(6, seed=3)
    found = GradientSensitivity(model, X=sample, num_samples=4000)
    measure, posterior = found.derivative_measure(), model.gradient_posterior(sample)
    draws = posterior.rsample(torch.Size([40000]), generator=generator(1)).square().mean(-2)
    error = draws.std(0) / 200
    assert bool(((draws.mean(0) - measure.mean).abs() < 4 * error).all())
    assert torch.allclose(draws.var(0), measure.variance, rtol=0.06)
    assert torch.allclose(measure.samples.var(0), measure.variance, rtol=0.15)
    assert torch.allclose(measure.interval(0.8), draws.quantile(torch.tensor([0.1, 0.9]).double(), 0), rtol=0.05)
    norms = posterior.rsample(torch.Size([40000]), generator=generator(2)).norm(dim=-1).mean(-1)
    ones = torch.ones(D, dtype=torch.float64)
    assert abs(found.gradient_norm(ones).mean - norms.mean()) < 4 * norms.std() / 60
    marginal = (2 * posterior.variance.square() + 4 * posterior.mean.square() * posterior.variance).mean(-2) / 6
    assert bool((measure.variance > 1.3 * marginal).all())


def gauss_legendre(model, bounds, order=24):
    """E ∫ ∇f ∇fᵀ by a product rule over a box in the plane, from the gradient's own posterior."""
    nodes, weights = (torch.from_numpy(part) for part in np.polynomial.legendre.leggauss(order))
    lines = [0.5 * (low + high) + 0.5 * (high - low) * nodes for low, high in bounds.mT]
    posterior = model.gradient_posterior(torch.cartesian_prod(*lines))
    outer = posterior.mean.unsqueeze(-1) * posterior.mean.unsqueeze(-2) + posterior.covariance_matrix
    weight = torch.outer(weights, weights).flatten() / 4
    return torch.tensordot(weight, outer, dims=([0], [outer.dim() - 3 - (model.num_outputs > 1)]))


def in_the_plane(kernel, batch=(), m=1, **options):
    X = 3 + 2 * torch.rand(*batch, 9, 2, generator=generator(4), dtype=torch.float64)
    Y = torch.cat([(X[..., :1] * (j + 1)).sin() + X[..., 1:] ** 2 for j in range(m)], dim=-1)
    return DerivedGP(X, Y, covar_module=configured(kernel.double()), likelihood=gaussian_likelihood(1e-3), **options)


CLOSED_FORMS = {
    "rbf": lambda: in_the_plane(RBFKernel()),
    "scaled ard": lambda: in_the_plane(ScaleKernel(RBFKernel(ard_num_dims=2))),
    "one input": lambda: in_the_plane(ScaleKernel(RBFKernel(active_dims=[1]))),
    "normalized": lambda: in_the_plane(ScaleKernel(RBFKernel(ard_num_dims=2)), input_transform=Normalize(2)),
    "two outcomes": lambda: in_the_plane(RBFKernel(ard_num_dims=2), m=2, input_transform=Normalize(2)),
}


@pytest.mark.slip(
    "surrogates/sensitivity/closed_form.py",
    "/ (2 * p) - 0.25 * (a - b).square()",
    "/ (2 * p) + 0.25 * (a - b).square()",
    "the sign of a second moment (Wycoff, Binois and Wild 2021)",
)
@pytest.mark.slip(
    "surrogates/sensitivity/closed_form.py",
    "linear + 0.5 * (b - a)",
    "0.5 * (b - a)",
    "a first moment without its linear part (Wycoff, Binois and Wild 2021)",
)
@pytest.mark.parametrize("name", CLOSED_FORMS)
def test_the_closed_form_over_a_box_is_the_integral(name):
    # One end of the box is far from the data.
    model, bounds = CLOSED_FORMS[name](), torch.tensor([[2.5, 3.2], [5.5, 8.0]], dtype=torch.float64)
    ones = torch.ones(2, dtype=torch.float64)
    found = GradientSensitivity(model, bounds=bounds, num_points=8, num_samples=200)
    expected = gauss_legendre(model, bounds)
    assert torch.allclose(found.active_subspace(ones).matrix, expected, rtol=1e-8, atol=1e-8 * float(expected.max()))
    # Few points integrate badly; the samples' mean follows the integral.
    measure = found.derivative_measure()
    tolerance = 5 * (measure.variance / 200).sqrt() + 1e-12
    assert bool(((measure.samples.mean(0) - measure.mean).abs() < tolerance).all())


@pytest.mark.parametrize("kernel", ["matern", "rbf"])
def test_without_a_closed_form_many_points_are_taken(kernel):
    make = matern_kernel if kernel == "matern" else rbf_kernel
    added = make(0.9) if kernel == "matern" else make(0.9) + rbf_kernel(3.0, 0.1)
    model, bounds = in_the_plane(added), torch.tensor([[3.0, 3.0], [5.0, 5.0]], dtype=torch.float64)
    found = GradientSensitivity(model, bounds=bounds, num_points=64, num_samples=8)
    expected = gauss_legendre(model, bounds)
    ones = torch.ones(2, dtype=torch.float64)
    assert torch.allclose(found.active_subspace(ones).matrix, expected, rtol=5e-3, atol=5e-3 * float(expected.max()))


def test_intervals_cover_functions_drawn_from_the_prior():
    """For functions drawn from the model's prior, a 90% interval holds the truth in 90 of 100 cases."""
    X, sample, runs, level = points(8), points(10, seed=9), 150, 0.9
    kernel = rbf_kernel(0.9)
    prior = DerivedGP(
        100 + X[:1], X[:1, :1] * 0, covar_module=kernel, likelihood=gaussian_likelihood(1e-6), outcome_transform=None
    )
    prior = prior.joint_posterior(torch.cat([X, sample])).distribution
    torch.manual_seed(0)
    inside = []
    for draw in prior.rsample(torch.Size([runs])):
        gradients = draw[8:, 1:]
        model = DerivedGP(
            X, draw[:8, :1], covar_module=kernel, likelihood=gaussian_likelihood(1e-6), outcome_transform=None
        )
        found = GradientSensitivity(model, X=sample, num_samples=300)
        ones = torch.ones(D, dtype=torch.float64)
        subspace = found.active_subspace(ones)
        outer = gradients.mT @ gradients / 10
        truths = [
            (found.derivative_measure(), torch.diagonal(outer)[0]),
            (found.gradient_norm(ones), gradients.norm(dim=-1).mean()),
            (subspace.eigenvalue_posterior(), torch.linalg.eigvalsh(outer)[-1]),
        ]
        intervals = [estimate.interval(level).reshape(2, -1)[:, 0] for estimate, _ in truths]
        inside.append([bool(low < truth < high) for (low, high), (_, truth) in zip(intervals, truths, strict=True)])
    low, high = binom(runs, level).ppf([1e-4, 1 - 1e-4])
    for count in np.sum(inside, axis=0):
        assert low <= count <= high, np.sum(inside, axis=0)


def test_the_bound_has_the_uncertainty_of_the_variance():
    model = derived_gp(n=5, kernel=kernel_named("rbf ard"))
    found = GradientSensitivity(model, bounds=UNIT, num_points=32, num_samples=2000)
    bound, measure = found.total_index_bound(), found.derivative_measure()
    joint = model.joint_posterior(points_of_box(32)).distribution
    torch.manual_seed(3)
    draws = joint.rsample(torch.Size([20000]))
    ratio = measure.mean / draws[..., 1:].square().mean((0, -2))
    theirs = ratio * draws[..., 1:].square().mean(-2) * 4 / (pi**2 * draws[..., 0].var(-1, correction=0)[:, None])
    assert torch.allclose(bound.mean, theirs.mean(0), rtol=0.08)
    assert torch.allclose(bound.interval(0.5), theirs.quantile(torch.tensor([0.25, 0.75]).double(), 0), rtol=0.08)


def points_of_box(count):
    from botorch.utils.sampling import draw_sobol_samples

    return draw_sobol_samples(UNIT, count, 1, seed=0).squeeze(1)


def test_outcomes_and_batches_are_those_of_single_models():
    X, options = points(7), {"likelihood": gaussian_likelihood(1e-3)}
    Y = torch.cat([outcomes(X), outcomes(-X)], dim=-1)
    single = [
        GradientSensitivity(
            DerivedGP(X, Y[:, j : j + 1], covar_module=kernel_named("rbf ard"), **options),
            bounds=UNIT,
            num_points=8,
            num_samples=4,
        )
        for j in range(2)
    ]
    together = DerivedGP(X, Y, covar_module=kernel_named("rbf ard"), **options)
    batch = DerivedGP(X.expand(2, 7, D), Y.mT.unsqueeze(-1), covar_module=kernel_named("rbf ard"), **options)
    for model in (together, batch):
        found = GradientSensitivity(model, bounds=UNIT, num_points=8, num_samples=4)
        for j in range(2):
            for name in ("mean", "variance"):
                ours = getattr(found.derivative_measure(), name)[j]
                assert torch.allclose(ours, getattr(single[j].derivative_measure(), name), rtol=1e-6)
        assert found.total_index_bound().interval().shape == (2, 2, D)
        assert found.active_subspace().angles(1).shape == (4, 2, 1)


def test_a_mixture_has_the_moments_of_its_parts():
    model = DerivedGP(points(6), outcomes(points(6)), input_transform=Normalize(D))
    model = sample_hyperparameters(model, 3, generator(2), warmup_steps=1)
    sample = points(5, seed=3)
    found = GradientSensitivity(model, X=sample, num_samples=6000)
    posterior = model.gradient_posterior(sample)
    second = (posterior.mean.square() + posterior.variance).mean(-2)
    measure = found.derivative_measure()
    assert torch.allclose(measure.mean, second.mean(0), rtol=1e-6)
    assert measure.samples.shape == (6000, D)
    error = (measure.variance / 6000).sqrt()
    assert bool(((measure.samples.mean(0) - measure.mean).abs() < 5 * error).all())
    assert torch.allclose(measure.samples.var(0), measure.variance, rtol=0.2)
    draws = posterior.rsample(torch.Size([20000]), generator=generator(5)).square().mean(-2).flatten(0, 1)
    assert torch.allclose(measure.interval(0.8), draws.quantile(torch.tensor([0.1, 0.9]).double(), 0), rtol=0.08)


def test_what_is_given_and_the_random_state_stay_as_they_were():
    model, bounds = derived_gp(), UNIT.clone()
    state = torch.get_rng_state()
    first, second = (GradientSensitivity(model, bounds=bounds, num_points=8, num_samples=3) for _ in range(2))
    assert torch.equal(state, torch.get_rng_state())
    assert torch.equal(first.gradient_norm().samples, second.gradient_norm().samples)
    other = GradientSensitivity(model, bounds=bounds, num_points=8, num_samples=3, seed=1)
    assert not torch.equal(first.gradient_norm().samples, other.gradient_norm().samples)


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({}, ValueError, "got neither"),
        ({"bounds": UNIT, "X": UNIT}, ValueError, "got both"),
        ({"bounds": UNIT.flip(0)}, ValueError, r"fails for the inputs \[0, 1, 2\]"),
        ({"bounds": UNIT[:, 0]}, ValueError, "of shape 2 x d"),
        ({"bounds": UNIT.long()}, TypeError, "floating point"),
        ({"X": UNIT[0]}, ValueError, "N x d"),
        ({"X": UNIT * torch.nan}, ValueError, "NaN"),
        ({"bounds": UNIT[:, :2]}, ValueError, "batch x q x 3"),
        ({"bounds": UNIT, "num_points": 4000}, ValueError, "at most 2896 points"),
        ({"bounds": UNIT, "num_samples": 0}, ValueError, "num_samples"),
        ({"bounds": UNIT, "seed": -1}, ValueError, "seed"),
    ],
)
def test_bad_input(given, error, message):
    with pytest.raises(error, match=message):
        GradientSensitivity(derived_gp(), **given)


def test_what_is_refused_says_what_to_do():
    found = GradientSensitivity(derived_gp(), X=UNIT, num_samples=2)
    with pytest.raises(ValueError, match="give bounds instead of X"):
        found.total_index_bound()
    with pytest.raises(ValueError, match="scale"):
        found.gradient_norm(torch.zeros(D))
    with pytest.raises(ValueError, match=r"level must be in \(0, 1\)"):
        found.gradient_norm().interval(95)
    features = FourierFeatures(rbf_kernel(1.0), D, 8, seed=0)
    fourier = FourierSurrogate(features, 1e-3).fit(points(5), outcomes(points(5)))
    with pytest.raises(TypeError, match="FourierSurrogate has no joint_posterior"):
        GradientSensitivity(fourier, X=UNIT)
