"""FZooS, Figure 10: federated search on recall.

See ``experiments.papers.fzoos.metrics`` for the problem and the readings.
"""

from experiments.papers.fzoos.metrics import experiment

EXPERIMENT = experiment(10, "recall", "classes")
