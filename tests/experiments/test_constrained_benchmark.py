"""The constrained and the mixed-integer scoreboards: counting, feasibility and tests, on problems that need no COCO."""

import itertools
import math

import numpy as np
import pytest
import torch
from botorch.exceptions.errors import ModelFittingError
from scipy import stats

from experiments.benchmarks.problems import constrained, page, runs, scbo, stages, suites
from experiments.benchmarks.problems.board import BETTER_COBYQA, BETTER_NEWUOA, holm, interval
from experiments.benchmarks.problems.rivals import RIVALS
from experiments.benchmarks.problems.runs import Record, Run
from experiments.benchmarks.problems.suites import BOXES, SUITES, Opened, Problem, chosen
from experiments.workloads.black_boxes.variables import named
from optimizers import Space

SUITE = SUITES["bbob-constrained"]
START = np.array([-3.0, 4.0])
CONSTRAINED = [name for name, rival in RIVALS.items() if SUITE.name in rival.suites]


class Fake:
    """A problem with COCO's interface: f = |x|², c = (1 − x₀, 2 x₁ − 10), the minimum 1 at (1, 0)."""

    def __init__(self):
        self.asked = []

    def __call__(self, x):
        self.asked.append(tuple(x))
        return float(np.sum(np.square(x)))

    def constraint(self, x):
        return [1.0 - x[0], 2.0 * x[1] - 10.0]


def told(tmp_path, points, start=(4.0, 4.0), tolerance=constrained.TOLERANCES[0]):
    (tmp_path / "a.tdat").write_text("% f evaluations | ... - Fopt (+1.000000000000e+00) + sum g_i+ | ...\n")
    problem = constrained.Told(Fake(), np.array(start))
    for point in points:
        problem(np.array(point))
    return problem.progress(tmp_path, tolerance)


def test_a_query_is_feasible_up_to_a_share_of_the_constraints_at_the_start(tmp_path):
    """At the start (4, 4) the largest |c| is 3: 3e-6 is allowed, and 3e-9."""
    points = [(3.0, 0.0), (0.5, 0.0), (1.0 - 2.9e-6, 0.0), (1.0 - 3.1e-6, 0.0), (1.0 - 2e-9, 0.0)]
    wide = told(tmp_path, points)
    assert [wide.at(n) for n in (1, 2)] == [8.0, 8.0] and wide.asked == 5
    assert wide.final == pytest.approx((1.0 - 2.9e-6) ** 2 - 1.0) and wide.at(4) == wide.at(3)
    strict = told(tmp_path, points, tolerance=constrained.TOLERANCES[1])
    assert strict.at(4) == 8.0 and strict.final == pytest.approx((1.0 - 2e-9) ** 2 - 1.0, abs=1e-15)


def test_the_start_counts_before_a_better_feasible_query(tmp_path):
    progress = told(tmp_path, [(0.0, 0.0), (5.0, 5.0), (2.0, 0.0)])
    assert [progress.at(n) for n in (1, 2, 3)] == [31.0, 31.0, 3.0]


@pytest.mark.parametrize("method", CONSTRAINED)
def test_every_method_has_the_budget_in_distinct_points(method, monkeypatch):
    if RIVALS[method].missing:
        pytest.skip(f"{RIVALS[method].missing} not installed")
    monkeypatch.setattr(scbo, "CANDIDATES", 32)
    fake = Fake()
    problem = constrained.Told(fake, START)
    fake.asked.clear()
    queries, _ = runs._queries(Opened(problem, START, 2), Problem(SUITE.name, 2, 2, 4, 23))
    RIVALS[method].run(queries, START, 4)
    assert len(fake.asked) == len(set(fake.asked)) == len(problem.values) == 23
    assert np.abs(fake.asked).max() <= suites.SIDE
    if RIVALS[method].asks_start:
        assert fake.asked[0] == tuple(START)
    f, worst = np.array(problem.values).T
    if method not in ("cma", "random", "scbo"):
        assert f[worst <= 1e-6].min() < 1.2


def test_slow_rivals_run_where_constraints_are_few():
    problems = chosen(SUITE, (2, 5, 10), (), (11, 12))
    taken = [p for p in problems if RIVALS["scbo"].takes(p, SUITE.functions, (11, 12))]
    assert {p.constraints for p in taken} == {1, 3, 9, 10} and {p.dimension for p in taken} == {2, 5}
    assert {p.instance for p in taken} == {11} and len(taken) == 36 + 27
    assert not RIVALS["cobyla"].takes(Problem("bbob", 1, 5, 11, 100), SUITES["bbob"].functions, (11,))


