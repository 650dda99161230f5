"""Every transform of BoTorch, and several outcomes: SingleTaskGP's values, and gradients that differentiate them."""

import pytest
import torch
from botorch import settings
from botorch.fit import fit_gpytorch_mll
from botorch.models import ModelListGP, SingleTaskGP
from botorch.models.transforms import Bilog, Log, Normalize, Round, Standardize, Warp
from botorch.models.transforms.input import (
    AppendFeatures,
    ChainedInputTransform,
    FilterFeatures,
    InputPerturbation,
    Log10,
    NumericToCategoricalEncoding,
)
from botorch.models.transforms.outcome import ChainedOutcomeTransform, Power, StratifiedStandardize
from botorch.sampling import ListSampler, SobolQMCNormalSampler
from gpytorch.kernels import MaternKernel, RBFKernel, ScaleKernel
from gpytorch.mlls import ExactMarginalLogLikelihood

from surrogates import DerivedGP
from tests.surrogates.gp_models import configured, generator
from tests.surrogates.reference import assert_close

F64 = torch.float64
D = 3


def cube(n, seed, batch=()):
    """Uniform in (0.1, 0.9)^3, away from the bounds of a warp."""
    return 0.1 + 0.8 * torch.rand(*batch, n, D, generator=generator(seed), dtype=F64)


def positive(X, m=1):
    """m positive functions of the inputs."""
    return torch.cat([(X.sin().sum(-1, keepdim=True) + (j + 1) * X[..., :1] ** 2).exp() for j in range(m)], dim=-1)


def warp(d=D, **options):
    transform = Warp(d=d, indices=[0, 2], **options)
    transform._set_concentration(0, torch.tensor([1.7, 0.6], dtype=F64))
    transform._set_concentration(1, torch.tensor([0.8, 2.1], dtype=F64))
    return transform


SMOOTH = {
    "log10": lambda: Log10(indices=[0, 1]),
    "warp": warp,
    "rounded integers": lambda: Round(integer_indices=[1], approximate=True, tau=0.3),
    "normalized, then warped": lambda: ChainedInputTransform(a=Normalize(D), b=warp(eps=1e-2)),
    "logarithm, normalized in evaluation": lambda: ChainedInputTransform(
        a=Log10(indices=[2]), b=Normalize(D, bounds=torch.tensor([[0.0, 0, -2], [1, 1, 0]], dtype=F64))
    ),
    "normalized at points alone": lambda: Normalize(
        D, bounds=torch.tensor([[0.0, 0, 0], [1, 2, 3]], dtype=F64), transform_on_train=False
    ),
}
OTHER_INPUTS = {
    "round": lambda: Round(integer_indices=[1]),
    "filter": lambda: FilterFeatures(torch.tensor([0, 2])),
    "append": lambda: AppendFeatures(torch.tensor([[0.3]], dtype=F64), transform_on_train=True),
    "perturbation": lambda: InputPerturbation(torch.tensor([[0.0, 0, 0], [0.01, 0.02, 0]], dtype=F64)),
}
NONLINEAR = {
    "log": Log,
    "power": lambda: Power(power=0.5),
    "bilog": Bilog,
    "log, then standardized": lambda: ChainedOutcomeTransform(a=Log(), b=Standardize(m=1)),
}


def kernel(seed=7, d=D):
    return configured(ScaleKernel(MaternKernel(nu=2.5, ard_num_dims=d)).double(), seed)


def made(cls, X, Y, **options):
    """A model of either class with the same hyper-parameters."""
    variance = options.pop("variance", None)
    model = cls(X, Y, None if variance is None else torch.full_like(Y, variance), **options)
    rng = generator(3)
    for module in (model.covar_module, model.mean_module):
        for parameter in module.parameters():
            parameter.data = 0.4 + 0.8 * torch.rand(parameter.shape, generator=rng, dtype=F64)
    return model.eval()


