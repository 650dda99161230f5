"""The benchmark of functions with kinks or in steps."""

import dataclasses
import json

import numpy as np
import pytest

from experiments.benchmarks import nonsmooth
from experiments.benchmarks.problems.rivals import RIVALS


@pytest.mark.slow
def test_the_functions_are_norms_and_steps_and_least_at_the_center(monkeypatch, tmp_path, capsys):
    """A rival that evaluates the center ends at 0; one that stays at the start does not."""
    asked = []

    def run(queries, x0, seed):
        rng = np.random.default_rng([seed, len(x0)])
        asked.append(queries(x0))
        queries(rng.uniform(-3.0, 3.0, len(x0)))

    monkeypatch.setattr(nonsmooth, "RIVALS", {"cobyqa_wide": dataclasses.replace(RIVALS["cobyqa_wide"], run=run)})
    monkeypatch.setattr(nonsmooth, "METHODS", ("cobyqa_wide",))
    arguments = ["--dimension", "3", "--queries", "4", "--seeds", "4", "5", "--out", str(tmp_path)]
    assert nonsmooth.main(arguments) == 0
    found = json.loads((tmp_path / "benchmark-nonsmooth.json").read_text())["least"]
    assert [row["cobyqa_wide"] for row in found.values()] == [[0.0, 0.0]] * 6 and min(asked) > 0.0
    assert all(least >= 0.0 for row in found.values() for name in nonsmooth.OPTIONS for least in row[name])
    assert "|Q(x - c)|_1" in capsys.readouterr().out


@pytest.mark.parametrize(("name", "value"), [("max|x - c|", 3.0), ("|x - c|_1", 5.5), ("rounded quadratic", 72.0)])
def test_the_functions_have_the_values_of_their_formulas(name, value):
    """At z = y = (3, 0, −2.5): 9 + 10 · 6.25 + √10 · 0, rounded, is 72 (71.5 is rounded to even)."""
    z = np.array([3.0, 0.0, -2.5])
    fun = (nonsmooth.KINKS | nonsmooth.STEPS)[name]
    assert fun(z, z) == value
