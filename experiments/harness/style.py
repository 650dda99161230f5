"""One look for all figures: a fixed colour, marker and line for each method in every figure of every paper.

Colours are from the palettes of Okabe and Ito (2008) and of Tol (2021), which stay apart under the common
colour deficiencies; marker and line tell apart whatever shares a colour across papers.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.harness.records import Curve

BLACK, ORANGE, SKY, GREEN = "#000000", "#E69F00", "#56B4E9", "#009E73"
BLUE, VERMILION, PURPLE, GREY = "#0072B2", "#D55E00", "#CC79A7", "#7F7F7F"
INDIGO, WINE, OLIVE = "#332288", "#882255", "#999933"
TEAL, SAND, MAGENTA, PINE, BROWN = "#44AA99", "#DDCC77", "#AA4499", "#117733", "#661100"


class MethodStyle(NamedTuple):
    """How a method is drawn and what its legend says."""

    label: str
    color: str
    marker: str
    line: str = "-"


METHODS: dict[str, MethodStyle] = {
    # gradient estimators
    "derived_gp": MethodStyle("derived GP", BLUE, "o"),
    "finite_differences": MethodStyle("finite differences", VERMILION, "s"),
    "orthonormal_differences": MethodStyle("finite differences, orthonormal", ORANGE, "P", "--"),
    "least_squares": MethodStyle("least squares", GREEN, "^", "-."),
    # ZoRD
    "zord": MethodStyle("ZoRD", BLUE, "o"),
    "zord_last": MethodStyle("ZoRD, from the last query", TEAL, "p", "--"),
    "zord_history": MethodStyle("ZoRD, with TuRBO's history", MAGENTA, "H", "-."),
    "zord_kept": MethodStyle("ZoRD, kept information", PINE, "8", "-"),
    "zord_gated": MethodStyle("ZoRD, kept information, gated", BROWN, "*", "-"),
    "zord_random": MethodStyle("ZoRD, kept information, random queries", SKY, "H", "--"),
    "rgf": MethodStyle("RGF", VERMILION, "s"),
    "prgf": MethodStyle("PRGF", ORANGE, "P"),
    "least_squares_gradient": MethodStyle("least-squares gradient", GREEN, "^"),
    "es": MethodStyle("ES", PURPLE, "v"),
    "gld": MethodStyle("GLD", SKY, "D"),
    "turbo1": MethodStyle("TuRBO-1", INDIGO, "X"),
    "turbom": MethodStyle("TuRBO-10", WINE, "d"),
    "cobbo": MethodStyle("CobBO", OLIVE, "<"),
    "cma_es": MethodStyle("CMA-ES", GREY, ">"),
    "latin_hypercube": MethodStyle("best of the Latin hypercube", BLACK, "", ":"),
    "cobyqa": MethodStyle("COBYQA", SAND, "h", ":"),
    "gradient_descent": MethodStyle("gradient descent", BLACK, "", "--"),
    # FZooS
    "fzoos": MethodStyle("FZooS, γ = 1/t", BLUE, "o"),
    "fzoos_one": MethodStyle("FZooS, γ = 1", SKY, "D", "--"),
    "fzoos_adaptive": MethodStyle("FZooS, adaptive γ", BLACK, "*"),
    "fzoos_adaptive_two": MethodStyle("FZooS, adaptive γ at two points", PURPLE, "P"),
    "fzoos_adaptive_five": MethodStyle("FZooS, adaptive γ at five points", MAGENTA, "X"),
    "fzoos_eb": MethodStyle("FZooS, one-way γ", ORANGE, "s"),
    "fzoos_oracle": MethodStyle("FZooS, oracle γ", GREEN, "^"),
    "fzoos_start": MethodStyle("FZooS, γ = 1/t, x' = x_{r−1}", INDIGO, "X", ":"),
    "fzoos_one_start": MethodStyle("FZooS, γ = 1, x' = x_{r−1}", WINE, "h", ":"),
    "fedzo": MethodStyle("FedZO", VERMILION, "s"),
    "fedprox": MethodStyle("FedProx", ORANGE, "P", "--"),
    "scaffold1": MethodStyle("SCAFFOLD I", GREEN, "^"),
    "scaffold2": MethodStyle("SCAFFOLD II", PURPLE, "v"),
    # HiSo
    "hiso": MethodStyle("HiSo", BLUE, "o", "-."),
    "decomfl": MethodStyle("DeComFL", GREEN, "X"),
    "hiso_scalar": MethodStyle("HiSo, scalar H", SKY, "h", "--"),
    "group_probe": MethodStyle("HiSo, group probes", VERMILION, "o"),
    "group_probe_random": MethodStyle("HiSo, random groups probed", ORANGE, "p", "--"),
    "oracle_diagonal": MethodStyle("HiSo, oracle diagonal", BLACK, "D", ":"),
    "fedavg": MethodStyle("FedAvg", BLACK, "d"),
    "fedadam": MethodStyle("FedAdam", PURPLE, "<"),
    "fedyogi": MethodStyle("FedYogi", WINE, ">"),
    "fedadagrad": MethodStyle("FedAdagrad", OLIVE, "*"),
    # Katyusha
    "zo_l_katyusha": MethodStyle("ZO-L-Katyusha, two-point", BLUE, "o", ":"),
    "zo_l_katyusha_ii": MethodStyle("ZO-L-Katyusha, two-point, option II", GREEN, "s", "--"),
    "zo_l_katyusha_full": MethodStyle("ZO-L-Katyusha, (d+1)-point", SKY, "D", "-"),
    "zo_svrg": MethodStyle("ZO-SVRG", VERMILION, "v"),
    "projected_zo": MethodStyle("projected ZO", ORANGE, "<"),
    "accelerated_zo": MethodStyle("accelerated ZO", PURPLE, "X"),
    "accelerated_zo_box": MethodStyle("accelerated ZO, box", WINE, "d", "--"),
    "proximal_gradient": MethodStyle("proximal gradient", BLACK, "", ":"),
    # kernels
    "matern12": MethodStyle("Matérn 1/2", WINE, "v", "--"),
    "matern32": MethodStyle("Matérn 3/2", PURPLE, "d", "-"),
    "matern52": MethodStyle("Matérn 5/2", BLUE, "h", "-"),
    "rbf": MethodStyle("RBF", SKY, "*", "-"),
    # Fourier features
    "cosine": MethodStyle("cosine (FZooS)", VERMILION, "o", "--"),
    "paired": MethodStyle("paired", ORANGE, "v", "-"),
    "orthogonal": MethodStyle("orthogonal", BLUE, "s", "--"),
    "sobol": MethodStyle("Sobol", GREEN, "D", "-"),
}

TRUTH = MethodStyle("truth", BLACK, "", "--")

_RC: Any = {
    "font.size": 9,
    "axes.titlesize": 9,
    "axes.grid": True,
    "grid.color": "#DDDDDD",
    "grid.linewidth": 0.6,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "lines.linewidth": 1.5,
    "lines.markersize": 4.5,
    "legend.frameon": False,
    "figure.dpi": 100,
    "savefig.dpi": 160,
    "pdf.fonttype": 42,
}


@contextmanager
def applied() -> Iterator[None]:
    """The project's matplotlib settings, for the time of the block."""
    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update(_RC)
        yield


