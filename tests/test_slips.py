"""The slips of ``tests/slips.py`` are what their marks say."""

import ast

from federated.registry import ALGORITHMS
from optimizers.registry import METHODS
from tests.slips import ROOT, marked


def test_each_slip_makes_another_program_and_every_algorithm_has_one():
    algorithms = set()
    for test, slip in marked():
        before = (ROOT / slip.file).read_text(encoding="utf-8")
        assert ast.dump(ast.parse(slip.text())) != ast.dump(ast.parse(before)), test
        algorithms |= set(slip.of.split())
    assert algorithms == {f"optimizers/{name}" for name in METHODS} | {f"federated/{name}" for name in ALGORITHMS}
