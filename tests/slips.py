"""Slips against the papers: each is a mark of the test that must catch it.

    @pytest.mark.slip(file, before, after, what, of="federated/fedprox")

says that the test fails where the only occurrence of ``before`` in ``file`` becomes ``after``. This makes slips, each
in a copy of the packages, runs the tests there and says which slips were not caught:

    python -m tests.slips                  all of them
    python -m tests.slips fedprox prox.py  those whose mark, or whose test, contains one of these texts
"""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("surrogates", "optimizers", "federated", "experiments", "tests")
MUTATED = "GRADIENT_SURROGATES_MUTATED"
"""An environment variable: where it is set, the files are not as the marks say."""


@dataclass(frozen=True)
class Slip:
    """A slip.

    Attributes:
        file: The file, relative to the root.
        before: A passage that occurs in it once.
        after: The passage with the slip.
        what: What the slip is, with the equation or line of the paper.
        of: The registered algorithms that it is a slip of, ``"optimizers/zord federated/fzoos"``.
    """

    file: str
    before: str
    after: str
    what: str
    of: str = ""

    def text(self, root: Path = ROOT) -> str:
        """The file with the slip.

        Raises:
            ValueError: If the passage does not occur exactly once.
        """
        path = root / self.file
        text = path.read_text(encoding="utf-8") if path.is_file() else ""
        if (count := text.count(self.before)) != 1:
            raise ValueError(
                f"This test has a mark for a slip in {self.file}, whose passage {self.before!r} occurs there {count} "
                f"times and must occur once. Change the mark to what the line is now ({self.what})."
            )
        return text.replace(self.before, self.after)


def marked() -> Iterator[tuple[str, Slip]]:
    """The slips of all test modules, each with the node id of its test."""
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        text = path.read_text(encoding="utf-8")
        for node in ast.parse(text).body if "@pytest.mark.slip(" in text else ():
            for mark in getattr(node, "decorator_list", ()):
                if isinstance(mark, ast.Call) and ast.unparse(mark.func) == "pytest.mark.slip":
                    words = {word.arg: ast.literal_eval(word.value) for word in mark.keywords}
                    test = f"{path.relative_to(ROOT).as_posix()}::{node.name}"
                    yield test, Slip(*map(ast.literal_eval, mark.args), **words)


def copy_of_packages(folder: Path) -> Path:
    """A copy of the packages and of pyproject.toml in a folder of its own."""
    for name in PACKAGES:
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__", "published"))
    return Path(shutil.copy2(ROOT / "pyproject.toml", folder)).parent


def run_tests(root: Path, tests: Iterable[str], compiled: Path) -> tuple[int, str]:
    """The exit status of pytest in a copy, and the first test that failed; ``compiled`` is numba's cache.

    No bytecode is written, as Python tells old from new by a second and a size only.
    """
    environment = {**os.environ, MUTATED: "1", "PYTHONPATH": str(root), "NUMBA_CACHE_DIR": str(compiled)}
    environment |= {"PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"}
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-x",
        "--tb=line",
        "-p",
        "no:cacheprovider",
        "--timeout=120",
        *tests,
    ]
    try:
        done = subprocess.run(
            command, cwd=root, env=environment, capture_output=True, text=True, check=False, timeout=1200
        )
    except subprocess.TimeoutExpired:
        return 1, "did not end within 20 minutes"
    failed = re.search(r"^(?:FAILED|ERROR) (.*)", done.stdout, re.MULTILINE)
    return done.returncode, failed[1] if failed else done.stdout[-300:] + done.stderr[-300:]


def main(words: list[str]) -> int:
    """The number of slips that no test caught."""
    chosen = [(test, slip) for test, slip in marked() if not words or any(word in f"{test} {slip}" for word in words)]
    missed = 0
    with tempfile.TemporaryDirectory(prefix="slips-") as folder:
        root, compiled = copy_of_packages(Path(folder).resolve() / "copy"), Path(folder) / "compiled"
        status, said = run_tests(root, sorted({test for test, _ in chosen}), compiled)
        if status:
            sys.exit(f"Without a slip the tests must pass: {said}")
        for number, (test, slip) in enumerate(chosen):
            path = root / slip.file
            whole = path.read_text(encoding="utf-8")
            path.write_text(slip.text(root), encoding="utf-8")
            # Numba keeps compiled code although a function that it calls has changed.
            status, said = run_tests(root, [test], Path(folder) / str(number) if "numba" in whole else compiled)
            path.write_text(whole, encoding="utf-8")
            missed += status != 1
            print(f"{'caught' if status == 1 else 'MISSED'}  {slip.file}: {slip.what}\n        {said}", flush=True)
    print(f"{len(chosen)} slips, {missed} not caught")
    return missed


if __name__ == "__main__":
    sys.exit(min(main(sys.argv[1:]), 255))
