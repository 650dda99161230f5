"""The scoreboard: its arithmetic against SciPy, its runs against the problems, COCO's files against cocopp."""

import dataclasses
import itertools
import json
import math
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats
from scipy.optimize import rosen

from experiments.benchmarks.problems import global_search, local_entropy, newton_step, page, rivals, runs, suites
from experiments.benchmarks.problems.board import BETTER_COBYQA, BETTER_NEWUOA, Board, interval
from experiments.benchmarks.problems.coco_files import TARGETS, Progress, log_spaced, progress_in
from experiments.benchmarks.problems.command import PUBLISHED as PUBLISHED_INSTANCES
from experiments.benchmarks.problems.figure import drawn, figure, runtimes
from experiments.benchmarks.problems.rivals import RIVALS
from experiments.benchmarks.problems.runs import Record, Run
from experiments.benchmarks.problems.suites import SUITES, Problem, chosen
from experiments.benchmarks.problems.tables import tables
from experiments.cli import main
from experiments.workloads.black_boxes import BLACK_BOXES, BlackBox
from optimizers import SurrogateTrustRegion
from optimizers.comparison.queries import Queries
from tests.experiments.committed import BOARDS, PUBLISHED

ROOT = Path(__file__).resolve().parents[2]
OUTSIDE = [
    name for name in RIVALS if name in ("cobyqa", "cobyqa_wide", "cma", "l_bfgs_b", "nelder_mead", "random", "sobol")
]


def bowl(seed):
    """Its minimum 0 is inside the box of ``BOX``, and the scales of its variables differ as the box's sides do."""
    return lambda x: float(np.sum(((x - [1.0, 30.0]) / [1.0, 10.0]) ** 2) + seed)


BOX = BlackBox(
    "bowl",
    np.array([-2.0, 0.0]),
    np.array([2.0, 40.0]),
    lambda seed: np.array([-1.0, 10.0 + seed]),
    bowl,
    24,
)


@pytest.fixture
def box(monkeypatch):
    monkeypatch.setitem(BLACK_BOXES, "bowl", BOX)
    return BOX


def bench(*arguments):
    return main(["benchmark", "problems", *map(str, arguments)])


def record(method, final, function=1, d=5, instance=4, suite="bbob", **more):
    run = Run(method, Problem(suite, function, d, instance, 20 * d))
    known = {"asked": 20 * d, "seconds": 2.0, "objective_seconds": 1.0, "least": ((1, 50.0), (20 * d, final))}
    reached = tuple(100 if final <= target else None for target in TARGETS)
    return Record(run, final=final, **{**known, "reached": reached, **more})


# Arithmetic.


def made(methods=("trust_region", "cobyqa", "cobyqa_wide", "cma"), dims=(5, 10), functions=(1, 7, 16)):
    rng = np.random.default_rng(0)
    return [
        record(m, float(10 ** rng.uniform(-11, 2)), f, d, i)
        for m, d, f, i in itertools.product(methods, dims, functions, (4, 5))
    ]


def gaps_of(records):
    """log10 gaps from 1e-8 on, a row for each method and a column for each problem, as one would write them down."""
    methods = list(dict.fromkeys(r.run.method for r in records))
    problems = list(dict.fromkeys(r.run.problem for r in records))
    found = {(r.run.method, r.run.problem): r.final for r in records}
    return methods, np.log10([[max(found[m, p], 1e-8) for p in problems] for m in methods])


def test_ranks_and_differences_are_scipys():
    records = made(("trust_region", "gld", "random", "cma"))
    (methods, gaps), board = gaps_of(records), Board.of(records)
    ranks = stats.rankdata(gaps, axis=0).mean(axis=1)
    known = board.mean_ranks()
    assert [known[m] for m in methods] == pytest.approx(ranks.tolist())
    assert [board.mean_scores()[m] for m in methods] == pytest.approx(gaps.mean(axis=1).tolist())
    for k, other in enumerate(methods[1:], 1):
        theirs = stats.ttest_rel(gaps[0], gaps[k]).confidence_interval(0.95)
        ours = board.difference("trust_region", other)
        assert (ours.low, ours.high) == pytest.approx((theirs.low, theirs.high))
        assert ours.mean == pytest.approx(float((gaps[0] - gaps[k]).mean())) and ours.units == 12


def test_ties_share_their_rank_and_a_gap_under_the_floor_is_none():
    board = Board.of([record("cma", 1e-8), record("random", 0.0), record("sobol", 1.0)])
    assert board.mean_ranks() == {"cma": 1.5, "random": 1.5, "sobol": 3.0}
    assert board.mean_scores() == {"cma": -8.0, "random": -8.0, "sobol": 0.0}


def test_a_run_without_a_value_is_as_bad_as_the_worst():
    board = Board.of([record("cma", 10.0), record("random", math.inf), record("sobol", 0.1)])
    assert board.mean_scores() == {"cma": 1.0, "random": 1.0, "sobol": -1.0}


def test_the_better_cobyqa_is_better_in_its_dimension_over_all_functions():
    finals = {("cobyqa", 5): (1e-2, 1e-2), ("cobyqa_wide", 5): (1e-1, 1e-1)}
    finals |= {("cobyqa", 10): (1e-3, 1e3), ("cobyqa_wide", 10): (1e-1, 1e-1)}
    records = [record(m, gap, f, d) for (m, d), pair in finals.items() for f, gap in enumerate(pair, 1)]
    records += [record("trust_region", 1e-2, f, d) for f in (1, 2) for d in (5, 10)]
    board = Board.of(records)
    assert board.better == {BETTER_COBYQA: {5: "cobyqa", 10: "cobyqa_wide"}}
    assert board.difference("trust_region", BETTER_COBYQA).mean == pytest.approx((0 + 0 - 1 - 1) / 4)
    assert board.mean_ranks() == {BETTER_COBYQA: (1.5 + 1.5 + 2 + 2) / 4, "trust_region": (1.5 + 1.5 + 1 + 1) / 4}
    only = board.where(lambda problem: problem.dimension == 5)
    assert only.better == board.better and only.mean_ranks() == {BETTER_COBYQA: 1.5, "trust_region": 1.5}


