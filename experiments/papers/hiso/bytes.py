"""HiSo, Tables 2 and 5 and Figure 6: the communication cost.

We measure the bytes of a client's round, from the second round on, in the ledgers of small federations at several
dimensions d. (Round r's mean scalars are sent with round r + 1, so R rounds of HiSo cost 40R − 20 bytes.) The figure
also shows the bytes that the rule of ``accounting`` gives at the nominal sizes of the paper's models.

Comparisons between the paper's numbers and its sentences are controls, because they need no run:

* *Whole rounds*: every KB of HiSo and DeComFL in Tables 2 and 5 (``accounting.CELLS``). The paper prints that the
  numbers refer to a single client and that P = 5, but not the cost of a round. From the rounds and bytes of Table 2 we
  infer P scalars up and down in 4-byte numbers, no seeds (although its algorithm sends them), and KB = 1024 bytes. By
  chance, about one in four numbers with two decimals is this close to a multiple of 40 bytes.
* *Savings* (``accounting.claims_on_savings``): we take the total bytes of Sec. 6 from Table 5, SST-2, in powers of
  1,024. With powers of 1,000 FedZO with OPT-350M also falls short of "over 40 million times".
* *DeComFL*: Appx. F.3 says about Table 5 that HiSo has "less communication overhead".

``hiso-table2``, ``hiso-table5`` and ``hiso-fig6`` measure on stand-ins how many rounds a method needs.
"""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor

from experiments.harness.experiment import Experiment
from experiments.harness.verdicts import Table, Verdict, judge
from experiments.papers.hiso import accounting
from experiments.papers.hiso.accounting import METHODS, MODELS, SCALAR_ONLY, bytes_a_round, bytes_in_table_5
from federated import make_federation
from optimizers.comparison.records import Row, Rows, by_seed
from surrogates import plotting

LAST_DIGIT = "distance in units of the last printed digit"
HALF = 0.5 + 1e-9
"""Largest distance between a number and its rounded value, in units of the last digit."""


@dataclasses.dataclass(frozen=True)
class Settings:
    """Settings of the measurement.

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

    def bytes_a_round(self, method: str, d: int = 1) -> int:
        """Returns the bytes of a client's round by the rule of ``accounting``."""
        return bytes_a_round(method, d, self.perturbations)


@dataclasses.dataclass(frozen=True)
class Bowl:
    """‖x − c‖² with the same center c in every coordinate, and its gradient."""

    center: float

    def __call__(self, x: Tensor) -> Tensor:
        """Returns the value at x."""
        return (x - self.center).square().sum()

    def gradient(self, x: Tensor) -> Tensor:
        """Returns 2(x − c)."""
        return 2.0 * (x - self.center)


def run_seed(settings: Settings, seed: int) -> Rows:
    """Records the ledger of every method at every dimension, and the loss, which shows that the model is trained."""
    rows: Rows = []
    bowls = [Bowl(float(i)) for i in range(settings.clients)]
    for d, method in itertools.product(settings.dims, METHODS):
        x0 = 0.1 * torch.randn(d, generator=torch.Generator().manual_seed(seed), dtype=torch.float32)
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
    """Draws the measured bytes of a round against d, and the rule's bytes at the sizes of the paper's models."""
    figure, axes = plotting.panels(1, 1, height=2.3, width=plotting.PAGE)
    panel = axes[0, 0]
    sizes = [*settings.dims, *MODELS.values()]
    for scalar, look in ((False, plotting.METHODS["fedzo"]), (True, plotting.METHODS["hiso"])):
        methods = [method for method in METHODS if (method in SCALAR_ONLY) == scalar]
        names = ", ".join(plotting.METHODS[method].label for method in methods)
        rule = [settings.bytes_a_round(methods[0], d) for d in sizes]
        found = [np.mean([by_seed(rows, quantity="bytes", method=m, d=d) for m in methods]) for d in settings.dims]
        marks: Any = {"color": look.color, "marker": look.marker}
        panel.plot(sizes, rule, mfc="white", ls="-", lw=0.8, **marks)
        panel.plot(settings.dims, found, ls="", label=names, **marks)
    panel.set(xscale="log", yscale="log", xlabel="dimension d", ylabel="bytes a round and client")
    panel.set_ylim(settings.bytes_a_round("hiso") / 10, None)
    panel.plot([], [], color=plotting.BLACK, marker="o", ls="", label="measured")
    panel.plot([], [], color=plotting.BLACK, marker="o", ls="", mfc="white", label="computed for the paper's models")
    plotting.shared_legend(figure, panel)
    return figure


