"""The search for the hyper-parameters of a pinned Gaussian process, by its marginal likelihood."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from surrogates.pinned.posterior import PinnedData
from surrogates.pinned.prior import Shape

FACTOR = 10.0
"""The first factor between neighbours of a search."""


@dataclass(frozen=True)
class ShapeSearch:
    """A pattern search for a and s²: a few likelihoods, to a factor of 10^(1/8) at best.

    Attributes:
        amplitudes: the limits of a. Beyond them differences of m cancel to nothing.
        noises: the limits of s² where it is not 0.
        evidence: noise is taken to be there where −2 log marginal likelihood falls by more than this.
        first: the most likelihoods of a search without a start.
        later: the most likelihoods of a search from a start.
    """

    amplitudes: tuple[float, float] = (1e-6, 1e4)
    noises: tuple[float, float] = (1e-8, 1e4)
    evidence: float = 3.0
    first: int = 28
    later: int = 8

    def fitted(self, data: PinnedData, start: Shape | None, noisy: bool | None = False) -> Shape:
        """The most likely shape that a pattern search finds.

        The search compares a, and s² where there is noise, with neighbours a factor of ten away, moves to the best one,
        and takes the root of the factor where none is better, at most three times.

        Args:
            data: the data.
            start: the shape to begin with; None: a = 1, with a longer search.
            noisy: whether values have noise; None: ``evidence`` decides.
        """
        left, stride = (self.first, 1.0) if start is None else (self.later, 0.5)
        start = start or Shape()
        if noisy is False or (noisy is None and start.noise == 0.0):
            still = self._searched(data, replace(start, noise=0.0), left, stride)
            if noisy is None:
                loud = self._searched(data, replace(still[1], noise=1.0), left, 1.0)
                return loud[1] if loud[0] < still[0] - self.evidence else still[1]
            return still[1]
        if start.noise == 0.0:
            # The largest value is 1, and its prior variance about w in units of k.
            guess = data.prior.linear * data.variance if data.variance else 1.0
            start = replace(start, noise=min(max(guess, self.noises[0]), self.noises[1]))
        return self._searched(data, start, left + left // 2, stride)[1]

    def excess(self, data: PinnedData, shape: Shape) -> float:
        """The rise of −2 log marginal likelihood if a shape's noise is taken away and a is fitted again.

        The search begins at the shape's own a, as for a later fit, and at 1, as for a first one.
        """
        still = (
            self._searched(data, replace(shape, noise=0.0), self.later, 0.5)[0],
            self._searched(data, Shape(), self.first, 1.0)[0],
        )
        return min(still) - data.loss(shape)

    def _searched(self, data: PinnedData, start: Shape, left: int, stride: float) -> tuple[float, Shape]:
        """The least loss, and its shape, of the pattern search with ``left`` likelihoods; a noise of 0 stays 0."""
        limits = [self.amplitudes, self.noises] if start.noise else [self.amplitudes]
        bounds = [(math.log(low), math.log(high)) for low, high in limits]
        numbers = (start.amplitude, start.noise)
        here = [min(max(math.log(x), low), high) for x, (low, high) in zip(numbers, bounds, strict=False)]

        def shape(logarithms: list[float]) -> Shape:
            return Shape(*map(math.exp, logarithms))

        best = data.loss(shape(here))
        while left > 0 and stride > 0.1:
            trials = []
            for i, (low, high) in enumerate(bounds):
                for sign in (1.0, -1.0):
                    moved = list(here)
                    moved[i] = min(max(here[i] + sign * stride * math.log(FACTOR), low), high)
                    if moved != here and left > 0:
                        left -= 1
                        trials.append((data.loss(shape(moved)), moved))
            value, moved = min(trials, default=(math.inf, here))
            if value < best:
                best, here = value, moved
            else:
                stride *= 0.5
        return best, shape(here)
