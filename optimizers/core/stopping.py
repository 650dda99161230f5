"""When a run stops, and what its result says of it."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from optimizers.core.record import Record


class StopReason(StrEnum):
    """Why a run stopped; each reason equals its string."""

    BUDGET = "budget"
    TARGET = "target reached"
    STAGNATION = "stagnation"
    CALLBACK = "callback"
    ALL_FAILED = "all queries failed"
    INTERRUPTED = "interrupted"


ENDINGS: dict[StopReason | None, tuple[int, str]] = {
    None: (-1, "Running, {count}."),
    StopReason.TARGET: (0, "Target reached {count}."),
    StopReason.BUDGET: (1, "Budget of {budget} queries spent{how}, {count}."),
    StopReason.STAGNATION: (2, "No further improvement {count}."),
    StopReason.ALL_FAILED: (3, "The last queries all failed: no finite value to go on with {count}."),
    StopReason.CALLBACK: (99, "Stopped by the callback {count}."),
    StopReason.INTERRUPTED: (98, "Interrupted {count}."),
}
"""The status and the message of a run that stopped for a reason, or, under None, that has not stopped."""


def describe(
    reason: StopReason | None, target: float | None, queries: int, failures: int, max_queries: int
) -> dict[str, Any]:
    """The entries status, success, message and stop_reason of a run's ``OptimizeResult``.

    A run succeeds if it reaches its target; or if it stagnates, or has no target and spends its budget, and more than
    one query did not fail: one is x0's as a rule.
    """
    planned = {StopReason.TARGET, StopReason.STAGNATION} | ({StopReason.BUDGET} if target is None else set())
    status, message = ENDINGS[reason]
    failed = f", {failures} of them failed" if failures else ""
    how = " as far as whole batches fit" if queries < max_queries else " before" if queries > max_queries else ""
    return {
        "status": status,
        "success": reason in planned and (reason is StopReason.TARGET or failures < max(queries - 1, 1)),
        "message": message.format(count=f"after {queries} queries{failed}", budget=max_queries, how=how),
        "stop_reason": None if reason is None else str(reason),
    }


def reason_to_stop(
    record: Record, target: float | None, stagnation: int | None, max_failures: int | None
) -> StopReason | None:
    """The reason for which a run with this record stops before its budget is spent, or None."""
    if target is not None and record.best_y <= target:
        return StopReason.TARGET
    if max_failures is not None and record.failed_in_a_row >= max_failures:
        return StopReason.ALL_FAILED
    if stagnation is not None and record.queries - record.last_improvement >= stagnation:
        return StopReason.STAGNATION
    return None
