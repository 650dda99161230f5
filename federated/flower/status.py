"""The state of a run over Flower: a file in its folder, and what a person reads of it."""

from __future__ import annotations

import json
import logging
import math
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

from federated.core.messages import plain
from federated.engine.federation import RoundRecord
from federated.flower.configuration import RunConfig
from federated.flower.waiting import SAYS
from optimizers.core.files import replacing

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

logger = logging.getLogger(__name__)

NAME, LOCK = "status.json", "status.lock"
"""The file's name, and that of the file which the run's process holds locked as long as it lives."""

ALWAYS = ("state", "algorithm", "clients", "rounds", "round", "began")
"""What every state has, beside ``said``, when it was written."""

UNDER_WAY = ("connecting", "running")
"""The states of a run that has not ended."""

SILENT = 10 * SAYS
"""Seconds without a word after which a run is taken for one that has ended without one."""


class Status:
    """Writes the state of a run whenever it changes, and at least every 30 s while something is waited for.

    A block under it is the run, whose end or failure is its last state; Flower ends a run that it is told to stop by
    ``SystemExit``. The run's process holds a lock meanwhile, which its end releases whatever it dies of, so that a
    reader on the server's machine can tell a run that was killed from one that is silent. A file that cannot be written
    is no reason to end the run.

    Args:
        folder: the run's folder; None: nothing is written.
        config: the run's configuration.
        rounds: the rounds that were made before.
    """

    def __init__(self, folder: Path | None, config: RunConfig, rounds: int) -> None:
        self._path = None if folder is None else folder / NAME
        self._lock: BinaryIO | None = None
        self._held: dict[str, Any] = {"state": "connecting", "algorithm": config.algorithm, "clients": config.clients}
        self._held |= {"rounds": config.rounds, "round": rounds, "began": time.time()}

    def __enter__(self) -> Status:
        if fcntl is not None and self._path is not None:
            with suppress(OSError):
                self._lock = self._path.with_name(LOCK).open("wb")
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        self._write()
        return self

    def __exit__(self, kind: object, failure: BaseException | None, trace: object) -> None:
        state = "finished" if failure is None else f"failed ({plain(f'{type(failure).__name__}: {failure}')})"
        if isinstance(failure, SystemExit | KeyboardInterrupt):
            state = "stopped"
        self._held |= {"state": state, "waiting": ""}
        self._write()
        if self._lock is not None:
            Path(self._lock.name).unlink(missing_ok=True)
            self._lock.close()

    def waiting(self, line: str) -> None:
        """Takes a line that says what is waited for."""
        self._held["waiting"] = line
        self._write()

    def round(self, record: RoundRecord) -> None:
        """Takes a round that has ended."""
        fun = None if math.isnan(record.fun) else record.fun
        self._held |= {"state": "running", "round": record.round, "queries": record.queries, "fun": fun, "waiting": ""}
        self._held |= {"refused": [f"client {c}, phase {phase}: {why}" for c, phase, why in record.refused]}
        self._write()

    def _write(self) -> None:
        if self._path is None:
            return
        try:
            with replacing(self._path) as file:
                file.write(json.dumps(self._held | {"said": time.time()}).encode())
        except OSError as error:
            logger.warning("the state of the run is not written any more: %s", error)
            self._path = None


def read(folder: Path) -> dict[str, Any]:
    """The state of the run whose folder this is; ``"killed in round r"`` where its process died without a word.

    Raises:
        ValueError: if there is none, or it cannot be read.
    """
    path = folder / NAME
    try:
        killed = not _is_locked(folder / LOCK)
        held = json.loads(path.read_bytes())
        held = dict(held) | {name: held[name] for name in ALWAYS} | {"said": float(held["said"])}
        if held["state"] in UNDER_WAY and killed:
            held |= {"state": f"killed in round {held['round'] + 1}", "waiting": ""}
        return held
    except FileNotFoundError:
        raise ValueError(
            f'{path} is not there: give the folder that the run has as output="FOLDER", which is relative to where the '
            "SuperLink was started. A run that was refused, or has not begun, has none: status without a folder, as "
            "status --insecure, lists the runs and how they ended"
        ) from None
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise ValueError(f"{path} cannot be read: {type(error).__name__}: {error}") from error


def _is_locked(path: Path) -> bool:
    """Whether a living process holds the lock; True too where that cannot be said."""
    try:
        with path.open("rb") as file:
            if fcntl is not None:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
                return False
    except OSError:
        pass
    return True


def text(held: Mapping[str, Any], now: float) -> str:
    """The state in two or three lines, at a time in seconds since the epoch."""
    ago = max(0.0, now - held["said"])
    done = f"round {held['round']} of {held['rounds']}"
    if held.get("fun") is not None:
        done += f", F {held['fun']:.6g}"
    if "queries" in held:
        done += f", {held['queries']} queries"
    lines = [f"{held['algorithm']} with {held['clients']} clients, {held['state']}: {done} ({ago:.0f} s ago)"]
    lines += [held["waiting"]] if held.get("waiting") else []
    lines += held.get("refused", [])
    if held["state"].startswith(("stopped", "killed")):
        lines.append('To go on: the same run config with resume="FOLDER/federation.pt".')
    if held["state"] in UNDER_WAY and ago > SILENT:
        lines.append("It has said nothing since: the server's process may have ended. See superlink.log.")
    return "\n".join(lines)
