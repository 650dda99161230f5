"""Rivals with quadratic models: Powell's NEWUOA and BOBYQA in NLopt, Py-BOBYQA, and lq-CMA-ES in the package cma.

Each keeps its package's defaults, except that the budget limits its evaluations, and that NLopt's two have a tolerance,
which NLopt leaves to its user. These two also run with our trust region's initial radius. On noisy functions Py-BOBYQA
is told of the noise, which turns on its restarts. lq-CMA-ES (``cma.fmin_lq_surr2``) searches the box as the unit cube,
with the initial standard deviation that CMA-ES has here. A method that stops before its budget is spent restarts at a
uniform point of the box.
"""

from __future__ import annotations

import logging
from contextlib import suppress

import numpy as np

from optimizers.comparison.outside import CMA_SIGMA, box_of, search_from
from optimizers.comparison.queries import Queries

XTOL = 1e-9
"""NLopt's ``xtol_rel``, relative to the initial step; without one, NEWUOA can stay in a loop without queries."""


def nlopt(algorithm: str, radius: float | None, queries: Queries, x0: np.ndarray, seed: int) -> None:
    """Runs an algorithm of NLopt, with the initial step ``radius`` or its own."""
    import nlopt as package

    lower, upper = box_of(queries)

    def search(start: np.ndarray, number: int) -> None:
        method = package.opt(getattr(package, algorithm), len(start))
        method.set_lower_bounds(lower)
        method.set_upper_bounds(upper)
        method.set_maxeval(queries.max_queries - len(queries.values))  # NEWUOA may not end after an exception
        method.set_xtol_rel(XTOL)
        method.set_min_objective(lambda x, gradient: queries(x))
        if radius is not None:
            method.set_initial_step(radius)
        with suppress(package.RoundoffLimited):
            method.optimize(start)

    search_from(x0, search, queries, np.random.default_rng(seed), algorithm)


def py_bobyqa(noisy: bool, queries: Queries, x0: np.ndarray, seed: int) -> None:
    """Runs Py-BOBYQA."""
    import pybobyqa

    def search(start: np.ndarray, number: int) -> None:
        limit = max(queries.max_queries, len(start) + 2)  # its least
        pybobyqa.solve(queries, start, bounds=box_of(queries), maxfun=limit, objfun_has_noise=noisy)

    logging.getLogger("pybobyqa").setLevel(logging.ERROR)
    search_from(x0, search, queries, np.random.default_rng(seed), "Py-BOBYQA")


def lq_cma(queries: Queries, x0: np.ndarray, seed: int) -> None:
    """Runs lq-CMA-ES, whose surrogate is a linear or quadratic regression."""
    import cma

    lower, upper = box_of(queries)

    def search(start: np.ndarray, number: int) -> None:
        unit = (start - lower) / (upper - lower)
        seeded = seed + 1 + number  # pycma's seed 0 is the clock
        options = {"bounds": [0, 1], "maxfevals": queries.max_queries, "verbose": -9, "seed": seeded}
        cma.fmin_lq_surr2(lambda z: queries(lower + (upper - lower) * np.asarray(z)), unit, CMA_SIGMA, options)

    search_from(x0, search, queries, np.random.default_rng(seed), "lq-CMA-ES")
