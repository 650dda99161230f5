"""Models of given rows, metric and hyper-parameters."""

import math

import torch

from optimizers.methods.trust_region.models import RegionModel
from optimizers.subproblems.region import Region
from optimizers.subproblems.span import coordinates
from surrogates.pinned.engine import PinnedData


def region_model(rows, heights, metric=None, shape=None, basis=None, outside=None):
    """A model of all variables, or of a basis's coordinates; a metric of d or k variables gets a last coordinate."""
    basis = torch.eye(rows.shape[1], dtype=rows.dtype) if basis is None else basis
    metric = torch.eye(len(basis) + 1, dtype=rows.dtype) if metric is None else metric
    if len(metric) == len(basis):
        metric = torch.block_diag(metric, torch.ones(1, 1, dtype=rows.dtype))
    U = coordinates(basis, rows) @ metric.mT
    R = U.square().sum(1).mean().sqrt()
    return RegionModel(PinnedData.of(U / R, heights).model(shape), metric / R, 1.0, basis, outside)


def ball(delta, d, half_space=None):
    """A region without a box."""
    free = torch.full((d,), math.inf, dtype=torch.float64)
    return Region(delta, -free, free, half_space)
