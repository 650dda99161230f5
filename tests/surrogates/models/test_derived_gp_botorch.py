import copy
import warnings

import gpytorch
import pytest
import torch
from botorch import fit_gpytorch_mll
from botorch.acquisition import (
    LogExpectedImprovement,
    PosteriorMean,
    UpperConfidenceBound,
    qExpectedImprovement,
    qKnowledgeGradient,
    qLogExpectedImprovement,
    qLogNoisyExpectedImprovement,
    qNegIntegratedPosteriorVariance,
)
from botorch.cross_validation import batch_cross_validation, gen_loo_cv_folds
from botorch.generation import MaxPosteriorSampling
from botorch.models import ModelListGP, SingleTaskGP
from botorch.models.transforms import Normalize, Standardize
from botorch.optim import optimize_acqf
from botorch.sampling import SobolQMCNormalSampler
from botorch.sampling.get_sampler import get_sampler
from botorch.sampling.pathwise import draw_matheron_paths
from botorch.sampling.pathwise.posterior_samplers import get_matheron_path_model
from botorch.utils.datasets import SupervisedDataset
from botorch.utils.test_helpers import get_pvar_expected
from gpytorch.mlls import ExactMarginalLogLikelihood, LeaveOneOutPseudoLikelihood, SumMarginalLogLikelihood

from surrogates import DerivedGP
from tests.surrogates.gp_models import D, derived_gp, generator, kernel_named, outcomes, points
from tests.surrogates.reference import assert_close

BOUNDS = torch.tensor([[-1.0] * D, [1.0] * D], dtype=torch.float64)
X, XQ = points(10), points(4, seed=8)
Y = outcomes(X)


def fitted(cls, *arguments, **options):
    model = cls(*arguments, **options)
    fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
    return model


OPTIONS = {
    "defaults": {},
    "transforms": {"input_transform": Normalize, "outcome_transform": Standardize},
    "no outcome transform": {"outcome_transform": None},
    "given kernel": {"covar_module": lambda: kernel_named("matern 5/2 ard")},
}


def built(name):
    """Fresh options: models must not share transforms."""
    options = dict(OPTIONS[name])
    if "input_transform" in options:
        options |= {"input_transform": Normalize(D), "outcome_transform": Standardize(1)}
    if "covar_module" in options:
        options["covar_module"] = options["covar_module"]()
    return options


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("fixed", [False, True])
def test_a_fit_is_single_task_gp_s(name, fixed):
    data = (X, Y, 1e-2 + points(10, 1, seed=3).abs() / 10) if fixed else (X, Y)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # on the scaling of outcomes
        ours, theirs = (fitted(cls, *data, **built(name)) for cls in (DerivedGP, SingleTaskGP))
    for (key, a), (other, b) in zip(ours.named_parameters(), theirs.named_parameters(), strict=True):
        assert key == other
        assert torch.equal(a, b), key
    for noise in (False, True):
        a, b = (m.posterior(XQ, observation_noise=noise) for m in (ours, theirs))
        assert_close(a.mean, b.mean.detach(), 1e-10)
        assert_close(a.variance, b.variance.detach(), 1e-8)
        assert_close(a.distribution.covariance_matrix, b.distribution.covariance_matrix.detach(), 1e-8)
    points_ = XQ.clone().requires_grad_(True)
    (gradient,) = torch.autograd.grad(theirs.posterior(points_).mean.sum(), points_)
    assert_close(ours.gradient_posterior(XQ).mean, gradient, 1e-8)


def test_the_signature_is_single_task_gp_s():
    import inspect

    ours, theirs = (inspect.signature(cls.__init__).parameters for cls in (DerivedGP, SingleTaskGP))
    assert list(ours) == list(theirs)
    assert all(ours[name].default == theirs[name].default for name in theirs)
    dataset = SupervisedDataset(X, Y, feature_names=["a", "b", "c"], outcome_names=["y"])
    assert DerivedGP.construct_inputs(dataset).keys() == SingleTaskGP.construct_inputs(dataset).keys()
    assert_close(
        DerivedGP(**DerivedGP.construct_inputs(dataset)).posterior(XQ).mean, DerivedGP(X, Y).posterior(XQ).mean.detach()
    )


