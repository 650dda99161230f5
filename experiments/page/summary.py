"""What the papers claim, in a few points each, what came out for each point, and what we do about it.

The points are written here; what came out is counted among the results, so that other results show other numbers
beside the same points.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, get_args

from experiments.harness.experiment import PAPERS, counted
from experiments.harness.verdicts import ON_STAND_IN, Status, Verdict
from experiments.page.entries import Entry

STATUSES: tuple[Status, ...] = get_args(Status)

RULE = (
    "A claim is judged over the seeds that all methods share, in every setting by the bootstrap 95% interval of its "
    "statistic. A setting holds where the interval lies wholly on the claimed side of the threshold, fails where it "
    "lies wholly on the other, and is undecided where the threshold is in it. A claim is ``reproduced`` where every "
    "setting holds and ``partly`` where some do. Where none does, it is ``undecided`` if all settings are, or if the "
    "interval of the mean over settings has the threshold in it: these seeds say neither yes nor no. Else it is ``not "
    "reproduced``. Controls are ours, beside the paper's claims, and are not counted among them. A verdict on a "
    "stand-in is of data that took the place of the paper's, and says nothing of those. Scale ``paper`` is what the "
    "paper ran, ``reduced`` what fits a night on two cores. What was found was not tuned to the claims, and what "
    "failed is shown as it came out."
)
"""How a claim is judged; ``code`` between double backticks."""


class Point(NamedTuple):
    """One thing that a paper claims, and the ids of the figures and tables that show it."""

    claim: str
    experiments: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Summary:
    """A paper in a minute.

    Attributes:
        paper: a key of ``PAPERS``.
        points: what it claims.
        doing: what we do about what came out.
    """

    paper: str
    points: tuple[Point, ...]
    doing: str


SUMMARIES = (
    Summary(
        "zord",
        (
            Point(
                "A gradient from queries that were made on the way is nearer to the truth than finite differences "
                "with queries of their own, and its uncertainty is right.",
                ("zord-fig1", "zord-fig2a", "zord-fig2b", "zord-fig6a", "zord-fig6b", "zord-fig10", "calibration"),
            ),
            Point(
                "So descent needs fewer queries than RGF, PRGF, GLD, TuRBO and CobBO on test functions.",
                ("zord-fig3", "zord-fig5", "zord-fig7", "zord-fig8"),
            ),
            Point(
                "And on attacks, metrics that have no gradient, and controllers.",
                ("zord-fig4", "zord-fig9", "zord-table1", "zord-table2", "zord-table3"),
            ),
        ),
        "The library's default ends virtual steps by another measure of uncertainty, which can fall with fewer queries "
        "than variables, and fits the lengthscale; queries that only learn, and a trust region, are there to be asked "
        "for. The page of ours has them against the paper's rule.",
    ),
    Summary(
        "fzoos",
        (
            Point(
                "Gradients of averaged Fourier surrogates are nearer to the global gradient, with fewer queries.",
                ("fzoos-fig3", "fourier-features"),
            ),
            Point(
                "On functions that differ from client to client it needs fewer rounds and queries than FedZO, FedProx "
                "and SCAFFOLD; more features and a falling γ help.",
                ("fzoos-fig1", "fzoos-fig4", "fzoos-fig5a", "fzoos-fig5b"),
            ),
            Point("And in federated attacks on images.", ("fzoos-fig2", "fzoos-fig6", "fzoos-fig7")),
            Point(
                "And in federated search on a classifier's metric.",
                ("fzoos-fig8", "fzoos-fig9", "fzoos-fig10", "fzoos-fig11", "fzoos-fig12"),
            ),
        ),
        "The default finds γ from round to round by least squares instead of taking 1/t, and its rate settles. Where "
        "rounds are dear and queries cheap, the guide advises SCAFFOLD.",
    ),
    Summary(
        "hiso",
        (
            Point("A round is a few scalars, whatever the dimension.", ("hiso-bytes",)),
            Point("Whitening by the Hessian frees the rate of the dimension and of the condition.", ("hiso-fig4",)),
            Point(
                "A learned diagonal Hessian makes training faster than without one, and steadier in the number of "
                "local steps.",
                ("hiso-fig5", "hiso-fig8"),
            ),
            Point(
                "And language models are tuned to better scores with less communication.",
                ("hiso-table2", "hiso-table5", "hiso-fig6"),
            ),
        ),
        "What the learned diagonal gains over a single number in its place is not to be seen in these runs. "
        "The library has curvature that is measured group by group, to be asked for where parameters differ in scale; "
        "the page of ours has it. The language models themselves are run where they are given with --data.",
    ),
    Summary(
        "katyusha",
        (
            Point(
                "With a constraint it converges linearly, faster than ZO-SVRG and projected descent.",
                ("katyusha-fig1",),
            ),
            Point("Accelerated two-point descent converges without a constraint, not with one.", ("katyusha-fig2",)),
        ),
        "It is what the guide advises for convex sums with a constraint. Once every method's steps are tuned, its lead "
        "over ZO-SVRG is small.",
    ),
    Summary(
        "ours",
        (
            Point(
                "Queries that only learn, and several queries at a time.",
                ("beyond-zord", "beyond-parallel"),
            ),
            Point("γ that is found from round to round.", ("beyond-gamma",)),
            Point("Local steps that grow shorter where the model turns back.", ("beyond-plateau",)),
            Point("Curvature that is measured group by group.", ("beyond-curvature",)),
        ),
        "Here the claims are our own, judged by the same rule. What lost stays among these experiments, and can be run "
        "again.",
    ),
)


def run_at(facts: Mapping[str, Any]) -> str:
    """The scale and the number of seeds of a run."""
    return f"{facts.get('scale', 'other')}, {counted(len(facts['seeds']), 'seed')}"


def data_of(facts: Mapping[str, Any]) -> str:
    """What stood in for the paper's data; empty where nothing did."""
    return f"stand-in: {facts['stand_in']}" if facts.get("stand_in") else ""


