import pytest
import torch

from federated import MessageError
from federated.methods.scalar.log import LoggedRound, ScalarLog, parse_ranges, ranges


def log_of(rounds, capacity=3):
    log = ScalarLog(capacity)
    for r in rounds:
        log.append(LoggedRound(r, torch.tensor([float(r)]), f"before {r}"))
    return log


@pytest.mark.parametrize(
    ("rounds", "text"), [([], ""), ([4], "4"), ([1, 2, 3], "1-3"), ([1, 2, 5, 9, 10], "1-2,5,9-10")]
)
def test_ranges(rounds, text):
    assert ranges(rounds) == text
    assert parse_ranges(text, 1, 11, 10) == rounds


@pytest.mark.parametrize(
    "text", ["0", "11", "3-2", "1-2,2", "2,1", "a", "1--2", "-1", "1-2-3", "1,", "²", "1-999999999"]
)
def test_other_ranges_are_refused(text):
    with pytest.raises(MessageError, match="rounds are"):
        parse_ranges(text, 1, 11, 10)


def test_more_rounds_than_a_log_holds_are_refused():
    with pytest.raises(MessageError, match="at most 5"):
        parse_ranges("1-3,5-999999999999", 1, 1 << 40, 5)


def test_what_falls_out_of_the_log_can_no_longer_be_replayed():
    log = log_of([1, 2, 4, 5])
    assert len(log) == 3 and log.first == 2
    assert [e.round for e in log.between(2, 5)] == [2, 4]
    assert [entry.scalars.tolist() for entry in log.between(2, 5)] == [[2.0], [4.0]]
    assert log.rounds(2, 5) == "2,4" and log.rounds(9, 9) == ""


def test_digests_of_skipped_rounds_are_those_of_the_next():
    log = log_of([1, 2, 4, 5])
    digests = [log.digest_at(r, "now") for r in range(1, 8)]
    assert digests == [None, "before 2", "before 4", "before 4", "before 5", "now", "now"]


def test_state():
    log, other = log_of([1, 2, 4, 5]), ScalarLog(3)
    other.load_state_dict(log.state_dict())
    assert other.first == 2 and [e.round for e in other.between(1, 9)] == [2, 4, 5]
    assert other.digest_at(3, "now") == "before 4"
