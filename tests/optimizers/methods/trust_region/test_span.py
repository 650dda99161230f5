from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.optimize import minimize as scipy_minimize

from optimizers import SurrogateTrustRegion, run
from optimizers.methods.trust_region.pinned_model import Shape
from optimizers.methods.trust_region.radius import Radius
from optimizers.methods.trust_region.span import carried_metric, coordinates, covering, direction_outside
from optimizers.methods.trust_region.span_model import SpanModel
from optimizers.methods.trust_region.spanning import is_spanning, nearest, random_design
from tests.optimizers.methods.trust_region.models import region_model


def normal(*shape, seed=0):
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(shape))


def dense(metric, basis):
    """AᵀA in the variables: B's part, and c² in all directions outside."""
    inside, c = metric[:, :-1], metric[:, -1].norm()
    return basis.mT @ inside.mT @ inside @ basis + c**2 * (torch.eye(basis.shape[1]) - basis.mT @ basis)


def heights(rows):
    return (rows.sin() + 0.3 * rows.square()).sum(1) + rows[:, 0] * rows[:, -1]


def assert_spans(basis, rows):
    np.testing.assert_allclose(basis @ basis.mT, np.eye(len(basis)), atol=1e-12)
    np.testing.assert_allclose(rows @ basis.mT @ basis, rows, atol=1e-5)


def test_a_basis_covers_its_rows_grows_by_what_is_new_and_is_made_anew_when_most_of_it_is_unused():
    rows = normal(6, 20)
    basis, grown = covering(rows.new_empty(0, 20), rows)
    assert grown and len(basis) == np.linalg.matrix_rank(rows.numpy()) == 6
    assert_spans(basis, rows)
    more = torch.cat([rows, 2.0 * rows[:1] - rows[1:2], normal(2, 20, seed=1)])
    wider, grown = covering(basis, more)
    assert grown and len(wider) == 8 and torch.equal(wider[:6], basis)
    assert_spans(wider, more)
    many = covering(rows.new_empty(0, 20), normal(18, 20, seed=2))[0]
    few, grown = covering(many, rows[:3])
    assert not grown and len(few) == 3
    assert_spans(few, rows[:3])


def test_a_basis_has_no_more_vectors_than_variables():
    rows = normal(9, 4)
    basis, _ = covering(rows.new_empty(0, 4), rows)
    assert len(basis) == 4
    assert_spans(basis, rows)


@pytest.mark.parametrize("grown", [True, False])
def test_a_metric_stays_the_same_in_another_basis(grown):
    rows, d = normal(5, 12), 12
    before = covering(rows.new_empty(0, d), rows)[0]
    metric = torch.block_diag(normal(5, 5, seed=1), torch.tensor([[0.7]], dtype=torch.float64))
    if grown:
        after = covering(before, torch.cat([rows, normal(2, d, seed=2)]))[0]
    else:
        after = covering(rows.new_empty(0, d), torch.cat([rows[:2], normal(2, d, seed=3)]))[0]
    carried = carried_metric(metric, before, after, grown)
    s = normal(7, len(after), seed=4) @ after
    lengths = (coordinates(after, s) @ carried.mT).square().sum(1)
    np.testing.assert_allclose(lengths, (s @ dense(metric, before) * s).sum(1), rtol=1e-10)
    assert float(carried[:, -1].norm()) == pytest.approx(0.7)


@pytest.fixture
def pair():
    """A model of 9 rows in 15 variables in their span, and the same in all variables; and the rows' basis."""
    rows = normal(9, 15)
    basis = covering(rows.new_empty(0, 15), rows)[0]
    metric = torch.block_diag(normal(9, 9, seed=1) + 3.0 * torch.eye(9), torch.tensor([[1.3]], dtype=torch.float64))
    shape, y = Shape(30.0), heights(rows)
    inner = region_model(coordinates(basis, rows), y, metric, shape)
    full = region_model(rows, y, torch.linalg.cholesky(dense(metric, basis)).mT, shape)
    outside = direction_outside(basis, normal(15, seed=2))
    return SpanModel(inner, basis, outside), full, basis, outside