def _said(entries: Sequence[Entry]) -> str:
    """What came out in words, such as ``2 reproduced, 1 partly on the stand-in``."""
    said = [f"{tally[s]} {s}{where}" for where, tally in tallies(entries).items() for s in STATUSES if tally[s]]
    return ", ".join(said)


def paper_title(paper: str) -> str:
    """A paper's name, year and authors; what is no paper's under its own name."""
    return PAPERS.get(paper, paper)


def of_paper(entries: Sequence[Entry], paper: str) -> list[Entry]:
    """The results of one paper, in their order."""
    return [entry for entry in entries if entry.facts["paper"] == paper]


def papers_in(entries: Sequence[Entry]) -> list[str]:
    """The papers that results are of, in their order."""
    return list(dict.fromkeys(str(entry.facts["paper"]) for entry in entries))


def tallies(entries: Sequence[Entry]) -> dict[str, Counter[str]]:
    """How many claims came out which way, with no suffix on the papers' problems and data and with one on stand-ins."""
    found = {where: Counter[str]() for where in ("", ON_STAND_IN)}
    for entry in entries:
        found[ON_STAND_IN if entry.facts.get("stand_in") else ""] += entry.tally()
    return {where: tally for where, tally in found.items() if tally.total()}


def points_of(summary: Summary, entries: Sequence[Entry]) -> list[tuple[Point, list[Entry]]]:
    """The points that these results say anything about, with those results."""
    by_id = {entry.id: entry for entry in entries}
    found = [(point, [by_id[name] for name in point.experiments if name in by_id]) for point in summary.points]
    return [(point, shown) for point, shown in found if shown]


def came_out(entries: Sequence[Entry], status: Status) -> list[tuple[Entry, Verdict]]:
    """The claims, controls apart, that came out one way."""
    return [(e, v) for e in entries for v in e.verdicts if v.status == status and not v.control]


def verdict_table(entries: Sequence[Entry]) -> str:
    """The verdicts as Markdown: the summary of each paper, and a row for each figure with scale, seeds and stand-in."""
    blocks = ["# Verdicts", RULE.replace("``", "`")]
    for summary in SUMMARIES:
        if points := points_of(summary, entries):
            blocks.append(f"## {paper_title(summary.paper)}")
            blocks.append("\n".join(f"- {point.claim} **{_said(shown)}**" for point, shown in points))
            blocks.append(f"What we do about it: {summary.doing}")
    head = ("figure or table", "shows", "run at", "data", *STATUSES)
    lines = [f"| {' | '.join(head)} |", f"|---|---|---|---|{':-:|' * len(STATUSES)}"]
    for entry in entries:
        facts, tally = entry.facts, entry.tally()
        counts = " | ".join(str(tally[status] or "") for status in STATUSES) if tally else "controls only | | | "
        name = f"[{facts['source']}]({entry.pictures[0].name})" if entry.pictures else facts["source"]
        lines.append(f"| {name} | {facts['shows']} | {run_at(facts)} | {data_of(facts)} | {counts} |")
    for where, tally in tallies(entries).items():
        counts = " | ".join(str(tally[status]) for status in STATUSES)
        lines.append(f"| all{f'{where}s' if where else ' on the problems and data of the paper'} | | | | {counts} |")
    return "\n\n".join([*blocks, "## Every figure and table", "\n".join(lines)]) + "\n"


def paper_table(entries: Sequence[Entry]) -> str:
    """How many claims of each paper came out which way, and a command that runs it again, as a Markdown table."""
    lines = [f"| | {' | '.join(STATUSES)} | on stand-ins | |", f"|---|{':-:|' * len(STATUSES)}:-:|---|"]
    for paper in papers_in(entries):
        found = tallies(of_paper(entries, paper))
        if found and paper != "ours":
            here, elsewhere = found.get("", Counter()), found.get(ON_STAND_IN, Counter())
            counts = " | ".join(str(here[status]) for status in STATUSES)
            stood_in = f"{elsewhere['reproduced']} of {elsewhere.total()} reproduced" if elsewhere else ""
            again = f"`gradient-surrogates run --paper {paper} --scale reduced`"
            lines.append(f"| {paper_title(paper)} | {counts} | {stood_in} | {again} |")
    return "\n".join(lines) + "\n"


def with_counts(text: str, entries: Sequence[Entry]) -> str:
    """A text with each paper's counts between its marks ``<!-- reproduced -->``; unchanged without them."""
    head, begin, rest = text.partition("<!-- reproduced -->\n")
    _, end, tail = rest.partition("<!-- /reproduced -->")
    return f"{head}{begin}{paper_table(entries)}{end}{tail}" if begin and end else text
