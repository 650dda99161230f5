"""A description of integers, decades and names, taken by every method, by compare, SciPy and checkpoints."""

import math

import numpy as np
import pytest
import torch
from scipy import optimize

from optimizers import CandidateGenerator, Space, SurrogateTrustRegion, compare, minimize, scipy_method
from optimizers.core.bounds import Domain
from optimizers.registry import METHODS, method_class

BOUNDS = [(1e-4, 1e2), (1, 12), (-3.0, 3.0)]
SPACE = Space(BOUNDS, integrality=[0, 1, 0], log=[True, False, False], names=["C", "depth", "shift"])
X0 = [1.0, 4, 0.0]


def loss(point):
    return math.log10(point["C"] / 0.03) ** 2 + 0.1 * (point["depth"] - 7) ** 2 + (point["shift"] - 1.0) ** 2


def checked(point):
    """The loss of a point that has the names, types and bounds of the space."""
    assert list(point) == ["C", "depth", "shift"]
    assert isinstance(point["depth"], int) and isinstance(point["C"], float)
    assert 1e-4 <= point["C"] <= 1e2 and 1 <= point["depth"] <= 12
    return loss(point)


@pytest.mark.parametrize("name", [name for name in METHODS if method_class(name).takes_integers])
def test_methods_with_integers_lower_the_loss_at_whole_numbers(name):
    result = minimize(checked, X0, name, bounds=SPACE, max_queries=16 if name == "cobbo" else 25, progress=False)
    assert result.best_fun < loss(dict(zip(SPACE.names, X0, strict=True)))
    assert result.params == SPACE.named(result.x)
    assert "depth" in repr(result)


def test_the_default_method_finds_the_minimum():
    result = minimize(checked, X0, bounds=SPACE, max_queries=60, progress=False)
    assert result.params["depth"] == 7
    assert result.fun < 1e-6
    assert result.params["C"] == pytest.approx(0.03, rel=1e-2)


@pytest.mark.parametrize("name", [name for name in METHODS if not method_class(name).takes_integers])
def test_methods_of_gradients_refuse_integers(name):
    with pytest.raises(ValueError, match=r"takes no integers.*'trust_region'"):
        options = {"gradient_descent": {"jac": lambda x: x}, "accelerated_zo": {"strong_convexity": 1.0}}.get(name, {})
        integers = Space([(0, 3)] * 2, integrality=[1, 0])
        minimize(sum, [1.0, 2.0], name, bounds=integers, max_queries=50, progress=False, **options)


def test_decades_are_a_search_of_the_logarithm():
    """With ``log`` a run has the values of a run on z ↦ f(10^z), up to the rounding of the powers."""
    box = [(-4.0, 2.0), (-1.0, 1.0)]
    found = {}
    for name in ("trust_region", "rgf"):
        decades = minimize(
            lambda x: math.log10(x[0] / 0.03) ** 2 + (x[1] - 0.2) ** 2,
            [1.0, 0.0],
            name,
            bounds=Space([(1e-4, 1e2), (-1.0, 1.0)], log=[1, 0]),
            max_queries=30,
            progress=False,
        )
        plain = minimize(
            lambda z: (z[0] - math.log10(0.03)) ** 2 + (z[1] - 0.2) ** 2,
            [0.0, 0.0],
            name,
            bounds=box,
            max_queries=30,
            progress=False,
        )
        found[name] = decades.history.y[:12], plain.history.y[:12]
    for name, (decades, plain) in found.items():
        np.testing.assert_allclose(decades, plain, rtol=1e-6, atol=1e-9, err_msg=name)


def test_gradient_descent_in_decades_follows_the_chain_rule():
    domain = Domain.of(
        torch.tensor([1e-4, 0.0]),
        torch.tensor([1e2, 5.0]),
        rescale=True,
        space=Space([(1e-4, 1e2), (0, 5)], log=[1, 0]),
    )
    z = torch.tensor([3.0, 2.0], dtype=torch.float64)
    slopes = torch.autograd.functional.jacobian(domain.relaxed, z).diagonal()
    torch.testing.assert_close(domain.slopes(domain.relaxed(z)), slopes)


def test_coordinates_are_inverse_and_integers_have_cells_of_equal_width():
    space = Space([(0, 3), (1, 1000), (2, 5)], integrality=[1, 1, 0], log=[0, 1, 0])
    domain = Domain.of(torch.tensor(space.lb), torch.tensor(space.ub), rescale=True, space=space)
    x = torch.tensor([2.0, 31.0, 4.5], dtype=torch.float64)
    torch.testing.assert_close(domain.to_user(domain.to_search(x)), x)
    assert float(domain.search_upper[0]) == pytest.approx(7.5)  # four values, each a quarter of the width
    assert domain.to_user(domain.to_search(x) + 0.1)[0] == 2.0


def test_bounds_of_integers_are_the_whole_numbers_inside():
    space = Space(optimize.Bounds([0.5, -1.5], [3.2, 2.5]), integrality=[1, 0])
    assert space.lb.tolist() == [1.0, -1.5] and space.ub.tolist() == [3.0, 2.5]
    result = minimize(
        lambda x: float(x @ x), [2.6, 2.0], bounds=space, max_queries=20, progress=False, store_points=True
    )
    assert result.history.x[0].tolist() == [3.0, 2.0]
    assert result.x.tolist() == [1.0, pytest.approx(0.0, abs=1e-3)]


