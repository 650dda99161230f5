"""FZooS, Figure 11: federated search on the F1 score.

See ``experiments.fzoos.metrics`` for the problem and the readings.
"""

from experiments.fzoos.metrics import experiment

EXPERIMENT = experiment(11, "f1", "classes")
