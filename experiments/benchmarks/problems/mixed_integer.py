"""Mixed-integer problems: COCO's suite bbob-mixint (Tušar, Brockhoff and Hansen 2019, doi 10.1145/3321707.3321868).

Four of five variables are integers, with 2, 4, 8 and 16 values in equal numbers; the others are real in [−5, 5]. Runs
start at COCO's initial solution, the middle of the domain. All queries are points of this lattice. Random search draws
each integer with the same probability. CMA-ES uses pycma's ``integer_variables`` with bounds half a unit beyond the
last integers and initial standard deviations of 0.3 of each side. TPE and ``GPSampler`` are optuna's (Akiba et al.,
KDD 2019) with their defaults, ``suggest_int`` and ``suggest_float``; the start is their first trial.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from optimizers.comparison.queries import Queries


def sample(sampler: str, queries: Queries, x0: np.ndarray, seed: int) -> None:
    """Queries the objective from x0 with a sampler of optuna until the budget is spent."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    d = len(x0)
    integers = np.zeros(d, dtype=bool) if queries.integrality is None else queries.integrality.numpy()
    box = list(zip(queries.lower.tolist(), queries.upper.tolist(), integers, strict=True))

    def objective(trial: Any) -> float:
        x = [
            trial.suggest_int(f"x{i}", int(low), int(high)) if whole else trial.suggest_float(f"x{i}", low, high)
            for i, (low, high, whole) in enumerate(box)
        ]
        return queries(np.array(x, dtype=float))

    study = optuna.create_study(sampler=getattr(optuna.samplers, sampler)(seed=seed))
    study.enqueue_trial({f"x{i}": int(x) if box[i][2] else float(x) for i, x in enumerate(x0)})
    study.optimize(objective, n_trials=queries.max_queries)
