import math

import pytest
import torch

from experiments.workloads.problems import standard_problem
from optimizers import TuRBO, minimize
from optimizers.designs import sobol
from optimizers.methods.bayesian.local_gp import LENGTHSCALES, NOISES, OUTPUTSCALES, fit_local_gp, maximize_acquisition
from optimizers.methods.bayesian.thompson import distinct_minimizers
from optimizers.methods.bayesian.turbo_region import TrustRegion, TrustRegionRule, perturbed_candidates, region_bounds
from optimizers.prox import Ridge
from optimizers.seeding import seeded
from optimizers.testing import CHECKS, Promises
from tests.optimizers.batteries import options_battery
from tests.optimizers.boxed import boxed_factory
from tests.optimizers.methods.busy import check_resumes

QUICK = {"batch_size": 6, "initial_points": 6, "candidates": 64, "fit_steps": 5}
TWO_REGIONS = (boxed_factory("turbo", regions=2, **QUICK), Promises(max_queries=20, convergence_queries=40))


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_battery(check):
    check(boxed_factory("turbo", **QUICK), Promises(max_queries=14, convergence_queries=40))


@options_battery({"two regions": TWO_REGIONS})
def test_options(check, factory, promises):
    check(factory, promises)


def walk(rule, region, values, queries=1):
    for value in values:
        region = rule.update(region, value, queries)
    return region


def test_three_successes_in_a_row_double_the_region_up_to_the_largest():
    rule = TrustRegionRule(failure_tolerance=5)
    region = rule.start(0, best=100.0)
    assert region.length == 0.8
    region = walk(rule, region, [90.0, 80.0])
    assert (region.length, region.successes) == (0.8, 2)
    region = rule.update(region, 70.0, 1)
    assert (region.length, region.successes, region.failures) == (1.6, 0, 0)
    region = walk(rule, region, [60.0, 50.0, 40.0])
    assert region.length == 1.6 and region.best == 40.0
    interrupted = walk(rule, rule.start(0, 100.0), [90.0, 80.0, 85.0, 70.0, 60.0])
    assert (interrupted.length, interrupted.successes) == (0.8, 2)


@pytest.mark.parametrize(("d", "q"), [(20, 1), (20, 10), (20, 7), (3, 5)])
def test_failures_halve_after_ceil_d_over_q_batches(d, q):
    rule = TrustRegionRule(failure_tolerance=d)
    region, batches = rule.start(0, best=1.0), 0
    while region.length == 0.8:
        region, batches = rule.update(region, 2.0, q), batches + 1
    assert batches == math.ceil(d / q) and region.length == 0.4 and region.failures == 0


def test_a_success_resets_failures_and_small_gains_are_none():
    rule = TrustRegionRule(failure_tolerance=3)
    region = walk(rule, rule.start(0, -10.0), [0.0, 0.0, -11.0])
    assert (region.failures, region.successes, region.best) == (0, 1, -11.0)
    small = rule.update(TrustRegion(0, 0.8, -10.0), -10.009, 1)
    assert (small.failures, small.best) == (1, -10.009)
    assert rule.update(TrustRegion(0, 0.8, -10.0), -10.011, 1).successes == 1
    assert rule.update(small, math.inf, 1).failures == 2
    assert rule.update(small, 0.0, 0) is small


def test_a_region_ends_under_the_least_length():
    rule = TrustRegionRule(failure_tolerance=1)
    region, halvings = rule.start(4, best=0.0), 0
    while not rule.ended(region):
        region, halvings = rule.update(region, 1.0, 1), halvings + 1
    assert halvings == 7 and region.length == 0.8 * 0.5**7 and region.number == 4


