"""A federated algorithm: its options and phases, and its server and client.

**A new algorithm** is a file of its own, registered by a line in ``federated/registry.py``, with three classes::

    class FedZO(Algorithm):                      # options; the same object on the server and on every client
        name = "fedzo"                           # raise `version` if messages or states change their meaning
        server_class, client_class = FedZOServer, FedZOClient

        def __init__(self, x0, *, directions: int = 20, **common: Unpack[FederatedOptions]):
            self.directions = directions         # store every option under its name, before super().__init__,
            super().__init__(x0, **common)       # which sets x0, clients, seed, weights, dimension

        def broadcasts(self, phase): return MessageSpec({"x": self.vector})   # a phase's message to clients
        def reports(self, phase): return MessageSpec({"x": self.vector})      # a client's message; others are refused
        def max_points(self, phase): return 210                              # bounds the queries a client can claim

    class FedZOServer(Server):
        def _start(self): self.state = ServerState(self.algorithm.x0)         # one dataclass; `x` is the model
        def _broadcast(self, phase, client): return {"x": self.state.x}       # tensors; must not change the state
        def _aggregate(self, phase, reports): ...                             # {client: Report}, all valid

    class FedZOClient(Client):
        def _start(self): self.optimizer = ...                                # an `optimizers.Optimizer`
        def _receive(self, phase, message): ...                               # prepares the optimizer for the phase
        def _busy(self, phase): return ...                                    # whether queries remain to be asked
        def _report(self, phase): return {"x": self.optimizer.x}              # tensors; must not change the state

- **Phases.** ``phases`` names the exchanges of a round, by default ``("local",)``; a constructor may set it. A phase
  consists of a broadcast, the clients' queries and their reports. Clients with an accepted report take part in the next
  phase.
- **Messages** contain tensors by name, and numbers or strings as ``values``, from ``_broadcast_values`` or
  ``_report_values``. ``payload_bytes`` counts tensors only: send the data that a paper counts as communication as
  tensors, and verification data, such as digests, as values. The base class checks each message against its
  specification, and its round, phase, sender and fingerprint. ``Server._check`` is for an algorithm's own checks; it
  raises ``MessageError`` with the reason.
- **Gate.** Reports that are far longer than the others are excluded before ``_aggregate`` (``federated.core.gate``). A
  tensor ``x`` is measured from the server's model; tensors named in ``ungated`` are not measured.
- **Skipped rounds.** If no report of a phase can be used, the base class skips the round: it calls ``_skipped(phase)``,
  which may repair the state, instead of ``_aggregate``. ``_aggregate`` may raise ``RoundSkipped`` before any change.
- **State.** ``self.state`` of server or client is one dataclass, saved by ``optimizers.core.state`` (tensors, numbers,
  strings, lists, dicts, objects with ``state_dict``). A client's optimizer is saved too, so a client class often needs
  no ``state``. ``_aggregate`` assigns a new dataclass and modifies no tensor in place.
- **Queries** are made and counted by the client's optimizer, constructed with ``common_options()``. Address directions
  by round and step, so that a client that lost its state draws new ones. ``_report`` raises ``NoReportError`` if there
  is nothing to report, for example because all queries failed.
- **Acceptance.** An algorithm that sends x in each round may set ``self.asks_acceptance``, as FedZO's option ``accept``
  does. The base class then adds a phase in which clients report their values; if F did not fall, ``Server._take_back``
  restores x.
- **Learning rate.** An algorithm with local steps may set ``self.settles``, as FedZO's option ``rate_schedule`` does.
  The base class then adds η/η₀ to the values of a round's first broadcast, where ``settling.rate_in`` reads it.
- **Catching up.** If a client's state is too old for a broadcast, ``_receive`` raises ``BehindError`` before it changes
  anything. The engine passes ``Client._position`` to the server and ``Server._catch_up`` to ``Client._catch_up``, and
  then repeats the broadcast. Specify the two messages as phases ``"position"`` and ``"catch_up"``, and set ``personal =
  True`` if broadcasts differ between clients.
- **Configuration.** ``configuration`` describes every option; ``_configuration`` adds other data that server and
  clients must share, such as the fingerprint of Fourier features.
- **Randomness** is addressed by seed, round and step, as in ``optimizers``; no global generator is used.
- **Tests.** ``federated.testing.check_algorithm`` tests these requirements.
"""

