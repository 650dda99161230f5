import pytest
import torch

from surrogates.kernels.stationary import RadialProfile
from surrogates.linalg.cholesky import NotPositiveDefiniteError
from surrogates.window import nearest_search, nearest_window, window_kernel
from surrogates.window.nearest_window import NearestWindow
from surrogates.window.trajectory import Trajectory
from tests.surrogates.window.uncompiled import uncompiled

MATERN = RadialProfile("matern52")
compiled = pytest.mark.skipif(nearest_window.replace_rows is None, reason="numba is not installed")


@pytest.fixture(params=["compiled", "torch"])
def path(request, monkeypatch):
    if request.param == "torch":
        uncompiled(monkeypatch)
        monkeypatch.setattr(nearest_window, "replace_rows", None)
        monkeypatch.setattr(window_kernel, "numbers_of", None)
    elif nearest_window.replace_rows is None:
        pytest.skip("numba is not installed")


def history(n, d, *, dtype=torch.float64, noise=False, seed=0, scale=0.1):
    g = torch.Generator().manual_seed(seed)
    trajectory = Trajectory(d, dtype=dtype)
    X = (scale * torch.randn(n, d, generator=g, dtype=dtype)).cumsum(0)
    s2 = torch.rand(n, generator=g, dtype=dtype) * 0.01 + 1e-4 if noise else None
    trajectory.append(X, torch.randn(n, generator=g, dtype=dtype), s2)
    return trajectory, g


def distances(X, weights):
    difference = X.double().unsqueeze(1) - X.double().unsqueeze(0)
    return (difference.square() * weights).sum(-1)


def check(window, x, weights, outputscale, noise, tolerance=1e-13):
    trajectory = window.trajectory
    k = min(window.size, len(trajectory))
    metric = torch.as_tensor(weights, dtype=torch.float64)
    expected = trajectory.nearest(x, k, None if metric.ndim == 0 else metric)
    assert len(window) == k
    assert sorted(window.indices.tolist()) == sorted(expected.tolist())
    assert torch.equal(window.X, trajectory.X[window.indices])
    assert window.X.is_contiguous()
    assert torch.equal(window.y, trajectory.y[window.indices])
    D = distances(window.X, metric)
    assert torch.allclose(window.squared_distances, D, rtol=1e-12, atol=1e-300)
    s2 = noise + (0 if trajectory.noise is None else trajectory.noise[window.indices].double())
    A = outputscale * MATERN.h(D) + s2 * torch.eye(k, dtype=torch.float64)
    assert torch.allclose(window.noise, s2 * torch.ones(k, dtype=torch.float64), rtol=1e-15)
    assert torch.allclose(window.covariance, A, rtol=1e-11, atol=0)
    assert torch.equal(window.L, window.L.tril())
    assert float((window.L @ window.L.mT - A).abs().max()) < tolerance * outputscale


@pytest.mark.parametrize("weights", [0.7, [0.2, 1.0, 3.0]])
@pytest.mark.parametrize("noise", [False, True])
def test_moves_over_a_growing_history(path, weights, noise):
    trajectory, g = history(8, 3, noise=noise)
    metric = torch.as_tensor(weights, dtype=torch.float64)
    window = NearestWindow(trajectory, 20, precision=metric, profile=MATERN, outputscale=2.5, noise=1e-3)
    x = trajectory.X[-1].clone()
    for move in range(150):
        if move % 3:
            trajectory.append(x, 0.5, 0.01 if noise else None)
        held = window.indices
        changed = window.move_to(x)
        now = window.indices
        same = [slot for slot in range(len(held)) if held[slot] == now[slot]]
        assert sorted({*range(len(now))} - {*same}) == changed.tolist()
        check(window, x, metric, 2.5, 1e-3)
        x = x + 0.15 * torch.randn(3, generator=g, dtype=torch.float64)
        if move % 40 == 39:
            x = trajectory.X[0] + 1.0


