import pytest

from federated.testing import CHECKS, Promises, algorithm_factory
from federated.testing.fault_checks import check_failed_queries
from federated.testing.message_checks import check_bad_broadcasts
from federated.testing.run_checks import check_ledger, check_participation, check_resume

SMALL = {"num_features": 64, "initial_queries": 3, "active_queries": 2, "candidates": 8}
FACTORIES = {"adaptive": algorithm_factory("fzoos", gamma="adaptive", active="round", **SMALL)}
OTHERS = {
    "together": algorithm_factory("fzoos", gamma=1.0, rate_schedule="constant", **SMALL),
    "rounds": algorithm_factory("fzoos", active="round", **SMALL),
    "default": algorithm_factory("fzoos", **SMALL),
    "monotone": algorithm_factory("fzoos", gamma="adaptive", accept="monotone", rate_schedule="constant", **SMALL),
}
ON_STATE = [check_ledger, check_participation, check_resume, check_bad_broadcasts, check_failed_queries]

SHORT = Promises(local_steps=2)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("name", FACTORIES)
def test_battery(name, check):
    check(FACTORIES[name], SHORT)


@pytest.mark.parametrize("check", ON_STATE, ids=lambda check: check.__name__)
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name == "rounds" else ()) for name in OTHERS]
)
def test_options(name, check):
    check(OTHERS[name], SHORT)


@pytest.mark.slow
@pytest.mark.parametrize("check", [check for check in CHECKS if check not in ON_STATE], ids=lambda c: c.__name__)
@pytest.mark.parametrize("name", OTHERS)
def test_options_in_full(name, check):
    check(OTHERS[name], Promises())
