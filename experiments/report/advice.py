"""The advice of the guide, from ``guide.toml``: which method to use in which case, and the reasons for the defaults."""

from __future__ import annotations

import dataclasses
import tomllib
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Any, NamedTuple


class Ground(NamedTuple):
    """A verdict that supports an advice, given by the experiment's id and the beginning of the claim."""

    experiment: str
    claim: str


@dataclasses.dataclass(frozen=True)
class Advice:
    """The method to use in one case.

    Attributes:
        title: dimension, budget, noise, clients, bandwidth or constraints of the case.
        use: the recommended call.
        why: one or two sentences.
        grounds: the verdicts that support it.
    """

    title: str
    use: str
    why: str
    grounds: tuple[Ground, ...]


@dataclasses.dataclass(frozen=True)
class Default:
    """The default of a method's option.

    Attributes:
        method: name of a class.
        option: name of an argument.
        why: one or two sentences.
        grounds: the verdicts that support it.
        value: the default value.
    """

    method: str
    option: str
    why: str
    grounds: tuple[Ground, ...]
    value: str | None = None

    @property
    def title(self) -> str:
        """The option as an argument of the class."""
        return f"{self.method}({self.option}={self.value!r})"


def read_toml(name: str) -> dict[str, Any]:
    """Reads a TOML file of this package."""
    return tomllib.loads((resources.files(__package__) / name).read_text(encoding="utf-8"))


def joined(text: str) -> str:
    """Joins the lines of a text."""
    return " ".join(text.split())


def _fields(entry: Mapping[str, Any]) -> dict[str, Any]:
    grounds: Mapping[str, Sequence[str]] = entry["grounds"]
    found = tuple(Ground(experiment, claim) for experiment, claims in grounds.items() for claim in claims)
    return {**entry, "why": joined(entry["why"]), "grounds": found}


_GUIDE = read_toml("guide.toml")
INTRODUCTION = joined(_GUIDE["introduction"])
ADVICE = tuple(Advice(**_fields(entry)) for entry in _GUIDE["case"])
DEFAULTS = tuple(Default(**_fields(entry)) for entry in _GUIDE["default"])
