"""The rules that stop a run, and the entries of its result that describe the end."""

from __future__ import annotations

import math
from enum import StrEnum
from typing import Any, Literal, TypeAlias

from optimizers.core.record import Record

MostFailures: TypeAlias = int | Literal["auto"] | None
"""The limit of failed queries in a row; None: no limit; ``"auto"``: ``FIRST_FAILURES`` until a query succeeds."""

FIRST_FAILURES = 1500
"""The limit of ``"auto"``: if 0.2% of the box is feasible, 1500 uniform points hit that part with probability 95%."""

FEW = 0.1
"""The share of distinct values below which ``stood_still`` reports a run without improvement."""


class StopReason(StrEnum):
    """Why a run stopped; each reason equals its string."""

    BUDGET = "budget"
    TARGET = "target reached"
    STAGNATION = "stagnation"
    TIME = "time"
    CALLBACK = "callback"
    FUNCTION = "function"
    ALL_FAILED = "all queries failed"
    EXHAUSTED = "all points evaluated"
    INTERRUPTED = "interrupted"


ENDINGS: dict[StopReason | None, tuple[int, str]] = {
    None: (-1, "Running, {count}."),
    StopReason.TARGET: (0, "Target reached {count}."),
    StopReason.BUDGET: (1, "Budget of {budget} queries spent{how}, {count}."),
    StopReason.STAGNATION: (2, "No further improvement {count}."),
    StopReason.TIME: (4, "The time of max_seconds is spent, {count}."),
    StopReason.ALL_FAILED: (3, "The last {row} queries all failed, {count}.{limit}"),
    StopReason.EXHAUSTED: (5, "All points were evaluated, {count}."),
    StopReason.CALLBACK: (99, "Stopped by the callback {count}."),
    StopReason.FUNCTION: (99, "Stopped by the function, which raised StopIteration, {count}."),
    StopReason.INTERRUPTED: (98, "Interrupted {count}."),
}
"""Status and message for each stop reason; None: the run is not over."""


def reason_to_stop(
    record: Record, target: float | None, stagnation: int | None, max_failures: MostFailures
) -> StopReason | None:
    """The reason to stop before the budget is spent, or None."""
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
    """The entries status, success, message and stop_reason of a run's result.

    A run succeeds if it reaches its target. It also succeeds if it stagnates, has evaluated all integer points or,
    without a target, spends its budget or time, provided that at least two queries succeeded and ``stood_still`` is
    empty. ``follows_estimates`` says that every nonzero gradient estimate should move the iterate.
    """
    planned = {StopReason.TARGET, StopReason.STAGNATION, StopReason.EXHAUSTED}
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
        limit=f" This is the limit max_failures={max_failures!r}; None removes it." if limited else "",
    )
    still = stood_still(record, follows_estimates) if reason in planned - {StopReason.TARGET} else ""
    if reason is StopReason.BUDGET and queries and not record.searched:
        message += " The initial design used them all, before any step: pass a larger max_queries."
    return {
        "status": status,
        "success": reason in planned
        and (reason is StopReason.TARGET or (failures < queries - (queries > 1) and not still)),
        "message": message + still,
        "stop_reason": None if reason is None else str(reason),
    }


def stood_still(record: Record, follows_estimates: bool) -> str:
    """Returns a sentence for the message if the run made no progress, otherwise an empty string.

    A run made no progress if all values are equal; if fewer than the share ``FEW`` of them are distinct and none
    improved on the initial design; or if the iterate of a method that follows estimates never moved. Runs of a design
    alone are not judged.
    """
    values = [value for value in record.values if not math.isnan(value)]
    distinct = len(set(values))
    if not record.searched:
        return ""
    if len(values) > 1 and distinct == 1:
        return f" All values are {values[0]:g}: they do not show where the function decreases."
    remedy = "Subtract a constant from the function, or use larger steps or a wider dtype."
    if not record.fell and distinct < FEW * len(values):
        return f" {distinct} of {len(values)} values are distinct and none improved: rounding hides them. {remedy}"
    if follows_estimates and not record.moved:
        return f" The iterate never moved: estimates or steps are lost in rounding. {remedy}"
    return ""
