import pytest
import torch

from surrogates.kernels.stationary import RadialProfile
from surrogates.linalg.cholesky import NotPositiveDefiniteError
from surrogates.window import nearest_search
from surrogates.window.nearest_window import NearestWindow
from surrogates.window.trajectory import Trajectory
from tests.surrogates.uncompiled import PATHS, needs_numba, uncompiled

MATERN = RadialProfile("matern52")


@pytest.fixture(params=PATHS)
def path(request, monkeypatch):
    if request.param == "torch":
        uncompiled(monkeypatch)


def history(n, d, *, dtype=torch.float64, seed=0, scale=0.1):
    g = torch.Generator().manual_seed(seed)
    trajectory = Trajectory(d, dtype=dtype)
    X = (scale * torch.randn(n, d, generator=g, dtype=dtype)).cumsum(0)
    trajectory.append(X, torch.randn(n, generator=g, dtype=dtype))
    return trajectory, g


def distances(X, precision):
    difference = X.double().unsqueeze(1) - X.double().unsqueeze(0)
    return precision * difference.square().sum(-1)


def check(window, x, precision, noise, tolerance=1e-13):
    trajectory = window.trajectory
    k = min(window.size, len(trajectory))
    expected = trajectory.nearest(x, k)
    assert len(window) == k
    assert sorted(window.indices.tolist()) == sorted(expected.tolist())
    assert torch.equal(window.X, trajectory.X[window.indices])
    assert window.X.is_contiguous()
    assert torch.equal(window.y, trajectory.y[window.indices])
    D = distances(window.X, precision)
    assert torch.allclose(window.squared_distances, D, rtol=1e-12, atol=1e-300)
    A = MATERN.h(D) + noise * torch.eye(k, dtype=torch.float64)
    assert torch.allclose(window.covariance, A, rtol=1e-11, atol=0)
    assert torch.equal(window.L, window.L.tril())
    assert float((window.L @ window.L.mT - A).abs().max()) < tolerance


def test_moves_over_a_growing_history(path):
    trajectory, g = history(8, 3)
    window = NearestWindow(trajectory, 20, precision=0.7, profile=MATERN, noise=1e-3)
    x = trajectory.X[-1].clone()
    for move in range(150):
        if move % 3:
            trajectory.append(x[None], torch.tensor([0.5]))
        held = window.indices
        changed = window.move_to(x)
        now = window.indices
        same = [slot for slot in range(len(held)) if held[slot] == now[slot]]
        assert sorted({*range(len(now))} - {*same}) == changed.tolist()
        check(window, x, 0.7, 1e-3)
        x = x + 0.15 * torch.randn(3, generator=g, dtype=torch.float64)
        if move % 40 == 39:
            x = trajectory.X[0] + 1.0


@needs_numba
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


@needs_numba
@pytest.mark.parametrize("profile", ["rbf", "rq", "matern12", "matern32", "matern52"])
def test_replaced_rows_of_every_profile(profile, monkeypatch):
    monkeypatch.setattr("surrogates.window.nearest_window._replacing_pays", lambda n, rows: True)
    profile = RadialProfile(profile, torch.tensor(1.7, dtype=torch.float64) if profile == "rq" else None)
    trajectory, _ = history(200, 3, seed=3)
    window = NearestWindow(trajectory, 30, precision=0.3, profile=profile, noise=1e-3)
    for row in range(100, 150):
        window.move_to(trajectory.X[row])
        A = profile.h(distances(window.X, 0.3)) + 1e-3 * torch.eye(30, dtype=torch.float64)
        assert torch.allclose(window.covariance, A, rtol=1e-13, atol=0)
        assert float((window.L @ window.L.mT - A).abs().max()) < 1e-13
    assert window._replaced > 0


@needs_numba
def test_a_factor_that_drifted_is_made_anew(monkeypatch):
    trajectory, _ = history(300, 2, seed=2)
    window = NearestWindow(trajectory, 160, precision=1.0, profile=MATERN, noise=1e-3)
    x = trajectory.X[-1].clone()
    window.move_to(x)
    monkeypatch.setattr("surrogates.window.nearest_window._replacing_pays", lambda n, rows: True)
    window._L = window._L * (1 + 1e-9)
    trajectory.append(x[None], torch.zeros(1))
    assert window.move_to(x).numel() == 1
    assert window._replaced == 0
    check(window, x, 1.0, 1e-3)