@pytest.mark.parametrize(
    ("best", "batch", "better"),
    [
        ((1.0, 0.0), (0.5, 9.0), True),
        ((1.0, 0.0), (2.0, -9.0), False),
        ((1.0, 0.0), (0.0, 9.0), True),
        ((0.0, 2.0), (0.5, 0.0), False),
        ((0.0, 2.0), (0.0, 1.99), True),
        ((0.0, 2.0), (0.0, 1.999), False),
    ],
)
def test_scbo_prefers_less_violation_and_then_less_f(best, batch, better):
    assert scbo.succeeded(best, batch, 1e-3) is better
    f, c = torch.tensor([best[1], batch[1]]), torch.tensor([[best[0], -1.0], [batch[0], -1.0]])
    assert scbo.best_of(f, c) == int(batch < best)


def test_a_model_of_scbo_whose_fit_fails_keeps_its_first_hyperparameters(monkeypatch):
    X, Y = torch.rand(8, 2, dtype=torch.float64), torch.rand(8, 1, dtype=torch.float64)

    def fails(mll):
        mll.model.covar_module.outputscale = 7.0
        raise ModelFittingError("All attempts to fit the model have failed.")

    monkeypatch.setattr(scbo, "fit_gpytorch_mll", fails)
    model = scbo._fitted(X, Y)
    assert model.covar_module.outputscale.item() == pytest.approx(math.log(2.0))
    assert model.posterior(X[:1] + 0.1).mean.isfinite().all()


# Stages and tests.


def closed(p):
    """Holm's p-values as a closed test: the largest Bonferroni p-value of all subsets with a hypothesis."""
    subsets = [s for n in range(1, len(p) + 1) for s in itertools.combinations(range(len(p)), n)]
    return [max(min(1.0, len(s) * min(p[k] for k in s)) for s in subsets if i in s) for i in range(len(p))]


def test_holms_p_values_are_those_of_the_closed_test():
    for seed in range(5):
        p = np.random.default_rng(seed).uniform(0.0, 0.2, 6)
        assert holm(p) == pytest.approx(closed(p))


@pytest.mark.parametrize("level", [0.95, 0.99])
def test_intervals_and_one_sided_p_values_are_scipys(level):
    x, y = np.random.default_rng(1).normal(size=(2, 30)) - [[0.4], [0.0]]
    theirs, ours = stats.ttest_rel(x, y, alternative="less"), interval(x - y, level)
    both = stats.ttest_rel(x, y).confidence_interval(level)
    assert ours.p == pytest.approx(theirs.pvalue) and (ours.low, ours.high) == pytest.approx((both.low, both.high))


def record(method, gaps, function=1, d=5, instance=4, strict=None):
    """A run with these gaps after 5, 10 and 20 d queries."""
    counts = (5 * d, 10 * d, 20 * d)
    least, strictly = (tuple(zip(counts, row, strict=True)) for row in (gaps, strict or gaps))
    run = Run(method, Problem(SUITE.name, function, d, instance, 20 * d))
    return Record(run, 20 * d, gaps[-1], 1.0, 0.0, least, (), "", strictly)


def test_gaps_after_fewer_queries_are_those_of_then():
    one = record("cma", (3.0, 2.0, 1.0), strict=(30.0, 20.0, 10.0))
    assert [stages.after([one], k)[0].final for k in (4, 5, 10, 20)] == [math.inf, 3.0, 2.0, 1.0]
    assert [stages.after([one], k, strict=True)[0].final for k in (5, 20)] == [30.0, 10.0]
    assert Record.from_json(one.as_json()) == one


def made(shift):
    """Six functions of two instances; our gaps are below COBYLA's by ``shift`` decades, and COBYQA's by two."""
    rng = np.random.default_rng(0)
    base = {"cobyqa": 1.0, "cobyqa_wide": 0.0, "slsqp": 0.5, "cobyla": -2.0 + shift, "trust_region": -2.0}
    return [
        record(m, tuple(10.0 ** (level + rng.normal(0.0, 0.3, 3))), f, 5, i)
        for f in range(1, 55, 9)
        for i in (4, 5)
        for m, level in base.items()
    ]


