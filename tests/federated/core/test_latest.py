"""The latest vectors of clients: their mean is that of a table, at the cost of what has changed."""

import copy

import pytest
import torch

from federated.core import latest
from federated.core.aggregation import weighted_mean, weighted_sum
from federated.core.latest import BRANCHES, LatestVectors, among
from federated.core.messages import MessageError, TensorSpec

SPEC = TensorSpec((3,), torch.float64)


def drawn(generator, clients, dtype=torch.float64):
    return {c: torch.randn(3, generator=generator, dtype=dtype) for c in clients}


@pytest.mark.parametrize("n", [1, 5, 32, 33, 1030])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_the_mean_is_that_of_a_table(n, weighted, dtype):
    g = torch.Generator().manual_seed(n)
    weights = [1.0 + i % 7 for i in range(n)] if weighted else [0.3] * n
    vectors, table = LatestVectors(weights, TensorSpec((3,), dtype)), {}
    for _ in range(4):
        sent = drawn(g, torch.randperm(n, generator=g)[: max(1, n // 3)].tolist(), dtype)
        before, old = vectors, dict(vectors.items())
        vectors, table = vectors.replaced(sent), table | sent
        known = sorted(table)
        exact = weighted_mean([table[c].double() for c in known], [weights[c] for c in known])
        assert vectors.mean().dtype == dtype and len(vectors) == len(known)
        near = {"rtol": 4e-16, "atol": 1e-15} if dtype == torch.float64 else {"rtol": 0, "atol": 0}
        torch.testing.assert_close(vectors.mean(), exact.to(dtype), **near)
        assert [c for c, _ in vectors.items()] == known and all(v is table[c] for c, v in vectors.items())
        assert all(before[c] is v for c, v in old.items()) and len(before) == len(old), "an object has changed"
        if n <= BRANCHES:
            assert torch.equal(vectors.mean(), weighted_mean([table[c] for c in known], [weights[c] for c in known]))


def test_the_mean_forgets_a_vector_that_was_replaced():
    """A running sum would keep the rounding errors of 1e300, and all of an inf."""
    vectors = LatestVectors([1.0] * 100, SPEC).replaced(
        {c: torch.full((3,), 0.5, dtype=torch.float64) for c in range(100)}
    )
    for large in (1e300, float("inf")):
        spoilt = vectors.replaced({40: torch.full((3,), large, dtype=torch.float64)})
        assert torch.equal(spoilt.replaced({40: vectors[40]}).mean(), vectors.mean())


def test_a_change_adds_the_vectors_beside_it_alone(monkeypatch):
    """k of N clients: at most k · B · log_B N additions, counted; a sum over all would take N."""
    n, k = 9000, 3
    vectors = LatestVectors([1.0] * n, SPEC).replaced(drawn(torch.Generator().manual_seed(0), range(n)))
    added = []
    counting = lambda parts, weights: added.append(len(parts)) or weighted_sum(parts, weights)  # noqa: E731
    monkeypatch.setattr(latest, "weighted_sum", counting)
    vectors.replaced({c: torch.zeros(3).double() for c in (17, 4000, 8999)})
    assert 0 < sum(added) <= k * 3 * BRANCHES


@pytest.mark.parametrize("clients", [[], [0, 4, 39]])
def test_states_come_back(clients):
    vectors = LatestVectors([1.0] * 40, SPEC).replaced(drawn(torch.Generator().manual_seed(0), clients))
    state = copy.deepcopy(vectors.state_dict())
    other = copy.deepcopy(vectors).replaced({7: torch.zeros(3).double()})
    assert 7 in other and 7 not in vectors and list(state["clients"]) == clients
    other.load_state_dict(state)
    assert 7 not in other and [c for c, _ in other.items()] == clients
    assert all(torch.equal(other[c], vectors[c]) for c in clients)
    with pytest.raises(KeyError):
        other[7]


@pytest.mark.parametrize(
    "change",
    [
        {"clients": [1, 0]},
        {"clients": [0, 0]},
        {"clients": [0, 40]},
        {"clients": [0]},
        {"vectors": [torch.zeros(3).double(), torch.zeros(4).double()]},
        {"vectors": [torch.zeros(3).double(), torch.zeros(3)]},
        {"vectors": [torch.zeros(3).double(), [0.0] * 3]},
        {"vectors": torch.zeros(2, 3).double()},
    ],
)
def test_states_that_are_none_are_refused(change):
    vectors = LatestVectors([1.0] * 40, SPEC).replaced(drawn(torch.Generator().manual_seed(0), [0, 1]))
    with pytest.raises(MessageError):
        vectors.load_state_dict(vectors.state_dict() | change)
    assert len(vectors) == 2


def test_who_is_among_ascending_numbers():
    numbers = [0, 3, 4, 9]
    assert [c for c in range(-1, 12) if among(c, numbers)] == numbers and not among(None, numbers) and not among(0, [])
