"""Runs over a SuperLink and two SuperNodes on loopback; ``make test-flower``."""

import os
import signal
import subprocess

import pytest
import torch

pytest.importorskip("flwr")

from federated.flower import status
from tests.federated.flower.deployment import ROOT, Deployment, wait_for
from tests.federated.flower.setting import DEFAULTS, OBJECTIVE, SMALL, in_process

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]

COUNTS = ("queries", "failures", "gradients", "payload_up", "payload_down")
RUNS = {"fedavg": 2, "hiso": 3, "fzoos": 2}


@pytest.fixture(scope="module")
def deployment(tmp_path_factory):
    with Deployment(tmp_path_factory.mktemp("deployment")) as made:
        made.superlink("--insecure")
        for client in (0, 1):
            made.supernode(
                f"node-{client}",
                "--insecure",
                client=client,
                objective=OBJECTIVE,
                arguments=f"number = {client}, dimension = 5",
            )
        for client in (0, 1):
            made.wait_for_node(f"node-{client}")
        yield made


@pytest.mark.parametrize("name", RUNS)
def test_iterates_are_those_in_process(name, deployment):
    given = {
        "algorithm": name,
        "rounds": RUNS[name],
        "local-steps": 2,
        "x0": "[0.1, 0.3, 0.5, 0.7, 0.9]",
        "options": SMALL.get(name, ""),
        "fun": "tests.federated.flower.objectives:mean_of_two",
        "seed": 3,
    }
    deployment.run(name, "--insecure", **given)
    x, history, ledger = deployment.results(name)
    near = in_process(DEFAULTS | given, fun=True)
    for _ in range(RUNS[name]):
        near.run_round()
    # F(x_r) to the last bit in every round, and the last model.
    assert [row["fun"] for row in history] == [str(record.fun) for record in near.history]
    assert torch.equal(x, near.server.x)
    assert [row["accepted"] for row in history[1:]] == ["(0, 1)"] * RUNS[name]
    for row, theirs in zip(ledger, near.ledger.to_rows(), strict=True):
        assert {c: int(row[c]) for c in COUNTS} == {c: theirs[c] for c in COUNTS}
        # What passed between node and SuperLink is more than the message, which is more than the payload.
        assert int(row["wire_up"]) > int(row["message_up"]) > int(row["payload_up"]) and row["refused"] == ""
        assert int(row["wire_down"]) > int(row["message_down"]) > int(row["payload_down"])
    own = deployment.home / "ledgers"
    assert len(list(own.glob("run-*-client-0.csv"))) == len(list(own.glob("run-*-client-1.csv")))


def test_a_run_that_is_refused_says_why(deployment):
    deployment.run("refused", "--insecure", dimension=5, options="directionz = 3")
    assert deployment.processes["refused"].wait() == 2
    assert "did you mean 'directions'" in deployment.log("refused")
    deployment.run("elsewhere", "--insecure", x0="nowhere:x")
    assert deployment.processes["elsewhere"].wait() == 1
    log = deployment.log("elsewhere")
    assert log.splitlines()[-1].startswith("The run failed: ") and "'nowhere:x' cannot be imported" in log
    line = "ERROR: the run failed: ValueError: x0 'nowhere:x' cannot be imported: ModuleNotFoundError: No module named"
    assert 0 < log.index(line) < log.index("Traceback")
    for name in ("refused", "elsewhere"):
        assert not (deployment.folder / name / "history.csv").exists()


def test_a_run_goes_on_without_its_log_until_it_is_stopped_and_then_from_its_checkpoint(deployment):
    given = {"algorithm": "hiso", "local-steps": 2, "x0": 0.3, "dimension": 5, "options": SMALL["hiso"], "seed": 4}
    process = deployment.run("cut", "--insecure", rounds=100, **given)
    wait_for(lambda: deployment.rounds("cut") >= 1, "a round")
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=60) == 128 + signal.SIGTERM
    with pytest.raises(ProcessLookupError):
        os.killpg(process.pid, 0)
    reached = deployment.rounds("cut")
    wait_for(lambda: deployment.rounds("cut") > reached, "the run to go on")

    prefix, command = deployment.log("cut").splitlines()[-1].split(" -m federated.flower ")
    assert prefix == "The run goes on at the SuperLink. To end it: python"
    stop = deployment.command(*command.split())
    subprocess.run(stop, cwd=ROOT, env=deployment.environment, check=True)
    folder = deployment.folder / "cut"
    wait_for(lambda: status.read(folder)["state"] == "stopped", "the run to stop")
    wait_for((folder / "history.csv").exists, "its results")
    rounds = deployment.rounds("cut") + 1
    deployment.run("whole", "--insecure", rounds=rounds, resume=str(folder / "federation.pt"), **given)
    x, history, _ = deployment.results("whole")
    near = in_process(DEFAULTS | given)
    for _ in range(rounds):
        near.run_round()
    assert [int(row["round"]) for row in history] == list(range(rounds + 1)) and torch.equal(x, near.server.x)
