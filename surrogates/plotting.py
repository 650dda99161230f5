"""The style of all figures: a fixed colour, marker and line for each method, and panels at printed size.

Colours are from the palettes of Okabe and Ito (2008) and of Tol (2021), which are distinguishable with the common
colour vision deficiencies. Methods of the same colour differ in marker or line.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BLACK, ORANGE, SKY, GREEN = "#000000", "#E69F00", "#56B4E9", "#009E73"
BLUE, VERMILION, PURPLE, GREY, WHITE = "#0072B2", "#D55E00", "#CC79A7", "#7F7F7F", "#FFFFFF"
INDIGO, WINE, OLIVE = "#332288", "#882255", "#999933"
TEAL, SAND, MAGENTA, PINE, BROWN = "#44AA99", "#DDCC77", "#AA4499", "#117733", "#661100"

_COLORS = (BLUE, VERMILION, GREEN, PURPLE, ORANGE, SKY, INDIGO, WINE, OLIVE, TEAL, MAGENTA, PINE, BROWN)
_MARKERS, _LINES = "osD^vP<>XphH8d*", ("-", "--", "-.", ":")

Cell = TypeVar("Cell")


class Curve(NamedTuple):
    """The mean over seeds and the standard error of the mean, as functions of ``x``."""

    x: np.ndarray
    mean: np.ndarray
    standard_error: np.ndarray


class MethodStyle(NamedTuple):
    """The label, colour, marker and line of a method."""

    label: str
    color: str
    marker: str
    line: str = "-"


class Styles(dict[str, MethodStyle]):
    """A dictionary of styles by method. A method without an entry gets a style that depends on its name only."""

    def __missing__(self, method: str) -> MethodStyle:
        number = zlib.crc32(method.encode())
        picked = []
        for choices in (_COLORS, _MARKERS, _LINES):
            number, at = divmod(number, len(choices))
            picked.append(choices[at])
        return MethodStyle(method.replace("_", " "), *picked)


METHODS = Styles(
    {
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
        "cobyqa_wide": MethodStyle("COBYQA, our radius", TEAL, "h", "-."),
        "newuoa": MethodStyle("NEWUOA", OLIVE, "<", "--"),
        "newuoa_wide": MethodStyle("NEWUOA, our radius", OLIVE, "<", "-."),
        "bobyqa": MethodStyle("BOBYQA", WINE, "d", "--"),
        "bobyqa_wide": MethodStyle("BOBYQA, our radius", WINE, "d", "-."),
        "py_bobyqa": MethodStyle("Py-BOBYQA", MAGENTA, "H", "--"),
        "py_bobyqa_noisy": MethodStyle("Py-BOBYQA, told of the noise", MAGENTA, "H", "-."),
        "lq_cma": MethodStyle("lq-CMA-ES", GREY, ">", "--"),
        "ngopt": MethodStyle("NGOpt", SAND, "v", "--"),
        "log_ei": MethodStyle("Bayesian optimization, LogEI", GREEN, "D", "--"),
        "pybads_noisy": MethodStyle("PyBADS, told of the noise", GREEN, "D", "-."),
        "cobyla": MethodStyle("COBYLA", GREEN, "P", "-."),
        "slsqp": MethodStyle("SLSQP", VERMILION, "s", "-."),
        "scbo": MethodStyle("SCBO", INDIGO, "X", "-."),
        "optuna_tpe": MethodStyle("optuna, TPE", ORANGE, "P", "-."),
        "smac": MethodStyle("SMAC", BLUE, "D", ":"),
        "optuna_gp": MethodStyle("optuna, GP", PURPLE, "D", "-."),
        "l_bfgs_b": MethodStyle("L-BFGS-B", VERMILION, "s", "--"),
        "nelder_mead": MethodStyle("Nelder-Mead", PURPLE, "v", "--"),
        "local_entropy": MethodStyle("Local Entropy Search", MAGENTA, "D", "-."),
        "nest_bo": MethodStyle("NeST-BO's rule", OLIVE, "X", "-."),
        "random": MethodStyle("random search", BLACK, "", ":"),
        "noise": MethodStyle("uniform noise", GREY, "", ":"),
        "sobol_search": MethodStyle("Sobol' search", GREY, "", ":"),
        "trust_region": MethodStyle("trust region on the GP", BLUE, "o"),
        "trust_region_8": MethodStyle("trust region on the GP, 8 at a time", INDIGO, "o", "--"),
        "default": MethodStyle("trust region, the default", BLACK, "*", "--"),
        "gradient_descent": MethodStyle("gradient descent", BLACK, "", "--"),
        # FZooS
        "fzoos": MethodStyle("FZooS, γ = 1/t", BLUE, "o"),
        "fzoos_one": MethodStyle("FZooS, γ = 1", SKY, "D", "--"),
        "fzoos_adaptive": MethodStyle("FZooS, adaptive γ", BLACK, "*"),
        "fzoos_adaptive_two": MethodStyle("FZooS, adaptive γ at two points", PURPLE, "P"),
        "fzoos_adaptive_five": MethodStyle("FZooS, adaptive γ at five points", MAGENTA, "X"),
        "fzoos_eb": MethodStyle("FZooS, one-way γ", ORANGE, "s"),
        "fzoos_oracle": MethodStyle("FZooS, oracle γ", GREEN, "^"),
        "fzoos_settling": MethodStyle("FZooS, adaptive γ, settling rate", WINE, "h"),
        "fzoos_start": MethodStyle("FZooS, γ = 1/t, x' = xᵣ₋₁", INDIGO, "X", ":"),
        "fzoos_one_start": MethodStyle("FZooS, γ = 1, x' = xᵣ₋₁", WINE, "h", ":"),
        "fedzo": MethodStyle("FedZO", VERMILION, "s"),
        "fedprox": MethodStyle("FedProx, γ = 1", ORANGE, "P", "--"),
        "fedprox_d": MethodStyle("FedProx, γ = d (authors' program)", OLIVE, "<", "-."),
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
        "zo_l_katyusha": MethodStyle("ZO-L-Katyusha, two-point, option I", BLUE, "o", ":"),
        "zo_l_katyusha_ii": MethodStyle("ZO-L-Katyusha, two-point, option II", GREEN, "s", "--"),
        "zo_l_katyusha_full": MethodStyle("ZO-L-Katyusha, (d+1)-point", SKY, "D", "-"),
        "zo_l_katyusha_full_ours": MethodStyle("(d+1)-point without weight on w (ours)", PURPLE, "P", "--"),
        "zo_svrg": MethodStyle("ZO-SVRG", VERMILION, "v"),
        "projected_zo": MethodStyle("projected ZO", ORANGE, "<"),
        "accelerated_zo": MethodStyle("accelerated ZO", PURPLE, "X"),
        "accelerated_zo_box": MethodStyle("accelerated ZO, box", WINE, "d", "--"),
        "accelerated_zo_printed": MethodStyle("accelerated ZO, printed sign", ORANGE, "<", ":"),
        "nesterov_spokoiny": MethodStyle("Nesterov and Spokoiny", GREEN, "^", "-."),
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
)
"""The styles of all methods in this project's figures, by the methods' names in records."""


def distinct(methods: Sequence[str]) -> list[MethodStyle]:
    """Returns styles of methods with different colours, until all colours are used.

    A method without an entry in ``METHODS``, or with the colour of an earlier method, gets the next free colour.
    """
    styles: dict[str, MethodStyle] = {}
    for method in sorted(methods, key=lambda method: method not in METHODS):
        taken = {style.color for style in styles.values()}
        free = [METHODS[method].color, *_COLORS]
        color = next((color for color in free if color not in taken), free[0])
        styles[method] = METHODS[method]._replace(color=color)
    return [styles[method] for method in methods]


COLUMN, PAGE = 3.4, 7.0
"""Printed widths in inches: of one column of a paper, and of the page."""

SMALL = 7
"""The smallest font size in points."""

MOST = 7
"""The largest number of methods in a panel."""

_RC: Any = {
    "font.size": 8,
    "axes.titlesize": 8,
    "axes.labelsize": 8,
    "xtick.labelsize": SMALL,
    "ytick.labelsize": SMALL,
    "legend.fontsize": SMALL,
    "legend.columnspacing": 1.4,
    "legend.handlelength": 2.4,
    "axes.linewidth": 0.6,
    "axes.titlepad": 4.0,
    "axes.labelpad": 2.0,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "axes.grid": True,
    "grid.color": "#DDDDDD",
    "grid.linewidth": 0.5,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "lines.linewidth": 1.2,
    "lines.markersize": 3.5,
    "legend.frameon": False,
    "figure.dpi": 100,
    "savefig.dpi": 200,
    "pdf.fonttype": 42,
}


@contextmanager
def applied() -> Iterator[None]:
    """Applies the project's matplotlib settings within a ``with`` block."""
    import matplotlib as mpl

    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update(_RC)
        yield


