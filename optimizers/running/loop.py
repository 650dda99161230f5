"""``run``: the loop that asks an optimizer, evaluates the points, and tells the values as they arrive."""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import BrokenExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from scipy.optimize import OptimizeResult

from optimizers.core.batch import Batch
from optimizers.core.constraints import is_success
from optimizers.core.optimizer import Optimizer
from optimizers.core.options import check_takes, optional, positive_integer
from optimizers.core.result import Result
from optimizers.core.stopping import StopReason
from optimizers.evaluation import Call, Evaluator
from optimizers.progress import Progress, ProgressMode
from optimizers.running.checkpoint import Checkpoint, Resume
from optimizers.running.crew import Crew, Query, Submits
from optimizers.running.interrupts import Interrupted, Interrupts
from optimizers.running.limits import Limits, OutOfTime

Callback = Callable[[OptimizeResult], object]

LOOK = 1.0
"""Seconds of waiting after which the progress display is updated."""


def run(
    optimizer: Optimizer,
    evaluator: Evaluator | Callable[[Any], Any],
    *,
    callback: Callback | None = None,
    workers: int | None = None,
    executor: Submits | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    resume: Resume = "check",
    max_seconds: float | None = None,
    query_timeout: float | None = None,
    progress: ProgressMode = False,
) -> Result:
    """Runs an optimizer, new or resumed, until it stops; a partly told batch is completed.

    Values are passed to the optimizer and the checkpoint as they arrive. Exceptions from the callback or executor, and
    from the objective if the evaluator raises them, end the run. The optimizer then keeps all values that arrived and
    its pending batches, and a later ``run`` continues. The first interrupt (Ctrl-C) gives running queries 5 s to finish
    and ends the run with status 98; a second one is raised at once.

    After each value, idle workers get the next points of pending batches, then those of ``Optimizer.ask_another``. So
    the run depends only on the seed and on the order in which values arrive.

    ``optimizer`` must be new if the file ``checkpoint`` exists; ``evaluator`` is the objective or an ``Evaluator``.
    The other arguments are as in ``minimize``.

    Raises:
        TypeError: for a callback that does not take one argument, or an executor without ``submit``.
        ValueError: for workers that the objective cannot use, or a checkpoint of another run.
    """
    if callback is not None:
        check_takes("callback", callback, "intermediate_result")
    evaluate = evaluator if isinstance(evaluator, Evaluator) else Evaluator(evaluator)
    limits = Limits(max_seconds, query_timeout, threads=not evaluate.in_place)
    crew = _crew(evaluate, optional(positive_integer, "workers", workers), executor)
    saved = None if checkpoint is None else Checkpoint(checkpoint, optimizer, evaluate, resume)
    try:
        name, done = type(optimizer).__name__, optimizer.queries
        shown = Progress(progress, total=optimizer.max_queries, done=done, name=name, unit="query")
        loop = Loop(optimizer, evaluate, crew, saved, callback, shown, limits)
    except BaseException:
        if saved is not None:
            saved.close()
        raise
    return loop.run()


def _crew(evaluator: Evaluator, workers: int | None, executor: Submits | None) -> Crew:
    if executor is not None and not callable(getattr(executor, "submit", None)):
        raise TypeError(f"executor must have a method submit, like a concurrent.futures.Executor, got {executor!r}")
    several = executor is not None or (workers is not None and workers > 1)
    if several and evaluator.batched:
        raise ValueError(
            "batched=True evaluates a batch in one call and cannot be combined with workers or an executor"
        )
    if several and evaluator.in_place:
        raise ValueError(
            f"{type(evaluator.fun).__name__} is evaluated in place, one point at a time: leave out workers and executor"
        )
    return Crew(1 if workers is None and executor is None else workers, executor)


