"""Calibration can fail where it should, and Fourier errors fall."""

import dataclasses

import pytest
import torch
from botorch.fit import fit_gpytorch_mll
from botorch.models import SingleTaskGP
from gpytorch.mlls import ExactMarginalLogLikelihood

from experiments import registry
from experiments.studies import calibration, fitted_bands, fourier_features
from optimizers.comparison.records import by_seed, curve, where
from surrogates import DerivedGP, rbf_kernel

SEEDS = range(4)


def _statuses(rows, settings):
    """The statuses of what is claimed where the prior is known."""
    fitted = {verdict.claim for verdict in fitted_bands.claims(rows)}
    return {v.claim: v.status for v in calibration.claims(settings, rows) if v.claim not in fitted}


@pytest.fixture
def settings():
    fitted = calibration.QUICK.fitted
    return calibration.Settings(kernels=("rbf",), dims=(2,), num_observations=(8,), functions=200, fitted=fitted)


def test_the_right_prior_is_calibrated(settings):
    rows = registry.get("calibration").run(settings, SEEDS)
    assert set(_statuses(rows, settings).values()) == {"reproduced"}


def test_a_wrong_prior_is_found_out(settings, monkeypatch):
    monkeypatch.setitem(calibration.KERNELS, "rbf", lambda lengthscale: rbf_kernel(2 * lengthscale))
    rows = registry.get("calibration").run(settings, SEEDS)
    statuses = _statuses(rows, settings)
    for claim, status in statuses.items():
        if "bands" in claim or "trace of its covariance" in claim or "Theorem 1" in claim:
            assert status != "reproduced", claim
        elif "Theorem 2" in claim:
            assert status == "reproduced", claim


def test_every_observation_is_counted(settings):
    rows = calibration.run_seed(settings, 0)
    trials = (max(settings.num_observations) - 1) * settings.points
    assert [row["value"] for row in rows if row["quantity"].startswith("trials")] == [trials] * 3
    traces = where(rows, quantity="trace")
    assert [row["num_observations"] for row in traces] == list(range(1, 9))
    assert all(0 < row["value"] < 1 for row in traces)


def _rows_of(settings, seed):
    generator = torch.Generator().manual_seed(seed)
    return fitted_bands.rows_of(settings, (0.5, 0.8, 0.95), 0.1, seed, generator)


def test_bands_of_the_prior_itself_are_counted_coordinate_by_coordinate(monkeypatch):
    """∂f/∂xⱼ ~ N(0, 1/ℓⱼ²); the weak coordinate's band is drawn far too wide."""
    settings = fitted_bands.Settings(lengthscales=(0.3, 0.6, 3.0), observations=1, points=2, functions=1000)

    def prior_bands(settings, noise_sd, X, Y, at, generator):
        variance = torch.tensor(settings.lengthscales, dtype=torch.float64) ** -2
        variance[-1] *= 1e4
        return {"known": (torch.zeros_like(at), variance.expand(at.shape))}

    monkeypatch.setattr(fitted_bands, "_bands", prior_bands)
    rows = [row for seed in SEEDS for row in _rows_of(settings, seed)]
    found = curve(rows, "level", coordinate="others")
    assert abs(found.mean - found.x).max() < 0.02
    assert (curve(rows, "level", coordinate="weak").mean > 0.98).all()


def test_known_hyper_parameters_are_those_of_the_draws(monkeypatch):
    monkeypatch.setattr(fitted_bands, "_fit", lambda model: model)
    settings = fitted_bands.Settings(points=4, functions=60, samples=1, warmup_steps=1)
    rows = [row for seed in SEEDS for row in _rows_of(settings, seed)]
    known = where(rows, hyperparameters="known", level=0.95)
    assert abs(by_seed(known).mean() - 0.95) < 0.02
    monkeypatch.setattr(fitted_bands, "rbf_kernel", lambda scales: rbf_kernel(3 * scales))
    wrong = [row for seed in SEEDS for row in _rows_of(settings, seed)]
    assert by_seed(where(wrong, hyperparameters="known", level=0.95)).mean() < 0.8
    # GPyTorch's initial hyper-parameters, as nothing was fitted: one lengthscale for all inputs misses the weak one.
    rest = by_seed(where(rows, hyperparameters="maximum_likelihood", coordinate="weak", level=0.95))
    assert (rest > by_seed(where(known, coordinate="weak"))).all()


def test_functions_are_fitted_together_as_they_are_one_by_one():
    X = torch.rand(20, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    Y = torch.stack([(4 * X[:, :1]).sin(), (X - 0.3).square().sum(-1, keepdim=True)])
    Y = Y + 0.1 * torch.randn(Y.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    together = DerivedGP(X.expand(2, *X.shape), Y)
    fitted_bands._fit(together)
    for i in range(2):
        one = SingleTaskGP(X, Y[i])
        fit_gpytorch_mll(ExactMarginalLogLikelihood(one.likelihood, one))
        found, expected = together.covar_module.lengthscale[i], one.covar_module.lengthscale
        torch.testing.assert_close(found, expected, rtol=0.02, atol=0)
        torch.testing.assert_close(together.likelihood.noise[i], one.likelihood.noise, rtol=0.02, atol=0)


def test_every_way_has_its_records():
    rows = _rows_of(fitted_bands.Settings(points=1, functions=2, samples=2, warmup_steps=1), 0)
    keys = {(row["hyperparameters"], row["coordinate"], row["level"]) for row in rows}
    assert len(keys) == len(rows) == len(fitted_bands.WAYS) * 2 * 3
    assert {way for way, _, _ in keys} == set(fitted_bands.WAYS)


@pytest.mark.parametrize("likeliest", [0.6, 0.94])
def test_what_is_claimed_of_fitted_bands_can_fail(likeliest):
    covered = {"known": 0.95, "maximum_likelihood": likeliest, "default_priors": 0.9, "averaged": 0.92}
    rows = [
        {"seed": seed, "hyperparameters": way, "coordinate": coordinate, "quantity": "fitted_coverage", "level": 0.95,
         "value": value + 0.001 * seed}
        for seed in SEEDS for way, value in covered.items() for coordinate in ("weak", "others")
    ]  # fmt: skip
    statuses = [verdict.status for verdict in fitted_bands.claims(rows)]
    failing = "reproduced" if likeliest == 0.6 else "not reproduced"
    assert statuses == ["reproduced", failing, failing, failing, "reproduced", "reproduced"]


def test_fourier_error_falls_with_features_and_vanishes_nowhere():
    settings = dataclasses.replace(
        fourier_features.Settings(), dims=(3,), separations=(1.0,), num_features=(100, 10000), num_data=20
    )
    rows = registry.get("fourier-features").run(settings, range(3))
    for kind in fourier_features.KINDS:
        few, many = (by_seed(rows, method=kind, num_features=M) for M in settings.num_features)
        assert (many < 0.5 * few).all() and (many > 1e-6).all()
