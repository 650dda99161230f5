import math

import pytest
import torch

from optimizers import CoordinateDifferences
from optimizers.methods.katyusha.parameters import KatyushaParameters, coordinate_batch, full_batch, general_convex
from optimizers.methods.katyusha.zo_l_katyusha import couple, variance_reduced, y_step, z_step
from tests.optimizers.composite import PROXES, logistic, quadratic
from tests.optimizers.methods.katyusha.bounds import (
    contraction,
    lyapunov,
    one_step_bound,
    smoothing_bias,
    theorem_bound,
)


def derivatives(problem, x, smoothing_radius):
    return CoordinateDifferences(smoothing_radius)(problem.f, x, batched=True).gradient


def points(problem, count=20, seed=3):
    generator = torch.Generator().manual_seed(seed)
    triples = torch.randn(count, 3, problem.d, generator=generator, dtype=torch.float64)
    near = problem.minimizer + 10.0 ** -torch.arange(count, dtype=torch.float64)[:, None, None].remainder(4) * triples
    return [[problem.prox(p, 1e-12) for p in triple] for triple in near]


def test_corollaries():
    q = coordinate_batch(2.0, 0.1, 0.3, 40, 4)
    assert abs(q.M - (4 * 40 * 2.0 / (3 * 4) + 2.0 / 3)) < 1e-12
    assert q.probability == 0.1 and q.theta2 == 0.5 and q.mu == pytest.approx(0.4)
    assert q.theta1 == pytest.approx(math.sqrt(0.4 / (q.M * 0.1))) and q.eta == pytest.approx(1 / (3 * q.theta1))
    full = full_batch(2.0, 0.1, 0.3)
    assert abs(full.M - 8 / 3) < 1e-12 and full.theta2 == 0.0 and full.probability == 1.0
    assert coordinate_batch(1.0, 1.0, 0.0, 2, 2).theta1 <= 0.5


def test_momentum_is_at_most_a_half():
    assert coordinate_batch(1.0, 1.0, 0.0, 100, 1).theta1 == 0.5
    assert full_batch(1.0, 1.0, 0.0).theta1 == 0.5
    assert general_convex(1.0, 10, 1, 0).theta1 == 0.5
    assert general_convex(1.0, 10, 1, 96).theta1 == pytest.approx(0.02)
    assert general_convex(1.0, 10, 1, 10**6, curvature=100.0).theta1 == 0.5


def test_scaled_parameters_follow_the_same_rules():
    q = coordinate_batch(1.0, 0.01, 0.0, 40, 1)
    r = q.scaled(0.1)
    assert abs(r.M - 0.1 * q.M) < 1e-12 and r.theta1 == pytest.approx(math.sqrt(10) * q.theta1)
    assert r.eta == pytest.approx(1 / (3 * r.theta1))


@pytest.mark.parametrize(
    "wrong",
    [
        {"theta1": 0.6},
        {"theta1": 0.0},
        {"theta2": 0.7},
        {"eta": -1.0},
        {"M": math.inf},
        {"probability": 0.0},
        {"probability": 1.5},
        {"mu_f": -1.0},
    ],
)
def test_parameters_out_of_range(wrong):
    good = {"theta1": 0.4, "theta2": 0.5, "eta": 1.0, "M": 1.0, "probability": 0.1}
    with pytest.raises(ValueError, match=next(iter(wrong))):
        KatyushaParameters(**(good | wrong))


def test_arguments_out_of_range():
    with pytest.raises(ValueError, match="not both 0"):
        coordinate_batch(1.0, 0.0, 0.0, 10, 1)
    with pytest.raises(ValueError, match="at most d = 10"):
        coordinate_batch(1.0, 1.0, 0.0, 10, 11)
    with pytest.raises(ValueError, match="L must be positive"):
        full_batch(0.0, 1.0, 0.0)
    q = coordinate_batch(1.0, 0.01, 0.0, 10, 1)
    with pytest.raises(ValueError, match="the bound needs M/eta"):
        one_step_bound(q.scaled(0.9), 1.0, 1.0, 1.0, L=1.0, d=10, size=1, smoothing_radius=1e-6)
    with pytest.raises(ValueError, match="share"):
        one_step_bound(q, 1.0, 1.0, 1.0, L=1.0, d=10, size=1, smoothing_radius=1e-6, share=1.0)


@pytest.mark.parametrize("smoothing_radius", [1e-6, 1e-2, 0.3])
def test_bias_of_the_differences(smoothing_radius):
    for problem in (logistic(PROXES["none"]), quadratic(PROXES["none"])):
        worst = 0.0
        for x, _, _ in points(problem):
            error = float((derivatives(problem, x, smoothing_radius) - problem.gradient(x)).norm())
            assert error <= smoothing_bias(problem.L, problem.d, smoothing_radius) * (1 + 1e-9) + 1e-8
            worst = max(worst, error)
        assert smoothing_radius < 1e-3 or worst > 0.03 * smoothing_bias(problem.L, problem.d, smoothing_radius)


