"""FZooS, Figure 2: federated attacks on CIFAR-10, for three numbers P of classes that a client's victim knows.

See ``experiments.fzoos.attacks`` for the problem and the readings.
"""

from __future__ import annotations

from experiments.experiment import Experiment
from experiments.fzoos import attacks
from experiments.fzoos.attacks import QUICK, REDUCED, Settings

PANELS = ((3, 10), (5, 10), (8, 10))

EXPERIMENT = Experiment(
    id="fzoos-fig2",
    source="FZooS, Fig. 2",
    shows="success rate of federated attacks for three heterogeneities, against rounds and total queries",
    claim="FZooS succeeds with fewer rounds and queries than FedZO, FedProx and SCAFFOLD, whatever P is.",
    scales={
        "paper": Settings(dataset="cifar10", bound=0.2, side=32, panels=PANELS),
        "reduced": Settings(dataset="cifar10", panels=((3, 5), (5, 5), (8, 5)), **REDUCED),
        "quick": Settings(dataset="cifar10", bound=0.2, panels=((3, 2), (8, 2)), **QUICK),
    },
    run_seed=attacks.run_seed,
    plot=attacks.plot,
    claims=attacks.claims,
    seeds={"quick": 3, "reduced": 3, "paper": 5},
    extra="experiments",
    data=("cifar10",),
    stand_in=attacks.describe,
    check=attacks.check,
)
