"""The names that the reference has: what is public, and the bases and options of it that stand elsewhere."""

from __future__ import annotations

import inspect
from importlib import import_module
from typing import Any

from federated.registry import ALGORITHMS

PACKAGES = (
    "surrogates",
    "optimizers",
    "optimizers.testing",
    "federated",
    "federated.testing",
    "experiments.workloads.black_boxes",
)
"""The packages whose ``__all__`` is public."""

FURTHER = {
    "federated.flower": ("configuration.RunConfig", "configuration.NodeConfig"),
    "experiments": ("registry.get", "harness.experiment.Experiment", "harness.verdicts.Verdict"),
}
"""The public names of the others, which have no ``__all__``."""

FOREIGN = ("Exception", "Kernel", "Model", "Module", "OptimizeResult", "Posterior", "SingleTaskGP", "str", "dict")
"""Base classes of other projects: what they have is documented there."""

TASKS = {
    "surrogates": {
        "Fit a model": ("models",),
        "Ask for gradients and Hessians": ("", "models.fully_bayesian.GradientMixturePosterior"),
        "Sensitivities, signs and plots": ("sensitivity",),
        "Choose the next evaluations": ("gradient_information",),
        "Kernels and likelihoods": ("kernels",),
        "Fourier features": ("fourier",),
        "The process of the default method": ("pinned",),
    },
    "optimizers": {
        "Minimize": ("",),
        "Methods": ("methods",),
        "Ask and tell, or write a method": (
            "core.optimizer",
            "core.batch",
            "core.options",
            "evaluation",
            "methods.estimated_descent",
        ),
        "Constraints": ("core.constraints",),
        "Proximal operators": ("prox",),
        "Use it from SciPy, BoTorch, torch and Ray": ("adapters",),
        "Gradient estimators and steps": ("estimators", "first_order", "directions"),
        "Designs": ("designs",),
        "Parts of methods": ("methods.hiso.displacement", "methods.hiso.group_probe", "methods.katyusha.parameters"),
    },
    "federated": {
        "Run a federation": ("",),
        "Algorithms": ("registry",),
        "Write an algorithm": ("core.algorithm", "core.server", "core.client"),
        "Messages and their cost": ("core.messages", "core.codec", "core.ledger"),
    },
}
"""The tasks of each package in the order in which they are listed, each with the places that serve it."""


def found(path: str) -> Any:
    """The object of a dotted path."""
    module, _, name = path.rpartition(".")
    return getattr(import_module(module), name)


def public() -> dict[str, list[str]]:
    """The paths of the public names of each package."""
    whole = {package: [f"{package}.{name}" for name in import_module(package).__all__] for package in PACKAGES}
    return whole | {package: [f"{package}.{name}" for name in names] for package, names in FURTHER.items()}


def behind(paths: list[str], known: set[type]) -> list[str]:
    """The classes of this project that given ones derive from, or whose fields are options of theirs, not yet known."""
    new: list[str] = []
    for thing in filter(inspect.isclass, map(found, paths)):
        options = [kind for base in thing.__mro__ for kind in vars(base).get("option_sets", ())]
        for base in [*thing.__mro__[1:], *options]:
            if base not in known and base.__module__.split(".")[0] in ("surrogates", "optimizers", "federated"):
                known.add(base)
                new.append(f"{base.__module__}.{base.__qualname__}")
    return new


def heading(path: str) -> str:
    """The heading under which a public name is listed: the task of the longest prefix of the place that defines it."""
    thing, (package, _, name) = found(path), path.rpartition(".")
    if inspect.isclass(thing) and issubclass(thing, BaseException):
        return "Exceptions"
    place = f"{getattr(thing, '__module__', package)}.{name}"
    tasks = {f"{package}.{prefix}": task for task, places in TASKS.get(package, {}).items() for prefix in places}
    return tasks.get(max(filter(place.startswith, tasks), key=len, default=""), "Names")


def reference() -> dict[str, dict[str, list[str]]]:
    """The paths of each package by task, and within a task in the order of the alphabet."""
    packages = public()
    known = {thing for paths in packages.values() for thing in map(found, paths) if inspect.isclass(thing)}
    algorithms = [f"{module}.{name}" for module, name in ALGORITHMS.values()]
    known |= {found(path) for path in algorithms}
    listed: dict[str, dict[str, list[str]]] = {}
    for package, paths in packages.items():
        groups: dict[str, list[str]] = {name: [] for name in (*TASKS.get(package, {}), "Names", "Exceptions")}
        for path in paths:
            groups[heading(path)].append(path)
        if package == "federated":
            groups["Algorithms"] += algorithms
        groups["Bases and options of these"] = behind([*paths, *groups.get("Algorithms", [])], known)
        listed[package] = {
            name: sorted(group, key=lambda path: path.rpartition(".")[2].lower()) for name, group in groups.items()
        }
    return listed
