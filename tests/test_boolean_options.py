"""Options that are True or False take nothing else: the text "no", as a settings file has it, is true in Python."""

import inspect

import numpy as np
import pytest
import torch

from federated import make_federation
from federated.registry import ALGORITHMS, algorithm_class
from optimizers import CandidateGenerator, minimize
from optimizers.methods.hiso.curvature import StepOptions
from optimizers.registry import METHODS, method_class

X0 = torch.zeros(3, dtype=torch.float64)


def booleans(cls):
    """Keyword options of a class and its bases whose defaults are True or False."""
    inits = (vars(base)["__init__"] for base in cls.__mro__ if "__init__" in vars(base) and base is not object)
    parameters = (p for init in inits for p in inspect.signature(init).parameters.values())
    return sorted({p.name for p in parameters if isinstance(p.default, bool)})


def f(x):
    return float(x.sum())


OF_METHODS = [(name, option) for name in METHODS for option in booleans(method_class(name))]
OF_ALGORITHMS = [(name, option) for name in ALGORITHMS for option in booleans(algorithm_class(name))]


@pytest.mark.parametrize(("name", "option"), OF_METHODS)
def test_of_methods(name, option):
    with pytest.raises(TypeError, match=f"{option} must be True or False, got 'no'"):
        jac = {"jac": torch.ones_like} if name == "gradient_descent" else {}
        method_class(name)(X0, max_queries=10, **jac, **{option: "no"})


@pytest.mark.parametrize(("name", "option"), OF_ALGORITHMS)
def test_of_algorithms(name, option):
    with pytest.raises(TypeError, match=f"{option} must be True or False, got 'no'"):
        make_federation(name, [f] * 2, X0, **{option: "no"})


@pytest.mark.parametrize("option", ["numpy", "batched", "rescale", "track_best"])
def test_of_minimize(option):
    with pytest.raises(TypeError, match=f"{option} must be True or False, got 'no'"):
        minimize(f, X0, method="rgf", max_queries=10, **{option: "no"})


@pytest.mark.parametrize("option", ["numpy", "batched", "codec"])
def test_of_federations(option):
    with pytest.raises(TypeError, match=f"{option} must be True or False, got 'no'"):
        make_federation("fedzo", [f] * 2, X0, **{option: "no"})


def test_of_others():
    with pytest.raises(TypeError, match="projection must be"):
        StepOptions(projection="no")
    with pytest.raises(TypeError, match="maximize must be"):
        CandidateGenerator("rgf", X0, max_queries=10, maximize="no")


def test_numpy_s_booleans_are_booleans():
    assert minimize(f, X0, method="rgf", max_queries=8, track_best=np.bool_(True)).nfev == 8