from __future__ import annotations

import hashlib
import json
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, ClassVar, Required, TypedDict, TypeVar

import torch
from torch import Tensor

from federated.core.aggregation import AGGREGATIONS, WEIGHTED
from federated.core.configuration import check_weights, count_of, describe_option, real_number
from federated.core.messages import Broadcast, Message, MessageError, MessageSpec, TensorSpec
from optimizers.core.bounds import BoundsLike, parse_bounds
from optimizers.core.options import (
    ProxLike,
    check_choice,
    check_integer,
    check_prox,
    option_names,
    positive,
    positive_integer,
    refuse_unknown,
)
from optimizers.core.state import check_match
from optimizers.core.values import parse_point
from optimizers.directions.directions import MAX_STEP, Directions

UNLIMITED = 1 << 62
"""Budget of a client's optimizer; the number of rounds limits a federation."""

MOST_RETRIES = 100
"""Maximal number of additional evaluations of a failed point that a client may claim."""

ACCEPT = "accept"
"""Name of the phase added by ``asks_acceptance``; see ``federated.core.acceptance``."""

Gradient = Callable[[Tensor], Any]
M = TypeVar("M", bound=Message)


class FederatedOptions(TypedDict, total=False):
    """Options of every algorithm, documented in ``Algorithm``."""

    clients: Required[int]
    local_steps: int
    seed: int
    participation: float | int
    weights: Sequence[float] | None
    bounds: BoundsLike | None
    prox: ProxLike | None
    server_rate: float
    aggregation: str
    trim: float
    gate: float
    quorum: float | int


class RoundSkipped(Exception):
    """Raised by ``Server._aggregate`` if the reports cannot be used; the round is skipped with this reason."""


class NoReportError(RuntimeError):
    """Raised, with the reason, if a client has nothing to report in a phase."""


