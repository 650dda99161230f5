"""Queries beside an iterate: what they are chosen for, and what a run does with their values in any order."""

import math

import pytest
import torch

from optimizers import L1, LeastSquaresGradient, ZoRD
from optimizers.methods.zord.informative_batch import batch_candidates, covariance_given, most_informative_set
from tests.optimizers.methods.busy import check_resumes, keep_busy, out
from tests.optimizers.surrogate_reference import Reference

OPTIONS = {"lengthscale": 2.0, "nugget": 0.05, "initial_points": 5, "radius": 0.3}
X0 = torch.tensor([1.0, -0.5, 0.8, 0.3, -1.0, 0.6], dtype=torch.float64)
BOX = [(-2.0, 1.5)] * 6


def function(X):
    weights = torch.logspace(0, 1, X.shape[-1], dtype=X.dtype)
    return 0.5 * (weights * (X - 0.1).square()).sum(-1)


def half_failing(X):
    return torch.where((X.sum(-1) * 1e4).floor() % 3 == 0, torch.nan, function(X))


def at_the_iterate(cls=ZoRD, queries=12, **options):
    """An optimizer whose iterate is out, and the batch."""
    opt = cls(X0, max_queries=200, **(OPTIONS if cls is ZoRD else {"initial_points": 5, "radius": 0.3}), **options)
    while opt.queries < queries:
        opt.tell(opt.ask(), function(opt.ask().points()))
    return opt, opt.ask()


def reference(opt, *more):
    """The posterior in dense algebra and by autograd, with further points, whose values no covariance depends on."""
    X = torch.cat([opt.trajectory.X, *more])
    return Reference(X, X.new_zeros(len(X)), 1.0, 2.0, 1.0, 0.05)


# What points teach.


def test_covariances_are_those_of_the_joint_distribution():
    """Given the queries and pending points, against a dense inverse of all of them."""
    opt, batch = at_the_iterate()
    z, generator = batch.explicit[0], torch.Generator().manual_seed(0)
    pending = torch.cat([z[None], z + 0.5 * torch.randn(3, 6, generator=generator, dtype=torch.float64)])
    C = z + 0.4 * torch.randn(5, 6, generator=generator, dtype=torch.float64)
    ours, dense = covariance_given(opt.surrogate, z, pending), reference(opt, pending)
    torch.testing.assert_close(ours.covariance(z[None])[0], dense.covariance(z), rtol=0, atol=1e-12)
    K = dense.kernel(C, dense.X)
    V = dense.kernel(C, C) - K @ dense.inverse @ K.T
    torch.testing.assert_close(ours.value_covariance(C, C), V, rtol=0, atol=1e-12)
    prior = torch.func.jacrev(lambda x: dense.kernel(C, x[None])[:, 0])(z)
    R = prior - K @ dense.inverse @ dense.jacobian(z)
    torch.testing.assert_close(ours.value_gradient_covariance(C, z[None])[:, 0], R, rtol=0, atol=1e-12)


@pytest.mark.parametrize("waiting", [0, 3])
def test_each_point_lowers_the_trace_most_given_those_before(waiting):
    """One after the other, by the trace of a dense covariance with each candidate in turn added to the data."""
    opt, batch = at_the_iterate()
    z, generator = batch.explicit[0], torch.Generator().manual_seed(1)
    pending = torch.cat([z[None], z + 0.5 * torch.randn(waiting, 6, generator=generator, dtype=torch.float64)])
    conditioning = covariance_given(opt.surrogate, z, pending)
    candidates = batch_candidates(conditioning, z, 4, 0.3, 1.0, seed=0, step=3)[::5]
    chosen = most_informative_set(conditioning, z, candidates, 0.05, 6)
    assert len(set(chosen)) == 6
    for k, j in enumerate(chosen):
        before = [pending, candidates[chosen[:k]]]
        traces = [float(reference(opt, *before, c[None]).covariance(z).trace()) for c in candidates]
        left = [t for i, t in enumerate(traces) if i not in chosen[:k]]
        assert traces[j] == pytest.approx(min(left), rel=1e-10)


