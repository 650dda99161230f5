"""Docstrings as reStructuredText: they are plain text with ``code``, indented formulas and Google's sections."""

from __future__ import annotations

import inspect
import re
import sys
from functools import cached_property
from typing import Any

from sphinx.application import Sphinx
from sphinx.ext.napoleon import Config, GoogleDocstring
from sphinx.pycode import ModuleAnalyzer

from _extension.names import found, reference

SECTION = re.compile(r"(Args|Attributes|Examples?|Raises|References|Returns|Yields):$")
CODE = re.compile(r"(``.+?``)")
STYLE = Config(napoleon_numpy_docstring=False, napoleon_use_ivar=True)

LISTED = [path for groups in reversed(reference().values()) for paths in groups.values() for path in paths]
"""The paths of the reference; of the same names in several packages the first package's comes last."""


def links(floor: str) -> dict[str, str]:
    """The path of each name of the reference, as the docstrings of a floor mean it."""
    own = [path for path in LISTED if path.startswith(f"{floor}.")]
    return {path.rpartition(".")[2]: path for path in LISTED + own}


LINKS = {floor: links(floor) for floor in {path.partition(".")[0] for path in LISTED}}


def process(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Rewrites a docstring's lines in place, as autodoc asks it."""
    if what == "data":
        lines[:] = described(name, obj)
    # Google's sections alone are of interest: of a property the text before a colon would be taken for a type.
    lines[:] = GoogleDocstring(plain(lines, LINKS[name.partition(".")[0]]), STYLE).lines()


def described(name: str, obj: Any) -> list[str]:
    """The docstring below a constant, which stands where the constant is defined."""
    short = name.rpartition(".")[2]
    for module, loaded in list(sys.modules.items()):
        if module.startswith(name.partition(".")[0]) and vars(loaded).get(short) is obj:
            documented = ModuleAnalyzer.for_module(module).find_attr_docs()
            if text := documented.get(("", short)):
                return list(text)
    return []


def plain(lines: list[str], known: dict[str, str]) -> list[str]:
    """The lines with formulas as literal blocks, and known names as links."""
    text: list[str] = []
    section = literal = False
    for i, line in enumerate(lines):
        indented = line.startswith(" ")
        if line and not indented:
            section, literal = bool(SECTION.match(line)), False
        elif indented and not section and not literal and i and not lines[i - 1].strip():
            literal = True
            if not next((above for above in reversed(text) if above), "").endswith("::"):
                text += ["::", ""]
        if literal:
            text.append(line.replace("``", ""))
        else:
            text.append(line if line.lstrip().startswith(">>>") else marked(line, known))
    return text


def marked(line: str, known: dict[str, str]) -> str:
    """A line that reStructuredText reads as it is meant: a bar is Unicode's, three dots in code are one sign."""
    parts = CODE.split(line)
    for i, part in enumerate(parts):
        if i % 2:
            follows = parts[i + 1][:1]
            parts[i] = linked(part.replace("...", "…"), known) + ("\\ " if follows.isalnum() else "")
        else:
            parts[i] = part.replace("|", "∣")
    return "".join(parts)


def linked(code: str, known: dict[str, str]) -> str:
    """A name in code as a link, where it is known."""
    name = code.strip("`").removesuffix("()")
    owner, _, member = name.rpartition(".")
    path = known.get(member) if name in (member, known.get(member)) else None
    if path is None and owner in known and has_entry(found(known[owner]), member):
        path = f"{known[owner]}.{member}"
    return code if path is None else f":py:obj:`{code.strip('`')} <{path}>`"


def has_entry(owner: Any, member: str) -> bool:
    """Whether a member has an entry of its own, as methods and properties have; fields stand in their class's."""
    thing = getattr(owner, member, None)
    return not member.startswith("_") and (inspect.isroutine(thing) or isinstance(thing, property | cached_property))
