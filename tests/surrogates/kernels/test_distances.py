import pytest
import torch

from surrogates.kernels import distances
from surrogates.kernels.distances import pairwise_squared_distances, squared_distances
from tests.surrogates.gp_models import points
from tests.surrogates.reference import mp, to_mp, to_tensor

METRICS = {
    "isotropic": torch.tensor([[0.7]], dtype=torch.float64),
    "ard": torch.tensor([[0.3, 2.0, 1.1]], dtype=torch.float64),
    "ard with an ignored input": torch.tensor([[0.3, 0.0, 1.1]], dtype=torch.float64),
}


def exact(x1, x2, weights):
    w = to_mp(weights.expand(1, x1.shape[-1])[0])
    rows = [[mp.fsum(c * (a - b) ** 2 for a, b, c in zip(p, q, w, strict=True)) for q in to_mp(x2)] for p in to_mp(x1)]
    return to_tensor(rows)


def close_relative(value, expected, tolerance):
    """Entry by entry, an exact zero where one is expected."""
    error = (value - expected).abs()
    assert (error <= tolerance * expected).all(), (error / expected).max()


def hard_points():
    """Equal points, and points at 1e-3, 1e-7 and 1e-12 of each other."""
    x1, x2 = points(7, seed=1), points(9, seed=2)
    for row, gap in enumerate((0.0, 1e-3, 1e-7, 1e-12)):
        x1[row] = x2[row] + gap
    return x1, x2


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("offset", [0.0, 5.0, 1e4])
def test_every_entry_has_its_digits_however_near_the_points_and_far_the_origin(metric, offset):
    x1, x2 = (x + offset for x in hard_points())
    close_relative(squared_distances(x1, x2, METRICS[metric]), exact(x1, x2, METRICS[metric]), 2e-11)
    among = torch.cat([x1, x2])
    value = pairwise_squared_distances(among, METRICS[metric])
    close_relative(value, exact(among, among, METRICS[metric]), 2e-11)
    assert torch.equal(value, value.mT)
    assert (value.diagonal() == 0).all()


def test_blocks_of_inputs_and_pairs_do_not_show(monkeypatch):
    x1, x2 = hard_points()
    whole = squared_distances(x1, x2, METRICS["ard"]), pairwise_squared_distances(x1, METRICS["ard"])
    monkeypatch.setattr(distances, "_CHUNK", 7)
    close_relative(squared_distances(x1, x2, METRICS["ard"]), whole[0], 1e-14)
    close_relative(pairwise_squared_distances(x1, METRICS["ard"]), whole[1], 1e-12)


def test_batches_of_points_and_metrics():
    x1, x2 = points(4, seed=1, batch=(2,)), points(5, seed=2, batch=(2,))
    x1[:, 0] = x2[:, 3]
    weights = points(1, seed=3, batch=(2,)).abs()
    cross, among = squared_distances(x1, x2, weights), pairwise_squared_distances(x2, weights)
    shared = squared_distances(x1[0], x2, weights)
    for b in range(2):
        close_relative(cross[b], exact(x1[b], x2[b], weights[b]), 1e-11)
        close_relative(among[b], exact(x2[b], x2[b], weights[b]), 1e-11)
        close_relative(shared[b], exact(x1[0], x2[b], weights[b]), 1e-11)


def test_float32_points_give_float64_distances_among_themselves():
    x = hard_points()[0].float()
    value = pairwise_squared_distances(x, METRICS["ard"])
    assert value.dtype == torch.float64
    close_relative(value, exact(x, x, METRICS["ard"]), 1e-11)


def test_derivatives_pass_gradcheck_where_points_are_near_too():
    x1, x2 = hard_points()
    x1 = x1.requires_grad_(True)
    assert torch.autograd.gradcheck(lambda x: squared_distances(x, x2, METRICS["ard"]), x1)
