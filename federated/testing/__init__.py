"""The federated battery: checks for every ``Algorithm``, including your own.

Run all checks at once, or each as a test::

    check_algorithm("fedzo")

    @pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
    def test_battery(check):
        check(algorithm_factory("fedzo", directions=4), Promises())

A factory is a function ``factory(objectives, x0, **options)`` that returns a new ``Federation``.
"""

from __future__ import annotations

from collections.abc import Callable

from federated.core.algorithm import Algorithm
from federated.testing import fault_checks, message_checks, run_checks
from federated.testing.faults import Fault, FaultPlan, faulty
from federated.testing.harness import Factory, Promises, Quadratic, algorithm_factory, problem, start
from optimizers.testing.harness import run_checks as run_all

__all__ = [
    "CHECKS",
    "Factory",
    "Fault",
    "FaultPlan",
    "Promises",
    "Quadratic",
    "algorithm_factory",
    "check_algorithm",
    "faulty",
    "problem",
    "start",
]

CHECKS: tuple[Callable[[Factory, Promises], None], ...] = tuple(
    check
    for module in (run_checks, message_checks, fault_checks)
    for name, check in vars(module).items()
    if name.startswith("check_")
)
"""All checks, called as ``check(factory, promises)``."""


def check_algorithm(factory: Factory | str | type[Algorithm], promises: Promises | None = None) -> None:
    """Runs all checks in ``CHECKS``.

    Args:
        factory: a factory, an algorithm's name, or an ``Algorithm`` subclass.
        promises: the algorithm's promises.

    Raises:
        AssertionError: for the first failed check, with its name in a note.
    """
    made = algorithm_factory(factory) if isinstance(factory, str | type) else factory
    run_all(CHECKS, made, promises or Promises())
