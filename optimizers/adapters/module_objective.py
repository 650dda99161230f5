"""A torch module as an objective of its parameters, evaluated in place."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import reduce
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from optimizers.core.batch import Batch
from optimizers.core.options import check_integer, check_takes, nearest_name, positive_integer
from optimizers.core.values import parse_values
from optimizers.seeding import seeded

logger = logging.getLogger(__name__)

Data = Tensor | Sequence[Tensor] | Mapping[str, Tensor]

_KEY = 2


class ModuleObjective:
    """The loss of a module as a function of the vector of its parameters.

    Example::

        objective = ModuleObjective(module, lambda module, b: cross_entropy(module(b[0]), b[1]),
                                    data=(inputs, labels), batch_size=32)
        result = minimize(objective, objective.x0(), method="decomfl", max_queries=2000, in_place=True)
        objective.load(result.x)

    With ask and tell: ``opt.tell(batch, objective(batch))``.

    **In place.** The points of a batch are written over the parameters one at a time. After an evaluation, even one
    that raised an exception, the parameters equal the batch's base bit for bit (rounded if their dtype is
    narrower), so the module follows the iterate. A run of DeComFL, or of HiSo with
    ``curvature=GroupProbe(groups=module)``, with ``in_place=True`` needs twice the memory of the parameters: for
    the module and x. The paper's HiSo also stores the vector H; momentum, ``track_best`` and a float32 x of a bfloat16
    module each need as much again. Other methods also store new iterates, moments and whole directions. If a point is
    given as a vector, the parameters are saved before its evaluation and restored afterwards.

    **Restored state.** A query does not change buffers, training modes or the global random state, and records no
    gradient. Random numbers of the loss, as in dropout, are a function of (seed, step), the same for all queries of a
    step.

    **Minibatches.** With ``data`` the loss gets ``batch_size`` rows, drawn without replacement from (seed, step), where
    step is the batch's number: all queries of a step get the same rows. A point given as a vector gets all rows.

    Args:
        module: the module.
        loss_fn: a function ``loss_fn(module)``, or ``loss_fn(module, minibatch)`` with ``data``, that returns a number.
        data: a tensor, or a sequence or mapping of tensors, whose first dimension counts the rows.
        batch_size: the number of rows in a minibatch; None: all rows.
        seed: seed of minibatches and of the loss's random numbers.
        parameters: names of the parameters to optimize, ordered as in ``named_parameters``; None: all that require a
            gradient. A tied parameter may be given by any of its names.

    Raises:
        ValueError: for unknown names, no parameters, data of unequal lengths, or a batch size above this length.
        TypeError: for a module, loss or data of another type.
    """

    def __init__(
        self,
        module: nn.Module,
        loss_fn: Callable[..., Any],
        *,
        data: Data | None = None,
        batch_size: int | None = None,
        seed: int = 0,
        parameters: Iterable[str] | None = None,
    ) -> None:
        if not isinstance(module, nn.Module):
            raise TypeError(f"module must be a torch.nn.Module, got {type(module).__name__}")
        check_takes("loss_fn", loss_fn, "module", *(["minibatch"] if data is not None else []))
        self.module, self.loss_fn = module, loss_fn
        self.seed = check_integer("seed", seed, 0, 2**64)
        self._parameters = _chosen(module, parameters)
        self._offsets = np.cumsum([0] + [p.numel() for p in self._parameters]).tolist()
        self._data = data
        self._rows = 0 if data is None else _length(data)
        if batch_size is not None and data is None:
            raise ValueError("batch_size needs data")
        self.batch_size = self._rows if batch_size is None else positive_integer("batch_size", batch_size)
        if self.batch_size > self._rows:
            raise ValueError(
                f"batch_size must be at most {self._rows}, the number of rows in data, got {self.batch_size}"
            )

    @property
    def dimension(self) -> int:
        """The number of parameters, d."""
        return self._offsets[-1]

    @property
    def tensor_sizes(self) -> tuple[int, ...]:
        """The sizes of the parameter tensors, in the order of the vector."""
        return tuple(p.numel() for p in self._parameters)

    def x0(self, dtype: torch.dtype | None = None) -> Tensor:
        """The parameters as a new vector, shape ``d``.

        Args:
            dtype: dtype of the vector; None: the widest of the parameters. Use float32 for bfloat16 parameters, because
                a bfloat16 iterate rounds small perturbations away.
        """
        dtype = dtype or reduce(torch.promote_types, (p.dtype for p in self._parameters))
        x = torch.empty(self.dimension, dtype=dtype, device=self._parameters[0].device)
        for p, low, high in self._pieces():
            x[low:high].view(p.shape).copy_(p.detach())
        return x

    def load(self, x: Any) -> None:
        """Sets the parameters to a vector of shape ``d``, such as a result's ``x``."""
        x = torch.as_tensor(x)
        self._check_shape(x.shape)
        for p, low, high in self._pieces():
            p.detach().copy_(x[low:high].view(p.shape))

    def __call__(self, at: Tensor | Batch) -> Any:
        """The loss at a point of shape ``d``, a float, or the losses at a batch's points, float64, shape ``q``."""
        if isinstance(at, Batch):
            self._check_shape(at.base.shape)
            try:
                return torch.tensor([self._query(at, i) for i in range(len(at))], dtype=torch.float64)
            finally:
                self._write(at, None)
        if not isinstance(at, Tensor):
            raise TypeError(f"a point must be a tensor of shape ({self.dimension},), got {type(at).__name__}")
        self._check_shape(at.shape)
        saved = [p.detach().clone() for p in self._parameters]
        try:
            self.load(at)
            return self._loss(None)
        finally:
            for p, values in zip(self._parameters, saved, strict=True):
                p.detach().copy_(values)

    def evaluate_at(self, batch: Batch, i: int) -> float:
        """The loss at point i of a batch; the parameters are then set to the batch's base."""
        self._check_shape(batch.base.shape)
        try:
            return self._query(batch, i)
        finally:
            self._write(batch, None)

    def _query(self, batch: Batch, i: int) -> float:
        self._write(batch, i)
        return self._loss(batch.id)

    def _write(self, batch: Batch, i: int | None) -> None:
        """Sets the parameters to point i of a batch, or to its base for None."""
        for p, low, high in self._pieces():
            target = p.detach()
            if target.is_contiguous():
                batch.write_point(i, target.view(-1), low)
            else:
                target.copy_(batch.write_point(i, target.new_empty(high - low), low).view(p.shape))

    def _loss(self, step: int | None) -> float:
        """The loss with the rows and random numbers of a step; None: with all rows, and the numbers of step 0."""
        generator = np.random.Generator(np.random.Philox(key=[self.seed, _KEY], counter=[0, 0, 0, step or 0]))
        torch_seed = int(generator.integers(2**63))
        arguments = []
        if self._data is not None:
            rows = None
            if step is not None and self.batch_size < self._rows:
                drawn = generator.choice(self._rows, self.batch_size, replace=False, shuffle=False)
                rows = torch.from_numpy(drawn)
            arguments.append(_take(self._data, rows))
        devices = (p.device for p in self._parameters)
        with torch.no_grad(), _restored(self.module), seeded(torch_seed, devices):
            value = self.loss_fn(self.module, *arguments)
        return float(parse_values(value, 1))

    def _pieces(self) -> Iterator[tuple[Tensor, int, int]]:
        return zip(self._parameters, self._offsets[:-1], self._offsets[1:], strict=True)

    def _check_shape(self, shape: torch.Size) -> None:
        if tuple(shape) != (self.dimension,):
            raise ValueError(f"the module has {self.dimension} parameters, the point has shape {tuple(shape)}")


