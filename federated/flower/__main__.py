"""Flower's commands with safe defaults: ``python -m federated.flower COMMAND``.

A command takes the arguments of Flower's own command. Telemetry, the update check and installation of packages at run
time are disabled. Plain HTTP must be requested by ``--insecure`` and is accepted on this machine only. ``run`` and
``supernode`` check the configuration before Flower receives it; ``supernode`` counts its HTTP bytes.
"""

from __future__ import annotations

import argparse
import inspect
import ipaddress
import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import time
from argparse import Namespace
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from federated import __version__
from federated.flower import status as run_status
from federated.flower.configuration import NodeConfig, RunConfig, check_config, keys

OFF = dict.fromkeys(("FLWR_TELEMETRY_ENABLED", "RAY_USAGE_STATS_ENABLED"), "0")
OFF |= dict.fromkeys(("FLWR_DISABLE_UPDATE_CHECK", "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION"), "1")
"""Environment variables of every Flower process."""

APP, PROGRAM, SUPERLINK = Path(__file__).parent / "app", "python -m federated.flower", "127.0.0.1:8000"
STARTED = re.compile(r"(?:Successfully started run |\"run-id\": \")(\d+)")
"""Output of ``flwr run`` once the SuperLink has accepted the run."""

PATIENCE = 120.0
"""Seconds to wait for a SuperLink to listen."""

OPTIONS: dict[str, dict[str, Any]] = {
    "--insecure": {"action": "store_true", "help": "use plain HTTP instead of TLS, on this machine only"},
    "--superlink": {"metavar": "HOST:PORT", "default": SUPERLINK, "help": "the SuperLink (default: %(default)s)"},
    "--root-certificates": {"metavar": "FILE", "help": "certificates that sign the SuperLink's certificate"},
    "--host": {"default": "127.0.0.1", "help": "the address to listen at (default: %(default)s)"},
    "--node-config": {"metavar": "PAIRS", "default": "", "help": "the node's configuration: 'key=value key=value'"},
    "--run-config -c": {"metavar": "PAIRS", "default": [], "action": "append", "help": "the run's configuration: "
                        "'key=value key=value', or the path of a TOML file; may be repeated"},
    "--json": {"action": "store_true", "help": "print the state of FOLDER as JSON"},
}  # fmt: skip
DIAL = ("--superlink", "--root-certificates", "--insecure")
NODE = """--insecure --node-config 'client=0 objective="federated.flower.example:quadratic" arguments="center=0.2"'"""
RUN = """--insecure --run-config 'algorithm="hiso" dimension=20 clients=2 rounds=4 output="first"'"""

PARSER = argparse.ArgumentParser(PROGRAM, description="Flower's commands with safe defaults.", allow_abbrev=False)
PARSER.add_argument("--version", action="version", version=f"gradient-surrogates {__version__}")
COMMANDS = PARSER.add_subparsers(required=True, metavar="COMMAND", help="COMMAND --help describes its arguments:")


def command(flowers: str, operand: str, example: str, *options: str, config: Any = None) -> Callable[..., Any]:
    """Decorates a function that implements a command, and creates the command's parser."""

    def add(function: Callable[[Namespace], int]) -> Callable[[Namespace], int]:
        name, text = function.__name__, inspect.getdoc(function) or ""
        parts = [f"example:\n  {PROGRAM} {name} {example}"]
        if config is not None:
            listed = "\n  ".join(f"{key}={json.dumps(value)}" for key, value in keys(config).items())
            parts.append(f"keys of the configuration ({config.__module__}.{config.__name__}):\n  {listed}")
        parts += [f"Other arguments are Flower's: {flowers} --help lists them."] * bool(flowers)
        texts: dict[str, Any] = {"help": text.splitlines()[0], "description": text, "epilog": "\n\n".join(parts)}
        prog, raw = f"{PROGRAM} {name} {operand}".strip(), argparse.RawTextHelpFormatter
        made = COMMANDS.add_parser(name, prog=prog, formatter_class=raw, allow_abbrev=False, **texts)
        for flags in options:
            made.add_argument(*flags.split(), **OPTIONS[flags])
        made.set_defaults(function=function)
        return function

    return add


