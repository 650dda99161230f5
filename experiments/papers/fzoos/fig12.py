"""FZooS, Figure 12: federated search on the Jaccard index.

See ``experiments.papers.fzoos.metrics`` for the problem and the readings.
"""

from experiments.papers.fzoos.metrics import experiment

EXPERIMENT = experiment(12, "jaccard", "classes")
