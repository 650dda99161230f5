"""``status.json`` and the command that reads it."""

import json
import os
import signal
import time

import pytest

pytest.importorskip("flwr")

from federated.engine.federation import RoundRecord
from federated.flower import __main__, server_app
from federated.flower.configuration import RunConfig
from federated.flower.grid_host import NoClientError
from federated.flower.status import NAME, Status, read, text
from tests.faults.harness import forked
from tests.federated.flower.fake import SILENT
from tests.federated.flower.setting import grid_of, run_config


def test_a_run_says_how_far_it_is_and_what_it_waits_for(tmp_path):
    out = tmp_path / "out"
    config = run_config(
        "fedzo", timeout=50.0, rounds=3, output=str(out), fun="tests.federated.flower.objectives:mean_of_two"
    )
    seen = []

    def look(message):
        if message.metadata.message_type == "train.phase":
            seen.append(read(out))
            return SILENT if message.metadata.group_id == "2" else None
        return None

    grid = grid_of(config, tmp_path, act=lambda c: look if c == 1 else None)
    federation = server_app.run(grid, RunConfig.of(config))
    assert [(state["state"], state["round"]) for state in seen] == [("connecting", 0), ("running", 1), ("running", 2)]
    assert seen[2]["refused"] == ["client 1, phase local: no reply within 50 s"]
    assert seen[1]["fun"] == federation.history[1].fun and seen[1]["queries"] == federation.history[1].queries
    last = read(out)
    assert (last["state"], last["round"], last["waiting"], last["refused"]) == ("finished", 3, "", [])


def test_a_failure_of_many_lines_is_one_short_line(tmp_path):
    with pytest.raises(RuntimeError), Status(tmp_path, RunConfig(), 0):
        raise RuntimeError("first\nsecond\x1b[2J" + "x" * 10_000)
    said = read(tmp_path)["state"]
    assert said.startswith("failed (RuntimeError: first") and said.isprintable() and len(said) < 420


@pytest.mark.parametrize("ending", [SystemExit(0), KeyboardInterrupt()])
def test_a_run_that_was_stopped_says_how_it_goes_on(ending, tmp_path):
    with pytest.raises(type(ending)), Status(tmp_path, RunConfig(), 2):
        raise ending
    first, last = text(read(tmp_path), time.time()).splitlines()
    assert "stopped: round 2 of 10" in first and 'resume="FOLDER/federation.pt"' in last


def test_a_run_without_a_state_gets_a_message_on_refused_runs(tmp_path):
    with pytest.raises(ValueError, match="refused or have not begun"):
        read(tmp_path)


def test_a_failure_is_said(tmp_path):
    config = run_config("fedzo", output=str(tmp_path / "out"))
    grid = grid_of(config, tmp_path)
    grid.nodes.clear()
    with pytest.raises(NoClientError):
        server_app.run(grid, RunConfig.of(config))
    assert read(tmp_path / "out")["state"].startswith("failed (NoClientError: clients [0, 1, 2] of 3")
    assert not (tmp_path / "out" / "model.pt").exists()


def test_it_is_read_by_one_command(tmp_path, capsys):
    with Status(tmp_path, RunConfig(algorithm="hiso", clients=3, rounds=10), 4) as status:
        status.write(waiting="waiting for client 1, 40 of 600 s")
        assert __main__.main(["status", str(tmp_path)]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert lines == [
            "hiso with 3 clients, connecting: round 4 of 10 (0 s ago)",
            "waiting for client 1, 40 of 600 s",
        ]
    assert __main__.main(["status", str(tmp_path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["state"] == "finished"


def test_a_run_that_says_nothing_any_more_may_have_ended(tmp_path):
    with Status(tmp_path, RunConfig(), 0):
        held = read(tmp_path)
    assert "may have ended" not in text(held, time.time() + 200.0)
    assert "may have ended" in text(held | {"state": "running"}, time.time() + 400.0)
    assert "may have ended" not in text(read(tmp_path), time.time() + 400.0)


def test_a_server_that_was_killed_is_told_from_one_that_is_silent(tmp_path):
    """By its files alone, and in the round that it was in."""

    def begin():
        status = Status(tmp_path, RunConfig(rounds=9), 3)
        status.__enter__()
        status.round(RoundRecord(4))
        os.kill(os.getpid(), signal.SIGKILL)

    assert forked(begin) == -signal.SIGKILL
    held = read(tmp_path)
    assert held["state"] == "killed in round 5"
    first, last = text(held, held["said"]).splitlines()
    assert "killed in round 5: round 4 of 9" in first and 'resume="FOLDER/federation.pt"' in last
    with Status(tmp_path, RunConfig(), 0):
        assert read(tmp_path)["state"] == "connecting"
    assert read(tmp_path)["state"] == "finished"


STATE = {"state": "running", "algorithm": "hiso", "clients": 3, "rounds": 9, "round": 1, "said": 1.0}


@pytest.mark.parametrize(
    "content",
    [None, "", "[]", '{"state": "running", "said": 1}', json.dumps(STATE | {"said": "x"})]
    + [json.dumps({k: v for k, v in STATE.items() if k != name}) for name in STATE],
)
def test_what_cannot_be_read_is_named(content, tmp_path, capsys):
    if content is not None:
        (tmp_path / NAME).write_text(content)
    with pytest.raises(SystemExit):
        __main__.main(["status", str(tmp_path)])
    assert str(tmp_path / NAME) in capsys.readouterr().err


def test_a_file_that_cannot_be_written_does_not_end_the_run(tmp_path, caplog):
    with Status(tmp_path / "none", RunConfig(), 0):
        pass
    assert "no longer written" in caplog.text