@pytest.mark.parametrize("name", [*SMOOTH, *OTHER_INPUTS])
def test_values_through_every_input_transform_are_those_of_single_task_gp(name):
    X, Xq = cube(8, 1), cube(3, 2, batch=(2,))
    transform = (SMOOTH | OTHER_INPUTS)[name]
    if name == "append":
        X = X[:, :2]
        Xq = Xq[..., :2]
    models = [made(cls, X, positive(X), input_transform=transform()) for cls in (SingleTaskGP, DerivedGP)]
    theirs, ours = (model.posterior(Xq) for model in models)
    assert_close(ours.mean, theirs.mean, 1e-9)
    assert_close(ours.variance, theirs.variance, 1e-8)
    losses = [ExactMarginalLogLikelihood(model.likelihood, model) for model in models]
    values = [mll(mll.model.train()(*mll.model.train_inputs), mll.model.train_targets) for mll in losses]
    assert_close(values[1], values[0], 1e-10)


def test_numeric_categories():
    X = torch.cat([cube(8, 1)[:, :2], (torch.arange(8) % 3).double().unsqueeze(-1)], dim=-1)
    options = {"dim": 3, "categorical_features": {2: 3}, "encoders": {2: lambda c: torch.eye(3)[c.long()].to(F64)}}
    models = [
        made(cls, X, positive(X), input_transform=NumericToCategoricalEncoding(**options))
        for cls in (SingleTaskGP, DerivedGP)
    ]
    theirs, ours = (model.posterior(X[:2] + torch.tensor([0.1, 0.1, 0.0])) for model in models)
    assert_close(ours.mean, theirs.mean, 1e-9)


def test_a_transform_of_points_alone_leaves_new_data_alone():
    X, new = cube(8, 1), cube(2, 2)
    options = {"input_transform": SMOOTH["normalized at points alone"](), "outcome_transform": None}
    grown = made(DerivedGP, X, positive(X), **options)
    grown.add_observations(new, positive(new))
    whole = made(SingleTaskGP, torch.cat([X, new]), positive(torch.cat([X, new])), **options)
    assert_close(grown.posterior(cube(3, 5)).mean, whole.posterior(cube(3, 5)).mean, 1e-8)
    grown.set_train_data(X, grown.train_targets[:8], strict=False)
    fewer = made(SingleTaskGP, X, positive(X), **options)
    assert_close(grown.posterior(cube(3, 5)).mean, fewer.posterior(cube(3, 5)).mean, 1e-8)


@pytest.mark.parametrize("name", NONLINEAR)
def test_values_through_nonlinear_outcome_transforms_are_those_of_single_task_gp(name):
    X, Xq = cube(8, 1), cube(3, 2)
    models = [made(cls, X, positive(X), outcome_transform=NONLINEAR[name]()) for cls in (SingleTaskGP, DerivedGP)]
    sampler = SobolQMCNormalSampler(torch.Size([16]), seed=5)
    assert_close(sampler(models[1].posterior(Xq)), sampler(models[0].posterior(Xq)), 1e-7)


def test_strata():
    X = torch.cat([cube(8, 1)[:, :2], (torch.arange(8) % 2).double().unsqueeze(-1)], dim=-1)
    strata = {"stratification_idx": 2, "all_task_values": torch.tensor([0, 1])}
    models = [
        made(cls, X, positive(X), outcome_transform=StratifiedStandardize(**strata))
        for cls in (SingleTaskGP, DerivedGP)
    ]
    theirs, ours = (model.posterior(X[:3]) for model in models)
    assert_close(ours.mean, theirs.mean, 1e-9)
    scales = models[1].outcome_transform.stdvs.flatten()[X[:3, 2].long()]
    gradients = models[1].transformed_gradient_posterior(X[:3])
    plain = made(DerivedGP, X, models[1].outcome_transform(positive(X), X=X)[0].detach(), outcome_transform=None)
    assert_close(gradients.delta_method_mean, plain.gradient_posterior(X[:3]).mean * scales.unsqueeze(-1), 1e-9)


