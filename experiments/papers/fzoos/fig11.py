"""FZooS, Figure 11: federated search on the F1 score.

See ``experiments.papers.fzoos.metrics`` for the problem and the readings.
"""

from experiments.papers.fzoos.metrics import experiment

EXPERIMENT = experiment(11, "f1", "classes")