@compiled
@pytest.mark.parametrize("noise", [1e-6, 1e-2])
def test_thousands_of_moves_do_not_drift(noise, monkeypatch):
    monkeypatch.setattr("surrogates.window.nearest_window._replacing_pays", lambda n, rows: 6 * rows <= n)
    trajectory, g = history(900, 2, seed=1)
    window = NearestWindow(trajectory, 60, precision=1.0, profile=MATERN, noise=noise)
    x, updates, worst = trajectory.X[450].clone(), 0, 0.0
    for move in range(2000):
        rebuilt = window._replaced
        window.move_to(x)
        updates += window._replaced > rebuilt
        worst = max(worst, float((window.L @ window.L.mT - window.covariance).abs().max()))
        target = trajectory.X[(450 + move // 6) % 900]
        x = x + 0.2 * (target - x) + 0.02 * torch.randn(2, generator=g, dtype=torch.float64)
    assert updates > 300
    assert worst < 60 * 2.0**-52
    fresh = NearestWindow(trajectory, 60, precision=1.0, profile=MATERN, noise=noise)
    fresh.move_to(x)
    window.move_to(x)
    order, other = window.indices.argsort(), fresh.indices.argsort()
    assert torch.equal(window.indices[order], fresh.indices[other])
    assert torch.equal(window.covariance[order][:, order], fresh.covariance[other][:, other])


@compiled
@pytest.mark.parametrize("profile", ["rbf", "rq", "matern12", "matern32", "matern52"])
def test_replaced_rows_of_every_profile(profile, monkeypatch):
    monkeypatch.setattr("surrogates.window.nearest_window._replacing_pays", lambda n, rows: True)
    profile = RadialProfile(profile, torch.tensor(1.7, dtype=torch.float64) if profile == "rq" else None)
    trajectory, _ = history(200, 3, seed=3)
    window = NearestWindow(trajectory, 30, precision=0.3, profile=profile, outputscale=2.0, noise=1e-3)
    for row in range(100, 150):
        window.move_to(trajectory.X[row])
        A = 2.0 * profile.h(distances(window.X, 0.3)) + 1e-3 * torch.eye(30, dtype=torch.float64)
        assert torch.allclose(window.covariance, A, rtol=1e-13, atol=0)
        assert float((window.L @ window.L.mT - A).abs().max()) < 1e-13
    assert window._replaced > 0


@compiled
def test_a_factor_that_drifted_is_made_anew(monkeypatch):
    trajectory, _ = history(300, 2, seed=2)
    window = NearestWindow(trajectory, 160, precision=1.0, profile=MATERN, noise=1e-3)
    x = trajectory.X[-1].clone()
    window.move_to(x)
    monkeypatch.setattr("surrogates.window.nearest_window._replacing_pays", lambda n, rows: True)
    window._L = window._L * (1 + 1e-9)
    trajectory.append(x, 0.0)
    assert window.move_to(x).numel() == 1
    assert window._replaced == 0
    check(window, x, 1.0, 1.0, 1e-3)


def test_only_one_row_is_evaluated_when_one_query_arrives(monkeypatch):
    monkeypatch.setattr(nearest_window, "replace_rows", None)
    trajectory, _ = history(400, 6)
    window = NearestWindow(trajectory, 200, precision=1.0, profile=MATERN, noise=1e-4)
    x = trajectory.X[-1].clone()
    window.move_to(x)
    rows = []

    def counted(X, x, weights=None, index=None):
        rows.append(len(X) if index is None else len(index))
        return nearest_search.row_squared_distances(X, x, weights, index)

    monkeypatch.setattr("surrogates.window.nearest_window.row_squared_distances", counted)
    assert window.move_to(x).numel() == 0
    assert rows == []
    trajectory.append(x + 0.01, 0.0)
    assert window.move_to(x).numel() == 1
    assert rows == [200, 1]  # to the others, and to the point


def test_float32_history_keeps_float64_algebra():
    trajectory, _ = history(80, 5, dtype=torch.float32)
    window = NearestWindow(trajectory, 30, precision=0.5, profile=MATERN, outputscale=1.0, noise=1e-4)
    x = trajectory.X[40]
    window.move_to(x)
    assert window.X.dtype == torch.float32 and window.y.dtype == torch.float64
    assert window.L.dtype == window.squared_distances.dtype == window.noise.dtype == torch.float64
    check(window, x, 0.5, 1.0, 1e-4)


@pytest.mark.parametrize("weights", [0.7, [0.2, 1.0, 3.0]])
def test_gradient_distances(weights):
    trajectory, _ = history(90, 3)
    metric = torch.as_tensor(weights, dtype=torch.float64)
    window = NearestWindow(trajectory, 25, precision=metric, profile=MATERN, noise=1e-2)
    for row in (80, 60, 62):
        window.move_to(trajectory.X[row])
        assert torch.allclose(
            window.gradient_squared_distances(), distances(window.X, metric.square()), rtol=1e-12, atol=1e-300
        )


@pytest.mark.parametrize(("before", "after"), [(0.5, 2.0), (0.5, [1.0, 2.0, 3.0]), ([1.0, 2.0, 3.0], 0.3)])
def test_other_hyperparameters(before, after):
    trajectory, _ = history(90, 3)
    before, after = (torch.as_tensor(w, dtype=torch.float64) for w in (before, after))
    window = NearestWindow(trajectory, 90, precision=before, profile=MATERN, noise=1e-2)
    window.set_kernel(precision=before, profile=MATERN, outputscale=1.5, noise=1e-2)
    x = trajectory.X[5].clone()
    window.move_to(x)
    window.set_kernel(precision=after, profile=MATERN, outputscale=3.0, noise=1e-3)
    check(window, x, after, 3.0, 1e-3)
    window.set_kernel(precision=after, profile=lambda r2: torch.exp(-r2), outputscale=1.0, noise=1e-3)
    A = torch.exp(-window.squared_distances) + 1e-3 * torch.eye(90, dtype=torch.float64)
    assert torch.allclose(window.L @ window.L.mT, A, atol=1e-13)


def test_without_a_profile_there_are_distances_only():
    trajectory, _ = history(40, 3)
    window = NearestWindow(trajectory, 10)
    window.move_to(trajectory.X[3])
    assert torch.allclose(window.squared_distances, distances(window.X, 1.0), rtol=1e-12)
    with pytest.raises(ValueError, match="no kernel profile"):
        window.L
    with pytest.raises(ValueError, match="no kernel profile"):
        window.covariance


@pytest.mark.parametrize("weights", [0.7, [0.2, 1.0, 3.0]])
def test_state_round_trip_continues_bitwise(weights):
    metric = torch.as_tensor(weights, dtype=torch.float64)
    trajectory, _ = history(400, 3, noise=True)
    options = {"precision": metric, "profile": MATERN, "outputscale": 2.0, "noise": 1e-4}
    window = NearestWindow(trajectory, 155, **options)
    for row in range(100, 160):
        window.move_to(trajectory.X[row])
    other_trajectory = Trajectory(3)
    other_trajectory.load_state_dict(trajectory.state_dict())
    other = NearestWindow(other_trajectory, 155, **options)
    other.load_state_dict(window.state_dict())
    for row in range(160, 260):
        assert torch.equal(other.indices, window.indices)
        assert torch.equal(other.squared_distances, window.squared_distances)
        assert torch.equal(other.covariance, window.covariance)
        assert torch.equal(other.L, window.L)
        assert torch.equal(window.move_to(trajectory.X[row]), other.move_to(trajectory.X[row]))


@pytest.mark.parametrize("eager", [False, pytest.param(True, marks=compiled)])
def test_a_singular_window_is_refused_and_stays_where_it_was(eager, monkeypatch):
    if eager:
        monkeypatch.setattr("surrogates.window.nearest_window._replacing_pays", lambda n, rows: True)
    trajectory, _ = history(100, 2)
    window = NearestWindow(trajectory, 10, precision=1.0, profile=MATERN)
    x = trajectory.X[50].clone()
    window.move_to(x)
    before = {name: getattr(window, name).clone() for name in ("indices", "X", "covariance", "squared_distances", "L")}
    trajectory.append(x, 0.0)
    trajectory.append(x, 0.0)
    with pytest.raises(NotPositiveDefiniteError, match="noise"):
        window.move_to(x)
    for name, value in before.items():
        assert torch.equal(getattr(window, name), value)
    with pytest.raises(NotPositiveDefiniteError):
        window.set_kernel(precision=1e-30, profile=MATERN, outputscale=1.0, noise=0.0)
    for name, value in before.items():
        assert torch.equal(getattr(window, name), value)
    window.set_kernel(precision=1.0, profile=MATERN, outputscale=1.0, noise=1e-3)
    window.move_to(x)
    check(window, x, 1.0, 1.0, 1e-3)


def test_bad_arguments_are_refused():
    trajectory, _ = history(20, 3)
    for size, error in ((0, ValueError), (2.0, TypeError), (True, TypeError)):
        with pytest.raises(error, match="size"):
            NearestWindow(trajectory, size)
    for options, message in (
        ({"precision": -1.0}, "precision"),
        ({"precision": torch.ones(2)}, "precision"),
        ({"outputscale": 0.0}, "outputscale"),
        ({"outputscale": float("nan")}, "outputscale"),
        ({"noise": -1e-3}, "noise"),
        ({"noise": float("inf")}, "noise"),
    ):
        with pytest.raises(ValueError, match=message):
            NearestWindow(trajectory, 5, **options)
    with pytest.raises(TypeError, match="profile"):
        NearestWindow(trajectory, 5, profile="matern52")
    window = NearestWindow(trajectory, 5, profile=MATERN, noise=1e-3)
    with pytest.raises(ValueError, match="empty"):
        window.L
    with pytest.raises(ValueError, match=r"shape \(3,\), got \(2,\)"):
        window.move_to(torch.zeros(2, dtype=torch.float64))
    window.move_to(trajectory.X[0])
    state = window.state_dict()
    for bad in (
        {"version": 1},
        state | {"size": 6},
        state | {"indices": torch.arange(18, 23)},
        state | {"L": None},
        state | {"L": torch.eye(4, dtype=torch.float64)},
    ):
        with pytest.raises(ValueError, match="state"):
            window.load_state_dict(bad)
    assert torch.equal(window.L, state["L"])
