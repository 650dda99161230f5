"""When a run stops, and what its result says of it."""

from __future__ import annotations

import math
from enum import StrEnum
from typing import Any, Literal, TypeAlias

from optimizers.core.record import Record

MostFailures: TypeAlias = int | Literal["auto"] | None
"""The most failed queries in a row; None: no limit; ``"auto"``: ``FIRST_FAILURES`` before the first finite value."""

FIRST_FAILURES = 1500
"""The most failed queries before the first finite value: a point of which 0.2% are feasible is found with 95%."""

FEW = 0.1
"""The least share of distinct values in a run whose best value does not fall."""


class StopReason(StrEnum):
    """Why a run stopped; each reason equals its string."""

    BUDGET = "budget"
    TARGET = "target reached"
    STAGNATION = "stagnation"
    TIME = "time"
    CALLBACK = "callback"
    FUNCTION = "function"
    ALL_FAILED = "all queries failed"
    INTERRUPTED = "interrupted"


ENDINGS: dict[StopReason | None, tuple[int, str]] = {
    None: (-1, "Running, {count}."),
    StopReason.TARGET: (0, "Target reached {count}."),
    StopReason.BUDGET: (1, "Budget of {budget} queries spent{how}, {count}."),
    StopReason.STAGNATION: (2, "No further improvement {count}."),
    StopReason.TIME: (4, "The time of max_seconds is spent, {count}."),
    StopReason.ALL_FAILED: (3, "The last {row} queries all failed, {count}.{limit}"),
    StopReason.CALLBACK: (99, "Stopped by the callback {count}."),
    StopReason.FUNCTION: (99, "Stopped by the function, which raised StopIteration, {count}."),
    StopReason.INTERRUPTED: (98, "Interrupted {count}."),
}
"""The status and the message of a run that stopped for a reason, or, under None, that has not stopped."""


def reason_to_stop(
    record: Record, target: float | None, stagnation: int | None, max_failures: MostFailures
) -> StopReason | None:
    """The reason for which a run with this record stops before its budget is spent, or None."""
    if target is not None and record.best_y <= target:
        return StopReason.TARGET
    if record.failed_in_a_row >= _most_failures(record, max_failures):
        return StopReason.ALL_FAILED
    if stagnation is not None and record.queries - record.last_improvement >= stagnation:
        return StopReason.STAGNATION
    return None


def _most_failures(record: Record, max_failures: MostFailures) -> float:
    if max_failures == "auto":
        max_failures = FIRST_FAILURES if record.failures == record.queries else None
    return math.inf if max_failures is None else max_failures


def describe(
    reason: StopReason | None,
    record: Record,
    *,
    target: float | None,
    max_queries: int,
    max_failures: MostFailures,
    follows_estimates: bool,
) -> dict[str, Any]:
    """The entries status, success, message and stop_reason of a run's ``OptimizeResult``.

    A run succeeds if it reaches its target; or if it stagnates, or has no target and spends its budget or time, more
    than one query did not fail (one is x0's as a rule), and it has not stood still (see ``stood_still``).

    Args:
        reason: why the run stopped.
        record: its record.
        target: the value that ends it.
        max_queries: its budget.
        max_failures: the failed queries that end it.
        follows_estimates: whether each estimate of a gradient that is not 0 is to move the iterate.
    """
    planned = {StopReason.TARGET, StopReason.STAGNATION}
    planned |= {StopReason.BUDGET, StopReason.TIME} if target is None else set()
    status, message = ENDINGS[reason]
    queries, failures = record.queries, record.failures
    failed = f", {failures} of them failed" if failures else ""
    how = " as far as whole batches fit" if queries < max_queries else " before" if queries > max_queries else ""
    limited = record.failed_in_a_row >= _most_failures(record, max_failures)
    message = message.format(
        count=f"after {queries} queries{failed}",
        budget=max_queries,
        how=how,
        row=record.failed_in_a_row or queries,
        limit=f" max_failures={max_failures!r} ends a run then; a larger number or None goes on." if limited else "",
    )
    still = stood_still(record, follows_estimates) if reason in planned - {StopReason.TARGET} else ""
    if reason is StopReason.BUDGET and queries and not record.searched:
        message += " They paid the initial design alone, and no step: give a larger max_queries."
    return {
        "status": status,
        "success": reason in planned
        and (reason is StopReason.TARGET or (failures < queries - (queries > 1) and not still)),
        "message": message + still,
        "stop_reason": None if reason is None else str(reason),
    }


def stood_still(record: Record, follows_estimates: bool) -> str:
    """What shows that a run did nothing, as a sentence of its message; empty where nothing does.

    A run did nothing where all its values are the same; where fewer than ``FEW`` of its values are distinct and none
    was below those of its start and initial design; or where its iterate never moved although it follows estimates,
    each of which then was 0 or was lost in rounding. Values that are not kept are not compared, and a run that was all
    design is let be.
    """
    values = [value for value in record.values if not math.isnan(value)]
    distinct = len(set(values))
    if not record.searched:
        return ""
    if len(values) > 1 and distinct == 1:
        return f" All values are {values[0]:g}: they do not say where the function falls."
    remedy = "Subtract a constant from the function, or take larger steps or a wider dtype."
    if not record.fell and distinct < FEW * len(values):
        return f" {distinct} of {len(values)} values are distinct, and none fell: differences are lost. {remedy}"
    if follows_estimates and not record.moved:
        return f" The iterate never moved: estimates, or steps, are lost in rounding. {remedy}"
    return ""