def test_the_model_in_the_span_is_that_in_all_variables(pair):
    model, full, basis, outside = pair
    for s in 0.5 * normal(6, 15, seed=3):
        assert model.mean(s) == pytest.approx(full.mean(s), rel=1e-9)
    np.testing.assert_allclose(basis @ outside, np.zeros(9), atol=1e-12)
    assert float(outside.norm()) == pytest.approx(1.0)


def test_slopes_outside_the_span_have_mean_0_and_the_priors_variance(pair):
    model, full, basis, outside = pair
    np.testing.assert_allclose(full.gradient - basis.mT @ (basis @ full.gradient), np.zeros(15), atol=1e-8)
    covariance, inner = full._gradient_covariance(), model._model._gradient_covariance()
    assert float(inner[-1, -1]) == pytest.approx(float(outside @ covariance @ outside), rel=1e-8)
    assert float(inner[:-1, :-1].trace()) == pytest.approx(float((basis @ covariance @ basis.mT).trace()), rel=1e-8)
    e = torch.linalg.eigh(inner).eigenvectors[:, -1]
    v, largest = model._whole(e), float(torch.linalg.eigvalsh(covariance)[-1])
    assert float(v @ covariance @ v) == pytest.approx(largest, rel=1e-8)


def test_without_a_box_the_step_is_that_in_all_variables(pair):
    model, full, _, _ = pair
    free = torch.full((15,), torch.inf, dtype=torch.float64)
    for delta in (0.1, 0.4):
        step, reached = model.step(delta, -free, free)
        known = full.step(delta, -free, free)[1]
        assert float(step.norm()) <= delta * (1 + 1e-9)
        assert reached == pytest.approx(model.mean(step), rel=1e-9)
        assert reached <= known + 1e-6 * abs(known)


@pytest.mark.parametrize("seed", range(4))
def test_steps_in_a_box_are_those_of_a_general_solver(pair, seed):
    model, full, _, _ = pair
    rng, delta = np.random.default_rng(seed), 0.4
    sides = torch.from_numpy(rng.uniform(0.02, 0.2, (2, 15)))
    lower, upper = -sides[0], sides[1]
    lower[:3] = 0.0
    step, reached = model.step(delta, lower, upper)
    assert bool((step >= lower).all() and (step <= upper).all()) and float(step.norm()) <= delta * (1 + 1e-9)
    assert reached == pytest.approx(full.mean(step), rel=1e-9)
    known = scipy_minimize(
        lambda s: full.mean(torch.from_numpy(s)),
        np.zeros(15),
        jac=lambda s: full.derivatives(torch.from_numpy(s))[0].numpy(),
        method="SLSQP",
        bounds=list(zip(lower.tolist(), upper.tolist(), strict=True)),
        constraints={"type": "ineq", "fun": lambda s: delta**2 - s @ s, "jac": lambda s: -2 * s},
        options={"ftol": 1e-12, "maxiter": 300},
    )
    assert reached <= known.fun + 1e-3 * abs(known.fun)


def test_what_a_step_explores_is_outside_of_the_span_and_its_doubt_is_the_slopes(pair):
    model, full, _, outside = pair
    free = torch.full((15,), torch.inf, dtype=torch.float64)
    s, _ = model.step(0.3, -free, free)
    explored, doubt = model.exploring(s, 0.3, -free, free)
    moved = explored - s
    assert 0.0 < float(moved.norm()) <= float(s.norm()) * (1 + 1e-9)
    assert float((moved @ outside).abs()) == pytest.approx(float(moved.norm()))
    covariance = full._map.mT @ full._model.gradient_covariance() @ full._map
    assert doubt**2 == pytest.approx(float(moved @ covariance @ moved), rel=1e-8)
    upper = torch.full((15,), 0.01, dtype=torch.float64)
    explored, _ = model.exploring(0.5 * upper, 0.3, -upper, upper)
    assert bool((explored >= -upper).all() and (explored <= upper).all())


