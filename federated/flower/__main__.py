"""``python -m federated.flower COMMAND``: Flower's commands with safe defaults.

The commands are ``superlink``, ``supernode``, ``register``, ``run``, ``stop``, ``status`` and ``app``.
``superlink`` and ``supernode`` take the arguments of ``flower-superlink`` and ``flower-supernode``. ``run``,
``stop RUN_ID`` and ``register KEY`` take those of ``flwr run``, ``flwr stop`` and ``flwr supernode register``, but name
the SuperLink as ``supernode`` does (``--superlink``, ``--root-certificates``); ``run`` runs this package's app. ``app``
prints the folder of the app, for use with ``flwr run``. ``status FOLDER`` prints the state of the run with that
``output`` (``--json``: as JSON), and ``status`` alone Flower's list of runs. The commands differ from Flower's in five
things:

- Flower's telemetry, update check and installation of packages at run time are off.
- Plain HTTP (``--insecure``) is refused beyond this machine, and is never the default.
- ``run`` and ``supernode`` check what is configured before Flower has it; an interrupted ``run`` says how to stop it.
- ``supernode`` counts the bytes that pass between it and the SuperLink, for the ledger.
- Programs that Flower starts are looked for beside this Python, modules also in the present folder.
"""

from __future__ import annotations

import argparse
import inspect
import io
import ipaddress
import json
import os
import re
import shlex
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TextIO
from urllib.parse import urlsplit

from federated import __version__
from federated.flower import status as run_status
from federated.flower.child import Outcome, run_program
from federated.flower.configuration import NodeConfig, RunConfig, keys
from federated.flower.configuration_text import check_node_config, check_run_config

OFF = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
}
"""Environment variables of every Flower process."""

INSECURE = "plain HTTP instead of TLS, on this machine alone"
EXAMPLE = "federated.flower.example:quadratic"
APP = Path(__file__).parent / "app"
PROGRAM = "python -m federated.flower"
STARTED = re.compile(r"Successfully started run (\d+)|\"run-id\": \"(\d+)\"")
"""What ``flwr run`` says when the SuperLink has a run."""

FAILED = "finished:failed"
"""The state of a run that failed, as ``flwr list`` has it."""

WIDE = "200"
"""Columns of Flower's table of runs, which leaves out how they ended where it has few, unless ``COLUMNS`` says them."""

SUPERLINK = "127.0.0.1:8000"
PATIENCE, QUIET = 120.0, 10.0
"""Seconds to wait until a SuperLink listens, and those after which a line says so."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command and returns its exit status."""
    commands = {c.__name__: c for c in (superlink, supernode, register, run, stop, status, app)}
    what = [f"  {name:<12}{_described(command).splitlines()[0]}" for name, command in commands.items()]
    parser = argparse.ArgumentParser(
        prog=PROGRAM,
        description="Flower's commands with safe defaults.",
        epilog="\n".join(["commands:", *what, "", f"{PROGRAM} COMMAND --help says more of one."]),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"gradient-surrogates {__version__}")
    parser.add_argument("command", choices=list(commands), metavar="COMMAND", help="one of those below")
    given = list(sys.argv[1:] if arguments is None else arguments)
    command = parser.parse_args(given[:1]).command
    if find_spec("flwr") is None and not {"-h", "--help"} & set(given):
        parser.error("Flower is not installed: pip install 'gradient-surrogates[flower]', in a checkout '.[flower]'")
    try:
        return commands[command](given[1:])
    except ValueError as error:
        parser.error(str(error))
    except KeyboardInterrupt:
        return 128 + signal.SIGINT


def superlink(arguments: list[str]) -> int:
    """Runs ``flower-superlink``, the server that nodes and runs dial.

    Its log goes to the standard error. Ctrl-C or SIGTERM ends it, and with it all runs.
    """
    parser = _parser(superlink, "superlink --insecure", "flower-superlink")
    parser.add_argument("--insecure", action="store_true", help=INSECURE)
    parser.add_argument("--host", default="127.0.0.1", help="the address to listen at, 127.0.0.1 unless given")
    given, _ = parser.parse_known_args(arguments)
    check_insecure(given.insecure, given.host)
    return _flower("flower-superlink", arguments)


