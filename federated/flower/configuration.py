"""The configurations of a run and of a node, which are checked before the first query.

Flower's configurations are flat: numbers, booleans and strings by name. Other values are strings in TOML: ``options``
and ``arguments`` are inline tables without braces; ``x0``, ``bounds`` and ``weights`` are values.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, Self

import torch
from torch import Tensor

from federated.core.algorithm import Algorithm, Gradient
from federated.engine.host import prepared
from federated.registry import algorithm_class
from optimizers.core.options import (
    check_choice,
    check_integer,
    nearest_name,
    option_names,
    positive,
    refuse_unknown,
)
from optimizers.evaluation import Evaluator

DTYPES = {"float64": torch.float64, "float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
EXAMPLES = {"x0": 'x0="[0.5, 0.9]"', "bounds": 'bounds="[0, 1]"', "weights": 'weights="[1, 2]"'}
"""Examples of TOML values in strings."""

PATH = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")
OBJECTS = {"prox", "update_rule"}
"""Options given by the import path of an object."""

NUMBER = {int: re.compile(r"-?\d+"), float: re.compile(r"-?\d+(\.\d+)?")}
"""Patterns of numbers that were put in quotes by mistake."""

KINDS = {str: "text", int: "a whole number", float: "a number", bool: "true or false"}
"""Names of types in messages."""

LARGE = 1_000_000
"""Dimension above which ``RunConfig.check`` does not create the initial point."""

PAIR = re.compile(r"(\S+?)=('[^']*'|\"[^\"]*\"|\S+)")
"""Flower's pattern of a pair in the texts of ``--run-config`` and ``--node-config``; it ignores other text."""

FORM = 'write pairs with spaces between them and text in quotes, as in \'rounds=3 algorithm="hiso" bounds="[0, 1]"\''


