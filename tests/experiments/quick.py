"""Quick runs of the registered experiments, each made once in a process, whichever tests look at it."""

import functools

from experiments import registry

SEEDS = (0, 1)


@functools.cache
def finished(name):
    """An experiment, its quick settings and the records of ``SEEDS``, which many tests share and none may change."""
    experiment = registry.get(name)
    settings = experiment.settings("quick")
    return experiment, settings, experiment.run(settings, SEEDS)


def rows_of(name):
    """The records of an experiment's quick run."""
    return finished(name)[2]
