"""The attack's margin and the metric of a network, as torch and scikit-learn have them."""

import dataclasses

import numpy as np
import pytest
import torch
from sklearn.metrics import f1_score

from experiments.workloads import images
from experiments.workloads.black_boxes import digits, metric
from experiments.workloads.covertype import load_points
from experiments.workloads.metrics import QUICK as QUICK_NETWORK
from experiments.workloads.victims import QUICK as QUICK_VICTIM
from experiments.workloads.victims import trained_victim


@pytest.mark.parametrize("side", [8, pytest.param(28, marks=pytest.mark.slow)])
def test_the_margin_is_that_of_the_probabilities(side):
    fun = digits.perturbation(side, QUICK_VICTIM, 1)
    assert fun(np.zeros(side**2)) > 0.0
    image, label, bound = fun.fun.image, fun.fun.label, digits.BOUND[side]
    delta = np.random.default_rng(0).uniform(-bound, bound, side**2)
    seen = np.clip(image.numpy() + delta.reshape(1, side, side), 0.0, 1.0)
    with torch.no_grad():
        p = fun.fun.victim.logits(torch.from_numpy(seen[None]))[0].softmax(-1).numpy()
    assert fun(delta) == pytest.approx(np.log(p[label]) - np.log(np.delete(p, label).max()), rel=1e-9)
    others = {digits.perturbation(side, QUICK_VICTIM, seed).fun.image.numpy().tobytes() for seed in range(3)}
    assert len(others) == 3
    assert any(torch.equal(image.float(), one) for one in images.digits(side).test)


def test_machines_that_round_otherwise_train_the_same_network():
    """In float32 the margins of two machines differed by several nats; here the pixels differ in the last bit."""
    task = images.digits(8)
    exact = dataclasses.replace(task, train=task.train.double())
    rounded = dataclasses.replace(exact, train=exact.train * (1.0 + 2.0**-52))
    first, other = (trained_victim(one, QUICK_VICTIM, 1).parameters for one in (exact, rounded))
    assert max(float((a - b).abs().max()) for a, b in zip(first, other, strict=True)) < 1e-11
    assert all(map(torch.equal, first, digits.victim(8, QUICK_VICTIM, 1).parameters))


def test_f1_is_scikit_learns_on_points_that_were_not_trained_on():
    fun = metric.one_minus_f1(QUICK_NETWORK, 4)
    net = torch.nn.Sequential(
        torch.nn.Linear(54, 30), torch.nn.ReLU(), torch.nn.Linear(30, 14), torch.nn.ReLU(), torch.nn.Linear(14, 7)
    ).double()
    theta = np.random.default_rng(0).uniform(-0.2, 0.2, 2189)
    torch.nn.utils.vector_to_parameters(fun.fun.trained + torch.from_numpy(theta), net.parameters())
    points = fun.fun.points
    predicted = net(points.inputs).argmax(-1)
    assert fun(theta) == pytest.approx(1 - f1_score(points.labels, predicted, average="macro"), rel=1e-9)
    trained_on = {tuple(x) for x in load_points().sample(QUICK_NETWORK.points, 4).inputs.tolist()}
    assert len(points) == metric.POINTS and not trained_on & {tuple(x) for x in points.inputs.tolist()}
