import numpy as np
import pytest
import torch

from surrogates.pinned.columns import ColumnsModel, PinnedColumns
from surrogates.pinned.engine import Conditioned, PinnedData
from surrogates.pinned.kernel import pinned_values
from surrogates.pinned.prior import Hyperparameters, PinnedPrior

PRIOR = PinnedPrior()


def problem(noise):
    generator = torch.Generator().manual_seed(0)
    U = torch.randn(11, 3, dtype=torch.float64, generator=generator)
    Y = torch.stack([U.pow(3).sum(-1) + U[:, 0], torch.sin(U).sum(-1), 2.0 * U[:, 1] - U[:, 2]], dim=-1)
    params = Hyperparameters(2.0, noise)
    return U, Y, params, ColumnsModel(Conditioned.on(PRIOR, U, params), Y)


@pytest.mark.parametrize("noise", [0.0, 0.01])
def test_each_column_is_the_process_of_one_function(noise):
    U, Y, params, columns = problem(noise)
    v, weights = torch.tensor([0.3, -0.8, 0.5], dtype=torch.float64), np.array([0.3, -1.0, 2.0])
    alone = [PinnedData.of(U, y).model(params) for y in Y.mT]
    assert columns.means(v.numpy()) == pytest.approx([model.mean(v) for model in alone], rel=1e-9)
    slopes = np.stack([model.derivatives(v)[0].numpy() for model in alone])
    assert columns.gradients(v.numpy()) == pytest.approx(slopes, rel=1e-8, abs=1e-9)
    for place in (torch.zeros(3, dtype=torch.float64), v):
        hessians = np.stack([model.derivatives(place)[1].numpy() for model in alone])
        expected = pytest.approx(np.tensordot(weights, hessians, 1), rel=1e-8, abs=1e-9)
        assert columns.weighted_hessian_at(weights, place.numpy()) == expected
        assert bool(place.any()) or columns.weighted_hessian(weights) == expected
    assert columns.means_at_data() == pytest.approx(torch.stack([m.means() for m in alone], -1).numpy(), abs=1e-9)
    assert columns.deviations**2 == pytest.approx([model.scale * model.data.unit**2 for model in alone])


def test_the_likelihood_is_the_weighted_sum_of_those_of_the_functions():
    U, Y, params, _ = problem(0.01)
    shares = torch.tensor([1.0, 0.5, 0.25], dtype=torch.float64)
    expected = sum(float(w) * PinnedData.of(U, y).loss(params) for w, y in zip(shares, Y.mT, strict=True))
    assert PinnedColumns(PRIOR, U, Y, shares).loss(params) == pytest.approx(expected, rel=1e-12)


def test_the_deviation_is_that_of_the_conditioned_process_with_its_slope():
    U, _, params, columns = problem(0.01)
    v, noise = torch.tensor([[0.3, -0.8, 0.5]], dtype=torch.float64), params.noise
    K = pinned_values(PRIOR, params.amplitude, U, U) + noise * (torch.eye(len(U), dtype=U.dtype) + 1.0)
    cross = pinned_values(PRIOR, params.amplitude, U, v) + noise
    # The value observed at the pin is in the data and in what is asked for, with its noise.
    variance = pinned_values(PRIOR, params.amplitude, v, v) + noise - cross.mT @ torch.linalg.solve(K, cross)
    deviation, slope = columns.deviation(v[0].numpy())
    assert deviation**2 == pytest.approx(float(variance), rel=1e-8)
    steps = 1e-6 * np.eye(3)
    differences = [
        (columns.deviation(v[0].numpy() + e)[0] - columns.deviation(v[0].numpy() - e)[0]) / 2e-6 for e in steps
    ]
    assert slope == pytest.approx(differences, rel=1e-5)


def test_the_value_at_the_pin_is_the_mean_of_its_noise():
    U, Y, params, columns = problem(0.5)
    K = pinned_values(PRIOR, params.amplitude, U, U) + params.noise * (torch.eye(len(U), dtype=U.dtype) + 1.0)
    # cov(e, y_i − y_pin) = −s²: the noise at the pin is −s² 1ᵀK⁻¹y, and the function is the value less the noise.
    noise = -params.noise * torch.linalg.solve(K, Y).sum(0)
    assert columns.pin_offsets == pytest.approx((-noise).numpy(), rel=1e-9)
