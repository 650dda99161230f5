"""Methods whose every update is determined by seeds and scalars (HiSo Alg. 1): the part that they share."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Unpack

import torch
from torch import Tensor

from optimizers.batch import Batch
from optimizers.directions.directions import Directions
from optimizers.directions.groups import GroupDiagonal
from optimizers.directions.hessian_update import CHUNK, HessianRule, Term, compute_dtype, squared_norm, update
from optimizers.optimizer import Optimizer
from optimizers.options import CommonOptions, positive, positive_integer

logger = logging.getLogger(__name__)

PROBES = 8
"""Directions, at least, of the first step where the rate is to be found."""

LARGEST_NORMAL = 6.67
"""No coordinate of a normal direction exceeds it (`optimizers.directions.normal`)."""

Scheme = Literal["forward", "central"]
Distribution = Literal["normal", "rademacher"]


@dataclass
class ScalarOnlyState:
    """What changes beside the iterate.

    Attributes:
        rate: η; None while it is to be found.
        hessian: diagonal of H, shape ``d``, or None for H = 1.
        hessian_floor: a number that no coordinate of H is under.
        momentum: m, shape ``d``, or None.
        round: (step, row, coefficient) of the present round so far, where H learns once a round.
    """

    rate: float | None
    hessian: Tensor | None = None
    hessian_floor: float = 1.0
    momentum: Tensor | None = None
    round: list[Term] = field(default_factory=list)


class ScalarOnly(Optimizer):
    """What HiSo and DeComFL have in common: HiSo's Alg. 1, on one machine.

    Alg. 1 separates what is communicated from what is done with it. A step is

    1. ``_queries``: points x + μ H^(−1/2) uₚ, the uₚ named by (seed, step, p);
    2. ``_scalars``: their values to P scalars gₚ, all that a client would send and a server average;
    3. ``_advance``: scalars to a new x, H and momentum, by ``hessian_update.update``, a pure function of
       (x, H, m) and (seed, step, p, gₚ) that anyone who holds these replays bit for bit.

    A subclass says what H is (``_metric``: ``state.hessian``, None for 1) and how it learns (``_rule``,
    ``_learns_each_step``).

    Args:
        x0: initial point, shape ``d``.
        perturbations: P, directions a step.
        smoothing_radius: μ, smoothing radius.
        rate: η, step size; None: found at the first step, from second differences (``_find_rate``).
        scheme: ``"forward"``, gₚ = (f(x + μw) − f(x))/μ, f(x) shared by the P perturbations (P + 1 queries
            a step), or ``"central"``, gₚ = (f(x + μw) − f(x − μw))/(2μ) (2P queries).
        distribution: of u, ``"normal"`` or ``"rademacher"``.
        momentum: β of m ← βm + (1 − β)Δx, x ← x − η m.
        projection: divide gₚ by uₚᵀH⁻¹uₚ (HiSo eq. 7).
        in_place: x0 itself is moved, as a torch optimizer moves parameters, and no copy of it is made; told
            batches then have another base. ``track_best`` is False unless given; no bounds.
        **common: see ``Optimizer``.
    """

    state: ScalarOnlyState

    def __init__(
        self,
        x0: Any,
        *,
        perturbations: int = 5,
        smoothing_radius: float = 1e-3,
        rate: float | None = None,
        scheme: Scheme = "forward",
        distribution: Distribution = "normal",
        momentum: float = 0.0,
        projection: bool = False,
        in_place: bool = False,
        **common: Unpack[CommonOptions],
    ) -> None:
        self.perturbations = positive_integer("perturbations", perturbations)
        self.smoothing_radius = positive("smoothing_radius", smoothing_radius)
        self.rate = None if rate is None else positive("rate", rate)
        if scheme not in ("forward", "central"):
            raise ValueError(f"scheme must be 'forward' or 'central', got {scheme!r}")
        if distribution not in ("normal", "rademacher"):
            raise ValueError(f"distribution must be 'normal' or 'rademacher', got {distribution!r}")
        self.momentum = fraction("momentum", momentum)
        if self.momentum == 1.0:
            raise ValueError("momentum must be under 1, or x never moves")
        self.scheme, self.distribution = scheme, distribution
        self.projection, self.in_place = bool(projection), bool(in_place)
        if self.in_place:
            common.setdefault("track_best", False)
            if common.get("bounds") is not None:
                raise ValueError("in_place=True goes without bounds")
        super().__init__(x0, **common)

    def _parse_x0(self, x0: Any) -> Tensor:
        return vector_to_move(x0) if self.in_place else super()._parse_x0(x0)

    def _start(self) -> None:
        momentum = None
        if self.momentum > 0.0:
            momentum = torch.zeros_like(self._x, dtype=compute_dtype(self._x.dtype))
        self.state = ScalarOnlyState(self.rate, momentum=momentum)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """See ``Optimizer``; with ``in_place`` the state's x is copied into the user's own tensor."""
        own = self._x
        super().load_state_dict(state)
        if self.in_place:
            self._x = own.copy_(self._x)
            if self.track_best:
                self._x0 = self._x

    # Queries.

    def _plan(self) -> tuple[int, int, int]:
        """Queries at x itself, sides on which each direction is queried, and directions of the next batch."""
        finding = self.state.rate is None
        centre = 1 if finding or self.scheme == "forward" else 0
        sides = 2 if finding or self.scheme == "central" else 1
        wanted = max(self.perturbations, PROBES) if finding else self.perturbations
        return centre, sides, max(1, min(wanted, (self.remaining - centre) // sides))

    def _next_queries(self) -> int:
        centre, sides, count = self._plan()
        return centre + sides * count

    def _ask(self) -> Batch:
        centre, sides, count = self._plan()
        rows, scales = [0] * centre, [0.0] * centre
        for side in (1.0, -1.0)[:sides]:
            rows += range(count)
            scales += [side * self.smoothing_radius] * count
        return self._directions_batch(
            rows, scales, distribution=self.distribution, metric=self._metric(), info={"count": count}
        )

    def _scalars(self, batch: Batch, values: Tensor) -> Tensor:
        """gₚ of each perturbation, float64, shape ``P``; NaN where a query that it needs failed."""
        count = batch.info["count"]
        if len(batch) == count + 1 and bool(batch.scales[0] == 0.0):
            return (values[1:] - values[0]) / self.smoothing_radius
        return (values[-2 * count : -count] - values[-count:]) / (2.0 * self.smoothing_radius)

    # What scalars do.

    def _tell(self, batch: Batch, values: Tensor) -> None:
        scalars = self._scalars(batch, values)
        succeeded = torch.isfinite(scalars).nonzero().flatten().tolist()
        if not succeeded:
            self._start_again_from_best()
        rate = self.state.rate
        if rate is None and succeeded:
            rate, factor = self._find_rate(batch, values, scalars)
            scalars = scalars * factor
        if rate is None:
            return
        step = batch.addresses[-1][0]
        terms: list[Term] = []
        for p in succeeded:
            g = float(scalars[p]) / len(succeeded)
            if self.projection:
                g /= squared_norm(self._directions(), step, p, self.state.hessian)
            terms.append((step, p, g))
        self._advance(terms, rate)

    def _advance(self, terms: Sequence[Term], rate: float) -> None:
        """x, H and m after a step, from its scalars alone; no step where it might not stay finite."""
        state, rule, directions = self.state, self._rule(), self._directions()
        if not self._stays_finite([*state.round, *terms], rate):
            logger.warning("a step of %s was left out: its scalars are too large", type(self).__name__)
            terms = []
        each_step = rule if self._learns_each_step() else None
        x, hessian, momentum = self._x, self._metric(), state.momentum
        if not self.in_place:
            x = x.clone()
            hessian = hessian.clone() if isinstance(hessian, Tensor) else hessian
            momentum = None if momentum is None else momentum.clone()
        steps: Any = rate
        if self.prox is not None and hessian is not None:
            steps = rate / (hessian.tensor() if isinstance(hessian, GroupDiagonal) else hessian)
        if terms:
            update(
                x,
                directions,
                terms,
                rate,
                hessian=hessian,
                rule=each_step,
                momentum=momentum,
                decay=self.momentum,
            )
        kept = [] if rule is each_step else [*state.round, *terms]
        learned = bool(terms) and each_step is not None
        if kept and self._ends_round():
            update(None, directions, kept, rate, hessian=hessian, rule=rule)
            kept, learned = [], True
        if terms:
            x = self._after_prox(x, steps)
        floor = state.hessian_floor
        if learned and rule is not None:
            floor = (1.0 - rule.weight) * floor + rule.weight * rule.epsilon
            floor = min(max(floor, rule.lower), rule.upper)
        held = hessian if isinstance(hessian, Tensor) else None
        self._x = x
        self.state = replace(self.state, rate=rate, hessian=held, hessian_floor=floor, momentum=momentum, round=kept)

    def _after_prox(self, x: Tensor, steps: Any) -> Tensor:
        """The prox and the projection of a moved x, where there are any; x itself is changed with ``in_place``."""
        if self.prox is None and self.domain is None:
            return x
        z = self._prox(x.to(compute_dtype(x.dtype)), steps).to(x.dtype)
        return x.copy_(z) if self.in_place else z

    def _metric(self) -> Tensor | GroupDiagonal | None:
        """H of the next step; None for 1."""
        return self.state.hessian

    def _rule(self) -> HessianRule | None:
        """How H learns; None where it does not."""
        return None

    def _learns_each_step(self) -> bool:
        return True

    def _ends_round(self) -> bool:
        return True

    # Parts.

    def _directions(self) -> Directions:
        return Directions(self.seed, self.dimension, self.distribution)

    def _start_again_from_best(self) -> None:
        """Where all queries failed: x to the best point, where there is one, and m to 0."""
        before = self._x
        if self.state.momentum is not None:
            self.state.momentum = torch.zeros_like(self.state.momentum)
        self.retreat()
        if self.in_place and self._x is not before:
            self._x = before.copy_(self._x)

    def _stays_finite(self, terms: Sequence[Term], rate: float) -> bool:
        """Whether no coordinate of Δx² or of the step can overflow, by |u| ≤ 6.67 and H's floor."""
        largest = LARGEST_NORMAL * sum(abs(c) for *_, c in terms) / math.sqrt(self.state.hessian_floor)
        limit = torch.finfo(compute_dtype(self._x.dtype)).max / 16.0
        fits = largest < 1e150 and largest**2 < limit
        return fits and rate * largest < torch.finfo(self._x.dtype).max / 16.0

    def _find_rate(self, batch: Batch, values: Tensor, scalars: Tensor) -> tuple[float | None, float]:
        """η from the queries at x and x ± μwₚ of a first step, and a factor for its scalars, 1 unless H is found.

        η is None where the queries show no slope; the next step then looks again.
        On a quadratic with Hessian A the expected decrease of one step is greatest at
        η = ‖∇‖²/E‖Δx‖²_A ≥ 1/(trA/P + (1 + 1/P)λ_max) (HiSo, Theorem 2, at H = 1), times uᵀu under
        ``projection``. The second differences cₚ = |f(x+μw) + f(x−μw) − 2f(x)|/μ² have mean tr A and standard
        deviation √2 ‖A‖_F ≥ √2 λ_max on it: their largest is taken for tr A, being small by chance less often
        than the mean, and half of what it is above the mean for λ_max (all of it for fewer than 3). The
        largest is not taken for smaller than its rounding error, nor the first step for longer than
        max(‖x‖, 1), which is what an objective without curvature gets. The units of f do not matter.
        """
        count = batch.info["count"]
        centre, plus, minus = values[0], values[1 : 1 + count], values[1 + count :]
        second = (plus + minus - 2.0 * centre).abs() / self.smoothing_radius**2
        second = second[torch.isfinite(second)]
        finite = values[torch.isfinite(values)]
        rounding = torch.finfo(self._x.dtype).eps * float(finite.abs().max()) / self.smoothing_radius**2
        trace = max(float(second.max()), rounding) if len(second) else rounding
        largest = 0.5 * (trace - float(second.mean())) if len(second) >= 3 else trace
        good = scalars[torch.isfinite(scalars)]
        slope = float(good.square().mean().sqrt())
        if not (0.0 < slope < math.inf and 0.0 <= trace < math.inf):
            return None, 1.0
        p = self.perturbations
        curvature = trace / p + (1.0 + 1.0 / p) * largest
        step = batch.addresses[-1][0]
        norm2 = squared_norm(self._directions(), step, 0, self.state.hessian)
        longest = max(float(torch.linalg.vector_norm(self._x)), 1.0) / (slope * math.sqrt(norm2))
        rate = min(longest, 1.0 / curvature) if curvature > 0.0 else longest
        return self._scale(rate * norm2 if self.projection else rate, slope)

    def _scale(self, rate: float, slope: float) -> tuple[float, float]:
        """A subclass's rate, from the one for H = 1 and an estimate of ‖∇f‖; and the factor of the scalars."""
        del slope
        return rate, 1.0


def fraction(name: str, value: Any) -> float:
    """The value as a float, if it is a number from 0 to 1."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name} must be a number, got {value!r}")
    if not 0.0 <= value <= 1.0:
        raise ValueError(f"{name} must be from 0 to 1, got {value}")
    return float(value)


def vector_to_move(x0: Any) -> Tensor:
    """x0 without its gradient history, sharing its memory.

    Raises:
        TypeError: if it is not a floating tensor.
        ValueError: if it is not one contiguous vector of finite numbers.
    """
    if not isinstance(x0, Tensor) or not x0.is_floating_point():
        kind = x0.dtype if isinstance(x0, Tensor) else type(x0).__name__
        raise TypeError(f"in_place=True moves x0 itself: it must be a floating tensor, got {kind}")
    if x0.ndim != 1 or x0.numel() == 0 or not x0.is_contiguous():
        raise ValueError(f"x0 must be a contiguous vector with in_place=True, got shape {tuple(x0.shape)}")
    x = x0.detach()
    for low in range(0, x.numel(), CHUNK):
        if not bool(torch.isfinite(x[low : low + CHUNK]).all()):
            raise ValueError("x0 must be finite")
    return x
