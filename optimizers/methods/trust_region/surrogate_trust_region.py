"""A trust-region method whose model is a Gaussian process pinned at the best point."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Unpack, cast

import torch
from torch import Tensor

from optimizers.core.batch import Batch
from optimizers.core.optimizer import Optimizer
from optimizers.core.options import CommonOptions, check_integer, nonnegative, optional, positive
from optimizers.methods.trust_region.cut import is_at
from optimizers.methods.trust_region.free_box import FreeBox
from optimizers.methods.trust_region.modeller import AnyModel, Modeller
from optimizers.methods.trust_region.radius import FAILED
from optimizers.methods.trust_region.region_state import TrustRegionState
from optimizers.methods.trust_region.span_model import SpanModel
from optimizers.methods.trust_region.spanning import is_spanning
from optimizers.prox import Prox
from surrogates.linalg.cholesky import NotPositiveDefiniteError
from surrogates.threads import small_algebra

RUGGED = True
"""Whether a run smoothes over the ripples of an exact function until it cannot see more."""

EARLY = 10
"""In so many first queries a variable, half of all at most, ripples stay smoothed over when ρ is at what is seen."""

LESSONS = 5
"""The most queries in a row that only teach the model."""

DOUBTS, UNDECIDED = 2.0, 0.5
"""A step falls short by chance up to so many standard deviations of what it explored; its ratio counts as the other."""

CHANCES = 3
"""The most queries in a row that only teach the model, up to such a step: one more that falls short has failed."""

RETURNS = True
"""Whether in a span a new run begins about the best point where the random one is no better than x0."""

ALONE = ("design", "surround", "scout", "repeat")
"""The kinds of batches beside which nothing is asked."""

PATIENCE = 2
"""A query is passed over when so many other answers for each point that is out have come before its own."""


class SurrogateTrustRegion(Optimizer):
    """Steps to the minimum of a derived Gaussian process in a ball about the best point, by Powell's rules of radii.

    A run begins with a design, x0 and x0 ± Δeᵢ (a side outside of the box: half as far on the other side), or half of
    the budget's queries of it. From then on each batch is one query, chosen by a Gaussian process over the nearest
    queries to the best point x_b (``PinnedData``, ``RegionModel``), which without noise and ripples holds f(x_b):

    - *a step* to the least posterior mean in the ball of radius Δ and the box. Δ follows the ratio of actual to
      predicted decrease (``Radius``).
    - *a lesson*, after a step that failed or where it is too short for a query: x_b + Δe, e the unit vector along
      which what is not known of ∇f(x_b) may gain most, downhill by the mean. A slope g gains about ½gᵀB⁻¹g within Δ,
      B = |∇²μ| + ‖∇μ‖/Δ; e maximizes eᵀCe/eᵀBe, C the covariance of ∇f(x_b), if the most exceeds ∇μᵀB⁻¹∇μ. There are
      at most five in a row.
    - *Failed queries* have no place in the model. A plane that parts them from the others about x_b, the farthest from
      x_b that does, bounds the steps (``cut_of``), which go a quarter of the way to it at most, and end a radius before
      it, or go along it (``share_of``): failures may begin at a curved border. Where the plane is near and steps still
      fail, ρ falls; where there is none, the radius falls under their distance.
    - *Noise* of unknown variance s² is a hyper-parameter of the model. Where a fit finds some, the center is queried
      again, and differs, or fails. The center is then the query of least posterior mean, Δ follows the ratio of falls
      of that mean, ρ stays where the mean changes by about s within it, unless queries fail there, and steps too short
      for a query are queried after five lessons. ``x`` is the center; ``best_x`` stays the query of the least value, a
      lucky one.
    - *Ripples* are what a fit takes for noise where the center's value agrees. They are smoothed over as noise is,
      until ρ would fall under what the mean shows; and also then in the first ten queries a variable, half of all at
      most, where values are much less likely without noise (``needs_noise``). After that the model interpolates, about
      the best query.
    - Where there is nothing to learn, the lower radius ρ falls to a quarter. At its least (1e-8 of the box's sides)
      another run begins at a random point; its model has all queries near it, and ``best_x`` is the best of all.
    - *Many variables* (more than 60, or more than a sixth of the budget that a run begins with): the model is of the
      span of its window's rows, in k ≤ n coordinates of an orthonormal basis (``span``, ``SpanModel``); outside of it
      every slope has mean 0 and the prior's variance. The design is x0 and eight random directions. Without a prox each
      step also goes a little along a random direction outside (``SpanModel.exploring``), and where nothing is smoothed
      over it has failed only if it falls short by more than the slope along that may explain, or as the fourth in a
      row. The first radius grows with √d. A new run begins about the best point where the random one is no better
      than x0, as few are in many dimensions.
    - *With a prox* the best point, the ratio and the model are of f + ψ, ψ itself known (``CompositeModel``). Steps are
      in ψ's domain; the design and lessons may be outside, where f is asked and f + ψ is infinite. An x0 outside is
      moved into it.
    - *Several queries at a time*: idle workers get one query each beside where the step ends, chosen for what they
      teach about the gradient there, whatever the values of all that are out (``Place``). A step that takes too long
      is passed over: another one takes its place, and its value joins the others when it comes.

    The model's amplitude, and its noise, are fitted anew every max(2, d/2) queries (max(5, n/8) in a span), and its
    metric to the mean's Hessian. The algebra is on the CPU, in float64, and costs O(n³ + n² d + d³) a query for a
    window of n, in a span O(n³ + n² d).

    Args:
        x0: initial point, shape ``d``.
        radius: the first Δ, in search units, in a finite box at most half of its largest side times max(1, √(d/20));
            None: 0.2 of the least side (2 in a box that is searched as [0, 10]^d) times that root, and where a side is
            infinite without it and at most 1. It is at least what the dtype resolves at x0.
        window: the most queries in a model; None: (d + 1)(d + 2)/2 + 2d, at most 1000, and 100 for d > 60; where values
            have noise also half of all queries, up to 300 of them.
        noise: variance of a value's noise, in f's squared units; None: estimated. With 0 a run smooths over ripples
            from its design on, whether a fit finds some or not.
        **common: see ``Optimizer``; there may be bounds, finite or not; a prox needs a method ``value``.

    Raises:
        ValueError: for a prox without values, for bounds that leave nothing to search, or for an option out of range.
    """

    method = "trust_region"
    version = 3
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
        self._box = FreeBox(self._x, self.domain)
        if self._box.d == 0:
            raise ValueError("SurrogateTrustRegion has nothing to search: every coordinate has equal bounds")
        self._modeller = Modeller(self._box, self.window, self.noise, cast("Prox | None", self.prox))
        self._opening = self._box.first_radius(self.radius)
        noisy = None if self.noise is None else self.noise > 0.0
        self.state = TrustRegionState.beginning(self._x, self._box.part(self._x), self._opening, noisy)

    def _planned(self) -> tuple[str, Tensor]:
        """The kind and the points of the next batch: what was planned, or a design, also where ``restart`` moved."""
        state = self.state
        if state.turn and torch.equal(self._x, state.center):
            return state.kind, state.plan
        return "design", self._design(self._box.part(self._x), self._opening.delta)

    def _design(self, center: Tensor, delta: float) -> Tensor:
        """A design about a center, random where the model is of a span, ``m x d_free``."""
        if self._is_spanning():
            return self._box.random_design(center, delta, self._generator(3))
        return self._box.design(center, delta)

    def _is_spanning(self) -> bool:
        """Whether the model is of the span of its rows: the budget of the first batch has decided it."""
        if self.state.turn:
            return self.state.basis is not None
        return is_spanning(self._box.d, self.max_queries)

    def _next_queries(self) -> int:
        kind, points = self._planned()
        return min(len(points), max(1, (self.remaining + 1) // 2)) if kind in ("design", "surround") else 1

    def _ask(self) -> Batch:
        kind, points = self._planned()
        info = {
            "kind": kind,
            "design": kind == "design",
            "turn": self.state.turn,
            "told": self.iterations,
            "spanning": self._is_spanning(),
        }
        return self._points_batch(self._box.whole(points[: self._next_queries()]), info=info)

    def _ask_another(self, pending: Sequence[Batch], spare: int) -> Batch | None:
        if any(batch.info["kind"] in ALONE for batch in pending):
            return None
        if not any(batch.info["turn"] == self.state.turn for batch in pending):
            return None if self._planned()[0] in ALONE else self._ask()
        state, box = self.state, self._box
        out = torch.cat([box.part(cast(Tensor, batch.explicit)) for batch in pending])
        try:
            moves = self._modeller.place(state, out).informative(self._generator(5))
        except NotPositiveDefiniteError:
            return None
        for point in box.part(box.whole(state.points[state.pin].cpu() + moves)):
            if not self._is_known(state, point[None]) and not bool((out == point).all(dim=1).any()):
                return self._points_batch(box.whole(point[None]), info={"kind": "beside", "turn": -1})
        return None

    def _awaited(self) -> bool:
        """Whether the planned query is out, and not for so long that another one takes its place."""
        late = PATIENCE * len(self.pending)
        ours = [batch for batch in self.pending if batch.info["turn"] == self.state.turn]
        return any(self.iterations - batch.info["told"] <= late for batch in ours)

    def _tell(self, batch: Batch, values: Tensor) -> None:
        state, kind = self.state, batch.info["kind"]
        succeeded = torch.isfinite(values)
        asked = self._box.kept(self._box.part(cast(Tensor, batch.explicit)))
        now = replace(
            state,
            points=torch.cat([state.points, asked[succeeded]]),
            values=torch.cat([state.values, values[succeeded]]),
            # A point that has succeeded and fails now is no border's.
            failed=state.failed if kind == "repeat" else torch.cat([state.failed, asked[~succeeded]]),
        )
        told, failed, stuck = bool(succeeded.all()), False, False
        if kind in ("step", "lesson") and batch.info["turn"] != state.turn:
            kind = "beside"
        if kind == "beside" and self._awaited():
            self.state = now
            return
        now.turn = state.turn + 1
        if state.turn == 0:
            spanning = batch.info["spanning"]
            now.basis = state.points[:0] if spanning else None
            now.metric = self._box.kept(torch.eye(1 if spanning else self._box.d, dtype=torch.float64))
        if kind in ("design", "scout"):
            now.first, now.radius, now.lessons = len(state.values), self._opening, 0
            now.smoothing = now.noisy is not None and (now.noisy or RUGGED)
            now.shape = None
            reached = float(self._modeller.totals(now, torch.tensor([now.first]))) if bool(succeeded[0]) else math.inf
            if kind == "design":
                now.began = reached
            elif RETURNS and now.basis is not None and len(now.values) and not reached < now.began:
                now.first, now.pin = 0, self._modeller.lowest(now)
        elif kind == "repeat":
            now.noisy = not told or bool(values[0] != state.values[state.pin])
            now.fitted, now.smoothing = 0, now.noisy or RUGGED
            if not now.noisy:
                now.points, now.values = state.points, state.values
        elif kind == "step" and not (now.smoothing and told):
            place = state.pin
            length = float((asked[0] - state.points[place]).norm())
            before, after = self._modeller.totals(now, torch.tensor([place, len(now.values) - 1])).tolist()
            ratio = _ratio(before, after if told else math.nan, state.predicted)
            miss = after - before + state.predicted
            now.lessons = 0
            if ratio <= FAILED and miss <= DOUBTS * state.doubt and state.lessons < CHANCES:
                ratio, now.lessons = UNDECIDED, state.lessons + 1
            failed = not ratio > FAILED
            cut = None if told else self._modeller.cut(now, place)
            now.radius = state.radius.after(ratio if cut is None else -math.inf, length)
            stuck = cut is not None and is_at(cut, state.radius.delta)
        elif (
            kind == "lesson"
            and not told
            and (len(state.values) == 1 or self._modeller.cut(now, self._modeller.best(state)) is None)
        ):
            now.radius = state.radius.after(math.nan, state.radius.delta)
        with small_algebra(self._modeller.flops):
            at_rho = (told or stuck) and state.radius.delta <= state.radius.rho
            self._plan(now, kind, failed, failed and at_rho)
        self.state, self._x = now, now.center

    def _plan(self, now: TrustRegionState, kind: str, failed: bool, at_rho: bool) -> None:
        """Sets the center, the model's hyper-parameters and the next batch.

        Args:
            now: the state with all values.
            kind: the kind of the batch that was told.
            failed: whether it was a step that failed.
            at_rho: whether that was at Δ = ρ, and with a value, or without one at a plane that is near (``is_at``).
        """
        if now.first == len(now.values):
            self._scout(now)
            return
        modeller, normal = self._modeller, torch.from_numpy(self._generator(4).standard_normal(self._box.d))
        modeller.forget(now)
        best = modeller.best(now)
        model = None if kind == "scout" else modeller.model(now, best, normal)
        if now.smoothing and model is not None:
            best, model, fell_short = modeller.settled(now, best, model, kind == "step" and not failed, normal)
            if fell_short:
                failed, at_rho = True, now.radius.delta <= now.radius.rho
        center = now.points[best].cpu()
        now.center, now.pin = self._box.whole(center[None])[0], best
        if kind == "scout":
            now.kind, now.plan = "surround", self._box.kept(self._design(center, now.radius.delta)[1:])
        elif model is None:
            direction = torch.from_numpy(self._generator(1).standard_normal(self._box.d))
            now.kind, now.plan = "lesson", self._box.kept(self._box.along(center, direction, now.radius.delta))
            if self._is_known(now, now.plan):
                self._scout(now)
        elif now.noisy is None and now.shape is not None and now.shape[1] > 0.0:
            now.kind, now.plan = "repeat", self._box.kept(center[None])
        else:
            self._step_or_lesson(now, model, center, failed, at_rho)

    def _step_or_lesson(
        self, now: TrustRegionState, model: AnyModel, center: Tensor, failed: bool, at_rho: bool
    ) -> None:
        """Plans what the model says is next, at ever finer scales."""
        box = self._box
        if self._is_blind(now, model, center):
            now.radius = now.radius.raised()
        lower, upper = box.lower - center, box.upper - center
        step, mean = model.step(now.radius.delta, lower, upper)
        length = float(step.norm())
        while True:
            plan = box.kept(box.clamped(center + step)[None])
            short = now.radius.is_short(length) or not mean < 0.0 or self._is_known(now, plan)
            if not short and not failed:
                now.kind, now.plan, now.predicted, now.doubt = "step", plan, -mean, 0.0
                if isinstance(model, SpanModel) and self.remaining > 1:
                    step, now.doubt = model.exploring(step, now.radius.delta, lower, upper)
                    now.plan = box.kept(box.clamped(center + step)[None])
                return
            if now.lessons < LESSONS and (uncertain := model.lesson(now.radius.delta)) is not None:
                lesson = box.kept(box.along(center, uncertain, now.radius.delta))
                if not self._is_known(now, lesson):
                    now.kind, now.plan, now.lessons = "lesson", lesson, now.lessons + 1
                    return
            if short or at_rho:
                if self._is_blind(now, model, center):
                    if not (now.noisy or (self.queries < min(EARLY * box.d, self.remaining) and model.needs_noise())):
                        now.smoothing, now.fitted, now.lessons = False, 0, 0
                        self._plan(now, "lesson", False, False)
                        return
                    if self._is_known(now, plan):
                        direction = torch.from_numpy(self._generator(1).standard_normal(box.d))
                        plan = box.kept(box.along(center, direction, now.radius.delta))
                    now.kind, now.plan, now.lessons = "lesson", plan, 0
                    return
                now.radius = now.radius.lowered()
                if now.radius.rho < box.finest(center, self._opening):
                    self._scout(now)
                    return
                if length > now.radius.delta or len(now.failed):  # a smaller radius may go nearer to a plane
                    step, mean = model.step(now.radius.delta, lower, upper)
                    length = float(step.norm())
            failed = at_rho = False

    def _is_blind(self, now: TrustRegionState, model: AnyModel, center: Tensor) -> bool:
        """Whether noise hides what f does within ρ, and nothing has failed within 2ρ: then ρ is no less."""
        if not now.smoothing or model.sees(0.5 * now.radius.rho):
            return False
        distances = torch.linalg.vector_norm(now.failed.cpu() - center, dim=1)
        return not bool((distances <= 2.0 * now.radius.rho).any())

    def _is_known(self, now: TrustRegionState, plan: Tensor) -> bool:
        """Whether a point has been queried when it is rounded to the run's dtype, and would give the same value."""
        if now.noisy:
            return False
        rounded = self._box.kept(self._box.part(self._box.whole(plan)))
        return any(bool((asked == rounded).all(dim=1).any()) for asked in (now.points, now.failed))

    def _scout(self, now: TrustRegionState) -> None:
        """Plans one random point, of ψ's domain: a new run begins there."""
        center = self._box.part(now.center)
        spot = self._box.scout(center, self._opening.delta, now.points, now.failed, self._generator(2))
        if self.prox is not None:
            spot = self._box.part(self._prox(self._box.whole(spot), 1.0))
        now.kind, now.plan = "scout", self._box.kept(spot)


def _ratio(before: float, after: float, predicted: float) -> float:
    """Actual over predicted decrease; NaN for a failed query, inf for the first value in ψ's domain."""
    if math.isnan(after):
        return math.nan
    if before == math.inf > after:
        return math.inf
    unit = max(abs(before), abs(after), 1e-300)
    return (before / unit - after / unit) / max(predicted / unit, 1e-300)
