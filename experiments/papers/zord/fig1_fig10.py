"""ZoRD, Figures 1 and 10: the derived GP of a function in one dimension, with its band.

A function drawn from a GP with squared-exponential kernel is queried with noise. Figure 1 shows the posterior of the
value (top) and of the derivative (bottom) for growing numbers n of queries over the whole domain. Curves are of the
first seed; the verdicts use all seeds. Figure 10 compares the derived GP of queries in a window, [0, 3], with the GP of
equally many in the whole domain, [−6, 6]. The panels show the first seed's function and derivative at the smallest
n, and two errors against n: the derivative's error over the window and the function's error over the domain, each in
prior standard deviations. The paper recovers the local derivative from 4 queries and the function from more than 8.

Our choices where the paper gives no details: lengthscale 1, outputscale 1, noise standard deviation 0.05. Queries of
Figure 1 are uniform over ten lengthscales; those of Figure 10 are uniform in the window and in the domain. A larger n
adds queries. The function and its derivative are drawn jointly, so the truth is exact. The surrogate uses the prior
that the function is drawn from, so its band should be calibrated.
"""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from experiments.harness.curves import matrix
from experiments.harness.experiment import Experiment
from experiments.harness.records import points
from experiments.harness.verdicts import Verdict, judge, never
from experiments.workloads.prior_draws import draw_values_and_gradients
from optimizers.comparison.records import Row, Rows, by_seed, mean_curve, seeds_of, where
from surrogates import DerivedGP, gaussian_likelihood, plotting, rbf_kernel
from surrogates.plotting import MethodStyle

Interval = tuple[float, float]
CURVES = {"function": "f(x)", "derivative": "f′(x), per lengthscale"}
"""Labels of the two estimated quantities."""


@dataclasses.dataclass(frozen=True)
class Settings:
    """Settings of both figures; lengths in units of x.

    Attributes:
        domain: interval in which the function is drawn.
        places: for each estimated quantity, the interval of its queries and of its error.
        num_queries: n.
        shown: the values of n whose curves are recorded.
        lengthscale: ℓ.
        noise_sd: standard deviation of the noise.
        grid: number of points on which curves and errors are computed.
        functions_per_seed: number of functions.
    """

    domain: Interval = (0.0, 10.0)
    places: tuple[tuple[str, Interval], ...] = (("derivative", (0.0, 10.0)),)
    num_queries: tuple[int, ...] = (3, 6, 9, 12)
    shown: tuple[int, ...] = (3, 6, 9, 12)
    lengthscale: float = 1.0
    noise_sd: float = 0.05
    grid: int = 161
    functions_per_seed: int = 10


def posteriors(settings: Settings, x: Tensor, y: Tensor, grid: Tensor) -> dict[str, Tensor]:
    """Returns mean and standard deviation on the grid of the function and of its derivative, from queries x."""
    model = DerivedGP(
        x.unsqueeze(-1),
        y.unsqueeze(-1),
        likelihood=gaussian_likelihood(settings.noise_sd**2),
        covar_module=rbf_kernel(settings.lengthscale),
        outcome_transform=None,
    ).eval()
    lines: dict[str, Tensor] = {}
    with torch.no_grad():
        for name, evaluate in zip(CURVES, (model.posterior, model.gradient_posterior), strict=True):
            found = evaluate(grid.unsqueeze(-1))
            lines |= {f"{name} mean": found.mean[:, 0], f"{name} sd": found.variance[:, 0].sqrt()}
    return lines


