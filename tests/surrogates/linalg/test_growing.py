import pytest
import torch

from surrogates import NotPositiveDefiniteError
from surrogates.linalg.growing import GrowingCholesky, GrowingRows
from tests.surrogates.linalg.test_cholesky import backward_error, covariance, is_lower, numpy_factor, points


@pytest.mark.parametrize("capacity", [0, 1, 8])
def test_rows_in_storage_that_doubles(capacity):
    X = points(40)
    growing = GrowingRows(X[:3].float(), capacity)
    view, kept = growing.rows, X[:3].float()
    for n in range(3, 40):
        growing.append(X[n : n + 1])
        assert torch.equal(growing.rows, X[: n + 1].float())
    assert len(growing) == 40
    assert growing._storage.shape[0] <= 80
    assert torch.equal(view, kept)


def test_growing_factor_solves_across_blocks_and_growth():
    A = covariance(points(700, d=6), noise=1e-2)
    growing = GrowingCholesky(capacity=520)
    growing.append(A[:500, :0], A[:500, :500])
    for n in range(500, 560):
        growing.append(A[n : n + 1, :n], A[n : n + 1, n : n + 1])
    growing.append(A[560:, :560], A[560:, 560:])
    assert len(growing) == 700
    assert is_lower(growing.L)
    assert backward_error(growing.L, A) < 1e-14
    for B in (points(700)[:, 0], points(700)):
        assert torch.allclose(growing.solve(B), torch.linalg.solve(A, B), rtol=1e-9, atol=1e-9)
        half = growing.half_solve(B)
        assert torch.allclose(growing.L @ half, B, rtol=1e-11, atol=1e-11)


def test_growing_from_nothing():
    A = covariance(points(40))
    growing = GrowingCholesky(capacity=1)
    growing.append(A[:2, :0], A[:2, :2])
    for n in range(2, 40):
        growing.append(A[n : n + 1, :n], A[n : n + 1, n : n + 1])
    assert torch.allclose(growing.L, numpy_factor(A), rtol=1e-9, atol=1e-12)
    assert growing._storage.shape[0] <= 80


def test_a_factor_that_is_there_is_taken_as_it_is():
    A = covariance(points(9))
    growing = GrowingCholesky.from_factor(numpy_factor(A[:7, :7]))
    growing.append(A[7:, :7], A[7:, 7:])
    assert torch.allclose(growing.L, numpy_factor(A), rtol=1e-9, atol=1e-12)


def test_shapes_that_do_not_fit_are_refused():
    growing = GrowingCholesky.from_factor(numpy_factor(covariance(points(5))))
    for attempt in (
        lambda: growing.append(torch.ones(1, 4), torch.ones(1, 1)),
        lambda: growing.append(torch.ones(2, 5), torch.ones(1, 1)),
        lambda: growing.append(torch.ones(1, 5), torch.ones(1, 2)),
        lambda: growing.append(torch.ones(0, 5), torch.ones(0, 0)),
    ):
        with pytest.raises(ValueError) as refused:
            attempt()
        assert not isinstance(refused.value, NotPositiveDefiniteError)
    assert len(growing) == 5
