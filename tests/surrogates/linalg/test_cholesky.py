import numpy as np
import pytest
import torch
from linear_operator.utils.errors import NotPSDError

from surrogates.linalg.cholesky import (
    JITTERS,
    NotPositiveDefiniteError,
    correlation_factor,
    covariance_root,
    extended_factor,
    factor,
    jittered_factor,
    laddered_factor,
)
from surrogates.linalg.growing import GrowingCholesky
from tests.surrogates.reference import assert_close


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


@pytest.mark.parametrize("n", [1, 2, 40])
def test_factor(n):
    A = covariance(points(n))
    L = factor(A)
    assert torch.allclose(L, numpy_factor(A), rtol=1e-10, atol=1e-13)
    assert is_lower(L)
    assert factor(A.float()).dtype == torch.float64


def test_jitter_is_none_for_definite_matrices_and_an_error_for_indefinite_ones(recwarn):
    A = torch.tensor([[2.0, 1.0], [1.0, 2.0]], dtype=torch.float64)
    L = jittered_factor(A.expand(3, 2, 2))
    assert_close(L @ L.mT, A.expand(3, 2, 2), 1e-15)
    assert_close(extended_factor(A[:1, :1].sqrt(), A[1:]), L[0], 1e-15)
    assert_close(extended_factor(A[:1, :1].sqrt(), A[1:].expand(3, 1, 2)), L, 1e-15)
    assert not recwarn.list
    for indefinite in (A - 2, torch.full((2, 2), float("nan"), dtype=torch.float64)):
        with pytest.raises(
            NotPositiveDefiniteError, match=r"2 x 2 covariance is not positive definite.*jitter of 0\.0001"
        ):
            jittered_factor(indefinite)


@pytest.mark.parametrize("lost", [0.0, 3e-11, 3e-9, 3e-7, 3e-5])
@pytest.mark.parametrize("unit", [2.0**-60, 1.0, 2.0**60])
def test_the_first_jitter_that_helps_is_taken_whatever_the_units(lost, unit):
    orthogonal = torch.linalg.qr(points(4, d=4)).Q
    A = orthogonal * torch.tensor([2.0, 1.0, 1.0, -lost], dtype=torch.float64) @ orthogonal.mT
    L, jitter = laddered_factor(unit * A)
    # A's mean diagonal is 1 but for what is lost, and a singular matrix needs the first rung.
    assert jitter == min(rung for rung in JITTERS if rung > lost)
    assert_close(L @ L.mT / unit, A + jitter * A.diagonal().mean() * torch.eye(4, dtype=torch.float64), 1e-14)


def test_correlations_have_no_units():
    A, units = covariance(points(6), noise=0.0), torch.tensor([1.0, 2.0**40, 4.0, 2.0**-40, 1.0, 0.5])
    twice = torch.cat([torch.cat([A, A[:, :1]], 1), torch.cat([A[:1], A[:1, :1]], 1)])
    L, deviations = correlation_factor(A * units[:, None] * units)
    assert torch.equal(deviations, units.double())
    assert_close(L @ L.mT, A, 1e-15)
    L, _ = correlation_factor(twice.clone())
    assert_close(L @ L.mT, twice + JITTERS[0] * torch.eye(7, dtype=torch.float64), 1e-15)


def test_the_error_is_gpytorchs_and_a_value_error():
    assert issubclass(NotPositiveDefiniteError, NotPSDError) and issubclass(NotPositiveDefiniteError, ValueError)


def test_what_is_not_positive_definite_is_refused_and_nothing_changes():
    A = covariance(points(12), noise=0.0)
    growing, kept = GrowingCholesky.from_factor(factor(A)), factor(A)
    for duplicate in (0, 11):
        row = A[duplicate]
        with pytest.raises(NotPositiveDefiniteError, match="noise"):
            growing.append(row[None], row[duplicate].expand(1, 1))
        with pytest.raises(NotPositiveDefiniteError, match="noise"):
            growing.append(row.expand(2, 12), row[duplicate].expand(2, 2))
    for bad in (torch.ones(3, 3), torch.full((5, 5), float("nan"))):
        with pytest.raises(NotPositiveDefiniteError):
            factor(bad)
    with pytest.raises(NotPositiveDefiniteError):
        growing.append(torch.full((1, 12), torch.nan, dtype=torch.float64), torch.ones(1, 1))
    assert torch.equal(growing.L, kept)
    assert len(growing) == 12


def test_the_root_of_a_covariance_follows_its_units_and_keeps_its_variances():
    rows = torch.rand(6, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    regular, singular = rows.mT @ rows, rows @ rows.mT
    singular[:, 2] = singular[2] = 0.0
    assert torch.equal(covariance_root(regular), torch.linalg.cholesky(regular))
    units = 2.0 ** torch.tensor([-40.0, 0.0, 20.0, 30.0, -300.0, 2.0], dtype=torch.float64)
    root = covariance_root(singular)
    torch.testing.assert_close(root.square().sum(-1), singular.diagonal(), rtol=1e-12, atol=0.0)
    torch.testing.assert_close(root @ root.mT, singular, rtol=1e-6, atol=1e-6)
    assert torch.equal(covariance_root(singular * units * units[:, None]), root * units[:, None])
    negative = singular - 1e-17 * torch.eye(6, dtype=torch.float64)
    assert covariance_root(negative)[2].abs().max() == 0.0


def test_the_root_of_one_element_does_not_depend_on_the_rest_of_the_batch():
    rows = torch.rand(5, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    singular = torch.stack([torch.ones(5, 5, dtype=torch.float64), rows @ rows.mT]).requires_grad_(True)
    root = covariance_root(singular)
    assert torch.equal(root[1], torch.linalg.cholesky(singular[1]))
    (slope,) = torch.autograd.grad(root.sum(), singular)
    assert slope.isfinite().all()