def supernode(arguments: list[str]) -> int:
    """Runs ``flower-supernode``, the node of one client, and counts its bytes.

    Its node config gives client and objective at least; modules in the present folder are found by their import paths.
    """
    example = f'supernode --insecure --node-config \'client=0 objective="{EXAMPLE}" arguments="center=0.2"\''
    parser = _parser(supernode, example, "flower-supernode", {"--node-config": NodeConfig})
    _add_superlink(parser)
    parser.add_argument(
        "--node-config", metavar="PAIRS", default="", help="what the node is told: 'key=value key=value'"
    )
    given, _ = parser.parse_known_args(arguments)
    _, port = _address(given)
    check_node_config(given.node_config)
    from federated.flower import wire

    with tempfile.TemporaryDirectory(prefix="federated-flower-") as folder:
        path = Path(folder) / Path(folder).name
        os.environ[wire.VARIABLE] = str(path)
        wire.count_requests(wire.Meter(path), port)
        return _flower("flower-supernode", arguments)


def register(arguments: list[str]) -> int:
    """Runs ``flwr supernode register``, which tells a SuperLink that authenticates nodes a node's public key."""
    parser = _parser(register, "register node-0.pub --root-certificates ca.pem", "flwr supernode register")
    _add_superlink(parser)
    parser.add_argument("key", metavar="KEY", help="the file of the public key; it comes first")
    given, others = parser.parse_known_args(arguments)
    if given.key != arguments[0]:
        raise ValueError("register needs the file of a node's public key, first")
    return _flwr(given, ["supernode", "register", given.key, "given", *others]).status


def run(arguments: list[str]) -> int:
    """Runs ``flwr run`` with this package's app, and shows the run's log.

    The exit status is 1 if the run failed. Ctrl-C or SIGTERM ends the log, not the run: that goes on at the SuperLink
    until ``stop`` ends it.
    """
    example = 'run --insecure --run-config \'algorithm="hiso" dimension=20 clients=2 rounds=4 output="first"\''
    parser = _parser(run, example, "flwr run", {"--run-config": RunConfig})
    _add_superlink(parser)
    what = "what the run is told: 'key=value key=value', or the path of a TOML file; may be given again"
    parser.add_argument("-c", "--run-config", metavar="PAIRS", action="append", default=[], help=what)
    given, others = parser.parse_known_args(arguments)
    _address(given)
    if "clients" not in check_run_config(given.run_config):
        sys.stderr.write(f"clients={RunConfig.clients} is assumed: the run config has no number of clients\n")
    configs = [part for text in given.run_config for part in ("--run-config", text)]
    outcome = _flwr(given, ["run", str(APP), "given", "--stream", *configs, *others], sys.stdout)
    found = STARTED.search(outcome.output)
    number = found and (found[1] or found[2])
    state, why = _state(given, number) if number else ("", "")
    if state == FAILED:
        sys.stderr.write(f"The run failed: {why}\n")
    elif outcome.signal and not state.startswith("finished"):
        sys.stderr.write(f"{_goes_on(number, _connection(given))}\n")
    return outcome.status or int(state == FAILED)


def stop(arguments: list[str]) -> int:
    """Runs ``flwr stop``, which ends a run; ``resume`` goes on from its checkpoint."""
    parser = _parser(stop, "stop 1234567890 --insecure", "flwr stop")
    _add_superlink(parser)
    parser.add_argument("run", metavar="RUN_ID", help="the run's number, which run and status say")
    given, others = parser.parse_known_args(arguments)
    if not given.run.isdecimal():
        raise ValueError(f"stop needs the run's number, not {given.run!r}: {PROGRAM} status lists the runs")
    return _flwr(given, ["stop", given.run, "given", *others]).status


def status(arguments: list[str]) -> int:
    """Prints the state of the run whose ``output`` is FOLDER; without one runs ``flwr list``, which lists all runs."""
    parser = _parser(status, "status first", "flwr list")
    _add_superlink(parser)
    what = "the run's output, on the server's machine; without it the SuperLink's runs are listed"
    parser.add_argument("folder", metavar="FOLDER", nargs="?", help=what)
    parser.add_argument("--json", action="store_true", help="print the state of FOLDER as JSON")
    if {"-h", "--help"} & set(arguments):
        parser.parse_args(["--help"])
    if not arguments or (arguments[0].startswith("--") and arguments[0] != "--json"):
        listing = argparse.ArgumentParser(prog=parser.prog, add_help=False, allow_abbrev=False)
        _add_superlink(listing)
        given, others = listing.parse_known_args(arguments)
        return _flwr(given, ["list", "given", *others]).status
    given = parser.parse_args(arguments)
    if given.folder is None:
        raise ValueError("--json needs the folder of a run")
    held = run_status.read(Path(given.folder).expanduser())
    sys.stdout.write(f"{json.dumps(held) if given.json else run_status.text(held, time.time())}\n")
    return 0


def app(arguments: list[str]) -> int:
    """Prints the app's folder, for ``flwr run`` itself."""
    _parser(app, "app").parse_args(arguments)
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


