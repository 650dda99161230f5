"""The default method's use of evaluations that it did not ask for."""

import math

import numpy as np
import pytest
import torch

from optimizers import History, SurrogateTrustRegion, minimize, run
from optimizers.testing import rosenbrock

D = 4
BOX = [(-5.0, 5.0)] * D


def quartic(x):
    x = np.asarray(x, dtype=float)
    return float(((x - 0.5) ** 2).sum() + 0.1 * (x**4).sum() + 0.5 * x[0] * x[-1])


def evaluated(n, seed=0, width=5.0):
    X = np.random.default_rng(seed).uniform(-width, width, (n, D))
    return X, np.array([quartic(x) for x in X])


def asked(opt, f=quartic):
    points = []
    while not opt.stopped:
        batch = opt.ask()
        points += list(batch.points().numpy())
        opt.tell(batch, [f(x) for x in batch.points()])
    return np.array(points)


def test_a_history_that_determines_the_model_replaces_the_design():
    X, y = evaluated(40)
    opt = SurrogateTrustRegion(bounds=BOX, max_queries=20, history=(X, y))
    assert len(opt.ask()) == 1 and opt.ask().info["kind"] != "Design"


def test_a_short_history_leaves_part_of_the_design_to_ask():
    X, y = evaluated(3)
    opt = SurrogateTrustRegion(bounds=BOX, max_queries=60, history=(X, y))
    batch = opt.ask()
    assert batch.info["kind"] == "Design" and len(batch) == D - 2
    x0 = np.zeros(D)
    opt = SurrogateTrustRegion(x0, bounds=BOX, max_queries=60, history=(X, y))
    assert opt.ask().points()[0].tolist() == x0.tolist() and len(opt.ask()) == D - 2


def test_the_rest_of_a_design_is_what_a_stopped_run_did_not_ask():
    opt = SurrogateTrustRegion(np.zeros(D), bounds=BOX, max_queries=60, radius=1.0)
    design = opt.ask().points().numpy()
    known = [0, 1, 3]
    y = np.array([quartic(x) for x in design[known]])
    y[0] = y.min() - 1.0
    rest = SurrogateTrustRegion(bounds=BOX, max_queries=60, radius=1.0, history=(design[known], y)).ask().points()
    np.testing.assert_allclose(np.sort(rest, axis=0), np.sort(np.delete(design, known, axis=0), axis=0))


def test_x0_is_not_asked_if_the_history_has_it():
    X, y = evaluated(40)
    opt = SurrogateTrustRegion(X[3], bounds=BOX, max_queries=20, history=(X, y))
    assert len(opt.ask()) == 1 and opt.best_fun == y.min()
    assert not (asked(opt) == X[3]).all(axis=1).any()


def test_the_order_of_a_history_does_not_matter():
    X, y = evaluated(30)
    runs = [
        SurrogateTrustRegion(bounds=BOX, max_queries=10, history=(X[rows], y[rows]))
        for rows in ([*range(30)], [*range(29, -1, -1)])
    ]
    first, second = map(asked, runs)
    np.testing.assert_allclose(first, second, atol=1e-5)


def test_the_first_radius_is_that_of_the_run_that_made_the_history():
    """Within a factor of 8 for nine runs in ten, over problems and ends."""
    ratios = []
    for seed in range(5):
        opt = SurrogateTrustRegion(
            np.random.default_rng(seed).uniform(-4, 4, D), bounds=BOX, max_queries=60, store_points=True
        )
        for n in (20, 30, 40):
            while opt.queries < n:
                batch = opt.ask()
                opt.tell(batch, [float(rosenbrock(x)) for x in batch.points()])
            history = opt.result().history
            new = SurrogateTrustRegion(bounds=BOX, max_queries=60, history=(history.x, history.y))
            ratios.append(new.state.run.radius.delta / opt.state.run.radius.delta)
    assert np.mean(np.abs(np.log2(ratios)) <= 3.0) >= 0.9


def test_scales_of_unbounded_variables_follow_the_spread_of_the_history():
    """A run in other units is the same run; without the history x0 = 0 would say nothing of units."""
    units = np.array([1e-3, 1.0, 4096.0, 1.0])
    X, y = evaluated(30)
    X[y.argmin()] = 0.0
    y = np.array([quartic(x) for x in X])
    y[y.argmin()], y[(X == 0.0).all(axis=1)] = y.max(), y.min() - 1.0
    result = minimize(lambda x: quartic(x / units), np.zeros(D), history=(X * units, y), max_queries=25)
    assert quartic(result.x / units) < 0.6 * quartic(np.zeros(D))


