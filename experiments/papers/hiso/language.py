"""Federated fine-tuning of language models: the basis of HiSo's Tables 2 and 5 and Figure 6.

As printed in the paper: 6 clients, 2 of them per round, P = 5 for all methods without gradients (FedZO's Q = P), and
normal directions. Our choices where it gives no details: τ = 1 and μ = 1e-3 as in the authors' program; all parameters
are tuned; a client's loss covers all of its prompts; for SST-2 and QQP a client's share of each label is drawn from
Dirichlet(1). First-order methods take one gradient step per round; those with moments use ``CLIENT_RATE`` on the client
and the grid's rate on the server. The score is the accuracy on test prompts, or F1 for SQuAD.

**Counting.** The best score of a run is its highest record, and its rounds are the rounds until this record first
occurs. The bytes of a run are these rounds times the bytes of a client's round (``accounting``: 40 for P = 5, 8d for
vectors), which the ledger's payload confirms.

**Rates.** Each method's rate is the best of three values (``GRIDS``); a grid was shifted if its best value was at an
end. The criterion is the mean of all records on ``TUNING_SEEDS``, which no table uses, over all tasks, with the middle
model at the reduced scale and a record every 20 rounds (``tune``). The rates were tuned for the stand-ins.
``REAL_RATES`` are a guess, because no real model was available: tune them before use.

**Stand-ins**: tiny OPTs of three sizes on templated sentences (``experiments.workloads.sentences``), pretrained once
for all seeds. Seeds draw prompts, clients and directions. **Real models**: ``--data DIR`` with DIR/opt-125m and so on,
and DIR/sst2, DIR/qqp, DIR/squad (``experiments.workloads.llm``); those that exist are run. A federation stores seven
models in float32 (HiSo twice that), so OPT-1.3B needs about 75 GB.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from experiments.harness.records import grid_means
from experiments.papers.hiso import training
from experiments.papers.hiso.accounting import FIRST_ORDER, METHODS, SCALAR_ONLY, Place, bytes_a_round
from experiments.workloads import llm, sentences
from experiments.workloads.cache import FOLDER
from experiments.workloads.data import DataError
from experiments.workloads.prompts import LanguageModel, PromptLoss
from experiments.workloads.sentences import Training
from federated import Federation, make_federation
from optimizers.comparison.records import Row, Rows, by_seed, seeds_of, where

Cell = dict[str, str]
"""A model and a task, as columns of the records."""
TASKS = {"sst2": "SST-2", "qqp": "QQP", "squad": "SQuAD"}
MODELS = {"opt-125m": "OPT-125M", "opt-350m": "OPT-350M", "opt-1.3b": "OPT-1.3B"}
STAND_INS = {"opt-125m": (16, 2, 2), "opt-350m": (24, 2, 2), "opt-1.3b": (32, 2, 4)}
"""Width, layers and heads of the tiny OPT that replaces each model."""
CLIENT_RATE = 0.1

ZEROTH_ORDER = ("fedzo", "decomfl", "hiso", "hiso_scalar")
GRIDS: dict[str, tuple[float, float, float]] = {
    "fedavg": (0.01, 0.03, 0.1),
    "fedadam": (0.001, 0.003, 0.01),
    "fedyogi": (0.001, 0.003, 0.01),
    "fedadagrad": (0.003, 0.01, 0.03),
    **dict.fromkeys(ZEROTH_ORDER, (1e-3, 3e-3, 1e-2)),
}
TUNING_SEEDS = (100, 101)
RATES = {method: rates[1] for method, rates in GRIDS.items()}
"""The best rate of each grid, which is the middle one."""
REAL_RATES = {method: rate / (1000.0 if method in ZEROTH_ORDER else 10.0) for method, rate in RATES.items()}


@dataclasses.dataclass(frozen=True)
class Settings:
    """Settings of the fine-tuning runs.

    Attributes:
        tasks: names of the tasks.
        models: names of the models.
        methods: names of the algorithms.
        clients: N.
        participants: number of clients per round.
        perturbations: P, and FedZO's Q.
        smoothing_radius: μ.
        rounds: R of the methods without gradients.
        first_order_rounds: R of the methods with gradients.
        every: rounds between records.
        client_prompts: number of prompts per client.
        test_prompts: number of prompts for the score.
        rates: each method's rate for the stand-ins.
        real_rates: each method's rate for real models.
        training: pretraining of the stand-ins.
        data: folder of models and data sets.
        device: device of the models.
        cache: folder of the pretrained stand-ins.
    """

    tasks: tuple[str, ...] = tuple(TASKS)
    models: tuple[str, ...] = tuple(MODELS)
    methods: tuple[str, ...] = METHODS
    clients: int = 6
    participants: int = 2
    perturbations: int = 5
    smoothing_radius: float = 1e-3
    rounds: int = 2500
    first_order_rounds: int = 500
    every: int = 10
    client_prompts: int = 64
    test_prompts: int = 1000
    rates: tuple[tuple[str, float], ...] = tuple(RATES.items())
    real_rates: tuple[tuple[str, float], ...] = tuple(REAL_RATES.items())
    training: Training = sentences.FULL
    data: str = ""
    device: str = "cpu"
    cache: str = FOLDER


REDUCED: dict[str, Any] = {"rounds": 200, "first_order_rounds": 60, "client_prompts": 16, "test_prompts": 300}
QUICK: dict[str, Any] = {
    "tasks": ("sst2", "squad"),
    "models": ("opt-125m",),
    "rounds": 4,
    "first_order_rounds": 2,
    "every": 2,
    "client_prompts": 4,
    "test_prompts": 20,
    "training": sentences.QUICK,
    "cache": "",
}


@dataclasses.dataclass(frozen=True)
class Problem:
    """The clients' losses, the loss on the test prompts, and the initial parameters."""

    clients: Sequence[PromptLoss]
    test: PromptLoss
    x0: Tensor


