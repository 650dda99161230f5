"""``benchmark federation``: what it times is a round that is accepted whole, and what it says of it."""

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

    assert [t.met for t in targets(rows(1500.0, 5.0, 1900.0))] == [True] * 3
    assert [t.met for t in targets(rows(2500.0, 5.0, 1900.0))] == [False, True, True]
    assert [t.met for t in targets(rows(1500.0, 7.0, 2100.0))] == [True, False, False]


def test_a_line_of_the_table():
    row = Row(CASES[0], 10, 10, 1.0, 2.0, 160.0, 160.0)
    assert "| fedzo | 20 | 10 | 10 | 1.0 | 100 | 2 | 160 | 160 | 0.1 |" in federation.summary([row], {CASES[0]: 0.1}, 1)
    assert 0.0 < federation.apart(federation.client_seconds, CASES[0], 1) < 1.0
