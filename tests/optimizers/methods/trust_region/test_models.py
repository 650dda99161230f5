import math

import numpy as np
import pytest
import torch
from scipy.linalg import eigh, sqrtm
from scipy.optimize import minimize as scipy_minimize

from optimizers import L1
from optimizers.methods.trust_region.local_model import CompositeModel
from optimizers.methods.trust_region.rules import ExplorationRule, GeometryRule, ModelRule
from optimizers.subproblems.region import HalfSpace, Region
from optimizers.subproblems.span import covering, unit_outside
from surrogates.pinned.prior import Hyperparameters
from tests.optimizers.methods.trust_region.models import ball, region_model

GEOMETRY, NEWTON = GeometryRule(), ModelRule().newton


def normal(*shape, seed=0):
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(shape))


def dense(metric, basis):
    """AᵀA in the variables: B's part, and c² in all directions outside."""
    inside, c = metric[:, :-1], metric[:, -1].norm()
    return basis.mT @ inside.mT @ inside @ basis + c**2 * (torch.eye(basis.shape[1]) - basis.mT @ basis)


def heights(rows):
    return (rows.sin() + 0.3 * rows.square()).sum(1) + rows[:, 0] * rows[:, -1]


@pytest.fixture
def pair():
    """A model of 9 rows in 15 variables in their span, and the same in all variables."""
    rows, shape = normal(9, 15), Hyperparameters(30.0)
    basis, y = covering(rows.new_empty(0, 15), rows)[0], heights(rows)
    metric = torch.block_diag(normal(9, 9, seed=1) + 3.0 * torch.eye(9), torch.tensor([[1.3]], dtype=torch.float64))
    model = region_model(rows, y, metric, shape, basis, unit_outside(basis, normal(15, seed=2)))
    return model, region_model(rows, y, torch.linalg.cholesky(dense(metric, basis)).mT, shape)


def test_a_model_does_not_depend_on_the_metrics_scale_and_is_in_the_variables_units():
    S, A, shape = normal(20, 3), normal(3, 3, seed=2), Hyperparameters(300.0)
    model, scaled = (region_model(S, heights(S), factor * A, shape) for factor in (1.0, 7.0))
    x, h = 0.5 * normal(3, seed=3), 1e-5
    assert model.mean(x) == pytest.approx(scaled.mean(x), rel=1e-9)
    slopes = [(model.mean(x + h * e) - model.mean(x - h * e)) / (2 * h) for e in torch.eye(3, dtype=torch.float64)]
    np.testing.assert_allclose(model.quadratic(x)[0], slopes, rtol=1e-4)


def test_the_model_in_the_span_is_that_in_all_variables(pair):
    model, full = pair
    for s in 0.5 * normal(6, 15, seed=3):
        assert model.mean(s) == pytest.approx(full.mean(s), rel=1e-9)
    s = 0.3 * model.basis.sum(0)
    (g, product, largest), (h, by, most) = full.quadratic(s), model.quadratic(s)
    np.testing.assert_allclose(h, g, rtol=1e-7, atol=1e-8)
    np.testing.assert_allclose(by(normal(15, seed=2)), product(normal(15, seed=2)), rtol=1e-7, atol=1e-7)
    assert most == pytest.approx(largest, rel=1e-8)


def test_slopes_outside_the_span_have_mean_0_and_the_priors_variance(pair):
    model, full = pair
    g, B, outside = full.gradient[:-1], model.basis, model.outside
    np.testing.assert_allclose(g - B.mT @ (B @ g), np.zeros(15), atol=1e-8)
    covariance, inner = full.gradient_covariance()[:-1, :-1], model.gradient_covariance()
    assert float(inner[-1, -1]) == pytest.approx(float(outside @ covariance @ outside), rel=1e-8)
    np.testing.assert_allclose(inner[:-1, :-1], B @ covariance @ B.mT, rtol=1e-7, atol=1e-7)


def test_without_a_box_the_step_is_that_in_all_variables(pair):
    model, full = pair
    for delta in (0.1, 0.4):
        step, reached = model.step(ball(delta, 15), NEWTON)
        known = full.step(ball(delta, 15), NEWTON)[1]
        assert float(step.norm()) <= delta * (1 + 1e-9)
        assert reached == pytest.approx(model.mean(step), rel=1e-9)
        assert reached <= known + 1e-6 * abs(known)