def test_claims_are_six_tests_by_holms_method():
    records = made(0.3)
    found = stages.claims(records)
    assert [(t.factor, t.rival) for t in found] == [*itertools.product((10, 20), (BETTER_COBYQA, "cobyla", "slsqp"))]
    gaps = {(r.run.method, r.run.problem, n): math.log10(g) for r in records for n, g in r.least}
    problems = sorted({r.run.problem for r in records})
    for factor, rival, name in ((10, BETTER_COBYQA, "cobyqa_wide"), (20, "cobyla", "cobyla")):
        own, other = ([gaps[m, p, 5 * factor] for p in problems] for m in ("trust_region", name))
        (test,) = (t for t in found if (t.factor, t.rival) == (factor, rival))
        theirs = stats.ttest_rel(own, other).confidence_interval(1 - 0.05 / 6)
        assert (test.found.low, test.found.high) == pytest.approx((theirs.low, theirs.high))
        assert test.found.p == pytest.approx(stats.ttest_rel(own, other, alternative="less").pvalue)
    assert [t.p for t in found] == pytest.approx(closed([t.found.p for t in found]))


def test_claims_without_constraints_are_tests_against_two_rivals_after_each_number_of_queries():
    """The better radius is chosen for each number of queries; a budget of 20 d has no such claims."""

    def noiseless(method, level, budget, instance):
        rng, counts = np.random.default_rng(instance), [k * 5 for k in (2, 5, 10, 20, 50, 100)]
        least = tuple((n, 10.0 ** (level + rng.normal(0.0, 0.1))) for n in counts if n <= 5 * budget)
        run = Run(method, Problem("bbob", 1, 5, instance, 5 * budget))
        return Record(run, 5 * budget, least[-1][1], 1.0, 0.0, least, ())

    levels = {"trust_region": -3, "cobyqa": -1, "cobyqa_wide": -2, "newuoa": -4, "newuoa_wide": 0}
    of = {b: [noiseless(m, level, b, i) for m, level in levels.items() for i in range(4, 11)] for b in (20, 100)}
    found = stages.claims(of[100])
    assert [t.factor for t in found] == [k for k in (2, 5, 10, 20, 50, 100) for _ in range(2)]
    assert [t.rival for t in found] == [BETTER_COBYQA, BETTER_NEWUOA] * 6
    assert [round(t.found.mean) for t in found] == [-1, 1] * 6
    statuses = {v.claim: v.status for v in page.verdicts(of[100]) if "d queries" in v.claim}
    assert sorted(statuses.values()) == ["not reproduced"] * 6 + ["reproduced"] * 6
    assert not of[20][0].run.problem.stages and not [v for v in page.verdicts(of[20]) if "d queries" in v.claim]


@pytest.mark.parametrize(("shift", "status"), [(1.0, "reproduced"), (0.0, "undecided"), (-1.0, "not reproduced")])
def test_verdicts_follow_holms_p_values(shift, status):
    found = {v.claim: v for v in page.verdicts(made(shift))}
    of = {
        name: [v.status for c, v in found.items() if "d queries" in c and c.endswith(name)]
        for name in ("COBYLA", "SLSQP")
    }
    assert of == {"COBYLA": [status] * 2, "SLSQP": ["reproduced"] * 2}


def test_what_does_not_hold_is_listed():
    failing = {row[:2]: row[2].split(", ") for row in reversed(stages.tables(made(0.0))[-1].rows)}
    assert failing["10 d", "COBYLA"] == failing["20 d, 1e-9", "COBYLA"] == ["d = 5", "all"]
    assert "all" not in failing["10 d", "SLSQP"] and "d = 5" not in failing["10 d", "SLSQP"]


def test_fresh_instances_are_published_apart():
    names = [page.name_of(record("cma", (1.0, 1.0, 1.0), instance=i)) for i in (11, 16)]
    assert names == ["problems-bbob-constrained", "problems-bbob-constrained-fresh"]


# Integers.


@pytest.mark.parametrize("method", ["trust_region", "cma", "random"])
def test_methods_query_the_lattice(method):
    asked = []
    integers = np.array([True, True, False])
    space = Space([(0.0, 1.0), (0.0, 7.0), (-5.0, 5.0)], integrality=integers)
    problem = Opened(lambda x: asked.append(x) or float(np.sum(x**2)), np.array([1.0, 4.0, 0.0]), 0, space)
    RIVALS[method].run(runs._queries(problem, Problem("bbob-mixint", 1, 3, 4, 60))[0], problem.start, 4)
    points = np.array(asked)
    assert len(points) == 60 and np.all(points[:, integers] % 1 == 0) and len(np.unique(points[:, 2])) > 10
    assert np.all((points >= space.lb) & (points <= space.ub)) and set(points[:, 0]) == {0.0, 1.0}
    assert 0.0 in points[:, 1] and (method != "random" or 7.0 in points[:, 1])


