"""A result drawn, in rows, saved and printed says what the run did, against NumPy's own account of the values."""

import copy
import math
import pickle
import sys

import matplotlib as mpl
import numpy as np
import pytest
import torch
from matplotlib import pyplot as plt
from matplotlib.figure import Figure
from scipy.optimize import OptimizeResult

from optimizers import RGF
from optimizers.core.result import Result, to_numpy

mpl.use("Agg")

NAN, INF = math.nan, math.inf
VALUES = [NAN, NAN, 3.0, 4.0, NAN, -1.0, -1.0, 2.0, NAN, -1.5]


def running_minimum(values):
    return np.fmin.accumulate(np.where(np.isnan(values), np.inf, values))


def made(values=VALUES, dtype=torch.float64, points=True, **entries):
    """What ``Optimizer.result`` gives of a run of these values, as a plain mapping."""
    y, best = (
        torch.tensor(values, dtype=torch.float64),
        torch.from_numpy(running_minimum(np.array(values, dtype=float))),
    )
    X = torch.linspace(-1, 1, 3 * len(values), dtype=torch.float64).reshape(-1, 3).to(dtype) / 3
    history = OptimizeResult(y=y, best_y=best) | ({"x": X} if points else {})
    return Result(
        {"x": X[-1] if values else None, "fun": float(best[-1]) if values else INF, "nfev": len(values), "nit": 5}
        | {"nfail": int(y.isnan().sum()), "status": 0, "success": True, "stop_reason": "target reached"}
        | {"message": "Target reached after 10 queries.", "history": OptimizeResult(history)}
        | entries
    )


def same(one, other):
    """Whether two results are equal in types, dtypes and every bit."""
    if isinstance(one, torch.Tensor):
        equal = one.dtype == other.dtype and one.shape == other.shape
        return equal and one.contiguous().numpy().tobytes() == other.contiguous().numpy().tobytes()
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()
    if isinstance(one, dict):
        return type(one) is type(other) and one.keys() == other.keys() and all(same(one[k], other[k]) for k in one)
    return type(one) is type(other) and (one == other or (math.isnan(one) and math.isnan(other)))


def test_entries_are_attributes_and_keys():
    result = made()
    assert isinstance(result, OptimizeResult)
    assert result.fun == result["fun"] == -1.5 and result.history.y.shape == (10,)
    for other in (pickle.loads(pickle.dumps(result)), copy.deepcopy(result)):
        assert type(other) is Result and same(other, result)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("arrays", [False, True])
def test_saved_results_come_back_bitwise(dtype, arrays, tmp_path):
    result = made(dtype=dtype, message="Ziel erreicht: ‖∇f‖ ≤ 10⁻³, 最小値", fun=NAN, spare=-INF)
    result = result.numpy() if arrays else result
    result.save(tmp_path / "run")
    loaded = Result.load(str(tmp_path / "run"))
    assert type(loaded) is Result and same(loaded, result)
    assert isinstance(loaded.history.x, np.ndarray if arrays else torch.Tensor)


@pytest.mark.parametrize("options", [{}, {"store_points": True}, {"track_best": False}])
def test_an_optimizer_s_result_comes_back(options, tmp_path):
    optimizer = RGF(torch.ones(3) / 2, max_queries=30, **options)
    while not optimizer.stopped:
        batch = optimizer.ask()
        optimizer.tell(batch, [NAN if x[0] > 0.6 else float(x @ x) for x in batch.points()])
    result = Result(optimizer.result())
    result.save(tmp_path / "run.npz")
    assert same(Result.load(tmp_path / "run.npz"), result) and result.nfev == 30 > result.nfail


def test_points_without_a_numpy_dtype_come_back(tmp_path):
    result = made(dtype=torch.bfloat16)
    result.save(tmp_path / "run")
    loaded = Result.load(tmp_path / "run")
    assert loaded.x.dtype == torch.bfloat16 and torch.equal(loaded.history.x, result.history.x)


def test_what_cannot_be_saved_is_named(tmp_path):
    with pytest.raises(TypeError, match="model is a function"):
        made(model=made).save(tmp_path / "run")
    assert not list(tmp_path.iterdir())


def test_a_damaged_file_is_named(tmp_path):
    path = tmp_path / "run.npz"
    made().save(path)
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(ValueError, match=r"run\.npz is not a saved Result"):
        Result.load(path)


