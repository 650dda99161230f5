from dataclasses import replace

import numpy as np
import pytest
import torch

from optimizers import SurrogateTrustRegion
from optimizers.methods.trust_region.beside import Known, Place, kernel, slope_covariance, slopes
from optimizers.methods.trust_region.pinned_model import PinnedData, Shape

SHAPES = [Shape(1.0), Shape(300.0, 0.3)]


def normal(*shape, seed=0):
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(shape))


@pytest.mark.parametrize("shape", SHAPES)
def test_the_kernel_is_the_models(shape):
    U = normal(7, 3)
    K = kernel(U, U, shape) + shape.noise * torch.eye(7)
    factor, deviations, _ = PinnedData.of(U, normal(7)).factored(shape)
    np.testing.assert_allclose(deviations[:, None] * (factor @ factor.mT) * deviations, K, rtol=1e-8)


@pytest.mark.parametrize("shape", SHAPES)
def test_covariances_with_slopes_are_the_kernels_derivatives(shape):
    U, z = normal(5, 3), normal(3, seed=1)
    h, eye = 1e-5, torch.eye(3, dtype=torch.float64)
    ends = [kernel(U, z + sign * h * eye, shape) for sign in (1.0, -1.0)]
    np.testing.assert_allclose(slopes(U, z, shape), (ends[0] - ends[1]) / (2 * h), rtol=1e-6, atol=1e-6)
    derived = torch.stack([(slopes((z + h * e)[None], z, shape) - slopes((z - h * e)[None], z, shape))[0] for e in eye])
    np.testing.assert_allclose(slope_covariance(z, shape), derived / (2 * h), rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("shape", SHAPES)
def test_gains_are_what_a_query_takes_off_the_trace_of_the_slopes_covariance(shape):
    P, z, map = normal(6, 3), normal(3, seed=1), normal(3, 3, seed=2)
    P = torch.cat([P, z[None]])
    candidates = normal(4, 3, seed=3)

    def trace(points):
        return float((map.mT @ Known(points, z, shape).slope_covariance() @ map).trace())

    expected = [trace(P) - trace(torch.cat([P, c[None]])) for c in candidates]
    np.testing.assert_allclose(Known(P, z, shape).gains(candidates, map), expected, rtol=1e-5)


def place(basis=None, metric=None, d=6, n=4):
    return Place(
        rows=normal(n, d),
        asked=normal(2, d, seed=1),
        end=0.5 * normal(d, seed=2),
        metric=torch.eye(d, dtype=torch.float64) if metric is None else metric,
        basis=basis,
        shape=Shape(),
        radius=1.0,
        lower=torch.full((d,), -0.6, dtype=torch.float64),
        upper=torch.full((d,), 9.0, dtype=torch.float64),
    )


def test_informative_points_are_in_the_box_and_near_the_end_and_those_that_are_out_are_not_asked_again():
    about = place()
    points = about.informative(np.random.default_rng(0))
    assert bool((points >= about.lower).all() and (points <= about.upper).all())
    moves = points - about.end.clamp(about.lower, about.upper)
    assert float(moves.norm(dim=1).max()) <= 1.0 + 1e-9
    first = points[0]
    out = torch.cat([about.asked, first[None]])
    again = replace(about, asked=out).informative(np.random.default_rng(0))
    assert float((again[0] - first).norm()) > 0.1


def test_in_a_span_points_go_outside_of_what_is_known():
    rows, basis = normal(4, 30), torch.linalg.qr(normal(4, 30).mT).Q.mT
    free = torch.full((30,), 9.0, dtype=torch.float64)
    about = replace(place(basis, torch.eye(5, dtype=torch.float64), d=30), lower=-free)
    first = about.informative(np.random.default_rng(0))[0] - about.end
    seen = torch.linalg.qr(torch.cat([rows, about.asked, about.end[None]]).mT).Q
    inside = seen.mT @ first
    assert float(inside.norm()) < 0.2 * float(first.norm())


def test_in_a_span_points_are_at_the_three_distances():
    basis, free = torch.linalg.qr(normal(4, 30).mT).Q.mT, torch.full((30,), 9.0, dtype=torch.float64)
    about = replace(place(basis, torch.eye(5, dtype=torch.float64), d=30), lower=-free)
    lengths = (about.informative(np.random.default_rng(0)) - about.end).norm(dim=1)
    np.testing.assert_allclose(lengths.sort().values, np.repeat([0.25, 0.5, 1.0], len(lengths) // 3), rtol=1e-9)


def test_several_are_out_in_a_span_of_many_rows():
    x0 = torch.full((62,), -2.0, dtype=torch.float64)
    opt = SurrogateTrustRegion(x0, bounds=[(-5.0, 5.0)] * 62, max_queries=60)
    while not opt.stopped:
        out = []
        while sum(map(len, out)) < 8 and (batch := opt.ask_another()) is not None:
            out.append(batch)
        for batch in out:
            opt.tell(batch, [quadratic(x) for x in batch])
    assert len(opt.state.basis) > 40 and opt.best_y < 0.5 * quadratic(x0)


def quadratic(x):
    return float((torch.logspace(0, 2, len(x), dtype=torch.float64) * (x - 0.7).square()).sum())


def rounds(q, count):
    """The best value after so many rounds of at most q queries each, all of which come at its end."""
    x0 = torch.full((6,), -2.0, dtype=torch.float64)
    opt = SurrogateTrustRegion(x0, bounds=[(-5.0, 5.0)] * 6, max_queries=200)
    for _ in range(count):
        out = []
        while sum(map(len, out)) < q and (batch := opt.ask_another()) is not None:
            out.append(batch)
        for batch in out:
            opt.tell(batch, [quadratic(x) for x in batch])
    return opt.best_y


def test_eight_at_a_time_are_far_ahead_of_one_in_as_many_rounds():
    assert rounds(8, 8) < 1e-3 * rounds(1, 8)


def test_a_step_that_takes_too_long_is_passed_over_and_counts_when_it_comes():
    x0 = torch.full((6,), -2.0, dtype=torch.float64)
    opt = SurrogateTrustRegion(x0, bounds=[(-5.0, 5.0)] * 6, max_queries=80)
    design = opt.ask()
    opt.tell(design, [quadratic(x) for x in design])
    slow = opt.ask()
    kinds = []
    for _ in range(8):
        batch = opt.ask_another()
        kinds.append(batch.info["kind"])
        opt.tell(batch, [quadratic(x) for x in batch])
    assert kinds[:3] == ["beside"] * 3 and "step" in kinds
    count = len(opt.state.values)
    opt.tell(slow, [quadratic(x) for x in slow])
    assert len(opt.state.values) == count + 1


def test_with_noise_queries_beside_a_step_are_chosen_given_all_queries_of_its_model():
    generator = np.random.default_rng(0)
    opt = SurrogateTrustRegion(torch.ones(2, dtype=torch.float64), bounds=[(-5.0, 5.0)] * 2, max_queries=80, noise=1.0)
    while opt.queries < 80:
        batch = opt.ask()
        opt.tell(batch, [quadratic(x) + generator.standard_normal() for x in batch])
    rows = opt._modeller.place(opt.state, torch.empty(0, 2, dtype=torch.float64)).rows
    assert len(rows) == 40  # a window without noise is of 10
