"""A torch module tuned by forward passes on three SuperNodes, killed and resumed: ``make test-flower``."""

import signal

import pytest
import torch

pytest.importorskip("flwr")

from federated import make_federation
from federated.flower import status
from tests.federated.flower.deployment import Deployment, wait_for
from tests.federated.flower.objectives import classifier_loss, classifier_start

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]

ROUNDS, CLIENTS = 6, 3
OBJECTIVES = "tests.federated.flower.objectives"
GIVEN = {
    "algorithm": "hiso",
    "clients": CLIENTS,
    "rounds": ROUNDS,
    "local-steps": 2,
    "x0": f"{OBJECTIVES}:classifier_start",
    "options": "perturbations = 3, rate = 0.2",
}


def start(folder):
    """A SuperLink and the three nodes, connected."""
    made = Deployment(folder)
    made.superlink("--insecure")
    for client in range(CLIENTS):
        objective, arguments = f"{OBJECTIVES}:classifier_loss", f"number = {client}"
        made.supernode(f"node-{client}", "--insecure", client=client, objective=objective, arguments=arguments)
    for client in range(CLIENTS):
        made.wait_for_node(f"node-{client}")
    return made


def test_a_module_is_tuned_across_a_kill(tmp_path):
    """All of Flower's processes are killed after two rounds; the model is that of a run that was not."""
    with start(tmp_path / "first") as first:
        first.run("run", "--insecure", **GIVEN)
        wait_for(lambda: first.rounds("run") >= 2, "two rounds")
        for name in list(first.processes):
            first.end(name, signal.SIGKILL)
        saved, reached = tmp_path / "first" / "run" / "federation.pt", first.rounds("run")
        assert reached < ROUNDS and status.read(saved.parent)["state"] == "running"
    with start(tmp_path / "second") as second:
        second.run("run", "--insecure", resume=str(saved), **GIVEN)
        x, history, ledger = second.results("run")
    assert [int(row["round"]) for row in history] == list(range(ROUNDS + 1))
    assert status.read(tmp_path / "second" / "run")["state"] == "finished"

    losses = [classifier_loss(client) for client in range(CLIENTS)]
    options = {"local_steps": 2, "perturbations": 3, "rate": 0.2}
    near = make_federation("hiso", losses, classifier_start(), **options)
    for _ in range(ROUNDS):
        near.run_round()
    assert torch.equal(x, near.server.x)
    assert sum(int(row["queries"]) for row in ledger) >= near.ledger.total("queries")
    mean = [sum(float(loss(point)) for loss in losses) / CLIENTS for point in (classifier_start(), x)]
    assert mean[1] < mean[0]
