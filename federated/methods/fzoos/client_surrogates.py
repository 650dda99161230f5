"""The two surrogates of a FZooS client: a derived GP on the nearest queries, and Fourier features."""

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

CACHE_BYTES = 2 << 30
"""Total size limit, in bytes, of the Fourier surrogates that a process caches between rounds."""

_cached: weakref.WeakKeyDictionary[ClientSurrogates, int] = weakref.WeakKeyDictionary()
"""Sizes of cached Fourier surrogates in bytes, in order of last use."""


def cache(asked: ClientSurrogates, size: int) -> None:
    """Caches the Fourier surrogate just used, and evicts others while their total exceeds ``CACHE_BYTES``.

    Surrogates of other federations, which may have ended, are evicted first. Within a federation clients take turns:
    the most recently used surrogate is needed last and is evicted first. A surrogate above the limit is not cached.
    """
    _cached.pop(asked, None)
    if size > CACHE_BYTES:
        asked.forget()
        return
    own = [other for other in _cached if other.features is asked.features]
    for other in [other for other in _cached if other.features is not asked.features] + own[::-1]:
        if sum(_cached.values()) + size > CACHE_BYTES:
            other.forget()
    _cached[asked] = size


SUM_FACTOR = 10.0
"""Factor of the minimal nugget for n > M queries: a sum of n outer products loses more digits to rounding."""

MAX_WINDOW = 500
"""Maximal number of queries in a window widened by settling."""