@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize("seed", range(4))
def test_steps_in_a_box_are_those_of_a_general_solver(pair, seed, which):
    model, full, delta = pair[which], pair[1], 0.4
    sides = torch.from_numpy(np.random.default_rng(seed).uniform(0.02, 0.2, (2, 15)))
    lower, upper = -sides[0], sides[1]
    lower[:3] = 0.0
    step, reached = model.step(Region(delta, lower, upper), NEWTON)
    assert bool((step >= lower).all() and (step <= upper).all()) and float(step.norm()) <= delta * (1 + 1e-9)
    assert reached == pytest.approx(full.mean(step), rel=1e-9)
    known = scipy_minimize(
        lambda s: full.mean(torch.from_numpy(s)),
        np.zeros(15),
        jac=lambda s: full.quadratic(torch.from_numpy(s))[0].numpy(),
        method="SLSQP",
        bounds=list(zip(lower.tolist(), upper.tolist(), strict=True)),
        constraints={"type": "ineq", "fun": lambda s: delta**2 - s @ s, "jac": lambda s: -2 * s},
        options={"ftol": 1e-12, "maxiter": 300},
    )
    assert reached <= known.fun + 1e-3 * abs(known.fun)


def test_what_a_step_explores_is_outside_the_span_and_its_deviation_is_the_slopes(pair):
    model, full = pair
    region = ball(0.3, 15)
    s, _ = model.step(region, NEWTON)
    explored, deviation = model.explored(ExplorationRule(), s, region)
    moved = explored - s
    assert 0.0 < float(moved.norm()) <= float(s.norm()) * (1 + 1e-9)
    assert float(moved @ model.outside) == pytest.approx(float(moved.norm()))
    covariance = full.gradient_covariance()[:-1, :-1]
    assert deviation**2 == pytest.approx(float(moved @ covariance @ moved), rel=1e-8)
    upper = torch.full((15,), 0.01, dtype=torch.float64)
    explored, _ = model.explored(ExplorationRule(), 0.5 * upper, Region(0.3, -upper, upper))
    assert bool((explored >= -upper).all() and (explored <= upper).all())
    assert model.explored(ExplorationRule(), s, ball(0.3, 15, HalfSpace(s / float(s @ s))))[1] == 0.0


def test_a_slopes_deviation_is_never_complex(pair, monkeypatch):
    """Rounding made a variance negative on ``swimmer``, and its root complex, with which a run ended."""
    model, _ = pair
    monkeypatch.setattr(model.pinned, "gradient_covariance", lambda: -1e-12 * torch.eye(10, dtype=torch.float64))
    assert model.explored(ExplorationRule(), 0.1 * normal(15), ball(0.3, 15))[1] == 0.0


def test_steps_stop_before_a_plane(pair):
    for model in pair:
        s, _ = model.step(ball(0.3, 15), NEWTON)
        plane = HalfSpace(s / float(s.square().sum()))
        shorter, reached = model.step(ball(0.3, 15, plane), NEWTON)
        assert float(plane.normal @ shorter) <= plane.allowed(0.3) + 2e-6 and reached <= 0.0


def test_a_geometry_direction_goes_along_what_the_queries_do_not_span_and_downhill():
    S = normal(30, 3)
    S[:, 2] *= 1e-3
    y = (S**2).sum(1) + 1e-3 * S[:, 0]
    e = region_model(S, y, shape=Hyperparameters()).geometry_direction(GEOMETRY, ball(1.0, 3))
    assert abs(float(e[2])) > 0.99
    steep = region_model(normal(30, 3), 1e3 * normal(30, 3).sum(1), shape=Hyperparameters())
    assert steep.geometry_direction(GEOMETRY, ball(1.0, 3)) is None


