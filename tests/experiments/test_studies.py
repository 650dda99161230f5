"""Calibration can fail where it should, and Fourier errors fall."""

import dataclasses

import pytest

from experiments import registry
from experiments.harness.records import by_seed, where
from experiments.studies import calibration, fourier_features
from surrogates import rbf_kernel

SEEDS = range(4)


def _statuses(rows, settings):
    return {verdict.claim: verdict.status for verdict in calibration.claims(settings, rows)}


@pytest.fixture
def settings():
    return calibration.Settings(kernels=("rbf",), dims=(2,), num_observations=(8,), functions=200)


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


def test_fourier_error_falls_with_features_and_vanishes_nowhere():
    settings = dataclasses.replace(
        fourier_features.Settings(), dims=(3,), separations=(1.0,), num_features=(100, 10000), num_data=20
    )
    rows = registry.get("fourier-features").run(settings, range(3))
    for kind in fourier_features.KINDS:
        few, many = (by_seed(rows, method=kind, num_features=M) for M in settings.num_features)
        assert (many < 0.5 * few).all() and (many > 1e-6).all()
