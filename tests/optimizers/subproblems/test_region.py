import math

import numpy as np
import pytest
import torch
from scipy.optimize import minimize as scipy_minimize

from optimizers.subproblems.region import HalfSpace, Region, ball_minimizer, minimize_in_ball, separating_plane
from optimizers.subproblems.span import minimize_in_span


def in_variables(g, H, region):
    """The step of a quadratic in a region, and the value, by a span of all variables."""
    d = len(g)
    padded = torch.block_diag(H, torch.ones(1, 1, dtype=H.dtype))

    def quadratic(c):
        return value(g, H, c[:-1])

    def derivatives(c):
        return torch.cat([g, g[:1] * 0.0]) + padded @ c, padded

    return minimize_in_span(quadratic, derivatives, torch.eye(d, dtype=g.dtype), region, 6)


def quadratic(d, seed, definite=False):
    rng = np.random.default_rng(seed)
    Q = np.linalg.qr(rng.standard_normal((d, d)))[0]
    eigenvalues = rng.standard_normal(d) * 10.0 ** rng.uniform(-2, 2, d)
    eigenvalues = np.abs(eigenvalues) if definite else eigenvalues
    return torch.from_numpy(rng.standard_normal(d)), torch.from_numpy((Q * eigenvalues) @ Q.T)


def value(g, H, s):
    return float(g @ s + 0.5 * s @ H @ s)


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("radius", [1e-3, 0.5, 30.0])
def test_steps_in_a_ball_meet_the_conditions_of_the_global_minimum(seed, radius):
    """‖s‖ ≤ r, (H + μ)s = −g, μ ≥ 0, μ(r − ‖s‖) = 0 and H + μ ⪰ 0 (Conn et al., Cor. 7.2.2)."""
    g, H = quadratic(5, seed, definite=seed % 3 == 0)
    s = ball_minimizer(g, H, radius)
    mu = float(-(s @ (g + H @ s)) / (s @ s))
    norm = float(s.norm())
    assert norm <= radius * (1 + 1e-9) and mu >= -1e-9
    size = float(H.abs().max())
    assert float((H @ s + mu * s + g).norm()) <= 1e-6 * (float(g.norm()) + size * norm)
    assert mu * (radius - norm) <= 1e-6 * radius * max(mu, 1.0)
    assert float(torch.linalg.eigvalsh(H)[0]) + mu >= -1e-8 * size


def test_the_hard_case_reaches_the_sphere():
    H = torch.diag(torch.tensor([-2.0, 1.0, 3.0], dtype=torch.float64))
    g = torch.tensor([0.0, 1.0, 0.0], dtype=torch.float64)
    s = ball_minimizer(g, H, 2.0)
    assert float(s.norm()) == pytest.approx(2.0)
    # s_2 = -1/(1 + 2) at the multiplier 2, and the rest is along the lowest eigenvector.
    np.testing.assert_allclose(s.abs(), [math.sqrt(4.0 - 1.0 / 9.0), 1.0 / 3.0, 0.0], atol=1e-6)
    flat = ball_minimizer(torch.zeros(2, dtype=torch.float64), torch.zeros(2, 2, dtype=torch.float64), 1.0)
    assert bool(torch.isfinite(flat).all()) and float(flat.norm()) <= 1.0


@pytest.mark.parametrize("seed", range(8))
def test_convex_steps_in_ball_and_box_are_those_of_a_general_solver(seed):
    d, radius = 4, 1.0
    g, H = quadratic(d, seed, definite=True)
    rng = np.random.default_rng(seed)
    lower, upper = (torch.from_numpy(side) for side in (-rng.uniform(0.0, 0.8, d), rng.uniform(0.0, 0.8, d)))
    lower[0] = 0.0
    _, reached = in_variables(g, H, Region(radius, lower, upper))
    known = scipy_minimize(
        lambda s: value(g.numpy(), H.numpy(), s),
        np.zeros(d),
        jac=lambda s: g.numpy() + H.numpy() @ s,
        method="SLSQP",
        bounds=list(zip(lower.tolist(), upper.tolist(), strict=True)),
        constraints={"type": "ineq", "fun": lambda s: radius**2 - s @ s, "jac": lambda s: -2 * s},
        options={"ftol": 1e-12, "maxiter": 500},
    )
    assert reached <= known.fun + 0.1 * abs(known.fun)


