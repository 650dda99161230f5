"""``simulate``: runs a federation in one process, or in worker processes on one machine."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from federated.core.algorithm import Algorithm
from federated.core.gate import UNMOVED
from federated.engine.checkpoint import Checkpoint
from federated.engine.federation import ClientHost, Federation, RoundRecord
from federated.engine.host import Host, LazyMapping, prepared
from federated.engine.result import FederatedResult
from federated.engine.workers import WorkerPool
from federated.registry import algorithm_class
from optimizers.core.bounds import BoundsLike
from optimizers.core.options import (
    ProxLike,
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


def simulate(
    algorithm: str | type[Algorithm],
    objectives: Sequence[Callable[[Any], Any]],
    x0: Any,
    *,
    rounds: int,
    local_steps: int = 10,
    seed: int = 0,
    bounds: BoundsLike | None = None,
    prox: ProxLike | None = None,
    participation: float | int = 1.0,
    weights: Sequence[float] | None = None,
    fun: Callable[[Any], Any] | None = None,
    numpy: bool | None = None,
    batched: bool = False,
    workers: int = 1,
    timeout: float | None = None,
    on_failure: FailurePolicy = "skip",
    callback: Callback | None = None,
    checkpoint: str | Path | None = None,
    checkpoint_every: int = 1,
    progress: ProgressMode = "auto",
    **options: Any,
) -> FederatedResult:
    """Minimizes F(x) = Σᵢ pᵢ fᵢ(x) (+ ψ), pᵢ = wᵢ/Σw, by a federation of N clients on this machine.

    The iterates do not depend on ``workers``, ``codec``, or where a run was interrupted and resumed. The first Ctrl-C
    gives the current round 5 s to finish and returns a result with ``success=False``; a second is raised.

    Args:
        algorithm: a name in ``federated.registry.ALGORITHMS``, or an ``Algorithm`` subclass.
        objectives: the clients' functions fᵢ; see ``make_federation``.
        x0: initial point, shape ``d``.
        rounds: R, the total number of rounds, including those before a resume.
        local_steps: T, the steps of a client in a round.
        seed: seed of every random number, 0 ≤ seed < 2⁶⁴.
        bounds: box constraints on every iterate and query.
        prox: proximal operator of ψ, applied by clients after each local step; see ``Algorithm``.
        participation: clients sampled in a round: an integer is their number, a float a fraction of N.
        weights: wᵢ > 0, one for each client; None means equal weights.
        fun: F, evaluated once per round for the history and not counted as queries.
        numpy: whether objectives, ``fun``, callbacks and the result use NumPy arrays; None means True unless x0 is a
            tensor.
        batched: whether objectives receive all points of a batch at once, shape ``q x d``.
        workers: number of worker processes that serve clients; 1 serves them in this process.
        timeout: maximal seconds of a client's work in a phase; None is unlimited; see ``make_federation``.
        on_failure: ``"skip"``, ``"retry"`` or ``"raise"``; see ``optimizers.Evaluator``.
        callback: called after each round with its record and the model; stops the run if it returns True or raises
            StopIteration.
        checkpoint: file to which the federation is saved, with files beside it (``federated.engine.checkpoint``). The
            same call with an existing file resumes bitwise after the last saved round, possibly with more rounds, or
            returns the result if all rounds are done. The algorithm, options, seed, x0, bounds and number of clients
            must be the same; the clients' functions are not compared, and a state that they keep is not saved.
        checkpoint_every: number of rounds between saves.
        progress: ``"auto"`` shows a bar in terminals and notebooks and otherwise logs every 30 s; True shows a bar;
            False shows nothing. See ``Progress``.
        **options: the algorithm's own options, such as FedZO's ``directions``; ``server_rate``, ``aggregation``,
            ``trim``, ``gate`` and ``quorum`` of ``Algorithm``; ``retries``, ``start_method`` and ``codec`` of
            ``make_federation``.

    Returns:
        A ``FederatedResult``; its ``message`` counts failed queries, unused reports and reported numbers that were 0.

    Raises:
        ValueError: if an argument is out of range, there are no clients, or the checkpoint has another configuration.
        TypeError: if an argument has the wrong type, or an option is unknown; raised before the first query.
    """
    arrays = _arrays(numpy, x0)
    federation = make_federation(
        algorithm,
        objectives,
        x0,
        local_steps=local_steps,
        seed=seed,
        bounds=bounds,
        prox=prox,
        participation=participation,
        weights=weights,
        fun=fun,
        numpy=arrays,
        batched=batched,
        workers=workers,
        timeout=timeout,
        on_failure=on_failure,
        **options,
    )
    try:
        rounds = check_integer("rounds", rounds, 0)
        every = positive_integer("checkpoint_every", checkpoint_every)
        if callback is not None:
            check_takes("callback", callback, "record", "x")
        kept = None if checkpoint is None else Checkpoint(checkpoint)
        if kept is not None and kept.path.exists():
            kept.load(federation)
        if federation.rounds:
            logger.info("%s: resuming after %d rounds", checkpoint, federation.rounds)
        told = (lambda record, x: callback(record, to_numpy(x))) if arrays and callback is not None else callback
        result = run_rounds(federation, rounds, told, kept, every, progress)
    finally:
        federation.host.close()
    if arrays:
        result.x = to_numpy(result.x)
    return result


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
    """Creates the federation that ``simulate`` runs, to be driven round by round.

    Args:
        algorithm: a name in ``federated.registry.ALGORITHMS``, or an ``Algorithm`` subclass.
        objectives: the clients' functions fᵢ of one point, shape ``d``, or with ``batched`` of ``q x d``. An algorithm
            that needs gradients calls their method ``gradient(x)``, or else differentiates them automatically. An
            integer attribute ``dimension`` must equal d. Items of a list or tuple are checked immediately; item i of
            another sequence is requested when client i is first sampled.
        x0: initial point, shape ``d``.
        fun: F, evaluated once per round for the history and not counted as queries.
        numpy: whether objectives and ``fun`` receive NumPy arrays; None means True unless x0 is a tensor.
        batched: whether objectives receive all points of a batch at once.
        on_failure: ``"skip"``, ``"retry"`` or ``"raise"``; see ``optimizers.Evaluator``.
        retries: additional evaluations of a failed point, with ``"retry"``.
        workers: number of worker processes that serve clients; 1 serves them in this process.
        start_method: ``"spawn"``, ``"forkserver"`` or ``"fork"``; all but ``"fork"`` need picklable objectives and
            options.
        codec: whether messages are encoded as bytes; False is faster and counts no message bytes.
        timeout: maximal seconds of a client's work in a phase; None is unlimited. A client that exceeds it is
            interrupted in its query where possible (``Host``), the batch's queries count as failed, and there is no
            report. Runs are reproducible only without a timeout.
        **options: options of ``Algorithm``, except ``clients``, and the algorithm's own options.

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
    refuse_misspelt(simulate, own, option_names(cls), options, {"resume": "checkpoint resumes if its file exists"})
    made = cls(x0, clients=len(given), **options)
    clients = prepared(made, given, numpy=arrays, batched=batched, on_failure=on_failure, retries=retries)
    workers, timeout = positive_integer("workers", workers), optional(positive, "timeout", timeout)
    host: ClientHost
    if workers == 1:
        host = Host(made, *clients, timeout)
    else:
        host = WorkerPool(made, *clients, workers=workers, start_method=start_method, timeout=timeout)
    value = (lambda x: fun(to_numpy(x))) if arrays and fun is not None else fun
    return Federation(made, host, fun=value, codec=codec)


