"""What is built and installed: two small wheels with types, source distributions without results, and README's blocks.

The slow one installs the wheels into an environment that is made for them, with what they depend on from here.
"""

import re
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import venv
import zipfile
from email.parser import HeaderParser
from importlib import metadata
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
COMMAND = ROOT / "experiments"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXPERIMENTS = tomllib.loads((COMMAND / "pyproject.toml").read_text())
PACKAGES = ("surrogates", "optimizers", "federated")


def test_one_version_stands_everywhere():
    citation = (ROOT / "CITATION.cff").read_text()
    assert re.search(r"^version: (.*)$", citation, re.M)[1] == PROJECT["version"]
    assert f"\n## {PROJECT['version']}\n" in (ROOT / "CHANGELOG.md").read_text()
    assert EXPERIMENTS["project"]["version"] == PROJECT["version"]
    assert f"gradient-surrogates=={PROJECT['version']}" in EXPERIMENTS["project"]["dependencies"]


def test_the_experiments_are_distributed_with_all_their_packages_the_licence_and_the_same_pythons():
    tree = {path.parent.relative_to(ROOT).parts for path in COMMAND.rglob("__init__.py")}
    packages = EXPERIMENTS["tool"]["setuptools"]["packages"]
    assert packages == sorted(".".join(parts) for parts in tree if "build" not in parts)
    assert (COMMAND / "LICENSE").read_text() == (ROOT / "LICENSE").read_text()
    for same in ("requires-python", "license", "authors"):
        assert EXPERIMENTS["project"][same] == PROJECT[same]


def test_the_old_name_of_an_extra_brings_what_compare_needs():
    extras = PROJECT["optional-dependencies"]
    assert extras["experiments"] == ["gradient-surrogates[compare]"] and extras["compare"] == ["cma>=4.0"]


def test_the_citation_has_what_its_format_asks_for():
    """Citation File Format 1.2: its required keys, and a type, a title and authors for each reference."""
    yaml = pytest.importorskip("yaml")
    found = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert set(found) >= {"cff-version", "message", "title", "authors"} and found["cff-version"] == "1.2.0"
    assert len(found["references"]) == 4
    assert all(set(reference) >= {"type", "title", "authors"} for reference in found["references"])


def test_the_pages_of_an_index_have_no_links_into_the_repository_and_their_block_runs():
    text = PROJECT["readme"]["text"]
    assert not re.search(r"!\[|\]\((?!https://)", text)
    (block,) = re.findall(r"^```python\n(.*?)^```$", text, re.M | re.S)
    exec(compile(block, "description", "exec"), {})


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """By folder, the wheel and the source distribution, built from the files that git knows, by the setuptools here."""
    pytest.importorskip("setuptools", "77")
    if not (ROOT / ".git").exists():
        pytest.skip("what is built are the files that git knows, and this is no checkout")
    source, out = tmp_path_factory.mktemp("source") / "project", tmp_path_factory.mktemp("dist")
    subprocess.run(["git", "clone", "-q", str(ROOT), str(source)], check=True)
    made = {}
    for folder in (".", "experiments"):
        for kind, pattern in (("wheel", "*.whl"), ("sdist", "*.tar.gz")):
            made[folder, kind] = next((_make(source / folder, kind, out / folder / kind)).glob(pattern))
    return made


def _make(project: Path, kind: str, out: Path) -> Path:
    out.mkdir(parents=True)
    make = f"from setuptools import build_meta; build_meta.build_{kind}({str(out)!r})"
    subprocess.run([sys.executable, "-c", make], cwd=project, check=True, capture_output=True)
    return out