@pytest.mark.slip(
    "optimizers/methods/bayesian/turbo_region.py",
    "(logarithms - logarithms.mean()).exp()",
    "(logarithms - logarithms.sum()).exp()",
    "the product of the lengthscales without its d-th root (Eriksson et al., Sec. 2)",
    of="optimizers/turbo",
)
def test_region_sides_follow_lengthscales_and_keep_the_volume():
    lengthscales = torch.tensor([0.1, 0.4, 1.6], dtype=torch.float64)
    center = torch.full((3,), 0.5, dtype=torch.float64)
    lower, upper = region_bounds(center, lengthscales, 0.2)
    sides = upper - lower
    assert torch.allclose(sides / sides[0], lengthscales / lengthscales[0])
    assert math.isclose(float(sides.prod()), 0.2**3, rel_tol=1e-12)
    lower, upper = region_bounds(torch.tensor([0.0, 0.5, 1.0], dtype=torch.float64), torch.ones(3).double(), 0.4)
    assert torch.allclose(lower, torch.tensor([0.0, 0.3, 0.8]).double())
    assert torch.allclose(upper, torch.tensor([0.2, 0.7, 1.0]).double())


@pytest.mark.slip(
    "optimizers/methods/bayesian/turbo_region.py",
    "mask = uniforms < probability",
    "mask = uniforms >= probability",
    "perturbations with probability 1 - p (Eriksson et al., Supp. D)",
    of="optimizers/turbo",
)
def test_perturbed_candidates_change_the_masked_coordinates_only():
    n, d, p = 2000, 50, 20 / 50
    generator = torch.Generator().manual_seed(0)
    uniforms = torch.rand(n, d, generator=generator, dtype=torch.float64)
    uniforms[0] = 0.99
    uniforms[0, 7] = 0.98
    center = torch.full((d,), 0.5, dtype=torch.float64)
    lower, upper = center - 0.1, center + 0.2
    points = sobol(n, d, 1)
    X = perturbed_candidates(center, lower, upper, points, uniforms, p)
    changed = center != X
    assert torch.equal(changed[1:], uniforms[1:] < p)
    assert changed[0].nonzero().flatten().tolist() == [7]
    assert bool(((lower <= X) & (upper >= X)).all())
    assert torch.equal(X[changed], (lower + (upper - lower) * points)[changed])
    assert abs(float(changed.double().mean()) - p) < 5 * math.sqrt(p * (1 - p) / (n * d))


def test_distinct_minimizers_do_not_repeat():
    draws = torch.tensor([[0.0, 1.0, 2.0], [0.0, 3.0, 1.0], [0.0, 1.0, 2.0], [5.0, 5.0, 4.0]])
    assert distinct_minimizers(draws[:3]).tolist() == [0, 2, 1]
    assert len(distinct_minimizers(draws)) == 4


@pytest.mark.slip(
    "optimizers/methods/bayesian/local_gp.py",
    "return self.shift - self.scale * samples",
    "return self.shift + self.scale * samples",
    "Thompson samples of -f",
    of="optimizers/turbo",
)
def test_local_gp_stays_in_its_ranges_and_draws_from_its_posterior():
    generator = torch.Generator().manual_seed(0)
    X = torch.rand(30, 3, generator=generator, dtype=torch.float64)
    y = 50 + 10 * torch.sin(5 * X[:, 0])
    gp = fit_local_gp(X, y)
    kernel = gp.model.covar_module
    assert bool(((gp.lengthscales >= LENGTHSCALES[0]) & (gp.lengthscales <= LENGTHSCALES[1])).all())
    assert OUTPUTSCALES[0] <= float(kernel.outputscale.detach()) <= OUTPUTSCALES[1]
    assert NOISES[0] <= float(gp.model.likelihood.noise.detach()) <= NOISES[1]
    assert float(gp.lengthscales[0]) < 0.5 * float(gp.lengthscales[1:].min())
    assert float((gp.mean(X) - y).abs().max()) < 1.0
    sparse = fit_local_gp(X[:5], y[:5])
    new = torch.cat([X[:1] + 0.1 * i for i in range(6)])
    covariance = sparse.model(new).covariance_matrix.detach() * sparse.scale**2
    largest = float(covariance.diagonal().max())
    assert float((covariance - covariance.diagonal().diag()).abs().max()) > 0.3 * largest
    draws = sparse.draw(new, torch.randn(40000, 6, generator=generator, dtype=torch.float64))
    assert torch.allclose(draws.mean(0), sparse.mean(new), atol=5 * largest**0.5 / 200)
    assert float((draws.T.cov() - covariance).abs().max()) < 0.05 * largest