def test_a_refit_with_more_data_is_a_fit_of_all_data():
    ours = DerivedGP(X[:6], Y[:6], outcome_transform=None, input_transform=Normalize(D, bounds=BOUNDS))
    ours.gradient_posterior(XQ).mean
    ours.add_observations(X[6:], Y[6:])
    fit_gpytorch_mll(ExactMarginalLogLikelihood(ours.likelihood, ours))
    theirs = fitted(SingleTaskGP, X, Y, outcome_transform=None, input_transform=Normalize(D, bounds=BOUNDS))
    assert_close(ours.posterior(XQ).mean, theirs.posterior(XQ).mean.detach(), 1e-6)


def models():
    ours, theirs = (cls(X, Y, input_transform=Normalize(D)) for cls in (DerivedGP, SingleTaskGP))
    ours.covar_module.lengthscale = torch.tensor([[0.4, 0.7, 0.6]], dtype=torch.float64)
    ours.likelihood.noise = torch.tensor([1e-2], dtype=torch.float64)
    theirs.load_state_dict(ours.state_dict())
    return ours, theirs


ACQUISITIONS = {
    "LogExpectedImprovement": lambda m: LogExpectedImprovement(m, Y.max()),
    "UpperConfidenceBound": lambda m: UpperConfidenceBound(m, beta=2.0),
    "PosteriorMean": PosteriorMean,
    "qExpectedImprovement": lambda m: qExpectedImprovement(m, Y.max(), sampler=sampler(64)),
    "qLogExpectedImprovement": lambda m: qLogExpectedImprovement(m, Y.max(), sampler=sampler(64)),
    "qLogNoisyExpectedImprovement": lambda m: qLogNoisyExpectedImprovement(
        m,
        X,
        sampler=sampler(64),
        prune_baseline=False,  # pruning draws from the global generator
    ),
    "qNegIntegratedPosteriorVariance": lambda m: qNegIntegratedPosteriorVariance(m, XQ),
}


def sampler(count):
    return SobolQMCNormalSampler(torch.Size([count]), seed=1)


@pytest.mark.parametrize("name", ACQUISITIONS)
def test_acquisitions_have_single_task_gp_s_values_and_derivatives(name):
    found = []
    for model in models():
        candidates = XQ[:, None].clone().requires_grad_(True)
        value = ACQUISITIONS[name](model)(candidates)
        found.append((value.detach(), torch.autograd.grad(value.sum(), candidates)[0]))
    assert_close(found[0][0], found[1][0], 1e-7)
    assert_close(found[0][1], found[1][1], 1e-6)


@pytest.mark.parametrize("name", ["LogExpectedImprovement", "qLogExpectedImprovement"])
def test_optimize_acqf(name):
    ours, _ = models()
    q = 2 if name.startswith("q") else 1
    acquisition = ACQUISITIONS[name](ours)
    best, value = optimize_acqf(acquisition, BOUNDS, q=q, num_restarts=2, raw_samples=16, options={"seed": 0})
    assert best.shape == (q, D)
    assert value.item() >= acquisition(points(50 * q, seed=9).reshape(50, q, D)).max().item()
    if q == 2:
        optimize_acqf(acquisition, BOUNDS, q=q, num_restarts=2, raw_samples=8, sequential=True, options={"seed": 0})


def test_knowledge_gradient_has_single_task_gp_s_values_and_derivatives():
    found = []
    for model in models():
        acquisition = qKnowledgeGradient(model, num_fantasies=4, sampler=sampler(4))
        candidates = points(10, seed=9).reshape(2, 5, D).clone().requires_grad_(True)
        value = acquisition(candidates)
        found.append((value.detach(), torch.autograd.grad(value.sum(), candidates)[0]))
    assert_close(found[0][0], found[1][0], 1e-8)
    assert_close(found[0][1], found[1][1], 1e-7)
    best, _ = optimize_acqf(
        qKnowledgeGradient(models()[0], num_fantasies=2, sampler=sampler(2)),
        BOUNDS,
        q=1,
        num_restarts=1,
        raw_samples=4,
        options={"seed": 0, "maxiter": 5},
    )
    assert best.shape == (1, D)


