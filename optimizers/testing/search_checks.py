"""Checks of the search: descent, failures, bounds, one dimension, constants, enormous values."""

from __future__ import annotations

import math

import torch
from scipy.optimize import Bounds

from optimizers.core.bounds import parse_bounds
from optimizers.running.loop import run
from optimizers.testing.harness import Factory, Promises, first_batch, make, quadratic, rosenbrock, start


def check_failures_are_survived(factory: Factory, promises: Promises) -> None:
    """NaN and inf are counted and not used; the run continues and still descends."""
    x0 = start()
    for first in (0, 1):
        opt = make(factory, promises, max_queries=3 * promises.max_queries + first_batch(factory))
        failures = told = 0
        while not opt.stopped:
            batch = opt.ask()
            values = quadratic(batch.points())
            for i in range(len(batch)):
                if (told + i + first) % 4 == 0:
                    values[i] = (math.nan, math.inf, -math.inf)[(told + i) % 3]
                    failures += 1
            told += len(batch)
            opt.tell(batch, values)
            assert bool(torch.isfinite(opt.x).all()) and not math.isnan(opt.best_fun)
        assert opt.stop_reason == "budget", f"stopped with {opt.stop_reason}"
        assert opt.failures == failures == opt.result().nfail
        assert float(quadratic(opt.best_x)) == opt.best_fun
        assert opt.best_fun <= float(quadratic(x0)) or not promises.descent


def check_all_failed(factory: Factory, promises: Promises) -> None:
    """The result of a run in which every query fails says so, and has x0 as x."""
    for limit in (None, 3):
        opt = make(factory, promises, max_failures=limit, bounds=[(0.0, 3.0)] * 5)
        result = run(opt, lambda x: math.nan)
        assert result.stop_reason == "all queries failed" and result.status == 3 and not result.success
        assert torch.equal(result.x, start()) and result.fun == math.inf
        assert result.nfail == result.nfev > 0
        assert limit is not None or opt.remaining < first_batch(factory)


def check_bounds(factory: Factory, promises: Promises) -> None:
    """Returned points lie exactly within the bounds, and so do queried points if that is promised."""
    boxes = [
        Bounds(1.5, 3.0),
        [(2.0, 3.0)] * 5,
        [(None, 3.0), (0.0, None), (2.0, 2.75), (-math.inf, math.inf), (3.0, 3.0)],
        [(0.1, 3.0 + 1e-3 * j) for j in range(5)],
    ]
    for dtype in (torch.float64, torch.float32):
        for box in boxes:
            opt = make(factory, promises, bounds=box, x0=start(dtype=dtype))
            lower, upper = parse_bounds(box, start(dtype=dtype))
            while not opt.stopped:
                batch = opt.ask()
                points = batch.points()
                inside = bool(((points >= lower) & (points <= upper)).all())
                assert inside or not promises.feasible_queries, f"queried outside of {box}: {points}"
                opt.tell(batch, quadratic(points))
                for x in (opt.best_x, opt.x):
                    assert bool(((x >= lower) & (x <= upper)).all()), f"{x} is outside of {box}"


def check_quadratic(factory: Factory, promises: Promises) -> None:
    """The method converges on a quadratic if it promises to, and otherwise halves the gap."""
    if not promises.descent and promises.convergence is None:
        return
    result = run(factory(quadratic, start(), max_queries=promises.convergence_queries), quadratic)
    factor = 0.5 if promises.convergence is None else promises.convergence
    gap = float(quadratic(start()))
    assert result.fun <= factor * gap, f"{result.fun:.3g} after {result.nfev} queries, from {gap:.3g}"


def check_rosenbrock(factory: Factory, promises: Promises) -> None:
    """The method halves the value of Rosenbrock's function at (−1.2, 1)."""
    if not promises.descent:
        return
    x0 = torch.tensor([-1.2, 1.0], dtype=torch.float64)
    result = run(factory(rosenbrock, x0, max_queries=promises.convergence_queries), rosenbrock)
    assert result.fun <= 0.5 * float(rosenbrock(x0)), f"{result.fun:.3g} after {result.nfev} queries"


def check_one_dimension(factory: Factory, promises: Promises) -> None:
    """The method runs in one dimension, with and without bounds."""
    for bounds in (None, [(-5.0, 5.0)]):
        opt = make(factory, promises, x0=torch.tensor([3.0], dtype=torch.float64), bounds=bounds)
        result = run(opt, quadratic)
        assert result.x.shape == (1,) and result.fun == float(quadratic(result.x))
        assert result.fun < 4.0 or not promises.descent


def check_constant(factory: Factory, promises: Promises) -> None:
    """A run on a constant function ends with the budget, or by ``stagnation``."""
    result = run(make(factory, promises), lambda x: 7.0)
    assert result.fun == 7.0 and result.stop_reason in ("budget", "stagnation")
    assert bool(torch.isfinite(result.x).all())
    limit = max(2, promises.max_queries // 3)
    result = run(make(factory, promises, stagnation=limit), lambda x: 7.0)
    assert result.stop_reason == "stagnation" and result.nfev > limit


def check_enormous_values(factory: Factory, promises: Promises) -> None:
    """Values near the largest float64 raise nothing and leave all points finite."""
    opt = make(factory, promises)
    while not opt.stopped:
        batch = opt.ask()
        values = quadratic(batch.points())
        assert bool(torch.isfinite(batch.points()).all())
        values[1::3] = 1e308
        values[2::3] = -1e308
        opt.tell(batch, values)
    assert bool(torch.isfinite(opt.x).all()) and bool(torch.isfinite(opt.best_x).all())
