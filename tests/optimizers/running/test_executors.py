"""Where queries run: threads, processes, joblib, and, where they are installed, loky, Dask, Ray, submitit and MPI."""

import gc
import logging
import multiprocessing
import os
import pickle
import random
import shutil
import signal
import subprocess
import sys
import threading
from concurrent.futures import BrokenExecutor, Future, ProcessPoolExecutor
from functools import partial
from multiprocessing.reduction import ForkingPickler
from pathlib import Path

import numpy as np
import pytest
import torch

from optimizers import RGF, RayExecutor, minimize, scipy_method
from optimizers.running import interrupts
from optimizers.running.crew import Crew, Errand, ExecutorError, Query, Raised, answered

X0 = torch.linspace(1.0, 2.0, 4, dtype=torch.float64)
CALL = {"method": "rgf", "directions": 5, "seed": 3, "progress": False}


def sphere(x):
    return float((x - 0.3).square().sum())


def unlucky(x):
    """Whether a point is one at which experiments fail, which is a matter of its bits; the first of the run is none."""
    return bool(int(abs(float(x[0])) * 1e9) % 2) and not torch.equal(x, X0)


def flaky(x):
    if unlucky(x):
        raise ValueError("the oven went out")
    return sphere(x)


class HeldOpen(Exception):
    """It can neither be pickled nor be made again from its arguments."""

    def __init__(self, what, why):
        super().__init__(f"{what}: {why}")
        self.lock = threading.Lock()


def holding(x):
    if unlucky(x):
        raise HeldOpen("valve", "stuck")
    return sphere(x)


def interrupted(x):
    if unlucky(x):
        raise KeyboardInterrupt
    return sphere(x)


def same(a, b):
    assert (a.fun, a.nfev, a.nfail, a.nit, a.stop_reason) == (b.fun, b.nfev, b.nfail, b.nit, b.stop_reason)
    assert torch.equal(torch.as_tensor(a.x), torch.as_tensor(b.x))
    assert np.array_equal(np.asarray(a.history.y), np.asarray(b.history.y), equal_nan=True)


class Scripted:
    """An executor of jobs with ``done`` and ``result`` alone, one of which has ended at a time, in a seeded order."""

    def __init__(self, seed):
        self.order, self.out, self.most, self.cancelled = random.Random(seed), [], 0, 0

    def __len__(self):
        return 0

    def submit(self, fn, *args):
        job = Job(self, partial(fn, *args))
        self.out.append(job)
        self.most = max(self.most, len(self.out))
        self.chosen = None
        return job

    def next(self):
        if self.chosen is None:
            self.chosen = self.order.choice(self.out)
        return self.chosen


class Job:
    def __init__(self, executor, call):
        self.executor, self.call = executor, call

    def done(self):
        return self.executor.next() is self

    def result(self):
        self.executor.out.remove(self)
        self.executor.chosen = None
        return self.call()

    def cancel(self):
        self.executor.cancelled += 1


# Threads.


def test_as_many_points_as_workers_are_out_at_once():
    out, most, lock, all_here = 0, 0, threading.Lock(), threading.Barrier(4)

    def fun(x):
        nonlocal out, most
        with lock:
            out += 1
            most = max(most, out)
        all_here.wait(30.0)  # breaks, and fails the query, unless four are here
        with lock:
            out -= 1
        return sphere(x)

    result = minimize(fun, X0, workers=4, max_queries=24, **CALL | {"directions": 7})
    assert (result.nfev, result.nfail, most) == (24, 0, 4)


@pytest.mark.parametrize("policy", ["skip", "retry"])
@pytest.mark.parametrize("workers", [2, 5])
def test_answers_in_any_order_give_a_method_of_whole_batches_the_serial_run(workers, policy):
    expected = minimize(flaky, X0, max_queries=60, on_failure=policy, **CALL)
    assert 10 < expected.nfail < 50
    if policy == "skip":  # where retries go on, the budget may end between two of them, and which ones is the order's
        same(minimize(flaky, X0, max_queries=60, on_failure=policy, workers=workers, **CALL), expected)
    executor = Scripted(workers)
    found = minimize(flaky, X0, max_queries=60, on_failure=policy, workers=workers, executor=executor, **CALL)
    assert (found.nfev, executor.most) == (60, workers)
    if policy == "skip":
        same(found, expected)


@pytest.mark.parametrize(
    ("method", "quick"),
    [
        ("zord", {}),
        pytest.param("turbo", {"initial_points": 5, "candidates": 32, "fit_steps": 5}, marks=pytest.mark.slow),
    ],
)
def test_the_same_order_of_answers_gives_the_same_bits(method, quick):
    options = quick | {"bounds": [(-2.0, 3.0)] * 4, "max_queries": 30, "seed": 1, "workers": 3, "progress": False}
    runs = [minimize(flaky, X0, method, executor=Scripted(seed), **options) for seed in (1, 1, 2)]
    same(runs[0], runs[1])
    assert not np.array_equal(runs[0].history.y, runs[2].history.y, equal_nan=True)


