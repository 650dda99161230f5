"""Running a battery: all checks on one factory, the one that failed by name."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

Factory = TypeVar("Factory")
Promises = TypeVar("Promises")


def run_checks(checks: Iterable[Callable[[Factory, Promises], None]], factory: Factory, promises: Promises) -> None:
    """Calls every check with the factory and the promises.

    Raises:
        AssertionError: for the first check that fails, its name in a note.
    """
    for check in checks:
        try:
            check(factory, promises)
        except AssertionError as error:
            error.add_note(f"in {check.__name__}")
            raise
