"""``rate="settling"``: local steps that grow shorter where the model turns back, and longer again where it goes on.

With Δ_r = x_r − x_{r−1} and c the cosine of Δ_r and Δ_{r−1}, the rate η of local steps is halved where c < 0 and
becomes min(η₀, 1.25 η) where c > ½, η₀ the rule's own. The server sends η/η₀ with the model, one number in a round: a
client that was absent has missed nothing. A round that ``accept="monotone"`` takes back halves it too; one that is
skipped leaves it. The rule is ours: the papers' rates are constant.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from federated.core.messages import Broadcast, MessageError

Rate = Literal["constant", "settling"]
RATES: tuple[Rate, ...] = ("constant", "settling")
"""Values of the option ``rate``."""

BACK, ON = 0.0, 0.5
"""The cosines of successive moves under which the rate falls, and over which it grows."""

SHORTER, LONGER = 0.5, 1.25
"""What the rate is multiplied by then."""

LEAST = 1e-8
"""The least rate in units of the first one."""


@dataclass
class Settling:
    """The server's half.

    Attributes:
        x: the model as it was last, shape ``d``, in the coordinates that are searched.
        move: the last move, shape ``d``; 0 before there is any.
        scale: η/η₀ of the next round.
    """

    x: Tensor
    move: Tensor
    scale: float = 1.0

    @classmethod
    def at(cls, x: Tensor) -> Settling:
        """Before the first round."""
        return cls(x, torch.zeros_like(x))

    def after(self, x: Tensor, rejected: bool) -> Settling:
        """What it is after a round with the model x."""
        if rejected:
            return replace(self, scale=max(LEAST, SHORTER * self.scale))
        move = x - self.x
        lengths = float(move.norm()) * float(self.move.norm())
        if not bool(move.any()):
            return self
        cosine = float(move @ self.move) / lengths if lengths > 0.0 else BACK
        if cosine < BACK:
            return Settling(x, move, max(LEAST, SHORTER * self.scale))
        return Settling(x, move, min(1.0, LONGER * self.scale) if cosine > ON else self.scale)


def rate_in(message: Broadcast) -> float:
    """η/η₀ of a round, from its first broadcast; 1 where it says none.

    Raises:
        MessageError: unless it is in (0, 1].
    """
    scale = float(message.values.get("rate", 1.0))
    if not 0.0 < scale <= 1.0:
        raise MessageError(f"the rate is {scale:g} times the first one, accepted is over 0 and at most 1")
    return scale
