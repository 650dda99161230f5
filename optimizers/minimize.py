"""``minimize``: runs a method by name until it stops."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import wraps
from typing import Any

from scipy.optimize import OptimizeResult
from torch import Tensor

from optimizers.core.bounds import BoundsLike
from optimizers.core.optimizer import Optimizer
from optimizers.core.options import ProxLike, check_boolean, keyword_names, option_names, refuse_misspelt
from optimizers.core.result import Result, to_numpy
from optimizers.evaluation import Evaluator, FailurePolicy
from optimizers.progress import ProgressMode
from optimizers.registry import method_class
from optimizers.running.checkpoint import Resume
from optimizers.running.crew import Submits
from optimizers.running.loop import Callback, run

__all__ = ["minimize", "run"]

ELSEWHERE = {
    "args": "functools.partial binds arguments to the function",
    "constraints": "bounds and prox say where to search, and a query that breaks a constraint may fail by NaN",
    "disp": "progress shows how far the run is",
    "hess": "methods have values alone, gradient_descent gradients by jac",
    "in_place": "it is an option of the methods 'hiso' and 'decomfl'",
    "maxfev": "max_queries is the budget",
    "maxfun": "max_queries is the budget",
    "maxiter": "max_queries is the budget",
    "n_jobs": "workers is how many queries are out at once, executor where they run",
    "options": "the method's options are arguments of their own",
    "rng": "seed is an integer",
    "tol": "target and stagnation end a run early",
}
"""What to do about arguments that ``scipy.optimize.minimize`` has and this has not, or that few methods have."""


def minimize(
    fun: Callable[[Any], Any],
    x0: Any,
    method: str | type[Optimizer] = "trust_region",
    *,
    max_queries: int,
    bounds: BoundsLike | None = None,
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
    """Minimizes ``fun`` (+ ψ, where a prox is given) from its values.

    Each value is the run's the moment that it arrives. The first Ctrl-C asks no more, gives queries that are running
    5 s to end, and returns the result so far with status 98; a second one is raised at once.

    Args:
        fun: objective of a point, shape ``d``, or of ``q x d`` points with ``batched``; see ``Evaluator``.
        x0: initial point, shape ``d``: a tensor, or an array or list.
        method: a name in ``optimizers.registry.METHODS``, or an ``Optimizer`` subclass. The default leads our methods
            on COCO's functions (``experiments/published/which-method.md``); a prox without values needs another.
        max_queries: query budget, which is never exceeded; failed queries and retries count.
        bounds: ``scipy.optimize.Bounds`` or d pairs; only points in the box are evaluated and returned.
        prox: proximal operator of ψ.
        seed: seed of the run.
        callback: called with ``Optimizer.intermediate_result()`` after each batch; it stops the run by returning True
            or raising StopIteration.
        target: the run stops at this value of f + ψ.
        numpy: whether ``fun`` gets, and the result and what callbacks get hold, NumPy arrays instead of tensors; None:
            unless x0 is a tensor.
        batched: whether ``fun`` takes all points of a batch at once.
        workers: most queries that are out at once; each answer frees one. They run in threads of our own, for which
            the program waits at its end, or in the executor. With more than one, methods that can (ZoRD, TuRBO and
            their like) choose points beside those that are pending, and the run is a function of the seed and the order
            of the answers. None: one, or with an executor the points of one batch, whose result does not depend on the
            order.
        executor: where queries run: anything with ``submit``, such as a ``concurrent.futures.Executor``, loky's, Dask's
            ``client.get_executor()``, ``mpi4py.futures.MPIPoolExecutor``, submitit's, or ``RayExecutor``. ``fun`` must
            be picklable for processes. Each submission differs, so that a cluster's cache answers no retry. A query
            whose job died is a failed one. An executor that breaks, cancels or cannot send ``fun`` ends the run with a
            ``concurrent.futures.BrokenExecutor``. Where the program is killed, processes of your pool finish their
            query, whose value is lost, and then wait for ever: ``ProcessPoolExecutor(initializer=follow_parent)`` of
            ``optimizers.running.interrupts`` ends them with the program.
        checkpoint: a file in which the run is kept, with a journal beside it, ``<checkpoint>.journal``, that has each
            value at once. The same call with the same file goes on where it ended, bitwise, also with a larger budget
            or another target; of a run that has ended it returns the result, where a callback ended it if it does so
            again. Points that were in flight when a run was killed, or left when it was interrupted or stopped, are
            asked again, and the log says which; beyond these there are never more calls than ``max_queries`` in all.
            It is loaded only by the same method, options, seed, x0, bounds and name of ``fun``.
        resume: what happens where the source of ``fun`` is not the one that computed the values in the checkpoint.
            ``"check"`` raises a ``ValueError``, ``"anyway"`` keeps the values and goes on, and ``"restart"`` discards
            them, also where the source is the same. Docstrings, comments and the place in the file do not count. A
            change of what ``fun`` calls, closes over or reads is not seen, nor is one of the arguments of a
            ``partial``. Without a source (``exec``, a built-in) the compiled code is compared, and the log warns.
        max_seconds: the time of this call, after which it returns the result so far with status 4. Queries that are
            running are left out, and the message says how many; ``query_timeout`` says what becomes of them. With a
            checkpoint the same call goes on for as long again. What the method itself computes is not interrupted.
        query_timeout: seconds that a query may take, from when it begins. One that takes more has failed by a
            ``TimeoutError``, which ``on_failure`` treats like any other exception. In the main thread of this or
            another process a signal ends it; a process whose query does not end by it is ended 5 s later. In other
            threads the query cannot be ended: it is left behind, the log says so, and it may go on using the processor.
            An objective that is evaluated in place is only ended in a main thread.
        on_failure: ``"skip"``, ``"retry"`` or ``"raise"``; see ``Evaluator``. An exception on the first query is raised
            in any case, under ``"retry"`` after its retries. One that is raised ends the run; with a checkpoint, or an
            optimizer that you make yourself and give to ``run``, you can continue after it.
        retries: the most evaluations of a failed point beyond the first, under ``"retry"``.
        progress: ``"auto"``: a bar in terminals and notebooks, and else lines of the log every 30 s; True: a bar;
            False: neither. See ``Progress``.
        **options: the method's own options.

    Returns:
        A ``Result``: x, fun, nfev, nit, nfail, status, success, message, stop_reason, history, as
        ``Optimizer.result()``.

    Raises:
        ValueError: for an unknown method, an argument out of range, or a checkpoint of another run, or of another
            version of ``fun``, with what differs.
        TypeError: for an option that the method does not have, with the nearest name.
    """
    cls = method_class(method)
    refuse_misspelt(minimize, keyword_names(minimize), option_names(cls), options, ELSEWHERE)
    arrays = not isinstance(x0, Tensor) if numpy is None else check_boolean("numpy", numpy)
    if arrays and callable(jac := options.get("jac")):
        options["jac"] = lambda x: jac(x.cpu().numpy())
    optimizer = cls(x0, max_queries=max_queries, bounds=bounds, prox=prox, seed=seed, target=target, **options)
    result = run(
        optimizer,
        Evaluator(fun, arrays, batched, on_failure, retries),
        callback=_with_arrays(callback) if arrays and callable(callback) else callback,
        workers=workers,
        executor=executor,
        checkpoint=checkpoint,
        resume=resume,
        max_seconds=max_seconds,
        query_timeout=query_timeout,
        progress=progress,
    )
    return result.numpy() if arrays else result


def _with_arrays(callback: Callback) -> Callback:
    @wraps(callback)  # by which ``run`` sees what the callback takes
    def call(intermediate_result: OptimizeResult) -> object:
        return callback(to_numpy(intermediate_result))

    return call
