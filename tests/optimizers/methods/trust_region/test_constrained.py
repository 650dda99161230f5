import os
import pickle
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from scipy.optimize import LinearConstraint, NonlinearConstraint
from scipy.optimize import minimize as scipy_minimize

from optimizers import (
    L1,
    CheapConstraint,
    ReturnedConstraints,
    SurrogateTrustRegion,
    compare,
    minimize,
    scipy_method,
)
from surrogates.pinned.engine import PinnedData
from surrogates.pinned.prior import Hyperparameters

BOX = [(-1.5, 1.5)] * 2
DISK = NonlinearConstraint(lambda x: x @ x, -np.inf, 1.0)


def rosenbrock(x):
    return (1.0 - x[0]) ** 2 + 100.0 * (x[1] - x[0] ** 2) ** 2


def hypersphere(x):
    return float(((x - 1.0) ** 2).sum())


CASES = {
    "disk": ([0.0, 0.0], DISK),
    "from outside": ([1.4, -1.4], DISK),
    "linear": ([0.0, 0.0], LinearConstraint([[1.0, 1.0]], -np.inf, 1.0)),
    "cheap": ([0.0, 0.0], CheapConstraint(DISK)),
    "equality": ([0.5, 0.5], {"type": "eq", "fun": lambda x: x @ x - 1.0}),
    "linear equality": ([0.5, 0.5], LinearConstraint([[1.0, 2.0]], 1.0, 1.0)),
    "two-sided": ([0.5, 0.5], NonlinearConstraint(lambda x: [x @ x, x[0]], [0.5, 0.2], [1.0, 0.6])),
    "redundant": ([0.0, 0.0], [DISK, DISK, NonlinearConstraint(lambda x: 2.0 * (x @ x), -np.inf, 2.0)]),
    "one point": ([0.0, 0.0], [LinearConstraint([[1.0, 1.0], [1.0, -1.0]], [1.0, 0.2], [1.0, 0.2]), DISK]),
}


@pytest.mark.parametrize("name", CASES)
def test_the_minimum_is_found_with_its_multipliers(name):
    x0, constraints = CASES[name]
    result = minimize(rosenbrock, x0, max_queries=50, bounds=BOX, constraints=constraints)
    plain = constraints.constraint if isinstance(constraints, CheapConstraint) else constraints
    ends = [
        scipy_minimize(rosenbrock, start, bounds=BOX, constraints=plain, method="SLSQP", tol=1e-14)
        for start in np.random.default_rng(0).uniform(-1.0, 1.0, (8, 2))
    ]
    known = min((end for end in ends if end.success), key=lambda end: end.fun)
    assert result.success and result.fun == pytest.approx(known.fun, rel=1e-3, abs=1e-6)
    assert result.constr_violation == result.maxcv < 3e-6
    assert f"maxcv: {result.maxcv:.3g}, active: {result.active.sum()} of {len(result.active)} constraints" in str(
        result
    )
    assert np.all(np.abs(result.x) <= 1.5)
    if name in ("redundant", "one point"):
        return  # multipliers are not unique
    x = known.x
    slope = np.array([-2 * (1 - x[0]) - 400 * x[0] * (x[1] - x[0] ** 2), 200 * (x[1] - x[0] ** 2)])
    rows = {
        "linear": [[1.0, 1.0]],
        "linear equality": [[1.0, 2.0]],
        "two-sided": [2 * x, [1.0, 0.0]],
    }
    multipliers = -np.linalg.lstsq(np.array(rows.get(name, [2 * x])).T, slope)[0]
    assert result.multipliers == pytest.approx(multipliers, rel=0.03)
    assert result.active.all()


@pytest.mark.parametrize("scale", [1e-7, pytest.param(1e6, marks=pytest.mark.slow)])
def test_units_of_a_constraint_change_nothing(scale):
    plain = minimize(rosenbrock, [0.0, 0.0], max_queries=40, bounds=BOX, constraints=DISK)
    scaled = NonlinearConstraint(lambda x: scale * (x @ x), -np.inf, scale)
    other = minimize(rosenbrock, [0.0, 0.0], max_queries=40, bounds=BOX, constraints=scaled)
    assert other.history.y[:12] == pytest.approx(plain.history.y[:12], rel=1e-3)
    assert other.fun == pytest.approx(plain.fun, rel=1e-3)
    assert other.multipliers * scale == pytest.approx(plain.multipliers, rel=1e-2)


