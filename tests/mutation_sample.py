"""Mutation testing: a seeded sample of mutants of each package, against the tests of the modules that they change.

    python -m tests.mutation_sample surrogates optimizers --count 50 --seed 0

A mutant is one change that cosmic-ray makes at one place (another operator or number, a comparison reversed, a
decorator removed). It is made in a copy of the packages. Its module's tests are the file of the same name in the
mirrored tree; without one the test files that import the module and those of the modules that import it, or, if there
are none, one step further; else those of the mirrored folder. Survivors are printed with the lines that changed, and
at the end of each package the share that was caught.
"""

from __future__ import annotations

import argparse
import difflib
import random
import re
import sys
import tempfile
from pathlib import Path

import grimp
from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code
from cosmic_ray.plugins import get_operator, operator_names

from tests.slips import PACKAGES, ROOT, copy_of_packages, run_tests

# ``|`` stands in annotations, which nothing evaluates; ``>>`` of floats fails in any test; ``is`` is mostly ``==``.
LEFT_OUT = re.compile(r"BitOr_|_(Bit.*|.Shift|Invert)$|(Eq|[LG]tE?)_Is(Not)?$")
OPERATORS = {name: get_operator(name) for name in operator_names() if not LEFT_OUT.search(name)}
OPERATORS = {name: operator() for name, operator in OPERATORS.items() if not operator.arguments()}


def places(package: str) -> list[tuple[Path, tuple[int, int], list[tuple[str, int]]]]:
    """Every place of a package that can change: file, line and column, and the operators with their occurrences."""
    found = []
    for path in sorted((ROOT / package).rglob("*.py")):
        nodes = list(ast_nodes(get_ast(path.read_text(encoding="utf-8"))))
        here: dict[tuple[int, int], list[tuple[str, int]]] = {}
        for name, operator in OPERATORS.items():
            starts = [start for node in nodes for start, _ in operator.mutation_positions(node)]
            for occurrence, start in enumerate(starts):
                here.setdefault(start, []).append((name, occurrence))
        found += [(path.relative_to(ROOT), start, here[start]) for start in sorted(here)]
    return found


def tests_of(path: Path, graph: grimp.ImportGraph) -> list[str]:
    """The test files of a module."""
    mirrored = Path("tests") / path.with_name(f"test_{path.name}")
    if (ROOT / mirrored).exists():
        return [str(mirrored)]
    wave, seen = {".".join(path.with_suffix("").parts).removesuffix(".__init__")}, set()
    while wave:
        seen |= wave
        importers = {importer for module in wave for importer in graph.find_modules_that_directly_import(module)}
        wave = {name for name in importers - seen if (ROOT / f"{name.replace('.', '/')}.py").exists()}
        names = wave | {f"tests.{'.test_'.join(name.rsplit('.', 1))}" for name in wave}
        tests = {f"{name.replace('.', '/')}.py" for name in names if name.rpartition(".")[2].startswith("test_")}
        if tests := sorted(test for test in tests if (ROOT / test).exists()):
            return tests
    folders = [folder for folder in mirrored.parents if any((ROOT / folder).glob("test_*.py"))]
    return [str(test.relative_to(ROOT)) for test in sorted((ROOT / folders[0]).glob("test_*.py"))]


def main() -> None:
    """Make the mutants of each package and print what survived."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("packages", nargs="+", choices=PACKAGES[:-1])
    parser.add_argument("--count", type=int, default=50, help="mutants a package")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    graph = grimp.build_graph(*PACKAGES)
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        root, compiled = copy_of_packages(Path(folder).resolve() / "copy"), Path(folder) / "compiled"
        for package in options.packages:
            draw = random.Random(f"{options.seed} {package}")
            chosen = draw.sample(places(package), options.count)
            sample = [(path, tests_of(path, graph), draw.choice(ways)) for path, _, ways in chosen]
            status, said = run_tests(root, sorted({test for _, tests, _ in sample for test in tests}), compiled)
            if status:
                sys.exit(f"Without a mutant the tests must pass: {said}")
            made = survived = 0
            for number, (path, tests, (name, occurrence)) in enumerate(sample, start=1):
                whole = (root / path).read_text(encoding="utf-8")
                mutant = mutate_code(whole, OPERATORS[name], occurrence)
                try:
                    compile(mutant, path, "exec")
                except SyntaxError:  # cosmic-ray takes the ``*`` before keyword arguments for a product
                    continue
                made += 1
                (root / path).write_text(mutant, encoding="utf-8")
                cache = Path(folder) / f"{package}-{number}" if "numba" in whole else compiled
                status, said = run_tests(root, tests, cache)
                (root / path).write_text(whole, encoding="utf-8")
                caught = status in (1, 2)  # 5: nothing ran, as where all of the tests are slow
                survived += not caught
                if not caught:
                    lines = difflib.unified_diff(whole.splitlines(), mutant.splitlines(), str(path), name, n=0)
                    said = "\n    ".join(line.rstrip() for line in lines)
                print(f"{number:3d}  {'caught' if caught else 'SURVIVED'}  {path}  {said}", flush=True)
            print(f"{package}: {made - survived} of {made} caught", flush=True)


if __name__ == "__main__":
    main()
