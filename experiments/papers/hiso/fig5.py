"""HiSo, Figure 5: the weight ν of the Hessian's update, HiSo against DeComFL, and the learned H in sorted order.

Beside the paper's curves stand two controls. *Scalar H*: one number in the place of H. *χ²*: the same H-update fed
with the run's own scalars along unrelated directions. If H holds curvature it must beat the scalar, correlate with
the loss's squared gradient, and differ from χ². Readings: see ``experiments.papers.hiso.training``; MNIST's stand-in is
scikit-learn's digits with a small MLP (``network="cnn"``: a small CNN).
"""

from __future__ import annotations

import dataclasses

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy.stats import spearmanr

from experiments.harness import style
from experiments.harness.experiment import Experiment
from experiments.harness.records import Row, Rows, by_seed, curve, seeds_of, where
from experiments.harness.verdicts import Verdict, judge
from experiments.papers.hiso.controls import noise_hessian
from experiments.papers.hiso.training import Digits, check, last, rounds_to_target, train

SHADES = (style.INDIGO, style.BLUE, style.PURPLE, style.WINE, style.OLIVE)
NOISE_SEED = 1 << 40


@dataclasses.dataclass(frozen=True)
class Settings(Digits):
    """What Figure 5 is drawn with; ``weight`` is the ν of everything but the ablation."""

    weight: float = 0.05
    weights: tuple[float, ...] = (0.01, 0.05, 0.1, 0.5)
    quantiles: int = 100


def run_seed(settings: Settings, seed: int) -> Rows:
    """All runs on the seed's data, and H of the main one beside χ² and the squared gradient."""
    rows: Rows = []
    none: Row = {"nu": 0.0, "index": 0}
    rows += train(settings, "decomfl", seed, none).rows
    main: Row = {"nu": settings.weight, "index": 0}
    scalar = train(settings, "hiso_scalar", seed, main, hessian_weight=settings.weight)
    level = float(scalar.server.state.model.vectors()["hessian"][0])
    end: Row = {"seed": seed, "method": "hiso_scalar", **main, "round": settings.rounds}
    rows += [*scalar.rows, end | {"quantity": "scalar_hessian", "value": level}]
    for nu in sorted({settings.weight, *settings.weights}):
        key: Row = {"nu": nu, "index": 0}
        run = train(settings, "hiso", seed, key, hessian_weight=nu)
        rows += run.rows
        if nu != settings.weight:
            continue
        model = run.server.state.model
        hessian = model.vectors()["hessian"].double().numpy()
        noise = noise_hessian(run.server, seed + NOISE_SEED).double().numpy()
        slope = run.train.gradient(run.server.x).double().numpy() ** 2
        found: Row = {"seed": seed, "method": "hiso", **key, "round": settings.rounds}
        levels = np.linspace(0.0, 1.0, settings.quantiles)
        for name, values in (("hessian", hessian), ("chi2", noise)):
            for i, value in enumerate(np.quantile(values, levels)[::-1]):
                rows.append(found | {"quantity": name, "index": i, "value": value})
            contrast = np.log10(np.quantile(values, 0.95) / np.quantile(values, 0.05))
            rows.append(found | {"quantity": f"{name}_contrast", "value": contrast})
        rank = spearmanr(hessian, slope).statistic
        rows.append(found | {"quantity": "rank_correlation", "value": rank})
    return rows


def plot(settings: Settings, rows: Rows) -> Figure:
    """Accuracy and loss over rounds, and sorted H."""
    figure, axes = style.panels(1, 3, width=3.8, height=3.2)
    accuracy, loss, spectrum = axes[0]
    for panel, quantity in ((accuracy, "accuracy"), (loss, "loss")):
        _draw_curves(settings, panel, where(rows, quantity=quantity))
        panel.set_xlabel("round")
        panel.set_ylabel({"accuracy": "test accuracy", "loss": "training loss"}[quantity])
    index = np.linspace(0.0, 1.0, settings.quantiles)
    for name, label, color, line in (
        ("hessian", "learned H", style.BLUE, "-"),
        ("chi2", "χ²: the same scalars, unrelated directions", style.VERMILION, "--"),
    ):
        found = curve(where(rows, quantity=name), "index")
        spectrum.plot(index, found.mean, color=color, ls=line, label=label)
    scalar = by_seed(rows, quantity="scalar_hessian").mean()
    look = style.METHODS["hiso_scalar"]
    spectrum.plot([0.0, 1.0], [scalar, scalar], color=look.color, ls=look.line, label="scalar H")
    spectrum.set_yscale("log")
    spectrum.set_xlabel("coordinates in descending order of H, as a share")
    spectrum.set_ylabel("H, mean of seeds")
    spectrum.legend(fontsize="small")
    style.shared_legend(figure, accuracy, 3)
    return figure


