import pytest
import torch

from surrogates.linalg.cholesky import factor
from tests.surrogates.linalg.test_cholesky import backward_error, covariance, is_lower, numpy_factor, points

pytest.importorskip("numba")

from surrogates.linalg import replace_row_numba


def replace_row(L, j, row):
    U = L.double().mT.contiguous().clone()
    return U.mT if replace_row_numba.replace_row(U.numpy(), j, row.double().numpy()) else None


@pytest.mark.parametrize("n", [1, 2, 30, 151])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_replace_row(n, dtype):
    for j in {0, n // 3, n - 1}:
        X = points(n)
        L = factor(covariance(X)).to(dtype)
        X[j] = points(1, seed=1)[0]
        A = covariance(X)
        new = replace_row(L, j, A[j].to(dtype))
        tight = dtype == torch.float64
        assert torch.allclose(new, numpy_factor(A), rtol=1e-9 if tight else 1e-2, atol=1e-11 if tight else 1e-2)
        assert backward_error(new, A) < (1e-15 if tight else 1e-6) * (n + 5)
        assert is_lower(new)


@pytest.mark.parametrize("noise", [1e-6, 1e-2])
def test_thousands_of_replaced_rows_do_not_drift(noise):
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


def test_what_is_not_positive_definite_is_refused():
    A = covariance(points(12), noise=0.0)
    L = factor(A)
    for duplicate in (0, 11):
        row = A[duplicate].clone()
        row[5] = A[duplicate, duplicate]
        assert replace_row(L, 5, row) is None
    assert replace_row(L, 1, torch.full((12,), float("nan"), dtype=torch.float64)) is None
