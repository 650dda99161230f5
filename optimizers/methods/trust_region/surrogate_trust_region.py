"""A trust-region method whose model is a Gaussian process pinned at the best point."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias, Unpack, cast

import torch
from torch import Tensor

from optimizers.core.batch import Batch
from optimizers.core.optimizer import Optimizer
from optimizers.core.options import CommonOptions, check_integer, nonnegative, optional, positive
from optimizers.methods.trust_region.beside import Place
from optimizers.methods.trust_region.composite import CompositeModel
from optimizers.methods.trust_region.cut import cut_of
from optimizers.methods.trust_region.local_data import LocalData
from optimizers.methods.trust_region.metric import metric_of
from optimizers.methods.trust_region.pinned_model import Shape
from optimizers.methods.trust_region.radius import FAILED, Radius
from optimizers.methods.trust_region.region_model import RegionModel, scaled_data
from optimizers.methods.trust_region.span import carried_metric, coordinates, covering, direction_outside
from optimizers.methods.trust_region.span_model import SpanModel
from optimizers.methods.trust_region.spanning import SPANNED_WINDOW, WHOLE, is_spanning, nearest, random_design, widened
from optimizers.prox import Prox
from surrogates.threads import small_algebra

START = 0.2
"""The first radius, in units of the box's least side; and 1 where a side is infinite, if that is less."""

GROWTH = 1e3
"""The largest radius in units of the first one, where a side is infinite."""

FINEST = 5e-8
"""The lower radius that ends a run, in units of the first radius: 1e-8 of a box's side."""

RUGGED = True
"""Whether a run smoothes over the ripples of an exact function until it cannot see more."""

LESSONS = 5
"""The most queries in a row that only teach the model."""

SCOUTS = 16
"""The random points of which a new run takes one."""

LARGEST_WINDOW = 1000
"""The most queries of a window, whatever d."""

DOUBTS, UNDECIDED = 2.0, 0.5
"""A step falls short by chance up to so many standard deviations of what it explored; its ratio counts as the other."""

ALONE = ("design", "surround", "scout", "repeat")
"""The kinds of batches beside which nothing is asked."""

PATIENCE = 2
"""A query is passed over when so many other answers for each point that is out have come before its own."""

MEMORY = 3
"""Where the model is of a span, at most so many windows of queries are kept."""


AnyModel: TypeAlias = RegionModel | SpanModel | CompositeModel


@dataclass
class TrustRegionState:
    """The state between batches.

    Attributes:
        points: the queries that succeeded, free coordinates in search units, float64, ``n x d_free``.
        values: f at them, float64, shape ``n``.
        failed: the queries that failed, ``m x d_free``.
        first: the number of the first query of the run since the last restart.
        radius: the radius and the lower radius.
        metric: A, ``d_free x d_free``, or ``k + 1 x k + 1`` in the basis's coordinates (``span``).
        basis: an orthonormal basis of the span of the model's rows, ``k x d_free``; None: all variables are modelled.
        shape: the model's a, ℓ and s², or None before the first fit.
        noisy: whether values have noise; None: not known.
        smoothing: whether the model has s², of noise or of ripples that it does not follow.
        pin: the number of the query at the center, where values have noise.
        fitted: how many queries had succeeded at the last fit.
        lessons: the number of queries in a row that only taught the model.
        center: the iterate after the last batch, shape ``d``.
        kind: of the next batch: ``"design"``, ``"scout"`` (a random point), ``"surround"`` (the rest of a design about
            one), ``"step"``, ``"lesson"`` or ``"repeat"`` (the center again).
        plan: the points of the next batch, ``q x d_free``.
        predicted: the decrease that the model predicts for a step.
        turn: the number of the plan.
        doubt: the standard deviation that what a step explores beside it adds to that.
    """

    points: Tensor
    values: Tensor
    failed: Tensor
    first: int
    radius: Radius
    metric: Tensor
    basis: Tensor | None
    shape: tuple[float, float, float] | None
    noisy: bool | None
    smoothing: bool
    pin: int
    fitted: int
    lessons: int
    center: Tensor
    kind: str
    plan: Tensor
    predicted: float
    turn: int
    doubt: float


