"""Writes the result files of a suite from its records, for ``report`` and ``publish``."""

from __future__ import annotations

import dataclasses
import datetime
import gzip
import inspect
import io
import json
import lzma
import tarfile
from collections.abc import Mapping, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any

from experiments.benchmarks.problems import board as boards
from experiments.benchmarks.problems import (
    constrained,
    global_search,
    local_entropy,
    mixed_integer,
    newton_step,
    rivals,
    scbo,
    stages,
    suites,
)
from experiments.benchmarks.problems.board import BETTER_COBYQA, EIGHT, OURS, PAIRS, Board, Difference
from experiments.benchmarks.problems.figure import CAPTIONS, LEFT, figure
from experiments.benchmarks.problems.rivals import CONSTRAINED, MIXED
from experiments.benchmarks.problems.runs import COCO, PACKED, Record, read_records
from experiments.benchmarks.problems.suites import BOXES, SUITES
from experiments.benchmarks.problems.tables import as_text, by_dimension, by_function, label, tables
from experiments.harness.experiment import counted
from experiments.harness.verdicts import Status, Verdict
from experiments.running import results
from surrogates import plotting

SHOWS = {
    "bbob": "COCO's 24 noiseless functions",
    "bbob-noisy": "COCO's 30 noisy functions",
    "bbob-largescale": "COCO's 24 functions in 80 to 640 variables",
    "bbob-constrained": "COCO's 54 constrained functions",
    "bbob-mixint": "COCO's 24 functions of integers and real variables",
    "real": "real black boxes",
    "tuning": "hyperparameters with integers and decades",
}
FRESH = range(16, 21)
"""COCO's instances for the claims, which are run once after the code is frozen."""

CLOSE = 0.1
"""A method is "not behind" a rival if its mean log10 gap exceeds the rival's by at most this."""

MARGIN = 0.3
"""Claimed bound on the log10 gap with eight concurrent queries minus that with one, as in ``beyond-parallel``."""

DRIVEN = {"nest_bo": newton_step, "local_entropy": local_entropy, "scbo": scbo, "log_ei": global_search}
"""Modules that implement a rival's loop here; the page shows their docstrings."""

ABOUT = {"bbob-constrained": (constrained,), "bbob-mixint": (mixed_integer,), "tuning": (mixed_integer,)}
"""Further modules whose docstrings the page of a suite shows."""

MET = ("zord", "zord_gated", "turbo", "nest_bo", "local_entropy", "l_bfgs_b")
"""Rivals that get a separate verdict: those with a Gaussian process, and SciPy's default in a box."""

FEW = ("cobyqa", "turbo")
"""Rivals for a separate verdict in few variables, where more methods ran."""

MULTIMODAL = ("multimodal", "weakly structured", "severe noise, multimodal")
"""The groups of functions with many minima."""

FIRST = "Among all rivals the trust region on the derived Gaussian process is first in mean rank"
NOT_BEHIND = "on multimodal functions not behind CMA-ES"
CLAIMS = {
    **dict.fromkeys(
        ("bbob", "bbob-noisy"), f"{FIRST} in each dimension, ahead of the better COBYQA, and {NOT_BEHIND}."
    ),
    "bbob-largescale": f"{FIRST} in each dimension, and {NOT_BEHIND}.",
    "bbob-constrained": "With the value of f and all constraints in one query, the trust region on the derived "
    "Gaussian process has a lower mean log10 gap than the better COBYQA, COBYLA and SLSQP.",
    "bbob-mixint": "With integers as four of five variables, the trust region on the derived Gaussian process is not "
    "behind pycma's integer handling and random search.",
    "real": f"{FIRST} over the black boxes.",
    "tuning": "On hyperparameters with integers and decades, the trust region on the derived Gaussian process ends "
    "lower than pycma, random search and optuna's samplers.",
}

AT_EACH_STAGE = (
    " After each number of queries in the tables, its mean log10 gap is below that of the better COBYQA and of the "
    "better NEWUOA."
)


def name_of(record: Record) -> str:
    """Returns the id of a record's results, from its suite, its budget if it is not the default, and ``FRESH``."""
    problem = record.run.problem
    factor = problem.queries // problem.dimension
    usual = problem.suite in BOXES or factor == SUITES[problem.suite].factor
    name = f"problems-{problem.suite}" if usual else f"problems-{problem.suite}-{factor}d"
    return f"{name}-fresh" if problem.instance in FRESH and problem.suite not in BOXES else name


def by_name(records: Sequence[Record]) -> dict[str, list[Record]]:
    """Groups the records by id."""
    found: dict[str, list[Record]] = {}
    for record in sorted(records, key=lambda record: (record.run.problem.suite, record.run)):
        found.setdefault(name_of(record), []).append(record)
    return found


def write(name: str, records: Sequence[Record], out: Path, command: str) -> list[str]:
    """Writes the files of one id and its tables as text; returns the text."""
    facts = {
        "experiment": name,
        "versions": results.versions("cma", "coco-experiment"),
        "command": command,
        "machine": results.machine(),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
    }
    text = render(name, records, out, facts)
    results.replace(out / f"{name}.txt", "\n".join(text).encode())
    return text


