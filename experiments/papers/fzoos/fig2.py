"""FZooS, Figure 2: federated attacks on CIFAR-10, for three numbers P of classes that a client's victim knows.

See ``experiments.papers.fzoos.attacks`` for the problem and the readings.
"""

from __future__ import annotations

from experiments.papers.fzoos.attacks import experiment

EXPERIMENT = experiment(
    2,
    "cifar10",
    "for three heterogeneities",
    "P is",
    paper=((3, 10), (5, 10), (8, 10)),
    reduced=((3, 5), (5, 5), (8, 5)),
    quick=((3, 2), (8, 2)),
)
