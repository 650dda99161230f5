"""The gate before every mean: reports that are far longer than all others are left out of the round.

The length of a tensor in a report is its Euclidean norm; for the tensor ``x``, an iterate, that of x − x_r, x_r being
the server's model. A report is left out where one of its lengths is over ``gate`` times the larger of two numbers: the
median of the phase's lengths that are not 0, and the median of such medians over the last ``REMEMBERED`` rounds in
which the phase's reports were used. So a round in which most clients are at their optimum does not silence one that is
not. With fewer than ``FEWEST`` lengths that are not 0 nothing can be said of the others, and none is left out.

The rule is ours. The papers take the plain mean, in which one client can move the model anywhere; a report that passes
moves it by 100 median lengths at most, over the number of clients. ``federated.core.aggregation`` has the means that
also resist reports of ordinary length.
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

FEWEST = 4
"""Lengths that are not 0 without which there is no gate."""

REMEMBERED = 10
"""Rounds whose medians are remembered."""

BLOCK = 1 << 16
"""Numbers of vectors whose lengths are computed at once."""

UNMOVED = "as where the functions do not change within the smoothing radius, or queries fail"
"""Why numbers are exactly 0."""

Lengths = Mapping[str, Mapping[int, float]]
"""By a tensor's name and the client, the lengths of the reports' tensors."""


@dataclass(frozen=True)
class Gate:
    """What the server remembers of the reports that it has used.

    Attributes:
        medians: by phase and tensor, ``"phase/name"``, the median lengths of the last rounds, the latest last.
        zeros: how many of the reported numbers or vectors were exactly 0; ``Server._unmoved`` says which count.
        heard: how many there were.
    """

    medians: dict[str, list[float]] = field(default_factory=dict)
    zeros: int = 0
    heard: int = 0

    def left_out(self, phase: str, lengths: Lengths, factor: float) -> dict[int, str]:
        """The clients whose reports are left out, with the reasons; ``factor`` is the option ``gate``."""
        found: dict[int, str] = {}
        for name, given in lengths.items():
            usual = [length for length in given.values() if length > 0.0]
            if len(usual) >= FEWEST:
                limit = factor * max(median(usual), median(self.medians.get(f"{phase}/{name}", [0.0])))
                reason = f"left out: {name} has length {{:.3g}}, accepted is up to {limit:.3g}"
                found |= {client: reason.format(length) for client, length in given.items() if length > limit}
        return found

    def after(self, phase: str, lengths: Lengths) -> Gate:
        """What is remembered once the reports of these lengths were used."""
        medians = dict(self.medians)
        for name, given in lengths.items():
            usual = [length for length in given.values() if length > 0.0]
            if len(usual) >= FEWEST:
                medians[f"{phase}/{name}"] = [*medians.get(f"{phase}/{name}", []), median(usual)][-REMEMBERED:]
        return replace(self, medians=medians)

    def counting(self, round_number: int, zeros: int, heard: int) -> Gate:
        """The counts with those of a round; a round in which most numbers are 0 is said, at 1, 2, 4, 8, … rounds."""
        if 2 * zeros > heard and round_number & (round_number - 1) == 0:
            logger.warning("round %d: %d of %d reported numbers are exactly 0, %s", round_number, zeros, heard, UNMOVED)
        return replace(self, zeros=self.zeros + zeros, heard=self.heard + heard)

    def check(self) -> None:
        """Raises ``MessageError`` unless a gate that was loaded is one that a run can have."""
        values = [value for medians in self.medians.values() for value in medians]
        if not all(type(value) is float and value > 0.0 for value in values):
            raise MessageError(f"the gate's medians are {values!r:.80}, accepted are positive numbers")
        if not 0 <= self.zeros <= self.heard:
            raise MessageError(f"the gate has counted {self.zeros} zeros of {self.heard} numbers")


def lengths_of(vectors: Sequence[Tensor], about: Tensor | None = None) -> list[float]:
    """‖vᵢ − about‖ of tensors, in float64; infinity where it exceeds the largest number.

    Args:
        vectors: tensors of one shape.
        about: a tensor of that shape; None stands for 0.
    """
    found: list[float] = []
    step = max(1, BLOCK // max(1, vectors[0].numel())) if vectors else 1
    for i in range(0, len(vectors), step):
        block = torch.stack(list(vectors[i : i + step]))
        block = block.flatten(1) if about is None else block.sub_(about).flatten(1)
        found += torch.linalg.vector_norm(block, dim=1, dtype=torch.float64).tolist()
    return found


def longest(lengths: Lengths) -> str:
    """A clause that names the client with the longest report; nothing where lengths were not looked at."""
    found = [(length, client, name) for name, given in lengths.items() for client, length in given.items()]
    if not found:
        return ""
    length, client, name = max(found)
    return f"; the longest report is that of client {client}, whose {name} has length {length:.3g}"
