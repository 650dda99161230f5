"""The state of a run over Flower: the file ``status.json`` in the run's folder, and a summary of the state."""

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
from federated.flower.waiting import REPORT_INTERVAL
from optimizers.core.files import replacing

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

logger = logging.getLogger(__name__)

NAME, LOCK = "status.json", "status.lock"
"""The state's file, and a file that is locked until the run's process ends, even if it is killed."""

UNDER_WAY = ("connecting", "running")
"""States of a run that has not ended."""


class Status:
    """A context manager that writes a run's state on changes, and at least every 30 s while clients are awaited.

    A file that cannot be written does not end the run.

    Args:
        folder: the run's folder; None writes nothing.
        config: the run's configuration.
        rounds: number of rounds before this run.
    """

    def __init__(self, folder: Path | None, config: RunConfig, rounds: int) -> None:
        self._folder = folder
        self._lock: BinaryIO | None = None
        self._state: dict[str, Any] = {"state": "connecting", "round": rounds}
        self._state |= {name: getattr(config, name) for name in ("algorithm", "clients", "rounds")}

    def __enter__(self) -> Status:
        if fcntl is not None and self._folder is not None:
            with suppress(OSError):
                self._lock = (self._folder / LOCK).open("wb")
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        self.write()
        return self

    def __exit__(self, kind: object, failure: BaseException | None, trace: object) -> None:
        state = "finished" if failure is None else f"failed ({plain(f'{type(failure).__name__}: {failure}')})"
        # Flower stops a run by SystemExit.
        self.write(state="stopped" if isinstance(failure, SystemExit | KeyboardInterrupt) else state, waiting="")
        if self._lock is not None:
            Path(self._lock.name).unlink(missing_ok=True)
            self._lock.close()

    def round(self, record: RoundRecord) -> None:
        """Writes the state after a completed round."""
        refused = [f"client {client}, phase {phase}: {reason}" for client, phase, reason in record.refused]
        fun = None if math.isnan(record.fun) else record.fun
        self.write(state="running", round=record.round, queries=record.queries, fun=fun, waiting="", refused=refused)

    def write(self, **changes: Any) -> None:
        """Writes the state with changed entries, such as ``waiting``, a line about the clients that are awaited."""
        self._state |= changes
        if self._folder is not None:
            try:
                with replacing(self._folder / NAME) as file:
                    file.write(json.dumps(self._state | {"said": time.time()}).encode())
            except OSError as error:
                logger.warning("the state of the run is no longer written: %s", error)
                self._folder = None


def read(folder: Path) -> dict[str, Any]:
    """Returns the state of the run in a folder; ``"killed in round r"`` if the process ended before the run.

    Raises:
        ValueError: if there is no state, or it cannot be read.
    """
    path = folder / NAME
    try:
        killed = _is_free(folder / LOCK)
        state: dict[str, Any] = json.loads(path.read_bytes())
        if state["state"] in UNDER_WAY and killed:
            state |= {"state": f"killed in round {state['round'] + 1}", "waiting": ""}
        text(state, state["said"])  # raises an error if an entry is missing
        return state
    except FileNotFoundError:
        hint = "'status --insecure' lists all runs, also those that were refused or have not begun"
        raise ValueError(f"{path} does not exist: give the run's output folder; {hint}") from None
    except (OSError, ValueError, TypeError, LookupError, AttributeError) as error:
        raise ValueError(f"{path} cannot be read: {type(error).__name__}: {error}") from error


def _is_free(path: Path) -> bool:
    """Whether no living process holds the lock; False if this cannot be determined."""
    with suppress(OSError), path.open("rb") as file:
        if fcntl is not None:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return True
    return False


def text(state: Mapping[str, Any], now: float) -> str:
    """Summarizes a state in a few lines; ``now`` is the time in seconds since the epoch."""
    age = max(0.0, now - state["said"])
    done = f"round {state['round']} of {state['rounds']}"
    done += f", F {state['fun']:.6g}" if state.get("fun") is not None else ""
    done += f", {state['queries']} queries" if "queries" in state else ""
    lines = [f"{state['algorithm']} with {state['clients']} clients, {state['state']}: {done} ({age:.0f} s ago)"]
    lines += [*filter(None, [state.get("waiting")]), *state.get("refused", [])]
    if state["state"].startswith(("stopped", "killed")):
        lines.append('To resume it, run the same run config with resume="FOLDER/federation.pt".')
    if state["state"] in UNDER_WAY and age > 10 * REPORT_INTERVAL:
        lines.append("The server's process may have ended, as it has written nothing since: see superlink.log.")
    return "\n".join(lines)