# BoTorch fits several outcomes one by one, which a shared warp's parameters do not allow.
@pytest.mark.parametrize(("m", "transform"), [(1, lambda: Warp(d=D, indices=[0])), (2, lambda: Normalize(D))])
def test_the_fit_is_that_of_single_task_gp(m, transform):
    X = cube(12, 4)
    models = [
        cls(X, positive(X, m), input_transform=transform(), outcome_transform=Log())
        for cls in (SingleTaskGP, DerivedGP)
    ]
    for model in models:
        fit_gpytorch_mll(
            ExactMarginalLogLikelihood(model.likelihood, model), optimizer_kwargs={"options": {"maxiter": 15}}
        )
    for theirs, ours in zip(models[0].parameters(), models[1].parameters(), strict=True):
        assert_close(ours, theirs, 1e-6)


def value_covariance(model, x1, x2):
    """cov(f(x), f(x')) by BoTorch's joint posterior of the two points."""
    return model.posterior(torch.stack([x1, x2])).distribution.covariance_matrix[0, 1]


@pytest.mark.parametrize("name", SMOOTH)
def test_gradients_through_elementwise_transforms(name):
    """The mean is the derivative of BoTorch's mean, the covariance the mixed derivative of BoTorch's covariance."""
    X, Xq = cube(8, 1), cube(2, 2)
    options = {"input_transform": SMOOTH[name](), "variance": 1e-3}
    reference, model = made(SingleTaskGP, X, positive(X), **options), made(DerivedGP, X, positive(X), **options)
    gradient = model.gradient_posterior(Xq)
    for j, x in enumerate(Xq):
        slope = torch.autograd.functional.jacobian(lambda x: reference.posterior(x.unsqueeze(0)).mean.squeeze(), x)
        assert_close(gradient.mean[j], slope, 1e-8)
        step = 1e-4
        for i in range(D):
            for k in range(D):
                ei, ek = step * torch.eye(D, dtype=F64)[i], step * torch.eye(D, dtype=F64)[k]
                # The mixed derivative between two points, where the kernel is smooth.
                other = Xq[1 - j]
                differences = sum(
                    s * t * value_covariance(reference, x + s * ei, other + t * ek) for s in (1, -1) for t in (1, -1)
                )
                row, column = j * D + i, (1 - j) * D + k
                assert abs(gradient.joint_covariance()[row, column] - differences / (4 * step**2)) < 2e-4
    # Everything else follows from mean and joint covariance by definition.
    joint = gradient.joint_covariance()
    blocks = torch.stack([joint[j * D : (j + 1) * D, j * D : (j + 1) * D] for j in range(2)])
    assert_close(gradient.covariance_matrix, blocks, 1e-9)
    assert_close(gradient.variance, torch.diagonal(blocks, dim1=-2, dim2=-1), 1e-9)
    assert_close(gradient.trace, gradient.variance.sum(-1), 1e-12)
    assert_close(gradient.spectral_norm, torch.linalg.eigvalsh(blocks)[:, -1], 1e-9)
    u = torch.tensor([0.3, -1.0, 0.5], dtype=F64)
    assert_close(gradient.directional_variance(u), u @ blocks @ u, 1e-9)
    full = model.joint_posterior(Xq)
    rows = [1, 2, 3, 5, 6, 7]
    assert_close(full.mean[:, 1:], gradient.mean, 1e-12)
    assert_close(full.distribution.covariance_matrix[rows][:, rows], joint, 1e-9)
    across = model.value_gradient_covariance(Xq, Xq)
    assert_close(full.distribution.covariance_matrix[0::4][:, rows].reshape(2, 2, D), across, 1e-9)
    ignorant = {"input_transform": SMOOTH[name](), "outcome_transform": None, "variance": 1e8}
    prior = made(DerivedGP, X, positive(X), **ignorant)
    scale = model.outcome_scale.square()
    assert_close(gradient.prior_trace, scale * prior.gradient_posterior(Xq).trace, 1e-5)


@pytest.mark.parametrize("q", [1, 2])
def test_samples_through_a_transform_have_its_covariance(q):
    model = made(DerivedGP, cube(8, 1), positive(cube(8, 1)), input_transform=warp())
    gradient = model.gradient_posterior(cube(q, 2))
    numbers = gradient.base_sample_shape.numel()
    base = torch.eye(numbers, dtype=F64).reshape(numbers, *gradient.base_sample_shape)
    factor = (gradient.rsample_from_base_samples(torch.Size([numbers]), base) - gradient.mean).reshape(numbers, -1)
    assert_close(factor.mT @ factor, gradient.joint_covariance(), 1e-7)


