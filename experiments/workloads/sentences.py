"""Templated sentences as stand-ins for SST-2, QQP and SQuAD, and tiny OPTs that are pretrained on their words.

* ``sst2``: "the film is very dull and flat it was" → "terrible" or "great".
* ``qqp``: "how to learn chess ? ways to learn chess ? the same :" → "yes"; "reasons to learn chess ?" → "no".
* ``squad``: "anna has the red cup in the park . what ? answer :" → "red cup".

A model is pretrained to complete such sentences in *other* words ("so it is bad", "these are alike", "the thing is red
cup"), with one half of the subject words. The model can then read the sentences, but knows neither the words of the
tasks' questions and answers nor the other half of the subject words. The clients fine-tune it on these. All tasks share
one vocabulary.
"""

from __future__ import annotations

import dataclasses
import itertools
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.nn.utils.rnn import pad_sequence

from experiments.workloads.cache import cached, values_of
from experiments.workloads.prompts import IGNORED, Prompts
from experiments.workloads.tiny_opt import TinyOPT

TASKS = ("sst2", "qqp", "squad")
PAD, END = "<pad>", "<end>"
SUBJECTS = ("film", "plot", "cast", "story", "ending", "acting", "score", "scene")
DEGREES = ("very", "truly", "rather", "quite")
JUDGEMENTS = (
    ("dull", "boring", "clumsy", "flat", "ugly", "stale", "cold", "weak", "messy", "empty"),
    ("moving", "funny", "clever", "bright", "lovely", "gripping", "fresh", "warm", "sharp", "rich"),
)
DEEDS = ("learn", "love", "try", "sell")
TOPICS = ("chess", "bread", "cars", "books")
SOUGHT = (
    ("reasons", "places", "rules", "times", "people", "words", "games", "laws"),
    ("ways", "steps", "tips", "means", "tricks", "tools", "guides", "hints"),
)
PEOPLE = ("anna", "bob", "carl", "dora", "emil", "fay")
ADJECTIVES = ("red", "old", "big", "new", "blue", "odd")
THINGS = ("cup", "hat", "box", "key", "pen", "bag")
PLACES = ("park", "bank", "shop", "farm", "lake", "hall")
ASKED = (
    ("who ? answer :", "the person is"),
    ("what ? answer :", "the thing is"),
    ("where ? answer :", "the place is"),
)
CHOICES = {"sst2": ("terrible", "great"), "qqp": ("no", "yes"), "squad": ()}
BEFORE = {
    "sst2": (("so it is", "bad"), ("so it is", "good")),
    "qqp": (("these are", "apart"), ("these are", "alike")),
}
AROUND = "the is and how to ? has . it was same : answer in"


@dataclasses.dataclass(frozen=True)
class Training:
    """Pretraining of a tiny OPT.

    Attributes:
        sentences: number of sentences of each task.
        steps: number of Adam's steps.
        batch: number of sentences per step.
        rate: Adam's largest rate.
        seed: seed of weights, sentences and their order.
    """

    sentences: int = 2000
    steps: int = 800
    batch: int = 48
    rate: float = 8e-3
    seed: int = 0


FULL = Training()
QUICK = Training(sentences=40, steps=20, batch=16)


@lru_cache(maxsize=1)
def vocabulary() -> dict[str, int]:
    """Returns the number of every word; 0 pads, 1 ends an answer."""
    lists = (SUBJECTS, DEGREES, *JUDGEMENTS, DEEDS, TOPICS, *SOUGHT, PEOPLE, ADJECTIVES, THINGS, PLACES)
    phrases = " ".join([AROUND, *itertools.chain(*itertools.chain(*BEFORE.values()), *ASKED)]).split()
    words = [PAD, END, *itertools.chain(*lists, *CHOICES.values()), *phrases]
    return {word: i for i, word in enumerate(dict.fromkeys(words))}


def words(tokens: object) -> list[str]:
    """Returns the words of some tokens."""
    known = list(vocabulary())
    return [known[int(token)] for token in tokens]  # type: ignore[attr-defined]


