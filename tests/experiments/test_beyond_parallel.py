"""Beyond ZoRD, several queries at a time: what a round is, and that runs differ in nothing else."""

import dataclasses

import numpy as np
import pytest
import torch

from experiments.beyond import parallel, zord
from experiments.beyond.query_rules import RandomBatch
from optimizers import LeastSquaresGradient
from optimizers.comparison.records import where

QUICK = parallel.EXPERIMENT.settings("quick")
X0 = torch.tensor([2.0, -1.0, 0.5, 1.5], dtype=torch.float64)


def function(x):
    return (x.square() * torch.linspace(1.0, 3.0, x.shape[-1], dtype=x.dtype)).sum(-1)


@pytest.mark.slow
def test_a_batch_takes_one_round_and_a_design_as_many_as_workers_need():
    opt = LeastSquaresGradient(X0, max_queries=25, queries_per_step=4)
    assert parallel.told(opt, function, 4, None) == [3] * 10 + [4] * 4 + [5] * 4 + [6] * 4 + [7] * 3
    opt = LeastSquaresGradient(X0, max_queries=20)
    assert parallel.told(opt, function, 1, None) == [10] * 10 + list(range(11, 21))


def test_workers_take_log_normal_times_of_mean_one_and_are_never_idle():
    """After the design q queries run at any time: all take n/q in the mean, and one worker the sum of their times."""
    opt = LeastSquaresGradient(X0, max_queries=60)
    times = parallel.told(opt, function, 1, 3)
    steps = np.diff([0.0, *times])
    drawn = np.random.default_rng(3).lognormal(-0.5 * parallel.SPREAD**2, parallel.SPREAD, 60)
    np.testing.assert_allclose(steps, drawn)
    many = np.random.default_rng(0).lognormal(-0.5 * parallel.SPREAD**2, parallel.SPREAD, 100_000)
    assert many.mean() == pytest.approx(1.0, abs=0.01)
    ends = [parallel.told(LeastSquaresGradient(X0, max_queries=110), function, 5, seed)[-1] for seed in range(4)]
    assert 20.0 < np.mean(ends) < 26.0
    times = parallel.told(LeastSquaresGradient(X0, max_queries=60), function, 5, 0)
    assert times == sorted(times) and len(times) == 60


def test_one_at_a_time_is_the_run_of_beyond_zord():
    settings = dataclasses.replace(QUICK, queries=16)
    gaps, times = parallel.run_one(settings, "noisy", "informed", 1, 5)
    base = dataclasses.replace(parallel.ground(settings), queries=16, every=1)
    expected = zord.gaps(base, "noisy", "zord_kept", zord.number_of("zord_kept", "noisy"), 5)
    np.testing.assert_allclose(gaps, [gap for _, gap in expected], rtol=1e-9)  # a sum of a batch's row, or of a point
    assert times.tolist() == [10] * 10 + list(range(11, 17))


def test_records_at_equal_rounds_are_those_of_the_values_that_have_come():
    settings = dataclasses.replace(QUICK, problems=("ill",))
    rows = parallel.run_seed(settings, 0)
    for rule, q in parallel.runs(settings):
        found = where(rows, method=rule, q=q, problem="ill")
        gaps, times = parallel.run_one(settings, "ill", rule, q, settings.first_seed)
        at_rounds = {row["x"]: row["value"] for row in where(found, axis="rounds")}
        assert list(at_rounds) == list(range(settings.rounds + 1))
        assert all(value == gaps[sum(times <= r)] for r, value in at_rounds.items())
        assert where(found, axis="queries")[-1]["value"] == gaps[-1] and len(gaps) == settings.queries + 1


def test_random_batches_are_normal_points_at_the_radius_from_the_iterate():
    x0 = torch.zeros(40, dtype=torch.float64)
    opt = RandomBatch(x0, max_queries=400, queries_per_step=100, radius=0.2)
    opt.tell(opt.ask(), function(opt.ask().points()))
    points = opt.ask().points()
    torch.testing.assert_close(points[0], opt.x)
    offsets = (points[1:] - opt.x) / (0.2 / 40**0.5)
    assert float(offsets.square().mean()) == pytest.approx(1.0, abs=0.1)
    assert abs(float(offsets.mean())) < 0.08 and len(torch.unique(points, dim=0)) == 100