def run_seed(settings: Settings, seed: int) -> Rows:
    """Records each estimate's squared error in prior variances, its coverage, and how often its variance rises with n.

    The function also records the curves of the first draw.
    """
    generator, most = torch.Generator().manual_seed(seed), max(settings.num_queries)
    grid, places = torch.linspace(*settings.domain, settings.grid, dtype=torch.float64), dict(settings.places)
    unit = {"function": 1.0, "derivative": 1.0 / settings.lengthscale}
    rows: Rows = []
    for function in range(settings.functions_per_seed):
        uniform = torch.rand(len(places), most, generator=generator, dtype=torch.float64)
        queries = torch.cat([a + (b - a) * u for (a, b), u in zip(places.values(), uniform, strict=True)])
        everywhere = torch.cat([queries, grid]).unsqueeze(-1)
        values, slopes = draw_values_and_gradients("rbf", settings.lengthscale, everywhere, 1, generator)
        noise = settings.noise_sd * torch.randn(len(queries), generator=generator, dtype=torch.float64)
        observed, f = (values[0] + torch.nn.functional.pad(noise, (0, len(grid)))).split([len(queries), len(grid)])
        truth = {"function": f, "derivative": slopes[0, len(queries) :, 0]}
        for (name, (a, b)), x, y in zip(places.items(), queries.split(most), observed.split(most), strict=True):
            inside, before = (grid >= a) & (grid <= b), torch.full_like(grid, torch.inf)
            for n in settings.num_queries:
                found = posteriors(settings, x[:n], y[:n], grid)
                error, sd = (found[f"{name} mean"] - truth[name])[inside], found[f"{name} sd"]
                measured = {
                    "squared_error": float((error / unit[name]).square().mean()),
                    "coverage": float((error.abs() <= 1.96 * sd[inside]).double().mean()),
                    "rises": int((sd.square() > before + 1e-9).sum()),
                }
                before = sd.square()
                key: Row = {"seed": seed, "function": function, "of": name, "num_queries": n}
                rows += [key | {"quantity": quantity, "value": value} for quantity, value in measured.items()]
                if not function and n in settings.shown:
                    lines = {quantity: (grid, line) for quantity, line in (truth | found).items()}
                    for quantity, (at, line) in (lines | {"query": (x[:n], y[:n])}).items():
                        pairs = zip(at.tolist(), line.tolist(), strict=True)
                        rows += [key | {"quantity": quantity, "x": each, "value": value} for each, value in pairs]
    return rows


def _draw_posterior(axes: Axes, name: str, rows: Rows) -> None:
    """Draws truth, posterior and queries: the queries are dots in a panel of the function and ticks in the other."""
    x, mean = points(rows, f"{name} mean")
    sd, color = points(rows, f"{name} sd")[1], plotting.METHODS["derived_gp"].color
    axes.fill_between(x, mean - 2 * sd, mean + 2 * sd, color=color, alpha=0.2, lw=0, label="mean ± 2 sd")
    axes.plot(x, mean, color=color, label="posterior mean")
    axes.plot(*points(rows, name), color=plotting.BLACK, ls="--", lw=1.2, label="truth")
    queries, values = points(rows, "query")
    if name == "function":
        axes.plot(queries, values, "o", color=plotting.BLACK, label="noisy query")
    else:
        axes.plot(queries, np.zeros(len(queries)), "|", color=plotting.BLACK, ms=9)


def plot_fig1(settings: Settings, rows: Rows) -> Figure:
    """Draws the first seed's first function (top) and its derivative (bottom), a column for each number of queries."""
    first = where(rows, seed=seeds_of(rows)[0], function=0)
    columns = {f"n = {n} queries": where(first, num_queries=n) for n in settings.shown}
    labels: dict[str, Any] = {"xlabels": "x (in lengthscales)", "ylabels": [*CURVES.values()]}
    return matrix([*CURVES], columns, _draw_posterior, height=1.6, sharex=True, sharey="row", **labels)


def errors(settings: Settings, rows: Rows, name: str) -> list[np.ndarray]:
    """Returns the root mean square error over functions for each number of queries, one number per seed."""
    chosen = where(rows, of=name, quantity="squared_error")
    return [np.sqrt(by_seed(chosen, num_queries=n)) for n in settings.num_queries]


def plot_fig10(settings: Settings, rows: Rows) -> Figure:
    """Draws the function from queries everywhere, the derivative from queries in the window, and both errors."""
    figure, axes = plotting.panels(1, 3, height=2.1)
    first, n = where(rows, seed=seeds_of(rows)[0]), min(settings.num_queries)
    window, error = dict(settings.places)["derivative"], axes[0, 2]
    for panel, (name, label) in zip(axes[0], CURVES.items(), strict=False):
        panel.axvspan(*window, color="#EEEEEE", lw=0, label="window")
        _draw_posterior(panel, name, where(first, of=name))
        title = f"{name}, {n} {'queries' if name == 'function' else 'in the window'}"
        panel.set(title=title, xlabel="x (in lengthscales)", ylabel=label)
    function = MethodStyle("function", plotting.VERMILION, "s", "--")
    for look in (function, MethodStyle("derivative", plotting.BLUE, "o")):
        plotting.draw(error, look, mean_curve(settings.num_queries, errors(settings, rows, look.label)))
    error.set(title="error", xlabel="queries n", ylabel="RMS error / prior sd", ylim=(0, None))
    error.legend(loc="upper right")
    plotting.shared_legend(figure, axes[0, 0])
    return figure


