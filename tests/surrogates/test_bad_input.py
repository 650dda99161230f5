"""Bad input: a clear error at the public boundary, and the model as it was."""

import warnings

import gpytorch
import pytest
import torch
from botorch.models.transforms import Bilog, Log, Normalize, Round, Standardize
from botorch.models.transforms.input import ChainedInputTransform, FilterFeatures, InputPerturbation
from botorch.models.transforms.outcome import ChainedOutcomeTransform, Power
from gpytorch.kernels import IndexKernel, MultitaskKernel, RBFKernel, RBFKernelGrad, ScaleKernel
from gpytorch.utils.warnings import NumericalWarning

from surrogates import (
    DerivedGP,
    NotPositiveDefiniteError,
    UnsupportedKernelError,
    gaussian_likelihood,
    kernel_blocks,
    matern_kernel,
    rbf_kernel,
)
from tests.surrogates.gp_models import D, derived_gp, kernel_named, outcomes, points
from tests.surrogates.reference import assert_close

X, Y, XQ = points(5), outcomes(points(5)), points(2, seed=8)
YVAR = torch.full_like(Y, 0.01)


def test_a_likelihood_is_no_number():
    with pytest.raises(TypeError, match=r"likelihood must be .* got float; surrogates.gaussian_likelihood\(noise\)"):
        DerivedGP(X, Y, likelihood=1e-6)


def with_entry(tensor, value):
    changed = tensor.clone()
    changed[1, 0] = value
    return changed


DATA = {
    "list": ((X.tolist(), Y), TypeError, "train_X must be a torch.Tensor, got list"),
    "integers": ((X.long(), Y), TypeError, r"train_X must be floating point \(float64 is best\), got torch.int64"),
    "one dimension": ((X[:, 0], Y), ValueError, r"train_X must be of shape batch x n x d.*got \(5,\)"),
    "no inputs": ((X[:, :0], Y), ValueError, r"train_X must be .* with d >= 1, got \(5, 0\)"),
    "empty": ((X[:0], Y[:0]), ValueError, r"no observations \(shape \(0, 3\)\)"),
    "unequal n": (
        (X, Y[:4]),
        ValueError,
        r"train_Y must be of shape \(5, 1\) for train_X of shape \(5, 3\), got \(4, 1\)",
    ),
    "flat outcomes": ((X, Y[:, 0]), ValueError, r"train_Y must be of shape \(5, 1\).*got \(5,\)"),
    "no outcome": ((X, Y[:, :0]), ValueError, r"train_Y must be of shape \(5, 1\).*got \(5, 0\)"),
    "batches differ": ((X, Y.expand(2, 5, 1)), ValueError, r"train_Y must be of shape \(5, 1\)"),
    "variances of another n": ((X, Y, YVAR[:4]), ValueError, r"train_Yvar must be of shape \(5, 1\).*got \(4, 1\)"),
    "nan": ((with_entry(X, torch.nan), Y), ValueError, "train_X holds 1 entries that are NaN or inf"),
    "inf": (
        (X, with_entry(Y, torch.inf)),
        ValueError,
        "train_Y holds 1 infinite entries; use NaN for entries that were not observed",
    ),
    "no value": ((X, Y * torch.nan), ValueError, r"train_Y is NaN in every row for the outcomes \[0\]"),
    "both infinities": ((with_entry(with_entry(X, torch.inf).flip(0), -torch.inf), Y), ValueError, "train_X holds 2"),
    "nan variance": (
        (X, Y, with_entry(YVAR, torch.nan)),
        ValueError,
        "train_Yvar holds 1 entries that are infinite, or NaN although",
    ),
    "negative variance": ((X, Y, with_entry(YVAR, -0.5)), ValueError, "train_Yvar must be non-negative.*is -0.5"),
    "mixed dtypes": ((X, Y.float()), ValueError, "train_Y is torch.float32 on cpu but train_X is torch.float64 on cpu"),
    "mixed devices": ((X, Y.to("meta")), ValueError, "train_Y is torch.float64 on meta but train_X is .* on cpu"),
}