def test_a_batch_of_warps():
    X = cube(6, 1)
    together = Warp(d=D, indices=[0, 1, 2], batch_shape=torch.Size([2]))
    concentrations = torch.tensor([[[0.7, 1.0, 1.4]], [[2.0, 0.9, 1.1]]], dtype=F64)
    together._set_concentration(0, concentrations)
    batch = X.expand(2, 6, D)
    model = made(DerivedGP, batch, positive(batch), input_transform=together)
    gradient = model.gradient_posterior(cube(2, 2))
    for b in range(2):
        alone = Warp(d=D, indices=[0, 1, 2])
        alone._set_concentration(0, concentrations[b, 0])
        one = DerivedGP(X, positive(X), input_transform=alone)
        for module in ("covar_module", "mean_module", "likelihood"):
            for ours, theirs in zip(
                getattr(one, module).parameters(), getattr(model, module).parameters(), strict=True
            ):
                ours.data = theirs.data[b].reshape(ours.shape).clone()
        expected = one.gradient_posterior(cube(2, 2))
        assert_close(gradient.mean[b], expected.mean, 1e-9)
        assert_close(gradient.covariance_matrix[b], expected.covariance_matrix, 1e-9)


def test_a_warp_that_changes_in_evaluation_is_seen():
    """The data are transformed anew: BoTorch keeps what the old warp made of them until the next training mode."""
    X, Xq = cube(8, 1), cube(2, 2)
    model = made(DerivedGP, X, positive(X), input_transform=warp())
    _ = model.gradient_posterior(Xq).mean, model.posterior(Xq).mean
    model.input_transform._set_concentration(0, torch.tensor([1.1, 1.9], dtype=F64))
    anew = made(SingleTaskGP, X, positive(X), input_transform=warp())
    anew.train()
    anew.input_transform._set_concentration(0, torch.tensor([1.1, 1.9], dtype=F64))
    anew.eval()
    x = Xq.clone().requires_grad_(True)
    mean = anew.posterior(x).mean
    assert_close(model.posterior(Xq).mean, mean.detach(), 1e-9)
    assert_close(model.gradient_posterior(Xq).mean, torch.autograd.grad(mean.sum(), x)[0], 1e-8)


@pytest.mark.parametrize(("name", "m"), [*((name, 1) for name in NONLINEAR), ("log", 2)])
def test_gradients_through_nonlinear_outcome_transforms(name, m):
    """Samples are g'(h)∇h, with h and ∇h sampled by a model of the transformed outcomes and g' by differences."""
    X = cube(8, 1)
    model = made(DerivedGP, X, positive(X, m), outcome_transform=NONLINEAR[name]())
    hidden = made(DerivedGP, X, model.outcome_transform(positive(X, m))[0].detach(), outcome_transform=None)
    Xq = cube(2, 2)
    posterior = model.transformed_gradient_posterior(Xq)
    base = torch.randn(5, *posterior.base_sample_shape, generator=generator(4), dtype=F64)
    samples = posterior.rsample_from_base_samples(torch.Size([5]), base)
    joint = hidden.joint_posterior(Xq).rsample_from_base_samples(torch.Size([5]), base)
    value, slope = joint[..., 0], joint[..., 1:]
    if m == 2:
        value, slope = value.mT, slope.transpose(-3, -2)
    else:
        value = value.unsqueeze(-1)

    def undone(h):
        return model.outcome_transform.untransform(h)[0]

    factor = (undone(value + 1e-6) - undone(value - 1e-6)) / 2e-6
    expected = slope * (factor.unsqueeze(-1) if m == 2 else factor)
    assert samples.shape == (5, 2, m, D) if m == 2 else (5, 2, D)
    assert_close(samples, expected, 1e-6)
    mean = hidden.posterior(Xq).mean
    factor = (undone(mean + 1e-6) - undone(mean - 1e-6)) / 2e-6
    gradient = hidden.gradient_posterior(Xq).mean
    assert_close(posterior.delta_method_mean, gradient * (factor.unsqueeze(-1) if m == 2 else factor), 1e-6)
    for moment in ("mean", "variance"):
        with pytest.raises(NotImplementedError, match="delta_method_mean, or the moments of samples"):
            getattr(posterior, moment)