@pytest.mark.parametrize(
    ("bounds", "options", "message"),
    [
        ([("adam", "sgd")], {}, "categorical variables are not supported: run minimize once for each category"),
        ([{"if": "adam", "beta": (0, 1)}], {}, "conditional variables are not supported"),
        ([(0.2, 0.8)], {"integrality": 1}, r"variable 0 has no integer in its bounds \[0.2, 0.8\]"),
        ([(0, 1)], {"log": True}, "variable 0 has the lower bound 0.0; a log scale needs a positive one"),
        ([(0, 1)], {"integrality": 3}, "integrality must be 0 or 1"),
        ([(0, 1)] * 2, {"names": ["a", "a"]}, "names must be 2 different strings"),
        ([(0, 1)] * 2, {"integrality": [1, 0, 1]}, "one for each of 2 variables"),
    ],
)
def test_what_a_space_refuses(bounds, options, message):
    with pytest.raises(ValueError, match=message):
        Space(bounds, **options)


def test_a_prox_and_arguments_of_other_libraries_are_refused_with_advice():
    from optimizers import L1

    with pytest.raises(ValueError, match="prox cannot be combined"):
        minimize(sum, [1.0], bounds=Space([(0, 3)], integrality=1), prox=L1(1.0), max_queries=20)
    with pytest.raises(TypeError, match=r"pass bounds=Space\(bounds, integrality"):
        minimize(sum, [1.0], bounds=[(0, 3)], integrality=[1], max_queries=20)
    with pytest.raises(TypeError, match="evaluations are not pruned"):
        minimize(sum, [1.0], bounds=[(0, 3)], pruner="median", max_queries=20)


def test_scipy_and_ask_and_tell_are_the_same_run():
    result = minimize(loss, X0, bounds=SPACE, max_queries=30, progress=False)
    method = scipy_method("trust_region", max_queries=30)
    by_scipy = optimize.minimize(loss, X0, method=method, bounds=SPACE)
    np.testing.assert_array_equal(by_scipy.history.y, result.history.y)
    optimizer = SurrogateTrustRegion(X0, bounds=SPACE, max_queries=30)
    while not optimizer.stopped:
        batch = optimizer.ask()
        optimizer.tell(batch, [loss(SPACE.named(x)) for x in batch])
    np.testing.assert_array_equal(optimizer.result().history.y.numpy(), result.history.y)


def test_a_run_with_workers_and_a_checkpoint_continues_bitwise(tmp_path):
    call = {"bounds": SPACE, "progress": False, "max_queries": 30}
    whole = minimize(loss, X0, **call)
    call |= {"checkpoint": tmp_path / "run"}
    minimize(loss, X0, callback=lambda intermediate_result: intermediate_result.nfev >= 14, **call)
    again = minimize(loss, X0, **call)
    np.testing.assert_array_equal(again.history.y, whole.history.y)
    with pytest.raises(ValueError, match="bounds"):
        minimize(
            loss,
            X0,
            **(call | {"bounds": Space([(1e-4, 1e2), (1, 12), (-3.0, 3.0)], integrality=[0, 1, 0], names=SPACE.names)}),
        )
    beside = minimize(checked, X0, bounds=SPACE, max_queries=25, workers=3, progress=False, store_points=True)
    assert len(np.unique(beside.history.x, axis=0)) >= 24  # the center is evaluated twice at most


def test_compare_gives_all_methods_the_same_points():
    methods = ["trust_region", "cma", "random", "sobol"]
    found = compare(checked, bounds=SPACE, max_queries=20, methods=methods, seeds=2)
    assert set(found.methods) == set(methods)
    with pytest.raises(ValueError, match="'cobyqa' takes no integers"):
        compare(checked, bounds=SPACE, max_queries=40, methods=["cobyqa"], seeds=2)


def test_a_run_takes_a_history_of_whole_numbers_and_begins_without_x0():
    first = minimize(loss, X0, bounds=SPACE, max_queries=20, progress=False, store_points=True)
    history = (first.history.x, first.history.y)
    more = minimize(loss, None, bounds=SPACE, max_queries=20, history=history, progress=False, store_points=True)
    assert more.fun <= first.fun
    asked = {tuple(x) for x in np.vstack([first.history.x, more.history.x])}
    assert len(asked) >= 39  # the center is evaluated twice at most
    without = minimize(loss, None, bounds=SPACE, max_queries=40, progress=False, store_points=True)
    assert without.fun < 0.1
    with pytest.raises(ValueError, match="not whole for variables with integrality"):
        minimize(loss, None, bounds=SPACE, max_queries=20, history=([[1.0, 2.5, 0.0]], [1.0]), progress=False)


def test_a_point_may_be_given_by_names():
    begun = minimize(loss, X0, bounds=SPACE, max_queries=5, progress=False)
    named = {"depth": 4, "shift": 0.0, "C": 1.0}
    assert SPACE.point(named).tolist() == X0 and SPACE.named(SPACE.point(named)) == named
    again = minimize(loss, named, bounds=SPACE, max_queries=5, progress=False)
    assert np.array_equal(again.history.y, begun.history.y)
    with pytest.raises(ValueError, match="the variables have the names C, depth, shift; got values of C, size"):
        minimize(loss, {"C": 1.0, "size": 4}, bounds=SPACE, max_queries=5)
    with pytest.raises(ValueError, match="no names: pass names="):
        Space([(0, 1)]).point({"C": 1.0})


def test_a_botorch_loop_gets_whole_candidates():
    generator = CandidateGenerator("trust_region", X0, bounds=SPACE, max_queries=30, maximize=False)
    while not generator.stopped:
        candidates = generator.generate_candidates()
        assert torch.equal(candidates[:, 1], candidates[:, 1].round())
        generator.observe(candidates, torch.tensor([[loss(SPACE.named(x))] for x in candidates]))
    assert generator.optimizer.best_fun < 0.1
