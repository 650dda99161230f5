"""Standard normals from random bits by additions, multiplications and square roots only.

The last bits of library logarithms and cosines differ between CPUs, vector widths and devices; those of IEEE 754
additions, multiplications and square roots do not. The Box-Muller transform is therefore computed with polynomials in
float32, one operation at a time and without fused multiply-adds.

Words a and b give u = (⌊a/2⌋ + 1/2)/2^31, rounded to float32 after each operation and at most 1 − 2^-24, and r = √(−2
log u). The lower thirty bits of b give θ, |θ| < π/4; the upper two choose a quadrant of the circle: the first negates
the pair (r cos θ, r sin θ), the second swaps it.

|z| is between 2e-13 and √(2·32·log 2) = 6.66, which a normal exceeds with probability 2.7e-11. The relative error of
each number, as a transform of u and θ, is at most 4e-7.
"""

import math

import numpy as np
import torch

LARGEST_LOG2 = 31
SQRT_HALF_BITS = 0x3F3504F3
MANTISSA = 0x7FFFFF
LARGEST = 2.0**31 - 128.0
TWO_LOG_2 = 2.0 * math.log(2.0)
ANGLE = math.pi * 2.0**-33

# Minimax fits, relative error for the logarithm and absolute for the others: 3e-8, 4e-9 and 1e-10.
LOG = (-0.66667819, 0.50002676, -0.39926127, 0.33155170, -0.29829538, 0.28534973, -0.17400861)
"""−2 log(1 + x) = −2 x + x² + x³ P(x) on √½ − 1 <= x <= √2 − 1."""
SIN = (-0.16666655, 0.0083321780, -0.00019517299)
"""sin θ = θ + θ³ P(θ²) on |θ| <= π/4."""
COS = (0.041666646, -0.0013887367, 2.4438452e-05)
"""cos θ = 1 − θ²/2 + θ⁴ P(θ²) on |θ| <= π/4."""


def _polynomial(coefficients: tuple[float, ...], x: torch.Tensor) -> torch.Tensor:
    value = torch.full_like(x, coefficients[-1])
    for coefficient in reversed(coefficients[:-1]):
        value = value * x + coefficient
    return value


def square_root(x: torch.Tensor) -> torch.Tensor:
    """The IEEE square root of a float32 or float64 tensor, with the same bits on every device.

    On the CPU NumPy's is used: `torch.sqrt` calls MKL, which misses the last bit of 1 in 100 float64 numbers.
    """
    if x.device.type == "cpu":
        return torch.from_numpy(np.sqrt(x.detach().numpy()))
    return x.sqrt()


def normal_pairs(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Two independent standard normals for each pair of words: two float32 tensors of the shape of a and b.

    Args:
        a: Random words, an int64 tensor of values in [0, 2^32).
        b: More random words.
    """
    f = ((a >> 1).to(torch.float32) + 0.5).clamp(max=LARGEST)
    n = f.view(torch.int32) - SQRT_HALF_BITS
    x = ((n & MANTISSA) + SQRT_HALF_BITS).view(torch.float32) - 1.0
    near = (_polynomial(LOG, x) * x + 1.0) * (x * x) - x * 2.0
    square = near + (LARGEST_LOG2 - (n >> 23)).to(torch.float32) * TWO_LOG_2
    r = square_root(square)
    r = torch.where(b >> 31 == 1, -r, r)

    angle = ((b << 2) & 0xFFFFFFFF) | 2
    angle = torch.where(angle >= 2**31, angle - 2**32, angle)
    t = angle.to(torch.float32) * ANGLE
    y = t * t
    sine = _polynomial(SIN, y) * y * t + t
    cosine = _polynomial(COS, y) * (y * y) - y * 0.5 + 1.0
    swap = (b >> 30) & 1 == 1
    return r * torch.where(swap, sine, cosine), r * torch.where(swap, cosine, sine)


def normals(words: torch.Tensor) -> torch.Tensor:
    """Converts words, ``... x 4 x 64``, to float32 standard normals, ``... x 256``; i and 128 + i are a pair."""
    return torch.cat(normal_pairs(words[..., :2, :], words[..., 2:, :]), dim=-2).flatten(-2)