def _arrays(numpy: bool | None, x0: Any) -> bool:
    return not isinstance(x0, Tensor) if numpy is None else check_boolean("numpy", numpy)


def _by_number(objectives: Sequence[Callable[[Any], Any]]) -> Mapping[int, Callable[[Any], Any]]:
    if isinstance(objectives, str | Mapping) or not isinstance(objectives, Iterable):
        raise TypeError(f"objectives must be a sequence of functions, one for each client, got {objectives!r:.80}")
    if isinstance(objectives, list | tuple) or not isinstance(objectives, Sequence):
        return dict(enumerate(objectives))
    return LazyMapping(len(objectives), objectives.__getitem__)


def run_rounds(
    federation: Federation,
    rounds: int,
    callback: Callback | None = None,
    checkpoint: Checkpoint | None = None,
    every: int = 1,
    progress: ProgressMode = False,
) -> FederatedResult:
    """Runs a federation up to a number of rounds, with the arguments of ``simulate``; returns tensors.

    If a checkpoint cannot be written, the previous one is kept, the run continues, and the result's message says so.
    The ledger includes the costs of an unfinished round.
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
            try:
                stop = callback is not None and callback(record, federation.server.x) is True
            except StopIteration:
                stop = True
            due = stop or interrupts.requested or record.round % every == 0 or record.round == rounds
            if checkpoint is not None and due:
                unsaved = _unsaved(federation, checkpoint)
            if stop:
                return _result(federation, f"Stopped by the callback after {record.round} rounds.{unsaved}", 99)
    spent, failures = federation.ledger.total("queries"), federation.ledger.total("failures")
    done = f"{federation.rounds} round{'' if federation.rounds == 1 else 's'}"
    asked, unused = reports_of(federation.history)
    gate = federation.server.gate
    failed = f", {failures} of {spent} queries failed" if failures else ""
    failed += f", {unused} of {asked} reports were not used" if unused else ""
    if 2 * gate.zeros > gate.heard:
        failed += f", {gate.zeros} of {gate.heard} reported numbers were exactly 0, {UNMOVED}"
    if interrupts.requested and federation.rounds < rounds:
        more = "" if checkpoint is None else " The same call with the same checkpoint resumes the run."
        return _result(federation, f"Interrupted after {done}{failed}.{more}{unsaved}", 98)
    return _result(federation, f"{done} done{failed}.{unsaved}", 1)


def reports_of(history: Sequence[RoundRecord]) -> tuple[int, int]:
    """Returns the number of requested reports, one per participant and round, and how many of them were not used."""
    asked = sum(len(record.participants) for record in history)
    return asked, asked - sum(len(record.accepted) for record in history)


def _result(federation: Federation, message: str, status: int) -> FederatedResult:
    """Returns the result of a run that has ended for the reason in ``message``."""
    ledger, history = federation.ledger, federation.history
    queries, failures = ledger.total("queries"), ledger.total("failures")
    skipped = sum(record.skipped is not None for record in history)
    asked, unused = reports_of(history)
    in_vain = skipped == federation.rounds > 0 or failures == queries > 0 or 2 * unused > asked
    return FederatedResult(
        x=federation.server.x,
        fun=history[-1].fun,
        nfev=queries,
        nfail=failures,
        nit=federation.rounds,
        skipped=skipped,
        rejected=sum(record.rejected for record in history),
        status=status,
        success=status == 1 and not in_vain,
        message=message,
        algorithm=federation.algorithm.name,
        history=history,
        ledger=ledger,
    )


def _unsaved(federation: Federation, checkpoint: Checkpoint) -> str:
    """Saves a federation; returns a sentence about a failure to save, or an empty string."""
    try:
        checkpoint.save(federation)
    except OSError as error:
        logger.error("%s cannot be written (%s): the run goes on with the previous one", checkpoint.path, error)
        return f" The checkpoint could not be written: {error}."
    return ""