@pytest.mark.parametrize("propagate", [False, True])
def test_fantasies_are_single_task_gp_s(propagate):
    found = []
    for model in models():
        new = points(2, seed=9).requires_grad_(True)
        fantasies = model.fantasize(new, sampler(3), propagate_grads=propagate)
        assert type(fantasies) is type(model)
        assert fantasies.batch_shape == (3,)
        posterior = fantasies.posterior(XQ)
        found.append((posterior.mean.detach(), posterior.variance.detach()))
    assert_close(found[0][0], found[1][0], 1e-8)
    assert_close(found[0][1], found[1][1], 1e-8)
    ours = models()[0].fantasize(points(2, seed=9), sampler(3))
    gradient = ours.gradient_posterior(XQ)
    assert gradient.mean.shape == (3, 4, D)
    assert_close(gradient.trace[0], gradient.trace[2], 1e-12)  # which observed values do not change
    one = ours.fantasize(points(1, seed=10).expand(3, 1, D), sampler(2))
    assert one.gradient_posterior(XQ).mean.shape == (2, 3, 4, D)


def test_fantasies_of_models_with_given_noise():
    ours = DerivedGP(X, Y, torch.full_like(Y, 0.01), input_transform=Normalize(D))
    fantasies = ours.fantasize(points(2, seed=9), sampler(3))
    assert fantasies.gradient_posterior(XQ).mean.shape == (3, 4, D)
    theirs = SingleTaskGP(X, Y, torch.full_like(Y, 0.01), input_transform=Normalize(D))
    other = theirs.fantasize(points(2, seed=9), sampler(3))
    assert_close(fantasies.posterior(XQ).mean, other.posterior(XQ).mean.detach(), 1e-8)


def test_posterior_variance_of_botorch_s_helper():
    ours = DerivedGP(X, Y, covar_module=kernel_named("rbf"), outcome_transform=None)
    assert_close(
        ours.posterior(XQ, observation_noise=True).variance, get_pvar_expected(ours.posterior(XQ), ours, XQ, 1)
    )


@pytest.mark.parametrize("name", ["rbf ard", "matern 5/2", "matern 3/2"])
def test_pathwise_samples_and_their_gradients(name):
    gp = derived_gp(kernel_named(name), n=10, noise=1e-2, input_transform=Normalize(D))
    count, step = 2000, 1e-5 * torch.eye(D, dtype=torch.float64)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        paths = draw_matheron_paths(gp, torch.Size([count]))
    around = XQ[:2, None]
    with torch.no_grad():
        values = paths(torch.cat([around + step, around - step], dim=1).flatten(0, 1)).reshape(count, 2, 2, D)
    gradients = (values[:, :, 0] - values[:, :, 1]) / 2e-5
    posterior = gp.gradient_posterior(XQ[:2])
    spread = posterior.variance.sqrt()
    # The random features' own error is small for the RBF kernel only: a Matérn's frequencies have heavy tails.
    assert ((gradients.mean(0) - posterior.mean).abs() < 7 * spread / count**0.5).all()
    if name == "rbf ard":
        assert ((gradients.var(0) / posterior.variance - 1).abs() < 0.15 + 5 * (2 / count) ** 0.5).all()
    model = get_matheron_path_model(gp, torch.Size([3]))
    assert model.posterior(XQ).mean.shape == (3, 4, 1)


def test_model_lists_join_outcomes():
    first, second = derived_gp(n=10), DerivedGP(X, Y.square())
    both = ModelListGP(first, second)
    posterior = both.posterior(XQ)
    assert_close(posterior.mean[:, 1:], second.posterior(XQ).mean.detach(), 1e-14)
    assert get_sampler(posterior, torch.Size([4]))(posterior).shape == (4, 4, 2)
    fit_gpytorch_mll(SumMarginalLogLikelihood(both.likelihood, both))
    assert_close(both.models[1].gradient_posterior(XQ).mean, second.gradient_posterior(XQ).mean, 0.0)
    conditioned = both.condition_on_observations([XQ, XQ], torch.cat([outcomes(XQ), outcomes(XQ).square()], dim=-1))
    assert conditioned.models[0].gradient_posterior(XQ).mean.shape[-2:] == (4, D)


def test_thompson_sampling_and_subset_output():
    gp = DerivedGP(X, Y)
    chosen = MaxPosteriorSampling(gp, replacement=False)(XQ, num_samples=2)
    assert chosen.shape == (2, D)
    assert_close(gp.subset_output([0]).posterior(XQ).mean, gp.posterior(XQ).mean.detach(), 1e-14)


