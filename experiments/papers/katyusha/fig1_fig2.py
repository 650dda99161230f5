"""Katyusha, Figures 1 and 2: gap against queries, with a constraint and without.

Both figures show the mean and a 5-95% band over trials, which share the problem and differ in their directions.

*Figure 1.* ZO-L-Katyusha with two-point estimates (|S| = 1, options I and II) and with (d+1)-point estimates is
compared with ZO-SVRG and projected ZO with diminishing steps, on a logistic regression in a box. We add proximal
gradient descent with d + 1 differences, which the paper omits. As in the paper f is the logistic loss, and ψ the ridge
and the box. The paper does not give the data, the box, β, M, θ, p or the baselines' steps. Our choices: rows are
standard normal with labels of a linear model; box and β are in the settings. The box matters: in a small box nearly all
coordinates are active, and proximal gradient descent is the fastest method. In the left panel steps follow theory:
Corollary 1 for option I; Theorem 1's M for option II (Corollary 2 prints three times its variance term); Corollary 3
for the (d+1)-point version, and our variant of that version without weight on w; 1/(dL) for ZO-SVRG; 1/(dL + μk/2) for
projected ZO; 1/L for proximal gradient descent. In the right panel a tuned power of two multiplies L for ZO-L-Katyusha,
which determines M and θ, and the step for the other methods. The best factor needs the fewest queries to the tolerance,
or comes nearest to it, on ``tuning_seeds``, which no figure uses (``tune``). The loss is much flatter at the iterates
than L suggests, so tuning gains much.

*Figure 2.* The accelerated two-point method (eq. 14) converges without a constraint and stalls in a box. The figure
explains why the paper reduces variance: without a constraint both ∇f and its two-point estimate vanish at the minimum;
in a box they do not. ZO-L-Katyusha in the box is our addition. Our choices where the paper gives no details: the
problem is ½ (x − c)ᵀ H (x − c) with eigenvalues of H in equal ratios and c standard normal, with and without a box. Eq.
14 is used with the sign + of the momentum (the paper prints −, which is drawn as well) and with the estimate of eq. 2
(the paper says "estimator (3)"); see ``AcceleratedZO``. Gaps are relative to the gap at the start.
"""

from __future__ import annotations

import dataclasses
from functools import lru_cache
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.harness.experiment import Experiment
from experiments.harness.verdicts import Verdict, judge, judge_pairs
from experiments.papers.katyusha import composite
from optimizers import ZOSVRG, AcceleratedZO, NesterovSpokoiny, Optimizer, ProjectedZO, ZOLKatyusha
from optimizers.comparison.records import Row, Rows, by_seed, where
from surrogates import plotting

KATYUSHA: dict[str, dict[str, Any]] = {
    "zo_l_katyusha": {"option": "I", "parameters": "corollary"},
    "zo_l_katyusha_ii": {"option": "II", "parameters": "theorem_1"},
    "zo_l_katyusha_full": {"batch_size": "full", "parameters": "corollary"},
    "zo_l_katyusha_full_ours": {"batch_size": "full", "parameters": "without_reference"},
}
PAPERS = ("zo_l_katyusha", "zo_l_katyusha_ii", "zo_l_katyusha_full")
"""The methods of the paper."""
METHODS = (*KATYUSHA, "zo_svrg", "projected_zo", "proximal_gradient")
STEPS = {"theory": "steps by theory", "tuned": "tuned steps"}


@dataclasses.dataclass(frozen=True)
class Fig1:
    """Settings of Figure 1.

    ``tuned`` has a factor for each of ``METHODS``, which multiplies L for ZO-L-Katyusha and the step for the others. A
    run with tuned steps makes ``tuned_queries`` queries. Gaps are compared at ``compared_at`` queries. A method has
    converged below ``reached`` and is stuck above ``stuck``.
    """

    dim: int = 40
    num_rows: int = 30
    mu: float = 0.02
    side: float = 0.5
    smoothing_radius: float = 1e-6
    problem_seed: int = 0
    max_queries: int = 30_000
    tuned_queries: int = 10_000
    every: int = 50
    keep: int = 5
    compared_at: int = 10_000
    tolerance: float = 1e-8
    reached: float = 1e-10
    stuck: float = 1e-5
    factor: float = 2.0
    tuned: tuple[float, ...] = (1 / 32, 1 / 64, 1 / 8, 1 / 8, 16.0, 0.5, 8.0)
    tuning_seeds: tuple[int, ...] = (1000, 1001, 1002)

    def budget(self, steps: str) -> int:
        """Returns the number of queries of a run with theoretical or tuned steps."""
        return self.tuned_queries if steps == "tuned" else self.max_queries


