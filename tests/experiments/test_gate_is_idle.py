"""The gate never acts in the digests, where nobody lies, and is off in the figures of the papers, which have none."""

import math

import pytest

from experiments.registry import MODULES, get
from federated.core.gate import Gate
from tests import digests
from tests.digest_cases import ALGORITHM_CASES

ALONE = ("hiso-fig4", "hiso-bytes")
"""Figures of one machine, or without values."""

FEDERATED = [name for name in MODULES if name.startswith(("fzoos-", "hiso-", "beyond-gamma", "beyond-plateau"))]


@pytest.fixture
def looked(monkeypatch):
    """The gate's decisions: its factor, and whom it left out."""
    seen, left_out = [], Gate.left_out

    def watched(self, phase, lengths, factor):
        found = left_out(self, phase, lengths, factor)
        seen.append((factor, found))
        return found

    monkeypatch.setattr(Gate, "left_out", watched)
    return seen


@pytest.mark.slow
@pytest.mark.parametrize("failing", [0, 6])
@pytest.mark.parametrize("name", ALGORITHM_CASES)
def test_in_the_digests(name, failing, looked):
    algorithm, options = ALGORITHM_CASES[name]
    digests.run_algorithm(algorithm, options, failing)
    assert looked and not any(found for _, found in looked)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in FEDERATED if name not in ALONE])
def test_in_published_figures(name, looked):
    experiment = get(name)
    if experiment.extra:
        pytest.importorskip("transformers")
    experiment.run_seed(experiment.settings("quick"), 0)
    assert {factor for factor, _ in looked} == {math.inf}
