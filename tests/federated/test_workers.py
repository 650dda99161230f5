"""Clients in worker processes: spread evenly, and bitwise what one process gives."""

import contextlib
import math
import os
import pickle
import signal
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass, field

import pytest
import torch

from federated import make_federation
from federated.engine import workers
from federated.engine.host import Host
from federated.testing import Quadratic
from federated.testing.harness import run, states_equal, trace
from tests.federated.test_simulate import Sequenced

X0 = torch.linspace(0.2, 0.8, 5, dtype=torch.float64)
FZOOS = {"num_features": 32, "initial_queries": 2, "active_queries": 1, "candidates": 2}
FORK = {"start_method": "fork"}


@dataclass
class Drifting(Quadratic):
    """Has values that depend on how often it was asked, and cannot be pickled if it holds a function."""

    held: object = field(default=None, repr=False)

    def __call__(self, x):
        return super().__call__(x) * (1.0 + 0.01 * math.sin(self.queries))


def unpicklable(i):
    return Drifting(i, held=lambda: None)


@pytest.mark.parametrize(
    ("name", "own", "make"),
    [
        ("fzoos", FZOOS, unpicklable),
        ("scaffold2", {}, Drifting),
        pytest.param("fzoos", FZOOS, Drifting, marks=pytest.mark.slow),
        pytest.param("scaffold2", {}, unpicklable, marks=pytest.mark.slow),
    ],
)
def test_any_worker_gives_the_same_bits(name, own, make):
    """Objectives that change with every query stay with their clients."""
    alone, spread = (
        make_federation(
            name, [make(i) for i in range(12)], X0, local_steps=1, participation=5, seed=2, **own, **options
        )
        for options in ({}, {"workers": 3} | FORK)
    )
    try:
        run(alone, 5), run(spread, 5)
        assert trace(spread) == trace(alone)
        assert states_equal(spread.state_dict(), alone.state_dict())
    finally:
        spread.host.close()


def test_new_clients_go_where_the_fewest_of_the_round_are():
    options = {"local_steps": 1, "directions": 2, "participation": 10, "seed": 1, "workers": 10} | FORK
    made = make_federation("fedzo", [Quadratic(i) for i in range(200)], X0, **options)
    try:
        for number in range(3):
            (record,) = run(made, 1)
            crowds = Counter(made.host._homes[client] for client in record.participants)
            assert number or max(crowds.values()) == 1
        assert max(Counter(made.host._homes.values()).values()) <= 4
    finally:
        made.host.close()


@pytest.mark.slow
def test_clients_that_are_made_when_they_are_asked_go_to_workers_one_by_one():
    objectives = Sequenced(5000)
    options = {"local_steps": 1, "directions": 2, "participation": 4}
    alone = make_federation("fedzo", [Quadratic(i) for i in range(5000)], X0, **options)
    spread = make_federation("fedzo", objectives, X0, workers=2, start_method="forkserver", **options)
    try:
        run(alone, 2), run(spread, 2)
        assert trace(spread) == trace(alone)
        assert sorted(objectives.made) == sorted({c for record in alone.history for c in record.participants})
    finally:
        spread.host.close()


def failing(x):
    raise LookupError("no value")


def test_clients_in_a_worker_trace_what_they_raise_once(caplog):
    made = make_federation("fedzo", [failing] * 3, X0, local_steps=1, directions=2)
    worker = Host(made.algorithm, {}, {})
    for number in range(3):
        worker.take_over(number, pickle.loads(pickle.dumps(made.host.evaluators[number])), None)
    made.host = worker
    made.run_round()
    warned = [record.exc_info is not None for record in caplog.records if record.name == "optimizers.evaluation"]
    assert warned == [True, False, False]


def test_what_was_interrupted_is_no_answer_to_what_is_asked_next(monkeypatch):
    made = make_federation("fedzo", [Quadratic(i) for i in range(3)], X0, local_steps=1, workers=2, **FORK)

    def interrupted(future):
        future.result()
        raise KeyboardInterrupt

    try:
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(workers, "_answer", interrupted)
            made.run_round()
        reached = sorted(made.host.states())
        assert 0 in reached
        again = made.run_round()
        assert [client for client, _, _ in again.refused] == reached
        assert all("refused the broadcast" in reason for _, _, reason in again.refused)
        assert made.run_round().accepted == (0, 1, 2)
    finally:
        made.host.close()


class Unreadable:
    """Can be pickled, and not be read again, as a class that a worker's process does not have."""

    def __reduce__(self):
        return __import__, ("a_module_that_is_not_there",)


def test_what_a_worker_cannot_read_is_said():
    answer = pickle.loads(workers._do(pickle.dumps(("take_over", (0, Unreadable(), None)))))
    assert "a_module_that_is_not_there" in str(answer.error)


ASLEEP = """
import sys, time
from federated import simulate

def asleep(x):
    print("?", end="", flush=True)
    time.sleep(600)

if __name__ == "__main__":
    simulate("fedzo", [asleep] * 2, [0.0], rounds=1, workers=2, start_method=sys.argv[1], progress=False)
"""


@pytest.mark.parametrize(
    "start_method", ["fork", *(pytest.param(m, marks=pytest.mark.slow) for m in ("spawn", "forkserver"))]
)
def test_workers_end_with_a_parent_that_is_killed(start_method, tmp_path):
    script = tmp_path / "asleep.py"
    script.write_text(ASLEEP)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, script, start_method]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env=environment, start_new_session=True
    ) as process:
        try:
            assert process.stdout.read(2) == "??"
            process.kill()
            assert process.communicate(timeout=60) == ("", None)  # at the end of all who could write to it
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
