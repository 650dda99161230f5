import math

import numpy as np
import pytest
import torch
from scipy import optimize

from optimizers import L1, Box, BoxRidge, ElasticNet, L2Ball, NoProx, Prox, Ridge, Simplex

D = 4
LOWER, UPPER = [-0.5, -math.inf, 0.2, -1.0], [0.5, 0.3, math.inf, -1.0]
CENTER = [0.3, -0.2, 0.1, 0.0]
PROXES = [
    NoProx(),
    Box(LOWER, UPPER),
    Box(-0.3, 0.4),
    BoxRidge(LOWER, UPPER, 0.7),
    Ridge(1.3),
    L1(0.4),
    ElasticNet(0.4, 1.3),
    L2Ball(0.8, CENTER),
    L2Ball(1.5),
    Simplex(),
    Simplex(2.5),
]
STEPS = [0.1, 1.0, 7.0]


def draws(*shape, seed=0, scale=1.5):
    return scale * torch.from_numpy(np.random.default_rng(seed).standard_normal(shape))


def solve(prox, z, step):
    """The argmin by SLSQP on (p, q) with x = p − q; where there is no |x| in ψ, q = 0."""
    z, big = z.numpy(), 100.0
    lower, upper, l1, l2, constraints = np.full(D, -big), np.full(D, big), 0.0, 0.0, []
    if isinstance(prox, BoxRidge):
        lower, upper, l2 = (
            np.maximum(prox.lower.numpy(), -big),
            np.minimum(prox.upper.numpy(), big),
            prox.weight,
        )
    elif isinstance(prox, ElasticNet):
        lower, l1, l2 = np.zeros(D) if prox.l1 else lower, prox.l1, prox.l2
    elif isinstance(prox, L2Ball):
        center = prox.center.numpy()
        inside = {"type": "ineq", "fun": lambda v: prox.radius**2 - ((v[:D] - center) ** 2).sum()}
        constraints = [inside]
    elif isinstance(prox, Simplex):
        lower = np.zeros(D)
        constraints = [{"type": "eq", "fun": lambda v: v[:D].sum() - prox.radius}]

    def objective(v):
        x = v[:D] - v[D:]
        return l1 * v.sum() + l2 / 2 * x @ x + (x - z) @ (x - z) / (2 * step)

    bounds = np.column_stack(
        (
            np.r_[np.broadcast_to(lower, D), np.zeros(D)],
            np.r_[np.broadcast_to(upper, D), np.full(D, big * bool(l1))],
        )
    )
    start = np.clip(np.full(2 * D, 0.1), *bounds.T)
    options = {"maxiter": 500, "ftol": 1e-15}
    found = optimize.minimize(objective, start, bounds=bounds, constraints=constraints, method="SLSQP", options=options)
    return found.x[:D] - found.x[D:]


@pytest.mark.slip(
    "optimizers/prox.py",
    "torch.clamp(z / (1.0 + step * self.weight)",
    "torch.clamp(z / (1.0 - step * self.weight)",
    "a ridge that pushes away from 0",
)
@pytest.mark.slip(
    "optimizers/prox.py",
    "thresholds = (below.cumsum(-1) - self.radius) / counts",
    "thresholds = (below.cumsum(-1) + self.radius) / counts",
    "the sign of the radius in the simplex's threshold",
)
@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("prox", PROXES, ids=repr)
def test_is_the_argmin_that_a_solver_finds(prox, step):
    for z in draws(4, D):
        np.testing.assert_allclose(prox(z, step), solve(prox, z, step), atol=2e-6)


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("prox", PROXES, ids=repr)
def test_no_other_point_is_better_by_strong_convexity(prox, step):
    """ψ(y) + ‖y − z‖²/2s >= the minimum + (1/s + μ)/2 ‖y − x‖² for every y, with the stated μ."""
    z = draws(D, seed=1)
    x = prox(z, step)
    other = torch.cat((x + draws(500, D, scale=0.3), prox(draws(500, D), step), prox(x + draws(500, D) * 0.01, step)))
    best = prox.value(x) + (x - z).square().sum() / (2 * step)
    assert best < math.inf
    reached = prox.value(other) + (other - z).square().sum(-1) / (2 * step)
    margin = (1 / step + prox.strong_convexity) / 2 * (other - x).square().sum(-1)
    assert (reached >= best + margin - 1e-10).all()


@pytest.mark.parametrize("prox", PROXES, ids=repr)
def test_firmly_nonexpansive(prox):
    a, b = draws(300, D, seed=2), draws(300, D, seed=3)
    p, q = prox(a, 0.7), prox(b, 0.7)
    moved = (p - q).square().sum(-1)
    product = ((p - q) * (a - b)).sum(-1)
    assert (moved * (1 + 0.7 * prox.strong_convexity) <= product + 1e-12).all()


