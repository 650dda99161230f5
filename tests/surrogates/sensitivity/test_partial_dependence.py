"""Partial dependence against closed forms, sums of posterior covariances, and Monte Carlo."""

from math import pi

import pytest
import torch
from botorch.models.transforms.input import Log10, Normalize

from surrogates import DerivedGP, gaussian_likelihood, matern_kernel, partial_dependence, sample_hyperparameters
from tests.surrogates.gp_models import D, derived_gp, generator, outcomes, points
from tests.surrogates.sensitivity.functions import A, B, Ishigami, fitted, polynomial

UNIT = torch.tensor([[-1.0] * D, [1.0] * D], dtype=torch.float64)


def test_ishigamis_are_known():
    model, grid = fitted(Ishigami, 400), torch.linspace(-2.5, 2.5, 5, dtype=torch.float64)
    rises = 1 + B * pi**4 / 5
    values = (A / 2 + grid.sin() * rises, A * grid.sin().square(), A / 2 + 0 * grid)
    slopes = (grid.cos() * rises, A * (2 * grid).sin(), 0 * grid)
    for i, (value, slope) in enumerate(zip(values, slopes, strict=True)):
        found = partial_dependence(model, i, bounds=Ishigami.bounds, grid=grid, num_points=128)
        assert torch.allclose(found.value.mean, value, atol=0.15)
        assert torch.allclose(found.slope.mean, slope, atol=0.15)


def test_a_quadratic_function_is_exact():
    X, sample = points(40), points(9, seed=5)
    model = polynomial(X, X[:, :1].square() + X[:, :1] * X[:, 1:2] - 3 * X[:, 2:])
    found, mean = partial_dependence(model, 0, X=sample, grid=7), sample.mean(0)
    assert torch.allclose(found.grid, torch.linspace(float(sample[:, 0].min()), float(sample[:, 0].max()), 7).double())
    assert torch.allclose(found.value.mean, found.grid.square() + found.grid * mean[1] - 3 * mean[2], atol=1e-5)
    assert torch.allclose(found.slope.mean, 2 * found.grid + mean[1], atol=1e-5)
    assert bool((found.slope.positive_probability() == (2 * found.grid + mean[1] > 0)).all())


@pytest.mark.slip(
    "surrogates/sensitivity/partial_dependence.py",
    "covariance[..., entry, :, entry].mean((-2, -1))",
    "covariance[..., entry, :, entry].diagonal(dim1=-2, dim2=-1).mean(-1)",
    "the mean of variances for the variance of a mean",
)
@pytest.mark.parametrize("transform", [None, Normalize(D)])
def test_variances_are_sums_of_the_posteriors_covariances(transform):
    model, sample = derived_gp(n=5, input_transform=transform), points(6, seed=3)
    found = partial_dependence(model, 1, X=sample, grid=torch.tensor([-0.5, 0.8], dtype=torch.float64))
    for k, t in enumerate(found.grid):
        moved = sample.clone()
        moved[:, 1] = t
        values, gradients = model.posterior(moved), model.gradient_posterior(moved)
        covariance = values.distribution.covariance_matrix
        assert torch.isclose(found.value.mean[k], values.mean.mean())
        assert torch.isclose(found.value.variance[k], covariance.mean())
        assert torch.isclose(found.slope.mean[k], gradients.mean[:, 1].mean())
        assert torch.isclose(found.slope.variance[k], gradients.joint_covariance()[1::D, 1::D].mean())
        draws = gradients.rsample(torch.Size([40000]), generator=generator(k))[..., 1].mean(-1)
        positive = found.slope.positive_probability()[k]
        assert abs((draws > 0).double().mean() - positive) < 4 * (positive * (1 - positive) / 40000).sqrt() + 1e-4
        ends = torch.tensor([0.05, 0.95], dtype=torch.float64)
        assert torch.allclose(found.slope.interval(0.9)[:, k], draws.quantile(ends), atol=0.03 * float(draws.std()))


def test_a_slice_is_the_posterior_along_a_line():
    model, point = derived_gp(n=6), points(1, seed=8)
    found = partial_dependence(model, 2, X=point, grid=torch.linspace(-1, 1, 5).double())
    line = point.repeat(5, 1)
    line[:, 2] = found.grid
    posterior = model.gradient_posterior(line)
    assert torch.allclose(found.slope.mean, posterior.mean[:, 2])
    assert torch.allclose(found.slope.variance, posterior.variance[:, 2])
    assert torch.allclose(found.slope.positive_probability(), posterior.positive_probability()[:, 2])


def test_the_slope_is_the_derivative_of_the_value_through_a_nonlinear_input_transform():
    X = 1 + torch.rand(8, D, generator=generator(0), dtype=torch.float64)
    model = DerivedGP(
        X,
        outcomes(X),
        covar_module=matern_kernel(0.3),
        likelihood=gaussian_likelihood(1e-3),
        input_transform=Log10(list(range(D))),
    )
    grid = torch.tensor([1.5, 1.5 + 1e-5], dtype=torch.float64)
    found = partial_dependence(model, 0, X=X, grid=grid)
    assert torch.isclose(found.slope.mean[0], (found.value.mean[1] - found.value.mean[0]) / 1e-5, rtol=1e-4)


def test_outcomes_are_those_of_single_models_and_a_mixture_has_all_of_its_parts():
    X = points(6)
    Y = torch.cat([outcomes(X), outcomes(-X)], dim=-1)
    options = {"covar_module": matern_kernel(0.8), "likelihood": gaussian_likelihood(1e-3)}
    both = partial_dependence(DerivedGP(X, Y, **options), 0, bounds=UNIT, grid=3, num_points=4)
    for j in range(2):
        one = partial_dependence(DerivedGP(X, Y[:, j : j + 1], **options), 0, bounds=UNIT, grid=3, num_points=4)
        assert torch.allclose(both.slope.interval()[:, j], one.slope.interval())
    model = sample_hyperparameters(
        DerivedGP(X, Y[:, :1], input_transform=Normalize(D)), 3, generator(2), warmup_steps=1
    )
    point = points(1, seed=4)
    found, posterior = partial_dependence(model, 1, X=point, grid=point[:, 1]), model.gradient_posterior(point)
    ends = posterior.quantile(torch.tensor([0.05, 0.95], dtype=torch.float64))
    assert torch.allclose(found.slope.interval(0.9)[:, 0], ends[:, 0, 1])
    assert torch.allclose(found.slope.mean, posterior.mixture_mean[:, 1])
    assert torch.allclose(found.slope.variance, posterior.mixture_variance[:, 1])
    assert torch.allclose(found.slope.positive_probability(), posterior.mixture_positive_probability()[:, 1])


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"input_index": 3}, ValueError, "input_index must be under 3"),
        ({"input_index": 0.5}, TypeError, "input_index"),
        ({"grid": 1}, ValueError, "grid must be at least 2"),
        ({"grid": torch.zeros(2, 2)}, ValueError, "of shape G"),
        ({"grid": torch.tensor([torch.nan])}, ValueError, "NaN"),
        ({"grid": torch.arange(3)}, TypeError, "floating point"),
    ],
)
def test_bad_input(given, error, message):
    given = {"input_index": 0, "bounds": UNIT} | given
    with pytest.raises(error, match=message):
        partial_dependence(derived_gp(), given.pop("input_index"), **given)
