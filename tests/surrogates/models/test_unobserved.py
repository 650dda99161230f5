"""NaN among the outcomes of a derived GP, and posteriors of lists of models."""

import copy

import pytest
import torch
from botorch import fit_gpytorch_mll
from botorch.acquisition import qKnowledgeGradient
from botorch.models import ModelListGP, SingleTaskGP
from botorch.models.transforms.input import Normalize
from botorch.models.transforms.outcome import Standardize
from botorch.posteriors.posterior_list import PosteriorList
from botorch.sampling import SobolQMCNormalSampler
from botorch.sampling.pathwise import draw_matheron_paths
from gpytorch.mlls import ExactMarginalLogLikelihood

from surrogates import DerivedGP, GradientPosterior, gradient_posterior, map_outcomes, sample_hyperparameters
from tests.surrogates.gp_models import D, generator, outcomes, points
from tests.surrogates.reference import assert_close

NAN = float("nan")
X, XQ = points(9), points(3, seed=8)
Y = torch.cat([outcomes(X), (2 * X[:, :1]).cos() + X[:, 1:2]], -1)
Y[2, 0] = Y[4:6, 1] = Y[7] = NAN
YVAR = torch.where(Y.isnan(), NAN, 0.01 + points(9, 2, seed=3).abs() / 10)
BOUNDS = torch.tensor([[-1.0] * D, [1.0] * D], dtype=torch.float64)


def model(of, kept, fixed=False, given=False, X=X):
    options = {"train_Yvar": YVAR[kept][:, of]} if fixed else {}
    options |= {"outcome_transform": Standardize(len(of))} if given else {}
    return DerivedGP(X[kept], Y[kept][:, of], input_transform=Normalize(D, bounds=BOUNDS), **options)


def numbers(gp, at=XQ):
    """The results of posteriors, with q and the outcome first."""
    value, noisy = gp.posterior(at), gp.posterior(at, observation_noise=True)
    gradient, hessian, joint = gp.gradient_posterior(at), gp.hessian_posterior(at), gp.joint_posterior(at)
    found = [
        gradient.mean,
        gradient.variance,
        gradient.trace,
        gradient.covariance_matrix,
        hessian.mean,
        hessian.variance,
    ]
    by_outcome = [joint.mean, joint.covariance_matrix, gradient.joint_covariance(), hessian.joint_covariance()]
    if gp.num_outputs > 1:
        found, by_outcome = [t.movedim(1, 0) for t in found], [*by_outcome, gp.value_gradient_covariance(at, at)]
    else:
        found, by_outcome = (
            [t[None] for t in part] for part in (found, [*by_outcome, gp.value_gradient_covariance(at, at)])
        )
    return [value.mean.mT, value.variance.mT, noisy.variance.mT, *found, *by_outcome]


def likelihood(gp):
    mll = ExactMarginalLogLikelihood(gp.likelihood, gp.train())
    found = mll(gp(*gp.train_inputs), gp.train_targets) * gp.train_targets.shape[-1]
    gp.eval()
    return found


@pytest.mark.parametrize("given", [False, True])
@pytest.mark.parametrize("fixed", [False, True])
def test_each_outcome_is_conditioned_on_its_observed_rows(fixed, given):
    both = model([0, 1], slice(None), fixed, given)
    for outcome in (0, 1):
        alone = model([outcome], ~Y[:, outcome].isnan(), fixed, given)
        assert_close(likelihood(both).reshape(-1)[outcome], likelihood(alone).detach(), 1e-9)
        for found, expected in zip(numbers(both), numbers(alone), strict=True):
            assert_close(found[outcome], expected[0].detach(), 1e-9)


def test_one_outcome_is_bitwise_the_model_of_the_observed_rows():
    kept = ~Y[:, 0].isnan()
    fitted = []
    for gp in (DerivedGP(X, Y[:, :1]), DerivedGP(X[kept], Y[kept][:, :1])):
        fit_gpytorch_mll(ExactMarginalLogLikelihood(gp.likelihood, gp))
        fitted.append([*gp.state_dict().values(), *numbers(gp)])
    for found, expected in zip(*fitted, strict=True):
        assert torch.equal(found, expected)


