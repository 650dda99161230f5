"""Every black box keeps what is said of all: a box with starts in it, a function, and another problem for each seed."""

import re

import numpy as np
import pytest
import torch
from threadpoolctl import threadpool_limits

from experiments.workloads.black_boxes import BLACK_BOXES, digits, metric
from experiments.workloads.black_boxes.black_box import InBox, central, cube
from experiments.workloads.black_boxes.variables import Variable, named
from experiments.workloads.metrics import QUICK as QUICK_NETWORK
from experiments.workloads.victims import QUICK as QUICK_VICTIM

BOXES = pytest.mark.parametrize("box", BLACK_BOXES.values(), ids=list(BLACK_BOXES))


def test_sizes():
    sizes = {name: box.dimension for name, box in BLACK_BOXES.items()}
    assert len(sizes) == 23 and sizes["wind_farm"] == 32 and sizes["metric_f1"] == 2189
    assert [sizes[f"attack_digits_{d}"] for d in (64, 784)] == [64, 784]
    assert [sizes[name] for name in ("swimmer", "half_cheetah", "walker2d")] == [222, 356, 356]
    assert [sizes[name] for name in ("registration", "lynx_hare", "wind_farm_yaw", "palette")] == [6, 6, 16, 24]
    assert all(10 <= sizes[name] <= 15 for name in sizes if name.startswith(("lightgbm", "kernel", "perceptron")))


def global_state():
    kind, keys, place, *gauss = np.random.get_state()  # noqa: NPY002
    return kind, keys.tobytes(), place, gauss


@BOXES
def test_starts_are_in_the_box_and_all_is_said(box):
    assert box.lower.dtype == box.upper.dtype == np.float64
    assert box.lower.shape == box.upper.shape == (box.dimension,) and np.all(box.lower < box.upper)
    for seed in range(10):
        start = box.start(seed)
        assert start.shape == (box.dimension,) and start.dtype == np.float64
        assert np.all((box.lower <= start) & (start <= box.upper)) and np.array_equal(start, box.start(seed))
    assert box.name == re.sub(r"\W", "", box.name) and box.budget >= 240 * (box.dimension > 11)


@pytest.mark.parametrize(
    "box",
    [
        pytest.param(box, marks=pytest.mark.slow if name == "attack_digits_784" else (), id=name)
        for name, box in BLACK_BOXES.items()
    ],
)
def test_a_function_and_another_problem_for_each_seed(box, monkeypatch):
    if box.missing:
        pytest.skip(f"{box.name} needs {', '.join(box.missing)}: pip install './experiments[problems]'")
    monkeypatch.setattr(digits, "FULL", QUICK_VICTIM)
    monkeypatch.setattr(metric, "FULL", QUICK_NETWORK)
    state, x = global_state(), box.start(0)
    first = box.make(0)
    value = first(x)
    first((x + box.upper) / 2)
    digits.victim.cache_clear()
    assert isinstance(value, float) and np.isfinite(value)
    assert first(x) == value == box.make(0)(x)
    assert box.make(1)(x) != value
    assert global_state() == state
    for outside in (
        x[:-1],
        np.where(np.arange(box.dimension) == 0, box.upper + 0.1, x),
        np.full(box.dimension, np.nan),
    ):
        with pytest.raises(ValueError, match="x must"):
            first(outside)


@pytest.mark.parametrize("name", ["kernel_ridge_diabetes", "attack_digits_64"])
def test_the_number_of_threads_changes_no_bit(name, monkeypatch):
    monkeypatch.setattr(digits, "FULL", QUICK_VICTIM)
    box, values, before = BLACK_BOXES[name], [], torch.get_num_threads()
    for threads in (1, 2):
        digits.victim.cache_clear()
        try:
            torch.set_num_threads(threads)
            with threadpool_limits(threads):
                values.append(box.make(5)((box.start(5) + box.upper) / 2))
        finally:
            torch.set_num_threads(before)
    assert values[0] == values[1]


def test_rounding_at_the_boundary_is_put_on_it():
    lower, upper = cube(3, 2.0, 1.0)
    assert lower.tolist() == [-1.0] * 3 and upper.tolist() == [3.0] * 3
    seen = []
    fun = InBox(lambda x: seen.append(x) or x.sum(), lower, upper)
    assert fun(upper * (1 + 1e-15)) == 9.0 and seen[0].tolist() == [3.0] * 3
    starts = np.stack([central(lower, upper, seed) for seed in range(200)])
    assert 0.0 <= starts.min() < 0.05 and 1.95 < starts.max() <= 2.0


def test_variables_have_their_ends_and_middles():
    kinds = (
        Variable("plain", 2.0, 6.0),
        Variable("log", 1e-4, 1.0, log=True),
        Variable("whole", 4, 64, log=True, whole=True),
    )
    assert named(kinds, np.zeros(3)) == {"plain": 2.0, "log": 1e-4, "whole": 4}
    assert named(kinds, np.ones(3)) == {"plain": 6.0, "log": 1.0, "whole": 64}
    middle = named(kinds, np.full(3, 0.5))
    assert middle == {"plain": 4.0, "log": pytest.approx(1e-2, rel=1e-12), "whole": 16}
    assert isinstance(middle["whole"], int) and isinstance(middle["plain"], float)