def render(
    name: str, records: Sequence[Record], out: Path, facts: Mapping[str, Any], *, dpi: int | None = None
) -> list[str]:
    """Writes the facts with tables, the verdicts, the figure and the records; returns the tables as text."""
    ordered = _in_table_order(records)
    shown, suite = tables(ordered), SUITES[ordered[0].run.problem.suite]
    staged = bool(ordered[0].run.problem.stages)
    shown += stages.tables(ordered) if staged else []
    problems, methods = {r.run.problem for r in ordered}, dict.fromkeys(r.run.method for r in ordered)
    about = {
        "format": results.FORMAT,
        "paper": "ours",
        "source": f"ours, problems: {name.removeprefix('problems-')}",
        "shows": f"{SHOWS[suite.name]}: {len(problems)} problems, {len(methods)} methods",
        "claim": CLAIMS[suite.name] + AT_EACH_STAGE * (staged and suite.name not in CONSTRAINED),
        "settings": {r.name: r.where for r in rivals.RIVALS.values() if r.name in methods},
        "seeds": sorted({problem.instance for problem in problems}),
        "scale": "as asked",
        "processor_seconds": round(sum(record.seconds for record in ordered), 2),
        "reading": "\n\n".join(
            inspect.cleandoc(module.__doc__ or "")
            for module in (
                *(suites, boards, rivals),
                *ABOUT.get(suite.name, ()),
                *[stages] * staged,
                *(DRIVEN[method] for method in methods if method in DRIVEN),
            )
        ),
        "stand_in": "",
        "caption": CAPTIONS[suite.name in LEFT],
        "table": dataclasses.asdict(shown[0]),
        "tables": [dataclasses.asdict(table) for table in shown[1:]],
    }
    out.mkdir(parents=True, exist_ok=True)
    results.write_facts(out, name, {**facts, **about}, verdicts(ordered))
    with plotting.applied():
        results.save_figure(figure(ordered), out / f"{name}.png", dpi)
    # Runs on similar problems one after the other need the least room.
    alike = sorted(
        (record.as_json() for record in records), key=itemgetter("function", "dimension", "method", "instance")
    )
    lines = "".join(json.dumps(record, separators=(",", ":")) + "\n" for record in alike)
    results.replace(out / f"{name}{PACKED}", lzma.compress(lines.encode(), preset=9 | lzma.PRESET_EXTREME))
    return [line for table in shown for line in as_text(table)]


def take_over(folder: Path, name: str, target: Path, dpi: int) -> str:
    """Copies the records of an id to another folder and writes the files that follow from them; returns a summary.

    If the folder has COCO's files of all our runs, they are packed next to the records (``archive_of``) for ``python -m
    cocopp``. Constrained problems have no archive, because COCO defines their gaps differently.

    Raises:
        ResultsError: if the records cannot be read.
    """
    records = read_records(folder, name)
    kept = ("experiment", "versions", "command", "machine", "date")
    facts = results.read_json(folder / f"{name}.settings.json")
    render(name, records, target, {key: facts[key] for key in kept}, dpi=dpi)
    ours = [folder / COCO / record.run.folder for record in records if record.run.method == OURS]
    if not ours or records[0].strict or not all(path.is_dir() for path in ours):
        return f"{len(records)} runs"
    results.replace(archive_of(target, name), _packed(ours))
    return f"{len(records)} runs, and COCO's files of {len(ours)}"


def archive_of(folder: Path, name: str) -> Path:
    """Returns the path of the archive of our runs' COCO files; ``cocopp`` shows the file's name."""
    return folder / f"{name.replace('problems', OURS)}.tgz"


def _packed(folders: Sequence[Path]) -> bytes:
    packed = io.BytesIO()
    with gzip.GzipFile(fileobj=packed, mode="wb", mtime=0) as file, tarfile.open(fileobj=file, mode="w") as archive:
        for folder in sorted(folders):
            for path in sorted(path for path in folder.rglob("*") if path.is_file()):
                about = tarfile.TarInfo(str(path.relative_to(folder.parents[1])))
                about.size = path.stat().st_size
                with path.open("rb") as source:
                    archive.addfile(about, source)
    return packed.getvalue()