def test_jobs_that_are_out_when_the_run_stops_are_called_back():
    class AnswersOnce(Scripted):
        def next(self):
            return self.first

        def submit(self, fn, *args):
            job = super().submit(fn, *args)
            self.first = vars(self).get("first", job)
            return job

    executor = AnswersOnce(0)
    result = minimize(sphere, X0, workers=3, executor=executor, max_queries=60, target=1e9, **CALL)
    assert result.nfev == 1 and result.stop_reason == "target reached" and executor.cancelled == 2


# What a worker raises.


class FirstLast(Scripted):
    def next(self):
        return self.out[-1]


def test_the_exception_of_the_first_query_is_raised_and_not_of_the_first_answer(caplog):
    def all_but_the_first(x):
        if not torch.equal(x, X0):
            raise ValueError("only here")
        return sphere(x)

    def only_the_first(x):
        if torch.equal(x, X0):
            raise ValueError("only here")
        return sphere(x)

    with caplog.at_level(logging.WARNING):
        result = minimize(all_but_the_first, X0, workers=3, executor=FirstLast(0), max_queries=6, **CALL)
    assert (result.nfev, result.nfail) == (6, 5)
    with pytest.raises(ValueError, match="only here") as raised:
        minimize(only_the_first, X0, workers=3, executor=FirstLast(0), max_queries=6, **CALL)
    assert any("the first of the run" in note for note in raised.value.__notes__)


def test_a_cancelled_query_is_the_executors_failure_and_counts_as_none():
    class Cancels:
        count = 0

        def submit(self, fn, *args):
            future = Future()
            self.count += 1
            if self.count == 4:
                future.cancel()
            else:
                future.set_result(fn(*args))
            return future

    with pytest.raises(ExecutorError, match="cancelled"):
        minimize(sphere, X0, executor=Cancels(), workers=1, max_queries=12, **CALL)


@pytest.mark.parametrize(("grace", "asked"), [(5.0, 1), (0.0, 0)])
def test_jobs_that_an_interrupt_ends_are_no_failed_queries(grace, asked, monkeypatch):
    monkeypatch.setattr(interrupts, "GRACE", grace)
    looked = []

    def died(*_):
        looked.append(1)
        raise OSError("the job ended with status 1")

    class Interrupted(Scripted):
        def submit(self, fn, *args):
            job = super().submit(fn, *args)
            if len(self.jobs) == 5:
                job.call = self.interrupt
            self.jobs.append(job)
            return job

        def interrupt(self):
            os.kill(os.getpid(), signal.SIGINT)
            for job in self.out:
                job.call = died
            return [0.0]

    executor = Interrupted(0)
    executor.jobs = []
    result = minimize(sphere, X0, executor=executor, workers=3, max_queries=30, **CALL)
    assert result.status == 98 and 1 <= result.nfev <= 6 and result.nfail == 0 and len(looked) == asked


def test_an_exception_reaches_another_process_whatever_it_is():
    found = pickle.loads(pickle.dumps(answered(Errand(partial(failing, ValueError("short"), 1), "a"))))
    assert type(found.error) is ValueError and found.error.args == ("short",)
    assert "in failing" in found.error.__notes__[-1]
    held = pickle.loads(pickle.dumps(Raised(HeldOpen("valve", "stuck"))))
    assert type(held.error) is RuntimeError and "HeldOpen: valve: stuck" in str(held.error)


def failing(error, _):
    raise error


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_points_go_to_processes_by_value(dtype):
    x = torch.linspace(-1.0, 1.0, 6, dtype=dtype)[::2]
    errand = pickle.loads(ForkingPickler.dumps(Errand(partial(failing, x, 2), "token")))
    assert errand.token == "token" and errand.call.func is failing and errand.call.args[1] == 2
    there = errand.call.args[0]
    assert torch.equal(there, x) and there.dtype == dtype and not x.is_shared() and not there.is_shared()


def test_no_two_submissions_are_equal():
    tokens = []

    class Keeps:
        def submit(self, fn, errand):
            tokens.append((errand.token, errand.__dask_tokenize__()))
            return Future()

    batch = RGF(X0, max_queries=12).ask()
    for crew in (Crew(None, Keeps()), Crew(None, Keeps())):
        for _ in range(2):
            crew.submit(Query(batch, [0], partial(sphere, X0)))
    assert len(set(tokens)) == 4


# Processes of Python's own.


@pytest.fixture(scope="module")
def processes():
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn")) as pool:
        yield pool