def test_log_expected_improvement_is_the_closed_form_in_the_values_units():
    X = torch.linspace(0, 1, 8, dtype=torch.float64)[:, None]
    y = 30 * (X[:, 0] - 0.4) ** 2
    gp = fit_local_gp(X, y)
    x = torch.tensor([[0.36]], dtype=torch.float64)
    acquisition = gp.log_expected_improvement(0.5)
    mean, sd = float(gp.mean(x)), gp.scale * float(gp.model(x).variance.detach().sqrt())
    z = torch.tensor((0.5 - mean) / sd, dtype=torch.float64)
    normal = torch.distributions.Normal(torch.zeros_like(z), torch.ones_like(z))
    improvement = (0.5 - mean) * float(normal.cdf(z)) + sd * float(normal.log_prob(z).exp())
    assert math.isclose(math.exp(float(acquisition(x).detach())) * gp.scale, improvement, rel_tol=1e-4)
    lower, upper = torch.zeros(1).double(), torch.ones(1).double()
    pending = torch.tensor([[0.2], [0.7]], dtype=torch.float64)
    joint = gp.log_expected_improvement(0.5, 1, pending)
    draws = gp.draw(
        torch.cat([x, pending]), torch.randn(200000, 3, generator=torch.Generator().manual_seed(0)).double()
    )
    expected = float((0.5 - draws.amin(dim=1)).clamp(min=0.0).mean())
    assert math.isclose(math.exp(float(joint(x).detach())) * gp.scale, expected, rel_tol=0.02)
    grid = torch.linspace(0, 1, 2001, dtype=torch.float64)[:, None, None]
    point = maximize_acquisition(acquisition, lower, upper, seed=0)
    assert float(acquisition(point[None])) >= float(acquisition(grid).max()) - 1e-3 and 0.0 <= float(point) <= 1.0


def test_seeded_leaves_the_global_generator():
    torch.manual_seed(3)
    before = torch.get_rng_state()
    with seeded(7, [torch.device("cpu")]):
        first = torch.rand(3)
    with seeded(7, []):
        assert torch.equal(torch.rand(3), first)
    assert torch.equal(before, torch.get_rng_state())


def test_needs_finite_bounds_and_says_so():
    x0 = torch.zeros(3)
    with pytest.raises(ValueError, match="needs bounds"):
        TuRBO(x0, max_queries=20)
    with pytest.raises(ValueError, match="variable 1 is infinite"):
        TuRBO(x0, bounds=[(-1, 1), (-1, None), (-1, 1)], max_queries=20)
    with pytest.raises(ValueError, match="nothing to search"):
        TuRBO(x0, bounds=[(0, 0)] * 3, max_queries=20)
    with pytest.raises(ValueError, match="length_min"):
        TuRBO(x0, bounds=[(-1, 1)] * 3, max_queries=20, length_min=0.9)
    with pytest.raises(TypeError, match="value"):
        TuRBO(x0, prox=lambda z, step: z, bounds=None, max_queries=20)


def test_queries_after_the_design_lie_in_their_region_about_its_best_point():
    p = standard_problem("levy", 6)
    opt = TuRBO(
        torch.full((6,), 5.0).double(),
        bounds=p.bounds.T,
        max_queries=60,
        regions=2,
        candidates=128,
        fit_steps=10,
        seed=1,
    )
    batches = 0
    while not opt.stopped:
        batch, state = opt.ask(), opt.state
        unit = opt.box.to_unit(batch.explicit)
        if not batch.info["design"]:
            for i, region in enumerate(state.regions):
                gp, center = opt._model(region)
                X, y = opt._data(region)
                assert torch.equal(center, X[int(y.argmin())]) and float(y.min()) == region.best
                lower, upper = region_bounds(center, gp.lengthscales, region.length)
                own = unit[batch.info["regions"] == i]
                assert bool(((own >= lower - 1e-12) & (own <= upper + 1e-12)).all())
            batches += 1
        opt.tell(batch, p(batch.points()))
    assert batches > 3
    assert sorted(opt.state.owner.unique().tolist()) == [0, 1]