@dataclass(frozen=True)
class RunConfig:
    """The configuration of a run, shared by the server and all clients: Flower's ``--run-config``.

    There, names of several words have hyphens: ``local-steps=3``.

    Attributes:
        algorithm: a name in ``federated.registry.ALGORITHMS``.
        clients: N, the number of clients. The run begins when all have connected.
        rounds: R, the number of rounds.
        local_steps: T, the steps of a client in a round.
        seed: seed of the run.
        participation: clients sampled in a round: an integer is their number, a float a fraction of N.
        x0: initial point: a number for all coordinates, a list in quotes, or the import path of a tensor or of a
            function that returns one, which the server and all clients must be able to import.
        dimension: d, required if x0 is a number; 0 takes it from x0.
        dtype: dtype of an x0 that is a number or a list.
        bounds: ``"[0, 1]"`` for all coordinates, or a list of pairs; empty for none.
        weights: list of wᵢ, one for each client; empty for equal weights.
        options: options of the algorithm's class, and ``server_rate``, ``aggregation``, ``trim``, ``gate``, ``quorum``
            and ``prox``, as in ``"directions = 10, smoothing_radius = 0.1"`` or
            ``"curvature = {name = 'group_probe', groups = 3}"``; ``prox`` and ``update_rule`` are quoted import paths.
        fun: import path of F, which the server evaluates for the history; empty for none.
        timeout: seconds within which a client must reply, extended if replies take longer
            (``federated.flower.waiting``). Messages expire after it: the machines' clocks must differ by much less.
        wait: seconds without a new connection after which the run fails: before the first round if a client is
            missing, in a later round if all its clients are.
        keys: file on the server's machine with each client's node key (``federated.flower.keys``). May be empty without
            TLS, on one machine; nodes' claims are then trusted.
        output: folder on the server's machine for ``model.pt``, ``history.csv``, ``ledger.csv`` and the checkpoint
            ``federation.pt``, saved after each round; empty for none. A run is refused if the folder contains a
            checkpoint other than that of ``resume``.
        resume: checkpoint to resume from. Clients begin without a state, because Flower deletes a run's client states.
    """

    algorithm: str = "fedzo"
    clients: int = 2
    rounds: int = 10
    local_steps: int = 10
    seed: int = 0
    participation: float | int = 1.0
    x0: str = "0.0"
    dimension: int = 0
    dtype: str = "float64"
    bounds: str = ""
    weights: str = ""
    options: str = ""
    fun: str = ""
    timeout: float = 600.0
    wait: float = 120.0
    keys: str = ""
    output: str = ""
    resume: str = ""

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Self:
        """Creates the configuration from a context's ``run_config``.

        Raises:
            ValueError, TypeError: if a name is unknown, or a value is out of range or has another type.
        """
        x0 = given.get("x0")
        if type(x0) in (int, float):
            given = {**given, "x0": repr(x0)}
        config = cls(**_fields(cls, given, "run config"))
        for name in ("rounds", "dimension"):
            check_integer(name, getattr(config, name), 0)
        for name in ("timeout", "wait"):
            positive(name, getattr(config, name))
        return config

    def make_algorithm(self) -> Algorithm:
        """Creates the algorithm with its options.

        Raises:
            ValueError, TypeError: if the algorithm refuses an option, a text is not valid TOML, or an import fails.
        """
        options = self._options()
        for name in sorted(options.keys() & OBJECTS):
            options[name] = imported(options[name], f"option {name}")
        options |= {name: getattr(self, name) for name in ("clients", "local_steps", "seed", "participation")}
        x0, bounds, weights = self._point(), _value("bounds", self.bounds), _value("weights", self.weights)
        if bounds is not None and len(bounds) == 2 and not any(isinstance(b, list) for b in bounds):
            bounds = [bounds] * x0.numel()
        return algorithm_class(self.algorithm)(x0, bounds=bounds, weights=weights, **options)

    def check(self) -> None:
        """Checks the configuration where the run is submitted, without importing the paths in it.

        If an option or x0 is an import path, or x0 is large, the algorithm is not created: only the syntax of the
        strings and the names of the options are checked.

        Raises:
            ValueError, TypeError: as ``make_algorithm``, or if a text is not an import path.
        """
        algorithm, options = algorithm_class(self.algorithm), self._options()
        objects = sorted(options.keys() & OBJECTS)
        for name in objects:
            check_path(options[name], f"option {name}")
        if self.fun:
            check_path(self.fun, "fun")
        at_hand = not PATH.fullmatch(self.x0) and self.dimension <= LARGE
        if at_hand and not objects:
            self.make_algorithm()
            return
        refuse_unknown(algorithm, sorted(options.keys() - option_names(algorithm)))
        for name in ("bounds", "weights"):
            _value(name, getattr(self, name))
        if at_hand:
            self._point()

    def global_function(self) -> Callable[[Tensor], Any] | None:
        """Returns F, or None if its path is not given."""
        return imported(self.fun, "fun") if self.fun else None

    def _options(self) -> dict[str, Any]:
        options = _table("options", self.options)
        if reserved := options.keys() & {field.name for field in dataclasses.fields(self)}:
            raise ValueError(f"options contain {sorted(reserved)}, which are keys of the run config itself")
        return options

    def _point(self) -> Tensor:
        if PATH.fullmatch(self.x0):
            found = imported(self.x0, "x0")
            return torch.as_tensor(found() if callable(found) else found)
        dtype, given = DTYPES[check_choice("dtype", self.dtype, DTYPES)], _value("x0", self.x0)
        if isinstance(given, list):
            if self.dimension not in (0, len(given)):
                raise ValueError(f"x0 has {len(given)} coordinates, but dimension is {self.dimension}")
            return torch.tensor(given, dtype=dtype)
        if isinstance(given, bool) or not isinstance(given, int | float):
            raise TypeError(f"x0 must be a number, a list or an import path, got {self.x0!r}")
        if self.dimension == 0:
            raise ValueError("x0 is a number for all coordinates: add the dimension, as in dimension=10")
        return torch.full((self.dimension,), float(given), dtype=dtype)


@dataclass(frozen=True)
class NodeConfig:
    """The configuration of a client, known to its node only: Flower's ``--node-config``.

    Attributes:
        client: the client's number, 0 … N − 1.
        objective: import path of the client's function of one point, ``"package.module:name"``.
        arguments: if given, the path leads to a function or class, which is called with these arguments and returns the
            objective, as in ``"center = 0.5, scale = 2"``; ``" "`` means no arguments.
        numpy: whether the objective receives NumPy arrays instead of tensors.
        batched: whether the objective receives all points of a batch at once.
        on_failure: ``"skip"``, ``"retry"`` or ``"raise"``; see ``optimizers.Evaluator``.
        retries: additional evaluations of a failed point, with ``"retry"``.
        ledger: folder of the client's own ledger; empty means ``ledgers`` in Flower's folder (``FLWR_HOME``).
    """

    client: int = -1
    objective: str = ""
    arguments: str = ""
    numpy: bool = False
    batched: bool = False
    on_failure: str = "skip"
    retries: int = 1
    ledger: str = ""

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Self:
        """Creates the configuration from a context's ``node_config``.

        Raises:
            ValueError, TypeError: if a name is unknown, a value has another type, or client or objective is missing.
        """
        config = cls(**_fields(cls, {name.replace("_", "-"): value for name, value in given.items()}, "node config"))
        if config.client < 0:
            raise ValueError("the node config names no client: add client=0, client=1, …")
        if not config.objective:
            raise ValueError('the node config names no objective: add objective="package.module:name"')
        return config

    def check(self) -> None:
        """Checks the configuration where the node starts, without importing the objective.

        Raises:
            ValueError: if the objective is not an import path, or the arguments are not a TOML table.
        """
        check_path(self.objective, "objective")
        _table("arguments", self.arguments)

    def prepared(self, algorithm: Algorithm) -> tuple[Mapping[int, Evaluator], Mapping[int, Gradient]]:
        """Returns mappings from the client's number to its evaluator and, if the algorithm needs it, its gradient.

        Raises:
            ValueError, TypeError: if the path cannot be imported, or as ``engine.host.prepared``.
        """
        found = imported(self.objective, "objective")
        if self.arguments:
            found = found(**_table("arguments", self.arguments))
        options = {name: getattr(self, name) for name in ("numpy", "batched", "on_failure", "retries")}
        return prepared(algorithm, {self.client: found}, **options)

    def ledger_folder(self) -> Path:
        """Returns the folder of the client's own ledger."""
        home = os.environ.get("FLWR_HOME") or Path.home() / ".flwr"
        return Path(self.ledger).expanduser() if self.ledger else Path(home) / "ledgers"


