"""The progress of a run: a bar in terminals and notebooks, lines of the log elsewhere."""

from __future__ import annotations

import logging
import math
import multiprocessing
import sys
import time
import warnings
from datetime import timedelta
from types import TracebackType
from typing import Any, Literal, Self

from tqdm import TqdmWarning

ProgressMode = Literal["auto"] | bool

DELAY, REDRAW, LOG_EVERY = 1.0, 0.1, 30.0  # seconds

logger = logging.getLogger(__name__)


class Progress:
    """Shows how far a run is: steps done and to do, the best value, failed queries, and the time left.

    Example::

        with Progress("auto", total=200, name="ZoRD", unit="query") as show:
            show(12, best=0.37, failures=1)

    Under ``"auto"`` the main process shows a bar on standard error if that is a terminal, and in notebooks; it appears
    when the run has lasted 1 s, so that short runs show none. Elsewhere a line goes to this module's logger at level
    INFO, at most every 30 s. True shows a bar at once and wherever standard error leads, and False shows nothing.
    A call takes the time of reading the clock unless something is due; a call with the same counts moves the clock.

    Args:
        mode: ``"auto"``, True or False.
        total: the number of steps of the whole run.
        done: the number of steps done before, by a run that is resumed.
        name: what runs.
        unit: the name of a step in the singular.

    Raises:
        ValueError: for another mode.
    """

    def __init__(self, mode: ProgressMode, *, total: int, done: int = 0, name: str, unit: str) -> None:
        if not isinstance(mode, bool) and mode != "auto":
            raise ValueError(f"progress must be 'auto', True or False, got {mode!r}")
        self.mode, self.total, self.name, self.unit = mode, total, name, unit
        self._before = done
        self._now: tuple[int, float, int, int | None] = (done, math.nan, 0, None)
        self._bar: Any = None
        self._shown: tuple[int, float, int, int | None] | None = None
        self._draws = False
        self._start, self._due = 0.0, math.inf

    def __enter__(self) -> Self:
        self._start = time.monotonic()
        self._draws = self.mode is True or (self.mode == "auto" and _is_watched())
        if self.mode is True:
            self._show()
        elif self.mode == "auto":
            self._due = self._start + (DELAY if self._draws else LOG_EVERY)
        return self

    def __call__(self, done: int, *, best: float, failures: int = 0, queries: int | None = None) -> None:
        """Takes the state of the run, and shows it if it is time to.

        Args:
            done: the number of steps done.
            best: the best value so far; NaN if values are not known.
            failures: the number of failed queries.
            queries: the number of queries, where they are not the steps.
        """
        self._now = (done, best, failures, queries)
        if time.monotonic() >= self._due:
            self._show()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._shown not in (None, self._now):
            self._show()
        if self._bar is not None:
            self._bar.close()
            if kind is None and hasattr(
                self._bar, "disp"
            ):  # tqdm's notebook bar takes a run that ends early for an error
                self._bar.disp(bar_style="success" if self._now[0] >= self.total else "info", check_delay=False)

    def _show(self) -> None:
        now = time.monotonic()
        done, best, failures, queries = self._shown = self._now
        value = "" if math.isnan(best) else f"best {best:.6g}"
        count = "" if queries is None else f"{queries} queries"
        if self._draws:
            self._due = now + REDRAW
            if self._bar is None:
                self._bar = self._new_bar(now - self._start)
            self._bar.n = done
            self._bar.set_postfix_str(", ".join(filter(None, [value, count, f"{failures} failed"])))
        else:
            self._due = now + LOG_EVERY
            steps = f"{done} of {self.total} {self.unit[:-1] + 'ies' if self.unit.endswith('y') else self.unit + 's'}"
            told = filter(None, [steps, value, count, f"{failures} failed", self._time_left(now)])
            logger.info("%s: %s", self.name, ", ".join(told))

    def _time_left(self, now: float) -> str:
        done = self._now[0]
        if done <= self._before:
            return ""
        left = (self.total - done) * (now - self._start) / (done - self._before)
        return f"{timedelta(seconds=round(left))} left"

    def _new_bar(self, age: float) -> Any:
        with warnings.catch_warnings():  # a kernel without ipywidgets gets a bar of text
            warnings.simplefilter("ignore", TqdmWarning)
            from tqdm.auto import tqdm
        bar = tqdm(total=self.total, initial=self._before, desc=self.name, unit=self.unit)
        bar.start_t = getattr(bar, "start_t", 0.0) - age
        return bar


def _is_watched() -> bool:
    """Whether this is the main process, and somebody sees its standard error or it is a notebook's kernel."""
    if multiprocessing.parent_process() is not None:
        return False
    if "ipykernel" in sys.modules and "IPython" in sys.modules and sys.modules["IPython"].get_ipython() is not None:
        return True
    return sys.stderr is not None and sys.stderr.isatty()
