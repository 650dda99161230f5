"""Plots of sensitivities, partial dependence, the sign of a slope, and gradients in a plane.

Every function draws on a matplotlib axes and returns it. matplotlib is imported when a plot is drawn.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from surrogates.checks import check_integer
from surrogates.inference import outside_inference_mode
from surrogates.normal import positive_probability
from surrogates.plotting import BLACK, BLUE, GREY, VERMILION, WHITE
from surrogates.sensitivity.averages import check_bounds
from surrogates.sensitivity.estimate import Estimate
from surrogates.sensitivity.partial_dependence import PartialDependence

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SURE = 0.975
"""The probability from which a sign is drawn as certain."""


def plot_sensitivity(ax: Axes, estimate: Estimate, *, names: Sequence[str] | None = None, level: float = 0.95) -> Axes:
    """Draws the posterior mean of each input's quantity as a horizontal bar, with the posterior interval.

    Args:
        ax: The axes to draw on.
        estimate: An estimate of shape ``d``, such as ``GradientSensitivity.total_index_bound()``.
        names: The names of the inputs. The default is x₁, …, x_d.
        level: The probability of the intervals.

    Raises:
        ValueError: If the estimate is not of shape ``d``, or there are not d names.
    """
    mean = _one_dimensional("estimate", estimate.mean)
    names = _names(len(mean), names)
    low, high = estimate.interval(level).numpy(force=True)
    at = np.arange(len(mean))
    ax.barh(at, mean, height=0.6, color=BLUE, alpha=0.45)
    ax.hlines(at, low, high, color=BLACK, lw=1.2)
    ax.set_yticks(at, names)
    ax.invert_yaxis()
    ax.grid(False, axis="y")
    ax.set_xlim(left=0.0)
    return ax


def plot_partial_dependence(
    ax: Axes, dependence: PartialDependence, *, of: str = "slope", level: float = 0.95, name: str | None = None
) -> Axes:
    """Draws the posterior mean and pointwise band of a partial dependence, or of its slope.

    For a slope, a line marks 0, and a strip along the horizontal axis marks where the slope is positive (blue) or
    negative (red) with a probability of at least 0.975.

    Args:
        ax: The axes to draw on.
        dependence: A result of ``surrogates.partial_dependence`` for one outcome.
        of: ``"slope"`` or ``"value"``.
        level: The probability of the band at every point.
        name: The name of the input. The default is xᵢ.

    Raises:
        ValueError: If ``of`` is another word, or the dependence has a batch or several outcomes.
    """
    if of not in ("slope", "value"):
        raise ValueError(f'of must be "slope" or "value", got {of!r}.')
    band = dependence.slope if of == "slope" else dependence.value
    grid, mean = dependence.grid.numpy(force=True), _one_dimensional("dependence", band.mean)
    low, high = band.interval(level).numpy(force=True)
    ax.fill_between(grid, low, high, color=BLUE, alpha=0.2, lw=0)
    ax.plot(grid, mean, color=BLUE)
    ax.set_xlabel(_names(dependence.input_index + 1)[-1] if name is None else name)
    if of == "slope":
        ax.axhline(0.0, color=GREY, lw=0.8)
        positive = band.positive_probability().numpy(force=True)
        for sure, color in ((positive >= SURE, BLUE), (positive <= 1 - SURE, VERMILION)):
            ax.fill_between(
                grid, 0.0, 0.03, where=sure, color=color, lw=0, transform=ax.get_xaxis_transform(), step="mid"
            )
    return ax


@outside_inference_mode
@torch.no_grad()
def plot_sign_map(
    ax: Axes,
    model: Any,
    input_index: int,
    bounds: Tensor,
    *,
    plane: tuple[int, int] = (0, 1),
    at: Tensor | None = None,
    resolution: int = 81,
    names: Sequence[str] | None = None,
) -> Axes:
    """Draws the probability that ∂f/∂xᵢ is positive over a plane of two inputs.

    Contour lines at the probabilities 0.975 (solid) and 0.025 (dashed) enclose the regions where the sign is certain.

    Args:
        ax: The axes to draw on; a colour bar is added to the figure.
        model: A model of one outcome with a ``gradient_posterior``.
        input_index: i, in [0, d).
        bounds: The box of all inputs, ``2 x d``.
        plane: The inputs along the horizontal and the vertical axis.
        at: A point, ``d``, at which the other inputs are held. The default is the middle of the box.
        resolution: The number of points along either axis.
        names: The names of all inputs. The default is x₁, …, x_d.

    Raises:
        TypeError: If a tensor is not floating point, or an index is not an integer.
        ValueError: If the box, plane, point or names do not fit, or the model has a batch or several outcomes.
    """
    from matplotlib.colors import LinearSegmentedColormap

    points, horizontal, vertical = _plane(bounds, plane, at, resolution)
    i = check_integer("input_index", input_index, 0, bounds.shape[-1])
    names = _names(bounds.shape[-1], names)
    shown = _probability(model.gradient_posterior(points))[:, i].reshape(resolution, resolution).numpy(force=True)
    colors = LinearSegmentedColormap.from_list("sign", (VERMILION, WHITE, BLUE))
    mesh = ax.pcolormesh(horizontal, vertical, shown.T, cmap=colors, vmin=0, vmax=1, shading="gouraud")
    for sure, line in ((1 - SURE, "--"), (SURE, "-")):
        if shown.min() < sure < shown.max():
            ax.contour(horizontal, vertical, shown.T, levels=[sure], colors=BLACK, linewidths=0.8, linestyles=line)
    ax.figure.colorbar(mesh, ax=ax, label=f"P(∂f/∂{names[i]} > 0)")
    ax.grid(False)
    ax.set(xlabel=names[plane[0]], ylabel=names[plane[1]])
    return ax


@outside_inference_mode
@torch.no_grad()
def plot_gradient_arrows(
    ax: Axes,
    model: Any,
    bounds: Tensor,
    *,
    plane: tuple[int, int] = (0, 1),
    at: Tensor | None = None,
    resolution: int = 11,
    names: Sequence[str] | None = None,
) -> Axes:
    """Draws arrows for the posterior mean of ∇f in a plane of two inputs, fainter where the gradient is uncertain.

    Inputs are in units of the widths of the box, so that the arrows do not depend on units. All arrows have the same
    scale. The opacity of an arrow is ‖μ‖²/(‖μ‖² + tr Σ), with μ and Σ the posterior mean and covariance of the two
    partial derivatives.

    Args:
        ax: The axes to draw on.
        model: A model of one outcome with a ``gradient_posterior``.
        bounds: The box of all inputs, ``2 x d``.
        plane: The inputs along the horizontal and the vertical axis.
        at: A point, ``d``, at which the other inputs are held. The default is the middle of the box.
        resolution: The number of arrows along either axis.
        names: The names of all inputs. The default is x₁, …, x_d.

    Raises:
        TypeError: If a tensor is not floating point.
        ValueError: If the box, plane, point or names do not fit, or the model has a batch or several outcomes.
    """
    points, _, _ = _plane(bounds, plane, at, resolution, inset=0.5 / resolution)
    names = _names(bounds.shape[-1], names)
    mean, variance = _moments(model.gradient_posterior(points))
    widths = (bounds[1] - bounds[0])[list(plane)]
    mean, variance = mean[:, list(plane)] * widths, variance[:, list(plane)] * widths.square()
    squared = mean.square().sum(-1)
    known = (squared / (squared + variance.sum(-1)).clamp_min(torch.finfo(squared.dtype).tiny)).numpy(force=True)
    longest = float(squared.max().sqrt())
    arrows = (mean / longest if longest > 0 else mean).numpy(force=True)
    # The longest arrow is as long as the distance between two of them.
    where = points[:, list(plane)].numpy(force=True)
    ax.quiver(
        *where.T, *arrows.T, color=BLACK, alpha=known, scale=resolution, scale_units="width", width=0.006, pivot="mid"
    )
    xlim, ylim = (bounds[:, k].tolist() for k in plane)
    ax.set(xlim=xlim, ylim=ylim, xlabel=names[plane[0]], ylabel=names[plane[1]])
    ax.grid(False)
    return ax


def _moments(posterior: Any) -> tuple[Tensor, Tensor]:
    """Mean and variance of every partial derivative, ``q x d``, of the mixture where there is one."""
    mixture = hasattr(posterior, "mixture_mean")
    mean = posterior.mixture_mean if mixture else posterior.mean
    return _planar(mean), posterior.mixture_variance if mixture else posterior.variance


def _probability(posterior: Any) -> Tensor:
    """P(∂f/∂xᵢ > 0), ``q x d``, of any posterior of gradients with a mean and a variance."""
    if hasattr(posterior, "mixture_positive_probability"):
        return _planar(posterior.mixture_positive_probability())
    return _planar(positive_probability(posterior.mean, posterior.variance))


def _planar(values: Tensor) -> Tensor:
    if values.dim() != 2:
        raise ValueError(
            f"Plots need a model of one outcome without a batch, got gradients of shape {tuple(values.shape)}."
        )
    return values


def _plane(
    bounds: Tensor, plane: tuple[int, int], at: Tensor | None, resolution: int, inset: float = 0.0
) -> tuple[Tensor, np.ndarray, np.ndarray]:
    """Points of a grid in the plane, ``resolution² x d``, and the values along its two axes."""
    check_bounds(bounds)
    d, count = bounds.shape[-1], check_integer("resolution", resolution, 2)
    if len(plane) != 2 or plane[0] == plane[1]:
        raise ValueError(f"plane must be two different inputs, got {plane!r}.")
    pair = [check_integer("plane", index, 0, d) for index in plane]
    middle = bounds.mean(0) if at is None else at.to(bounds)
    if middle.shape != (d,):
        raise ValueError(f"at must be of shape ({d},), got {tuple(middle.shape)}.")
    shares = torch.linspace(inset, 1.0 - inset, count).to(bounds)
    lines = [bounds[0, k] + (bounds[1, k] - bounds[0, k]) * shares for k in pair]
    points = middle.repeat(count * count, 1)
    points[:, pair] = torch.cartesian_prod(*lines)
    return points, lines[0].numpy(force=True), lines[1].numpy(force=True)


def _one_dimensional(name: str, values: Tensor) -> np.ndarray:
    if values.dim() != 1:
        raise ValueError(f"{name} must be of one outcome without a batch, got the shape {tuple(values.shape)}.")
    return values.numpy(force=True)


def _names(d: int, names: Sequence[str] | None = None) -> list[str]:
    found = [f"x{str(k + 1).translate(_SUBSCRIPTS)}" for k in range(d)] if names is None else list(names)
    if len(found) != d:
        raise ValueError(f"names must have {d} entries, one for every input, got {len(found)}.")
    return found


_SUBSCRIPTS = str.maketrans("0123456789", "₀₁₂₃₄₅₆₇₈₉")
