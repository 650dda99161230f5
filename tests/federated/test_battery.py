import pytest

from federated.testing import CHECKS, Promises, algorithm_factory
from federated.testing.fault_checks import check_failed_queries, check_faults
from federated.testing.message_checks import check_bad_broadcasts
from federated.testing.run_checks import check_descent, check_participation, check_resume, check_seeds

FINITE_DIFFERENCES = {"directions": 4, "smoothing_radius": 1e-3}
FACTORIES = {
    "fedzo": (algorithm_factory("fedzo", **FINITE_DIFFERENCES), Promises(local_steps=2)),
    "scaffold1": (algorithm_factory("scaffold1", **FINITE_DIFFERENCES), Promises(local_steps=2)),
    "scaffold2": (algorithm_factory("scaffold2", **FINITE_DIFFERENCES), Promises(local_steps=2)),
    "fedavg": (algorithm_factory("fedavg"), Promises(seeded=False)),
    "fedadam": (algorithm_factory("fedadam"), Promises(seeded=False)),
}
ALIKE = {
    "fedprox": (algorithm_factory("fedprox", **FINITE_DIFFERENCES), Promises(local_steps=2)),
    "fedyogi": (algorithm_factory("fedyogi"), Promises(seeded=False)),
    "fedadagrad": (algorithm_factory("fedadagrad"), Promises(seeded=False)),
}
"""FedProx has FedZO's messages, FedYogi and FedAdagrad have FedAdam's."""
ON_STATE = [
    check_descent,
    check_seeds,
    check_faults,
    check_participation,
    check_resume,
    check_bad_broadcasts,
    check_failed_queries,
]


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("name", FACTORIES)
def test_battery(name, check):
    check(*FACTORIES[name])


@pytest.mark.parametrize("check", ON_STATE, ids=lambda check: check.__name__)
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name == "fedadagrad" else ()) for name in ALIKE]
)
def test_alike(name, check):
    check(*ALIKE[name])


@pytest.mark.slow
@pytest.mark.parametrize("check", [c for c in CHECKS if c not in ON_STATE], ids=lambda check: check.__name__)
@pytest.mark.parametrize("name", ALIKE)
def test_alike_in_full(name, check):
    check(*ALIKE[name])
