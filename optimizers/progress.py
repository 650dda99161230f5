"""Progress of a run: a bar in terminals and notebooks, otherwise lines in the log."""

from __future__ import annotations

import contextlib
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

with warnings.catch_warnings():  # without ipywidgets a notebook has a bar of text
    warnings.simplefilter("ignore", TqdmWarning)
    from tqdm.auto import tqdm

ProgressMode = Literal["auto"] | bool

DELAY, REDRAW, LOG_EVERY = 1.0, 0.1, 30.0  # seconds

logger = logging.getLogger(__name__)


class Progress:
    """Shows the progress of a run: steps, best value, failed queries and time left.

    Example::

        with Progress("auto", total=200, name="ZoRD", unit="query") as show:
            show(12, best=0.37, failures=1)

    Under ``"auto"`` the main process shows a bar in notebooks and on terminals, except for runs under 1 s. Elsewhere
    this module's logger gets a line at level INFO at most every 30 s. True always shows a bar, False nothing. If
    writing to the stream fails, the bar ends and the run continues.

    Args:
        mode: ``"auto"``, True or False.
        total: the number of steps of the whole run.
        done: the number of steps done before the run was resumed.
        name: the name of the run.
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
        kernel, terminal = _watched_by()
        self._draws = self.mode is True or (self.mode == "auto" and (kernel or terminal))
        if self.mode is True or (self._draws and not kernel):
            self._show()
        elif self.mode == "auto":
            self._due = self._start + (DELAY if self._draws else LOG_EVERY)
        return self

    def __call__(self, done: int, *, best: float, failures: int = 0, queries: int | None = None) -> None:
        """Updates the state of the run, and displays it if that is due.

        Args:
            done: the number of steps done.
            best: the best value so far; NaN if unknown.
            failures: the number of failed queries.
            queries: the number of queries if they are not the steps.
        """
        self._now = (done, best, failures, queries)
        if time.monotonic() >= self._due:
            self._show()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._shown not in (None, self._now):
            self._show()
        if (bar := self._bar) is None:
            return
        with contextlib.suppress(OSError):
            notebook = hasattr(bar, "disp")
            if not notebook:
                stays = self.mode is True or time.monotonic() - self._start >= DELAY
                bar.leave = None if stays else False  # None: if no other bar is above it
            bar.close()
            if notebook and kind is None and self._now[0] < self.total:
                bar.disp(bar_style="info", check_delay=False)  # tqdm colours a bar that ends early as a failure

    def _show(self) -> None:
        now = time.monotonic()
        done, best, failures, queries = self._shown = self._now
        value = "" if math.isnan(best) else f"best {best:.6g}"
        count = "" if queries is None else f"{queries} queries"
        if self._draws:
            self._due = now + REDRAW
            try:
                if self._bar is None:
                    self._bar = tqdm(total=self.total, initial=self._before, desc=self.name, unit=self.unit)
                    self._bar.start_t = getattr(self._bar, "start_t", 0.0) - (now - self._start)
                self._bar.n = done
                self._bar.set_postfix_str(", ".join(filter(None, [value, count, f"{failures} failed"])))
            except OSError:
                self._due = math.inf
        else:
            self._due = now + LOG_EVERY
            steps = f"{done} of {self.total} {self.unit[:-1] + 'ies' if self.unit.endswith('y') else self.unit + 's'}"
            left = ""
            if done > self._before:
                seconds = (self.total - done) * (now - self._start) / (done - self._before)
                left = f"{timedelta(seconds=round(seconds))} left"
            logger.info("%s: %s", self.name, ", ".join(filter(None, [steps, value, count, f"{failures} failed", left])))


def _watched_by() -> tuple[bool, bool]:
    """Whether this is a notebook's kernel, and whether standard error is a terminal; both False in child processes."""
    if multiprocessing.parent_process() is not None:
        return False, False
    loaded = "ipykernel" in sys.modules and "IPython" in sys.modules
    kernel = loaded and sys.modules["IPython"].get_ipython() is not None
    return kernel, sys.stderr is not None and sys.stderr.isatty()
