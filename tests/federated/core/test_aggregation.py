import numpy as np
import pytest
import torch
from scipy.stats import trim_mean

from federated.core.aggregation import combine, median, trimmed_mean, weighted_mean


def vectors(n, d=7, dtype=torch.float64):
    generator = torch.Generator().manual_seed(n)
    return list(torch.randn(n, d, generator=generator, dtype=torch.float64).to(dtype))


@pytest.mark.slip(
    "federated/core/aggregation.py",
    "return total.div_(len(vectors) if equal else sum(weights)).to",
    "return total.div_(1 if equal else sum(weights)).to",
    "a mean of N equal clients without 1/N",
    of="federated/fedavg federated/fedzo federated/fedprox federated/scaffold1 federated/scaffold2",
)
@pytest.mark.slip(
    "federated/core/aggregation.py",
    "total.add_(vector.to(wide), alpha=float(weight))",
    "total.add_(vector.to(wide), alpha=1.0)",
    "a mean without the weights p_i",
    of="federated/fedavg federated/fedzo federated/fedprox federated/scaffold1 federated/scaffold2",
)
@pytest.mark.parametrize("n", [1, 2, 5, 6])
def test_means_equal_numpys_and_scipys(n):
    given, weights = vectors(n), [1.0 + i for i in range(n)]
    stacked = torch.stack(given).numpy()
    np.testing.assert_allclose(weighted_mean(given, weights), np.average(stacked, axis=0, weights=weights), atol=1e-15)
    np.testing.assert_allclose(weighted_mean(given, [3.0] * n), stacked.mean(0), atol=1e-15)
    np.testing.assert_allclose(median(given), np.median(stacked, axis=0), atol=1e-15)
    for trim in (0.0, 0.1, 0.2, 0.4):
        np.testing.assert_allclose(trimmed_mean(given, trim), trim_mean(stacked, trim), atol=1e-15)


def test_the_mean_of_one_is_that_one_bitwise_and_equal_weights_do_not_matter():
    (x,) = vectors(1)
    assert torch.equal(weighted_mean([x], [0.1]), x)
    five = vectors(5)
    assert torch.equal(weighted_mean(five, [0.1] * 5), weighted_mean(five, [7.0] * 5))


def test_float32_is_added_in_float64():
    given = [torch.tensor([1.0]), torch.tensor([1e8]), torch.tensor([-1e8])]
    assert weighted_mean(given, [1.0] * 3).dtype == torch.float32
    assert float(weighted_mean(given, [1.0] * 3)) == pytest.approx(1 / 3)


def test_robust_means_resist_wild_reports():
    honest = [torch.full((3,), float(i)) for i in range(8)]
    wild = [torch.full((3,), 1e12), torch.full((3,), -1e15)]
    for name, trim in (("median", 0.1), ("trimmed_mean", 0.2)):
        result = combine(name, honest + wild, [1.0] * 10, trim)
        assert bool(((result >= 0) & (result <= 7)).all())
    assert float(combine("mean", honest + wild, [1.0] * 10, 0.1)[0]) < -1e13


def test_no_vectors_are_refused():
    with pytest.raises(ValueError, match="0 vectors"):
        weighted_mean([], [])
    with pytest.raises(ValueError, match="2 vectors and 1"):
        weighted_mean(vectors(2), [1.0])