def test_ranks_count_one_variant_of_each_method():
    """The variant with eight queries at a time has no rank, and neither has the radius that is worse in a dimension."""
    gaps = {"trust_region": 1e-3, "trust_region_8": 1e-4, "newuoa": 1e-5, "newuoa_wide": 1e-6, "cobyqa": 1e-7}
    board = Board.of([record(m, gap, f) for m, gap in gaps.items() for f in (1, 2)])
    assert board.mean_ranks() == {"cobyqa": 1.0, BETTER_NEWUOA: 2.0, "trust_region": 3.0}
    assert set(board.mean_scores()) == {*gaps, BETTER_NEWUOA}


def test_methods_that_missed_problems_are_ranked_where_they_were_run():
    methods = ("trust_region", "cobyqa", "cobyqa_wide", "cma", "random")
    fewer = ("cma", "random")
    records = [r for r in made(methods) if r.run.method not in fewer or r.run.problem.function == 1]
    board = Board.of(records)
    assert set(board.mean_ranks()) == {"trust_region", BETTER_COBYQA}
    assert "cma" in board.shared("cma").mean_ranks()
    found = {row[0]: row for table in tables(records) for row in table.rows if table.columns[1] == "run at d ="}
    assert found["CMA-ES; random search"][1] == "5, 10; 1 function, 4 problems"


def test_one_problem_has_no_interval():
    one = interval(np.array([0.5]))
    assert one.mean == 0.5 and math.isnan(one.low) and str(one) == "0.50"
    assert interval(np.array([])).units == 0


def test_real_problems_count_by_the_share_of_the_gain_that_was_left():
    def real(method, first, final, count=1):
        return record(method, final, "bowl", 2, 0, "real", least=((count, first), (40, final)), reached=())

    # CMA-ES's first query is a draw about the start: no gain is what the start has, 7.
    board = Board.of([real("cma", 9.0, 3.0), real("random", 7.0, 5.0), real("sobol", 7.0, 12.0)])
    assert board.mean_scores() == {"cma": 0.0, "random": pytest.approx(100 * 2 / 4), "sobol": 100.0}
    # Where the start fails it is the largest first success.
    board = Board.of([real("cma", 9.0, 3.0, 2), real("random", 7.0, 5.0, 4), real("sobol", 7.0, 12.0, 3)])
    assert board.mean_scores() == {"cma": 0.0, "random": pytest.approx(100 * 2 / 6), "sobol": 100.0}


def test_each_black_box_counts_once_however_many_seeds_it_has():
    """Boxes of three, one and two seeds: means and intervals are those of the boxes' means."""
    finals = {"a": [(1.0, 2.0), (1.0, 3.0), (4.0, 1.0)], "b": [(1.0, 5.0)], "c": [(2.0, 1.0), (1.0, 9.0)]}
    records = [
        record(method, final, box, 2, seed, "real", least=((1, 10.0), (40, final)), reached=())
        for box, pairs in finals.items()
        for seed, pair in enumerate(pairs)
        for method, final in zip(("trust_region", "cma"), pair, strict=True)
    ]
    board = Board.of(records)
    left = {box: [100 * (x - y) / (10 - min(x, y)) for x, y in pairs] for box, pairs in finals.items()}
    means = [np.mean(values) for values in left.values()]
    theirs = stats.ttest_1samp(means, 0.0).confidence_interval(0.95)
    ours = board.difference("trust_region", "cma")
    assert ours.mean == pytest.approx(float(np.mean(means))) and ours.units == 3
    assert (ours.low, ours.high) == pytest.approx((theirs.low, theirs.high))
    assert board.mean_ranks()["trust_region"] == pytest.approx(np.mean([4 / 3, 1.0, 1.5]))
    assert board.rank_difference("trust_region", "cma").mean == pytest.approx(np.mean([-1 / 3, -1.0, 0.0]))
    alone = board.where(lambda problem: problem.function == "a").difference("trust_region", "cma")
    assert alone.units == 3 and alone.mean == pytest.approx(float(np.mean(left["a"])))
    first = next(v for v in page.verdicts(records) if "over the black boxes" in v.claim)
    assert first.statistic == "paired difference of the rank, mean over 3 black boxes, Student's interval"
    box, other = (v for v in page.verdicts(records) if "of the others" in v.claim)  # of b there is one seed
    assert box.claim == "trust region on the GP on a ends lower than the best of the others, CMA-ES"
    assert other.claim.startswith("trust region on the GP on c ")
    theirs = stats.ttest_1samp(left["a"], 0.0).confidence_interval(0.95)
    assert (box.estimate, box.interval) == (pytest.approx(alone.mean), pytest.approx((theirs.low, theirs.high)))
    records += [
        dataclasses.replace(r, run=Run("turbo", r.run.problem)) for r in records if r.run.problem.function == "a"
    ]
    turbo = next(v for v in page.verdicts(records) if "ends lower than TuRBO" in v.claim)
    assert turbo.statistic == "paired difference of the percentage left, mean over 3 problems, Student's interval"


def test_progress_is_the_least_so_far():
    values = [5.0, math.nan, 7.0, 2.0, 2.0, math.inf, 1e-3]
    progress = Progress.of(values)
    best = [np.nanmin([v if np.isfinite(v) else np.nan for v in values[: n + 1]]) for n in range(len(values))]
    assert [progress.at(n + 1) for n in range(len(values))] == best and progress.final == 1e-3
    assert progress.asked == 7 and progress.reached([10.0, 5.0, 2.5, 1e-4]) == [1, 1, 4, None]
    assert Progress.of([math.nan, math.inf]).final == math.inf and Progress.of([]).final == math.inf
    assert Progress.of([math.nan, 3.0]).at(1) == math.inf


