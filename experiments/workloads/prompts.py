"""Prompts with answers, and the loss of a language model on prompts as a function of all model parameters.

In tasks with choices (SST-2, QQP) the answer is one of a few words: the loss is the cross-entropy among the choices'
tokens at the end of the prompt, and the score is the share of prompts whose answer has the largest logit. In SQuAD the
answer is a text: the loss is the mean cross-entropy of its tokens, including the end token, over the whole vocabulary,
and the score is the word F1 of the greedily decoded text.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

IGNORED = -100
"""torch's ``ignore_index``, which fills the positions after an answer."""
CHUNK = 256
"""Number of prompts that are scored at once."""


class LanguageModel(Protocol):
    """A causal language model whose weights are passed as one vector."""

    @property
    def dimension(self) -> int: ...  # noqa: D102

    def logits(self, x: Tensor, tokens: Tensor, mask: Tensor) -> Tensor:
        """Returns the logits of each next token, ``n x L x V``, at parameters ``d``; ``mask`` is 0 at padding."""


@dataclasses.dataclass(frozen=True)
class Prompts:
    """Prompts of one task.

    Attributes:
        tokens: ``n x L``, padded on the left.
        mask: 0 at padding, else 1, ``n x L``.
        labels: index of the right choice, shape ``n``; all 0 in tasks without choices.
        choices: the choices' tokens; empty if the answer is a text.
        answers: tokens of the answers, ``n x A``, padded with ``IGNORED``; ``n x 0`` in tasks with choices.
        end: the token that ends an answer.
        words: maps tokens to the words that F1 compares.
    """

    tokens: Tensor
    mask: Tensor
    labels: Tensor
    choices: tuple[int, ...] = ()
    answers: Tensor = dataclasses.field(default_factory=lambda: torch.zeros(0, 0, dtype=torch.int64))
    end: int = 0
    words: Callable[[Sequence[int]], list[str]] = lambda tokens: [str(token) for token in tokens]

    def __len__(self) -> int:
        """Number of prompts n."""
        return len(self.tokens)

    def rows(self, which: Tensor | slice) -> Prompts:
        """Returns the prompts of some rows."""
        answers = self.answers if self.choices else self.answers[which]
        return dataclasses.replace(
            self, tokens=self.tokens[which], mask=self.mask[which], labels=self.labels[which], answers=answers
        )

    def to(self, device: str) -> Prompts:
        """Returns the prompts on a device."""
        moved = {name: getattr(self, name).to(device) for name in ("tokens", "mask", "labels", "answers")}
        return dataclasses.replace(self, **moved)


@dataclasses.dataclass(frozen=True)
class PromptLoss:
    """f(x): the mean loss of a model with parameters x on some prompts.

    Attributes:
        model: the language model.
        given: the prompts.
    """

    model: LanguageModel
    given: Prompts

    @property
    def dimension(self) -> int:
        """The dimension d."""
        return self.model.dimension

    def __call__(self, x: Tensor) -> Tensor:
        """Returns the loss at x, shape ``d``."""
        p = self.given
        if p.choices:
            return cross_entropy(self._choices(x, p), p.labels)
        length, known = p.tokens.shape[1], p.answers[:, :-1]
        tokens = torch.cat([p.tokens, known.clamp(min=0)], 1)
        mask = torch.cat([p.mask, (known != IGNORED).to(p.mask)], 1)
        found = self.model.logits(x, tokens, mask)[:, length - 1 :]
        return cross_entropy(found.flatten(0, 1), p.answers.flatten(), ignore_index=IGNORED)

    def gradient(self, x: Tensor) -> Tensor:
        """Returns the gradient at x, shape ``d``."""
        with torch.enable_grad():
            leaf = x.detach().clone().requires_grad_()
            (found,) = torch.autograd.grad(self(leaf), leaf)
        return found

    @torch.no_grad()
    def score(self, x: Tensor) -> float:
        """Returns the share of right choices at x, or the mean F1 of the texts."""
        total = 0.0
        for start in range(0, len(self.given), CHUNK):
            p = self.given.rows(slice(start, start + CHUNK))
            if p.choices:
                total += float((self._choices(x, p).argmax(1) == p.labels).sum())
            else:
                found = self._decoded(x, p)
                total += sum(f1(p.words(a), p.words(b)) for a, b in zip(found, _texts(p), strict=True))
        return total / len(self.given)

    def _choices(self, x: Tensor, p: Prompts) -> Tensor:
        return self.model.logits(x, p.tokens, p.mask)[:, -1, list(p.choices)]

    def _decoded(self, x: Tensor, p: Prompts) -> list[list[int]]:
        """Decodes the continuation of each prompt greedily, up to the end token or the longest answer."""
        tokens, mask = p.tokens, p.mask
        for _ in range(p.answers.shape[1] - 1):
            newest = self.model.logits(x, tokens, mask)[:, -1].argmax(1, keepdim=True)
            tokens, mask = torch.cat([tokens, newest], 1), torch.cat([mask, torch.ones_like(mask[:, :1])], 1)
        found = tokens[:, p.tokens.shape[1] :].tolist()
        return [row[: row.index(p.end)] if p.end in row else row for row in found]


def _texts(p: Prompts) -> list[list[int]]:
    return [[token for token in row if token not in (IGNORED, p.end)] for row in p.answers.tolist()]


def f1(found: Sequence[str], wanted: Sequence[str]) -> float:
    """Returns the harmonic mean of precision and recall of words, as in SQuAD; 1 for two empty answers."""
    if not found or not wanted:
        return float(list(found) == list(wanted))
    common = sum((Counter(found) & Counter(wanted)).values())
    return 2.0 * common / (len(found) + len(wanted))
