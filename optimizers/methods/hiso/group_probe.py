"""HiSo with a curvature that preconditions: one number a group, measured by probes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Unpack

import torch
from torch import Tensor

from optimizers.batch import Batch
from optimizers.directions.directions import Directions, philox
from optimizers.directions.groups import GroupDiagonal, Groups, GroupsLike
from optimizers.directions.hessian_update import Term, compute_dtype, squared_norm, update
from optimizers.methods.hiso.hiso import HiSo
from optimizers.methods.hiso.scalar_only import Distribution, ScalarOnly, ScalarOnlyState, Scheme, fraction
from optimizers.options import CommonOptions, check_integer, positive, positive_integer

OPTIONS = ("groups", "initial_probes", "probe_every", "probe_weight", "rise_weight", "shared_weight", "clip", "warmup")
"""Options that go with ``curvature="group_probe"`` alone."""

FLOOR = 1e-8
"""Least h, as a share of the largest."""

GAIN_WEIGHT = 1.0 / 300.0
"""Weight of the newest step's scalars in the running mean square that clipping refers to."""

UNCLIPPED = 10
"""First ordinary steps without clipping: the running mean square of fewer may be near 0 by chance."""

WARMUP = 100
"""Ordinary steps over which the rate of groups larger than coordinates rises to its full size."""

SATURATED = 255
"""Probes of a group that are counted; more weigh the same."""


@dataclass(frozen=True)
class ProbeSchedule:
    """Which rounds probe, and which group: a pure function of the round's number, the same for everyone.

    Rounds 1 … ``initial`` · G probe the groups in turn; then every ``every``-th round probes one that the seed draws.

    Attributes:
        seed: of the run.
        groups: G.
        initial: first probes a group.
        every: rounds from one later probe to the next.
    """

    seed: int
    groups: int
    initial: int
    every: int

    @property
    def first(self) -> int:
        """Rounds before the first ordinary one."""
        return self.initial * self.groups

    def group(self, number: int) -> int | None:
        """The group that round ``number`` probes, from 1 on; None in an ordinary round."""
        if number <= self.first:
            return (number - 1) % self.groups
        if (number - self.first) % self.every:
            return None
        *key, low, high = Directions(self.seed, self.groups, "coordinate").address(number)
        a, b, *_ = philox.philox4x32((0, 0, low, high), (key[0], key[1]))
        return (((a << 32) | b) * self.groups) >> 64


@dataclass
class GroupProbeState(ScalarOnlyState):
    """What changes beside the iterate.

    Attributes:
        curvature: moving average of |âᵦ| of each group, float64, shape ``G``; 0 before the first probe.
        probes: probes of each group so far, uint8, 255 standing for more.
        gain: the running mean of g², the weight that it rests on, 1 − (1 − 1/300)ᵗ, and t; float64, shape ``3``.
    """

    curvature: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.float64))
    probes: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.uint8))
    gain: Tensor = field(default_factory=lambda: torch.zeros(3, dtype=torch.float64))


