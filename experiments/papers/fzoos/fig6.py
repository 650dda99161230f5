"""FZooS, Figure 6: federated attacks on CIFAR-10, for three numbers T of local steps, P = 5.

See ``experiments.papers.fzoos.attacks`` for the problem and the readings.
"""

from __future__ import annotations

from experiments.papers.fzoos.attacks import experiment

EXPERIMENT = experiment(
    6,
    "cifar10",
    "for three numbers of local steps",
    "T is",
    paper=((5, 5), (5, 10), (5, 20)),
    reduced=((5, 2), (5, 5), (5, 10)),
    quick=((8, 2), (8, 3)),
)
