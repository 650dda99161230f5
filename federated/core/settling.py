"""``rate_schedule="settling"``: a learning rate that falls when the model reverses direction and rises otherwise.

Let c be the cosine of Δ_r = x_r − x_{r−1} and Δ_{r−1}, and η₀ the update rule's initial rate. The clients' rate η is
halved if c < 0, and set to min(η₀, 1.25 η) if c > ½. A round rejected by ``accept="monotone"`` also halves η; a skipped
round does not change it. The server sends η/η₀ with the model, for clients that were absent. This rule is ours; the
papers' rates are constant.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from torch import Tensor

from federated.core.messages import Broadcast, MessageError

Rate = Literal["constant", "settling"]
"""Values of the option ``rate_schedule``."""

REVERSED, ALIGNED = 0.0, 0.5
"""The rate decreases if the cosine is below the first number, and increases if it is above the second."""

DECREASE, INCREASE = 0.5, 1.25
"""Factors by which the rate decreases and increases."""

MIN_SCALE = 1e-8
"""Minimum of η/η₀."""


@dataclass
class Settling:
    """The server's state of a settling rate.

    Attributes:
        x: the last model, shape ``d``, in search coordinates.
        move: the last move, shape ``d``; 0 initially.
        scale: η/η₀ of the next round.
    """

    x: Tensor
    move: Tensor
    scale: float = 1.0

    def after(self, x: Tensor, rejected: bool) -> Settling:
        """Returns the state after a round that ended with the model x."""
        if rejected:
            return replace(self, scale=max(MIN_SCALE, DECREASE * self.scale))
        move = x - self.x
        lengths = float(move.norm()) * float(self.move.norm())
        if not bool(move.any()):
            return self
        cosine = float(move @ self.move) / lengths if lengths > 0.0 else REVERSED
        if cosine < REVERSED:
            return Settling(x, move, max(MIN_SCALE, DECREASE * self.scale))
        return Settling(x, move, min(1.0, INCREASE * self.scale) if cosine > ALIGNED else self.scale)


def rate_in(message: Broadcast) -> float | None:
    """Returns η/η₀ from a round's first broadcast; None with a constant rate, which is not sent.

    Raises:
        MessageError: if η/η₀ is not in (0, 1].
    """
    if "rate" not in message.values:
        return None
    scale = float(message.values["rate"])
    if not 0.0 < scale <= 1.0:
        raise MessageError(f"the rate is {scale:g} times the initial one, expected a factor in (0, 1]")
    return scale
