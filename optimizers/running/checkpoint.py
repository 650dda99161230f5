"""Checkpoints: a state that is written now and then, and a journal of every value since the run began."""

from __future__ import annotations

import hashlib
import logging
import math
import os
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from optimizers.core.batch import Batch
from optimizers.core.files import read_state, write_state
from optimizers.core.optimizer import Optimizer
from optimizers.core.options import check_choice
from optimizers.directions.groups import GroupDiagonal
from optimizers.evaluation import Evaluator
from optimizers.running.journal import Journal, each
from optimizers.running.version import Version, file_of

logger = logging.getLogger(__name__)

Resume = Literal["check", "anyway", "restart"]
"""What becomes of values of another version of the function: they are refused, kept, or all values are discarded."""

FORMAT = 1
LEAST_BETWEEN, MOST_SHARE = 5.0, 0.05
"""A state is saved after so many seconds at the earliest, and takes at most this share of the time."""


class Checkpoint:
    """A run's file and its journal, ``<file>.journal``.

    The journal has an event for each batch that is asked, each query that goes out, each value and each failed
    attempt, from the beginning; the file has the optimizer's state after some of these. Loading takes the state and
    asks and tells again what the journal has beyond it, which gives the same run to the bit; a file that is missing
    or damaged costs only time, as the whole journal is told again.

    The file is written under another name, flushed to the device and renamed; it carries its digest.

    Args:
        path: the file.
        optimizer: a new optimizer, which becomes what the checkpoint holds.
        evaluator: what it runs on; its objective's name is part of the problem.
        resume: what becomes of values that another version of the objective computed, see ``minimize``.

    Attributes:
        attempts: the failed attempts at each point of a pending batch, (batch, point).
        was_stopped: whether a callback ended the run that was loaded.

    Raises:
        ValueError: if the optimizer has queries but the file exists already; if the checkpoint is another run's, with
            what differs; if its values are of another version of the objective; or if it is damaged beyond repair.
        RuntimeError: if another process runs with it.
        OSError: if the folder is not there or cannot be written to.
    """

    def __init__(
        self, path: str | os.PathLike[str], optimizer: Optimizer, evaluator: Evaluator, resume: Resume = "check"
    ) -> None:
        if not isinstance(path, str | os.PathLike):
            raise TypeError(f"checkpoint must be the path of a file, got {path!r}")
        self.path = Path(path)
        if not self.path.absolute().parent.is_dir():
            raise FileNotFoundError(f"checkpoint is {str(self.path)!r}, whose folder is not there")
        self.attempts: Counter[tuple[int, int]] = Counter()
        self._optimizer, self._identity = optimizer, identity(optimizer, evaluator)
        self._version, self._file, self._resume = Version.of(evaluator.fun), file_of(evaluator.fun), resume
        check_choice("resume", resume, get_args(Resume))
        self._saved_at, self._save_took, self._saved_events = time.monotonic(), 0.0, -1
        self._error: OSError | None = None
        self.was_stopped = False
        self._journalled = optimizer.queries, optimizer.number
        found = resume != "restart" and (self.path.exists() or self._journal_path.exists())
        if found and optimizer.queries:
            raise ValueError(f"{self.path} exists already, and the optimizer has {optimizer.queries} queries: which?")
        self._journal = Journal(self._journal_path)
        try:
            if resume == "restart":
                self._journal.clear()
                self.path.unlink(missing_ok=True)
            self._load()
        except BaseException:
            self._journal.close()
            raise
        self._journalled = optimizer.queries, optimizer.number
        self._journal.write("budget", optimizer.max_queries)
        self._journal.write("version", vars(self._version))

    @property
    def _journal_path(self) -> Path:
        return self.path.with_name(self.path.name + ".journal")

    @property
    def error(self) -> OSError | None:
        """Why the last of the run is not on the disk; None where it is."""
        return self._error or self._journal.error

    # What happens.

    def asked(self, batch: Batch) -> None:
        """A batch was asked."""
        self._journal.write("ask", batch.id, digest(batch))
        queries, asked = self._journalled
        self._journalled = queries, asked + 1

    def sent(self, batch: Batch, rows: Sequence[int]) -> None:
        """Points go out."""
        self._journal.write("out", batch.id, list(rows))

    def failed(self, batch: Batch, row: int) -> None:
        """An attempt at a point failed, and another one follows; the optimizer is told after this."""
        self._count(1)
        self.attempts[batch.id, row] += 1
        self._journal.write("failed", batch.id, row)

    def arrived(self, batch: Batch, rows: Sequence[int], values: Sequence[float]) -> None:
        """Values arrived, NaN for failed queries; the optimizer is told after this."""
        self._count(len(rows))
        self._journal.write("value", batch.id, list(rows), [v if math.isfinite(v) else None for v in values])

    def _count(self, queries: int) -> None:
        before, asked = self._journalled
        self._journalled = before + queries, asked

    @property
    def _between(self) -> bool:
        """Whether a step was interrupted or raised, so that journal and optimizer do not have the same events."""
        return self._journalled != (self._optimizer.queries, self._optimizer.number)

    def stopped(self) -> None:
        """The callback ended the run."""
        self._journal.write("stopped")

    def save_when_due(self) -> None:
        """Saves the state if the last one is old enough."""
        if time.monotonic() - self._saved_at >= max(LEAST_BETWEEN, self._save_took / MOST_SHARE):
            self.save()

    def save(self) -> None:
        """Saves the state; where it cannot be written, or a step ended in the middle, the old file stays."""
        if self._saved_events == self._journal.count or not self._optimizer.intact or self._between:
            return
        begun = time.monotonic()
        state = {
            "events": self._journal.count,
            "identity": self._identity,
            "version": vars(self._version),
            "optimizer": self._optimizer.state_dict(),
            "attempts": [[*place, n] for place, n in self.attempts.items()],
        }
        try:
            write_state(self.path, state, FORMAT)
        except OSError as error:
            self._error = error
            logger.error("%s cannot be written (%s): the older one stays, and the run goes on", self.path, error)
        else:
            self._error, self._saved_events = None, self._journal.count
        self._saved_at = time.monotonic()
        self._save_took = self._saved_at - begun

    def close(self) -> None:
        """Saves the state, and gives the files up."""
        try:
            self.save()
        finally:
            self._journal.close()

    # Loading.

    def _load(self) -> None:
        state = self._read_state()
        events = self._journal.read(after=state["events"] if state else 0)
        if state is None and not events:
            if self.path.exists():
                raise ValueError(f"{self.path} is damaged, and {self._journal_path} has no whole line: both are lost")
            self._journal.write("run", FORMAT, self._identity, self._optimizer.queries)
            if self._optimizer.queries:
                self.save()
            return
        begun = next(each(events, "run"), None)
        self._check(begun[2] if begun else state["identity"] if state else None)
        known = [state["version"]] if state and "version" in state else []
        known += [event[1] for event in each(events, "version")]
        self._check_version(Version(**known[-1]) if known else Version(None, None))
        done = 0
        if state is not None:
            self._optimizer.load_state_dict(state["optimizer"])
            self.attempts.update({(number, i): n for number, i, n in state["attempts"]})
            done = state["events"]
            if len(events) < done:
                logger.warning("%s is shorter than %s, which is complete and taken", self._journal_path, self.path)
                events = [[]] * done
                while self._journal.count < done:
                    self._journal.write("lost")
        elif begun is None or begun[3]:
            raise ValueError(f"{self.path} is lost, and {self._journal_path} does not begin with the run's first query")
        self._replay(events, done)
        self.was_stopped = [event for event in events if event[:1] not in (["budget"], ["version"])][-1:] == [
            ["stopped"]
        ]

    def _check(self, theirs: dict[str, Any] | None) -> None:
        if theirs is None:
            raise ValueError(f"{self._journal_path} does not begin with the run's description: it is damaged")
        ours = self._identity
        if None in (theirs.get("x0"), ours["x0"]):
            theirs = theirs | {"x0": ours["x0"]}
        names = [*ours, *(theirs.keys() - ours)]
        differ = [name for name in names if name != "code" and theirs.get(name) != ours.get(name)]
        if "method" in differ:
            differ = ["method"]
        if differ:
            told = (
                "another x0" if name == "x0" else f"{name} {theirs.get(name)!r:.200}, this call {ours.get(name)!r:.200}"
                for name in differ
            )
            raise ValueError(f"the checkpoint {self.path} is another run's: it has {'; '.join(told)}")

    def _check_version(self, theirs: Version) -> None:
        """Refuses values of another version of the function, unless they are to be kept; then that is the run's."""
        differs, fun = theirs.differs(self._version), self._identity["fun"]
        if differs and self._resume == "check":
            raise ValueError(
                f"the values in {self.path} were computed by a different version of {fun} ({self._file}): pass "
                'resume="anyway" to keep them and go on, or resume="restart" to discard them and begin anew'
            )
        if differs is None:
            logger.warning("%s: the code of %s has changed since the run began, and no source says how", self.path, fun)

    def _read_state(self) -> dict[str, Any] | None:
        if not self.path.exists():
            return None
        try:
            return read_state(self.path, FORMAT)
        except (OSError, ValueError) as error:
            reason = str(error)
        if not self._journal_path.exists() or not self._journal_path.stat().st_size:
            raise ValueError(f"{self.path} is no checkpoint of a run ({reason}), and has no journal")
        logger.warning("%s is damaged (%s): the run is rebuilt from its journal", self.path, reason)
        return None

    def _replay(self, events: list[list[Any]], done: int) -> None:
        """Asks and tells again what the journal has beyond the state, under the budget of then and no stop rule."""
        optimizer = self._optimizer
        rules = {name: getattr(optimizer, name) for name in ("max_queries", "target", "stagnation", "max_failures")}
        vars(optimizer).update(target=None, stagnation=None, max_failures=None)
        optimizer.reconsider()
        sent: set[tuple[int, int]] = set()
        try:
            for event in each(events[:done], "budget"):
                optimizer.max_queries = event[1]
            for event in each(events[:done], "out"):
                sent.update((event[1], i) for i in event[2])
            for line, event in enumerate(events[done:], done + 1):
                try:
                    self._again(event, sent)
                except (ValueError, LookupError, TypeError) as error:
                    raise ValueError(f"line {line} of {self._journal_path} cannot be told again: {error}") from error
        finally:
            vars(optimizer).update(rules)
        optimizer.reconsider()
        open_ones = [(b.id, i) for b in optimizer.pending for i in optimizer.untold(b) if (b.id, i) in sent]
        logger.info("%s: goes on after %d queries", self.path, optimizer.queries)
        if open_ones and not optimizer.stopped:
            named = ", ".join(f"point {i} of batch {number}" for number, i in open_ones)
            logger.warning("%s: in flight when the run ended, and asked again: %s", self.path, named)

    def _again(self, event: list[Any], sent: set[tuple[int, int]]) -> None:
        optimizer = self._optimizer
        kind, *rest = event or ["lost"]
        if kind == "budget":
            optimizer.max_queries = rest[0]
        elif kind == "ask":
            batch = optimizer.ask_another()
            if batch is None or (batch.id, digest(batch)) != tuple(rest):
                raise ValueError(
                    f"batch {rest[0]} comes out with other points, so that its values cannot be used. Points depend on "
                    "the versions of libraries, the number of threads and the processor: go on where the run began"
                )
        elif kind == "out":
            sent.update((rest[0], i) for i in rest[1])
        elif kind in ("failed", "value"):
            batch = next((b for b in optimizer.pending if b.id == rest[0]), None)
            if batch is None:
                raise ValueError(f"batch {rest[0]} is not pending")
            if kind == "failed":
                self.attempts[batch.id, rest[1]] += 1
                optimizer.tell(batch, [], which=[], retries=1)
            else:
                optimizer.tell(batch, [math.nan if v is None else v for v in rest[2]], which=rest[1])


