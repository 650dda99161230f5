"""``benchmark federation``: what it times is a round that is accepted whole, and what it says of it."""

from types import SimpleNamespace

import pytest

from experiments.benchmarks import federation
from experiments.benchmarks.federation import Case, Row, measured, standing, targets

CASES = [Case("fedzo", 20), Case("hiso", 20), Case("fzoos", 20, 64)]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
@pytest.mark.parametrize("sampled", [3, 30])
def test_a_round_of_reports_that_were_drawn_is_accepted_whole(case, sampled):
    made = standing(case, 30, sampled, 2)
    for _ in range(2):
        record = made.run_round()
        assert len(record.accepted) == sampled and record.accepted == record.participants
        assert not record.refused and record.skipped is None
    assert made.host.seconds > 0.0


def test_bytes_are_those_of_the_algorithms():
    """Up and down a client and round: d; τP scalars in float32; d + M, and one number for γ."""
    fedzo, hiso, fzoos = (measured(case, 4, 4, 2) for case in CASES)
    assert (fedzo.up, fedzo.down) == (8 * 20, 8 * 20)
    assert hiso.up == hiso.down and hiso.up % 8 == 0
    assert fzoos.up == fzoos.down == 8 * (20 + 64 + 1)
    assert all(row.milliseconds > 0.0 for row in (fedzo, hiso, fzoos))


def test_what_grows_faster_than_the_round_misses_its_target():
    large = Case("fzoos", 100, 10_000)

    def rows(last, few, megabytes):
        return [
            Row(large, 1000, 1000, 100.0, 50.0, 8.0, 8.0),
            Row(large, 10_000, 10_000, last, megabytes, 8.0, 8.0),
            Row(large, 100, 20, 3.0, 50.0, 8.0, 8.0),
            Row(large, 10_000, 20, few, 50.0, 8.0, 8.0),
        ]

    assert [t.met for t in targets(rows(1500.0, 5.0, 1900.0), 0.01, 10**6)] == [True] * 4
    assert [t.met for t in targets(rows(2500.0, 5.0, 1900.0), 0.01, 10**6)] == [True, False, True, True]
    assert [t.met for t in targets(rows(1500.0, 7.0, 2100.0), 0.06, 10**6)] == [False, True, False, False]


def test_the_ledgers_share_and_the_parts_of_a_round_are_measured():
    share = federation.apart(federation.bookkeeping, 1000, 1)
    assert 0.0 < share < 0.5
    parts = federation.apart(federation.profiled, Case("fedzo", 20), 30, 1)
    assert sum(v for k, v in parts.items() if k != "a round") == pytest.approx(parts["a round"])
    assert all(milliseconds >= 0.0 for milliseconds in parts.values())
    given = SimpleNamespace(steps=1, entries=1000)
    text = federation.summary([Row(CASES[0], 10, 10, 1.0, 2.0, 160.0, 160.0)], {CASES[0]: 0.1}, share, parts, given)
    assert "| fedzo | 20 | 10 | 10 | 1.0 | 100 | 2 | 160 | 160 | 0.1 |" in text


def test_a_profile_is_made_however_many_clients_there_are(monkeypatch, tmp_path):
    asked = {}

    def apart(function, *given):
        asked[function.__name__] = given
        row = Row(CASES[0], 2000, 20, 1.0, 2.0, 160.0, 160.0)
        return {"measured": row, "profiled": {"a round": 1.0}}.get(function.__name__, 0.01)

    monkeypatch.setattr(federation, "apart", apart)
    sizes = ["--clients", "2000", "--dimensions", "20", "--features", "64"]
    assert federation.main([*sizes, "--out", str(tmp_path)]) == 0
    assert asked["profiled"] == (Case("fzoos", 20, 64), 1000, 5)
