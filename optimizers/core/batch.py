"""A batch of query points, stored as a base point and addressed directions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from optimizers.core.bounds import Domain
from optimizers.core.state import load, save
from optimizers.directions.directions import Directions, chunks
from optimizers.directions.groups import GroupDiagonal
from optimizers.directions.metric import CHUNK, add_over_root, compute_dtype, over_root

SMALL = 1 << 14
"""The most numbers that are computed in one block, which is faster than row by row and gives the same bits."""


@dataclass(frozen=True, eq=False)
class Batch:
    """q points to evaluate, in the order in which ``Optimizer.tell`` takes their values.

    Point i is base + scaleᵢ · H^(−1/2) direction(seed, stepᵢ, rowᵢ), or row i of explicit points, mapped to user
    coordinates by the domain. H^(−1/2) is computed chunk by chunk and never stored. A batch's tensors must not be
    modified: ``base`` may be the optimizer's own iterate.

    Attributes:
        id: number of the batch in its run, from 0.
        base: base point in search coordinates, shape ``d``.
        scales: multiples of the directions, shape ``q``; a point with scale 0 is the base.
        addresses: (step, row) of each point's direction; empty if the points are explicit.
        directions: the addressed directions; None if the points are explicit.
        metric: the diagonal of H > 0, float64 (float32 for a narrower base), of shape ``d`` or with one number for each
            group of coordinates; None: H = 1.
        explicit: explicit points in search coordinates, shape ``q x d``, or None.
        domain: the box and the search coordinates; None if the search is in user coordinates without a box.
        info: tensors, numbers and strings that a method's ``_tell`` needs from ``_ask``; saved with the batch.
    """

    id: int
    base: Tensor
    scales: Tensor
    addresses: tuple[tuple[int, int], ...] = ()
    directions: Directions | None = None
    explicit: Tensor | None = None
    domain: Domain | None = None
    info: Mapping[str, Any] = field(default_factory=dict)
    metric: Tensor | GroupDiagonal | None = None

    def __post_init__(self) -> None:
        count = len(self.addresses) if self.explicit is None else self.explicit.shape[0]
        if self.scales.shape != (count,):
            raise ValueError(f"scales must have shape ({count},), got {tuple(self.scales.shape)}")
        if self.explicit is None and self.directions is None and bool((self.scales != 0).any()):
            raise ValueError("a batch needs directions or explicit points")

    def __len__(self) -> int:
        return self.scales.numel()

    def __getitem__(self, i: int) -> Tensor:
        """Point i in user coordinates, a new tensor of shape ``d``; negative indices count from the end.

        Raises:
            IndexError: if there is no such point.
        """
        return self.point(range(len(self))[i])

    def __iter__(self) -> Iterator[Tensor]:
        """Yields the points one at a time, each a new tensor of shape ``d`` in user coordinates."""
        return (x for _, x in self.each(range(len(self))))

    def each(self, which: Sequence[int]) -> Iterator[tuple[int, Tensor]]:
        """Yields (i, point i) for the given indices, computed in blocks of at most ``CHUNK`` numbers."""
        rows = CHUNK // self.dimension
        if rows < 2:
            yield from ((i, self.point(i)) for i in which)
            return
        for low in range(0, len(which), rows):
            block = which[low : low + rows]
            for i, x in zip(block, self.points(block), strict=True):
                yield i, x.clone()

    @property
    def dimension(self) -> int:
        """The dimension d of a point."""
        return self.base.numel()

    def point(self, i: int, start: int = 0, stop: int | None = None) -> Tensor:
        """Coordinates ``start:stop`` of point i in user coordinates, a new tensor; see also ``write_point``."""
        return self._to_user(self.search_point(i, start, stop), start, stop)

    def search_point(self, i: int | None, start: int = 0, stop: int | None = None) -> Tensor:
        """A copy of entries ``start:stop`` of point i (None: the base) in search coordinates, before projection."""
        part = slice(start, stop)
        if self.explicit is not None and i is not None:
            return self.explicit[i, part].clone()
        return self._move(self.base[part].clone(), i, start)

    def write_point(self, i: int | None, out: Tensor, start: int = 0) -> Tensor:
        """Overwrites ``out`` with coordinates of point i in user coordinates, and returns it.

        Temporaries have the size of a few chunks. None are made if the batch has no domain and ``out`` has the base's
        device and dtype (float32 or wider).

        Args:
            i: index of the point; None: the base.
            out: contiguous vector of any floating dtype and device; values are rounded to its dtype.
            start: the coordinate of the first element of ``out``.
        """
        plain = self.explicit is None and self.domain is None
        if plain and (out.dtype, out.device) == (self.base.dtype, self.base.device):
            return self._move(out.copy_(self.base[start : start + out.numel()]), i, start)
        for low, high in chunks(out.numel(), self.base.device, CHUNK):
            first, last = start + low, start + high
            out[low:high].copy_(self._to_user(self.search_point(i, first, last), first, last))
        return out

    def _to_user(self, z: Tensor, start: int = 0, stop: int | None = None) -> Tensor:
        return z if self.domain is None else self.domain.to_user(z, start, stop)

    def _move(self, z: Tensor, i: int | None, start: int) -> Tensor:
        """Adds scale · direction to z in place; product and sum are rounded once each, and again to a narrow dtype."""
        if i is None or (scale := float(self.scales[i])) == 0.0:
            return z
        (step, row), directions = self.addresses[i], self._drawn_from()
        if self.metric is not None:
            metric = self.metric[start : start + z.numel()]
            add_over_root(z, directions, step, row, scale, metric, start)
        else:
            directions.add_to(z, step, row, scale, start)
        return z

    def points(self, which: Sequence[int] | None = None) -> Tensor:
        """The points with the given indices (None: all) in user coordinates, a new tensor of shape ``q x d``."""
        chosen = list(range(len(self)) if which is None else which)
        if self.explicit is not None:
            return self._to_user(self.explicit[chosen])
        if self.base.dtype != compute_dtype(self.base.dtype):
            return torch.stack([self.point(i) for i in chosen])
        z = self.base.repeat(len(chosen), 1)
        moved = [(k, i) for k, i in enumerate(chosen) if float(self.scales[i]) != 0.0]
        if moved:
            rows, points = (list(part) for part in zip(*moved, strict=True))
            z[rows] += self.scales[points, None].to(z) * self.direction_rows(points)
        return self._to_user(z)

    def direction_rows(self, points: Sequence[int]) -> Tensor:
        """The directions of the points with the given indices, multiplied by H^(−1/2), shape ``len(points) x d``."""
        directions, dtype, device = self._drawn_from(), self.base.dtype, self.base.device
        addresses = [self.addresses[i] for i in points]
        steps = {step for step, _ in addresses}
        if len(steps) == 1:
            rows = sorted({row for _, row in addresses})
            block = directions.block(steps.pop(), rows, dtype=dtype, device=device)
            index = [rows.index(row) for _, row in addresses]
            block = block if index == list(range(len(rows))) else block[index]
        else:
            block = torch.stack([directions.row(step, row, dtype=dtype, device=device) for step, row in addresses])
        if self.metric is not None:
            return over_root(block.to(self.metric.dtype), self.metric).to(dtype)
        return block

    def combine(self, coefficients: Tensor) -> Tensor:
        """The sum Σᵢ cᵢ H^(−1/2) uᵢ over the points' directions, shape ``d``; NaN if a coefficient is not finite.

        In high dimension directions are added one at a time, without a ``q x d`` temporary.
        """
        directions = self._drawn_from()
        if not bool(torch.isfinite(coefficients).all()):
            return torch.full_like(self.base, torch.nan)
        total = torch.zeros_like(self.base)
        used = [(i, c) for i, c in enumerate(coefficients.tolist()) if c != 0.0]
        plain = self.metric is None and self.base.dtype == compute_dtype(self.base.dtype)
        if used and plain and len(used) * total.numel() <= SMALL:
            rows = self.direction_rows([i for i, _ in used])
            for u, (_, c) in zip(rows, used, strict=True):
                total += u * c
            return total
        for i, c in used:
            directions.add_to(total, *self.addresses[i], c)
        if self.metric is not None:
            return over_root(total.to(self.metric.dtype), self.metric).to(total)
        return total

    def _drawn_from(self) -> Directions:
        if self.directions is None:
            raise ValueError("this batch has explicit points and no directions")
        return self.directions

    def same_as(self, other: Batch) -> bool:
        """Whether both batches have the same ``id`` and bitwise the same points."""
        mine, theirs = ((batch.id, len(batch), batch.base.dtype, batch.base.device) for batch in (self, other))
        return self is other or (mine == theirs and all(map(torch.equal, self, other)))

    def state_dict(self) -> dict[str, Any]:
        """The batch as tensors and plain values, without its domain."""
        tensors = {name: getattr(self, name) for name in ("base", "scales", "metric", "explicit", "info")}
        addresses, u = [list(address) for address in self.addresses], self.directions
        names = ("seed", "d", "distribution", "generator")
        directions = None if u is None else {name: getattr(u, name) for name in names}
        return {"id": self.id, "addresses": addresses, "directions": directions, **save(tensors)}

    @classmethod
    def from_state_dict(cls, state: Mapping[str, Any], domain: Domain | None, device: torch.device) -> Batch:
        """Restores the batch of a ``state_dict`` on a device.

        Raises:
            ValueError: if another generator of directions, or another version of the generator, made the batch.
        """
        directions, metric = None, state["metric"]
        if (origin := state["directions"]) is not None:
            directions = Directions(origin["seed"], origin["d"], origin["distribution"])
            if directions.generator != origin["generator"]:
                raise ValueError(
                    f"the batch's directions need generator {origin['generator']}, "
                    f"but this version has {directions.generator}"
                )
        grouped = isinstance(metric, Mapping)
        return cls(
            id=state["id"],
            addresses=tuple((int(step), int(row)) for step, row in state["addresses"]),
            directions=directions,
            metric=GroupDiagonal.from_state_dict(metric, device) if grouped else load(None, metric, device),
            domain=domain,
            **{name: load(None, state[name], device) for name in ("base", "scales", "explicit", "info")},
        )
