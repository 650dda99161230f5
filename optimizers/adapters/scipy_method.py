"""Methods for ``scipy.optimize.minimize(fun, x0, method=scipy_method("zord"))``."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from scipy.optimize import OptimizeResult

from optimizers.core.optimizer import Optimizer
from optimizers.core.options import option_names
from optimizers.minimize import minimize
from optimizers.registry import method_class

QUERIES_PER_COORDINATE = 100

ScipyMethod = Callable[..., OptimizeResult]


def scipy_method(method: str | type[Optimizer] = "zord", **defaults: Any) -> ScipyMethod:
    """A method as a callable that ``scipy.optimize.minimize`` takes for its argument ``method``.

    The callable takes scipy's ``args``, ``bounds``, ``callback`` and ``jac`` (callable or True). A method without an
    option ``jac`` warns that it does not use it, as scipy's own methods do. ``options`` are those of
    ``optimizers.minimize`` and of the method; ``max_queries`` is 100 (d + 1) by default, and ``disp`` shows a progress
    bar. The result holds NumPy arrays. Unlike scipy we refuse x0 outside of the bounds.

    The callback is called after each batch of queries with the best point, by the rule of scipy's own methods: as
    ``callback(intermediate_result=OptimizeResult)`` if its only parameter has that name, and as ``callback(xk)``
    otherwise. It ends the run, with status 99, by raising StopIteration; its return value is not read.

    Args:
        method: a name in ``optimizers.registry.METHODS``, or an ``Optimizer`` subclass.
        **defaults: default values of the options of a call.

    Raises:
        ValueError: for an unknown method; in a call, for constraints, which no method handles, or ``tol``,
            which no method has.
    """
    cls = method_class(method)

    def minimizer(
        fun: Callable[..., Any],
        x0: np.ndarray,
        args: tuple = (),
        jac: Callable[..., Any] | None = None,
        hess: Any = None,
        hessp: Any = None,
        bounds: Any = None,
        constraints: Any = (),
        callback: Callable[..., object] | None = None,
        tol: float | None = None,
        disp: bool = False,
        **options: Any,
    ) -> OptimizeResult:
        if np.size(constraints):
            raise ValueError(f"{cls.__name__} handles bounds and no constraints")
        if tol is not None:
            raise ValueError("tol is not understood: stop by the options max_queries, target or stagnation")
        chosen: dict[str, Any] = {"max_queries": QUERIES_PER_COORDINATE * (np.size(x0) + 1), "progress": disp}
        chosen |= defaults | options
        if jac is not None and "jac" in option_names(cls):
            chosen["jac"] = (lambda x: jac(x, *args)) if args else jac
        elif jac is not None:
            _not_used(cls, "gradient information (jac)")
        if hess is not None or hessp is not None:
            _not_used(cls, "Hessian information (hess, hessp)")
        result = minimize(
            (lambda x: fun(x, *args)) if args else fun,
            np.asarray(x0),
            cls,
            bounds=bounds,
            numpy=True,
            callback=None if callback is None else _wrapped(callback),
            **chosen,
        )
        if result.status == 99:
            result.message = "`callback` raised `StopIteration`."
        return _as_numpy(result)

    minimizer.__name__ = minimizer.__qualname__ = f"scipy_method({cls.__name__})"
    return minimizer


def _not_used(cls: type, what: str) -> None:
    warnings.warn(f"Method {cls.__name__} does not use {what}.", RuntimeWarning, stacklevel=4)


def _wrapped(callback: Callable[..., object]) -> Callable[[OptimizeResult], None]:
    try:
        takes_result = set(inspect.signature(callback).parameters) == {"intermediate_result"}
    except ValueError:
        takes_result = False

    def call(result: OptimizeResult) -> None:
        result = _as_numpy(result)
        if takes_result:
            callback(intermediate_result=result)
        else:
            callback(np.copy(result.x))

    return call


def _as_numpy(result: OptimizeResult) -> OptimizeResult:
    def convert(value: Any) -> Any:
        if isinstance(value, OptimizeResult):
            return _as_numpy(value)
        return value.detach().cpu().numpy().copy() if isinstance(value, torch.Tensor) else value

    return OptimizeResult({name: convert(value) for name, value in result.items()})