def sentence(task: str, label: int, generator: np.random.Generator, half: bool = False) -> tuple[str, str, str]:
    """Draws a statement, a question about it and the answer, for one label (``squad`` has only one).

    Args:
        task: name of the task.
        label: the label.
        generator: source of the words.
        half: whether to draw words only from the first half of each list of words.
    """

    def pick(*of: tuple[str, ...]) -> list[str]:
        return [str(each[generator.integers(len(each) // 2 if half else len(each))]) for each in of]

    if task == "sst2":
        subject, degree, first, second = pick(SUBJECTS, DEGREES, JUDGEMENTS[label], JUDGEMENTS[label])
        return f"the {subject} is {degree} {first} and {second}", "it was", CHOICES[task][label]
    if task == "qqp":
        deed, topic, sought = pick(DEEDS, TOPICS, SOUGHT[label])
        return f"how to {deed} {topic} ? {sought} to {deed} {topic} ?", "the same :", CHOICES[task][label]
    person, adjective, thing, place = pick(PEOPLE, ADJECTIVES, THINGS, PLACES)
    asked = generator.integers(len(ASKED))
    answer = (person, f"{adjective} {thing}", place)[asked]
    return f"{person} has the {adjective} {thing} in the {place} .", ASKED[asked][0], answer


def encoded(texts: list[str]) -> tuple[Tensor, Tensor]:
    """Returns tokens and mask, padded on the left."""
    known = vocabulary()
    rows = [torch.tensor([known[word] for word in text.split()]) for text in texts]
    tokens = pad_sequence(rows, batch_first=True, padding_side="left")
    return tokens, (tokens != 0).long()


def prompts(task: str, count: int, seed: int) -> Prompts:
    """Draws ``count`` prompts, half of each label."""
    generator = np.random.default_rng([seed, TASKS.index(task)])
    labels = generator.permutation(np.arange(count) % 2) if CHOICES[task] else np.zeros(count, dtype=np.int64)
    said, asked, answered = zip(*(sentence(task, int(label), generator) for label in labels), strict=True)
    tokens, mask = encoded([f"{a} {b}" for a, b in zip(said, asked, strict=True)])
    known = vocabulary()
    choices = tuple(known[word] for word in CHOICES[task])
    answers = torch.zeros(0, 0, dtype=torch.int64)
    if not choices:
        rows = [torch.tensor([known[word] for word in [*answer.split(), END]]) for answer in answered]
        answers = pad_sequence(rows, batch_first=True, padding_value=IGNORED)
    return Prompts(tokens, mask, torch.from_numpy(labels), choices, answers, known[END], words)


def corpus(count: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Draws ``count`` pretraining sentences per task; returns tokens, mask and the next token at each position."""
    generator = np.random.default_rng([seed, len(TASKS)])
    texts, known = [], []
    for task in TASKS:
        for label in generator.integers(2, size=count):
            said, asked, answer = sentence(task, int(label), generator, half=True)
            stem, ending = BEFORE[task][label] if task in BEFORE else (dict(ASKED)[asked], f"{answer} {END}")
            texts.append(f"{said} {stem} {ending}")
            known.append(len(ending.split()))
    tokens, mask = encoded(texts)
    wanted = torch.cat([tokens[:, 1:], tokens[:, :1]], 1)
    place = torch.arange(tokens.shape[1] - 1, -1, -1)
    wanted[(place == 0) | (place > torch.tensor(known)[:, None])] = IGNORED
    return tokens, mask, wanted


def tiny_opt(width: int, layers: int, heads: int) -> TinyOPT:
    """Creates a model for the vocabulary of the sentences."""
    return TinyOPT(len(vocabulary()), width, layers, heads, positions=32)


def trained(model: TinyOPT, training: Training, cache: str = "") -> Tensor:
    """Pretrains a model on the corpus; returns its parameters, float32, shape ``d``.

    Adam's rate rises linearly over a tenth of the steps and then falls linearly to zero. The loss covers only the
    endings of the sentences, since the rest is random. The parameters are stored in a folder.
    """
    x: Tensor = cached(cache, f"tiny-opt-{values_of(model, training)}", lambda: _trained(model, training))
    return x


def _trained(model: TinyOPT, training: Training) -> Tensor:
    pool = corpus(training.sentences, training.seed)
    generator = torch.Generator().manual_seed(training.seed)
    x = model.initial(training.seed).requires_grad_()
    rule, warm = torch.optim.Adam([x]), max(1, training.steps // 10)
    for step in range(training.steps):
        rise, fall = (step + 1) / warm, (training.steps - step) / max(1, training.steps - warm)
        rule.param_groups[0]["lr"] = training.rate * min(rise, fall)
        rule.zero_grad()
        rows = torch.randperm(len(pool[0]), generator=generator)[: training.batch]
        tokens, mask, wanted = (part[rows] for part in pool)
        with torch.enable_grad():
            found = model.logits(x, tokens, mask).flatten(0, 1)
            cross_entropy(found, wanted.flatten(), ignore_index=IGNORED).backward()
        rule.step()
    return x.detach()
