"""Active subspaces of functions of a few combinations of their inputs, and angles against SciPy's."""

import pytest
import torch
from scipy.linalg import subspace_angles

from surrogates import ActiveSubspace, DerivedGP, GradientSensitivity, gaussian_likelihood, matern_kernel, rbf_kernel
from tests.surrogates.gp_models import generator, points

BOX = torch.tensor([[-1.0] * 4, [1.0] * 4], dtype=torch.float64)
W = torch.linalg.qr(torch.tensor([[1.0, 0.2], [1.0, -0.5], [0.5, 1.0], [-1.0, 0.4]], dtype=torch.float64))[0]


def ridge(X):
    """A function of Wᵀx alone, which the first of the two combinations changes more."""
    u = X @ W
    return (2 * u[:, :1]).sin() + 0.5 * u[:, 1:].square()


def model_of(n, make):
    X = points(n, 4)
    return DerivedGP(X, ridge(X), covar_module=make(2.0), likelihood=gaussian_likelihood(1e-6))


@pytest.mark.parametrize("make", [rbf_kernel, matern_kernel])
def test_the_directions_of_a_ridge_function_are_found(make):
    found = GradientSensitivity(model_of(150, make), bounds=BOX, num_points=64, num_samples=64).active_subspace()
    # C in units of the box's widths: four times that per unit of x.
    x = 2 * torch.rand(100_000, 4, generator=generator(0), dtype=torch.float64) - 1
    gradient = torch.stack([2 * (2 * (x @ W[:, 0])).cos(), x @ W[:, 1]], dim=-1) @ W.mT
    expected = 4 * gradient.mT @ gradient / len(x)
    assert torch.allclose(found.eigenvalues[:2], torch.linalg.eigvalsh(expected).flip(0)[:2], rtol=0.1)
    assert float(found.angles(W).quantile(0.95)) < 0.15
    assert torch.allclose(found.eigenvectors.mT @ found.matrix @ found.eigenvectors, torch.diag(found.eigenvalues))


def test_more_data_make_the_directions_more_certain():
    few, many = (
        GradientSensitivity(model_of(n, rbf_kernel), X=points(20, 4, seed=2), num_samples=64).active_subspace()
        for n in (15, 60)
    )
    assert many.angles(2).quantile(0.9) < 0.3 * few.angles(2).quantile(0.9)
    assert many.angles(W).median() < 0.3 * few.angles(W).median()
    width = [torch.diff(found.eigenvalue_posterior().interval(), dim=0)[0, 0] for found in (few, many)]
    assert width[1] < 0.5 * width[0]


def subspace(d=5, samples=6):
    roots = torch.randn(samples + 1, d, d, generator=generator(1), dtype=torch.float64)
    matrices = roots @ roots.mT
    return ActiveSubspace(matrices[0], matrices[1:], torch.ones(d, dtype=torch.float64))


@pytest.mark.slip(
    "surrogates/sensitivity/active_subspace.py",
    "torch.linalg.svdvals(shared)",
    "torch.linalg.svdvals(shared).square()",
    "squared cosines (Björck and Golub 1973)",
)
@pytest.mark.parametrize("k", [1, 2, 5])
def test_angles_are_scipys(k):
    found, basis = subspace(), torch.randn(5, k, generator=generator(3), dtype=torch.float64)
    for given, theirs in ((basis, basis), (k, found.eigenvectors[:, :k])):
        for sample, angles in zip(found.samples, found.angles(given), strict=True):
            leading = torch.linalg.eigh(sample)[1].flip(-1)[:, :k]
            expected = subspace_angles(theirs.numpy(), leading.numpy())[::-1].copy()
            assert torch.allclose(angles, torch.from_numpy(expected), atol=1e-7)


@pytest.mark.parametrize(
    ("basis", "error", "message"),
    [
        (0, ValueError, "at least 1"),
        (6, ValueError, "under 6"),
        (torch.ones(5), ValueError, "5 x k"),
        (torch.ones(4, 1), ValueError, "5 x k"),
        (torch.ones(5, 2), ValueError, "linearly independent"),
        (torch.ones(5, 1) * torch.nan, ValueError, "NaN"),
        (torch.ones(5, 1).long(), TypeError, "floating point"),
        ("two", TypeError, "integer"),
    ],
)
def test_bad_bases(basis, error, message):
    with pytest.raises(error, match=message):
        subspace().angles(basis)