@dataclass
class Loop:
    """One run: the optimizer, the evaluation of its points, and the checkpoint."""

    optimizer: Optimizer
    evaluator: Evaluator
    crew: Crew
    checkpoint: Checkpoint | None
    callback: Callback | None
    progress: Progress
    limits: Limits

    def __post_init__(self) -> None:
        self._out_of_time: list[Query] = []
        self._attempts = Counter[tuple[int, int]]() if self.checkpoint is None else self.checkpoint.attempts
        self._ready = [self._queries(batch, self.optimizer.untold(batch)) for batch in self.optimizer.pending]

    def run(self) -> Result:
        """Runs until the optimizer stops, or an interrupt."""
        with self.progress, Interrupts(self.crew.wake) as interrupts:
            try:
                if self.checkpoint is not None and self.checkpoint.was_stopped:
                    self._call_back()
                while not self.optimizer.stopped and not interrupts.requested and self.limits.left > 0.0:
                    self._fill(interrupts)
                    if not len(self.crew) and not interrupts.requested and self.limits.left > 0.0:
                        raise RuntimeError(
                            f"{type(self.optimizer).__name__} asks for no query although none is pending"
                        )
                    self._take(self.crew.wait(min(LOOK, max(self.limits.left, 0.0))), interrupts)
                    self._show()
                self._take_what_ends(interrupts)
                self._show()
            except Exception:
                self._keep_what_has_ended()
                raise
            finally:
                try:
                    left = list(self.crew.leave())
                finally:
                    if self.checkpoint is not None:
                        self.checkpoint.close()
        return self._result(interrupts.requested, [*self._out_of_time, *left])

    def _show(self) -> None:
        o = self.optimizer
        self.progress(o.queries, best=o.best_fun, failures=o.failures)

    def _fill(self, interrupts: Interrupts) -> None:
        """Sends points to idle workers, first of pending batches, then of another batch."""
        while self.crew.idle and not interrupts.requested and self.limits.left > 0.0:
            query = self._next()
            if query is None or interrupts.requested:
                return
            if self.checkpoint is not None:
                self.checkpoint.sent(query.batch, query.rows)
            self.crew.submit(query, self.limits.of_a_query(here=self.crew.runs_here))

    def _next(self) -> Query | None:
        while True:
            while self._ready:
                query = next(self._ready[0], None)
                if query is not None:
                    return query
                self._ready.pop(0)
            if self.crew.workers is None and len(self.crew):
                return None
            batch = self.optimizer.ask_another()
            if batch is None:
                return None
            if self.checkpoint is not None:
                self.checkpoint.asked(batch)
            self._ready.append(self._queries(batch, range(len(batch))))

    def _queries(self, batch: Batch, rows: Sequence[int]) -> Iterator[Query]:
        return (Query(batch, part, call) for part, call in self.evaluator.calls(batch, list(rows)))

    def _take(self, ended: tuple[Query, Call] | None, interrupts: Interrupts) -> None:
        """Tells the values of a query that has ended."""
        if ended is None:
            return
        query, call = ended
        batch, rows, optimizer = query.batch, query.rows, self.optimizer
        points = f"point {rows[0]}" if len(rows) == 1 else f"{len(rows)} points"
        where = f"query {optimizer.queries + 1} ({points} of batch {batch.id})"
        interrupts.in_objective = self.crew.runs_here
        try:
            if interrupts.requested and self.crew.runs_here:
                return  # the interrupt came before the query began
            values = self.evaluator.outcome(call, where, first=self._is_first(batch, rows))
        except Interrupted:
            if not interrupts.requested:
                raise  # it belongs to an enclosing run
            return
        except StopIteration:
            optimizer.stop(StopReason.FUNCTION)
            return
        except OutOfTime:
            self._out_of_time.append(query)
            return
        except (KeyboardInterrupt, BrokenExecutor):
            if interrupts.requested and not self.crew.runs_here:
                return  # the workers got the same signal
            raise
        finally:
            interrupts.in_objective = False
        before = optimizer.iterations
        self._tell(query, values or [math.nan] * len(rows))
        if optimizer.iterations > before:
            self._batch_done(batch)

    def _is_first(self, batch: Batch, rows: Sequence[int]) -> bool:
        """Whether this is the last attempt at the run's first query."""
        again = self._attempts[0, 0] < self.evaluator.max_retries and self.optimizer.spare > 0
        return (batch.id, rows[0]) == (0, 0) and not again

    def _tell(self, query: Query, values: Sequence[Any]) -> None:
        """Journals and tells values, except those of points that are retried."""
        batch = query.batch
        told = dict(zip(query.rows, values, strict=True))
        again = [i for i, value in told.items() if not is_success(value) and self._tries_again(batch, i)]
        if again:
            self._ready.insert(0, self._queries(batch, again))
        final = {i: value for i, value in told.items() if i not in again}
        if not final:
            return
        if self.checkpoint is not None:
            self.checkpoint.arrived(batch, [*final], [*final.values()])
        self.optimizer.tell(batch, [*final.values()], which=[*final])

    def _take_what_ends(self, interrupts: Interrupts) -> None:
        """Takes queries that have ended when the run stops or end in an interrupt's grace period."""
        while len(self.crew) and not self.crew.runs_here:
            ended = self.crew.wait(interrupts.grace_left if interrupts.requested else 0.0)
            if ended is None and not (interrupts.requested and interrupts.grace_left):
                return
            self._take(ended, interrupts)

    def _keep_what_has_ended(self) -> None:
        """Tells values that have arrived when an exception ends the run, and ignores further errors."""
        while len(self.crew) and not self.crew.runs_here and (ended := self.crew.wait(0.0)) is not None:
            query, call = ended
            with suppress(Exception):
                self._tell(query, call())

    def _tries_again(self, batch: Batch, i: int) -> bool:
        """Whether a failed point is retried; if so, counts the failed attempt."""
        if self._attempts[batch.id, i] >= self.evaluator.max_retries or self.optimizer.spare < 1:
            return False
        if self.checkpoint is not None:
            self.checkpoint.failed(batch, i)
        self._attempts[batch.id, i] += 1
        self.optimizer.tell(batch, [], which=[], retries=1)
        return True

    def _batch_done(self, batch: Batch) -> None:
        for i in range(len(batch)):
            self._attempts.pop((batch.id, i), None)
        self._call_back()
        if self.checkpoint is not None:
            self.checkpoint.save_when_due()

    def _call_back(self) -> None:
        if self.callback is None or not _stops(self.callback, self.optimizer):
            return
        self.optimizer.stop(StopReason.CALLBACK)
        if self.checkpoint is not None:
            self.checkpoint.stopped()

    def _result(self, interrupted: bool, left: Sequence[Query]) -> Result:
        early = StopReason.INTERRUPTED if interrupted else StopReason.TIME if self.limits.left <= 0.0 else None
        result = self.optimizer.result(early)
        early = early if result.stop_reason == early else None
        if early is not None and left:
            count = sum(len(query.rows) for query in left)
            result.message += f" {count} {'query was' if count == 1 else 'queries were'} still running and ignored."
        if early is not None and self.checkpoint is not None:
            result.message += " The same call with the same checkpoint continues."
        if self.checkpoint is not None and (error := self.checkpoint.error) is not None:
            result.message += f" The checkpoint could not be written: {error}."
        return result


def _stops(callback: Callback, optimizer: Optimizer) -> bool:
    try:
        return callback(optimizer.intermediate_result()) is True
    except StopIteration:
        return True
