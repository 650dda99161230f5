"""``python -m federated.flower COMMAND``: Flower's commands with safe defaults.

The commands are ``superlink``, ``supernode``, ``register``, ``run``, ``status`` and ``app``.
``superlink`` and ``supernode`` take the arguments of ``flower-superlink`` and ``flower-supernode``. ``run`` and
``register KEY`` take those of ``flwr run`` and ``flwr supernode register``, but name the SuperLink as ``supernode``
does (``--superlink``, ``--root-certificates``); ``run`` runs this package's app. ``app`` prints the folder of the app,
for use with ``flwr run``. ``status FOLDER`` prints the state of the run with that ``output`` (``--json``: as JSON), and
``status`` alone Flower's list of runs. The commands differ from Flower's in four things:

- Flower's telemetry, update check and installation of packages at run time are off.
- Plain HTTP (``--insecure``) is refused beyond this machine, and is never the default.
- ``supernode`` counts the bytes that pass between it and the SuperLink, for the ledger.
- Programs that Flower starts are looked for beside this Python, modules also in the present folder.
"""

from __future__ import annotations

import argparse
import ipaddress
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from importlib.metadata import entry_points
from pathlib import Path
from urllib.parse import urlsplit

from federated.flower import status as run_status
from federated.flower import wire

OFF = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
}
"""Environment variables of every Flower process."""

APP = Path(__file__).parent / "app"
SUPERLINK = "127.0.0.1:8000"
PATIENCE, QUIET = 120.0, 10.0
"""Seconds to wait until a SuperLink listens, and those after which a line says so."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command and returns its exit status."""
    commands = {c.__name__: c for c in (superlink, supernode, register, run, status, app)}
    what = [f"  {name:<12}{str(c.__doc__).splitlines()[0].replace('``', '')}" for name, c in commands.items()]
    parser = argparse.ArgumentParser(
        prog="python -m federated.flower",
        description="Flower's commands with safe defaults.",
        epilog="\n".join(["commands:", *what]),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("command", choices=list(commands), metavar="COMMAND", help="one of those below")
    given = list(sys.argv[1:] if arguments is None else arguments)
    command = parser.parse_args(given[:1]).command
    try:
        return commands[command](given[1:])
    except ValueError as error:
        parser.error(str(error))


def superlink(arguments: list[str]) -> int:
    """Runs ``flower-superlink``."""
    given, _ = _parser("superlink", "--host").parse_known_args(arguments)
    check_insecure(given.insecure, given.host or "127.0.0.1")
    return _flower("flower-superlink", arguments)


def supernode(arguments: list[str]) -> int:
    """Runs ``flower-supernode`` and counts its bytes."""
    given, _ = _parser("supernode", "--superlink").parse_known_args(arguments)
    address = given.superlink or SUPERLINK
    check_insecure(given.insecure, _split(address)[0])
    with tempfile.TemporaryDirectory(prefix="federated-flower-") as folder:
        path = Path(folder) / Path(folder).name
        os.environ[wire.VARIABLE] = str(path)
        wire.count_requests(wire.Meter(path), _split(address)[1])
        return _flower("flower-supernode", arguments)


def run(arguments: list[str]) -> int:
    """Runs ``flwr run`` with this package's app, and shows the run's log."""
    return _flwr("run", arguments, [str(APP), "given", "--stream"])


def status(arguments: list[str]) -> int:
    """Prints the state of a run, or runs ``flwr list``."""
    if not arguments or (arguments[0].startswith("--") and arguments[0] != "--json"):
        return _flwr("list", arguments, ["given"])
    parser = argparse.ArgumentParser(prog="python -m federated.flower status")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args(arguments)
    held = run_status.read(given.folder.expanduser())
    sys.stdout.write(f"{json.dumps(held) if given.json else run_status.text(held, time.time())}\n")
    return 0


def register(arguments: list[str]) -> int:
    """Runs ``flwr supernode register``, which tells a SuperLink that authenticates nodes a node's public key."""
    if not arguments or arguments[0].startswith("-"):
        raise ValueError("register needs the file of a node's public key, first")
    return _flwr("supernode", arguments[1:], ["register", arguments[0], "given"])


def app(arguments: list[str]) -> int:
    """Prints the app's folder."""
    sys.stdout.write(f"{APP}\n")
    return 0


def check_insecure(insecure: bool, host: str) -> None:
    """Raises ``ValueError`` if plain HTTP is asked for to another machine."""
    if insecure and not _is_loopback(host):
        raise ValueError(
            f"--insecure is plain HTTP, which is accepted on this machine alone, not at {host!r}: "
            "beyond it give TLS certificates"
        )


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def _parser(command: str, address: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=f"python -m federated.flower {command}", add_help=False, allow_abbrev=False)
    parser.add_argument("--insecure", action="store_true")
    parser.add_argument(address)
    return parser


def _split(address: str) -> tuple[str, int]:
    parts = urlsplit(f"//{address}")
    if parts.hostname is None or parts.port is None:
        raise ValueError(f"a SuperLink's address is host:port, got {address!r}")
    return parts.hostname, parts.port


def _flwr(command: str, arguments: list[str], first: list[str]) -> int:
    """Runs ``flwr COMMAND FIRST ARGUMENTS`` in another process, against the SuperLink that the arguments name."""
    parser = _parser(command, "--superlink")
    parser.add_argument("--root-certificates")
    given, others = parser.parse_known_args(arguments)
    address = given.superlink or SUPERLINK
    check_insecure(given.insecure, _split(address)[0])
    connection = [f'address = "{address}"']
    if given.insecure:
        connection.append("insecure = true")
    elif given.root_certificates:
        connection.append(f'root-certificates = "{Path(given.root_certificates).expanduser().resolve()}"')
    _wait_for(*_split(address))
    with tempfile.TemporaryDirectory(prefix="federated-flower-") as folder:
        Path(folder, "config.toml").write_text("\n".join(["[superlink.given]", *connection, ""]))
        program = [str(Path(sys.executable).with_name("flwr")), command, *first, *others]
        return subprocess.run(program, env=os.environ | OFF | {"FLWR_HOME": folder}, check=False).returncode


def _wait_for(host: str, port: int) -> None:
    """Waits until a SuperLink that is being started listens; if it does not, Flower reports it."""
    start, said = time.monotonic(), False
    while (waited := time.monotonic() - start) < PATIENCE:
        if waited > QUIET and not said:
            said = True
            sys.stderr.write(f"waiting for a SuperLink at {host}:{port}, up to {PATIENCE:g} s\n")
        try:
            socket.create_connection((host, port), timeout=PATIENCE).close()
            return
        except ConnectionRefusedError:
            time.sleep(0.5)
        except OSError:
            return


def _flower(command: str, arguments: list[str]) -> int:
    """Runs one of Flower's programs in this process."""
    os.environ.update(OFF)
    beside, path = str(Path(sys.executable).parent), os.environ.get("PYTHONPATH")
    os.environ["PATH"] = os.pathsep.join([beside, os.environ.get("PATH", os.defpath)])
    os.environ["PYTHONPATH"] = os.pathsep.join([str(Path.cwd()), *([path] if path else [])])
    (program,) = entry_points(group="console_scripts", name=command)
    sys.argv = [command, *arguments]
    program.load()()
    return 0


if __name__ == "__main__":
    sys.exit(main())
