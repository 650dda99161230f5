import numpy as np
import pytest
import torch

from surrogates.linalg import cholesky
from surrogates.linalg.cholesky import (
    NotPositiveDefiniteError,
    append_rows,
    append_rows_to_inverse,
    delete_row,
    factor,
    rank_one_downdate,
    rank_one_update,
    replace_row,
    replace_rows_in_inverse,
)
from surrogates.linalg.growing_cholesky import GrowingCholesky


@pytest.fixture(params=["compiled", "torch"])
def path(request, monkeypatch):
    if request.param == "torch":
        monkeypatch.setattr(cholesky, "_REPLACE_KERNEL", None)
    elif cholesky._REPLACE_KERNEL is None:
        pytest.skip("numba is not installed")


def covariance(X, noise=1e-3):
    return torch.exp(-0.5 * torch.cdist(X, X, compute_mode="donot_use_mm_for_euclid_dist") ** 2) + noise * torch.eye(
        len(X), dtype=torch.float64
    )


def points(n, seed=0, d=3):
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def numpy_factor(A):
    return torch.from_numpy(np.linalg.cholesky(A.numpy()))


def backward_error(L, A):
    return float((L @ L.mT - A).abs().max() / A.abs().max())


def is_lower(L):
    return torch.equal(L, L.tril()) and bool((L.diagonal() > 0).all())


@pytest.mark.parametrize(("n", "m"), [(1, 1), (20, 1), (20, 5), (3, 30)])
def test_append_rows(n, m):
    A = covariance(points(n + m))
    L = append_rows(numpy_factor(A[:n, :n]), A[n:, :n], A[n:, n:])
    assert torch.allclose(L, numpy_factor(A), rtol=1e-10, atol=1e-13)
    assert backward_error(L, A) < 1e-15 * (n + m)
    assert is_lower(L)


@pytest.mark.parametrize("j", [0, 7, 19])
def test_delete_row(j):
    A = covariance(points(20))
    keep = [i for i in range(20) if i != j]
    L = delete_row(factor(A), j)
    assert torch.allclose(L, numpy_factor(A[keep][:, keep]), rtol=1e-10, atol=1e-13)
    assert is_lower(L)