@pytest.mark.parametrize("size", [1, 2, 8])
def test_estimate_is_unbiased_with_the_variance_of_eq_4(size):
    """Exactly, over all sets S: mean D(x), variance (d/|S| − 1) ‖D(x) − D(w)‖² ≤ (4dL/|S|) D + (8d/|S|) ε²."""
    problem, smoothing_radius = quadratic(PROXES["none"]), 1e-3
    sets = torch.combinations(torch.arange(problem.d), size)
    for x, w, _ in points(problem, 6):
        Dx, Dw = derivatives(problem, x, smoothing_radius), derivatives(problem, w, smoothing_radius)
        g = variance_reduced(Dw.expand(len(sets), -1), sets, Dx[sets])
        assert torch.allclose(g.mean(0), Dx, rtol=1e-9, atol=1e-9)
        variance = float((g - Dx).square().sum(-1).mean())
        expected = (problem.d / size - 1) * float((Dx - Dw).square().sum())
        assert variance == pytest.approx(expected, rel=1e-9, abs=1e-12)
        bregman = float(problem.f(w) - problem.f(x) - problem.gradient(x) @ (w - x))
        total = float((g - problem.gradient(x)).square().sum(-1).mean())
        ratio, bias = problem.d / size, smoothing_bias(problem.L, problem.d, smoothing_radius)
        assert total <= 4 * ratio * problem.L * bregman + 8 * ratio * bias**2 + 1e-12


@pytest.mark.parametrize("mu_f", [0.0, 0.7])
@pytest.mark.parametrize("prox", PROXES.values(), ids=PROXES)
def test_z_step_is_its_argmin(prox, mu_f):
    generator = torch.Generator().manual_seed(0)
    x, z, g = torch.randn(3, 5, generator=generator, dtype=torch.float64)
    q = KatyushaParameters(0.3, 0.5, 1.1, 2.0, 0.1, mu_f, prox.strong_convexity)

    def objective(u):
        near = q.M / (2 * q.eta) * (u - z).square().sum(-1) + mu_f / 2 * (u - x).square().sum(-1)
        return prox.value(u) + u @ g + near

    best = z_step(q, prox, x, z, g)
    others = best + 10.0 ** torch.linspace(-6, 0, 400, dtype=torch.float64)[:, None] * torch.randn(
        400, 5, generator=generator, dtype=torch.float64
    )
    others = torch.cat([others, prox(others, 1e-12)])
    gain = objective(others) - objective(best)
    strong = (q.M / q.eta + q.mu) / 2 * (others - best).square().sum(-1)
    assert bool((gain >= strong - 1e-12).all())


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("option", ["I", "II"])
@pytest.mark.parametrize("prox", PROXES.values(), ids=PROXES)
def test_one_step_bound_exactly(prox, option, full):
    """E Ψ⁺ summed over all coordinates and both coins is at most the bound, from many points and for any share."""
    problem = quadratic(prox)
    d, smoothing_radius = problem.d, 1e-4
    L, mu_psi, tightest = problem.L, problem.mu_psi, math.inf
    q, size = (full_batch(L, 1.0, mu_psi), d) if full else (coordinate_batch(L, 1.0, mu_psi, d, 1), 1)
    constants = {"L": problem.L, "d": d, "size": size, "smoothing_radius": smoothing_radius}
    for y, z, w in points(problem):
        x = couple(q, z, y if full else w, y)
        Dx, Dw = derivatives(problem, x, smoothing_radius), derivatives(problem, w, smoothing_radius)
        axes = torch.arange(d)[:, None]
        g = Dx.expand(1, d) if full else variance_reduced(Dw.expand(d, -1), axes, Dx[axes])
        new_z = z_step(q, prox, x, z, g)
        new_y = y_step(q, option, prox, x, z, new_z, g)
        y_gap, w_gap = float(problem.gap(y)), 0.0 if full else float(problem.gap(w))
        new_w_gap = q.probability * y_gap + (1 - q.probability) * w_gap
        distance = (new_z - problem.minimizer).square().sum(-1)
        after = float(lyapunov(q, distance, problem.gap(new_y), new_w_gap).mean())
        before = float((z - problem.minimizer).square().sum()), y_gap, w_gap
        for share in (1e-3, 0.1, 0.5, 0.9):
            bound = one_step_bound(q, *before, **constants, share=share)
            assert after <= bound * (1 + 1e-9) + 1e-12
            tightest = min(tightest, bound / max(after, 1e-300))
    assert tightest < 3.0, "so loose a bound tests nothing"


def test_theorem_iterates_the_one_step_bound():
    q = coordinate_batch(3.0, 0.1, 0.2, 10, 2)
    constants = {"L": 3.0, "d": 10, "size": 2, "smoothing_radius": 1e-3}
    bound, error = 7.0, one_step_bound(q, 0.0, 0.0, 0.0, **constants)
    for _ in range(50):
        bound = contraction(q) * bound + error
    assert theorem_bound(q, 7.0, 50, **constants) == pytest.approx(bound)
    psi = lyapunov(q, 1.0, 2.0, 3.0)
    assert one_step_bound(q, 1.0, 2.0, 3.0, **constants) <= contraction(q) * psi + error + 1e-12
