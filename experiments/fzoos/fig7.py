"""FZooS, Figure 7: federated attacks on MNIST, for several P (T = 10) and T (P = 5).

See ``experiments.fzoos.attacks`` for the problem and the readings.
"""

from __future__ import annotations

from experiments.experiment import Experiment
from experiments.fzoos import attacks
from experiments.fzoos.attacks import QUICK, REDUCED, Settings

PANELS = ((3, 10), (5, 10), (8, 10), (5, 5), (5, 20))

EXPERIMENT = Experiment(
    id="fzoos-fig7",
    source="FZooS, Fig. 7",
    shows="success rate of federated attacks on MNIST for several P and T, against rounds and total queries",
    claim="FZooS succeeds with fewer rounds and queries than FedZO, FedProx and SCAFFOLD, whatever P and T are.",
    scales={
        "paper": Settings(dataset="mnist", bound=0.3, side=28, panels=PANELS),
        "reduced": Settings(dataset="mnist", panels=((3, 5), (5, 5), (8, 5), (5, 2), (5, 10)), **REDUCED),
        "quick": Settings(dataset="mnist", bound=0.3, panels=((8, 2),), **QUICK),
    },
    run_seed=attacks.run_seed,
    plot=attacks.plot,
    claims=attacks.claims,
    seeds={"quick": 3, "reduced": 3, "paper": 5},
    extra="experiments",
    data=("mnist",),
    stand_in=attacks.describe,
    check=attacks.check,
)
