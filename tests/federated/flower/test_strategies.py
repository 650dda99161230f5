"""Our first-order baselines against Flower's own strategies, on the replies that our clients sent."""

import numpy as np
import pytest
import torch

pytest.importorskip("flwr")

from flwr.app import Array, ArrayRecord, ConfigRecord
from flwr.serverapp.strategy import FedAdagrad, FedAdam, FedAvg, FedYogi

from tests.federated.flower.setting import federation_over, grid_of, run_config

ROUNDS = 6
RATES = {"eta": 0.3, "tau": 0.01}
MOMENTS = RATES | {"beta_1": 0.8, "beta_2": 0.95}
OPTIONS = "conventions = 'flower', server_rate = 0.3, tau = 0.01"
STRATEGIES = {
    "fedavg": (FedAvg, {}, ""),
    "fedadam": (FedAdam, MOMENTS, f"{OPTIONS}, beta1 = 0.8, beta2 = 0.95"),
    "fedyogi": (FedYogi, MOMENTS, f"{OPTIONS}, beta1 = 0.8, beta2 = 0.95"),
    "fedadagrad": (FedAdagrad, RATES, f"{OPTIONS}, beta1 = 0.0"),
}


@pytest.mark.parametrize("name", STRATEGIES)
def test_the_next_model_is_that_of_flowers_strategy(name, tmp_path):
    cls, theirs, ours = STRATEGIES[name]
    config = run_config(name, options=ours, weights="[1.0, 2.5, 4.0]", **{"local-steps": 4})
    grid = grid_of(config, tmp_path)
    replies = []
    pull = grid.pull_messages
    grid.pull_messages = lambda ids: replies.extend(given := pull(ids)) or given
    federation = federation_over(grid, config)
    federation.host.connect()
    strategy = cls(**theirs)
    for number in range(1, ROUNDS + 1):
        before = federation.server.x
        x = ArrayRecord({"x": Array(before.numpy())})
        messages = list(strategy.configure_train(number, x, ConfigRecord({}), grid))
        assert len(messages) == 3
        replies.clear()
        federation.run_round()
        trained = [reply for reply in replies if "metrics" in reply.content]
        assert len(trained) == 3
        x, metrics = strategy.aggregate_train(number, trained)
        moved = federation.server.x - before
        assert float(moved.norm()) > 1e-4
        assert np.max(np.abs(x["x"].numpy() - federation.server.x.numpy())) < 1e-12
        assert metrics["queries"] == pytest.approx(4.0)
        assert torch.isfinite(moved).all()
