"""ZoRD, Figure 8: gap against queries on Ackley and Levy, with CobBO.

As Figure 3 (``experiments.papers.zord.fig3``, ``experiments.papers.zord.descent``): the same starts, CobBO from x₀ with
its own initial design, which counts. The paper's dimensions are not given beside the figure; d = 20 and 40 are taken,
at the reduced scale d = 20 alone.
"""

from __future__ import annotations

from experiments.harness.experiment import Experiment
from experiments.harness.records import Rows, seeds_of
from experiments.harness.verdicts import Verdict, judge
from experiments.papers.zord import descent, fig3

METHODS = ("zord", "zord_kept", "zord_gated", "cobbo", "rgf")


def claims(settings: fig3.Settings, rows: Rows) -> list[Verdict]:
    """ZoRD, and the library's default, against CobBO."""
    seeds = seeds_of(rows)
    verdicts = []
    for method, control in (("zord", False), ("zord_kept", True), ("zord_gated", True)):
        cells = {
            f"{name} d={dim}": descent.final(rows, problem=name, dim=dim, method=method)
            - descent.final(rows, problem=name, dim=dim, method="cobbo")
            for name in settings.problems
            for dim, _ in settings.budgets
        }
        label = descent.style.METHODS[method].label
        claim = f"{label} ends with a smaller gap than CobBO"
        verdicts.append(judge(claim, "difference of the final log10 gap", cells, seeds, below=0.0, control=control))
    return verdicts


EXPERIMENT = Experiment(
    id="zord-fig8",
    source="ZoRD, Fig. 8",
    shows="gap against queries on Ackley and Levy, with CobBO",
    claim="ZoRD reaches smaller gaps than CobBO with the same queries.",
    scales={
        "paper": fig3.Settings(budgets=((20, 200), (40, 200)), methods=METHODS),
        "quick": fig3.Settings(problems=("ackley",), budgets=((3, 12),), methods=METHODS, start_queries=7, cache=""),
        "reduced": fig3.Settings(budgets=((20, 200),), methods=METHODS, turbo=descent.QUICK_TURBO),
    },
    run_seed=fig3.run_seed,
    plot=fig3.plot,
    claims=claims,
    table=fig3.table,
    seeds={"reduced": 5, "paper": 10},
)
