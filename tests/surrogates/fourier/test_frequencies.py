"""Draws of frequencies against reference generators, their distributions and the properties of nets."""

import hashlib
import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from gpytorch.kernels import MaternKernel, RBFKernel
from scipy import stats
from torch.quasirandom import SobolEngine

from surrogates.fourier import frequencies
from surrogates.fourier.spectral_density import spectral_density

MASK = 2**64 - 1
KERNELS = {"rbf": RBFKernel(), "matern32": MaternKernel(nu=1.5), "matern52": MaternKernel(nu=2.5)}


def philox4x64_10(counter, key):
    """Salmon et al. (2011), Sec. 3.3, in Python integers."""
    c, k = list(counter), list(key)
    for _ in range(10):
        high0, low0 = divmod(0xD2E7470EE14C6C93 * c[0], 2**64)
        high1, low1 = divmod(0xCA5A826395121157 * c[2], 2**64)
        c = [high1 ^ c[1] ^ k[0], low1, high0 ^ c[3] ^ k[1], low0]
        k = [(k[0] + 0x9E3779B97F4A7C15) & MASK, (k[1] + 0xBB67AE8584CAA73B) & MASK]
    return c


def radius_distribution(name, d):
    if name == "rbf":
        return stats.chi(d).cdf
    nu = {"matern32": 1.5, "matern52": 2.5}[name]
    return lambda r: stats.f(d, 2 * nu).cdf(np.square(r) / d)


def test_reference_generator_meets_the_published_known_answer():
    expected = [0x16554D9ECA36314C, 0xDB20FE9D672D0FDC, 0xD7E772CEE186176B, 0x7E68B68AEC7BA23B]
    assert philox4x64_10((0, 0, 0, 0), (0, 0)) == expected


@pytest.mark.parametrize(("seed", "stream"), [(0, 0), (7, 3), (2**64 - 1, 1)])
def test_raw_integers_are_philox(seed, stream):
    drawn = frequencies.raw_integers(seed, stream, 10)
    expected = [word for i in (1, 2, 3) for word in philox4x64_10((i, 0, 0, 0), (seed, stream))]
    assert drawn.tolist() == expected[:10]


def test_uniforms_are_exact_and_open():
    raw = np.array([0, 2**64 - 1, 1 << 12, 2**63], dtype=np.uint64)
    expected = [0.5 * 2**-52, 1 - 0.5 * 2**-52, 1.5 * 2**-52, 0.5 + 0.5 * 2**-52]
    assert frequencies.to_uniform(raw).tolist() == expected
    assert expected[0] > 0 and expected[1] < 1


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("d", [1, 3, 40])
def test_independent_frequencies_have_the_spectral_distribution(name, d):
    omega = frequencies.independent_frequencies(spectral_density(KERNELS[name], d), 4000, 1)
    assert stats.kstest(np.linalg.norm(omega, axis=1), radius_distribution(name, d)).pvalue > 1e-3
    marginal = stats.norm if name == "rbf" else stats.t({"matern32": 3, "matern52": 5}[name])
    for i in {0, d - 1}:
        assert stats.kstest(omega[:, i], marginal.cdf).pvalue > 1e-3


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("d", [1, 3, 40, 100_000])
def test_radius_inverts_the_distribution_of_the_norm(name, d):
    u = np.array([1e-12, 0.01, 0.3, 0.5, 0.9, 1 - 1e-9])
    given = u if name == "rbf" else 1 - u
    radius = spectral_density(KERNELS[name], d).radius(given)
    np.testing.assert_allclose(radius_distribution(name, d)(radius), u, rtol=1e-6, atol=1e-13)


@pytest.mark.parametrize("name", KERNELS)
def test_orthogonal_frequencies_have_one_radius_in_every_slice(name):
    count = 512
    omega = frequencies.orthogonal_frequencies(spectral_density(KERNELS[name], 7), count, 3)
    slices = radius_distribution(name, 7)(np.linalg.norm(omega, axis=1)) * count
    assert sorted(np.floor(slices).astype(int)) == list(range(count))


@pytest.mark.parametrize(("d", "count"), [(1, 5), (4, 3), (4, 4), (4, 11), (30, 100)])
def test_orthogonal_frequencies_are_orthogonal_in_blocks(d, count):
    omega = frequencies.orthogonal_frequencies(spectral_density(KERNELS["matern52"], d), count, 3)
    omega /= np.linalg.norm(omega, axis=1, keepdims=True)
    for start in range(0, count, d):
        block = omega[start : start + d]
        np.testing.assert_allclose(block @ block.T, np.eye(len(block)), atol=1e-13)
    if count > d > 1:
        assert np.abs(omega[0] @ omega[d]) < 1 - 1e-3


