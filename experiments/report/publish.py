"""Copies results into a folder under version control, and builds the pages.

Verdicts, tables and figures are computed again from the records. Settings, seeds, versions, machine and date are kept.
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
from experiments.harness.experiment import MORE, SCALES, Experiment, natural
from experiments.report.entries import names_in, read_all
from experiments.report.pages import with_counts, write_pages
from experiments.running import results
from experiments.running.results import ResultsError

DPI = 200
COLOURS = 256
PACKED_FROM = 100_000
"""Size in bytes from which records are compressed."""


def publish(folder: Path, target: Path, names: Sequence[str] = (), readme: Path | None = None) -> list[str]:
    """Copies finished results and builds pages and costs; results at the quick scale only add their cost.

    If both folders are the same, the files that follow from the records are rebuilt.

    Args:
        folder: the folder that ``run`` wrote to.
        target: the folder of published results, created if it does not exist.
        names: ids; by default all finished results.
        readme: a file whose counts are updated.

    Returns:
        One line per experiment: what was copied, or why it was not.

    Raises:
        UnknownNameError: for an unknown id; nothing is written then.
        ResultsError: if the folder has no results.
    """
    from experiments.benchmarks.problems import page as scoreboard

    for name in names:
        if name not in registry.MODULES and not name.startswith(registry.SCOREBOARDS):
            raise registry.UnknownNameError("experiment", name, registry.MODULES)
    chosen = names or names_in(folder)
    target.mkdir(parents=True, exist_ok=True)
    lines = []
    for name in chosen:
        try:
            if name.startswith(registry.SCOREBOARDS):
                lines.append(f"{name}: {scoreboard.take_over(folder, name, target, DPI)}")
                if (picture := target / f"{name}.png").exists():
                    results.replace(picture, _small(picture.read_bytes()))
            else:
                lines.append(f"{name}: {take_over(folder, registry.get(name), target)}")
        except ValueError as error:
            lines.append(f"{name}: left out, {error}")
    _write_costs(target, folder, chosen)
    page, wrong = write_pages(target)
    entries, _ = read_all(target)
    if readme is not None:
        results.replace(readme, with_counts(readme.read_text(encoding="utf-8"), entries).encode())
    size = sum(path.stat().st_size for path in target.iterdir())
    return [*lines, *wrong, f"{page}: {len(entries)} experiments, {size / 1e6:.1f} MB in all"]


def take_over(folder: Path, experiment: Experiment, target: Path) -> str:
    """Copies the records of one experiment and writes the files that follow from them; returns a one-line summary.

    Raises:
        ResultsError: if the results cannot be read, or their settings have other fields.
    """
    name = experiment.id
    facts = results.read_json(folder / f"{name}.settings.json")
    rows = results.read_rows(folder, name)
    settings, scale = settings_of(experiment, facts)
    if scale == "quick":
        return "quick scale, only its cost was recorded"
    text = results.to_csv(rows).encode()
    plain, packed = (target / f"{name}.{suffix}" for suffix in ("csv", "csv.xz"))
    kept, dropped = (packed, plain) if len(text) >= PACKED_FROM else (plain, packed)
    seeds = len(facts["seeds"])
    data = " --data DIR" if facts["settings"].get("data") else ""
    command = f"python -m experiments run {name} --scale {scale} --seeds {seeds}{data}"
    present = results.as_json(experiment.settings(scale)) if scale in SCALES else {}
    if any(facts["settings"][key] != value for key, value in present.items() if key != "data"):
        command += "  # the settings of this scale have changed since this run"
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
    """Rebuilds the settings of a run from its files; also returns the name of their scale.

    Raises:
        ResultsError: if the settings of this version have other fields.
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
        raise ResultsError(f"its settings differ from this version's in {fields}; run the experiment again")
    return rebuilt, named or "other"


def _rebuilt(template: Any, found: Any) -> Any:
    if dataclasses.is_dataclass(template) and not isinstance(template, type) and isinstance(found, dict):
        names = {field.name for field in dataclasses.fields(template) if field.init} & set(found)
        return dataclasses.replace(template, **{name: _rebuilt(getattr(template, name), found[name]) for name in names})
    if isinstance(found, list):
        return tuple(_rebuilt(None, value) for value in found)
    return found


def _small(picture: bytes) -> bytes:
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
