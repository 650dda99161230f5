"""The interface that a method implements, and the tools it may use.

**A new method** is a subclass in a file of its own and a line in ``optimizers/registry.py``::

    class RandomSearch(Optimizer):
        method = "random_search"          # its name; raise `version` when the state's meaning changes

        def __init__(self, x0, *, radius: float = 1.0, **common: Unpack[CommonOptions]):
            self.radius = radius          # an attribute of the option's name, before super().__init__
            super().__init__(x0, **common)

        def _start(self): ...                              # makes self.state; x, bounds, prox, seed, d are known
        def _next_queries(self): return 1                  # the number of queries of the next batch
        def _ask(self): return self._directions_batch([0], [self.radius])     # CHANGES NO STATE
        def _tell(self, batch, values): ...                # values: float64, shape q, NaN = failed

- **Asking.** ``_ask`` is a pure function of the state, because the base class may drop the batch. Virtual steps, model
  fits and other changes of the state belong in ``_tell``; ``Batch.info`` holds what ``_tell`` needs from ``_ask``.
- **Asking another.** ``_ask_another(pending, spare)`` may return a further batch of at most ``spare`` points for idle
  workers; None, the default, waits for the pending ones. Batches may then be told in any order. ``self.next_id`` is the
  number of the next batch: the count of all told and pending batches.
- **Budget.** ``_next_queries`` may read ``self.remaining`` and make a batch smaller. A run stops with "budget" when
  its next batch does not fit. ``_tell`` always gets whole batches, even if values arrive one by one. A constructor
  whose first batch exceeds ``max_queries`` raises an error with the number needed.
- **Coordinates.** ``self._x`` and all arguments of hooks are in *search* coordinates: [0, 10] for a variable with two
  finite bounds if ``rescale`` is set (its default is the class's ``rescale_by_default``), the user's units otherwise.
  ``Batch.points()``, ``best_x`` and ``x`` are in user units; ``_to_user`` and ``_to_search`` convert.
- **Queries and the box.** Iterates and, with ``confine_queries``, queried points are projected onto the box. ``prox``
  is applied to iterates, not to queried points. ``self._prox(z, step)`` applies the prox and the projection after a
  step; ``self._descend(rule, g)`` takes a first-order step and calls ``_prox``.
- **Messages of results.** A batch of an initial design has ``info={"design": True}``, so that the result says when the
  budget was too small for anything else. A class whose iterate moves along every nonzero estimate sets
  ``follows_estimates``: its run is not a ``success`` if the iterate never moved.
- **Evaluations from outside.** A class with a model of f sets ``has_model`` and defines ``_take_history``. Then users
  may pass a ``history``, tell values of other points, and omit x0. A model with a noise variance for each value sets
  ``takes_variances``.
- **Failures.** ``_tell`` is also called when some or all values are NaN. After a failure at the iterate,
  ``retreat()`` moves the iterate to the best point. A hook that raises must not have changed the state.
- **State.** ``self.state`` is one dataclass. Its fields are tensors, numbers, strings, None, lists, tuples and dicts
  of these, dataclasses, or objects with ``state_dict`` and ``load_state_dict`` (``FirstOrder``); the base class saves
  and restores them. Other state needs ``_state`` and ``_load_state``. ``self._x`` is never modified in place, because
  batches share it.
- **Random numbers** are addressed, so that there is no generator state. ``self._directions_batch(rows, scales)`` asks
  for ``x + scales[i] * u``, where the standard normal vector u depends on (seed, step, rows[i]) only. ``step`` is
  ``self.next_id``, which grows with each batch, also after failures. Other numbers come from
  ``self._generator(stream)``, a pure function of (seed, number, stream).
- **Tests.** ``optimizers.testing.check_optimizer`` checks all of this.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import is_dataclass
from typing import Any, ClassVar, cast

import numpy as np
import torch
from torch import Tensor

from optimizers.core.answers import Pending
from optimizers.core.batch import Batch
from optimizers.core.bounds import Domain
from optimizers.core.history import DataAtHand
from optimizers.core.options import ProxLike, option_names, prox_description
from optimizers.core.record import Record
from optimizers.core.result import Estimate
from optimizers.core.state import load_fields, save_fields
from optimizers.core.stopping import StopReason
from optimizers.core.values import parse_point
from optimizers.directions.directions import Directions
from optimizers.directions.groups import GroupDiagonal
from optimizers.first_order import FirstOrder


class MethodTools(ABC):
    """The part of ``Optimizer`` for its subclasses: hooks and tools.

    Attributes:
        seed: seed of the run.
        max_queries: query budget.
        prox: proximal operator of ψ, or None.
        domain: the box and its search coordinates, or None.
        iterations: the number of batches whose values are all told.
    """

    method: ClassVar[str]
    version: ClassVar[int] = 1
    seed: int
    max_queries: int
    prox: ProxLike | None
    domain: Domain | None
    iterations: int
    _x: Tensor
    _record: Record
    _out: Pending
    _broken: BaseException | None = None
    _stop_reason: StopReason | None = None
    state: Any = None
    _opens: bool = False
    _history: str | None = None
    follows_estimates: ClassVar[bool] = False
    has_model: ClassVar[bool] = False
    takes_variances: ClassVar[bool] = False

    def _parse_x0(self, x0: Any) -> Tensor:
        """Checks and copies the initial point; a method that moves the user's tensor in place overrides this."""
        return parse_point(x0)

    def _start(self) -> None:
        """Makes the initial ``self.state``; called once, at the end of construction."""
        return

    @abstractmethod
    def _next_queries(self) -> int:
        """The number of queries of the next batch; a pure and cheap function of the state and ``self.remaining``.

        The run ends with "budget" if it exceeds the remaining budget or is 0.
        """

    @abstractmethod
    def _ask(self) -> Batch:
        """The next batch of ``_next_queries()`` points; a pure function of the state."""

    def _ask_another(self, pending: Sequence[Batch], spare: int) -> Batch | None:
        """A further batch of at most ``spare`` points beside the pending ones, or None; pure, as ``_ask``."""
        return None

    @abstractmethod
    def _tell(self, batch: Batch, values: Tensor) -> None:
        """Updates the state with the values of a batch, float64, shape ``q``, NaN for failed queries."""

    def _take_history(self, data: DataAtHand) -> None:
        """Updates the state with evaluations that are not queries of the run; methods with ``has_model`` define it.

        It is called with the history after ``_start``, and between batches with values that users tell.
        """
        raise NotImplementedError(f"{type(self).__name__} sets has_model and must define _take_history")

    def _admitted(self, points: Tensor) -> Tensor:
        """Moves points in search coordinates, ``q x d``, to where the method may evaluate f."""
        return points

    def _multipliers(self, x: Tensor) -> np.ndarray | None:
        """The multiplier of each component of the constraints at x, shape ``m``; None: not known."""
        return None

    def _described(self, found: dict[str, Any]) -> dict[str, Any]:
        """Returns the entries of a result; a method may change them."""
        return found

    def _state(self) -> dict[str, Any]:
        if self.state is not None and not is_dataclass(self.state):
            name, kind = type(self).__name__, type(self.state).__name__
            raise TypeError(
                f"{name}.state must be a dataclass, got {kind}; for other states define _state, _load_state"
            )
        return {} if self.state is None else save_fields(self.state)

    def _load_state(self, state: Mapping[str, Any]) -> None:
        if self.state is not None:
            self.state = load_fields(self.state, state, self._x.device)

    def _estimate(self) -> Estimate | None:
        """The query of least posterior mean, in search coordinates, if values are noisy; None: the best query."""
        return None

    @property
    def _moves_in_place(self) -> bool:
        """Whether ``_tell`` changes the iterate or state in place, so that it cannot be undone."""
        return False

    @property
    def _must_move(self) -> bool:
        """Whether every nonzero estimate should move the iterate, because neither a prox nor a bound holds it back."""
        if not self.follows_estimates or self.prox is not None:
            return False
        box = self.domain
        return box is None or bool(((box.search_lower < self._x) & (self._x < box.search_upper)).all())

    def _options(self) -> dict[str, Any]:
        """The bounds, the prox and the options with plain values, by name."""
        free = {"seed", "max_queries", "target", "stagnation", "max_failures"}
        values = {name: getattr(self, name, None) for name in option_names(type(self)) - free}
        found: dict[str, Any] = {k: v for k, v in sorted(values.items()) if isinstance(v, bool | int | float | str)}
        if self._history is not None:
            found["history"] = self._history
        if self._opens:
            found["x0"] = "the best of a design"
        box = None if self.domain is None else self.domain.description()
        return found | {"prox": prox_description(self.prox), "bounds": box}

    def description(self) -> dict[str, Any]:
        """The plain values that determine the run, by name, except x0, the objective and the stopping rules."""
        about = {"method": self.method, "version": self.version, "dimension": self.dimension}
        return about | {"dtype": str(self._x.dtype), "seed": self.seed} | self._options()

    @property
    def dimension(self) -> int:
        """The dimension d of the problem."""
        return self._x.numel()

    @property
    def remaining(self) -> int:
        """The budget left, including the queries of pending batches."""
        return self.max_queries - self._record.queries

    @property
    def next_id(self) -> int:
        """The number of the next batch: the count of all told and pending batches."""
        return self.iterations + len(self._out)

    def _to_user(self, z: Tensor) -> Tensor:
        if self.domain is None:
            return z
        return torch.clamp(self.domain.to_user(z), self.domain.lower, self.domain.upper)

    def _to_search(self, x: Tensor) -> Tensor:
        return x if self.domain is None else self.domain.to_search(x)

    def _prox(self, z: Tensor, step: float | Tensor) -> Tensor:
        """prox_{step·ψ}(z), if there is a ψ, then the projection onto the box, if there is one.

        The step may have shape ``d`` for a separable ψ.
        """
        if self.prox is not None:
            z = self.prox(z, step)
        if self.domain is not None:
            z = torch.clamp(z, self.domain.search_lower, self.domain.search_upper)
        return z

    def _descend(self, rule: FirstOrder, gradient: Tensor) -> None:
        """Moves the iterate by a step of the rule and the prox; a step that is not finite is skipped."""
        if not bool(torch.isfinite(gradient).all()):
            return
        z, step_size = rule.step(self._x, gradient)
        if bool(torch.isfinite(z).all()):
            self._x = self._prox(z, step_size)

    def _directions_batch(
        self,
        rows: Sequence[int],
        scales: Tensor | Sequence[float],
        *,
        distribution: str = "normal",
        base: Tensor | None = None,
        metric: Tensor | GroupDiagonal | None = None,
        info: Mapping[str, Any] | None = None,
    ) -> Batch:
        """A batch of the points base + scaleᵢ · H^(−1/2) direction(seed, step, rowᵢ).

        ``rows`` numbers the directions: the same row gives the same direction. ``scales`` has a length for each row.
        The step is ``next_id``; by default the base is the iterate, and H = 1.
        """
        if isinstance(rows, int):
            raise TypeError(f"{type(self).__name__} must ask for directions by a list of rows, got {rows}")
        base = self._x if base is None else base
        lengths = torch.as_tensor(scales, dtype=torch.float64)
        if lengths.shape != (len(rows),):
            raise ValueError(
                f"{type(self).__name__} asks for directions of {len(rows)} rows with scales of shape "
                f"{tuple(lengths.shape)}; pass one scale for each row, shape ({len(rows)},)"
            )
        return Batch(
            id=self.next_id,
            base=base,
            scales=lengths,
            addresses=tuple((self.next_id, int(row)) for row in rows),
            directions=Directions(self.seed, self.dimension, distribution),
            metric=metric,
            domain=self.domain,
            info=info or {},
        )

    def _points_batch(self, points: Tensor, *, info: Mapping[str, Any] | None = None) -> Batch:
        """A batch of explicit points in search coordinates, shape ``q x d``."""
        if not isinstance(points, Tensor):
            raise TypeError(f"{type(self).__name__} must ask for points as a tensor, got {points!r:.80}")
        if points.ndim != 2 or points.shape[1] != self.dimension:
            raise ValueError(
                f"{type(self).__name__} asks for points of shape {tuple(points.shape)}: _ask and _ask_another must "
                f"give q x d, here q x {self.dimension}"
            )
        scales = torch.zeros(points.shape[0], dtype=torch.float64)
        return Batch(self.next_id, self._x, scales, explicit=points, domain=self.domain, info=info or {})

    def _generator(self, stream: int = 0, step: int | None = None) -> np.random.Generator:
        """The NumPy generator of (seed, step, stream); by default the step is ``next_id``."""
        step = self.next_id if step is None else step
        philox = np.random.Philox(key=[self.seed, 2 * stream + 1], counter=[0, 0, 0, step])
        return np.random.Generator(philox)

    def retreat(self) -> None:
        """Moves the iterate to the best point, if there is one; methods call it when f fails at the iterate."""
        if self._record.best_x is not None:
            self._x = self._to_search(self._record.best_x)

    def _composite(self, batch: Batch, values: Tensor, which: Sequence[int] | None = None) -> Tensor:
        """f + ψ at the points of a batch with these indices (None: all); inf outside the box and where ψ is inf."""
        psi = getattr(self.prox, "value", None)
        outside = self.domain is not None and not self.domain.confine
        if psi is None and not outside:
            return values
        total = values.clone()
        finite = torch.isfinite(values).nonzero().flatten().tolist()
        numbers = finite if which is None else [which[k] for k in finite]
        for k, (_, x) in zip(finite, batch.each(numbers), strict=True):
            if outside and not bool(cast(Domain, self.domain).contains(x)):
                total[k] = math.inf
            elif psi is not None:
                total[k] += float(psi(x))
        return total