def panels(
    rows: int, columns: int, *, height: float = 1.75, width: float | None = None, **options: Any
) -> tuple[Figure, Any]:
    """Makes a figure of printed width, independent of pyplot, and returns it with its ``rows x columns`` axes.

    Args:
        rows: The number of rows of panels.
        columns: The number of panels in a row.
        height: The height of a row in inches, without legends and titles.
        width: The width of the figure in inches. The default is ``COLUMN`` for one panel in a row, otherwise ``PAGE``.
        **options: Options of matplotlib's ``subplots``.
    """
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    size = (width or (COLUMN if columns == 1 else PAGE), height * rows)
    figure = Figure(figsize=size, layout=ConstrainedLayoutEngine(w_pad=0.03, h_pad=0.03))
    return figure, figure.subplots(rows, columns, squeeze=False, **options)


def grid(
    cells: Mapping[str, Cell],
    draw_cell: Callable[[Axes, Cell], object],
    *,
    xlabel: str,
    ylabel: str,
    columns: int = 3,
    legend: bool = True,
    **options: Any,
) -> Figure:
    """Makes a figure with a panel for each cell, row by row, and a common legend below.

    Args:
        cells: The data of each panel, by the title of the panel.
        draw_cell: A function that draws one panel, called as ``draw_cell(axes, cell)``.
        xlabel: The label of the horizontal axis of every panel.
        ylabel: The label of the vertical axis of the first panel in each row.
        columns: The largest number of panels in a row.
        legend: Whether to add the legend, with the entries of the first panel.
        **options: Options of ``panels``.
    """
    columns = min(columns, len(cells))
    figure, axes = panels(-(-len(cells) // columns), columns, **options)
    for panel in axes.flat[len(cells) :]:
        panel.remove()
    for panel, (title, cell) in zip(axes.flat, cells.items(), strict=False):
        draw_cell(panel, cell)
        panel.set(title=title, xlabel=xlabel)
    for row in axes:
        row[0].set_ylabel(ylabel)
    if legend:
        shared_legend(figure, axes[0, 0])
    return figure


def draw(axes: Axes, method: str | MethodStyle, found: Curve, label: str | None = None) -> None:
    """Draws a mean with a band of one standard error and about six markers, in the style of ``method``."""
    style = METHODS[method] if isinstance(method, str) else method
    look: Any = {"color": style.color, "marker": style.marker, "ls": style.line, "label": label or style.label}
    axes.plot(found.x, found.mean, markevery=max(1, len(found.x) // 6), **look)
    low, high = found.mean - found.standard_error, found.mean + found.standard_error
    axes.fill_between(found.x, low, high, color=style.color, alpha=0.15, lw=0)


def shared_legend(figure: Figure, axes: Axes) -> None:
    """Adds a legend below all panels, with the entries of one panel, in as few lines as the width allows.

    The figure grows by the height of the legend, so that the panels keep their size.
    """
    handles, labels = axes.get_legend_handles_labels()
    for lines in range(1, len(labels) + 1):
        legend = figure.legend(handles, labels, loc="outside lower center", ncols=-(-len(labels) // lines))
        box = legend.get_window_extent()
        if box.width <= figure.bbox.width or lines == len(labels):
            break
        legend.remove()
    _grow(figure, box.height / figure.dpi)


def head(figure: Figure, text: str) -> None:
    """Adds a line of text above all panels, below earlier lines. The figure grows by the height of the line."""
    above = figure.get_suptitle()
    title = figure.suptitle(f"{above}\n{text}" if above else text, fontsize=8)
    _grow(figure, title.get_window_extent().height / figure.dpi / (2 if above else 1) + 0.05)


def _grow(figure: Figure, inches: float) -> None:
    width, height = figure.get_size_inches()
    figure.set_size_inches(width, height + inches)
