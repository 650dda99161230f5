"""Beyond the papers: one client of ten sends false values, on the quadratics of FZooS, Appx. G.1, without bounds.

The lying client's values, and its gradients if a method uses them, are multiplied by a factor in one round or in all
rounds: 10⁶, like a wrong unit, or −1, like a wrong sign. Each method runs with the plain mean and with the robust means
of ``federated.core.aggregation``, always behind the gate that refuses implausible reports (``federated.core.gate``);
with the plain mean it also runs without the gate. A run is harmed if its final F − min F exceeds 3 times the final F −
min F of the same method and mean without a lie, plus 0.2. At the start F − min F is about 3.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from functools import partial
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from experiments.harness.experiment import Experiment
from experiments.harness.verdicts import Table, Verdict, judge
from experiments.papers.fzoos.quadratics import Quadratic, quadratics
from federated import ALGORITHMS, algorithm_class, make_federation
from optimizers.comparison.records import Row, Rows, by_seed, where
from optimizers.first_order import adam
from surrogates import plotting

LIES: dict[str, tuple[float, bool]] = {
    "none": (1.0, False),
    "10⁶ once": (1e6, False),
    "10⁶ always": (1e6, True),
    "−1 once": (-1.0, False),
    "−1 always": (-1.0, True),
}
"""The factor of each lie, and whether the client lies in every round."""

GATED, OPEN = "mean", "mean, no gate"
MEANS: dict[str, dict[str, Any]] = {
    GATED: {},
    OPEN: {"gate": math.inf},
    "median": {"aggregation": "median"},
    "trimmed mean": {"aggregation": "trimmed_mean"},
    "norm clipping": {"aggregation": "norm_clipping"},
    "multi-Krum": {"aggregation": "multi_krum"},
}
RECOMMENDED = "trimmed mean"
"""The mean that the guide recommends if a client may send false values of ordinary size."""

MULTIPLE, OFFSET = 3.0, 0.2
"""A run is harmed if its gap exceeds the first number times the gap without a lie, plus the second number."""

FLOOR, CEILING = 1e-16, 1e300
FIRST_SEED = 200


@dataclasses.dataclass(frozen=True)
class Settings:
    """Settings of the comparison and of the problem.

    Attributes:
        methods: names of algorithms.
        heterogeneities: C.
        dim: d.
        clients: N; the last client lies.
        rounds: R.
        once: the round of the lie if the client lies only once.
        local_steps: T.
        directions: Q, and P of HiSo.
        num_features: M.
        step: Adam's rate in local steps.
        rate: η of HiSo.
    """

    methods: tuple[str, ...] = tuple(ALGORITHMS)
    heterogeneities: tuple[float, ...] = (1.0, 5.0)
    dim: int = 50
    clients: int = 10
    rounds: int = 50
    once: int = 10
    local_steps: int = 1
    directions: int = 10
    num_features: int = 300
    step: float = 0.03
    rate: float = 0.05

    def options(self, method: str) -> dict[str, Any]:
        """Returns a method's options: rates for one step per round, Q, M and few active queries."""
        if method in ("hiso", "decomfl"):
            return {"rate": self.rate, "perturbations": self.directions}
        if method == "fzoos":
            few = {"active_queries": 2, "candidates": 10, "initial_queries": 2}
            return few | {"num_features": self.num_features, "update_rule": partial(adam, lr=self.step)}
        if algorithm_class(method).needs_gradient:
            return {"update_rule": lambda p: torch.optim.SGD([p], lr=0.1)} if method == "fedavg" else {}
        return {"directions": self.directions, "update_rule": partial(adam, lr=self.step)}


@dataclasses.dataclass
class Liar:
    """A client's function with values and gradients multiplied by a factor."""

    honest: Quadratic
    factor: float = 1.0

    def __call__(self, x: Tensor) -> Tensor:
        """Returns the value at x, shape ``d``."""
        return self.factor * self.honest(x)

    def gradient(self, x: Tensor) -> Tensor:
        """Returns the gradient at x, shape ``d``."""
        return self.factor * self.honest.gradient(x)


def last_gap(
    settings: Settings, method: str, heterogeneity: float, lie: str, mean: str, seed: int
) -> tuple[float, bool]:
    """Returns F − min F after the last round (``CEILING`` if not finite), and whether a report was refused."""
    problem, (factor, always) = quadratics(settings.dim, settings.clients, heterogeneity, seed), LIES[lie]
    liar = Liar(problem.clients[-1])
    federation = make_federation(
        method,
        [*problem.clients[:-1], liar],
        problem.x0,
        local_steps=settings.local_steps,
        seed=seed,
        codec=False,
        **settings.options(method),
        **MEANS[mean],
    )
    for r in range(1, settings.rounds + 1):
        liar.factor = factor if always or r == settings.once else 1.0
        federation.run_round()
    gap = problem.gap(federation.server.x)
    left_out = any(record.refused for record in federation.history)
    return (min(max(gap, FLOOR), CEILING) if math.isfinite(gap) else CEILING), left_out