def test_candidates_lie_on_both_sides_along_orthonormal_directions():
    opt, batch = at_the_iterate()
    z = batch.explicit[0]
    conditioning = covariance_given(opt.surrogate, z, z[None])
    offsets = (batch_candidates(conditioning, z, 3, 0.3, 1.0, seed=0, step=0) - z).reshape(4, 2, 6, 6)
    torch.testing.assert_close(offsets[:, 0], -offsets[:, 1], rtol=0, atol=1e-14)
    for u, distance in zip(offsets[:, 0], torch.logspace(math.log10(0.3), 0, 4).tolist(), strict=True):
        torch.testing.assert_close(u @ u.T, distance**2 * torch.eye(6).double(), rtol=0, atol=1e-6)
    wide = ZoRD(torch.ones(30).double(), max_queries=50, **OPTIONS)
    wide.tell(wide.ask(), function(wide.ask().points()))
    z = wide.ask().explicit[0]
    conditioning = covariance_given(wide.surrogate, z, z[None])
    u = (batch_candidates(conditioning, z, 15, 1.0, 1.0, seed=0, step=7) - z)[:15]
    torch.testing.assert_close(u @ u.T, torch.eye(15).double(), rtol=0, atol=1e-12)
    assert len(batch_candidates(conditioning, z, 3, 1.0, 1.0, seed=0, step=0)) == 4 * 2 * 8
    C = reference(wide, z[None]).covariance(z)
    left = float(torch.einsum("ki,ij,kj->k", u, C, u).mean())
    largest, mean = float(torch.linalg.eigvalsh(C)[-1]), float(C.trace()) / 30
    assert left > mean + 0.5 * (largest - mean)


def test_a_batch_teaches_more_than_random_points_do():
    """A batch of 8 with the same z: what is left of the trace, against the mean of 200 random clouds."""
    opt, batch = at_the_iterate(queries_per_step=8, queries=13)
    z = batch.explicit[:1]
    assert len(batch) == 8
    left = float(reference(opt, batch.explicit).covariance(z[0]).trace())
    generator = torch.Generator().manual_seed(0)
    clouds = (z + 0.3 / 6**0.5 * torch.randn(7, 6, generator=generator, dtype=torch.float64) for _ in range(200))
    random = [float(reference(opt, z, cloud).covariance(z[0]).trace()) for cloud in clouds]
    assert left < 0.7 * min(random)


# What a run does with them.

METHODS = {
    "zord": (ZoRD, OPTIONS),
    "fitted": (ZoRD, {"bounds": BOX}),
    "gated": (ZoRD, {**OPTIONS, "active": "gated"}),
    "batches": (ZoRD, {**OPTIONS, "queries_per_step": 3}),
    "last": (ZoRD, {**OPTIONS, "start": "last", "window": 9}),
    "prox": (ZoRD, {**OPTIONS, "prox": L1(0.5)}),
    "least squares": (LeastSquaresGradient, {"bounds": BOX, "queries_per_step": 2}),
}


@pytest.mark.parametrize(
    ("fun", "name"),
    [
        *((function, name) for name in METHODS),
        *(
            pytest.param(half_failing, name, marks=() if name in ("zord", "least squares") else pytest.mark.slow)
            for name in METHODS
        ),
    ],
)
def test_a_run_with_several_batches_out_resumes_bitwise(name, fun):
    cls, options = METHODS[name]
    check_resumes(lambda: cls(X0, max_queries=100, seed=3, **options), fun, 5, 25, 20)


@pytest.mark.parametrize("name", METHODS)
def test_no_point_is_asked_twice_and_the_budget_is_spent(name):
    cls, options = METHODS[name]
    opt = cls(X0, max_queries=50, seed=1, **options)
    told = keep_busy(opt, function, 6, 100)
    assert len(told) == opt.queries == 50 and len(torch.unique(told, dim=0)) == 50
    assert opt.best_fun < 0.4 * float(function(X0))
    if "bounds" in options:
        assert bool(((told >= -2.0) & (told <= 1.5)).all())


def test_asking_changes_nothing():
    """A state with pending batches dropped is the one that was there before they were asked."""
    opt, _ = at_the_iterate()
    surrogate, x = opt.surrogate.state_dict(), opt.x.clone()
    for _ in range(6):
        assert len(opt.ask_another()) == 1
    after = opt.surrogate.state_dict()
    assert torch.equal(after["window"]["L"], surrogate["window"]["L"]) and torch.equal(opt.x, x)
    assert after["scale"] == surrogate["scale"] and after["hyperparameters"] == surrogate["hyperparameters"]


def test_idle_workers_wait_for_the_design():
    opt = ZoRD(X0, max_queries=60, **OPTIONS)
    design = opt.ask()
    assert len(design) == 5 and opt.ask_another() is None
    opt.tell(design, [math.nan] * 4 + [1.0])
    again = opt.ask()
    assert len(again) == 5 and opt.ask_another() is None