def _described(command: Callable[..., int]) -> str:
    return str(inspect.getdoc(command)).replace("``", "")


def _parser(
    command: Callable[..., int],
    example: str,
    flowers: str = "",
    configured: Mapping[str, Any] | None = None,
) -> argparse.ArgumentParser:
    """A parser whose help is the command's: what it does, its own arguments, an example, and where Flower's help is."""
    epilog = ["example:", f"  {PROGRAM} {example}"]
    for option, kind in (configured or {}).items():
        epilog += ["", f"keys of {option}, and what they are unless given:"]
        epilog += [f"  {name}={json.dumps(value)}" for name, value in keys(kind).items()]
        epilog += ["", f"What they mean: python -m pydoc {kind.__module__}.{kind.__name__}"]
    if flowers:
        epilog += ["", f"Other arguments are Flower's: {flowers} --help lists them."]
    return argparse.ArgumentParser(
        prog=f"{PROGRAM} {command.__name__}",
        description=_described(command),
        epilog="\n".join(epilog),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )


def _add_superlink(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments that say which SuperLink is dialled, and how."""
    parser.add_argument("--superlink", metavar="HOST:PORT", default=SUPERLINK, help=f"{SUPERLINK} unless given")
    parser.add_argument(
        "--root-certificates", metavar="FILE", help="the certificates that the SuperLink's is signed by"
    )
    parser.add_argument("--insecure", action="store_true", help=INSECURE)


def _connection(given: argparse.Namespace) -> list[str]:
    """The arguments that dial the same SuperLink."""
    connection = [] if given.superlink == SUPERLINK else ["--superlink", given.superlink]
    connection += ["--root-certificates", given.root_certificates] if given.root_certificates else []
    return connection + ["--insecure"] * given.insecure


def _goes_on(number: str | None, connection: list[str]) -> str:
    """What a person must know who has interrupted ``run``."""
    if number is None:
        return f"No run was seen to begin. To list the runs: {shlex.join([*PROGRAM.split(), 'status', *connection])}"
    return f"The run goes on at the SuperLink. To end it: {shlex.join([*PROGRAM.split(), 'stop', number, *connection])}"


def _state(given: argparse.Namespace, number: str) -> tuple[str, str]:
    """A run's state at the SuperLink and what is said of it; empty if the SuperLink does not answer."""
    listed = _flwr(given, ["list", "given", "--run-id", number, "--format", "json"], io.StringIO(), patience=0.0)
    try:
        (listed_run,) = json.loads(listed.output)["runs"]
        return str(listed_run["status"]), str(listed_run["status-details"])
    except (ValueError, LookupError, TypeError):
        return "", ""


def _address(given: argparse.Namespace) -> tuple[str, int]:
    """Host and port of the SuperLink that is given; ``ValueError`` if there are none, or they are not to be dialled."""
    parts = urlsplit(f"//{given.superlink}")
    if parts.hostname is None or parts.port is None:
        raise ValueError(f"a SuperLink's address is host:port, got {given.superlink!r}")
    check_insecure(given.insecure, parts.hostname)
    return parts.hostname, parts.port


def _flwr(
    given: argparse.Namespace, arguments: list[str], pass_on: TextIO | None = None, patience: float = PATIENCE
) -> Outcome:
    """Runs ``flwr ARGUMENTS`` in another process, where ``given`` is the SuperLink that is given."""
    host, port = _address(given)
    connection = [f'address = "{given.superlink}"']
    if given.insecure:
        connection.append("insecure = true")
    elif given.root_certificates:
        connection.append(f'root-certificates = "{Path(given.root_certificates).expanduser().resolve()}"')
    _wait_for(host, port, patience)
    with tempfile.TemporaryDirectory(prefix="federated-flower-") as folder:
        Path(folder, "config.toml").write_text("\n".join(["[superlink.given]", *connection, ""]))
        program = [str(Path(sys.executable).with_name("flwr")), *arguments]
        environment = {"COLUMNS": WIDE} | os.environ | OFF | {"FLWR_HOME": folder, "PYTHONUNBUFFERED": "1"}
        outcome = run_program(program, environment, pass_on)
    return outcome._replace(status=128 + outcome.signal) if outcome.signal else outcome


def _wait_for(host: str, port: int, patience: float = PATIENCE) -> None:
    """Waits until a SuperLink that is being started listens; if it does not, Flower reports it."""
    start, said = time.monotonic(), False
    while (waited := time.monotonic() - start) < patience:
        if waited > QUIET and not said:
            said = True
            sys.stderr.write(f"waiting for a SuperLink at {host}:{port}, up to {patience:g} s\n")
        try:
            socket.create_connection((host, port), timeout=patience).close()
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