def test_counts_grow_in_equal_ratios():
    counts = log_spaced(800)
    assert counts[0] == 1 and counts[-1] == 800 and counts == sorted(set(counts))
    assert all(b / a < 10**0.1 * 1.06 for a, b in itertools.pairwise(counts[9:-1]))
    assert log_spaced(1) == [1] and log_spaced(0) == []


def test_runtimes_are_the_share_of_pairs_reached():
    records = [record("cma", 1e-3, 1), record("cma", 20.0, 2)]
    x, y = runtimes(records, "cma")
    reached = sum(t >= 1e-3 for t in TARGETS) + sum(t >= 20.0 for t in TARGETS)
    assert len(x) == reached and set(x) == {20.0}
    assert y[-1] == pytest.approx(reached / (2 * len(TARGETS)))
    assert len(TARGETS) == 51 and TARGETS[0] == 100.0 and TARGETS[-1] == pytest.approx(1e-8)


# Problems and rivals.


@pytest.mark.parametrize("instances", [["1"], ["2", "4"], ["3-5"]])
@pytest.mark.parametrize("suite", ["bbob", "bbob-noisy", "bbob-largescale"])
def test_cocos_first_three_instances_are_refused(suite, instances, tmp_path, capsys):
    assert bench("--suite", suite, "--instances", *instances, "--out", tmp_path) == 2
    assert "COCO's instances 1 to 3 are reserved" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_what_a_suite_does_not_have_is_refused(tmp_path, capsys):
    for option, said in ((("--functions", 25), "no function 25"), (("--dimensions", 7), "no dimension 7")):
        assert bench("--instances", 4, *option, "--out", tmp_path) == 2
        assert said in capsys.readouterr().err


def test_groups_are_cocos():
    sizes = {name: len(numbers) for name, numbers in SUITES["bbob"].groups.items()}
    assert list(sizes.values()) == [5, 4, 5, 5, 5] and len(SUITES["bbob"].functions) == 24
    assert len(SUITES["bbob-noisy"].functions) == 30
    assert SUITES["bbob"].group(15) == "multimodal" and SUITES["bbob-noisy"].group(107) == "severe noise"


def test_a_row_says_where_a_method_is_run():
    functions, slow = SUITES["bbob"].functions, RIVALS["local_entropy"]
    problems = chosen(SUITES["bbob"], (), (), (11, 12))
    taken = [p for p in problems if slow.takes(p, functions, (11, 12))]
    assert {p.instance for p in taken} == {11} and {p.dimension for p in taken} == {2, 3, 5, 10}
    assert {p.function for p in taken} == set(range(1, 25, 2))
    assert all(RIVALS["cma"].takes(p, functions, (11, 12)) for p in problems)
    long = Problem("bbob", 1, 5, 11, 100 * 5)
    assert RIVALS["cobyqa"].takes(long, functions, (11,)) and not RIVALS["zord"].takes(long, functions, (11,))


def test_eight_at_a_time_are_asked_before_any_is_told(monkeypatch):
    rounds, tell = [], SurrogateTrustRegion.tell
    asked = []

    def telling(self, batch, values):
        if asked:
            rounds.append(len(asked))
            asked.clear()
        tell(self, batch, values)

    def valley(x):
        asked.append(x)
        return float(rosen(x))

    monkeypatch.setattr(SurrogateTrustRegion, "tell", telling)
    side = torch.full((3,), 5.0, dtype=torch.float64)
    queries = Queries(valley, -side, side, 30, numpy=True)
    RIVALS["trust_region_8"].run(queries, np.array([3.0, -2.0, 1.0]), 0)
    assert rounds[:3] == [4, 8, 8] and sum(rounds) == 30  # the design, and then eight at a time
    assert max(rounds) == 8 and min(queries.values) < 0.1 * queries.values[0]


@pytest.mark.parametrize("method", OUTSIDE)
def test_outside_methods_have_exactly_the_budget(method, box, tmp_path):
    if RIVALS[method].missing:
        pytest.skip(f"{RIVALS[method].missing} not installed")
    found = runs.run_one(Run(method, Problem("real", "bowl", 2, 3, 150)), tmp_path)
    assert found.asked == 150 and not found.failure
    assert 3.0 <= found.final < 3.5 and found.least[-1] == (150, float(f"{found.final:.4g}"))


def test_all_begin_at_the_black_boxs_start_in_its_own_box(monkeypatch, tmp_path):
    asked = []

    def noted(seed):
        return lambda x: asked.append(x.copy()) or bowl(seed)(x)

    monkeypatch.setitem(BLACK_BOXES, "bowl", dataclasses.replace(BOX, draw=noted))
    for method in ("trust_region", "rgf", "gld", "l_bfgs_b", "nelder_mead", "random", "sobol"):
        asked.clear()
        runs.run_one(Run(method, Problem("real", "bowl", 2, 5, 12)), tmp_path)
        assert asked[0] == pytest.approx([-1.0, 15.0], abs=1e-12), method
        assert np.all(asked >= BOX.lower - 1e-9) and np.all(asked <= BOX.upper + 1e-9)


def test_the_wide_cobyqa_has_our_radius(box, tmp_path):
    from optimizers.methods.trust_region.radius import RadiusRule

    assert RadiusRule().initial == rivals.OUR_RADIUS
    assert RIVALS["cobyqa_wide"].run.args[1] == {"initial_tr_radius": 2.0}


def test_a_failure_is_recorded_with_what_was_found(box, monkeypatch, tmp_path):
    def breaks(queries, x0, seed):
        for _ in range(5):
            queries(x0)
        raise ArithmeticError("lost\nsecond line")

    monkeypatch.setitem(RIVALS, "random", dataclasses.replace(RIVALS["random"], run=breaks))
    found = runs.run_one(Run("random", Problem("real", "bowl", 2, 1, 24)), tmp_path)
    assert found.failure == "ArithmeticError: lost" and found.asked == 5 and math.isfinite(found.final)
    text = "\n".join(" ".join(row) for table in tables([found]) for row in table.rows)
    assert "1 (ArithmeticError: lost)" in text