def test_arrays_in_the_places_of_tensors():
    result = made()
    arrays = result.numpy()
    assert type(arrays) is Result and type(arrays.history) is OptimizeResult
    assert arrays.history.x.tolist() == result.history.x.tolist() and arrays.message == result.message
    arrays.x[:] = 7.0
    assert not (result.x == 7.0).any(), "arrays of their own"
    assert made([]).numpy().x is None
    attached = torch.tensor([1.5, -2.0], dtype=torch.bfloat16, requires_grad=True)
    assert to_numpy(attached).tolist() == [1.5, -2.0] and to_numpy(attached).dtype == np.float32


def line_data(ax, label):
    (line,) = (line for line in ax.lines if line.get_label() == label)
    return line.get_xdata(), line.get_ydata()


@pytest.mark.parametrize("arrays", [False, True])
def test_the_line_is_the_running_minimum_and_failures_are_marked(arrays):
    result = made().numpy() if arrays else made()
    ax = result.plot(Figure().add_subplot())
    x, y = line_data(ax, "best value")
    np.testing.assert_array_equal(x, np.arange(1, 11))
    np.testing.assert_array_equal(y, running_minimum(np.array(VALUES)))
    assert list(line_data(ax, "failed queries")[0]) == [1, 2, 5, 9]
    ax.figure.canvas.draw()
    assert np.isfinite(ax.get_ylim()).all() and ax.get_ylim()[0] < -1.5 < 3.0 < ax.get_ylim()[1] < 4.0
    assert ax.get_xlabel() == "queries" and ax.get_ylabel() == "best value"


@pytest.mark.parametrize("values", [[], [NAN, NAN], [1.0]])
def test_short_runs_and_those_without_a_value_are_drawn(values):
    ax = made(values).plot(Figure().add_subplot())
    ax.figure.canvas.draw()
    assert len(ax.lines) == (2 if NAN in values else 1)


def test_axes_given_are_drawn_on_and_others_are_made():
    plt.close("all")
    given = Figure().add_subplot()
    assert made().plot(given) is given and made().plot(ax=given) is given and not plt.get_fignums()
    first = made().plot()
    assert plt.gcf() is first.figure
    other = made().plot()
    assert plt.gcf() is first.figure and other.figure is not first.figure and len(plt.get_fignums()) == 2
    assert len(first.lines) == len(other.lines) == 2
    plt.close("all")


def test_rows():
    pd = pytest.importorskip("pandas")
    result = made()
    for frame in (result.to_dataframe(), result.numpy().to_dataframe()):
        assert list(frame.columns) == ["y", "best_y", "failed", "x0", "x1", "x2"]
        assert frame.index.name == "query" and list(frame.index) == list(range(1, 11))
        np.testing.assert_array_equal(frame.y, VALUES)
        np.testing.assert_array_equal(frame.best_y, running_minimum(np.array(VALUES)))
        assert frame.failed.dtype == bool and list(frame.failed) == [math.isnan(v) for v in VALUES]
        np.testing.assert_array_equal(frame[["x0", "x1", "x2"]], result.history.x.numpy())
    assert list(made(points=False).to_dataframe().columns) == ["y", "best_y", "failed"]
    assert made(dtype=torch.float32).to_dataframe().x0.dtype == np.float32
    assert isinstance(made([]).to_dataframe(), pd.DataFrame) and len(made([]).to_dataframe()) == 0


def test_rows_without_pandas(monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ImportError, match="pip install"):
        made().to_dataframe()


def test_five_lines():
    result = made(message="Ended.\nOn two lines.")
    assert (
        repr(result)
        == str(result)
        == (
            " message: Ended. On two lines.\n"
            " success: True, status: 0\n"
            "     fun: -1.5\n"
            "       x: [0.287356, 0.310345, 0.333333] (Tensor, float64, 3)\n"
            "    nfev: 10, nit: 5, nfail: 4"
        )
    )
    wide = Result(x=np.ones(10_000, dtype=np.float32), history=OptimizeResult(y=torch.zeros(10_000)))
    for shown in (wide, made([]), Result(), made(x=torch.tensor(1.0)), made(dtype=torch.bfloat16)):
        assert len(repr(shown).splitlines()) == 5 and max(map(len, repr(shown).splitlines())) < 90
    assert "[1, 1, 1, 1, 1, 1, ...] (ndarray, float32, 10000)" in repr(wide)
