"""The battery: what every ``Optimizer`` must do, also a third party's.

Run it all, or one check a test::

    check_optimizer("rgf", Promises(convergence=1e-3))

    @pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
    def test_battery(check):
        check(factory, Promises(budget=60))

A factory is called ``factory(fun, x0, **common)`` with the common options of ``Optimizer``, ``max_queries``
among them, and returns a new optimizer; ``fun`` is there for methods that need more of it, such as a
gradient. A check raises ``AssertionError`` with what was found.
"""

from __future__ import annotations

from collections.abc import Callable

from optimizers.optimizer import Optimizer
from optimizers.testing.harness import Factory, Promises, method_factory, quadratic, rosenbrock, run_checks, start
from optimizers.testing.interface_checks import (
    check_accepted_values,
    check_ask_is_idempotent,
    check_bad_arguments,
    check_budget,
    check_exceptions_and_retries,
    check_executor,
    check_points_are_addressable,
    check_stopping,
    check_too_small_budget,
    check_wrong_tells,
)
from optimizers.testing.search_checks import (
    check_all_failed,
    check_bounds,
    check_constant,
    check_enormous_values,
    check_failures_are_survived,
    check_one_dimension,
    check_quadratic,
    check_rosenbrock,
)
from optimizers.testing.state_checks import (
    check_dtypes,
    check_extended_budget,
    check_foreign_states,
    check_resume,
    check_seeds,
    check_states_are_copies,
)

__all__ = [
    "CHECKS",
    "Factory",
    "Promises",
    "check_optimizer",
    "method_factory",
    "quadratic",
    "rosenbrock",
    "start",
]

CHECKS: tuple[Callable[[Factory, Promises], None], ...] = (
    check_budget,
    check_too_small_budget,
    check_ask_is_idempotent,
    check_points_are_addressable,
    check_wrong_tells,
    check_accepted_values,
    check_resume,
    check_extended_budget,
    check_states_are_copies,
    check_foreign_states,
    check_seeds,
    check_failures_are_survived,
    check_exceptions_and_retries,
    check_all_failed,
    check_bounds,
    check_bad_arguments,
    check_quadratic,
    check_rosenbrock,
    check_dtypes,
    check_one_dimension,
    check_constant,
    check_enormous_values,
    check_executor,
    check_stopping,
)
"""Every check, each called ``check(factory, promises)``."""


def check_optimizer(factory: Factory | str | type[Optimizer], promises: Promises | None = None) -> None:
    """Runs every check of ``CHECKS``.

    Args:
        factory: a factory, a method's name, or an ``Optimizer`` subclass.
        promises: what the method promises.

    Raises:
        AssertionError: for the first check that fails, its name in a note.
    """
    if isinstance(factory, str | type):
        factory = method_factory(factory)
    run_checks(CHECKS, factory, promises or Promises())