def _draw_curves(settings: Settings, panel: Axes, rows: Rows) -> None:
    style.draw(panel, "decomfl", curve(where(rows, method="decomfl"), "round"))
    style.draw(panel, "hiso_scalar", curve(where(rows, method="hiso_scalar"), "round"))
    for nu, color in zip(sorted({settings.weight, *settings.weights}), SHADES, strict=False):
        found = curve(where(rows, method="hiso", nu=nu), "round")
        panel.plot(found.x, found.mean, color=color, ls="-.", label=f"HiSo, ν = {nu:g}")
        low, high = found.mean - found.standard_error, found.mean + found.standard_error
        panel.fill_between(found.x, low, high, color=color, alpha=0.12, lw=0)


def claims(settings: Settings, rows: Rows) -> list[Verdict]:
    """HiSo against DeComFL and the scalar, ν, and whether H is curvature."""
    seeds = seeds_of(rows)
    accuracy, loss = (where(rows, quantity=q) for q in ("accuracy", "loss"))
    main: dict[str, str | float] = {"method": "hiso", "nu": settings.weight}

    def log_loss(**conditions: str | float) -> np.ndarray:
        return np.log10(last(settings, loss, "loss", **conditions))

    def speed(**conditions: str | float) -> np.ndarray:
        return np.log10(rounds_to_target(settings, accuracy, **conditions))

    def found(quantity: str) -> np.ndarray:
        return by_seed(rows, quantity=quantity)

    tenth = np.log10(1.1)
    small = {
        f"ν={nu:g}": log_loss(method="hiso", nu=nu) - log_loss(**main)
        for nu in settings.weights
        if nu != settings.weight and nu <= 0.1
    }
    return [
        judge(
            "HiSo ends with a lower loss than DeComFL",
            "log10 of the ratio of the losses",
            {"": log_loss(**main) - log_loss(method="decomfl")},
            seeds,
            below=0.0,
        ),
        judge(
            f"HiSo needs fewer rounds than DeComFL to accuracy {settings.target:g}",
            "log10 of the ratio of the rounds",
            {"": speed(**main) - speed(method="decomfl")},
            seeds,
            below=0.0,
        ),
        judge(
            "ν up to 0.1 changes the loss by less than a tenth",
            "log10 of the ratio of the losses",
            small,
            seeds,
            above=-tenth,
            below=tenth,
        ),
        judge(
            "HiSo ends with a lower loss than one number in the place of H",
            "log10 of the ratio of the losses",
            {"": log_loss(**main) - log_loss(method="hiso_scalar")},
            seeds,
            below=0.0,
            control=True,
        ),
        judge(
            "H is in the order of the loss's squared gradient",
            "Spearman's rank correlation",
            {"": found("rank_correlation")},
            seeds,
            above=0.2,
            control=True,
        ),
        judge(
            "H is spread wider over coordinates than χ² noise is, by more than a tenth",
            "log10 of the ratio of their 95%/5% contrasts",
            {"": found("hessian_contrast") - found("chi2_contrast")},
            seeds,
            above=tenth,
            control=True,
        ),
    ]


EXPERIMENT = Experiment(
    id="hiso-fig5",
    source="HiSo, Fig. 5",
    shows="HiSo for several ν against DeComFL and a scalar H on MNIST, and the learned H against χ² noise",
    claim="HiSo is faster than DeComFL, hardly depends on ν, and learns a long-tailed H.",
    scales={
        "paper": Settings(),
        "reduced": Settings(rounds=500, target=0.6, weights=(0.01, 0.05, 0.5)),
        "quick": Settings(clients=6, participants=2, rounds=6, every=3, weights=(0.05, 0.1), quantiles=20),
    },
    run_seed=run_seed,
    plot=plot,
    claims=claims,
    seeds={"reduced": 5, "paper": 10},
    extra="experiments",
    data=("mnist",),
    check=check,
    stand_in="scikit-learn's digits for MNIST, a small MLP for the CNN",
    cost={"paper": "15 min", "reduced": "3 min"},
)
