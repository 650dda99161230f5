"""FZooS, Figure 6: federated attacks on CIFAR-10, for three numbers T of local steps, P = 5.

See ``experiments.fzoos.attacks`` for the problem and the readings.
"""

from __future__ import annotations

from experiments.experiment import Experiment
from experiments.fzoos import attacks
from experiments.fzoos.attacks import QUICK, REDUCED, Settings

PANELS = ((5, 5), (5, 10), (5, 20))

EXPERIMENT = Experiment(
    id="fzoos-fig6",
    source="FZooS, Fig. 6",
    shows="success rate of federated attacks for three numbers of local steps, against rounds and total queries",
    claim="FZooS succeeds with fewer rounds and queries than FedZO, FedProx and SCAFFOLD, whatever T is.",
    scales={
        "paper": Settings(dataset="cifar10", bound=0.2, side=32, panels=PANELS),
        "reduced": Settings(dataset="cifar10", panels=((5, 2), (5, 5), (5, 10)), **REDUCED),
        "quick": Settings(dataset="cifar10", bound=0.2, panels=((8, 2), (8, 3)), **QUICK),
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
