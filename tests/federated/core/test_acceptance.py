import itertools

import pytest
import torch

from federated import make_federation, simulate
from federated.testing import CHECKS, Fault, Promises, Quadratic, algorithm_factory, faulty
from federated.testing.fault_checks import check_all_reports_lost, check_faults
from federated.testing.message_checks import check_bad_broadcasts
from federated.testing.run_checks import check_descent, check_participation, check_resume

X0 = torch.linspace(0.2, 0.8, 5, dtype=torch.float64)
OPTIONS = {"local_steps": 3, "directions": 4, "accept": "monotone"}
ON_MOMENTS = [
    check_descent,
    check_faults,
    check_participation,
    check_resume,
    check_bad_broadcasts,
    check_all_reports_lost,
]


def clients(n=4):
    return [Quadratic(i) for i in range(n)]


def mean_value(x, weights=(1.0,) * 4):
    return sum(w * f.value(x) for w, f in zip(weights, clients(), strict=True)) / sum(weights)


def wild(p):
    return torch.optim.SGD([p], lr=0.5)


def test_the_objective_never_rises_and_the_history_says_why():
    weights = [1.0, 2.0, 3.0, 4.0]
    result = simulate(
        "fedzo",
        clients(),
        X0,
        rounds=12,
        weights=weights,
        update_rule=wild,
        fun=lambda x: mean_value(x, weights),
        **OPTIONS,
    )
    values = [record.fun for record in result.history]
    moved = [record.fun != before.fun for before, record in itertools.pairwise(result.history)]
    rejected = [record.rejected for record in result.history[1:]]
    assert all(after <= before for before, after in itertools.pairwise(values))
    assert [not m for m in moved] == rejected and 0 < sum(rejected) == result.rejected < 12
    free = simulate(
        "fedzo", clients(), X0, rounds=12, update_rule=wild, fun=mean_value, **OPTIONS | {"accept": "always"}
    )
    later = [record.fun for record in free.history]
    assert any(after > before for before, after in itertools.pairwise(later))


def test_what_it_costs_is_counted():
    result = simulate("fedzo", clients(), X0, rounds=3, **OPTIONS)
    rows = {(row["round"], row["client"]): row for row in result.ledger.to_rows()}
    for client in range(4):
        assert rows[1, client]["queries"] == 3 * 5 + 2 and rows[2, client]["queries"] == 3 * 5 + 1
        assert rows[1, client]["payload_down"] == 8 * 15 and rows[2, client]["payload_down"] == 8 * 10
        assert rows[1, client]["payload_up"] == 8 * 7 and rows[2, client]["payload_up"] == 8 * 6


def test_clients_compare_their_own_values_where_few_take_part():
    federation = make_federation("fedzo", clients(), X0, participation=2, update_rule=wild, **OPTIONS)
    rejected = 0
    for _ in range(15):
        before = federation.server.x
        record = federation.run_round()
        own = [clients()[i] for i in record.participants]
        assert sum(f.value(federation.server.x) for f in own) <= sum(f.value(before) for f in own)
        assert record.rejected == torch.equal(before, federation.server.x)
        rejected += record.rejected
    assert 0 < rejected < 15


def test_without_any_value_the_model_is_taken_back():
    lost = [Fault("drop", 1, i, phase=1) for i in range(4)]
    federation = faulty(make_federation("fedzo", clients(), X0, **OPTIONS), lost)
    record = federation.run_round()
    assert record.skipped == "no valid report" and record.rejected
    assert torch.equal(federation.server.x, X0)
    assert not federation.run_round().rejected and not torch.equal(federation.server.x, X0)


def test_a_state_is_taken_where_values_of_other_clients_are_known():
    """Of three clients two take part: who has said a value differs from round to round."""
    federation = make_federation("fedzo", clients(), X0, participation=1, seed=3, **OPTIONS)
    federation.run_round()
    early = federation.server.state_dict()
    known = set(early["acceptance"]["values"])
    while set(federation.server._acceptance.values) == known:
        federation.run_round()
    federation.server.load_state_dict(early)
    assert set(federation.server._acceptance.values) == known and federation.server.round == 2


def test_algorithms_that_cannot_take_a_round_back_refuse():
    with pytest.raises(TypeError, match="accept"):
        simulate("decomfl", clients(), X0, rounds=1, accept="monotone")
    with pytest.raises(ValueError, match="'monotone'"):
        simulate("fedzo", clients(), X0, rounds=1, accept="monotonic")


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_battery(check):
    check(algorithm_factory("scaffold2", accept="monotone", directions=4), Promises())


@pytest.mark.parametrize("check", ON_MOMENTS, ids=lambda check: check.__name__)
def test_a_server_with_moments_takes_them_back(check):
    check(algorithm_factory("fedadam", accept="monotone"), Promises(seeded=False))


@pytest.mark.slow
@pytest.mark.parametrize("check", [c for c in CHECKS if c not in ON_MOMENTS], ids=lambda check: check.__name__)
def test_a_server_with_moments_takes_them_back_in_full(check):
    check(algorithm_factory("fedadam", accept="monotone"), Promises(seeded=False))
