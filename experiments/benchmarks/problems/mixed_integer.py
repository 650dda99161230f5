"""Mixed-integer problems: COCO's suite bbob-mixint (Tušar, Brockhoff and Hansen 2019, doi 10.1145/3321707.3321868).

Four of five variables are integers, with 2, 4, 8 and 16 values in equal numbers; the others are real in [−5, 5]. Runs
start at COCO's initial solution, the middle of the domain. All queries are points of this lattice. Random search draws
each integer with the same probability. CMA-ES uses pycma's ``integer_variables`` with bounds half a unit beyond the
last integers and initial standard deviations of 0.3 of each side. TPE and ``GPSampler`` are optuna's (Akiba et al.,
KDD 2019) with their defaults, ``suggest_int`` and ``suggest_float``; the start is their first trial.

The tuning problems are hyperparameters of learners in scikit-learn and LightGBM
(``experiments.workloads.black_boxes.tuning``). Hyperparameters that span decades are searched in log10 by all methods.
For CMA-ES and random search those that are also integers are real variables, which are rounded.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from optimizers.comparison.queries import Queries


def sample(sampler: str, queries: Queries, x0: np.ndarray, seed: int) -> None:
    """Queries the objective from x0 with a sampler of optuna until the budget is spent."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    domain = queries.domain
    assert domain is not None and domain.space is not None, "samplers need a space"
    space = domain.space
    kinds = list(zip(space.lb, space.ub, space.log.tolist(), space.integrality, strict=True))

    def objective(trial: Any) -> float:
        x = [
            trial.suggest_int(f"x{i}", int(low), int(high), log=log)
            if whole
            else trial.suggest_float(f"x{i}", low, high, log=log)
            for i, (low, high, log, whole) in enumerate(kinds)
        ]
        return queries(domain.to_search(torch.tensor(x, dtype=torch.float64)).numpy())

    study = optuna.create_study(sampler=getattr(optuna.samplers, sampler)(seed=seed))
    study.enqueue_trial({f"x{i}": int(x) if space.integrality[i] else float(x) for i, x in enumerate(x0)})
    study.optimize(objective, n_trials=queries.max_queries)
