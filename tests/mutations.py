"""Plausible slips in every algorithm, each of which must fail a test.

    python tests/mutations.py                      make all of them, one after the other
    python tests/mutations.py --jobs 2 zord fzoos  those whose names begin with zord or fzoos, two at a time

A mutation (``tests/mutation_cases.py``) replaces one passage of one file: a sign, a factor 2, swapped weights, a lost
1/d, p for 1 − p. It is made in a copy of the tracked files, never in the working tree, and the tests that must notice
are run there. They must pass in the copy as it is, and fail with the mutation. Where the tests cannot be collected,
take too long, or end in a name or an import that does not exist, the mutation says nothing about a number, and counts
as not caught.

``tests/test_mutations.py`` runs all of them (slow), and checks the list itself (fast).
"""

from __future__ import annotations

import argparse
import importlib.util
import multiprocessing
import os
import queue
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.mutation_cases import MUTATIONS, ROOT, Mutation

PACKAGES = ("surrogates", "optimizers", "federated", "experiments", "tests")

COMPILED = (
    "_numba.py",
    "optimizers/directions/",
    "surrogates/linalg/cholesky.py",
    "surrogates/window/nearest_search.py",
)
"""Parts of the names of files that compiled code is made from, which numba keeps although what it calls has changed."""

NOTHING_SAID = re.compile(
    r"^(?:FAILED|ERROR) .*\b(?:NameError|UnboundLocalError|SyntaxError|ImportError|ModuleNotFoundError|Timeout)\b"
)
LIBRARIES = (
    *("torch", "sympy", "gpytorch", "botorch.fit", "botorch.generation", "botorch.test_functions"),
    *("scipy.stats", "sklearn.linear_model", "numba.typed", "hypothesis", "pytest"),
)
"""What takes longer to import than most tests take to run; the process that all others are forks of imports it."""

FAILED = re.compile(r"^(?:FAILED|ERROR) (?:tests/)?(\S+)", re.MULTILINE)


FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(list(LIBRARIES))


@dataclass(frozen=True)
class Outcome:
    """What the tests did.

    Attributes:
        said: ``"passed"``, ``"failed"``, or how they broke.
        seconds: How long they took.
        test: Which of them failed.
    """

    said: str
    seconds: float
    test: str = ""


class Copy:
    """A copy of the tracked files, as they are in the working tree, in which the tests are run.

    Args:
        folder: An empty folder.
    """

    def __init__(self, folder: Path) -> None:
        self.root, self._folder = folder / "copy", folder
        command = ["git", "ls-files", "-z", *PACKAGES, "pyproject.toml"]
        listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
        for name in listed.split("\0"):
            if name and (ROOT / name).is_file():
                target = self.root / name
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, target)

    def run(self, tests: Iterable[str], fresh: bool = False) -> Outcome:
        """The outcome of tests.

        Args:
            tests: Paths or node ids.
            fresh: Whether to compile everything anew.
        """
        options = ["-q", "-x", "--tb=line", "-p", "no:cacheprovider", "-p", "no:xdist", "--timeout=120"]
        cache = Path(tempfile.mkdtemp(dir=self._folder)) if fresh else self._folder / "cache"
        log = self._folder / "log"
        start = time.perf_counter()
        process = FORKS.Process(target=_tests, args=([*options, *tests], self.root, cache, log))
        process.start()
        process.join()
        seconds, printed = time.perf_counter() - start, log.read_text(encoding="utf-8", errors="replace")
        if fresh:
            shutil.rmtree(cache)
        if process.exitcode == 0:
            return Outcome("passed", seconds)
        failed = FAILED.search(printed)
        test = failed[1] if failed else ""
        broken = [line for line in printed.splitlines() if NOTHING_SAID.match(line)]
        if process.exitcode == 1 and failed and not broken:
            return Outcome("failed", seconds, test)
        last = (broken or printed.strip().splitlines() or [""])[-1]
        return Outcome(f"broke with status {process.exitcode}: {last}", seconds, test)

    def mutated(self, mutation: Mutation) -> Outcome:
        """The outcome of a mutation's tests with the mutation, which is undone after them."""
        path = self.root / mutation.file
        text, stat = mutation.text(self.root), path.stat()
        before = path.read_bytes()
        compile(text, mutation.file, "exec")
        try:
            path.write_text(text, encoding="utf-8")
            return self.run(mutation.tests, fresh=any(part in mutation.file for part in COMPILED))
        finally:
            path.write_bytes(before)
            os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))


