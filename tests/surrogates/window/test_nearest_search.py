import numpy as np
import pytest
import torch

from surrogates.window.nearest_search import NearestSearch, row_squared_distances
from tests.surrogates.uncompiled import PATHS, uncompiled


@pytest.fixture(params=PATHS, autouse=True)
def path(request, monkeypatch):
    if request.param == "torch":
        uncompiled(monkeypatch)


def brute_force(X, x, k):
    """By direct differences in extended precision; exact where the inputs are small integers over 8."""
    difference = X.numpy().astype(np.longdouble) - x.numpy().astype(np.longdouble)
    squared = (difference**2).sum(1)
    return np.lexsort((np.arange(len(X)), squared))[:k]


def generator(seed):
    return torch.Generator().manual_seed(seed)


def walk(n, d, g, scale=0.1):
    return (scale * torch.randn(n, d, generator=g, dtype=torch.float64)).cumsum(0)


@pytest.mark.parametrize("d", [1, pytest.param(3, marks=pytest.mark.slow), 37])
def test_small_moves_along_a_growing_walk(d):
    g = generator(d)
    X = walk(900, d, g)
    search, x = NearestSearch(few=0), X[599].clone()
    for move in range(300):
        rows = 600 + move
        assert search.nearest(X[:rows], x, 40).tolist() == brute_force(X[:rows], x, 40).tolist()
        x = X[rows - 1] if move % 11 == 0 else x + 0.02 * torch.randn(d, generator=g, dtype=torch.float64)
    assert search.rows_evaluated < 0.35 * 300 * 750


def test_far_jumps_and_returns_to_old_points():
    g = generator(1)
    X = torch.cat([walk(200, 12, g) + 20 * i for i in range(5)])
    search = NearestSearch(few=0)
    for move in range(150):
        x = X[int(torch.randint(1000, (1,), generator=g))] + 0.01 * (move % 3)
        assert search.nearest(X, x, 30).tolist() == brute_force(X, x, 30).tolist()
    assert search.rows_evaluated < 0.7 * 150 * 1000


@pytest.mark.parametrize("offset", [0.0, 2.0**30])
def test_ties_and_duplicates_go_to_the_lower_row(offset):
    g = generator(2)
    X = torch.randint(-3, 4, (800, 4), generator=g).double() / 8 + offset
    search, x = NearestSearch(few=0), X[0].clone()
    for _ in range(300):
        assert search.nearest(X, x, 60).tolist() == brute_force(X, x, 60).tolist()
        x = x + torch.randint(-1, 2, (4,), generator=g).double() / 8
        x = torch.where((x - offset).abs() > 1, torch.full_like(x, offset), x)


def test_far_from_the_origin_no_digit_is_lost():
    g = generator(3)
    X = walk(500, 50, g, 1e-3) + 1e6
    search, x = NearestSearch(few=0), X[-1].clone()
    for _ in range(60):
        assert search.nearest(X, x, 20).tolist() == brute_force(X, x, 20).tolist()
        x = x + 2e-4 * torch.randn(50, generator=g, dtype=torch.float64)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_answer_does_not_depend_on_what_was_asked_before(dtype):
    g = generator(4)
    X = torch.randint(-2, 3, (700, 9), generator=g).to(dtype) + 1e-7 * torch.rand(700, 9, generator=g).to(dtype)
    search = NearestSearch(few=0)
    for move in range(200):
        x = X[move] + 0.05 * torch.randn(9, generator=g, dtype=dtype)
        assert torch.equal(search.nearest(X, x, 25), NearestSearch(few=0).nearest(X, x, 25))


def test_what_is_known_saves_rows_and_changes_nothing():
    g = generator(9)
    X = walk(2000, 8, g)
    evaluated = []
    for knows in (False, True):
        search, x = NearestSearch(few=0), X[-1].clone()
        steps = generator(10)
        index = np.arange(1900, 2000)
        for _ in range(200):
            held = index if knows else index[:0]
            found, squared = search.nearest_beside(X, x, 100, held, X[held])
            assert torch.equal(squared, row_squared_distances(X[held], x))
            index = found
            assert index.tolist() == sorted(brute_force(X, x, 100).tolist())
            x = x + 0.03 * torch.randn(8, generator=steps, dtype=torch.float64)
        evaluated.append(search.rows_evaluated)
    assert evaluated[1] < 0.6 * evaluated[0]


def test_a_path_that_turns_back_is_near_to_where_it_was():
    g = generator(12)
    X = torch.randn(3000, 300, generator=g, dtype=torch.float64)
    search, index, there = NearestSearch(few=0), np.arange(100), torch.zeros(300, dtype=torch.float64)
    evaluated = []
    for move in range(40):
        x = there if move % 2 else 0.05 * torch.randn(300, generator=g, dtype=torch.float64)
        before = search.rows_evaluated
        index = search.nearest_beside(X, x, 100, index, X[index])[0]
        assert index.tolist() == sorted(brute_force(X, x, 100).tolist())
        evaluated.append(search.rows_evaluated - before)
    assert sum(evaluated[5::2]) < 0.5 * sum(evaluated[4::2])


