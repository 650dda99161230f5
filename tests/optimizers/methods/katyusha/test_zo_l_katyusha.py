import math

import pytest
import torch

from optimizers import Box, BoxRidge, minimize, run
from optimizers.methods.katyusha.parameters import coordinate_batch, full_batch
from optimizers.methods.katyusha.zo_l_katyusha import ZOLKatyusha, couple, variance_reduced, y_step, z_step
from optimizers.testing import quadratic as battery_quadratic
from tests.optimizers.composite import PROXES, logistic, quadratic
from tests.optimizers.methods.katyusha.bounds import lyapunov, theorem_bound

RADIUS = 1e-6


def constants(problem):
    return {"smoothness": problem.L, "strong_convexity": problem.mu_f, "smoothing_radius": RADIUS}


def solve(problem, max_queries, **options):
    x0 = torch.zeros(problem.d, dtype=torch.float64)
    opt = ZOLKatyusha(x0, prox=problem.prox, max_queries=max_queries, **options)
    while not opt.stopped:
        batch = opt.ask()
        opt.tell(batch, problem.f(batch.points()))
    return opt


def forward_differences(problem, x):
    return (problem.f(x[:, None] + RADIUS * torch.eye(problem.d, dtype=x.dtype)) - problem.f(x)[:, None]) / RADIUS


def algorithm_1(problem, q, option, axes, coins):
    """Yields z, y, w of Alg. 1 for many runs at once; axes ``iterations x runs x |S|``, coins ``iterations x runs``."""
    z = y = w = torch.zeros(axes.shape[1], problem.d, dtype=torch.float64)
    reference = forward_differences(problem, w)
    yield z, y, w
    for S, renew in zip(axes, coins, strict=True):
        x = couple(q, z, w, y)
        moved = x[:, None] + RADIUS * torch.eye(problem.d, dtype=x.dtype)[S]
        g = variance_reduced(reference, S, (problem.f(moved) - problem.f(x)[:, None]) / RADIUS)
        new_z = z_step(q, problem.prox, x, z, g)
        new_y = y_step(q, option, problem.prox, x, z, new_z, g)
        w = torch.where(renew[:, None], y, w)
        reference = torch.where(renew[:, None], forward_differences(problem, w), reference)
        z, y = new_z, new_y
        yield z, y, w


def drawn(iterations, runs, d, size, p, seed):
    generator = torch.Generator().manual_seed(seed)
    axes = torch.rand(iterations, runs, d, generator=generator).argsort(-1)[..., :size]
    return axes, torch.rand(iterations, runs, generator=generator) < p


@pytest.mark.parametrize("option", ["I", "II"])
@pytest.mark.parametrize("prox", PROXES.values(), ids=PROXES)
def test_the_class_is_algorithm_1(prox, option):
    problem = quadratic(prox)
    q = coordinate_batch(problem.L, problem.mu_f, problem.mu_psi, problem.d, 2)
    opt = ZOLKatyusha(
        torch.zeros(8, dtype=torch.float64),
        prox=prox,
        max_queries=500,
        option=option,
        coordinates=2,
        **constants(problem),
    )
    iterates, axes, coins = [], [], []
    while not opt.stopped:
        batch = opt.ask()
        if len(batch) == 3:
            axes.append([[j for _, j in batch.addresses[1:]]])
            coins.append([batch.info["renew"]])
        opt.tell(batch, problem.f(batch.points()))
        if len(batch) == 3:
            iterates.append(opt.x)
    assert opt.current_parameters == q and any(c[0] for c in coins)
    expected = [y[0] for _, y, _ in algorithm_1(problem, q, option, torch.tensor(axes), torch.tensor(coins))]
    for ours, theirs in zip(iterates, expected[1:], strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-7, atol=1e-8)


