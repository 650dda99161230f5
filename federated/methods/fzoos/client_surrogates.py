"""The two surrogates of a FZooS client: a derived GP on the nearest queries, Fourier features on all of them."""

from __future__ import annotations

import copy
import weakref
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any

from torch import Tensor

from optimizers.core.options import positive
from surrogates import FourierFeatures, FourierSurrogate
from surrogates.threads import small_algebra
from surrogates.window.local_options import LocalSurrogateOptions
from surrogates.window.window_surrogate import LEAST_FACTORED

KEPT_BYTES = 2 << 30
"""Bytes of Fourier surrogates that the clients of a process keep from one round to the next, together."""

_kept: weakref.WeakKeyDictionary[ClientSurrogates, int] = weakref.WeakKeyDictionary()
"""Bytes of those that are kept, in the order in which they were last asked."""


def keep(asked: ClientSurrogates, size: int) -> None:
    """Keeps the Fourier surrogate that was asked, and drops others as long as all are more than ``KEPT_BYTES``.

    Those of other federations, which may have ended, go first. Clients of one come in turn: who was asked last will be
    asked again after all others, and is dropped first. One that is larger than all that may be kept is dropped itself.
    """
    _kept.pop(asked, None)
    if size <= KEPT_BYTES:
        own = [other for other in _kept if other.features is asked.features]
        for other in [other for other in _kept if other.features is not asked.features] + own[::-1]:
            if sum(_kept.values()) + size <= KEPT_BYTES:
                break
            other.forget()
        _kept[asked] = size
    else:
        asked.forget()


SUMMED = 10.0
"""How much larger the least nugget of n > M queries is: more of a sum of n outer products is lost in rounding."""

WIDEST = 500
"""The most queries of a window that settling widens."""