def test_only_one_row_is_evaluated_when_one_query_arrives(monkeypatch):
    uncompiled(monkeypatch)
    trajectory, _ = history(400, 6)
    window = NearestWindow(trajectory, 200, precision=1.0, profile=MATERN, noise=1e-4)
    x = trajectory.X[-1].clone()
    window.move_to(x)
    rows = []

    def counted(X, x, index):
        rows.append(len(index))
        return nearest_search.row_squared_distances(X, x, index)

    monkeypatch.setattr("surrogates.window.nearest_window.row_squared_distances", counted)
    assert window.move_to(x).numel() == 0
    assert rows == []
    trajectory.append(x[None] + 0.01, torch.zeros(1))
    assert window.move_to(x).numel() == 1
    assert rows == [199, 1]  # to the others, and to the point


def test_float32_history_keeps_float64_algebra():
    trajectory, _ = history(80, 5, dtype=torch.float32)
    window = NearestWindow(trajectory, 30, precision=0.5, profile=MATERN, noise=1e-4)
    x = trajectory.X[40]
    window.move_to(x)
    assert window.X.dtype == torch.float32 and window.y.dtype == torch.float64
    assert window.L.dtype == window.squared_distances.dtype == torch.float64
    check(window, x, 0.5, 1e-4)


def test_gradient_distances():
    trajectory, _ = history(90, 3)
    window = NearestWindow(trajectory, 25, precision=0.7, profile=MATERN, noise=1e-2)
    for row in (80, 60, 62):
        window.move_to(trajectory.X[row])
        found = window.gradient_squared_distances()
        assert torch.allclose(found, distances(window.X, 0.7**2), rtol=1e-12, atol=1e-300)


def test_other_hyperparameters():
    trajectory, _ = history(90, 3)
    window = NearestWindow(trajectory, 90, precision=0.5, profile=MATERN, noise=1e-2)
    window.set_kernel(precision=0.6, noise=1e-2)
    x = trajectory.X[5].clone()
    window.move_to(x)
    window.set_kernel(precision=2.0, noise=1e-3)
    check(window, x, 2.0, 1e-3)


def test_state_round_trip_continues_bitwise():
    trajectory, _ = history(400, 3)
    options = {"precision": 0.7, "profile": MATERN, "noise": 1e-4}
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


@pytest.mark.parametrize("eager", [False, pytest.param(True, marks=needs_numba)])
def test_a_singular_window_is_refused_and_stays_where_it_was(eager, monkeypatch):
    if eager:
        monkeypatch.setattr("surrogates.window.nearest_window._replacing_pays", lambda n, rows: True)
    trajectory, _ = history(100, 2)
    window = NearestWindow(trajectory, 10, precision=1.0, profile=MATERN)
    x = trajectory.X[50].clone()
    window.move_to(x)
    before = {name: getattr(window, name).clone() for name in ("indices", "X", "covariance", "squared_distances", "L")}
    trajectory.append(x[None], torch.zeros(1))
    trajectory.append(x[None], torch.zeros(1))
    with pytest.raises(NotPositiveDefiniteError, match="noise"):
        window.move_to(x)
    for name, value in before.items():
        assert torch.equal(getattr(window, name), value)
    with pytest.raises(NotPositiveDefiniteError):
        window.set_kernel(precision=1e-30, noise=0.0)
    for name, value in before.items():
        assert torch.equal(getattr(window, name), value)
    window.set_kernel(precision=1.0, noise=1e-3)
    window.move_to(x)
    check(window, x, 1.0, 1e-3)


def test_bad_arguments_are_refused():
    trajectory, _ = history(20, 3)
    for options, message in (
        ({"precision": -1.0}, "precision"),
        ({"precision": float("nan")}, "precision"),
        ({"noise": -1e-3}, "noise"),
        ({"noise": float("inf")}, "noise"),
    ):
        with pytest.raises(ValueError, match=message):
            NearestWindow(trajectory, 5, profile=MATERN, **options)
    window = NearestWindow(trajectory, 5, profile=MATERN, noise=1e-3)
    with pytest.raises(ValueError, match="empty"):
        window.L
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