@pytest.mark.parametrize("case", DATA)
def test_training_data(case):
    data, error, message = DATA[case]
    with pytest.raises(error, match=message):
        DerivedGP(*data)


KERNELS = {
    "several outputs": (MultitaskKernel(RBFKernel(), num_tasks=2), UnsupportedKernelError, "has several outputs"),
    "no kernel": ("rbf", UnsupportedKernelError, "str is not a GPyTorch kernel"),
    "lengthscales": (RBFKernel(ard_num_dims=2), ValueError, "has 2 lengthscales for 3 inputs; accepted are 1 and 3"),
    "lengthscales in a product": (
        RBFKernel() * ScaleKernel(RBFKernel(ard_num_dims=3, active_dims=[0, 2])),
        ValueError,
        "has 3 lengthscales for 2 inputs",
    ),
    "active_dims": (ScaleKernel(RBFKernel(active_dims=[0, 3])), ValueError, r"must be in \[0, 3\), got \[0, 3\]"),
    "of gradients": (
        ScaleKernel(RBFKernelGrad()),
        TypeError,
        "RBFKernelGrad is .*RBFKernel .*GradientObservationGP",
    ),
}


@pytest.mark.parametrize("case", KERNELS)
def test_kernels(case):
    kernel, error, message = KERNELS[case]
    with pytest.raises(error, match=message):
        DerivedGP(X, Y, covar_module=kernel)


TRANSFORMS = {
    "round": ({"input_transform": Round(integer_indices=[0])}, "Round, which is constant between its steps"),
    "in a chain": (
        {"input_transform": ChainedInputTransform(a=Normalize(3), b=FilterFeatures(torch.tensor([0, 2])))},
        "FilterFeatures, which is not known to be elementwise .* Use Normalize",
    ),
    "perturbation": (
        {"input_transform": InputPerturbation(torch.zeros(2, 3, dtype=torch.float64))},
        "InputPerturbation, which is not known to be elementwise",
    ),
    "log": ({"outcome_transform": Log()}, "Log is not linear, .*the gradient is not Gaussian"),
    "bilog": ({"outcome_transform": Bilog()}, "Bilog is not linear, .*transformed_gradient_posterior"),
    "power in a chain": (
        {"outcome_transform": ChainedOutcomeTransform(a=Standardize(1), b=Power(power=2.0))},
        "ChainedOutcomeTransform is not linear",
    ),
}


@pytest.mark.parametrize("case", TRANSFORMS)
@pytest.mark.parametrize("ask", ["gradient_posterior", "joint_posterior"])
def test_transforms_through_which_no_gradient_is_gaussian(case, ask):
    options, message = TRANSFORMS[case]
    gp = DerivedGP(X.abs() + 1, Y.abs() + 1, **options)
    assert gp.posterior(XQ).rsample().shape[-1] == 1
    with pytest.raises(ValueError, match=message):
        getattr(gp, ask)(XQ)


ASKS = ["posterior", "gradient_posterior", "joint_posterior", "value_gradient_covariance"]
POINTS = {
    "another d": (XQ[:, :2], ValueError, r"X must be of shape batch x q x 3 .*got \(2, 2\)"),
    "one dimension": (XQ[0], ValueError, r"one point is 1 x 3\), got \(3,\)"),
    "nan": (with_entry(XQ, torch.nan), ValueError, "X holds 1 entries that are NaN or inf"),
    "another dtype": (XQ.float(), ValueError, "X is torch.float32 on cpu but the model is torch.float64"),
    "another device": (XQ.to("meta"), ValueError, "X is torch.float64 on meta but the model is .* on cpu"),
    "array": (XQ.numpy(), TypeError, "X must be a torch.Tensor, got ndarray"),
}


