"""Queries made to learn: directions that are least known, and when one is worth more than a step."""

import pytest
import torch

from optimizers import ZoRD
from optimizers.methods.zord.active_queries import UNCERTAIN, distances, uncertain_candidates
from tests.optimizers.surrogate_reference import Reference

OPTIONS = {"active": "gated", "initial_points": 4, "lengthscale": 2.0, "nugget": 0.05}


def quadratic(X):
    weights = torch.logspace(0, 1, X.shape[-1], dtype=X.dtype)
    return 0.5 * (weights * X.square()).sum(-1)


def advance(opt, queries):
    while opt.queries < queries:
        batch = opt.ask()
        opt.tell(batch, quadratic(batch.points()))
    return opt


def reference(opt, X=None):
    """The posterior in dense algebra; with more points X, whose values do not matter for covariances."""
    Z, y = opt.trajectory.X, opt.trajectory.y
    if X is None:
        return Reference(Z, y, float(y.std()), 2.0, 1.0, 0.05)
    return Reference(torch.cat([Z, X]), torch.cat([y, y[:1]]), 1.0, 2.0, 1.0, 0.05)


@pytest.mark.parametrize(("d", "queries"), [(12, 5), (6, 40)])
def test_candidates_lie_where_the_gradient_is_least_known(d, queries):
    """Against the eigenvalues of a dense covariance: its largest where unknown directions are left, near it else."""
    opt = advance(ZoRD(torch.ones(d, dtype=torch.float64), max_queries=60, radius=0.3, **OPTIONS), queries)
    x = opt._x
    opt.surrogate.begin(x)
    C = reference(opt).covariance(x)
    largest = float(torch.linalg.eigvalsh(C)[-1])
    points = uncertain_candidates(opt.surrogate.conditioning, x, 0.3, 1.0, seed=3, step=7) - x
    assert points.shape == (4 * 2 * UNCERTAIN, d)
    radii = points.norm(dim=1).reshape(4, -1)
    torch.testing.assert_close(radii, torch.tensor(distances(0.3, 1.0)).double()[:, None].expand(4, 2 * UNCERTAIN))
    u = points[: 2 * UNCERTAIN] / radii[0, :, None]
    torch.testing.assert_close(u[UNCERTAIN:], -u[:UNCERTAIN], rtol=0, atol=1e-14)
    known = torch.einsum("ki,ij,kj->k", u, C, u)
    mean = float(C.trace()) / d
    assert largest > 1.02 * mean and float(known.mean()) > 0.5 * (mean + largest)
    again = uncertain_candidates(opt.surrogate.conditioning, x, 0.3, 1.0, seed=3, step=7) - x
    assert torch.equal(points, again)


@pytest.mark.slow
def test_the_gate_opens_where_a_query_is_expected_to_add_more_than_a_step_has():
    """At every step, from dense inverses: the best drop in trace against ‖∇μ‖²."""
    opt = advance(ZoRD(torch.ones(6, dtype=torch.float64), max_queries=100, radius=0.3, **OPTIONS), 4)
    asked, stepped, in_a_row = 0, 0, 0
    for _ in range(30):
        x, query = opt._x if opt.state.query is not None else opt.state.best_point, opt.state.query
        now = reference(opt)
        opt.surrogate.begin(x)
        candidates = uncertain_candidates(opt.surrogate.conditioning, x, 0.3, 1.0, 0, opt.iterations)
        before = float(now.covariance(x).trace())
        drops = [before - float(reference(opt, c[None]).covariance(x).trace()) for c in candidates]
        slope = float(now.mean(x).square().sum())
        if query is not None:
            asked, in_a_row = asked + 1, in_a_row + 1
            chosen = int((candidates - query).norm(dim=1).argmin())
            assert torch.equal(candidates[chosen], query) and max(drops) > slope
            assert drops[chosen] == pytest.approx(max(drops), rel=1e-6)
        else:
            assert max(drops) <= slope or in_a_row == 5
            stepped, in_a_row = stepped + 1, 0
        advance(opt, opt.queries + 1)
    assert asked > 3 and stepped > 3


def test_what_a_query_adds_on_average_is_the_drop_in_trace():
    """E‖∇μ'‖² − ‖∇μ‖² over values drawn from the posterior: what the gate's comparison rests on."""
    opt = advance(ZoRD(torch.ones(6, dtype=torch.float64), max_queries=20, radius=0.3, **OPTIONS), 8)
    x, c = opt._x, opt._x + 0.2
    now, later = reference(opt), reference(opt, c[None])
    drop = float(now.covariance(x).trace() - later.covariance(x).trace())
    Z = opt.trajectory.X
    k = now.kernel(c[None], Z)[0]
    variance = float(now.kernel(c[None], c[None]) - k @ now.inverse @ k) + 0.05
    gain = now.jacobian(x).T @ now.inverse @ k - now_slope(now, x, c)
    assert float(gain @ gain) / variance == pytest.approx(drop, rel=1e-8)
    z = torch.randn(200_000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    means = now.mean(x) + z[:, None] * (gain / variance**0.5)
    added = means.square().sum(1) - now.mean(x).square().sum()
    assert abs(float(added.mean()) - drop) < 4 * float(added.std()) / len(z) ** 0.5


def now_slope(now, x, c):
    """The prior's covariance of ∇f(x) with f(c)."""
    return torch.func.jacrev(lambda z: now.kernel(z[None], c[None])[0, 0])(x)


def test_queries_to_learn_are_no_steps_without_gain():
    opt = advance(ZoRD(torch.ones(6, dtype=torch.float64), max_queries=60, radius=0.3, **OPTIONS), 4)
    learnt = 0
    while not opt.stopped:
        active, before = opt.state.query is not None and opt.state.active > 0, opt.state.without_gain
        advance(opt, opt.queries + 1)
        if active:
            learnt += 1
            assert opt.state.without_gain in (0, before)
    assert learnt > 10