@lru_cache(maxsize=len(STAND_INS))
def _stand_in(name: str, training: Training, cache: str) -> tuple[LanguageModel, Tensor]:
    model = sentences.tiny_opt(*STAND_INS[name])
    return model, sentences.trained(model, training, cache)


def problem_of(settings: Settings, model: str, task: str, seed: int) -> Problem:
    """Draws a seed's prompts and deals them to the clients.

    Raises:
        DataError: if the data folder is not as expected.
    """
    pool, folder = 2 * settings.clients * settings.client_prompts, Path(settings.data)
    made: LanguageModel
    if settings.data:
        loaded = llm.load_model(folder / model, settings.device)
        made, x0 = loaded, loaded.start
        train = llm.load_prompts(folder, task, model, "train", pool, seed)
        test = llm.load_prompts(folder, task, model, "validation", settings.test_prompts, seed)
    else:
        made, x0 = _stand_in(model, settings.training, settings.cache)
        train = sentences.prompts(task, pool, 2 * seed)
        test = sentences.prompts(task, settings.test_prompts, 2 * seed + 1)
    train, test = train.to(settings.device), test.to(settings.device)
    dealt = deal(train.labels.cpu().numpy(), settings.clients, settings.client_prompts, seed)
    clients = [PromptLoss(made, train.rows(torch.from_numpy(rows).to(settings.device))) for rows in dealt]
    return Problem(clients, PromptLoss(made, test), x0.to(settings.device))


def deal(labels: np.ndarray, clients: int, each: int, seed: int) -> list[np.ndarray]:
    """Draws distinct rows for each client; if there are two labels, their shares are from Dirichlet(1, 1).

    Raises:
        DataError: if there are too few rows of a label.
    """
    generator = np.random.default_rng([seed, clients, each])
    left = [list(generator.permutation(np.flatnonzero(labels == label))) for label in np.unique(labels)]
    dealt = []
    for _ in range(clients):
        first = round(each * generator.dirichlet(np.ones(len(left)))[0])
        counts = (first, each - first)[: len(left)]
        if any(len(rows) < count for rows, count in zip(left, counts, strict=True)):
            raise DataError(
                f"{clients} clients with {each} prompts each need more than the {len(labels)} available rows"
            )
        dealt.append(np.array([rows.pop() for rows, count in zip(left, counts, strict=True) for _ in range(count)]))
    return dealt


