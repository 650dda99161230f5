"""The texts of ``--run-config`` and ``--node-config``, read and checked before Flower has them.

Flower names no key that it refuses, checks no values, and leaves out what it takes for no pair.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from federated.flower.configuration import NodeConfig, RunConfig, keys
from optimizers.core.options import nearest_name

PAIR = re.compile(r"(\S+?)=('[^']*'|\"[^\"]*\"|\S+)")
"""What Flower takes for a key and its value."""


def check_run_config(texts: Sequence[str]) -> dict[str, Any]:
    """Checks all that can be checked of a run config before the run is submitted, and returns its values by key.

    See ``RunConfig.check``.

    Args:
        texts: what stood behind each ``--run-config``: pairs ``key=value``, or one path of a TOML file.

    Raises:
        ValueError: if a text cannot be read, a key is unknown or a value is refused, with the reason.
    """
    given = read_pairs(texts, "run config")
    known = keys(RunConfig)
    for name in given:
        if name not in known:
            raise ValueError(f"run config {name!r} is unknown{nearest_name(name, known)}")
    try:
        RunConfig.of(given).check()
    except TypeError as error:
        raise ValueError(str(error)) from error
    return given


def check_node_config(text: str) -> None:
    """Checks the keys, types and texts of a node config; whether its path can be imported is the node's to say.

    Raises:
        ValueError: as for a run config, or if client or objective are missing.
    """
    given = read_pairs([text], "node config")
    try:
        NodeConfig.of(given).check()
    except TypeError as error:
        raise ValueError(str(error)) from error


def read_pairs(texts: Sequence[str], what: str) -> dict[str, Any]:
    """The values by key, in all forms that Flower reads.

    Args:
        texts: what stood behind each option.
        what: the configuration's name, for the errors' texts.

    Raises:
        ValueError: if a file cannot be read, or a part of a text is no pair of a key and a TOML value; Flower would
            leave some such parts out without a word.
    """
    if any(text.endswith(".toml") for text in texts):
        if len(texts) > 1:
            raise ValueError(f"the {what} is either one TOML file or pairs, as in 'rounds=3 seed=1', not both")
        return _file(Path(texts[0]).expanduser(), what)
    return {name: value for text in texts for name, value in _pairs(text, what).items()}


def _file(path: Path, what: str) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"the {what} {path} cannot be read: {type(error).__name__}: {error}") from error


def _pairs(text: str, what: str) -> dict[str, Any]:
    if rest := " ".join(PAIR.sub(" ", text).split()):
        raise ValueError(
            f"the {what} has {rest!r}, which is no part of a key=value: no spaces around =, text in quotes, "
            "as in 'rounds=3 bounds=\"[0, 1]\"'"
        )
    found: dict[str, Any] = {}
    for key, value in PAIR.findall(text):
        pair = _pair(key, value, what)
        if not found.keys().isdisjoint(pair):
            raise ValueError(f"the {what} has {key} twice")
        found |= pair
    return found


def _pair(key: str, value: str, what: str) -> Mapping[str, Any]:
    try:
        return tomllib.loads(f"{key} = {value}")
    except tomllib.TOMLDecodeError:
        table = value.startswith(("[", "{"))
        if value.endswith(",") and not table:
            raise ValueError(f"the {what} has {key}={value}: pairs have a space between them, no comma") from None
        correct = '"' not in value and "'" not in value and not table
        hint = f', as in {key}="{value}"' if correct else ', as in bounds="[0, 1]"'
        raise ValueError(f"the {what} {key}={value} is no TOML: text must be in quotes{hint}") from None
