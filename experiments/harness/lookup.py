"""Experiments by id and pip extras by what they bring: names become objects, or errors that say what is known."""

from __future__ import annotations

import difflib
import importlib
import importlib.util
from collections.abc import Iterable

from experiments import registry
from experiments.harness.experiment import Experiment


class UnknownNameError(ValueError):
    """A name that is not registered, with the nearest ones that are."""

    def __init__(self, kind: str, name: str, known: Iterable[str]) -> None:
        known = list(known)
        nearest = difflib.get_close_matches(name, known, n=3, cutoff=0.4)
        hint = f"the nearest are {', '.join(nearest)}" if nearest else f"known are {', '.join(known)}"
        super().__init__(f"unknown {kind} {name!r}; {hint}")


class MissingExtraError(ValueError):
    """A package that an experiment needs is not installed, with the command that installs it."""

    def __init__(self, name: str, modules: Iterable[str], extra: str) -> None:
        super().__init__(f"{name} needs {', '.join(modules)}, not installed here; pip install '.[{extra}]' brings it")


def require(extra: str, name: str) -> None:
    """Refuse an experiment whose extra is not installed; nothing where it needs none.

    Raises:
        MissingExtraError: with the pip command.
    """
    if missing := [module for module in registry.EXTRAS.get(extra, ()) if importlib.util.find_spec(module) is None]:
        raise MissingExtraError(name, missing, extra)


def get(name: str) -> Experiment:
    """The experiment with this id; its module is imported now.

    Raises:
        UnknownNameError: if the registry has no such id, or its module no experiment with it.
        MissingExtraError: if the module imports a package that is not installed.
    """
    if name not in registry.MODULES:
        raise UnknownNameError("experiment", name, registry.MODULES)
    try:
        module = importlib.import_module(registry.MODULES[name])
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        for extra, modules in registry.EXTRAS.items():
            if missing in modules:
                raise MissingExtraError(name, [missing], extra) from error
        raise
    offered: Iterable[Experiment] = module.EXPERIMENTS if hasattr(module, "EXPERIMENTS") else (module.EXPERIMENT,)
    found = {experiment.id: experiment for experiment in offered}
    if name not in found:
        raise UnknownNameError(f"experiment in {registry.MODULES[name]}", name, found)
    return found[name]
