"""``simulate``: a federation in one process, or over worker processes of one machine."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from federated.core.algorithm import Algorithm
from federated.core.gate import UNMOVED
from federated.engine.checkpoint import Checkpoint, check_path, load_checkpoint
from federated.engine.federation import ClientHost, Federation, RoundRecord
from federated.engine.host import Host, MadeWhenAsked, prepared
from federated.engine.result import FederatedResult
from federated.engine.workers import WorkerPool
from federated.registry import algorithm_class
from optimizers.core.options import (
    check_boolean,
    check_integer,
    check_takes,
    keyword_names,
    option_names,
    optional,
    positive,
    positive_integer,
    refuse_misspelt,
)
from optimizers.core.result import to_numpy
from optimizers.evaluation import FailurePolicy
from optimizers.progress import Progress, ProgressMode
from optimizers.running.interrupts import Interrupted, Interrupts

logger = logging.getLogger(__name__)

Callback = Callable[[RoundRecord, Any], object]


class Ending(NamedTuple):
    """Why a run ended, and whether as planned."""

    message: str
    planned: bool


def simulate(
    algorithm: str | type[Algorithm],
    objectives: Sequence[Callable[[Any], Any]],
    x0: Any,
    *,
    rounds: int,
    callback: Callback | None = None,
    checkpoint: str | Path | None = None,
    checkpoint_every: int = 1,
    progress: ProgressMode = "auto",
    numpy: bool | None = None,
    **options: Any,
) -> FederatedResult:
    """Minimizes F(x) = Σᵢ pᵢ fᵢ(x) (+ ψ), pᵢ = wᵢ/Σw, by a federation of N clients on this machine.

    The iterates are a pure function of the arguments: they depend neither on the number of workers, nor on
    ``codec``, nor on where a run was interrupted and gone on with. The first Ctrl-C gives the round that is running
    5 s to end, and returns the result so far, of which ``success`` is False; a second one is raised at once.

    Args:
        algorithm: a name in ``federated.registry.ALGORITHMS``, or an ``Algorithm`` subclass.
        objectives: the clients' functions fᵢ; see ``make_federation``.
        x0: initial point, shape ``d``.
        rounds: R, the number of rounds, those before an interruption included.
        callback: called after each round with its record and the model; it stops the run by returning True or
            raising StopIteration.
        checkpoint: a file in which the whole federation is kept, beside others that only grow: the ledger's entries,
            ``<checkpoint>.ledger.csv``, and the rounds' records, ``<checkpoint>.history.jsonl``, which can be read
            while the run goes on, and of FZooS the clients' queries, ``<checkpoint>.rows.bin``. The same call with the
            same file goes on after the last round that was saved, to the bit, also with more rounds; of a run that has
            made its rounds it returns the result. It is loaded only by the same algorithm, options, seed, x0, bounds
            and number of clients. Whether their functions are the same it cannot know: what objectives hold themselves,
            as a generator's state, is theirs to keep.
        checkpoint_every: number of rounds from one save to the next.
        progress: ``"auto"``: a bar over the rounds in terminals and notebooks, and else lines of the log every 30 s;
            True: a bar; False: neither. See ``Progress``.
        numpy: whether objectives and ``fun`` get, and the result and what callbacks get hold, NumPy arrays instead of
            tensors; None: unless x0 is a tensor.
        **options: ``fun``, ``workers`` and the other options of ``make_federation``; ``local_steps``,
            ``seed``, ``participation``, ``bounds``, ``weights`` and the other options of ``Algorithm``; and those
            of the algorithm itself.

    Returns:
        A ``FederatedResult``: x, fun, nfev, nfail, nit, skipped, rejected, success, message, algorithm, history and
        ledger. ``success`` is whether the run made its rounds, and with some effect: not where all rounds were
        skipped, all queries failed, or fewer than half of the reports that were asked for were used. ``message``
        says how many queries failed, reports were not used and numbers in them were exactly 0.

    Raises:
        ValueError: if an argument is out of range, there are no clients, or the checkpoint is none of this
            configuration.
        TypeError: if an argument has another type, or the algorithm no such option, with the nearest name.
            No error of an argument comes after the first query.
    """
    arrays = _arrays(numpy, x0)
    federation = make_federation(algorithm, objectives, x0, numpy=arrays, **options)
    try:
        rounds = check_integer("rounds", rounds, 0)
        every = positive_integer("checkpoint_every", checkpoint_every)
        check_path("checkpoint", checkpoint)
        if callback is not None:
            check_takes("callback", callback, "record", "x")
        kept = None if checkpoint is None else going_on(federation, checkpoint)
        told = _with_arrays(callback) if arrays and callback is not None else callback
        ending = run_rounds(federation, rounds, told, kept, every, progress)
    finally:
        federation.host.close()
    ledger, history = federation.ledger, federation.history
    queries, failures = ledger.total("queries"), ledger.total("failures")
    skipped = sum(record.skipped is not None for record in history)
    asked, unused = reports_of(history)
    in_vain = skipped == federation.rounds > 0 or failures == queries > 0 or 2 * unused > asked
    result = FederatedResult(
        x=federation.server.x,
        fun=history[-1].fun,
        nfev=queries,
        nfail=failures,
        nit=federation.rounds,
        skipped=skipped,
        rejected=sum(record.rejected for record in history),
        success=ending.planned and not in_vain,
        message=ending.message,
        algorithm=federation.algorithm.name,
        history=history,
        ledger=ledger,
    )
    if arrays:
        result.x = to_numpy(result.x)
    return result


def _with_arrays(callback: Callback) -> Callback:
    return lambda record, x: callback(record, to_numpy(x))


def make_federation(
    algorithm: str | type[Algorithm],
    objectives: Sequence[Callable[[Any], Any]],
    x0: Any,
    *,
    fun: Callable[[Any], Any] | None = None,
    numpy: bool | None = None,
    batched: bool = False,
    on_failure: FailurePolicy = "skip",
    retries: int = 1,
    workers: int = 1,
    start_method: str = "spawn",
    codec: bool = True,
    timeout: float | None = None,
    **options: Any,
) -> Federation:
    """The federation that ``simulate`` runs, to be driven round by round.

    Args:
        algorithm: a name in ``federated.registry.ALGORITHMS``, or an ``Algorithm`` subclass.
        objectives: the clients' functions fᵢ of one point, shape ``d``, or with ``batched`` of ``q x d``. An
            algorithm that needs gradients calls their method ``gradient(x)``, or differentiates them automatically
            if they have none. An integer attribute ``dimension`` must equal d. Those in a list or tuple are checked at
            once. Of another sequence the length is asked, and item i when client i is first sampled.
        x0: initial point, shape ``d``.
        fun: F, evaluated once a round for the history and not counted as queries.
        numpy: whether objectives and ``fun`` are given NumPy arrays instead of tensors; None: unless x0 is a tensor.
        batched: whether objectives are given all points of a batch at once.
        on_failure: ``"skip"``, ``"retry"`` or ``"raise"``; see ``optimizers.Evaluator``.
        retries: evaluations of a failed point beyond the first, under ``"retry"``.
        workers: number of processes that serve clients, each the next that waits; 1 keeps them in this process.
        start_method: how workers start: ``"spawn"``, ``"forkserver"`` or ``"fork"``. Unless it is the last,
            objectives and options must be picklable.
        codec: whether messages pass as bytes; False is faster and counts no message bytes.
        timeout: seconds that a client may work in a phase. One that takes longer is interrupted in the query that it
            is at, where its thread can be (``Host``), its report is refused as late, and the queries of the batch that
            it was at count as failed. None: as long as it takes, which alone makes runs repeatable.
        **options: options of ``Algorithm``, except ``clients``, and those of the algorithm itself.

    Raises:
        ValueError, TypeError: as ``simulate``.
    """
    given = _by_number(objectives)
    if not given:
        raise ValueError("there are no clients: objectives is empty")
    if fun is not None and not callable(fun):
        raise TypeError(f"fun must be callable, got {type(fun).__name__}")
    arrays = _arrays(numpy, x0)
    cls = algorithm_class(algorithm)
    own = keyword_names(simulate) | keyword_names(make_federation)
    refuse_misspelt(simulate, own, option_names(cls), options, {"resume": "checkpoint goes on where its file is there"})
    made = cls(x0, clients=len(given), **options)
    clients = prepared(made, given, numpy=arrays, batched=batched, on_failure=on_failure, retries=retries)
    workers, timeout = positive_integer("workers", workers), optional(positive, "timeout", timeout)
    host: ClientHost
    if workers == 1:
        host = Host(made, *clients, timeout)
    else:
        host = WorkerPool(made, *clients, workers=workers, start_method=start_method, timeout=timeout)
    value = (lambda x: fun(to_numpy(x))) if arrays and fun is not None else fun
    return Federation(made, host, value, codec)


def _arrays(numpy: bool | None, x0: Any) -> bool:
    return not isinstance(x0, Tensor) if numpy is None else check_boolean("numpy", numpy)


def _by_number(objectives: Sequence[Callable[[Any], Any]]) -> Mapping[int, Callable[[Any], Any]]:
    if isinstance(objectives, str | Mapping) or not isinstance(objectives, Iterable):
        raise TypeError(f"objectives must be a sequence of functions, one for each client, got {objectives!r:.80}")
    if isinstance(objectives, list | tuple) or not isinstance(objectives, Sequence):
        return dict(enumerate(objectives))
    return MadeWhenAsked(len(objectives), objectives.__getitem__)


def run_rounds(
    federation: Federation,
    rounds: int,
    callback: Callback | None = None,
    checkpoint: Checkpoint | None = None,
    every: int = 1,
    progress: ProgressMode = False,
) -> Ending:
    """Runs a federation up to a number of rounds, with the arguments of ``simulate``; returns why it ended.

    Where a checkpoint cannot be written the older one stays, the run goes on, and what is returned says so. Interrupts
    are taken as ``simulate`` says; what an unfinished round has spent is in the ledger.
    """
    unsaved = ""
    name, best = federation.algorithm.name, float(np.fmin.reduce([record.fun for record in federation.history]))
    interrupts = Interrupts(ending="the round that is running has")
    interrupts.in_objective = True
    with Progress(progress, total=rounds, done=federation.rounds, name=name, unit="round") as show, interrupts:
        while federation.rounds < rounds and not interrupts.requested:
            try:
                record = federation.run_round()
            except Interrupted:
                if not interrupts.requested:
                    raise  # it belongs to a run around this one
                break
            best = float(np.fmin(best, record.fun))
            show(record.round, best=best, failures=record.failures, queries=record.queries)
            stop = callback is not None and _stops(callback, record, federation.server.x)
            due = stop or interrupts.requested or record.round % every == 0 or record.round == rounds
            if checkpoint is not None and due:
                unsaved = _unsaved(federation, checkpoint)
            if stop:
                return Ending(f"Stopped by the callback after {record.round} rounds.{unsaved}", False)
    spent, failures = federation.ledger.total("queries"), federation.ledger.total("failures")
    done = f"{federation.rounds} round{'' if federation.rounds == 1 else 's'}"
    asked, unused = reports_of(federation.history)
    gate = federation.server.gate
    failed = f", {failures} of {spent} queries failed" if failures else ""
    failed += f", {unused} of {asked} reports were not used" if unused else ""
    if 2 * gate.zeros > gate.heard:
        failed += f", {gate.zeros} of {gate.heard} reported numbers were exactly 0, {UNMOVED}"
    if interrupts.requested and federation.rounds < rounds:
        more = "" if checkpoint is None else " The same call with the same checkpoint goes on."
        return Ending(f"Interrupted after {done}{failed}.{more}{unsaved}", False)
    return Ending(f"{done} done{failed}.{unsaved}", True)


def reports_of(history: Sequence[RoundRecord]) -> tuple[int, int]:
    """How many reports rounds asked for, one a participant, and how many of these were not used to the rounds' ends."""
    asked = sum(len(record.participants) for record in history)
    return asked, asked - sum(len(record.accepted) for record in history)


def going_on(federation: Federation, path: str | Path) -> Checkpoint:
    """The checkpoint at a path, from which a federation goes on where the file is there.

    Raises:
        OSError, ValueError: as ``load_checkpoint``.
    """
    if not Path(path).exists():
        return Checkpoint(path)
    checkpoint = load_checkpoint(federation, path)
    logger.info("%s: goes on after %d rounds", path, federation.rounds)
    return checkpoint


def _unsaved(federation: Federation, checkpoint: Checkpoint) -> str:
    """Saves a federation; the sentence that says why it could not be saved, or nothing."""
    try:
        checkpoint.save(federation)
    except OSError as error:
        logger.error("%s cannot be written (%s): the older one stays, and the run goes on", checkpoint.path, error)
        return f" The checkpoint could not be written: {error}."
    return ""


def _stops(callback: Callback, record: RoundRecord, x: Tensor) -> bool:
    try:
        return callback(record, x) is True
    except StopIteration:
        return True
