"""Checks the prose for forms that this project does not write, and draws samples of it for a reader.

    python tests/prose.py            # lists the forms that are never written; exit status 1 where there are any
    python tests/prose.py --seed 0   # prints sixty public docstrings and thirty messages, drawn by the seed

The check reads docstrings, comments and messages of the packages, and the Markdown pages without their code.
"""

from __future__ import annotations

import argparse
import ast
import io
import random
import re
import sys
import textwrap
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
PACKAGES = ("surrogates", "optimizers", "federated", "experiments")

FORMS = {
    r"(?-i:{start}Of\b)": "name the subject first: 'Points that ...', not 'Of points ...'",
    r"(?-i:{start}What\b)(?![^.]*\?)": "name the thing: 'The options that ...', not 'What ...'",
    r"(?-i:{start}Whose\b)": "name the thing: 'A client whose ...', not 'Whose ...'",
    r"(?-i:{start}That of\b)": "repeat the noun",
    r"\bso many\b": "the number, or 'k', or 'that many'",
    r"\bin (the|their|its|your|whose) places?( of)?\b(?! where)": "'instead of'",
    r"\bof before\b": "'earlier', 'previous'",
    r"\b(is|are) (that|those) of\b": "repeat the noun",
    r"\blets? go\b": "'released', 'dropped', 'shut down'",
    r"\bfor what (it|they) teach": "'active query', 'geometry-improving point'",
}
"""Each form that is never written, with what is written instead."""

START = r"(?:^|(?<=[.!?:] )|(?<=\n\n)|(?<=- ))"


class Text(NamedTuple):
    """A piece of prose with its place."""

    where: str
    kind: str
    text: str


def python_texts(path: Path) -> Iterator[Text]:
    """The docstrings, messages and comments of a module."""
    source = path.read_text(encoding="utf-8")
    name = path.relative_to(ROOT)
    for node, owner in _walk(ast.parse(source), ()):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            public = not any(part.startswith("_") for part in owner)
            kind = "docstring" if public else "private docstring"
            label = f"{name}:{node.lineno} {'.'.join(owner)}"
            yield Text(label, kind, textwrap.dedent("    " + node.value.value).strip())
        elif message := _message(node):
            yield Text(f"{name}:{node.lineno}", "message", message)
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield Text(f"{name}:{token.start[0]}", "comment", token.string.lstrip("#: "))


def _walk(node: ast.AST, owner: tuple[str, ...]) -> Iterator[tuple[ast.AST, tuple[str, ...]]]:
    for child in ast.iter_child_nodes(node):
        inner = (*owner, child.name) if isinstance(child, ast.ClassDef | ast.FunctionDef) else owner
        yield child, inner
        yield from _walk(child, inner)


def _message(node: ast.AST) -> str:
    """The text of a ``raise``, of a warning or of a line of the log, with ``{...}`` for each value."""
    call = node.exc if isinstance(node, ast.Raise) else node
    if not isinstance(call, ast.Call) or not call.args:
        return ""
    called = ast.unparse(call.func)
    if isinstance(node, ast.Raise) or re.search(r"\b(warn|warning|info|error)$", called):
        text = next((part for part in ast.walk(call.args[0]) if isinstance(part, ast.JoinedStr)), call.args[0])
        if isinstance(text, ast.JoinedStr):
            return "".join(str(p.value) if isinstance(p, ast.Constant) else "{...}" for p in text.values)
        if isinstance(text, ast.Constant) and isinstance(text.value, str) and " " in text.value:
            return text.value
    return ""


def pages() -> list[Path]:
    """The Markdown that people read: the root's, the documentation's and the published results'."""
    folders = [ROOT / "docs", ROOT / "experiments" / "published"]
    found = [page for folder in folders for page in folder.rglob("*.md")]
    return sorted(p for p in [*ROOT.glob("*.md"), *found] if not {"_build", "results"} & set(p.relative_to(ROOT).parts))


def page_texts(path: Path) -> Iterator[Text]:
    """The headings, paragraphs, items and cells of a page; code and formulas are left out."""
    text = re.sub(r"^```.*?^```$|^\$\$.*?^\$\$$|^#+ |<[^>]+>", "", path.read_text(encoding="utf-8"), flags=re.M | re.S)
    for block in re.split(r"\n\s*\n|^\|.*?(?=\|)|\|\n|\||\n(?=- |: )", text, flags=re.M):
        if stripped := " ".join(re.sub(r"^(- |: |\d+\. )", "", block.strip()).split()):
            yield Text(str(path.relative_to(ROOT)), "page", stripped)


def all_texts() -> Iterator[Text]:
    """Every piece of prose of the project."""
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            yield from python_texts(path)
    for page in pages():
        yield from page_texts(page)


def findings() -> list[str]:
    """One line for each form that is never written."""
    forms = {re.compile(form.replace("{start}", START), re.I): instead for form, instead in FORMS.items()}
    lines = []
    for text in all_texts():
        joined = "\n\n".join(" ".join(part.split()) for part in re.split(r"\n\s*\n|\n(?=\s*- )", text.text))
        for form, instead in forms.items():
            for hit in form.finditer(joined):
                around = joined[max(0, hit.start() - 30) : hit.end() + 40].replace("\n", " ")
                lines.append(f"{text.where}: …{around}…  -> {instead}")
    return lines


def sample(seed: int) -> list[Text]:
    """Sixty public docstrings and thirty messages."""
    texts = list(all_texts())
    drawn = random.Random(seed)
    docstrings = [text for text in texts if text.kind == "docstring"]
    messages = [text for text in texts if text.kind == "message"]
    return [*drawn.sample(docstrings, 60), *drawn.sample(messages, 30)]


def main() -> int:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seed", type=int, help="print a sample drawn with this seed instead of checking the forms")
    seed = parser.parse_args().seed
    if seed is not None:
        print("\n\n".join(f"[{t.kind}] {t.where}\n{t.text}" for t in sample(seed)))
        return 0
    lines = findings()
    print("\n".join(lines) or "no form that is never written")
    return bool(lines)


if __name__ == "__main__":
    sys.exit(main())
