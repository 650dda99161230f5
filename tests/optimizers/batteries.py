"""The battery of a method's options."""

import pytest

from optimizers.testing import CHECKS, search_checks, state_checks

NEEDED = (
    search_checks.check_quadratic,
    search_checks.check_failures_are_survived,
    state_checks.check_resume,
    state_checks.check_several_points_are_out,
    state_checks.check_tell_is_atomic,
    state_checks.check_states_are_copies,
    state_checks.check_dtypes,
)


def options_battery(variants):
    """Parametrizes a test in ``check``, ``factory`` and ``promises``; ``variants`` are pairs of the last two by name.

    Options change a method's state and where it goes. The other checks are of the interface, of seeds and of budgets,
    which the method's own battery covers; with options they are slow.
    """
    return pytest.mark.parametrize(
        ("check", "factory", "promises"),
        [
            pytest.param(
                check,
                *variant,
                id=f"{name}-{check.__name__}",
                marks=() if check in NEEDED else pytest.mark.slow,
            )
            for name, variant in variants.items()
            for check in CHECKS
        ],
    )
