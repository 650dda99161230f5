"""FZooS, Figure 7: federated attacks on MNIST, for several P (T = 10) and T (P = 5).

See ``experiments.papers.fzoos.attacks`` for the problem and the readings.
"""

from __future__ import annotations

from experiments.papers.fzoos.attacks import experiment

EXPERIMENT = experiment(
    7,
    "mnist",
    "on MNIST for several P and T",
    "P and T are",
    paper=((3, 10), (5, 10), (8, 10), (5, 5), (5, 20)),
    reduced=((3, 5), (5, 5), (8, 5), (5, 2), (5, 10)),
    quick=((8, 2),),
)
