"""The ablation of the trust region: constants are changed for a row and no longer, and rows are compared in pairs."""

import json
import math

import numpy as np
import pytest
import torch
from sklearn.gaussian_process import kernels

from experiments.benchmarks import trust_region
from experiments.cli import main
from optimizers import SurrogateTrustRegion, run
from optimizers.methods.trust_region import pinned_model
from optimizers.methods.trust_region.pinned_model import PinnedData


def asked(changes):
    """The queries of a short run."""
    with trust_region.changed(changes):
        opt = SurrogateTrustRegion([2.0, -3.0], bounds=[(-5.0, 5.0)] * 2, max_queries=30, store_points=True)
        return run(opt, lambda x: float((x.sin() + 0.3 * x.square()).sum() + torch.floor(x).abs().sum())).history.x


@pytest.mark.parametrize("name", [name for name, changes in trust_region.ROWS.items() if changes])
def test_constants_are_changed_for_a_row_only(name):
    changes = trust_region.ROWS[name]
    before = [getattr(module, constant) for module, constant, _ in changes]
    with trust_region.changed(changes):
        assert all(getattr(module, constant) is value for module, constant, value in changes)
    assert [getattr(module, constant) for module, constant, _ in changes] == before


def test_rows_ask_other_queries_than_all_ingredients():
    whole = asked([])
    assert torch.equal(whole, asked([]))
    for name in (
        "without the Matérn part",
        "without the quadratic form",
        "without the metric",
        "half the first radius",
        "the most likely lengthscale",
    ):
        assert not torch.equal(whole, asked(trust_region.ROWS[name]))
    assert torch.equal(whole, asked([]))


def test_a_fitted_lengthscale_is_the_most_likely_of_some():
    """Values of a Matérn process of lengthscale 0.6: the likelihoods of seven lengthscales, each by itself."""
    U = torch.from_numpy(np.random.default_rng(0).standard_normal((40, 2)))
    correlations = kernels.Matern(0.6, nu=2.5)(U.numpy())
    y = torch.from_numpy(np.linalg.cholesky(correlations) @ np.random.default_rng(1).standard_normal(40))
    losses = {}
    for ell in trust_region.LENGTHSCALES:
        rate = math.sqrt(5.0) / ell
        with trust_region.changed([(pinned_model, "RATE", rate), (pinned_model, "CURVATURE", rate**2 / 3.0)]):
            data = PinnedData.of(U, y)
            losses[ell] = data.loss(data.fitted(None))
    assert min(losses, key=losses.get) in (0.35, 0.6, 1.0)
    with trust_region.changed(trust_region.FITTED):
        data = PinnedData.of(U, y)
        assert data.loss(data.fitted(None)) == pytest.approx(min(losses.values()), rel=1e-12)
        assert math.sqrt(5.0) / min(losses, key=losses.get) == pinned_model.RATE
    assert math.sqrt(5.0) / 4.0 == pinned_model.RATE


def test_the_summary_is_of_pairs():
    lines = trust_region.summary({"all": [0.0, 2.0], "less": [1.0, 3.0], "more": [0.0, 1.0]}, "% left")
    assert "over 2 problems" in lines[0]
    assert lines[2].split()[-3:] == ["+1.000", "±", "0.000"] and lines[3].split()[-3:] == ["-0.500", "±", "0.500"]


def test_the_command_runs_problems_of_coco(tmp_path):
    pytest.importorskip("cocoex")
    arguments = ["--dimensions", "2", "--functions", "1", "--instances", "4", "5", "--rows", "without lessons"]
    assert main(["benchmark", "trust-region", *arguments, "--out", str(tmp_path)]) == 0
    scores = json.loads((tmp_path / "benchmark-trust-region.json").read_text())["scores"]
    assert {name: len(found) for name, found in scores.items()} == {"all": 2, "without lessons": 2}
    assert main(["benchmark", "trust-region", "--instances", "3"]) != 0


def test_the_command_runs_black_boxes(tmp_path):
    pytest.importorskip("cocoex")
    problem = ["--suite", "real", "--functions", "kernel_ridge_diabetes", "--instances", "4"]
    arguments = [*problem, "--rows", "without lessons"]
    assert main(["benchmark", "trust-region", *arguments, "--out", str(tmp_path)]) == 0
    scores = json.loads((tmp_path / "benchmark-trust-region.json").read_text())["scores"]
    assert min(found for (found,) in scores.values()) == 0.0  # what the best row found is what there was to gain
    assert "% left" in (tmp_path / "benchmark-trust-region.txt").read_text()
