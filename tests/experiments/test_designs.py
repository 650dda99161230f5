import json

import numpy as np
import pytest

from experiments.benchmarks import constraints
from experiments.workloads.designs import DESIGNS
from optimizers import ReturnedConstraints, minimize

PUBLISHED = {
    "welded beam": 1.724852,
    "speed reducer": 2994.471,
    "spring": 0.0126652,
    "three-bar truss": 263.8958,
    "gas compressor": 2964895.4,
    "tubular column": 26.4995,
    "cantilever beam": 1.339956,
    "heat exchanger": 7049.248,
    "bulkhead": 6.842958,
    "himmelblau": -30665.539,
}
"""The best known values in the literature, from other people's programs."""


@pytest.mark.parametrize("name", DESIGNS)
def test_the_optimum_of_the_formulas_is_the_published_one(name):
    design = DESIGNS[name]
    least, x = design.optimum(starts=12)
    assert least == pytest.approx(PUBLISHED[name], rel=1e-5)
    f, g = design.fun(x)
    assert f == least and np.all((x >= design.lower) & (x <= design.upper))
    assert g.max() <= 1e-6 * max(1.0, np.abs(g).max())


def test_the_default_method_designs_the_speed_reducer():
    design = DESIGNS["speed reducer"]
    box = np.column_stack([design.lower, design.upper])
    limits = ReturnedConstraints(np.full(11, -np.inf), np.zeros(11))
    result = minimize(design.fun, box.mean(axis=1), max_queries=100, bounds=box, constraints=limits)
    assert result.success and result.fun == pytest.approx(PUBLISHED["speed reducer"], rel=1e-3)


@pytest.mark.slow
def test_the_benchmark_counts_the_queries_to_a_design(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(constraints, "DESIGNS", {"three-bar truss": DESIGNS["three-bar truss"]})
    monkeypatch.setattr(constraints, "SIZES", ((2, 2),))
    monkeypatch.setattr(constraints, "FACTOR", 25)
    constraints.main(["--out", str(tmp_path), "--starts", "2"])
    found = json.loads((tmp_path / "benchmark-constraints.json").read_text())
    queries = found["queries"]["three-bar truss"]
    assert 3 <= queries[0] < min(queries[1:])
    assert "d = 2, m = 2" in capsys.readouterr().out and found["ratios"][0] > 0.0
