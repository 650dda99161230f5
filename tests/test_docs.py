"""The documentation names what there is: its blocks import it, and its reference has every public name.

``make docs`` runs the tutorials, and holds the pages' links to lead somewhere.
"""

import ast
import importlib
import importlib.util
import inspect
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from federated.registry import ALGORITHMS
from optimizers.registry import METHODS

ROOT = Path(__file__).parents[1]
PACKAGES = ("surrogates", "optimizers", "federated", "experiments")
PAGES = sorted(page for page in (ROOT / "docs").rglob("*.md") if not {"_build", "results"} & set(page.parts))


BLOCK = re.compile(r"^```(?:python|\{code-cell\})\n((?::[^\n]*\n)*)(.*?)^```$", re.M | re.S)


def _blocks(page: Path) -> list[str]:
    """The Python of a page, without cells that are a command of IPython."""
    return [block for _, block in BLOCK.findall(page.read_text()) if not block.startswith("%%")]


def _names():
    spec = importlib.util.spec_from_file_location("names", ROOT / "docs" / "_extension" / "names.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


NAMES = _names()


def _rooms_with_all() -> set[str]:
    """The packages that say by ``__all__`` what is public in them."""
    files = [file for package in PACKAGES for file in (ROOT / package).rglob("__init__.py")]
    return {".".join(f.relative_to(ROOT).parts[:-1]) for f in files if "__all__ = " in f.read_text()}


def test_the_reference_has_every_public_name():
    listed = {path for groups in NAMES.reference().values() for paths in groups.values() for path in paths}
    rooms = _rooms_with_all()
    assert rooms >= {"surrogates", "optimizers", "federated"}
    public = {f"{room}.{name}" for room in rooms for name in importlib.import_module(room).__all__}
    assert public <= listed
    index = (ROOT / "docs" / "reference" / "index.rst").read_text().split()
    assert set(NAMES.reference()) <= set(index)


def test_the_reference_has_the_options_of_what_it_has():
    paths = [path for groups in NAMES.reference().values() for path in groups["Bases and options of these"]]
    assert {path.rpartition(".")[2] for path in paths} >= {"TrajectoryDescent", "SmoothMethod", "StepOptions"}


def test_public_names_say_what_they_are():
    things = {path: NAMES.found(path) for paths in NAMES.public().values() for path in paths}
    silent = [
        path
        for path, thing in things.items()
        if (inspect.isclass(thing) or inspect.isfunction(thing))
        and len(vars(thing).get("__doc__", thing.__doc__) or "") < 20
    ]
    assert not silent


@pytest.mark.parametrize(("package", "known"), [("optimizers", METHODS), ("federated", ALGORITHMS)])
def test_the_page_of_a_method_says_when_to_use_it_and_what_it_costs(package, known):
    for name, (module, cls) in known.items():
        said = vars(getattr(importlib.import_module(module), cls))["__doc__"]
        assert "**When to use it.**" in said and "**Cost.**" in said, f"{package}: {name}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_blocks_import_what_there_is(page):
    given, names = set(), {}
    for block in _blocks(page):
        for node in ast.walk(ast.parse(block)):
            if isinstance(node, ast.ImportFrom) and node.module.partition(".")[0] in PACKAGES:
                given |= {alias.asname or alias.name for alias in node.names}
                exec(ast.unparse(node), names)
    assert given <= names.keys()


@pytest.mark.slow
def test_a_type_checker_finds_no_error_in_the_code_of_the_pages(tmp_path):
    """Pyright, in its basic mode; what it cannot find are packages that are not here, and a reader's own module."""
    pyright = shutil.which("pyright")
    if pyright is None:
        pytest.skip("there is no pyright: pip install pyright, into any environment on PATH; it needs Node.js")
    for page in [*PAGES, ROOT / "README.md"]:
        (tmp_path / f"{page.stem}_page.py").write_text("\n".join(_blocks(page)))
    (tmp_path / "pyrightconfig.json").write_text(json.dumps({"extraPaths": [str(ROOT)]}))
    command = [pyright, "--outputjson", "--pythonpath", sys.executable, "--project", str(tmp_path)]
    found = json.loads(subprocess.run(command, capture_output=True, text=True, check=False).stdout)
    assert found["summary"]["filesAnalyzed"] == len(PAGES) + 1
    errors = [one for one in found["generalDiagnostics"] if one["severity"] == "error"]
    assert [one for one in errors if one.get("rule") != "reportMissingImports" or _ours(one["message"])] == []


def _ours(message: str) -> bool:
    """Whether an import that was not found is of this project."""
    return re.search(r'"(\w+)', message)[1] in PACKAGES


def test_the_design_names_the_rooms_that_there_are():
    rows = re.findall(r"^\| `(\w+)` \| (.*) \|$", (ROOT / "docs" / "design.md").read_text(), re.M)
    assert [floor for floor, _ in rows] == list(reversed(PACKAGES))
    for floor, rooms in rows:
        for room in re.findall(r"`(\w+)`(?= \(|,|;| \(|$)", re.sub(r"\(.*?\)", "", rooms)):
            assert (ROOT / floor / room).exists(), f"{floor}/{room}"


def test_the_report_from_a_table_takes_ten_statements():
    page = ROOT / "docs" / "tutorials" / "sensitivity.md"
    report = page.read_text().partition("## Ten statements")[2]
    assert len(ast.parse(BLOCK.search(report)[2]).body) == 10
