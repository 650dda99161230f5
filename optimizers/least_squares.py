"""``least_squares``: minimizes a sum of squares, or of other losses, of residuals without derivatives."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from scipy.optimize import Bounds

from optimizers.core.bounds import BoundsLike
from optimizers.core.history import as_history
from optimizers.core.options import keyword_names, option_names, refuse_misspelt
from optimizers.core.residuals import Loss
from optimizers.core.result import Result
from optimizers.minimize import ELSEWHERE, minimize
from optimizers.registry import method_class

HINTS = ELSEWHERE | {
    "diff_step": "radius is the length of the first steps",
    "ftol": ELSEWHERE["tol"],
    "gtol": ELSEWHERE["tol"],
    "jac": "the Jacobian is estimated from the residuals",
    "kwargs": ELSEWHERE["args"],
    "verbose": ELSEWHERE["disp"],
    "xtol": ELSEWHERE["tol"],
}
"""Hints for arguments of ``scipy.optimize.least_squares`` that do not exist here."""


def least_squares(
    fun: Callable[[Any], Any],
    x0: Any,
    *,
    max_queries: int,
    bounds: BoundsLike | tuple[Any, Any] | None = None,
    loss: str | Callable[[np.ndarray], np.ndarray] = "linear",
    f_scale: float = 1.0,
    **options: Any,
) -> Result:
    """Minimizes F(x) = ½ C² Σᵢ ρ((rᵢ(x)/C)²) for residuals r, a loss ρ and a scale C, without derivatives.

    This is the default method of ``minimize`` with a Gaussian process for each residual instead of one for F. The
    processes share hyper-parameters and one Cholesky factor. A step minimizes, in the trust region, F with the
    residuals replaced by their posterior means; the Hessian of this model is the Gauss-Newton matrix plus the curvature
    of the means. A run begins with x0 and one point along each variable, which determine a first Jacobian. Residuals
    may be noisy. A query fails if any residual is NaN.

    Args:
        fun: function from a point, shape ``d``, to residuals, shape ``m``; with ``batched``, ``q x d`` to ``q x m``.
        x0: initial point, shape ``d``.
        max_queries: the budget of evaluations of ``fun``.
        bounds: ``scipy.optimize.Bounds``, ``Space``, a tuple (lower, upper) of arrays or numbers as in SciPy's
            ``least_squares``, or a list of d pairs as in ``minimize``; equal bounds fix a variable.
        loss: ρ: ``"linear"``, ``"soft_l1"``, ``"huber"``, ``"cauchy"`` or ``"arctan"``, or a function that takes z, of
            shape ``m``, and returns ρ(z), ρ'(z) and ρ''(z), ``3 x m``, as for ``scipy.optimize.least_squares``.
        f_scale: C, the size above which a residual counts as an outlier; it has no effect with ``"linear"``.
        **options: the other arguments of ``minimize`` (such as ``seed``, ``workers``, ``executor``, ``checkpoint``,
            ``target`` for F) and of ``SurrogateTrustRegion`` (``radius``, ``window``, ``x_scale``). A ``history`` is
            (X, R), where R, ``n x m``, has the residuals at the points.

    Returns:
        A ``Result`` with the entries of ``scipy.optimize.least_squares``: ``x``; ``cost``, F at x; ``fun``, the
        residuals at x, shape ``m``; ``jac``, ``m x d``, the model's estimate of their Jacobian, 0 for a fixed variable
        and modified for ``loss`` so that JᵀJ approximates the Hessian of F; ``grad``, the gradient of F, shape ``d``;
        ``optimality``, the maximum norm of ``grad`` after each component with a bound in the direction of descent is
        multiplied by the distance to this bound; ``active_mask``, −1 at a lower bound and 1 at an upper one. If
        residuals are noisy, ``x`` is the query of least expected F, and ``fun`` holds posterior means. ``status``,
        ``message``, ``success`` and ``history`` (of F) are as in ``minimize``.

    Raises:
        ValueError: for an unknown loss, for ``method``, ``constraints`` or ``prox``, or as ``minimize`` does.
        TypeError: for an unknown option.
    """
    if (method := options.pop("method", "trust_region")) != "trust_region":
        raise ValueError(
            f"leave out method={method!r}: least_squares has one method, a trust region on models of the residuals; "
            "'trf', 'dogbox' and 'lm' are methods of scipy.optimize.least_squares"
        )
    known = keyword_names(minimize) | option_names(method_class("trust_region"))
    refuse_misspelt(least_squares, keyword_names(least_squares), known, options, HINTS)
    cost = Loss(loss, f_scale)
    if isinstance(bounds, tuple) and len(bounds) == 2:
        bounds = Bounds(*bounds)
    if (history := options.get("history")) is not None:
        given = as_history(history)
        R = np.asarray(given.y, dtype=float)
        options["history"] = replace(given, y=[cost.cost(row) for row in R], c=R)
    return minimize(fun, x0, max_queries=max_queries, bounds=bounds, residuals=cost, **options)