class Algorithm(ABC):
    """Options of a federated algorithm that minimizes F(x) = Σᵢ pᵢ fᵢ(x) (+ ψ), pᵢ = wᵢ/Σw.

    Args:
        x0: the server's initial point, shape ``d``; messages and states have its floating dtype and device.
        clients: N, the number of clients.
        local_steps: T, the steps of a client in a round.
        seed: seed of every random number, 0 ≤ seed < 2⁶⁴.
        participation: clients sampled in a round: an integer is their number, a float a fraction of N.
        weights: wᵢ > 0, one for each client; None means equal weights.
        bounds: box constraints on every iterate and query.
        prox: proximal operator of ψ, applied by clients after each local step. The mean of proximal points is feasible
            if ψ is the indicator of a convex set, but lacks the exact zeros that an L1 prox gives.
        server_rate: η_s of the server's step x ← x + η_s (mean − x), which is then projected onto the bounds.
        aggregation: ``"mean"``, ``"norm_clipping"``, ``"multi_krum"``, or the coordinate-wise and unweighted
            ``"median"`` and ``"trimmed_mean"``; see ``federated.core.aggregation``.
        trim: fraction of reports, in [0, 1/2), removed at each end (``"trimmed_mean"``) or in total (``"multi_krum"``).
        gate: maximal length of a report relative to the usual length (``federated.core.gate``), above 1; inf: no gate.
        quorum: the least number of reports in a phase; with fewer the round is skipped. An integer is the number, a
            float a fraction of the sampled clients.

    Raises:
        TypeError: if an option's name is unknown, or a value has another type.
        ValueError: if an argument is out of range, or a sample is larger than the federation.
    """

    name: ClassVar[str]
    version: ClassVar[int] = 1
    server_class: ClassVar[type[Any]]
    client_class: ClassVar[type[Any]]
    needs_gradient: ClassVar[bool] = False
    personal: ClassVar[bool] = False
    ungated: frozenset[str] = frozenset()
    asks_acceptance: bool = False
    settles: bool = False
    phases: tuple[str, ...] = ("local",)

    def __init__(
        self,
        x0: Any,
        *,
        clients: int,
        local_steps: int = 10,
        seed: int = 0,
        participation: float | int = 1.0,
        weights: Sequence[float] | None = None,
        bounds: BoundsLike | None = None,
        prox: ProxLike | None = None,
        server_rate: float = 1.0,
        aggregation: str = "mean",
        trim: float = 0.1,
        gate: float = 100.0,
        quorum: float | int = 1,
        **unknown: Any,
    ) -> None:
        refuse_unknown(type(self), unknown)
        self.x0 = parse_point(x0)
        self.clients, self.seed = positive_integer("clients", clients), check_integer("seed", seed, 0, 2**64)
        self.local_steps = positive_integer("local_steps", local_steps)
        self.participation = participation
        self.participants = count_of("participation", participation, self.clients, lambda n: math.floor(n + 0.5))
        self.weights = check_weights(weights, self.clients)
        check_prox(prox, bounds is not None, None)
        self.bounds, self.prox = bounds, prox
        self.box = None if bounds is None else parse_bounds(bounds, self.x0)
        self.server_rate = positive("server_rate", server_rate)
        if prox is not None and self.server_rate > 1.0:
            raise ValueError(f"server_rate must be at most 1 with a prox, so that x stays feasible, got {server_rate}")
        self.aggregation = check_choice("aggregation", aggregation, AGGREGATIONS)
        if self.aggregation not in WEIGHTED and len(set(self.weights)) > 1:
            raise ValueError(f"aggregation {aggregation!r} ignores weights: pass equal weights or None")
        self.trim, self.gate, self.quorum = real_number("trim", trim), real_number("gate", gate), quorum
        if not 0.0 <= self.trim < 0.5:
            raise ValueError(f"trim must be in [0, 0.5), got {trim}")
        if not self.gate > 1.0:
            raise ValueError(f"gate must be greater than 1, got {gate}: math.inf disables it")
        self.needed = count_of("quorum", quorum, self.participants, math.ceil)

    # For subclasses to implement.

    @abstractmethod
    def broadcasts(self, phase: str) -> MessageSpec:
        """Returns the specification of a phase's broadcast."""

    @abstractmethod
    def reports(self, phase: str) -> MessageSpec:
        """Returns the specification of a client's report in a phase."""

    def max_points(self, phase: str) -> int | None:
        """Returns the maximal number of points that a client evaluates in a phase; None if unknown."""
        return None

    def _configuration(self) -> dict[str, Any]:
        """Returns data, other than options, that server and clients must share, as plain values."""
        return {}

    # For servers and clients.

    @property
    def max_client_queries(self) -> float:
        """Maximal number of queries that a client may claim in a phase, including retries; infinity if unknown."""
        points = [2 if phase == ACCEPT else self.max_points(phase) for phase in self.exchanges]
        return (1 + MOST_RETRIES) * max(math.inf if count is None else count for count in points)

    def check_spent(self, phase: str, queries: int, failures: int, gradients: int) -> None:
        """Raises ``MessageError`` if a client claims more queries or gradients than a phase can take."""
        most = 2 if phase == ACCEPT else self.max_points(phase)
        if most is None:
            return
        if queries - failures > most or queries > (1 + MOST_RETRIES) * most or gradients > most:
            claimed = f"{queries} queries, of which {failures} failed, and {gradients} gradients are claimed"
            raise MessageError(
                f"{claimed}, but phase {phase!r} has at most {most} points with {MOST_RETRIES} retries each"
            )

    @property
    def dimension(self) -> int:
        """The dimension d."""
        return self.x0.numel()

    @property
    def last_round(self) -> int:
        """The largest allowed round: each round uses T + 1 of the ``MAX_STEP`` direction addresses."""
        return MAX_STEP // (self.local_steps + 1) - 1

    @property
    def vector(self) -> TensorSpec:
        """Specification of a vector with the model's shape ``d`` and dtype."""
        return TensorSpec((self.dimension,), self.x0.dtype)

    @property
    def exchanges(self) -> tuple[str, ...]:
        """Names of a round's phases, including the acceptance phase."""
        return self.phases + ((ACCEPT,) if self.asks_acceptance else ())

    @property
    def state_vectors(self) -> dict[str, TensorSpec]:
        """Specifications, by name, of the tensors in a state that are None in a new state."""
        return dict.fromkeys(("x", "before", "control", "correction"), self.vector)

    def search(self, x: Tensor) -> Tensor:
        """Converts a point from user units to the coordinates in which clients search."""
        return x

    def specification(self, kind: type[Message], phase: str) -> MessageSpec:
        """Returns the specification of a phase's ``Broadcast`` or ``Report``, including the acceptance phase."""
        if phase != ACCEPT:
            spec = self.broadcasts(phase) if kind is Broadcast else self.reports(phase)
            if self.settles and kind is Broadcast and phase == self.phases[0]:
                return replace(spec, values={**spec.values, "rate": float})
            return spec
        if kind is Broadcast:
            return MessageSpec({"x": self.vector, "previous": self.vector}, optional=frozenset({"previous"}))
        value = self.scalars(1, torch.float64)
        return MessageSpec({"value": value, "previous_value": value}, optional=frozenset({"previous_value"}))

    def scalars(self, count: int, dtype: torch.dtype | None = None) -> TensorSpec:
        """Returns the specification of a vector of ``count`` numbers; its dtype is the model's by default."""
        return TensorSpec((count,), dtype or self.x0.dtype)

    def common_options(self, number: int) -> dict[str, Any]:
        """Returns the options of a client's optimizer that are determined by the federation."""
        given = {"bounds": self.bounds, "prox": self.prox, "seed": client_seed(self.seed, number)}
        off = dict.fromkeys(("rescale", "track_best", "store_values"), False)
        return {"max_queries": UNLIMITED, "max_failures": None} | given | off

    def message(self, kind: type[M], round_number: int, phase: str, tensors: Any, values: Any, **others: Any) -> M:
        """Creates a ``Broadcast`` or ``Report`` with tensors, values and other fields by name."""
        sender = {"algorithm": self.name, "fingerprint": self.fingerprint}
        return kind(**sender, round=round_number, phase=phase, tensors=dict(tensors), values=dict(values), **others)

    def server(self) -> Any:
        """Creates a server whose model is x0."""
        return self.server_class(self)

    def client(self, number: int, gradient: Gradient | None = None) -> Any:
        """Creates client i = ``number``; ``gradient`` is ∇fᵢ, required if ``needs_gradient``."""
        return self.client_class(self, number, gradient)

    @cached_property
    def configuration(self) -> dict[str, Any]:
        """Everything that server and clients must agree on, as plain values, except x0, which the server sends."""
        names = sorted(option_names(type(self)))
        options = {name: describe_option(name, getattr(self, name)) for name in names}
        fixed = {"algorithm": self.name, "version": self.version, "directions_generator": Directions.generator}
        fixed |= {"dimension": self.dimension, "dtype": str(self.x0.dtype)}
        return fixed | options | self._configuration()

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of the configuration, in hexadecimal."""
        return hashlib.sha256(json.dumps(self.configuration, sort_keys=True).encode()).hexdigest()

    def check_configuration(self, theirs: Mapping[str, Any], whose: str = "the other party") -> None:
        """Raises ``ValueError`` for the first option in which another party's configuration differs."""
        check_match(theirs, self.configuration, whose, "this federation")


def client_seed(seed: int, number: int) -> int:
    """Returns the seed of a client's optimizer: 64 bits of the SHA-256 of the run's seed and the client's number."""
    digest = hashlib.sha256(f"client {number} of {seed}".encode()).digest()
    return int.from_bytes(digest[:8], "little")
