"""HiSo and DeComFL on one machine: zeroth-order descent along random directions, preconditioned by a diagonal H.

References:
    HiSo: Li et al., Reconciling Hessian-informed acceleration and scalar-only communication for efficient federated
        zeroth-order fine-tuning, 2025, Alg. 1 (the general scalar-only algorithm), 2, 2a and 2b, Appx. C, eqs. 7, 12
        and 112 (eq. 8 for P perturbations).
    DeComFL: Li et al., Achieving dimension-free communication in federated learning via zeroth-order optimization,
        2025.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from optimizers.core.batch import Batch
from optimizers.core.optimizer import Optimizer
from optimizers.core.options import (
    check_boolean,
    nearest_name,
    option_names,
    positive_integer,
    refuse_unknown,
    take_options,
)
from optimizers.core.state import save_fields
from optimizers.directions.directions import Directions
from optimizers.directions.groups import GroupDiagonal
from optimizers.directions.metric import compute_dtype, dense, squared_norm
from optimizers.methods.hiso.curvature import Curvature, Step, StepOptions
from optimizers.methods.hiso.displacement import Displacement
from optimizers.methods.hiso.first_rate import LEAST_DIRECTIONS, found_rate, vector_to_move
from optimizers.methods.hiso.group_probe import GroupProbe, Probe

CURVATURES: dict[str, type[Curvature]] = {cls.name: cls for cls in (Displacement, GroupProbe)}
CurvatureLike = Curvature | str | Mapping[str, Any] | None


def curvature_of(given: CurvatureLike) -> Curvature:
    """Returns the curvature for the option ``curvature`` of ``HiSo``."""
    if given is None or isinstance(given, Curvature):
        return given or Curvature()
    if not isinstance(given, str | Mapping):
        raise TypeError(f"curvature must be a Curvature, a name, a dict with a name, or None, got {given!r:.200}")
    options = {"name": given} if isinstance(given, str) else dict(given)
    if (name := options.pop("name", None)) not in CURVATURES:
        raise ValueError(f"unknown curvature {name!r}{nearest_name(str(name), CURVATURES)}")
    cls = CURVATURES[name]
    refuse_unknown(cls, options.keys() - option_names(cls))
    return cls(**options)


@dataclass
class HiSoState:
    """HiSo's state, without the iterate.

    Attributes:
        rate: the learning rate η; None until it is computed in the first step.
        momentum: m, shape ``d``, or None.
        learned: the state of the rule for H.
    """

    rate: float | None
    momentum: Tensor | None
    learned: Any


class HiSo(Optimizer):
    """HiSo (Li et al., 2025; Alg. 2, 2a, 2b, eqs. 12, 112) on one machine.

    With random directions w_p = H^(−1/2) u_p, p = 1…P, it queries x and x + μ w_p, and moves by

        g_p = (f(x + μ w_p) − f(x))/μ,   Δx = (1/P) Σ_p g_p w_p,   x ← prox(x − η Δx),
        H ← clip((1 − ν)H + ν(Δx² + ε), β_l, β_u)    (eq. 12; ``Displacement``)

    so that E Δx = H⁻¹∇f(x) + O(μ). For μ → 0 and Σ = ∇f ∇fᵀ, E[Δx Δxᵀ] = (1/P) Tr(ΣH⁻¹) H⁻¹ + (1 + 1/P) H⁻¹ΣH⁻¹
    (eq. 120).

    Other rules for H may be chosen with ``curvature``; a ``GroupProbe`` measures H by second differences like eq. 11
    (whose printed divisor 2μ² should be μ²). A step has the two parts of Alg. 1: ``scalars`` computes the numbers that
    a client sends and a server averages, and ``follow`` moves x, H and m by these numbers alone. Machines with equal x,
    H, m and seed get bitwise equal results. The prox has the step η/H_j for coordinate j, so that ψ must be separable.
    Memory is x and H, one more vector with momentum, and another one without ``in_place``.

    Failed perturbations are left out of the mean. A step that might overflow is skipped. If all queries of a step fail,
    x returns to the best point.

    **When to use it.** For networks that are tuned by forward passes and held in memory once, with ``ModuleObjective``
    and ``in_place=True``; with a ``GroupProbe`` if groups of parameters have different scales (experiment
    ``beyond-curvature``). With few variables the default method reaches lower values.

    **Cost.** P + 1 queries per step, and O(Pd) time to draw the directions twice from the seed.

    Args:
        curvature: the rule for H: ``Displacement(...)`` or ``GroupProbe(...)``; a name, ``"displacement"`` or
            ``"group_probe"``, for default options; a dict such as ``{"name": "group_probe", "groups": 3}``; or None for
            H = 1, as in ``DeComFL``.
        local_steps: τ, the number of steps in a round; ``Displacement`` and ``GroupProbe`` have options by round.
        in_place: whether to modify x0 itself, as torch optimizers modify parameters. Then ``base`` of earlier batches
            changes too, ``track_best`` is False by default, and bounds are not allowed. After a step is interrupted,
            calls raise an error until a state is loaded.
        **options: see ``StepOptions`` and ``Optimizer``.

    Attributes:
        relay: a function that is called with the scalars of each step instead of ``follow``, or None. A federation's
            client sends the scalars with it.
    """

    method = "hiso"
    follows_estimates = True
    option_sets: ClassVar[tuple[type, ...]] = (StepOptions,)
    option_hints: ClassVar[dict[str, str]] = {
        spelt.format(f.name): f"curvature={cls.__name__}({f.name}=...)"
        for cls in CURVATURES.values()
        for f in fields(cls)
        for spelt in ("{}", "hessian_{}", "{}_hessian")
    }
    state: HiSoState
    relay: Callable[[list[float]], None] | None = None

    def __init__(
        self,
        x0: Any,
        *,
        curvature: CurvatureLike = "displacement",
        local_steps: int = 1,
        in_place: bool = False,
        **options: Any,
    ) -> None:
        self.curvature, self.steps = curvature_of(curvature), take_options(StepOptions, options)
        self.local_steps = positive_integer("local_steps", local_steps)
        self.in_place = check_boolean("in_place", in_place)
        if self.in_place:
            options.setdefault("track_best", False)
            if options.get("bounds") is not None:
                raise ValueError("in_place=True cannot be combined with bounds: leave out one of them")
        super().__init__(x0, **options)

    # Alg. 2b, LocalUpdate: queries and their scalars.

    def _ask(self) -> Batch:
        """Lines 3 and 4: x, if its value is needed, and x ± μ H^(−1/2) u_p with u_p of address (seed, step, p)."""
        mu, metric = self.steps.smoothing_radius, self.metric
        if (probe := self.probe) is not None:
            scales, info = [0.0, probe.radius(mu), -probe.radius(mu)], {"group": probe.group}
            mask = probe.mask(self._x)
            return self._directions_batch([0] * 3, scales, distribution="rademacher", metric=mask, info=info)
        centre, sides, count = self._plan()
        radii = self.curvature.radii(mu, self._directions(), self.iterations, count, metric)
        rows = [0] * centre + [*range(count)] * sides
        scales = [0.0] * centre + [side * m for side in (1.0, -1.0)[:sides] for m in radii]
        kind, info = self.steps.distribution, {"count": count}
        return self._directions_batch(rows, scales, distribution=kind, metric=metric, info=info)

    def _differences(self, batch: Batch, values: Tensor) -> Tensor:
        """Line 4 (eq. 112): g_p = (f(x + μ w_p) − f(x))/μ, or the central one; not finite if a query failed.

        Line 4 prints f(x) at x_{i,r}, eqs. 8 and 112 at x_{r,k}; we use the step's own point.
        """
        count, m = batch.info["count"], batch.scales.to(values.device)
        if len(batch) == count + 1 and bool(m[0] == 0.0):
            return (values[1:] - values[0]) / m[1:]
        return (values[-2 * count : -count] - values[-count:]) / (2.0 * m[-2 * count : -count])

    def scalars(self, batch: Batch, values: Tensor, factor: float = 1.0) -> list[float]:
        """Computes the scalars of a step, c_p = factor · g_p/P (Alg. 2, line 11), or a probe's g and c.

        P is the number of successful perturbations; the scalars of the failed ones are NaN.
        """
        if "group" in batch.info:
            return Probe.scalars(batch, values)
        g = (self._differences(batch, values) * factor).tolist()
        count = sum(map(math.isfinite, g))
        c = [g_p / count if math.isfinite(g_p) else math.nan for g_p in g]
        if self.steps.projection:
            u, at, H = self._directions(), batch.addresses[-1][0], self.metric
            c = [c_p / squared_norm(u, at, p, H) if math.isfinite(c_p) else math.nan for p, c_p in enumerate(c)]
        return c

    def _tell(self, batch: Batch, values: Tensor) -> None:
        if self.relay is not None:
            self.relay(self.scalars(batch, values))
            return
        factor = 1.0 if self.state.rate is not None else self._find_rate(batch, values)
        scalars = self.scalars(batch, values, factor)
        if not any(map(math.isfinite, values.tolist() if "group" in batch.info else scalars)):
            self._start_again_from_best()
        if self.state.rate is not None:
            self.follow(scalars)

    # Alg. 2a, Rebuild: the update from scalars.

    def follow(self, scalars: Sequence[float], factor: float = 1.0) -> None:
        """Moves x, H and m by the scalars of the present step (Alg. 2a, lines 4 to 6, and Alg. 2, lines 9 and 16).

        Args:
            scalars: c_p for each perturbation, NaN for failed ones; in a probe round g and c.
            factor: multiplies the learning rate.
        """
        s, at = self.state, self.iterations
        x, m = self._x, s.momentum
        if not self.in_place:
            x, m = x.clone(), None if m is None else m.clone()
        if (probe := self.probe) is not None:
            learned = self._follow_probe(probe, x, scalars[0], scalars[1], factor)
        else:
            assert s.rate is not None
            number, k = divmod(at + 1, self.local_steps)
            terms = [(at, p, c) for p, c in enumerate(scalars) if not math.isnan(c)]
            prox = None if self.prox is None and self.domain is None else self._apply_prox
            rate, decay, ends = s.rate * factor, self.steps.momentum, number if k == 0 else 0
            step = Step(x, m, self._directions(), terms, rate, decay, ends, self.in_place, prox)
            learned = self.curvature.step(s.learned, step)
        self._x, self.state = x, replace(s, momentum=m, learned=learned)

    def _follow_probe(self, probe: Probe, x: Tensor, g: float, c: float, factor: float) -> Any:
        """H of the group learns from c, then x makes the Newton step g/curvature along z."""
        if not (math.isfinite(g) and math.isfinite(c)):
            return self.state.learned
        learned, second = self.curvature.learn(self.state.learned, probe, c, x)
        if second > 0.0 and abs(length := factor * g / second) < torch.finfo(x.dtype).max / 16.0:
            signs, mask = Directions(self.seed, self.dimension, "rademacher"), probe.mask(x)
            Step(x, None, signs, [(self.iterations, 0, length)], 1.0).move(mask)
            self._apply_prox(x, factor / second, mask)
        return learned

    def _apply_prox(self, x: Tensor, step: Any, mask: GroupDiagonal | None = None) -> None:
        """Applies prox and projection to a moved x in place; with a mask, only to coordinates where it is 1."""
        if self.prox is None and self.domain is None:
            return
        wide = x.to(compute_dtype(x.dtype))
        z = self._prox(wide, step)
        x.copy_(z if mask is None else torch.where(mask.tensor() == 1.0, z, wide))

    # The optimizer's hooks.

    def _parse_x0(self, x0: Any) -> Tensor:
        return vector_to_move(x0) if self.in_place else super()._parse_x0(x0)

    def _start(self) -> None:
        self.curvature, self.steps = c, steps = self.curvature.prepared(self.steps, self.dimension)
        vars(self).update(vars(steps))
        if c.separable and self.prox is not None and not getattr(self.prox, "separable", False):
            raise ValueError("HiSo needs a separable prox (prox.separable is not True); DeComFL takes any prox")
        momentum = torch.zeros_like(self._x, dtype=compute_dtype(self._x.dtype)) if steps.momentum > 0.0 else None
        self.state = HiSoState(steps.rate, momentum, c.start(self._x, self.max_queries))

    @property
    def _moves_in_place(self) -> bool:
        return self.in_place

    def _next_queries(self) -> int:
        centre, sides, count = self._plan()
        return centre + sides * count if self.probe is None else 3

    def _plan(self) -> tuple[int, int, int]:
        """The number of queries at x, of sides per direction, and of directions in the next batch."""
        finding, forward, wanted = self.state.rate is None, self.steps.scheme == "forward", self.steps.perturbations
        centre, sides = int(finding or forward), 1 if forward and not finding else 2
        wanted = max(wanted, LEAST_DIRECTIONS * finding)
        return centre, sides, max(1, min(wanted, (self.remaining - centre) // sides))

    def _directions(self) -> Directions:
        return Directions(self.seed, self.dimension, self.steps.distribution)

    @property
    def metric(self) -> Tensor | GroupDiagonal | None:
        """H of the next step; None for H = 1."""
        return self.curvature.metric(self.state.learned, self._x)

    @property
    def hessian(self) -> Tensor:
        """The diagonal of H in search coordinates, shape ``d``."""
        return torch.ones_like(self._x) if (metric := self.metric) is None else dense(metric)

    @property
    def probe(self) -> Probe | None:
        """The ``Probe`` that the next batch makes instead of a step, or None."""
        number, k = divmod(self.iterations, self.local_steps)
        return self.curvature.probe(self.seed, number + 1) if k == 0 else None

    def _find_rate(self, batch: Batch, values: Tensor) -> float:
        """Finds η, and H₀ if needed, from a first step's queries; returns the factor of its scalars."""
        if (found := found_rate(batch, values, self._differences(batch, values), self.steps)) is None:
            return 1.0
        learned, rate, factor = self.curvature.with_rate(self.state.learned, *found, self.steps, self.in_place)
        self.state = replace(self.state, rate=rate, learned=learned)
        return factor

    def _start_again_from_best(self) -> None:
        """Moves x to the best point, if there is one, and resets m; called when all queries failed."""
        before = self._x
        if self.state.momentum is not None:
            self.state.momentum = torch.zeros_like(self.state.momentum)
        self.retreat()
        if self.in_place and self._x is not before:
            self._x = before.copy_(self._x)

    # The model's state, for a federation.

    def vectors(self) -> dict[str, Tensor]:
        """Returns x and the tensors of H and m by name, without copying them."""
        named = {"x": self._x} | vars(self.state.learned) | {"momentum": self.state.momentum}
        return {name: value for name, value in named.items() if isinstance(value, Tensor)}

    def snapshot(self) -> dict[str, Any]:
        """Returns copies of x, H and m, for ``put_back``."""
        return {"x": self._x.clone(), "state": save_fields(self.state)}

    def put_back(self, snapshot: Mapping[str, Any]) -> None:
        """Restores x, H and m from a ``snapshot`` (Alg. 2b, line 8, subtracts the steps); cancels a pending batch."""
        self.cancel()
        saved = dict(snapshot["state"])
        learned = replace(self.state.learned, **saved.pop("learned"))
        self._x, self.state = snapshot["x"], HiSoState(**saved, learned=learned)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores a saved state as ``Optimizer`` does; with ``in_place``, its x is copied into the user's tensor."""
        own = self._x
        super().load_state_dict(state)
        if self.in_place:
            self._x = own.copy_(self._x)
            if self.track_best:
                self.x0 = self._x

    def _options(self) -> dict[str, Any]:
        given = {f.name: getattr(self.curvature, f.name) for f in fields(self.curvature)}
        known = {name: getattr(value, "fingerprint", value) for name, value in given.items()}
        plain = {name: value for name, value in known.items() if isinstance(value, bool | int | float | str)}
        return super()._options() | {"curvature": {"name": self.curvature.name} | plain}


class DeComFL(HiSo):
    """DeComFL (Li et al., 2025) on one machine: HiSo with H = 1, x ← prox(x − (η/P) Σ_p g_p u_p).

    **When to use it.** For the same problems as HiSo. Try DeComFL first, because HiSo's H often gains nothing
    (experiment ``hiso-fig5``).

    **Cost.** The same queries and time as HiSo, with x alone in memory.

    Args:
        **options: see ``HiSo``, except the curvature.
    """

    method = "decomfl"

    def __init__(self, x0: Any, **options: Any) -> None:
        super().__init__(x0, curvature=None, **options)