def test_a_fit_is_that_of_each_outcome_alone():
    both = model([0, 1], slice(None))
    fit_gpytorch_mll(ExactMarginalLogLikelihood(both.likelihood, both))
    for outcome in (0, 1):
        alone = model([outcome], ~Y[:, outcome].isnan())
        fit_gpytorch_mll(ExactMarginalLogLikelihood(alone.likelihood, alone))
        assert_close(both.covar_module.lengthscale[outcome], alone.covar_module.lengthscale.detach(), 2e-3)


def test_batches_have_rows_of_their_own():
    batch = torch.stack([Y[:, :1], Y[:, 1:]])
    gp = DerivedGP(X.expand(2, 9, D), batch)
    for element in (0, 1):
        kept = ~batch[element].isnan().squeeze(-1)
        alone = DerivedGP(X[kept], batch[element][kept])
        for ask in ("gradient_posterior", "posterior", "hessian_posterior"):
            found, expected = getattr(gp, ask)(XQ), getattr(alone, ask)(XQ)
            assert_close(found.mean[element], expected.mean.detach(), 1e-9)
            assert_close(found.variance[element], expected.variance.detach(), 1e-9)


@pytest.mark.parametrize("fixed", [False, True])
def test_observations_that_follow_may_be_missing_too(fixed):
    new = torch.tensor([[1.0, NAN], [NAN, 2.0], [0.5, 0.7]], dtype=torch.float64)
    variances = torch.full((3, 2), 0.3, dtype=torch.float64)
    gp = model([0, 1], slice(0, 7), fixed)
    units = gp.outcome_transform.stdvs**2
    copied = gp.condition_on_observations(XQ, new, **({"noise": variances / units} if fixed else {}))
    gp.add_observations(XQ, new, *([variances] if fixed else []))
    options = {"train_Yvar": torch.cat([YVAR[:7], variances])} if fixed else {}
    at_once = DerivedGP(
        torch.cat([X[:7], XQ]), torch.cat([Y[:7], new]), input_transform=Normalize(D, bounds=BOUNDS), **options
    )
    at_once.load_state_dict(gp.state_dict())
    for one in (copied, gp):
        for found, expected in zip(numbers(one, XQ + 0.1), numbers(at_once, XQ + 0.1), strict=True):
            assert_close(found, expected.detach(), 1e-9)


def test_one_outcome_grows_by_its_observed_rows():
    gp, kept = DerivedGP(X[:5], Y[:5, :1]), [0, 2]
    grown = copy.deepcopy(gp)
    new = torch.tensor([[1.0], [NAN], [0.5]], dtype=torch.float64)
    gp.add_observations(XQ, new)
    grown.add_observations(XQ[kept], new[kept])
    assert gp.train_targets.shape == grown.train_targets.shape == (6,)
    assert torch.equal(gp.gradient_posterior(X).mean, grown.gradient_posterior(X).mean)


def test_targets_that_are_set_may_be_missing():
    gp = model([0, 1], slice(None))
    targets = gp.train_targets.masked_fill(gp._missing, NAN)
    rows = ~Y.isnan().all(-1)
    other = DerivedGP(X[rows], torch.nan_to_num(Y[rows]), input_transform=Normalize(D, bounds=BOUNDS))
    other.set_train_data(targets=targets)
    assert_close(other.eval()(XQ).mean, gp.eval()(XQ).mean.detach(), 1e-12)


def test_fantasies_of_a_model_with_missing_values():
    both, draws = model([0, 1], slice(None)), SobolQMCNormalSampler(torch.Size([4]), seed=1)
    fantasies = both.fantasize(XQ[:1], draws)
    for outcome in (0, 1):
        alone = model([outcome], ~Y[:, outcome].isnan())
        for element in range(4):
            new = both.outcome_transform.untransform(fantasies.train_targets[element, :, -1:].mT)[0][
                :, outcome : outcome + 1
            ]
            expected = alone.condition_on_observations(XQ[:1], new.detach())
            found = fantasies.gradient_posterior(XQ[1:])
            assert_close(found.mean[element, :, outcome], expected.gradient_posterior(XQ[1:]).mean.detach(), 1e-8)


