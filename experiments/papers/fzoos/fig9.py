"""FZooS, Figure 9: federated search on precision, for three numbers T of local steps.

See ``experiments.papers.fzoos.metrics`` for the problem and the readings.
"""

from experiments.papers.fzoos.metrics import experiment

EXPERIMENT = experiment(9, "precision", "local_steps")