def identity(optimizer: Optimizer, evaluator: Evaluator) -> dict[str, Any]:
    """What two calls must share to be one run: all that determines it but the budget, the target and stagnation."""
    fun = evaluator.fun
    return optimizer.description() | {
        "fun": getattr(fun, "__qualname__", type(fun).__qualname__),
        "x0": None if (x0 := _x0(optimizer)) is None else _sha256(x0),
        "batched": evaluator.batched,
        "on_failure": evaluator.on_failure,
    }


def _x0(optimizer: Optimizer) -> Tensor | None:
    """The initial point; None where the optimizer does not keep it and has begun, or moves the user's own tensor."""
    if optimizer.track_best:
        return optimizer.x0
    return None if optimizer.queries or optimizer._moves_in_place else optimizer.x


def digest(batch: Batch) -> str:
    """A fingerprint of a batch's points."""
    origin = batch.state_dict()["directions"] if batch.directions is not None else None
    found = hashlib.sha256(repr((batch.id, batch.addresses, origin)).encode())
    metric = batch.metric.state_dict() if isinstance(batch.metric, GroupDiagonal) else {"metric": batch.metric}
    for value in (batch.scales, batch.base, batch.explicit, *metric.values()):
        found.update(_bytes(value) if isinstance(value, Tensor) else repr(value).encode())
    return found.hexdigest()[:16]


def _sha256(x: Tensor) -> str:
    return hashlib.sha256(_bytes(x)).hexdigest()


def _bytes(x: Tensor) -> Any:
    return x.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data