def test_samples_through_a_logarithm_have_the_gradient_of_the_mean_as_their_mean():
    """E∇f = ∇E f, and BoTorch knows E f for ``Log``."""
    X, Xq = cube(8, 1), cube(1, 2)
    model = made(DerivedGP, X, positive(X), outcome_transform=Log())
    x = Xq.clone().requires_grad_(True)
    (expected,) = torch.autograd.grad(model.posterior(x).mean.sum(), x)
    samples = model.transformed_gradient_posterior(Xq).rsample(torch.Size([200_000]), generator(9)).squeeze(-2)
    error = samples.std(0) / len(samples) ** 0.5
    assert bool(((samples.mean(0) - expected.squeeze(0)).abs() < 4 * error).all())


ASKED = ("mean", "trace", "prior_trace", "variance", "covariance_matrix", "spectral_norm")


def outcome(model, j):
    """The model of one of the outcomes."""
    return model.subset_output([j])


@pytest.mark.parametrize("batch", [(), (2,)], ids=["", "batch"])
@pytest.mark.parametrize("transform", [None, lambda: Normalize(D), warp], ids=["plain", "normalize", "warp"])
def test_several_outcomes_are_independent_models(batch, transform):
    X, Xq = cube(7, 1, batch), cube(2, 2)
    options = {} if transform is None else {"input_transform": transform()}
    Y = positive(X, 3) * torch.tensor([1.0, 20.0, 0.1])
    model = made(DerivedGP, X, Y, **options)
    theirs = made(SingleTaskGP, X, Y, **options)
    assert_close(model.posterior(Xq).mean, theirs.posterior(Xq).mean, 1e-9)
    assert_close(model.posterior(Xq).variance, theirs.posterior(Xq).variance, 1e-8)
    gradient = model.gradient_posterior(Xq)
    assert gradient.mean.shape == (*batch, 2, 3, D)
    assert gradient.rsample(torch.Size([4])).shape == (4, *batch, 2, 3, D)
    x = Xq.clone().requires_grad_(True)
    u = torch.randn(2, 3, D, generator=generator(3), dtype=F64)
    for j in range(3):
        total = theirs.posterior(x).mean[..., j].sum()
        slope = torch.autograd.grad(total, x)[0]
        assert_close(gradient.mean[..., j, :].reshape(-1, 2, D).sum(0), slope, 1e-8)
        one = outcome(model, j).gradient_posterior(Xq)
        for name in ASKED:
            several = getattr(gradient, name)
            assert_close(several.select(len(batch) + 1, j), getattr(one, name), 1e-9)
        assert_close(gradient.directional_variance(u)[..., j], one.directional_variance(u[:, j]), 1e-9)
        assert_close(gradient.descent_probability()[..., j], one.descent_probability(), 1e-9)
        assert_close(gradient.joint_covariance().select(len(batch), j), one.joint_covariance(), 1e-9)
        both = model.joint_posterior(Xq), outcome(model, j).joint_posterior(Xq)
        assert_close(both[0].mean.select(len(batch), j), both[1].mean, 1e-9)
        across = model.value_gradient_covariance(Xq, cube(1, 5))
        assert_close(across.select(len(batch), j), outcome(model, j).value_gradient_covariance(Xq, cube(1, 5)), 1e-9)


@pytest.mark.parametrize("q", [1, 2])
def test_samples_of_several_outcomes(q):
    model = made(DerivedGP, cube(8, 1), positive(cube(8, 1), 2))
    gradient = model.gradient_posterior(cube(q, 2))
    numbers = gradient.base_sample_shape.numel()
    base = torch.eye(numbers, dtype=F64).reshape(numbers, *gradient.base_sample_shape)
    deviation = gradient.rsample_from_base_samples(torch.Size([numbers]), base) - gradient.mean
    factor = deviation.transpose(-3, -2).reshape(numbers, -1)
    assert_close(factor.mT @ factor, torch.block_diag(*gradient.joint_covariance()), 1e-7)
    sampled = SobolQMCNormalSampler(torch.Size([4]), seed=0)(gradient)
    assert sampled.shape == (4, q, 2, D)


