"""Reproducible draws of random Fourier frequencies.

The generator is Philox4x64-10 (Salmon et al., 2011) with the key (seed, stream), started at counter 0. Exact arithmetic
turns its integers into uniforms in (0, 1); both are bitwise the same on every machine. The later steps (inverse
distribution functions of scipy, Householder products of LAPACK) may differ in the last digit between builds.
``torch.randn`` is not suitable: its numbers depend on the processor's vector instructions and on dtype.

References:
    J. K. Salmon et al., Parallel random numbers: as easy as 1, 2, 3, SC 2011.
    F. X. Yu et al., Orthogonal random features, NeurIPS 2016.
    G. W. Stewart, The efficient generation of random orthogonal matrices, SIAM J. Numer. Anal. 17, 1980.
    A. B. Owen, Monte Carlo theory, methods and examples, ch. 17 (scrambled nets); J. Matoušek, On the
        L2-discrepancy for anchored boxes, J. Complexity 14, 1998 (linear scrambling).
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import ndtri
from torch.quasirandom import SobolEngine

from surrogates.fourier.spectral_density import Array, SpectralDensity

GENERATOR = "philox4x64-10/1"

DIRECTIONS, RADII, PHASES, SCRAMBLE, SHIFT = range(5)
_SOBOL_BITS = 30


def raw_integers(seed: int, stream: int, count: int) -> NDArray[np.uint64]:
    """The first ``count`` 64-bit integers of Philox4x64-10 under the key (seed, stream)."""
    return np.random.Philox(key=np.array([seed, stream], dtype=np.uint64)).random_raw(count)


def to_uniform(raw: NDArray[np.uint64]) -> Array:
    """(⌊raw/2¹²⌋ + ½)/2⁵², which is exact in float64 and never 0 or 1."""
    return ((raw >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52


def uniforms(seed: int, stream: int, *shape: int) -> Array:
    """Independent uniforms in (0, 1) of the given shape, bitwise the same everywhere."""
    return to_uniform(raw_integers(seed, stream, int(np.prod(shape)))).reshape(shape)


def independent_frequencies(density: SpectralDensity, count: int, seed: int) -> Array:
    """Independent draws of ω, ``count x dim``; the first draws do not depend on ``count``."""
    omega = ndtri(uniforms(seed, DIRECTIONS, count, density.dim))
    return omega * density.mixing_scale(uniforms(seed, RADII, count))[:, None]


def orthogonal_frequencies(density: SpectralDensity, count: int, seed: int) -> Array:
    """Draws of ω, ``count x dim``, orthogonal within blocks of ``dim`` rows.

    Directions are the columns of independent Haar matrices. The radii are a stratified sample, independent of the
    directions: one from each of ``count`` equally likely intervals of the distribution of ‖ω‖, in ascending order. A
    row picked at random has ω's exact distribution, so averages over the rows are unbiased. Yu et al. draw radii
    independently. Stratification reduces the effect of Matérn's heavy tail and gives the rows of a block nearly equal
    lengths, for which orthogonality helps most.
    """
    dim = density.dim
    radii = density.radius((np.arange(count) + uniforms(seed, RADII, count)) / count)
    full, rest = divmod(count, dim)
    normal = ndtri(uniforms(seed, DIRECTIONS, count * dim))
    directions = np.empty((count, dim))
    if full:
        columns = haar_columns(normal[: full * dim * dim].reshape(full, dim, dim))
        directions[: full * dim] = columns.swapaxes(-1, -2).reshape(-1, dim)
    if rest:
        directions[full * dim :] = haar_columns(normal[full * dim * dim :].reshape(dim, rest)).T
    return directions * radii[:, None]


def haar_columns(normal: Array) -> Array:
    """The first k columns of Haar-distributed orthogonal matrices, from normal numbers of the shape ``batch x d x k``.

    In a QR factorisation of a normal matrix, the vector that step j reflects is normal, of length d − j, and
    independent of the earlier steps. The reflections can therefore be made directly from the lower trapezoid (Stewart
    1980), in half the operations.
    """
    lower = np.tril(normal)
    norm = np.sqrt(np.square(lower).sum(axis=-2))
    diagonal = np.diagonal(normal, axis1=-2, axis2=-1)
    sign = np.where(diagonal < 0, -1.0, 1.0)
    reflectors = lower / (diagonal + sign * norm)[..., None, :]
    tau = 1 + np.abs(diagonal) / norm
    columns = torch.linalg.householder_product(torch.from_numpy(reflectors), torch.from_numpy(tau))
    return columns.numpy() * sign[..., None, :]


def sobol_frequencies(density: SpectralDensity, count: int, seed: int) -> Array:
    """Draws of ω, ``count x dim``, from a scrambled Sobol' net by inversion; each draw has the exact distribution.

    The points of torch's ``SobolEngine`` get a random linear scramble (a random non-singular lower triangular binary
    matrix per dimension) and a digital shift of 52 bits, both from Philox. For Matérn, the first dimension gives χ²_2ν.

    Raises:
        ValueError: If more dimensions are needed than ``SobolEngine`` has.
    """
    mixed = density.nu is not None
    needed = density.dim + mixed
    if needed > SobolEngine.MAXDIM:
        raise ValueError(
            f"Sobol' sequences have at most {SobolEngine.MAXDIM} dimensions; {density.name} features in {density.dim} "
            f"dimensions need {needed}. Use kind='orthogonal'."
        )
    points = _scrambled_sobol(needed, count, seed)
    omega = ndtri(points[:, mixed:])
    return omega * density.mixing_scale(points[:, 0])[:, None] if mixed else omega


def _scrambled_sobol(dim: int, count: int, seed: int) -> Array:
    points = SobolEngine(dim, scramble=False).draw(count, dtype=torch.float64).numpy()
    digits = (points * 2.0**_SOBOL_BITS).astype(np.uint64)
    random = raw_integers(seed, SCRAMBLE, _SOBOL_BITS * dim).reshape(_SOBOL_BITS, dim)
    scrambled = np.zeros_like(digits)
    one = np.uint64(1)
    for bit in range(_SOBOL_BITS):
        pivot = one << np.uint64(bit)
        image = (random[bit] & (pivot - one)) | pivot
        scrambled ^= ((digits >> np.uint64(bit)) & one) * image
    shift = raw_integers(seed, SHIFT, dim) >> np.uint64(12)
    return (((scrambled << np.uint64(52 - _SOBOL_BITS)) ^ shift).astype(np.float64) + 0.5) * 2.0**-52