def test_steps_stop_before_a_cut(pair):
    model, _, _, _ = pair
    free = torch.full((15,), torch.inf, dtype=torch.float64)
    s, _ = model.step(0.3, -free, free)
    model.cut = s / float(s.square().sum())
    shorter, reached = model.step(0.3, -free, free)
    assert 0.0 < float(model.cut @ shorter) <= 0.25 + 1e-9 and reached < 0.0


def test_a_design_is_the_center_and_orthonormal_directions():
    center = normal(30)
    moved = random_design(center, 2.0, np.random.default_rng(0)) - center
    assert not bool(moved[0].any())
    np.testing.assert_allclose(moved[1:] @ moved[1:].mT, 4.0 * np.eye(8), atol=1e-12)
    assert random_design(center[:3], 1.0, np.random.default_rng(0)).shape == (4, 3)
    assert is_spanning(61, 10**6) and is_spanning(40, 100) and not is_spanning(40, 800)


def test_the_nearest_are_those_of_least_distance_in_their_order():
    points = normal(20, 6)
    kept = nearest(points, 3, 5)
    order = (points - points[3]).norm(dim=1).argsort()[:6]
    assert kept.tolist() == sorted(order.tolist())


def sphere(x):
    return float((x - 0.5).square().sum())


def test_a_sphere_in_61_variables_is_near_its_minimum_after_two_queries_a_variable():
    x0 = torch.full((61,), -2.0, dtype=torch.float64)
    opt = SurrogateTrustRegion(x0, bounds=[(-5.0, 5.0)] * 61, max_queries=122)
    assert run(opt, sphere).fun < 1e-2 * sphere(x0)


def test_fewer_queries_than_variables_descend_inside_of_the_box_and_the_state_has_no_number_for_each_pair():
    d, x0 = 300, torch.full((300,), -4.9, dtype=torch.float64)
    opt = SurrogateTrustRegion(x0, bounds=[(-5.0, 5.0)] * d, max_queries=40, store_points=True)
    result = run(opt, lambda x: float((x + 6.0).square().sum()))
    assert result.fun < 0.995 * d * 1.1**2
    assert float(result.history.x.min()) >= -5.0
    assert max(v.numel() for v in vars(opt.state).values() if isinstance(v, torch.Tensor)) <= 40 * d


def test_a_run_forgets_what_is_far_and_goes_on():
    d = 70
    opt = SurrogateTrustRegion(normal(d), bounds=[(-5.0, 5.0)] * d, max_queries=50, window=10)
    run(opt, sphere)
    assert len(opt.state.points) == len(opt.state.values) <= 30
    assert opt.best_y == pytest.approx(float(opt.state.values.min()))


def test_a_saved_run_goes_on_bitwise():
    d = 70
    runs = [SurrogateTrustRegion(normal(d), bounds=[(-5.0, 5.0)] * d, max_queries=30) for _ in range(2)]
    full = run(runs[0], sphere)
    half = SurrogateTrustRegion(normal(d), bounds=[(-5.0, 5.0)] * d, max_queries=30)
    while half.queries < 20:
        batch = half.ask()
        half.tell(batch, [sphere(x) for x in batch])
    runs[1].load_state_dict(half.state_dict())
    assert torch.equal(run(runs[1], sphere).x, full.x)


def test_what_is_held_before_the_first_query_does_not_grow_with_the_square_of_the_dimension():
    """A metric of 200,000² numbers would be 320 GB."""
    opt = SurrogateTrustRegion(torch.zeros(200_000, dtype=torch.float64), max_queries=20)
    assert opt.ask().points().shape == (9, 200_000)


