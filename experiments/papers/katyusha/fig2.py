"""Katyusha, Figure 2: the accelerated two-point method (eq. 14) converges without a constraint and stalls in a box.

The figure explains why the paper reduces variance. Without a constraint ∇f vanishes at the minimum, and so does a
two-point estimate; in a box neither does. It shows the mean and a 5-95% band over trials, all on the same two problems.
ZO-L-Katyusha in the box is our addition.

Our choices where the paper gives no details: the problem is ½ (x − c)ᵀ H (x − c) with eigenvalues of H in equal ratios
and c standard normal, with and without a box. Eq. 14 is used with the sign + of the momentum (the paper prints −, which
is drawn as well) and with the estimate of eq. 2 (the paper says "estimator (3)"); see ``AcceleratedZO``. Gaps are
relative to the first one.
"""

from __future__ import annotations

import dataclasses
from functools import lru_cache

import numpy as np
from matplotlib.figure import Figure

from experiments.harness.experiment import Experiment
from experiments.harness.verdicts import Verdict, judge
from experiments.papers.katyusha import composite
from optimizers import AcceleratedZO, NesterovSpokoiny, Optimizer, ZOLKatyusha
from optimizers.comparison.records import Row, Rows, by_seed, where
from surrogates import plotting

CURVES = {
    "accelerated_zo": ("unconstrained", "eq. 14, unconstrained"),
    "accelerated_zo_box": ("box", "eq. 14, box"),
    "accelerated_zo_printed": ("unconstrained", "eq. 14 with the printed sign, unconstrained"),
    "nesterov_spokoiny": ("unconstrained", "Nesterov and Spokoiny, unconstrained"),
    "zo_l_katyusha": ("box", "ZO-L-Katyusha, two-point, box"),
}
"""The problem and the label of each curve."""
KINDS: dict[str, type[Optimizer]] = {"zo_l_katyusha": ZOLKatyusha, "nesterov_spokoiny": NesterovSpokoiny}
"""Optimizers of the curves that do not use eq. 14."""


@dataclasses.dataclass(frozen=True)
class Settings:
    """Settings of Figure 2."""

    dim: int = 40
    kappa: float = 50.0
    side: float = 0.5
    smoothing_radius: float = 1e-6
    problem_seed: int = 0
    max_queries: int = 16_000
    every: int = 100
    converged: float = 1e-6
    stalled: float = 1e-3
    little: float = 2.0


@lru_cache(maxsize=4)
def problems_of(settings: Settings) -> dict[str, composite.Composite]:
    """Returns the problem without and with the box."""
    sides = {"unconstrained": None, "box": settings.side}
    return {
        name: composite.quadratic(settings.dim, settings.kappa, side, settings.problem_seed)
        for name, side in sides.items()
    }


def run_seed(settings: Settings, seed: int) -> Rows:
    """Runs one trial of each curve."""
    rows: Rows = []
    for method, (constraint, _) in CURVES.items():
        problem = problems_of(settings)[constraint]
        x0, options = composite.start_and_options(problem, settings.max_queries, seed, settings.smoothing_radius)
        if method == "accelerated_zo_printed":
            options["printed_sign"] = True
        optimizer = KINDS.get(method, AcceleratedZO)(x0, smoothness=problem.L, **options)
        found = composite.gaps(problem, optimizer, settings.every)
        key: Row = {"seed": seed, "method": method, "constraint": constraint}
        rows += composite.gap_rows(key, found / found[0], settings.every, 1)
    return rows


def plot(settings: Settings, rows: Rows) -> Figure:
    """Draws all curves in one panel."""
    figure, axes = plotting.panels(1, 1, height=2.6)
    panel = axes[0, 0]
    for method, (_, label) in CURVES.items():
        composite.draw_band(panel, where(rows, quantity="gap", method=method), method, label, every=20)
    panel.set(xlabel="queries", ylabel="gap / first gap")
    panel.locator_params(axis="x", nbins=5)
    plotting.shared_legend(figure, panel)
    active = 100 * problems_of(settings)["box"].active_share()
    facts = f"κ = {settings.kappa:g}, box ±{settings.side:g}, {active:.0f}% active"
    plotting.head(figure, f"quadratic, d = {settings.dim}, {facts}")
    return figure


def claims(settings: Settings, rows: Rows) -> list[Verdict]:
    """Judges convergence without the box, the stall with it, and ZO-L-Katyusha in the box."""

    def log_gap(method: str, at: int) -> np.ndarray:
        return np.log10(by_seed(rows, quantity="gap", method=method, num_queries=at))

    free, box, printed, spokoiny, katyusha = (log_gap(method, settings.max_queries) for method in CURVES)
    gain = log_gap("accelerated_zo_box", settings.max_queries // 2) - box
    statistic, low, high = "log10 of the last relative gap", settings.converged, settings.stalled
    little = f"in the box the second half of the queries gains less than a factor of {settings.little:g}"
    below, above, less = (float(np.log10(bar)) for bar in (low, high, settings.little))
    beyond = f"ZO-L-Katyusha converges to {low:g} in the same box"
    slower = "eq. 14 ends higher with the printed sign than with the opposite one"
    behind = "without a constraint eq. 14 ends below Nesterov and Spokoiny's method"
    return [
        judge(f"eq. 14 converges to {low:g} without a constraint", statistic, {"": free}, below=below),
        judge(f"eq. 14 stays above {high:g} in the box", statistic, {"": box}, above=above),
        judge(little, "log10 of the gain", {"": gain}, below=less),
        judge(beyond, statistic, {"": katyusha}, below=below, control=True),
        judge(slower, "log10 of the ratio", {"": printed - free}, above=0.0, control=True),
        judge(behind, "log10 of the ratio", {"": spokoiny - free}, above=0.0, control=True),
    ]


EXPERIMENT = Experiment(
    id="katyusha-fig2",
    shows="accelerated two-point descent (eq. 14) without a constraint and in a box",
    claim="Accelerated two-point descent converges linearly without a constraint; in a box it stalls.",
    scales={"paper": Settings(), "quick": Settings(dim=6, kappa=10.0, max_queries=600, every=50)},
    run_seed=run_seed,
    plot=plot,
    caption=composite.BANDS,
    claims=claims,
    seeds=50,
)