@lru_cache(maxsize=4)
def problem_of(settings: Fig1) -> composite.Composite:
    """Returns the problem that all trials share."""
    return composite.logistic(settings.dim, settings.num_rows, settings.mu, settings.side, settings.problem_seed)


def make(settings: Fig1, method: str, factor: float, seed: int, steps: str = "theory") -> Optimizer:
    """Creates an optimizer at x0 = 0 with theoretical steps times a factor."""
    problem = problem_of(settings)
    x0, options = composite.start_and_options(problem, settings.budget(steps), seed, settings.smoothing_radius)
    if method in KATYUSHA:
        return ZOLKatyusha(x0, smoothness=factor * problem.L, **KATYUSHA[method], **options)
    options |= {"smoothness": problem.L, "step_factor": factor}
    if method == "zo_svrg":
        return ZOSVRG(x0, **options)
    if method == "proximal_gradient":
        options |= {"estimator": "coordinates", "step_schedule": "constant"}
    return ProjectedZO(x0, **options)


def tune(settings: Fig1, method: str, factors: tuple[float, ...]) -> dict[float, tuple[float, float]]:
    """Returns for each factor the mean number of queries until the tolerance is met, and the mean last log10 gap."""
    found, problem = {}, problem_of(settings)
    for factor in factors:
        made = (make(settings, method, factor, seed) for seed in settings.tuning_seeds)
        runs = [composite.gaps(problem, optimizer, settings.every) for optimizer in made]
        queries = [composite.queries_until(run, settings.every, settings.tolerance) for run in runs]
        found[factor] = float(np.mean(queries)), float(np.mean([np.log10(run[-1]) for run in runs]))
    return found


def run_fig1(settings: Fig1, seed: int) -> Rows:
    """Runs one trial of all methods with theoretical and with tuned steps."""
    problem = problem_of(settings)
    rows: Rows = [
        {"seed": seed, "quantity": "kappa", "value": problem.kappa},
        {"seed": seed, "quantity": "active_share", "value": problem.active_share()},
    ]
    for steps in STEPS:
        for method, tuned in zip(METHODS, settings.tuned, strict=True):
            optimizer = make(settings, method, tuned if steps == "tuned" else 1.0, seed, steps)
            found = composite.gaps(problem, optimizer, settings.every)
            key: Row = {"seed": seed, "method": method, "steps": steps}
            rows += composite.gap_rows(key, found, settings.every, settings.keep)
            queries = composite.queries_until(found, settings.every, settings.tolerance)
            rows.append(key | {"quantity": "queries_until", "value": queries})
    return rows


def plot_fig1(settings: Fig1, rows: Rows) -> Figure:
    """Draws a panel for steps by theory and a panel for tuned steps."""
    floor = f"floor of the differences, β = {settings.smoothing_radius:g}"

    def draw(panel: Axes, steps: str) -> None:
        for method in METHODS:
            found = where(rows, quantity="gap", method=method, steps=steps)
            composite.draw_band(panel, found, method, every=10 if steps == "theory" else 4)
        panel.set_ylim(1e-15, None)  # room for the text below the floor
        corner: Any = {"xycoords": "axes fraction", "ha": "right", "va": "bottom"}
        panel.annotate(floor, (0.98, 0.02), fontsize=plotting.SMALL, color="0.35", **corner)
        panel.locator_params(axis="x", nbins=4)

    titles = {title: steps for steps, title in STEPS.items()}
    figure = plotting.grid(titles, draw, xlabel="queries", ylabel="F(x) − F*", height=2.2, sharey=True)
    problem = problem_of(settings)
    plotting.head(
        figure, f"box ±{settings.side:g}, {100 * problem.active_share():.0f}% active, κ = {problem.kappa:.0f}"
    )
    return figure


