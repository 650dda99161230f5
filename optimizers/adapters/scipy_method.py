"""Methods for ``scipy.optimize.minimize(fun, x0, method=scipy_method("zord"))``."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.optimize import OptimizeResult

from optimizers.core.constraints import WithArgs
from optimizers.core.optimizer import Optimizer
from optimizers.core.options import option_names, optional, positive_integer
from optimizers.core.result import Result
from optimizers.core.stopping import StopReason
from optimizers.minimize import minimize
from optimizers.registry import method_class

QUERIES_PER_COORDINATE = 100

BUDGETS = ("max_queries", "maxfev", "maxfun")
"""The names of the query budget: ours, and the ones in SciPy's Nelder-Mead and L-BFGS-B."""


def scipy_method(method: str | type[Optimizer] = "trust_region", **defaults: Any) -> ScipyMethod:
    """Returns a callable for the argument ``method`` of ``scipy.optimize.minimize``.

    The callable takes SciPy's ``args``, ``bounds``, ``callback``, ``constraints`` and ``jac`` (callable or True). Like
    SciPy's methods it warns if ``jac`` is given and not used. The result has NumPy arrays. Unlike in SciPy, x0 must be
    within the bounds. The callable can be pickled if ``defaults`` can.

    ``options`` takes options of ``optimizers.minimize``, of the method, and of SciPy:

    - ``maxfev`` and ``maxfun`` are other names of ``max_queries``, which is 100 (d + 1) by default.
    - ``maxiter`` ends the run after this many batches; then the status is 1, and ``stop_reason`` is "iterations".
    - ``disp`` shows progress, and finally prints the message, the least value and the counts of iterations and queries.

    The callback is called after each batch with the best point, by SciPy's rule: as
    ``callback(intermediate_result=OptimizeResult)`` if that is its only parameter, otherwise as ``callback(xk)``. A
    callback that raises ``StopIteration`` ends the run with status 99; return values are ignored.

    Args:
        method: a name in ``optimizers.METHODS``, or an ``Optimizer`` subclass.
        **defaults: default values of the options of a call.

    Raises:
        ValueError: for an unknown method, or two names of the budget at once; in a call, for ``tol``, or constraints
            that the method does not support.
        TypeError: for a budget or ``maxiter`` that is not an integer; in a call, for an unknown option.
    """
    return ScipyMethod(method_class(method), _options(defaults))


@dataclass(frozen=True)
class ScipyMethod:
    """A method with its default options, called as ``scipy.optimize.minimize`` calls its ``method``.

    Attributes:
        method: the method.
        defaults: default values of the options of a call.
    """

    method: type[Optimizer]
    defaults: Mapping[str, Any]

    def __call__(
        self,
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
        **options: Any,
    ) -> Result:
        """Runs the method; ``scipy_method`` describes the arguments."""
        if constraints is not None and np.size(constraints):
            options = {**options, "constraints": constraints}
        if tol is not None:
            raise ValueError("tol is not supported: use the options max_queries, maxiter, target or stagnation")
        chosen = {"max_queries": QUERIES_PER_COORDINATE * (np.size(x0) + 1), **self.defaults, **_options(options)}
        disp, maxiter = chosen.pop("disp", False), chosen.pop("maxiter", None)
        chosen.setdefault("progress", "auto" if disp else False)
        if jac is not None and "jac" in option_names(self.method):
            chosen["jac"] = WithArgs(jac, args) if args else jac
        elif jac is not None:
            self._not_used("gradient information (jac)")
        if hess is not None or hessp is not None:
            self._not_used("Hessian information (hess, hessp)")
        call = None if callback is None else _wrapped(callback)
        iterated = False

        def after_batch(result: OptimizeResult) -> None:
            nonlocal iterated
            if call is not None:
                call(result)
            if maxiter is not None and result.nit >= maxiter:
                iterated = True
                raise StopIteration

        result = minimize(
            WithArgs(fun, args) if args else fun,
            np.asarray(x0),
            self.method,
            bounds=bounds,
            callback=None if call is None and maxiter is None else after_batch,
            **chosen,
        )
        if result.status == 99 and iterated:
            ending = (1, "Maximum number of iterations has been exceeded.", "iterations")
            result.status, result.message, result.stop_reason = ending
            result.success = chosen.get("target") is None
        elif result.stop_reason == StopReason.CALLBACK:
            result.message = "`callback` raised `StopIteration`."
        if disp:
            _print(result)
        return result

    def _not_used(self, what: str) -> None:
        warnings.warn(f"Method {self.method.__name__} does not use {what}.", RuntimeWarning, stacklevel=4)


def _options(given: Mapping[str, Any]) -> dict[str, Any]:
    """Renames the budget to ``max_queries``, drops limits that are None, and makes whole floats integers, as SciPy."""
    budgets = [name for name in BUDGETS if given.get(name) is not None]
    if len(budgets) > 1:
        raise ValueError(f"{' and '.join(budgets)} are names of the same query budget: pass only one")
    options = {name: value for name, value in given.items() if name not in (*BUDGETS, "maxiter")}
    for name, ours in [*((name, "max_queries") for name in budgets), ("maxiter", "maxiter")]:
        value = given.get(name)
        whole = int(value) if isinstance(value, float) and value.is_integer() else value
        if (number := optional(positive_integer, name, whole)) is not None:
            options[ours] = number
    return options


def _wrapped(callback: Callable[..., object]) -> Callable[[OptimizeResult], None]:
    try:
        takes_result = set(inspect.signature(callback).parameters) == {"intermediate_result"}
    except ValueError:
        takes_result = False

    def call(result: OptimizeResult) -> None:
        if takes_result:
            callback(intermediate_result=result)
        else:
            callback(np.copy(result.x))

    return call


def _print(result: Result) -> None:
    lines = [
        result.message,
        f"         Current function value: {result.fun:f}",
        f"         Iterations: {result.nit}",
        f"         Function evaluations: {result.nfev}",
    ]
    print("\n".join(lines))  # noqa: T201  that is what scipy's disp does
