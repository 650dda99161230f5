"""``python -m federated.flower COMMAND``: Flower's commands with safe defaults; ``--help`` says what each does.

They take the arguments of Flower's own commands, and differ from these in five things:

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
from argparse import Namespace
from collections.abc import Sequence
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

APP, PROGRAM = Path(__file__).parent / "app", "python -m federated.flower"
STARTED = re.compile(r"Successfully started run (\d+)|\"run-id\": \"(\d+)\"")
"""What ``flwr run`` says when the SuperLink has a run."""

FAILED = "finished:failed"
"""The state of a run that failed, as ``flwr list`` has it."""

WIDE = "200"
"""Columns of Flower's table of runs, which leaves out how they ended where it has few, unless ``COLUMNS`` says them."""

SUPERLINK = "127.0.0.1:8000"
PATIENCE, QUIET = 120.0, 10.0
"""Seconds to wait until a SuperLink listens, and those after which a line says so."""


def superlink(given: Namespace) -> int:
    """Runs flower-superlink, the server that nodes and runs dial.

    Its log goes to the standard error. Ctrl-C or SIGTERM ends it, and with it all runs.
    """
    check_insecure(given.insecure, given.host)
    return _flower("flower-superlink", given.arguments)


def supernode(given: Namespace) -> int:
    """Runs flower-supernode, the node of one client, and counts its bytes.

    Its node config gives client and objective at least; modules in the present folder are found by their import paths.
    """
    _, port = _address(given)
    check_node_config(given.node_config)
    from federated.flower import wire

    with tempfile.TemporaryDirectory(prefix="federated-flower-") as folder:
        path = Path(folder) / Path(folder).name
        os.environ[wire.VARIABLE] = str(path)
        wire.count_requests(wire.Meter(path), port)
        return _flower("flower-supernode", given.arguments)


def register(given: Namespace) -> int:
    """Runs flwr supernode register, which tells a SuperLink that authenticates nodes a node's public key, a file."""
    if not given.operand:
        raise ValueError("register needs the file of a node's public key, first")
    return _flwr(given, ["supernode", "register", given.operand, "given", *given.others]).status


def run(given: Namespace) -> int:
    """Runs flwr run with this package's app, and shows the run's log.

    The exit status is 1 if the run failed. Ctrl-C or SIGTERM ends the log, not the run: that goes on at the SuperLink
    until stop ends it.
    """
    _address(given)
    if "clients" not in check_run_config(given.run_config):
        sys.stderr.write(f"clients={RunConfig.clients} is assumed: the run config has no number of clients\n")
    configs = [part for text in given.run_config for part in ("--run-config", text)]
    outcome = _flwr(given, ["run", str(APP), "given", "--stream", *configs, *given.others], sys.stdout)
    found = STARTED.search(outcome.output)
    number = found and (found[1] or found[2])
    state, why = _state(given, number) if number else ("", "")
    if state == FAILED:
        sys.stderr.write(f"The run failed: {why}\n")
    elif outcome.signal and not state.startswith("finished"):
        said = "The run goes on at the SuperLink. To end it" if number else "No run was seen to begin. To list the runs"
        command = [*PROGRAM.split(), *(["stop", number] if number else ["status"])]
        command += [] if given.superlink == SUPERLINK else ["--superlink", given.superlink]
        command += ["--root-certificates", given.root_certificates] if given.root_certificates else []
        sys.stderr.write(f"{said}: {shlex.join(command + ['--insecure'] * given.insecure)}\n")
    return outcome.status or int(state == FAILED)


def stop(given: Namespace) -> int:
    """Runs flwr stop, which ends the run of a number; resume goes on from its checkpoint."""
    if not given.operand.isdecimal():
        raise ValueError(f"stop needs the run's number, not {given.operand!r}: {PROGRAM} status lists the runs")
    return _flwr(given, ["stop", given.operand, "given", *given.others]).status


def status(given: Namespace) -> int:
    """Prints the state of the run whose output is FOLDER, a folder on the server's machine.

    Without one it runs flwr list, which lists the SuperLink's runs.
    """
    if not given.operand and given.json:
        raise ValueError("--json needs the folder of a run")
    if not given.operand:
        return _flwr(given, ["list", "given", *given.others]).status
    held = run_status.read(Path(given.operand).expanduser())
    sys.stdout.write(f"{json.dumps(held) if given.json else run_status.text(held, time.time())}\n")
    return 0


def app(given: Namespace) -> int:
    """Prints the app's folder, for flwr run itself."""
    sys.stdout.write(f"{APP}\n")
    return 0


