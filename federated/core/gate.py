"""The gate: outlier detection by length, before reports are averaged.

The length of a tensor in a report is its Euclidean norm; the length of an iterate ``x`` is ‖x − x_r‖ with the server's
model x_r. A report is excluded if one of its lengths exceeds ``gate`` times the larger of two reference values: the
median of the phase's nonzero lengths, and the median of these medians over the last ``REMEMBERED`` rounds. The second
value keeps a client that still moves while most clients are at their optimum. No report is excluded if fewer than
``MIN_LENGTHS`` lengths are nonzero.

This rule is ours. With the papers' plain mean one client can move the model arbitrarily far; with the gate, by at most
``gate`` reference lengths divided by the number of clients. The means of ``federated.core.aggregation`` also resist
false reports of ordinary length.

Honest clients can differ as much. In attacks on ten networks of which three know the image (``fzoos-fig7``), the
gradients of these three were a hundred times longer than the median, and the default excluded them. Each exclusion is
logged; ``gate=math.inf`` gives the papers' mean.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median

import torch
from torch import Tensor

from federated.core.messages import MessageError

logger = logging.getLogger(__name__)

MIN_LENGTHS = 4
"""Minimal number of nonzero lengths for the gate to apply."""

REMEMBERED = 10
"""Number of past rounds whose medians are stored."""

BLOCK = 1 << 16
"""Number of elements whose norms are computed at once."""

UNMOVED = "as if the functions do not change within the smoothing radius, or queries fail"
"""A likely cause of reported numbers that are exactly 0."""

Lengths = Mapping[str, Mapping[int, float]]
"""Lengths of the reports' tensors, by tensor name and client."""


@dataclass(frozen=True)
class Gate:
    """Statistics of the reports that the server has used.

    Attributes:
        medians: median lengths of the last rounds, the latest last, by ``"phase/name"`` of the tensor.
        zeros: how many reported numbers or vectors were exactly 0 (see ``Server._unmoved``).
        heard: how many numbers or vectors were reported.
    """

    medians: dict[str, list[float]] = field(default_factory=dict)
    zeros: int = 0
    heard: int = 0

    def left_out(self, phase: str, lengths: Lengths, factor: float) -> dict[int, str]:
        """Returns the clients whose reports are excluded, with reasons; ``factor`` is the option ``gate``."""
        found: dict[int, str] = {}
        for name, usual in _medians(lengths).items():
            limit = factor * max(usual, median(self.medians.get(f"{phase}/{name}", [0.0])))
            reason = f"left out: the length of {name} is {{:.3g}}, the gate's limit is {limit:.3g}"
            found |= {client: reason.format(length) for client, length in lengths[name].items() if length > limit}
        return found

    def after(self, phase: str, lengths: Lengths) -> Gate:
        """Returns the statistics after reports of these lengths were used."""
        new = {f"{phase}/{name}": usual for name, usual in _medians(lengths).items()}
        last = {name: [*self.medians.get(name, []), usual][-REMEMBERED:] for name, usual in new.items()}
        return replace(self, medians=self.medians | last)

    def counting(self, round_number: int, zeros: int, heard: int) -> Gate:
        """Returns the statistics with a round's counts added; warns in round 2^k if most numbers are exactly 0."""
        if 2 * zeros > heard and round_number & (round_number - 1) == 0:
            logger.warning("round %d: %d of %d reported numbers are exactly 0, %s", round_number, zeros, heard, UNMOVED)
        return replace(self, zeros=self.zeros + zeros, heard=self.heard + heard)

    def check(self) -> None:
        """Raises ``MessageError`` if the statistics cannot be those of a run."""
        values = [value for medians in self.medians.values() for value in medians]
        if not all(type(value) is float and value > 0.0 for value in values):
            raise MessageError(f"the gate's medians are {values!r:.80}, expected positive numbers")
        if not 0 <= self.zeros <= self.heard:
            raise MessageError(f"the gate's count of zeros is {self.zeros}, expected at most its {self.heard} numbers")


def _medians(lengths: Lengths) -> dict[str, float]:
    """The median of the nonzero lengths of each tensor that has ``MIN_LENGTHS`` or more."""
    nonzero = {name: [length for length in given.values() if length > 0.0] for name, given in lengths.items()}
    return {name: median(found) for name, found in nonzero.items() if len(found) >= MIN_LENGTHS}


def lengths_of(vectors: Sequence[Tensor], about: Tensor | None = None) -> list[float]:
    """Returns ‖vᵢ − about‖ for tensors of one shape in float64, infinity on overflow; None is the point 0."""
    found: list[float] = []
    step = max(1, BLOCK // max(1, vectors[0].numel())) if vectors else 1
    for i in range(0, len(vectors), step):
        block = torch.stack(list(vectors[i : i + step]))
        block = block.flatten(1) if about is None else block.sub_(about).flatten(1)
        found += torch.linalg.vector_norm(block, dim=1, dtype=torch.float64).tolist()
    return found


def longest(lengths: Lengths) -> str:
    """Returns a clause that names the client with the longest report; empty without lengths."""
    found = [(length, client, name) for name, given in lengths.items() for client, length in given.items()]
    if not found:
        return ""
    length, client, name = max(found)
    return f"; the longest report is from client {client}: the length of its {name} is {length:.3g}"