@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize("option", ["I", "II"])
@pytest.mark.parametrize("prox", PROXES.values(), ids=PROXES)
def test_expected_lyapunov_function_is_under_theorem_1(prox, option, size):
    """Mean Ψ of 200 runs at theory parameters, with its 99.5% margin, under the bound at every iteration."""
    problem, runs, iterations = quadratic(prox), 200, 400
    d = problem.d
    q = coordinate_batch(problem.L, problem.mu_f, problem.mu_psi, d, size)
    axes, coins = drawn(iterations, runs, d, size, q.probability, seed=1)
    ratios = []
    for k, (z, y, w) in enumerate(algorithm_1(problem, q, option, axes, coins)):
        distance = (z - problem.minimizer).square().sum(-1)
        psi = lyapunov(q, distance, problem.gap(y), problem.gap(w))
        upper = float(psi.mean() + 2.6 * psi.std() / math.sqrt(runs))
        if k == 0:
            initial = float(psi[0])
        keep = {"L": problem.L, "d": d, "size": size, "smoothing_radius": RADIUS}
        bound = min(theorem_bound(q, initial, k, **keep, share=share) for share in (0.5, 0.1, 0.01))
        ratios.append(upper / bound)
    assert max(ratios) <= 1.0 + 1e-9
    assert ratios[5] > 0.5, "so loose a bound tests nothing"
    assert float(psi.mean()) < 1e-2 * initial


def test_expected_lyapunov_function_of_the_full_batch():
    for prox in PROXES.values():
        problem = quadratic(prox)
        q = full_batch(problem.L, problem.mu_f, problem.mu_psi)
        for option in ("I", "II"):
            opt = ZOLKatyusha(
                torch.zeros(8, dtype=torch.float64),
                prox=prox,
                max_queries=9 * 60,
                coordinates="full",
                option=option,
                **constants(problem),
            )
            keep = {"L": problem.L, "d": 8, "size": 8, "smoothing_radius": RADIUS}
            psis = []
            while not opt.stopped:
                distance = (opt.state.z - problem.minimizer).square().sum()
                psis.append(float(lyapunov(q, distance, problem.gap(opt.x))))
                bound = min(theorem_bound(q, psis[0], len(psis) - 1, **keep, share=s) for s in (0.5, 0.1, 0.01))
                assert psis[-1] <= bound * (1 + 1e-9)
                batch = opt.ask()
                opt.tell(batch, problem.f(batch.points()))
            assert opt.iterations == 60 and psis[-1] < 1e-4 * psis[0]


@pytest.mark.parametrize("option", ["I", "II"])
def test_linear_convergence_of_the_full_batch_on_figure_1(option):
    problem = logistic(Box(-0.5, 0.5))
    opt = solve(problem, 10_000, coordinates="full", option=option, **constants(problem))
    assert opt.queries == opt.iterations * 41 <= 10_000
    assert abs(float(problem.gap(opt.x))) < 1e-10


@pytest.mark.parametrize("option", ["I", "II"])
def test_linear_convergence_with_tuned_steps_on_figure_1(option):
    problem = logistic(Box(-0.5, 0.5))
    tuned = coordinate_batch(problem.L, problem.mu_f, 0.0, 40, 1).scaled(0.1)
    opt = solve(problem, 11_000, option=option, smoothing_radius=RADIUS, parameters=tuned)
    assert abs(float(problem.gap(opt.x))) < 1e-10


@pytest.mark.slow
@pytest.mark.parametrize("option", ["I", "II"])
@pytest.mark.parametrize("prox", [Box(-0.5, 0.5), BoxRidge(-0.5, 0.5, 0.02)], ids=["box", "box and ridge"])
def test_linear_convergence_at_theory_parameters_on_figure_1(prox, option):
    problem = logistic(prox)
    opt = solve(problem, 32_000, option=option, **constants(problem))
    assert abs(float(problem.gap(opt.x))) < 1e-10


@pytest.mark.parametrize("size", [1, 4])
def test_queries_of_an_iteration(size):
    """d + 1 at the start, then |S| + 1 + p(d + 1) on average; the full batch d + 1 and no reference."""
    problem, d = quadratic(PROXES["none"], d=16), 16
    opt = ZOLKatyusha(torch.zeros(d, dtype=torch.float64), coordinates=size, max_queries=10**6, **constants(problem))
    iterations = renewals = 0
    picked = torch.zeros(d)
    while iterations < 1500:
        batch = opt.ask()
        axes = [j for _, j in batch.addresses[1:]]
        assert len(set(axes)) == len(axes) == len(batch) - 1
        if len(batch) == size + 1:
            iterations += 1
            picked[axes] += 1
        else:
            assert len(batch) == d + 1
            renewals += 1
        opt.tell(batch, problem.f(batch.points()))
    assert opt.queries == iterations * (size + 1) + renewals * (d + 1)
    p = size / d
    share = (renewals - 1) / iterations
    assert abs(share - p) < 4 * math.sqrt(p * (1 - p) / iterations)
    assert float((picked - iterations * p).abs().max()) < 4.5 * math.sqrt(iterations * p * (1 - p))