def test_knowledge_gradient_of_a_model_with_missing_values():
    kept, draws = ~Y[:, 0].isnan(), SobolQMCNormalSampler(torch.Size([4]), seed=1)
    alone = DerivedGP(X[kept], Y[kept][:, :1])
    hidden = DerivedGP(X, torch.nan_to_num(Y[:, :1]))
    hidden.outcome_transform = alone.outcome_transform
    hidden.set_train_data(targets=torch.full_like(X[:, 0], NAN).masked_scatter(kept, alone.train_targets))
    candidates = torch.cat([XQ[:1], points(4, seed=2)])[None]
    values, slopes = [], []
    for gp in (alone, hidden):
        at = candidates.clone().requires_grad_(True)
        values.append(qKnowledgeGradient(gp, num_fantasies=4, sampler=draws)(at))
        slopes += torch.autograd.grad(values[-1].sum(), at)
    assert_close(values[1], values[0].detach(), 1e-9)
    assert_close(slopes[1], slopes[0], 1e-8)


def test_pathwise_samples_have_the_moments_of_the_posterior():
    both = model([0, 1], slice(None))
    torch.manual_seed(0)
    with torch.no_grad():
        samples = draw_matheron_paths(both, torch.Size([4096]))(XQ)
        posterior = both.posterior(XQ)
    samples = samples.reshape(4096, 3, 2) if samples.shape[1:] == (3, 2) else samples.mT
    assert ((samples.mean(0) - posterior.mean).abs() < 5 * (posterior.variance / 4096).sqrt() + 0.02).all()


def test_hyperparameters_of_a_batch_with_missing_values_are_sampled_as_each_alone():
    batch = torch.stack([Y[:, :1], Y[:, 1:]])
    gp = DerivedGP(X.expand(2, 9, D), batch)
    averaged = sample_hyperparameters(gp, 2, generator(0), warmup_steps=1)
    kept = ~batch[1].isnan().squeeze(-1)
    alone = DerivedGP(X[kept], batch[1][kept])
    for sample in (0, 1):
        alone.covar_module.lengthscale = averaged.covar_module.lengthscale[1, sample]
        alone.likelihood.noise = averaged.likelihood.noise[1, sample]
        alone.mean_module.constant = averaged.mean_module.constant[1, sample]
        found = averaged.gradient_posterior(XQ)
        assert_close(found.mean[1, sample], alone.gradient_posterior(XQ).mean.detach(), 1e-8)


def test_what_was_never_observed_is_refused():
    with pytest.raises(ValueError, match=r"NaN in every row for the outcomes \[1\]"):
        DerivedGP(X, torch.where(torch.arange(2) == 1, NAN, Y))
    gp = model([0, 1], slice(None))
    for change in (gp.add_observations, gp.condition_on_observations):
        with pytest.raises(ValueError, match="Y holds only NaN"):
            change(XQ, torch.full((3, 2), NAN, dtype=torch.float64))


# Lists of models.


def test_a_list_has_the_posteriors_of_its_models():
    first, second = DerivedGP(X, Y[:, :1]), DerivedGP(X[:6], Y[:6, 1:])
    two = model([0, 1], slice(None))
    slopes = gradient_posterior(ModelListGP(first, second), XQ)
    assert isinstance(slopes, PosteriorList)
    assert torch.equal(slopes.mean, torch.cat([m.gradient_posterior(XQ).mean for m in (first, second)], -1))
    assert slopes.rsample(torch.Size([5])).shape == (5, 3, 2 * D)
    slopes = gradient_posterior(ModelListGP(first, two), XQ)
    found = map_outcomes(GradientPosterior.descent_probability, slopes)
    assert torch.equal(found[:, 0], first.gradient_posterior(XQ).descent_probability())
    assert torch.equal(found[:, 1:], two.gradient_posterior(XQ).descent_probability())
    variance = map_outcomes(lambda gradient: gradient.variance, gradient_posterior(two, XQ))
    assert torch.equal(variance, two.gradient_posterior(XQ).variance)


def test_a_list_of_other_models_is_refused():
    with pytest.raises(TypeError, match=r"SingleTaskGP has no posterior of its gradient; make .* a DerivedGP"):
        gradient_posterior(ModelListGP(SingleTaskGP(X, outcomes(X))), XQ)
    values = ModelListGP(DerivedGP(X, outcomes(X))).posterior(XQ)
    with pytest.raises(TypeError, match="must be a GradientPosterior or a PosteriorList"):
        map_outcomes(lambda posterior: posterior.mean, values)
