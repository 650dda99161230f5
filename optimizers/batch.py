"""A batch of query points, named by base, scales and direction addresses, dense only on request."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from optimizers.bounds import Domain
from optimizers.directions.axes import Axes
from optimizers.directions.directions import Directions
from optimizers.directions.groups import GroupDiagonal
from optimizers.directions.hessian_update import CHUNK, compute_dtype, over_root, update

SMALL = 1 << 14
"""Numbers in a block of directions under which it is made whole, to the same bits in fewer calls."""


@dataclass(frozen=True, eq=False)
class Batch:
    """q points to evaluate, in the order in which ``Optimizer.tell`` takes their values.

    Point i is base + scaleᵢ · H^(−1/2) direction(seed, stepᵢ, rowᵢ), or row i of explicit points, mapped to
    user coordinates by the domain. H^(−1/2) is made chunk by chunk from the metric H and not stored. Tensors
    of a batch are read-only by contract: ``base`` may be the optimizer's own iterate.

    Attributes:
        id: number of the batch in its run, from 0.
        base: base point in search coordinates, shape ``d``.
        scales: multiples of the directions, shape ``q``; 0 is the base itself.
        addresses: (step, row) of each point's direction; empty where the points are explicit.
        directions: the addressed directions, None where the points are explicit.
        metric: diagonal H > 0 whose H^(−1/2) multiplies the directions, shape ``d``, float64 or, for a narrower
            base, float32; one number a group; or None for H = 1.
        explicit: explicit points in search coordinates, shape ``q x d``, or None.
        domain: box and change of coordinates, None where the search is in user coordinates without a box.
        info: what a method's ``_tell`` wants to know again (tensors, numbers, strings); saved with the batch.
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

    def __iter__(self) -> Iterator[Tensor]:
        """The points one at a time, each a new tensor of shape ``d`` in user coordinates."""
        return (x for _, x in self.each(range(len(self))))

    def each(self, which: Sequence[int]) -> Iterator[tuple[int, Tensor]]:
        """The given points with their numbers, one at a time, made in blocks of at most ``CHUNK`` numbers."""
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
        """Dimension d of a point."""
        return self.base.numel()

    def point(self, i: int, start: int = 0, stop: int | None = None) -> Tensor:
        """Coordinates ``start:stop`` of point i in user coordinates, a new tensor.

        See ``write_point`` for one that no new tensor is wanted for.
        """
        z = self.search_point(i, start, stop)
        return z if self.domain is None else self.domain.to_user(z, start, stop)

    def search_point(self, i: int, start: int = 0, stop: int | None = None) -> Tensor:
        """Coordinates ``start:stop`` of point i in search coordinates, not confined, a new tensor."""
        part = slice(start, stop)
        if self.explicit is not None:
            return self.explicit[i, part].clone()
        z = self.base[part].clone()
        return self._move(z, i, start)

    def write_point(self, i: int, out: Tensor, start: int = 0) -> Tensor:
        """Coordinates ``start …`` of point i in user coordinates, written over ``out``.

        A module's parameters are set tensor by tensor with it: temporaries are a few chunks, and none where
        ``out`` has the base's dtype and device and there is neither a domain nor a narrow dtype.

        Args:
            i: number of the point.
            out: contiguous vector of any floating dtype on any device; values are rounded to it.
            start: coordinate of its first element.

        Returns:
            ``out``.
        """
        plain = self.explicit is None and self.domain is None
        if plain and (out.dtype, out.device) == (self.base.dtype, self.base.device):
            return self._move(out.copy_(self.base[start : start + out.numel()]), i, start)
        for low in range(0, out.numel(), CHUNK):
            piece = out[low : low + CHUNK]
            piece.copy_(self.point(i, start + low, start + low + piece.numel()))
        return out

    def write_base(self, out: Tensor, start: int = 0) -> Tensor:
        """Coordinates ``start …`` of the base in user coordinates, written over ``out``, as ``write_point``."""
        for low in range(0, out.numel(), CHUNK):
            piece = out[low : low + CHUNK]
            first, last = start + low, start + low + piece.numel()
            z = self.base[first:last]
            piece.copy_(z if self.domain is None else self.domain.to_user(z, first, last))
        return out

    def _move(self, z: Tensor, i: int, start: int) -> Tensor:
        """z += scale · direction in place, each operation rounded once, and to a narrow dtype once."""
        scale = float(self.scales[i])
        if scale == 0.0:
            return z
        if self.directions is None:
            raise ValueError("this batch has explicit points and no directions")
        step, row = self.addresses[i]
        part = slice(start, start + z.numel())
        if self.metric is not None:
            update(z, self.directions, [(step, row, 1.0)], -scale, hessian=self.metric[part], start=start)
        else:
            self.directions.add_to(z, step, row, scale, start)
        return z

    def points(self, which: Sequence[int] | None = None) -> Tensor:
        """All points, or the given ones, in user coordinates, a new tensor of shape ``q x d``."""
        chosen = list(range(len(self)) if which is None else which)
        if self.explicit is not None:
            z = self.explicit[chosen]
            return z if self.domain is None else self.domain.to_user(z)
        if self.base.dtype != compute_dtype(self.base.dtype):
            return torch.stack([self.point(i) for i in chosen])
        z = self.base.repeat(len(chosen), 1)
        moved = [(k, i) for k, i in enumerate(chosen) if float(self.scales[i]) != 0.0]
        if moved:
            rows, points = (list(part) for part in zip(*moved, strict=True))
            z[rows] += self.scales[points, None].to(z.dtype) * self.direction_rows(points)
        return z if self.domain is None else self.domain.to_user(z)

    def direction_rows(self, points: Sequence[int]) -> Tensor:
        """The directions of the given points, H^(−1/2) applied, shape ``len(points) x d``."""
        if self.directions is None:
            raise ValueError("this batch has explicit points and no directions")
        dtype, device = self.base.dtype, self.base.device
        addresses = [self.addresses[i] for i in points]
        steps = {step for step, _ in addresses}
        if len(steps) == 1:
            rows = sorted({row for _, row in addresses})
            block = self.directions.block(steps.pop(), rows, dtype=dtype, device=device)
            index = [rows.index(row) for _, row in addresses]
            block = block if index == list(range(len(rows))) else block[index]
        else:
            block = torch.stack([self.directions.row(step, row, dtype=dtype, device=device) for step, row in addresses])
        if self.metric is not None:
            return over_root(block.to(self.metric.dtype), self.metric).to(dtype)
        return block

    def combine(self, coefficients: Tensor) -> Tensor:
        """Σᵢ cᵢ H^(−1/2) uᵢ over the directions, shape ``d``, one direction at a time.

        Points that have a zero coefficient are skipped; memory is one d-vector and one chunk. All NaN where a
        coefficient is not finite.
        """
        if self.directions is None:
            raise ValueError("this batch has explicit points and no directions")
        if not bool(torch.isfinite(coefficients).all()):
            return torch.full_like(self.base, torch.nan)
        total = torch.zeros_like(self.base)
        used = [(i, c) for i, c in enumerate(coefficients.tolist()) if c != 0.0]
        if used and self._plain() and len(used) * total.numel() <= SMALL:
            rows = self.direction_rows([i for i, _ in used])
            for u, (_, c) in zip(rows, used, strict=True):
                total += u * c
            return total
        for i, c in used:
            self.directions.add_to(total, *self.addresses[i], c)
        if self.metric is not None:
            return over_root(total.to(self.metric.dtype), self.metric).to(total)
        return total

    def _plain(self) -> bool:
        """Whether a direction is added as it is, in the base's own dtype."""
        return self.metric is None and self.base.dtype == compute_dtype(self.base.dtype)

    def same_as(self, other: Batch) -> bool:
        """Whether both name the same points."""
        if self is other:
            return True
        if (self.id, self.addresses, self._named()) != (other.id, other.addresses, other._named()):
            return False
        tensors = ("scales", "base", "explicit", "metric")
        return all(_equal(getattr(self, name), getattr(other, name)) for name in tensors)

    def _named(self) -> dict[str, Any] | None:
        """What names the directions."""
        u = self.directions
        if u is None:
            return None
        return {"seed": u.seed, "d": u.d, "distribution": u.distribution, "generator": u.generator}

    def state_dict(self) -> dict[str, Any]:
        """What makes the batch again, tensors and plain values only."""
        return {
            "id": self.id,
            "base": self.base.clone(),
            "scales": self.scales.clone(),
            "addresses": [list(address) for address in self.addresses],
            "metric": _saved(self.metric),
            "explicit": None if self.explicit is None else self.explicit.clone(),
            "info": {k: v.clone() if isinstance(v, Tensor) else v for k, v in self.info.items()},
            "directions": self._named(),
        }

    @classmethod
    def from_state_dict(cls, state: Mapping[str, Any], domain: Domain | None, device: torch.device) -> Batch:
        """The batch that ``state_dict`` described.

        Raises:
            ValueError: if its directions came from another generator or version of it.
        """
        directions = None
        if (named := state["directions"]) is not None:
            axes = named["distribution"] == "axis"
            directions = Axes(named["d"]) if axes else Directions(named["seed"], named["d"], named["distribution"])
            if directions.generator != named["generator"]:
                raise ValueError(
                    f"the batch's directions are of generator {named['generator']}, this is {directions.generator}"
                )

        def move(value: Any) -> Any:
            return value.to(device).clone() if isinstance(value, Tensor) else value

        return cls(
            id=state["id"],
            base=move(state["base"]),
            scales=move(state["scales"]),
            addresses=tuple((int(step), int(row)) for step, row in state["addresses"]),
            directions=directions,
            metric=_loaded(state["metric"], device),
            explicit=move(state["explicit"]),
            domain=domain,
            info={k: move(v) for k, v in state["info"].items()},
        )


def _saved(metric: Tensor | GroupDiagonal | None) -> Any:
    if isinstance(metric, GroupDiagonal):
        return metric.state_dict()
    return None if metric is None else metric.clone()


def _loaded(saved: Any, device: torch.device) -> Tensor | GroupDiagonal | None:
    if isinstance(saved, Mapping):
        return GroupDiagonal.from_state_dict(saved, device)
    return None if saved is None else saved.to(device).clone()


def _equal(a: Any, b: Any) -> bool:
    if a is None or b is None:
        return a is b
    if isinstance(a, GroupDiagonal) or isinstance(b, GroupDiagonal):
        return isinstance(a, GroupDiagonal) and isinstance(b, GroupDiagonal) and a.same_as(b)
    return a.device == b.device and a.dtype == b.dtype and torch.equal(a, b)