def test_f_and_all_constraints_at_a_point_are_one_query():
    asked = {"f": [], "c": [], "known": []}

    def seen(name, fun):
        def called(x):
            asked[name].append(x.tobytes())
            return fun(x)

        return called

    constraints = [
        NonlinearConstraint(seen("c", lambda x: [x @ x, x[0]]), -np.inf, [1.0, 0.7]),
        CheapConstraint({"type": "ineq", "fun": seen("known", lambda x: 1.2 - x.sum())}),
    ]
    result = minimize(seen("f", rosenbrock), [0.0, 0.0], max_queries=30, bounds=BOX, constraints=constraints)
    assert asked["f"] == asked["c"] and len(asked["f"]) == result.nfev == 30
    assert len(asked["known"]) > 30
    assert result.constr.shape == (3,) and result.constr[2] == pytest.approx(1.2 - result.x.sum())


def test_without_a_feasible_query_the_least_infeasible_one_is_no_success():
    apart = [DISK, LinearConstraint([[1.0, 0.0]], 1.2, np.inf)]
    result = minimize(hypersphere, [0.0, 0.0], max_queries=60, bounds=BOX, constraints=apart)
    assert not result.success and "No query is feasible" in result.message
    assert result.maxcv == pytest.approx(max(result.x @ result.x - 1.0, 1.2 - result.x[0]))
    assert result.fun == pytest.approx(hypersphere(result.x))
    assert np.all(np.isinf(result.history.best_y)) and result.maxcv < 0.3
    assert result.history.maxcv.min() <= result.maxcv


@pytest.mark.parametrize("known", ["linear", "cheap", "evaluated"])
def test_constraints_that_are_kept_are_never_violated_where_f_is_evaluated(known):
    def fun(x):
        assert x.sum() <= 1.0 + 1e-9
        return rosenbrock(x)

    constraint = {
        "linear": LinearConstraint([[1.0, 1.0]], -np.inf, 1.0, keep_feasible=True),
        "cheap": CheapConstraint(NonlinearConstraint(lambda x: x.sum(), -np.inf, 1.0, keep_feasible=True)),
        "evaluated": NonlinearConstraint(lambda x: x.sum(), -np.inf, 1.0, keep_feasible=True),
    }[known]
    result = minimize(fun, [0.0, 0.0], max_queries=50, bounds=BOX, constraints=constraint, on_failure="skip")
    assert result.fun == pytest.approx(0.14560702, rel=1e-4)
    assert (known == "evaluated" or result.nfail == 0) and result.maxcv <= 1e-9


@pytest.mark.parametrize("bounds", [1.0, pytest.param([1.0], marks=pytest.mark.slow), [1.0, 2.0]], ids=str)
def test_a_known_constraint_is_kept_beside_evaluated_ones_of_any_number_of_components(bounds):
    """An evaluated constraint with scalar bounds has an unknown number of components until f is evaluated."""
    evaluated = NonlinearConstraint(lambda x: np.full(np.size(bounds), x @ x), -np.inf, bounds)
    kept = LinearConstraint([[1.0, 1.0]], -np.inf, 0.9, keep_feasible=True)
    sums = []

    def fun(x):
        sums.append(x.sum())
        return hypersphere(x)

    result = minimize(fun, [0.0, 0.0], max_queries=40, bounds=BOX, constraints=[evaluated, DISK, kept])
    assert max(sums) <= 0.9 + 1e-9 and result.x.sum() == pytest.approx(0.9, abs=1e-6)


@pytest.mark.slow
def test_rounding_at_an_evaluated_constraint_that_is_kept_costs_few_queries():
    """At a violation of 1e-15 f is not evaluated: a step to the bound itself would fail every other time."""
    constraint = NonlinearConstraint(lambda x: x.sum(), -np.inf, 1.0, keep_feasible=True)
    for i in range(6):
        result = minimize(
            rosenbrock, [1e-9 * i, 0.0], max_queries=70, bounds=BOX, constraints=constraint, on_failure="skip"
        )
        assert result.fun == pytest.approx(0.14560702, rel=1e-6) and result.nfail < 20


