"""What makes a figure unreadable at its printed size."""

import itertools

import numpy as np

from surrogates.plotting import COLUMN, MOST, PAGE, SMALL


def _texts(figure):
    """Every text that is seen."""
    found = [figure._suptitle] if figure._suptitle else []
    found += [text for legend in figure.legends for text in legend.get_texts()]
    for axes in figure.axes:
        for axis, limits in ((axes.xaxis, axes.get_xlim()), (axes.yaxis, axes.get_ylim())):
            low, high = sorted(axis.get_transform().transform(np.array(limits, dtype=float)))
            slack = 1e-6 * (high - low)
            for tick in (*axis.get_major_ticks(), *axis.get_minor_ticks()):
                at = axis.get_transform().transform(np.array([tick.get_loc()], dtype=float))[0]
                if low - slack <= at <= high + slack:
                    found += [label for label in (tick.label1, tick.label2) if label.get_visible()]
            found += [axis.label, axis.offsetText]
        own = axes.get_legend()
        found += [axes.title, *axes.texts, *(own.get_texts() if own else ())]
    return [text for text in found if text.get_visible() and text.get_text().strip()]


def methods_in(axes):
    """How many things a panel's lines, bars and marks are, by their names."""
    _, labels = axes.get_legend_handles_labels()
    return len(set(labels))


def faults(figure):
    """What is wrong with a figure at its own size, wherever its texts come to stand; one line each."""
    width, found = figure.get_figwidth(), []
    if not any(np.isclose(width, asked) for asked in (COLUMN, PAGE)):
        found.append(f"{width:.2f} in wide")
    small = [text for text in _texts(figure) if text.get_fontsize() < SMALL]
    found += [f"{text.get_text()!r} has {text.get_fontsize()} pt" for text in small]
    return found + [f"a panel of {count} methods" for count in map(methods_in, figure.axes) if count > MOST]


def misplaced(figure):
    """The texts that the figure's edge cuts, and those that overlap."""
    figure.draw_without_rendering()
    texts, found = [(text.get_text(), text.get_window_extent()) for text in _texts(figure)], []
    for text, box in texts:
        if box.x0 < -1 or box.y0 < -1 or box.x1 > figure.bbox.x1 + 1 or box.y1 > figure.bbox.y1 + 1:
            found.append(f"{text!r} is cut")
    for (one, a), (other, b) in itertools.combinations(texts, 2):
        if min(a.x1, b.x1) - max(a.x0, b.x0) > 1 and min(a.y1, b.y1) - max(a.y0, b.y0) > 1:
            found.append(f"{one!r} and {other!r} overlap")
    return found
