"""Runs in processes of their own that are killed, what they leave behind, and what the undisturbed run gives."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import math
import os
import signal
import sys
import traceback
import zlib
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch

from optimizers.minimize import minimize
from optimizers.registry import METHODS, method_class
from optimizers.running import checkpoint, journal

D = 3
X0 = torch.linspace(2.0, 3.0, D, dtype=torch.float64)
BOUNDS = [(-2.0, 6.0)] * D
QUICK = {"batch_size": 4, "initial_points": 5, "candidates": 32, "fit_steps": 5}
SUMMARY = ("x", "fun", "nfev", "nit", "nfail", "stop_reason")


@dataclass(frozen=True)
class Case:
    """A call of ``minimize``: a method, its options, and who evaluates (None, ``threads`` or ``scripted``)."""

    method: str
    options: Mapping[str, object] = field(default_factory=dict)
    budget: int = 30
    crew: str | None = None

    @property
    def in_flight(self) -> int:
        """The most queries that are out at once."""
        return 1 if self.crew is None else 3


def gradient(x: torch.Tensor) -> torch.Tensor:
    return 2.0 * (x - 1.0)


OPTIONS: dict[str, Mapping[str, object]] = {
    "gradient_descent": {"jac": gradient},
    "turbo": {"bounds": BOUNDS, **QUICK},
    "cobbo": {"bounds": BOUNDS, "fit_steps": 5},
    "hiso": {"perturbations": 3, "on_failure": "retry"},
    "decomfl": {"perturbations": 3},
    "rgf": {"directions": 3, "on_failure": "retry"},
    "es": {"directions": 5},
    "gld": {"store_points": True},
    "accelerated_zo": {"strong_convexity": 1.0},
}
CASES = {name: Case(name, OPTIONS.get(name, {})) for name in METHODS}
CASES["hiso-in-place"] = Case("hiso", {"perturbations": 3, "in_place": True})
WORKERS = {
    f"{name}-{crew}": Case(name, OPTIONS.get(name, {}), crew=crew)
    for name in ("zord", "turbo", "rgf")
    for crew in ("scripted", "threads")
}


def key(x: torch.Tensor) -> str:
    """A name of a point, which has its bits."""
    return hashlib.sha256(x.numpy().tobytes()).hexdigest()[:16]


class Objective:
    """A function of the point alone, which fails at every ninth point or so; each call has two lines in a file."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("ab", buffering=0)
        self.hooks: dict[str, Callable[[], None]] = {}
        self.last = ""

    def __call__(self, x: torch.Tensor) -> float:
        name = self.last = key(x)
        self._note("begin", name)
        value = float((x - 1.0).square().sum() + 0.1 * torch.cos(5.0 * x).sum())
        value = math.nan if int(name, 16) % 9 == 0 else value
        self._note("end", name)
        return value

    def _note(self, phase: str, name: str) -> None:
        self._file.write(f"{phase} {name}\n".encode())
        self.hooks.get(phase, lambda: None)()


class Scripted:
    """An executor whose answers come in an order that depends only on the points that are out."""

    def __init__(self, objective: Objective) -> None:
        self.objective = objective
        self.out: list[Answer] = []

    def submit(self, fn, /, *args):
        answer = fn(*args)
        self.out.append(Answer(self, self.objective.last, answer))
        return self.out[-1]


@dataclass(eq=False)
class Answer:
    """A future of ``Scripted`` that does not say when it ends, but is asked."""

    executor: Scripted
    name: str
    answer: object

    def done(self) -> bool:
        return self is min(self.executor.out, key=lambda answer: answer.name)

    def result(self) -> object:
        self.executor.out.remove(self)
        return self.answer


def call(case: Case, objective: Objective, path: Path | None, **changes):
    """The call of ``minimize`` that all attempts share."""
    crew = {
        None: lambda: {},
        "scripted": lambda: {"workers": 3, "executor": Scripted(objective)},
        "threads": lambda: {"workers": 3, "executor": ThreadPoolExecutor(3)},
    }[case.crew]()
    arguments = {"max_queries": case.budget, "seed": 5, "progress": False, **case.options, **crew, **changes}
    return minimize(objective, X0.clone(), case.method, checkpoint=path, **arguments)


def summary(result) -> dict[str, object]:
    """What must be equal to the bit."""
    entries = {name: result[name] for name in SUMMARY}
    return entries | {f"history.{name}": value for name, value in result.history.items()}


def same(ours: Mapping[str, object], theirs: Mapping[str, object]) -> bool:
    """Whether two summaries are equal to the bit."""
    return ours.keys() == theirs.keys() and all(_bits(ours[name]) == _bits(theirs[name]) for name in ours)


def _bits(value: object) -> object:
    return (value.dtype, value.shape, value.numpy().tobytes()) if isinstance(value, torch.Tensor) else repr(value)


