"""Mixed-integer problems: COCO's suite bbob-mixint (Tušar, Brockhoff and Hansen 2019, doi 10.1145/3321707.3321868).

Four fifths of the variables are integers: a fifth has 2 values, a fifth 4, a fifth 8, and a fifth 16. The others are
real in [−5, 5]. Runs start at COCO's initial solution, the middle of the domain. Integer variables have integer values
in all queries. Random search draws each integer value with the same probability. CMA-ES uses pycma's
``integer_variables`` with bounds half a unit beyond the last integers and initial standard deviations of 0.3 of each
side. TPE and ``GPSampler`` are optuna's (Akiba et al., KDD 2019) with their defaults, ``suggest_int`` and
``suggest_float``; the start is their first trial.

The tuning problems are hyperparameters of learners in scikit-learn and LightGBM
(``experiments.workloads.black_boxes.tuning``). All methods search hyperparameters that span decades in log10. CMA-ES
and random search treat integers among them as real variables and round them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from optimizers import Space
from optimizers.comparison.outside import box_of
from optimizers.comparison.queries import Queries


def sample(sampler: str, queries: Queries, x0: np.ndarray, seed: int) -> None:
    """Queries the objective from x0 with a sampler of optuna until the budget is spent."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    domain = queries.domain
    space = Space(np.transpose(box_of(queries))) if domain is None or domain.space is None else domain.space
    kinds = list(zip(space.lb, space.ub, space.log.tolist(), space.integrality, strict=True))

    def objective(trial: Any) -> float:
        x = [
            trial.suggest_int(f"x{i}", int(low), int(high), log=log)
            if whole
            else trial.suggest_float(f"x{i}", low, high, log=log)
            for i, (low, high, log, whole) in enumerate(kinds)
        ]
        point = torch.tensor(x, dtype=torch.float64)
        return queries((point if domain is None else domain.to_search(point)).numpy())

    study = optuna.create_study(sampler=getattr(optuna.samplers, sampler)(seed=seed))
    study.enqueue_trial({f"x{i}": int(x) if space.integrality[i] else float(x) for i, x in enumerate(x0)})
    study.optimize(objective, n_trials=queries.max_queries)
