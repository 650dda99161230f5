"""Options, targets and output files of the benchmarks."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from experiments.program import plain, program
from experiments.running.results import machine, versions


class Target(NamedTuple):
    """A measured number with an upper or a lower limit; NaN (not measured) meets every limit."""

    text: str
    value: float
    limit: float
    at_least: bool = False

    @property
    def met(self) -> bool:
        """Whether the limit is met."""
        return not (self.value < self.limit if self.at_least else self.value > self.limit)


def options_of(
    name: str, description: str | None, arguments: Sequence[str], **known: tuple[Any, ...]
) -> argparse.Namespace:
    """Parses the options of a benchmark and sets torch to one thread.

    Args:
        name: name of the benchmark.
        description: beginning of the help text.
        arguments: the command line.
        **known: default and help of each option, and its choices if it has any; a tuple makes an option with several
            values, False a flag.
    """
    torch.set_num_threads(1)
    parser = argparse.ArgumentParser(prog=f"{program()} benchmark {name}", description=plain(description))
    parser.add_argument("--out", type=Path, default=Path("results"))
    for option, (default, said, *choices) in known.items():
        shape: dict[str, Any] = {"type": type(default)}
        if default is False:
            shape = {"action": "store_true"}
        elif isinstance(default, tuple):
            shape = {"type": type(default[0]), "nargs": "+"}
        if choices:
            shape |= {"choices": list(choices[0]), "metavar": option.upper()}
        parser.add_argument(f"--{option.replace('_', '-')}", default=default, help=said, **shape)
    return parser.parse_args(arguments)


def target_lines(targets: Iterable[Target]) -> list[str]:
    """Formats the targets, each met or missed."""
    lines = ["Targets:"]
    for target in targets:
        bar = f"at {'least' if target.at_least else 'most'} {target.limit:g}"
        lines.append(f"  {'met   ' if target.met else 'MISSED'}  {target.text}, {bar}: {target.value:.3g}")
    return lines


def write(out: Path, name: str, lines: Iterable[str], **numbers: Any) -> int:
    """Writes ``benchmark-NAME.json`` (numbers, machine, versions) and ``benchmark-NAME.txt``; prints the text.

    Returns:
        Exit status 0, also if the text reports a missed target.
    """
    out.mkdir(parents=True, exist_ok=True)
    report = {"machine": machine(numbers.get("device", "cpu")), "versions": versions(), **numbers}
    text = "\n".join(lines)
    (out / f"benchmark-{name}.json").write_text(json.dumps(report, indent=1))
    (out / f"benchmark-{name}.txt").write_text(text + "\n")
    print(f"{text}\n\nwritten: {out}/benchmark-{name}.json, .txt")
    return 0
