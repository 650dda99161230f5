"""FZooS, Figure 8: federated search on precision, for three numbers P of classes a client.

See ``experiments.papers.fzoos.metrics`` for the problem and the readings.
"""

from experiments.papers.fzoos.metrics import experiment

EXPERIMENT = experiment(8, "precision", "classes")
