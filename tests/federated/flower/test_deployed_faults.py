"""A client's process and a SuperNode are killed in mid-round, the node returns: ``make test-flower``."""

import csv
import os
import signal

import pytest
import torch

pytest.importorskip("flwr")

from federated.testing import Fault
from tests.federated.flower.deployment import Deployment, wait_for
from tests.federated.flower.setting import DEFAULTS, OBJECTIVE, in_process

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]

ROUNDS = 8
GIVEN = {
    "algorithm": "hiso",
    "rounds": ROUNDS,
    "local-steps": 2,
    "x0": "[0.1, 0.3, 0.5, 0.7, 0.9]",
    "options": "perturbations = 2, log_rounds = 3",
    "fun": "tests.federated.flower.objectives:mean_of_two",
}


@pytest.fixture
def deployment(tmp_path):
    with Deployment(tmp_path) as made:
        made.superlink("--insecure")
        made.supernode("node-0", "--insecure", client=0, objective=OBJECTIVE, arguments="number = 0, dimension = 5")
        start_held(made, "node-1")
        made.wait_for_node("node-0")
        made.wait_for_node("node-1")
        yield made


def start_held(deployment, name):
    arguments = f'number = 1, dimension = 5, folder = "{deployment.folder}"'
    objective = "tests.federated.flower.objectives:Held"
    return deployment.supernode(name, "--insecure", client=1, objective=objective, arguments=arguments)


def hold(deployment):
    """Stop client 1 in the middle of its next query; its process."""
    (deployment.folder / "held").unlink(missing_ok=True)
    (deployment.folder / "hold").touch()
    wait_for((deployment.folder / "held").exists, "client 1 to be asked")
    return int(wait_for((deployment.folder / "held").read_text, "its process"))


def test_nothing_is_lost_but_what_the_ledger_says(deployment):
    deployment.run("run", "--insecure", **GIVEN)
    wait_for(lambda: deployment.rounds("run") >= 2, "two rounds")
    # The client's process alone: Flower says so after about a minute, and its state is that of before the round.
    os.kill(hold(deployment), signal.SIGKILL)
    (deployment.folder / "hold").unlink()
    reached = deployment.rounds("run")
    wait_for(lambda: deployment.rounds("run") >= reached + 2, "the round after the kill")
    # The SuperNode with all it started; another is refused while Flower takes it to be there, and takes its place then.
    hold(deployment)
    deployment.end("node-1", signal.SIGKILL)
    (deployment.folder / "hold").unlink()
    start_held(deployment, "node-1-again")
    x, history, ledger = deployment.results("run")

    missed = {int(row["round"]): row["refused"] for row in history[1:] if row["accepted"] != "(0, 1)"}
    killed, *gone = missed
    assert "Flower's error 8" in missed[killed] and gone
    assert "Flower's error 5" in missed[gone[0]]
    assert "both claim to be client 1: the first one is" in deployment.log("run")
    assert all("not connected" in missed[r] for r in gone[1:]) and gone[-1] < ROUNDS
    # In process with the same faults: a broadcast that was as good as not received, a client that returns as new.
    faults = [Fault("unreachable", killed, 1), Fault("crash", gone[0], 1, after=0), Fault("rejoin", gone[-1] + 1, 1)]
    near = in_process(DEFAULTS | GIVEN, faults, fun=True)
    for _ in range(ROUNDS):
        near.run_round()
    assert [row["fun"] for row in history] == [str(record.fun) for record in near.history]
    assert torch.equal(x, near.server.x)

    # Every query that a client spent is in the server's ledger, those of lost work with a note.
    for client in (0, 1):
        (path,) = (deployment.home / "ledgers").glob(f"run-*-client-{client}.csv")
        rows = list(csv.DictReader(path.read_text().splitlines()))
        begun = sum(int(row["queries"]) for row in rows if row["event"] == "begun")
        counted = sum(int(row["queries"]) for row in ledger if row["client"] == str(client))
        assert begun == counted > 0
    notes = [row["refused"] for row in ledger if "queries belong to lost reports" in row["refused"]]
    assert len(notes) == 2
    near_queries = near.ledger.total("queries", client=1)
    lost = sum(int(text.split(" queries belong to lost reports")[0].split("; ")[-1]) for text in notes)
    assert sum(int(row["queries"]) for row in ledger if row["client"] == "1") == near_queries + lost
    # The client that returned as new was caught up: by scalars of the log, or by the state.
    back = next(row for row in ledger if row["client"] == "1" and int(row["round"]) == gone[-1] + 1)
    assert int(back["payload_down"]) > 16