@pytest.mark.parametrize("fixed", [False, True])
@pytest.mark.parametrize("transform", [lambda: Normalize(D, bounds=torch.tensor([[0.0] * 3, [2.0] * 3])), warp])
def test_several_outcomes_grow(fixed, transform):
    X, Y = cube(7, 1), positive(cube(7, 1), 2)
    new, values = cube(2, 3), positive(cube(2, 3), 2)
    variances = torch.full_like(values, 1e-3) if fixed else None
    options = {"variance": 1e-3 if fixed else None, "outcome_transform": None, "input_transform": transform()}
    grown = made(DerivedGP, X, Y, **options)
    grown.add_observations(new, values, variances)
    whole = made(DerivedGP, torch.cat([X, new]), torch.cat([Y, values]), **options)
    conditioned = made(DerivedGP, X, Y, **options).condition_on_observations(new, values, noise=variances)
    for model in (grown, conditioned):
        assert_close(model.gradient_posterior(cube(2, 5)).mean, whole.gradient_posterior(cube(2, 5)).mean, 1e-8)
        assert_close(model.gradient_posterior(cube(2, 5)).trace, whole.gradient_posterior(cube(2, 5)).trace, 1e-8)
        assert_close(model.posterior(cube(2, 5)).mean, whole.posterior(cube(2, 5)).mean, 1e-8)
    grown.train()
    assert grown.train_inputs[0].shape == (2, 9, D)
    assert_close(grown.train_inputs[0][0], torch.cat([X, new]), 1e-12)


def test_fantasies_of_several_outcomes():
    X, Y = cube(7, 1), positive(cube(7, 1), 2)
    models = [made(cls, X, Y) for cls in (SingleTaskGP, DerivedGP)]
    fantasies = []
    for model in models:
        model.posterior(X)
        fantasies.append(model.fantasize(cube(2, 3), SobolQMCNormalSampler(torch.Size([4]), seed=1)))
    assert_close(fantasies[1].posterior(cube(3, 5)).mean, fantasies[0].posterior(cube(3, 5)).mean, 1e-7)
    gradient = fantasies[1].gradient_posterior(cube(3, 5))
    assert gradient.mean.shape == (4, 3, 2, D)
    x = cube(3, 5).requires_grad_(True)
    for f in range(4):
        (slope,) = torch.autograd.grad(fantasies[0].posterior(x).mean[f, :, 1].sum(), x)
        assert_close(gradient.mean[f, :, 1], slope, 1e-6)


def test_fantasies_of_no_point():
    """BoTorch's empty fantasies: nothing is learned, and the shapes are those of the samples."""
    model = made(DerivedGP, cube(7, 1), positive(cube(7, 1)))
    before = model.gradient_posterior(cube(2, 5))
    fantasy = model.fantasize(torch.empty(0, D, dtype=F64), SobolQMCNormalSampler(torch.Size([3]), seed=1))
    assert_close(fantasy.gradient_posterior(cube(2, 5)).mean, before.mean.expand(3, 2, D), 1e-9)
    assert_close(fantasy.gradient_posterior(cube(2, 5)).trace, before.trace.expand(3, 2), 1e-9)


@pytest.mark.parametrize("m", [1, 2])
@pytest.mark.parametrize("q", [(0,), (2, 0)])
@pytest.mark.parametrize("name", ["stationary", "sum"])
def test_no_points(m, q, name):
    covariance = kernel() if name == "stationary" else kernel() + ScaleKernel(RBFKernel())
    model = DerivedGP(cube(5, 1), positive(cube(5, 1), m), covar_module=covariance)
    X = torch.empty(*q, D, dtype=F64)
    shape = (*q, m) if m > 1 else q
    assert model.posterior(X).mean.shape == (*q, m)
    gradient = model.gradient_posterior(X)
    for ask in ASKED:
        trailing = {"mean": (D,), "variance": (D,), "covariance_matrix": (D, D)}.get(ask, ())
        assert getattr(gradient, ask).shape == (*shape, *trailing)
    assert gradient.rsample(torch.Size([4])).shape == (4, *shape, D)
    assert gradient.directional_variance(torch.ones(D, dtype=F64)).shape == shape
    assert gradient.descent_probability().shape == shape
    assert model.value_gradient_covariance(cube(2, 3), X).numel() == 0
    assert model.transformed_gradient_posterior(X).rsample(torch.Size([4])).shape == (4, *shape, D)
    assert model.transformed_gradient_posterior(X).delta_method_mean.shape == (*shape, D)