def run_seed(settings: Settings, seed: int) -> Rows:
    """Records the last gap of every method, lie and mean; runs in which the gate never acted are not repeated."""
    rows: Rows = []
    for method, c, lie in itertools.product(settings.methods, settings.heterogeneities, LIES):
        found: dict[str, tuple[float, bool]] = {}
        for mean in MEANS:
            idle = mean == OPEN and not found[GATED][1]
            found[mean] = found[GATED] if idle else last_gap(settings, method, c, lie, mean, FIRST_SEED + seed)
            key: Row = {"seed": seed, "heterogeneity": c, "algorithm": method, "lie": lie, "method": mean}
            rows.append(key | {"value": found[mean][0]})
    return rows


def excess(settings: Settings, rows: Rows, lie: str, mean: str) -> dict[str, np.ndarray]:
    """Returns log10 of the gap over its limit, 3 times the gap without a lie plus 0.2, for each method and C."""
    found = {}
    for method, c in itertools.product(settings.methods, settings.heterogeneities):
        of = where(rows, algorithm=method, heterogeneity=c, method=mean)
        lied, clean = (by_seed(where(of, lie=told)) for told in (lie, "none"))
        found[f"{method}, C = {c:g}"] = np.log10(lied / (MULTIPLE * clean + OFFSET))
    return found


def claims(settings: Settings, rows: Rows) -> list[Verdict]:
    """Judges whether methods are harmed by a factor of 10⁶ behind the gate, or by any lie with the recommended mean."""
    statistic = "log10 of the last gap over 3 times the clean one plus 0.2"
    wanted = [(lie, GATED) for lie in ("10⁶ once", "10⁶ always")] + [(lie, RECOMMENDED) for lie in list(LIES)[1:]]
    verdicts = []
    for lie, mean in wanted:
        claim = f"no method is harmed by a liar ({lie}) with the {mean} behind the gate"
        verdicts.append(judge(claim, statistic, excess(settings, rows, lie, mean), below=0.0))
    scalar = {c: v for c, v in excess(settings, rows, "10⁶ once", OPEN).items() if c.startswith("hiso")}
    if scalar:
        claim = "without the gate one lie by 10⁶ harms HiSo"
        verdicts.append(judge(claim, statistic, scalar, above=0.0))
    return verdicts


def table(settings: Settings, rows: Rows) -> Table:
    """Lists the last gap of each method for each lie and mean, at the worse heterogeneity C."""
    lines = []
    beyond = {(lie, mean): excess(settings, rows, lie, mean) for lie, mean in itertools.product(LIES, MEANS)}
    for method, lie in itertools.product(settings.methods, LIES):
        cells = []
        for mean in MEANS:
            of = where(rows, algorithm=method, lie=lie, method=mean)
            gaps = [float(np.mean(by_seed(where(of, heterogeneity=c)))) for c in settings.heterogeneities]
            harmed = any(beyond[lie, mean][f"{method}, C = {c:g}"].mean() > 0.0 for c in settings.heterogeneities)
            cells.append(f"{max(gaps):.2g}{' (harmed)' if harmed else ''}")
        lines.append((f"{method}, {lie}", *cells))
    over = " and ".join(f"{c:g}" for c in settings.heterogeneities)
    caption = (
        f"F − min F after {settings.rounds} rounds, mean over seeds at the worse C of {over}. Harmed: above three "
        "times the value without a lie, plus a fifth."
    )
    return Table(("method and lie", *MEANS), tuple(lines), caption)


def plot(settings: Settings, rows: Rows) -> Figure:
    """Draws log10 of the last gap over its limit, a mark for each method and mean, a panel for each lie."""
    positions = {method: i for i, method in enumerate(settings.methods)}

    def draw_lie(panel: Axes, lie: str) -> None:
        for mean, marker in zip(MEANS, "osv^D+", strict=True):
            cells = excess(settings, rows, lie, mean)
            heights = {m: max(float(v.mean()) for c, v in cells.items() if c.startswith(f"{m},")) for m in positions}
            panel.plot(
                list(positions.values()), np.minimum(list(heights.values()), 12.0), marker, label=mean, markersize=4
            )
        panel.set_xticks(list(positions.values()), list(positions), rotation=90)
        panel.axhline(0.0, color="0.5", linewidth=0.8)

    lies = {f"lie: {lie}": lie for lie in list(LIES)[1:]}
    return plotting.grid(
        lies, draw_lie, xlabel="method", ylabel="log₁₀(gap / bound)", columns=2, sharey=True, height=2.1
    )


EXPERIMENT = Experiment(
    id="beyond-liars",
    source="ours, beyond the papers",
    shows="final gap with one lying client of ten, for every method, lie and mean",
    claim="With the gate and a trimmed mean, one liar in ten harms no method.",
    scales={
        "paper": Settings(),
        "quick": Settings(
            methods=("fedavg", "hiso"), heterogeneities=(1.0,), dim=4, clients=5, rounds=3, once=2, local_steps=1
        ),
    },
    run_seed=run_seed,
    plot=plot,
    claims=claims,
    table=table,
    seeds={"quick": 3, "paper": 2},
    cost={"paper": "1 h"},
    caption="Marks are means over seeds at the worse heterogeneity C; values above the axis are drawn at its upper "
    "end.",
)
