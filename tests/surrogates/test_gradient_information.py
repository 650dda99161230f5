import botorch
import numpy as np
import pytest
import torch
from botorch.models import ModelListGP, SingleTaskGP
from botorch.models.transforms import Normalize, Warp
from botorch.optim import optimize_acqf
from gpytorch.kernels import MaternKernel, ScaleKernel

from surrogates import DerivedGP, GradientInformation, gaussian_likelihood, matern_kernel
from tests.surrogates.gp_models import D, configured, derived_gp, kernel_named, outcomes, points
from tests.surrogates.reference import assert_close

TARGET = torch.tensor([[0.1, -0.2, 0.3]], dtype=torch.float64)


def drop(gp, target, X, Yvar=None):
    """The drop in trace when X is observed: condition, and compute the trace again."""
    before = gp.gradient_posterior(target).trace
    noise = None if Yvar is None else Yvar / gp.outcome_scale.square()
    after = gp.condition_on_observations(X, outcomes(X), noise=noise).gradient_posterior(target).trace
    return (before - after).squeeze()


@pytest.mark.parametrize("name", ["matern 5/2 ard", "rbf", "rq", "matern 3/2", "sum over inputs", "active dims"])
@pytest.mark.parametrize("transform", [None, Normalize])
@pytest.mark.parametrize("q", [1, 3])
def test_it_is_the_drop_in_trace(name, transform, q):
    gp = derived_gp(kernel_named(name), noise=1e-2, input_transform=None if transform is None else transform(D))
    candidates = points(4 * q, seed=8).reshape(4, q, D)
    candidates[0, 0] = points(6)[1]  # on a datum
    candidates[1, 0] = TARGET
    information = GradientInformation(gp, TARGET)(candidates)
    assert information.shape == (4,)
    expected = torch.stack([drop(gp, TARGET, X) for X in candidates])
    assert_close(information, expected, 1e-9)


def test_pending_points_count_as_observed_together():
    gp = derived_gp(noise=1e-2, input_transform=Normalize(D))
    pending, X = points(2, seed=8), points(3, seed=9).reshape(3, 1, D)
    acquisition = GradientInformation(gp, TARGET[0], X_pending=pending)
    expected = torch.stack([drop(gp, TARGET, torch.cat([x, pending])) for x in X])
    assert_close(acquisition(X), expected, 1e-9)
    acquisition.set_X_pending(None)
    assert_close(acquisition(X), torch.stack([drop(gp, TARGET, x) for x in X]), 1e-9)


def test_noise_is_in_user_units_and_by_default_the_model_s():
    X = points(6)
    Y, Yvar = 20 * outcomes(X), 0.5 + points(6, 1, seed=3).abs()
    gp = DerivedGP(X, Y, Yvar, covar_module=kernel_named("rbf"))
    candidates = points(3, seed=8).reshape(3, 1, D)
    for noise in (None, 0.7):
        variance = torch.full((1, 1), Yvar.mean().item() if noise is None else noise, dtype=torch.float64)
        expected = torch.stack([drop(gp, TARGET, x, variance) for x in candidates])
        assert_close(GradientInformation(gp, TARGET, noise=noise)(candidates), expected, 1e-9)


def test_noiseless_queries_on_data_teach_nothing_and_never_give_nan():
    gp = derived_gp(noise=1.1e-8)
    X = points(6)
    alone = GradientInformation(gp, TARGET, noise=0.0)(X[:, None])
    prior = gp.gradient_posterior(TARGET).prior_trace
    assert alone.isfinite().all()
    assert (alone <= 1e-3 * prior).all()
    twice = torch.cat([TARGET, TARGET])[None]
    both, once = GradientInformation(gp, TARGET, noise=0.0)(twice), GradientInformation(gp, TARGET, noise=0.0)(TARGET)
    assert_close(both, once, 1e-4)
    known = points(4, seed=8)[:, None].expand(4, 3, D)
    assert_close(
        GradientInformation(gp, TARGET, noise=0.0)(known),
        GradientInformation(gp, TARGET, noise=0.0)(known[:, :1]),
        1e-4,
    )


def test_it_follows_the_model_as_observations_come():
    gp = derived_gp(noise=1e-2, outcome_transform=None)
    acquisition, candidates = GradientInformation(gp, TARGET), points(5, seed=8)[:, None]
    acquisition(candidates)
    gp.add_observations(candidates[0], outcomes(candidates[0]))
    assert_close(acquisition(candidates), torch.stack([drop(gp, TARGET, x) for x in candidates]), 1e-9)


@pytest.mark.parametrize("name", ["matern 5/2", "product over inputs"])
def test_optimize_acqf_finds_what_no_candidate_beats(name):
    gp = derived_gp(kernel_named(name), noise=1e-2, input_transform=Normalize(D))
    acquisition = GradientInformation(gp, TARGET)
    bounds = torch.tensor([[-1.0] * D, [1.0] * D], dtype=torch.float64)
    _, value = optimize_acqf(acquisition, bounds, q=1, num_restarts=4, raw_samples=32, options={"seed": 0})
    assert value >= acquisition(points(500, seed=10)[:, None]).max()
    pair, both = optimize_acqf(acquisition, bounds, q=2, num_restarts=2, raw_samples=16, options={"seed": 0})
    assert pair.shape == (2, D)
    assert both > value
    assert_close(both, drop(gp, TARGET, pair), 1e-9)


def test_derivatives_with_respect_to_candidates():
    gp = derived_gp(kernel_named("matern 5/2 ard"), noise=1e-2, input_transform=Normalize(D))
    acquisition = GradientInformation(gp, TARGET)
    X = points(4, seed=8).reshape(2, 2, D).requires_grad_(True)
    assert torch.autograd.gradcheck(acquisition, X)


