"""The README runs, leads somewhere, and says what the project's own results say."""

import ast
import inspect
import re
import sys
import types
from importlib import import_module
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
    assert [len(block.splitlines()) for block in blocks] == [10, 10, 5]
    for block in blocks:
        exec(compile(block, "README.md", "exec"), names)
    assert (elsewhere / "gradient.png").exists()
    weight, stresses = names["truss"](names["np"].array([0.7887, 0.4083]))  # the optimum of the literature
    assert weight == pytest.approx(263.9, abs=0.1) and stresses.max() == pytest.approx(2.0, abs=1e-3)
    assert names["result"].ledger.total("queries") == 5 * 10 * 5 * 6


def test_the_figures_of_a_reader_s_own_are_drawn(elsewhere):
    """The style of the figures ends with its block."""
    before, names = dict(mpl.rcParams), {}
    for block in _blocks(ROOT / "docs" / "papers.md", "python"):
        exec(compile(block, "papers.md", "exec"), names)
    assert {path.name for path in elsewhere.glob("*.p*")} == {"valley.png", "rosenbrock.png", "methods.pdf"}
    assert dict(mpl.rcParams) == before
    assert Image.open("valley.png").width == round(plotting.PAGE * 200)


@pytest.mark.parametrize("block", _blocks(ROOT / "docs" / "guide" / "distribute.md", "python"))
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
    exec(compile(block, "distribute.md", "exec"), {"__name__": "__main__"})
    (call,) = calls
    assert call.arguments["fun"] is len and call.arguments["workers"] > 1 and "options" not in call.arguments


def test_it_is_short():
    assert len(TEXT.splitlines()) <= 150


@pytest.mark.parametrize("target", sorted({target for _, target in LINK.findall(TEXT)}))
def test_links_lead_somewhere(target):
    if target.startswith("experiments/published/") and not HERE:
        pytest.skip("the committed results are in the repository alone")
    assert (ROOT / target).exists()


def test_the_page_of_methods_leads_to_all_of_them():
    page = (ROOT / "docs" / "methods.md").read_text()
    ours, theirs = page.split("## Algorithms of `simulate`")
    for part, known in ((ours, METHODS), (theirs, ALGORITHMS)):
        links = dict(re.findall(r"\{py:obj\}`(\w+) <([\w.]+)>`", part))
        things = {
            name: getattr(import_module(path.rpartition(".")[0]), path.rpartition(".")[2])
            for name, path in links.items()
        }
        assert things == {name: getattr(import_module(module), cls) for name, (module, cls) in known.items()}


def test_the_first_call_is_as_the_guide_advises():
    """By its first advice: whoever changes the one changes the other."""

    def method_of(source):
        call = next(
            n for n in ast.walk(ast.parse(source)) if isinstance(n, ast.Call) and ast.unparse(n.func) == "minimize"
        )
        given = {word.arg: ast.unparse(word.value) for word in call.keywords}
        given |= {"method": ast.unparse(call.args[2])} if len(call.args) > 2 else {}
        return {
            name: value for name, value in given.items() if name not in ("bounds", "constraints", "max_queries", "seed")
        }

    for page in (README, ROOT / "pyproject.toml"):
        block = next(block for block in _blocks(page, "python") if "minimize" in block)
        assert method_of(block) == method_of(ADVICE[0].use)


@needs_results
def test_the_counts_are_those_of_the_published_results():
    assert with_counts(TEXT, ENTRIES) == TEXT
    assert re.findall(r"^\| [A-Z].*--paper (\w+)", TEXT, re.M) == ["zord", "fzoos", "hiso", "katyusha"]
    assert with_counts("no marks", ENTRIES) == "no marks"


@needs_results
def test_the_intervals_are_those_of_the_published_results():
    intervals = re.findall(r"−?[\d.]+\s\(−?[\d.]+\sto\s−?[\d.]+\)", TEXT)
    page = (ROOT / "experiments" / "published" / "which-method.md").read_text()
    assert len(intervals) == 6
    assert [given for given in intervals if " ".join(given.replace("−", "-").split()) not in page] == []


def test_the_commands_are_there():
    makefile = (ROOT / "Makefile").read_text()
    named = set(re.findall(r"\bmake ([\w-]+)", TEXT))
    assert named >= {"figures", "test", "docs"}
    assert all(re.search(rf"^{command}:", makefile, re.M) for command in named)
    for name in re.findall(r"gradient-surrogates run (\w[\w-]+)", TEXT):
        assert name in registry.MODULES
    for path in re.findall(r"pytest (tests/[\w/.]+)", TEXT):
        assert (ROOT / path).exists()
