import importlib.util

import pytest


@pytest.fixture(autouse=True)
def own_time(monkeypatch):
    """Give grid hosts back the time that a fake grid has taken from them."""
    if importlib.util.find_spec("flwr"):
        from federated.flower import grid_host

        monkeypatch.setattr(grid_host, "time", grid_host.time)
