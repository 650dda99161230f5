"""Clients in worker processes: handed to whoever is idle, and bitwise what one process gives."""

import contextlib
import math
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import time
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
class Slow(Quadratic):
    """Takes long at every query."""

    seconds: float = 0.0

    def __call__(self, x):
        time.sleep(self.seconds)
        return super().__call__(x)


@dataclass
class Drifting(Quadratic):
    """Has values that depend on how often it was asked, and cannot be pickled if it holds a function."""

    held: object = field(default=None, repr=False)

    def __call__(self, x):
        return super().__call__(x) * (1.0 + 0.01 * math.sin(self.queries))


def both(name, make, n, rounds, processes, after_a_round=lambda host: None, **options):
    """A federation alone and one over workers, after some rounds, and who served whom in each round."""
    alone, spread = (make_federation(name, [make(i) for i in range(n)], X0, **o) for o in
                     (options, options | {"workers": processes} | FORK))  # fmt: skip
    served, send = [], spread.host._send

    def noting(worker, name, *given):
        if name == "serve":
            served.append((spread.server.round, given[0].client, worker))
        send(worker, name, *given)

    spread.host._send = noting
    try:
        for _ in range(rounds):
            run(alone, 1), run(spread, 1)
            after_a_round(spread.host)
        assert trace(spread) == trace(alone)
        assert states_equal(spread.state_dict(), alone.state_dict())
    finally:
        spread.host.close()
    return served


@pytest.mark.parametrize("make", [Drifting, lambda i: Drifting(i, held=lambda: None)], ids=["moves", "stays"])
@pytest.mark.parametrize(("name", "own"), [("fzoos", FZOOS), ("scaffold2", {})])
def test_any_worker_gives_the_same_bits(name, own, make):
    """Objectives that change with every query move with their clients, or keep them where they are."""
    moves = []

    def move_all(host):
        moves.extend(host._move(client, (home + 1) % 3) for client, home in list(host._homes.items()))

    both(name, make, 12, 5, 3, move_all, local_steps=1, participation=5, seed=2, **own)
    assert len(moves) >= 25 and set(moves) == {make is Drifting}


def test_the_busiest_worker_has_its_share_of_the_sampled():
    """10 workers, 10 of 200 clients a round: by client number the busiest has 2.6 of the 10 on the average."""
    served = both("fedzo", Quadratic, 200, 6, 10, local_steps=1, directions=2, participation=10, seed=1)
    for number in range(1, 7):
        assert max(Counter(worker for r, _, worker in served if r == number).values()) <= 2


@pytest.mark.slow
def test_a_worker_that_is_idle_takes_what_waits_for_a_busy_one():
    """Client 0 takes as long as the six others together: they do not wait for it, wherever they were before."""
    slow = lambda i: Slow(i, seconds=0.18 if i == 0 else 0.03)  # noqa: E731
    served = both("fedzo", slow, 7, 3, 2, local_steps=1, directions=2)
    for number in (1, 2, 3):
        by_worker = {}
        for r, client, worker in served:
            by_worker.setdefault(worker, []).append(client) if r == number else None
        with_slow = next(clients for clients in by_worker.values() if 0 in clients)
        assert len(with_slow) <= 3 and sum(map(len, by_worker.values())) == 7


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


def test_a_client_that_is_handed_over_is_in_one_place():
    made = make_federation("fedzo", [Quadratic(i) for i in range(2)], X0, local_steps=1, directions=2)
    run(made, 1)
    state, other = made.host.states()[1], Host(made.algorithm, {}, {})
    queries = made.host.evaluators[1].fun.queries
    other.take_over(1, *pickle.loads(made.host.hand_over(1)))
    assert list(made.host.states()) == list(made.host.evaluators) == [0] and states_equal(other.states(), {1: state})
    assert other.evaluators[1].fun.queries == queries > 0


def failing(x):
    raise LookupError("no value")


def test_clients_in_a_worker_trace_what_they_raise_once(caplog):
    made = make_federation("fedzo", [failing] * 3, X0, local_steps=1, directions=2)
    worker = Host(made.algorithm, {}, {})
    for number in range(3):
        worker.take_over(number, *pickle.loads(made.host.hand_over(number)))
    made.host = worker
    made.run_round()
    warned = [record.exc_info is not None for record in caplog.records if record.name == "optimizers.evaluation"]
    assert warned == [True, False, False]


def test_what_was_interrupted_is_no_answer_to_what_is_asked_next(monkeypatch):
    """Answers that nobody waited for are in the pipes still."""
    made = make_federation("fedzo", [Quadratic(i) for i in range(3)], X0, local_steps=1, workers=2, **FORK)

    def interrupted(links):
        raise KeyboardInterrupt

    try:
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(workers, "wait", interrupted)
            made.run_round()
        assert sorted(made.host.states()) == [0, 1]
        again = made.run_round()
        assert again.accepted == (2,) and all("refused the broadcast" in reason for _, _, reason in again.refused)
        assert made.run_round().accepted == (0, 1, 2)
    finally:
        made.host.close()


class Unreadable:
    """Can be pickled, and not be read again, as a class that a worker's process does not have."""

    def __reduce__(self):
        return __import__, ("a_module_that_is_not_there",)


def test_what_a_worker_cannot_read_is_said(monkeypatch):
    monkeypatch.setattr(workers, "follow_parent", lambda: None)
    made = make_federation("fedzo", [Quadratic(0)], X0)
    ours, theirs = multiprocessing.Pipe()
    for call in (("take_over", (0, Unreadable(), None, None)), None):
        ours.send_bytes(pickle.dumps(call))
    workers._work(theirs, made.host, torch.get_num_threads())
    succeeded, error = pickle.loads(ours.recv_bytes())
    assert not succeeded and "a_module_that_is_not_there" in str(error)


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