def test_variables_that_leave_the_box_end_at_its_side_and_the_others_are_free():
    g, H = torch.tensor([-1.0, -10.0, 1.0], dtype=torch.float64), torch.eye(3, dtype=torch.float64)
    H[0, 1] = H[1, 0] = 0.5
    lower, upper = (torch.full((3,), side, dtype=torch.float64) for side in (-0.5, 2.0))
    s, _ = in_variables(g, H, Region(100.0, lower, upper))
    np.testing.assert_allclose(s, [0.0, 2.0, -0.5], atol=1e-9)  # 1 - 0.5 * 2 with the second variable at its side


def test_newton_steps_go_beyond_the_first_quadratic():
    def fall(s):
        return float((s[0] - 1.0) ** 4 + 0.5 * s[1] ** 2) - 1.0

    def derivatives(s):
        g = torch.stack([4.0 * (s[0] - 1.0) ** 3, s[1]])
        return g, torch.diag(torch.stack([12.0 * (s[0] - 1.0) ** 2, torch.ones_like(s[0])]))

    g, H = derivatives(torch.zeros(2, dtype=torch.float64))
    _, reached = minimize_in_ball(fall, derivatives, 3.0, g * 0.0)
    assert reached < fall(ball_minimizer(g, H, 3.0)) - 0.15


@pytest.mark.parametrize("seed", range(6))
def test_the_plane_is_the_farthest_plane_that_parts_failures_from_successes(seed):
    """Among all planes nᵀs = 1 with nᵀs ≥ 1 for failures and ≤ 1 for successes, the least ‖n‖, by another solver."""
    rng = np.random.default_rng(seed)
    normal, S = rng.standard_normal(3), rng.standard_normal((30, 3))
    behind = S @ normal > 0.5 * np.linalg.norm(normal)
    failed, rows = S[behind], S[~behind]
    n = separating_plane(torch.from_numpy(failed), torch.from_numpy(rows))
    known = scipy_minimize(
        lambda n: n @ n,
        normal / (0.5 * np.linalg.norm(normal)),
        jac=lambda n: 2.0 * n,
        method="SLSQP",
        constraints=[
            {"type": "ineq", "fun": lambda n: failed @ n - 1.0, "jac": lambda n: failed},
            {"type": "ineq", "fun": lambda n: 1.0 - rows @ n, "jac": lambda n: -rows},
        ],
        options={"ftol": 1e-14, "maxiter": 500},
    )
    assert known.success and n is not None
    np.testing.assert_allclose(n, known.x, atol=1e-5)
    mixed = torch.from_numpy(np.vstack([failed, -failed]))
    assert separating_plane(mixed, torch.from_numpy(rows)) is None
    assert separating_plane(mixed[:0], torch.from_numpy(rows)) is None


@pytest.mark.parametrize(("distance", "share"), [(0.4, 0.0), (0.5, 0.0), (0.55, 1.0 / 11.0), (0.8, 0.25)])
def test_steps_stay_a_radius_before_a_plane_and_are_the_least_there(distance, share):
    g, H = quadratic(4, 3, definite=True)
    free = torch.full((4,), math.inf, dtype=torch.float64)
    s, _ = in_variables(g, H, Region(0.5, -free, free))
    plane = HalfSpace(s / (float(s.norm()) * distance))
    before, least = in_variables(g, H, Region(0.5, -free, free, plane))
    known = scipy_minimize(
        lambda s: value(g.numpy(), H.numpy(), s),
        np.zeros(4),
        method="SLSQP",
        constraints=[
            {"type": "eq", "fun": lambda s: float(plane.normal @ torch.from_numpy(s)) - share},
            {"type": "ineq", "fun": lambda s: 0.25 - s @ s},
        ],
        options={"ftol": 1e-14, "maxiter": 500},
    )
    assert float(plane.normal @ before) == pytest.approx(share, abs=2e-6) and float(before.norm()) <= 0.5 * (1 + 1e-9)
    assert least == pytest.approx(known.fun, rel=1e-2)
    assert torch.equal(Region(1e9, -free, free, plane).away(s), -s)