def _tests(arguments: list[str], root: Path, cache: Path, log: Path) -> None:
    """Runs tests in a copy and exits with their status, in a process in which libraries are imported already."""
    with log.open("wb") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    os.chdir(root)
    for name in [name for name in os.environ if name.startswith("PYTEST_")]:
        del os.environ[name]
    # Bytecode is told apart by a second and a size only, and so no bytecode is written.
    os.environ |= {"PYTHONPATH": str(root), "PYTHONDONTWRITEBYTECODE": "1", "NUMBA_CACHE_DIR": str(cache)}
    sys.dont_write_bytecode = True
    if "numba" in sys.modules:
        sys.modules["numba"].config.CACHE_DIR = str(cache)
    sys.path[:] = [str(root), *(path for path in sys.path if path and Path(path).resolve() != ROOT)]
    for name in [name for name in sys.modules if name.partition(".")[0] in PACKAGES]:
        del sys.modules[name]
    for name in PACKAGES:
        if (origin := importlib.util.find_spec(name).origin) != str(root / name / "__init__.py"):
            sys.exit(f"{name} would come from {origin}")
    import pytest

    status = int(pytest.main(arguments))
    sys.stdout.flush()
    os._exit(status)


@contextmanager
def copies(count: int = 1) -> Iterator[list[Copy]]:
    """So many copies, which are removed in the end."""
    with tempfile.TemporaryDirectory(prefix="mutations-") as folder:
        yield [Copy(Path(folder).resolve() / str(i)) for i in range(count)]


def needed(mutations: Iterable[Mutation]) -> list[str]:
    """The tests of mutations, each once; none that is in a file or a test that is named too."""
    named = {test for mutation in mutations for test in mutation.tests}
    return sorted(test for test in named if not any(test.startswith((f"{other}::", f"{other}[")) for other in named))


def main() -> int:
    """Run mutations and print what came of them; the number that no test caught."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="mutations, or beginnings of their names; none: all")
    parser.add_argument("--jobs", type=int, default=1, help="mutations at a time")
    arguments = parser.parse_args()
    chosen = [m for m in MUTATIONS if not arguments.names or m.name.startswith(tuple(arguments.names))]
    if not chosen:
        parser.error(f"no mutation begins with {' or '.join(arguments.names)}")
    with copies(max(1, min(arguments.jobs, len(chosen)))) as made:
        unmutated = made[0].run(needed(chosen))
        print(f"{unmutated.seconds:6.1f} s  without a mutation  {unmutated.said}  {unmutated.test}", flush=True)
        if unmutated.said != "passed":
            return len(chosen)
        free: queue.SimpleQueue[Copy] = queue.SimpleQueue()
        for copy in made:
            free.put(copy)

        def run(mutation: Mutation) -> Outcome:
            copy = free.get()
            try:
                return copy.mutated(mutation)
            finally:
                free.put(copy)

        missed = 0
        with ThreadPoolExecutor(len(made)) as pool:
            for mutation, outcome in zip(chosen, pool.map(run, chosen), strict=True):
                missed += outcome.said != "failed"
                print(f"{outcome.seconds:6.1f} s  {mutation.name}  {outcome.said}  {outcome.test}", flush=True)
    print(f"{len(chosen)} mutations, {missed} not caught")
    return missed


if __name__ == "__main__":
    sys.exit(min(main(), 255))