class SurrogateTrustRegion(Optimizer):
    """Steps to the minimum of a derived Gaussian process in a ball about the best point, by Powell's rules of radii.

    A run begins with a design, x0 and x0 ± Δeᵢ (a side outside of the box: half as far on the other side), or half of
    the budget's queries of it. From then on each batch is one query, chosen by a Gaussian process over the nearest
    queries to the best point x_b (``PinnedData``, ``RegionModel``), which holds f(x_b) exactly:

    - *a step* to the least posterior mean in the ball of radius Δ and the box. Δ follows the ratio of actual to
      predicted decrease (``Radius``).
    - *a lesson*, after a step that failed or where it is too short for a query: x_b + Δe, e the unit vector along
      which ∇f(x_b) is least known, downhill by the mean, if its variance along e exceeds the squared length of its
      mean; at most five in a row.
    - *Failed queries* have no place in the model. A plane that parts them from the others about x_b, the farthest from
      x_b that does, bounds the steps (``cut_of``); where there is none, the radius falls under their distance.
    - *Noise* of unknown variance s² is a hyper-parameter of the model. Where a fit finds some, the center is queried
      again, and differs. The center is then the query of least posterior mean, Δ follows the ratio of falls of that
      mean, ρ stays where the mean changes by about s within it, and steps too short for a query are queried after five
      lessons. ``x`` is the center; ``best_x`` stays the query of the least value, a lucky one.
    - *Ripples* are what a fit takes for noise where the center's value agrees. They are smoothed over as noise is,
      until ρ would fall under what the mean shows; then the model interpolates, about the best query.
    - Where there is nothing to learn, the lower radius ρ falls to a quarter. At its least (1e-8 of the box's sides)
      another run begins at a random point; its model has all queries near it, and ``best_x`` is the best of all.

    - *Many variables* (more than 60, or more than a quarter of the budget): the model is of the span of its window's
      rows, in k ≤ n coordinates of an orthonormal basis (``span``, ``SpanModel``); outside of it every slope has mean
      0 and the prior's variance. The design is x0 and eight random directions. Each step also goes a little along a
      random direction outside (``SpanModel.exploring``), and has failed only where it falls short by more than the
      slope along that may explain. The first radius grows with √d.
    - *With a prox* the best point, the ratio and the model are of f + ψ, ψ itself known (``CompositeModel``). Steps are
      in ψ's domain; the design and lessons may be outside, where f is asked and f + ψ is infinite. An x0 outside is
      moved into it.
    - *Several queries at a time*: idle workers get one query each beside where the step ends, chosen for what they
      teach about the gradient there, whatever the values of all that are out (``Place``). A step that takes too long
      is passed over: another one takes its place, and its value joins the others when it comes.

    Lengthscale and amplitude are fitted anew every max(5, d/2) queries (n/8 in a span), and the metric of the model to
    the mean's Hessian. The algebra is on the CPU, in float64, and costs O(n³ + n² d + d³) a query for a window of n, in
    a span O(n³ + n² d).

    Args:
        x0: initial point, shape ``d``.
        radius: the first Δ, in search units; None: 0.2 of the least side of the box (2 in a box that is searched as
            [0, 10]^d) times max(1, √(d/20)), and at most 1 where a side is infinite.
        window: the most queries in a model; None: (d + 1)(d + 2)/2 + 2d, at most 1000, and 100 for d > 60.
        noise: variance of a value's noise, in f's squared units, 0 for none; None: estimated.
        **common: see ``Optimizer``; there may be bounds, finite or not; a prox needs a method ``value``.

    Raises:
        ValueError: for a prox without values, for bounds that leave nothing to search, or for an option out of range.
    """

    method = "trust_region"
    state: TrustRegionState

    def __init__(
        self,
        x0: Any,
        *,
        radius: float | None = None,
        window: int | None = None,
        noise: float | None = None,
        **common: Unpack[CommonOptions],
    ) -> None:
        self.radius = optional(positive, "radius", radius)
        self.window = optional(check_integer, "window", window, 2)
        self.noise = optional(nonnegative, "noise", noise)
        super().__init__(x0, **common)

    def _start(self) -> None:
        if self.prox is not None:
            if not hasattr(self.prox, "value"):
                raise ValueError("SurrogateTrustRegion compares values of f + ψ: its prox needs a method value(x)")
            if not math.isfinite(float(cast(Prox, self.prox).value(self._x))):
                self._x = self._prox(self._x, 1.0)
        self._free = torch.arange(self.dimension, device=self._x.device)
        if self.domain is None:
            lower = torch.full((self.dimension,), -math.inf, dtype=torch.float64)
            self._lower, self._upper = lower, -lower
        else:
            lower, upper = self.domain.search_lower, self.domain.search_upper
            self._free = (upper > lower).nonzero().flatten()
            self._lower, self._upper = (side[self._free].double().cpu() for side in (lower, upper))
        self._d = len(self._free)
        if self._d == 0:
            raise ValueError("SurrogateTrustRegion has nothing to search: every coordinate has equal bounds")
        self._sides = self._upper - self._lower
        spanning, center = is_spanning(self._d, self.max_queries), self._free_part(self._x)
        self._opening = self._first_radius()
        self.state = TrustRegionState(
            points=self._kept(center.new_empty(0, self._d)),
            values=self._kept(center.new_empty(0)),
            failed=self._kept(center.new_empty(0, self._d)),
            first=0,
            radius=self._opening,
            metric=self._kept(torch.eye(1 if spanning else self._d, dtype=torch.float64)),
            basis=self._kept(center.new_empty(0, self._d)) if spanning else None,
            shape=None,
            noisy=None if self.noise is None else self.noise > 0.0,
            smoothing=bool(self.noise),
            pin=0,
            fitted=0,
            lessons=0,
            center=self._x,
            kind="design",
            plan=center[None],
            predicted=0.0,
            turn=0,
            doubt=0.0,
        )
        self.state.plan = self._kept(self._design(center, self._opening.delta))

    @property
    def _size(self) -> int:
        """The most queries in a model."""
        most = (self._d + 1) * (self._d + 2) // 2 + 2 * self._d
        return self.window or min(most, LARGEST_WINDOW if self._d <= WHOLE else SPANNED_WINDOW)

    def _first_radius(self) -> Radius:
        least = float(self._sides.min())
        if bool(torch.isfinite(self._sides).all()):
            wider = widened(self._d)
            delta, largest = self.radius or wider * START * least, wider * 0.5 * float(self._sides.max())
            return Radius(min(delta, largest), min(delta, largest), largest)
        delta = self.radius or min(1.0, START * least)
        return Radius(delta, delta, GROWTH * delta)

    def _free_part(self, z: Tensor) -> Tensor:
        """The free coordinates of points in search coordinates, ``... x d_free``, float64 on the CPU."""
        return z[..., self._free].double().cpu()

    def _kept(self, values: Tensor) -> Tensor:
        """What the state holds of a tensor: it on the run's device."""
        return values.to(self._x.device)

    def _whole(self, points: Tensor) -> Tensor:
        """The points in search coordinates, of the run's dtype, for their free coordinates, ``q x d``."""
        z = self._x.repeat(len(points), 1)
        z[:, self._free] = self._kept(points).to(z.dtype)
        return z if self.domain is None else torch.clamp(z, self.domain.search_lower, self.domain.search_upper)

    def _design(self, center: Tensor, delta: float) -> Tensor:
        """A center and the points at ±δ from it along each free coordinate, ``2d_free + 1 x d_free``.

        Where the model is of a span it is the center and a few points at δ along random directions.
        """
        if self.state.basis is not None:
            design = random_design(center, delta, self._generator(3))
            return torch.clamp(design, self._lower, self._upper)
        reach = torch.minimum(torch.full_like(self._sides, delta), 0.4 * self._sides)
        up, down = reach, -reach
        up = torch.where(center + reach > self._upper, -0.5 * reach, up)
        down = torch.where(center - reach < self._lower, 0.5 * reach, down)
        return center + torch.cat([torch.zeros_like(center)[None], torch.diag(up), torch.diag(down)])

    def _planned(self) -> tuple[str, Tensor]:
        """The kind and the points of the next batch: what was planned, or a design about where ``restart`` moved."""
        state = self.state
        if torch.equal(self._x, state.center):
            return state.kind, state.plan
        return "design", self._design(self._free_part(self._x), self._opening.delta)

    def _next_queries(self) -> int:
        kind, points = self._planned()
        return min(len(points), max(1, (self.remaining + 1) // 2)) if kind in ("design", "surround") else 1

    def _ask(self) -> Batch:
        kind, points = self._planned()
        info = {"kind": kind, "turn": self.state.turn, "told": self.iterations}
        return self._points_batch(self._whole(points[: self._next_queries()]), info=info)

    def _ask_another(self, pending: Sequence[Batch], spare: int) -> Batch | None:
        if any(batch.info["kind"] in ALONE for batch in pending):
            return None
        if not any(batch.info["turn"] == self.state.turn for batch in pending):
            return None if self._planned()[0] in ALONE else self._ask()
        try:
            points = self.state.points[self.state.pin].cpu() + self._about_plan(pending).informative(self._generator(5))
        except ArithmeticError:
            return None
        out = torch.cat([self._free_part(cast(Tensor, batch.explicit)) for batch in pending])
        for point in self._free_part(self._whole(self._kept(points))):
            if not self._is_known(self.state, point[None]) and not bool((out == point).all(dim=1).any()):
                return self._points_batch(self._whole(point[None]), info={"kind": "beside", "turn": -1})
        return None

    def _about_plan(self, pending: Sequence[Batch]) -> Place:
        """What is known about the planned query, the points that are out among it."""
        state = self.state
        points, center = state.points.cpu(), state.points[state.pin].cpu()
        data = LocalData.about(points, state.values.cpu(), state.pin, self._size, state.radius.delta, False)
        out = torch.cat([self._free_part(cast(Tensor, batch.explicit)) for batch in pending])
        return Place(
            rows=data.rows,
            asked=out - center,
            end=state.plan[0].cpu() - center if state.kind == "step" else torch.zeros_like(center),
            metric=state.metric.cpu(),
            basis=None if state.basis is None else state.basis.cpu(),
            shape=Shape(*state.shape or Shape()),
            radius=state.radius.delta,
            lower=self._lower - center,
            upper=self._upper - center,
        )

    def _awaited(self) -> bool:
        """Whether the planned query is out, and not for so long that another one takes its place."""
        late = PATIENCE * len(self.pending)
        ours = [batch for batch in self.pending if batch.info["turn"] == self.state.turn]
        return any(self.iterations - batch.info["told"] <= late for batch in ours)

    def _tell(self, batch: Batch, values: Tensor) -> None:
        state, kind = self.state, batch.info["kind"]
        succeeded = torch.isfinite(values)
        asked = self._kept(self._free_part(cast(Tensor, batch.explicit)))
        now = replace(
            state,
            points=torch.cat([state.points, asked[succeeded]]),
            values=torch.cat([state.values, values[succeeded]]),
            failed=torch.cat([state.failed, asked[~succeeded]]),
        )
        told, failed = bool(succeeded.all()), False
        if kind in ("step", "lesson") and batch.info["turn"] != state.turn:
            kind = "beside"
        if kind == "beside" and self._awaited():
            self.state = now
            return
        now.turn = state.turn + 1
        if kind in ("design", "scout"):
            now.first, now.radius, now.lessons = len(state.values), self._opening, 0
            now.smoothing = now.noisy is not None and (now.noisy or RUGGED)
        elif kind == "repeat" and told:
            now.noisy = bool(values[0] != state.values[state.pin])
            now.fitted, now.smoothing = 0, now.noisy or RUGGED
            if not now.noisy:
                now.points, now.values = state.points, state.values
        elif kind == "step" and not (now.smoothing and told):
            place = state.pin
            length = float((asked[0] - state.points[place]).norm())
            before, after = self._totals(now, torch.tensor([place, len(now.values) - 1])).tolist()
            ratio = _ratio(before, after if told else math.nan, state.predicted)
            miss = after - before + state.predicted
            if ratio <= FAILED and miss <= DOUBTS * state.doubt:
                ratio = UNDECIDED
            failed = not ratio > FAILED
            cut = None if told else self._cut(now, place)
            now.radius = state.radius.after(ratio if cut is None else -math.inf, length)
            now.lessons = 0
        elif kind == "lesson" and not told and self._cut(now, self._best(state)) is None:
            now.radius = state.radius.after(math.nan, state.radius.delta)
        with small_algebra(self._size * min(self._size, self._d) ** 2):
            at_rho = told and state.radius.delta <= state.radius.rho
            self._plan(now, kind, failed, failed and at_rho)
        self.state, self._x = now, now.center

    def _best(self, state: TrustRegionState) -> int:
        """The number of the best query since the last restart; where values have noise, that of least mean."""
        if state.smoothing and state.pin >= state.first:
            return state.pin
        return state.first + int(self._totals(state, torch.arange(state.first, len(state.values))).argmin())

    def _totals(self, state: TrustRegionState, numbers: Tensor) -> Tensor:
        """f + ψ at the queries of the given numbers, shape ``n``; inf outside of ψ's domain."""
        numbers = numbers.to(state.values.device)
        if self.prox is None:
            return state.values[numbers]
        return state.values[numbers] + cast(Prox, self.prox).value(self._whole(state.points[numbers])).to(state.values)

    def _plan(self, now: TrustRegionState, kind: str, failed: bool, at_rho: bool) -> None:
        """Sets the center, the model's hyper-parameters and the next batch.

        Args:
            now: the state with all values.
            kind: the kind of the batch that was told.
            failed: whether it was a step that failed.
            at_rho: whether that was at Δ = ρ, and with a value.
        """
        if now.first == len(now.values):
            self._scout(now)
            return
        self._forget(now)
        best = self._best(now)
        model = None if kind == "scout" else self._model(now, best)
        if now.smoothing and model is not None:
            best, model, failed = self._settled(now, best, model, kind)
            at_rho = failed and now.radius.delta <= now.radius.rho
        center = now.points[best].cpu()
        now.center, now.pin = self._whole(center[None])[0], best
        if kind == "scout":
            now.kind, now.plan = "surround", self._kept(self._design(center, now.radius.delta)[1:])
            return
        if model is None:
            direction = torch.from_numpy(self._generator(1).standard_normal(self._d))
            now.kind, now.plan = "lesson", self._lesson(center, direction, now.radius.delta)
            return
        if now.noisy is None and now.shape is not None and now.shape[2] > 0.0:
            now.kind, now.plan = "repeat", self._kept(center[None])
            return
        if now.smoothing and not model.sees(0.5 * now.radius.rho):
            now.radius = now.radius.raised()
        lower, upper = self._lower - center, self._upper - center
        step, mean = model.step(now.radius.delta, lower, upper)
        length = float(step.norm())
        while True:
            plan = self._kept(torch.clamp(center + step, self._lower, self._upper)[None])
            short = now.radius.is_short(length) or not mean < 0.0 or self._is_known(now, plan)
            if not short and not failed:
                now.kind, now.plan, now.predicted, now.doubt = "step", plan, -mean, 0.0
                if isinstance(model, SpanModel) and self.remaining > 1:
                    step, now.doubt = model.exploring(step, now.radius.delta, lower, upper)
                    now.plan = self._kept(torch.clamp(center + step, self._lower, self._upper)[None])
                return
            if now.lessons < LESSONS and (uncertain := model.lesson(now.radius.delta)) is not None:
                lesson = self._lesson(center, uncertain, now.radius.delta)
                if not self._is_known(now, lesson):
                    now.kind, now.plan, now.lessons = "lesson", lesson, now.lessons + 1
                    return
            if short or at_rho:
                if now.smoothing and not model.sees(0.5 * now.radius.rho):
                    if not now.noisy:
                        now.smoothing, now.fitted, now.lessons = False, 0, 0
                        self._plan(now, "lesson", False, False)
                        return
                    now.kind, now.plan, now.lessons = "lesson", plan, 0
                    return
                now.radius = now.radius.lowered()
                if now.radius.rho < self._finest(center):
                    self._scout(now)
                    return
                if length > now.radius.delta:
                    step, mean = model.step(now.radius.delta, lower, upper)
                    length = float(step.norm())
            failed = at_rho = False

    def _forget(self, now: TrustRegionState) -> None:
        """Where the model is of a span, drops the queries far from the best one, as soon as they are too many."""
        if now.basis is None or len(now.values) <= MEMORY * self._size:
            return
        last = torch.tensor([len(now.values) - 1], device=now.values.device)
        kept = torch.cat([nearest(now.points, self._best(now), self._size), last]).unique()
        now.fitted -= len(now.values) - len(kept)
        now.first, now.pin = int((kept < now.first).sum()), int((kept < now.pin).sum())
        now.points, now.values = now.points[kept], now.values[kept]

    def _finest(self, center: Tensor) -> float:
        """The lower radius that ends a run: of the first radius, and of what the points' dtype resolves."""
        resolved = 8.0 * torch.finfo(self._x.dtype).eps * float(center.abs().max())
        return max(FINEST * self._opening.rho, resolved)

    def _is_known(self, now: TrustRegionState, plan: Tensor) -> bool:
        """Whether a point has been queried when it is rounded to the run's dtype, and would give the same value."""
        if now.noisy:
            return False
        rounded = self._kept(self._free_part(self._whole(plan)))
        return any(bool((asked == rounded).all(dim=1).any()) for asked in (now.points, now.failed))

    def _scout(self, now: TrustRegionState) -> None:
        """Plans one random point: of the box, or about the iterate where a side is infinite; a new run begins there.

        It is the first of ``SCOUTS`` whose nearest query has not failed, or the first of all.
        """
        generator = self._generator(2)
        u = torch.from_numpy(generator.random((SCOUTS, self._d)))
        z = torch.from_numpy(generator.standard_normal((SCOUTS, self._d)))
        near = self._free_part(now.center) + self._opening.delta * 2.0 * z
        inside = torch.where(torch.isfinite(self._sides), self._lower + u * self._sides, near)
        spots, chosen = torch.clamp(inside, self._lower, self._upper), 0
        if len(now.failed) and len(now.points):
            nearest = [torch.cdist(spots, asked.cpu()).min(dim=1).values for asked in (now.points, now.failed)]
            chosen = int((nearest[0] < nearest[1]).int().argmax())
        spot = spots[chosen][None]
        if self.prox is not None:
            spot = self._free_part(self._prox(self._whole(spot), 1.0))
        now.kind, now.plan = "scout", self._kept(spot)

    def _lesson(self, center: Tensor, direction: Tensor, delta: float) -> Tensor:
        """The point at δ along a direction, or against it where the box cuts less of that, ``1 x d_free``."""
        move = direction * (delta / direction.norm())
        there, back = (torch.clamp(center + sign * move, self._lower, self._upper) for sign in (1.0, -1.0))
        enough = 0.5 * delta <= float((there - center).norm())
        better = enough or float((there - center).norm()) >= float((back - center).norm())
        return self._kept((there if better else back)[None])

    def _model(self, now: TrustRegionState, best: int) -> AnyModel | None:
        """The model of the queries near the best one, its hyper-parameters fitted where it is time; None without any.

        Raises nothing for points that are too near to each other: a model of half of them takes its place.
        """
        data = LocalData.about(now.points.cpu(), now.values.cpu(), best, self._size, now.radius.delta, bool(now.noisy))
        cut = self._cut(now, best)
        every = self._d // 2 if now.basis is None else min(self._d, len(data)) // 8
        due = now.shape is None or len(now.values) - now.fitted >= max(5, every)
        while len(data):
            try:
                model = self._fitted(now, data, due) if now.basis is None else self._spanned(now, data, due)
                model.cut, model.numbers = cut, data.numbers
                return model if self.prox is None else self._composed(now, model, best, data.rows)
            except ArithmeticError:
                data = data.halved()
        return None

    def _composed(
        self, now: TrustRegionState, model: RegionModel | SpanModel, best: int, rows: Tensor
    ) -> CompositeModel:
        """The model of f + ψ, for ψ and its prox of steps from the best point."""
        center, whole = now.points[best].cpu(), self._whole(now.points[best][None])[0].double().cpu()
        psi = cast(Prox, self.prox)

        def at(s: Tensor) -> Tensor:
            x = whole.clone()
            x[self._free.cpu()] = center + s
            return x

        def prox(s: Tensor, size: float) -> Tensor:
            return psi(at(s), size)[self._free.cpu()] - center

        return CompositeModel(model, lambda s: float(psi.value(at(s))), prox, rows)

    def _spanned(self, now: TrustRegionState, data: LocalData, due: bool) -> SpanModel:
        """The model of the data in the span of their rows, which the state's basis is made to cover."""
        basis = cast(Tensor, now.basis).cpu()
        wider, grown = covering(basis, data.rows)
        now.metric = self._kept(carried_metric(now.metric.cpu(), basis, wider, grown))
        now.basis = self._kept(wider)
        inside = replace(data, rows=coordinates(wider, data.rows))
        random = torch.from_numpy(self._generator(4).standard_normal(self._d))
        return SpanModel(self._fitted(now, inside, due), wider, direction_outside(wider, random))

    def _cut(self, now: TrustRegionState, best: int) -> Tensor | None:
        """The plane before the failed queries near the best one, see ``cut_of``."""
        if len(now.failed) == 0:
            return None
        center = now.points[best]
        return cut_of((now.failed - center).cpu(), (now.points - center).cpu(), now.radius.delta)

    def _fitted(self, now: TrustRegionState, data: LocalData, due: bool) -> RegionModel:
        """The model of the data; where it is due, after a fit of metric and shape."""
        rows, heights, metric = data.rows, data.heights, now.metric.cpu()
        variance = (self.noise or 0.0) / data.unit / data.unit
        before = Shape(*now.shape) if now.shape is not None else None
        if not due and before is not None:
            return RegionModel.of(rows, heights, metric, before, data.unit, variance)
        shape = before or scaled_data(rows, heights, metric, variance)[0].fitted(None, now.smoothing)
        metric = metric_of(RegionModel.of(rows, heights, metric, shape, 1.0, variance).hessian)
        scaled, map = scaled_data(rows, heights, metric, variance)
        shape = scaled.fitted(shape, None if now.noisy is None else now.smoothing)
        model = RegionModel(scaled.model(shape), map, data.unit)
        now.metric, now.fitted = self._kept(metric), len(now.values)
        now.shape = (shape.amplitude, shape.lengthscale, shape.noise)
        return model

    def _settled(self, now: TrustRegionState, best: int, model: AnyModel, kind: str) -> tuple[int, AnyModel, bool]:
        """The query of least posterior mean, the model pinned there, and whether a step to the last one has failed.

        The radius follows the ratio of the fall of the mean, given the new value, to the one that was predicted.
        """
        means, numbers, failed = model.means(), model.numbers, False
        last = (numbers == len(now.values) - 1).nonzero().flatten()
        if kind == "step" and len(last):
            length = float((now.points[-1] - now.points[best]).norm())
            ratio = -float(means[last[0]]) / max(now.predicted, 1e-300)
            failed, now.lessons = not ratio > FAILED, 0
            now.radius = now.radius.after(ratio, length)
        means = torch.where(numbers >= now.first, means, math.inf)
        place = int(means.argmin())
        if not float(means[place]) < 0.0:
            return best, model, failed
        best = int(numbers[place])
        return best, self._model(now, best) or model, failed


def _ratio(before: float, after: float, predicted: float) -> float:
    """Actual over predicted decrease; NaN for a failed query."""
    if math.isnan(after):
        return math.nan
    unit = max(abs(before), abs(after), 1e-300)
    return (before / unit - after / unit) / max(predicted / unit, 1e-300)