class ClientSurrogates:
    """A client's queries and the two surrogates that are conditioned on them.

    The derived GP of the queries nearest to a point gives ∇μᵢ (FZooS, eq. 8, which has all queries), and a
    ``FourierSurrogate`` with an estimated mean gives wᵢ (eq. 3): of all queries, where new ones are appended in
    O(n² + nM) each, or of the nearest ``feature_window``, where it is fitted anew. Both are in f's units.

    The Fourier surrogate holds n·M numbers of features and n² of their factor until n exceeds M, then 2M²: 80 KB a
    query for M = 10,000. All clients of a process keep ``KEPT_BYTES`` of them together, and make again what was
    dropped. They are no part of the state, which has the sizes of the blocks that were appended together instead: the
    last bits of wᵢ depend on these, and so a surrogate is made again as it was.

    Args:
        like: a point, shape ``d``, whose dtype and device the queries have.
        features: φ, shared by all clients.
        options: of the derived GP; its lengthscale is given.
        feature_nugget: noise variance of a value over the outputscale, of the Fourier surrogate.
        feature_window: how many queries the Fourier surrogate holds; None: all.

    Attributes:
        local: the derived GP, with the queries that succeeded in ``local.trajectory``.
    """

    def __init__(
        self,
        like: Tensor,
        features: FourierFeatures,
        options: LocalSurrogateOptions,
        feature_nugget: float,
        feature_window: int | None = None,
    ) -> None:
        self.local = options.surrogate(like)
        self.features, self.feature_nugget, self.feature_window = features, feature_nugget, feature_window
        self.nugget, self._size = options.nugget, options.window
        self._blocks: list[int] = []
        self._fourier: FourierSurrogate | None = None

    def settle(self, x: Tensor, wider: bool) -> bool:
        """Suits the surrogates to the queries nearest to x, shape ``d``; whether their values show noise.

        Both have the nugget that ``WindowSurrogate.fit_noise`` finds, the Fourier surrogate what its window is factored
        with at least. A wider window has 3d/2 of the queries, at most ``WIDEST``, and so has the Fourier surrogate's
        where it is that of ``options``.
        """
        if not len(self.local):
            return False
        if wider:
            self._widen()
        with self.small():
            self.local.begin(x)
            noisy = self.local.fit_noise(self.nugget)
        rows = self.feature_window or len(self.local)
        least = LEAST_FACTORED * rows * (SUMMED if rows > self.features.num_features else 1.0)
        self.feature_nugget = max(self.local.hyperparameters.noise_ratio, least)
        return noisy

    def gradient(self, x: Tensor) -> Tensor:
        """∇μᵢ(x) of eq. 8, shape ``d``."""
        with self.small():
            self.local.begin(x)
            return self.local.gradient_posterior(x).mean[0] * self.local.scale

    def most_uncertain(self, x: Tensor, candidates: Tensor, count: int) -> Tensor:
        """The candidates whose gradients have the greatest posterior traces, ``count x d``; the first of equals.

        Appx. G has the norm ‖∂σ²‖ in the trace's place. Under an isotropic kernel with fewer
        queries than dimensions that is the prior's at every candidate, and ranks none before another.

        Args:
            x: where the nearest queries are taken, shape ``d``.
            candidates: ``m x d``.
            count: how many.
        """
        if count >= len(candidates):
            return candidates
        with self.small(len(candidates)):
            traces = self.local.conditioning_at(x).trace(candidates)
        return candidates[traces.sort(descending=True, stable=True).indices[:count]]

    def fitted_weights(self, x: Tensor) -> Tensor:
        """wᵢ of eq. 3 after all queries so far, shape ``M``.

        Args:
            x: where nearest queries are taken, with ``feature_window``; shape ``d``.

        Raises:
            ValueError: without a query that succeeded.
        """
        trajectory = self.local.trajectory
        # Values are taken from the first of them before they lose digits to the points' dtype: m is estimated anyway.
        X, y = trajectory.X, (trajectory.y - trajectory.y[:1]).to(trajectory.dtype)
        if self.feature_window is not None:
            rows = trajectory.nearest(x, self.feature_window).sort().values
            with self._small_fit(len(rows)):
                return self._new().fit(X[rows], y[rows]).weights
        fourier = self._new() if self._fourier is None else self._fourier
        fresh, start = len(trajectory) - sum(self._blocks), 0
        if fresh:
            self._blocks.append(fresh)
        with self._small_fit(len(trajectory) - fourier.num_data):
            for size in self._blocks:
                if start >= fourier.num_data:
                    fourier.append(X[start : start + size], y[start : start + size])
                start += size
        self._fourier = fourier
        keep(self, fourier.nbytes)
        return fourier.weights

    def small(self, columns: int = 1) -> AbstractContextManager[None]:
        """One thread, where the derived GP's matrices and their products with so many columns are small."""
        n, d = min(self.local.size, len(self.local)), self.features.d
        return small_algebra(max(n * n * max(n, columns), n * d * columns, d * self.features.num_features))

    def _small_fit(self, n: int) -> AbstractContextManager[None]:
        """One thread, where the algebra of n queries that the Fourier surrogate takes is small."""
        M = self.features.num_features
        return small_algebra(M * max(n, M) * max(M, self.features.d))

    def forget(self) -> None:
        """Drops the Fourier surrogate, which is made again when it is next asked."""
        self._fourier = None
        _kept.pop(self, None)

    def mark(self) -> tuple[Any, ...]:
        """A mark at which ``roll_back`` restores the surrogates; it copies no query."""
        return self.local.mark(), list(self._blocks), self.feature_nugget, self.feature_window

    def roll_back(self, mark: tuple[Any, ...]) -> None:
        """Becomes what it was at the mark; the Fourier surrogate is made again when it is next asked."""
        local, blocks, self.feature_nugget, self.feature_window = mark
        self.local.roll_back(local)
        self._blocks = list(blocks)
        self.forget()

    def state_dict(self) -> dict[str, Any]:
        """Queries, window, the sizes of the blocks that the Fourier surrogate took, and what has settled."""
        return {
            "local": self.local.state_dict(),
            "blocks": list(self._blocks),
            "feature_nugget": self.feature_nugget,
            "wider": self.local.size > self._size,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Become what ``state_dict`` described; the Fourier surrogate is made again when it is next asked.

        Raises:
            ValueError: for blocks that are more than the queries.
        """
        nugget = positive("feature_nugget", state["feature_nugget"])
        if state["wider"]:
            self._widen()
        self.local.load_state_dict(state["local"])
        blocks = [int(m) for m in state["blocks"]]
        if any(m < 1 for m in blocks) or sum(blocks) > len(self.local.trajectory):
            raise ValueError(f"blocks are {blocks!r:.80} of {len(self.local.trajectory)} queries")
        self._blocks, self.feature_nugget = blocks, nugget
        self.forget()

    def __deepcopy__(self, memo: dict[int, Any]) -> ClientSurrogates:
        """A copy that shares the features, which never change, and makes its Fourier surrogate again."""
        copied = copy.copy(self)
        copied.local = copy.deepcopy(self.local, memo)
        copied._blocks, copied._fourier = list(self._blocks), None
        return copied

    def _widen(self) -> None:
        size = min(WIDEST, 3 * self.features.d // 2)
        if self.local.size < size:
            self.local.widen(size)
            if self.feature_window == self._size:
                self.feature_window = size

    def _new(self) -> FourierSurrogate:
        return FourierSurrogate(self.features, self.feature_nugget, "estimated")