def test_local_entropy_search_finds_a_bowls_bottom_within_its_budget(monkeypatch, box, tmp_path):
    pytest.importorskip("botorch_community.acquisition.local_entropy_search")
    monkeypatch.setattr(runs, "_warm", lambda method, suite: None)
    monkeypatch.setattr(local_entropy, "PATHS", 8)
    monkeypatch.setattr(local_entropy, "STEPS", 32)
    monkeypatch.setattr(local_entropy, "RATE", 0.02)
    asked = []
    monkeypatch.setitem(
        BLACK_BOXES, "bowl", dataclasses.replace(BOX, draw=lambda s: lambda x: asked.append(x) or bowl(s)(x))
    )
    once = runs.run_one(Run("local_entropy", Problem("real", "bowl", 2, 0, 9)), tmp_path)
    points = np.array(asked)
    assert once.asked == 9 and not once.failure and once.final < 0.5 < min(value for _, value in once.least[:4])
    assert len(np.unique(points, axis=0)) == 9, "no point twice"
    assert points[0] == pytest.approx([-1.0, 10.0]) and np.all((points >= BOX.lower) & (points <= BOX.upper))


def seen(d, n, seed=0):
    """Points of the unit cube and values of a curved function, and the GP that NeST-BO fits to them."""
    g = torch.Generator().manual_seed(seed)
    X = torch.rand(n, d, generator=g, dtype=torch.float64)
    return X, newton_step.fitted(X, (X - 0.4).square().sum(1, keepdim=True) + X.prod(1, keepdim=True))


def derivative_variances(gp, X, x):
    """The sum of the variances of all first and second derivatives at x, dense, by autograd through the kernel."""
    kernel = gp.covar_module
    noise = gp.likelihood.noise.detach()
    A = kernel(X, X).to_dense().detach() + noise * torch.eye(len(X), dtype=X.dtype)

    def k(a, b):
        r2 = ((a - b) / kernel.base_kernel.lengthscale.detach()[0]).square().sum()
        return kernel.outputscale.detach() * torch.exp(-0.5 * r2)

    total = 0.0
    for one in (torch.func.jacrev, torch.func.hessian):
        across = torch.stack([one(k)(x, row).reshape(-1) for row in X], dim=1)
        prior = one(lambda a, one=one: one(lambda b: k(a, b))(x))(x).reshape(across.shape[0], -1)
        total += float(prior.diagonal().sum() - (across * torch.linalg.solve(A, across.mT).mT).sum())
    return total


@pytest.mark.parametrize("d", [1, 3])
def test_newton_information_is_the_drop_of_all_variances(d):
    X, gp = seen(d, 12)
    generator = torch.Generator().manual_seed(0)
    x, Z = torch.full((d,), 0.45, dtype=torch.float64), torch.rand(5, 1, d, dtype=torch.float64, generator=generator)
    before = derivative_variances(gp, X, x)
    after = [derivative_variances(gp, torch.cat([X, z]), x) for z in Z]
    drops = newton_step.NewtonInformation(gp, X, x)(Z)
    assert drops.tolist() == pytest.approx([before - left for left in after], rel=1e-6, abs=1e-7 * before)
    assert float(drops.max() / drops.min()) > 1.5


def test_a_step_is_newtons_in_a_valley_and_along_the_slope_on_a_ridge():
    X, gp = seen(2, 40)
    x = torch.tensor([0.7, 0.2], dtype=torch.float64)
    g, H = gp.gradient_posterior(x[None]).mean[0], gp.hessian_posterior(x[None]).mean[0]
    assert bool((torch.linalg.eigvalsh(H) > 0).all())
    assert torch.allclose(newton_step.step(gp, x), -torch.linalg.solve(H, g), rtol=1e-6)
    ridge = newton_step.fitted(X, -(X - 0.5).square().sum(1, keepdim=True))
    down = newton_step.step(ridge, x)
    slope = ridge.gradient_posterior(x[None]).mean[0]
    assert torch.allclose(down / down.norm(), -slope / slope.norm())
    assert float(down.norm()) in [pytest.approx(0.5**n) for n in range(1, 7)]


def test_a_newton_step_too_far_is_shortened_by_armijos_rule():
    """f = log cosh u, u = 4(x − ½), from u = −1.2: the step to u = 1.53 rises, 0.8 of it falls by 0.17 where 0.18 is
    asked for, 0.64 of it by 0.45."""
    X = torch.linspace(0, 1, 31, dtype=torch.float64)[:, None]
    gp = newton_step.fitted(X, (4 * (X - 0.5)).cosh().log())
    x = torch.tensor([0.2], dtype=torch.float64)
    newton = math.tanh(1.2) * math.cosh(1.2) ** 2 / 4
    assert float(newton_step.step(gp, x)) == pytest.approx(0.64 * newton, rel=0.05)


