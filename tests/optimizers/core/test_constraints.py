import math

import numpy as np
import pytest
import torch
from scipy.optimize import LinearConstraint, NonlinearConstraint
from scipy.sparse import csr_array

from optimizers.core.constraint_set import ConstraintSet
from optimizers.core.constraints import (
    CheapConstraint,
    ConstrainedObjective,
    ReturnedConstraints,
    parse_constraints,
)
from optimizers.core.feasibility import Feasibility

CIRCLE = NonlinearConstraint(lambda x: [x @ x, x[0]], [0.5, -np.inf], [1.0, 0.6])
X0 = np.array([0.5, 2.0])


def constraint_set(*given):
    return ConstraintSet(parse_constraints(list(given)), X0)


@pytest.mark.parametrize("unit", [1e-7, 1.0, 1e5])
def test_differences_of_a_cheap_constraint_are_as_exact_in_any_unit(unit):
    cheap = CheapConstraint(NonlinearConstraint(lambda x: np.sin(x / unit).sum(), -1.0, 1.0))
    known = ConstraintSet(parse_constraints(cheap), X0 * unit)
    x = np.array([0.3, 1e-9])
    slopes = known.known_jacobian(x * unit, np.full(2, unit), np.full(2, np.inf)) * unit
    assert slopes == pytest.approx(np.cos(x)[None], rel=1e-6)


def test_rows_are_at_most_0_where_the_constraints_hold():
    known = constraint_set(CIRCLE, LinearConstraint(csr_array([[1.0, 1.0]]), 1.0, 1.0))
    sides = known.sides((2,))
    for x in np.random.default_rng(0).standard_normal((50, 2)):
        c = np.array([x @ x, x[0], x.sum()])
        holds = [0.5 <= c[0] <= 1.0, c[1] <= 0.6, c[2] == 1.0]
        rows, violations = sides.rows(c), sides.violations(c)
        assert len(rows) == 5
        assert (violations == 0.0).tolist() == holds
        worst = [max(rows[sides.columns == j].max(), 0.0) for j in range(3)]
        assert violations == pytest.approx(worst)


def test_known_constraints_have_values_and_derivatives():
    curved = {"type": "ineq", "fun": lambda x, a: a * x[0] * x[1] ** 2, "args": (3.0,)}
    known = constraint_set(LinearConstraint([[1.0, -2.0]], 0.0, 1.0), CheapConstraint(curved), CIRCLE)
    assert known.known_values(X0[None])[0] == pytest.approx([-3.5, 6.0])
    jacobian = known.known_jacobian(X0, np.ones(2), np.array([0.5, np.inf]))
    assert jacobian == pytest.approx(np.array([[1.0, -2.0], [12.0, 6.0]]), rel=1e-6)
    assert known.order((2,)).tolist() == [2, 3, 0, 1]


@pytest.mark.parametrize(
    "value",
    [
        [1.0, [2.0, 3.0], [4.0]],
        (1.0, np.array([2.0, 3.0]), 4.0),
        [1.0, torch.tensor([2.0, 3.0]), torch.tensor(4.0)],
    ],
)
def test_a_row_is_f_and_the_values_of_each_constraint(value):
    known = constraint_set(CIRCLE, {"type": "eq", "fun": sum})
    rows, sizes = known.parse([value], 1, None)
    assert rows.tolist() == [[1.0, 2.0, 3.0, 4.0]] and sizes == (2, 1)
    flat, _ = known.parse([[1.0, 2.0, math.inf, 4.0], math.nan], 2, sizes)
    assert torch.equal(torch.isnan(flat), torch.tensor([[False, False, True, False], [True] * 4]))
    alone, sizes = constraint_set({"type": "eq", "fun": sum}).parse([(1.0, [5.0, 6.0, 7.0])], 1, None)
    assert alone.tolist() == [[1.0, 5.0, 6.0, 7.0]] and sizes == (3,)


def test_rows_of_another_form_are_refused():
    known = constraint_set(CIRCLE, {"type": "eq", "fun": sum})
    for values in ([[1.0, 2.0, 3.0, 4.0, 5.0]], [3.0], [[1.0, "a", 2.0]], [[1.0, [2.0], [3.0]]]):
        with pytest.raises(ValueError, match=r"constraint|values"):
            known.parse(values, 1, None)
    with pytest.raises(ValueError, match="earlier queries gave"):
        known.parse([[1.0, [1.0, 2.0], [3.0, 4.0]]], 1, (2, 1))


@pytest.mark.parametrize(
    ("given", "error", "words"),
    [
        (3, TypeError, "got int"),
        (NonlinearConstraint(sum, 2.0, 1.0), ValueError, "lb <= ub"),
        (NonlinearConstraint(sum, np.nan, 1.0), ValueError, "not NaN"),
        ({"type": "less", "fun": sum}, ValueError, "'eq' or 'ineq'"),
        ({"type": "eq"}, TypeError, "callable"),
        ([ReturnedConstraints(0, 1), ReturnedConstraints(0, 1)], ValueError, "more than one"),
    ],
)
def test_bad_constraints_are_refused(given, error, words):
    with pytest.raises(error, match=words):
        parse_constraints(given)


def test_f_is_not_evaluated_where_a_constraint_that_is_kept_is_violated():
    asked = []

    def fun(x):
        asked.append(x)
        return x.sum(-1)

    kept = parse_constraints(NonlinearConstraint(lambda x: x @ x, -np.inf, 1.0, keep_feasible=True))
    objective = ConstrainedObjective(fun, kept)
    (row,) = objective(np.array([3.0, 0.0]))
    assert math.isnan(row[0]) and row[1] == [9.0] and not asked
    assert objective(np.array([0.5, 0.0])) == [[0.5, [0.25]]]
    both = ConstrainedObjective(fun, kept, batched=True)(np.array([[3.0, 0.0], [0.5, 0.0]]))
    assert math.isnan(both[0][0]) and both[1] == [0.5, [0.25]]


@pytest.mark.parametrize("scale", [1e-9, 1.0, 1e9])
def test_feasibility_does_not_depend_on_the_units_of_a_constraint(scale):
    known = constraint_set(ReturnedConstraints([-np.inf], [0.0]))
    rows = [(5.0, [4.0 * scale]), (1.0, [3e-6 * scale]), (2.0, [5e-6 * scale]), (0.0, [math.nan])]
    points, places = torch.zeros(4, 2, dtype=torch.float64), [(0, i) for i in range(4)]
    _, totals, found = Feasibility().told(known, rows, points, places, 0, 1e-6)
    assert totals[:3].tolist() == [math.inf, 1.0, math.inf] and math.isnan(float(totals[3]))
    assert found.best == (1.0, 0, 1) and found.best_c.tolist() == [3e-6 * scale]
    assert found.violations[:3] == (4.0 * scale, 3e-6 * scale, 5e-6 * scale) and math.isnan(found.violations[3])
