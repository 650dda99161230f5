"""The base class of ZoRD and its least-squares baseline: initial design, history, failed queries and resets."""

from __future__ import annotations

import logging
import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, Literal, Protocol, TypeVar, Unpack

import torch
from torch import Tensor

from optimizers.core.batch import Batch
from optimizers.core.bounds import search_width
from optimizers.core.history import DataAtHand
from optimizers.core.optimizer import Optimizer
from optimizers.core.options import CommonOptions, check_choice, check_integer, optional, positive, positive_integer
from optimizers.designs import local_cloud
from optimizers.estimators.estimator import confined
from optimizers.first_order import FirstOrder, UpdateRule, adam
from optimizers.methods.bayesian.unit_box import UnitBox
from surrogates.window.local_options import LEAST_DATA
from surrogates.window.trajectory import Trajectory

logger = logging.getLogger(__name__)

MOST_HALVINGS = 4
"""If more consecutive iterates than this have failed, points near the iteration's start are queried instead."""

TRIALS = 8
"""The number of points near an iterate that are tried to find one that has not been queried."""

PATIENCE = 2
"""The value of an iterate is awaited until this many other values per pending point have arrived."""


class Surrogate(Protocol):
    """A model of f that estimates gradients from the queries in its trajectory."""

    trajectory: Trajectory


S = TypeVar("S", bound=Surrogate)


@dataclass
class DescentState(Generic[S]):
    """The state without the iterate.

    Attributes:
        rule: the first-order rule, which keeps its state between iterations.
        surrogate: the model, with all queries so far.
        query: the point of the next query, shape ``d``, if it is not the iterate.
        best: the least f + ψ of all queries, including the history.
        best_point: the point of ``best``, search coordinates, shape ``d``.
        without_gain: the number of iterations since ``best`` last fell.
        step_scale: the present step sizes relative to the initial ones.
        failed: the number of consecutive iterates at which f failed.
        steps: the number of steps in the last iteration.
        active: the number of consecutive active queries.
        iterates: the number of iterates so far.
        others: the number of values at other points that have arrived since the present iterate was computed.
    """

    rule: FirstOrder
    surrogate: S
    query: Tensor | None = None
    best: float = math.inf
    best_point: Tensor | None = None
    without_gain: int = 0
    step_scale: float = 1.0
    failed: int = 0
    steps: int = 0
    active: int = 0
    iterates: int = 0
    others: int = 0


