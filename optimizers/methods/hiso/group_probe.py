"""A curvature that preconditions: one number for each group of coordinates, measured by probes."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from optimizers.core.batch import Batch
from optimizers.core.options import check_integer, optional, positive, positive_integer
from optimizers.directions.directions import Directions, philox
from optimizers.directions.groups import GroupDiagonal, Groups, GroupsLike
from optimizers.directions.metric import compute_dtype, squared_norm
from optimizers.methods.hiso.curvature import Curvature, Learned, Step, StepOptions, fraction

FLOOR = 1e-8
"""The least h, relative to the largest."""

GAIN_WEIGHT = 1.0 / 300.0
"""The weight of the newest step in the running mean square of scalars, from which the clipping limit is computed."""

UNCLIPPED = 10
"""The number of initial ordinary steps without clipping, as the running mean square may be near 0 by chance."""

SATURATED = 255
"""Probes of a group are counted up to this number, after which their weight is constant."""

SINGLE = {"initial_probes": 1, "probe_every": 50, "probe_weight": 0.5, "rise_weight": 0.0, "clip": 3.0, "warmup": 0}
GROUPED = {"initial_probes": 4, "probe_every": 10, "probe_weight": 0.2, "rise_weight": 0.3, "clip": 1.5, "warmup": 100}
"""Defaults of ``GroupProbe`` for single coordinates and for larger groups."""


def probed_group(number: int, seed: int, groups: int, initial: int, every: int) -> int | None:
    """The group that all clients probe in round ``number``, counted from 1; None in an ordinary round.

    Rounds 1 … ``initial`` · G probe the G groups in turn; then every ``every``-th round probes a group drawn by the
    seed.
    """
    first = initial * groups
    if number <= first:
        return (number - 1) % groups
    if (number - first) % every:
        return None
    *key, low, high = Directions(seed, groups, "coordinate").address(number)
    a, b, *_ = philox.philox4x32((0, 0, low, high), (key[0], key[1]))
    return (((a << 32) | b) * groups) >> 64


@dataclass(frozen=True)
class Probe:
    """Queries at x and x ± m z, where z has signs on a group and 0 elsewhere, and m = μ√d/‖z‖.

    Attributes:
        groups: the partition.
        group: the group's number.
    """

    groups: Groups
    group: int

    @property
    def size(self) -> int:
        """‖z‖², the group's number of coordinates."""
        return int(self.groups.sizes[self.group])

    def radius(self, smoothing_radius: float) -> float:
        """The distance m, for a smoothing radius μ."""
        return smoothing_radius * math.sqrt(self.groups.dimension / self.size)

    def mask(self, like: Tensor) -> GroupDiagonal:
        """The H for which z is H^(−1/2) times signs: 1 on the group and inf elsewhere, dtype and device as ``like``."""
        ones = torch.full((len(self.groups),), math.inf, dtype=compute_dtype(like.dtype), device=like.device)
        ones[self.group] = 1.0
        return GroupDiagonal(self.groups, ones)

    @staticmethod
    def scalars(batch: Batch, values: Tensor) -> list[float]:
        """g = (f(x + mz) − f(x − mz))/(2m) and c = (f(x + mz) + f(x − mz) − 2f(x))/m²; not finite if a query failed."""
        (centre, plus, minus), m = values.tolist(), float(batch.scales[1])
        return [(plus - minus) / (2.0 * m), (plus + minus - 2.0 * centre) / m**2]


@dataclass
class LearnedGroups(Learned):
    """The state of probes and clipping.

    Attributes:
        curvature: moving average of |âᵦ| of each group, float64, shape ``G``; 0 before the first probe.
        probes: the number of probes of each group, uint8, at most 255.
        gain: three numbers, float64: the bias-corrected moving average of g² over t steps, the sum 1 − (1 − 1/300)ᵗ of
            its weights, and t.
    """

    curvature: Tensor = field(kw_only=True)
    probes: Tensor = field(kw_only=True)
    gain: Tensor = field(kw_only=True)