def test_haar_columns_are_haar_distributed():
    d, count = 3, 4000
    normal = stats.norm.ppf(frequencies.uniforms(5, 0, count, d, d))
    Q = frequencies.haar_columns(normal)
    np.testing.assert_allclose(Q.swapaxes(-1, -2) @ Q, np.broadcast_to(np.eye(d), Q.shape), atol=1e-13)
    # One coordinate of a uniform unit vector in three dimensions is uniform on [−1, 1].
    for i in range(d):
        for j in range(d):
            assert stats.kstest(Q[:, i, j], stats.uniform(-1, 2).cdf).pvalue > 1e-3
    # E[Q₁₁Q₂₂] = 0, E[Q₁₁²Q₂₂²] = 2/15 and det = ±1 alike for Haar matrices in three dimensions.
    error = 4 / np.sqrt(count)
    assert abs((Q[:, 0, 0] * Q[:, 1, 1]).mean()) < error / 3
    assert abs((Q[:, 0, 0] * Q[:, 1, 1] * np.linalg.det(Q)).mean()) < error / 3 + 1 / 3
    assert abs(np.square(Q[:, 0, 0] * Q[:, 1, 1]).mean() - 2 / 15) < error / 5
    assert abs((np.linalg.det(Q) > 0).mean() - 0.5) < error / 2


def test_haar_columns_are_invariant_under_rotation_of_rows():
    normal = stats.norm.ppf(frequencies.uniforms(6, 0, 6000, 4, 2))
    Q = frequencies.haar_columns(normal)
    rotation = np.linalg.qr(np.random.default_rng(0).normal(size=(4, 4)))[0]
    for i in range(4):
        joint, rotated = Q[:, i, 0] * Q[:, i, 1], (rotation @ Q)[:, i, 0] * (rotation @ Q)[:, i, 1]
        assert stats.ks_2samp(joint[:3000], rotated[3000:]).pvalue > 1e-3


@pytest.mark.parametrize("seed", [0, 1])
def test_scrambled_sobol_points_stay_a_net(seed):
    points = frequencies._scrambled_sobol(5, 64, seed)
    for i in range(5):
        assert sorted(np.floor(points[:, i] * 64).astype(int)) == list(range(64))
    for a in range(7):
        boxes = np.floor(points[:, 0] * 2**a) * 64 + np.floor(points[:, 1] * 2 ** (6 - a))
        assert len(set(boxes)) == 64
    plain = SobolEngine(5, scramble=False).draw(64, dtype=torch.float64).numpy()
    assert not np.any(np.isclose(points, plain, atol=1e-6))


def test_scrambled_sobol_points_are_uniform_one_by_one():
    first = np.array([frequencies._scrambled_sobol(2, 3, seed) for seed in range(1500)])
    for row in range(3):
        for column in range(2):
            assert stats.kstest(first[:, row, column], "uniform").pvalue > 1e-3


def test_sobol_ends_with_the_engine():
    d = SobolEngine.MAXDIM
    with pytest.raises(ValueError, match=r"21201 dimensions.*orthogonal"):
        frequencies.sobol_frequencies(spectral_density(KERNELS["rbf"], d + 1), 2, 0)
    with pytest.raises(ValueError, match="21201 dimensions"):
        frequencies.sobol_frequencies(spectral_density(KERNELS["matern52"], d), 2, 0)
    assert frequencies.sobol_frequencies(spectral_density(KERNELS["rbf"], d), 2, 0).shape == (2, d)


SCRIPT = """
import hashlib, torch
torch.set_default_dtype(torch.float32)
torch.manual_seed(99)
from gpytorch.kernels import MaternKernel
from surrogates import FourierFeatures
from surrogates.fourier import frequencies
f = FourierFeatures(MaternKernel(nu=2.5), 6, 40, 11, kind="orthogonal")
print(hashlib.sha256(frequencies.uniforms(11, 0, 500).tobytes()).hexdigest())
print(f.fingerprint)
print(*(v.hex() for v in f.frequencies.double().flatten().tolist()))
"""


@pytest.mark.slow
def test_another_process_draws_the_same():
    from surrogates import FourierFeatures

    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "2",
        "ATEN_CPU_CAPABILITY": "default",
        "PYTHONHASHSEED": "5",
    }
    run = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True, env=environment)
    uniforms, fingerprint, values = run.stdout.splitlines()
    ours = FourierFeatures(MaternKernel(nu=2.5), 6, 40, 11, kind="orthogonal")
    assert uniforms == hashlib.sha256(frequencies.uniforms(11, 0, 500).tobytes()).hexdigest()
    assert fingerprint == ours.fingerprint
    theirs = np.array([float.fromhex(v) for v in values.split()]).reshape(20, 6)
    np.testing.assert_allclose(theirs, ours.frequencies.numpy(), rtol=1e-12)
