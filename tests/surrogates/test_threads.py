"""Small algebra uses one thread, of its own Python thread alone, and leaves every setting as it was."""

import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from threadpoolctl import threadpool_info

from surrogates.threads import SMALL, small_algebra

MANY = 5


@pytest.fixture(autouse=True)
def many_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(MANY)
    yield
    torch.set_num_threads(before)


def settings():
    """Every number of threads that can be asked for, MKL's and OpenMP's among them."""
    lines = [line.strip() for line in torch.__config__.parallel_info().splitlines() if "() :" in line]
    return torch.get_num_threads(), torch.get_num_interop_threads(), lines, threadpool_info()


def used():
    """The threads that torch and MKL would use here."""
    asked = ("at::get_num_threads()", "omp_get_max_threads()", "mkl_get_max_threads()")
    lines = [line for line in torch.__config__.parallel_info().splitlines() if line.strip().startswith(asked)]
    return {int(line.rpartition(":")[2]) for line in lines}


def in_another_thread(call):
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(call).result()


def test_small_algebra_has_one_thread_and_large_algebra_those_of_the_user():
    before = settings()
    with small_algebra(SMALL):
        assert used() == {1}
    assert settings() == before and used() == {MANY}
    with small_algebra(SMALL + 1):
        assert settings() == before
    assert settings() == before


def test_blocks_can_be_nested():
    before = settings()
    with small_algebra(1):
        with small_algebra(1):
            assert used() == {1}
        assert used() == {1}
        with small_algebra(SMALL + 1):
            assert used() == {1}
    assert settings() == before


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
def test_settings_are_set_back_after_an_exception(error):
    before = settings()
    with pytest.raises(error), small_algebra(1):
        raise error
    assert settings() == before


def test_other_threads_keep_their_number_and_so_do_those_that_start_meanwhile():
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(used).result() == {MANY}
        with small_algebra(1):
            assert pool.submit(used).result() == {MANY}
            late = ThreadPoolExecutor(1)
            assert late.submit(used).result() == {MANY}
        assert pool.submit(used).result() == {MANY} == late.submit(used).result()
        late.shutdown()


def test_a_new_thread_whose_first_act_is_small_algebra_has_the_users_number_afterwards():
    def run():
        with small_algebra(1):
            torch.linalg.cholesky(torch.eye(200, dtype=torch.float64))
            within = used()
        return within, used()

    assert in_another_thread(run) == ({1}, {MANY})


def test_blocks_of_several_threads_overlap_in_any_order():
    before, count, seen = settings(), 6, []
    entered, left = [threading.Event() for _ in range(count)], [threading.Event() for _ in range(count)]

    def run(i):
        if i:
            entered[i - 1].wait()
        try:
            with small_algebra(1):
                entered[i].set()
                if i % 2:
                    entered[-1].wait()
                else:
                    left[i + 1].wait()
                seen.append(used())
                if i % 3 == 0:
                    raise ValueError
        except ValueError:
            pass
        left[i].set()
        seen.append(used())

    threads = [threading.Thread(target=run, args=(i,)) for i in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(map(min, seen)) == [1] * count + [MANY] * count and all(len(numbers) == 1 for numbers in seen)
    assert settings() == before


def test_a_number_that_is_set_within_the_block_by_another_thread_stays():
    with small_algebra(1):
        in_another_thread(lambda: torch.set_num_threads(3))
        assert in_another_thread(used) == {3}
    assert used() == {MANY} and in_another_thread(used) == {3}


@pytest.mark.skipif(not os.path.isdir("/proc/self/task"), reason="counts the threads of a process by Linux's /proc")
def test_a_fit_and_its_factors_start_no_thread():
    script = """
import os
import torch
torch.set_num_threads(4)
from surrogates import matern_kernel
from surrogates.kernels.stationary import radial_profile
from surrogates.linalg.cholesky import factor
from surrogates.window.marginal_likelihood import fit_isotropic
from surrogates.threads import small_algebra
with small_algebra(1):
    X = torch.rand(150, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    D, y, profile = torch.cdist(X, X).square(), X.sin().sum(-1), radial_profile(matern_kernel(1.0).base_kernel)
    A = profile.h(D) + 1e-3 * torch.eye(150, dtype=torch.float64)
before = len(os.listdir("/proc/self/task"))
fit_isotropic(D, y, profile, lengthscales=(0.05, 20.0))
factor(A)
small = len(os.listdir("/proc/self/task"))
torch.linalg.cholesky_ex(torch.eye(1000, dtype=torch.float64))
print(before, small, len(os.listdir("/proc/self/task")))
"""
    free = {name: value for name, value in os.environ.items() if not name.endswith("_NUM_THREADS")}
    found = subprocess.run([sys.executable, "-c", script], env=free, capture_output=True, text=True, check=True)
    before, small, large = map(int, found.stdout.split())
    assert small == before < large