def _chosen(module: nn.Module, names: Iterable[str] | None) -> list[Tensor]:
    """The parameters with these names, each once, in the module's order."""
    known = dict(module.named_parameters())
    if names is None:
        candidates = [p for p in known.values() if p.requires_grad]
    else:
        wanted = {names} if isinstance(names, str) else set(names)
        named = dict(module.named_parameters(remove_duplicate=False))
        for name in sorted(wanted - set(named)):
            raise ValueError(f"the module has no parameter {name!r}{nearest_name(name, named)}")
        for name in sorted(wanted - set(known)):
            first = next(other for other, p in known.items() if p is named[name])
            logger.warning("parameters %r and %r are one tensor: both change together", name, first)
        candidates = [p for p in known.values() if any(named[name] is p for name in wanted)]
    chosen: list[Tensor] = [p for p in candidates if p.numel() > 0]
    if not chosen:
        raise ValueError("the module has no parameter that requires a gradient; pass parameters=")
    for p in chosen:
        if not p.is_floating_point():
            raise ValueError(f"parameters must be of a real floating dtype, got {p.dtype}")
        if p.is_meta:
            raise ValueError("parameters on the meta device have no values")
    return chosen


def _tensors(data: Data) -> list[Tensor]:
    if isinstance(data, Tensor):
        return [data]
    parts = list(data.values()) if isinstance(data, Mapping) else list(data)
    if not parts or not all(isinstance(part, Tensor) for part in parts):
        raise TypeError("data must be a tensor, or a sequence or mapping of tensors")
    return parts


def _length(data: Data) -> int:
    lengths = {len(part) if part.ndim else 0 for part in _tensors(data)}
    if len(lengths) != 1 or 0 in lengths:
        raise ValueError(f"the tensors of data must have equally many rows, at least 1, got {sorted(lengths)}")
    return lengths.pop()


def _take(data: Data, rows: Tensor | None) -> Any:
    """The given rows of every tensor of the data, in the data's structure; None: the data."""
    if rows is None:
        return data
    if isinstance(data, Tensor):
        return data[rows.to(data.device)]
    if isinstance(data, Mapping):
        return {name: part[rows.to(part.device)] for name, part in data.items()}
    return tuple(part[rows.to(part.device)] for part in data)


@contextmanager
def _restored(module: nn.Module) -> Iterator[None]:
    """Restores the module's buffers and training modes at the end of the block."""
    buffers = [
        (owner, name, buffer, buffer.clone())
        for owner in module.modules()
        for name, buffer in owner._buffers.items()
        if buffer is not None
    ]
    modes = [(owner, owner.training) for owner in module.modules()]
    try:
        yield
    finally:
        for owner, mode in modes:
            owner.training = mode
        for owner, name, buffer, saved in buffers:
            owner._buffers[name] = buffer.copy_(saved)
