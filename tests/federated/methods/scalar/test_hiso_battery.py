import pytest

from federated.testing import CHECKS, Promises, algorithm_factory
from federated.testing.fault_checks import check_failed_queries, check_faults
from federated.testing.message_checks import check_bad_broadcasts
from federated.testing.run_checks import check_descent, check_participation, check_resume
from optimizers import Displacement

FACTORIES = {
    "decomfl": algorithm_factory("decomfl", rate=0.03),
    "hiso": algorithm_factory("hiso", rate=0.03),
}
OTHERS = {
    "hiso_per_round": algorithm_factory(
        "hiso",
        rate=0.03,
        curvature=Displacement(update="per_round", reset=2),
        momentum=0.5,
        scheme="central",
    ),
    "hiso_printed": algorithm_factory("hiso", rate=0.03, curvature=Displacement(update="printed"), momentum=0.5),
    "hiso_last_step": algorithm_factory("hiso", rate=0.03, curvature=Displacement(update="last_step", reset=2)),
}


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("name", FACTORIES)
def test_battery(name, check):
    if check.__name__ == "check_ledger":
        pytest.skip("the first broadcast has no payload: test_hiso.py has the bytes exactly")
    check(FACTORIES[name], Promises(local_steps=2))


ON_STATE = [check_descent, check_faults, check_participation, check_resume, check_bad_broadcasts, check_failed_queries]
"""What may depend on how H is learned; the other checks are of messages, which are the same."""


@pytest.mark.parametrize("check", ON_STATE, ids=lambda check: check.__name__)
@pytest.mark.parametrize("name", OTHERS)
def test_options(name, check):
    check(OTHERS[name], Promises(local_steps=2))


@pytest.mark.slow
@pytest.mark.parametrize(
    "check", [c for c in CHECKS if c not in ON_STATE and c.__name__ != "check_ledger"], ids=lambda c: c.__name__
)
@pytest.mark.parametrize("name", OTHERS)
def test_options_in_full(name, check):
    check(OTHERS[name], Promises(local_steps=2))
