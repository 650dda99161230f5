"""The public names with their signatures, one a line: ``python -m tests.public_api`` writes them to public_api.txt.

Listed are the names in ``__all__`` of the documented packages; of classes the arguments, the options, the methods, the
properties and the attributes that a class declares or its docstring documents; the methods and algorithms that are
known by name; the commands with their options; and the keys of Flower's configurations. Annotations are left out, and
so is what comes from a library.
"""

import argparse
import inspect
import re
import runpy
from collections.abc import Iterator
from dataclasses import is_dataclass
from enum import Enum
from importlib import import_module
from pathlib import Path
from typing import Any

from experiments import cli
from federated.flower.__main__ import COMMANDS
from federated.flower.configuration import NodeConfig, RunConfig
from federated.registry import ALGORITHMS, algorithm_class
from optimizers import METHODS, method_class

OURS = ("surrogates", "optimizers", "federated", "experiments")
HERE = Path(__file__).parent
FILE = HERE / "public_api.txt"
PACKAGES = runpy.run_path(str(HERE.parent / "docs" / "_extension" / "names.py"))["PACKAGES"]


def bases(cls: type) -> list[type]:
    """The class and its bases of this project."""
    return [base for base in cls.__mro__ if base.__module__.partition(".")[0] in OURS]


def shown(p: inspect.Parameter) -> str:
    name, default = str(p.replace(annotation=p.empty, default=p.empty)), repr(p.default)
    if p.default is p.empty:
        return name
    unstable = " at 0x" in default or isinstance(p.default, type)
    return f"{name}={getattr(p.default, '__name__', '...') if unstable else default}"


def arguments(function: Any, *, method: bool = False, options: tuple[type, ...] = ()) -> str:
    """The parameters as in a definition; ``options`` are classes whose keyword-only parameters are added."""
    parameters = [p for p in inspect.signature(function).parameters.values() if not p.name.startswith("_")][method:]
    ordered = [p for p in parameters if p.kind not in (p.KEYWORD_ONLY, p.VAR_KEYWORD)]
    named = {p.name: p for p in parameters if p.kind is p.KEYWORD_ONLY}
    for kind in options:
        named = {p.name: p for p in inspect.signature(kind).parameters.values() if p.kind is p.KEYWORD_ONLY} | named
    star = ["*"] if named and all(p.kind is not p.VAR_POSITIONAL for p in ordered) else []
    rest = [p for p in parameters if p.kind is p.VAR_KEYWORD]
    return f"({', '.join([*map(shown, ordered), *star, *map(shown, named.values()), *map(shown, rest)])})"


def with_options(cls: type, public: set[type]) -> str:
    """The arguments of a class with the options of its bases that are not public; empty if a library defines them."""
    sets = tuple(kind for base in bases(cls) for kind in vars(base).get("option_sets", ()))
    inner = tuple(base for base in bases(cls)[1:] if base not in public and "__init__" in vars(base))
    maker = next(base for base in cls.__mro__ if {"__init__", "__new__"} & set(vars(base)))
    return arguments(cls, options=sets + inner) if maker in bases(cls) else ""


def members(base: type) -> set[str]:
    """The public methods, properties and declared or documented attributes of a class, without its bases'."""
    plain = is_dataclass(base) or issubclass(base, Enum)
    documented = (inspect.getdoc(base) or "").partition("Attributes:\n")[2].partition("\n\n")[0]
    names = {name for found in re.findall(r"^ {4}(\w[\w, ]*): ", documented, re.M) for name in found.split(", ")}
    names |= {name for name, value in vars(base).items() if plain or hasattr(value, "__get__")}
    names |= set(vars(base).get("__annotations__", ()))
    return {name for name in names if not name.startswith("_") or name == "__call__"}


def of_class(path: str, cls: type, public: set[type]) -> Iterator[str]:
    yield path + ("" if issubclass(cls, Enum) else with_options(cls, public))
    listed = {name for base in bases(cls)[1:] if base in public for above in bases(base) for name in members(above)}
    for name in set().union(*map(members, bases(cls))) - (listed - set(vars(cls))):
        value = inspect.getattr_static(cls, name, None)
        if isinstance(value, staticmethod | classmethod) or inspect.isfunction(value):
            yield f"{path}.{name}{arguments(getattr(cls, name), method=inspect.isfunction(value))}"
        else:
            yield f"{path}.{name}" + (f" = {value.value!r}" if isinstance(value, Enum) else "")


def of_parsers(program: str, parsers: dict[str, argparse.ArgumentParser]) -> Iterator[str]:
    for name, parser in parsers.items():
        given = [" ".join(a.option_strings) or a.metavar or a.dest for a in parser._actions if a.dest != "help"]
        yield " ".join([program, name, *sorted(given)])


def lines() -> list[str]:
    """The public names in the order of the alphabet."""
    named = {f"{p}.{name}": getattr(import_module(p), name) for p in PACKAGES for name in import_module(p).__all__}
    named |= {f"federated.flower.{kind.__name__}": kind for kind in (RunConfig, NodeConfig)}
    public = {thing for thing in named.values() if inspect.isclass(thing)}
    found = [f"optimizers.METHODS[{name!r}] = {method_class(name).__name__}" for name in METHODS]
    found += [f"federated.ALGORITHMS[{name!r}]{with_options(algorithm_class(name), public)}" for name in ALGORITHMS]
    found += of_parsers("gradient-surrogates", cli._commands(cli._parser()))
    found += of_parsers("python -m federated.flower", COMMANDS.choices)
    for path, thing in named.items():
        if inspect.isclass(thing):
            found += of_class(path, thing, public)
        else:
            found.append(path + (arguments(thing) if inspect.isfunction(thing) else ""))
    return sorted(found)


if __name__ == "__main__":
    FILE.write_text("\n".join([*lines(), ""]))
