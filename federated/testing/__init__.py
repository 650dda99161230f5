"""The federated battery: what every ``Algorithm`` must do, also a third party's.

Run it all, or one check a test::

    check_algorithm("fedzo")

    @pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
    def test_battery(check):
        check(algorithm_factory("fedzo", directions=4), Promises())

A factory is called ``factory(objectives, x0, **options)`` and returns a new ``Federation``. A check raises
``AssertionError`` with what was found.
"""

from __future__ import annotations

from collections.abc import Callable

from federated.core.algorithm import Algorithm
from federated.testing.fault_checks import (
    check_all_reports_lost,
    check_corruptions,
    check_failed_queries,
    check_faults,
    check_late_and_double_reports,
)
from federated.testing.harness import Factory, Promises, Quadratic, algorithm_factory, problem, start
from federated.testing.message_checks import (
    check_bad_broadcasts,
    check_fingerprints,
    check_frames,
    check_idempotence,
    check_random_bytes,
)
from federated.testing.run_checks import (
    check_bad_arguments,
    check_codec,
    check_descent,
    check_generators,
    check_ledger,
    check_participation,
    check_resume,
    check_seeds,
    check_single_precision,
    check_workers,
)
from optimizers.testing.harness import run_checks

__all__ = [
    "CHECKS",
    "Factory",
    "Promises",
    "Quadratic",
    "algorithm_factory",
    "check_algorithm",
    "problem",
    "start",
]

CHECKS: tuple[Callable[[Factory, Promises], None], ...] = (
    check_descent,
    check_ledger,
    check_codec,
    check_seeds,
    check_generators,
    check_participation,
    check_single_precision,
    check_resume,
    check_workers,
    check_bad_arguments,
    check_idempotence,
    check_frames,
    check_random_bytes,
    check_bad_broadcasts,
    check_fingerprints,
    check_faults,
    check_corruptions,
    check_all_reports_lost,
    check_late_and_double_reports,
    check_failed_queries,
)
"""Every check, each called ``check(factory, promises)``."""


def check_algorithm(factory: Factory | str | type[Algorithm], promises: Promises | None = None) -> None:
    """Runs every check of ``CHECKS``.

    Args:
        factory: a factory, an algorithm's name, or an ``Algorithm`` subclass.
        promises: what the algorithm promises.

    Raises:
        AssertionError: for the first check that fails, its name in a note.
    """
    if isinstance(factory, str | type):
        factory = algorithm_factory(factory)
    run_checks(CHECKS, factory, promises or Promises())
