"""Samplers of optuna (Akiba et al., KDD 2019) with their defaults: TPE, and a Gaussian process (``GPSampler``).

Real variables are ``suggest_float`` and integers ``suggest_int`` in the box. The start is the first trial.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from optimizers.comparison.outside import Queries


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