def test_collapsed_regions_restart_with_a_design_of_their_own():
    opt = TuRBO(
        torch.zeros(2).double(),
        bounds=[(-1, 1)] * 2,
        max_queries=40,
        failure_tolerance=1,
        length_min=0.3,
        candidates=32,
        batch_size=2,
        initial_points=4,
        fit_steps=5,
    )
    sizes = []
    while not opt.stopped:
        batch = opt.ask()
        sizes.append((len(batch), batch.info["design"]))
        opt.tell(batch, torch.ones(len(batch)))
    assert sizes[:6] == [(4, True), (2, False), (2, False), (4, True), (2, False), (2, False)]
    assert opt.state.regions[0].number >= int(opt.state.owner.max()) > 2
    assert opt.state.owner.bincount().tolist()[:2] == [8, 8]


def test_observations_hold_what_succeeded_in_user_units():
    p = standard_problem("ackley", 3)
    opt = TuRBO(torch.ones(3).double(), bounds=p.bounds.T, max_queries=30, candidates=64, store_points=True)
    while not opt.stopped:
        batch = opt.ask()
        values = p(batch.points())
        values[::4] = math.nan
        opt.tell(batch, values)
    X, y = opt.observations
    assert len(y) == opt.queries - opt.failures < opt.queries
    assert torch.equal(p(X), y)
    history = opt.result().history
    assert torch.equal(history.x[~history.y.isnan()], X)


def test_noisy_centers_at_the_least_posterior_mean():
    generator = torch.Generator().manual_seed(0)
    bounds, x0 = [(0, 1)] * 2, torch.tensor([0.5, 0.5]).double()
    opt = TuRBO(x0, bounds=bounds, max_queries=40, noisy=True, candidates=64, initial_points=30)
    batch = opt.ask()
    X = batch.points()
    values = (X - 0.3).square().sum(1) + 0.05 * torch.randn(30, generator=generator, dtype=torch.float64)
    outlier = int(values.argmax())
    values[outlier] = float(values.min()) - 0.01
    opt.tell(batch, values)
    gp, center = opt._model(opt.state.regions[0])
    data, _ = opt._data(opt.state.regions[0])
    assert torch.equal(center, data[int(gp.mean(data).argmin())])
    assert not torch.equal(center, data[outlier])


def test_a_prox_with_a_value_is_part_of_the_objective():
    x0 = torch.full((3,), 0.5).double()
    options = {"max_queries": 60, "bounds": [(-1, 1)] * 3, "candidates": 200, "fit_steps": 10}
    result = minimize(lambda x: ((x - 1) ** 2).sum(), x0, "turbo", prox=Ridge(2.0), **options)
    without = minimize(lambda x: ((x - 1) ** 2).sum(), x0, "turbo", **options)
    assert float(result.x.mean()) < 0.75 < float(without.x.mean())


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ackley", "levy"])
def test_beats_random_search(name):
    """95% interval of log10(TuRBO / random search), 60 queries each on the same box, is under 0."""
    p, gains = standard_problem(name, 6), []
    for seed in range(6):
        generator = torch.Generator().manual_seed(100 + seed)
        x0 = p.sample(1, generator)[0]
        result = minimize(p, x0, "turbo", max_queries=60, bounds=p.bounds.T, seed=seed, candidates=200, fit_steps=10)
        random = float(p(p.sample(60, generator)).min())
        gains.append(math.log10(result.fun / random))
    gains = torch.tensor(gains)
    upper = gains.mean() + 2.571 * gains.std() / 6**0.5
    assert float(upper) < 0.0, gains


