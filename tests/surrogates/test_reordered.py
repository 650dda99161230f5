"""Sums that may be reordered: the same bits in the process that compiles them and in one that reads numba's cache."""

import importlib
import os
import pkgutil
import subprocess
import sys

import pytest

import surrogates

numba = pytest.importorskip("numba")

PASSES = """
import hashlib
import numpy as np
import torch
from surrogates.kernels import one_pass_numba as one_pass
from surrogates.window import nearest_search as search

rng = np.random.default_rng(0)
n, k, d = 60, 40, 301
X, x, slots = rng.standard_normal((n, d)), rng.standard_normal((1, d)), np.arange(k)

def show(name, *arrays):
    print(name, hashlib.sha256(b"".join(np.ascontiguousarray(a).tobytes() for a in arrays)).hexdigest())

squared = np.empty(k)
search.evaluate_rows(X, x[0], slots, squared)
show("distances", squared)
D = np.square(X[:k, None] - X[None, :k]).sum(-1)
A, alpha = np.exp(-D / 500) + 1e-3 * np.eye(k), rng.standard_normal(k)
mean, vectors = np.empty((1, d)), np.empty((3, 1, k))
vectors[0, 0] = squared
kernel = (X[:k].copy(), alpha, 4, 1.0, 1.0, 1e-3, 1e-3)
one_pass._isotropic_given(*kernel, x, mean, vectors)
show("pass with distances", mean, vectors)
one_pass._isotropic(*kernel, x, mean, vectors)
show("pass", mean, vectors)
few = np.ascontiguousarray(X[:k, :10])
one_pass._isotropic(few, alpha, 4, 1.0, 1.0, 0.1, 0.1, x[:, :10].copy(), short := np.empty((1, 10)), vectors)
show("pass of few inputs", short, vectors)
"""

OTHERS = """
from surrogates.fourier import features_numba as features
from surrogates.linalg.cholesky import factor
from surrogates.window import kept_window_numba as kept
from surrogates.window.replace_rows_numba import replace_rows
from surrogates.window.weights_numba import weights

inverse = np.linalg.inv(A)
now = np.concatenate((slots[:-5], np.arange(k, k + 5)))
shared = (vectors[2], vectors[1], inverse, inverse * D)
show("information", kept.explained(slots, now, X, x[0], *shared, 4, (1.0, 1.0, 1e-3, 1e-3)))
U = np.ascontiguousarray(factor(torch.from_numpy(A)).mT.numpy())
show("weights", weights(U, rng.standard_normal(n), slots, 1.0))
W, z, rows = X[:k].copy(), np.cos(np.arange(float(k))), np.array([50, 51])
print(replace_rows(X, np.array([3, 7]), rows, W, D, A, U, z, (0, 1.0), 2e-3, 1e-3))
show("factor", U, D)
gradient = np.zeros(d)
features._gradient(X, None, x[0], rng.standard_normal(2 * n), 1.0, gradient)
show("features", gradient)
"""


REORDERED_FIRST = """
import numpy as np
from surrogates.kernels import one_pass_numba as one_pass

X, x, ones = np.ones((3, 2)), np.ones((1, 2)), np.ones(2)
one_pass._ard(X, np.ones(3), 4, 1.0, 1.0, ones, ones, x, np.empty((1, 2)), np.empty((3, 1, 3)))
"""


def run(script, folder):
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=os.environ | {"NUMBA_CACHE_DIR": str(folder)},
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    return done.stdout


@pytest.mark.slow
def test_sums_have_the_same_bits_when_compiled_and_when_read_from_the_cache(tmp_path):
    compiled = run(PASSES + OTHERS, tmp_path / "whole")
    assert len(list((tmp_path / "whole").rglob("*.nbc"))) > 10
    assert compiled.count("\n") == 9
    assert run(PASSES + OTHERS, tmp_path / "whole") == compiled
    passes = run(REORDERED_FIRST + PASSES, tmp_path / "other")
    assert passes.count("\n") == 4
    assert compiled.startswith(passes), "the first caller of a function, which may be reordered, changes its bits"


def test_all_functions_of_such_sums_are_compiled_into_their_callers():
    found = set()
    for module in pkgutil.walk_packages(surrogates.__path__, "surrogates."):
        for name, function in vars(importlib.import_module(module.name)).items():
            options = getattr(function, "targetoptions", {})
            if options.get("fastmath"):
                assert options.get("forceinline"), f"{module.name}.{name}"
                found.add(name)
    assert {"_four", "_add_four", "_solve", "_is_factor", "trace_explained", "_phase"} <= found