def test_processes_give_the_serial_run(processes):
    expected = minimize(flaky, X0, max_queries=60, **CALL)
    same(minimize(flaky, X0, max_queries=60, executor=processes, **CALL), expected)
    same(minimize(flaky, X0, max_queries=60, executor=processes, workers=2, **CALL), expected)
    held = minimize(holding, X0, max_queries=60, executor=processes, workers=2, **CALL)
    same(held, expected)
    with pytest.raises(RuntimeError, match="HeldOpen: valve: stuck"):
        minimize(holding, X0, max_queries=60, executor=processes, on_failure="raise", **CALL)


def test_an_objective_that_no_worker_can_find_is_refused_in_words(processes):
    with pytest.raises(ExecutorError, match=r"(?s)cannot be sent.*lambda.*top level of an importable module.*Threads"):
        minimize(lambda x: sphere(x) + 1.0, X0, max_queries=12, executor=processes, **CALL)
    with pytest.raises(ExecutorError, match=r"_thread\.lock"):
        minimize(partial(sphere, threading.Lock()), X0, max_queries=12, executor=processes, **CALL)


def test_a_ctrl_c_in_a_worker_is_one_here(processes):
    with pytest.raises(KeyboardInterrupt):
        minimize(interrupted, X0, max_queries=60, executor=processes, **CALL)
    assert minimize(sphere, X0, max_queries=12, executor=processes, **CALL).nfev == 12


# joblib runs whole optimizations.


def run_seed(seed):
    return minimize(sphere, X0, max_queries=20, **CALL | {"seed": seed})


@pytest.mark.parametrize("backend", ["threading", pytest.param("loky", marks=pytest.mark.slow)])
def test_joblib_runs_seeds_side_by_side(backend):
    joblib = pytest.importorskip("joblib")
    found = joblib.Parallel(n_jobs=2, backend=backend)(joblib.delayed(run_seed)(seed) for seed in range(4))
    for seed in range(4):
        same(found[seed], run_seed(seed))


@pytest.mark.slow
def test_scipys_minimize_runs_in_processes(processes):
    import scipy.optimize

    call = partial(scipy.optimize.minimize, scipys_sphere, X0.numpy(), method=scipy_method("rgf", max_queries=20))
    assert np.array_equal(processes.submit(call).result().x, call().x)


def scipys_sphere(x):
    return float(((x - 0.3) ** 2).sum())


# Ray's adapter, on a stand-in for Ray that keeps to what it calls.


class StandIn:
    """``ray.remote(**options)(fn).remote(*args).future()``, which are all that the adapter uses."""

    def __init__(self):
        self.options = []

    def remote(self, **options):
        self.options.append(options)

        def decorate(fn):
            class Function:
                @staticmethod
                def remote(*args):
                    class Reference:
                        @staticmethod
                        def future():
                            future = Future()
                            future.set_result(fn(*args))
                            return future

                    return Reference

            return Function

        return decorate


def test_rays_adapter(monkeypatch):
    ray = StandIn()
    monkeypatch.setitem(sys.modules, "ray", ray)
    executor = RayExecutor(num_cpus=2)
    assert ray.options == [{"max_retries": 0, "num_cpus": 2}]
    same(minimize(flaky, X0, max_queries=30, executor=executor, **CALL), minimize(flaky, X0, max_queries=30, **CALL))


def test_rays_adapter_without_ray(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ImportError):
        RayExecutor()


# Real clusters.


def check_cluster(executor):
    """Failures and retries are the serial run's, what a script defines travels, and messages are clear."""
    flaky_there, lock = by_value(), threading.Lock()
    for policy in ("skip", "retry"):
        options = {"max_queries": 60, "on_failure": policy} | CALL
        expected = minimize(flaky_there, X0, **options)
        assert expected.nfail > 6
        same(minimize(flaky_there, X0, executor=executor, workers=1, **options), expected)
        found = minimize(flaky_there, X0, executor=executor, workers=4, **options)
        assert found.nfev == 60 and (policy == "retry" or found.nfail == expected.nfail)
    with pytest.raises(ExecutorError, match=r"cannot be sent.*top level of an importable module"):
        minimize(lambda x: flaky_there(x) + bool(lock), X0, executor=executor, max_queries=12, **CALL)


def by_value():
    """An objective as a script has it: of no module that a worker can import, and raising a class of its own."""

    class Odd(Exception):
        def __init__(self, a, b):
            super().__init__(a + b)

    first = X0.tolist()

    def objective(x):
        if int(abs(float(x[0])) * 1e9) % 2 and x.tolist() != first:
            raise Odd(1, 2)
        return float((x - 0.3).square().sum())

    return objective


@pytest.fixture
def importable(monkeypatch):
    """Processes that other programs start find this library."""
    root = str(Path(__file__).parents[3])
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([root, os.environ.get("PYTHONPATH", "")]))