@pytest.mark.parametrize("n", [1, 2, 30, 151])
def test_replace_row(path, n):
    for j in {0, n // 3, n - 1}:
        X = points(n)
        L = factor(covariance(X))
        kept = L.clone()
        X[j] = points(1, seed=1)[0]
        A = covariance(X)
        new = replace_row(L, j, A[j])
        assert torch.allclose(new, numpy_factor(A), rtol=1e-9, atol=1e-11)
        assert backward_error(new, A) < 1e-15 * (n + 5)
        assert is_lower(new)
        assert torch.equal(L, kept)


@pytest.mark.parametrize("noise", [1e-6, 1e-2])
def test_thousands_of_replaced_rows_do_not_drift(path, noise):
    g = torch.Generator().manual_seed(3)
    X = points(60, d=2)
    A = covariance(X, noise)
    L = factor(A)
    for _ in range(3000):
        j = int(torch.randint(60, (1,), generator=g))
        X[j] = torch.randn(2, generator=g, dtype=torch.float64)
        row = torch.exp(-0.5 * (X - X[j]).square().sum(1))
        row[j] += noise
        A[j] = A[:, j] = row
        L = replace_row(L, j, row)
    assert backward_error(L, A) < 60 * 2.0**-52
    assert backward_error(L, A) < 50 * backward_error(factor(A), A)


def test_both_paths_give_the_same_factor(monkeypatch):
    X = points(80)
    L = factor(covariance(X))
    X[20] = points(1, seed=9)[0]
    row = covariance(X)[20]
    here = replace_row(L, 20, row)
    monkeypatch.setattr(cholesky, "_REPLACE_KERNEL", None)
    assert torch.allclose(here, replace_row(L, 20, row), rtol=1e-10, atol=1e-13)


@pytest.mark.parametrize("n", [1, 2, 40])
def test_rank_one_update_and_downdate(n):
    A, v = covariance(points(n)), points(n, seed=2)[:, 0]
    updated = rank_one_update(factor(A), v)
    larger = A + torch.outer(v, v)
    assert torch.allclose(updated, numpy_factor(larger), rtol=1e-10, atol=1e-12)
    assert backward_error(updated, larger) < 1e-15 * (n + 5)
    back = rank_one_downdate(updated, v)
    assert torch.allclose(back, numpy_factor(A), rtol=1e-7, atol=1e-9)
    assert backward_error(back, A) < 1e-13
    assert is_lower(updated)
    assert is_lower(back)


def test_update_then_downdate_of_a_factor_with_a_tiny_remainder():
    A = covariance(points(30), noise=1e-6)
    L = factor(A)
    v = L[:, 4] * (1 - 1e-6) ** 0.5
    smaller = A - torch.outer(v, v)
    assert backward_error(rank_one_downdate(L, v), smaller) < 1e-11


@pytest.mark.parametrize(("n", "m"), [(1, 1), (20, 1), (20, 6)])
def test_inverse_appended(n, m):
    A = covariance(points(n + m), noise=0.1)
    result = append_rows_to_inverse(A[:n, :n].inverse(), A[n:, :n], A[n:, n:])
    assert torch.allclose(result, A.inverse(), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("rows", [[0], [19], [11, 4], [3, 2, 18], list(range(20))])
def test_inverse_with_replaced_rows(rows):
    X = points(20)
    old = covariance(X, noise=0.1).inverse()
    kept = old.clone()
    X[rows] = points(len(rows), seed=5)
    A = covariance(X, noise=0.1)
    result = replace_rows_in_inverse(old, rows, A[rows])
    assert torch.allclose(result, A.inverse(), rtol=1e-9, atol=1e-11)
    assert torch.allclose(result, result.mT, rtol=0, atol=1e-12)
    assert torch.equal(old, kept)


def test_float32_is_computed_in_float64():
    A = covariance(points(10))
    L = factor(A).float()
    for result in (
        factor(A.float()),
        append_rows(L[:9, :9], A[9:, :9].float(), A[9:, 9:].float()),
        delete_row(L, 2),
        rank_one_update(L, A[0].float()),
        replace_row(L, 2, A[2].float()),
        replace_rows_in_inverse(A.inverse().float(), [1], A[[1]].float()),
    ):
        assert result.dtype == torch.float64


def test_what_is_not_positive_definite_is_refused_and_nothing_changes(path):
    X = points(12)
    A = covariance(X, noise=0.0)
    L = factor(A)
    growing = GrowingCholesky(A)
    kept = L.clone()
    for duplicate in (0, 11):
        row = A[duplicate]
        with pytest.raises(NotPositiveDefiniteError, match="noise"):
            append_rows(L, row[None], row[duplicate].reshape(1, 1))
        with pytest.raises(NotPositiveDefiniteError):
            growing.append(row, row[duplicate])
        with pytest.raises(NotPositiveDefiniteError):
            replace_row(L, 5, row.clone().index_fill_(0, torch.tensor(5), float(row[duplicate])))
        with pytest.raises(NotPositiveDefiniteError):
            rank_one_downdate(L, L[:, duplicate])
        with pytest.raises(NotPositiveDefiniteError):
            append_rows_to_inverse(A.inverse(), row[None], row[duplicate].reshape(1, 1) - 1e-6)
        with pytest.raises(NotPositiveDefiniteError):
            replace_rows_in_inverse(A.inverse(), [5], row[None].index_fill(1, torch.tensor(5), 0.5))
    with pytest.raises(NotPositiveDefiniteError):
        factor(torch.ones(3, 3))
    assert torch.equal(L, kept)
    assert torch.equal(growing.L, kept)
    assert len(growing) == 12


def test_nan_is_refused(path):
    L = factor(covariance(points(5)))
    bad = torch.full((5,), float("nan"), dtype=torch.float64)
    for attempt in (
        lambda: replace_row(L, 1, bad),
        lambda: rank_one_downdate(L, bad),
        lambda: append_rows(L, bad[None], torch.ones(1, 1)),
        lambda: factor(bad.expand(5, 5)),
    ):
        with pytest.raises(NotPositiveDefiniteError):
            attempt()


def test_shapes_that_do_not_fit_are_refused():
    L = factor(covariance(points(5)))
    v = torch.ones(4, dtype=torch.float64)
    for attempt in (
        lambda: append_rows(L, v[None], v[:1, None]),
        lambda: append_rows(L, torch.ones(2, 5), v[:1, None]),
        lambda: delete_row(L, 5),
        lambda: delete_row(L, -1),
        lambda: delete_row(L[:1, :1], 0),
        lambda: delete_row(L[:3], 0),
        lambda: replace_row(L, 1, v),
        lambda: replace_row(L, 5, torch.ones(5)),
        lambda: rank_one_update(L, v),
        lambda: rank_one_downdate(L, v),
        lambda: replace_rows_in_inverse(L, [1, 1], torch.ones(2, 5)),
        lambda: replace_rows_in_inverse(L, [], torch.ones(0, 5)),
        lambda: replace_rows_in_inverse(L, [5], torch.ones(1, 5)),
        lambda: GrowingCholesky(L).append(v, 1.0),
        lambda: GrowingCholesky(L).append(torch.ones(2, 5), torch.ones(1, 1)),
    ):
        with pytest.raises(ValueError):
            attempt()
