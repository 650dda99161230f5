"""What HiSo asks of a curvature, which says what H is and how it learns, and the options that all of its steps have."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, Self, get_args

from torch import Tensor

from optimizers.core.options import check_boolean, check_choice, optional, positive, positive_integer
from optimizers.directions.directions import Directions
from optimizers.directions.groups import GroupDiagonal
from optimizers.directions.metric import dense
from optimizers.methods.hiso.update import Learning, Term, learn, stays_finite, update

logger = logging.getLogger(__name__)

Scheme = Literal["forward", "central"]
Distribution = Literal["normal", "rademacher"]


def fraction(name: str, value: Any) -> float:
    """The value as a float; raises ``TypeError`` for what is no number, ``ValueError`` unless it is from 0 to 1."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name} must be a number, got {value!r}")
    if not 0.0 <= value <= 1.0:
        raise ValueError(f"{name} must be from 0 to 1, got {value}")
    return float(value)


@dataclass(frozen=True, kw_only=True)
class StepOptions:
    """Options of a step of HiSo and of DeComFL, on one machine and over clients, given by name to either.

    Attributes:
        perturbations: P, directions of a step (the paper's language models have 5, its authors' program 1).
        smoothing_radius: μ, in x's units; the default is that of the authors' program.
        rate: η (the authors' program: 1e-4). None: a ``GroupProbe`` knows its own; else it is found at the first step
            (``first_rate.found_rate``), or, over clients, 0.01: a quadratic Σ aⱼxⱼ² wants η ≈ 1/(2 Σ aⱼ/P).
        scheme: ``"forward"``, g_p = (f(x + μw_p) − f(x))/μ, P + 1 queries a step; or ``"central"``,
            g_p = (f(x + μw_p) − f(x − μw_p))/(2μ), 2P queries. None: forward, but for a ``GroupProbe``.
        distribution: of u, ``"normal"`` or ``"rademacher"``.
        momentum: β < 1 of m ← βm + (1 − β)Δx, x ← x − η m; H does not see m. The paper has none, and says in a footnote
            to its Sec. 4.2 that it could; the formula is ours.
        projection: whether g_p is divided by u_pᵀH⁻¹u_p (HiSo eq. 7), which the paper leaves to the learning rate.

    Raises:
        TypeError: for an option of the wrong kind.
        ValueError: for one out of range, with its name and what is accepted.
    """

    perturbations: int = 5
    smoothing_radius: float = 1e-3
    rate: float | None = None
    scheme: Scheme | None = None
    distribution: Distribution = "normal"
    momentum: float = 0.0
    projection: bool = False

    def __post_init__(self) -> None:
        positive_integer("perturbations", self.perturbations)
        optional(check_choice, "scheme", self.scheme, get_args(Scheme))
        check_choice("distribution", self.distribution, get_args(Distribution))
        radius, rate = positive("smoothing_radius", self.smoothing_radius), optional(positive, "rate", self.rate)
        momentum, projection = fraction("momentum", self.momentum), check_boolean("projection", self.projection)
        vars(self).update(smoothing_radius=radius, rate=rate, momentum=momentum, projection=projection)
        if momentum == 1.0:
            raise ValueError("momentum must be under 1, or x never moves")


@dataclass
class Learned:
    """What a curvature has learned in a run; one that learns adds its tensors.

    Attributes:
        floor: a number that no coordinate of H is under.
        round: the terms of each of the round's steps that H is still to learn from.
    """

    floor: float = 1.0
    round: list[list[Term]] = field(default_factory=list)


