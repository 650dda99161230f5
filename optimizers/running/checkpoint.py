"""Checkpoints: a journal of all events of a run, and a state that is saved from time to time."""

from __future__ import annotations

import hashlib
import inspect
import logging
import os
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from optimizers.core.batch import Batch
from optimizers.core.files import check_path, read_state, write_state
from optimizers.core.optimizer import Optimizer
from optimizers.core.options import check_choice
from optimizers.directions.groups import GroupDiagonal
from optimizers.evaluation import Evaluator
from optimizers.running.journal import Journal, each
from optimizers.running.version import fingerprint, place_of

logger = logging.getLogger(__name__)

Resume = Literal["check", "anyway", "restart"]
"""Whether values of another version of the function raise an error or are kept, or all values are discarded."""

FORMAT = 1
LEAST_BETWEEN, MOST_SHARE = 5.0, 0.05
"""The least number of seconds between saves, and the largest share of time spent on saving."""


class Checkpoint:
    """The checkpoint of a run: a file and its journal, ``<file>.journal``.

    The journal has an event for each batch asked, query sent, value and failed attempt since the beginning; the file
    has the optimizer's state after some of these events. Loading restores the state and replays later events, which
    gives the same run bitwise; if the file is missing or damaged, the whole journal is replayed.

    Args:
        path: the file.
        optimizer: a new optimizer, which loads the checkpoint's state.
        evaluator: the evaluator of the run; its objective's name is part of the run's identity.
        resume: what to do with values of another version of the objective, see ``minimize``.

    Attributes:
        attempts: the number of failed attempts at each (batch, point).
        was_stopped: whether a callback ended the loaded run.

    Raises:
        ValueError: if the optimizer has queries but the file exists; if the checkpoint belongs to another run (the
            message says what differs) or another version of the objective; or if it is damaged beyond repair.
        RuntimeError: if another process uses the checkpoint.
        OSError: if the path is a folder, or its folder does not exist or is not writable.
    """

    def __init__(
        self, path: str | os.PathLike[str], optimizer: Optimizer, evaluator: Evaluator, resume: Resume = "check"
    ) -> None:
        self.path = check_path("checkpoint", path)
        self.attempts: Counter[tuple[int, int]] = Counter()
        self._optimizer, self._identity = optimizer, identity(optimizer, evaluator)
        self._source, self._place = fingerprint(evaluator.fun), place_of(evaluator.fun)
        self._resume = check_choice("resume", resume, get_args(Resume))
        self._saved_at, self._save_took, self._saved_events = time.monotonic(), 0.0, -1
        self._error: OSError | None = None
        self.was_stopped = False
        self._told, self._asked = optimizer.queries, optimizer.next_id
        found = resume != "restart" and (self.path.exists() or self._journal_path.exists())
        if found and optimizer.queries:
            raise ValueError(
                f"{self.path} exists, but the optimizer has {optimizer.queries} queries: pass a new optimizer"
            )
        self._journal = Journal(self._journal_path)
        try:
            if resume == "restart":
                self._journal.clear()
                self.path.unlink(missing_ok=True)
            self._load()
        except BaseException:
            self._journal.close()
            raise
        self._told, self._asked = optimizer.queries, optimizer.next_id
        self._journal.write("budget", optimizer.max_queries)
        self._journal.write("version", {"source": self._source})

    @property
    def _journal_path(self) -> Path:
        return self.path.with_name(self.path.name + ".journal")

    @property
    def error(self) -> OSError | None:
        """The error that prevented writing the latest events; None if they are on the disk."""
        return self._error or self._journal.error

    # Events of a run.

    def asked(self, batch: Batch) -> None:
        """Records that a batch was asked."""
        self._journal.write("ask", batch.id, digest(batch))
        self._asked += 1

    def sent(self, batch: Batch, rows: Sequence[int]) -> None:
        """Records that points were sent out for evaluation."""
        self._journal.write("out", batch.id, list(rows))

    def failed(self, batch: Batch, row: int) -> None:
        """Records a failed attempt at a point that is retried; called before the optimizer is told."""
        self._told += 1
        self._journal.write("failed", batch.id, row)

    def arrived(self, batch: Batch, rows: Sequence[int], values: Sequence[Any]) -> None:
        """Records values, or rows (f, c), with NaN for failed queries; called before the optimizer is told."""
        self._told += len(rows)
        self._journal.write("value", batch.id, list(rows), list(values))

    def stopped(self) -> None:
        """Records that the callback ended the run."""
        self._journal.write("stopped")

    def save_when_due(self) -> None:
        """Saves the state if the last save was long enough ago."""
        if time.monotonic() - self._saved_at >= max(LEAST_BETWEEN, self._save_took / MOST_SHARE):
            self.save()

    def save(self) -> None:
        """Saves the state; the old file stays if writing fails or a step was interrupted."""
        optimizer = self._optimizer
        # They differ if an error came between the journal and the optimizer.
        torn = (self._told, self._asked) != (optimizer.queries, optimizer.next_id)
        if self._saved_events == self._journal.count or not optimizer.intact or torn:
            return
        begun = time.monotonic()
        state = {
            "events": self._journal.count,
            "identity": self._identity,
            "version": {"source": self._source},
            "optimizer": optimizer.state_dict(),
            "attempts": [[*place, n] for place, n in self.attempts.items()],
        }
        try:
            write_state(self.path, state, FORMAT)
        except OSError as error:
            self._error = error
            logger.error("%s cannot be written (%s): the old file stays, and the run continues", self.path, error)
        else:
            self._error, self._saved_events = None, self._journal.count
        self._saved_at = time.monotonic()
        self._save_took = self._saved_at - begun

    def close(self) -> None:
        """Saves the state and closes the files."""
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
                raise ValueError(
                    f"{self.path} is damaged, and {self._journal_path} has no complete line: the run cannot be resumed"
                )
            # The journal does not have what the optimizer was told before: only the file does.
            told = self._optimizer.queries + self._optimizer._record.given
            self._journal.write("run", FORMAT, self._identity, told)
            if told:
                self.save()
            return
        begun = next(each(events, "run"), None)
        self._check(begun[2] if begun else state["identity"] if state else None)
        known = [state["version"]] if state else []
        known += [event[1] for event in each(events, "version")]
        self._check_source(known[-1].get("source") if known else None)
        done = 0
        if state is not None:
            self._optimizer.load_state_dict(state["optimizer"])
            self.attempts.update({(number, i): n for number, i, n in state["attempts"]})
            done = state["events"]
            if len(events) < done:
                logger.warning(
                    "%s is incomplete: the run continues from %s, which has all values", self._journal_path, self.path
                )
                events = [[]] * done
                while self._journal.count < done:
                    self._journal.write("lost")
        elif begun is None or begun[3]:
            raise ValueError(
                f"{self.path} is missing, and {self._journal_path} does not have the first queries: restore {self.path}"
            )
        self._replay(events, done)
        kinds = [event[0] for event in events if event and event[0] not in ("budget", "version")]
        self.was_stopped = kinds[-1:] == ["stopped"]

    def _check(self, theirs: dict[str, Any] | None) -> None:
        if theirs is None:
            raise ValueError(f"{self._journal_path} does not begin with the run's description: it is damaged")
        ours = self._identity
        if None in (theirs.get("x0"), ours["x0"]):
            theirs = theirs | {"x0": ours["x0"]}
        differ = [name for name in [*ours, *(theirs.keys() - ours)] if theirs.get(name) != ours.get(name)]
        if "method" in differ:
            differ = ["method"]
        if differ:
            told = (
                "another x0" if name == "x0" else f"{name} {theirs.get(name)!r:.200}, this call {ours.get(name)!r:.200}"
                for name in differ
            )
            raise ValueError(f"the checkpoint {self.path} belongs to another run: it has {'; '.join(told)}")

    def _check_source(self, theirs: str | None) -> None:
        """Raises for values of another version of the function, unless they are to be kept."""
        if theirs and self._source and theirs != self._source and self._resume == "check":
            raise ValueError(
                f"the values in {self.path} were computed by a different version of {self._identity['fun']} "
                f'({self._place}) or of Python: pass resume="anyway" to keep them and continue, or resume="restart" to '
                "discard them and start over"
            )

    def _read_state(self) -> dict[str, Any] | None:
        if not self.path.exists():
            return None
        try:
            return read_state(self.path, FORMAT)
        except (OSError, ValueError) as error:
            reason = str(error)
        if not self._journal_path.exists() or not self._journal_path.stat().st_size:
            raise ValueError(f"{self.path} is not a checkpoint of a run ({reason}), and has no journal")
        logger.warning("%s is damaged (%s): the run is rebuilt from its journal", self.path, reason)
        return None

    def _replay(self, events: list[list[Any]], done: int) -> None:
        """Replays the journal's events after the state, under their budget and without stopping rules."""
        optimizer = self._optimizer
        rules = {name: getattr(optimizer, name) for name in ("max_queries", "target", "stagnation", "max_failures")}
        vars(optimizer).update(target=None, stagnation=None, max_failures=None)
        optimizer.reapply_stopping_rules()
        try:
            for event in each(events[:done], "budget"):
                optimizer.max_queries = event[1]
            for line, event in enumerate(events[done:], done + 1):
                try:
                    self._again(*(event or ["lost"]))
                except (ValueError, LookupError, TypeError) as error:
                    raise ValueError(f"line {line} of {self._journal_path} cannot be replayed: {error}") from error
        finally:
            vars(optimizer).update(rules)
        optimizer.reapply_stopping_rules()
        logger.info("%s: continues after %d queries", self.path, optimizer.queries)
        sent = {(event[1], i) for event in each(events, "out") for i in event[2]}
        pending = [(b.id, i) for b in optimizer.pending for i in optimizer.untold(b) if (b.id, i) in sent]
        if pending and not optimizer.stopped:
            named = ", ".join(f"point {i} of batch {number}" for number, i in pending)
            logger.warning("%s: pending when the run ended, and evaluated again: %s", self.path, named)

    def _again(self, kind: str, *rest: Any) -> None:
        """Replays an event."""
        optimizer = self._optimizer
        if kind == "budget":
            optimizer.max_queries = rest[0]
        elif kind == "ask":
            batch = optimizer.ask_another()
            if batch is None or (batch.id, digest(batch)) != tuple(rest):
                raise ValueError(
                    f"batch {rest[0]} now has other points, so its values cannot be used: resume with the library "
                    "versions, the number of threads and the processor that the run began with"
                )
        elif kind in ("failed", "value"):
            batch = next((b for b in optimizer.pending if b.id == rest[0]), None)
            if batch is None:
                raise ValueError(f"batch {rest[0]} is not pending")
            if kind == "failed":
                self.attempts[batch.id, rest[1]] += 1
                optimizer.tell(batch, [], which=[], retries=1)
            else:
                optimizer.tell(batch, rest[2], which=rest[1])


