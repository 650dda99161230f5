"""Forward differences along coordinate axes: batches that name their axes, derivatives from their values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from optimizers.batch import Batch
from optimizers.bounds import Domain
from optimizers.directions.axes import Axes


def axes_batch(
    number: int,
    x: Tensor,
    axes: Sequence[int],
    smoothing_radius: float,
    domain: Domain | None = None,
    info: Mapping[str, Any] | None = None,
) -> Batch:
    """The points x and x ± βe_j, j in ``axes``: |axes| + 1 queries.

    The sign is +, as in Katyusha's eq. 3, except where queries are confined to a box that has more room on
    the other side: x at its upper bound would otherwise never see the derivative that leads away from it.

    Args:
        number: the batch's number in its run.
        x: base point in search coordinates, shape ``d``.
        axes: coordinate numbers.
        smoothing_radius: β, in search coordinates.
        domain: box and change of coordinates, or None.
        info: kept with the batch.
    """
    scales = torch.full((len(axes) + 1,), smoothing_radius, dtype=torch.float64)
    scales[0] = 0.0
    if domain is not None and domain.confine:
        at = torch.as_tensor(axes, device=x.device)
        above, below = domain.search_upper[at] - x[at], x[at] - domain.search_lower[at]
        scales[1:][((above < smoothing_radius) & (below > above)).cpu()] *= -1.0
    addresses = ((0, 0), *((0, int(j)) for j in axes))
    return Batch(number, x, scales, addresses, Axes(x.numel()), domain=domain, info=info or {})


def axis_derivatives(batch: Batch, values: Tensor) -> Tensor:
    """(f(x + βe_j) − f(x))/β for the axes of an ``axes_batch``, shape ``|axes|``; NaN where a query failed.

    β is the displacement as it was rounded and confined; where none is left the derivative is 0.
    """
    base = batch.base
    at = torch.tensor([j for _, j in batch.addresses[1:]], device=base.device)
    before = base[at]
    after = before + batch.scales[1:].to(base)
    if batch.domain is not None and batch.domain.confine:
        after = torch.clamp(after, batch.domain.search_lower[at], batch.domain.search_upper[at])
    displacement = (after - before).to(values.dtype)
    derivatives = (values[1:] - values[0]) / displacement
    return torch.where(displacement == 0.0, 0.0, derivatives)
