"""``python -m experiments benchmark problems``: compares our methods and other libraries' on third-party problems.

The suites are COCO's bbob, bbob-noisy, bbob-largescale, bbob-constrained and bbob-mixint (extra ``problems``), the real
black boxes, and the tuning of hyperparameters. Each run is stored in DIR/problems.runs when it ends; --resume continues
from there. The tables, DIR/problems-SUITE.txt, and the page's files (python -m experiments report --from DIR) use all
runs in the folder. Instances 16 to 20, which are run once after the code is frozen, have separate tables,
DIR/problems-SUITE-fresh.txt. COCO's own files are in DIR/coco; compare them with any archive by python -m cocopp
DIR/coco/bbob-20d/trust_region OTHERS.
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from tqdm import tqdm

from experiments import registry
from experiments.benchmarks.problems import page
from experiments.benchmarks.problems.rivals import RIVALS
from experiments.benchmarks.problems.runs import COCO, Record, Run, make, read
from experiments.benchmarks.problems.suites import BOXES, SUITES, Suite, chosen
from experiments.program import plain, program
from experiments.workloads.black_boxes import BlackBox

PUBLISHED = range(11, 16)
"""The instances of the published tables, which are not used for tuning."""


def main(arguments: Sequence[str]) -> int:
    """Runs the benchmark; returns 0, or 130 on an interrupt."""
    options = _options(arguments)
    if not options.tables:
        runs = _runs(options)
        made, quiet = list[Record](), not sys.stderr.isatty()
        with tqdm(total=len(runs), file=sys.stderr, disable=quiet, unit="run", dynamic_ncols=True) as bar:

            def told(record: Record) -> None:
                made.append(record)
                bar.set_postfix_str(f"{record.run.method} {record.run.problem.name}", refresh=False)
                bar.update()
                if record.failure:
                    tqdm.write(f"{record.run.method} on {record.run.problem.name}: {record.failure}", sys.stderr)

            try:
                make(runs, options.out, options.jobs, options.resume, told)
            except KeyboardInterrupt:
                print(f"\ninterrupted; {len(made)} finished runs are kept, and --resume continues", file=sys.stderr)
                return 130
    return _show(options.out, shlex.join(["python", "-m", "experiments", "benchmark", "problems", *arguments]))


def _show(out: Path, command: str) -> int:
    records = page.by_name(read(out))
    if not records:
        raise ValueError(f"{out} has no runs to make tables from; omit --tables to run the benchmark")
    for name, own in records.items():
        print(f"\n{name}\n")
        print("\n".join(page.write(name, own, out, command)))
    print(f"written: {', '.join(f'{out}/{name}.txt' for name in records)}")
    print(f"build a page with: {program()} report --from {out}")
    folders = sorted(path for path in (out / COCO).glob("*/*") if not path.parent.name.startswith("."))
    if folders:
        print(f"plot COCO's runtime distributions with: python -m cocopp {' '.join(map(str, folders))}")
    return 0


def _runs(options: argparse.Namespace) -> list[Run]:
    """Returns the selected runs, problem by problem, so that an interrupt leaves all methods on the same problems."""
    methods = [RIVALS[name] for name in options.methods or RIVALS]
    here = [rival for rival in methods if not rival.missing]
    for rival in methods:
        if rival.missing:
            print(f"left out: {rival.name} needs {', '.join(rival.missing)}, which is not installed", file=sys.stderr)
    found: list[Run] = []
    for name in options.suite:
        suite = SUITES[name]
        functions = [int(text) if text.isdigit() else text for text in options.functions]
        problems = chosen(suite, options.dimensions, functions, options.instances, options.budget)
        if name not in BOXES:
            registry.require("problems", f"the suite {name}")
        elif not functions:
            _say_what_is_missing(BOXES[name].values())
        for problem in problems:
            taking = (r for r in here if options.anywhere or r.takes(problem, suite.functions, options.instances))
            found += [Run(rival.name, problem) for rival in taking]
    if not found:
        raise ValueError("no selected method runs on the selected problems by default; pass --anywhere to run them")
    return found


def _say_what_is_missing(boxes: Iterable[BlackBox]) -> None:
    for box in boxes:
        if box.missing:
            print(f"left out: {registry.MissingExtraError(box.name, box.missing, 'problems')}", file=sys.stderr)


def _queries(suite: Suite) -> str:
    return f"{suite.factor} d queries" if suite.dimensions else "their own budgets"


def _numbers(text: str) -> list[int]:
    first, _, last = text.partition("-")
    try:
        return list(range(int(first), int(last or first) + 1))
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be a number or a range such as 11-15, got {text!r}") from None


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    rows = "\n".join(f"  {rival.name:14} {rival.where}: {rival.why}" for rival in RIVALS.values())
    suites = "\n".join(
        f"  {s.name:16} d = {', '.join(map(str, s.dimensions)) or 'their own'}; {_queries(s)}" for s in SUITES.values()
    )
    parser = argparse.ArgumentParser(
        prog=f"{program()} benchmark problems",
        description=plain(__doc__),
        epilog=f"suites and their default dimensions:\n{suites}\n\nmethods, and where they run:\n{rows}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--suite", nargs="+", choices=SUITES, default=["bbob"], metavar="SUITE", help="default: bbob")
    add("--methods", nargs="+", choices=RIVALS, metavar="METHOD", help="default: all, listed below")
    add("--anywhere", action="store_true", help="run methods on problems where they do not run by default, see below")
    add("--dimensions", nargs="+", type=int, default=[], metavar="D", help="default: the suite's, listed below")
    add("--functions", nargs="+", default=[], metavar="F", help="numbers, or names of black boxes; default: all")
    instances = f"numbers or ranges from 4 on, or seeds of black boxes; default: {PUBLISHED[0]}-{PUBLISHED[-1]}"
    add("--instances", nargs="+", type=_numbers, default=[list(PUBLISHED)], metavar="I", help=instances)
    add("--budget", type=int, metavar="K", help="K d queries per run on COCO's suites; default: the suite's, see below")
    add("--jobs", type=int, default=1, metavar="J", help="processes, each with one thread; default: 1")
    add("--resume", action="store_true", help="keep the runs or the tables in DIR")
    add("--tables", action="store_true", help="only build tables and page of the runs in DIR")
    add("--out", type=Path, default=Path("results"), metavar="DIR", help="default: results")
    options = parser.parse_args(arguments)
    options.instances = [number for numbers in options.instances for number in numbers]
    if options.jobs < 1 or (options.budget is not None and options.budget < 1):
        parser.error(f"--jobs and --budget must be at least 1, got {options.jobs} and {options.budget}")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    return options
