"""Descent that learns gradients from all it has queried: the loop of ZoRD and of its least-squares baseline."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, Literal, Unpack

import numpy as np
import torch
from torch import Tensor

from optimizers.batch import Batch
from optimizers.designs import local_cloud
from optimizers.first_order import FirstOrder, UpdateRule, adam
from optimizers.methods.bayesian.observations import initial_design
from optimizers.methods.bayesian.unit_box import UnitBox
from optimizers.optimizer import Optimizer
from optimizers.options import CommonOptions, check_integer, positive, positive_integer
from optimizers.values import parse_values
from surrogates import Trajectory
from surrogates.window.window_surrogate import WindowSurrogate

Design = Literal["local", "latin_hypercube"]
Start = Literal["best", "last"]

LEAST_DATA = 2
"""Values that a gradient needs; with fewer the initial design is drawn again."""

MOST_HALVINGS = 4
"""Failed iterates in a row after which points about the start are queried in their place."""

TRIALS = 8
"""Random points that are looked at for one that is new."""

WIDTH = 10.0
"""Widths of the search are this many radii of the initial design where there is no box."""


class DescentOptions(CommonOptions, total=False):
    """Options of ``TrajectoryDescent``, documented there."""

    initial_points: int | None
    design: Design
    radius: float | None
    history: tuple[Any, Any] | None
    start: Start
    queries_per_step: int
    reset_after: int | None
    step_decay: float
    update_rule: UpdateRule


@dataclass
class DescentState:
    """All that changes beside the iterate.

    Attributes:
        rule: the first-order rule, its moments kept from iteration to iteration.
        memory: the queries, and what is derived from them.
        query: where f is asked next, if not at the iterate.
        best: least f + ψ of the queries and the history.
        best_point: where, search coordinates.
        without_gain: iterations since it fell.
        step_scale: of the rule's first step size, what decays have left.
        failed: iterates in a row at which f failed.
        steps: steps of the last iteration.
        active: queries in a row that were made to learn and not to descend.
    """

    rule: FirstOrder
    memory: WindowSurrogate | Trajectory
    query: Tensor | None = None
    best: float = math.inf
    best_point: Tensor | None = None
    without_gain: int = 0
    step_scale: float = 1.0
    failed: int = 0
    steps: int = 0
    active: int = 0


class TrajectoryDescent(Optimizer):
    """Queries the iterate and moves on, by gradients that are estimated from the trajectory of queries.

    A first batch of ``initial_points`` queries, x0 among them, is what the first gradient is made from. Then, in each
    iteration: f is queried at the iterate, and ``_advance`` moves it. Where the iterate has been queried before
    (∇μ = 0, a corner of the box), a point at the design's radius from it is queried instead, as the same query would
    teach nothing. After an iterate at which f failed the next starts from the best point and has half of the steps;
    after ``MOST_HALVINGS`` in a row points about it are queried until one succeeds. (Where f fails beyond a surface on
    which its gradient does not vanish, bounds or a prox serve better.)

    Args:
        x0: initial point, shape ``d``.
        initial_points: queries of the initial design; None: ``DESIGN_SIZE``, or none where a history is given.
        design: ``"local"``, normal directions about x0 of the given radius, or ``"latin_hypercube"`` of the box.
        radius: of the local design (root mean square distance), search units; None: see ``default_radius``.
        history: points, ``n x d`` in user units, and values of f, ``n``, known already (TuRBO's, for one); not
            counted. NaN and infinite values are kept out. The first iteration starts at x0.
        start: where an iteration starts: the best point known (ZoRD's code), or the last iterate (ZoRD's Alg. 2).
        queries_per_step: queries of an iteration; those beyond the iterate are at the radius from it.
        reset_after: iterations without gain after which the rule's state is forgotten (ZoRD's code: 10), those that
            ask in order to learn not counted; None: never.
        step_decay: what the rule's step size is multiplied by each time; 1: it stays (ZoRD's code). With a rule whose
            steps have one length, as Adam's, 1 ends the descent about a step from the minimum. ½ was as good as 1 or
            better on Ackley, Levy and Rosenbrock (d = 20, 200 queries, eight starts each).
        update_rule: factory of the first-order rule.
        **common: see ``Optimizer``.

    Raises:
        ValueError: for options out of range, a history that does not fit, or a Latin hypercube without a finite box.
    """

    DESIGN_SIZE = 10
    state: DescentState

    def __init__(
        self,
        x0: Any,
        *,
        initial_points: int | None = None,
        design: Design = "local",
        radius: float | None = None,
        history: tuple[Any, Any] | None = None,
        start: Start = "best",
        queries_per_step: int = 1,
        reset_after: int | None = 10,
        step_decay: float = 0.5,
        update_rule: UpdateRule = adam,
        **common: Unpack[CommonOptions],
    ) -> None:
        if design not in ("local", "latin_hypercube"):
            raise ValueError(f"design must be 'local' or 'latin_hypercube', got {design!r}")
        if start not in ("best", "last"):
            raise ValueError(f"start must be 'best' or 'last', got {start!r}")
        if initial_points is not None:
            check_integer("initial_points", initial_points, 0 if history is not None else LEAST_DATA)
        if reset_after is not None:
            check_integer("reset_after", reset_after, 1)
        self.initial_points, self.design, self.start, self.reset_after = initial_points, design, start, reset_after
        self.step_decay = positive("step_decay", step_decay)
        self.radius = None if radius is None else positive("radius", radius)
        self.queries_per_step = positive_integer("queries_per_step", queries_per_step)
        self.update_rule = update_rule
        self._given = history
        super().__init__(x0, **common)

    # What a method implements.

    @abstractmethod
    def _memory(self) -> WindowSurrogate | Trajectory:
        """An empty memory of queries."""

    @abstractmethod
    def _advance(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """The next iterate from where the iteration starts, and the point to query if that is another one."""

    # What they share.

    @property
    def trajectory(self) -> Trajectory:
        """The queries that succeeded, the history's among them, in search coordinates."""
        memory = self.state.memory
        return memory.trajectory if isinstance(memory, WindowSurrogate) else memory

    @property
    def observations(self) -> tuple[Tensor, Tensor]:
        """Points of the queries that succeeded, user units, ``n x d``, and f there, shape ``n``; with the history's."""
        return self._to_user(self.trajectory.X), self.trajectory.y.clone()

    def _start(self) -> None:
        self.width, self.local_radius = self._lengths()
        if self.design == "latin_hypercube":
            UnitBox.of(self.domain, "a Latin hypercube")
        self._design_size = self.DESIGN_SIZE if self.initial_points is None else self.initial_points
        if self._given is not None and self.initial_points is None:
            self._design_size = 0
        self.state = DescentState(FirstOrder(self.update_rule, self._x), self._memory())
        if self._given is not None:
            self._take_history(*self._parsed_history(self._given))
        self._given = None
        if self._design_size == 0:
            if len(self.trajectory) < LEAST_DATA:
                raise ValueError(
                    f"the history has {len(self.trajectory)} finite values; a gradient needs {LEAST_DATA}, "
                    "or initial_points"
                )
            self._move_from(self._x)

    def _lengths(self) -> tuple[float, float]:
        """The width of the search and the radius of local queries, search units."""
        if self.domain is not None:
            width = self.domain.search_upper.double() - self.domain.search_lower.double()
            width = width[width > 0]
            if width.numel() and bool(torch.isfinite(width).all()):
                mean = float(width.mean())
                return mean, self.radius or self.default_radius(mean)
        radius = self.radius or self.default_radius(None)
        return WIDTH * radius, radius

    @staticmethod
    def default_radius(width: float | None) -> float:
        """0.03 of the box's mean width; 0.1 without a box.

        At d = 20 (Ackley, Levy, Rosenbrock, 200 queries, ten seeds each) 0.03 was better than 0.01, 0.05 and 0.1.
        """
        return 0.1 if width is None else 0.03 * width

    def _next_queries(self) -> int:
        if len(self.trajectory) < LEAST_DATA or (self.iterations == 0 and self._design_size):
            return max(LEAST_DATA, min(max(self._design_size, LEAST_DATA), self.remaining))
        return max(1, min(self.queries_per_step, self.remaining))

    def _ask(self) -> Batch:
        count = self._next_queries()
        if len(self.trajectory) < LEAST_DATA or (self.iterations == 0 and self._design_size):
            return self._points_batch(self._initial(count))
        x = self._x if self.state.query is None else self.state.query
        if count == 1:
            return self._points_batch(x[None])
        return self._points_batch(torch.cat([x[None], self._around(self._x, count)[1:]]))

    def _initial(self, count: int) -> Tensor:
        first = self._x if self.iterations == 0 else None
        if self.design == "latin_hypercube":
            return initial_design(UnitBox.of(self.domain, "a Latin hypercube"), count, self._generator(), first)
        if first is None:
            return self._around(self._x, count)
        return torch.cat([first[None], self._around(first, count - 1)])

    def _around(self, x: Tensor, count: int, step: int | None = None) -> Tensor:
        """Points at the radius from x, within the box; step: of their directions, ``iterations`` by default."""
        step = self.iterations if step is None else step
        return self._confined(local_cloud(x, count, self.local_radius, self.seed, distribution="normal", step=step))

    def _confined(self, z: Tensor) -> Tensor:
        if self.domain is None or not self.confine_queries:
            return z
        return torch.clamp(z, self.domain.search_lower, self.domain.search_upper)

    def _tell(self, batch: Batch, values: Tensor) -> None:
        assert batch.explicit is not None
        totals = self._composite(batch, values)
        self.state.memory.append(batch.explicit, values)
        gained = self._note_best(batch.explicit, totals)
        if len(self.trajectory) < LEAST_DATA:
            return
        to_learn = self.state.active > 0
        self.state.without_gain = 0 if gained else self.state.without_gain + (not to_learn)
        if self.reset_after is not None and self.state.without_gain >= self.reset_after:
            self.state.step_scale *= self.step_decay
            self.state.rule.reset(self.state.step_scale)
            self.state.without_gain = 0
        failed = bool(values[0].isnan())
        if not to_learn:
            self.state.failed = self.state.failed + 1 if failed else 0
        from_best = self.start == "best" or self.state.failed > 0
        x = self.state.best_point if from_best and self.state.best_point is not None else self._x
        self._move_from(x)

    def _note_best(self, points: Tensor, totals: Tensor) -> bool:
        """Keep the best point; whether it is a new one."""
        totals = totals.nan_to_num(nan=math.inf, posinf=math.inf, neginf=math.inf)
        i = int(totals.argmin())
        if not float(totals[i]) < self.state.best:
            return False
        self.state.best, self.state.best_point = float(totals[i]), points[i].clone()
        return True

    def _move_from(self, x: Tensor) -> None:
        z, query = self._advance(x)
        if query is None and (self._known(z) or self.state.failed > MOST_HALVINGS):
            query = self._unknown_around(x if self.state.failed > MOST_HALVINGS else z)
        self._x, self.state.query = z, query

    def _unknown_around(self, x: Tensor) -> Tensor:
        """The first of a few points about x at which f has not been asked; projection may make one that has."""
        points = self._around(x, TRIALS, self.iterations + 1)
        return next((z for z in points if not self._known(z)), points[0])

    def _known(self, z: Tensor) -> bool:
        """Whether f has been asked at z."""
        asked = (self.trajectory.X, self.trajectory.failed_X)
        return any(bool((X[X[:, 0] == z[0]] == z).all(dim=1).any()) for X in asked)

    def _most_steps(self, most: int) -> int:
        """The cap on steps after failures: half of it for each in a row, at least 1."""
        return max(1, most >> min(self.state.failed, MOST_HALVINGS))

    def _parsed_history(self, history: Any) -> tuple[Tensor, Tensor]:
        if not isinstance(history, tuple | list) or len(history) != 2:
            raise TypeError("history must be a pair of points, n x d, and values, n")
        given, d = history[0], self.dimension
        X = given.detach() if isinstance(given, Tensor) else torch.as_tensor(np.asarray(given, dtype=np.float64))
        if X.ndim != 2 or X.shape[1] != d:
            raise ValueError(f"history's points must have shape (n, {d}), got {tuple(X.shape)}")
        X = X.to(self._x)
        if not bool(torch.isfinite(X).all()):
            raise ValueError("history's points must be finite")
        return X, parse_values(history[1], len(X)).to(X.device)

    def _take_history(self, X: Tensor, y: Tensor) -> None:
        points = self._to_search(X)
        if len(points) == 0:
            return
        self.state.memory.append(points, y)
        totals = y.clone()
        psi = getattr(self.prox, "value", None)
        for i in torch.isfinite(y).nonzero().flatten().tolist():
            if self.domain is not None and not bool(self.domain.contains(X[i])):
                totals[i] = math.inf
            elif psi is not None:
                totals[i] += float(psi(X[i]))
        self._note_best(points, totals)
