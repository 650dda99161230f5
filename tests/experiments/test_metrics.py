"""Metrics as objectives: scikit-learn's numbers, torch's network of 2,189 parameters, points unseen in training."""

import dataclasses

import pytest
import torch
from sklearn import metrics as sklearn_metrics

from experiments.papers.zord import fig4
from experiments.workloads import metrics
from experiments.workloads.covertype import load_points
from experiments.workloads.data import DataError
from experiments.workloads.metrics import DIMENSION, METRICS, confusion, logits, metric
from optimizers.comparison.records import where

SKLEARN = {
    "precision": sklearn_metrics.precision_score,
    "recall": sklearn_metrics.recall_score,
    "f1": sklearn_metrics.f1_score,
    "jaccard": sklearn_metrics.jaccard_score,
}


@pytest.mark.parametrize("name", METRICS)
@pytest.mark.parametrize("classes", [7, 4])
def test_metrics_are_sklearns_macro_averages(name, classes):
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(classes, (60,), generator=generator)
    predicted = torch.randint(5, (3, 60), generator=generator)
    found = metric(name, confusion(predicted, labels))
    for row, value in zip(predicted, found.tolist(), strict=True):
        expected = SKLEARN[name](labels, row, average="macro", zero_division=0)
        assert value == pytest.approx(expected, rel=1e-12)
    with pytest.raises(ValueError, match="choose from"):
        metric("accuracy", confusion(predicted, labels))


def test_the_network_is_torchs_and_has_the_papers_size():
    net = torch.nn.Sequential(
        torch.nn.Linear(54, 30), torch.nn.ReLU(), torch.nn.Linear(30, 14), torch.nn.ReLU(), torch.nn.Linear(14, 7)
    ).double()
    assert sum(p.numel() for p in net.parameters()) == DIMENSION == 2189
    generator = torch.Generator().manual_seed(1)
    thetas = torch.randn(2, DIMENSION, generator=generator, dtype=torch.float64)
    inputs = torch.randn(5, 54, generator=generator, dtype=torch.float64)
    for theta, found in zip(thetas, logits(thetas, inputs), strict=True):
        torch.nn.utils.vector_to_parameters(theta, net.parameters())
        with torch.no_grad():
            torch.testing.assert_close(found, net(inputs))


def test_the_objective_starts_at_a_network_that_has_learned():
    settings = fig4.EXPERIMENT.settings("quick")
    fun = fig4.objective(settings, "recall", 0)
    start = torch.zeros(DIMENSION).double()
    assert fun.dimension == DIMENSION and float(fun(start)) < 1.0 - 1.5 / 7
    both = torch.stack([start, start + 0.1])
    assert fun(both).tolist() == [float(fun(row)) for row in both]
    trained_on = load_points().sample(settings.training.points, 0)
    assert len(fun.points) == settings.points
    assert not {tuple(x) for x in trained_on.inputs.tolist()} & {tuple(x) for x in fun.points.inputs.tolist()}
    again = metrics.trained_network(load_points(), settings.training, 0)
    assert torch.equal(again, fun.trained)


def test_perfect_and_wrong_predictions():
    labels = torch.arange(7).repeat(3)
    assert all(float(metric(name, confusion(labels[None], labels))) == 1.0 for name in METRICS)
    assert all(float(metric(name, confusion((labels[None] + 1) % 7, labels))) == 0.0 for name in METRICS)


def test_improvements_begin_at_zero_and_never_fall():
    settings = dataclasses.replace(fig4.EXPERIMENT.settings("quick"), metrics=("f1",))
    rows = fig4.run_seed(settings, 0)
    for method in settings.methods:
        values = [row["value"] for row in where(rows, method=method)]
        assert values[0] == 0.0 and values == sorted(values)
        assert where(rows, method=method)[-1]["queries"] == settings.max_queries


def test_classes_are_sampled_without_replacement():
    points = load_points()
    some = points.sample(50, 0, classes=(2, 5))
    assert set(some.labels.tolist()) <= {2, 5} and len(torch.unique(some.inputs, dim=0)) == 50
    with pytest.raises(ValueError, match="count must be at most the"):
        points.sample(len(points) + 1, 0)


def test_covertype_is_never_fetched_unasked(tmp_path):
    with pytest.raises(DataError, match="experiments data covertype"):
        load_points(str(tmp_path))
    (tmp_path / "covertype").mkdir()
    with pytest.raises(DataError, match="does not contain Covertype"):
        load_points(str(tmp_path))
