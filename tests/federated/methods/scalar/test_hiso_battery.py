import pytest

from federated.testing import CHECKS, Promises, algorithm_factory
from optimizers import Displacement

FACTORIES = {
    "decomfl": algorithm_factory("decomfl", rate=0.03),
    "hiso": algorithm_factory("hiso", rate=0.03),
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
    check(FACTORIES[name], Promises())
