import numpy as np
import pytest
import torch
from scipy.optimize import Bounds

from federated import algorithm_class, client_seed
from federated.core.configuration import count_of, describe_option, sample_clients
from optimizers import L1, Box

X0 = torch.zeros(3, dtype=torch.float64)


def fedzo(**options):
    return algorithm_class("fedzo")(X0, clients=4, **options)


def test_samples_are_uniform_and_addressed():
    assert sample_clients(1, 5, 10, 10) == tuple(range(10))
    draws = [sample_clients(1, r, 10, 3) for r in range(4000)]
    assert all(len(set(draw)) == 3 and list(draw) == sorted(draw) for draw in draws)
    counts = np.bincount(np.concatenate(draws), minlength=10)
    expected = 4000 * 3 / 10
    deviation = np.sqrt(4000 * 0.3 * 0.7)
    assert (np.abs(counts - expected) < 4.5 * deviation).all(), counts
    assert draws[7] == sample_clients(1, 7, 10, 3)
    assert [sample_clients(2, r, 10, 3) for r in range(20)] != draws[:20]


def test_integers_are_counts_and_floats_shares():
    assert count_of("participation", 1, 8, round) == 1
    assert count_of("participation", 1.0, 8, round) == 8
    assert count_of("participation", 0.25, 8, round) == 2
    assert count_of("participation", 0.001, 8, round) == 1
    for bad in (0, 9, -1, 0.0, 1.1, float("nan")):
        with pytest.raises(ValueError):
            count_of("participation", bad, 8, round)
    for bad in (True, "all", None):
        with pytest.raises(TypeError):
            count_of("participation", bad, 8, round)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"weights": "even"}, "weights must be real numbers"),
        ({"weights": 3}, r"expected 4 weights, one for each client, got shape \(\)"),
        ({"trim": "a"}, "trim must be a number, got 'a'"),
        ({"gate": "off"}, "gate must be a number, got 'off'"),
    ],
)
def test_options_of_another_type_are_refused_by_their_names(options, says):
    with pytest.raises((TypeError, ValueError), match=says):
        fedzo(**options)


def test_client_seeds_do_not_collide():
    seeds = {client_seed(s, i) for s in range(50) for i in range(50)}
    assert len(seeds) == 2500 and all(0 <= seed < 2**64 for seed in seeds)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("seed", {"seed": 1}),
        ("local_steps", {"local_steps": 3}),
        ("directions", {"directions": 7}),
        ("smoothing_radius", {"smoothing_radius": 0.02}),
        ("distribution", {"distribution": "sphere"}),
        ("update_rule", {"update_rule": lambda p: torch.optim.Adam([p], lr=0.02)}),
        ("update_rule", {"update_rule": lambda p: torch.optim.SGD([p], lr=0.01)}),
        ("weights", {"weights": [1.0, 2.0, 1.0, 1.0]}),
        ("bounds", {"bounds": [(0.0, 1.0)] * 3}),
        ("bounds", {"bounds": Bounds([0.0] * 3, [2.0] * 3)}),
        ("prox", {"prox": L1(0.1)}),
        ("participation", {"participation": 2}),
        ("aggregation", {"aggregation": "median"}),
    ],
)
def test_every_option_enters_the_fingerprint(name, options):
    plain, other = fedzo(), fedzo(**options)
    assert plain.fingerprint != other.fingerprint
    with pytest.raises(ValueError, match=f"the state has {name} "):
        plain.check_configuration(other.configuration, "the state")


def test_equal_options_have_one_fingerprint():
    def rule(p):
        return torch.optim.Adam([p], lr=0.01)

    assert fedzo().fingerprint == fedzo(update_rule=rule).fingerprint
    assert fedzo(prox=L1(0.1)).fingerprint == fedzo(prox=L1(0.1)).fingerprint
    assert fedzo(prox=L1(0.1)).fingerprint != fedzo(prox=L1(0.2)).fingerprint
    assert fedzo(prox=Box(X0, X0 + 1)).fingerprint != fedzo(prox=Box(X0, X0 + 2)).fingerprint
    assert algorithm_class("fedzo")(X0 + 5, clients=4).fingerprint == fedzo().fingerprint
    assert algorithm_class("fedzo")(X0.float(), clients=4).fingerprint != fedzo().fingerprint


def test_numbers_of_numpy_are_numbers():
    options = {"participation": np.int64(2), "local_steps": np.int32(3), "smoothing_radius": np.float64(0.02)}
    assert fedzo(**options).configuration == fedzo(participation=2, local_steps=3, smoothing_radius=0.02).configuration
    zoos = [algorithm_class("fzoos")(X0, clients=4, num_features=n, feature_seed=n) for n in (8, np.int64(8))]
    assert zoos[0].fingerprint == zoos[1].fingerprint


def test_descriptions_are_plain():
    value = {"a": (1, 2.5, None), "b": torch.ones(2), "c": np.float64(1.0), "d": len}
    described = describe_option("x", value)
    assert described["a"] == [1, (2.5).hex(), None] and described["c"] == (1.0).hex()
    assert described["b"]["shape"] == [2] and described["d"] == "builtins.len"
