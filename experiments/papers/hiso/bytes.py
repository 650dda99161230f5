"""HiSo, Tables 2 and 5 and Figure 6: what is communicated.

Measured: the ledger of small federations at several dimensions d; a round of a client, from the second round on (round
r's mean scalars go down with round r + 1, so that R rounds of HiSo cost 40R − 20 bytes). Computed: the same rule at the
sizes that the paper's models are named by. Checked: whether some of the paper's numbers (``accounting.CELLS``) are
whole numbers of such rounds. The paper prints that they are of a single client and that P = 5, but not what a round
costs. Read from its Table 2's rounds and bytes: the perturbations' scalars up and down in 4-byte numbers, no seeds,
though its algorithm sends them, and KB = 1024 bytes. How many rounds a method needs is accuracy, which ``hiso-table2``
and ``hiso-table5`` measure on stand-ins.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor

from experiments.harness import style
from experiments.harness.experiment import Experiment
from experiments.harness.records import Row, Rows, by_seed, seeds_of
from experiments.harness.verdicts import Verdict, judge
from experiments.papers.hiso.accounting import CELLS, METHODS, MODELS, SCALAR_ONLY, bytes_a_round, miss
from federated import make_federation


@dataclasses.dataclass(frozen=True)
class Settings:
    """What is measured.

    Attributes:
        dims: d.
        clients: N.
        perturbations: P; the paper's tables have 5.
        rounds: R.
    """

    dims: tuple[int, ...] = (10, 100, 1000)
    clients: int = 2
    perturbations: int = 5
    rounds: int = 4


@dataclasses.dataclass(frozen=True)
class Bowl:
    """‖x − c‖² for a centre c in every coordinate, with its gradient."""

    centre: float

    def __call__(self, x: Tensor) -> Tensor:
        """The value at x."""
        return (x - self.centre).square().sum()

    def gradient(self, x: Tensor) -> Tensor:
        """2(x − c)."""
        return 2.0 * (x - self.centre)


def run_seed(settings: Settings, seed: int) -> Rows:
    """The ledger of every method at every dimension, and the model's loss as a sign of life."""
    rows: Rows = []
    for d in settings.dims:
        bowls = [Bowl(float(i)) for i in range(settings.clients)]
        x0 = 0.1 * torch.randn(d, generator=torch.Generator().manual_seed(seed), dtype=torch.float32)
        for method in METHODS:
            options: dict[str, Any] = {"local_steps": 1, "seed": seed}
            if method in SCALAR_ONLY:
                options |= {"perturbations": settings.perturbations, "rate": 1.0 / (4.0 * d)}
            federation = make_federation(method, bowls, x0, **options)
            for _ in range(settings.rounds):
                federation.run_round()
            key: Row = {"seed": seed, "method": method, "d": d}
            for r in range(2, settings.rounds + 1):
                both = [federation.ledger.total(f"payload_{way}", round=r, client=0) for way in ("up", "down")]
                rows.append(key | {"quantity": "bytes", "round": r, "value": sum(both)})
            loss = float(sum(bowl(federation.server.x) for bowl in bowls)) / d
            rows.append(key | {"quantity": "loss", "round": settings.rounds, "value": loss})
    return rows


def plot(settings: Settings, rows: Rows) -> Figure:
    """Bytes of a round at the models' sizes by the rule, and the measured ones against d."""
    figure, axes = style.panels(1, 2, width=4.4, height=3.4)
    bars, lines = axes[0]
    width = 0.8 / len(METHODS)
    for i, method in enumerate(METHODS):
        look = style.METHODS[method]
        heights = [bytes_a_round(method, d, settings.perturbations) for d in MODELS.values()]
        bars.bar(np.arange(len(MODELS)) + (i - 3) * width, heights, width, color=look.color, label=look.label)
        found = [by_seed(rows, quantity="bytes", method=method, d=d).mean() for d in settings.dims]
        lines.plot(settings.dims, found, color=look.color, marker=look.marker, ls=look.line)
    bars.set_xticks(range(len(MODELS)), list(MODELS))
    bars.set(yscale="log", xlabel="model, d as its name says", ylabel="bytes a round and client, computed")
    bars.set_ylim(bottom=1.0)
    lines.set(xscale="log", yscale="log", xlabel="dimension d", ylabel="bytes a round and client, measured")
    flat = bytes_a_round("hiso", 1, settings.perturbations)
    lines.text(0.04, 0.93, "8d: FedAvg and all that send vectors", transform=lines.transAxes)
    lines.text(0.04, 0.09, f"{flat}: HiSo, DeComFL", transform=lines.transAxes)
    style.shared_legend(figure, bars, 4)
    return figure


def claims(settings: Settings, rows: Rows) -> list[Verdict]:
    """Bytes of a round, the paper's numbers as whole rounds, and its two comparisons."""
    seeds = seeds_of(rows)
    flat = bytes_a_round("hiso", 1, settings.perturbations)

    def all_seeds(value: float) -> np.ndarray:
        return np.full(len(seeds), float(value))

    def measured(scalar_only: bool) -> dict[str, np.ndarray]:
        return {
            f"{method} d={d}": by_seed(rows, quantity="bytes", method=method, d=d)
            - bytes_a_round(method, d, settings.perturbations)
            for method in METHODS
            if (method in SCALAR_ONLY) == scalar_only
            for d in settings.dims
        }

    hiso, decomfl = (next(CELLS[name] for name in CELLS if name.endswith(f", {m}")) for m in ("HiSo", "DeComFL"))
    return [
        judge(
            f"a round of HiSo or DeComFL is {flat} bytes a client, whatever d is",
            f"measured bytes − {flat}",
            measured(scalar_only=True),
            seeds,
            above=-0.5,
            below=0.5,
        ),
        judge(
            f"the paper's numbers are whole numbers of rounds of {flat} bytes, KB = 1024",
            "miss in the last printed digit",
            {name: all_seeds(miss(number, flat)) for name, number in CELLS.items()},
            seeds,
            below=0.5 + 1e-9,
        ),
        judge(
            "HiSo communicates less than DeComFL at OPT-1.3B on QQP, by the paper's Table 5",
            "HiSo's bytes over DeComFL's",
            {"": all_seeds(hiso / decomfl)},
            seeds,
            below=1.0,
        ),
        judge(
            "HiSo communicates 90 million times less than FedZO, at equal rounds",
            "log10 of FedZO's bytes over HiSo's",
            {name: all_seeds(np.log10(bytes_a_round("fedzo", d, 0) / flat)) for name, d in MODELS.items()},
            seeds,
            above=np.log10(9e7),
        ),
        judge(
            "a round of a vector method is 8d bytes a client",
            "measured bytes − 8d",
            measured(scalar_only=False),
            seeds,
            above=-0.5,
            below=0.5,
            control=True,
        ),
    ]


EXPERIMENT = Experiment(
    id="hiso-bytes",
    source="HiSo, Tables 2 and 5, Fig. 6",
    shows="bytes of a round and client: scalars against d-vectors, and the paper's numbers as whole rounds",
    claim="HiSo's communication does not depend on d: 40 bytes a round for P = 5.",
    scales={"paper": Settings(), "quick": Settings(dims=(3, 40), rounds=2)},
    run_seed=run_seed,
    plot=plot,
    claims=claims,
    seeds=2,
)
