import csv
import logging
from dataclasses import replace

import pytest
import torch

pytest.importorskip("flwr")

from flwr.app import Context, RecordDict

from federated.engine.checkpoint import FORMAT
from federated.flower import server_app
from federated.flower.configuration import RunConfig
from federated.flower.grid_host import GridHost, NoClientError
from federated.testing.harness import states_equal
from optimizers.core.files import read_state
from tests.faults.test_disk import limited
from tests.federated.flower.setting import grid_of, in_process, node_config, run_config


def rows(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_a_run_leaves_its_results(tmp_path):
    config = run_config("hiso", output=str(tmp_path / "out"), fun="tests.federated.flower.objectives:mean_of_two")
    grid = grid_of(config, tmp_path)
    context = Context(7, 1, {}, RecordDict(), config)
    package = logging.getLogger("federated")
    before, level = list(package.handlers), package.level
    try:
        server_app.app(grid, context)
    finally:
        package.handlers, package.level = before, level
    near = in_process(config, fun=True)
    for _ in range(3):
        near.run_round()
    out = tmp_path / "out"
    growing = ["federation.pt.history.jsonl", "federation.pt.ledger.csv"]
    written = ["federation.pt", *growing, "history.csv", "ledger.csv", "model.pt", "status.json"]
    assert sorted(p.name for p in out.iterdir()) == written
    assert torch.equal(torch.load(out / "model.pt", weights_only=True), near.server.x)
    assert [row["fun"] for row in rows(out / "history.csv")] == [str(record.fun) for record in near.history]
    assert sum(int(row["queries"]) for row in rows(out / "ledger.csv")) == near.ledger.total("queries")
    assert all(row["wire_up"] == "" for row in rows(out / "ledger.csv"))


def test_results_that_fit_on_the_disk_are_written_and_the_other_is_named(tmp_path):
    made = in_process(run_config("fedzo"), fun=True)
    made.server.state = replace(made.server.state, x=torch.ones(20_000, dtype=torch.float64))

    def write():
        with pytest.raises(OSError, match=str(tmp_path / "model.pt")):
            server_app.write(made, tmp_path)

    limited(50_000, write)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["history.csv", "ledger.csv"]


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"rounds": "3"}, "TypeError: run config rounds must be a whole number, got '3': write rounds=3"),
        ({"x0": "nowhere:x"}, "ValueError: x0 'nowhere:x' cannot be imported: ModuleNotFoundError: No module named"),
    ],
)
def test_why_a_run_ends_is_one_line_before_flowers_traceback(changes, line, tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(server_app, "_log_to_run", lambda: None)
    config = run_config("fedzo")
    grid = grid_of(config, tmp_path)
    with caplog.at_level(logging.INFO), pytest.raises((TypeError, ValueError)):
        server_app.app(grid, Context(7, 1, {}, RecordDict(), config | changes))
    (said,) = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert said.startswith(f"the run failed: {line}") and "\n" not in said


def test_a_run_goes_on_from_a_checkpoint_with_clients_that_begin_anew(tmp_path):
    config = run_config("hiso", output=str(tmp_path / "out"))
    server_app.run(grid_of(config, tmp_path / "first"), RunConfig.of(config))
    resumed = config | {"rounds": 5, "resume": str(tmp_path / "out" / "federation.pt")}
    grid = grid_of(resumed, tmp_path / "second")
    federation = server_app.run(grid, RunConfig.of(resumed))
    assert federation.rounds == 5 and grid.kinds["train.catch_up"] == 3
    # HiSo's clients hold nothing but the model, which is rebuilt: the run is as if it had not been cut.
    whole = in_process(config | {"rounds": 5})
    for _ in range(5):
        whole.run_round()
    assert torch.equal(federation.server.x, whole.server.x)
    with pytest.raises(ValueError, match=r"federation\.pt is the checkpoint of a run, .* resume it by resume="):
        server_app.run(grid_of(config, tmp_path / "again"), RunConfig.of(config | {"rounds": 9}))
    assert read_state(tmp_path / "out" / "federation.pt", FORMAT)["server"]["round"] == 6
    other = resumed | {"seed": 9}
    with pytest.raises(ValueError, match=r"the state has seed 0, this federation has 9"):
        server_app.run(grid_of(other, tmp_path / "third"), RunConfig.of(other))


def test_a_run_that_ends_early_leaves_what_it_has(tmp_path):
    config = run_config("fedzo", output=str(tmp_path / "out"))
    grid = grid_of(config, tmp_path)

    def leave(message):
        if message.metadata.group_id == "2":
            grid.nodes.clear()

    for node in grid.nodes.values():
        node.act = leave
    with pytest.raises(NoClientError, match="has been connected for"):
        server_app.run(grid, RunConfig.of(config))
    history = rows(tmp_path / "out" / "history.csv")
    assert [row["round"] for row in history][:2] == ["0", "1"]
    saved = read_state(tmp_path / "out" / "federation.pt", FORMAT)
    assert saved["server"]["round"] - 1 == int(history[-1]["round"])


def test_a_state_in_process_is_not_one_over_a_grid(tmp_path):
    config = run_config("fedzo")
    near = in_process(config)
    near.run_round()
    host = GridHost(near.algorithm, grid_of(config, tmp_path))
    with pytest.raises(ValueError, match=r"clients \[0, 1, 2\]: it belongs to a federation in one process"):
        host.load_states(near.host.states())
    host.load_states({})
    assert host.states() == {}
    with pytest.raises(TypeError, match="codec=False"):
        host.catch_up(0, b"bytes")


def test_a_clients_state_in_flower_is_that_in_process(tmp_path):
    from federated.flower.records import load_state

    config = run_config("fzoos")
    grid = grid_of(config, tmp_path)
    server_app.run(grid, RunConfig.of(config))
    near = in_process(config)
    for _ in range(3):
        near.run_round()
    for client, state in near.host.states().items():
        assert states_equal(load_state(grid.nodes[10 + client].state), state)
    assert node_config(0, tmp_path)["client"] == 0