@pytest.mark.parametrize(
    "method", [pytest.param("trust_region", marks=pytest.mark.slow), "cma", "random", "optuna_tpe"]
)
def test_tuning_problems_are_searched_by_decades_in_their_own_units(method, monkeypatch, tmp_path):
    if RIVALS[method].missing:
        pytest.skip("pip install optuna")
    (problem,) = chosen(SUITES["tuning"], [], ["boosting_diabetes"], [4])
    task, asked = BOXES["tuning"]["boosting_diabetes"].draw(4), []
    monkeypatch.setattr(type(task), "loss", lambda self, values: asked.append(values) or values["max_iter"] / 7)
    found = runs.run_one(Run(method, problem), tmp_path)
    assert len(asked) == found.asked == problem.queries == 120 and not found.failure
    if method != "cma":
        assert asked[0] == pytest.approx(named(task.variables, BOXES["tuning"]["boosting_diabetes"].start(4)))
    for variable in task.variables:
        values = [point[variable.name] for point in asked]
        assert all(variable.low <= value <= variable.high for value in values)
        assert all(isinstance(value, int) for value in values) == variable.whole
    assert found.final == min(point["max_iter"] for point in asked) / 7
    decades = np.log10([point["l2_regularization"] for point in asked])
    assert method != "random" or stats.kstest(decades, stats.uniform(-4, 6).cdf).pvalue > 0.01


@pytest.mark.parametrize(("worse", "status"), [(0.05, "reproduced"), (0.2, "not reproduced")])
def test_not_behind_is_at_most_a_tenth(worse, status):
    def one(method, gap, function, instance):
        return Record(Run(method, Problem("bbob-mixint", function, 5, instance, 100)), 100, gap, 1.0, 0.0, (), ())

    both = [(f, i, 10.0 ** (1 - 2 * (i % 2))) for f in (1, 2) for i in (4, 5)]
    records = [one("cma", 1.0, f, i) for f, i, _ in both]
    records += [one("trust_region", 10**worse * noise, f, i) for f, i, noise in both]
    (found,) = (v for v in page.verdicts(records) if "not behind" in v.claim)
    assert found.status == status and found.estimate == pytest.approx(worse)


# COCO.


def test_starts_constraints_and_minima_are_cocos(tmp_path, monkeypatch):
    cocoex = pytest.importorskip("cocoex")
    monkeypatch.chdir(tmp_path)
    for function, d in ((3, 2), (16, 3), (54, 5)):
        problem = Problem(SUITE.name, function, d, 4, 8)
        theirs = cocoex.Suite(SUITE.name, "instances: 4", f"dimensions: {d} function_indices: {function}")[0]
        assert problem.constraints == theirs.number_of_constraints
        theirs._best_parameter("print")
        best = np.loadtxt("._bbob_problem_best_parameter.txt")
        (tmp_path / "files").mkdir()
        with suites.opened(problem, "random", tmp_path / "files") as found:
            assert np.array_equal(found.start, theirs.initial_solution)
            f, c = found.fun(found.start)
            assert f == theirs(found.start) and np.max(c) <= 0.0 and len(c) == problem.constraints
            found.fun(best)
        assert found.progress.asked == 2 and abs(found.progress.final) < 1e-8 < found.progress.at(1)
        assert found.progress.at(1) == pytest.approx(f - theirs(best))
        (tmp_path / "files").rename(tmp_path / f"done{function}")


def test_integers_and_bounds_are_cocos(tmp_path):
    pytest.importorskip("cocoex")
    (tmp_path / "files").mkdir()
    with suites.opened(Problem("bbob-mixint", 8, 5, 4, 8), "random", tmp_path / "files") as found:
        assert found.space.integrality.tolist() == [True] * 4 + [False]
        assert found.space.ub.tolist() == [1.0, 3.0, 7.0, 15.0, 5.0] and found.start.tolist() == [
            1.0,
            2.0,
            4.0,
            8.0,
            0.0,
        ]
