"""The interface of HiSo's curvatures, which define H and how it learns, and the options of all steps."""

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
from optimizers.methods.hiso.update import Learning, Term, stays_finite, update

logger = logging.getLogger(__name__)

Scheme = Literal["forward", "central"]
Distribution = Literal["normal", "rademacher"]


def fraction(name: str, value: Any) -> float:
    """Returns the value as a float; ``TypeError`` if it is not a number, ``ValueError`` unless it is in [0, 1]."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name} must be a number, got {value!r}")
    if not 0.0 <= value <= 1.0:
        raise ValueError(f"{name} must be from 0 to 1, got {value}")
    return float(value)


@dataclass(frozen=True, kw_only=True)
class StepOptions:
    """Options of a step of HiSo and DeComFL, on one machine and over clients.

    Attributes:
        perturbations: P, directions of a step (5 for the paper's language models, 1 in its authors' program).
        smoothing_radius: μ, in x's units; the default is from the authors' program.
        rate: η (the authors' program: 1e-4). None: a ``GroupProbe`` has its own; otherwise it is found in the first
            step (``first_rate.found_rate``) or, over clients, 0.01: a quadratic Σ aⱼxⱼ² needs η ≈ 1/(2 Σ aⱼ/P).
        scheme: ``"forward"``, g_p = (f(x + μw_p) − f(x))/μ, P + 1 queries per step; or ``"central"``, g_p = (f(x +
            μw_p) − f(x − μw_p))/(2μ), 2P queries. None: forward, or central for a ``GroupProbe``.
        distribution: of u, ``"normal"`` or ``"rademacher"``.
        momentum: β < 1 of m ← βm + (1 − β)Δx, x ← x − η m; H does not depend on m. The paper mentions momentum in a
            footnote to Sec. 4.2 without a formula; this one is ours.
        projection: whether g_p is divided by u_pᵀH⁻¹u_p (HiSo eq. 7), which the paper absorbs in the learning rate.

    Raises:
        TypeError: for an option of the wrong type.
        ValueError: for an option out of range.
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
            raise ValueError("momentum must be less than 1; with 1, x never moves")


@dataclass
class Learned:
    """The state of a curvature in a run; subclasses add tensors.

    Attributes:
        floor: a lower bound of all coordinates of H.
        round: the terms of each step of the round that H has not learned from yet.
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
        terms: (step, row, c) of each direction; empty if all queries of the step failed.
        rate: η.
        decay: β.
        ends: if a round ends with this step, its number, counted from 1; otherwise 0.
        in_place: whether H's vectors may be modified too.
        prox: modifies x in place, given the step size of each coordinate or of all; None: there is no prox.
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
        """Whether the step, and the displacement that H learns from it and from ``held`` terms, stay finite."""
        fits = stays_finite([*held, *self.terms], self.rate, floor, self.x.dtype)
        if not fits:
            logger.warning("a step is skipped: its scalars are too large")
        return fits

    def move(self, hessian: Tensor | GroupDiagonal | None, learning: Learning | None = None) -> None:
        """Δx = H^(−1/2) Σ c u, x ← prox(x − η Δx) and, if ``learning`` is given, H ← eq. 12 of Δx, in one pass."""
        if not self.terms:
            return
        steps = self.rate if self.prox is None or hessian is None else self.rate / dense(hessian)
        moved: dict[str, Any] = {"momentum": self.momentum, "decay": self.decay}
        update(self.x, self.directions, self.terms, self.rate, hessian=hessian, learning=learning, **moved)
        if self.prox is not None:
            self.prox(self.x, steps)


@dataclass(frozen=True)
class Curvature:
    """Defines H and how it learns. This one is H = 1 and learns nothing; others are subclasses.

    The fields of a curvature are its options. Its methods are pure functions of a ``Learned``, which they replace.
    """

    name: ClassVar[str] = "identity"
    separable: ClassVar[bool] = False
    """Whether steps differ between coordinates, so that a prox must be separable."""

    def prepared(self, options: StepOptions, dimension: int) -> tuple[Self, StepOptions]:
        """The curvature for this dimension, and the options with scheme and rate."""
        return self, replace(options, scheme=options.scheme or "forward")

    def start(self, x: Tensor, max_queries: int) -> Any:
        """The state before the first step, at x; ``ValueError`` if the budget is too small for a first step."""
        return Learned()

    def with_rate(
        self, learned: Any, rate: float, slope: float, options: StepOptions, in_place: bool
    ) -> tuple[Any, float, float]:
        """Returns H₀, its rate and a factor of the first step's scalars, given the rate for H = 1 and ``slope``, ‖∇f‖.

        ``in_place``: whether the memory of the initial H may be overwritten.
        """
        return learned, rate, 1.0

    def metric(self, learned: Any, x: Tensor) -> Tensor | GroupDiagonal | None:
        """H of the next step at x, in the dtype of the arithmetic; None for 1."""
        return None

    def radii(self, radius: float, directions: Directions, step: int, count: int, metric: Any) -> list[float]:
        """The distance from x at which f is queried along each direction H^(−1/2)u, for a smoothing radius μ."""
        return [radius] * count

    def step(self, learned: Any, step: Step) -> Any:
        """Makes a step, unless its scalars are too large, and learns from it."""
        if step.fits(learned.floor):
            step.move(self.metric(learned, step.x))
        return learned

    def probe(self, seed: int, round_number: int) -> Any:
        """The ``Probe`` that a round, counted from 1, makes instead of steps; None: no probe."""
        return None

    def learn(self, learned: Any, probe: Any, second: float, x: Tensor) -> tuple[Any, float]:
        """The state after a probe with second difference c at x, and the curvature for x's step along z; 0: no step."""
        raise NotImplementedError(f"{type(self).__name__} has no probes")
