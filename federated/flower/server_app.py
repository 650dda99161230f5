"""The ``ServerApp``: the round loop of ``simulate`` with SuperNodes."""

from __future__ import annotations

import logging
import math
import sys
from contextlib import ExitStack
from dataclasses import asdict, fields
from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp
from torch import Tensor

from federated.core.ledger import write_csv
from federated.core.messages import plain
from federated.engine.checkpoint import Checkpoint
from federated.engine.federation import Federation, RoundRecord
from federated.flower.configuration import RunConfig
from federated.flower.grid_host import GridHost
from federated.flower.keys import read_keys
from federated.flower.status import Status
from federated.simulate import run_rounds
from optimizers.core.files import replacing, saved

logger = logging.getLogger(__name__)

MAX_FAILURE = 2000
"""Maximal length in characters of the message about a run's failure."""

CHECKPOINT = "federation.pt"
"""Name of the checkpoint in the folder ``output``."""

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Runs the federation described by the run config, and writes its results to the folder ``output``.

    Raises:
        ValueError, TypeError: with the reason, if the run config is refused.
        NoClientError: if clients do not connect, or cannot take part.
    """
    _log_to_run()
    try:
        config = RunConfig.of(context.run_config)
        if not config.keys and getattr(grid, "_insecure", True) is False:
            form = 'keys="FILE", on the server\'s machine, with a line "0 ecdsa-sha2-nistp384 AAAA..." for each client'
            raise ValueError(f"nodes that connect by TLS are identified as clients by their keys: pass {form}")
        run(grid, config)
    except Exception as error:
        logger.error("the run failed: %s", plain(f"{type(error).__name__}: {error}", MAX_FAILURE))
        raise


def run(grid: Grid, config: RunConfig) -> Federation:
    """Runs ``main`` for a config, also in a ``ServerApp`` of your own; returns the federation after its rounds.

    Raises:
        ValueError: if ``resume`` is not a checkpoint of this federation, or ``output`` contains another checkpoint.
    """
    algorithm = config.make_algorithm()
    keys = read_keys(Path(config.keys).expanduser(), algorithm.clients) if config.keys else None

    def waiting(line: str) -> None:
        logger.info("%s", line)
        status.write(waiting=line)

    def told(record: RoundRecord, x: Tensor) -> None:
        _log_round(record)
        status.round(record)

    host = GridHost(algorithm, grid, timeout=config.timeout, wait=config.wait, keys=keys, say=waiting)
    federation = Federation(algorithm, host, fun=config.global_function(), codec=False)
    resumed = Checkpoint(Path(config.resume).expanduser()).load(federation) if config.resume else None
    folder = Path(config.output).expanduser().resolve() if config.output else None
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
    checkpoint = None if folder is None else _checkpoint_in(folder / CHECKPOINT, resumed)
    status = Status(folder, config, federation.rounds)
    with status:
        host.connect()
        try:
            logger.info("%s", run_rounds(federation, config.rounds, told, checkpoint).message)
            federation.settle(host.accounts())
        finally:
            host.close()
            if folder is not None:
                write(federation, folder)
    return federation


def write(federation: Federation, folder: Path) -> None:
    """Writes ``model.pt``, ``history.csv`` and ``ledger.csv``, each atomically.

    Raises:
        OSError: if a file cannot be written, with its path; the other files are written nevertheless.
    """
    columns = [field.name for field in fields(RoundRecord)]
    with ExitStack() as each:  # a failed callback does not prevent the others
        each.callback(_write_model, federation.server.x, folder / "model.pt")
        each.callback(federation.ledger.to_csv, folder / "ledger.csv")
        each.callback(write_csv, folder / "history.csv", columns, map(asdict, federation.history))


def _write_model(x: Tensor, path: Path) -> None:
    with replacing(path) as file:
        file.write(saved(x))


def _checkpoint_in(path: Path, resumed: Checkpoint | None) -> Checkpoint:
    """Returns the run's checkpoint: a new one, or the one that is resumed. Other checkpoints are not overwritten."""
    if resumed is not None and resumed.path.absolute() == path:
        return resumed
    if path.exists():
        ways = f'resume it by resume="{plain(path)}", or pass another folder as output'
        raise ValueError(f"{plain(path)} is the checkpoint of a run, which is not overwritten: {ways}")
    return Checkpoint(path)


def _log_round(record: RoundRecord) -> None:
    said = [f"{record.queries} queries", f"{len(record.accepted)} clients"]
    if not math.isnan(record.fun):
        said.insert(0, f"F {record.fun:.6g}")
    if record.skipped:
        said.append(f"skipped: {record.skipped}")
    logger.info("round %d: %s", record.round, ", ".join(said))
    for client, phase, reason in record.refused:
        logger.info("round %d, phase %s, client %d: %s", record.round, phase, client, reason)


def _log_to_run() -> None:
    """Logs this package's messages to the standard output, which Flower uses as the run's log."""
    package = logging.getLogger("federated")
    if not package.handlers:
        handler = logging.StreamHandler(sys.stdout)
        handler.setFormatter(logging.Formatter("%(levelname)s: %(message)s"))
        package.addHandler(handler)
        package.setLevel(logging.INFO)
