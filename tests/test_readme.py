"""The README runs, leads somewhere, and says what the project's own results say."""

import ast
import inspect
import re
import sys
import types
from pathlib import Path
from unittest.mock import MagicMock

import matplotlib as mpl
import pytest
import torch
from PIL import Image

import optimizers
from experiments import registry
from experiments.report.advice import ADVICE
from experiments.report.pages import with_counts
from federated.registry import ALGORITHMS
from optimizers import minimize
from optimizers.registry import METHODS
from surrogates import plotting
from tests.experiments.committed import ENTRIES, HERE, needs_results

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
TEXT = README.read_text()
LINK = re.compile(r"\[([^\]]*)\]\((?!http|#)([^)#]+)\)")


def _blocks(path: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", path.read_text(), re.M | re.S)


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    """A folder of the test's own, and random numbers of its own."""
    monkeypatch.chdir(tmp_path)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield tmp_path


def test_python_blocks_run(elsewhere):
    """One after another, as a reader would paste them."""
    names: dict[str, object] = {}
    blocks = _blocks(README, "python")
    assert len(blocks) == 4 and len(blocks[0].splitlines()) == 10
    for block in blocks:
        exec(compile(block, "README.md", "exec"), names)
    assert (elsewhere / "gradient.png").exists() and (elsewhere / "run.pt").exists()
    assert names["X"].shape == (16, 5) and len(names["clients"]) == 5


def test_the_figures_of_a_reader_s_own_are_drawn(elsewhere):
    """The style of the figures ends with its block."""
    before, names = dict(mpl.rcParams), {}
    for block in _blocks(ROOT / "docs" / "papers.md", "python"):
        exec(compile(block, "papers.md", "exec"), names)
    assert {path.name for path in elsewhere.glob("*.p*")} == {"valley.png", "rosenbrock.png", "methods.pdf"}
    assert dict(mpl.rcParams) == before
    assert Image.open("valley.png").width == round(plotting.PAGE * 200)


@pytest.mark.parametrize("block", _blocks(ROOT / "docs" / "tutorials" / "black_box.md", "python"))
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
    exec(compile(block, "black_box.md", "exec"), {"__name__": "__main__"})
    (call,) = calls
    assert call.arguments["fun"] is len and call.arguments["workers"] > 1 and "options" not in call.arguments


def test_it_is_short():
    assert len(TEXT.splitlines()) <= 150


@pytest.mark.parametrize("target", sorted({target for _, target in LINK.findall(TEXT)}))
def test_links_lead_somewhere(target):
    if target.startswith("experiments/published/") and not HERE:
        pytest.skip("the committed results are in the repository alone")
    assert (ROOT / target).exists()


def test_the_table_of_methods_has_all_of_them_with_their_modules():
    table = TEXT.split("## Methods")[1].split("\n## ")[0]
    ours, theirs = table.split("of `simulate`**")
    for part, known in ((ours, METHODS), (theirs, ALGORITHMS)):
        links = {name: target for text, target in LINK.findall(part) for name in re.findall(r"`(\w+)`", text)}
        assert links == {name: f"{module.replace('.', '/')}.py" for name, (module, _) in known.items()}


def test_the_black_box_is_minimized_as_the_guide_advises():
    """By its first advice, which is for such a function: whoever changes the one changes the other."""

    def method_of(source):
        call = next(
            n for n in ast.walk(ast.parse(source)) if isinstance(n, ast.Call) and ast.unparse(n.func) == "minimize"
        )
        given = {word.arg: ast.unparse(word.value) for word in call.keywords}
        given |= {"method": ast.unparse(call.args[2])} if len(call.args) > 2 else {}
        return {name: value for name, value in given.items() if name not in ("bounds", "max_queries", "seed")}

    for page in (README, ROOT / "pyproject.toml"):
        block = next(block for block in _blocks(page, "python") if "minimize" in block)
        assert method_of(block) == method_of(ADVICE[0].use)


@needs_results
def test_the_counts_are_those_of_the_published_results():
    assert with_counts(TEXT, ENTRIES) == TEXT
    assert re.findall(r"^\| [A-Z].*--paper (\w+)", TEXT, re.M) == ["zord", "fzoos", "hiso", "katyusha"]
    assert with_counts("no marks", ENTRIES) == "no marks"


def test_the_commands_are_there():
    makefile = (ROOT / "Makefile").read_text()
    named = set(re.findall(r"\bmake ([\w-]+)", TEXT))
    assert named >= {"figures", "test", "docs", "test-flower"}
    assert all(re.search(rf"^{command}:", makefile, re.M) for command in named)
    for name in re.findall(r"gradient-surrogates run (\w[\w-]+)", TEXT):
        assert name in registry.MODULES
    for path in re.findall(r"pytest (tests/[\w/.]+)", TEXT):
        assert (ROOT / path).exists()
