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
    "experiments": (
        "registry.get",
        "harness.experiment.Experiment",
        "harness.verdicts.Verdict",
    ),
}
"""The public names of the others, which have no ``__all__``."""

FOREIGN = ("Exception", "Kernel", "Model", "Module", "OptimizeResult", "Posterior", "SingleTaskGP", "str", "dict")
"""Base classes of other projects: what they have is documented there."""

TASKS = {
    "surrogates": {
        "surrogates.models": "Fit a model",
        "surrogates.": "Ask for gradients and Hessians",
        "surrogates.models.fully_bayesian.GradientMixturePosterior": "Ask for gradients and Hessians",
        "surrogates.sensitivity": "Sensitivities, signs and plots",
        "surrogates.gradient_information": "Choose the next evaluations",
        "surrogates.kernels": "Kernels and likelihoods",
        "surrogates.fourier": "Fourier features",
        "surrogates.pinned": "The process of the default method",
    },
    "optimizers": {
        "optimizers.": "Minimize",
        "optimizers.methods": "Methods",
        "optimizers.methods.estimated_descent": "Ask and tell, or write a method",
        "optimizers.core.constraints": "Constraints",
        "optimizers.prox": "Proximal operators",
        "optimizers.adapters": "Use it from SciPy, BoTorch, torch and Ray",
        "optimizers.core.optimizer": "Ask and tell, or write a method",
        "optimizers.core.batch": "Ask and tell, or write a method",
        "optimizers.core.options": "Ask and tell, or write a method",
        "optimizers.evaluation": "Ask and tell, or write a method",
        "optimizers.estimators": "Gradient estimators and steps",
        "optimizers.first_order": "Gradient estimators and steps",
        "optimizers.directions": "Gradient estimators and steps",
        "optimizers.designs": "Designs",
        "optimizers.methods.hiso.displacement": "Parts of methods",
        "optimizers.methods.hiso.group_probe": "Parts of methods",
        "optimizers.methods.katyusha.parameters": "Parts of methods",
    },
    "federated": {
        "federated.": "Run a federation",
        "federated.registry": "Algorithms",
        "federated.core.algorithm": "Write an algorithm",
        "federated.core.server": "Write an algorithm",
        "federated.core.client": "Write an algorithm",
        "federated.core.messages": "Messages and their cost",
        "federated.core.codec": "Messages and their cost",
        "federated.core.ledger": "Messages and their cost",
    },
}
"""The task that a place in a package serves, in the order in which the tasks are listed."""


def found(path: str) -> Any:
    """The object of a dotted path."""
    module, _, name = path.rpartition(".")
    return getattr(import_module(module), name)


def public() -> dict[str, list[str]]:
    """The paths of the public names of each package."""
    whole = {package: [f"{package}.{name}" for name in import_module(package).__all__] for package in PACKAGES}
    return whole | {package: [f"{package}.{name}" for name in names] for package, names in FURTHER.items()}


def path_of(thing: type) -> str:
    """The path of a class where it is defined."""
    return f"{thing.__module__}.{thing.__qualname__}"


def behind(paths: list[str], known: set[type]) -> list[str]:
    """The classes of this project that given ones derive from, or whose fields are options of theirs, not yet known."""
    new: list[str] = []
    for thing in filter(inspect.isclass, map(found, paths)):
        options = [kind for base in thing.__mro__ for kind in vars(base).get("option_sets", ())]
        for base in [*thing.__mro__[1:], *options]:
            if base not in known and base.__module__.split(".")[0] in ("surrogates", "optimizers", "federated"):
                known.add(base)
                new.append(path_of(base))
    return new


def heading(path: str) -> str:
    """The heading under which a public name is listed: the task of the longest prefix of the place that defines it."""
    thing, (package, _, name) = found(path), path.rpartition(".")
    if inspect.isclass(thing) and issubclass(thing, BaseException):
        return "Exceptions"
    place = f"{getattr(thing, '__module__', package)}.{name}"
    return TASKS.get(package, {}).get(max(filter(place.startswith, TASKS.get(package, {"": ""})), key=len), "Names")


def reference() -> dict[str, dict[str, list[str]]]:
    """The paths of each package by task, and within a task in the order of the alphabet."""
    packages = public()
    known = {thing for paths in packages.values() for thing in map(found, paths) if inspect.isclass(thing)}
    algorithms = [f"{module}.{name}" for module, name in ALGORITHMS.values()]
    known |= {found(path) for path in algorithms}
    listed: dict[str, dict[str, list[str]]] = {}
    for package, paths in packages.items():
        groups: dict[str, list[str]] = {name: [] for name in (*TASKS.get(package, {}).values(), "Names", "Exceptions")}
        for path in paths:
            groups[heading(path)].append(path)
        if package == "federated":
            groups["Algorithms"] += algorithms
        groups["Bases and options of these"] = behind([*paths, *groups.get("Algorithms", [])], known)
        listed[package] = {
            name: sorted(group, key=lambda path: path.rpartition(".")[2].lower()) for name, group in groups.items()
        }
    return listed
