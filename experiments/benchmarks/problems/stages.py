"""Differences between methods after several numbers of queries, with p-values adjusted for the number of tests.

Each test is one-sided: its null hypothesis is that our method's mean log10 gap is not below the rival's. Holm's method
adjusts the p-values of all cells of a table together, so that the probability of any false "below" in the table is at
most 5%. The intervals in tables have level 95%. The claims are tests after each number of queries against the better
COBYQA and the better NEWUOA or, on constrained problems, after 10 d queries and after all queries against the better
COBYQA, COBYLA and SLSQP; their intervals have joint level 95%.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

from experiments.benchmarks.problems.board import BETTER_COBYQA, BETTER_NEWUOA, OURS, Board, Difference, holm
from experiments.benchmarks.problems.runs import Record
from experiments.benchmarks.problems.suites import SUITES
from experiments.benchmarks.problems.tables import Part, by_dimension, by_group, label
from experiments.harness.verdicts import Table

CLAIMED = {"bbob-constrained": (BETTER_COBYQA, "cobyla", "slsqp")}
"""The rivals of the claims; ``UNCONSTRAINED`` for other suites."""

UNCONSTRAINED = (BETTER_COBYQA, BETTER_NEWUOA)

LEVEL = 0.05


class Test(NamedTuple):
    """A one-sided test of our method against a rival.

    Attributes:
        board: the problems on which both ran.
        rival: the rival.
        factor: number of queries over d.
        found: the paired difference of the log10 gaps.
        p: the p-value, adjusted by Holm's method.
    """

    board: Board
    rival: str
    factor: int
    found: Difference
    p: float


def after(records: Sequence[Record], factor: int, strict: bool = False) -> list[Record]:
    """Returns copies of the records whose final gaps are the gaps after ``factor`` d queries.

    Args:
        records: the records.
        factor: number of queries over d.
        strict: whether to use the gaps with the strict tolerance of constraints.
    """

    def then(record: Record) -> Record:
        count = factor * record.run.problem.dimension
        if count >= record.run.problem.queries and not strict:
            return record
        before = [gap for n, gap in (record.strict if strict else record.least) if n <= count]
        return dataclasses.replace(record, final=before[-1] if before else math.inf)

    return [then(record) for record in records]


def factors(records: Sequence[Record]) -> tuple[int, ...]:
    """Returns the numbers of queries over d after which methods are compared."""
    problem = records[0].run.problem
    return (*problem.stages, problem.queries // problem.dimension)


def claims(records: Sequence[Record]) -> list[Test]:
    """Returns the tests of the claims whose methods ran, with intervals at Bonferroni's level."""
    found, suite = [], records[0].run.problem.suite
    for factor in factors(records)[-2 if suite in CLAIMED else 0 :]:
        board = Board.of(after(records, factor))
        for rival in CLAIMED.get(suite, UNCONSTRAINED):
            if {OURS, rival} <= {*board.methods} and (shared := board.shared(OURS, rival)).problems:
                found.append((shared, rival, factor))
    level = 1 - LEVEL / max(len(found), 1)
    tested = [board.difference(OURS, rival, level) for board, rival, _ in found]
    adjusted = holm([difference.p for difference in tested])
    return [Test(*one, d, float(p)) for one, d, p in zip(found, tested, adjusted, strict=True)]


def tables(records: Sequence[Record]) -> list[Table]:
    """Returns the tables of gaps, ranks and tested differences, and a list of the differences that do not hold."""
    stages, suite = factors(records), SUITES[records[0].run.problem.suite]
    boards = {f"{k} d": Board.of(after(records, k)) for k in stages}
    strict = {f"{k} d, 1e-9": Board.of(after(records, k, strict=True)) for k in stages if records[0].strict}
    found, failing = [_means(boards | strict, "gap"), _means(boards | strict, "rank")], list[tuple[str, ...]]()
    whole: Part = "all", lambda problem: True
    for name, board in (boards | strict).items():
        parts = {"dimension": [*by_dimension(board), whole]}
        parts |= {} if name in strict else {"group": by_group(board, suite)}
        for by, columns in parts.items():
            table, rows = _differences(board, columns, name, by)
            found.append(table)
            failing += rows
    caption = f"The cells of the tables of differences by dimension and by group whose p-value is at least {LEVEL}."
    return [*found, Table(("queries", "rival", "cells"), tuple(failing), caption)]


def _means(boards: dict[str, Board], what: str) -> Table:
    means = [board.mean_scores() if what == "gap" else board.mean_ranks() for board in boards.values()]
    rows = [(label(m), *(f"{mean[m]:.2f}" for mean in means)) for m in means[0] if all(m in mean for mean in means)]
    measure = "log10 gap" if what == "gap" else f"rank of {len(rows)} methods"
    caption = f"Mean {measure} over all problems after several numbers of queries, for methods that ran on all of them."
    return Table((f"mean {what}", *boards), tuple(rows), caption)


def _differences(
    board: Board, parts: Sequence[Part], queries: str, by: str
) -> tuple[Table, list[tuple[str, str, str]]]:
    """Returns a table of the differences to each rival, and the cells of each rival that do not hold."""
    rivals = [method for method in board.methods if method != OURS] if OURS in board.methods else []
    cells = {
        (rival, name): board.where(chosen).difference(OURS, rival)
        for rival, (name, chosen) in itertools.product(rivals, parts)
    }
    tested = [key for key, found in cells.items() if found.units > 1]
    p = dict(zip(tested, holm([cells[key].p for key in tested]).tolist(), strict=True))
    said = {key: f"{cells[key]}, p {p[key]:.2g}" for key in tested}
    rows = [(f"to {label(rival)}", *(said.get((rival, name), "") for name, _ in parts)) for rival in rivals]
    caption = (
        f"{label(OURS)} minus each rival after {queries} queries by {by}: mean log10 gap, with Student's 95% interval "
        "over the problems on which both ran, and the p-value of the test that it is below, by Holm's method over all "
        "cells of this table."
    )
    failing = {
        rival: [name for other, name in tested if other == rival and p[rival, name] >= LEVEL] for rival in rivals
    }
    short = [(queries, label(rival), ", ".join(names)) for rival, names in failing.items() if names]
    return Table(("difference", *(name for name, _ in parts)), tuple(rows), caption), short
