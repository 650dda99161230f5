"""The two surrogates of a FZooS client: a derived GP on the nearest queries, Fourier features on all of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from surrogates import FourierFeatures, FourierSurrogate, Trajectory
from surrogates.window.window_surrogate import Hyperparameters, KernelMaker, WindowSurrogate

LEAST_DATA = 2
"""Values that a gradient needs."""


class ClientSurrogates:
    """One trajectory, and what is conditioned on it.

    ``local`` is the derived GP of the queries nearest to a point, ∇μ of FZooS's eq. 5. ``weights`` are those of a
    ``FourierSurrogate`` with an estimated mean, in f's units: of the whole trajectory, to which new queries are
    appended in O(n² + nM) each, or of the nearest ``feature_window`` queries, fitted anew.

    Memory: n·M numbers of features and n² of their factor, until n exceeds M, then 2M².

    Which rows were appended together is part of the state, as it is what the last bits of the weights depend on.

    Args:
        like: a point, shape ``d``: dtype and device.
        features: shared by all clients.
        window: most queries of the local GP.
        lengthscale: ℓ of the local GP.
        nugget: noise variance over the outputscale, of the local GP.
        feature_nugget: the same, of the Fourier surrogate.
        kernel: maker of the local GP's kernel.
        feature_window: queries of the Fourier surrogate; None: all.
    """

    def __init__(
        self,
        like: Tensor,
        features: FourierFeatures,
        *,
        window: int,
        lengthscale: float,
        nugget: float,
        feature_nugget: float,
        kernel: KernelMaker,
        feature_window: int | None = None,
    ) -> None:
        hyperparameters = Hyperparameters(lengthscale, 1.0, nugget)
        self.local = WindowSurrogate(like, window, hyperparameters, kernel=kernel)
        self.features, self.feature_nugget, self.feature_window = features, feature_nugget, feature_window
        self._blocks: list[int] = []
        self._fourier: FourierSurrogate | None = None

    @property
    def trajectory(self) -> Trajectory:
        """The queries that succeeded."""
        return self.local.trajectory

    def append(self, points: Tensor, values: Tensor) -> None:
        """Take queries, ``m x d`` and ``m``; failed ones are kept apart."""
        self.local.append(points, values)

    def gradient(self, x: Tensor) -> Tensor:
        """∇μ(x) in f's units, shape ``d``."""
        self.local.begin(x)
        return self.local.gradient_posterior(x).mean[0] * self.local.scale

    def most_uncertain(self, x: Tensor, candidates: Tensor, count: int) -> Tensor:
        """The candidates whose gradients have the greatest posterior traces, ``count x d``; the first of equals.

        Args:
            x: where the window of queries is taken, shape ``d``.
            candidates: ``m x d``.
            count: how many.
        """
        if len(self.trajectory) == 0 or count >= len(candidates):
            return candidates[:count]
        conditioning = self.local.conditioning_at(x)
        traces = conditioning.trace(candidates, conditioning.observe(candidates))
        chosen = traces.sort(descending=True, stable=True).indices[:count]
        return candidates[chosen]

    def uncertainty(self, x: Tensor) -> float:
        """t = trace ∂σ²(x) · (y − m)ᵀA⁻¹(y − m)/n in f's squared units, with the outputscale that y suggests."""
        self.local.begin(x)
        conditioning = self.local.conditioning
        trace = float(conditioning.trace(x[None], conditioning.observe(x[None])))
        y = self.local.window.y
        # 1ᵀα = 0, so that any shift of y serves.
        return trace * float((y - y.mean()) @ conditioning.alpha) / len(y) * self.local.scale

    def fitted_weights(self, x: Tensor) -> Tensor:
        """w of the Fourier surrogate after all queries so far, shape ``M``.

        Args:
            x: where nearest queries are taken, with ``feature_window``; shape ``d``.

        Raises:
            ValueError: without a query that succeeded.
        """
        trajectory = self.trajectory
        if self.feature_window is not None:
            rows = trajectory.nearest(x, self.feature_window).sort().values
            return self._new().fit(trajectory.X[rows], self._values()[rows]).weights
        if self._fourier is None:
            self._fourier = self._replayed()
        done = self._fourier.num_data
        if done < len(trajectory):
            self._fourier.append(trajectory.X[done:], self._values()[done:])
            self._blocks.append(len(trajectory) - done)
        return self._fourier.weights

    def state_dict(self) -> dict[str, Any]:
        """Queries, window and the sizes of the blocks that the Fourier surrogate took."""
        return {"local": self.local.state_dict(), "blocks": list(self._blocks)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Become what ``state_dict`` described; the Fourier surrogate is made again when it is next asked."""
        self.local.load_state_dict(state["local"])
        self._blocks, self._fourier = [int(m) for m in state["blocks"]], None

    def __deepcopy__(self, memo: dict[int, Any]) -> ClientSurrogates:
        h = self.local.hyperparameters
        copied = ClientSurrogates(
            torch.empty(self.trajectory.d, dtype=self.trajectory.dtype, device=self.trajectory.device),
            self.features,
            window=self.local.size,
            lengthscale=h.lengthscale,
            nugget=h.noise_ratio,
            feature_nugget=self.feature_nugget,
            kernel=self.local.kernel,
            feature_window=self.feature_window,
        )
        copied.load_state_dict(self.state_dict())
        return copied

    def _new(self) -> FourierSurrogate:
        return FourierSurrogate(self.features, self.feature_nugget, "estimated")

    def _values(self) -> Tensor:
        """The values in the points' dtype, from the first of them: their mean is estimated anyway."""
        y = self.trajectory.y
        return (y - y[:1]).to(self.trajectory.dtype)

    def _replayed(self) -> FourierSurrogate:
        fourier, start, trajectory, values = self._new(), 0, self.trajectory, self._values()
        for size in self._blocks:
            fourier.append(trajectory.X[start : start + size], values[start : start + size])
            start += size
        return fourier
