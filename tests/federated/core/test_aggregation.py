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
    "total.add_(vector.to(total.dtype), alpha=float(weight))",
    "total.add_(vector.to(total.dtype), alpha=1.0)",
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


def clipped_mean(rows, about=0.0):
    """The mean of rows that are shortened to their median length about a point, in NumPy."""
    lengths = np.linalg.norm(rows - about, axis=1)
    return about + np.mean((rows - about) * np.minimum(1.0, np.median(lengths) / lengths)[:, None], 0)


def krum(rows, liars):
    """Multi-Krum as Blanchard et al. print it, row by row."""
    n, scores = len(rows), []
    for i in range(n):
        others = sorted(float(np.sum((rows[i] - rows[j]) ** 2)) for j in range(n) if j != i)
        scores.append(sum(others[: n - liars - 2]))
    return np.mean([rows[i] for i in np.argsort(scores, kind="stable")[: n - liars]], 0)


@pytest.mark.parametrize("n", [5, 6, 10])
def test_clipping_and_krum_are_those_of_numpy(n):
    given, about = vectors(n), vectors(1)[0]
    stacked, ones = torch.stack(given).numpy(), [1.0] * n
    np.testing.assert_allclose(combine("norm_clipping", given, ones, 0.1), clipped_mean(stacked), atol=1e-14)
    near = clipped_mean(stacked, about.numpy())
    np.testing.assert_allclose(combine("norm_clipping", given, ones, 0.1, about), near, atol=1e-14)
    np.testing.assert_allclose(combine("multi_krum", given, ones, 0.2), krum(stacked, n // 5), atol=1e-14)
    weights = [1.0 + i for i in range(n)]
    same = [torch.ones(3, dtype=torch.float64)] * n
    assert torch.equal(combine("norm_clipping", same, weights, 0.1), same[0])
    np.testing.assert_allclose(
        combine("multi_krum", given, weights, 0.0), np.average(stacked, axis=0, weights=weights), atol=1e-14
    )


def test_few_vectors_have_a_krum_and_zeros_are_not_clipped():
    for n in (1, 2, 3):
        assert torch.isfinite(combine("multi_krum", vectors(n), [1.0] * n, 0.4)).all()
    zeros = [torch.zeros(3)] * 3
    assert torch.equal(combine("norm_clipping", zeros, [1.0] * 3, 0.1), torch.zeros(3))
    one = [*zeros, torch.ones(3)]
    assert torch.equal(combine("norm_clipping", one, [1.0] * 4, 0.1), torch.full((3,), 0.25))


def test_robust_means_resist_wild_reports():
    honest = [torch.full((3,), float(i)) for i in range(8)]
    wild = [torch.full((3,), 1e12), torch.full((3,), -1e15)]
    for name, trim in (("median", 0.1), ("trimmed_mean", 0.2), ("multi_krum", 0.2)):
        result = combine(name, honest + wild, [1.0] * 10, trim)
        assert bool(((result >= 0) & (result <= 7)).all())
    assert float(combine("mean", honest + wild, [1.0] * 10, 0.1)[0]) < -1e13


def test_no_vectors_are_refused():
    with pytest.raises(ValueError, match="0 vectors"):
        weighted_mean([], [])
    with pytest.raises(ValueError, match="2 vectors and 1"):
        weighted_mean(vectors(2), [1.0])