class GroupProbeHiSo(HiSo):
    r"""``HiSo(curvature="group_probe")``: HiSo whose H is measured, one number h a group of coordinates.

    What eq. 12 learns is hardly curvature (see ``HiSo``). Here a second difference measures it, for one scalar more
    in some rounds. Groups are the tensors of a module, say, or single coordinates.

    **Ordinary round.** z = h^(−1/2)∘u, m = μ√d/‖z‖, and for each of P perturbations

        g = (f(x + mz) − f(x − mz))/(2m),    x ← x − η (1/P) Σₚ gₚ zₚ

    with η = P/(d + P + 1) for normal u: 1/(d + 2) for P = 1 (P/(d + P − 1) for signs). Where h is the Hessian's
    diagonal and that is all of it, no η has less expected loss after a step (Theorem 2's moments), so neither rate
    nor smoothness constant is to be found; elsewhere ``rate`` may be tuned. g is clipped at ``clip`` times its
    running root mean square (weight 1/300, of the clipped values, bias-corrected; not in the first 10 steps), which
    is state. A one-sided difference, biased by μ/2 · zᵀ∇²f z, ends three orders of magnitude higher on quadratics.

    **Probe round.** For the group b that ``ProbeSchedule`` names, z = signs on b and 0 elsewhere, ‖z‖² = n_b,
    m = μ√d/‖z‖, three queries at x and x ± mz, g as above and c = (f(x + mz) + f(x − mz) − 2f(x))/m²; two scalars.

        â_b = c/‖z‖²,    E â_b = tr(A_b)/n_b,    Var â_b = 2‖off A_b‖²_F/n_b²

    with A_b the group's block of the Hessian (on a quadratic; + O(m²) else): exact for single coordinates. h_b is
    the moving average of |â_b| with ``probe_weight``, bias-corrected, or at least ``rise_weight`` where |â_b| > h_b,
    and is kept above 1e-8 of the largest h. Curvatures of one objective tend to rise and fall together: after the
    first probes each one also multiplies every group's h by 1 + κ(|â_b|/h_b − 1), κ = ``shared_weight``, by 2 at
    most, and h_b itself learns. A group that has no successful probe yet has the largest h; no step is made before
    any has. Where groups are larger than coordinates the probe also moves x ← x − g/max(c, n_b h_b) z, if c > 0: the
    Newton step along z, which by c alone would be unbounded.

    **Networks.** A network's curvature is least where it begins: on the digits MLP the mean of its largest tensor's
    diagonal rises 17-fold in the first 500 queries, and h, measured at x_0, lags behind. An h too large by a factor k
    leaves 2/k − 1/k² of the rate, three quarters at k = 2; one too small 2k − k², nothing at k = 2, beyond which f
    rises. Hence groups larger than coordinates lean to the safe side: h rises faster than it falls, η rises over the
    first ``warmup`` ordinary steps, and g is clipped at a low limit on a slow running value. In development runs
    without the first two and κ, 2 of 8 with 8 of 64 clients a round ended above their start after 500 rounds; with
    them none of 6 after 400. With one client they cost a quarter: a median loss of 0.16 against 0.13 after 3,000
    queries. κ alone took a factor 3 off a logistic regression in single coordinates, where each is probed seldom;
    κ = 0.5 lost a factor 10. Clipping at 1.5 leaves 0.95 of the rate, 2E[g clip(g)] − E[clip(g)²], for normal g.
    The rule without all this: ``rise_weight=0``, ``shared_weight=0``, ``warmup=0``, ``clip=3`` or inf.

    **Which coordinates a group should have.** Those that share a scale. Probing costs 3 queries: one first probe
    of single coordinates is 3d, which the budget must exceed. Preconditioning by a diagonal cannot help a rotated
    spectrum, and groups that cut across the scales (random ones) leave it as it was.

    **Not the default.** In ``beyond-curvature``, ten fresh seeds, it ends 5 to 10 orders of magnitude under HiSo on
    quadratics with scaled axes or blocks (row "log-uniform spectrum": -12.1 against -2.4), and on a badly scaled MLP,
    at twice the default rate, at 0.27 of a scalar H's loss; the default rate gains little there. It gains nothing where
    nothing differs in scale (rotated spectra, the plain MLP), nor over 8 of 64 clients, where 1 of 20 runs diverged.

    **Smoothing radius.** c has a relative rounding error of about 4ε|f|/(μ²d â_b), ε of the objective's arithmetic:
    μ ≥ 1e-3 in float64, and μ ≥ 1e-2 where f is computed in float32. Memory is x, and 9 bytes a group.

    Args:
        x0: initial point, shape ``d``.
        curvature: ``"group_probe"``.
        groups: see ``optimizers.directions.groups.Groups``; None: single coordinates.
        initial_probes: first probes a group; None: 4, or 1 for single coordinates.
        probe_every: rounds from a later probe to the next; None: 10, or 50 for single coordinates.
        probe_weight: weight of the newest |â_b|; None: 0.2, or 0.5 for single coordinates.
        rise_weight: least weight of the newest |â_b| where it is above h_b; None: 0.3, or 0 for single coordinates.
        clip: in running root mean squares of g; None: 1.5, or 3 for single coordinates; inf: no clipping.
        shared_weight: κ; None: 0.1.
        warmup: K; ordinary step t = 1, 2, … has the rate η min(1, t/(K + 1)). None: 100, or 0 for single coordinates.
        perturbations: P.
        smoothing_radius: μ.
        rate: η; None: as above.
        scheme: None or ``"central"``.
        distribution: of u.
        in_place: whether x0 itself is moved.
        **common: see ``Optimizer``.

    Raises:
        ValueError: for groups that overlap or do not cover all coordinates, options of the paper's H, or a budget
            that single coordinates' first probes use up.
    """

    state: GroupProbeState
    _cached: tuple[Tensor, int, GroupDiagonal | None] | None = None

    def __init__(
        self,
        x0: Any,
        *,
        curvature: Literal["group_probe"] = "group_probe",
        groups: GroupsLike = None,
        initial_probes: int | None = None,
        probe_every: int | None = None,
        probe_weight: float | None = None,
        rise_weight: float | None = None,
        shared_weight: float | None = None,
        clip: float | None = None,
        warmup: int | None = None,
        perturbations: int = 5,
        smoothing_radius: float = 1e-3,
        rate: float | None = None,
        scheme: Scheme | None = None,
        distribution: Distribution = "normal",
        in_place: bool = False,
        **common: Unpack[CommonOptions],
    ) -> None:
        refuse_paper_options(common)
        if scheme not in (None, "central"):
            raise ValueError(f"curvature='group_probe' needs scheme='central', got {scheme!r}")
        self.groups, self.clip = groups, clip if clip in (None, math.inf) else positive("clip", clip)
        self.initial_probes = None if initial_probes is None else positive_integer("initial_probes", initial_probes)
        self.probe_every = None if probe_every is None else positive_integer("probe_every", probe_every)
        self.probe_weight = None if probe_weight is None else fraction("probe_weight", probe_weight)
        self.rise_weight = None if rise_weight is None else fraction("rise_weight", rise_weight)
        self.shared_weight = None if shared_weight is None else fraction("shared_weight", shared_weight)
        if self.probe_weight == 0.0:
            raise ValueError("probe_weight must be over 0, or nothing is learned")
        self.warmup = None if warmup is None else check_integer("warmup", warmup, 0)
        super().__init__(
            x0,
            hessian_weight=0.0,
            perturbations=perturbations,
            smoothing_radius=smoothing_radius,
            rate=rate,
            scheme="central",
            distribution=distribution,
            in_place=in_place,
            **common,
        )

    def _start(self) -> None:
        ScalarOnly._start(self)
        d, p = self.dimension, self.perturbations
        self.curvature: Any = "group_probe"
        self.partition = Groups(self.groups, d)
        single, g = self.partition.single, len(self.partition)
        self.schedule = ProbeSchedule(
            self.seed, g, self.initial_probes or (1 if single else 4), self.probe_every or (50 if single else 10)
        )
        needed = 3 * self.schedule.first + 2
        if single and self.max_queries < needed:
            raise ValueError(
                f"HiSo with curvature='group_probe' needs at least {needed} queries for the first probes of single "
                f"coordinates and a step, got max_queries={self.max_queries}; larger groups need fewer"
            )
        self._limit = self.clip or (3.0 if single else 1.5)
        self._warmup = (0 if single else WARMUP) if self.warmup is None else self.warmup
        self._weights = bias_corrected(self.probe_weight or (0.5 if single else 0.2))
        self._shared = 0.1 if self.shared_weight is None else self.shared_weight
        self._rise = (0.0 if single else 0.3) if self.rise_weight is None else self.rise_weight
        best = p / (d + p + 1 if self.distribution == "normal" else d + p - 1)
        device = self._x.device
        self.state = GroupProbeState(
            self.rate or best,
            curvature=torch.zeros(g, dtype=torch.float64, device=device),
            probes=torch.zeros(g, dtype=torch.uint8, device=device),
        )

    @property
    def hessian(self) -> Tensor:
        """The diagonal of H in search coordinates, shape ``d``; ones before the first probe."""
        metric = self._metric()
        return torch.ones_like(self._x) if metric is None else metric.tensor()

    def _metric(self) -> GroupDiagonal | None:
        """H of the present h, in the dtype of the arithmetic; None where no group has one."""
        curvature, cached = self.state.curvature, self._cached
        if cached is not None and cached[0] is curvature and cached[1] == curvature._version:
            return cached[2]
        h = held_up(curvature, self.state.probes)
        metric = None
        if h is not None:
            dtype = compute_dtype(self._x.dtype)
            limits = torch.finfo(dtype)
            metric = GroupDiagonal(self.partition, h.clamp(limits.tiny, limits.max).to(dtype))
        self._cached = (curvature, curvature._version, metric)
        return metric

    def _number(self) -> int:
        """The number of the present round, from 1."""
        return self.iterations + 1

    # Queries.

    def _next_queries(self) -> int:
        return super()._next_queries() if self.schedule.group(self._number()) is None else 3

    def _ask(self) -> Batch:
        group = self.schedule.group(self._number())
        d, mu = self.dimension, self.smoothing_radius
        if group is not None:
            m = mu * math.sqrt(d / int(self.partition.sizes[group]))
            return self._directions_batch(
                [0, 0, 0],
                [0.0, m, -m],
                distribution="rademacher",
                metric=self._only(group),
                info={"group": group},
            )
        _, _, count = self._plan()
        metric, directions = self._metric(), self._directions()
        norms = [math.sqrt(squared_norm(directions, self.iterations, p, metric)) for p in range(count)]
        scales = [mu * math.sqrt(d) / norm for norm in norms]
        return self._directions_batch(
            [*range(count)] * 2,
            [*scales, *(-m for m in scales)],
            distribution=self.distribution,
            metric=metric,
            info={"count": count},
        )

    def _only(self, group: int) -> GroupDiagonal:
        """1 on a group and inf elsewhere: H of directions that are 0 elsewhere."""
        values = torch.full((len(self.partition),), math.inf, dtype=compute_dtype(self._x.dtype), device=self._x.device)
        values[group] = 1.0
        return GroupDiagonal(self.partition, values)

    def _scalars(self, batch: Batch, values: Tensor) -> Tensor:
        count = batch.info["count"]
        m = batch.scales[:count].to(values.device)
        return (values[:count] - values[count:]) / (2.0 * m)

    @staticmethod
    def _probe_scalars(batch: Batch, values: Tensor) -> tuple[float, float]:
        """g and c of a probe's three values; not finite where a query failed."""
        centre, plus, minus = values.tolist()
        m = float(batch.scales[1])
        return (plus - minus) / (2.0 * m), (plus + minus - 2.0 * centre) / m**2

    # What scalars do.

    def _tell(self, batch: Batch, values: Tensor) -> None:
        if "group" not in batch.info:
            super()._tell(batch, values)
            return
        g, c = self._probe_scalars(batch, values)
        if math.isfinite(g) and math.isfinite(c):
            self._learn(int(batch.info["group"]), g, c)
        elif not bool(torch.isfinite(values).any()):
            self._start_again_from_best()

    def _learn(self, group: int, g: float, c: float, factor: float = 1.0) -> None:
        """h of a group, and x where groups are larger than coordinates, after a probe."""
        state = self.state
        curvature, probes = state.curvature.clone(), state.probes.clone()
        told = min(int(probes[group]) + 1, SATURATED)
        before = float(curvature[group])
        estimate = abs(c) / int(self.partition.sizes[group])
        weight = self._weights[told - 1]
        if estimate > before:
            weight = max(weight, self._rise)
        if told > self.schedule.initial and before > 0.0:
            curvature *= min(1.0 + self._shared * (estimate / before - 1.0), 2.0)
        curvature[group] = before + weight * (estimate - before)
        probes[group] = told
        h = held_up(curvature, probes)
        floor = 1.0 if h is None else max(float(h.min()), torch.finfo(compute_dtype(self._x.dtype)).tiny)
        self.state = replace(state, curvature=curvature, probes=probes, hessian_floor=floor)
        if self.partition.single or c <= 0.0:
            return
        total = max(c, float(curvature[group]) * int(self.partition.sizes[group]))
        length = factor * g / total
        if not abs(length) < torch.finfo(self._x.dtype).max / 16.0:
            return
        directions = Directions(self.seed, self.dimension, "rademacher")
        x = self._x if self.in_place else self._x.clone()
        only = self._only(group)
        update(x, directions, [(self.iterations, 0, length)], 1.0, hessian=only)
        if self.prox is not None or self.domain is not None:
            wide = x.to(only.dtype)
            z = torch.where(only.tensor() == 1.0, self._prox(wide, factor / total), wide).to(x.dtype)
            x = x.copy_(z) if self.in_place else z
        self._x = x

    def _advance(self, terms: Sequence[Term], rate: float) -> None:
        """An ordinary step, its scalars clipped and its rate warmed up; none before a group has an h."""
        if not terms or self._metric() is None:
            return
        state = self.state
        mean, mass, told = state.gain.tolist()
        steps = rate * min(1.0, (told + 1.0) / (self._warmup + 1.0))
        limit = math.inf if told < UNCLIPPED else self._limit * math.sqrt(mean)
        clipped = [(step, p, min(max(g, -limit), limit)) for step, p, g in terms]
        newest = sum(g * g for *_, g in clipped) / len(clipped)
        mass = (1.0 - GAIN_WEIGHT) * mass + GAIN_WEIGHT
        mean += (GAIN_WEIGHT / mass) * (newest - mean)
        if math.isfinite(mean) and self._stays_finite(clipped, steps):
            gain = torch.tensor([mean, mass, told + 1.0], dtype=torch.float64, device=state.gain.device)
            self.state = replace(state, gain=gain)
        super()._advance(clipped, steps)
        self.state = replace(self.state, rate=rate)

    def _options(self) -> dict[str, Any]:
        return super()._options() | {"groups": self.partition.fingerprint}


def refuse_paper_options(given: Any) -> None:
    """Raises ``ValueError`` for an option that only the paper's H or momentum has."""
    paper = {"hessian_update", "local_steps", "hessian_weight", "hessian_epsilon", "hessian_lower", "hessian_upper"}
    for name in sorted((paper | {"initial_hessian", "momentum", "projection"}) & set(given)):
        raise ValueError(f"{name} goes with curvature='displacement', not with 'group_probe'")


def held_up(curvature: Tensor, probes: Tensor) -> Tensor | None:
    """h of each group: at least ``FLOOR`` of the largest, which groups without a probe have; None if all are 0."""
    largest = float(curvature.max())
    if not largest > 0.0:
        return None
    return torch.where(probes > 0, curvature, largest).clamp(min=FLOOR * largest)


def bias_corrected(weight: float) -> tuple[float, ...]:
    """w/(1 − (1 − w)ᵗ), t = 1 … 255, by products, which are the same on every machine."""
    found, left = [], 1.0
    for _ in range(SATURATED):
        left *= 1.0 - weight
        found.append(weight / (1.0 - left))
    return tuple(found)