@dataclass(frozen=True)
class Step:
    """The scalars of a step, and the vectors that they move in place.

    Attributes:
        x: the point, shape ``d``.
        momentum: m, shape ``d``, or None.
        directions: u.
        terms: (step, row, c) of each direction; none where all of the step's queries failed.
        rate: η.
        decay: β.
        ends: the number of the round that ends with the step, from 1; 0 within a round.
        in_place: whether H's vectors may be changed, too.
        prox: changes x in place, given the step of each coordinate or of all; None: there is none.
    """

    x: Tensor
    momentum: Tensor | None
    directions: Directions
    terms: list[Term]
    rate: float
    decay: float = 0.0
    ends: int = 0
    in_place: bool = True
    prox: Callable[[Tensor, Any], None] | None = None

    def fits(self, floor: float, held: Sequence[Term] = ()) -> bool:
        """Whether it stays finite, and the displacement too that H learns from it and from terms that it holds."""
        fits = stays_finite([*held, *self.terms], self.rate, floor, self.x.dtype)
        if not fits:
            logger.warning("a step is left out: its scalars are too large")
        return fits

    def move(self, hessian: Tensor | GroupDiagonal | None, learning: Learning | None = None) -> None:
        """Δx = H^(−1/2) Σ c u, x ← prox(x − η Δx), and where its numbers are given H ← eq. 12 of Δx, in one pass."""
        if not self.terms:
            return
        steps = self.rate if self.prox is None or hessian is None else self.rate / dense(hessian)
        moved: dict[str, Any] = {"momentum": self.momentum, "decay": self.decay}
        update(self.x, self.directions, self.terms, self.rate, hessian=hessian, learning=learning, **moved)
        if self.prox is not None:
            self.prox(self.x, steps)

    def learn(self, hessian: Tensor, lessons: list[list[Term]], learning: Learning) -> None:
        """H ← eq. 12 of the Δx of each lesson's terms in turn, all made with the H that is given."""
        if lessons:
            learn(hessian, self.directions, lessons, learning)


@dataclass(frozen=True)
class Curvature:
    """What H is and how it learns: here H = 1, which learns nothing; every other curvature is a subclass.

    A curvature's fields are its options, declared, documented and checked there alone. Its methods are pure functions
    of what has been learned so far, a ``Learned``, which they replace.
    """

    name: ClassVar[str] = "identity"
    separable: ClassVar[bool] = False
    """Whether steps differ between coordinates, so that a prox must be separable."""

    def prepared(self, options: StepOptions, dimension: int) -> tuple[Self, StepOptions]:
        """The curvature of so many coordinates, and its steps' scheme and rate; refuses options by ``ValueError``."""
        return self, replace(options, scheme=options.scheme or "forward")

    def start(self, x: Tensor, max_queries: int) -> Any:
        """What is known before the first step, at x; raises ``ValueError`` for a budget that ends before it."""
        return Learned()

    def with_rate(
        self, learned: Any, rate: float, slope: float, options: StepOptions, in_place: bool
    ) -> tuple[Any, float, float]:
        """H₀, its rate and the factor of the first step's scalars, from the rate for H = 1 and ‖∇f‖, the slope.

        ``in_place``: the memory of the H that a run begins with is H₀'s.
        """
        return learned, rate, 1.0

    def metric(self, learned: Any, x: Tensor) -> Tensor | GroupDiagonal | None:
        """H of the next step at x, in the dtype of the arithmetic; None for 1."""
        return None

    def radii(self, radius: float, directions: Directions, step: int, count: int, metric: Any) -> list[float]:
        """How far from x each direction H^(−1/2)u is queried, for a smoothing radius μ."""
        return [radius] * count

    def step(self, learned: Any, step: Step) -> Any:
        """Make a step, which scalars that are too large do not, and learn from it."""
        if step.fits(learned.floor):
            step.move(self.metric(learned, step.x))
        return learned

    def probe(self, seed: int, round_number: int) -> Any:
        """What a round, from 1 on, measures in the place of steps: a ``Probe``; None: nothing."""
        return None

    def learn(self, learned: Any, probe: Any, second: float, x: Tensor) -> tuple[Any, float]:
        """What is known after a probe with the second difference c at x, and the curvature of x's step along z or 0."""
        raise NotImplementedError(f"{type(self).__name__} has no probes")
