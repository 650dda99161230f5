"""Parses and checks the texts of ``--run-config`` and ``--node-config`` before Flower receives them.

Flower itself does not name the key that it refuses, does not check values, and ignores text that is not a pair.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from federated.flower.configuration import NodeConfig, RunConfig

PAIR = re.compile(r"(\S+?)=('[^']*'|\"[^\"]*\"|\S+)")
"""Flower's pattern of a pair."""

FORM = 'write pairs with spaces between them and text in quotes, as in \'rounds=3 algorithm="hiso" bounds="[0, 1]"\''


def check_config(cls: type[RunConfig] | type[NodeConfig], texts: Sequence[str]) -> dict[str, Any]:
    """Returns a configuration's values by key, parsed by Flower, after ``cls.check``.

    Each of the texts has pairs ``key=value``, or the only one is the path of a TOML file.

    Raises:
        ValueError: if a text cannot be parsed or contains more than pairs, or a key or value is refused.
    """
    given = read_pairs(texts)
    try:
        cls.of(given).check()
    except TypeError as error:
        raise ValueError(str(error)) from error
    return given


def read_pairs(texts: Sequence[str]) -> dict[str, Any]:
    """Returns the values by key; raises ``ValueError`` as ``check_config``."""
    from click import ClickException
    from flwr.common.config import parse_config_args

    is_file = any(text.endswith(".toml") for text in texts)
    ignored = [] if is_file else [part for text in texts for part in PAIR.sub(" ", text).split()]
    try:
        if ignored:
            raise ValueError(f"{' '.join(ignored)!r} is not part of a pair key=value")
        return parse_config_args(list(texts))
    except (ClickException, OSError, ValueError) as error:
        reason = f"{error}; {FORM}" if ignored else f"{type(error).__name__}: {error}" if is_file else FORM
        raise ValueError(f"the configuration {' '.join(texts)!r} cannot be read: {reason}") from error
