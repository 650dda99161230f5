import io

import numpy as np
import pytest
import torch

from optimizers import RGF, minimize, run
from optimizers.core.options import option_names
from optimizers.minimize import ELSEWHERE
from optimizers.registry import METHODS, method_class
from optimizers.testing import quadratic, start


def numpy_quadratic(x):
    assert isinstance(x, np.ndarray)
    return float(np.sum((x - 1.0) ** 2))


def test_numpy_batched_and_plain_calls_give_one_run():
    plain = minimize(lambda x: ((x - 1.0) ** 2).sum(), start(), "rgf", max_queries=60)
    arrays = minimize(numpy_quadratic, start(), "rgf", max_queries=60, numpy=True)
    batched = minimize(lambda x: ((x - 1.0) ** 2).sum(-1, keepdim=True), start(), "rgf", max_queries=60, batched=True)
    for other in (arrays, batched):
        torch.testing.assert_close(torch.as_tensor(other.x), plain.x, rtol=1e-9, atol=1e-9)
    assert plain.nfev == arrays.nfev == batched.nfev == 60


def test_run_goes_on_after_an_exception_of_the_callback():
    opt = RGF(start(), max_queries=44, directions=10)

    def fails(intermediate_result):
        raise KeyError("mine")

    with pytest.raises(KeyError):
        run(opt, quadratic, callback=fails)
    assert opt.queries == 11
    result = run(opt, quadratic)
    assert torch.equal(result.x, minimize(quadratic, start(), "rgf", max_queries=44, directions=10).x)


def test_callbacks_see_the_run():
    seen = []
    minimize(
        quadratic,
        start(),
        "rgf",
        max_queries=33,
        directions=10,
        callback=lambda r: seen.append((r.nfev, r.fun, r.x.clone())),
    )
    assert [nfev for nfev, _, _ in seen] == [11, 22, 33]
    assert all(float(quadratic(x)) == fun for _, fun, x in seen)


def test_what_a_callback_does_to_its_result_is_not_the_runs():
    expected = minimize(quadratic, start(), "rgf", max_queries=33, directions=10)
    result = minimize(
        quadratic, start(), "rgf", max_queries=33, directions=10, callback=lambda r: (r.x.zero_(), None)[1]
    )
    assert torch.equal(result.x, expected.x) and result.fun == expected.fun


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize(
    ("stream", "progress", "shown"),
    [(Terminal(), True, True), (Terminal(), False, False), (io.StringIO(), "auto", False)],
)
def test_progress_bar_counts_queries_on_a_terminal(monkeypatch, stream, progress, shown):
    monkeypatch.setattr("sys.stderr", stream)
    minimize(quadratic, start(), "rgf", max_queries=33, progress=progress)
    assert ("33/33" in stream.getvalue()) == shown and (shown or stream.getvalue() == "")


def test_numpy_gradients():
    result = minimize(
        numpy_quadratic,
        start(),
        "gradient_descent",
        max_queries=200,
        numpy=True,
        jac=lambda x: 2.0 * (np.asarray(x) - 1.0),
    )
    assert result.fun < 1e-6


def test_the_methods_that_move_x0_itself_are_those_that_the_message_names():
    found = [name for name in METHODS if "in_place" in option_names(method_class(name))]
    assert ELSEWHERE["in_place"].endswith(" and ".join(map(repr, found)))


@pytest.mark.parametrize(
    ("arguments", "kind", "says"),
    [
        (
            {"on_failre": "raise"},
            TypeError,
            "minimize has no argument 'on_failre'; did you mean 'on_failure'",
        ),
        ({"calback": print}, TypeError, "did you mean 'callback'"),
        ({"methode": "rgf"}, TypeError, "did you mean 'method'"),
        ({"tol": 1e-3}, TypeError, "no argument 'tol': target and stagnation"),
        ({"options": {"maxiter": 3}}, TypeError, "no argument 'options': pass the method's options as"),
        ({"in_place": True}, TypeError, "no argument 'in_place': it is an option of the methods 'hiso' and 'decomfl'"),
        ({"directons": 3}, TypeError, "RGF has no option 'directons'; did you mean 'directions'"),
        ({"callback": 3}, TypeError, "callback must be callable"),
        (
            {"callback": lambda record, x: None},
            TypeError,
            r"called as callback\(intermediate_result\): missing a required argument: 'x', got callback\(record, x\)",
        ),
        ({"target": "low"}, TypeError, "target must be a number"),
        ({"method": "RGF"}, ValueError, "did you mean 'rgf'"),
        ({"method": "LeastSquares"}, ValueError, "did you mean 'least_squares_gradient'"),
    ],
)
def test_bad_arguments_name_what_was_meant(arguments, kind, says):
    calls = []

    def fun(x):
        calls.append(x)
        return quadratic(x)

    with pytest.raises(kind, match=says):
        minimize(fun, start(), **({"method": "rgf", "max_queries": 60} | arguments))
    assert not calls


@pytest.mark.parametrize("x0", [[0.5, 0.25], (0.5, 0.25), np.array([0.5, 0.25])])
def test_what_is_no_tensor_is_answered_by_arrays(x0):
    seen = set()

    def square(x):
        seen.add(type(x))
        return np.square(x).sum()

    result = minimize(square, x0, "rgf", max_queries=6)
    assert seen == {np.ndarray} and isinstance(result.x, np.ndarray) and isinstance(result.history.y, np.ndarray)
    tensors = minimize(lambda x: x.square().sum(), x0, "rgf", max_queries=6, numpy=False)
    assert isinstance(tensors.x, torch.Tensor) and np.array_equal(tensors.x, result.x)


def test_a_checkpoint_without_its_folder_is_said(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"checkpoint is .*nowhere.run.pt., whose folder does not exist"):
        minimize(lambda x: float(x @ x), np.ones(2), "rgf", max_queries=6, checkpoint=tmp_path / "nowhere" / "run.pt")