def test_many_candidates_are_scored_in_one_solve():
    X = points(40, 50, seed=1)
    gp = DerivedGP(X, outcomes(X), covar_module=matern_kernel(5.0), likelihood=gaussian_likelihood(1e-3))
    target, candidates = points(1, 50, seed=2), points(30, 50, seed=3)
    scores = GradientInformation(gp, target)(candidates[:, None])
    one_by_one = torch.cat([GradientInformation(gp, target)(x[None]) for x in candidates])
    assert_close(scores, one_by_one, 1e-11)
    assert_close(scores[7], drop(gp, target, candidates[7:8]), 1e-9)


def test_float32():
    X = points(6).float()
    gp = DerivedGP(
        X,
        outcomes(X),
        covar_module=kernel_named("rbf", torch.float32),
        likelihood=gaussian_likelihood(1e-2, torch.float32),
    )
    candidates = points(3, seed=8)[:, None]
    information = GradientInformation(gp, TARGET.float())(candidates.float())
    assert information.dtype == torch.float32
    double = derived_gp(kernel_named("rbf"), noise=1e-2)
    assert_close(information, GradientInformation(double, TARGET)(candidates), 1e-4)


def test_what_it_refuses():
    gp, X = derived_gp(), points(6)
    with pytest.raises(TypeError, match="needs a DerivedGP, got SingleTaskGP"):
        GradientInformation(SingleTaskGP(X, outcomes(X)), TARGET)
    with pytest.raises(TypeError, match="needs a DerivedGP, got ModelListGP"):
        GradientInformation(ModelListGP(gp, gp), TARGET)
    batched = points(6, batch=(2,))
    with pytest.raises(ValueError, match=r"without batches, got batch \(2,\)"):
        GradientInformation(DerivedGP(batched, outcomes(batched)), TARGET)
    with pytest.raises(TypeError, match=r"X_target must be a torch.Tensor, got ndarray"):
        GradientInformation(gp, np.zeros((1, 3)))
    with pytest.raises(ValueError, match=r"X_target must be one point, shape d or 1 x d, got \(2, 3\)"):
        GradientInformation(gp, points(2))
    with pytest.raises(ValueError, match=r"X_target must be of shape batch x q x 3.*got \(1, 2\)"):
        GradientInformation(gp, TARGET[:, :2])
    for noise in (-1.0, float("nan")):
        with pytest.raises(ValueError, match="noise must be at least 0 and finite"):
            GradientInformation(gp, TARGET, noise=noise)
    with pytest.raises(ValueError, match="NaN or inf"):
        GradientInformation(gp, TARGET)(torch.full((1, 1, 3), float("nan"), dtype=torch.float64))
    half = derived_gp(configured(ScaleKernel(MaternKernel(nu=0.5)).double()))
    with pytest.raises(ValueError, match="no gradient covariance"):
        GradientInformation(half, TARGET)


@pytest.mark.parametrize("q", [1, 2])
@pytest.mark.parametrize("name", ["matern 5/2 ard", "sum"])
def test_it_differentiates_in_data_noise_and_hyperparameters_where_asked(name, q):
    """Against central differences of the acquisition itself, under BoTorch's ``propagate_grads``."""
    X = points(6)
    candidates = points(q, seed=5).unsqueeze(0)
    kernel = kernel_named(name)

    def information(data):
        gp = DerivedGP(data, outcomes(X), covar_module=kernel, likelihood=likelihood, outcome_transform=None)
        return GradientInformation(gp, TARGET)(candidates).sum()

    likelihood = gaussian_likelihood(0.05)
    leaves = [X.clone().requires_grad_(True), *kernel.parameters(), *likelihood.parameters()]
    with botorch.settings.propagate_grads(True):
        slopes = torch.autograd.grad(information(leaves[0]), leaves)
    for leaf, slope in zip(leaves, slopes, strict=True):
        flat = leaf.data.view(-1)
        for i in range(flat.numel()):
            value, step = flat[i].item(), 1e-5
            ends = []
            for sign in (1, -1):
                flat[i] = value + sign * step
                ends.append(information(leaves[0].detach()).item())
            flat[i] = value
            assert abs((ends[0] - ends[1]) / (2 * step) - slope.reshape(-1)[i].item()) < 1e-6


def test_several_outcomes_are_refused():
    X = points(6)
    gp = DerivedGP(X, torch.cat([outcomes(X), outcomes(X)], dim=-1))
    with pytest.raises(ValueError, match="one outcome, got 2: take one of them"):
        GradientInformation(gp, TARGET)
    assert GradientInformation(gp.subset_output([1]), TARGET)(X[:1] + 0.1).shape == (1,)


def test_through_a_warp_it_is_that_of_the_warped_inputs():
    """The drop of ``GradientPosterior.trace`` when the point is observed, which differs with dz/dx at the target."""
    X = (points(6) + 1) / 2
    gp = DerivedGP(X, outcomes(X), input_transform=Warp(d=D, indices=[0, 1]), outcome_transform=None)
    gp.input_transform._set_concentration(0, torch.tensor([1.7, 0.6], dtype=torch.float64))
    target, new = (TARGET + 1) / 2, X[:1] * 0.9 + 0.05
    expected = gp.gradient_posterior(target).trace
    information = GradientInformation(gp, target)(new)
    gp.add_observations(new, outcomes(new))
    assert_close(information, expected - gp.gradient_posterior(target).trace, 1e-9)