@pytest.mark.parametrize("ask", ASKS)
@pytest.mark.parametrize("case", POINTS)
@pytest.mark.parametrize("trained", [False, True])
def test_points(ask, case, trained):
    gp = derived_gp(input_transform=Normalize(D))
    if trained:
        gp.gradient_posterior(XQ).trace
    Xq, error, message = POINTS[case]
    if (ask, case) == ("posterior", "another dtype"):  # a narrower one, which BoTorch takes too
        assert_close(gp.posterior(Xq).mean, gp.posterior(Xq.double()).mean, 1e-15)
        return
    with pytest.raises(error, match=message):
        getattr(gp, ask)(*((Xq, XQ) if ask == "value_gradient_covariance" else (Xq,)))


def test_points_of_a_wider_dtype():
    gp = DerivedGP(X.float(), Y.float())
    with pytest.raises(ValueError, match=r"X is torch\.float64 on cpu but the model is torch\.float32"):
        gp.posterior(XQ)


class Unchanged:
    """The model's data, numbers and mode, before and after."""

    def __init__(self, model):
        self.model = model
        self.before = self.now()

    def now(self):
        model = self.model
        posterior = model.gradient_posterior(XQ)
        return posterior.mean, posterior.variance, model.posterior(XQ).mean.detach(), model.train_targets

    def check(self):
        for a, b in zip(self.now(), self.before, strict=True):
            assert torch.equal(a, b)
        gp = self.model
        gp.train()
        n = gp.train_targets.shape[-1]
        assert gp.train_inputs[0].shape[-2] == n
        gp(*gp.train_inputs)
        gp.eval()
        assert_close(gp.gradient_posterior(XQ).mean, self.before[0], 1e-13)


NEW = {
    "another d": ((XQ[:, :2], outcomes(XQ)), {}, ValueError, r"X must be of shape n' x 3, got \(2, 2\)"),
    "another batch": ((XQ.expand(2, 2, 3), outcomes(XQ.expand(2, 2, 3))), {}, ValueError, r"n' x 3, got \(2, 2, 3\)"),
    "unequal m": ((XQ, outcomes(XQ)[:1]), {}, ValueError, r"Y must be of shape \(2, 1\) for X of shape"),
    "nan": ((XQ, with_entry(outcomes(XQ), torch.inf)), {}, ValueError, "Y holds 1 infinite entries"),
    "dtype": ((XQ.float(), outcomes(XQ).float()), {}, ValueError, "X is torch.float32 on cpu but the model"),
    "no points": ((XQ[:0], outcomes(XQ)[:0]), {}, ValueError, "X holds no observations"),
    "needless variance": ((XQ, outcomes(XQ)), {"Yvar": YVAR[:2]}, ValueError, "infers its noise.*Yvar is not accepted"),
}


@pytest.mark.parametrize("case", NEW)
@pytest.mark.parametrize("transformed", [False, True])
def test_new_observations_leave_the_model_as_it_was(case, transformed):
    arguments, options, error, message = NEW[case]
    gp = derived_gp(input_transform=Normalize(D) if transformed else None)
    gp.add_observations(X[:1] + 0.1, Y[:1])
    state = Unchanged(gp)
    with pytest.raises(error, match=message):
        gp.add_observations(*arguments, **options)
    state.check()


def test_new_observations_of_a_model_with_given_noise():
    gp = DerivedGP(X, Y, YVAR)
    state = Unchanged(gp)
    with pytest.raises(ValueError, match="made with train_Yvar: new observations need Yvar"):
        gp.add_observations(XQ, outcomes(XQ))
    with pytest.raises(ValueError, match="Yvar must be non-negative"):
        gp.add_observations(XQ, outcomes(XQ), -YVAR[:2])
    with pytest.raises(ValueError, match=r"need noise= in transformed units"):
        gp.condition_on_observations(XQ, outcomes(XQ))
    with pytest.raises(ValueError, match=r"Y must be of shape batch x 2 x 1 for X of shape \(2, 3\), got \(1, 1\)"):
        gp.condition_on_observations(XQ, outcomes(XQ)[:1], noise=YVAR[:2])
    state.check()