@pytest.mark.slow
def test_loky(importable):
    loky = pytest.importorskip("loky")
    executor = loky.get_reusable_executor(2)
    try:
        check_cluster(executor)
        with pytest.raises(BrokenExecutor) as raised:
            minimize(dying(), X0, executor=executor, workers=4, max_queries=60, **CALL)
        assert any("__main__" in note for note in raised.value.__notes__)
    finally:
        executor.shutdown(kill_workers=True)


def dying():
    """An objective whose process ends at some points."""
    first = X0.tolist()

    def objective(x):
        if int(abs(float(x[0])) * 1e9) % 8 == 3 and x.tolist() != first:
            os._exit(1)
        return float((x - 0.3).square().sum())

    return objective


@pytest.mark.slow
def test_dask(importable, monkeypatch):
    pytest.importorskip("distributed")
    import dask
    from distributed import Client, LocalCluster

    # One death is enough to call a query killed: by default a query that kills its worker is made on four.
    with (
        dask.config.set({"distributed.scheduler.allowed-failures": 0}),
        LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster,
        Client(cluster) as client,
    ):
        check_cluster(client.get_executor())
        check_cluster(client)
        # What is held a cluster computes again when the worker that has it dies.
        monkeypatch.setattr(logging.getLogger("optimizers.evaluation"), "disabled", True)
        gc.disable()
        held, before = [], len(client.futures)
        try:
            minimize(
                by_value(),
                X0,
                max_queries=60,
                executor=client,
                callback=lambda _: held.append(len(client.futures)),
                **CALL,
            )
        finally:
            gc.enable()
        assert max(held) - before <= 1
        died = minimize(dying(), X0, executor=client.get_executor(), workers=2, max_queries=24, **CALL)
        assert died.nfev == 24 and 0 < died.nfail == _deaths(died)


@pytest.mark.slow
def test_submitit(importable, tmp_path):
    submitit = pytest.importorskip("submitit")
    here, options = submitit.AutoExecutor(tmp_path / "here", cluster="debug"), {"max_queries": 60, **CALL}
    same(minimize(flaky, X0, executor=here, workers=4, **options), minimize(flaky, X0, **options))
    executor = submitit.AutoExecutor(tmp_path / "jobs", cluster="local")
    executor.update_parameters(timeout_min=5)
    with pytest.raises(ExecutorError, match=r"_thread\.lock"):
        minimize(partial(sphere, threading.Lock()), X0, executor=executor, max_queries=12, **CALL)
    objective = by_value()
    same(
        minimize(objective, X0, executor=executor, max_queries=6, **CALL),
        minimize(objective, X0, max_queries=6, **CALL),
    )
    result = minimize(dying(), X0, executor=executor, workers=4, max_queries=6, **CALL | {"seed": 0})
    assert result.nfev == 6 and result.nfail == _deaths(result)


def _deaths(result):
    return int(np.isnan(np.asarray(result.history.y)).sum())


@pytest.mark.slow
def test_ray(importable):
    ray = pytest.importorskip("ray")
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    try:
        check_cluster(RayExecutor())
        result = minimize(dying(), X0, executor=RayExecutor(), workers=2, max_queries=24, **CALL)
        assert result.nfev == 24 and 0 < result.nfail == _deaths(result)
    finally:
        ray.shutdown()


SCRIPT = """
import torch
from mpi4py.futures import MPIPoolExecutor
from optimizers import minimize
from tests.optimizers.running.test_executors import CALL, X0, flaky

if __name__ == "__main__":
    with MPIPoolExecutor() as executor:
        for policy in ("skip", "retry"):
            options = {"max_queries": 60, "on_failure": policy} | CALL
            serial, one = minimize(flaky, X0, **options), minimize(flaky, X0, executor=executor, workers=1, **options)
            many = minimize(flaky, X0, executor=executor, workers=4, **options)
            assert torch.equal(serial.x, one.x) and one.nfail == serial.nfail > 6, (serial, one)
            assert many.nfev == 60
            assert policy == "retry" or many.nfail == serial.nfail and torch.equal(many.x, serial.x)
    print("as it should")
"""


@pytest.mark.slow
def test_mpi(importable, tmp_path):
    pytest.importorskip("mpi4py")
    beside = str(Path(sys.executable).parent)
    mpiexec = shutil.which("mpiexec", path=os.pathsep.join([beside, os.environ["PATH"]]))
    if mpiexec is None:
        pytest.skip("no mpiexec")
    (tmp_path / "run.py").write_text(SCRIPT)
    command = [mpiexec, "-n", "3", sys.executable, "-m", "mpi4py.futures", str(tmp_path / "run.py")]
    root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    few_cores = {"PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe"}
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=200, env=os.environ | root | few_cores, check=False
    )
    assert "as it should" in done.stdout, done.stderr