def identity(optimizer: Optimizer, evaluator: Evaluator) -> dict[str, Any]:
    """The values that must be equal in calls of the same run; budget and stopping rules may differ."""
    fun, kept = inspect.unwrap(evaluator.fun), optimizer.track_best
    # Without track_best, x is x0 before the first query, unless the user's own tensor is moved.
    known = kept or not (optimizer.queries or optimizer._moves_in_place)
    x0 = optimizer.x0 if kept else optimizer.x
    return optimizer.description() | {
        "fun": getattr(fun, "__qualname__", type(fun).__qualname__),
        "x0": hashlib.sha256(_bytes(x0)).hexdigest() if known else None,
        "batched": evaluator.batched,
        "on_failure": evaluator.on_failure,
    }


def digest(batch: Batch) -> str:
    """A fingerprint of a batch's points."""
    origin = batch.state_dict()["directions"] if batch.directions is not None else None
    found = hashlib.sha256(repr((batch.id, batch.addresses, origin)).encode())
    metric = batch.metric.state_dict() if isinstance(batch.metric, GroupDiagonal) else {"metric": batch.metric}
    for value in (batch.scales, batch.base, batch.explicit, *metric.values()):
        found.update(_bytes(value) if isinstance(value, Tensor) else repr(value).encode())
    return found.hexdigest()[:16]


def _bytes(x: Tensor) -> Any:
    return x.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data
