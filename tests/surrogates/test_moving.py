"""After ``to`` nothing that a model holds is of another dtype or elsewhere, and it holds nothing of the user's."""

import pytest
import torch
from botorch.cross_validation import loo_cv
from botorch.exceptions import UnsupportedError
from botorch.models.transforms.input import Log10, Normalize, Warp
from torch.distributions import Distribution

from surrogates import (
    DerivedGP,
    FourierFeatures,
    FourierSurrogate,
    GradientInformation,
    GradientObservationGP,
    matern_kernel,
    rbf_kernel,
    sample_hyperparameters,
)
from tests.surrogates.gp_models import D, derived_gp, generator, kernel_named, outcomes, points
from tests.surrogates.reference import assert_close

X, XQ = 0.5 + 0.5 * points(8), 0.5 + 0.4 * points(3, seed=5)
Y = outcomes(X)

MODELS = {
    "default": lambda: DerivedGP(X, Y, input_transform=Normalize(D)),
    "train_Yvar": lambda: DerivedGP(X, Y, torch.full_like(Y, 0.1), covar_module=kernel_named("sum")),
    "warped": lambda: DerivedGP(X.clamp(0.01, 0.99), Y, input_transform=Warp(D, [0, 1, 2])),
    "logarithms": lambda: DerivedGP(X + 0.1, torch.cat([Y, -Y], -1), input_transform=Log10([0, 1, 2])),
    "samples of hyper-parameters": lambda: sample_hyperparameters(
        DerivedGP(X, Y, input_transform=Normalize(D)), 2, generator(0), warmup_steps=1
    ),
    "observed gradients": lambda: GradientObservationGP(X, Y, X),
    "observed gradients, noise": lambda: GradientObservationGP(X, Y, X, 0 * Y + 0.1, 0 * X + 0.1),
}


def reachable(root):
    """All tensors that are reached from an object through attributes, items and closures, by their paths."""
    seen, found = set(), []

    def walk(value, path):
        if id(value) in seen or isinstance(value, type):
            return
        seen.add(id(value))
        if isinstance(value, torch.Tensor):
            found.append((path, value))
        elif isinstance(value, dict):
            [walk(item, f"{path}.{name}") for name, item in value.items()]
        elif isinstance(value, list | tuple | set):
            [walk(item, f"{path}[{i}]") for i, item in enumerate(value)]
        elif isinstance(value, Distribution) and not isinstance(value, torch.nn.Module):
            # The numbers of a prior keep their dtype in GPyTorch, too.
            [walk(item.to(torch.float32), f"{path}.{n}") for n, item in vars(value).items() if torch.is_tensor(item)]
        else:
            walk(getattr(value, "__dict__", None), path)
            for cell in getattr(value, "__closure__", None) or ():
                walk(cell.cell_contents, f"{path}()")

    walk(root, "")
    return found


def used(model):
    model.posterior(XQ)
    model.gradient_posterior(XQ).mean
    return model


@pytest.mark.parametrize("name", MODELS)
def test_a_model_is_moved_as_a_whole(name):
    model = used(MODELS[name]())
    expected = model.joint_posterior(XQ).mean
    model = model.to(torch.float32)
    floats = [(path, t.dtype) for path, t in reachable(model) if t.is_floating_point()]
    assert len(floats) > 4
    assert {dtype for _, dtype in floats} == {torch.float32}, [path for path, t in floats if t != torch.float32]
    assert_close(model.joint_posterior(XQ.float()).mean, expected, 1e-3)
    model = model.to("meta")
    assert {t.device.type for _, t in reachable(model)} == {"meta"}


def test_an_acquisition_function_is_moved_with_its_points():
    model = derived_gp()
    acquisition = GradientInformation(model, XQ[0], X_pending=XQ[1:2])
    expected = acquisition(XQ[:, None])
    acquisition.to(torch.float32)
    assert {t.dtype for _, t in reachable(acquisition) if t.is_floating_point()} == {torch.float32}
    assert_close(acquisition(XQ[:, None].float()), expected, 1e-2)


def test_nothing_is_shared_with_the_user():
    tensors = (X, Y, torch.full_like(Y, 0.1), X[:1], Y[:1], X[:, :1].expand(-1, D), XQ, XQ[0])
    arrays = [tensor.numpy().copy() for tensor in tensors]
    A, B, noise, more, value, G, at, target = (torch.from_numpy(array) for array in arrays)
    plain = DerivedGP(A, B, noise, covar_module=matern_kernel(1.0), outcome_transform=None)
    scaled = DerivedGP(A, B, input_transform=Normalize(D))
    given = GradientObservationGP(A, B, G)
    set_later = DerivedGP(torch.zeros_like(A), B, covar_module=matern_kernel(1.0))
    set_later.set_train_data(A, B[:, 0])
    fourier = FourierSurrogate(FourierFeatures(rbf_kernel(1.0), D, 4, seed=1), 1e-2).fit(A, B)
    scaled.add_observations(more, value)
    acquisition = GradientInformation(plain, target, X_pending=at[:1])
    models = (plain, scaled, set_later)
    posteriors = [m.gradient_posterior(at) for m in (*models, fourier)]

    def numbers():
        found = [p for m in (*models, given) for p in (m.posterior(XQ).mean, m.joint_posterior(XQ).variance)]
        found += [fourier.value(XQ), fourier.gradient(XQ), acquisition(XQ[:, None])]
        return found + [m.gradient_posterior(XQ).mean for m in (*models, given, fourier)]

    before = numbers()
    for array in arrays:
        array[:] = 0.5
    fourier.weights.zero_()
    for model in models:
        model._clear_cache()
    for then, now in zip(before, numbers(), strict=True):
        assert_close(now, then.detach(), 1e-9)
    for posterior, model in zip(posteriors, (*models, fourier), strict=True):
        assert_close(posterior.mean, model.gradient_posterior(XQ).mean, 1e-9)


def test_leaving_a_point_out_of_observed_gradients_is_refused_in_a_sentence():
    model = GradientObservationGP(X, Y, X)
    with pytest.raises(UnsupportedError, match="loo_cv does not support observed derivatives"):
        loo_cv(model)
    prior = model.train()(X)
    assert prior.mean.shape == (8 * (D + 1),)