def claims_of_fig1(settings: Fig1, rows: Rows) -> list[Verdict]:
    """Judges the methods' order at equal queries, linear convergence, and the tuned methods against each other."""

    def log_gap(steps: str, method: str, at: int = settings.compared_at) -> np.ndarray:
        return np.log10(by_seed(rows, quantity="gap", method=method, steps=steps, num_queries=at))

    def ratio(better: str, worse: str, steps: str = "tuned") -> np.ndarray:
        least, most = (by_seed(rows, quantity="queries_until", method=m, steps=steps) for m in (better, worse))
        return np.log10(most / least)

    def last(method: str) -> dict[str, np.ndarray]:
        label = plotting.METHODS[method].label
        return {f"{label}, {steps}": log_gap(steps, method, settings.budget(steps)) for steps in STEPS}

    at, to = f"at {settings.compared_at:,} queries", f"queries to {settings.tolerance:g}"
    verdicts = judge_pairs(
        [(method, "zo_svrg", False) for method in PAPERS] + [("zo_svrg", "projected_zo", False)],
        f"{{}} has a smaller gap than {{}} {at}, with steps by theory",
        "lead in log10 of the gap",
        lambda steps, method: -log_gap(steps, method),
        {"theory": "theory"},
        above=0.0,
    )
    converged = {label: gap for method in PAPERS for label, gap in last(method).items()}
    stuck = {label.rpartition(", ")[2]: gap for label, gap in last("projected_zo").items()}
    others = ("zo_svrg", "proximal_gradient")
    tuned, plain = ({f"{method} against {other}": ratio(method, other) for method in PAPERS} for other in others)
    alike = {steps: ratio("zo_l_katyusha_ii", "zo_l_katyusha", steps) for steps in STEPS}
    ours = {steps: ratio("zo_l_katyusha_full_ours", "zo_l_katyusha_full", steps) for steps in STEPS}
    fewer = f"with tuned steps ZO-L-Katyusha needs fewer {to}"
    logs, log_ratio = "log10 of the last gap", "log10 of the ratio"
    linear = f"ZO-L-Katyusha converges linearly to {settings.reached:g}"
    nearest = f"projected ZO stays above a gap of {settings.stuck:g} for the whole budget"
    within = f"options I and II need equally many {to}, within a factor of {settings.factor:g}"
    bar = float(np.log10(settings.factor))
    differences = f"{fewer} than proximal gradient descent with differences"
    without = f"the (d+1)-point version needs fewer {to} without weight on w than with the printed one"
    return [
        *verdicts,
        judge(linear, logs, converged, below=float(np.log10(settings.reached))),
        judge(nearest, logs, stuck, above=float(np.log10(settings.stuck))),
        judge(fewer, log_ratio, tuned, above=0.0),
        judge(within, log_ratio, alike, above=-bar, below=bar, control=True),
        judge(differences, log_ratio, plain, above=0.0, control=True),
        judge(without, log_ratio, ours, above=0.0, control=True),
    ]


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
class Fig2:
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
def problems_of(settings: Fig2) -> dict[str, composite.Composite]:
    """Returns the problem without and with the box."""
    sides = {"unconstrained": None, "box": settings.side}
    return {
        name: composite.quadratic(settings.dim, settings.kappa, side, settings.problem_seed)
        for name, side in sides.items()
    }


def run_fig2(settings: Fig2, seed: int) -> Rows:
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


def plot_fig2(settings: Fig2, rows: Rows) -> Figure:
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


def claims_of_fig2(settings: Fig2, rows: Rows) -> list[Verdict]:
    """Judges convergence without the box, the stall in the box, and ZO-L-Katyusha in the box."""

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


EXPERIMENTS = (
    Experiment(
        id="katyusha-fig1",
        shows="gap against queries of ZO-L-Katyusha and its baselines, logistic regression in a box",
        claim="ZO-L-Katyusha converges linearly on a composite problem, faster than ZO-SVRG and projected ZO.",
        scales={
            "paper": Fig1(),
            "quick": Fig1(dim=8, num_rows=12, max_queries=600, tuned_queries=400, compared_at=400, every=25, keep=2),
        },
        run_seed=run_fig1,
        plot=plot_fig1,
        caption=composite.BANDS,
        claims=claims_of_fig1,
        seeds={"quick": 3, "reduced": 20, "paper": 50},
    ),
    Experiment(
        id="katyusha-fig2",
        shows="accelerated two-point descent (eq. 14) without a constraint and in a box",
        claim="Accelerated two-point descent converges linearly without a constraint; in a box it stalls.",
        scales={"paper": Fig2(), "quick": Fig2(dim=6, kappa=10.0, max_queries=600, every=50)},
        run_seed=run_fig2,
        plot=plot_fig2,
        caption=composite.BANDS,
        claims=claims_of_fig2,
        seeds=50,
    ),
)