def test_leave_one_out():
    gp = derived_gp(n=10)
    likelihood = LeaveOneOutPseudoLikelihood(gp.likelihood, gp)
    gp.train()
    value = likelihood(gp(*gp.train_inputs), gp.train_targets)
    value.backward()
    assert gp.covar_module.base_kernel.raw_lengthscale.grad.isfinite().all()
    folds = gen_loo_cv_folds(X[:5], Y[:5])
    results = batch_cross_validation(
        DerivedGP, ExactMarginalLogLikelihood, folds, fit_args={"optimizer_kwargs": {"options": {"maxiter": 3}}}
    )
    assert results.posterior.mean.shape == (5, 1, 1)


def test_batched_models_fit_and_optimize():
    batch = points(8, batch=(2,))
    gp = fitted(DerivedGP, batch, outcomes(batch))
    theirs = fitted(SingleTaskGP, batch, outcomes(batch))
    assert_close(gp.posterior(XQ).mean, theirs.posterior(XQ).mean.detach(), 1e-9)
    alone = DerivedGP(batch[1], outcomes(batch[1]))
    lengthscale = gp.covar_module.lengthscale[1]
    alone.covar_module.lengthscale = lengthscale
    alone.likelihood.noise = gp.likelihood.noise[1]
    alone.mean_module.constant.data = gp.mean_module.constant[1].detach()
    assert_close(gp.gradient_posterior(XQ).mean[1], alone.gradient_posterior(XQ).mean, 1e-10)
    assert_close(gp.gradient_posterior(XQ).trace[1], alone.gradient_posterior(XQ).trace, 1e-10)


def test_under_no_grad_and_after_changes_of_mode():
    gp = derived_gp(n=10, input_transform=Normalize(D))
    expected = gp.gradient_posterior(XQ).mean
    with torch.no_grad():
        assert_close(gp.gradient_posterior(XQ).mean, expected, 0.0)
    for _ in range(3):
        gp.train()
        gp(*gp.train_inputs)
        gp.eval()
        assert_close(gp.gradient_posterior(XQ).mean, expected, 1e-14)
    with torch.inference_mode():
        assert_close(gp.gradient_posterior(XQ).trace, copy.deepcopy(gp).gradient_posterior(XQ).trace, 1e-13)


def test_prior_mode_of_gpytorch():
    gp = derived_gp(n=10)
    gp.eval()
    with gpytorch.settings.prior_mode():
        assert_close(gp(XQ).covariance_matrix, gp.covar_module(XQ).to_dense().detach(), 1e-12)


def test_no_global_state_is_touched():
    state = torch.get_rng_state()
    gp = derived_gp(n=10)
    gp.gradient_posterior(XQ).rsample(torch.Size([2]), generator=generator(0))
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.get_default_dtype() == torch.float32


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("name", ["matern 5/2", "rbf ard", "sum over inputs", "active dims"])
def test_cuda_gives_the_numbers_of_the_cpu(name):
    gp = derived_gp(kernel_named(name), n=10, input_transform=Normalize(D))
    on_device = copy.deepcopy(gp).cuda()
    new = points(3, seed=9)
    for model, z in ((gp, new), (on_device, new.cuda())):
        model.add_observations(z[:1], outcomes(z[:1]))
    for q in (1, 4):
        a, b = gp.gradient_posterior(XQ[:q]), on_device.gradient_posterior(XQ[:q].cuda())
        assert b.mean.is_cuda
        for attribute in ("mean", "trace", "variance", "spectral_norm", "covariance_matrix"):
            assert_close(getattr(b, attribute).cpu(), getattr(a, attribute), 1e-9)
        assert_close(b.descent_probability().cpu(), a.descent_probability(), 1e-9)
        assert b.rsample(torch.Size([2])).is_cuda
    assert_close(on_device.joint_posterior(XQ.cuda()).mean.cpu(), gp.joint_posterior(XQ).mean, 1e-9)
    assert_close(on_device.posterior(XQ.cuda()).mean.cpu(), gp.posterior(XQ).mean.detach(), 1e-8)
    conditioned = on_device.condition_on_observations(new[1:].cuda(), outcomes(new[1:]).cuda())
    expected = gp.condition_on_observations(new[1:], outcomes(new[1:])).gradient_posterior(XQ).trace
    assert_close(conditioned.gradient_posterior(XQ.cuda()).trace.cpu(), expected, 1e-9)
    with pytest.raises(ValueError, match=r"X is torch.float64 on cpu but the model is torch.float64 on cuda"):
        on_device.gradient_posterior(XQ)
