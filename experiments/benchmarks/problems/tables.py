"""The tables of a suite: ranks, gaps, differences, groups, processor time and the list of runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from experiments.benchmarks.problems.board import OURS, PAIRS, Board
from experiments.benchmarks.problems.rivals import RIVALS
from experiments.benchmarks.problems.runs import Record
from experiments.benchmarks.problems.suites import BOXES, SUITES, Problem, Suite, listed
from experiments.harness.experiment import counted
from experiments.harness.verdicts import Table

Chosen = Callable[[Problem], bool]
Part = tuple[str, Chosen]
"""The heading of a column, and a function that selects the problems of that column."""


def label(method: str) -> str:
    """Returns the name of a method in tables."""
    return RIVALS[method].look.label if method in RIVALS else method


def tables(records: Sequence[Record]) -> list[Table]:
    """Returns all tables of one suite's records."""
    board = Board.of(records)
    suite = SUITES[board.problems[0].suite]
    whole: Part = "all", lambda problem: True
    if suite.name in BOXES:
        parts = [*by_function(board), whole]
        found = [ranks(board, parts, "problem"), scores(board, parts), differences(board, parts, "problem")]
        found += [values(records)]
    else:
        parts = [*by_dimension(board), whole]
        groups = by_group(board, suite)
        found = [ranks(board, parts), scores(board, parts), ranks(board, [*groups, whole], "group")]
        if not board.problems[0].stages:
            found[2:2] = [differences(board, parts)]
            found += [differences(board, [*groups, whole], "group")]
    found += [table for table in [on_fewer(board)] if table]
    return [*found, times(records), what_was_run(records)]


def ranks(board: Board, columns: Sequence[Part], by: str = "dimension") -> Table:
    """Returns the table of mean ranks, with the best method over all problems first."""
    main = [board.where(chosen) for _, chosen in columns]
    found = [part.mean_ranks() for part in main]
    methods = " / ".join(str(len(part.ranked)) for part in main)
    problems = " / ".join(str(len(part.problems)) for part in main)
    caption = (
        f"Mean rank by {by}; each column ranks the methods that ran on all of its problems "
        f"({methods} methods, {problems} problems). {_better(board)}{_asked(board)}"
    )
    return Table(("mean rank", *(name for name, _ in columns)), _in_order(found), caption)


def scores(board: Board, columns: Sequence[Part]) -> Table:
    """Returns the table of mean log10 gaps or, for black boxes, of mean percentages of the gain left."""
    found = [board.where(chosen).mean_scores() for _, chosen in columns]
    headings = (_measure(board), *(name for name, _ in columns))
    return Table(headings, _in_order(found), f"{_meaning(board)} {_asked(board)}")


def values(records: Sequence[Record]) -> Table:
    """Returns each method's least value on each black box: the mean over instances, with its standard error."""
    names = list(dict.fromkeys(record.run.problem.function for record in records))
    rows = []
    for method, own in _by_method(records).items():
        found = [[record.final for record in own if record.run.problem.function == name] for name in names]
        rows.append((label(method), *(_mean(finals) if finals else "" for finals in found)))
    caption = "Mean least value over a problem's instances, with its standard error."
    return Table(("least value", *map(str, names)), tuple(rows), caption)


def _mean(finals: Sequence[float]) -> str:
    if len(finals) < 2 or not np.isfinite(finals).all():
        return f"{np.mean(finals):.4g}"
    return f"{np.mean(finals):.4g} ± {np.std(finals, ddof=1) / np.sqrt(len(finals)):.2g}"


def differences(board: Board, columns: Sequence[Part], by: str = "dimension") -> Table:
    """Returns the table of paired differences between our method and each rival on the problems on which both ran."""
    others = [method for method in board.methods if method != OURS] if OURS in board.methods else []
    rows = []
    for other in others:
        found = [board.where(chosen).difference(OURS, other) for _, chosen in columns]
        rows.append((f"to {label(other)}", *(str(one) if one.units else "" for one in found)))
    caption = (
        f"{label(OURS)} minus each rival by {by}: {_measure(board)}, mean of the paired differences with Student's 95% "
        "interval over the problems on which both ran; a negative value means that the first is ahead."
    )
    return Table(("difference", *(name for name, _ in columns)), tuple(rows), caption)


def on_fewer(board: Board) -> Table | None:
    """Ranks all methods on the problems of each method that ran on only some; None if every method ran on all."""
    parts = [board.where(_with("dimension", d)) for d in _dimensions(board)]
    methods = [method for method in board.methods if method not in PAIRS]
    slow = [m for m in methods if any(0 < (~np.isnan(p.score(m))).sum() < len(p.problems) for p in parts)]
    if not slow:
        return None
    rows: dict[tuple[str, str], list[str]] = {}  # methods that ran on the same problems have one row
    for method in slow:
        mine = board.shared(method)
        known, means = mine.mean_ranks(), mine.mean_scores()
        order = sorted(known, key=lambda name: known[name])
        said = ", ".join(f"{label(name)} {known[name]:.2f} / {means[name]:.2f}" for name in order)
        functions = counted(len({problem.function for problem in mine.problems}), "function")
        where = f"{listed(_dimensions(mine))}; {functions}, {counted(len(mine.problems), 'problem')}"
        rows.setdefault((where, said), []).append(label(method))
    columns = ("methods", "run at d =", f"mean rank / {_measure(board)} of all methods on these problems")
    found = tuple(("; ".join(names), *row) for row, names in rows.items())
    return Table(columns, found, "Methods that ran on only some problems of a dimension.")


