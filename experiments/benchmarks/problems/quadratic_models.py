"""Rivals with quadratic models: Powell's NEWUOA and BOBYQA in NLopt, Py-BOBYQA, and lq-CMA-ES in the package cma.

Each keeps its package's defaults, except that its limit on evaluations is the budget. NLopt's two also run with our
trust region's initial radius. On noisy functions Py-BOBYQA is told of the noise, which turns on its restarts. lq-CMA-ES
(``cma.fmin_lq_surr2``) searches the box as the unit cube, with the initial standard deviation that CMA-ES has here.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np

from optimizers.comparison.outside import CMA_SIGMA
from optimizers.comparison.queries import Ended, Queries

Search = Callable[[np.ndarray], object]


def nlopt(algorithm: str, radius: float | None, queries: Queries, x0: np.ndarray, seed: int) -> None:
    """Runs an algorithm of NLopt, with the initial step ``radius`` or its own."""
    import nlopt as package

    lower, upper = _box(queries)

    def search(start: np.ndarray) -> None:
        method = package.opt(getattr(package, algorithm), len(start))
        method.set_lower_bounds(lower)
        method.set_upper_bounds(upper)
        method.set_maxeval(queries.max_queries)
        method.set_min_objective(lambda x, gradient: queries(x))
        if radius is not None:
            method.set_initial_step(radius)
        with suppress(package.RoundoffLimited):
            method.optimize(start)

    _restarted(search, queries, x0, seed)


def py_bobyqa(noisy: bool, queries: Queries, x0: np.ndarray, seed: int) -> None:
    """Runs Py-BOBYQA."""
    import pybobyqa

    def search(start: np.ndarray) -> None:
        limit = max(queries.max_queries, len(start) + 2)  # its least
        pybobyqa.solve(queries, start, bounds=_box(queries), maxfun=limit, objfun_has_noise=noisy)

    logging.getLogger("pybobyqa").setLevel(logging.ERROR)
    _restarted(search, queries, x0, seed)


def lq_cma(queries: Queries, x0: np.ndarray, seed: int) -> None:
    """Runs lq-CMA-ES, whose surrogate is a linear or quadratic regression."""
    import cma

    lower, upper = _box(queries)
    options: dict[str, Any] = {"bounds": [0, 1], "maxfevals": queries.max_queries, "verbose": -9, "seed": seed + 1}

    def search(start: np.ndarray) -> None:
        unit = (start - lower) / (upper - lower)
        cma.fmin_lq_surr2(lambda z: queries(lower + (upper - lower) * np.asarray(z)), unit, CMA_SIGMA, options)
        options["seed"] += 1

    _restarted(search, queries, x0, seed)


def _box(queries: Queries) -> tuple[np.ndarray, np.ndarray]:
    return queries.lower.numpy().astype(np.float64), queries.upper.numpy().astype(np.float64)


def _restarted(search: Search, queries: Queries, x0: np.ndarray, seed: int) -> None:
    """Searches from x0, and from uniform points of the box whenever the search ends, until the budget is spent."""
    start, random = x0, np.random.default_rng(seed)
    with suppress(Ended):
        while len(queries.values) < queries.max_queries:
            before = len(queries.values)
            search(start)
            if len(queries.values) == before:
                return
            start = random.uniform(*_box(queries))
