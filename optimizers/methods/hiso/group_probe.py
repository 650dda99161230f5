"""A diagonal H that is measured by second differences, with one number for each group of coordinates."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from optimizers.core.batch import Batch
from optimizers.core.options import check_integer, optional, positive, positive_integer
from optimizers.directions.directions import Directions
from optimizers.directions.groups import GroupDiagonal, Groups, GroupsLike
from optimizers.directions.metric import compute_dtype, squared_norm
from optimizers.methods.hiso.curvature import Curvature, Learned, Step, StepOptions, fraction

FLOOR = 1e-8
"""The least h of a group, relative to the largest."""

GAIN_WEIGHT = 1.0 / 300.0
"""The weight of the newest step in the running mean square of g, from which the clipping limit is computed."""

UNCLIPPED = 10
"""The number of first steps without clipping, because their mean square of g may be near 0 by chance."""

SATURATED = 255
"""The number up to which the probes of a group are counted."""

SINGLE = {"initial_probes": 1, "probe_every": 50, "probe_weight": 0.5, "rise_weight": 0.0, "clip": 3.0, "warmup": 0}
GROUPED = {"initial_probes": 4, "probe_every": 10, "probe_weight": 0.2, "rise_weight": 0.3, "clip": 1.5, "warmup": 100}
"""Defaults of ``GroupProbe`` for single coordinates and for larger groups."""


def probed_group(number: int, seed: int, groups: int, initial: int, every: int) -> int | None:
    """Returns the index of the group that is probed in round ``number``, counted from 1; None for no probe.

    Rounds 1 … ``initial`` · G probe the G groups in turn. Later, every ``every``-th round probes a random group.
    """
    first = initial * groups
    if number <= first:
        return (number - 1) % groups
    if (number - first) % every:
        return None
    return Directions(seed, groups, "coordinate").axis(number, 0)


@dataclass(frozen=True)
class Probe:
    """Queries at x and x ± m z, where z has random signs on one group and 0 elsewhere, and m = μ√d/‖z‖.

    Attributes:
        groups: the partition of the coordinates into groups.
        group: the index of the probed group.
    """

    groups: Groups
    group: int

    @property
    def size(self) -> int:
        """The number of coordinates in the group, which is ‖z‖²."""
        return int(self.groups.sizes[self.group])

    def radius(self, smoothing_radius: float) -> float:
        """Computes m = μ√d/‖z‖ for a smoothing radius μ."""
        return smoothing_radius * math.sqrt(self.groups.dimension / self.size)

    def mask(self, like: Tensor) -> GroupDiagonal:
        """Returns the diagonal H with z = H^(−1/2)u for random signs u: 1 on the group and inf elsewhere."""
        ones = torch.full((len(self.groups),), math.inf, dtype=compute_dtype(like.dtype), device=like.device)
        ones[self.group] = 1.0
        return GroupDiagonal(self.groups, ones)

    @staticmethod
    def scalars(batch: Batch, values: Tensor) -> list[float]:
        """Computes g = (f(x + mz) − f(x − mz))/(2m) and c = (f(x + mz) + f(x − mz) − 2f(x))/m² from the queries."""
        (centre, plus, minus), m = values.tolist(), float(batch.scales[1])
        return [(plus - minus) / (2.0 * m), (plus + minus - 2.0 * centre) / m**2]


@dataclass
class LearnedGroups(Learned):
    """The state of a ``GroupProbe``, whose docstring defines â_b and g.

    Attributes:
        curvature: the moving average of |â_b| for each of G groups, float64; 0 before the group's first probe.
        probes: the number of probes of each group, uint8, at most 255.
        gain: three numbers, float64: the bias-corrected moving average of g² over t steps, the sum 1 − (1 − 1/300)ᵗ of
            its weights, and t.
    """

    curvature: Tensor = field(kw_only=True)
    probes: Tensor = field(kw_only=True)
    gain: Tensor = field(kw_only=True)


@dataclass(frozen=True, kw_only=True)
class GroupProbe(Curvature):
    """A diagonal H with one number h_b for each group b of coordinates, measured by second differences.

    This rule is ours; HiSo's own rule hardly learns curvature (see ``Displacement``). Groups are single coordinates or,
    for example, the tensors of a module. The coordinates of a group should have a common scale.

    **Ordinary step.** For each of P random directions u_p, with z_p = H^(−1/2) u_p and m = μ√d/‖z_p‖,

        g_p = (f(x + m z_p) − f(x − m z_p))/(2m),    x ← x − η (1/P) Σ_p g_p z_p

    By default η = P/(d + P + 1) for normal and P/(d + P − 1) for Rademacher u_p. If the Hessian is H, this η minimizes
    the expected loss after the step (HiSo's eq. 120). From step 11 on, g_p is clipped at ``clip`` times the
    bias-corrected running root mean square of the clipped values, in which the newest step has weight 1/300.

    **Probe round.** The first rounds probe each group ``initial_probes`` times; later, every ``probe_every``-th round
    probes a random group. With random signs z on the n_b coordinates of group b, z = 0 elsewhere, and m = μ√(d/n_b), f
    is queried at x and x ± mz, which gives g as above and

        c = (f(x + mz) + f(x − mz) − 2f(x))/m²,    â_b = c/n_b

    On a quadratic, â_b has mean tr(A_b)/n_b and variance 2‖off A_b‖²_F/n_b², where A_b is the group's block of the
    Hessian and off A_b its off-diagonal part. Thus â_b is exact for single coordinates. h_b is a bias-corrected moving
    average of |â_b|, at least 1e-8 times the largest h. The newest |â_b| has weight ``probe_weight``, or at least
    ``rise_weight`` if it exceeds h_b. Since the curvatures of one function tend to change together, a probe after the
    initial ones also multiplies all other h by min(1 + κ(|â_b|/h_b − 1), 2). A group that has not been probed gets the
    largest h. No step is made before the first successful probe. If c > 0 for a group of several coordinates, the probe
    also makes the Newton step x ← x − g/max(c, n_b h_b) z.

    **Networks.** A network's curvature is least at its start, and h lags behind. If h is too large by a factor k, the
    progress per step is 2/k − 1/k² of the best possible. If h is too small by k, it is 2k − k², and f rises for k > 2.
    The defaults for groups of several coordinates are therefore conservative: h rises faster than it falls, η rises
    over the first ``warmup`` steps, and g is clipped at a low limit, which costs 5% of the progress for normal g. To
    disable this, use ``rise_weight=0``, ``shared_weight=0``, ``warmup=0`` and ``clip=3`` or inf.

    **Limits.** A diagonal H does not help if the Hessian is far from diagonal, or if the coordinates of a group have
    different scales. The relative rounding error of c is about 4ε|f|/(μ²d â_b), where ε is the machine epsilon of f:
    use μ ≥ 1e-3 in float64 and μ ≥ 1e-2 in float32. The experiment ``beyond-curvature`` measures the gain. Memory is x
    and 9 bytes per group.

    Attributes:
        groups: the groups, in a form that ``Groups`` takes; None: single coordinates.
        initial_probes: the number of initial probes of each group; None: 4, or 1 for single coordinates.
        probe_every: the number of rounds from a later probe to the next; None: 10, or 50 for single coordinates.
        probe_weight: the weight of the newest |â_b|, in (0, 1]; None: 0.2, or 0.5 for single coordinates.
        rise_weight: the least weight if |â_b| > h_b, in [0, 1]; None: 0.3, or 0 for single coordinates.
        shared_weight: κ, in [0, 1].
        clip: the limit of |g| in units of its running root mean square; None: 1.5, or 3 for single coordinates.
        warmup: K; ordinary step t = 1, 2, … has the rate η min(1, t/(K + 1)). None: 100, or 0 for single coordinates.

    Raises:
        TypeError: for an option of the wrong type.
        ValueError: for an option out of range; in a run, for groups that are not a partition.
    """

    name = "group_probe"
    separable = True

    groups: GroupsLike = None
    initial_probes: int | None = None
    probe_every: int | None = None
    probe_weight: float | None = None
    rise_weight: float | None = None
    shared_weight: float = 0.1
    clip: float | None = None
    warmup: int | None = None

    def __post_init__(self) -> None:
        checks: dict[str, Any] = dict.fromkeys(("initial_probes", "probe_every"), positive_integer)
        checks |= dict.fromkeys(("probe_weight", "rise_weight", "shared_weight"), fraction)
        checks |= {"warmup": lambda name, value: check_integer(name, value, 0)}
        checks |= {"clip": lambda name, value: value if value == math.inf else positive(name, value)}
        vars(self).update({name: optional(check, name, getattr(self, name)) for name, check in checks.items()})
        if self.probe_weight == 0.0:
            raise ValueError("probe_weight must be in (0, 1], got 0, with which H would not be learned")

    def _value(self, name: str) -> Any:
        """An option, or the default for these groups."""
        given = getattr(self, name)
        return (SINGLE if self.groups.single else GROUPED)[name] if given is None else given

    def prepared(self, options: StepOptions, dimension: int) -> tuple[GroupProbe, StepOptions]:
        """Sets groups, central differences and the default rate; raises ``ValueError`` for momentum or projection."""
        for name in ("momentum", "projection"):
            if getattr(options, name):
                raise ValueError(f"GroupProbe does not support {name}: leave it out or use curvature=Displacement(...)")
        if options.scheme == "forward":
            raise ValueError("GroupProbe needs scheme='central', got 'forward'")
        p, normal = options.perturbations, options.distribution == "normal"
        rate = options.rate or p / (dimension + p + (1 if normal else -1))
        return replace(self, groups=Groups(self.groups, dimension)), replace(options, scheme="central", rate=rate)

    def start(self, x: Tensor, max_queries: int) -> LearnedGroups:
        """Returns the initial state; raises ``ValueError`` if the budget cannot probe each single coordinate."""
        count, device = len(self.groups), x.device
        if self.groups.single and max_queries < (least := 3 * self._value("initial_probes") * count + 2):
            needs = f"curvature='group_probe' needs at least {least} queries to probe each coordinate"
            raise ValueError(f"{needs}, got max_queries={max_queries}: increase it, or use larger groups")
        return LearnedGroups(
            curvature=torch.zeros(count, dtype=torch.float64, device=device),
            probes=torch.zeros(count, dtype=torch.uint8, device=device),
            gain=torch.zeros(3, dtype=torch.float64),
        )

    def metric(self, learned: LearnedGroups, x: Tensor) -> GroupDiagonal | None:
        """Returns H of the next step; None before the first probe."""
        h, dtype = held_up(learned.curvature, learned.probes), compute_dtype(x.dtype)
        limits = torch.finfo(dtype)
        return None if h is None else GroupDiagonal(self.groups, h.clamp(limits.tiny, limits.max).to(dtype))

    def radii(self, radius: float, directions: Directions, step: int, count: int, metric: Any) -> list[float]:
        """Computes m = μ√d/‖z_p‖ for each direction z_p = H^(−1/2)u_p, so that queries are at the distance μ√d."""
        norms = [math.sqrt(squared_norm(directions, step, p, metric)) for p in range(count)]
        return [radius * math.sqrt(directions.d) / norm for norm in norms]

    def step(self, learned: LearnedGroups, step: Step) -> LearnedGroups:
        """Makes an ordinary step with clipped scalars and the rate of the warm-up; before any probe, makes no step."""
        metric = self.metric(learned, step.x)
        if not step.terms or metric is None:
            return learned
        mean, mass, told = learned.gain.tolist()
        limit = math.inf if told < UNCLIPPED else self._value("clip") * math.sqrt(mean)
        clipped = [(at, p, min(max(g, -limit), limit)) for at, p, g in step.terms]
        step = replace(step, terms=clipped, rate=step.rate * min(1.0, (told + 1.0) / (self._value("warmup") + 1.0)))
        if not step.fits(learned.floor):
            return learned
        step.move(metric)
        newest = sum(g * g for *_, g in clipped) / len(clipped)
        mass = (1.0 - GAIN_WEIGHT) * mass + GAIN_WEIGHT
        mean += (GAIN_WEIGHT / mass) * (newest - mean)
        gain = learned.gain.new_tensor([mean, mass, told + 1.0]) if math.isfinite(mean) else learned.gain
        return replace(learned, gain=gain)

    def probe(self, seed: int, round_number: int) -> Probe | None:
        """Returns the probe of a round, or None for an ordinary round."""
        initial, every = self._value("initial_probes"), self._value("probe_every")
        group = probed_group(round_number, seed, len(self.groups), initial, every)
        return None if group is None else Probe(self.groups, group)

    def learn(self, learned: LearnedGroups, probe: Probe, second: float, x: Tensor) -> tuple[LearnedGroups, float]:
        """Updates h from a probe; returns the state, and the Newton step's divisor max(c, n_b h_b) or 0 for no step."""
        group, curvature, probes = probe.group, learned.curvature.clone(), learned.probes.clone()
        told, before = min(int(probes[group]) + 1, SATURATED), float(curvature[group])
        estimate, weight = abs(second) / probe.size, bias_corrected(self._value("probe_weight"), told)
        if estimate > before:
            weight = max(weight, self._value("rise_weight"))
        if told > self._value("initial_probes") and before > 0.0:
            curvature *= min(1.0 + self.shared_weight * (estimate / before - 1.0), 2.0)
        curvature[group] = before + weight * (estimate - before)
        probes[group] = told
        h = held_up(curvature, probes)
        floor = 1.0 if h is None else max(float(h.min()), torch.finfo(compute_dtype(x.dtype)).tiny)
        found = replace(learned, curvature=curvature, probes=probes, floor=floor)
        still = self.groups.single or second <= 0.0
        return found, 0.0 if still else max(second, float(curvature[group]) * probe.size)


def held_up(curvature: Tensor, probes: Tensor) -> Tensor | None:
    """Returns h of each group, at least ``FLOOR`` times the largest h; before a group's probe, it is the largest h."""
    largest = float(curvature.max())
    if not largest > 0.0:
        return None
    return torch.where(probes > 0, curvature, largest).clamp(min=FLOOR * largest)


def bias_corrected(weight: float, count: int) -> float:
    """Computes w/(1 − (1 − w)ᵗ), the weight of the t-th number in a bias-corrected moving average."""
    left = 1.0
    for _ in range(count):  # products, unlike powers, are equal on every machine
        left *= 1.0 - weight
    return weight / (1.0 - left)
