"""Checks that every ``Optimizer`` must pass, including your own.

All checks at once, or each as a test::

    check_optimizer("rgf", Promises(convergence=1e-3))

    @pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
    def test_battery(check):
        check(factory, Promises(max_queries=60))

A factory is a function ``factory(fun, x0, **common)`` that returns a new optimizer; ``common`` are options of
``Optimizer`` such as ``max_queries``, and ``fun`` is for methods that need its gradient. A check raises
``AssertionError`` with its finding. The checks cover the code of a method; this project's tests of ``Optimizer`` cover
how values, states and arguments are parsed and rejected.
"""

from __future__ import annotations

from collections.abc import Callable

from optimizers.core.optimizer import Optimizer
from optimizers.testing import interface_checks, search_checks, state_checks
from optimizers.testing.harness import Factory, Promises, method_factory, quadratic, rosenbrock, run_checks, start

__all__ = ["CHECKS", "Factory", "Promises", "check_optimizer", "method_factory", "quadratic", "rosenbrock", "start"]

CHECKS: tuple[Callable[[Factory, Promises], None], ...] = tuple(
    check
    for module in (interface_checks, state_checks, search_checks)
    for name, check in vars(module).items()
    if name.startswith("check_")
)
"""Every check, each called ``check(factory, promises)``."""


def check_optimizer(factory: Factory | str | type[Optimizer], promises: Promises | None = None) -> None:
    """Runs every check of ``CHECKS``.

    Args:
        factory: a factory, a method's name, or an ``Optimizer`` subclass.
        promises: what the method promises.

    Raises:
        AssertionError: for the first check that fails, with its name in a note.
    """
    if isinstance(factory, str | type):
        factory = method_factory(factory)
    run_checks(CHECKS, factory, promises or Promises())
