"""``minimize``: runs a method by name until it stops."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any

from torch import Tensor

from optimizers.core.bounds import BoundsLike
from optimizers.core.constraints import ConstrainedObjective, ConstraintsLike, parse_constraints
from optimizers.core.history import HistoryLike, as_history
from optimizers.core.optimizer import Optimizer
from optimizers.core.options import ProxLike, check_boolean, keyword_names, option_names, refuse_misspelt
from optimizers.core.residuals import Loss
from optimizers.core.result import Result, to_numpy
from optimizers.core.space import Space
from optimizers.evaluation import Evaluator, FailurePolicy
from optimizers.progress import ProgressMode
from optimizers.registry import method_class
from optimizers.running.checkpoint import Resume
from optimizers.running.crew import Submits
from optimizers.running.loop import Callback, run

__all__ = ["minimize", "run"]

ELSEWHERE = dict.fromkeys(("max_nfev", "maxfev", "maxfun", "maxiter"), "max_queries is the budget") | {
    "args": "functools.partial binds arguments to the function",
    "disp": "use progress",
    "hess": "methods use function values only, and gradient_descent the gradient jac",
    "integrality": "pass bounds=Space(bounds, integrality=...)",
    "in_place": "it is an option of the methods 'hiso' and 'decomfl'",
    "log": "pass bounds=Space(bounds, log=...)",
    "n_jobs": "workers is the number of concurrent queries, executor is where they run",
    "names": "pass bounds=Space(bounds, names=...)",
    "options": "pass the method's options as keyword arguments",
    "pruner": "evaluations are not pruned: let the function stop early and return its best estimate, or NaN",
    "rng": "seed is an integer",
    "tol": "target and stagnation end a run early",
}
"""Hints for arguments of ``scipy.optimize.minimize`` that do not exist here, or only in some methods."""


def minimize(
    fun: Callable[[Any], Any],
    x0: Any = None,
    method: str | type[Optimizer] = "trust_region",
    *,
    max_queries: int,
    bounds: BoundsLike | None = None,
    history: HistoryLike | None = None,
    constraints: ConstraintsLike | None = None,
    prox: ProxLike | None = None,
    seed: int = 0,
    callback: Callback | None = None,
    target: float | None = None,
    numpy: bool | None = None,
    batched: bool = False,
    workers: int | None = None,
    executor: Submits | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    resume: Resume = "check",
    max_seconds: float | None = None,
    query_timeout: float | None = None,
    on_failure: FailurePolicy = "skip",
    retries: int = 1,
    progress: ProgressMode = "auto",
    **options: Any,
) -> Result:
    """Minimizes ``fun``, plus ψ if a prox is given, from values of ``fun``.

    After a first Ctrl-C no new query starts, running queries get 5 s to finish, and the result so far is returned with
    status 98; a second one raises ``KeyboardInterrupt`` at once.

    Args:
        fun: objective of a point, shape ``d``, or of ``q x d`` points with ``batched``; see ``Evaluator``.
        x0: initial point, shape ``d``: a tensor, array or list, or a dictionary if the variables have names. If None,
            a method with a model of f begins at the best point of the history or, without a history, of a Sobol' design
            in the bounds.
        method: a name in ``optimizers.METHODS``, or an ``Optimizer`` subclass. The default is the best of our
            methods on COCO's functions (``experiments/published/which-method.md``); its prox needs a method ``value``.
        max_queries: query budget, never exceeded; failed queries and retries count.
        bounds: ``scipy.optimize.Bounds`` or d pairs; only points in the box are evaluated and returned. ``Space`` adds
            integers, log scales and names.
        history: earlier evaluations, ``(X, y)`` or a ``History``, for methods with a model of f; see ``Optimizer``.
            They do not count against the budget, and the result may be one of their points.
        constraints: SciPy's ``LinearConstraint``, ``NonlinearConstraint`` and dictionaries, ``CheapConstraint``,
            ``ReturnedConstraints``, or a list of these, for the default method. One query evaluates f and all
            constraints except linear and cheap ones.
        prox: proximal operator of ψ.
        seed: seed of the run.
        callback: called with ``Optimizer.intermediate_result()`` after each batch; it stops the run by returning True
            or raising ``StopIteration``.
        target: stop when f + ψ reaches this value.
        numpy: whether ``fun`` and callbacks get, and the result has, NumPy arrays instead of tensors. None: yes, unless
            x0 (without x0: the history's X) is a tensor.
        batched: whether ``fun`` takes all points of a batch at once.
        workers: the largest number of concurrent queries, in the executor or in threads. With more than one, some
            methods (such as ZoRD and TuRBO) choose further points while others are pending; the run then depends on the
            seed and the order in which values arrive. None: one query or, with an executor, all points of a batch; the
            run then does not depend on the order.
        executor: any object with ``submit``, such as a ``concurrent.futures.Executor``, loky's, Dask's
            ``client.get_executor()``, ``mpi4py.futures.MPIPoolExecutor``, submitit's, or ``RayExecutor``. Processes
            need a picklable ``fun``. A query whose job dies counts as failed. ``concurrent.futures.BrokenExecutor`` is
            raised if the executor breaks, cancels a query, or cannot send ``fun``. If the program is killed, processes
            of your pool remain; ``ProcessPoolExecutor(initializer=follow_parent)`` avoids this.
        checkpoint: a file that saves the run; its journal, ``<checkpoint>.journal``, records each value at once. The
            same call continues the run bitwise, also with a larger budget or another target; for a finished run it
            returns the result. (A run that a callback ended continues unless the callback ends it again.) Points that
            were pending when the run was killed, interrupted or stopped are logged and evaluated again; apart from
            these there are at most ``max_queries`` evaluations in all. Method, options, seed, x0, bounds and the name
            of ``fun`` must be equal.
        resume: what to do if the source of ``fun`` has changed since the checkpoint: ``"check"`` raises a
            ``ValueError``, ``"anyway"`` keeps the values and continues; ``"restart"`` discards the values in any case.
            Changes in what ``fun`` calls, closes over or reads, in arguments of a ``partial``, and in functions without
            source (``exec``) are not detected.
        max_seconds: the time limit of this call, after which the result so far is returned with status 4. Running
            queries are abandoned (see ``query_timeout``). With a checkpoint, the same call continues for another
            ``max_seconds``. The method's own computations are not interrupted.
        query_timeout: the time limit of a query in seconds, after which it fails with a ``TimeoutError``. In the main
            thread of a process, a signal interrupts the query; a worker process that does not react within 5 s is
            killed. In other threads the query is abandoned with a warning, and may go on using the processor.
            Objectives evaluated in place are interrupted in a main thread only.
        on_failure: ``"skip"``, ``"retry"`` or ``"raise"``; see ``Evaluator``. An exception in the first query is always
            raised (under ``"retry"`` after its retries). After an exception a run can continue from its checkpoint.
        retries: the largest number of further evaluations of a failed point under ``"retry"``.
        progress: ``"auto"``: a bar in terminals and notebooks, otherwise a line in the log every 30 s; True: a bar;
            False: neither. See ``Progress``.
        **options: the method's own options.

    Returns:
        A ``Result``.

    Raises:
        ValueError: for an unknown method, an argument out of range, or a checkpoint of another run or another version
            of ``fun``; the message says what differs.
        TypeError: for an unknown option; the message has the nearest name.
    """
    cls = method_class(method)
    refuse_misspelt(minimize, keyword_names(minimize) | {"method"}, option_names(cls), options, ELSEWHERE)
    x0 = bounds.point(x0) if isinstance(x0, Mapping) and isinstance(bounds, Space) else x0
    first = x0 if x0 is not None or history is None else as_history(history).X
    arrays = not isinstance(first, Tensor) if numpy is None else check_boolean("numpy", numpy)
    if arrays and callable(jac := options.get("jac")):
        options["jac"] = lambda x: jac(x.cpu().numpy())
    if arrays and callable(call := callback):  # ``run`` checks the signature of the callback that is wrapped
        callback = wraps(call)(lambda intermediate_result: call(to_numpy(intermediate_result)))
    objective = fun
    if constraints is not None:
        if "constraints" not in option_names(cls):
            raise ValueError(f"{cls.__name__} takes no constraints; method='trust_region' does")
        groups = tuple(group for group in parse_constraints(constraints) if not group.known)
        objective = ConstrainedObjective(fun, groups, batched) if groups and callable(fun) else fun
        options["constraints"] = constraints
    if isinstance(residuals := options.get("residuals"), Loss) and callable(fun):
        objective = ConstrainedObjective(fun, (), batched, residuals.cost)
    if history is not None:
        options["history"] = history
    optimizer = cls(x0, max_queries=max_queries, bounds=bounds, prox=prox, seed=seed, target=target, **options)
    result = run(
        optimizer,
        Evaluator(objective, numpy=arrays, batched=batched, on_failure=on_failure, retries=retries),
        callback=callback,
        workers=workers,
        executor=executor,
        checkpoint=checkpoint,
        resume=resume,
        max_seconds=max_seconds,
        query_timeout=query_timeout,
        progress=progress,
    )
    return result.numpy() if arrays else result