def test_a_constraint_that_is_kept_may_have_any_unit():
    """x₀ + x₁ ≤ 1 in units in which its numbers are 1e-14: a run queries no point behind it."""
    queries = []

    def fun(x):
        queries.append(x.sum())
        return rosenbrock(x)

    limit = LinearConstraint([[1e-14, 1e-14]], -np.inf, 1e-14, keep_feasible=True)
    result = minimize(fun, [0.0, 0.0], max_queries=70, bounds=BOX, constraints=limit)
    assert max(queries) <= 1.0 + 1e-9 and result.fun == pytest.approx(0.14560702, rel=1e-4)


def test_a_query_that_fails_in_part_teaches_the_models_the_rest():
    def both(x):
        outside = x @ x > 1.0
        return np.nan if outside else hypersphere(x), [x @ x]

    def hidden(x):
        outside = x @ x > 1.0
        return np.nan if outside else hypersphere(x), [np.nan if outside else x @ x]

    limits = ReturnedConstraints([-np.inf], [1.0])
    found = [
        minimize(fun, [-0.5, 0.3], max_queries=30, bounds=BOX, constraints=limits).fun - (2.0**0.5 - 1.0) ** 2
        for fun in (both, hidden)
    ]
    assert 0.0 <= found[0] < 1e-7 and found[0] < 0.1 * found[1]


def test_noise_is_averaged_in_the_constraints_too():
    rng = np.random.default_rng(0)

    def fun(x):
        return hypersphere(x) + 0.01 * rng.standard_normal(), [x.sum() + 0.01 * rng.standard_normal()]

    d = 4
    result = minimize(
        fun, np.zeros(d), max_queries=150, bounds=[(-2, 2)] * d, constraints=ReturnedConstraints([-np.inf], [2.0])
    )
    assert result.x == pytest.approx(np.full(d, 0.5), abs=0.1)


@pytest.mark.slow
def test_the_result_of_a_noisy_run_is_nearer_to_the_truth_than_its_luckiest_query():
    errors, outside, scores = [], [], []
    for seed in range(6):
        rng = np.random.default_rng(seed)

        def fun(x, rng=rng):
            return hypersphere(x) + 0.05 * rng.standard_normal(), [x.sum() + 0.05 * rng.standard_normal()]

        limits = ReturnedConstraints([-np.inf], [1.0])
        result = minimize(fun, np.zeros(2), max_queries=60, bounds=[(-2, 2)] * 2, constraints=limits)
        errors.append([np.linalg.norm(x - 0.5) for x in (result.x, result.best_x)])
        outside.append([x.sum() - 1.0 for x in (result.x, result.best_x)])
        scores.append((result.fun - hypersphere(result.x)) / result.fun_std)
        assert result.success and 0.0 < result.fun_std < 0.05 and result.maxcv <= 1e-6
        assert result.constr[0] == pytest.approx(result.x.sum(), abs=0.05)
    (error, lucky), (mean_outside, lucky_outside) = np.mean(errors, axis=0), np.mean(outside, axis=0)
    assert error < 0.8 * lucky and mean_outside < 0.5 * lucky_outside
    assert np.sqrt(np.mean(np.square(scores))) < 2.0