@command("flower-superlink", "", "--insecure", "--insecure", "--host")
def superlink(given: Namespace) -> int:
    """Runs flower-superlink, the server that nodes and runs connect to.

    The log goes to the standard error. Ctrl-C or SIGTERM ends the SuperLink and all its runs.
    """
    check_insecure(given.insecure, given.host)
    return _flower("flower-superlink", given.arguments)


@command("flower-supernode", "", NODE, *DIAL, "--node-config", config=NodeConfig)
def supernode(given: Namespace) -> int:
    """Runs flower-supernode, the node of one client, and counts its bytes.

    The node config needs client and objective; modules in the current folder can be imported.
    """
    _, port = _address(given)
    check_config(NodeConfig, [given.node_config])
    from federated.flower import wire

    with tempfile.TemporaryDirectory(prefix="federated-flower-") as folder:
        os.environ[wire.VARIABLE] = str(path := Path(folder, Path(folder).name))
        wire.count_requests(wire.Meter(path), port)
        return _flower("flower-supernode", given.arguments)


@command("flwr supernode register", "KEY", "node-0.pub --root-certificates ca.pem", *DIAL)
def register(given: Namespace) -> int:
    """Runs flwr supernode register, which adds a node's public key to a SuperLink that authenticates nodes."""
    if not (key := _operand(given)):
        raise ValueError("register needs the file of a node's public key as its first argument")
    return _flwr(given, "supernode", "register", key, "given", *given.others).returncode


@command("flwr run", "", RUN, *DIAL, "--run-config -c", config=RunConfig)
def run(given: Namespace) -> int:
    """Runs flwr run with this package's app, and shows the run's log.

    The exit status is 1 if the run failed. Ctrl-C or SIGTERM ends the log but not the run, which
    continues at the SuperLink until stop ends it.
    """
    _address(given)
    if "clients" not in check_config(RunConfig, given.run_config):
        sys.stderr.write(f"clients={RunConfig.clients} is assumed: the run config has no number of clients\n")
    configs = [part for text in given.run_config for part in ("--run-config", text)]
    number, state, details, interrupted = "", "", "", 0
    try:
        started = _flwr(given, "run", str(APP), "given", *configs, *given.others, stdout=subprocess.PIPE)
        sys.stdout.write(started.stdout)
        sys.stdout.flush()
        if not (found := STARTED.search(started.stdout)):
            return int(started.returncode)
        number = found[1]
        status = int(_flwr(given, "log", number, "given").returncode)
    except (KeyboardInterrupt, SystemExit) as ending:
        status = interrupted = getattr(ending, "code", 128 + signal.SIGINT)
    with suppress(ValueError, LookupError, TypeError):  # no run, or the SuperLink has ended
        listing = ("list", "given", "--run-id", number, "--format", "json")
        listed = _flwr(given, *listing, patience=0.0, stdout=subprocess.PIPE) if number else None
        (entry,) = json.loads(listed.stdout if listed else "")["runs"]
        state, details = str(entry["status"]), entry["status-details"]
    if failed := state == "finished:failed":
        sys.stderr.write(f"The run failed: {details}\n")
    elif interrupted and not state.startswith("finished"):
        known = "The run goes on at the SuperLink. To end it" if number else "No run has started yet. To list the runs"
        parts = ["stop", number] if number else ["status"]
        parts += ["--superlink", given.superlink] * (given.superlink != SUPERLINK)
        parts += ["--root-certificates", given.root_certificates] if given.root_certificates else []
        sys.stderr.write(f"{known}: {PROGRAM} {shlex.join(parts + ['--insecure'] * given.insecure)}\n")
    return status or int(failed)


@command("flwr stop", "RUN_ID", "1234567890 --insecure", *DIAL)
def stop(given: Namespace) -> int:
    """Runs flwr stop, which ends a run; a later run with resume= continues from its checkpoint."""
    if not (number := _operand(given)).isdecimal():
        raise ValueError(f"stop needs the number of a run, got {number!r}: {PROGRAM} status lists the runs")
    return _flwr(given, "stop", number, "given", *given.others).returncode


