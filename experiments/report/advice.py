"""The advice of the guide, from ``guide.toml``: which method to use in which case, and the reasons for the defaults."""

from __future__ import annotations

import dataclasses
import tomllib
from collections.abc import Mapping
from importlib import resources
from typing import Any


@dataclasses.dataclass(frozen=True)
class Advice:
    """The method to use in one case, or the default of a method's option.

    Attributes:
        title: dimension, budget, noise, clients, bandwidth or constraints of the case, or the option with its default.
        use: the recommended call; empty for an option.
        why: one or two sentences.
        grounds: the verdicts that support it: the experiment's id and the beginning of the claim of each.
    """

    title: str
    use: str
    why: str
    grounds: tuple[tuple[str, str], ...]


def read_toml(name: str) -> dict[str, Any]:
    """Reads a TOML file of this package."""
    return tomllib.loads((resources.files(__package__) / name).read_text(encoding="utf-8"))


def joined(text: str) -> str:
    """Joins the lines of a text."""
    return " ".join(text.split())


def _advice(entry: Mapping[str, Any]) -> Advice:
    title = entry.get("title") or f"{entry['method']}({entry['option']}={entry.get('value')!r})"
    grounds = tuple((experiment, claim) for experiment, claims in entry["grounds"].items() for claim in claims)
    return Advice(title, entry.get("use", ""), joined(entry["why"]), grounds)


GUIDE = read_toml("guide.toml")
INTRODUCTION = joined(GUIDE["introduction"])
ADVICE = tuple(map(_advice, GUIDE["case"]))
DEFAULTS = tuple(map(_advice, GUIDE["default"]))
