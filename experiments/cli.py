"""The command line ``gradient-surrogates`` (``python -m experiments``)."""

from __future__ import annotations

import argparse
import difflib
import importlib
import json
import os
import shlex
import sys
import textwrap
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tqdm import tqdm

from experiments import __version__, registry
from experiments.harness.experiment import PAPERS, SCALES, counted, paper_of
from experiments.harness.verdicts import OWN_WORDS, STATUSES
from experiments.program import SCRIPT, program
from experiments.workloads.data import NAMES as DATA_SETS
from experiments.workloads.data import folder_of

if TYPE_CHECKING:
    from experiments.running.runner import Run

SHELLS = ("bash", "zsh", "tcsh")


class _Command(argparse.ArgumentParser):
    """An argument parser that suggests the closest valid choice."""

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        try:
            super()._check_value(action, value)
        except argparse.ArgumentError as error:
            error.message += _nearest(str(value), action.choices or ())
            raise


def _nearest(given: str | None, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(given or "", list(known), n=1)
    return f"; did you mean {near[0]}?" if near else ""


def main(argv: Sequence[str]) -> int:
    """Runs one command; returns 0 on success, 1 if something failed, 2 for bad input, 130 on an interrupt."""
    from experiments.running.runner import FULL_DISK

    parser = _parser()
    commands = _commands(parser)
    try:
        if list(argv) in (["benchmark", "-h"], ["benchmark", "--help"]):  # after a name it is the benchmark's own
            commands["benchmark"].print_help()
            return 0
        arguments, rest = parser.parse_known_args(argv)
        if rest and arguments.command != "benchmark":
            command = commands[arguments.command]
            option = next((text for text in rest if text.startswith("--")), None)
            command.error(f"unrecognized arguments: {' '.join(rest)}{_nearest(option, command._option_string_actions)}")
        return _dispatch(arguments, rest, shlex.join(["python", "-m", "experiments", *argv]))
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        if isinstance(error, OSError) and error.errno in FULL_DISK:
            print(
                "the disk is full; finished seeds are kept: free some space and continue with --resume", file=sys.stderr
            )
        return 2


def _dispatch(arguments: argparse.Namespace, rest: list[str], command: str) -> int:
    match arguments.command:
        case "list":
            _list(arguments)
        case "completion":
            print(_completion(arguments.shell))
        case "benchmark":
            return int(importlib.import_module(registry.BENCHMARKS[arguments.name]).main(rest) or 0)
        case "report":
            from experiments.report.pages import write_pages

            page, left_out = write_pages(arguments.folder)
            for line in left_out:
                print(f"left out: {line}", file=sys.stderr)
            print(f"wrote {page}: open it in your editor's Markdown preview (VS Code: Ctrl+Shift+V) or in JupyterLab,")
            print(f"or read it in the terminal without figures: python -m rich.markdown {shlex.quote(str(page))}")
        case "publish":
            from experiments.report.publish import publish

            print(*publish(arguments.folder, arguments.target, arguments.names, arguments.readme), sep="\n")
        case "data":
            from experiments.workloads.data import fetch

            print(fetch(arguments.name, arguments.data))
        case "figures":
            return _run(list(registry.ESTIMATION_ERROR), arguments, command)
        case _:
            return _run(_chosen(arguments), arguments, command)
    return 0


def _list(arguments: argparse.Namespace) -> None:
    from experiments.running.listing import console, described, listing

    found = described(arguments.paper, arguments.data)
    if arguments.json:
        print(json.dumps(found, indent=1, ensure_ascii=False))
        return
    terminal = console()
    for table in listing(found):
        terminal.print(table)
        terminal.print()
    terminal.print(f"Times are processor times for all seeds of a scale. Benchmarks: {', '.join(found['benchmarks'])}")


def _completion(shell: str) -> str:
    import shtab

    parser = _parser(SCRIPT, complete=True)
    for command in _commands(parser).values():
        for action in command._actions:
            if action.type is Path:
                kind = shtab.DIRECTORY if action.metavar == "DIR" else shtab.FILE
                action.complete = kind  # type: ignore[attr-defined]
    return shtab.complete(parser, shell)


def _commands(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    (found,) = (action.choices for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    return dict(found)


def _parser(name: str | None = None, complete: bool = False) -> argparse.ArgumentParser:
    parser = _Command(
        prog=name or program(),
        description="Repeat the figures and tables of the papers, and judge the claims of each paper.",
        epilog="COMMAND --help describes a command.",
    )
    parser.add_argument("--version", action="version", version=f"{SCRIPT} {__version__}")
    strict: Any = partial(_Command, allow_abbrev=False)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND", parser_class=strict)
    ids: Any = {"nargs": "*", "metavar": "ID", "choices": list(registry.MODULES) if complete else None}
    known = commands.add_parser("list", help="list the experiments with their costs and requirements")
    known.add_argument("--json", action="store_true", help="print JSON")
    run = commands.add_parser("run", help="run experiments by id, by paper, or all of them")
    run.add_argument("names", help="ids, see list", **ids)
    run.add_argument("--all", action="store_true", help="every experiment")
    for subparser in (known, run):
        subparser.add_argument("--paper", choices=list(PAPERS), help="only the experiments of one paper")
        where = "folder with data set NAME in DIR/NAME; default: stand-ins"
        subparser.add_argument("--data", type=Path, metavar="DIR", help=where)
    run.add_argument("--device", help="device of the experiments that support it: cpu, cuda")
    figures = commands.add_parser("figures", help="all estimation-error figures (make figures)")
    for subparser in (run, figures):
        subparser.add_argument("--seeds", type=int, metavar="K", help="seeds 0 to K-1, at least 2")
        subparser.add_argument("--out", type=Path, default=Path("results"), metavar="DIR", help="default: results")
        subparser.add_argument("--jobs", type=int, metavar="J", help="processes; default: one for each core")
        subparser.add_argument("--scale", default="paper", choices=SCALES, help="default: paper")
        subparser.add_argument("--resume", action="store_true", help="keep finished seeds and experiments")
    data = commands.add_parser("data", help="download a data set of the papers by its usual loader")
    data.add_argument("name", metavar="NAME", choices=DATA_SETS, help=", ".join(DATA_SETS))
    data.add_argument("--data", type=Path, required=True, metavar="DIR", help="the data set is stored in DIR/NAME")
    report = commands.add_parser("report", help="write the results of a folder as Markdown pages into the folder")
    publish = commands.add_parser("publish", help="copy results and pages to a folder under version control")
    for subparser in (report, publish):
        made: Any = {"dest": "folder", "type": Path, "default": Path("results"), "metavar": "DIR"}
        subparser.add_argument("--from", help="folder of the results; default: results", **made)
    publish.add_argument("names", help="default: all finished experiments of the folder", **ids)
    target: Any = {"dest": "target", "type": Path, "required": True, "metavar": "DIR"}
    publish.add_argument("--to", help="target; the same folder as --from rebuilds its verdicts and pages", **target)
    publish.add_argument("--readme", type=Path, metavar="FILE", help="file whose table of outcomes is updated")
    peers, more = "time the library against its alternatives", "NAME --help describes a benchmark."
    benchmark = commands.add_parser("benchmark", help=peers, epilog=more, add_help=False)
    timed = [*registry.BENCHMARKS]
    benchmark.add_argument("name", metavar="NAME", choices=timed, help=", ".join(timed))
    completion = commands.add_parser("completion", help="print a script for shell completion")
    completion.add_argument("shell", choices=SHELLS, help="the shell")
    return parser


def _chosen(arguments: argparse.Namespace) -> list[str]:
    if arguments.names and (arguments.paper or arguments.all):
        raise ValueError("run takes only one of these: ids, --paper or --all")
    if arguments.names:
        return list(arguments.names)
    if not arguments.paper and not arguments.all:
        raise ValueError("run needs ids (see list), --paper PAPER or --all")
    return list(registry.MODULES)


def _available(names: list[str], arguments: argparse.Namespace) -> tuple[list[str], list[str]]:
    """Returns the ids of the chosen paper that can run here, and a reason for each that cannot."""
    from experiments.running.runner import available, configured

    can, cannot = list[str](), list[str]()
    for name in (name for name in names if arguments.paper in (None, paper_of(name))):
        try:
            configured(available(name), arguments.scale, None, arguments.data)
            can.append(name)
        except ValueError as error:
            cannot.append(str(error))
    return can, cannot


def _say_what_stands_in(names: list[str], data: Path | None) -> None:
    if data is None or not data.is_dir():
        return
    for name in names:
        wanted = registry.get(name).data
        if wanted and not any(folder_of(data, one).exists() for one in wanted):
            print(f"{name}: {data} has no {' and no '.join(wanted)}; a stand-in is used", file=sys.stderr)


def _run(names: list[str], arguments: argparse.Namespace, command: str) -> int:
    from experiments.running.listing import console, finished
    from experiments.running.runner import Interrupted, run_experiments

    start = time.perf_counter()
    left_out: list[str] = []
    options = {name: getattr(arguments, name) for name in ("seeds", "scale", "jobs", "resume")}
    if arguments.command == "run":
        options |= {"device": arguments.device, "data": arguments.data}
        if not arguments.names:
            names, left_out = _available(names, arguments)
            for reason in left_out:
                print(f"left out: {reason}", file=sys.stderr)
        _say_what_stands_in(names, arguments.data)
    try:
        outcomes = run_experiments(names, arguments.out, command=command, report=_print_outcome, **options)
    except Interrupted as interrupted:
        print("\ninterrupted; finished seeds are kept, and --resume continues from them:", file=sys.stderr)
        for outcome in interrupted.runs:
            print(f"  {outcome.experiment.id}: {outcome.finished} seeds", file=sys.stderr)
        return 130
    terminal = console()
    terminal.print()
    terminal.print(finished(outcomes, arguments.out))
    verdicts = [verdict for outcome in outcomes for verdict in outcome.verdicts]
    papers = Counter(verdict.status for verdict in verdicts if not verdict.control)
    own = Counter(verdict.status for verdict in verdicts if verdict.control)
    failed = [outcome.experiment.id for outcome in outcomes if outcome.failure]
    ended = len(outcomes) - len(failed)
    print(f"\n{counted(ended, 'experiment')} in {time.perf_counter() - start:.0f} s")
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    print("claims of the papers:", ", ".join(f"{papers[status]} {status}" for status in STATUSES))
    print(
        "our own claims:", ", ".join(f"{own[status]} {words[own[status] != 1]}" for status, words in OWN_WORDS.items())
    )
    print(f"figures are in {arguments.out}/ID.png, next to .pdf, .csv, .settings.json and .verdicts.json;")
    print(f"build pages of all results with: {program()} report --from {shlex.quote(str(arguments.out))}")
    return 1 if failed or left_out else 0


def _print_outcome(outcome: Run) -> None:
    with tqdm.external_write_mode(file=sys.stdout):
        experiment = outcome.experiment
        print(f"\n{experiment.id} ({experiment.source}): {experiment.shown(outcome.settings)}")
        for verdict in outcome.verdicts:
            print(textwrap.fill(verdict.line(), 110, initial_indent="  ", subsequent_indent="    "))
        sys.stdout.flush()
        if outcome.failure:
            print(f"  failed after {outcome.finished} finished seeds, which are kept:", file=sys.stderr)
            print(textwrap.indent(outcome.failure, "    "), file=sys.stderr)