@pytest.mark.parametrize("prox", PROXES, ids=repr)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_batches_dtype_and_the_point_left_alone(prox, dtype):
    z = draws(3, 2, D).to(dtype)
    kept = z.clone()
    batch = prox(z, 0.5)
    assert batch.shape == z.shape and batch.dtype == dtype and torch.equal(z, kept)
    assert batch.data_ptr() != z.data_ptr()
    values = prox.value(batch)
    assert values.shape == (3, 2) and values.dtype == dtype and values.isfinite().all()
    for i in range(3):
        torch.testing.assert_close(prox(z[i, 1], 0.5), batch[i, 1])
        torch.testing.assert_close(prox.value(batch[i, 1]), values[i, 1])
    torch.testing.assert_close(batch.double(), prox(draws(3, 2, D), 0.5), atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("prox", [p for p in PROXES if isinstance(p, L2Ball | Simplex) or type(p) is Box], ids=repr)
def test_projection_is_idempotent_and_ignores_the_step(prox):
    once = prox(draws(50, D), 0.3)
    torch.testing.assert_close(prox(once, 0.3), once, atol=1e-14, rtol=1e-14)
    assert torch.equal(prox(draws(50, D), 9.0), once)


def test_values():
    x = torch.tensor([0.5, -2.0, 0.0, 1.0], dtype=torch.float64)
    assert L1(2.0).value(x) == 7.0
    assert Ridge(2.0).value(x) == 5.25
    assert ElasticNet(1.0, 2.0).value(x) == 8.75
    assert NoProx().value(x) == 0.0
    assert Box(-2, 1).value(x) == 0.0
    assert Box(-1, 1).value(x) == math.inf
    assert BoxRidge(-2, 1, 2.0).value(x) == 5.25
    assert BoxRidge(-2, 0.9, 2.0).value(x) == math.inf
    assert L2Ball(2.3).value(x) == 0.0
    assert L2Ball(2.2).value(x) == math.inf
    assert Simplex(3.5).value(x.abs()) == 0.0
    assert Simplex(3.4).value(x.abs()) == math.inf
    assert Simplex(-0.5 + 1.0).value(x) == math.inf


def test_strong_convexity():
    expected = {"BoxRidge": 0.7, "Ridge": 1.3, "ElasticNet": 1.3}
    assert all(p.strong_convexity == expected.get(type(p).__name__, 0.0) for p in PROXES)


def test_far_points_and_large_dimension():
    far = torch.tensor([1e200, -1e200], dtype=torch.float64)
    torch.testing.assert_close(L2Ball(1.0)(far, 1.0), far / far.abs().max() / math.sqrt(2))
    torch.testing.assert_close(Simplex()(1e9 + torch.arange(3.0).double() / 8, 1.0).sum(), torch.tensor(1.0).double())
    tiny = torch.full((2,), 1e-200, dtype=torch.float64)
    assert torch.equal(L2Ball(1.0)(tiny, 1.0), tiny)
    x = Simplex(3.0)(draws(100_000), 1.0)
    assert Simplex(3.0).value(x) == 0.0 and 0 < (x > 0).sum() < 100


def test_float32_stays_inside_bounds_that_float32_cannot_hold():
    box = Box([0.1] * D, [0.7] * D)
    x = box(draws(100, D).float(), 1.0)
    assert (box.value(x) == 0.0).all()


def test_bounds_are_copied():
    lower = torch.zeros(D).double()
    box = Box(lower, 1.0)
    lower += 0.5
    assert torch.equal(box(torch.full((D,), 0.1).double(), 1.0), torch.full((D,), 0.1).double())


@pytest.mark.parametrize("prox", PROXES, ids=repr)
def test_bad_points_and_steps(prox):
    z = draws(D)
    with pytest.raises(TypeError, match="floating"):
        prox(torch.arange(D), 1.0)
    with pytest.raises(TypeError, match="floating"):
        prox([0.0] * D, 1.0)
    with pytest.raises(ValueError, match="shape"):
        prox(torch.tensor(1.0), 1.0)
    for bad in (math.nan, math.inf):
        with pytest.raises(ValueError, match="finite"):
            prox(torch.where(torch.arange(D) == 2, bad, z), 1.0)
    for step in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(ValueError, match="step"):
            prox(z, step)


@pytest.mark.parametrize("prox", [Box(LOWER, UPPER), BoxRidge(LOWER, 9.0, 1.0), L2Ball(1.0, CENTER)], ids=repr)
def test_wrong_dimension(prox):
    for call in (lambda x: prox(x, 1.0), prox.value):
        with pytest.raises(ValueError, match="coordinates"):
            call(draws(D + 1))


@pytest.mark.parametrize(
    "make",
    [
        lambda: Box(1.0, 0.0),
        lambda: Box([0.0, 1.0], [1.0, 0.5]),
        lambda: Box([0.0, 0.0], [1.0, 1.0, 1.0]),
        lambda: Box(math.nan, 1.0),
        lambda: Box(math.inf, math.inf),
        lambda: Box(torch.zeros(2, 2), 1.0),
        lambda: BoxRidge(0.0, 1.0, -0.1),
        lambda: Ridge(math.nan),
        lambda: L1(-1.0),
        lambda: ElasticNet(1.0, math.inf),
        lambda: L2Ball(0.0),
        lambda: L2Ball(1.0, [math.inf, 0.0]),
        lambda: Simplex(-1.0),
    ],
)
def test_bad_parameters(make):
    with pytest.raises(ValueError, match=r"accepted|must"):
        make()


def test_every_operator_is_covered():
    def leaves(kind):
        return (
            {kind}.union(*(leaves(k) for k in kind.__subclasses__())) if kind.__module__ == Prox.__module__ else set()
        )

    assert leaves(Prox) - {Prox} == {type(p) for p in PROXES}


@pytest.mark.parametrize("prox", PROXES, ids=repr)
def test_a_separable_prox_takes_a_step_for_each_coordinate(prox):
    z, steps = draws(3, D), torch.tensor([0.1, 1.0, 7.0, 0.4], dtype=torch.float64)
    if not prox.separable:
        with pytest.raises(ValueError, match="not separable"):
            prox(z, steps)
        return
    one_by_one = [prox(z, step)[:, j] for j, step in enumerate(steps.tolist())]
    assert torch.equal(prox(z, steps), torch.stack(one_by_one, dim=1))
    assert torch.equal(prox(z, steps[1]), prox(z, 1.0))
    for wrong in (steps[1:], -steps, steps * math.inf):
        with pytest.raises(ValueError, match="positive, finite numbers"):
            prox(z, wrong)
