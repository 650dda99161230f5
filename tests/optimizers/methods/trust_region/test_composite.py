import math

import numpy as np
import pytest
import torch
from scipy.optimize import minimize as scipy_minimize

from optimizers import L1, ElasticNet, L2Ball, Simplex, SurrogateTrustRegion, run
from optimizers.methods.trust_region.outcomes import _ratio


def normal(*shape, seed=0):
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(shape))


def least_squares(d=6, n=12, seed=0):
    """½‖Ax − b‖² with a sparse signal: A and b."""
    rng = np.random.default_rng(seed)
    A = rng.standard_normal((n, d)) / math.sqrt(n)
    return A, A @ np.where(np.arange(d) < 2, 2.0, 0.0) + 0.1 * rng.standard_normal(n)


def coordinate_descent(A, b, l1, l2=0.0, lower=-np.inf):
    """argmin ½‖Ax − b‖² + l1‖x‖₁ + l2/2‖x‖² over x ≥ lower ≤ 0, coordinate by coordinate until nothing moves."""
    x, squares = np.zeros(A.shape[1]), (A**2).sum(0)
    for _ in range(10000):
        before = x.copy()
        for j in range(len(x)):
            slope = A[:, j] @ (b - A @ x) + squares[j] * x[j]
            x[j] = max(np.sign(slope) * max(abs(slope) - l1, 0.0) / (squares[j] + l2), lower)
        if np.abs(x - before).max() < 1e-14:
            return x
    raise AssertionError("coordinate descent did not end")


def loss(A, b):
    return lambda x: 0.5 * float(np.square(A @ x.numpy() - b).sum())


@pytest.mark.parametrize("l1, l2, lower", [(0.3, 0.0, -math.inf), (0.05, 0.3, 0.0)])
def test_the_lasso_and_the_elastic_net_are_solved_as_by_coordinate_descent(l1, l2, lower):
    A, b = least_squares()
    known = torch.from_numpy(coordinate_descent(A, b, l1, l2, lower))
    prox = ElasticNet(l1, l2) if l2 else L1(l1)
    bounds = None if lower == -math.inf else [(lower, 3.0)] * 6
    opt = SurrogateTrustRegion(torch.full((6,), 1.0, dtype=torch.float64), prox=prox, bounds=bounds, max_queries=50)
    result = run(opt, loss(A, b))
    least = loss(A, b)(known) + float(prox.value(known))
    assert least - 1e-9 <= result.fun <= least + 1e-6
    assert ((result.x.abs() < 1e-12) == (known.abs() < 1e-12)).all()


@pytest.mark.slow
def test_over_a_simplex_and_a_ball_the_minimum_is_a_general_solvers():
    H, g = normal(4, 4), normal(4, seed=1)
    H = (H @ H.mT + torch.eye(4)).numpy()
    value = lambda x: float(0.5 * x @ H @ x + g.numpy() @ x)  # noqa: E731
    on = {"type": "eq", "fun": lambda x: x.sum() - 1.0}
    within = {"type": "ineq", "fun": lambda x: 0.3**2 - x @ x}
    for prox, limits, box in ((Simplex(), on, [(0, None)] * 4), (L2Ball(0.3), within, None)):
        known = scipy_minimize(value, np.full(4, 0.1), method="SLSQP", bounds=box, constraints=limits, tol=1e-12)
        opt = SurrogateTrustRegion(torch.ones(4, dtype=torch.float64), prox=prox, max_queries=40)
        result = run(opt, lambda x: value(x.numpy()))
        assert known.fun - 1e-8 <= result.fun <= known.fun + 1e-6
        assert math.isfinite(float(prox.value(result.x)))


def test_the_center_is_the_least_of_f_and_psi_not_of_f_alone():
    """f falls by 1 along each axis, where ψ = 10 ‖x‖₁ rises by 10."""
    opt = SurrogateTrustRegion(torch.zeros(2, dtype=torch.float64), prox=L1(10.0), radius=1.0, max_queries=40)
    opt.tell(design := opt.ask(), [-float(x.abs().sum()) for x in design])
    assert torch.equal(opt.x, torch.zeros(2, dtype=torch.float64))


def test_many_variables_with_a_prox_descend_in_its_domain():
    d, prox = 80, Simplex()
    target = torch.zeros(d, dtype=torch.float64)
    target[:3] = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
    opt = SurrogateTrustRegion(torch.full((d,), 1.0 / d), prox=prox, max_queries=40)
    result = run(opt, lambda x: float((x - target).square().sum()))
    assert math.isfinite(float(prox.value(result.x)))
    assert result.fun < 0.98 * float((1.0 / d - target).square().sum())


def test_a_prox_without_values_is_refused():
    with pytest.raises(ValueError, match="value"):
        SurrogateTrustRegion([0.0, 1.0], max_queries=10, prox=lambda z, step: z)


@pytest.mark.parametrize("value", [1e-10, 1e-30, 1e-300, 1e250])
def test_a_flat_function_of_any_size_leaves_the_prox_to_itself(value):
    """The step size 1/L overflowed. The least of a constant and ‖x‖₁ is at 0, where the constant does not hide that."""
    opt = SurrogateTrustRegion([0.7] * 3, max_queries=40, prox=L1(0.1))
    result = run(opt, lambda x: value)
    assert result.nfev == 40 and (value > 1.0 or result.fun == pytest.approx(value, rel=1e-6))


def test_the_first_step_into_the_domain_of_psi_has_not_failed():
    """Before it f + ψ is infinite: its ratio was ∞/∞, that of a failed query."""
    assert _ratio(math.inf, 3.0, 1.0) == math.inf and math.isnan(_ratio(math.inf, math.nan, 1.0))
    assert math.isnan(_ratio(math.inf, math.inf, 1.0)) and _ratio(5.0, 3.0, 4.0) == 0.5
