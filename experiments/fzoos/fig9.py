"""FZooS, Figure 9: federated search on precision, for three numbers T of local steps.

See ``experiments.fzoos.metrics`` for the problem and the readings.
"""

from experiments.fzoos.metrics import experiment

EXPERIMENT = experiment(9, "precision", "local_steps")
