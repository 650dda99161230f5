"""OPT's architecture as a function of one parameter vector, in torch alone, at any size.

A decoder like OPT-125M (Zhang et al., 2022): learned positions with an offset of 2, counted without padding; layer
norms before attention and before the feed-forward part; ReLU; biases everywhere; a final layer norm; and a head that
shares the embedding's weights. The parameters' names and order and the logits agree with transformers'
``OPTForCausalLM``. (Only OPT-350M has its layer norms after each part, and a narrower embedding.)
"""

from __future__ import annotations

import dataclasses
import math
from functools import cached_property

import torch
from torch import Tensor
from torch.nn.functional import embedding, layer_norm, linear, relu, scaled_dot_product_attention

OFFSET = 2
"""Offset of the positions."""
SCALE = 0.06
"""Standard deviation of initial weights."""


@dataclasses.dataclass(frozen=True)
class TinyOPT:
    """The architecture.

    Attributes:
        vocabulary: V, the number of tokens.
        width: width of the embedding and of all layers; the feed-forward part is four times as wide.
        layers: number of layers.
        heads: number of attention heads.
        positions: largest number of tokens of a text.
    """

    vocabulary: int
    width: int
    layers: int
    heads: int
    positions: int

    @cached_property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Names and shapes of the parameters, in order."""
        w, prefix = self.width, "model.decoder."
        found: dict[str, tuple[int, ...]] = {
            f"{prefix}embed_tokens.weight": (self.vocabulary, w),
            f"{prefix}embed_positions.weight": (self.positions + OFFSET, w),
            f"{prefix}final_layer_norm.weight": (w,),
            f"{prefix}final_layer_norm.bias": (w,),
        }
        for i in range(self.layers):
            layer = f"{prefix}layers.{i}."
            parts: list[tuple[str, int, int]] = [(f"self_attn.{name}_proj", w, w) for name in ("k", "v", "q", "out")]
            parts += [("self_attn_layer_norm", w, 0), ("fc1", 4 * w, w), ("fc2", w, 4 * w), ("final_layer_norm", w, 0)]
            for name, rows, columns in parts:
                found[f"{layer}{name}.weight"] = (rows, columns) if columns else (rows,)
                found[f"{layer}{name}.bias"] = (rows,)
        return found

    @cached_property
    def sizes(self) -> list[int]:
        """Number of elements of each parameter."""
        return [math.prod(shape) for shape in self.shapes.values()]

    @property
    def dimension(self) -> int:
        """The dimension d."""
        return sum(self.sizes)

    def initial(self, seed: int) -> Tensor:
        """Draws weights from N(0, ``SCALE``²); layer norms are 1, biases 0; float32, shape ``d``."""
        generator, pieces = torch.Generator().manual_seed(seed), []
        for name, shape in self.shapes.items():
            normal = torch.randn(math.prod(shape), generator=generator) * SCALE
            pieces.append(normal if len(shape) > 1 else torch.full(shape, float(name.endswith("norm.weight"))))
        return torch.cat(pieces)

    def named(self, x: Tensor) -> dict[str, Tensor]:
        """Returns views of ``d`` numbers by the parameters' names."""
        pieces = zip(self.shapes.items(), x.split(self.sizes), strict=True)
        return {name: piece.view(shape) for (name, shape), piece in pieces}

    def logits(self, x: Tensor, tokens: Tensor, mask: Tensor) -> Tensor:
        """Returns the logits of each next token, ``n x L x V``; ``mask`` is 0 at padding, ``n x L``."""
        p = {name.removeprefix("model.decoder."): value for name, value in self.named(x).items()}
        length = tokens.shape[1]
        position = mask.cumsum(1) * mask - 1
        hidden = embedding(tokens, p["embed_tokens.weight"]) + embedding(position + OFFSET, p["embed_positions.weight"])
        causal = torch.ones(length, length, dtype=torch.bool, device=x.device).tril()
        itself = torch.eye(length, dtype=torch.bool, device=x.device)  # or padding would see nothing: 0/0
        seen = (causal & mask.bool()[:, None, None, :]) | itself
        for i in range(self.layers):
            hidden = self._layer(p, f"layers.{i}.", hidden, seen)
        hidden = self._norm(p, "final_layer_norm", hidden)
        return linear(hidden, p["embed_tokens.weight"])

    def _norm(self, p: dict[str, Tensor], name: str, hidden: Tensor) -> Tensor:
        return layer_norm(hidden, (self.width,), p[f"{name}.weight"], p[f"{name}.bias"])

    def _layer(self, p: dict[str, Tensor], layer: str, hidden: Tensor, seen: Tensor) -> Tensor:
        def projected(name: str, inputs: Tensor) -> Tensor:
            return linear(inputs, p[f"{layer}{name}.weight"], p[f"{layer}{name}.bias"])

        def by_head(values: Tensor) -> Tensor:
            return values.unflatten(-1, (self.heads, -1)).transpose(1, 2)

        normed = self._norm(p, f"{layer}self_attn_layer_norm", hidden)
        q, k, v = (by_head(projected(f"self_attn.{name}_proj", normed)) for name in "qkv")
        mixed = scaled_dot_product_attention(q, k, v, attn_mask=seen).transpose(1, 2).flatten(2)
        hidden = hidden + projected("self_attn.out_proj", mixed)
        normed = self._norm(p, f"{layer}final_layer_norm", hidden)
        return hidden + projected("fc2", relu(projected("fc1", normed)))
