"""``simulate``: a federation in one process, or over worker processes of one machine."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from scipy.optimize import OptimizeResult
from torch import Tensor
from tqdm import tqdm

from federated.core.algorithm import Algorithm
from federated.engine.faults import FaultPlan
from federated.engine.federation import ClientHost, Federation, RoundRecord
from federated.engine.host import Host
from federated.methods.local_descent import autograd
from federated.registry import algorithm_class
from optimizers.bounds import BoundsLike
from optimizers.evaluation import Evaluator, FailurePolicy
from optimizers.options import ProxLike, check_integer, positive_integer

Callback = Callable[[RoundRecord, Tensor], object]


def simulate(
    algorithm: str | type[Algorithm],
    objectives: Sequence[Callable[[Any], Any]],
    x0: Any,
    *,
    rounds: int,
    local_steps: int = 10,
    seed: int = 0,
    participation: float | int = 1.0,
    bounds: BoundsLike | None = None,
    prox: ProxLike | None = None,
    weights: Sequence[float] | None = None,
    fun: Callable[[Tensor], Any] | None = None,
    callback: Callback | None = None,
    numpy: bool = False,
    batched: bool = False,
    on_failure: FailurePolicy = "skip",
    retries: int = 1,
    workers: int = 1,
    start_method: str = "spawn",
    codec: bool = True,
    faults: FaultPlan | None = None,
    checkpoint: str | Path | None = None,
    checkpoint_every: int = 1,
    resume: str | Path | None = None,
    progress: bool = False,
    **options: Any,
) -> OptimizeResult:
    """Minimizes F(x) = Σᵢ pᵢ fᵢ(x) (+ ψ), pᵢ = wᵢ/Σw, by a federation of N clients in process.

    The iterates are a pure function of the arguments: they do not depend on the number of workers, on
    the codec, or on where a run was interrupted and resumed.

    Args:
        algorithm: a name in ``federated.registry.ALGORITHMS``, or an ``Algorithm`` subclass.
        objectives: the clients' functions of one point, shape ``d`` (of ``q x d`` with ``batched``). First-order
            algorithms use their ``gradient(x)`` method, or automatic differentiation. One that has an
            integer attribute ``dimension`` is held to it.
        x0: initial point, shape ``d``.
        rounds: R, rounds in all, those before a resume among them.
        local_steps: T, steps of a client in a round.
        seed: seed of the run.
        participation: clients of a round: an integer is their number, a float their share.
        bounds: box of iterates and queries.
        prox: proximal operator of ψ.
        weights: wᵢ > 0; None: equal.
        fun: F, for the history only: its values are no queries of the federation's.
        callback: called with each round's record and model; StopIteration or True stops.
        numpy: hand out NumPy arrays instead of tensors.
        batched: objectives take all points of a batch at once.
        on_failure: ``"skip"``, ``"retry"`` or ``"raise"``; see ``optimizers.Evaluator``.
        retries: evaluations of a failed point beyond the first, under ``"retry"``.
        workers: processes that the clients are spread over; 1: in this one.
        start_method: how workers start, ``"spawn"``, ``"forkserver"`` or ``"fork"``; but for the last, objectives
            and options must be picklable.
        codec: pass messages as bytes; False saves that time and counts no message bytes.
        faults: what is to go wrong, for tests.
        checkpoint: file that the whole federation is saved to.
        checkpoint_every: rounds between two saves.
        resume: such a file to go on from.
        progress: show a progress bar over the rounds, on a terminal.
        **options: the algorithm's own, and ``server_rate``, ``aggregation``, ``trim`` of ``Algorithm``.

    Returns:
        ``OptimizeResult``: x, fun (NaN where the global function is not given), nfev, nfail, nit (rounds), skipped
        (rounds without a valid report), rejected (rounds taken back by ``accept="monotone"``), success, message,
        history (``RoundRecord`` of each round, from 0), ledger (``Ledger``).

    Raises:
        ValueError: for an unknown algorithm, no clients, a sample larger than the federation, objectives of
            another dimension than x0, an argument out of range, or a resume with another configuration.
        TypeError: for an option that the algorithm does not have, with the nearest name, or an objective that is
            not callable. All of these come before the first query.
    """
    federation = make_federation(
        algorithm,
        objectives,
        x0,
        local_steps=local_steps,
        seed=seed,
        participation=participation,
        bounds=bounds,
        prox=prox,
        weights=weights,
        fun=fun,
        evaluation={"numpy": numpy, "batched": batched, "on_failure": on_failure, "retries": retries},
        workers=workers,
        start_method=start_method,
        codec=codec,
        faults=faults,
        **options,
    )
    try:
        check_integer("rounds", rounds, 0)
        every = positive_integer("checkpoint_every", checkpoint_every)
        _check_path("checkpoint", checkpoint)
        if resume is not None:
            federation.load_state_dict(_loaded(resume))
        message = run_rounds(federation, int(rounds), callback, checkpoint, every, progress)
    finally:
        federation.host.close()
    return result(federation, message)


def make_federation(
    algorithm: str | type[Algorithm],
    objectives: Sequence[Callable[[Any], Any]],
    x0: Any,
    *,
    fun: Callable[[Tensor], Any] | None = None,
    evaluation: dict[str, Any] | None = None,
    workers: int = 1,
    start_method: str = "spawn",
    codec: bool = True,
    faults: FaultPlan | None = None,
    **options: Any,
) -> Federation:
    """The federation of ``simulate``, to be driven round by round."""
    cls = algorithm_class(algorithm)
    given = list(objectives)
    if not given:
        raise ValueError("there are no clients: objectives is empty")
    made = cls(x0, clients=len(given), **options)
    for i, objective in enumerate(given):
        theirs = getattr(objective, "dimension", None)
        if isinstance(theirs, int) and theirs != made.dimension:
            raise ValueError(f"client {i} has dimension {theirs}, x0 has {made.dimension}")
    evaluators = {i: Evaluator(objective, **(evaluation or {})) for i, objective in enumerate(given)}
    gradients = {i: autograd(f) for i, f in enumerate(given)} if made.needs_gradient else {}
    workers = positive_integer("workers", workers)
    host: ClientHost
    if workers == 1:
        host = Host(made, evaluators, gradients)
    else:
        from federated.engine.workers import WorkerPool

        host = WorkerPool(made, evaluators, gradients, workers=workers, start_method=start_method)
    return Federation(made, host, fun, faults or FaultPlan(), codec)


def _check_path(name: str, path: str | Path | None) -> None:
    if path is not None and not isinstance(path, str | os.PathLike):
        raise TypeError(f"{name} must be the path of a file, got {path!r}")


def _loaded(resume: str | Path) -> dict[str, Any]:
    """The state in a checkpoint's file."""
    _check_path("resume", resume)
    try:
        state = torch.load(resume, weights_only=True)
    except (RuntimeError, EOFError, pickle.UnpicklingError) as error:
        raise ValueError(f"{resume} is no checkpoint of a federation: {error}".splitlines()[0]) from error
    if not isinstance(state, dict) or "configuration" not in state:
        raise ValueError(f"{resume} is no checkpoint of a federation")
    return state