@dataclass(frozen=True, kw_only=True)
class GroupProbe(Curvature):
    """A measured H, one number h for each group of coordinates; ours, not a paper's.

    Eq. 12 hardly learns curvature (see ``Displacement``). Here second differences measure it, for one more scalar in
    some rounds. Groups are single coordinates or, for example, the tensors of a module; the coordinates of a group
    should have a common scale.

    **Ordinary step.** z = h^(−1/2)∘u, m = μ√d/‖z‖, and for each of P perturbations

        g = (f(x + mz) − f(x − mz))/(2m),    x ← x − η (1/P) Σ_p g_p z_p

    with η = P/(d + P + 1) for normal u (P/(d + P − 1) for signs). If the Hessian is diag(h), no η has a smaller
    expected loss after a step (HiSo's eq. 120); otherwise ``rate`` may be tuned. Except in the first 10 steps, g is
    clipped at ``clip`` times the bias-corrected running root mean square of the clipped values (weight 1/300). A
    one-sided difference has bias μ/2 · zᵀ∇²f z, hence only ``scheme="central"``.

    **Probe round.** For the group b of ``probed_group``: z = signs on b and 0 elsewhere, ‖z‖² = n_b, m = μ√d/‖z‖, three
    queries at x and x ± mz, g as above and c = (f(x + mz) + f(x − mz) − 2f(x))/m²; two scalars.

        â_b = c/‖z‖²,    E â_b = tr(A_b)/n_b,    Var â_b = 2‖off A_b‖²_F/n_b²

    with the group's block A_b of the Hessian (on a quadratic, otherwise + O(m²)): exact for single coordinates. h_b is
    a bias-corrected moving average of |â_b| with weight ``probe_weight`` (at least ``rise_weight`` if |â_b| > h_b), and
    at least 1e-8 of the largest h. Since curvatures of one objective tend to rise and fall together, later probes also
    multiply every other h by 1 + κ(|â_b|/h_b − 1), κ = ``shared_weight``, at most 2. Groups without a successful probe
    have the largest h, and no step is made before a probe has succeeded. For groups of several coordinates and c > 0
    the probe also makes the Newton step along z, x ← x − g/max(c, n_b h_b) z.

    **Networks.** A network's curvature is least at its start, and h lags behind. With an h too large by a factor k the
    progress per step is 2/k − 1/k² of the best; with one too small by k it is 2k − k², and f rises beyond k = 2. Groups
    larger than coordinates are therefore conservative: h rises faster than it falls, η rises over the first ``warmup``
    ordinary steps, and g is clipped at a low limit (for normal g, 1.5 root mean squares cost 5% of the progress). To
    disable all this, use ``rise_weight=0``, ``shared_weight=0``, ``warmup=0`` and ``clip=3`` or inf.

    A diagonal H does not help with a rotated spectrum, or with groups that mix scales. ``beyond-curvature`` measures
    the gain. c has a relative rounding error of about 4ε|f|/(μ²d â_b), with ε of the objective's arithmetic: use μ ≥
    1e-3 in float64, 1e-2 if f is float32. Memory is x, and 9 bytes for each group.

    Attributes:
        groups: an argument of ``Groups``; None: single coordinates, whose first probes the budget must allow.
        initial_probes: first probes of each group; None: 4, or 1 for single coordinates.
        probe_every: rounds between later probes; None: 10, or 50 for single coordinates.
        probe_weight: weight of the newest |â_b|, in (0, 1]; None: 0.2, or 0.5 for single coordinates.
        rise_weight: least such weight if |â_b| > h_b, in [0, 1]; None: 0.3, or 0 for single coordinates.
        shared_weight: κ, in [0, 1].
        clip: limit of g in its running root mean squares; None: 1.5, or 3 for single coordinates; inf: none.
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
            raise ValueError("probe_weight must be positive; with 0 nothing is learned")

    def _value(self, name: str) -> Any:
        """An option, or the default for these groups."""
        given = getattr(self, name)
        return (SINGLE if self.groups.single else GROUPED)[name] if given is None else given

    def prepared(self, options: StepOptions, dimension: int) -> tuple[GroupProbe, StepOptions]:
        """Sets the partition, central differences and the rate above; rejects momentum and projection."""
        for name in ("momentum", "projection"):
            if getattr(options, name):
                raise ValueError(f"GroupProbe does not support {name}: use curvature=Displacement(...)")
        if options.scheme == "forward":
            raise ValueError("GroupProbe needs scheme='central', got 'forward'")
        p, normal = options.perturbations, options.distribution == "normal"
        rate = options.rate or p / (dimension + p + (1 if normal else -1))
        return replace(self, groups=Groups(self.groups, dimension)), replace(options, scheme="central", rate=rate)

    def start(self, x: Tensor, max_queries: int) -> LearnedGroups:
        """The state before any probe; the budget must allow the first probes of single coordinates and a step."""
        count, device = len(self.groups), x.device
        if self.groups.single and max_queries < (least := 3 * self._value("initial_probes") * count + 2):
            needs = f"curvature='group_probe' needs at least {least} queries to probe each coordinate"
            raise ValueError(f"{needs}, got max_queries={max_queries}: use larger groups")
        return LearnedGroups(
            curvature=torch.zeros(count, dtype=torch.float64, device=device),
            probes=torch.zeros(count, dtype=torch.uint8, device=device),
            gain=torch.zeros(3, dtype=torch.float64),
        )

    def metric(self, learned: LearnedGroups, x: Tensor) -> GroupDiagonal | None:
        """H of the present h; None before the first probe."""
        h, dtype = held_up(learned.curvature, learned.probes), compute_dtype(x.dtype)
        limits = torch.finfo(dtype)
        return None if h is None else GroupDiagonal(self.groups, h.clamp(limits.tiny, limits.max).to(dtype))

    def radii(self, radius: float, directions: Directions, step: int, count: int, metric: Any) -> list[float]:
        """The distances m = μ√d/‖z_p‖ of the queries from x."""
        norms = [math.sqrt(squared_norm(directions, step, p, metric)) for p in range(count)]
        return [radius * math.sqrt(directions.d) / norm for norm in norms]

    def step(self, learned: LearnedGroups, step: Step) -> LearnedGroups:
        """An ordinary step with clipped scalars and warmed-up rate; none before a group has an h."""
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
        """The probe of a round for which ``probed_group`` names a group."""
        initial, every = self._value("initial_probes"), self._value("probe_every")
        group = probed_group(round_number, seed, len(self.groups), initial, every)
        return None if group is None else Probe(self.groups, group)

    def learn(self, learned: LearnedGroups, probe: Probe, second: float, x: Tensor) -> tuple[LearnedGroups, float]:
        """Updates h_b from |â_b| and scales the other h (κ); returns max(c, n_b h_b), or 0 for no step along z."""
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
    """h of each group, at least ``FLOOR`` times the largest; without a probe, the largest. None if all are 0."""
    largest = float(curvature.max())
    if not largest > 0.0:
        return None
    return torch.where(probes > 0, curvature, largest).clamp(min=FLOOR * largest)


def bias_corrected(weight: float, count: int) -> float:
    """w/(1 − (1 − w)ᵗ), the weight of the t-th number; powers by products, which are equal on every machine."""
    left = 1.0
    for _ in range(count):
        left *= 1.0 - weight
    return weight / (1.0 - left)
