"""Reads OPT or another causal language model, and SST-2, QQP and SQuAD, with transformers and datasets.

``DIR/NAME``, such as ``DIR/opt-125m``, has a model's tokenizer and weights, as transformers' ``save_pretrained`` writes
them. ``DIR/TASK`` is a data set with the splits ``train`` and ``validation`` and the columns of ``COLUMNS``, in a
format of ``experiments.workloads.data``. Nothing is downloaded. Requires the extra ``llm``.
"""

from __future__ import annotations

import csv
import dataclasses
import gzip
import json
import re
import string
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call
from torch.nn.utils.rnn import pad_sequence

from experiments.registry import require
from experiments.workloads.data import DataError, file_of, reading
from experiments.workloads.prompts import IGNORED, Prompts

COLUMNS = {
    "sst2": ("sentence", "label"),
    "qqp": ("question1", "question2", "label"),
    "squad": ("title", "context", "question", "answers"),
}
SPLITS = ("train", "validation")
CHOICES = {"sst2": (" terrible", " great"), "qqp": (" No", " Yes"), "squad": ()}
LONGEST = 512
"""Largest number of tokens of a prompt; longer prompts are cut at the beginning."""
LONGEST_ANSWER = 16
"""Largest number of tokens of an answer, including the end token."""


def prompt(task: str, row: Mapping[str, Any]) -> str:
    """Formats the prompt of a row; the answer follows it."""
    if task == "sst2":
        return f"{row['sentence'].strip()} It was"
    if task == "qqp":
        first, second = row["question1"].strip(), row["question2"].strip()
        return f"First question: {first}\nSecond question: {second}\nDo they ask the same? Answer:"
    title, context, question = (row[name].strip() for name in ("title", "context", "question"))
    return f"Title: {title}\nContext: {context}\nQuestion: {question}\nAnswer:"


@dataclasses.dataclass(frozen=True, eq=False)
class Pretrained:
    """A causal language model of transformers as a function of one vector of parameters.

    Attributes:
        module: the model; its weights only provide ``start``.
    """

    module: torch.nn.Module

    @property
    def dimension(self) -> int:
        """The number d of weights; weights that the head shares with the embedding count once."""
        return sum(p.numel() for p in self.module.parameters())

    @property
    def start(self) -> Tensor:
        """The weights in the folder, float32, shape ``d``."""
        return torch.cat([p.detach().reshape(-1).float() for p in self.module.parameters()])

    def logits(self, x: Tensor, tokens: Tensor, mask: Tensor) -> Tensor:
        """Returns the logits of each next token, ``n x L x V``."""
        named = list(self.module.named_parameters())
        pieces = x.split([p.numel() for _, p in named])
        given = {name: piece.view(p.shape) for (name, p), piece in zip(named, pieces, strict=True)}
        options = {"input_ids": tokens, "attention_mask": mask, "use_cache": False}
        found: Tensor = functional_call(self.module, given, kwargs=options, tie_weights=True).logits
        return found


@lru_cache(maxsize=1)
def load_model(folder: Path, device: str = "cpu") -> Pretrained:
    """Reads the model in a folder, float32.

    Raises:
        DataError: if transformers cannot read a model there.
        MissingExtraError: if transformers is not installed.
    """
    require("llm", f"a model from {folder}")
    from transformers import AutoModelForCausalLM

    _check_model_folder(folder)
    with reading(f"{folder} has no causal language model"):
        made: Any = AutoModelForCausalLM.from_pretrained(str(folder), dtype=torch.float32, local_files_only=True)
    return Pretrained(made.to(device).eval().requires_grad_(False))


@lru_cache(maxsize=4)
def _tokenizer(folder: Path) -> Any:
    from transformers import AutoTokenizer

    _check_model_folder(folder)
    sides = {"padding_side": "left", "truncation_side": "left"}
    with reading(f"{folder} has no tokenizer"):
        found = AutoTokenizer.from_pretrained(str(folder), local_files_only=True, **sides)
    if found.eos_token_id is None:
        raise DataError(f"{folder}: the tokenizer needs an end-of-text token, which ends an answer")
    if found.pad_token_id is None:
        found.pad_token = found.eos_token
    return found


@lru_cache(maxsize=8)
def load_task(folder: Path, split: str) -> list[dict[str, Any]]:
    """Reads the rows of a task's split.

    Raises:
        DataError: if the data set, the split or a column is missing.
        MissingExtraError: if the folder was written by datasets, which is not installed.
    """
    if not folder.is_dir():
        raise DataError(f"{folder} is not a folder; it must contain a data set")
    name = {"validation": "dev"}.get(split, split)
    if path := file_of(folder, f"{name}*.tsv.gz", f"{name}*.json.gz", f"{name}*.json"):
        with reading(f"{path} cannot be read"):
            rows = _squad_rows(path) if ".json" in path.name else _table_rows(path)
    else:
        rows = _saved_rows(folder, split)
    if missing := [column for column in COLUMNS[folder.name] if not rows or column not in rows[0]]:
        raise DataError(f"{folder}, split {split}, must have rows with the columns {', '.join(missing)}")
    return rows