def result(federation: Federation, message: str) -> OptimizeResult:
    """A federation's result so far."""
    ledger, history = federation.ledger, federation.history
    return OptimizeResult(
        x=federation.server.x,
        fun=history[-1].fun,
        nfev=ledger.total("queries"),
        nfail=ledger.total("failures"),
        nit=federation.rounds,
        skipped=sum(record.skipped is not None for record in history),
        rejected=sum(record.rejected for record in history),
        success=True,
        message=message,
        algorithm=federation.algorithm.name,
        history=history,
        ledger=ledger,
    )


def save(federation: Federation, path: str | Path) -> None:
    """Save the whole federation, replacing the file at once."""
    path = Path(path)
    partial = path.with_name(path.name + ".partial")
    torch.save(federation.state_dict(), partial)
    os.replace(partial, path)


def run_rounds(
    federation: Federation,
    rounds: int,
    callback: Callback | None = None,
    checkpoint: str | Path | None = None,
    every: int = 1,
    progress: bool = False,
) -> str:
    """Rounds of a federation up to the given one, as ``simulate`` says; why it ended."""
    name = federation.algorithm.name
    shown = None if progress else True
    with tqdm(total=rounds, initial=federation.rounds, desc=name, disable=shown, unit="round") as bar:
        while federation.rounds < rounds:
            record = federation.run_round()
            bar.set_postfix(fun=f"{record.fun:.6g}", queries=record.queries, refresh=False)
            bar.update()
            stop = callback is not None and _stops(callback, record, federation.server.x)
            if checkpoint is not None and (stop or record.round % every == 0 or record.round == rounds):
                save(federation, checkpoint)
            if stop:
                return f"Stopped by the callback after {record.round} rounds."
    return f"{federation.rounds} rounds done."


def _stops(callback: Callback, record: RoundRecord, x: Tensor) -> bool:
    try:
        return callback(record, x) is True
    except StopIteration:
        return True