@pytest.mark.slip(
    "optimizers/methods/bayesian/thompson.py",
    "min(20.0 / d, 1.0))",
    "min(d / 20.0, 1.0))",
    "p = min(d/20, 1), not min(20/d, 1) (Eriksson et al., Supp. D)",
    of="optimizers/turbo",
)
@pytest.mark.parametrize(("d", "share"), [(5, 1.0), (40, 0.5), (80, 0.25)])
def test_candidates_differ_from_the_center_in_20_coordinates_on_average(d, share):
    """Supp. D: each coordinate is perturbed with probability min(20/d, 1). All candidates are queried."""
    x0, count = torch.full((d,), 0.4).double(), 100
    opt = TuRBO(x0, bounds=[(0, 1)] * d, max_queries=400, batch_size=count, candidates=count, fit_steps=1)
    batch = opt.ask()
    values = batch.points().square().sum(1)
    opt.tell(batch, values)
    center = opt.box.to_unit(batch.explicit[int(values.argmin())])
    changed = (opt.box.to_unit(opt.ask().explicit) - center).abs() > 1e-9
    assert abs(float(changed.double().mean()) - share) <= 5 * math.sqrt(share * (1 - share) / (count * d))


# Several queries at a time.


def levy_with_failures(X):
    return torch.where((X.sum(-1) * 1e4).floor() % 5 == 0, torch.nan, standard_problem("levy", 3)(X))


@pytest.mark.slow
def test_a_run_with_several_batches_out_resumes_bitwise():
    bounds = standard_problem("levy", 3).bounds.T
    options = QUICK | {"batch_size": 2, "initial_points": 4, "fit_steps": 3, "regions": 2}
    options |= {"failure_tolerance": 2, "length_min": 0.3}

    def make():
        return TuRBO(torch.ones(3).double(), bounds=bounds, max_queries=60, **options)

    check_resumes(make, levy_with_failures, 4, 14, 16)


def turbo(**options):
    options = QUICK | {"initial_points": 4, "batch_size": 1} | options
    return TuRBO(torch.full((2,), 0.2).double(), bounds=[(0, 1)] * 2, max_queries=60, **options)


def bowl(X):
    return (X - 0.7).square().sum(-1)


def test_another_batch_is_a_design_until_each_region_has_one():
    opt = turbo(regions=2)
    first, second = opt.ask_another(), opt.ask_another()
    assert [b.info["regions"].tolist() for b in (first, second)] == [[0] * 4, [1] * 4]
    assert torch.equal(first.points()[0], opt.x) and not bool((second.points() == opt.x).all(dim=1).any())
    assert opt.ask_another() is None
    opt.tell(second, bowl(second.points()))
    query = opt.ask_another()
    assert query.info["regions"].tolist() == [1] and not query.info["design"]
    opt.tell(first, bowl(first.points()))
    assert opt.state.owner.tolist() == [1] * 4 + [0] * 4
    assert len(opt.ask_another()) == 1


def test_values_of_a_region_that_has_ended_change_no_other():
    opt = turbo(failure_tolerance=1, length_min=0.5)
    opt.tell(opt.ask(), bowl(opt.ask().points()))
    pending = [opt.ask_another() for _ in range(4)]
    opt.tell(pending[0], [9.0])
    (fresh,) = opt.state.regions
    assert fresh.number == 1
    design = opt.ask_another()
    assert design.info["regions"].tolist() == [1] * 4
    opt.tell(pending[2], [-1.0])
    assert opt.state.regions == [fresh] and opt.state.owner.tolist() == [0] * 6
    assert len(opt._data(fresh)[1]) == 0 and opt.best_fun == -1.0
    opt.tell(design, bowl(design.points()))
    assert opt.state.regions[0].number == 1 and len(opt._data(opt.state.regions[0])[1]) == 4


def test_pending_queries_are_not_asked_again():
    opt = turbo(initial_points=8, fit_steps=50)
    opt.tell(opt.ask(), bowl(opt.ask().points()))
    points = torch.cat([opt.ask_another().points() for _ in range(4)])
    distances = torch.cdist(points, points) + torch.eye(4).double()
    assert float(distances.min()) > 1e-3