@pytest.mark.slow
def test_nest_bo_finds_a_bowls_bottom_by_newtons_steps(box, tmp_path):
    asked = []
    once = BLACK_BOXES["bowl"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(
            BLACK_BOXES, "bowl", dataclasses.replace(once, draw=lambda s: lambda x: asked.append(x) or bowl(s)(x))
        )
        found = runs.run_one(Run("nest_bo", Problem("real", "bowl", 2, 0, 20)), tmp_path)
        again = runs.run_one(Run("nest_bo", Problem("real", "bowl", 2, 0, 20)), tmp_path)
    points = np.array(asked[-40:-20])
    assert found.asked == 20 and not found.failure and found.final < 1e-3 and found.least == again.least
    assert points[0] == pytest.approx([-1.0, 10.0]) and np.all((points >= BOX.lower) & (points <= BOX.upper))
    near = np.abs(points[11:13] - points[0]) / (BOX.upper - BOX.lower)
    assert np.all(near <= 0.2 + 1e-12), "two queries that teach are near the iterate, then there is a step"


# Runs and resuming.

SCRIPT = """
import os, signal, sys
from tests.experiments.test_problems_benchmark import BOX, BLACK_BOXES, bench
from optimizers.running.journal import Journal
BLACK_BOXES["bowl"] = BOX
write, left = Journal.write, [8]
def dies(self, *event):
    left[0] -= 1
    if not left[0]:
        os.kill(os.getpid(), signal.SIGKILL)
    write(self, *event)
Journal.write = dies
bench(*sys.argv[1:])
"""


def timeless(out):
    return sorted(json.dumps({**r.as_json(), "seconds": 0, "objective_seconds": 0}) for r in runs.read(out))


@pytest.mark.slow
def test_a_killed_benchmark_goes_on_to_the_same_records(box, tmp_path, capsys):
    asked = [
        "--suite",
        "real",
        "--functions",
        "bowl",
        "--instances",
        "0-2",
        "--methods",
        "cma",
        "random",
        "gld",
        "l_bfgs_b",
    ]
    whole, killed = ([*asked, "--out", tmp_path / name] for name in ("whole", "killed"))
    assert bench(*whole) == 0
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    died = subprocess.run([sys.executable, "-c", SCRIPT, *map(str, killed)], cwd=ROOT, env=environment, check=False)
    assert died.returncode == -9 and len(runs.read(tmp_path / "killed")) == 6
    with (tmp_path / "killed" / runs.RECORDS).open("a") as file:
        file.write('[7,"run",{"suite"')  # the line that a kill cuts
    assert bench(*killed) == 2, "runs are not lost by mistake"
    assert "resume them with --resume" in capsys.readouterr().err
    assert bench(*killed, "--resume") == 0
    assert timeless(tmp_path / "killed") == timeless(tmp_path / "whole") and len(timeless(tmp_path / "whole")) == 12


def test_an_interrupt_keeps_what_was_made(box, monkeypatch, tmp_path, capsys):
    made_of, count = runs.run_one, itertools.count()

    def stops(run, out):
        if next(count) == 2:
            raise KeyboardInterrupt
        return made_of(run, out)

    monkeypatch.setattr(runs, "run_one", stops)
    asked = ["--suite", "real", "--functions", "bowl", "--instances", "0", "--methods", "cma", "random", "gld"]
    assert bench(*asked, "--out", tmp_path) == 130
    assert "2 finished runs are kept" in capsys.readouterr().err and len(runs.read(tmp_path)) == 2


def _dies(run, out):
    if run.method == "gld":
        os._exit(1)
    return Record(run, 1, 1.0, 0.0, 0.0, ((1, 1.0),), ())


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_process_that_dies_is_a_failure_of_its_run_alone(box, monkeypatch, tmp_path):
    monkeypatch.setattr(runs, "run_one", _dies)
    asked = [Run(m, Problem("real", "bowl", 2, 0, 24)) for m in ("gld", "cma")]
    found = runs.make(asked, tmp_path, 2, False, lambda one: None)
    assert [(r.run.method, r.failure) for r in found] == [
        (r.method, runs.DIED if r.method == "gld" else "") for r in asked
    ]


def test_a_record_survives_its_line():
    for one in (*made(), record("cma", math.inf, least=(), failure="broken")):
        assert Record.from_json(json.loads(json.dumps(one.as_json()))) == one


def test_a_copy_of_published_tables_is_gone_on_from(box, monkeypatch, tmp_path):
    asked = ["--suite", "real", "--functions", "bowl", "--instances", "0-1"]
    assert bench(*asked, "--methods", "random", "--out", tmp_path / "first") == 0
    copy = tmp_path / "copy"
    copy.mkdir()
    shutil.copy(tmp_path / "first" / "problems-real.jsonl.xz", copy)
    made_of, made_now = runs.run_one, []
    monkeypatch.setattr(runs, "run_one", lambda run, out: made_now.append(run.method) or made_of(run, out))
    assert bench(*asked, "--methods", "random", "sobol", "--out", copy, "--resume") == 0
    assert made_now == ["sobol", "sobol"] and len(runs.read(copy)) == 4
    assert {r.run.method for r in page.read_records(copy, "problems-real")} == {"random", "sobol"}


# The page.


@pytest.mark.parametrize("suite", suites.BOXES)
def test_all_seeds_of_black_boxes_are_on_one_board(suite):
    records = [record("random", 1.0, next(iter(suites.BOXES[suite])), 5, seed, suite) for seed in (11, 16)]
    assert list(page.by_name(records)) == [f"problems-{suite}"]


def test_the_page_and_what_is_published_come_from_the_records(tmp_path, capsys):
    records = made(("trust_region", "cobyqa", "cobyqa_wide", "cma", "random", "l_bfgs_b", "gld", "rgf", "es"))
    text = page.write("problems-bbob", records, tmp_path, "typed")
    assert any("The better COBYQA, by mean score" in line for line in text) and any(
        "instances 4, 5" in line for line in text
    )
    assert sorted(page.read_records(tmp_path, "problems-bbob"), key=str) == sorted(records, key=str)
    assert main(["report", "--from", str(tmp_path)]) == 0
    shown = (tmp_path / "scoreboards.md").read_text()
    assert shown.count("\n| --- |") >= 6 and "## problems-bbob" in shown and "lower than the better COBYQA" in shown
    assert "no experiment of this version" not in capsys.readouterr().err
    target = tmp_path / "published"
    target.mkdir()
    assert page.take_over(tmp_path, "problems-bbob", target, 100) == f"{len(records)} runs"
    for name in ("settings.json", "verdicts.json"):
        path = f"problems-bbob.{name}"
        assert (target / path).read_text() == (tmp_path / path).read_text()


@pytest.mark.parametrize("name", [name for name in BOARDS if page.archive_of(PUBLISHED, name).exists()])
def test_a_published_archive_of_coco_has_the_published_gaps(name, tmp_path):
    ours = {r.run.folder.name: r for r in page.read_records(PUBLISHED, name) if r.run.method == "trust_region"}
    some = set(list(ours)[::10])
    with tarfile.open(page.archive_of(PUBLISHED, name)) as archive:
        members = {member: Path(member.name).parts for member in archive.getmembers()}
        archive.extractall(tmp_path, [member for member, parts in members.items() if parts[1] in some], filter="data")
    assert {parts[:2] for parts in members.values()} == {("trust_region", folder) for folder in ours}
    for folder in some:
        progress, one = progress_in(tmp_path / "trust_region" / folder), ours[folder]
        assert (progress.final, progress.asked) == (one.final, one.asked)


def test_what_is_packed_is_the_same_for_the_same_files_and_left_out_where_a_run_has_none(tmp_path, monkeypatch):
    records = made(("trust_region", "random"))
    page.write("problems-bbob", records, tmp_path, "typed")
    for one in records:
        folder = tmp_path / runs.COCO / one.run.folder
        folder.mkdir(parents=True)
        (folder / "a.info").write_text(one.run.problem.name)
    monkeypatch.setattr(page.lzma, "compress", lambda data, preset: data)  # takes as long as all the rest
    packed = []
    for target in (tmp_path / "once", tmp_path / "again"):
        assert page.take_over(tmp_path, "problems-bbob", target, 50) == "24 runs, and COCO's files of 12"
        packed.append((target / "trust_region-bbob.tgz").read_bytes())
    assert packed[0] == packed[1]
    shutil.rmtree(folder.parents[1] / "trust_region" / folder.name)
    assert page.take_over(tmp_path, "problems-bbob", tmp_path / "third", 50) == "24 runs"
    assert not (tmp_path / "third" / "trust_region-bbob.tgz").exists()


LONG = (
    *("problems-bbob", "problems-bbob-largescale", "problems-bbob-100d", "problems-bbob-100d-fresh"),
    *("problems-bbob-constrained", "problems-bbob-constrained-fresh", "problems-bbob-mixint-fresh"),
)
"""Scoreboards with thousands of runs."""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name in LONG else ()) for name in BOARDS]
)
def test_a_published_scoreboard_follows_from_its_records(name, tmp_path, monkeypatch):
    monkeypatch.setattr(page.lzma, "compress", lambda data, preset: data)  # takes as long as all the rest
    records = page.read_records(PUBLISHED, name)
    instances = range(11, 21) if name == "problems-real" else PUBLISHED_INSTANCES
    instances = page.FRESH if name.endswith(("-fresh", "-tuning")) else instances
    assert all(r.run.problem.instance in instances and not r.failure for r in records)
    assert page.take_over(PUBLISHED, name, tmp_path, 100) == f"{len(records)} runs"
    assert (tmp_path / f"{name}.settings.json").read_text() == (PUBLISHED / f"{name}.settings.json").read_text()
    anew, kept = (_verdicts(folder / f"{name}.verdicts.json") for folder in (tmp_path, PUBLISHED))
    assert anew == kept