def check_config(cls: type[RunConfig] | type[NodeConfig], texts: Sequence[str]) -> dict[str, Any]:
    """Returns a configuration's values by key, after ``cls.check``.

    Each text has pairs ``key=value``, or the only text is the path of a TOML file. ``ValueError`` if a text cannot be
    parsed or contains more than pairs, or a key or value is refused.
    """
    try:
        given = _pairs_in(texts)
    except (OSError, ValueError) as error:
        raise ValueError(f"the configuration {' '.join(texts)!r} cannot be read: {error}; {FORM}") from error
    try:
        cls.of(given).check()
    except TypeError as error:
        raise ValueError(str(error)) from error
    return given


def imported(path: Any, what: str) -> Any:
    """Imports the object at a path ``"package.module:name"``; ``what`` is its role, for messages.

    Raises:
        ValueError: if the path has another form, or the import fails.
    """
    check_path(path, what)
    try:
        return resolve_name(path)
    except Exception as error:
        raise ValueError(f"{what} {path!r} cannot be imported: {type(error).__name__}: {error}") from error


def check_path(path: Any, what: str) -> None:
    """Raises ``ValueError`` for a text that is not an import path ``"package.module:name"``."""
    if not isinstance(path, str) or not PATH.fullmatch(path):
        raise ValueError(f'{what} must be an import path "package.module:name", got {path!r}')


def keys(cls: type[RunConfig] | type[NodeConfig]) -> dict[str, Any]:
    """Returns a configuration's keys, with hyphens as in Flower, and their defaults."""
    return {field.name.replace("_", "-"): field.default for field in dataclasses.fields(cls)}


def _pairs_in(texts: Sequence[str]) -> dict[str, Any]:
    if len(texts) == 1 and texts[0].endswith(".toml"):
        return tomllib.loads(Path(texts[0]).expanduser().read_text(encoding="utf-8"))
    given: dict[str, Any] = {}
    for text in texts:
        if rest := PAIR.sub("", text).strip():
            raise ValueError(f"{rest!r} is not part of a pair key=value")
        given |= tomllib.loads("\n".join(map("=".join, PAIR.findall(text))))
    return given


def _fields(cls: type[RunConfig] | type[NodeConfig], given: Mapping[str, Any], what: str) -> dict[str, Any]:
    """Returns the values by field name, after checking that they have the types of the fields' defaults."""
    defaults = keys(cls)
    for name, value in given.items():
        if name not in defaults:
            raise ValueError(f"{what} {name!r} is unknown{nearest_name(name, defaults)}")
        wanted = type(defaults[name])
        fits = type(value) is wanted or (wanted is float and type(value) is int)
        if not fits or (isinstance(value, float) and not math.isfinite(value)):
            raise TypeError(f"{what} {name} must be {KINDS[wanted]}, got {value!r}{_correction(name, wanted, value)}")
    return {name.replace("-", "_"): value for name, value in given.items()}


def _correction(name: str, wanted: type, value: Any) -> str:
    """Returns how to write a value of another type, if that is clear."""
    if wanted is str and isinstance(value, bool | int | float | list):
        text = json.dumps(value, default=str)
        return f": write {name}='{text}'" if '"' in text else f': write {name}="{text}"'
    if wanted in (int, float) and isinstance(value, str) and NUMBER[wanted].fullmatch(value.strip()):
        return f": write {name}={value.strip()}"
    return ""


def _value(name: str, text: str) -> Any:
    """Returns the value of a TOML text; None if the text is empty."""
    if not text.strip():
        return None
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"{name} is not a TOML value, as in {EXAMPLES[name]}: {text!r} ({error})") from None


def _table(name: str, text: str) -> dict[str, Any]:
    """Returns the table whose inside is a TOML text."""
    try:
        return dict(tomllib.loads(f"table = {{{text}}}")["table"])
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"{name} must read like 'first = 1, second = \"text\"', got {text!r} ({error})") from None
