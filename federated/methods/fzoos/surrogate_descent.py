"""A FZooS client's local steps as an optimizer: descent along a derived GP, corrected by Fourier surrogates."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal, Unpack

import torch
from torch import Tensor

from federated.methods.fzoos.client_surrogates import LEAST_DATA, ClientSurrogates
from federated.methods.local_descent import adam
from optimizers.batch import Batch
from optimizers.first_order import FirstOrder, UpdateRule
from optimizers.methods.zord.virtual_steps import virtual_steps
from optimizers.optimizer import Optimizer
from optimizers.options import CommonOptions, check_integer, positive, positive_integer
from surrogates import FourierFeatures, matern_kernel, rbf_kernel
from surrogates.kernels.makers import NOISE_FLOOR
from surrogates.window.uncertainty import UncertaintyRule
from surrogates.window.window_surrogate import KernelMaker

Active = Literal["step", "round"]
KernelName = Literal["rbf", "matern52"]

KERNELS: dict[str, KernelMaker] = {"rbf": rbf_kernel, "matern52": matern_kernel}

ONE_STEP = UncertaintyRule.of("mean_variance")
"""Never asked: a step is one virtual step."""


@dataclass
class SurrogateDescentState:
    """What changes, beside the iterate.

    Attributes:
        rule: the first-order rule.
        models: the queries of all rounds and the surrogates of them.
        points: the next batch, search coordinates, ``q x d``.
        difference: w − wᵢ of the round, shape ``M``, or None: no correction.
        correction: c where it is the same at all steps (x' = x'' = x_{r−1}), shape ``d``, or None.
        gammas: γ of each step of the round; None in a phase without steps.
        fits: whether wᵢ is fitted at the end of the phase.
        address: of the phase's first candidates.
        planned: batches of the phase.
        told: batches told.
        succeeded: queries of the phase that succeeded.
        weights: wᵢ as fitted at the end of the last phase that was to fit it, shape ``M``.
        statistics: ‖∇μ̂ᵢ(x) − ∇μᵢ(x)‖² and tᵢ (``federated.methods.fzoos.gamma``) where they are wanted; empty before,
        else None.
    """

    rule: FirstOrder
    models: ClientSurrogates
    points: Tensor
    difference: Tensor | None = None
    correction: Tensor | None = None
    gammas: list[float] | None = None
    fits: bool = False
    address: int = 0
    planned: int = 0
    told: int = 0
    succeeded: int = 0
    weights: Tensor | None = None
    statistics: list[float] | None = None


class SurrogateDescent(Optimizer):
    """Steps from the server's iterate along surrogate gradients (FZooS, Alg. 2 and eq. 5).

    A step from x queries f(x), with ``active="step"`` also at the ``active_queries`` of ``candidates`` points uniform
    in x ± ``active_radius`` whose gradients are least certain (greatest posterior trace), and then moves by one virtual
    step of ZoRD (``virtual_steps``) along

        g = ∇μᵢ(x) + γ_t (∇μ̂(x') − ∇μ̂ᵢ(x'')),    ∇μ̂(x') − ∇μ̂ᵢ(x') = ∇φ(x')ᵀ(w − wᵢ).

    The first batch of all, which finds no trajectory, has ``initial_queries`` random candidates where ``active`` asks
    for fewer: ∇μ = 0 after one query. There is no step while fewer than two queries have succeeded.

    Args:
        x0: initial point, shape ``d``.
        features: the shared Fourier features, over search coordinates.
        active: see above; ``"round"``: at the round's end (``begin_active``); None: none.
        active_queries: of a step, or of a round.
        candidates: that they are the best of.
        active_radius: half of the candidates' box, search units.
        initial_queries: random queries beside x in the first batch, at least.
        lengthscale: ℓ of the local GP, search units.
        nugget: noise variance of a value over the outputscale.
        feature_nugget: the same of the Fourier surrogate; None: ``nugget``.
        kernel: of the local GP.
        window: queries nearest to x that the local GP holds.
        feature_window: queries that the Fourier surrogate holds; None: all.
        update_rule: factory of the first-order rule.
        **common: see ``Optimizer``. A box is searched as [0, 1]^d.
    """

    method = "surrogate_descent"
    search_width = 1.0
    state: SurrogateDescentState

    def __init__(
        self,
        x0: Any,
        *,
        features: FourierFeatures,
        active: Active | None = "step",
        active_queries: int = 5,
        candidates: int = 100,
        active_radius: float = 0.01,
        initial_queries: int = 5,
        lengthscale: float = 1.0,
        nugget: float = 1e-6,
        feature_nugget: float | None = None,
        kernel: KernelName = "rbf",
        window: int = 150,
        feature_window: int | None = None,
        update_rule: UpdateRule = adam,
        **common: Unpack[CommonOptions],
    ) -> None:
        if active not in ("step", "round", None):
            raise ValueError(f"active must be 'step', 'round' or None, got {active!r}")
        if kernel not in KERNELS:
            raise ValueError(f"kernel must be one of {', '.join(KERNELS)}, got {kernel!r}")
        self.active, self.features, self.kernel = active, features, kernel
        self.active_queries = positive_integer("active_queries", active_queries)
        check_integer("candidates", candidates, self.active_queries)
        check_integer("initial_queries", initial_queries, LEAST_DATA - 1)
        self.candidates, self.initial_queries = int(candidates), int(initial_queries)
        self.active_radius = positive("active_radius", active_radius)
        self.lengthscale = positive("lengthscale", lengthscale)
        self.nugget = _nugget("nugget", nugget)
        self.feature_nugget = self.nugget if feature_nugget is None else _nugget("feature_nugget", feature_nugget)
        check_integer("window", window, LEAST_DATA)
        self.window = int(window)
        self.feature_window = None if feature_window is None else positive_integer("feature_window", feature_window)
        self.update_rule = update_rule
        super().__init__(x0, **common)

    # Phases.

    def begin(
        self,
        x: Tensor,
        *,
        address: int,
        gammas: list[float],
        difference: Tensor | None,
        at_start: bool = False,
        reset: bool = True,
        fits: bool = False,
    ) -> None:
        """Start a round of local steps at x, in user units; a batch still pending is dropped.

        Args:
            x: x_{r−1}, shape ``d``.
            address: of the first step's candidates; one a step follows.
            gammas: γ of each step; their number is T.
            difference: w − wᵢ, shape ``M``; None: no correction.
            at_start: take the correction at x for all steps.
            reset: whether the rule forgets its moments.
            fits: whether wᵢ is wanted at the end.
        """
        self._start_phase(x, address, len(gammas))
        if reset:
            self.state.rule.reset()
        correction = None
        if difference is not None and at_start:
            correction, difference = self.features.gradient(self._x[None], difference)[0], None
        changes: dict[str, Any] = {
            "gammas": list(gammas),
            "difference": difference,
            "correction": correction,
            "fits": fits,
        }
        self.state = replace(self.state, statistics=None, **changes)
        self._plan()

    def begin_active(self, x: Tensor, *, address: int, fits: bool, statistics: bool = False) -> None:
        """Start the phase at the common x: active queries with ``active="round"``, then the fit.

        Args:
            x: x_r, user units, shape ``d``.
            address: of the candidates.
            fits: whether wᵢ is wanted.
            statistics: whether ``state.statistics`` are.
        """
        asks = self.active == "round"
        points = self._active_points(self._to_search(x), address, self.active_queries) if asks else self.state.points
        self._start_phase(x, address, 1 if asks else 0)
        self.state = replace(self.state, points=points, gammas=None, fits=fits, statistics=[] if statistics else None)
        if not asks:
            self._finish()

    def product(self, points: list[Tensor], w: Tensor) -> float:
        """Σ ∇μᵢ(x)·(∇μ̂(x) − ∇μ̂ᵢ(x)) over common points x, user units, for μ̂ of weights w.

        Raises:
            RuntimeError: before wᵢ was fitted.
        """
        if self.state.weights is None:
            raise RuntimeError("there is no Fourier surrogate yet")
        difference, total = w - self.state.weights, 0.0
        for x in points:
            z = self._to_search(x)
            correction = self.features.gradient(z[None], difference)[0]
            total += float(self.state.models.gradient(z).double() @ correction.double())
        return total

    @property
    def busy(self) -> bool:
        """Whether batches of the phase are left."""
        return self.state.told < self.state.planned

    def search(self, x: Tensor) -> Tensor:
        """A point of user units in search coordinates."""
        return self._to_search(x)

    # The optimizer's hooks.

    def _start(self) -> None:
        models = ClientSurrogates(
            self._x,
            self.features,
            window=self.window,
            lengthscale=self.lengthscale,
            nugget=self.nugget,
            feature_nugget=self.feature_nugget,
            kernel=KERNELS[self.kernel],
            feature_window=self.feature_window,
        )
        rule = FirstOrder(self.update_rule, self._x)
        self.state = SurrogateDescentState(rule, models, self._x[None].clone())

    def _next_queries(self) -> int:
        return len(self.state.points)

    def _ask(self) -> Batch:
        return self._points_batch(self.state.points)

    def _tell(self, batch: Batch, values: Tensor) -> None:
        assert batch.explicit is not None
        s = self.state
        s.models.append(batch.explicit, values)
        succeeded = s.succeeded + int(torch.isfinite(values).sum())
        self.state = replace(s, told=s.told + 1, succeeded=succeeded)
        if s.gammas is not None:
            self._step(s.gammas[s.told])
        if self.busy:
            self._plan()
        else:
            self._finish()

    # Parts.

    def _finish(self) -> None:
        """End a phase: wᵢ and the statistics, where they are wanted and there is a query that succeeded."""
        s = self.state
        if not len(s.models.trajectory):
            return
        if s.fits:
            s = replace(s, weights=s.models.fitted_weights(self._x))
        if s.statistics is not None and s.weights is not None:
            error = self.features.gradient(self._x[None], s.weights)[0] - s.models.gradient(self._x)
            s = replace(s, statistics=[float(error.double().square().sum()), s.models.uncertainty(self._x)])
        self.state = s

    def _start_phase(self, x: Tensor, address: int, planned: int) -> None:
        self.restart(x)
        self.state = replace(self.state, address=address, planned=planned, told=0, succeeded=0)

    def _plan(self) -> None:
        """The next step's batch: x and the active queries about it."""
        s, x = self.state, self._x
        about = self._active_points(x, s.address + s.told, self.active_queries if self.active == "step" else 0)
        self.state = replace(s, points=torch.cat([x[None], about]))

    def _active_points(self, x: Tensor, address: int, count: int) -> Tensor:
        """The candidates about x that are least certain, ``count x d``; without a trajectory the first of them."""
        models = self.state.models
        first = len(models.trajectory) < LEAST_DATA
        count = max(count, self.initial_queries) if first else count
        if count == 0:
            return x.new_empty(0, self.dimension)
        uniform = self._generator(step=address).random((max(self.candidates, count), self.dimension))
        offsets = (2.0 * torch.from_numpy(uniform) - 1.0) * self.active_radius
        candidates = x + offsets.to(x)
        if self.domain is not None:
            candidates = torch.clamp(candidates, self.domain.search_lower, self.domain.search_upper)
        return candidates[:count] if first else models.most_uncertain(x, candidates, count)

    def _step(self, gamma: float) -> None:
        """One virtual step of ZoRD, corrected."""
        s = self.state
        if len(s.models.trajectory) < LEAST_DATA:
            return

        def correction(z: Tensor) -> Tensor:
            if s.correction is not None:
                return gamma * s.correction
            assert s.difference is not None
            return gamma * self.features.gradient(z[None], s.difference)[0]

        corrects = gamma != 0.0 and (s.difference is not None or s.correction is not None)
        self._x, _ = virtual_steps(
            s.models.local,
            self._x,
            s.rule,
            self._prox,
            ONE_STEP,
            most=1,
            correction=correction if corrects else None,
        )


def _nugget(name: str, value: float) -> float:
    if not positive(name, value) > NOISE_FLOOR:
        raise ValueError(f"{name} must be above {NOISE_FLOOR:g}, got {value}")
    return float(value)