def test_given_probability_and_parameters():
    q = coordinate_batch(20.0, 1.0, 0.0, 5, 1)
    opt = ZOLKatyusha(torch.zeros(5), max_queries=100, parameters=q)
    assert opt.current_parameters is q and len(opt.ask()) == 6


def test_strong_convexity_comes_from_the_prox():
    x0 = torch.zeros(5, dtype=torch.float64)
    given = {"max_queries": 100, "smoothness": 20.0}
    opt = ZOLKatyusha(x0, prox=BoxRidge(-1.0, 1.0, 0.5), strong_convexity=0.25, **given)
    assert opt.current_parameters == coordinate_batch(20.0, 0.25, 0.5, 5, 1)
    opt = ZOLKatyusha(x0, prox=BoxRidge(-1.0, 1.0, 0.5), prox_strong_convexity=0.0, **given)
    assert opt.current_parameters.mu == 0.0


def test_defaults_alone_on_figure_1():
    problem = logistic(Box(-0.5, 0.5))
    for seed in range(2):
        opt = solve(problem, 4000, seed=seed)
        assert float(problem.gap(opt.x)) < 1e-4
    assert float(problem.gap(solve(problem, 5000, coordinates="full").x)) < 1e-9


def test_a_smoothness_too_small_is_doubled():
    """A quartic is measured flat at its bottom and steep on its slope."""
    result = minimize(lambda x: (x**4).sum(), torch.full((4,), 0.1), "zo_l_katyusha", max_queries=400)
    assert result.fun < 1e-6
    opt = ZOLKatyusha(torch.full((3,), 2.0, dtype=torch.float64), max_queries=600)
    opt.state.smoothness, opt.state.ceiling = 1e-3, 100.0
    opt._restart()
    run(opt, battery_quadratic)
    assert opt.state.smoothness > 1.0 and opt.best_y < 1e-3


def test_an_upper_bound_is_left():
    """At its bound x + βe_i is x: the difference is taken on the other side."""
    for method in ("zo_l_katyusha", "zo_svrg"):
        x0 = torch.full((3,), 2.0, dtype=torch.float64)
        result = minimize(battery_quadratic, x0, method, max_queries=1500, bounds=[(-2.0, 2.0)] * 3)
        assert result.fun < 1e-6


def test_failed_queries_leave_the_estimate_unbiased():
    """With a third of all derivatives failing the method still converges."""
    problem = quadratic(Box(-0.5, 0.5))
    opt = ZOLKatyusha(torch.zeros(8, dtype=torch.float64), prox=problem.prox, max_queries=5000, **constants(problem))
    generator = torch.Generator().manual_seed(0)
    while not opt.stopped:
        batch = opt.ask()
        values = problem.f(batch.points())
        failed = torch.rand(len(values), generator=generator) < 1 / 3
        failed[0] = torch.rand((), generator=generator) < 0.1
        opt.tell(batch, torch.where(failed, math.nan, values))
    assert abs(float(problem.gap(opt.x))) < 1e-9


def test_bad_options():
    x0 = torch.zeros(3)
    with pytest.raises(ValueError, match=r"option must be .* I, II"):
        ZOLKatyusha(x0, max_queries=50, option="III")
    with pytest.raises(ValueError, match="at most d = 3"):
        ZOLKatyusha(x0, max_queries=50, coordinates=4)
    with pytest.raises(TypeError, match="coordinates must be an integer"):
        ZOLKatyusha(x0, max_queries=50, coordinates="all")
    with pytest.raises(TypeError, match="KatyushaParameters"):
        ZOLKatyusha(x0, max_queries=50, parameters={"M": 1.0})
    with pytest.raises(ValueError, match="smoothness must be positive"):
        ZOLKatyusha(x0, max_queries=50, smoothness=-1.0)
    with pytest.raises(ValueError, match="strong_convexity must be at least 0"):
        ZOLKatyusha(x0, max_queries=50, strong_convexity=-1.0)
    with pytest.raises(ValueError, match="at least 7 queries"):
        ZOLKatyusha(x0, max_queries=6)
    with pytest.raises(ValueError, match="at least 4 queries"):
        ZOLKatyusha(x0, max_queries=3, smoothness=1.0)