def test_directions():
    posterior = derived_gp().gradient_posterior(XQ)
    for u, error, message in (
        ([1.0, 0.0, 0.0], TypeError, "u must be a torch.Tensor, got list"),
        (XQ[:, :2], ValueError, r"u of shape \(2, 2\) does not broadcast to \(2, 3\)"),
        (with_entry(XQ, torch.nan), ValueError, "u holds 1 entries"),
    ):
        with pytest.raises(error, match=message):
            posterior.directional_variance(u)


def test_points_where_the_gradient_is_asked_for():
    with pytest.raises(ValueError, match=r"X_gradient must be of shape batch x q x 3 .*got \(2, 2\)"):
        derived_gp().value_gradient_covariance(XQ, XQ[:, :2])


def test_conditioning_on_bad_observations_leaves_the_model_as_it_was():
    gp = derived_gp(input_transform=Normalize(D))
    state = Unchanged(gp)
    for bad, message in (
        ((XQ[:, :2], outcomes(XQ)), "got \\(2, 2\\)"),
        ((with_entry(XQ, torch.nan), outcomes(XQ)), "X holds 1"),
        ((XQ, with_entry(outcomes(XQ), torch.inf)), "Y holds 1"),
        ((XQ.float(), outcomes(XQ).float()), "torch.float32"),
    ):
        with pytest.raises(ValueError, match=message):
            gp.condition_on_observations(*bad)
    state.check()


@pytest.mark.parametrize("parameter", ["lengthscale", "outputscale"])
def test_hyperparameters_that_are_not_positive(parameter):
    kernel = matern_kernel(1.0)
    gp = derived_gp(kernel)
    gp.gradient_posterior(XQ).mean
    owner = kernel if parameter == "outputscale" else kernel.base_kernel
    good = getattr(owner, parameter).detach().clone()
    with pytest.raises(RuntimeError, match="out of bounds of its current constraints"):
        setattr(owner, parameter, -torch.ones_like(good))  # GPyTorch's own check
    getattr(owner, f"raw_{parameter}").data.fill_(torch.nan)
    for ask in ASKS[:3]:
        with pytest.raises(ValueError, match=rf"kernel's {parameter} must be finite and positive, got \[nan\]"):
            getattr(gp, ask)(XQ)
    with pytest.raises(ValueError, match=rf"kernel's {parameter} must be finite and positive"):
        DerivedGP(X, Y, covar_module=kernel)
    setattr(owner, parameter, good)
    assert gp.gradient_posterior(XQ).mean.isfinite().all()


def test_noise_that_is_not_positive():
    gp = derived_gp()
    gp.likelihood.noise_covar.raw_noise.data.fill_(torch.nan)
    for ask in ASKS[:3]:
        with pytest.raises(ValueError, match="noise must be finite and non-negative, got nan"):
            getattr(gp, ask)(XQ)


@pytest.mark.parametrize("build", [matern_kernel, rbf_kernel])
def test_given_hyperparameters(build):
    for bad in (0.0, -1.0, float("nan"), float("inf"), torch.tensor([1.0, -2.0])):
        with pytest.raises(ValueError, match="lengthscale must be finite and positive, got"):
            build(bad)
        if not isinstance(bad, torch.Tensor):
            with pytest.raises(ValueError, match="outputscale must be finite and positive, got"):
                build(1.0, bad)
    with pytest.raises(ValueError, match=r"nu must be 0.5, 1.5 or 2.5, got 2"):
        matern_kernel(1.0, nu=2)
    with pytest.raises(TypeError, match="lengthscale must be a number or a tensor, got 'one'"):
        build("one")
    with pytest.raises(ValueError, match=r"lengthscale must be one number or a vector.*got shape \(2, 3\)"):
        build(torch.ones(2, 3))
    for bad in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="noise must be finite and positive, got"):
            gaussian_likelihood(bad)
    with pytest.raises(ValueError, match="noise must be one number, got"):
        gaussian_likelihood(torch.ones(2))


