"""Two problems on a photograph of scikit-learn, flower.jpg: registration, and a palette of eight colours.

*Registration* (d = 6): a small grey part of the photograph was turned, stretched, shifted and made brighter; f is the
root mean square difference of grey values in [0, 1] between it and the part that u describes. The seed draws what was
done. f is smooth near its minimum and has others, where edges match by chance.

*Palette* (d = 24): f is the mean distance of the colours of 2,000 pixels from the nearest of eight, for colours in
[0, 1]³. It has kinks where a pixel changes its colour, and many minima. The seed draws the part and the pixels.

A query takes a few tenths of a millisecond. f is deterministic. Photograph: Vultilion, CC BY 2.0.
"""

from __future__ import annotations

import dataclasses
from functools import cache, cached_property, partial

import numpy as np
from scipy.ndimage import map_coordinates
from sklearn.datasets import load_sample_image

from experiments.workloads.black_boxes.black_box import PROBLEM, BlackBox, central, cube
from experiments.workloads.black_boxes.variables import Variable, named

SIDE, STEP = 40, 4
"""Pixels per side of the registered part, and their distance in the photograph."""

COLORS, PIXELS = 8, 2000

MOVES = (
    Variable("angle", -0.6, 0.6),
    Variable("stretch_across", 0.6, 1.6, log=True),
    Variable("stretch_down", 0.6, 1.6, log=True),
    Variable("across", -60.0, 60.0),
    Variable("down", -60.0, 60.0),
    Variable("brightness", 0.5, 2.0, log=True),
)
"""Angle in radians, shifts in pixels of the photograph."""


@cache
def photograph() -> np.ndarray:
    """Returns the colours in [0, 1], 427 x 640 x 3."""
    return load_sample_image("flower.jpg") / 255.0


@dataclasses.dataclass(frozen=True)
class Registration:
    """f(u) = root mean square of part(u) − target.

    Attributes:
        grey: the photograph, ``h x w``.
        truth: the point at which the target was taken, shape 6.
    """

    grey: np.ndarray
    truth: np.ndarray

    @cached_property
    def target(self) -> np.ndarray:
        """The part at the truth."""
        return self.part(self.truth)

    def part(self, u: np.ndarray) -> np.ndarray:
        """Returns the grey values at u, ``side x side``, interpolated linearly; the photograph is mirrored outside."""
        move = named(MOVES, u)
        across, down = STEP * np.stack(np.meshgrid(*[np.arange(SIDE) - (SIDE - 1) / 2] * 2))
        across, down = move["stretch_across"] * across, move["stretch_down"] * down
        cos, sin = np.cos(move["angle"]), np.sin(move["angle"])
        rows = self.grey.shape[0] / 2 + sin * across + cos * down + move["down"]
        columns = self.grey.shape[1] / 2 + cos * across - sin * down + move["across"]
        found: np.ndarray = move["brightness"] * map_coordinates(self.grey, [rows, columns], order=1, mode="mirror")
        return found

    def __call__(self, u: np.ndarray) -> float:
        """Returns f at u, shape 6."""
        return float(np.sqrt(np.mean((self.part(u) - self.target) ** 2)))


def registration(seed: int) -> Registration:
    """Draws what was done to the part from the middle three fifths of the box."""
    return Registration(photograph().mean(2), np.random.default_rng([seed, PROBLEM]).uniform(0.2, 0.8, len(MOVES)))


@dataclasses.dataclass(frozen=True)
class Palette:
    """f(u) = mean distance of pixels from the nearest of eight colours.

    Attributes:
        pixels: their colours, ``n x 3``.
    """

    pixels: np.ndarray

    def __call__(self, u: np.ndarray) -> float:
        """Returns f at u, eight colours after each other, shape 24."""
        apart = self.pixels[:, None] - u.reshape(COLORS, 3)
        return float(np.sqrt(np.square(apart).sum(2).min(1)).mean())


def palette(seed: int) -> Palette:
    """Draws pixels from a part of half the photograph's width and height."""
    random, colors = np.random.default_rng([seed, PROBLEM]), photograph()
    rows, columns = (random.integers(size // 2) + random.integers(size // 2, size=PIXELS) for size in colors.shape[:2])
    return Palette(colors[rows, columns])


_MOVES, _COLORS = cube(len(MOVES), 0.5, 0.5), cube(3 * COLORS, 0.5, 0.5)

PROBLEMS = (
    BlackBox("registration", *_MOVES, partial(central, *_MOVES), registration, budget=120),
    BlackBox("palette", *_COLORS, partial(central, *_COLORS), palette, budget=480),
)
