"""Experiments and benchmarks by id.

A module with one experiment defines ``EXPERIMENT``; figures that differ only in their settings share a module, which
defines ``EXPERIMENTS`` (``experiments.harness.experiment``).
"""

from __future__ import annotations

import difflib
import importlib
import importlib.util
from collections.abc import Iterable, Mapping

from experiments.harness.experiment import Experiment, natural

_ESTIMATION_ERROR = {
    "papers.zord.fig1_fig10": ("zord-fig1", "zord-fig10"),
    "papers.zord.fig2_fig6": ("zord-fig2a", "zord-fig2b", "zord-fig6a", "zord-fig6b"),
    "studies.fourier_features": ("fourier-features",),
    "studies.calibration": ("calibration",),
}
_OTHERS = {
    "papers.zord.fig3_fig8": ("zord-fig3", "zord-fig8"),
    "papers.zord.fig4": ("zord-fig4",),
    "papers.zord.fig5": ("zord-fig5",),
    "papers.zord.fig7": ("zord-fig7",),
    "papers.zord.fig9_table1": ("zord-fig9", "zord-table1"),
    "papers.zord.table2_table3": ("zord-table2", "zord-table3"),
    "papers.katyusha.fig1_fig2": ("katyusha-fig1", "katyusha-fig2"),
    "papers.fzoos.convergence": ("fzoos-fig1", "fzoos-fig3", "fzoos-fig4", "fzoos-fig5a", "fzoos-fig5b"),
    "papers.fzoos.attacks": ("fzoos-fig2", "fzoos-fig6", "fzoos-fig7"),
    "papers.fzoos.metrics": ("fzoos-fig8", "fzoos-fig9", "fzoos-fig10", "fzoos-fig11", "fzoos-fig12"),
    "papers.hiso.fig4": ("hiso-fig4",),
    "papers.hiso.fig5_fig8": ("hiso-fig5", "hiso-fig8"),
    "papers.hiso.bytes": ("hiso-bytes",),
    "papers.hiso.table2_table5_fig6": ("hiso-table2", "hiso-fig6", "hiso-table5"),
    **{
        f"beyond.{name}": (f"beyond-{name}",) for name in ("gamma", "plateau", "zord", "parallel", "curvature", "liars")
    },
}


def _by_id(modules: Mapping[str, Iterable[str]]) -> dict[str, str]:
    found = {name: f"experiments.{module}" for module, names in modules.items() for name in names}
    return {name: found[name] for name in sorted(found, key=natural)}


MODULES = _by_id(_ESTIMATION_ERROR | _OTHERS)
"""The module of each experiment, by id."""

ESTIMATION_ERROR = tuple(_by_id(_ESTIMATION_ERROR))
"""The experiments that ``python -m experiments figures`` draws."""

EXTRAS = {
    "rl": ("gymnasium", "mujoco", "Box2D"),
    "llm": ("transformers", "datasets"),
    "problems": ("cocoex",),
}
"""The import names of the packages that each extra installs."""

BENCHMARKS = {"problems": "experiments.benchmarks.problems.command"} | {
    name: f"experiments.benchmarks.{name.replace('-', '_')}"
    for name in (
        "derived-gp",
        "hiso",
        "federation",
        "trust-region",
        "least-squares",
        "history",
        "constraints",
        "query-time",
        "nonsmooth",
    )
}
"""The module of each benchmark, by name."""

SCOREBOARDS = "problems-"
"""Prefix of the ids of results that the benchmark ``problems`` writes."""

CONSTRAINED_SCOREBOARDS = ("problems-bbob-constrained", "problems-bbob-mixint", "problems-tuning")
"""Prefixes of those with constraints, integers or hyperparameters, which have a page of their own."""


class UnknownNameError(ValueError):
    """Raised for a name that is not registered; the message suggests the closest registered names."""

    def __init__(self, kind: str, name: str, known: Iterable[str]) -> None:
        known = list(known)
        nearest = difflib.get_close_matches(name, known, n=3, cutoff=0.4)
        hint = f"the closest are {', '.join(nearest)}" if nearest else f"the known ones are {', '.join(known)}"
        super().__init__(f"unknown {kind} {name!r}; {hint}")


class MissingExtraError(ValueError):
    """Raised if a package that an experiment needs is not installed; the message has the pip command."""

    def __init__(self, name: str, modules: Iterable[str], extra: str) -> None:
        super().__init__(
            f"{name} needs packages that are not installed ({', '.join(modules)}); run: "
            f"pip install 'gradient-surrogates-experiments[{extra}]' (in a checkout './experiments[{extra}]')"
        )


def missing_extra(extra: str, name: str) -> MissingExtraError | None:
    """Returns the error for an extra that is not installed, or None if nothing is missing."""
    missing = [module for module in EXTRAS.get(extra, ()) if importlib.util.find_spec(module) is None]
    return MissingExtraError(name, missing, extra) if missing else None


def require(extra: str, name: str) -> None:
    """Checks that an extra is installed; an empty name needs nothing.

    Raises:
        MissingExtraError: if a package of the extra is missing.
    """
    if error := missing_extra(extra, name):
        raise error


def get(name: str) -> Experiment:
    """Imports and returns the experiment with an id.

    Raises:
        UnknownNameError: if no module is registered for the id, or the module has no experiment with it.
        MissingExtraError: if the module imports a package that is not installed.
    """
    if name not in MODULES:
        raise UnknownNameError("experiment", name, MODULES)
    try:
        module = importlib.import_module(MODULES[name])
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        for extra, modules in EXTRAS.items():
            if missing in modules:
                raise MissingExtraError(name, [missing], extra) from error
        raise
    offered: Iterable[Experiment] = module.EXPERIMENTS if hasattr(module, "EXPERIMENTS") else (module.EXPERIMENT,)
    found = {experiment.id: experiment for experiment in offered}
    if name not in found:
        raise UnknownNameError(f"experiment in {MODULES[name]}", name, found)
    return found[name]