def _names(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("folder", "packages", "data"),
    [
        (".", PACKAGES, {"federated/flower/app/pyproject.toml"}),
        (
            "experiments",
            ("experiments",),
            {f"experiments/{name}" for name in ("published/costs.json", "report/guide.toml", "report/summary.toml")},
        ),
    ],
)
def test_a_wheel_holds_its_packages_alone(built, folder, packages, data):
    wheel = built[folder, "wheel"]
    names = _names(wheel)
    assert wheel.stat().st_size < 1_000_000
    installed = {name for name in names if ".dist-info/" not in name}
    assert {name.split("/")[0] for name in installed} == set(packages)
    assert {name for name in installed if not name.endswith(".py")} == data | {f"{one}/py.typed" for one in packages}
    with zipfile.ZipFile(wheel) as archive:
        about = HeaderParser().parsestr(
            archive.read(next(name for name in names if name.endswith("METADATA"))).decode()
        )
    assert about["Version"] == PROJECT["version"] and "Typing :: Typed" in about.get_all("Classifier")
    assert about.get_all("License-File") == ["LICENSE"]


@pytest.mark.slow
def test_source_distributions_have_no_results_and_build_the_same_wheels(built, tmp_path):
    for folder in (".", "experiments"):
        with tarfile.open(built[folder, "sdist"]) as archive:
            names = {name.partition("/")[2] for name in archive.getnames()}
            archive.extractall(tmp_path / "sources" / folder, filter="data")
        within = "experiments/published/" if folder == "." else "published/"
        figure = {within + f"{name}.png" for name in ("problems-bbob-100d", "zord-fig2b")} if folder == "." else set()
        assert {name for name in names if name.startswith(within)} == {within + "costs.json"} | figure
        if folder == ".":
            assert {"README.md", "CHANGELOG.md", "CITATION.cff", "docs/index.md", "tests/test_package.py"} <= names
        wheel = built[folder, "wheel"]
        (project,) = (path for path in (tmp_path / "sources" / folder).iterdir() if path.name != "experiments")
        assert _names(_make(project, "wheel", tmp_path / "again" / folder) / wheel.name) == _names(wheel)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_the_wheels_alone_run_the_readme(built, tmp_path, monkeypatch):
    """In an environment where nothing else of this project is on the path, first with the library's wheel only."""
    monkeypatch.delenv("PYTHONPATH", raising=False)
    venv.create(tmp_path / "env", with_pip=True)
    python = tmp_path / "env" / "bin" / "python"
    home = Path(sysconfig.get_path("purelib", vars={"base": str(tmp_path / "env")}))
    # Of a folder that a .pth names no .pth is read: an editable install of this checkout is not found through it.
    (home / "here.pth").write_text("\n".join(dict.fromkeys([sysconfig.get_path("purelib"), *_bases()])))
    install = [str(python), "-m", "pip", "install", "-q", "--no-deps", "--no-index", "--ignore-installed"]
    subprocess.run([*install, str(built[".", "wheel"])], check=True)
    work = tmp_path / "work"
    (work / "experiments").mkdir(parents=True)
    (work / "experiments" / "mine.py").write_text("number = 3\n")
    blocks = re.findall(r"^```python\n(.*?)^```$", (ROOT / "README.md").read_text(), re.M | re.S)
    said = "import surrogates\nfrom experiments.mine import number\nprint(surrogates.__file__, number)\n"
    (work / "readme.py").write_text(said + "\n".join(blocks))
    done = subprocess.run([str(python), "readme.py"], cwd=work, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(str(tmp_path / "env")) and (work / "gradient.png").exists()
    subprocess.run([*install, str(built["experiments", "wheel"])], check=True)
    script = tmp_path / "env" / "bin" / "gradient-surrogates"
    said = subprocess.run([str(script), "--version"], cwd=work, capture_output=True, text=True, check=True).stdout
    assert said == f"gradient-surrogates {metadata.version('gradient-surrogates')}\n"
    subprocess.run([str(script), "run", "zord-fig1", "--scale", "quick"], cwd=work, capture_output=True, check=True)
    assert (work / "results" / "zord-fig1.png").exists()


def _bases():
    """Folders of packages that this interpreter has by a .pth of its own."""
    return [entry for entry in sys.path if entry.endswith("site-packages")]
