"""The ablation of the trust region: each row has rules of its own, and rows are compared in pairs."""

import json

import numpy as np
import pytest
import torch
from sklearn.gaussian_process import kernels

from experiments.benchmarks import trust_region
from experiments.cli import main
from optimizers import SurrogateTrustRegion, run


def asked(rules):
    """The queries of a short run."""
    options = {"bounds": [(-5.0, 5.0)] * 2, "max_queries": 30, "store_points": True, "rules": rules}
    opt = SurrogateTrustRegion([2.0, -3.0], **options)
    return run(opt, lambda x: float((x.sin() + 0.3 * x.square()).sum() + torch.floor(x).abs().sum())).history.x


@pytest.mark.slow
def test_rows_ask_other_queries_than_all_ingredients():
    whole = asked(trust_region.ROWS["all"])
    for name in (
        "without the Matérn part",
        "without the quadratic form",
        "without the metric",
        "half the first radius",
        "the most likely lengthscale",
        "the prototype's model",
    ):
        assert not torch.equal(whole, asked(trust_region.ROWS[name]))
    assert torch.equal(whole, asked(trust_region.ROWS["all"]))


def test_a_fitted_lengthscale_is_the_most_likely_of_some():
    """Values of a Matérn process of lengthscale 0.6."""
    U = torch.from_numpy(np.random.default_rng(0).standard_normal((40, 2)))
    correlations = kernels.Matern(0.6, nu=2.5)(U.numpy())
    y = torch.from_numpy(np.linalg.cholesky(correlations) @ np.random.default_rng(1).standard_normal(40))
    assert trust_region.LikeliestLengthscale().data(U, y, 0.0).prior.lengthscale in (0.35, 0.6, 1.0)


def test_the_summary_is_of_pairs():
    lines = trust_region.summary({"all": [0.0, 2.0], "less": [1.0, 3.0], "more": [0.0, 1.0]}, "% left")
    assert "over 2 problems" in lines[0]
    assert lines[2].split()[-3:] == ["+1.000", "±", "0.000"] and lines[3].split()[-3:] == ["-0.500", "±", "0.500"]


def test_the_command_runs_problems_of_coco(tmp_path):
    pytest.importorskip("cocoex")
    arguments = ["--dimensions", "2", "--functions", "1", "--instances", "4", "5", "--rows", "without geometry queries"]
    assert main(["benchmark", "trust-region", *arguments, "--out", str(tmp_path)]) == 0
    scores = json.loads((tmp_path / "benchmark-trust-region.json").read_text())["scores"]
    assert {name: len(found) for name, found in scores.items()} == {"all": 2, "without geometry queries": 2}
    assert main(["benchmark", "trust-region", "--instances", "3"]) != 0


def test_the_command_runs_black_boxes(tmp_path):
    pytest.importorskip("cocoex")
    problem = ["--suite", "real", "--functions", "kernel_ridge_diabetes", "--instances", "4"]
    arguments = [*problem, "--rows", "without geometry queries"]
    assert main(["benchmark", "trust-region", *arguments, "--out", str(tmp_path)]) == 0
    scores = json.loads((tmp_path / "benchmark-trust-region.json").read_text())["scores"]
    assert min(found for (found,) in scores.values()) == 0.0  # what the best row found is what there was to gain
    assert "% left" in (tmp_path / "benchmark-trust-region.txt").read_text()