@command("flwr list", "[FOLDER]", "first", *DIAL, "--json")
def status(given: Namespace) -> int:
    """Prints the state of the run whose output folder, on the server's machine, is FOLDER.

    Without a folder it runs flwr list, which lists the SuperLink's runs.
    """
    if folder := _operand(given):
        state = run_status.read(Path(folder).expanduser())
        sys.stdout.write(f"{json.dumps(state) if given.json else run_status.text(state, time.time())}\n")
        return 0
    if given.json:
        raise ValueError("--json needs the folder of a run")
    return _flwr(given, "list", "given", *given.others).returncode


@command("", "", "")
def app(given: Namespace) -> int:
    """Prints the app's folder, to be passed to Flower's own flwr run."""
    sys.stdout.write(f"{APP}\n")
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command and returns its exit status."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    given, others = PARSER.parse_known_args(arguments, Namespace(arguments=arguments[1:]))
    given.others, before = others, signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        if find_spec("flwr") is None:
            raise ValueError("Flower is not installed: run pip install 'gradient-surrogates[flower]', or '.[flower]'")
        return int(given.function(given))
    except ValueError as error:
        PARSER.error(str(error))
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    finally:
        signal.signal(signal.SIGTERM, before)


def check_insecure(insecure: bool, host: str) -> None:
    """Raises ``ValueError`` if plain HTTP is requested to another machine."""
    try:
        loopback = ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        loopback = host == "localhost"
    if insecure and not loopback:
        raise ValueError(f"--insecure (plain HTTP) is accepted on this machine only, not at {host!r}: use TLS there")


def _operand(given: Namespace) -> str:
    """Takes the first argument that is not an option from the arguments that are Flower's."""
    return given.others.pop(0) if given.others and not given.others[0].startswith("-") else ""


def _address(given: Namespace) -> tuple[str, int]:
    """Host and port of the SuperLink; raises ``ValueError`` if the address is malformed or needs TLS."""
    parts = urlsplit(f"//{given.superlink}")
    if parts.hostname is None or parts.port is None:
        raise ValueError(f"a SuperLink's address is host:port, got {given.superlink!r}")
    check_insecure(given.insecure, parts.hostname)
    return parts.hostname, parts.port


def _flwr(given: Namespace, *arguments: str, patience: float = PATIENCE, stdout: int | None = None) -> Any:
    """Runs ``flwr ARGUMENTS`` in another process, with the SuperLink under the name ``given``."""
    _wait_for(*_address(given), patience)
    connection = {"address": given.superlink}
    if given.insecure:
        connection["insecure"] = True
    elif given.root_certificates:
        connection["root-certificates"] = str(Path(given.root_certificates).expanduser().resolve())
    lines = [f"{key} = {json.dumps(value, ensure_ascii=False)}\n" for key, value in connection.items()]
    with tempfile.TemporaryDirectory(prefix="federated-flower-") as folder:
        Path(folder, "config.toml").write_text("".join(["[superlink.given]\n", *lines]), encoding="utf-8")
        program = [str(Path(sys.executable).with_name("flwr")), *arguments]
        # A narrow table of flwr list omits how runs ended.
        environment = {"COLUMNS": "200"} | os.environ | OFF | {"FLWR_HOME": folder, "PYTHONUNBUFFERED": "1"}
        return subprocess.run(program, env=environment, stdout=stdout, text=True, check=False)


def _wait_for(host: str, port: int, patience: float = PATIENCE) -> None:
    """Waits until a starting SuperLink listens; Flower itself reports one that does not."""
    end = time.monotonic() + patience
    with suppress(OSError):
        while time.monotonic() < end:
            try:
                return socket.create_connection((host, port), timeout=patience).close()
            except ConnectionRefusedError:
                time.sleep(0.5)


def _flower(command: str, arguments: list[str]) -> int:
    """Runs one of Flower's programs in this process."""
    os.environ.update(OFF)
    os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(Path.cwd()), os.environ.get("PYTHONPATH")]))
    (program,) = entry_points(group="console_scripts", name=command)
    sys.argv = [command, *arguments]
    program.load()()
    return 0


if __name__ == "__main__":
    sys.exit(main())