def _table_rows(path: Path) -> list[dict[str, Any]]:
    with gzip.open(path, "rt", encoding="utf-8", newline="") as file:
        rows: list[dict[str, Any]] = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    return [row | {"label": int(row.get("label", row.get("is_duplicate", "")))} for row in rows]


def _squad_rows(path: Path) -> list[dict[str, Any]]:
    content = path.read_bytes()
    articles = json.loads(gzip.decompress(content) if path.suffix == ".gz" else content)["data"]
    return [
        {
            "title": article.get("title", ""),
            "context": paragraph["context"],
            "question": asked["question"],
            "answers": {"text": [answer["text"] for answer in asked["answers"]]},
        }
        for article in articles
        for paragraph in article["paragraphs"]
        for asked in paragraph["qas"]
    ]


def _saved_rows(folder: Path, split: str) -> list[dict[str, Any]]:
    require("llm", f"a data set from {folder}")
    import datasets

    with reading(f"{folder} was not written by datasets' save_to_disk"):
        found = datasets.load_from_disk(str(folder))
    if not isinstance(found, datasets.DatasetDict) or set(SPLITS) - set(found):
        have = sorted(found) if isinstance(found, datasets.DatasetDict) else "one data set without splits"
        raise DataError(f"{folder} must have the splits {' and '.join(SPLITS)}, got {have}")
    rows: list[dict[str, Any]] = found[split].to_list()
    return rows


def load_prompts(data: Path, task: str, model: str, split: str, count: int, seed: int) -> Prompts:
    """Draws ``count`` rows of a split without replacement (all if there are fewer), as prompts in a model's tokens.

    Raises:
        DataError: if the model or the data set is not as expected.
        MissingExtraError: if the extra ``llm`` is not installed.
    """
    rows, tokenizer = load_task(data / task, split), _tokenizer(data / model)
    if task != "squad" and (wrong := {row["label"] for row in rows} - {0, 1}):  # GLUE's test splits have −1
        raise DataError(f"{data / task}, split {split}: labels must be 0 or 1, got {sorted(wrong)[0]}")
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(seed))[:count].tolist()
    picked = [rows[i] for i in order]
    longest = min(LONGEST, getattr(tokenizer, "model_max_length", LONGEST) - LONGEST_ANSWER)
    packed = tokenizer(
        [prompt(task, row) for row in picked], padding=True, truncation=True, max_length=longest, return_tensors="pt"
    )
    tokens, mask = packed["input_ids"], packed["attention_mask"]

    def words(given: Sequence[int]) -> list[str]:
        return normalized(tokenizer.decode(list(given)))

    if task != "squad":
        choices = tuple(tokenizer(word, add_special_tokens=False).input_ids[0] for word in CHOICES[task])
        if len(set(choices)) < len(choices):
            raise DataError(
                f"{data / model}: the tokenizer gives {' and '.join(CHOICES[task])} the same first token; use another"
            )
        return Prompts(tokens, mask, torch.tensor([int(row["label"]) for row in picked]), choices)
    answers = [_answer(row, tokenizer) for row in picked]
    padded = pad_sequence([torch.tensor(answer) for answer in answers], batch_first=True, padding_value=IGNORED)
    labels = torch.zeros(len(picked), dtype=torch.int64)
    return Prompts(tokens, mask, labels, (), padded, tokenizer.eos_token_id, words)


def _answer(row: Mapping[str, Any], tokenizer: Any) -> list[int]:
    text = row["answers"]["text"][0]
    found = tokenizer(f" {text.strip()}", add_special_tokens=False).input_ids
    return [*found[: LONGEST_ANSWER - 1], tokenizer.eos_token_id]


def normalized(text: str) -> list[str]:
    """Returns the words that SQuAD's F1 compares: lower case, without punctuation and articles."""
    bare = "".join(letter for letter in text.lower() if letter not in string.punctuation)
    return re.sub(r"\b(a|an|the)\b", " ", bare).split()


def there(data: Path, names: Sequence[str]) -> tuple[str, ...]:
    """Returns the models or tasks whose folder exists."""
    return tuple(name for name in names if (data / name).exists())


def _check_model_folder(folder: Path) -> None:
    if not (folder / "config.json").is_file():
        raise DataError(
            f"{folder} has no config.json; it must contain a model written by transformers' save_pretrained"
        )
