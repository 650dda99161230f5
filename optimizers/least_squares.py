"""``least_squares``: minimizes a sum of squared residuals, or of losses of them, from values of the residuals."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from optimizers.core.bounds import BoundsLike
from optimizers.core.history import as_history
from optimizers.core.residuals import Loss
from optimizers.core.result import Result
from optimizers.minimize import minimize


def least_squares(
    r: Callable[[Any], Any],
    x0: Any,
    *,
    max_queries: int,
    bounds: BoundsLike | None = None,
    loss: str | Callable[[np.ndarray], np.ndarray] = "linear",
    f_scale: float = 1.0,
    **options: Any,
) -> Result:
    """Minimizes F(x) = ½ C² Σᵢ ρ((rᵢ(x)/C)²) from values of the residuals r, without derivatives.

    It is the default method of ``minimize`` with a model of each residual instead of one of F. The residuals' Gaussian
    processes share hyper-parameters and one factor. A step leads to the least F of their posterior means in the trust
    region, whose Hessian is the Gauss-Newton matrix and the curvature of the models. A run begins with x0 and a point
    along each variable, which determine a first Jacobian. Residuals may be noisy. A query that gives NaN for some
    residuals has failed.

    Args:
        r: the residuals of a point, shape ``d`` to ``m``, or of ``q x d`` points to ``q x m`` with ``batched``.
        x0: initial point, shape ``d``.
        max_queries: the budget of evaluations of r.
        bounds: ``scipy.optimize.Bounds`` or d pairs; equal bounds fix a variable.
        loss: ρ: ``"linear"``, ``"soft_l1"``, ``"huber"``, ``"cauchy"`` or ``"arctan"``, or a function that takes z, of
            shape ``m``, and returns ρ(z), ρ'(z) and ρ''(z), ``3 x m``, as for ``scipy.optimize.least_squares``.
        f_scale: C, the size of a residual above which it is an outlier; it changes nothing for ``"linear"``.
        **options: the other arguments of ``minimize`` (such as ``seed``, ``workers``, ``executor``, ``checkpoint``,
            ``target``, a value of F) and of ``SurrogateTrustRegion`` (``radius``, ``window``, ``x_scale``). A
            ``history`` is (X, R), R the residuals at the points, ``n x m``.

    Returns:
        A ``Result`` with the entries of ``scipy.optimize.least_squares``: ``x``; ``cost``, F at x; ``fun``, the
        residuals at x, shape ``m``; ``jac``, ``m x d``, their Jacobian by the model, with 0 for a fixed variable, and
        modified for ``loss`` so that JᵀJ approximates the Hessian of F; ``grad``, the gradient of F, shape ``d``;
        ``optimality``, the largest absolute partial derivative, each times the distance to the bound towards which F
        falls; ``active_mask``, −1 at a lower bound and 1 at an upper one. If residuals are noisy, ``x`` is the query of
        least expected F, and ``fun`` has posterior means. ``status``, ``message``, ``success`` and ``history``
        (of F) are as in ``minimize``.

    Raises:
        ValueError: for an unknown loss, constraints or a prox, or as ``minimize`` does.
        TypeError: for an unknown option.
    """
    cost = Loss(loss, f_scale)
    if (history := options.get("history")) is not None:
        given = as_history(history)
        R = np.asarray(given.y, dtype=float)
        options["history"] = replace(given, y=[cost.cost(row) for row in R], c=R)
    return minimize(r, x0, max_queries=max_queries, bounds=bounds, residuals=cost, **options)