def claims_of_fig1(settings: Settings, rows: Rows) -> list[Verdict]:
    """Judges whether the error falls with n, the band is calibrated and the variance never rises."""
    counts, found = settings.num_queries, errors(settings, rows, "derivative")
    steps = itertools.pairwise(zip(counts, found, strict=True))
    falls = {f"n={few} to {many}": before - after for (few, before), (many, after) in steps}
    shares = {f"n={n}": by_seed(rows, quantity="coverage", num_queries=n) for n in counts}
    rises = np.sum([by_seed(rows, quantity="rises", num_queries=n) for n in counts], axis=0)
    trials = np.full(len(rises), settings.grid * (len(counts) - 1))
    band = "the 95% band contains the true derivative with its nominal frequency, to 5 points"
    fall, share = "decrease of the root mean square error", "share of x where it does"
    never_rises = "the derivative's variance never rises as queries are added"
    return [
        judge("the derivative's error falls as queries are added", fall, falls, above=0.0),
        judge(band, share, shares, above=0.9, below=1.0),
        never(never_rises, share, settings.functions_per_seed * rises, settings.functions_per_seed * trials),
    ]


def claims_of_fig10(settings: Settings, rows: Rows) -> list[Verdict]:
    """Judges the local derivative against the function with equal and with twice as many queries."""
    unit, few, error = "in prior standard deviations", min(settings.num_queries), "root mean square error"
    local, whole = (
        dict(zip(settings.num_queries, errors(settings, rows, name), strict=True))
        for name in ("derivative", "function")
    )
    gaps = {f"n={n}": whole[n] - local[n] for n in settings.num_queries}
    twice = {f"n={few} against {n}": whole[n] - local[few] for n in settings.num_queries if n == 2 * few}
    better = "the local derivative is more accurate than the function at equal queries"
    accurate = f"from {few} queries the local derivative is accurate: its error is below half of the prior's"
    fewer = f"the local derivative from {few} queries is more accurate than the function from {2 * few}"
    return [
        judge(better, f"{error}, function minus derivative, {unit}", gaps, above=0.0),
        judge(accurate, f"{error} of the local derivative, {unit}", {"": local[few]}, below=0.5),
        judge(fewer, f"{error}, function minus derivative, {unit}", twice, above=0.0),
    ]


FIG10 = Settings(
    domain=(-6.0, 6.0),
    places=(("function", (-6.0, 6.0)), ("derivative", (0.0, 3.0))),
    num_queries=(4, 6, 8, 10, 12),
    shown=(4,),
)

EXPERIMENTS = (
    Experiment(
        id="zord-fig1",
        shows=lambda settings: (
            "derived GP of a function in one dimension, with its band, for n = "
            + ", ".join(map(str, settings.num_queries))
        ),
        claim="The derived GP estimates the derivative from values alone, with a band that shrinks as queries are "
        "added.",
        scales={
            "paper": Settings(),
            "quick": Settings(num_queries=(3, 6), shown=(3, 6), grid=21, functions_per_seed=3),
        },
        run_seed=run_seed,
        plot=plot_fig1,
        caption="One function of the first seed, with the posterior's mean and a band of two standard deviations.",
        claims=claims_of_fig1,
    ),
    Experiment(
        id="zord-fig10",
        shows=lambda settings: (
            "error of the local derivative and of the function at equal queries, n = "
            + ", ".join(map(str, settings.num_queries))
        ),
        claim="The derived GP estimates a local derivative from fewer queries than the GP needs for all of a function.",
        scales={"paper": FIG10, "quick": dataclasses.replace(FIG10, num_queries=(4, 8), grid=33, functions_per_seed=3)},
        run_seed=run_seed,
        plot=plot_fig10,
        caption="Left and middle: a function of the first seed and its derivative, with the posterior's mean and a "
        "band of two standard deviations. Right: means over seeds; bands show ± one standard error.",
        claims=claims_of_fig10,
    ),
)
