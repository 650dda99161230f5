"""A federation over the fake grid, and the same one in process."""

import tomllib

from federated import Federation, Host
from federated.flower import __main__ as commands
from federated.flower.configuration import RunConfig
from federated.flower.grid_host import GridHost
from federated.testing import Quadratic, faulty
from optimizers import Evaluator
from tests.federated.flower.fake import FakeGrid

DEFAULTS = tomllib.loads((commands.APP / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
OBJECTIVE = "federated.testing:Quadratic"
SMALL = {
    "fzoos": "num_features = 32, initial_queries = 3, active_queries = 2, candidates = 8, gamma = 'adaptive'",
    "decomfl": "perturbations = 2",
    "hiso": "perturbations = 2, log_rounds = 2",
    "fedzo": "directions = 3",
    "fedprox": "directions = 3",
    "scaffold1": "directions = 3",
    "scaffold2": "directions = 3",
}


def run_config(algorithm, **changes):
    given = {"algorithm": algorithm, "clients": 3, "rounds": 3, "local-steps": 2, "x0": "[0.1, 0.3, 0.5, 0.7, 0.9]"}
    return DEFAULTS | given | {"options": SMALL.get(algorithm, "")} | changes


def node_config(client, tmp_path, **changes):
    arguments = f"number = {client}, dimension = 5"
    return {"client": client, "objective": OBJECTIVE, "arguments": arguments, "ledger": str(tmp_path)} | changes


def grid_of(config, tmp_path, act=None, **changes):
    """A grid whose nodes 10, 11, … are the clients."""
    grid = FakeGrid()
    for client in range(config["clients"]):
        grid.add(10 + client, node_config(client, tmp_path, **changes), config, act and act(client))
    return grid


def federation_over(grid, config, **options):
    run = RunConfig.of(config)
    algorithm = run.make_algorithm()
    times = {"timeout": run.timeout, "wait": run.wait} | options
    return Federation(algorithm, GridHost(algorithm, grid, **times), codec=False)


def in_process(config, faults=(), fun=False):
    """The federation of the run config in this process, passing messages as objects too."""
    algorithm = RunConfig.of(config).make_algorithm()
    objectives = [Quadratic(i) for i in range(algorithm.clients)]
    gradients = {i: f.gradient for i, f in enumerate(objectives)} if algorithm.needs_gradient else {}
    host = Host(algorithm, {i: Evaluator(f) for i, f in enumerate(objectives)}, gradients)
    f = RunConfig.of(config).global_function() if fun else None
    return faulty(Federation(algorithm, host, fun=f, codec=False), faults)
