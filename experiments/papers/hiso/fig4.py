"""HiSo, Figure 4: eigenvalues of a synthetic Hessian before and after whitening, and the constants of the rates.

200 eigenvalues λᵢ of Σ have log λᵢ ~ N(0, 3²); the paper prints N(0, 3I), and we take 3 as the standard deviation. With
L = max λᵢ the rate of random search depends on Ld in the worst case, on Tr Σ = Lκ with the effective rank κ = Tr Σ/L,
and along H^(−1/2)u on ζ = Tr(H^(−1/2) Σ H^(−1/2)). The ideal H = Σ + ε gives ζ = Σᵢ λᵢ/(λᵢ + ε), which depends mainly
on ε: ζ is near d if ε is below the eigenvalues. After whitening, the largest eigenvalue L is below 1, so Ld is below d.
The paper does not state ε; three values are shown. HiSo does not learn this ideal H: see ``hiso-fig5``.
"""

from __future__ import annotations

import dataclasses

import numpy as np
from matplotlib.figure import Figure

from experiments.harness.experiment import Experiment
from experiments.harness.verdicts import Verdict, judge
from optimizers.comparison.records import Row, Rows, by_seed, seeds_of, where
from surrogates import plotting

QUANTITIES = {"Ld": "Ld", "Lk": "Lκ", "zeta": "ζ"}
SHADES = ((plotting.SKY, "-."), (plotting.BLUE, "--"), (plotting.INDIGO, ":"))


@dataclasses.dataclass(frozen=True)
class Settings:
    """Settings of Figure 4: d, the standard deviation of log λ, and the values of ε."""

    dim: int = 200
    log_deviation: float = 3.0
    epsilons: tuple[float, ...] = (1e-3, 1.0, 10.0)


def whitened(eigenvalues: np.ndarray, epsilon: float) -> np.ndarray:
    """Returns λ/(λ + ε), the eigenvalues of H^(−1/2) Σ H^(−1/2) for H = Σ + εI."""
    return eigenvalues / (eigenvalues + epsilon)


def run_seed(settings: Settings, seed: int) -> Rows:
    """Records one spectrum before (``epsilon`` 0) and after whitening, and the constants of the rates."""
    generator = np.random.default_rng(seed)
    eigenvalues = np.sort(np.exp(settings.log_deviation * generator.standard_normal(settings.dim)))[::-1]

    def records(quantity: str, epsilon: float, *values: float) -> Rows:
        key: Row = {"seed": seed, "epsilon": epsilon}
        return [key | {"index": i, "quantity": quantity, "value": value} for i, value in enumerate(values)]

    rows = records("eigenvalue", 0.0, *eigenvalues)
    rows += records("Ld", 0.0, eigenvalues[0] * settings.dim) + records("Lk", 0.0, eigenvalues.sum())
    for epsilon in settings.epsilons:
        after = whitened(eigenvalues, epsilon)
        rows += records("zeta", epsilon, after.sum()) + records("eigenvalue", epsilon, *after)
    return rows


def plot(settings: Settings, rows: Rows) -> Figure:
    """Draws the spectra of the first seed, and the three constants over seeds."""
    figure, axes = plotting.panels(1, 2, height=2.2)
    spectra, levels = axes[0]
    first = where(rows, seed=seeds_of(rows)[0], quantity="eigenvalue")
    looks = {0.0: (plotting.BLACK, "-", "Σ")}
    for epsilon, (color, line) in zip(settings.epsilons, SHADES, strict=False):
        looks[epsilon] = (color, line, f"whitened, ε = {epsilon:g}")
    for epsilon, (color, line, label) in looks.items():
        values = [float(row["value"]) for row in where(first, epsilon=epsilon)]
        spectra.plot(range(1, len(values) + 1), values, color=color, ls=line, label=label)
    spectra.set(yscale="log", xlabel="index, in descending order", ylabel="eigenvalue")
    bars = [("Ld", 0.0), ("Lk", 0.0), *(("zeta", epsilon) for epsilon in settings.epsilons)]
    for i, (quantity, epsilon) in enumerate(bars):
        found = np.log10(by_seed(rows, quantity=quantity, epsilon=epsilon))
        levels.plot(np.full(len(found), i), 10**found, ".", color=looks[epsilon][0], alpha=0.6)
        levels.plot(i, 10 ** np.median(found), "_", ms=22, color=looks[epsilon][0])
    names = [QUANTITIES[q] + (f"\nε = {e:g}" if q == "zeta" else "") for q, e in bars]
    levels.set_xticks(range(len(bars)), names)
    levels.set(yscale="log", xlabel="factor in the bound on the rate", ylabel="value of the factor")
    levels.set_xlim(-0.6, len(bars) - 0.4)
    plotting.shared_legend(figure, spectra)
    return figure


def claims(settings: Settings, rows: Rows) -> list[Verdict]:
    """Judges ζ against Lκ, Lκ against Ld, and the dependence of ζ on ε."""

    def log(quantity: str, epsilon: float = 0.0) -> np.ndarray:
        return np.log10(by_seed(rows, quantity=quantity, epsilon=epsilon))

    smallest, largest = min(settings.epsilons), max(settings.epsilons)
    cells = {f"ε={e:g}": log("Lk") - log("zeta", e) for e in settings.epsilons}
    driven = log("zeta", smallest) - log("zeta", largest)
    return [
        judge("Lκ is below a tenth of Ld", "log10 of Ld/(Lκ)", {"": log("Ld") - log("Lk")}, above=1.0),
        judge("ζ is below a tenth of Lκ", "log10 of Lκ/ζ", cells, above=1.0),
        judge(
            f"ζ depends mainly on ε: from ε = {smallest:g} to {largest:g} it falls by more than a factor of 2",
            "log10 of the factor",
            {"": driven},
            above=np.log10(2.0),
            control=True,
        ),
    ]


EXPERIMENT = Experiment(
    id="hiso-fig4",
    shows="a synthetic spectrum before and after whitening, with Ld, Lκ and ζ",
    claim="After whitening by an ideal H the rate depends on ζ, which is far below Lκ and Ld.",
    scales={"paper": Settings(), "quick": Settings(dim=50)},
    run_seed=run_seed,
    plot=plot,
    caption="Left: spectra of the first seed. Right: each dot is a seed; bars are medians.",
    claims=claims,
    seeds=20,
)