class ClientSurrogates:
    """A client's queries and the two surrogates conditioned on them.

    The derived GP of the queries nearest to a point gives ∇μᵢ (FZooS, eq. 8, which uses all queries). A
    ``FourierSurrogate`` with an estimated mean gives wᵢ (eq. 3). This surrogate contains all queries, each added in
    O(n² + nM), or the ``feature_window`` nearest ones, refitted each time. Both surrogates are in f's units.

    The Fourier surrogate stores n·M numbers of features and n² of their factor while n ≤ M, then 2M²: 80 KB per query
    for M = 10,000. A process caches ``CACHE_BYTES`` of these surrogates, and rebuilds evicted ones. A state does not
    contain the surrogate, but the sizes of the blocks of queries appended, on which the last bits of wᵢ depend.

    Args:
        like: a point, shape ``d``, with the queries' dtype and device.
        features: φ, shared by all clients.
        options: options of the derived GP, with a fixed lengthscale.
        feature_nugget: noise variance relative to the outputscale, of the Fourier surrogate.
        feature_window: number of queries in the Fourier surrogate; None means all.

    Attributes:
        local: the derived GP, with the successful queries in ``local.trajectory``.
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
        """Adapts the surrogates to the queries nearest to x, shape ``d``; returns whether their values are noisy.

        ``WindowSurrogate.fit_noise`` determines the noise ratio of both surrogates; the Fourier surrogate raises this
        ratio if its factorization would otherwise lose pivots. With ``wider`` the window grows to 3d/2 queries, at most
        ``MAX_WINDOW``, and the Fourier surrogate's window grows with it unless its size was set separately.
        """
        if not len(self.local):
            return False
        if wider:
            self._widen()
        with self.small():
            self.local.begin(x)
            noisy = self.local.fit_noise(self.nugget)
        rows = self.feature_window or len(self.local)
        least = LEAST_FACTORED * rows * (SUM_FACTOR if rows > self.features.num_features else 1.0)
        self.feature_nugget = max(self.local.hyperparameters.noise_ratio, least)
        return noisy

    def gradient(self, x: Tensor) -> Tensor:
        """Returns ∇μᵢ(x) of eq. 8, shape ``d``."""
        with self.small():
            self.local.begin(x)
            return self.local.gradient_posterior(x).mean[0] * self.local.scale

    def most_uncertain(self, x: Tensor, candidates: Tensor, count: int) -> Tensor:
        """Returns the ``count`` candidates, of ``m x d``, with the largest trace of the gradient's covariance.

        The GP uses the queries nearest to x. Appx. G has the norm ‖∂σ²‖ instead of the trace; for an isotropic kernel
        and fewer queries than dimensions the norm equals the prior's at every candidate and cannot rank them.
        """
        if count >= len(candidates):
            return candidates
        with self.small(len(candidates)):
            traces = self.local.conditioning_at(x).trace(candidates)
        return candidates[traces.sort(descending=True, stable=True).indices[:count]]

    def fitted_weights(self, x: Tensor) -> Tensor:
        """Returns wᵢ of eq. 3, shape ``M``, for all queries or the ``feature_window`` queries nearest to x.

        Raises:
            ValueError: if no query has succeeded.
        """
        trajectory = self.local.trajectory
        # Subtracting the first value before the cast keeps digits; the mean m is estimated anyway.
        X, y = trajectory.X, (trajectory.y - trajectory.y[:1]).to(trajectory.dtype)
        if self.feature_window is not None:
            rows = trajectory.nearest(x, self.feature_window).sort().values
            with self._small_fit(len(rows)):
                return self._new().fit(X[rows], y[rows]).weights
        fourier = self._new() if self._fourier is None else self._fourier
        fresh, start = len(trajectory) - sum(self._blocks), 0
        if fresh:
            self._blocks.append(fresh)
        with self._small_fit(len(trajectory) - fourier.num_observations):
            for size in self._blocks:
                if start >= fourier.num_observations:
                    fourier.append(X[start : start + size], y[start : start + size])
                start += size
        self._fourier = fourier
        cache(self, fourier.nbytes)
        return fourier.weights

    def small(self, columns: int = 1) -> AbstractContextManager[None]:
        """Uses one thread if the derived GP's matrices and their products with ``columns`` columns are small."""
        n, d = min(self.local.size, len(self.local)), self.features.d
        return small_algebra(max(n * n * max(n, columns), n * d * columns, d * self.features.num_features))

    def _small_fit(self, n: int) -> AbstractContextManager[None]:
        """Uses one thread if adding n queries to the Fourier surrogate is a small computation."""
        M = self.features.num_features
        return small_algebra(M * max(n, M) * max(M, self.features.d))

    def forget(self) -> None:
        """Drops the Fourier surrogate, which is rebuilt when needed."""
        self._fourier = None
        _cached.pop(self, None)

    def mark(self) -> tuple[Any, ...]:
        """Returns a mark for ``roll_back``, without copying queries."""
        return self.local.mark(), list(self._blocks), self.feature_nugget, self.feature_window

    def roll_back(self, mark: tuple[Any, ...]) -> None:
        """Restores the surrogates at the mark; the Fourier surrogate is rebuilt when needed."""
        local, blocks, self.feature_nugget, self.feature_window = mark
        self.local.roll_back(local)
        self._blocks = list(blocks)
        self.forget()

    def state_dict(self) -> dict[str, Any]:
        """Returns the queries, the window, the Fourier surrogate's block sizes and the settled nugget."""
        settled = {"feature_nugget": self.feature_nugget, "wider": self.local.size > self._size}
        return {"local": self.local.state_dict(), "blocks": list(self._blocks)} | settled

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores a ``state_dict``; the Fourier surrogate is rebuilt when needed.

        Raises:
            ValueError: if the blocks contain more queries than there are.
        """
        nugget = positive("feature_nugget", state["feature_nugget"])
        if state["wider"]:
            self._widen()
        self.local.load_state_dict(state["local"])
        blocks = [int(m) for m in state["blocks"]]
        if any(m < 1 for m in blocks) or sum(blocks) > len(self.local.trajectory):
            raise ValueError(f"blocks {blocks!r:.80} do not fit the {len(self.local.trajectory)} queries")
        self._blocks, self.feature_nugget = blocks, nugget
        self.forget()

    def __deepcopy__(self, memo: dict[int, Any]) -> ClientSurrogates:
        """Returns a copy that shares the immutable features and rebuilds its Fourier surrogate."""
        copied = copy.copy(self)
        copied.local = copy.deepcopy(self.local, memo)
        copied._blocks, copied._fourier = list(self._blocks), None
        return copied

    def _widen(self) -> None:
        size = min(MAX_WINDOW, 3 * self.features.d // 2)
        if self.local.size < size:
            self.local.widen(size)
            if self.feature_window == self._size:
                self.feature_window = size

    def _new(self) -> FourierSurrogate:
        return FourierSurrogate(self.features, self.feature_nugget, "estimated")