OPTIONS: dict[str, dict[str, Any]] = {
    "--insecure": {"action": "store_true", "help": "plain HTTP instead of TLS, on this machine alone"},
    "--superlink": {"metavar": "HOST:PORT", "default": SUPERLINK, "help": f"{SUPERLINK} unless given"},
    "--root-certificates": {"metavar": "FILE", "help": "the certificates that the SuperLink's is signed by"},
    "--host": {"default": "127.0.0.1", "help": "the address to listen at, 127.0.0.1 unless given"},
    "--node-config": {"metavar": "PAIRS", "default": "", "help": "what the node is told: 'key=value key=value'"},
    "--run-config -c": {"metavar": "PAIRS", "default": [], "action": "append", "help": "what the run is told: "
                        "'key=value key=value', or the path of a TOML file; may be given again"},
    "--json": {"action": "store_true", "help": "print the state of FOLDER as JSON"},
}  # fmt: skip
DIAL = ("--superlink", "--root-certificates", "--insecure")
COMMANDS: dict[Any, tuple[str, str, str, tuple[str, ...], Any]] = {
    superlink: ("", "--insecure", "flower-superlink", ("--insecure", "--host"), None),
    supernode: (
        "",
        """--insecure --node-config 'client=0 objective="federated.flower.example:quadratic" arguments="center=0.2"'""",
        "flower-supernode",
        (*DIAL, "--node-config"),
        NodeConfig,
    ),
    register: ("KEY", "node-0.pub --root-certificates ca.pem", "flwr supernode register", DIAL, None),
    run: (
        "",
        """--insecure --run-config 'algorithm="hiso" dimension=20 clients=2 rounds=4 output="first"'""",
        "flwr run",
        (*DIAL, "--run-config -c"),
        RunConfig,
    ),
    stop: ("RUN_ID", "1234567890 --insecure", "flwr stop", DIAL, None),
    status: ("[FOLDER]", "first", "flwr list", (*DIAL, "--json"), None),
    app: ("", "", "", (), None),
}
"""Each command's first argument, an example, Flower's program, its own options, and the configuration it takes."""


def parser_of(command: Any) -> argparse.ArgumentParser:
    """A command's parser, whose help is what it does, its own options, an example, and where Flower's help is."""
    operand, example, flowers, options, config = COMMANDS[command]
    epilog = [f"example:\n  {PROGRAM} {command.__name__} {example}"]
    if config is not None:
        known = "".join(f"\n  {name}={json.dumps(value)}" for name, value in keys(config).items())
        epilog += [f"keys of the configuration, and what they are unless given:{known}"]
        epilog += [f"What they mean: python -m pydoc {config.__module__}.{config.__name__}"]
    epilog += [f"Other arguments are Flower's: {flowers} --help lists them."] if flowers else []
    name, what, raw = f"{PROGRAM} {command.__name__} {operand}", inspect.getdoc(command), argparse.RawTextHelpFormatter
    made = argparse.ArgumentParser(
        name.strip(), None, what, "\n\n".join(epilog), formatter_class=raw, allow_abbrev=False
    )
    for flags in options:
        made.add_argument(*flags.split(), **OPTIONS[flags])
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command and returns its exit status."""
    commands = {command.__name__: command for command in COMMANDS}
    what = [f"  {name:<12}{str(command.__doc__).splitlines()[0]}" for name, command in commands.items()]
    epilog = "\n".join(["commands:", *what, "", f"{PROGRAM} COMMAND --help says more of one."])
    raw, said = argparse.RawTextHelpFormatter, "Flower's commands with safe defaults."
    parser = argparse.ArgumentParser(PROGRAM, description=said, epilog=epilog, formatter_class=raw)
    parser.add_argument("--version", action="version", version=f"gradient-surrogates {__version__}")
    parser.add_argument("command", choices=list(commands), metavar="COMMAND", help="one of those below")
    first, *rest = list(sys.argv[1:] if arguments is None else arguments) or [""]
    command = commands[parser.parse_args([first] if first else []).command]
    operand = rest[0] if COMMANDS[command][0] and rest and not rest[0].startswith("-") else ""
    given, others = parser_of(command).parse_known_args(rest[bool(operand) :])
    try:
        if others and command is app:
            raise ValueError(f"app takes no arguments, got {shlex.join(others)}")
        if find_spec("flwr") is None:
            raise ValueError(
                "Flower is not installed: pip install 'gradient-surrogates[flower]', in a checkout '.[flower]'"
            )
        return command(Namespace(**vars(given), operand=operand, others=others, arguments=rest))
    except ValueError as error:
        parser.error(str(error))
    except KeyboardInterrupt:
        return 128 + signal.SIGINT


def check_insecure(insecure: bool, host: str) -> None:
    """Raises ``ValueError`` if plain HTTP is asked for to another machine."""
    try:
        loopback = ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        loopback = host == "localhost"
    if insecure and not loopback:
        raise ValueError(
            f"--insecure is plain HTTP, which is accepted on this machine alone, not at {host!r}: "
            "beyond it give TLS certificates"
        )


def _state(given: Namespace, number: str) -> tuple[str, str]:
    """A run's state at the SuperLink and what is said of it; empty if the SuperLink does not answer."""
    listed = _flwr(given, ["list", "given", "--run-id", number, "--format", "json"], io.StringIO(), patience=0.0)
    try:
        (listed_run,) = json.loads(listed.output)["runs"]
        return str(listed_run["status"]), str(listed_run["status-details"])
    except (ValueError, LookupError, TypeError):
        return "", ""


def _address(given: Namespace) -> tuple[str, int]:
    """Host and port of the SuperLink that is given; ``ValueError`` if there are none, or they are not to be dialled."""
    parts = urlsplit(f"//{given.superlink}")
    if parts.hostname is None or parts.port is None:
        raise ValueError(f"a SuperLink's address is host:port, got {given.superlink!r}")
    check_insecure(given.insecure, parts.hostname)
    return parts.hostname, parts.port


def _flwr(given: Namespace, arguments: list[str], pass_on: TextIO | None = None, patience: float = PATIENCE) -> Outcome:
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
