"""Flower's simulation (Ray), for comparison with the engine in process: clients return the vector that they receive."""

from __future__ import annotations

import time
from statistics import median
from typing import Any

import numpy as np

ROUNDS = 3


def seconds_of_a_round(clients: int, d: int) -> float:
    """Returns the median wall-clock seconds of a round in which all clients receive and return a vector of d numbers.

    The first round, in which Ray starts its workers, is not counted.
    """
    from flwr.app import ArrayRecord, Context, Message, RecordDict
    from flwr.clientapp import ClientApp
    from flwr.serverapp import Grid, ServerApp
    from flwr.simulation import run_simulation

    server, client, seconds = ServerApp(), ClientApp(), list[float]()

    @client.train()
    def train(message: Message, context: Context) -> Message:
        return Message(RecordDict({"x": message.content["x"]}), reply_to=message)

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        while len(nodes := list(grid.get_node_ids())) < clients:
            time.sleep(0.1)
        for _ in range(1 + ROUNDS):
            start = time.perf_counter()
            x = ArrayRecord([np.full(d, 0.5)])
            replies = list(grid.send_and_receive([Message(RecordDict({"x": x}), node, "train") for node in nodes]))
            assert len(replies) == clients and not any(reply.has_error() for reply in replies)
            seconds.append(time.perf_counter() - start)

    resources: dict[str, Any] = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}}
    run_simulation(server_app=server, client_app=client, num_supernodes=clients, backend_config=resources)
    return median(seconds[1:])
