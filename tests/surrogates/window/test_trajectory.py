import pytest
import torch

from surrogates.window.trajectory import Trajectory


def filled(n=30, d=4, dtype=torch.float64, seed=0):
    g = torch.Generator().manual_seed(seed)
    X, y = torch.randn(n, d, generator=g, dtype=dtype), torch.randn(n, generator=g, dtype=dtype)
    trajectory = Trajectory(d, dtype=dtype)
    trajectory.append(X, y)
    return trajectory, X, y


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_appending_one_by_one_or_many_holds_the_same(dtype):
    many, X, y = filled(150, 3, dtype)
    one = Trajectory(3, dtype=dtype)
    for i in range(150):
        one.append(X[i : i + 1], y[i : i + 1])
    for trajectory in (one, many):
        assert len(trajectory) == 150
        assert torch.equal(trajectory.X, X)
        assert torch.equal(trajectory.y, y.double())
        assert trajectory.X.dtype == dtype and trajectory.y.dtype == torch.float64


def test_appending_copies_nothing_while_there_is_room_and_views_keep_their_values():
    trajectory, X, _ = filled(10, 2)
    view, place = trajectory.X, trajectory.X.data_ptr()
    for _ in range(54):
        trajectory.append(torch.zeros(1, 2, dtype=torch.float64), torch.zeros(1))
    assert trajectory.X.data_ptr() == place
    trajectory.append(torch.zeros(1, 2, dtype=torch.float64), torch.zeros(1))
    assert trajectory.X.data_ptr() != place
    assert torch.equal(view, X)
    assert trajectory._X._storage.shape[0] <= 2 * len(trajectory)


def test_failed_queries_are_counted_and_kept_apart():
    nan, inf = float("nan"), float("inf")
    trajectory = Trajectory(2)
    X = torch.arange(12, dtype=torch.float64).reshape(6, 2)
    y = torch.tensor([1.0, nan, 3.0, inf, -inf, 6.0], dtype=torch.float64)
    trajectory.append(X, y)
    trajectory.append(X[:1] + 1, y[1:2])
    assert torch.equal(trajectory.X, X[[0, 2, 5]])
    assert torch.equal(trajectory.y, y[[0, 2, 5]])
    assert torch.equal(trajectory.failed_X, torch.cat((X[[1, 3, 4]], X[:1] + 1)))
    assert (len(trajectory), trajectory.failures) == (3, 4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_nearest(dtype):
    trajectory, X, _ = filled(200, 5, dtype)
    x = X[3] + 0.1
    distance = (X.double() - x.double()).square()
    assert trajectory.nearest(x, 7).tolist() == distance.sum(1).argsort()[:7].tolist()
    assert trajectory.nearest(x, 999).tolist() == distance.sum(1).argsort().tolist()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_state_round_trip_is_bitwise(dtype):
    trajectory, X, y = filled(40, 3, dtype)
    trajectory.append(X[:2], torch.full((2,), float("nan"), dtype=dtype))
    state = trajectory.state_dict() | {"noise": None}  # as in states from before 1.0
    trajectory.append(X[:1], y[:1])
    other = Trajectory(3, dtype=dtype)
    other.append(-X[:5], y[:5])
    other.nearest(X[0], 2)
    other.load_state_dict(state)
    assert torch.equal(other.X, X)
    assert torch.equal(other.y, y)
    assert torch.equal(other.failed_X, X[:2])
    other.append(X[:1], y[:1])
    assert torch.equal(other.nearest(X[1], 12), trajectory.nearest(X[1], 12))


def test_an_empty_state_round_trips():
    state = Trajectory(3).state_dict()
    trajectory = filled(5, 3)[0]
    trajectory.load_state_dict(state)
    assert len(trajectory) == 0


ROW = torch.zeros(4, dtype=torch.float64)


@pytest.mark.parametrize(
    ("X", "y"),
    [
        (ROW[None].float(), ROW[:1]),
        (ROW[None, :3], ROW[:1]),
        (ROW.expand(1, 1, 4), ROW[:1]),
        (ROW[None], ROW[:2]),
        (ROW.expand(3, 4), ROW[:1]),
    ],
)
def test_bad_rows_are_refused_and_nothing_is_appended(X, y):
    trajectory, before, _ = filled(6)
    with pytest.raises(ValueError, match="queries must have torch"):
        trajectory.append(X, y)
    assert torch.equal(trajectory.X, before)
    assert trajectory.failures == 0


def test_an_empty_trajectory_has_no_nearest_query():
    with pytest.raises(ValueError, match="no successful query"):
        Trajectory(4).nearest(ROW, 1)


def test_half_precision_is_refused():
    with pytest.raises(TypeError, match="dtype"):
        Trajectory(1, dtype=torch.float16)


def test_states_that_do_not_fit_are_refused_and_nothing_changes():
    trajectory, X, _ = filled(6)
    good = filled(9, seed=1)[0].state_dict()
    bad = [
        {k: v for k, v in good.items() if k != "y"},
        good | {"version": 2},
        filled(9, 5)[0].state_dict(),
        good | {"y": good["y"][:4]},
        good | {"y": good["y"] * float("nan")},
        good | {"noise": torch.ones(9)},
    ]
    for state in bad:
        with pytest.raises(ValueError):
            trajectory.load_state_dict(state)
    with pytest.raises(ValueError, match="float32"):
        trajectory.load_state_dict(filled(9, dtype=torch.float32)[0].state_dict())
    assert torch.equal(trajectory.X, X)


def test_whether_a_query_has_been_made_at_a_point():
    trajectory = Trajectory(2)
    X = torch.tensor([[1.0, 2.0], [1.0, 3.0], [4.0, 2.0]], dtype=torch.float64)
    assert X[0] not in trajectory
    trajectory.append(X, torch.tensor([0.0, float("nan"), 1.0], dtype=torch.float64))
    mark = trajectory.mark()
    later = torch.tensor([5.0, 6.0], dtype=torch.float64)
    trajectory.append(later[None], torch.zeros(1))
    assert all(x in trajectory for x in (*X, later))
    # its first element is another's, as are both of them together, in two rows
    assert torch.tensor([1.0, 4.0], dtype=torch.float64) not in trajectory
    assert torch.tensor([4.0, 3.0], dtype=torch.float64) not in trajectory
    trajectory.roll_back(mark)
    assert later not in trajectory and X[1] in trajectory