def test_lessons_of_a_span_of_all_variables_are_those_of_the_whole_model():
    """A coordinate that stands for what is outside of it had most variance, and took all lessons."""
    rows = normal(30, 3)
    rows[:, 2] *= 1e-3
    y = rows.square().sum(1) + 1e-3 * rows[:, 0]
    basis, whole = covering(rows.new_empty(0, 3), rows)[0], torch.eye(3, dtype=torch.float64)
    assert len(basis) == 3 and direction_outside(basis, normal(3)) is None
    inner = region_model(coordinates(basis, rows), y, torch.eye(4, dtype=torch.float64), Shape())
    e, expected = SpanModel(inner, basis, None).lesson(1.0), region_model(rows, y, whole, Shape()).lesson(1.0)
    np.testing.assert_allclose(e.abs(), expected.abs(), rtol=1e-5, atol=1e-7)
    step, deviation = SpanModel(inner, basis, None).exploring(rows[0], 1.0, -9 * whole[0], 9 * whole[0])
    assert torch.equal(step, rows[0]) and deviation == 0.0


def test_a_step_that_falls_short_by_chance_has_failed_as_the_fourth_in_a_row():
    """Chance explains each of them alone, but not that none was lower."""
    slope = normal(100)
    opt = SurrogateTrustRegion(torch.zeros(100, dtype=torch.float64), bounds=[(-5.0, 5.0)] * 100, max_queries=150)
    opt.tell(design := opt.ask(), design.points() @ slope)
    for count in range(4):
        step = opt.ask()
        assert step.info["kind"] == "step"
        opt.state.doubt = 1e9
        length = float((step[0] - opt.x).norm())
        opt.tell(step, [opt.best_y + 1e-3])
        assert (opt.state.radius.delta < length) is (count == 3)


@pytest.mark.parametrize("better", [False, True])
def test_a_run_begins_at_a_random_point_that_is_better_than_x0_and_at_the_best_one_else(better):
    """Terraces about x0, which go down or up: a run cannot go on from any, and no random point is near."""
    x0 = normal(100, seed=3).clamp(-1.0, 1.0)
    opt = SurrogateTrustRegion(x0, bounds=[(-5.0, 5.0)] * 100, max_queries=400)
    begun, sign = [], -1.0 if better else 1.0
    while not opt.stopped:
        batch = opt.ask()
        if batch.info["kind"] == "scout":
            best = opt.best_x
        elif batch.info["kind"] == "surround":
            begun.append(float(torch.linalg.vector_norm(batch.points() - best, dim=1).max()))
        opt.tell(batch, sign * torch.linalg.vector_norm(batch.points() - x0, dim=1).floor().clamp(max=10.0))
    nearest = 0.2 * 10.0 * 5.0**0.5
    assert len(begun) >= 3 and all((distance > 2.0 * nearest) is better for distance in begun)


def test_the_best_query_is_kept_whatever_is_forgotten():
    opt = SurrogateTrustRegion(torch.zeros(100, dtype=torch.float64), max_queries=400, window=10)
    opt.tell(design := opt.ask(), range(len(design)))
    points, values = normal(40, 100), normal(40)
    points[3], values[3] = 1e3, -9.0
    state = replace(opt.state, points=points, values=values, first=20)
    opt._modeller.forget(state)
    assert len(state.values) < 20 and float(state.values.min()) == -9.0
    assert 1e3 in state.points[: state.first] and 1e3 not in state.points[state.first :]


@pytest.mark.parametrize("noisy", [False, True])
def test_queries_of_a_finer_scale_are_out_of_the_window_of_a_run_that_begins_again(noisy):
    """Those nearer than ρ/100 say what f does at a finer scale; where values have noise more of it averages out."""
    opt = SurrogateTrustRegion(torch.zeros(100, dtype=torch.float64), max_queries=400)
    opt.tell(design := opt.ask(), range(len(design)))
    directions = torch.nn.functional.normalize(normal(4, 100), dim=1)
    points = torch.cat([torch.zeros(1, 100), torch.tensor([[1e-6], [0.009], [0.011], [1.0]]) * directions])
    state = replace(opt.state, points=points, values=normal(5), noisy=noisy, radius=Radius(1.0, 1.0, 9.0), pin=0)
    distances = torch.linalg.vector_norm(opt._modeller.place(state, points[:0]).rows, dim=1)
    np.testing.assert_allclose(distances, [1e-6, 0.009, 0.011, 1.0] if noisy else [0.011, 1.0])
