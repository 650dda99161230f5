"""The ``ServerApp``: the round loop of ``simulate`` over SuperNodes."""

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
from federated.engine.checkpoint import Checkpoint, load_checkpoint
from federated.engine.federation import Federation, RoundRecord
from federated.flower.configuration import RunConfig
from federated.flower.grid_host import GridHost
from federated.flower.keys import read_keys
from federated.flower.status import Status
from federated.simulate import run_rounds
from optimizers.core.files import replacing, save_tensors

logger = logging.getLogger(__name__)

LONGEST = 2000
"""Characters of the line that says why a run ends."""

CHECKPOINT = "federation.pt"
"""The checkpoint's name in the folder ``output``."""

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Runs the federation that the run config describes, and writes its results to the folder ``output``.

    Raises:
        ValueError, TypeError: if the run config is refused, with the reason.
        NoClientError: if clients do not connect, or cannot take part.
    """
    _log_to_run()
    try:
        _run_as_configured(grid, context)
    except Exception as error:
        logger.error("the run ends: %s", plain(f"{type(error).__name__}: {error}", LONGEST))
        raise


def run(grid: Grid, config: RunConfig) -> Federation:
    """Does the work of ``main``, also for a ``ServerApp`` of one's own; returns the federation after its rounds.

    Raises:
        ValueError: if the checkpoint of ``resume`` is none of this federation, or that of ``output`` is another one.
    """
    algorithm = config.make_algorithm()
    keys = read_keys(Path(config.keys).expanduser(), algorithm.clients) if config.keys else None

    def waiting(line: str) -> None:
        logger.info("%s", line)
        status.waiting(line)

    def told(record: RoundRecord, x: Tensor) -> None:
        _say(record)
        status.round(record)

    host = GridHost(algorithm, grid, timeout=config.timeout, wait=config.wait, keys=keys, say=waiting)
    federation = Federation(algorithm, host, config.global_function(), codec=False)
    resumed = load_checkpoint(federation, Path(config.resume).expanduser()) if config.resume else None
    folder = Path(config.output).expanduser().resolve() if config.output else None
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
    checkpoint = None if folder is None else _kept_in(folder / CHECKPOINT, resumed)
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
    """Writes ``model.pt``, ``history.csv`` and ``ledger.csv``, each whole or not at all.

    Raises:
        OSError: if a file cannot be written, with its path; the others are written all the same.
    """
    columns = [field.name for field in fields(RoundRecord)]
    with ExitStack() as each:  # of which every part is tried, whichever fails
        each.callback(_write_model, federation.server.x, folder / "model.pt")
        each.callback(federation.ledger.to_csv, folder / "ledger.csv")
        each.callback(write_csv, folder / "history.csv", columns, map(asdict, federation.history))


def _write_model(x: Tensor, path: Path) -> None:
    with replacing(path) as file:
        save_tensors(x, file)


def _kept_in(path: Path, resumed: Checkpoint | None) -> Checkpoint:
    """The checkpoint that a run is kept in: a new one, or that from which it goes on; no other is written over."""
    if resumed is not None and resumed.path.absolute() == path:
        return resumed
    if path.exists():
        raise ValueError(
            f"{plain(path)} is a run's checkpoint already, which is not written over: go on from it with "
            f'resume="{plain(path)}", or give another folder as output'
        )
    return Checkpoint(path)


def _run_as_configured(grid: Grid, context: Context) -> None:
    config = RunConfig.of(context.run_config)
    if not config.keys and getattr(grid, "_insecure", True) is False:
        raise ValueError(
            "nodes that connect by TLS are taken for the clients that they say they are by their keys alone: say "
            'keys="FILE", a file on the server\'s machine with a line "0 ecdsa-sha2-nistp384 AAAA..." for each client'
        )
    run(grid, config)


def _say(record: RoundRecord) -> None:
    said = [f"{record.queries} queries", f"{len(record.accepted)} clients"]
    if not math.isnan(record.fun):
        said.insert(0, f"F {record.fun:.6g}")
    if record.skipped:
        said.append(f"skipped: {record.skipped}")
    logger.info("round %d: %s", record.round, ", ".join(said))
    for client, phase, reason in record.refused:
        logger.info("round %d, phase %s, client %d: %s", record.round, phase, client, reason)


def _log_to_run() -> None:
    """Logs this package's messages to the standard output, from which Flower takes a run's log."""
    package = logging.getLogger("federated")
    if not package.handlers:
        handler = logging.StreamHandler(sys.stdout)
        handler.setFormatter(logging.Formatter("%(levelname)s: %(message)s"))
        package.addHandler(handler)
        package.setLevel(logging.INFO)
