"""FZooS, Figure 12: federated search on the Jaccard index.

See ``experiments.fzoos.metrics`` for the problem and the readings.
"""

from experiments.fzoos.metrics import experiment

EXPERIMENT = experiment(12, "jaccard", "classes")