@pytest.mark.slow
def test_own_hyperparameters_are_those_of_each_process_alone_and_help_where_smoothness_differs():
    """A wavy constraint beside a plane f: a kernel that both share is too smooth for it."""

    def both(x):
        return x.sum(), [np.sin(4.0 * x[0]) + np.cos(4.0 * x[1]) - x.sum()]

    limits = ReturnedConstraints([-np.inf], [0.0])
    options = {"max_queries": 40, "bounds": [(-2.0, 2.0)] * 2, "constraints": limits}

    def run(x0, state=None, **other):
        optimizer = SurrogateTrustRegion(x0, **options, **other)
        if state is not None:
            optimizer.load_state_dict(state)
        while not optimizer.stopped:
            batch = optimizer.ask()
            optimizer.tell(batch, [both(x.numpy()) for x in batch.points()])
            if state is None and optimizer.queries == 16:
                states.append(optimizer.state_dict())
        return optimizer

    states = []
    optimizer = run([1.0, 1.0], own_hyperparameters=True)
    resumed = run([1.0, 1.0], states[0], own_hyperparameters=True)
    assert torch.equal(resumed.state.data.values, optimizer.state.data.values)
    early = SurrogateTrustRegion([1.0, 1.0], **options, own_hyperparameters=True)
    early.load_state_dict(states[0])  # later, some queries are too near to each other to tell hyper-parameters apart
    state, models = early.state.copied(), early._models
    center = models.best(state)
    state.fit.fitted_at = 0  # the hyper-parameters are fitted to this model's queries
    model = models.model(state, center)
    c, own = state.constraints.values, Hyperparameters(*state.constraints.own[0].tolist())
    alone = PinnedData.of(model.region.pinned.data.U, (c[model.numbers] - c[center])[:, 0])
    assert alone.loss(own) < alone.loss(model.region.pinned.params) - 3.0
    for s in 0.1 * np.random.default_rng(0).standard_normal((5, 2)):
        mean = alone.model(own).mean(model.region.map[:, :-1] @ torch.from_numpy(s))
        assert model.composite.expected_at(s)[1] == pytest.approx([float(c[center]) + mean], abs=1e-8)

    starts = np.random.default_rng(0).uniform(0.0, 2.0, (6, 2))
    shared, each = ([run(x0, own_hyperparameters=own).result().fun for x0 in starts] for own in (False, True))
    assert np.mean(each) < np.mean(shared) - 0.2


@pytest.mark.slow
def test_a_probability_of_feasibility_keeps_noisy_steps_inside():
    def outside(probability, seed):
        violations, rng = [], np.random.default_rng(seed)

        def fun(x):
            violations.append(x.sum() - 1.0)
            return hypersphere(x), [x.sum() + 0.05 * rng.standard_normal()]

        limits = ReturnedConstraints([-np.inf], [1.0])
        options = {"constraints": limits, "feasibility_probability": probability, "max_queries": 70}
        minimize(fun, np.zeros(3), bounds=[(-2, 2)] * 3, **options)
        return np.mean(np.array(violations[30:]) > 0.01)

    plain, kept = ([outside(probability, seed) for seed in range(6)] for probability in (None, 0.99))
    assert np.mean(kept) < 0.75 * np.mean(plain)


def test_a_run_is_resumed_bitwise_from_its_state_and_from_its_journal(tmp_path):
    constraints = [DISK, LinearConstraint([[1.0, 1.0]], -1.0, 1.2)]
    options = {"bounds": BOX, "constraints": constraints}
    whole = minimize(rosenbrock, [0.0, 0.0], max_queries=36, **options)
    for lost in (False, True):
        path = tmp_path / f"run-{lost}"
        minimize(rosenbrock, [0.0, 0.0], max_queries=18, checkpoint=path, **options)
        if lost:
            os.remove(path)
        else:
            path.with_name(path.name + ".journal").write_text("")
        resumed = minimize(rosenbrock, [0.0, 0.0], max_queries=36, checkpoint=path, **options)
        assert np.array_equal(resumed.history.y, whole.history.y)
        assert np.array_equal(resumed.history.maxcv, whole.history.maxcv)
        assert np.array_equal(resumed.multipliers, whole.multipliers)


def test_an_executor_gives_the_same_run_and_workers_reach_the_minimum():
    alone = minimize(rosenbrock, [0.0, 0.0], max_queries=30, bounds=BOX, constraints=DISK)
    with ThreadPoolExecutor(2) as executor:
        sent = minimize(rosenbrock, [0.0, 0.0], max_queries=30, bounds=BOX, constraints=DISK, executor=executor)
    assert np.array_equal(sent.history.y, alone.history.y)
    several = minimize(hypersphere, [0.0, 0.0], max_queries=60, bounds=BOX, constraints=DISK, workers=3)
    assert several.fun == pytest.approx((2.0**0.5 - 1.0) ** 2, abs=1e-4) and several.maxcv < 1e-5


