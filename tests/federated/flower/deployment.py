"""Flower's own processes on loopback: a SuperLink, SuperNodes, runs."""

import csv
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import torch

from federated.engine.checkpoint import FORMAT
from optimizers.core.files import read_state

ROOT = Path(__file__).parents[3]
PATIENCE = 1200.0
"""Seconds after which a wait gives up: many times what anything takes."""


def free_port():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


def wait_for(done, what, patience=PATIENCE):
    end = time.monotonic() + patience
    while not (found := done()):
        assert time.monotonic() < end, f"waited {patience:g} s for {what}"
        time.sleep(0.1)
    return found


class Deployment:
    """A SuperLink and what connects to it; ends all that it started, by process group."""

    def __init__(self, folder):
        self.folder, self.port = folder, free_port()
        self.home, temporary = folder / "home", folder / "tmp"
        for made in (self.home, temporary):
            made.mkdir(parents=True)
        settings = {"FLWR_HOME": str(self.home), "TMPDIR": str(temporary), "HOME": str(folder), "OMP_NUM_THREADS": "1"}
        self.environment = os.environ | settings
        self.address = f"127.0.0.1:{self.port}"
        self.processes = {}

    def __enter__(self):
        return self

    def __exit__(self, *failure):
        for name in list(self.processes):
            self.end(name, signal.SIGTERM)
        if failure[0] is not None:
            for log in sorted(self.folder.glob("*.log")):
                sys.stdout.write(f"--- {log.name}\n{log.read_text()[-6000:]}\n")

    def command(self, *arguments):
        return [sys.executable, "-m", "federated.flower", *map(str, arguments)]

    def start(self, name, *arguments):
        """A command of ``python -m federated.flower`` with its log in the folder."""
        with (self.folder / f"{name}.log").open("w") as log:
            self.processes[name] = subprocess.Popen(
                self.command(*arguments),
                cwd=ROOT,
                env=self.environment,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        return self.processes[name]

    def end(self, name, how):
        """End a process that was started here, and wait for its group."""
        process = self.processes.pop(name)
        for sent in (how, signal.SIGKILL):
            try:
                os.killpg(process.pid, sent)
                process.wait(timeout=15.0)
            except ProcessLookupError:
                break
            except subprocess.TimeoutExpired:
                continue

    def log(self, name):
        return (self.folder / f"{name}.log").read_text()

    def superlink(self, *arguments):
        self.start("superlink", "superlink", "--port", self.port, *arguments)

        def listens():
            assert self.processes["superlink"].poll() is None, self.log("superlink")
            with socket.socket() as link:
                return link.connect_ex(("127.0.0.1", self.port)) == 0

        wait_for(listens, "the SuperLink")

    def supernode(self, name, *arguments, **config):
        """A SuperNode whose node config is given; the log's name is its own."""
        text = " ".join(f"{k.replace('_', '-')}={_toml(v)}" for k, v in config.items())
        given = ("--superlink", self.address, "--port", free_port(), "--node-config", text, *arguments)
        return self.start(name, "supernode", *given)

    def wait_for_node(self, name):
        wait_for(lambda: "SuperNode ID" in self.log(name), f"{name} to connect")

    def run(self, name, *arguments, **config):
        """A run, started; its results come to the folder of its name."""
        config = {"output": str(self.folder / name), "wait": PATIENCE, "timeout": PATIENCE} | config
        text = " ".join(f"{k.replace('_', '-')}={_toml(v)}" for k, v in config.items())
        return self.start(name, "run", "--superlink", self.address, "--run-config", text, *arguments)

    def results(self, name):
        """Model, history and ledger of a run, when it has ended."""
        folder, process = self.folder / name, self.processes[name]
        wait_for(lambda: process.poll() is not None, f"the run {name}")
        assert (folder / "history.csv").exists(), self.log(name)
        rows = {
            kind: list(csv.DictReader((folder / f"{kind}.csv").read_text().splitlines()))
            for kind in ("history", "ledger")
        }
        return torch.load(folder / "model.pt", weights_only=True), rows["history"], rows["ledger"]

    def rounds(self, name):
        """Rounds that a run has ended so far."""
        path = self.folder / name / "federation.pt"
        return read_state(path, FORMAT)["server"]["round"] - 1 if path.exists() else 0


def _toml(value):
    return (
        (f'"{value}"' if "'" in value else f"'{value}'")
        if isinstance(value, str)
        else str(value).lower()
        if isinstance(value, bool)
        else str(value)
    )
