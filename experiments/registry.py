"""The experiments by id: one line here and one module make one, as ``experiments.harness.experiment`` describes.

Figures that differ in a setting are rows of one module, whose name stands here once for each of their ids.
"""

from __future__ import annotations

import difflib
import importlib
import importlib.util
from collections.abc import Iterable

from experiments.harness.experiment import Experiment

MODULES = {
    "zord-fig1": "experiments.papers.zord.fig1_fig10",
    "zord-fig2a": "experiments.papers.zord.fig2a_fig6",
    "zord-fig2b": "experiments.papers.zord.fig2b",
    "zord-fig6a": "experiments.papers.zord.fig2a_fig6",
    "zord-fig6b": "experiments.papers.zord.fig2a_fig6",
    "zord-fig10": "experiments.papers.zord.fig1_fig10",
    "fourier-features": "experiments.studies.fourier_features",
    "calibration": "experiments.studies.calibration",
}

ESTIMATION_ERROR = tuple(MODULES)
"""What ``python -m experiments figures`` draws."""

MODULES |= {
    "zord-fig3": "experiments.papers.zord.fig3_fig8",
    "zord-fig5": "experiments.papers.zord.fig5",
    "zord-fig7": "experiments.papers.zord.fig7",
    "zord-fig8": "experiments.papers.zord.fig3_fig8",
    "zord-table1": "experiments.papers.zord.fig9_table1",
    "zord-fig9": "experiments.papers.zord.fig9_table1",
    "zord-fig4": "experiments.papers.zord.fig4",
    "zord-table2": "experiments.papers.zord.table2",
    "zord-table3": "experiments.papers.zord.table3",
    "katyusha-fig1": "experiments.papers.katyusha.fig1",
    "katyusha-fig2": "experiments.papers.katyusha.fig2",
    "fzoos-fig1": "experiments.papers.fzoos.convergence",
    "fzoos-fig3": "experiments.papers.fzoos.fig3",
    "fzoos-fig4": "experiments.papers.fzoos.convergence",
    "fzoos-fig5a": "experiments.papers.fzoos.convergence",
    "fzoos-fig5b": "experiments.papers.fzoos.convergence",
    "fzoos-fig2": "experiments.papers.fzoos.attacks",
    "fzoos-fig6": "experiments.papers.fzoos.attacks",
    "fzoos-fig7": "experiments.papers.fzoos.attacks",
    "fzoos-fig8": "experiments.papers.fzoos.metrics",
    "fzoos-fig9": "experiments.papers.fzoos.metrics",
    "fzoos-fig10": "experiments.papers.fzoos.metrics",
    "fzoos-fig11": "experiments.papers.fzoos.metrics",
    "fzoos-fig12": "experiments.papers.fzoos.metrics",
    "hiso-fig4": "experiments.papers.hiso.fig4",
    "hiso-fig5": "experiments.papers.hiso.fig5_fig8",
    "hiso-fig8": "experiments.papers.hiso.fig5_fig8",
    "hiso-bytes": "experiments.papers.hiso.bytes",
    "hiso-table2": "experiments.papers.hiso.table2",
    "hiso-table5": "experiments.papers.hiso.table5_fig6",
    "hiso-fig6": "experiments.papers.hiso.table5_fig6",
    "beyond-gamma": "experiments.beyond.gamma",
    "beyond-plateau": "experiments.beyond.plateau",
    "beyond-zord": "experiments.beyond.zord",
    "beyond-parallel": "experiments.beyond.parallel",
    "beyond-curvature": "experiments.beyond.curvature",
    "beyond-liars": "experiments.beyond.liars",
}

EXTRAS = {
    "rl": ("gymnasium", "mujoco", "Box2D"),
    "llm": ("transformers", "datasets"),
    "problems": ("cocoex",),
}
"""Modules that each extra of this distribution installs, by the names under which they are imported."""

BENCHMARKS = {
    "derived-gp": "experiments.benchmarks.derived_gp",
    "zord": "experiments.benchmarks.zord",
    "hiso": "experiments.benchmarks.hiso",
    "federation": "experiments.benchmarks.federation",
    "problems": "experiments.benchmarks.problems.command",
    "trust-region": "experiments.benchmarks.trust_region",
}

SCOREBOARDS = "problems-"
"""How the ids of results begin that the benchmark ``problems`` writes."""


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
        super().__init__(
            f"{name} needs {', '.join(modules)}, not installed here: "
            f"pip install 'gradient-surrogates-experiments[{extra}]', in a checkout './experiments[{extra}]'"
        )


def require(extra: str, name: str) -> None:
    """Refuse an experiment whose extra is not installed; nothing where it needs none.

    Raises:
        MissingExtraError: with the pip command.
    """
    if missing := [module for module in EXTRAS.get(extra, ()) if importlib.util.find_spec(module) is None]:
        raise MissingExtraError(name, missing, extra)


def get(name: str) -> Experiment:
    """The experiment with this id; its module is imported now.

    Raises:
        UnknownNameError: if the registry has no such id, or its module no experiment with it.
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
