"""``timeout=``: a client that takes too long harms its own round alone."""

import signal
import threading
import time
from types import SimpleNamespace

import pytest
import torch

from federated import ALGORITHMS, make_federation, simulate
from federated.engine import host
from federated.testing import Quadratic

pytestmark = pytest.mark.timeout(200, method="thread")  # the other method has the alarm

X0 = torch.linspace(0.2, 0.8, 5, dtype=torch.float64)
SMALL = {"fzoos": {"num_features": 32, "active": None}, "hiso": {"rate": 0.02}, "decomfl": {"rate": 0.02}}
LONG = 600.0


class Slow(Quadratic):
    """A client whose time is over in its third query."""

    def __call__(self, x):
        if self.queries == 2:
            self.queries += 1
            self.dawdle()
        return super().__call__(x)

    def dawdle(self):
        signal.raise_signal(signal.SIGALRM)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_client_that_is_late_is_interrupted_named_and_back_in_the_next_round(name):
    objectives = [Quadratic(0), Slow(1), Quadratic(2)]
    made = make_federation(name, objectives, X0, local_steps=3, timeout=LONG, **SMALL.get(name, {}))
    first, second = made.run_round(), made.run_round()
    assert first.accepted == (0, 2) and [(c, why) for c, _, why in first.refused] == [(1, "no reply within 600 s")]
    assert second.accepted == (0, 1, 2)
    row = next(row for row in made.ledger.to_rows() if (row["round"], row["client"]) == (1, 1))
    assert row["queries"] >= 3 and row["failures"] >= 1


def test_workers_go_on_too():
    objectives = [Quadratic(0), Slow(1), Quadratic(2)]
    options = {"local_steps": 2, "timeout": LONG, "workers": 2, "start_method": "fork"}
    result = simulate("fedzo", objectives, X0, rounds=2, **options)
    assert result.history[1].accepted == (0, 2) and result.history[2].accepted == (0, 1, 2)


def test_a_client_that_cannot_be_interrupted_is_asked_no_more_and_refused(monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(host, "time", SimpleNamespace(monotonic=lambda: clock[0], perf_counter=time.perf_counter))
    late, last = Slow(1), Slow(2)
    late.dawdle = lambda: clock.append(clock.pop() + LONG)
    last.dawdle, last.queries = late.dawdle, -1  # in the fourth of four queries
    made = make_federation("fedavg", [Quadratic(0), late, last], X0, local_steps=4, timeout=LONG)
    records = []
    thread = threading.Thread(target=lambda: records.extend(made.run_round() for _ in range(2)))
    thread.start()
    thread.join()
    assert records[0].accepted == (0,) and records[1].accepted == (0, 1, 2)
    assert made.ledger.total("queries", client=1, round=1) == 3
    assert made.ledger.total("queries", client=2, round=1) == 4


def test_a_sleep_ends_unless_the_user_has_an_alarm_which_then_stays(monkeypatch):
    clock, ended = [0.0], []
    monkeypatch.setattr(host, "time", SimpleNamespace(monotonic=lambda: clock[0], perf_counter=time.perf_counter))
    late = Slow(0)
    made = make_federation("fedavg", [late], X0, local_steps=4, timeout=0.05)
    late.dawdle = lambda: time.sleep(LONG)
    assert made.run_round().refused == ((0, "local", "no reply within 0.05 s"),)
    assert signal.getsignal(signal.SIGALRM) == signal.SIG_DFL and not any(signal.getitimer(signal.ITIMER_REAL))
    late.queries, late.dawdle = 0, lambda: ended.append(time.sleep(0.1)) or clock.append(clock.pop() + LONG)
    signal.setitimer(signal.ITIMER_REAL, LONG)
    try:
        assert made.run_round().refused == ((0, "local", "no reply within 0.05 s"),) and len(ended) == 1
        assert 0.0 < signal.getitimer(signal.ITIMER_REAL)[0] < LONG
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)


def test_the_option_is_checked():
    for wrong in (0.0, -1.0, "soon"):
        with pytest.raises((ValueError, TypeError), match="timeout"):
            simulate("fedzo", [Quadratic(0)], X0, rounds=1, timeout=wrong)
