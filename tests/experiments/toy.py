"""An experiment of a few numbers, to test what runs and writes experiments."""

import dataclasses

import numpy as np

from experiments.harness import verdicts
from experiments.harness.experiment import Experiment
from optimizers.comparison import records
from surrogates import plotting


@dataclasses.dataclass(frozen=True)
class Settings:
    num_queries: tuple[int, ...] = (5, 10)
    fail_at: int = -1
    interrupt_at: int = -1


def run_seed(settings, seed):
    if seed == settings.interrupt_at:
        raise KeyboardInterrupt
    if seed == settings.fail_at:
        raise RuntimeError("this seed fails")
    generator = np.random.default_rng(seed)
    return [
        {"seed": seed, "method": "derived_gp", "num_queries": n, "value": n + generator.standard_normal()}
        for n in settings.num_queries
    ]


def plot(settings, rows):
    figure, axes = plotting.panels(1, 1)
    plotting.draw(axes[0, 0], "derived_gp", records.curve(rows, "num_queries"))
    return figure


def claims(settings, rows):
    cells = {f"n={n}": records.by_seed(rows, num_queries=n) for n in settings.num_queries}
    return [verdicts.judge("values are positive", "value", cells, above=0.0)]


def experiment(**settings):
    return Experiment(
        id="toy-fig1",
        source="Toy, Fig. 1",
        shows="numbers near their index",
        claim="values are positive",
        scales={"paper": Settings(**settings), "quick": Settings((5,), **settings)},
        run_seed=run_seed,
        plot=plot,
        claims=claims,
        seeds=3,
    )


EXPERIMENT = experiment()
