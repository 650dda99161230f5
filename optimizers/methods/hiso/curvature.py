"""The options of HiSo's steps, and the base class of the rules for the diagonal matrix H."""

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
from surrogates.checks import check_number

logger = logging.getLogger(__name__)

Scheme = Literal["forward", "central"]
Distribution = Literal["normal", "rademacher"]


def fraction(name: str, value: Any) -> float:
    """Returns a number in [0, 1] as a float; raises ``TypeError`` or ``ValueError`` for anything else."""
    if not 0.0 <= (number := check_number(name, value)) <= 1.0:
        raise ValueError(f"{name} must be a number from 0 to 1, got {value}")
    return number


@dataclass(frozen=True, kw_only=True)
class StepOptions:
    """Options of a step of HiSo and DeComFL along directions w_p = H^(−1/2)u_p, on one machine or over clients.

    Attributes:
        perturbations: P, the number of directions in a step (the paper's language models: 5).
        smoothing_radius: μ, the distance of the queries from x in units of w_p.
        rate: the learning rate η. None: P/(d + P ± 1) with a ``GroupProbe``; otherwise computed from the first step's
            queries or, over clients, 0.01. A quadratic Σ aⱼxⱼ² needs η ≈ P/(2 Σ aⱼ).
        scheme: ``"forward"``: g_p = (f(x + μw_p) − f(x))/μ, P + 1 queries per step. ``"central"``: g_p = (f(x + μw_p) −
            f(x − μw_p))/(2μ), 2P queries per step. None: forward, or central with a ``GroupProbe``.
        distribution: the distribution of the u_p, ``"normal"`` or ``"rademacher"``.
        momentum: β in [0, 1) in m ← βm + (1 − β)Δx, x ← x − η m. This formula is ours; the paper mentions momentum in a
            footnote to Sec. 4.2.
        projection: whether g_p is divided by u_pᵀH⁻¹u_p (HiSo eq. 7). The paper has this factor in the learning rate.

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
            raise ValueError("momentum must be less than 1, got 1, with which x would never move")


@dataclass
class Learned:
    """The state of a curvature; subclasses add tensors.

    Attributes:
        floor: a lower bound of H.
        round: the terms (step, row, c) of each step in the present round from which H has not been updated yet.
    """

    floor: float = 1.0
    round: list[list[Term]] = field(default_factory=list)


@dataclass(frozen=True)
class Step:
    """A step of HiSo: its scalars c, and the tensors x and m that it modifies.

    Attributes:
        x: the point, shape ``d``.
        momentum: m, shape ``d``, or None.
        directions: generates the directions u.
        terms: (step, row, c) of each direction u(seed, step, row); empty if all queries of the step failed.
        rate: the learning rate η.
        decay: the weight β of the momentum.
        ends: the number of the round, counted from 1, if the round ends with this step; otherwise 0.
        in_place: whether the step may also modify the tensors of H.
        prox: applies the prox to x in place, for one step size or one for each coordinate; None: no prox.
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
        """Checks that x and H stay finite, given H ≥ ``floor``, if H is updated from the step's and ``held`` terms."""
        fits = stays_finite([*held, *self.terms], self.rate, floor, self.x.dtype)
        if not fits:
            logger.warning("HiSo skips a step in which x or H might overflow: use a smaller rate, or rescale f")
        return fits

    def move(self, hessian: Tensor | GroupDiagonal | None, learning: Learning | None = None) -> None:
        """Makes the step x ← prox(x − η Δx), Δx = H^(−1/2) Σ c u; updates H by eq. 12 if ``learning`` is given."""
        if not self.terms:
            return
        steps = self.rate if self.prox is None or hessian is None else self.rate / dense(hessian)
        moved: dict[str, Any] = {"momentum": self.momentum, "decay": self.decay}
        update(self.x, self.directions, self.terms, self.rate, hessian=hessian, learning=learning, **moved)
        if self.prox is not None:
            self.prox(self.x, steps)


@dataclass(frozen=True)
class Curvature:
    """A rule for the diagonal matrix H in HiSo's steps. This base class has H = 1, as in DeComFL.

    The fields of a rule are its options. Its methods take a state, a ``Learned``, and return a new one.
    """

    name: ClassVar[str] = "identity"
    separable: ClassVar[bool] = False
    """Whether the step size may differ between coordinates, so that a prox must be separable."""

    def prepared(self, options: StepOptions, dimension: int) -> tuple[Self, StepOptions]:
        """Returns the rule for x of the given dimension, and the options with scheme and rate."""
        return self, replace(options, scheme=options.scheme or "forward")

    def start(self, x: Tensor, max_queries: int) -> Any:
        """Returns the initial state at x; raises ``ValueError`` if the budget is too small for a first step."""
        return Learned()

    def with_rate(
        self, learned: Any, rate: float, slope: float, options: StepOptions, in_place: bool
    ) -> tuple[Any, float, float]:
        """Chooses H₀, given the rate for H = 1 and an estimate ``slope`` of ‖∇f‖.

        Returns the state, the rate for H₀ and the factor by which the first step's scalars, measured with H = 1, are
        multiplied. ``in_place`` allows the tensor of H to be overwritten.
        """
        return learned, rate, 1.0

    def metric(self, learned: Any, x: Tensor) -> Tensor | GroupDiagonal | None:
        """Returns H of the next step at x, in at least float32; None for H = 1."""
        return None

    def radii(self, radius: float, directions: Directions, step: int, count: int, metric: Any) -> list[float]:
        """Returns m for each direction in the queries x ± m H^(−1/2)u; here the smoothing radius μ."""
        return [radius] * count

    def step(self, learned: Any, step: Step) -> Any:
        """Moves x by a step, and returns the state with H updated; skips a step that might overflow."""
        if step.fits(learned.floor):
            step.move(self.metric(learned, step.x))
        return learned

    def probe(self, seed: int, round_number: int) -> Any:
        """Returns the ``Probe`` that a round, counted from 1, makes instead of steps, or None."""
        return None

    def learn(self, learned: Any, probe: Any, second: float, x: Tensor) -> tuple[Any, float]:
        """Updates the state from a probe's second difference c at x.

        Returns the state, and the divisor of x's step along the probe's direction; 0 for no step.
        """
        raise NotImplementedError(f"{type(self).__name__} makes no probes")
