import botorch
import numpy as np
import pytest
import torch
from botorch.acquisition.input_constructors import get_acqf_input_constructor
from botorch.acquisition.objective import GenericMCObjective, ScalarizedPosteriorTransform
from botorch.models import ModelListGP, SingleTaskGP
from botorch.models.transforms import Normalize, Warp
from botorch.optim import optimize_acqf
from botorch.utils.datasets import SupervisedDataset
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
        likelihood=gaussian_likelihood(1e-2, dtype=torch.float32),
    )
    candidates = points(3, seed=8)[:, None]
    information = GradientInformation(gp, TARGET.float())(candidates.float())
    assert information.dtype == torch.float32
    double = derived_gp(kernel_named("rbf"), noise=1e-2)
    assert_close(information, GradientInformation(double, TARGET)(candidates), 1e-4)


def test_what_it_refuses():
    gp, X = derived_gp(), points(6)
    with pytest.raises(TypeError, match="needs a DerivedGP of the outcome, got SingleTaskGP"):
        GradientInformation(SingleTaskGP(X, outcomes(X)), TARGET)
    with pytest.raises(ValueError, match="one outcome, got a model of 2 outcomes: pass objective_index"):
        GradientInformation(ModelListGP(gp, gp), TARGET)
    batched = points(6, batch=(2,))
    with pytest.raises(ValueError, match=r"without batch dimensions, got batch shape \(2,\)"):
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


def test_of_several_outcomes_it_is_that_of_the_one_named():
    gp = two_outcomes()
    with pytest.raises(ValueError, match="one outcome, got a model of 2 outcomes: pass objective_index"):
        GradientInformation(gp, TARGET)
    X = points(3, seed=8)[:, None]
    second = GradientInformation(gp.subset_output([1]), TARGET)(X)
    assert_close(GradientInformation(gp, TARGET, objective_index=1)(X), second, 1e-12)
    first = derived_gp(noise=1e-2)
    models = ModelListGP(first, gp.subset_output([1]))
    assert_close(
        GradientInformation(models, TARGET, objective_index=0)(X), GradientInformation(first, TARGET)(X), 1e-12
    )


def two_outcomes():
    X = points(6)
    Y = torch.cat([outcomes(X), 30 * outcomes(X.flip(-1)) + 5], dim=-1)
    gp = DerivedGP(X, Y)  # BoTorch takes outcomes apart under its own kernel only
    gp.likelihood.noise = 1e-2
    return gp


def second_below(threshold):
    """BoTorch's form of the outcome constraint y₂ ≤ threshold."""
    return [lambda Y: Y[..., 1] - threshold]


def test_one_query_counts_with_the_probability_that_it_is_feasible():
    gp, X = two_outcomes(), points(5, seed=8)[:, None]
    posterior = gp.posterior(X)
    mean, deviation = posterior.mean[..., 0, 1].detach(), posterior.variance[..., 0, 1].sqrt().detach()
    threshold = mean.median().item()
    free = GradientInformation(gp, TARGET, objective_index=0)(X).detach()
    acquisition = GradientInformation(gp, TARGET, objective_index=0, constraints=second_below(threshold))
    probability = torch.special.ndtr((threshold - mean) / deviation)
    assert probability.min() < 0.4 and probability.max() > 0.6
    assert float((acquisition(X).detach() / free - probability).abs().max()) < 0.02


def test_of_a_batch_those_that_are_feasible_are_observed():
    """Against the mean over independent samples of the drop in trace for the subset that is feasible in each."""
    gp, X = two_outcomes(), points(3, seed=8)
    threshold = gp.posterior(X).mean[..., 1].mean().item()
    samples = gp.posterior(X).rsample(torch.Size([4000]))[..., 1] <= threshold
    first = gp.subset_output([0])
    drops = {subset: drop(first, TARGET, X[list(subset)]) for subset in SUBSETS[1:]} | {(): torch.zeros(())}
    sampled = torch.stack([drops[tuple(row.nonzero().flatten().tolist())] for row in samples])
    arguments = {"objective_index": 0, "constraints": second_below(threshold)}
    error = float(sampled.std() / len(sampled) ** 0.5)
    found = GradientInformation(gp, TARGET, **arguments)(X)
    assert abs(float(found - sampled.mean())) < 4 * error + 0.02 * float(drops[0, 1, 2])
    pending = GradientInformation(gp, TARGET, X_pending=X[1:], **arguments)(X[:1])
    assert_close(pending, found, 1e-10)


SUBSETS = [tuple(i for i in range(3) if number >> i & 1) for number in range(8)]


def test_queries_that_surely_fail_tell_nothing_and_those_that_surely_succeed_all():
    gp, X = two_outcomes(), points(3, seed=8)
    free = GradientInformation(gp, TARGET, objective_index=0)(X)
    succeed, fail = (
        GradientInformation(gp, TARGET, objective_index=0, constraints=second_below(threshold))(X)
        for threshold in (1e6, -1e6)
    )
    assert_close(succeed, free, 1e-9)
    assert float(fail) == 0.0


