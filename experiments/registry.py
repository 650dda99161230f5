"""The experiments by id, the benchmarks by name, and what the pip extras bring: tables of names, nothing else.

An experiment is added with one line in ``MODULES`` and one module that defines it as
``experiments.harness.experiment`` describes. Figures that differ in a setting are rows of one module, whose name then
stands here once for each id.
"""

from __future__ import annotations

MODULES = {
    "zord-fig1": "experiments.papers.zord.fig1",
    "zord-fig2a": "experiments.papers.zord.fig2a",
    "zord-fig2b": "experiments.papers.zord.fig2b",
    "zord-fig6a": "experiments.papers.zord.fig6a",
    "zord-fig6b": "experiments.papers.zord.fig6b",
    "zord-fig10": "experiments.papers.zord.fig10",
    "fourier-features": "experiments.studies.fourier_features",
    "calibration": "experiments.studies.calibration",
}

ESTIMATION_ERROR = tuple(MODULES)
"""What ``python -m experiments figures`` draws."""

MODULES |= {
    "zord-fig3": "experiments.papers.zord.fig3",
    "zord-fig5": "experiments.papers.zord.fig5",
    "zord-fig7": "experiments.papers.zord.fig7",
    "zord-fig8": "experiments.papers.zord.fig8",
    "zord-table1": "experiments.papers.zord.table1",
    "zord-fig9": "experiments.papers.zord.fig9",
    "zord-fig4": "experiments.papers.zord.fig4",
    "zord-table2": "experiments.papers.zord.table2",
    "zord-table3": "experiments.papers.zord.table3",
    "katyusha-fig1": "experiments.papers.katyusha.fig1",
    "katyusha-fig2": "experiments.papers.katyusha.fig2",
    "fzoos-fig1": "experiments.papers.fzoos.fig1",
    "fzoos-fig3": "experiments.papers.fzoos.fig3",
    "fzoos-fig4": "experiments.papers.fzoos.fig4",
    "fzoos-fig5a": "experiments.papers.fzoos.fig5a",
    "fzoos-fig5b": "experiments.papers.fzoos.fig5b",
    "fzoos-fig2": "experiments.papers.fzoos.fig2",
    "fzoos-fig6": "experiments.papers.fzoos.fig6",
    "fzoos-fig7": "experiments.papers.fzoos.fig7",
    "fzoos-fig8": "experiments.papers.fzoos.fig8",
    "fzoos-fig9": "experiments.papers.fzoos.fig9",
    "fzoos-fig10": "experiments.papers.fzoos.fig10",
    "fzoos-fig11": "experiments.papers.fzoos.fig11",
    "fzoos-fig12": "experiments.papers.fzoos.fig12",
    "hiso-fig4": "experiments.papers.hiso.fig4",
    "hiso-fig5": "experiments.papers.hiso.fig5",
    "hiso-fig8": "experiments.papers.hiso.fig8",
    "hiso-bytes": "experiments.papers.hiso.bytes",
    "hiso-table2": "experiments.papers.hiso.table2",
    "hiso-table5": "experiments.papers.hiso.table5",
    "hiso-fig6": "experiments.papers.hiso.fig6",
    "beyond-gamma": "experiments.beyond.gamma",
    "beyond-zord": "experiments.beyond.zord",
    "beyond-curvature": "experiments.beyond.curvature",
}

EXTRAS = {
    "experiments": ("sklearn", "cma"),
    "fast": ("numba",),
    "rl": ("gymnasium", "mujoco", "Box2D"),
    "llm": ("transformers", "datasets"),
}
"""Modules that each pip extra brings, as they are imported."""

BENCHMARKS = {
    "derived-gp": "experiments.benchmarks.derived_gp",
    "directions": "experiments.benchmarks.directions",
    "zord": "experiments.benchmarks.zord",
    "fzoos": "experiments.benchmarks.fzoos",
    "hiso": "experiments.benchmarks.hiso",
}
