"""Take results over into the committed ones: small files, with the pages and the table of verdicts built from them.

Verdicts, tables and pictures are made anew from the records, so that they are what this version makes of them; what
the run was (settings, seeds, versions, machine, date) stays as the run wrote it.
"""

from __future__ import annotations

import dataclasses
import io
import json
import lzma
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from PIL import Image

from experiments import registry
from experiments.harness.experiment import MORE, SCALES, Experiment
from experiments.page import guide, report
from experiments.page.entries import names_in, natural, read_all
from experiments.page.summary import verdict_table, with_counts
from experiments.running import results
from experiments.running.results import ResultsError

PUBLISHED = Path(__file__).parents[1] / "published"
DPI = 200
COLOURS = 256
README = Path(__file__).parents[2] / "README.md"
PACKED_FROM = 100_000
"""Bytes from which on records are kept compressed."""


def publish(folder: Path, names: Sequence[str] = (), target: Path = PUBLISHED) -> list[str]:
    """Take finished results over and build pages, guide, table of verdicts and costs anew; of quick ones only the cost.

    With the committed results themselves as the folder, all that follows from their records is made anew in its place.

    Args:
        folder: what ``run`` wrote to, or ``target``.
        names: ids; all that are finished there by default.
        target: the committed results, which the README has the counts of each paper from.

    Returns:
        A line for each experiment: what was taken over, or why not.

    Raises:
        UnknownNameError: for a name that is no id; nothing is written then.
        ResultsError: if the folder holds no results.
    """
    from experiments.benchmarks.problems import page as scoreboard

    for name in names:
        if name not in registry.MODULES and not name.startswith(registry.SCOREBOARDS):
            raise registry.UnknownNameError("experiment", name, registry.MODULES)
    target.mkdir(parents=True, exist_ok=True)
    chosen = names or names_in(folder)
    lines = []
    for name in chosen:
        try:
            if name.startswith(registry.SCOREBOARDS):
                lines.append(f"{name}: {scoreboard.take_over(folder, name, target, DPI)}")
            else:
                lines.append(f"{name}: {take_over(folder, registry.get(name), target)}")
        except ValueError as error:
            lines.append(f"{name}: left out, {error}")
    _write_costs(target, folder, chosen)
    page, wrong = report.write_pages(target)
    entries, _ = read_all(target)
    results.replace(target / "verdicts.md", verdict_table(entries).encode())
    results.replace(target / "which-method.md", guide.markdown(entries).encode())
    if target == PUBLISHED and README.exists():
        results.replace(README, with_counts(README.read_text(), entries).encode())
    size = sum(path.stat().st_size for path in target.iterdir())
    return [*lines, *wrong, f"{page}: {len(entries)} experiments, {size / 1e6:.1f} MB in all"]


def take_over(folder: Path, experiment: Experiment, target: Path) -> str:
    """Copy one experiment's records and make anew what follows from them; what was done, in words.

    Raises:
        ResultsError: if the results cannot be read, or were made with settings of another shape.
    """
    name = experiment.id
    facts = results.read_json(folder / f"{name}.settings.json")
    rows = results.read_rows(folder, name)
    settings, scale = settings_of(experiment, facts)
    if scale == "quick":
        return "quick, only its cost is noted"
    text = results.to_csv(rows).encode()
    plain, packed = (target / f"{name}.{suffix}" for suffix in ("csv", "csv.xz"))
    kept, dropped = (packed, plain) if len(text) >= PACKED_FROM else (plain, packed)
    seeds = len(facts["seeds"])
    command = f"python -m experiments run {name} --scale {scale} --seeds {seeds}"
    facts = {**facts, "scale": scale, "command": command}
    verdicts = results.render(experiment, settings, rows, target, facts, kinds=("png",), dpi=DPI)
    results.replace(kept, lzma.compress(text, preset=9 | lzma.PRESET_EXTREME) if kept is packed else text)
    dropped.unlink(missing_ok=True)
    figures = results.read_json(target / f"{name}.settings.json")["figures"]
    for suffix in ("", MORE):
        picture = target / f"{name}{suffix}.png"
        if suffix in figures:
            results.replace(picture, _small(picture.read_bytes()))
        else:
            picture.unlink(missing_ok=True)
    return f"{scale}, {seeds} seeds, {len(verdicts)} verdicts"


def settings_of(experiment: Experiment, facts: Mapping[str, Any]) -> tuple[Any, str]:
    """The settings that a run had, rebuilt from what it wrote, and the name of their scale.

    Raises:
        ResultsError: if this version's settings have other fields.
    """
    named = facts.get("scale")
    known = sorted(experiment.scales, key=lambda scale: (scale != named, scale == "quick"))
    for scale in known:
        if results.as_json(experiment.settings(scale)) == facts["settings"]:
            return experiment.settings(scale), scale
    template = experiment.settings(known[0])
    rebuilt = _rebuilt(template, facts["settings"])
    if results.as_json(rebuilt) != facts["settings"]:
        fields = ", ".join(sorted(set(facts["settings"]) ^ set(results.as_json(template)))) or "values"
        raise ResultsError(f"its settings are not this version's ({fields} differ); run it again")
    return rebuilt, named or "other"


def _rebuilt(template: Any, found: Any) -> Any:
    """A settings object like the template with the values of a JSON object."""
    if dataclasses.is_dataclass(template) and not isinstance(template, type) and isinstance(found, dict):
        names = {field.name for field in dataclasses.fields(template) if field.init} & set(found)
        return dataclasses.replace(template, **{name: _rebuilt(getattr(template, name), found[name]) for name in names})
    if isinstance(found, list):
        return tuple(_rebuilt(None, value) for value in found)
    return found


def _small(picture: bytes) -> bytes:
    """The PNG with a palette, which line drawings do not tell from the original."""
    text = io.BytesIO()
    image = Image.open(io.BytesIO(picture)).convert("RGB")
    small = image.quantize(COLOURS, method=Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE)
    small.save(text, "PNG", optimize=True, dpi=(DPI, DPI))
    return text.getvalue()


def _write_costs(target: Path, folder: Path, names: Sequence[str]) -> None:
    path = target / "costs.json"
    costs: dict[str, dict[str, float]] = results.read_json(path) if path.exists() else {}
    for name in names:
        try:
            facts = results.read_json(folder / f"{name}.settings.json")
            _, scale = settings_of(registry.get(name), facts)
        except (ValueError, OSError):
            continue
        if scale in SCALES and facts.get("processor_seconds"):
            each = facts["processor_seconds"] / len(facts["seeds"])
            costs.setdefault(name, {})[scale] = float(f"{each:.2g}")
    ordered = {name: dict(sorted(costs[name].items())) for name in sorted(costs, key=natural)}
    results.replace(path, (json.dumps(ordered, indent=1) + "\n").encode())