def _sgd(rate: float) -> Callable[[Any], torch.optim.Optimizer]:
    return lambda p: torch.optim.SGD([p], lr=rate)


def federation_of(settings: Settings, problem: Problem, method: str, rate: float, seed: int) -> Federation:
    """Creates the federation of a method at a given rate."""
    options: dict[str, Any] = {"smoothing_radius": settings.smoothing_radius} if method in ZEROTH_ORDER else {}
    if method in SCALAR_ONLY:
        options |= {"perturbations": settings.perturbations, "rate": rate, "log_rounds": max(settings.rounds, 1)}
    elif method == "fedzo":
        options |= {"directions": settings.perturbations, "distribution": "normal", "update_rule": _sgd(rate)}
    elif method == "fedavg":
        options |= {"update_rule": _sgd(rate)}
    else:
        options |= {"update_rule": _sgd(CLIENT_RATE), "server_rate": rate}
    return make_federation(
        training.ALGORITHMS.get(method, method),
        problem.clients,
        problem.x0,
        local_steps=1,
        participation=settings.participants,
        seed=seed,
        codec=False,
        gate=math.inf,
        **options,
    )


@torch.no_grad()
def train(settings: Settings, problem: Problem, method: str, rate: float, seed: int) -> tuple[Rows, Federation]:
    """Runs one federation; returns its score in round 0 and every ``every`` rounds, and the federation itself."""
    federation = federation_of(settings, problem, method, rate, seed)
    last = settings.first_order_rounds if method in FIRST_ORDER else settings.rounds
    rows: Rows = []
    for r in range(last + 1):
        if r:
            federation.run_round()
        if r % settings.every == 0 or r == last:
            rows.append({"method": method, "round": r, "value": problem.test.score(federation.server.x)})
    return rows, federation


def run_seed(settings: Settings, seed: int) -> Rows:
    """Runs all methods on all models and tasks; records scores and the bytes of a client's round."""
    rows: Rows = []
    rates = dict(settings.real_rates if settings.data else settings.rates)
    for model, task in itertools.product(*there(settings)):
        problem = problem_of(settings, model, task, seed)
        for method in settings.methods:
            key: Row = {"seed": seed, "model": model, "task": task}
            found, federation = train(settings, problem, method, rates[method], seed)
            rows += [key | row | {"quantity": "score"} for row in found]
            counted = confirmed_bytes(settings, method, federation)
            rows.append(key | {"method": method, "round": 1, "value": counted, "quantity": "bytes"})
    return rows


