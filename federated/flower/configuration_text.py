"""Checks the texts of ``--run-config`` and ``--node-config``, because Flower ignores text that is not a pair."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from federated.flower.configuration import NodeConfig, RunConfig

PAIR = re.compile(r"(\S+?)=('[^']*'|\"[^\"]*\"|\S+)")
"""Flower's pattern of a pair."""

FORM = 'write pairs with spaces between them and text in quotes, as in \'rounds=3 algorithm="hiso" bounds="[0, 1]"\''


def check_config(cls: type[RunConfig] | type[NodeConfig], texts: Sequence[str]) -> dict[str, Any]:
    """Returns a configuration's values by key, after ``cls.check``.

    Each text has pairs ``key=value``, or the only text is the path of a TOML file. ``ValueError`` if a text cannot be
    parsed or contains more than pairs, or a key or value is refused.
    """
    try:
        given = _read(texts)
    except (OSError, ValueError) as error:
        raise ValueError(f"the configuration {' '.join(texts)!r} cannot be read: {error}; {FORM}") from error
    try:
        cls.of(given).check()
    except TypeError as error:
        raise ValueError(str(error)) from error
    return given


def _read(texts: Sequence[str]) -> dict[str, Any]:
    if len(texts) == 1 and texts[0].endswith(".toml"):
        return tomllib.loads(Path(texts[0]).expanduser().read_text(encoding="utf-8"))
    given: dict[str, Any] = {}
    for text in texts:
        if rest := PAIR.sub("", text).strip():
            raise ValueError(f"{rest!r} is not part of a pair key=value")
        given |= tomllib.loads("\n".join(map("=".join, PAIR.findall(text))))
    return given