def test_noise_under_gpytorch_s_floor_of_variances_is_kept_in_float32():
    single = DerivedGP(
        X.float(),
        Y.float(),
        covar_module=matern_kernel(1.0, dtype=torch.float32),
        likelihood=gaussian_likelihood(3e-8, dtype=torch.float32),
    )
    assert_close(single.observation_noise, torch.tensor(3e-8, dtype=torch.float64), 1e-3)


def test_given_hyperparameters_are_stored_in_full_precision():
    kernel = matern_kernel(torch.tensor([0.1, 0.3, 0.7], dtype=torch.float64), outputscale=0.8)
    assert_close(kernel.base_kernel.lengthscale[0], torch.tensor([0.1, 0.3, 0.7], dtype=torch.float64), 1e-15)
    assert_close(kernel.outputscale, torch.tensor(0.8, dtype=torch.float64), 1e-15)
    assert_close(gaussian_likelihood(1e-6).noise, torch.tensor([1e-6], dtype=torch.float64), 1e-9)
    assert not list(kernel.named_priors())


class Silent(gpytorch.likelihoods.GaussianLikelihood):
    """No noise at all."""

    def _shaped_noise_covar(self, base_shape, *params, **kwargs):
        return super()._shaped_noise_covar(base_shape, *params, **kwargs) * 0.0


def test_duplicates_without_noise_get_a_jitter_with_a_warning():
    twice = torch.cat([X, X[:2]])
    gp = DerivedGP(twice, outcomes(twice), covar_module=kernel_named("matern 5/2"), likelihood=Silent().double())
    with pytest.warns(NumericalWarning, match=r"7 observations is singular.*duplicate points.*jitter of 1e-10"):
        posterior = gp.gradient_posterior(XQ)
    once = DerivedGP(
        X, Y, covar_module=kernel_named("matern 5/2"), likelihood=gaussian_likelihood(1.01e-8), outcome_transform=None
    )
    once.set_train_data(targets=gp.outcome_transform(Y)[0].squeeze(-1))
    assert_close(posterior.mean, gp.outcome_scale * once.gradient_posterior(XQ).mean, 1e-5)
    assert (posterior.trace >= 0).all()


def test_a_duplicate_added_without_noise_is_refused_and_the_model_stays():
    gp = DerivedGP(X, Y, covar_module=kernel_named("matern 5/2"), likelihood=Silent().double())
    state = Unchanged(gp)
    with pytest.raises(NotPositiveDefiniteError, match="Remove duplicate points"):
        gp.add_observations(X[1:2], Y[1:2])
    state.check()
    gp.add_observations(XQ, outcomes(XQ))
    assert gp.train_targets.shape == (7,)


def test_conditioning_on_a_duplicate_without_noise_warns_or_refuses():
    gp = DerivedGP(X, Y, covar_module=kernel_named("matern 5/2"), likelihood=Silent().double())
    before = gp.gradient_posterior(XQ)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        after = gp.condition_on_observations(X[1:2], Y[1:2]).gradient_posterior(XQ)
    assert any(issubclass(w.category, NumericalWarning) for w in caught)
    assert_close(after.mean, before.mean, 1e-4)
    assert_close(after.trace, before.trace, 1e-4)


def test_kernel_blocks_name_what_they_do_not_know():
    with pytest.raises(UnsupportedKernelError, match="IndexKernel"):
        kernel_blocks(IndexKernel(num_tasks=3), X, X)


def test_a_mean_that_does_not_depend_on_the_points():
    class Level(gpytorch.means.Mean):
        def __init__(self, learned):
            super().__init__()
            if learned:
                self.level = torch.nn.Parameter(torch.tensor(0.3, dtype=torch.float64))
            self.learned = learned

        def forward(self, x):
            return (self.level if self.learned else 0.3) * torch.ones(x.shape[:-1], dtype=x.dtype)

    constant = derived_gp(mean_module=gpytorch.means.ConstantMean().double())
    constant.mean_module.constant.data.fill_(0.3)
    for learned in (False, True):
        found = derived_gp(mean_module=Level(learned)).gradient_posterior(XQ).mean
        assert_close(found, constant.gradient_posterior(XQ).mean, 1e-13)
