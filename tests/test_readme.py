"""The README's Python blocks run, one after another, as a reader would paste them."""

import inspect
import re
import sys
import types
from pathlib import Path
from unittest.mock import MagicMock

import pytest
import torch

import optimizers
from optimizers import minimize

README = Path(__file__).parents[1] / "README.md"


def _blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", README.read_text(), re.M | re.S)


def test_python_blocks_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    blocks = _blocks("python")
    assert len(blocks) >= 3
    with torch.random.fork_rng():
        torch.manual_seed(0)
        for block in blocks:
            exec(compile(block, "README.md", "exec"), names)
    # The loop of the first block moved, and its last query went into the model.
    assert names["x"].shape == (1, 5) and not torch.allclose(names["x"], torch.full_like(names["x"], 0.5))


@pytest.mark.parametrize("block", _blocks("py"))
def test_blocks_for_a_cluster_call_minimize_as_it_is(block, monkeypatch):
    """They are not run, for want of a cluster: their imports stand in, and ``minimize`` takes their arguments."""
    calls = []
    mine = types.SimpleNamespace(loss=len, start=[0.0], box=[(0.0, 1.0)])
    monkeypatch.setitem(sys.modules, "my_experiment", mine)
    for name in ("dask", "dask.distributed", "submitit"):
        monkeypatch.setitem(sys.modules, name, MagicMock())
    monkeypatch.setattr(
        optimizers, "minimize", lambda *args, **named: calls.append(inspect.signature(minimize).bind(*args, **named))
    )
    exec(compile(block, "README.md", "exec"), {})
    (call,) = calls
    assert call.arguments["fun"] is len and call.arguments["workers"] == 32 and "options" not in call.arguments
    assert len(block.splitlines()) <= 6 + ("" in block.splitlines())


@pytest.mark.parametrize("target", re.findall(r"\]\((?!http)([^)#]+)\)", README.read_text()))
def test_links_lead_somewhere(target):
    assert (README.parent / target).exists()


def test_commands_are_make_targets():
    makefile = (README.parent / "Makefile").read_text()
    commands = {line.split()[1] for block in _blocks("") for line in block.splitlines() if line.startswith("make ")}
    assert commands >= {"figures", "test"}
    assert all(re.search(rf"^{command}:", makefile, re.M) for command in commands)