@pytest.mark.parametrize("cls", [ZoRD, LeastSquaresGradient])
@pytest.mark.parametrize("value", [0.0, 1e9, math.nan])
def test_a_value_from_beside_joins_and_only_the_iterates_own_goes_on(cls, value):
    opt, iterate = at_the_iterate(cls)
    beside = [opt.ask_another() for _ in range(3)]
    x, known = opt.x, len(opt.trajectory)
    opt.tell(beside[1], [value])
    assert torch.equal(opt.x, x) and opt.state.failed == 0
    assert len(opt.trajectory) + opt.trajectory.failures == known + 1
    assert opt.best_fun == 0.0 if value == 0.0 else opt.best_fun > 0.0
    opt.tell(iterate, [float(function(iterate.points()[0]))])
    assert not torch.equal(opt.x, x)
    following = opt.ask_another()
    torch.testing.assert_close(following.points()[0], opt.x)
    assert opt.ask() is beside[0]


@pytest.mark.parametrize("value", [math.nan, 0.5])
def test_an_iterate_that_takes_too_long_is_passed_over_and_joins_late(value):
    """Of q = 4 points out the iterate is passed over at the eighth other answer, and not before."""
    opt, iterate = at_the_iterate()
    x, others = opt.x, [opt.ask_another() for _ in range(3)]
    for count in range(1, 9):
        assert torch.equal(opt.x, x)
        batch = others.pop(0)
        opt.tell(batch, function(batch.points()))
        if count < 8:
            others.append(opt.ask_another())
    assert not torch.equal(opt.x, x)
    x, known = opt.x, len(opt.trajectory) + opt.trajectory.failures
    following = opt.ask_another()
    torch.testing.assert_close(following.points()[0], x)
    opt.tell(iterate, [value])
    assert torch.equal(opt.x, x) and len(opt.trajectory) + opt.trajectory.failures == known + 1
    assert opt.state.failed == 0
    opt.tell(following, [1e6])
    assert not torch.equal(opt.x, x)


def test_a_failed_iterate_counts_and_the_descent_goes_on_from_the_best_point():
    opt, iterate = at_the_iterate()
    beside = opt.ask_another()
    opt.tell(iterate, [math.nan])
    assert opt.state.failed == 1
    opt.tell(beside, [math.nan])
    assert opt.state.failed == 1
    following = opt.ask()
    opt.tell(following, function(following.points()))
    assert opt.state.failed == 0


@pytest.mark.parametrize("cls", [ZoRD, LeastSquaresGradient])
def test_the_order_within_a_batch_does_not_matter(cls):
    following = []
    for order in ([0, 1, 2, 3], [3, 1, 0, 2], [2, 3, 1, 0]):
        opt, batch = at_the_iterate(cls, queries=13, queries_per_step=4)
        values = function(batch.points())
        for i in order:
            opt.tell(batch, values[[i]], which=[i])
        following.append(opt.ask().points())
    assert torch.equal(following[0], following[1]) and torch.equal(following[0], following[2])


def test_one_at_a_time_asks_what_a_sequential_run_asks():
    first, second = (ZoRD(X0, max_queries=40, bounds=BOX) for _ in range(2))
    told = keep_busy(first, function, 1, 40)
    while not second.stopped:
        second.tell(second.ask(), function(second.ask().points()))
    assert torch.equal(told, second.observations[0])


@pytest.mark.parametrize("cls", [ZoRD, LeastSquaresGradient])
def test_a_line_has_fewer_directions_than_workers(cls):
    """d = 1: with every candidate out workers wait, and a batch is completed with others."""

    def parabola(X):
        return (X[..., 0] - 0.3).square()

    opt = cls(torch.ones(1).double(), max_queries=80, initial_points=3)
    told = keep_busy(opt, parabola, 16, 80)
    assert len(told) == 80 and opt.best_fun < 1e-4 and len(torch.unique(told)) == 80
    opt = cls(torch.ones(1).double(), max_queries=80, initial_points=3, queries_per_step=16)
    while not opt.stopped:
        opt.tell(opt.ask(), parabola(opt.ask().points()))
    assert opt.queries > 60


def test_a_box_of_one_point_asks_no_other():
    opt = ZoRD(X0, bounds=[(v, v) for v in X0.tolist()], max_queries=20, radius=1.0)
    keep_busy(opt, lambda X: torch.ones(len(X)).double(), 3, 20)
    assert opt.queries == 20


def test_points_in_a_corner_stay_in_the_box_and_differ():
    corner = torch.full((6,), 1.5, dtype=torch.float64)
    opt = ZoRD(corner, bounds=BOX, max_queries=60)
    told = keep_busy(opt, lambda X: -X.sum(-1), 6, 60)
    assert bool((told <= 1.5).all()) and torch.equal(opt.best_x, corner)
    assert len(torch.unique(told, dim=0)) == 60


def test_the_budget_limits_a_batch_beside_others():
    opt, _ = at_the_iterate(queries=12)
    opt.max_queries = 16
    assert [len(opt.ask_another() or ()) for _ in range(5)] == [1, 1, 1, 0, 0]
    assert len(out(opt)) == 4
