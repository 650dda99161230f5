"""What is built and installed: a small wheel with types, a source distribution without results, and README's blocks.

The slow one installs the wheel alone into an environment that is made for it, with what it depends on from here.
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
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PACKAGES = ("surrogates", "optimizers", "federated", "experiments")


def test_one_version_stands_everywhere():
    citation = (ROOT / "CITATION.cff").read_text()
    assert re.search(r"^version: (.*)$", citation, re.M)[1] == PROJECT["version"]
    assert f"\n## {PROJECT['version']}\n" in (ROOT / "CHANGELOG.md").read_text()


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
    """The wheel and the source distribution, built from the files that git knows, with the setuptools that is here."""
    pytest.importorskip("setuptools", "77")
    if not (ROOT / ".git").exists():
        pytest.skip("what is built are the files that git knows, and this is no checkout")
    source, out = tmp_path_factory.mktemp("source") / "project", tmp_path_factory.mktemp("dist")
    subprocess.run(["git", "clone", "-q", str(ROOT), str(source)], check=True)
    make = "from setuptools import build_meta as b; print(b.build_sdist({0!r})); print(b.build_wheel({0!r}))"
    subprocess.run([sys.executable, "-c", make.format(str(out))], cwd=source, check=True, capture_output=True)
    return next(out.glob("*.whl")), next(out.glob("*.tar.gz"))


@pytest.mark.slow
def test_a_wheel_holds_the_packages_alone(built):
    wheel, _ = built
    assert wheel.stat().st_size < 1_000_000
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        about = HeaderParser().parsestr(
            archive.read(next(name for name in names if name.endswith("METADATA"))).decode()
        )
    assert {name.split("/")[0] for name in names if ".dist-info/" not in name} == set(PACKAGES)
    assert {f"{package}/py.typed" for package in PACKAGES} <= set(names)
    assert [name for name in names if "published" in name] == ["experiments/published/costs.json"]
    assert about["Version"] == PROJECT["version"] and "Typing :: Typed" in about.get_all("Classifier")


@pytest.mark.slow
def test_a_source_distribution_has_no_results_and_builds_the_same_wheel(built, tmp_path):
    wheel, source = built
    with tarfile.open(source) as archive:
        names = [name.partition("/")[2] for name in archive.getnames()]
        archive.extractall(tmp_path, filter="data")
    kept = {name for name in names if name.startswith("experiments/published/")}
    assert kept == {"experiments/published/costs.json", "experiments/published/zord-fig2a.png"}
    assert {"README.md", "CHANGELOG.md", "CITATION.cff", "docs/index.md", "tests/test_package.py"} <= set(names)
    make = f"from setuptools import build_meta; build_meta.build_wheel({str(tmp_path)!r})"
    subprocess.run([sys.executable, "-c", make], cwd=next(tmp_path.iterdir()), check=True, capture_output=True)
    with zipfile.ZipFile(wheel) as one, zipfile.ZipFile(tmp_path / wheel.name) as other:
        assert set(one.namelist()) == set(other.namelist())


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_the_wheel_alone_runs_the_readme(built, tmp_path, monkeypatch):
    """In an environment where nothing else of this project is on the path."""
    monkeypatch.delenv("PYTHONPATH", raising=False)
    wheel, _ = built
    venv.create(tmp_path / "env", with_pip=True)
    python = tmp_path / "env" / "bin" / "python"
    home = Path(sysconfig.get_path("purelib", vars={"base": str(tmp_path / "env")}))
    # Of a folder that a .pth names no .pth is read: an editable install of this checkout is not found through it.
    (home / "here.pth").write_text("\n".join(dict.fromkeys([sysconfig.get_path("purelib"), *_bases()])))
    install = [str(python), "-m", "pip", "install", "-q", "--no-deps", "--no-index", "--ignore-installed", str(wheel)]
    subprocess.run(install, check=True)
    work = tmp_path / "work"
    work.mkdir()
    blocks = re.findall(r"^```python\n(.*?)^```$", (ROOT / "README.md").read_text(), re.M | re.S)
    (work / "readme.py").write_text("import surrogates\nprint(surrogates.__file__)\n" + "\n".join(blocks))
    done = subprocess.run([str(python), "readme.py"], cwd=work, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(str(tmp_path / "env")) and (work / "gradient.png").exists()
    script = tmp_path / "env" / "bin" / "gradient-surrogates"
    said = subprocess.run([str(script), "--version"], cwd=work, capture_output=True, text=True, check=True).stdout
    assert said == f"gradient-surrogates {metadata.version('gradient-surrogates')}\n"
    subprocess.run([str(script), "run", "zord-fig1", "--scale", "quick"], cwd=work, capture_output=True, check=True)
    assert (work / "results" / "zord-fig1.png").exists()


def _bases():
    """Folders of packages that this interpreter has by a .pth of its own."""
    return [entry for entry in sys.path if entry.endswith("site-packages")]