def test_masked_fantasies_in_a_list():
    X = cube(7, 1)
    lists = []
    for cls in (SingleTaskGP, DerivedGP):
        members = [made(cls, X, positive(X, 2)[:, j : j + 1]) for j in range(2)]
        both = ModelListGP(*members)
        both.posterior(X)
        mask = torch.tensor([[True, False], [False, True], [True, True]])
        samplers = ListSampler(*(SobolQMCNormalSampler(torch.Size([4]), seed=seed) for seed in (1, 2)))
        lists.append(both.fantasize(cube(3, 3), samplers, evaluation_mask=mask))
    theirs, ours = lists
    assert_close(ours.posterior(cube(2, 5)).mean, theirs.posterior(cube(2, 5)).mean, 1e-7)
    assert [len(model.train_targets[0]) for model in ours.models] == [9, 9]
    assert ours.models[0].gradient_posterior(cube(2, 5)).mean.shape == (4, 2, D)


def test_representations():
    X = cube(6, 1)
    assert repr(DerivedGP(X, positive(X)).gradient_posterior(X[:2])) == (
        "GradientPosterior(2 x 3, torch.float64, cpu; outcome per unit of input; given n = 6 values)"
    )
    assert "4 x 2 x 2 x 3" in repr(DerivedGP(X, positive(X, 2)).gradient_posterior(cube(2, 1, (4,))))
    assert "not Gaussian through Log" in repr(
        DerivedGP(X, positive(X), outcome_transform=Log()).transformed_gradient_posterior(X)
    )


@pytest.mark.parametrize("m", [1, 2])
@pytest.mark.parametrize("ask", ["gradient_posterior", "hessian_posterior", "transformed_gradient_posterior"])
def test_a_posterior_keeps_the_points_that_it_was_made_for(m, ask):
    model = made(DerivedGP, cube(6, 1), positive(cube(6, 1), m))
    X = cube(2, 2)
    late, early = getattr(model, ask)(X), getattr(model, ask)(X)
    name = "delta_method_mean" if ask.startswith("transformed") else "mean"
    before = getattr(early, name).clone()
    X += 0.1
    assert_close(getattr(late, name), before, 1e-12)


@pytest.mark.parametrize("m", [1, 2])
def test_a_warp_is_differentiated_in_its_parameters_and_in_the_data_where_asked(m):
    """Under ``propagate_grads``, against differences; BoTorch itself transforms the data without derivatives."""
    X, Xq, transform = cube(6, 1), cube(2, 2), warp()
    model = made(DerivedGP, X, positive(X, m), input_transform=transform, variance=1e-3)
    shape = model.gradient_posterior(Xq).mean.shape
    weights = torch.randn(shape, generator=generator(8), dtype=F64)

    def number():
        gradient = model.gradient_posterior(Xq)
        return (weights * gradient.mean).sum() + gradient.trace.sum()

    leaves = [transform.concentration0, transform.concentration1, *model.covar_module.parameters()]
    with settings.propagate_grads(True):
        slopes = torch.autograd.grad(number(), leaves)
    for leaf, slope in zip(leaves, slopes, strict=True):
        flat = leaf.data.view(-1)
        for i in range(flat.numel()):
            value, ends = flat[i].item(), []
            for end in (value + 1e-5, value - 1e-5):
                flat[i] = end
                ends.append(number().item())
            flat[i] = value
            assert_close(slope.reshape(-1)[i], torch.tensor((ends[0] - ends[1]) / 2e-5, dtype=F64), 1e-5)