def times(records: Sequence[Record]) -> Table:
    """Returns the table of processor milliseconds per query, without the objective."""
    dims, rows = sorted({record.run.problem.dimension for record in records}), []
    for method, own in _by_method(records).items():
        found = [[record.milliseconds for record in own if record.run.problem.dimension == d] for d in dims]
        rows.append((label(method), *(f"{np.mean(values):.2g}" if values else "" for values in found)))
    caption = "Processor milliseconds of a method per query, without the objective, mean over runs, on one thread."
    return Table(("ms per query", *(f"d = {d}" for d in dims)), tuple(rows), caption)


def what_was_run(records: Sequence[Record]) -> Table:
    """Lists functions, dimensions, instances, budgets, runs, failures and processor time of each method."""
    rows = []
    for method, own in _by_method(records).items():
        problems = [record.run.problem for record in own]
        functions = {p.function for p in problems}
        budgets = {p.queries // p.dimension for p in problems} if problems[0].suite not in BOXES else {}
        failed = [record for record in own if record.failure]
        why = f" ({failed[0].failure})" if failed else ""
        rows.append(
            (
                label(method),
                str(len(functions)),
                listed(sorted({p.dimension for p in problems})),
                listed(sorted({p.instance for p in problems})),
                listed(f"{factor} d" for factor in sorted(budgets)) or "the problem's own",
                f"{len(own):,}",
                f"{len(failed)}{why}",
                f"{sum(record.seconds for record in own) / 3600:.2g}",
                RIVALS[method].why if method in RIVALS else "",
            )
        )
    columns = ("method", "functions", "d", "instances", "queries", "runs", "failed", "processor hours", "why")
    return Table(
        columns, tuple(rows), "The runs of each method. A failed run counts with its values until the failure."
    )


def _by_method(records: Sequence[Record]) -> dict[str, list[Record]]:
    names = dict.fromkeys(record.run.method for record in records)
    return {name: [record for record in records if record.run.method == name] for name in names}


def as_text(table: Table) -> list[str]:
    """Formats a table for a terminal."""
    cells = [table.columns, *table.rows]
    widths = [max(len(row[column]) for row in cells) for column in range(len(table.columns))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells]
    return [table.caption, *(f"  {line}" for line in lines), ""]


def _dimensions(board: Board) -> list[int]:
    return sorted({problem.dimension for problem in board.problems})


def by_dimension(board: Board) -> list[Part]:
    """Returns the dimensions, each as a title and a selection of the board's problems."""
    return [(f"d = {d}", _with("dimension", d)) for d in _dimensions(board)]


def by_function(board: Board) -> list[Part]:
    """Returns the functions or black boxes, each as a title and a selection of the board's problems."""
    names = list(dict.fromkeys(problem.function for problem in board.problems))
    return [(str(name), _with("function", name)) for name in names]


def by_group(board: Board, suite: Suite) -> list[Part]:
    """Returns the groups of functions, each as a title and a selection of the board's problems."""
    known = {suite.group(problem.function) for problem in board.problems}
    return [(name, _in_group(suite, name)) for name in suite.groups if name in known]


def _in_order(found: Sequence[dict[str, float]]) -> tuple[tuple[str, ...], ...]:
    """Returns a row for each method, ordered by the number of columns that it is in, then by its last value."""
    names = dict.fromkeys(name for known in found for name in known)

    def key(name: str) -> tuple[int, float]:
        values = [known[name] for known in found if name in known]
        return -len(values), values[-1]

    ordered = sorted(names, key=key)
    return tuple((label(m), *(f"{known[m]:.2f}" if m in known else "" for known in found)) for m in ordered)


def _measure(board: Board) -> str:
    return "% left" if board.problems[0].suite in BOXES else "mean log10 gap"


def _meaning(board: Board) -> str:
    if board.problems[0].suite in BOXES:
        return (
            "Mean percentage of the possible gain that was left: 0 for the least value that any method found on the "
            "problem and instance, 100 for no gain over the start."
        )
    noisy = " of the smallest noise-free value among the queries" if board.problems[0].suite == "bbob-noisy" else ""
    return f"Mean log10 gap{noisy}, bounded below by 1e-8, of the methods that ran on all problems of a column."


def _better(board: Board) -> str:
    said = ""
    for pair, better in board.better.items():
        where = {m: [d for d in sorted(better) if better[d] == m] for m in better.values()}
        listing = "; ".join(f"{label(method)} at d = {listed(dims)}" for method, dims in where.items())
        said += f"{pair[0].upper()}{pair[1:]}, by mean score: {listing}. "
    return said


def _asked(board: Board) -> str:
    problems = board.problems
    functions, instances = {p.function for p in problems}, sorted({p.instance for p in problems})
    budgets = sorted({p.queries // p.dimension for p in problems})
    own = "each problem's own budget; each black box counts once, by its mean over instances"
    spent = own if problems[0].suite in BOXES else f"{listed(budgets)} d queries"
    return f"{counted(len(functions), 'function')}, instances {listed(instances)}, {spent}."


def _with(field: str, value: object) -> Chosen:
    return lambda problem: getattr(problem, field) == value


def _in_group(suite: Suite, group: str) -> Chosen:
    return lambda problem: suite.group(problem.function) == group
