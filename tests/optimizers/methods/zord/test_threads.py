"""ZoRD asks the same queries whatever number of threads torch is set to, wakes none, and leaves all settings."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from threadpoolctl import threadpool_info

from optimizers import ZoRD, minimize


@pytest.fixture
def settings():
    """Sets torch's number of threads within a test, and says all that can be asked for."""
    before = torch.get_num_threads()

    def set_to(number=None):
        if number is not None:
            torch.set_num_threads(number)
        lines = [line for line in torch.__config__.parallel_info().splitlines() if "() :" in line]
        return torch.get_num_threads(), torch.get_num_interop_threads(), lines, threadpool_info()

    yield set_to
    torch.set_num_threads(before)


def objective(x):
    return float((100 * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2).sum())


def run(d=8, queries=60, fun=objective, **options):
    return minimize(fun, torch.zeros(d).double(), "zord", bounds=[(-2, 2)] * d, max_queries=queries, **options)


@pytest.mark.parametrize("options", [{}, {"active": "gated", "max_virtual_steps": 2}, {"queries_per_step": 4}])
@pytest.mark.slow
def test_queries_do_not_depend_on_the_number_of_threads(settings, options):
    found = []
    for number in (1, 4):
        before = settings(number)
        found.append(run(queries=130, store_points=True, **options).history.x)
        assert settings() == before
    assert torch.equal(*map(torch.as_tensor, found))


def test_settings_are_as_before_where_a_prox_raises(settings):
    seen = []

    def prox(x, step_size):
        seen.append(torch.get_num_threads())
        if len(seen) == 40:
            raise KeyboardInterrupt
        return x

    before = settings(4)
    optimizer = ZoRD(torch.zeros(8).double(), prox=prox, max_queries=60)
    with pytest.raises(KeyboardInterrupt):
        while True:
            batch = optimizer.ask()
            optimizer.tell(batch, [objective(x) for x in batch.points()])
    assert settings() == before and seen[-1] == 1


def test_objectives_in_a_pool_have_the_users_threads_while_two_runs_go_on(settings):
    before, seen = settings(4), []

    def fun(x):
        seen.append(torch.get_num_threads())
        return objective(x)

    with ThreadPoolExecutor(2) as runs:
        found = [future.result() for future in [runs.submit(run, fun=fun, workers=2) for _ in range(2)]]
    assert settings() == before and set(seen) == {4} and len(seen) == 120
    assert len(found) == 2


@pytest.mark.skipif(not os.path.isdir("/proc/self/task"), reason="counts the threads of a process by Linux's /proc")
def test_no_thread_is_started():
    script = """
import os
import torch
torch.set_num_threads(4)
from optimizers import minimize
before = len(os.listdir("/proc/self/task"))
minimize(lambda x: float(x.square().sum()), torch.ones(300).double(), "zord", bounds=[(-2, 2)] * 300, max_queries=165)
print(before, len(os.listdir("/proc/self/task")))
"""
    free = {name: value for name, value in os.environ.items() if not name.endswith("_NUM_THREADS")}
    found = subprocess.run([sys.executable, "-c", script], env=free, capture_output=True, text=True, check=True)
    before, after = map(int, found.stdout.split())
    assert after == before
