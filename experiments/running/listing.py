"""What can be run: each experiment with what it shows, costs and needs."""

from __future__ import annotations

import textwrap
from pathlib import Path

from experiments import registry
from experiments.harness.experiment import PAPERS, SCALES, Experiment, cost_of


def listing(paper: str | None = None, data: Path | None = None) -> str:
    """The experiments under their papers, as text; what they show is the paper scale's.

    Args:
        paper: only this one's.
        data: the folder in which data sets are looked for.
    """
    found: dict[str, list[str]] = {name: [] for name in PAPERS}
    broken: list[str] = []
    width = max(map(len, registry.MODULES))
    for name in registry.MODULES:
        try:
            experiment = registry.get(name)
        except registry.MissingExtraError as error:
            broken.append(str(error))
            continue
        found[experiment.paper].append(_entry(experiment, width, data))
    blocks = [
        "\n".join([PAPERS[name], *entries]) for name, entries in found.items() if entries and paper in (None, name)
    ]
    if broken:
        blocks.append("\n".join(["Not to be run here", *(f"  {line}" for line in broken)]))
    blocks.append(f"benchmarks: {', '.join(registry.BENCHMARKS)}")
    return "\n\n".join(blocks)


def _entry(experiment: Experiment, width: int, data: Path | None) -> str:
    indent = " " * (width + 4)
    lines = [f"  {experiment.id:<{width}}  {experiment.source}: {experiment.shown(experiment.settings())}"]
    known = [(scale, cost_of(experiment, scale)) for scale in SCALES]
    lines.append(f"{indent}cost: " + ", ".join(f"{scale} {cost or 'not measured'}" for scale, cost in known))
    if experiment.data:
        lines.append(indent + "data: " + ", ".join(_whereabouts(name, data) for name in experiment.data))
        if experiment.stand_in:
            lines.append(f"{indent}stand-in without them: {experiment.stands_in(experiment.settings())}")
    if experiment.extra:
        lines.append(f"{indent}needs: {_extra(experiment.extra)}")
    return "\n".join(
        textwrap.fill(line, 118, initial_indent="", subsequent_indent=indent, drop_whitespace=True) for line in lines
    )


def _whereabouts(name: str, data: Path | None) -> str:
    if data is None:
        return f"{name} (--data DIR, in DIR/{name})"
    return f"{name} ({'here' if (data / name).exists() else f'not in {data}'})"


def _extra(extra: str) -> str:
    try:
        registry.require(extra, extra)
    except registry.MissingExtraError as error:
        return str(error)
    return f"extra '{extra}', installed"
