"""Constrained problems: COCO's suite bbob-constrained (Dufossé et al. 2022, doi 10.1007/978-3-031-14714-2_20).

A query is one distinct point, which gives f and all constraints c ≤ 0, whether or not a method uses all of them. Runs
start at COCO's initial solution, which is feasible. A query is feasible if max c is at most 1e-6 of the largest |c| at
the start; the tables also have a tolerance of 1e-9. The gap of a run is taken at its best feasible query, or at the
start if that is better, because the start is known to be feasible before the first query.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np

from experiments.benchmarks.problems.coco_files import Progress, optimum_in

TOLERANCES = (1e-6, 1e-9)
"""Largest max c of a feasible query, relative to the largest |c| at the start: main and strict tolerance."""


@dataclasses.dataclass
class Told:
    """A constrained problem of COCO, which records its queries.

    Attributes:
        coco: COCO's problem.
        start: the feasible start, shape ``d``.
        values: f and max c of each query.
    """

    coco: Any
    start: np.ndarray
    values: list[tuple[float, float]] = dataclasses.field(default_factory=list)

    def __post_init__(self) -> None:
        self._first = float(self.coco(self.start))
        self._size = float(np.abs(self.coco.constraint(self.start)).max())

    def __call__(self, x: np.ndarray) -> tuple[float, np.ndarray]:
        """Returns f and c at a point of shape ``d``."""
        f, c = float(self.coco(x)), np.array(self.coco.constraint(x))
        self.values.append((f, float(c.max())))
        return f, c

    def progress(self, folder: Path, tolerance: float) -> Progress:
        """Returns the progress of the gap, for a relative tolerance of c; the folder has COCO's files of the run."""
        f, worst = np.array(self.values).T
        best = np.fmin(np.where(worst <= tolerance * self._size, f, np.nan), self._first)
        return Progress.of((best - optimum_in(folder)).tolist())


def count_of(function: int, dimension: int) -> int:
    """Returns the number of constraints of a function of bbob-constrained."""
    d = dimension
    active = (1, 2, 6, 6 + d // 2, 6 + d, 6 + 3 * d)[(function - 1) % 6]
    return int(1.5 * active)