def verdicts(records: Sequence[Record]) -> list[Verdict]:
    """Judges our method's rank, and its scores against COBYQA, ZoRD and, on multimodal functions, CMA-ES."""
    board = Board.of(records)
    if OURS not in board.methods or len(board.problems) < 2:
        return []
    found, suite = [], SUITES[board.problems[0].suite]
    if second := _next_to_ours(board, board.mean_ranks()):
        found.append(_below(board, second, f"is ahead of the next in mean rank ({label(second)})"))
    if suite.dimensions:
        for name, chosen in by_dimension(board):
            found += _first(board.where(chosen), f"at {name}")
    else:
        found += _first(board, "over the black boxes")
        for few in FEW:
            if _met(board, few):
                found += _first(board.shared(OURS, few), f"over the black boxes on which {label(few)} ran")
        for name, chosen in by_function(board):
            own = board.where(chosen)
            if best := _next_to_ours(own, {m: v for m, v in own.mean_scores().items() if m not in PAIRS}):
                found.append(_below(own, best, f"on {name} ends lower than the best of the others, {label(best)}"))
    if suite.name in MIXED:
        judge = _not_behind if suite.dimensions else _ends_lower
        return [*(judge(board, m) for m in board.methods if m != OURS and _met(board, m)), *found]
    if board.problems[0].stages:
        found[:0] = map(_claim, stages.claims(records))
    if suite.name in CONSTRAINED:
        return found
    met = MET if board.problems[0].stages else (BETTER_COBYQA, *MET)
    found += [_ends_lower(board, method) for method in met if _met(board, method)]
    multimodal = board.where(lambda p: suite.group(p.function) in MULTIMODAL)
    if len(multimodal.problems) > 1 and "cma" in multimodal.everywhere and _met(multimodal, "cma"):
        found.append(_below(multimodal, "cma", "ends lower than CMA-ES on the multimodal groups"))
    if _met(board, EIGHT):
        both = board.shared(EIGHT, OURS)
        claim = f"with 8 queries at a time ends at most {MARGIN} above one at a time, at equal queries"
        found.append(_verdict(both, both.difference(EIGHT, OURS), "log10 gap", claim, MARGIN))
        if "cma" in board.methods and (together := board.shared(EIGHT, "cma")).problems:
            claim = "with 8 queries at a time ends lower than CMA-ES, at equal queries"
            found.append(_verdict(together, together.difference(EIGHT, "cma"), "log10 gap", claim))
    return found


def _first(board: Board, where: str) -> list[Verdict]:
    """Judges whether our method is first in mean rank on some problems, by the rank difference to the next method."""
    second = _next_to_ours(board, board.mean_ranks())
    if second is None:
        return []
    found = board.rank_difference(OURS, second)
    return [_verdict(board, found, "rank", f"is first in mean rank {where}, ahead of {label(second)}")]


def _next_to_ours(board: Board, values: Mapping[str, float]) -> str | None:
    """Returns the method with the least value besides ours, or None."""
    others = [method for method in values if method != OURS]
    if OURS not in values or not others or len(board.problems) < 2:
        return None
    return min(others, key=lambda method: values[method])


def _met(board: Board, other: str) -> bool:
    return other in board.methods and bool(board.shared(OURS, other).problems)


def _ends_lower(board: Board, other: str) -> Verdict:
    return _below(board, other, f"ends lower than {label(other)}")


def _below(board: Board, other: str, claim: str) -> Verdict:
    shared = board.shared(OURS, other)
    what = "percentage left" if shared.problems[0].suite in BOXES else "log10 gap"
    return _verdict(shared, shared.difference(OURS, other), what, claim)


def _not_behind(board: Board, other: str) -> Verdict:
    """Judges that a rival is not ahead: the mean is at most ``CLOSE``, and the interval is not above 0."""
    shared = board.shared(OURS, other)
    found = shared.difference(OURS, other)
    status: Status = "reproduced" if found.mean <= CLOSE and not found.low > 0 else "not reproduced"
    verdict = _verdict(shared, found, "log10 gap", f"is not behind {label(other)}: at most {CLOSE} on average")
    return dataclasses.replace(verdict, status=status, held=int(status == "reproduced"), undecided=0)


def _claim(test: stages.Test) -> Verdict:
    """Judges a claim by Holm's p-value."""
    claim = f"after {test.factor} d queries has a lower mean log10 gap than {label(test.rival)}"
    found = _verdict(test.board, test.found, "log10 gap", claim)
    status: Status = (
        "reproduced" if test.p < stages.LEVEL else "not reproduced" if found.interval[0] > 0 else "undecided"
    )
    statistic = f"{found.statistic} at Bonferroni's level, one-sided p {test.p:.2g} by Holm's method"
    held = int(status == "reproduced")
    return dataclasses.replace(
        found, status=status, statistic=statistic, held=held, undecided=int(status == "undecided")
    )


def _verdict(board: Board, found: Difference, what: str, claim: str, most: float = 0.0) -> Verdict:
    mean, low, high, count, _ = found
    status: Status = "reproduced" if high < most else "not reproduced" if low > most else "undecided"
    boxes = len({problem.function for problem in board.problems if problem.suite in BOXES})
    over = f"{boxes} black boxes" if boxes > 1 else counted(count, "problem")
    return Verdict(
        claim=f"{label(OURS)} {claim}",
        status=status,
        statistic=f"paired difference of the {what}, mean over {over}, Student's interval",
        estimate=mean,
        interval=(low, high),
        seeds=tuple(sorted({problem.instance for problem in board.problems})),
        control=True,
        undecided=int(status == "undecided"),
        held=int(status == "reproduced"),
    )


def _in_table_order(records: Sequence[Record]) -> list[Record]:
    order = {method: number for number, method in enumerate(rivals.RIVALS)}
    return sorted(records, key=lambda record: (order.get(record.run.method, len(order)), record.run))