@pytest.mark.parametrize("seed", range(12))
def test_any_path_over_any_data_with_anything_known(seed):
    """Paths that turn back, duplicates, grids, offsets, either dtype, any rows known: the whole pass's answer."""
    rng = np.random.default_rng(seed)
    n, d, k = int(rng.integers(5, 300)), int(rng.choice([1, 2, 7, 60])), int(rng.integers(1, 60))
    dtype, scale = (np.float64, np.float32)[seed % 2], 10.0 ** rng.integers(-8, 8)
    X = scale * rng.standard_normal((n + 100, d)) + (0.0, 1e6 * scale)[seed % 3 == 0]
    X[rng.integers(0, n, 20)] = X[rng.integers(0, n, 20)]
    X = torch.from_numpy((np.round(2 * X / scale) / 2 * scale if seed % 4 == 1 else X).astype(dtype))
    search, path, step = NearestSearch(few=0), [X[0]], 10.0 ** rng.uniform(-3, 1) * scale
    for _ in range(50):
        n = min(len(X), n + int(rng.integers(0, 4)))
        x = path[rng.integers(len(path))] + torch.from_numpy(
            (rng.integers(0, 2) * step * rng.standard_normal(d)).astype(dtype)
        )
        squared = row_squared_distances(X[:n], x)
        rows = rng.choice(n, int(rng.integers(0, n)), replace=False).astype(np.int64)
        found, of_rows = search.nearest_beside(X[:n], x, min(k, n), rows, X[rows])
        assert torch.equal(of_rows, squared[rows])
        assert found.tolist() == sorted(np.lexsort((np.arange(n), squared.numpy()))[: min(k, n)].tolist())
        path.append(x)


def test_very_small_scales_where_squares_underflow():
    g = generator(5)
    X = torch.randint(-3, 4, (400, 3), generator=g).double() * 1e-170
    search = NearestSearch(few=0)
    for move in range(20):
        assert search.nearest(X, X[move], 10).tolist() == list(range(10))


def test_scales_where_squares_overflow():
    g = generator(8)
    X = torch.randn(300, 3, generator=g, dtype=torch.float64)
    X[::7] *= 1e160
    search = NearestSearch(few=0)
    for rows in range(100, 300):
        x = X[rows // 3]
        assert torch.equal(search.nearest(X[:rows], x, 10), NearestSearch(few=0).nearest(X[:rows], x, 10))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("d", [1, 7, 1001])
def test_row_distances(dtype, d):
    g = generator(6)
    X = (torch.randn(60, d, generator=g, dtype=torch.float64) + 1000).to(dtype)
    full = row_squared_distances(X, X[7])
    assert torch.allclose(full, (X.double() - X[7].double()).square().sum(1), rtol=1e-13, atol=0)
    assert full[7] == 0
    index = torch.tensor([5, 59, 5, 0])
    assert torch.equal(row_squared_distances(X, X[7], index), full[index])
    for i in (0, 33):
        assert row_squared_distances(X[i : i + 1], X[7])[0] == full[i]
        assert row_squared_distances(X, X[i])[7] == full[i]


def test_both_paths_agree_to_rounding(monkeypatch):
    g = generator(7)
    X = torch.randn(50, 333, generator=g, dtype=torch.float64)
    here = row_squared_distances(X, X[0])
    uncompiled(monkeypatch)
    assert torch.allclose(here, row_squared_distances(X, X[0]), rtol=1e-14, atol=0)


def test_small_histories_and_k_equal_to_n():
    X = torch.tensor([[3.0], [1.0], [2.0]], dtype=torch.float64)
    search = NearestSearch(few=0)
    for rows in (1, 2, 3):
        for k in range(1, rows + 1):
            x = torch.zeros(1, dtype=torch.float64)
            assert search.nearest(X[:rows], x, k).tolist() == brute_force(X[:rows], x, k).tolist()


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_a_point_that_is_not_finite_is_refused_and_changes_nothing(bad):
    X = walk(300, 6, generator(14))
    for k, asked_before in ((20, False), (20, True), (200, True)):  # a first pass, one by bounds, one of most rows
        search, x = NearestSearch(few=0), X[5].clone()
        if asked_before:
            search.nearest(X, X[0], k)
        x[2] = bad
        with pytest.raises(ValueError, match="finite"):
            search.nearest(X, x, k)
        assert search.nearest(X, X[7], k).tolist() == brute_force(X, X[7], k).tolist()