def _verdicts(path):
    """Numbers to nine digits: other versions of numpy and scipy sum in another order."""
    return json.loads(path.read_text(), parse_float=lambda digits: float(f"{float(digits):.9g}"))


def test_verdicts_are_those_of_the_intervals():
    ahead = [
        record(m, g * 10**-i, f, 5, i)
        for m, g in (("trust_region", 1e-4), ("cobyqa", 1.0), ("cobyqa_wide", 1e-1))
        for f in (1, 2, 15)
        for i in (4, 5)
    ]
    ahead += [record("cma", 10.0 ** (k % 2 * 2 - 5), f, 5, i) for f in (1, 2, 15) for k, i in enumerate((4, 5))]
    found = {verdict.claim: verdict for verdict in page.verdicts(ahead)}
    assert [v.status for c, v in found.items() if "lower than the better COBYQA" in c] == ["reproduced"]
    multimodal = next(v for c, v in found.items() if "multimodal" in c)
    assert multimodal.status == "undecided" and multimodal.seeds == (4, 5) and multimodal.control
    first = next(v for c, v in found.items() if "is first in mean rank at d = 5, ahead of the better COBYQA" in c)
    # Instance 4: ranks 1 and 2.5, where CMA-ES has the same gap as COBYQA; instance 5: 1 and 2.
    assert first.status == "reproduced" and first.estimate == pytest.approx(-1.25)
    half = stats.t.ppf(0.975, 5) * np.std([-1.5, -1.0] * 3, ddof=1) / math.sqrt(6)
    assert first.interval == pytest.approx((-1.25 - half, -1.25 + half))


@pytest.mark.parametrize(
    ("worse", "status"), [(0.1, "reproduced"), (0.3, "undecided"), (0.5, "not reproduced")], ids=str
)
def test_eight_at_a_time_may_lose_three_tenths_and_are_compared_with_cma(worse, status):
    shift = {4: worse - 0.05, 5: worse + 0.05}
    pairs = [record("trust_region", 1e-2, f, 5, i) for f in (1, 2, 15) for i in (4, 5)]
    pairs += [record("trust_region_8", 10 ** (shift[i] - 2.0), f, 5, i) for f in (1, 15) for i in (4, 5)]
    (found,) = (v for v in page.verdicts(pairs) if "8 queries at a time" in v.claim)
    assert found.status == status and found.estimate == pytest.approx(worse)
    pairs += [record("cma", 10 ** (0.25 - 2.0), f, 5, i) for f in (1, 2, 15) for i in (4, 5)]
    (cma,) = (v for v in page.verdicts(pairs) if "8 queries at a time ends lower than CMA-ES" in v.claim)
    assert cma.status == status and cma.estimate == pytest.approx(worse - 0.25)