@pytest.mark.parametrize("length", [1e-12, 100.0])
def test_a_geometry_direction_is_about_the_slope_that_may_gain_most(length):
    """No direction has more eᵀCe/eᵀ(|H| + ‖g‖/δ)e, C = cov ∇f(x_b): not the one of most variance, up a steep wall."""
    S, delta = 0.1 * normal(8, 3), 0.5
    y = 1e4 * S[:, 0] ** 2 + S[:, 1] ** 2
    model = region_model(S, y, shape=Hyperparameters(1e3))
    H, C = model.hessian[:-1, :-1].numpy(), model.gradient_covariance()[:-1, :-1].numpy()
    size = np.real(sqrtm(H @ H))
    B = size + length / delta * np.eye(3)

    def gain(e):
        return e @ C @ e / (e @ B @ e)

    slope = length * torch.tensor([0.0, 0.6, 0.8], dtype=torch.float64)
    e = model.geometry_direction(GEOMETRY, ball(delta, 3), slope).numpy()
    assert np.linalg.norm(e) == pytest.approx(1.0) and e @ slope.numpy() <= 0.0
    assert gain(e) == pytest.approx(eigh(C, B, eigvals_only=True)[-1], rel=1e-6)
    assert gain(e) > 2.0 * gain(eigh(C)[1][:, -1])
    for share in (0.99, 1.01):
        known = (share * eigh(C, size, eigvals_only=True)[-1]) ** 0.5 * np.real(sqrtm(size))[0]
        found = model.geometry_direction(GEOMETRY, ball(1e12, 3), torch.from_numpy(known))
        assert (found is None) == (share > 1.0)


def test_in_a_span_of_all_variables_the_coordinate_outside_takes_no_geometry_query():
    """It had most variance, and took all of them."""
    rows = normal(30, 3)
    rows[:, 2] *= 1e-3
    y = rows.square().sum(1) + 1e-3 * rows[:, 0]
    basis = covering(rows.new_empty(0, 3), rows)[0]
    e, expected = (
        region_model(rows, y, shape=Hyperparameters(), basis=B).geometry_direction(GEOMETRY, ball(1.0, 3))
        for B in (basis, None)
    )
    np.testing.assert_allclose(e.abs(), expected.abs(), rtol=1e-5, atol=1e-7)


def test_a_step_with_a_prox_is_nearly_as_low_as_any_of_a_search_and_keeps_to_ball_and_box(pair):
    center, psi, full = normal(15, seed=3), L1(0.4), pair[1]
    lower, upper = torch.full((15,), -0.15, dtype=torch.float64), torch.full((15,), 0.3, dtype=torch.float64)
    for model in pair:
        both = CompositeModel(model, lambda s: float(psi.value(center + s)), lambda s, t: psi(center + s, t) - center)
        step, reached = both.step(Region(0.5, lower, upper), NEWTON)
        assert float(step.norm()) <= 0.5 * (1 + 1e-9) and bool((step >= lower).all() and (step <= upper).all())

        def total(s):
            return full.mean(s) + float(psi.value(center + s) - psi.value(center))

        assert reached == pytest.approx(total(step), rel=1e-7)
        generator = np.random.default_rng(0)
        for size in np.geomspace(1e-4, 0.3, 300):
            other = torch.clamp(step + size * torch.from_numpy(generator.standard_normal(15)), lower, upper)
            assert total(other * min(1.0, 0.5 / float(other.norm()))) >= total(step) - 0.05 * abs(reached)


def test_the_metric_takes_the_fifth_root_of_the_ratio_of_curvatures():
    Q = torch.linalg.qr(normal(4, 4)).Q
    hessian = Q @ torch.diag(torch.tensor([1e4, -1e2, 1.0, 1e-9], dtype=torch.float64)) @ Q.mT
    inverse = torch.linalg.inv(ModelRule().metric(hessian))
    curvatures = torch.linalg.eigvalsh(inverse.mT @ hessian @ inverse) / 1e4
    # 1e-13 of the largest counts as 1e-6: 1e-13 / 1e-6^0.8.
    np.testing.assert_allclose(curvatures, [-(10**-0.4), 10**-8.2, 10**-0.8, 1.0], rtol=1e-6, atol=1e-12)
    assert torch.equal(ModelRule().metric(torch.zeros(3, 3)), torch.eye(3)) and math.isfinite(float(inverse.sum()))