def test_derivatives_under_outcome_constraints():
    gp = two_outcomes()
    acquisition = GradientInformation(gp, TARGET, objective_index=0, constraints=second_below(5.0))
    X = points(4, seed=8).reshape(2, 2, D).requires_grad_(True)
    assert torch.autograd.gradcheck(acquisition, X)


BOX = torch.tensor([[-1.0] * D, [1.0] * D], dtype=torch.float64)


@pytest.mark.parametrize("sequential", [pytest.param(False, marks=pytest.mark.slow), True])
def test_optimize_acqf_keeps_a_batch_within_linear_constraints(sequential):
    """The best feasible pair is at least as good as any pair of many feasible points."""
    acquisition = GradientInformation(derived_gp(noise=1e-2, input_transform=Normalize(D)), TARGET)
    weights = torch.tensor([1.0, 1.0], dtype=torch.float64)
    X, _ = optimize_acqf(
        acquisition,
        BOX,
        q=2,
        num_restarts=2,
        raw_samples=16,
        inequality_constraints=[(torch.tensor([0, 2]), weights, 0.6)],  # x₁ + x₃ ≥ 0.6, which the target does not meet
        sequential=sequential,
        options={"seed": 0},
    )
    assert bool((X[:, 0] + X[:, 2] >= 0.6 - 1e-9).all())
    others = 2 * torch.rand(400, 2, D, generator=torch.Generator().manual_seed(1), dtype=torch.float64) - 1
    others = others[(others[..., 0] + others[..., 2] >= 0.6).all(-1)]
    acquisition.set_X_pending(None)
    assert len(others) > 20 and float(acquisition(X)) >= float(acquisition(others).max())
    assert float(acquisition(X)) > float(acquisition(X[:1]))


def test_optimize_acqf_keeps_to_where_feasibility_is_probable():
    """A chance constraint on another outcome's model, by ``nonlinear_inequality_constraints``."""
    gp = two_outcomes()
    first, second = gp.subset_output([0]), gp.subset_output([1])
    threshold = float(second.posterior(TARGET).mean) - 1.0

    def probability(x):
        posterior = second.posterior(x.unsqueeze(-2))
        return torch.special.ndtr((threshold - posterior.mean) / posterior.variance.sqrt()).flatten()

    sampled = 2 * torch.rand(4000, D, generator=torch.Generator().manual_seed(1), dtype=torch.float64) - 1
    feasible = sampled[probability(sampled) >= 0.9]
    assert len(feasible) > 20 and float(probability(TARGET)) < 0.9
    acquisition = GradientInformation(first, TARGET)
    starts = feasible[: len(feasible) // 4, None]
    starts = starts[acquisition(starts).argsort(descending=True)[:4]]
    x, value = optimize_acqf(
        acquisition,
        BOX,
        q=1,
        num_restarts=4,
        nonlinear_inequality_constraints=[(lambda x: probability(x).squeeze() - 0.9, True)],
        batch_initial_conditions=starts,
        options={"batch_limit": 1},
    )
    assert float(probability(x)) >= 0.9 - 1e-6
    assert float(value) >= float(acquisition(feasible[:, None]).max())


def test_botorch_s_registry_constructs_it():
    """As Ax does: the arguments that all constructors share, of which this one takes its own."""
    gp = two_outcomes()
    construct = get_acqf_input_constructor(GradientInformation)
    minimize = ScalarizedPosteriorTransform(torch.tensor([-1.0, 0.0], dtype=torch.float64))
    shared = {"model": gp, "training_data": SupervisedDataset(points(6), gp.train_targets.mT, **NAMES), "bounds": BOX}
    means = gp.posterior(points(6)).mean
    made = construct(**shared, X_pending=TARGET, posterior_transform=minimize, objective_index=0)
    assert torch.equal(made["X_target"], points(6)[means[:, 0].argmin()])
    direct = GradientInformation(gp, made["X_target"], X_pending=TARGET, objective_index=0)
    X = points(3, seed=8)[:, None]
    assert_close(GradientInformation(**made)(X), direct(X), 1e-14)

    order = means[:, 0].argsort(descending=True)
    below = second_below((means[:, 1].min() + 1e-6).item())  # feasible at one point, not the best
    made = construct(**shared, constraints=below, objective=GenericMCObjective(lambda Y, X: Y[..., 0]))
    assert torch.equal(made["X_target"], points(6)[means[:, 1].argmin()]) and means[:, 1].argmin() != order[0]
    assert GradientInformation(**made | {"objective_index": 0}).constraints == tuple(below)
    made = construct(**shared, X_baseline=points(6)[1:3], constraints=second_below(-1e6), objective_index=1)
    assert torch.equal(made["X_target"], points(6)[1 + int(means[1:3, 1].argmax())])
    assert construct(model=gp, X_target=TARGET, noise=0.5)["noise"] == 0.5
    with pytest.raises(ValueError, match="pass one of the three"):
        construct(model=gp)


NAMES = {"feature_names": ["a", "b", "c"], "outcome_names": ["y", "z"]}


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