def test_methods_that_were_run_on_other_problems_have_no_verdict():
    others = ("cobyqa", "cobyqa_wide", "trust_region_8", "cma", "zord")
    records = [record("trust_region", 1e-2, 15, 5, i) for i in (4, 5)]
    records += [record(m, 1e-1, 15, 5, i) for m in others for i in (6, 7)]
    assert page.verdicts(records) == []


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow if name in LONG else ())
        for name in BOARDS
        if name.startswith("problems-")
    ],
)
def test_published_runs_began_at_one_value_on_each_problem(name):
    """Seven seeds of ``attack_digits_784`` did not: they were of two machines, on which its network was another one."""
    first = {}
    for r in page.read_records(PUBLISHED, name):
        if r.least and r.least[0][0] == 1 and RIVALS[r.run.method].asks_start:
            first.setdefault(r.run.problem, set()).add(r.least[0][1])
    assert first and all(len(values) == 1 for values in first.values())


def test_the_figure_is_readable_at_seven_inches():
    methods = list(RIVALS)[:12]
    shown = figure(made(methods, dims=(2, 5, 10, 20)))
    assert shown.get_figwidth() == pytest.approx(7.0) and len(shown.axes) == 4
    assert all(0 < len(axes.get_lines()) <= 7 for axes in shown.axes)
    board = Board.of(made(methods))
    chosen_methods = drawn(board, [board])
    assert {"trust_region", "cobyqa_wide"} <= set(chosen_methods) <= set(methods)
    texts = [t for axes in shown.axes for t in (axes.title, axes.xaxis.label, *axes.get_xticklabels())]
    assert min(text.get_fontsize() for text in (*texts, *shown.legends[0].get_texts())) >= 7.0


def test_the_figure_of_large_scale_functions_has_what_each_method_leaves():
    """From a start of 10 to 1 for one method and 4 for another: a third of the gain is left of the second's."""
    finals = {"trust_region": 1.0, "cma": 4.0}
    records = [
        record(method, final, 1, 80, 4, "bbob-largescale", least=((1, 10.0), (40, final)), reached=())
        for method, final in finals.items()
    ]
    (panel,) = figure(records).axes
    ends = {line.get_label(): line.get_ydata()[-1] for line in panel.get_lines()}
    assert ends == {"CMA-ES": pytest.approx(100.0 / 3.0), "trust region on the GP": pytest.approx(0.0)}
    assert panel.get_ylabel() == "% left" and panel.get_title() == "d = 80, 1 problem"


def test_a_rival_that_ran_on_some_black_boxes_is_drawn_on_these():
    ran = [("trust_region", "rocket"), ("turbo", "rocket"), ("trust_region", "metric_f1")]
    records = [
        record(method, 1.0, box, 12, seed, "real", least=((1, 10.0), (20, 1.0)), reached=())
        for method, box in ran
        for seed in (11, 12)
    ]
    shown = figure(records)
    metric, rocket = shown.axes
    assert [len(rocket.get_lines()), len(metric.get_lines())] == [2, 1] and rocket.get_title() == "rocket"
    assert [text.get_text() for text in shown.legends[0].get_texts()] == ["trust region on the GP", "TuRBO-1"]


# COCO.


def coco(method, problem, out, **more):
    pytest.importorskip("cocoex")
    return runs.run_one(Run(method, problem), out, **more)


@pytest.mark.parametrize("function", [1, 8, 24])
def test_gaps_are_those_to_the_optimum_that_coco_knows(function, tmp_path, monkeypatch):
    cocoex = pytest.importorskip("cocoex")
    monkeypatch.chdir(tmp_path)
    problem = Problem("bbob", function, 3, 4, 60)
    told, opened = [], suites.opened

    def noted(*arguments):
        made_of = opened(*arguments)
        entered = made_of.__enter__()
        fun = entered.fun
        entered.fun = lambda x: told.append(fun(x)) or told[-1]

        class Again:
            def __enter__(self):
                return entered

            def __exit__(self, *error):
                return made_of.__exit__(*error)

        return Again()

    monkeypatch.setattr(runs, "opened", noted)
    found = coco("random", problem, tmp_path)
    theirs = cocoex.Suite("bbob", "instances: 4", f"dimensions: 3 function_indices: {function}")[0]
    theirs._best_parameter("print")
    least = theirs(np.loadtxt("._bbob_problem_best_parameter.txt"))
    assert found.asked == len(told) == 60
    best = np.minimum.accumulate(told) - least
    assert found.final == pytest.approx(best[-1], rel=1e-8)
    assert [gap for _, gap in found.least] == pytest.approx([best[n - 1] for n, _ in found.least], rel=1e-3)
    hits = [next((n for n, gap in enumerate(best, 1) if gap <= target), None) for target in TARGETS]
    assert list(found.reached) == hits


def test_noise_is_the_problems_alone_and_gaps_have_none(tmp_path):
    problem = Problem("bbob-noisy", 107, 2, 4, 40)
    once = coco("gld", problem, tmp_path)
    coco("random", Problem("bbob-noisy", 113, 3, 4, 30), tmp_path)
    again = coco("gld", problem, tmp_path)
    assert (again.final, again.least) == (once.final, once.least)
    values = []
    for instance in (4, 4, 5):
        with suites.opened(dataclasses.replace(problem, instance=instance), "gld", tmp_path / "files") as found:
            values.append([found.fun(found.start) for _ in range(5)])
    assert values[0] == values[1] != values[2] and len(set(values[0])) == 5
    assert found.progress.queries == (1,) and not math.isclose(found.progress.final, min(values[2]), rel_tol=1e-6)


@pytest.mark.parametrize("method", [name for name in OUTSIDE if name != "cobyqa"])
def test_coco_counts_the_budget_too(method, tmp_path):
    found = coco(method, Problem("bbob-noisy", 101, 2, 4, 30), tmp_path)
    assert found.asked == 30
    (info,) = (tmp_path / runs.COCO).rglob("*.info")
    assert "4:30|" in info.read_text() and f"algId = '{method}'" in info.read_text()