def title(place: accounting.Place) -> str:
    """Formats a cell of a table, such as ``OPT-1.3B SST-2 HiSo``."""
    model, task, method = place
    return f"{model} {task} {plotting.METHODS[method].label}"


def claims(settings: Settings, rows: Rows) -> list[Verdict]:
    """Judges the measured bytes of a round, whether the paper's bytes are whole rounds, and the savings it states."""
    flat = settings.bytes_a_round("hiso")

    def measured(claim: str, statistic: str, scalar_only: bool) -> Verdict:
        cells = {
            f"{m} d={d}": by_seed(rows, quantity="bytes", method=m, d=d) - settings.bytes_a_round(m, d)
            for m, d in itertools.product(METHODS, settings.dims)
            if (m in SCALAR_ONLY) == scalar_only
        }
        return judge(claim, statistic, cells, above=-0.5, below=0.5, control=not scalar_only)

    def printed(claim: str, statistic: str, cells: dict[str, float], below: float) -> Verdict:
        same = {label: np.full(2, value) for label, value in cells.items()}
        return judge(claim, statistic, same, below=below, control=True)

    def ratio(model: str, task: str, method: str, other: str) -> float:
        return bytes_in_table_5((model, task, method)) / bytes_in_table_5((model, task, other))

    whole = {f"{source} {title(place)}": accounting.miss(kb, flat) for (source, place), kb in accounting.CELLS.items()}
    of_rounds = {title(p): 100.0 * abs(rounds * flat / 1024 - kb) for p, (rounds, kb) in accounting.TABLE_2.items()}
    less = {f"{model} {task}": ratio(model, task, "hiso", "decomfl") for model, task, _ in accounting.TABLE_5}
    totals = {
        (model, method): np.full(2, np.log10(ratio(model, "SST-2", method, "hiso")))
        for model, method in itertools.product(MODELS, accounting.COMPARED)
    }
    flat_round = f"a round of HiSo or DeComFL costs {flat} bytes per client for every d"
    every = f"every number of HiSo and DeComFL in Table 2 and Table 5 is a whole number of rounds of {flat} bytes"
    own = f"every number of bytes in Table 2 is its printed rounds times {flat} bytes"
    fewer = "HiSo communicates less than DeComFL, by the paper's Table 5"
    return [
        measured(flat_round, f"measured bytes − {flat}", scalar_only=True),
        measured("a round of a vector method costs 8d bytes per client", "measured bytes − 8d", scalar_only=False),
        printed(f"{every}, KB = 1024", LAST_DIGIT, whole, below=HALF),
        printed(f"{own}, KB = 1024", LAST_DIGIT, of_rounds, below=HALF),
        printed(fewer, "HiSo's bytes over DeComFL's", less, below=1.0),
        *accounting.claims_on_savings(totals, "by the paper's Table 5", control=True),
    ]


def table(settings: Settings, rows: Rows) -> Table:
    """Lists each printed number of bytes of HiSo and DeComFL, its printed rounds, and the nearest number of rounds."""
    flat, lines = settings.bytes_a_round("hiso"), []
    for (source, place), kb in accounting.CELLS.items():
        rounds = f"{accounting.TABLE_2[place][0]:,}" if source == "Table 2" else ""
        nearest, fits = accounting.nearest_rounds(kb, flat), accounting.miss(kb, flat) <= HALF
        whole = (f"{nearest:,}", f"{nearest * flat / 1024:.2f}", "yes" if fits else "no")
        lines.append((f"{source} {title(place)}", f"{kb:.2f}", rounds, *whole))
    columns = ("cell", "KB, printed", "rounds, printed", "nearest whole rounds", "their KB", "as printed")
    note = f"Rounds of {flat} bytes and KB = 1024 bytes are inferred, not printed."
    return Table(columns, tuple(lines), note)


EXPERIMENT = Experiment(
    id="hiso-bytes",
    source="HiSo, Tables 2 and 5, Fig. 6",
    shows="bytes per round and client of scalars and of d-vectors, and whether the paper's numbers are whole rounds",
    claim="HiSo's communication is scalar-only and dimension-free: over 40 million times less than that of FedAvg, "
    "FedZO and FedAdam for the 125M and 350M models, and up to 90 million times for the 1.3B model.",
    scales={"paper": Settings(), "quick": Settings(dims=(3, 40), rounds=2)},
    run_seed=run_seed,
    plot=plot,
    caption="Filled marks are measured; hollow marks are computed by the same rule at the nominal sizes of the paper's "
    "models.",
    claims=claims,
    table=table,
    seeds=2,
)