def confirmed_bytes(settings: Settings, method: str, federation: Federation) -> int:
    """Returns the bytes of a client's round that ``bytes_a_round`` predicts.

    Raises:
        RuntimeError: if the ledger has another number of bytes.
    """
    both = bytes_a_round(method, federation.algorithm.dimension, settings.perturbations)
    if wrong := {row["payload_up"] for row in federation.ledger.to_rows()} - {both // 2}:
        raise RuntimeError(f"a client of {method} must send {both // 2} bytes, but the ledger has {sorted(wrong)}")
    return both


def tune(settings: Settings, method: str, model: str = "opt-350m") -> dict[float, float]:
    """Returns the mean of all records over ``TUNING_SEEDS`` and tasks for each rate of the method's grid."""

    def mean(rate: float, task: str, seed: int) -> float:
        rows, _ = train(settings, problem_of(settings, model, task, seed), method, rate, seed)
        return float(np.mean([float(row["value"]) for row in rows]))

    return grid_means(mean, GRIDS[method], settings.tasks, TUNING_SEEDS)


# The models and tasks.


def there(settings: Settings) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Returns the models and tasks to run: all, or those that the data folder contains."""
    if not settings.data:
        return settings.models, settings.tasks
    return llm.there(Path(settings.data), settings.models), llm.there(Path(settings.data), settings.tasks)


def check(settings: Settings) -> None:
    """Reads the data; raises ``DataError`` if they are not as expected."""
    if not settings.data:
        return
    folder, (models, tasks) = Path(settings.data), there(settings)
    for kind, wanted, found in (("model", settings.models, models), ("data set", settings.tasks, tasks)):
        if not found:
            raise DataError(f"{folder} has no {kind}; it must contain at least one of {', '.join(wanted)}")
    for model in models:
        llm.load_model(folder / model)
        for task, split in itertools.product(tasks, llm.SPLITS):
            llm.load_prompts(folder, task, model, split, 2, 0)


def named(settings: Settings) -> tuple[str, str]:
    """Returns the names of the models and of the tasks."""
    return ", ".join(MODELS[m] for m in settings.models), ", ".join(TASKS[t] for t in settings.tasks)


def describe(settings: Settings) -> str:
    """Names the stand-in; an empty string if real models and data are used."""
    if settings.data:
        return ""
    models, tasks = named(settings)
    return f"tiny OPTs for {models}, templated sentences for {tasks}"


def over(settings: Settings) -> str:
    """Formats the models and tasks."""
    return " on ".join(named(settings))


def tuned_dimension(rows: Rows, model: str) -> int:
    """Returns d of the tuned model from a vector method's bytes, 8d; 0 if no such method ran."""
    found = [row for row in where(rows, quantity="bytes", model=model) if row["method"] not in SCALAR_ONLY]
    return int(found[0]["value"]) // 8 if found else 0


def cells_of(settings: Settings, rows: Rows) -> dict[str, Cell]:
    """Returns the models and tasks of the records by title; the title says if the model is a stand-in."""
    prefix = "" if settings.data else "tiny OPT for "
    found = dict.fromkeys((str(row["model"]), str(row["task"])) for row in rows)
    return {f"{prefix}{MODELS[model]}, {TASKS[task]}": {"model": model, "task": task} for model, task in found}


def place_of(method: str, cell: Cell) -> Place:
    """Returns the key of a method and a cell in the paper's tables."""
    return MODELS[cell["model"]], TASKS[cell["task"]], method


# Scores and bytes.


def best(rows: Rows, **conditions: str) -> np.ndarray:
    """Returns the best score, one number per seed."""
    found = where(rows, quantity="score", **conditions)
    return np.array([max(float(row["value"]) for row in where(found, seed=seed)) for seed in seeds_of(rows)])


def rounds_until(rows: Rows, target: np.ndarray, **conditions: str) -> tuple[np.ndarray, np.ndarray]:
    """Applies ``training.rounds_until`` to the score, with at least one round."""
    rounds, reached = training.rounds_until(where(rows, quantity="score", **conditions), target)
    return np.maximum(rounds, 1.0), reached


def rounds_until_best(rows: Rows, **conditions: str) -> np.ndarray:
    """Returns the rounds until the run's best score, one number per seed."""
    return rounds_until(rows, best(rows, **conditions), **conditions)[0]


def bytes_until_best(rows: Rows, **conditions: str) -> np.ndarray:
    """Returns a client's bytes until the run's best score, one number per seed."""
    return rounds_until_best(rows, **conditions) * by_seed(rows, quantity="bytes", **conditions)


def in_units(count: float) -> str:
    """Formats bytes in powers of 1,024, as the paper's KB seem to be: ``7.81 KB``."""
    for unit in ("B", "KB", "MB", "GB"):
        if count < 1024.0:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.2f} {unit}"
        count /= 1024.0
    return f"{count:.2f} TB"
