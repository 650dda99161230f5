"""Helpers that display results: axes, data frames, lines of text."""

from __future__ import annotations

from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SHOWN = 6


def axes_or_new(ax: Axes | None) -> Axes:
    """Returns ``ax``, or axes of a new figure if it is None; pyplot's current figure does not change."""
    if ax is not None:
        return ax
    from matplotlib import pyplot as plt

    current = plt.gcf().number if plt.get_fignums() else None
    made = plt.figure(layout="constrained").add_subplot()
    if current is not None:
        plt.figure(current)
    return made


def mark_failures(ax: Axes, at: Any, label: str) -> None:
    """Marks failures on the horizontal axis at the positions ``at``."""
    if len(at):
        ax.plot(
            at, [0.0] * len(at), "x", color="tab:red", transform=ax.get_xaxis_transform(), clip_on=False, label=label
        )


def import_pandas() -> ModuleType:
    """Imports pandas.

    Raises:
        ImportError: if it is not installed; the message says how to install it.
    """
    try:
        import pandas
    except ImportError as error:
        raise ImportError("to_dataframe needs pandas, which is not installed: pip install pandas") from error
    return pandas


def in_one_line(value: Any) -> str:
    """The value as one line of text: the first entries of a vector, and blanks for line breaks in a string."""
    if not hasattr(value, "shape"):
        return " ".join(str(value).split())
    dtype = str(value.dtype).removeprefix("torch.")
    kind, shape = type(value).__name__, " x ".join(map(str, value.shape))
    numbers = [f"{float(v):.6g}" for v in value.reshape(-1)[:SHOWN]]
    more = ", ..." if value.reshape(-1).shape[0] > SHOWN else ""
    return f"[{', '.join(numbers)}{more}] ({kind}, {dtype}, {shape or 'a number'})"
