"""``minimize``: runs a method by name until it stops."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable
from concurrent.futures import Executor
from typing import Any

from scipy.optimize import OptimizeResult
from tqdm import tqdm

from optimizers.core.bounds import BoundsLike
from optimizers.core.optimizer import Optimizer
from optimizers.core.options import ProxLike, keyword_names, option_names
from optimizers.core.record import StopReason
from optimizers.evaluation import Evaluator, FailurePolicy
from optimizers.registry import method_class

Callback = Callable[[OptimizeResult], object]


def minimize(
    fun: Callable[[Any], Any],
    x0: Any,
    method: str | type[Optimizer] = "zord",
    *,
    max_queries: int,
    bounds: BoundsLike | None = None,
    prox: ProxLike | None = None,
    seed: int = 0,
    callback: Callback | None = None,
    target: float | None = None,
    numpy: bool = False,
    batched: bool = False,
    executor: Executor | None = None,
    on_failure: FailurePolicy = "skip",
    retries: int = 1,
    progress: bool = False,
    **options: Any,
) -> OptimizeResult:
    """Minimizes ``fun`` (+ ψ, where a prox is given) from its values.

    Args:
        fun: objective of a point, shape ``d``, or of ``q x d`` points with ``batched``; see ``Evaluator``.
        x0: initial point, shape ``d``.
        method: a name in ``optimizers.registry.METHODS``, or an ``Optimizer`` subclass.
        max_queries: query budget, which is never exceeded; failed queries and retries count.
        bounds: ``scipy.optimize.Bounds`` or d pairs; only points in the box are evaluated and returned.
        prox: proximal operator of ψ.
        seed: seed of the run.
        callback: called with ``Optimizer.intermediate_result()`` after each batch; it stops the run by returning True
            or raising StopIteration.
        target: the run stops at this value of f + ψ.
        numpy: whether ``fun`` gets NumPy arrays instead of tensors.
        batched: whether ``fun`` takes all points of a batch at once.
        executor: any ``concurrent.futures.Executor``; the result does not depend on the order of completion.
        on_failure: ``"skip"``, ``"retry"`` or ``"raise"``; see ``Evaluator``. An exception that is raised ends the
            run; an optimizer that you make yourself and give to ``run`` can continue after it.
        retries: the most evaluations of a failed point beyond the first, under ``"retry"``.
        progress: whether a terminal shows a progress bar over the queries.
        **options: the method's own options.

    Returns:
        ``Optimizer.result()``: x, fun, nfev, nit, nfail, status, success, message, stop_reason, history.

    Raises:
        ValueError: for an unknown method or an argument out of range.
        TypeError: for an option that the method does not have, with the nearest name.
    """
    cls = method_class(method)
    _refuse_own_misspelt(cls, options)
    if numpy and callable(jac := options.get("jac")):
        options["jac"] = lambda x: jac(x.cpu().numpy())
    optimizer = cls(x0, max_queries=max_queries, bounds=bounds, prox=prox, seed=seed, target=target, **options)
    evaluator = Evaluator(fun, numpy, batched, executor, on_failure, retries)
    return run(optimizer, evaluator, callback=callback, progress=progress)


def run(
    optimizer: Optimizer,
    evaluator: Evaluator | Callable[[Any], Any],
    *,
    callback: Callback | None = None,
    progress: bool = False,
) -> OptimizeResult:
    """Runs an optimizer, new or resumed, until it stops; of a batch that is told in part it queries the rest.

    An exception of the objective or of the callback passes through. The optimizer then keeps its pending batch, and
    a later ``run`` continues with it.
    """
    if callback is not None and not callable(callback):
        raise TypeError(f"callback must be callable, got {type(callback).__name__}")
    evaluate = evaluator if isinstance(evaluator, Evaluator) else Evaluator(evaluator)
    total, name = optimizer.max_queries, type(optimizer).__name__
    with tqdm(
        total=total, initial=optimizer.queries, desc=name, disable=None if progress else True, unit="query"
    ) as bar:
        while not optimizer.stopped:
            batch = optimizer.ask()
            before, which = optimizer.queries, optimizer.untold(batch)
            values, retries = evaluate(batch, optimizer.remaining - len(which), which)
            optimizer.tell(batch, values, which=which, retries=retries)
            bar.set_postfix(best=f"{optimizer.best_y:.6g}", refresh=False)
            bar.update(optimizer.queries - before)
            if callback is not None and _stops(callback, optimizer):
                optimizer.stop(StopReason.CALLBACK)
    return optimizer.result()


def _refuse_own_misspelt(cls: type[Optimizer], options: Iterable[str]) -> None:
    """Raises ``TypeError`` for a name that is nearer to an argument of ``minimize`` than to an option of the method."""
    own, known = keyword_names(minimize), option_names(cls)
    for name in set(options) - known:
        close = difflib.get_close_matches(name, sorted(own | known), n=1)
        if close and close[0] not in known:
            raise TypeError(f"minimize has no argument {name!r}; did you mean {close[0]!r}?")


def _stops(callback: Callback, optimizer: Optimizer) -> bool:
    try:
        return callback(optimizer.intermediate_result()) is True
    except StopIteration:
        return True
