"""The former place of ``compare`` still has it, with a warning."""

import sys

import pytest

import optimizers


def test_the_former_import_warns_and_gives_the_same(monkeypatch):
    monkeypatch.delitem(sys.modules, "experiments.compare", raising=False)
    with pytest.warns(DeprecationWarning, match="from optimizers import compare"):
        from experiments.compare import Comparison, compare
    assert compare is optimizers.compare and Comparison is optimizers.Comparison