def test_two_values_of_a_point_are_noise_and_equal_ones_are_none():
    X, y = evaluated(30)
    twice = np.concatenate([X, X[:1]])
    equal = SurrogateTrustRegion(bounds=BOX, max_queries=20, history=(twice, np.append(y, y[0])))
    assert equal.state.run.noisy is False and len(equal.state.data.values) == 30
    differ = SurrogateTrustRegion(bounds=BOX, max_queries=20, history=(twice, np.append(y, y[0] + 0.25)))
    assert differ.state.run.noisy is True and differ.state.run.repeated_gap == 0.25
    with pytest.raises(ValueError, match="noise=0 says"):
        SurrogateTrustRegion(bounds=BOX, max_queries=20, noise=0.0, history=(twice, np.append(y, y[0] + 0.25)))


def test_failed_points_keep_the_first_step_away():
    """f fails where x₀ > 1, beyond which its minimum lies."""
    X, y = evaluated(60)
    f = lambda x: math.nan if x[0] > 0.0 else quartic(x)  # noqa: E731
    y = np.array([f(x) for x in X])
    opt = SurrogateTrustRegion(bounds=BOX, max_queries=20, history=(X, y))
    assert len(opt.state.data.failed) == np.isnan(y).sum()
    points = asked(opt, f)
    assert np.mean(points[:, 0] > 0.0) < 0.5 and opt.best_fun < np.nanmin(y)


def test_variances_weigh_the_values():
    """A third of the values have noise of variance 400, which would hide the minimum if all had it."""
    rng = np.random.default_rng(1)
    X, exact = evaluated(60, width=2.0)
    yvar = np.where(np.arange(60) % 3 == 0, 400.0, 1e-4)
    y = exact + rng.standard_normal(60) * np.sqrt(yvar)
    y[0] = exact.min() - 30.0  # a lucky value
    opt = SurrogateTrustRegion(bounds=BOX, max_queries=1, history=History(X, y, yvar=yvar))
    run(opt, quartic)
    result = opt.result()
    assert result.best_fun == y.min() and not np.array_equal(result.x, X[0])
    assert quartic(result.x) < np.sort(exact)[2]
    alike = SurrogateTrustRegion(bounds=BOX, max_queries=5, history=History(X, y, yvar=4.0))
    noise = SurrogateTrustRegion(bounds=BOX, max_queries=5, history=(X, y), noise=4.0)
    np.testing.assert_array_equal(asked(alike, quartic), asked(noise, quartic))
    with pytest.raises(ValueError, match="noise=0 says"):
        SurrogateTrustRegion(bounds=BOX, max_queries=5, noise=0.0, history=History(X, y, yvar=4.0))


def test_a_run_whose_history_is_outside_may_fail_everywhere():
    """No query succeeds, and nothing given may be a center: the run restarts until its budget ends."""
    X, y = evaluated(12)
    for history in ((X + 20.0, y), (np.concatenate([X, X]) + 20.0, np.concatenate([y, y + 1.0]))):
        opt = SurrogateTrustRegion(np.zeros(D), bounds=BOX, max_queries=10, history=history)
        asked(opt, lambda x: math.nan)
        assert opt.queries == 10 and opt.result().nfail == 10 and opt.best_fun == math.inf


def test_workers_continue_from_a_history():
    X, y = evaluated(40)
    result = minimize(quartic, bounds=BOX, history=(X, y), max_queries=16, workers=4)
    assert result.nfev == 16 and result.fun < y.min()


def ends(f, n, m, seed):
    """log10 of the least value after n + m asked, after n given and m asked, and after m asked from the best of n."""
    x0 = np.random.default_rng(seed).uniform(-4, 4, D)
    options = {"bounds": BOX, "store_points": True, "progress": False}
    whole = minimize(f, x0, max_queries=n + m, seed=seed, **options)
    X, y = whole.history.x[:n], whole.history.y[:n]
    given = minimize(f, history=(X, y), max_queries=m, seed=seed + 100, **options)
    from_best = minimize(f, X[y.argmin()], max_queries=m, seed=seed + 100, **options)
    return [math.log10(max(result.fun, 1e-8)) for result in (whole, given, from_best)]


@pytest.mark.slow
def test_given_values_are_worth_about_as_much_as_asked_ones():
    """On a curved valley, different powers and a cigar; the benchmark ``history`` has bbob and more seeds."""
    Q = np.linalg.qr(np.random.default_rng(0).standard_normal((D, D)))[0]
    powers, weights = np.linspace(2.0, 6.0, D), np.array([1.0, 1e4, 1e4, 1e4])
    functions = (
        lambda x: float(rosenbrock(torch.from_numpy(x))),
        lambda x: float((np.abs(Q @ (x - 0.7)) ** powers).sum()),
        lambda x: math.sqrt((weights * (Q @ (x - 0.7)) ** 2).sum()),
    )
    found = np.array([ends(f, 24, 24, seed) for f in functions for seed in range(4)])
    assert np.mean(found[:, 1] - found[:, 0]) < 0.2, found
    assert np.mean(found[:, 1] - found[:, 2]) < -0.2, found