def forked(work: Callable[[], object]) -> int:
    """Works in a child process, whose own end with it; its exit status, negative for the signal that ended it."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.setsid()
            work()
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(status)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    return status


def undisturbed(case: Case, folder: Path) -> dict[str, object]:
    """The summary of the run without a checkpoint, in this process, which then has imported what forks need."""
    folder.mkdir()
    return summary(call(case, Objective(folder / "calls"), None))


def work(case: Case, folder: Path, inject: Callable[[Objective], None], path: Path) -> int:
    """One attempt in a child process, in which faults are injected; its summary is in the folder if it ends."""

    def attempt() -> None:
        objective = Objective(folder / "calls")
        inject(objective)
        result = call(case, objective, path)
        sys.settrace(None)
        with open(folder / "summary", "wb") as file:
            torch.save(summary(result), file)

    return forked(attempt)


# Where a process is killed.


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _at(number: int, before: Callable[[], None] | None = kill) -> Callable[[], None]:
    """A function that is called often and kills at one of the calls."""
    left = [number]

    def count() -> None:
        left[0] -= 1
        if left[0] == 0:
            kill()

    return count


def in_objective(rng: np.random.Generator, case: Case, objective: Objective) -> None:
    objective.hooks[str(rng.choice(["begin", "end"]))] = _at(int(rng.integers(1, 7)))


def in_write(rng: np.random.Generator, case: Case, objective: Objective) -> None:
    """In the middle of writing to the journal, of which some bytes are written."""
    left, share = int(rng.integers(1, 25)), float(rng.random())

    class Torn(io.FileIO):
        def write(self, data: bytes) -> int:
            nonlocal left
            left -= 1
            if left == 0:
                super().write(data[: int(share * len(data))])
                kill()
            return super().write(data)

    journal.open = lambda path, mode, buffering: Torn(path, mode.replace("b", ""))


def _around(name: str, most: int) -> Callable[[np.random.Generator, Case, Objective], None]:
    """Before or after one of the first calls of a function of ``os``."""

    def inject(rng: np.random.Generator, case: Case, objective: Objective) -> None:
        count, first, function = _at(int(rng.integers(1, most))), bool(rng.integers(2)), getattr(os, name)

        def around(*args):
            if first:
                count()
            function(*args)
            if not first:
                count()

        setattr(os, name, around)

    return inject


def in_tell(rng: np.random.Generator, case: Case, objective: Objective) -> None:
    """At a line of a method's ``_tell``, or of what it calls."""
    cls = method_class(case.method)
    tell, number, line = cls._tell, int(rng.integers(1, 4)), int(rng.integers(1, 300))

    def traced(self, batch, values):
        nonlocal number
        number -= 1
        if number == 0:
            _trace(_at(line), ("optimizers", "surrogates"))
        tell(self, batch, values)
        if number == 0:
            kill()

    cls._tell = traced


def in_loop(rng: np.random.Generator, case: Case, objective: Objective) -> None:
    """At a line of the loop, the checkpoint, the journal or the record, of loading or later."""
    _trace(
        _at(int(math.exp(rng.uniform(3.0, 11.0)))), ("optimizers.running", "optimizers.core", "optimizers.evaluation")
    )


def _trace(count: Callable[[], None], packages: tuple[str, ...]) -> None:
    def trace(frame, event, argument):
        if not frame.f_globals.get("__name__", "").startswith(packages):
            return None
        if event == "line":
            count()
        return trace

    sys.settrace(trace)


FAULTS = {
    "objective": in_objective,
    "write": in_write,
    "fsync": _around("fsync", 25),
    "rename": _around("replace", 5),
    "tell": in_tell,
    "loop": in_loop,
}


def save_often(rng: np.random.Generator) -> None:
    """Saves a state after every batch, or hardly ever, and flushes to the device at every event."""
    checkpoint.LEAST_BETWEEN = 0.0 if rng.integers(3) else 1e9
    checkpoint.MOST_SHARE, journal.FSYNC_EVERY = 1e9, 0.0


# What a killed run leaves behind.


def events(path: Path) -> list[list[object]]:
    """The whole events of a journal, read independently; what is left of a last line is not one."""
    if not path.exists():
        return []
    lines = [line.rpartition(b"\t") for line in path.read_bytes().split(b"\n")[:-1]]
    assert all(check == b"%08x" % zlib.crc32(text) for text, _, check in lines[:-1])
    return [json.loads(text) for text, _, check in lines if check == b"%08x" % zlib.crc32(text)]


def counted(path: Path) -> int:
    """The queries that a journal has: values and failed attempts."""
    found = events(path)
    return sum(len(e[2]) for e in kind(found, "value")) + len(kind(found, "failed"))


def kind(found: list[list[object]], name: str) -> list[list[object]]:
    """The events of a kind, without their numbers."""
    return [event[1:] for event in found if event[1] == name]


def calls(folder: Path, phase: str = "begin") -> Counter[str]:
    """How often each point was begun or ended."""
    path = folder / "calls"
    lines = path.read_text().splitlines() if path.exists() else []
    return Counter(line.split()[1] for line in lines if line.startswith(phase))