def test_files_of_another_format_are_not_read(tmp_path):
    (tmp_path / "a").mkdir()
    head = "% f evaluations | g evaluations | best noise-free fitness - Fopt (1.0) + sum g_i+ | measured fitness\n"
    (tmp_path / "a" / "x.dat").write_text(head + "1 0 +2.0 +3.0 +3.0\n5 0 +1.0 +2.0 +2.0\n")
    assert progress_in(tmp_path) == Progress((1, 5), (2.0, 1.0), 5)
    (tmp_path / "a" / "x.dat").write_text(head.replace("best noise-free fitness", "fitness"))
    with pytest.raises(ValueError, match="COCO's format"):
        progress_in(tmp_path)


READS = """
import sys, warnings
warnings.simplefilter("ignore")
import matplotlib
matplotlib.use("Agg")
import cocopp
found = cocopp.main(["-o", sys.argv[1], *sys.argv[2:]])
for (name, _), sets in found.items():
    for data in sets:
        for instance, last in zip(data.instancenumbers, data.maxevals):
            print("SET", name, data.funcId, data.dim, instance, int(last), *(f"{gap:.6e}" for gap in data.finalfunvals))
"""


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_cocopp_reads_the_files_and_finds_the_same_gaps(tmp_path):
    pytest.importorskip("cocoex")
    pytest.importorskip("cocopp")
    out = tmp_path / "runs"
    methods = ["random", "l_bfgs_b", "trust_region"]
    asked = ["--instances", "4-5", "--dimensions", 2, 3, "--functions", 1, 8, "--methods", *methods]
    assert bench(*asked, "--out", out) == 0
    folders = [str(out / runs.COCO / "bbob-20d" / method) for method in ("random", "l_bfgs_b")]
    assert page.take_over(out, "problems-bbob", tmp_path, 50) == "24 runs, and COCO's files of 8"
    folders.append(str(tmp_path / "trust_region-bbob.tgz"))
    nowhere = dict.fromkeys(("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"), "http://127.0.0.1:9")
    said = subprocess.run(
        [sys.executable, "-c", READS, str(tmp_path / "ppdata"), *folders],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, **nowhere},
        check=True,
    ).stdout
    lines = {line for line in said.splitlines() if line.startswith("SET")}
    finals = {
        (r.run.method, r.run.problem.function, r.run.problem.dimension, r.run.problem.instance): r
        for r in runs.read(out)
    }
    assert len(finals) == 24
    for (method, function, d, instance), one in finals.items():
        named = [str(function), str(d), str(instance)]
        of_the_run = [line.split() for line in lines if line.split()[2:5] == named]
        (line,) = [line for line in of_the_run if line[1].partition("-")[0] == method]
        solved = one.reached[-1]  # cocopp cuts a run that has reached the last target there
        assert one.asked == 20 * d and int(line[5]) == (solved or one.asked)
        assert any(float(gap) == pytest.approx(one.final, rel=1e-5, abs=1e-12) for gap in line[6:])
    assert list((tmp_path / "ppdata").rglob("pprldmany*.svg"))


@pytest.mark.parametrize(
    "name", ["newuoa", "newuoa_wide", "bobyqa", "bobyqa_wide", "py_bobyqa", "py_bobyqa_noisy", "lq_cma"]
)
def test_methods_with_quadratic_models_minimize_a_quadratic_in_the_box_and_restart(name):
    rival, asked = RIVALS[name], []
    for module in rival.needs:
        pytest.importorskip(module)

    def objective(x):
        asked.append(x)
        return float(((x - 1.3) ** 2 * [1.0, 10.0, 100.0]).sum())

    side = torch.full((3,), 5.0, dtype=torch.float64)
    queries = Queries(objective, -side, side, 150, numpy=True)
    rival.run(queries, np.full(3, -2.0), 7)
    assert len(asked) == 150 and np.abs(asked).max() <= 5.0
    assert queries.least < 1e-6
    if name.endswith("_wide"):
        assert rival.run.args[1] == rivals.OUR_RADIUS * 2 * rivals.SIDE


def test_an_error_of_bayesian_optimization_is_not_taken_for_the_end_of_a_run(monkeypatch):
    side = torch.full((2,), 5.0, dtype=torch.float64)
    queries = Queries(lambda x: float(x @ x), -side, side, 30, numpy=True)
    monkeypatch.setattr(global_search, "SingleTaskGP", lambda X, Y: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        RIVALS["log_ei"].run(queries, np.full(2, -2.0), 7)
    assert len(queries.values) == 5


SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in ("log_ei", "smac")]


@pytest.mark.parametrize("name", ["ngopt", *SLOW, "pybads_noisy", "optuna_gp"])
def test_methods_that_search_the_whole_box_use_the_budget_and_keep_the_global_state(name):
    rival, asked = RIVALS[name], []
    for module in rival.needs:
        pytest.importorskip(module)

    def objective(x):
        asked.append(x.copy())
        return float(((x - 1.3) ** 2).sum())

    side = torch.full((2,), 5.0, dtype=torch.float64)
    states = np.random.get_state()[1].copy(), torch.get_rng_state()  # noqa: NPY002
    runs_of = []
    for _ in range(2):
        asked.clear()
        queries = Queries(objective, -side, side, 30, numpy=True)
        rival.run(queries, np.full(2, -2.0), 7)
        runs_of.append(np.array(asked))
    assert runs_of[0].shape == (30, 2) and np.array_equal(*runs_of) and np.abs(runs_of[0]).max() <= 5.0
    assert not rival.asks_start or np.array_equal(runs_of[0][0], [-2.0, -2.0])
    assert queries.least < 1.0  # 21.8 at the start
    assert np.array_equal(np.random.get_state()[1], states[0])  # noqa: NPY002
    assert torch.equal(torch.get_rng_state(), states[1])
