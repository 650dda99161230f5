"""What FZooS's clients keep between rounds is bounded, and what is dropped is made again to the same bits."""

import gc
import weakref

from federated import make_federation
from federated.methods.fzoos import client_surrogates
from federated.testing import Quadratic, start
from federated.testing.harness import states_equal, trace

SMALL = {"num_features": 128, "active_queries": 2, "candidates": 8, "initial_queries": 3, "local_steps": 3}
SMALL |= {"rate_schedule": "constant"}  # whose Fourier surrogate has all queries


def make(**options):
    return make_federation("fzoos", [Quadratic(i) for i in range(4)], start(), **SMALL | options)


def surrogates_of(federation):
    return [federation.host.client(i).optimizer.state.models for i in range(4)]


def made_again(monkeypatch, cap, rounds=5):
    """What a run gives under a cap; bytes kept after each round; and the queries whose features were made."""
    rows, new = [], client_surrogates.FourierSurrogate.append

    def append(self, X, y):
        rows.append(len(X))
        return new(self, X, y)

    with monkeypatch.context() as patch:
        patch.setattr(client_surrogates, "CACHE_BYTES", cap)
        patch.setattr(client_surrogates.FourierSurrogate, "append", append)
        federation, kept = make(gamma=1.0), []
        for _ in range(rounds):
            federation.run_round()
            held = [s._fourier.nbytes for s in surrogates_of(federation) if s._fourier is not None]
            kept.append(sum(held))
    return federation, kept, sum(rows)


def test_features_are_kept_to_a_cap_and_made_again_to_the_same_bits(monkeypatch):
    whole, kept, made = made_again(monkeypatch, 1 << 30)
    queries = sum(len(s.local.trajectory) for s in surrogates_of(whole))
    assert made == queries, "without a cap in the way features are made once"
    for share, some in ((0.6, True), (0.3, True), (0.0, False)):
        cap = int(share * kept[-1])
        capped, under, again = made_again(monkeypatch, cap)
        assert max(under) <= cap and (under[-1] > 0) == some and again > queries
        assert trace(capped) == trace(whole) and states_equal(capped.state_dict(), whole.state_dict())


def test_what_clients_keep_is_counted_as_the_tensors_have_it(monkeypatch):
    federation, _, _ = made_again(monkeypatch, 1 << 30, rounds=2)
    for s in surrogates_of(federation):
        n, linear = s._fourier.num_observations, s._fourier._linear
        assert n == len(s.local.trajectory) <= s.features.num_features
        blocks = linear._rows.rows.nbytes
        assert s._fourier.nbytes == blocks + linear._cholesky._storage.nbytes >= 8 * n * (s.features.num_features + n)
    gone = weakref.ref(surrogates_of(federation)[0])
    del s, federation, linear
    gc.collect()
    assert gone() is None, "what a federation kept goes with it"


def test_a_federation_that_has_ended_keeps_nothing_from_one_that_runs(monkeypatch):
    """As in a notebook, where the first is still held."""
    ended, kept, made = made_again(monkeypatch, 1 << 30)
    monkeypatch.setattr(client_surrogates, "CACHE_BYTES", kept[-1])
    running, kept, again = made_again(monkeypatch, kept[-1])
    assert kept[-1] == sum(s._fourier.nbytes for s in surrogates_of(running)) and again == made
    assert all(s._fourier is None for s in surrogates_of(ended))
