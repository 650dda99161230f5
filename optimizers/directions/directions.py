"""Random directions with addresses: coordinate j of direction (seed, step, row) is a fixed number."""

import math
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from scipy.special import betainc

from optimizers.directions import normal, philox
from optimizers.directions.fixed_order import GROUP, divide, group_sums, halved, orthonormalize
from surrogates.checks import check_choice, check_integer
from surrogates.compiled import compiled

_CUDA = "optimizers.directions.directions_triton"
_compiled = compiled("optimizers.directions.directions_numba")

DISTRIBUTIONS = ("normal", "rademacher", "sphere", "coordinate", "orthonormal")
"""The random distributions of `Directions`."""

STREAMS = {"normal": 0, "rademacher": 1, "coordinate": 2}
CHUNK, DEVICE_CHUNK = 1 << 16, 1 << 22
"""Number of coordinates made at a time on the CPU, and on an accelerator (more, since every chunk costs a launch)."""
WIDE = (torch.float32, torch.float64)
Device = torch.device | str | None
MAX_STEP, MAX_ROW, MAX_D = 2**56, 2**32, 2**34


class Directions:
    """Directions u(seed, step, row) in d dimensions, made on demand and never stored.

    Every coordinate is a pure function of its address, with the same bits on every machine and device, for every chunk
    size, thread count and order of requests. The random bits come from Philox4x32-10 (Salmon et al. 2011) with the seed
    as key and (block of coordinates, row, step) as counter. Normals are computed from them by additions,
    multiplications and square roots only (`optimizers.directions.normal`).

    =================  ================================================================  ==============
    distribution       u                                                                 E[u_j²]
    =================  ================================================================  ==============
    ``"normal"``       independent standard normals, each a float32 number, |z| <= 6.66  1
    ``"rademacher"``   independent signs ±1                                              1
    ``"sphere"``       z / ‖z‖, z normal: uniform on the unit sphere                     1/d
    ``"coordinate"``   e_j, a unit vector with j uniform, drawn anew for each row        1/d
    ``"orthonormal"``  rows k d … k d + d − 1 of a step are one Haar-distributed         1/d
                       orthonormal basis (Gram-Schmidt of the normal rows, in order)
    ``"axis"``         e_row, not random; row < d                                        1/d, over rows
    =================  ================================================================  ==============

    E[u uᵀ] = `second_moment` I. Directions are independent, except for the rows of one orthonormal basis.

    **dtype.** A normal or a sign is the same real number in float32 and float64. Sphere and orthonormal coordinates are
    float64 numbers, rounded once to float32. In float16 and bfloat16 the float32 numbers are rounded again.

    **Orthonormal rows** are made in float64 by modified Gram-Schmidt with two sweeps in a fixed order. A row has the
    same bits whether it is requested alone or in a block. q rows cost O(q² d) time; the last step's rows are cached.

    **Devices.** The torch code gives the same bits on any device: its integers stay below 2^49, and its float32
    additions, multiplications and roots are separate kernels, so that none is contracted to a fused multiply-add
    (`torch.compile` would do that). Compiled kernels, where they are installed, give the same bits: numba's on CPUs,
    Triton's on CUDA.

    Args:
        seed: Integer in [0, 2^64).
        d: Dimension, 1 to 2^34.
        distribution: A name in the table.

    Raises:
        ValueError: For a seed or d out of range, or an unknown distribution.
        TypeError: For a seed or d that is not an integer.
    """

    generator = philox.GENERATOR

    def __init__(self, seed: int, d: int, distribution: str = "normal") -> None:
        self.seed = check_integer("seed", seed, 0, 2**64)
        self.d = check_integer("d", d, 1, MAX_D + 1)
        self.distribution = check_choice("distribution", distribution, (*DISTRIBUTIONS, "axis"))
        self._key = (self.seed & philox.MASK, self.seed >> 32)
        self._frame: tuple[tuple[int, int, torch.device], torch.Tensor] | None = None
        self._norms: dict[tuple[int, int], float] = {}

    def __repr__(self) -> str:
        return f"Directions(seed={self.seed}, d={self.d}, distribution={self.distribution!r})"

    @property
    def second_moment(self) -> float:
        """E[u_j²]: 1 for normals and signs, 1/d for unit vectors."""
        return 1.0 if self.distribution in ("normal", "rademacher") else 1.0 / self.d

    @property
    def reach(self) -> float:
        """A bound on |u_j|: 6.7 for normals, 1 for the other distributions."""
        return 6.7 if self.distribution == "normal" else 1.0

    def clipped_share(self, below: torch.Tensor, above: torch.Tensor) -> torch.Tensor:
        """ρ = E[u_j clip(u_j)]/E[u_j²], clip(u) = min(max(u, −a), b): 1 if no bound is active, 0 for a = b = 0.

        For a normal z, ρ = P(−a <= z <= b) by Stein's lemma. For a coordinate v of a unit vector, whose density is
        proportional to (1 − v²)^((d−3)/2), integration by parts gives the same probability in d + 2 dimensions, with
        P(|v| <= t) = I_{t²}(1/2, (d + 1)/2), the regularized incomplete beta function. Signs have ρ = (min(a, 1) +
        min(b, 1))/2; e_j, whose entries are 0 or 1, has ρ = min(b, 1).

        Args:
            below: a >= 0, float64 of any shape; inf for no bound.
            above: b >= 0, of a's shape.
        """
        low, high = below.clamp(max=self.reach), above.clamp(max=self.reach)
        match self.distribution:
            case "coordinate" | "axis":
                return high
            case "rademacher":
                return (low + high) / 2.0
            case "normal":
                share = (torch.erf(low / math.sqrt(2.0)) + torch.erf(high / math.sqrt(2.0))) / 2.0
                return torch.where((low < self.reach) | (high < self.reach), share, 1.0)
        sides = torch.stack((low, high)).square().cpu().numpy()
        return torch.as_tensor(betainc(0.5, (self.d + 1) / 2.0, sides).mean(0)).to(below)

    def axis(self, step: int, row: int) -> int:
        """The axis of a ``"coordinate"`` row: the integer part of d·r/2⁶⁴ for a random 64-bit number r."""
        a, b, *_ = philox.philox4x32((0, row, *self._stream(step, "coordinate")), self._key)
        return int(((a << 32) | b) * self.d) >> 64

    def address(self, step: int) -> tuple[int, int, int, int]:
        """The address of a step for the compiled kernels: Philox's key, and the counter's third and fourth words."""
        return (*self._key, *self._stream(step, self.distribution))

    def row(
        self,
        step: int,
        row: int,
        start: int = 0,
        stop: int | None = None,
        dtype: torch.dtype = torch.float64,
        device: Device = None,
    ) -> torch.Tensor:
        """Coordinates start to stop − 1 of one direction, shape ``stop - start``.

        Args:
            step: Integer in [0, 2^56).
            row: Integer in [0, 2^32).
            start: First coordinate.
            stop: One past the last coordinate; None: d.
            dtype: A floating dtype.
            device: None: the CPU.

        Raises:
            ValueError: For a step, row or coordinate out of range.
            TypeError: For a dtype that is not floating, or an index that is not an integer.
        """
        return self._make(step, [row], start, stop, dtype, device)[0]

    def block(
        self, step: int, rows: int | Sequence[int], dtype: torch.dtype = torch.float64, device: Device = None
    ) -> torch.Tensor:
        """Several directions of one step, ``rows x d``.

        ``rows`` are row numbers, or the number of rows from row 0; see `row` for the other arguments.
        """
        numbers = rows if isinstance(rows, Sequence) else range(check_integer("rows", rows, 0, MAX_ROW + 1))
        return self._make(step, numbers, 0, None, dtype, device)

    def add_to(self, x: torch.Tensor, step: int, row: int, scale: float, start: int = 0) -> torch.Tensor:
        """Adds scale · u to x in place, without a temporary of size d; returns x.

        Product and sum are each rounded once in x's dtype; for a dtype narrower than float32 they are rounded in
        float32, and the result again. The bits do not depend on the device or on how x is split.

        Args:
            x: Floating tensor of any shape and device, whose elements in row-major order are coordinates start, start
                + 1, …. A non-contiguous x is copied temporarily.
            step: Integer in [0, 2^56).
            row: Integer in [0, 2^32).
            scale: Finite factor.
            start: The coordinate of x's first element.

        Raises:
            ValueError: For an address or coordinate out of range, or a scale that is not finite.
            TypeError: For an x that is not a floating tensor.
        """
        if not isinstance(x, torch.Tensor):
            raise TypeError(f"x must be a floating torch.Tensor, got {type(x).__name__}")
        self._check(step, [row], start, start + x.numel(), x.dtype)
        scale = float(scale)
        if not math.isfinite(scale):
            raise ValueError(f"scale must be finite, got {scale}")
        target = x.detach()
        flat = target.reshape(-1)
        if self.distribution == "axis":
            if start <= row < start + flat.numel():
                flat[row - start] += scale
        elif _compiled is not None and x.is_cpu and x.dtype in WIDE and self.distribution in ("normal", "rademacher"):
            array, signs = flat.numpy(), self.distribution == "rademacher"
            _compiled.add(signs, row, *self.address(step), start, array, array[:0], array.dtype.type(scale))
        else:
            compute = x.dtype if x.dtype == torch.float64 else torch.float32
            for low, high in chunks(flat.numel(), x.device, CHUNK):
                piece = flat[low:high]
                u = self.row(step, row, start + low, start + high, compute, x.device)
                piece.copy_(piece.to(compute) + u * scale)
        if not target.is_contiguous():
            target.copy_(flat.view(target.shape))
        torch.autograd.graph.increment_version(x)
        return x

    def _check(
        self, step: int, rows: Sequence[int], start: int, stop: int | None, dtype: torch.dtype
    ) -> tuple[int, list[int], int, int]:
        step = check_integer("step", step, 0, MAX_STEP)
        numbers = [check_integer("row", row, 0, self.d if self.distribution == "axis" else MAX_ROW) for row in rows]
        stop = check_integer("stop", self.d if stop is None else stop, 0, self.d + 1)
        start = check_integer("start", start, 0, stop + 1)
        if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
            raise TypeError(f"dtype must be a floating dtype, got {dtype}")
        return step, numbers, start, stop

    def _make(
        self, step: int, rows: Sequence[int], start: int, stop: int | None, dtype: torch.dtype, device: Device
    ) -> torch.Tensor:
        step, rows, start, stop = self._check(step, rows, start, stop, dtype)
        out = torch.empty(len(rows), stop - start, dtype=dtype, device="cpu" if device is None else device)
        match self.distribution:
            case "axis":
                _unit_vectors(rows, start, out)
            case "coordinate":
                _unit_vectors([self.axis(step, row) for row in rows], start, out)
            case "sphere":
                self._sphere(step, rows, start, out)
            case "orthonormal":
                self._orthonormal(step, rows, start, out)
            case plain:
                self._draw(plain, step, rows, start, out)
        return out

    def _stream(self, step: int, distribution: str) -> tuple[int, int]:
        return step & philox.MASK, (step >> 32) | (STREAMS[distribution] << 24)

    def _draw(self, distribution: str, step: int, rows: Sequence[int], start: int, out: torch.Tensor) -> torch.Tensor:
        """Fills out, ``rows x size``, with normals or signs of the coordinates from `start`."""
        stream, signs = self._stream(step, distribution), distribution == "rademacher"
        if _compiled is not None and out.device.type == "cpu":
            wide = out if out.dtype in WIDE else out.float()
            _compiled.fill(signs, *self._key, np.array(rows, dtype=np.int64), *stream, start, wide.numpy())
            return out if wide is out else out.copy_(wide)
        if out.is_cuda and (kernels := compiled(_CUDA, "triton")) is not None and rows and out.is_contiguous():
            kernels.fill(signs, self._key, rows, stream, start, out)
            return out
        row_numbers = torch.tensor(rows, dtype=torch.int64, device=out.device)
        size = GROUP * 32 if signs else GROUP
        per_chunk = max(1, chunk_size(out.device, CHUNK) // (GROUP * max(1, len(rows))))
        first, last, end = start // size, -(-(start + out.shape[1]) // size), start + out.shape[1]
        for group in range(first, last, per_chunk):
            groups = min(per_chunk, last - group)
            words = philox.words(self._key, row_numbers, stream, group, groups)
            made = (_signs(words) if signs else normal.normals(words)).reshape(len(rows), -1)
            low, high = max(start, group * size), min(end, (group + groups) * size)
            out[:, low - start : high - start] = made[:, low - group * size : high - group * size]
        return out

    def _sphere(self, step: int, rows: Sequence[int], start: int, out: torch.Tensor) -> None:
        for i, row in enumerate(rows):
            norm = self._norm(step, row, out.device)
            for low, high in chunks(out.shape[1], out.device, CHUNK):
                z = torch.empty(1, high - low, dtype=torch.float64, device=out.device)
                self._draw("normal", step, [row], start + low, z)
                out[i, low:high] = _narrow(divide(z[0], norm), out.dtype)

    def _norm(self, step: int, row: int, device: torch.device) -> float:
        """‖z‖ of a normal row, summed in a fixed order."""
        known = self._norms.get((step, row))
        if known is not None:
            return known
        if _compiled is not None and device.type == "cpu":
            partial = np.empty(-(-self.d // GROUP))
            _compiled.sums_of_squares(
                False, row, *self._key, *self._stream(step, "normal"), self.d, partial[:0], partial
            )
            sums = torch.from_numpy(partial)
        else:
            pieces = []
            for low, high in chunks(self.d, device, CHUNK):
                z = torch.empty(1, high - low, dtype=torch.float64, device=device)
                pieces.append(group_sums(self._draw("normal", step, [row], low, z)[0].square()))
            sums = torch.cat(pieces)
        if len(self._norms) >= 1024:
            self._norms.clear()
        norm = self._norms[step, row] = math.sqrt(halved(sums).item())
        return norm

    def _orthonormal(self, step: int, rows: Sequence[int], start: int, out: torch.Tensor) -> None:
        counts: dict[int, int] = {}
        for row in rows:
            counts[row // self.d] = max(counts.get(row // self.d, 0), row % self.d + 1)
        bases = {basis: self._basis(step, basis, count, out.device) for basis, count in counts.items()}
        for i, row in enumerate(rows):
            out[i] = _narrow(bases[row // self.d][row % self.d, start : start + out.shape[1]], out.dtype)

    def _basis(self, step: int, basis: int, count: int, device: torch.device) -> torch.Tensor:
        """At least the first `count` rows of a basis; the tensor is not modified later."""
        key = (step, basis, device)
        known = self._frame[1] if self._frame is not None and self._frame[0] == key else None
        done = 0 if known is None else len(known)
        if known is not None and done >= count:
            return known
        v = torch.empty(count, self.d, dtype=torch.float64, device=device)
        if known is not None:
            v[:done] = known
        self._draw("normal", step, range(basis * self.d + done, basis * self.d + count), 0, v[done:])
        self._frame = (key, orthonormalize(v, done))
        return v


def _unit_vectors(axes: Sequence[int], start: int, out: torch.Tensor) -> None:
    out.zero_()
    for i, j in enumerate(axes):
        if start <= j < start + out.shape[1]:
            out[i, j - start] = 1.0


def _signs(words: torch.Tensor) -> torch.Tensor:
    """±1 from each bit of ``... x 4 x 64`` words: coordinate 256 bit + slot is −1 if the bit is set."""
    shifts = torch.arange(32, device=words.device).view(-1, 1)
    return 1.0 - 2.0 * ((words.flatten(-2).unsqueeze(-2) >> shifts) & 1).to(torch.float32)


def _narrow(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return x if dtype == x.dtype else x.to(torch.float32).to(dtype)


def chunks(size: int, device: torch.device, chunk: int) -> Iterator[tuple[int, int]]:
    """Yields (start, stop) of the parts of 0 … size − 1 that are processed at a time: ``chunk`` on the CPU, or more."""
    chunk = chunk_size(device, chunk)
    for low in range(0, size, chunk):
        yield low, min(size, low + chunk)


def chunk_size(device: torch.device, chunk: int) -> int:
    """The number of coordinates processed at a time on a device: ``chunk`` on the CPU, or more."""
    return chunk if device.type == "cpu" else max(chunk, DEVICE_CHUNK)
