"""Why a run stopped, in the terms of scipy's ``OptimizeResult``."""

from __future__ import annotations

from enum import StrEnum
from typing import Any


class StopReason(StrEnum):
    """Why a run stopped; each reason equals its string."""

    BUDGET = "budget"
    TARGET = "target reached"
    STAGNATION = "stagnation"
    CALLBACK = "callback"
    ALL_FAILED = "all queries failed"


ENDINGS: dict[StopReason | None, tuple[int, str]] = {
    None: (-1, "Running, {count}."),
    StopReason.TARGET: (0, "Target reached {count}."),
    StopReason.BUDGET: (1, "Budget of {budget} queries spent as far as whole batches fit, {count}."),
    StopReason.STAGNATION: (2, "No further improvement {count}."),
    StopReason.ALL_FAILED: (3, "All queries failed: no finite value to go on with {count}."),
    StopReason.CALLBACK: (99, "Stopped by the callback {count}."),
}
"""The status and the message of a run that stopped for a reason, or, under None, that has not stopped."""


def describe(
    reason: StopReason | None, target: float | None, queries: int, failures: int, max_queries: int
) -> dict[str, Any]:
    """The entries status, success, message and stop_reason of a run's ``OptimizeResult``.

    A run succeeds if it reaches its target or stagnates, or if it has no target and spends its budget.
    """
    planned = {StopReason.TARGET, StopReason.STAGNATION} | ({StopReason.BUDGET} if target is None else set())
    status, message = ENDINGS[reason]
    failed = f", {failures} of them failed" if failures else ""
    return {
        "status": status,
        "success": reason in planned,
        "message": message.format(count=f"after {queries} queries{failed}", budget=max_queries),
        "stop_reason": None if reason is None else str(reason),
    }