class TrajectoryDescent(Optimizer, Generic[S]):
    """Descends along gradients that a model estimates from all queries; the base class of ``ZoRD``.

    The first batch is an initial design that includes x0. Then each iteration moves along the model's gradients from
    the best point (or the last iterate) to a new iterate, and queries f there. If f has been queried at the new iterate
    before, a point at distance ``radius`` from it is queried instead. After an iterate at which f failed, the next
    iteration starts from the best point with half as many steps. After more than four such failures in a row, points
    near the best one are queried until one succeeds. If f fails beyond a known boundary, use bounds or a prox.

    **Several queries at a time.** With ``queries_per_step`` > 1, and for idle workers, further points are queried
    besides the iterate: those most informative about ∇f at the iterate, given all pending points. The next iteration
    begins when the iterate's value has arrived; if this takes too long, it begins without the value. No point is
    queried twice if there are others, and the initial design is completed before an iterate is queried.

    A subclass passes a model to ``_begin`` at the end of its ``_start``, and defines ``_iterate`` and ``_informative``.

    Args:
        initial_points: the number of queries in the initial design; None: 10, or 0 with a history or without x0.
        design: ``"local"`` for normally distributed points around x0, or ``"latin_hypercube"`` for the whole box.
        radius: the root mean square distance of the local design's points from x0, in search coordinates; None: 0.03 of
            the box's mean side, or 0.1 without a finite box.
        start: whether an iteration starts from the ``"best"`` point (ZoRD's code) or the ``"last"`` iterate (ZoRD's
            Alg. 2).
        queries_per_step: the number of queries in an iteration.
        reset_after: the number of iterations without improvement, not counting active queries, after which the
            first-order rule is reset (10 in ZoRD's code); None: never.
        step_decay: multiplies the step sizes at each reset. With 1 (ZoRD's code), a rule of constant step length, such
            as Adam, comes no closer to the minimum than about a step.
        update_rule: makes a torch optimizer of one parameter, such as ``lambda p: torch.optim.Adam([p])``.
        **common: see ``Optimizer``. If x0 is given, the first iteration starts there, even with a history.

    Raises:
        ValueError: for an option out of range, for fewer than two finite values in a history with
            ``initial_points=0``, or for a Latin hypercube without a finite box.
    """

    version = 2
    follows_estimates = True
    has_model = True
    state: DescentState[S]

    def __init__(
        self,
        x0: Any = None,
        *,
        initial_points: int | None = None,
        design: Literal["local", "latin_hypercube"] = "local",
        radius: float | None = None,
        start: Literal["best", "last"] = "best",
        queries_per_step: int = 1,
        reset_after: int | None = 10,
        step_decay: float = 0.5,
        update_rule: UpdateRule = adam,
        **common: Unpack[CommonOptions],
    ) -> None:
        fewest = LEAST_DATA if common.get("history") is None else 0
        self.initial_points = optional(check_integer, "initial_points", initial_points, fewest)
        self.design = check_choice("design", design, ("local", "latin_hypercube"))
        self.radius = optional(positive, "radius", radius)
        self.start = check_choice("start", start, ("best", "last"))
        self.queries_per_step = positive_integer("queries_per_step", queries_per_step)
        self.reset_after = optional(positive_integer, "reset_after", reset_after)
        self.step_decay = positive("step_decay", step_decay)
        self.update_rule = update_rule
        super().__init__(x0, **common)

    @abstractmethod
    def _iterate(self, x: Tensor) -> None:
        """Moves the iterate from x, where the iteration starts, shape ``d``; ends with ``_query_next``."""

    @abstractmethod
    def _informative(self, z: Tensor, pending: Tensor, count: int) -> Tensor:
        """Points where f is most informative about ∇f(z), given the queries and the pending points; a pure function.

        Args:
            z: the iterate, shape ``d``.
            pending: points whose values are not known yet, ``p x d``.
            count: the number of points wanted.

        Returns:
            ``k x d``, k ≤ count, points that ``_unasked`` keeps.
        """

    @property
    def surrogate(self) -> S:
        """The model that estimates gradients, in search coordinates."""
        return self.state.surrogate

    @property
    def trajectory(self) -> Trajectory:
        """The queries that succeeded, including the history, in search coordinates."""
        return self.state.surrogate.trajectory

    @property
    def observations(self) -> tuple[Tensor, Tensor]:
        """The points of successful queries and the history, in user units, ``n x d``, and f at them, shape ``n``."""
        return self._to_user(self.trajectory.X), self.trajectory.y.clone()

    def _start(self) -> None:
        width = search_width(self.domain)
        self.local_radius = self.radius or (0.1 if width is None else 0.03 * width)
        self.width = 10.0 * self.local_radius if width is None else width

    def _begin(self, surrogate: S) -> None:
        """Starts with an empty surrogate."""
        if self.design == "latin_hypercube":
            UnitBox.of(self.domain, "a Latin hypercube")
        default = 0 if self._opens or self._history is not None else 10
        self._design_size = default if self.initial_points is None else self.initial_points
        self.state = DescentState(FirstOrder(self.update_rule, self._x), surrogate)

    def _take_history(self, data: DataAtHand) -> None:
        if len(data.points):
            self.trajectory.append(data.points, data.values)
            self._keep_best(data.points, data.totals)
        if self._design_size or self.state.iterates or self.pending:
            return
        if len(self.trajectory) >= LEAST_DATA:
            self._go_on(self._x)
        elif not self._opens:
            known = f"the history has {len(self.trajectory)} finite values, but a gradient needs {LEAST_DATA}"
            raise ValueError(f"{known}: add values to the history, or pass initial_points")

    def move_to(self, x: Any) -> None:
        """Moves the iterate to x, where f is queried next (see ``Optimizer``)."""
        super().move_to(x)
        self.state.query, self.state.active = None, 0

    # Queries.

    @property
    def _designs(self) -> bool:
        """Whether the next batch is an initial design: the first batch, and as long as too few queries succeeded."""
        return len(self.trajectory) < LEAST_DATA or (self.iterations == 0 and self._design_size > 0)

    def _next_queries(self) -> int:
        if self._designs:
            return max(LEAST_DATA, min(self._design_size, self.remaining))
        return max(1, min(self.queries_per_step, self.remaining))

    def _ask(self) -> Batch:
        count = self._next_queries()
        if self.iterations == 0 and self._design_size >= self.max_queries:
            said = "no step is made, because the initial design uses all %d queries: pass fewer initial_points"
            logger.warning(said, self.max_queries)
        if self._designs:
            return self._points_batch(self._design(count), info={"iterate": self.state.iterates, "design": True})
        return self._iterate_batch(count, self._x.new_empty(0, self.dimension))

    def _ask_another(self, pending: Sequence[Batch], spare: int) -> Batch | None:
        if self._designs:
            return None
        points = torch.cat([batch.explicit for batch in pending if batch.explicit is not None])
        if not any(map(self._of_the_iterate, pending)):
            return self._iterate_batch(min(self.queries_per_step, spare), points)
        beside = self._informative(self._x, points, 1)
        return self._points_batch(beside, info={"beside": True}) if len(beside) else None

    def _iterate_batch(self, count: int, pending: Tensor) -> Batch:
        """The iterate's own query and ``count`` − 1 informative ones, given pending points, ``p x d``."""
        x = (self._x if self.state.query is None else self.state.query)[None]
        if count > 1:
            beside = self._informative(self._x, torch.cat([pending, x]), count - 1)
            x = torch.cat([x, beside, self._around(self._x, count)[1 + len(beside) :]])
        return self._points_batch(x, info={"iterate": self.state.iterates})

    def _of_the_iterate(self, batch: Batch) -> bool:
        """Whether a batch contains the query of the present iterate, or of the design."""
        return batch.info.get("iterate") == self.state.iterates

    def _unasked(self, points: Tensor, pending: Tensor) -> Tensor:
        """The distinct points, projected onto the box, at which f has not been queried."""
        points = torch.unique(confined(points, self.domain), dim=0)
        new = [point not in self.trajectory and not _among(point, pending) for point in points]
        return points[torch.tensor(new, dtype=torch.bool, device=points.device)]

    def _design(self, count: int) -> Tensor:
        """Points around the iterate or over the box; x0 is the first of the first design."""
        first = self._x[None] if self.iterations == 0 else self._x.new_empty(0, self.dimension)
        if self.design == "latin_hypercube":
            box = UnitBox.of(self.domain, "a Latin hypercube")
            return box.design(count, self._generator(), self._x if len(first) else None)
        return torch.cat([first, self._around(self._x, count - len(first))])

    def _around(self, x: Tensor, count: int, step: int | None = None) -> Tensor:
        """Points at the radius from x, within the box; ``step`` addresses their directions, ``next_id`` by default."""
        step = self.next_id if step is None else step
        cloud = local_cloud(x, count, self.local_radius, self.seed, distribution="normal", step=step)
        return confined(cloud, self.domain)

    # Updates with a value.

    def _tell(self, batch: Batch, values: Tensor) -> None:
        assert batch.explicit is not None
        state, totals = self.state, self._composite(batch, values)
        self.trajectory.append(batch.explicit, values)  # ZoRD, Alg. 2, line 8
        gained = self._keep_best(batch.explicit, totals)
        if gained:
            state.without_gain = 0
        if not self._of_the_iterate(batch):
            state.others += len(batch)
            if not self._passed_over(len(batch)):
                return
        elif len(self.trajectory) < LEAST_DATA:
            return
        elif state.active == 0:
            state.failed = state.failed + 1 if bool(values[0].isnan()) else 0
            state.without_gain += not gained
        self._reset_rule_without_gain()
        from_best = self.start == "best" or state.failed > 0
        self._go_on(state.best_point if from_best and state.best_point is not None else self._x)  # line 3

    def _passed_over(self, told: int) -> bool:
        """Whether the descent continues without the iterate's value; ``told``: the number of values just told."""
        out = told + sum(map(len, self.pending))
        return self.state.others >= PATIENCE * out and any(map(self._of_the_iterate, self.pending))

    def _go_on(self, x: Tensor) -> None:
        """Runs the next iteration, from x."""
        self.state.iterates, self.state.others = self.state.iterates + 1, 0
        self._iterate(x)

    def _keep_best(self, points: Tensor, totals: Tensor) -> bool:
        """Updates the best point; returns whether it is new."""
        totals = totals.nan_to_num(nan=math.inf, posinf=math.inf, neginf=math.inf)
        i = int(totals.argmin())
        if not float(totals[i]) < self.state.best:
            return False
        self.state.best, self.state.best_point = float(totals[i]), points[i].clone()
        return True

    def _reset_rule_without_gain(self) -> None:
        """Resets the rule after ``reset_after`` iterations without gain, with smaller steps."""
        state = self.state
        if self.reset_after is not None and state.without_gain >= self.reset_after:
            state.step_scale *= self.step_decay
            state.rule.reset(state.step_scale)
            state.without_gain = 0

    # Tools of ``_iterate``.

    def _halved_after_failures(self, most: int) -> int:
        """The limit of an iteration's steps, halved for each consecutive failed iterate, at least 1."""
        return max(1, most >> min(self.state.failed, MOST_HALVINGS))

    def _query_next(self, z: Tensor, start: Tensor, query: Tensor | None = None) -> None:
        """Makes z the iterate and the next query; if f has been queried at z, a point near it is queried.

        Args:
            z: the new iterate, shape ``d``.
            start: the start of the iteration; after too many failures a point near it is queried.
            query: a point to query instead.
        """
        failing = self.state.failed > MOST_HALVINGS
        if query is None and (failing or self._asked(z)):
            points = self._around(start if failing else z, TRIALS, self.iterations + 1)
            query = next((point for point in points if not self._asked(point)), points[0])
        self._x, self.state.query = z, query

    def _asked(self, z: Tensor) -> bool:
        """Whether f has been queried at z."""
        pending = (batch.explicit for batch in self.pending if batch.explicit is not None)
        return z in self.trajectory or any(_among(z, points) for points in pending)


def _among(z: Tensor, points: Tensor) -> bool:
    """Whether z, shape ``d``, is a row of a matrix."""
    return bool((points == z).all(dim=1).any())