def test_ask_and_tell_take_rows_in_any_order():
    limits = ReturnedConstraints([-np.inf], [1.0])
    optimizer = SurrogateTrustRegion([0.0, 0.0], max_queries=40, bounds=BOX, constraints=limits)
    while not optimizer.stopped:
        batch = optimizer.ask()
        for i in reversed(range(len(batch))):
            x = batch[i].numpy()
            optimizer.tell(batch, [(hypersphere(x), x @ x)], which=[i])
    assert optimizer.result().fun == pytest.approx((2.0**0.5 - 1.0) ** 2, abs=1e-6)


def test_scipy_runs_it_with_its_constraints_and_args():
    result = scipy_minimize(
        lambda x, center: float(((x - center) ** 2).sum()),
        [0.0, 0.0],
        args=(2.0,),
        constraints=[NonlinearConstraint(lambda x: x[0], -np.inf, 1.0), LinearConstraint([[1.0, 1.0]], -np.inf, 1.5)],
        method=scipy_method(),
        options={"maxfev": 60},
    )
    assert result.x == pytest.approx([0.75, 0.75], abs=1e-3) and result.maxcv < 1e-6


def test_a_comparison_counts_points_and_takes_the_best_feasible_value():
    asked = []

    def fun(x):
        asked.append(tuple(x))
        return hypersphere(x)

    methods = ["trust_region", "cobyqa", "cobyla", "slsqp", "random"]
    found = compare(fun, bounds=BOX, max_queries=30, seeds=2, numpy=True, constraints=DISK, methods=methods)
    for seed in range(2):
        runs = [[r for r in found.rows if r["method"] == name and r["seed"] == seed] for name in methods]
        assert all(rows[-1]["value"] >= (2.0**0.5 - 1.0) ** 2 - 1e-5 for rows in runs)
        assert all(rows[-1]["value"] < 0.2 for rows in runs[:4])
    assert len(asked) <= 2 * 30 * len(methods)
    with pytest.raises(ValueError, match="'rgf' takes no constraints"):
        compare(fun, bounds=BOX, max_queries=30, seeds=2, constraints=DISK, methods=["rgf"])


def test_what_cannot_be_is_refused():
    def run(**options):
        return minimize(rosenbrock, [0.0, 0.0], max_queries=40, **options)

    with pytest.raises(ValueError, match="RGF takes no constraints"):
        run(method="rgf", constraints=DISK)
    with pytest.raises(ValueError, match="constraints cannot be combined with a prox"):
        run(prox=L1(0.1), constraints=DISK)
    with pytest.raises(ValueError, match="x0 violates a constraint with keep_feasible"):
        run(constraints=LinearConstraint([[1.0, 1.0]], 1.0, 2.0, keep_feasible=True))
    with pytest.raises(ValueError, match="gave 2 values, but has bounds for 3"):
        run(constraints=NonlinearConstraint(lambda x: [1.0, 2.0], [0.0, 0.0, 0.0], 1.0))
    with pytest.raises(ValueError, match="feasibility_probability must be"):
        run(constraints=DISK, feasibility_probability=0.3)


def test_fixed_variables_and_narrow_dtypes_work():
    x0 = torch.tensor([0.0, 0.0, 0.5])
    limits = NonlinearConstraint(lambda x: (x**2).sum(), -np.inf, 1.25)
    result = minimize(lambda x: rosenbrock(x) + x[2], x0, max_queries=70, bounds=[*BOX, (0.5, 0.5)], constraints=limits)
    assert result.x.dtype == torch.float32 and float(result.x[2]) == 0.5
    assert result.fun == pytest.approx(0.0456748 + 0.5, abs=1e-4)


def test_an_objective_with_constraints_is_picklable():
    from optimizers.core.constraints import ConstrainedObjective, parse_constraints

    constraint = {"type": "ineq", "fun": np.sum, "args": ()}
    objective = pickle.loads(pickle.dumps(ConstrainedObjective(np.max, parse_constraints(constraint))))
    assert objective(np.array([1.0, 2.0])) == [[2.0, [3.0]]]
