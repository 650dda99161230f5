"""Groups of coordinates, and diagonal matrices with one number for each group."""

from __future__ import annotations

import bisect
import hashlib
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from surrogates.checks import positive_integer

GroupsLike = Any
"""The argument of ``Groups``: None, a number, a module, a sequence of groups, or labels."""


class Groups:
    """A partition of the coordinates 0 … d − 1 into groups 0 … G − 1.

    Groups of consecutive coordinates are stored as their ends, other groups as one label (4 bytes) per coordinate.

    Args:
        given: None: each coordinate is a group. An integer: the number of groups of consecutive coordinates, of sizes
            as equal as possible. A ``torch.nn.Module``, or an object with ``tensor_sizes`` such as ``ModuleObjective``:
            each parameter tensor that requires a gradient is a group. A sequence: each item, a range, slice or indices,
            is a group. An integer tensor, shape ``d``: the group of each coordinate. ``Groups``: the same groups.
        dimension: d.

    Raises:
        ValueError: if groups overlap, are empty, omit a coordinate, or contain an index out of range.
        TypeError: if ``given`` has another type.
    """

    def __init__(self, given: GroupsLike, dimension: int) -> None:
        self.dimension = positive_integer("dimension", dimension)
        self.labels: Tensor | None = None
        self._ends: list[int] | None = None
        self.sizes: Tensor
        if isinstance(given, Groups):
            _check_total(given.dimension, dimension)
            self._ends, self.labels, self.sizes = given._ends, given.labels, given.sizes
        elif isinstance(given, nn.Module):
            self._of_sizes([p.numel() for p in given.parameters() if p.requires_grad and p.numel()])
        elif hasattr(given, "tensor_sizes"):
            self._of_sizes(list(given.tensor_sizes))
        elif given is None:
            self.sizes = torch.ones(dimension, dtype=torch.int64)
        elif isinstance(given, int | np.integer) and not isinstance(given, bool):
            if (count := positive_integer("groups", given)) > dimension:
                raise ValueError(f"groups must be at most {dimension}, the number of coordinates, got {count}")
            ends = [dimension * b // count for b in range(count + 1)]
            self._of_sizes([end - start for start, end in itertools.pairwise(ends)])
        elif isinstance(given, Tensor):
            self._of_labels(given)
        elif isinstance(given, Sequence) and not isinstance(given, str) and len(given):
            members = [_indices(group, dimension) for group in given]
            self._of_labels(_labels(members, dimension), len(members))
        else:
            kinds = "None, a number, a module, a sequence of ranges or indices, or a tensor of labels"
            raise TypeError(f"groups must be {kinds}, got {given!r:.100}")

    def _of_sizes(self, sizes: Sequence[int]) -> None:
        _check_total(sum(sizes), self.dimension)
        self.sizes = torch.tensor(sizes, dtype=torch.int64)
        if len(sizes) < self.dimension:
            self._ends = self.sizes.cumsum(0).tolist()

    def _of_labels(self, labels: Tensor, count: int = 0) -> None:
        if labels.is_floating_point() or labels.dtype == torch.bool or labels.shape != (self.dimension,):
            found = f"{labels.dtype} of shape {tuple(labels.shape)}"
            raise ValueError(f"labels of groups must be integers of shape ({self.dimension},), got {found}")
        if int(labels.min()) < 0:
            raise ValueError(f"labels of groups must be at least 0, got {int(labels.min())}")
        labels = labels.detach().cpu().to(torch.int64)
        self.sizes = torch.bincount(labels, minlength=count)
        if len(empty := (self.sizes == 0).nonzero()):
            raise ValueError(f"group {int(empty[0])} is empty")
        if bool((labels.diff() >= 0).all()):
            self._of_sizes(self.sizes.tolist())
        else:
            self.labels = labels.to(torch.int32)

    def __len__(self) -> int:
        return len(self.sizes)

    @property
    def single(self) -> bool:
        """Whether each coordinate is a group."""
        return len(self) == self.dimension

    def expand(self, values: Tensor, start: int, stop: int) -> Tensor:
        """The values of coordinates start … stop − 1, shape ``stop - start``, from one value for each group."""
        if self.labels is not None:
            return values[self.labels[start:stop].to(values.device, torch.int64)]
        if self._ends is None:
            return values[start:stop]
        first, last = bisect.bisect_right(self._ends, start), bisect.bisect_left(self._ends, stop)
        if first == last:
            return values[first].expand(stop - start).contiguous()
        edges = [start, *self._ends[first:last], stop]
        counts = torch.tensor([b - a for a, b in itertools.pairwise(edges)], device=values.device)
        return torch.repeat_interleave(values[first : last + 1], counts, output_size=stop - start)

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the partition, in hexadecimal."""
        found = hashlib.sha256(f"{self.dimension} {len(self)}".encode())
        found.update((self.sizes if self.labels is None else self.labels).numpy().astype("<i8").tobytes())
        return found.hexdigest()


@dataclass(frozen=True)
class GroupDiagonal:
    """Coordinates start to stop − 1 of a diagonal with one number per group; a slice is another ``GroupDiagonal``.

    Attributes:
        groups: the partition.
        values: shape ``G``, in the dtype and on the device of the diagonal.
        start: first coordinate.
        stop: one past the last; d if None.
    """

    groups: Groups
    values: Tensor
    start: int = 0
    stop: int | None = None

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the diagonal."""
        return self.values.dtype

    @property
    def device(self) -> torch.device:
        """The device of the diagonal."""
        return self.values.device

    def __len__(self) -> int:
        return (self.groups.dimension if self.stop is None else self.stop) - self.start

    def __getitem__(self, part: slice) -> GroupDiagonal:
        low, high, step = part.indices(len(self))
        if step != 1:
            raise ValueError("a GroupDiagonal can only be sliced in steps of 1")
        return GroupDiagonal(self.groups, self.values, self.start + low, self.start + max(low, high))

    def tensor(self) -> Tensor:
        """The slice as a dense vector, shape ``stop - start``."""
        return self.groups.expand(self.values, self.start, self.start + len(self))

    def state_dict(self) -> dict[str, Any]:
        """The whole diagonal, not the slice, as tensors."""
        labels, ends = self.groups.labels, self.groups._ends
        held = {"sizes": self.groups.sizes} if ends is not None else {} if labels is None else {"labels": labels}
        return {"values": self.values.clone(), "dimension": self.groups.dimension} | held

    @classmethod
    def from_state_dict(cls, state: Mapping[str, Any], device: torch.device) -> GroupDiagonal:
        """Restores the diagonal of a ``state_dict``."""
        given = state.get("labels")
        if "sizes" in state:
            given = torch.arange(len(state["sizes"])).repeat_interleave(state["sizes"])
        return cls(Groups(given, int(state["dimension"])), state["values"].to(device).clone())


def _check_total(total: int, dimension: int) -> None:
    if total != dimension:
        raise ValueError(f"groups have {total} coordinates in all, the point has {dimension}")


def _labels(members: list[Tensor], d: int) -> Tensor:
    """Returns the group of each coordinate from the coordinates of each group; raises unless they are a partition."""
    flat = torch.cat(members)
    if bool((wrong := (flat < 0) | (flat >= d)).any()):
        raise ValueError(f"groups name coordinate {int(flat[wrong][0])}, accepted are 0 to {d - 1}")
    times = torch.bincount(flat, minlength=d)
    if bool((times > 1).any()):
        raise ValueError(f"groups overlap: coordinate {int(times.argmax())} is in more than one place")
    if len(missing := (times == 0).nonzero()):
        raise ValueError(f"groups do not cover {len(missing)} of {d} coordinates, the first is {int(missing[0])}")
    numbers = torch.arange(len(members)).repeat_interleave(torch.tensor([len(group) for group in members]))
    return torch.empty_like(flat).scatter_(0, flat, numbers)


def _indices(group: Any, dimension: int) -> Tensor:
    if isinstance(group, slice):
        group = range(*group.indices(dimension))
    if isinstance(group, range):
        return torch.arange(group.start, group.stop, group.step)
    if isinstance(group, Tensor | np.ndarray | Sequence) and not isinstance(group, str):
        found = torch.as_tensor(group)
        if found.ndim == 1 and not found.is_floating_point() and found.dtype != torch.bool:
            return found.cpu().to(torch.int64)
        if found.numel() == 0:
            return found.reshape(-1).to(torch.int64)
    raise TypeError(f"a group must be a range, a slice or indices, got {group!r:.100}")
