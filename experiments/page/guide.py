"""Which method to use when, and why defaults are what they are, each beside the verdicts that it rests on.

What is advised is in ``experiments.page.advice``; what it rests on is looked up among results by the claim's words, so
that other results show other numbers beside the same advice.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from experiments.harness.experiment import counted
from experiments.harness.verdicts import CONTROL_WORDS, Verdict
from experiments.page.advice import ADVICE, DEFAULTS, INTRODUCTION, Advice, Default, Ground
from experiments.page.entries import Entry


@dataclasses.dataclass(frozen=True)
class Found:
    """A ground with what came out for it.

    Attributes:
        entry: the experiment's results.
        verdict: on the claim.
    """

    entry: Entry
    verdict: Verdict

    @property
    def word(self) -> str:
        """Whether the claim holds, and on what."""
        return self.verdict.said(CONTROL_WORDS)

    @property
    def decided(self) -> bool:
        """Whether the verdict supports anything: one that is undecided says neither yes nor no."""
        return self.verdict.status != "undecided"

    @property
    def measured(self) -> str:
        """Statistic, estimate and interval, and over how many seeds."""
        return f"{self.verdict.measured()}, {counted(len(self.verdict.seeds), 'seed')}"


def look_up(grounds: Sequence[Ground], entries: Sequence[Entry]) -> list[Found]:
    """Those grounds that the results have, in their order."""
    found = []
    for ground in grounds:
        for entry in entries:
            if entry.id == ground.experiment:
                found += [Found(entry, v) for v in entry.verdicts if v.claim.startswith(ground.claim)][:1]
    return found


Part = tuple[str, list[tuple[Advice | Default, list[Found]]]]


def parts(entries: Sequence[Entry]) -> list[Part]:
    """Advice and defaults with their grounds, as far as these results have any."""
    headed = (("Which method to use when", ADVICE), ("Defaults, and what they rest on", DEFAULTS))
    found = [(heading, [(item, look_up(item.grounds, entries)) for item in items]) for heading, items in headed]
    kept = [(heading, [(item, grounds) for item, grounds in items if grounds]) for heading, items in found]
    return [(heading, items) for heading, items in kept if items]


def page_of(entry: Entry) -> str:
    """Where a result stands among the pages of its folder."""
    return f"{entry.facts['paper']}.html#{entry.id}"


def markdown(entries: Sequence[Entry]) -> str:
    """The guide as a page of Markdown: a table of the cases, then each with what it rests on."""
    blocks = []
    for i, (heading, items) in enumerate(parts(entries)):
        blocks += [f"# {heading}", *([INTRODUCTION, short_table(entries)] if i == 0 else [])]
        for item, grounds in items:
            listed = [
                f"- [{f.entry.facts['source']}]({page_of(f.entry)}): {f.verdict.claim}: **{f.word}**; {f.measured}"
                for f in grounds
            ]
            blocks += [f"## {item.title}", item.text.replace("``", "`"), "\n".join(listed)]
    return "\n\n".join(blocks) + "\n"


def short_table(entries: Sequence[Entry]) -> str:
    """A row for each advice, with the experiments that decide something for it."""
    rows = []
    for _, items in parts(entries):
        for item, grounds in items:
            decided = {f.entry.id: page_of(f.entry) for f in grounds if f.decided}
            links = ", ".join(f"[{name}]({page})" for name, page in decided.items())
            rows += [f"| {item.case} | `{item.use}` | {links} |"] if isinstance(item, Advice) else []
    return "\n".join(["| you have | use | see |", "|---|---|---|", *rows])