def panels(rows: int, columns: int, *, width: float = 3.4, height: float = 2.6, **options: Any) -> tuple[Figure, Any]:
    """A figure without pyplot (nothing global) and its ``rows x columns`` array of axes."""
    figure = Figure(figsize=(width * columns, height * rows), layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False, **options)


def draw(axes: Axes, method: str | MethodStyle, curve: Curve, label: str | None = None) -> None:
    """A method's mean with its standard-error band, in the method's own style or the one given."""
    style = METHODS[method] if isinstance(method, str) else method
    axes.plot(curve.x, curve.mean, color=style.color, marker=style.marker, ls=style.line, label=label or style.label)
    axes.fill_between(
        curve.x,
        curve.mean - curve.standard_error,
        curve.mean + curve.standard_error,
        color=style.color,
        alpha=0.2,
        lw=0,
    )


def draw_posterior(axes: Axes, x: np.ndarray, mean: np.ndarray, sd: np.ndarray, truth: np.ndarray) -> None:
    """A posterior in one dimension, mean and two standard deviations, with the truth."""
    color = METHODS["derived_gp"].color
    axes.fill_between(x, mean - 2 * sd, mean + 2 * sd, color=color, alpha=0.2, lw=0, label="mean ± 2 sd")
    axes.plot(x, mean, color=color, label="posterior mean")
    axes.plot(x, truth, color=TRUTH.color, ls=TRUTH.line, lw=1.2, label=TRUTH.label)


def draw_level(axes: Axes, method: str, level: Curve, until: float, label: str) -> None:
    """A method's one number as a level line from 0, with its standard-error band."""
    style, mean, error = METHODS[method], level.mean[0], level.standard_error[0]
    axes.plot([0, until], [mean, mean], color=style.color, ls=style.line, label=label)
    axes.fill_between([0, until], mean - error, mean + error, color=style.color, alpha=0.2, lw=0)


def shared_legend(figure: Figure, axes: Axes, columns: int) -> None:
    """One legend above all panels, from the entries of one of them."""
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=columns)
