"""A child process that ends with the command that started it."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from types import FrameType
from typing import NamedTuple, TextIO

SIGNALS = (signal.SIGINT, signal.SIGTERM)
KEPT = 65536
"""Number of characters of output that are kept."""


class Outcome(NamedTuple):
    """How a program ended.

    Attributes:
        status: its exit status.
        signal: the signal to this process that ended the program, or 0.
        output: the beginning of its standard output, if it was passed through this process.
    """

    status: int
    signal: int
    output: str


def run_program(program: Sequence[str], env: Mapping[str, str], pass_on: TextIO | None = None) -> Outcome:
    """Runs a program to its end; this process's Ctrl-C or SIGTERM terminates it, and a second one kills it.

    Args:
        program: the program and its arguments.
        env: its environment.
        pass_on: destination of its standard output; None means this process's own.
    """
    came: list[int] = []
    child: subprocess.Popen[str] | None = None

    def end(number: int, frame: FrameType | None) -> None:
        if child is not None:
            (child.kill if came else child.terminate)()
        came.append(number)

    before = {number: signal.getsignal(number) for number in SIGNALS}
    heeded = [number for number, handler in before.items() if handler is not signal.SIG_IGN]
    if signal.SIGTERM in heeded:
        signal.signal(signal.SIGTERM, end)
    # The child inherits that Ctrl-C is ignored: only ``end`` terminates it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        piped = None if pass_on is None else subprocess.PIPE
        child = subprocess.Popen(program, env=env, stdout=piped, text=True, errors="backslashreplace")
        if signal.SIGINT in heeded:
            signal.signal(signal.SIGINT, end)
        if came:
            child.terminate()
        output = "" if child.stdout is None or pass_on is None else _passed_on(child.stdout, pass_on)
        return Outcome(child.wait(), came[0] if came else 0, output)
    finally:
        if child is not None:
            child.kill()
            child.wait()
        for number, handler in before.items():
            signal.signal(number, handler)


def _passed_on(lines: Iterable[str], to: TextIO) -> str:
    kept = ""
    for line in lines:
        to.write(line)
        to.flush()
        kept = (kept + line)[:KEPT]
    return kept
