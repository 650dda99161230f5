"""A federated algorithm: its options and phases, and the makers of its two halves.

**A new algorithm** is a file of its own, registered by a line in ``federated/registry.py``, with three classes::

    class FedZO(Algorithm):                      # options; the same object on the server and on every client
        name = "fedzo"                           # `version` is raised when messages or states change meaning
        server_class, client_class = FedZOServer, FedZOClient

        def __init__(self, x0, *, directions: int = 20, **common: Unpack[FederatedOptions]):
            self.directions = directions         # every option is kept under its own name, before super().__init__
            super().__init__(x0, **common)       # which sets x0, clients, seed, weights, dimension

        def broadcasts(self, phase): return MessageSpec({"x": self.vector})   # what goes down in a phase
        def reports(self, phase): return MessageSpec({"x": self.vector})      # what comes up; others are refused
        def most_points(self, phase): return 210                              # what a client may claim to have queried

    class FedZOServer(Server):
        def _start(self): self.state = ServerState(self.algorithm.x0)         # one dataclass; `x` is the model
        def _broadcast(self, phase, client): return {"x": self.state.x}       # tensors; CHANGES NO STATE
        def _aggregate(self, phase, reports): ...                             # {client: Report}, all valid

    class FedZOClient(Client):
        def _start(self): self.optimizer = ...                                # an `optimizers.Optimizer`
        def _receive(self, phase, message): ...                               # set the optimizer up for the phase
        def _busy(self, phase): return ...                                    # whether it has queries left to ask
        def _report(self, phase): return {"x": self.optimizer.x}              # tensors; CHANGES NO STATE

- **Phases.** ``phases`` names a round's exchanges, ``("local",)`` by default; a constructor may set it. In each phase a
  broadcast goes down, clients query, and a report comes up. Clients whose report was accepted take part in the next
  phase. What a phase has sent is known in the next and not sent again.
- **Messages** hold tensors by name, and plain ``values`` (numbers, strings) from ``_broadcast_values`` or
  ``_report_values``. ``payload_bytes`` counts the tensors: send what a paper counts as tensors, and what proves
  something, such as a digest, as values. The base checks names, shapes, dtypes and finiteness against the
  specifications, and round, phase, participation and the configuration's fingerprint. An algorithm's own checks go
  into ``Server._check``, which raises ``MessageError`` with the reason.
- **The gate** leaves out reports that are far longer than the others before they reach ``_aggregate``
  (``federated.core.gate``). A tensor ``x`` is taken for an iterate, and measured from the server's model; ``ungated``
  names tensors that are not looked at, because nothing that they hold can do harm.
- **Skipped rounds.** If all reports of a phase fail, the base skips the round: it does not call ``_aggregate``, and
  calls ``_skipped(phase)``, which may mend the state. ``_aggregate`` may raise ``RoundSkipped(reason)`` itself,
  before it changes anything.
- **State.** ``self.state`` of a half is one dataclass, saved as ``optimizers.core.state`` says (tensors, numbers,
  strings, lists, dicts, objects with ``state_dict``), a client's beside its optimizer. A client whose optimizer holds
  everything has none. ``_aggregate`` assigns a new dataclass and writes to no tensor in place.
- **Queries** are asked and counted by the client's optimizer, which is made with ``common_options()``: no limit on
  queries or failures, no best point, no list of values, and the client's own seed. Directions are best addressed by
  round and step, so that a client that lost its state draws new ones. A client without anything to report, such as one
  whose queries all failed, raises ``NoReportError`` in ``_report``.
- **Acceptance.** An algorithm whose clients receive x each round may set ``self.asks_acceptance``, as FedZO does by its
  option ``accept``. The base then adds a phase in which clients say whether F fell, and where it did not puts x back by
  ``Server._take_back``.
- **Rates.** An algorithm of local steps may set ``self.settles``, as FedZO does by its option ``rate``. The base then
  adds η/η₀ to the values of a round's first broadcast, which ``settling.rate_in`` reads.
- **Catching up.** A client that cannot follow a broadcast because its state is of an older round raises
  ``BehindError`` in ``_receive``, before it changes anything. The engine then carries ``Client._position`` to the
  server and ``Server._catch_up`` to ``Client._catch_up``, and delivers the broadcast again. The specifications of the
  two messages are those of the phases ``"position"`` and ``"catch_up"``. ``personal = True`` if broadcasts differ
  between clients.
- **Configuration.** ``configuration`` describes every option; ``_configuration`` adds what both halves must share
  beyond them, such as the fingerprint of Fourier features.
- **Randomness** is addressed by seed, round and step as in ``optimizers``; nothing reads a global generator.
- **Tests.** ``federated.testing.check_algorithm`` holds an algorithm to all of this.
"""

from __future__ import annotations

import hashlib
import json
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, ClassVar, Required, TypedDict

import torch
from torch import Tensor

from federated.core.aggregation import AGGREGATIONS, WEIGHTED
from federated.core.configuration import check_weights, describe_option, participants_per_round, reports_needed
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
from optimizers.core.values import parse_point
from optimizers.directions.directions import MAX_STEP, Directions

UNLIMITED = 1 << 62
"""The budget of a client's optimizer: a federation ends by its rounds."""

MOST_RETRIES = 100
"""Evaluations of a failed point beyond the first that a client may claim."""

ACCEPT = "accept"
"""Name of the phase that ``asks_acceptance`` adds; see ``federated.core.acceptance``."""

Gradient = Callable[[Tensor], Any]


class FederatedOptions(TypedDict, total=False):
    """The options that every algorithm takes; ``Algorithm`` documents them."""

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
    """``Server._aggregate`` cannot use the reports; the round is skipped with this reason."""


class NoReportError(RuntimeError):
    """A client has nothing to report in a phase, with the reason."""


class Algorithm(ABC):
    """Options of a federated algorithm that minimizes F(x) = Σᵢ pᵢ fᵢ(x) (+ ψ), pᵢ = wᵢ/Σw.

    Args:
        x0: the server's initial point, shape ``d``; all messages and states have its floating dtype and device.
        clients: N, the number of clients.
        local_steps: T, the steps of a client in a round.
        seed: seed of every random number, 0 ≤ seed < 2⁶⁴.
        participation: how many clients a round samples: an integer is their number, a float their share of N.
        weights: wᵢ > 0, one for each client; None stands for equal weights.
        bounds: the box that every iterate and query stays in.
        prox: proximal operator of ψ, which clients apply after each local step. The mean of proximal points is
            feasible if ψ is the indicator of a convex set, but has not the zeros that an L1 prox makes.
        server_rate: η_s of the server's step x ← x + η_s (mean − x), which is then projected onto the bounds.
        aggregation: ``"mean"``, ``"norm_clipping"`` or ``"multi_krum"``, or ``"median"`` or ``"trimmed_mean"``, which
            are coordinate-wise and unweighted; see ``federated.core.aggregation``.
        trim: the share that ``"trimmed_mean"`` leaves out at each end, and ``"multi_krum"`` in all, in [0, 1/2).
        gate: how many times as long as usual a report may be that is used, over 1; see ``federated.core.gate``.
            Infinity lets all pass.
        quorum: the reports that each phase of a round needs, without which the round is skipped: an integer is their
            number, a float their share of the clients that the round samples.

    Raises:
        TypeError: if an option is misspelt, with the nearest name.
        ValueError: if an argument is out of range, or a sample larger than the federation.
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
        self.participants = participants_per_round(participation, self.clients)
        self.weights = check_weights(weights, self.clients)
        check_prox(prox, bounds is not None, None)
        self.bounds, self.prox = bounds, prox
        self.box = None if bounds is None else parse_bounds(bounds, self.x0)
        self.server_rate = positive("server_rate", server_rate)
        if prox is not None and self.server_rate > 1.0:
            raise ValueError(f"server_rate over 1 leaves the convex hull that a prox needs, got {server_rate}")
        self.aggregation = check_choice("aggregation", aggregation, AGGREGATIONS)
        if self.aggregation not in WEIGHTED and len(set(self.weights)) > 1:
            raise ValueError(f"aggregation {aggregation!r} heeds no weights: leave them equal")
        if not 0.0 <= trim < 0.5:
            raise ValueError(f"trim must be from 0 to under 0.5, got {trim}")
        self.trim = float(trim)
        if not gate > 1.0:
            raise ValueError(f"gate must be over 1, got {gate}: math.inf lets all reports pass")
        self.gate, self.quorum = float(gate), quorum
        self.needed = reports_needed(quorum, self.participants)

    # What an algorithm says.

    @abstractmethod
    def broadcasts(self, phase: str) -> MessageSpec:
        """The specification of a phase's broadcast."""

    @abstractmethod
    def reports(self, phase: str) -> MessageSpec:
        """The specification of a client's report of a phase."""

    def most_points(self, phase: str) -> int | None:
        """The most points that a client evaluates in a phase, which bounds the queries it may claim; None: unknown."""
        return None

    def _configuration(self) -> dict[str, Any]:
        """What both halves must share beyond the options, in plain values."""
        return {}

    # What its halves use.

    @property
    def most_queries(self) -> float:
        """The most queries that a client may claim for a phase, retries included; infinity where that is unknown."""
        points = [2 if phase == ACCEPT else self.most_points(phase) for phase in self.exchanges]
        return (1 + MOST_RETRIES) * max(math.inf if count is None else count for count in points)

    def check_spent(self, phase: str, queries: int, failures: int, gradients: int) -> None:
        """Raises ``MessageError`` where a client claims more than a phase can take: a retry follows a failed query."""
        most = 2 if phase == ACCEPT else self.most_points(phase)
        if most is None:
            return
        if queries - failures > most or queries > (1 + MOST_RETRIES) * most or gradients > most:
            raise MessageError(
                f"{queries} queries, {failures} of them failed, and {gradients} gradients are claimed, "
                f"phase {phase!r} has up to {most} points and {MOST_RETRIES} retries of each"
            )

    @property
    def dimension(self) -> int:
        """The dimension d."""
        return self.x0.numel()

    @property
    def last_round(self) -> int:
        """The last round whose directions have addresses of their own, T + 1 a round."""
        return MAX_STEP // (self.local_steps + 1) - 1

    @property
    def vector(self) -> TensorSpec:
        """Specification of a vector like the model: shape ``d``, in its dtype."""
        return TensorSpec((self.dimension,), self.x0.dtype)

    @property
    def exchanges(self) -> tuple[str, ...]:
        """The names of a round's phases, including the one that ``asks_acceptance`` adds."""
        return self.phases + ((ACCEPT,) if self.asks_acceptance else ())

    @property
    def state_vectors(self) -> dict[str, TensorSpec]:
        """Specifications of tensors that the halves' states have by these names, and that a new state may lack."""
        return dict.fromkeys(("x", "before", "control", "correction"), self.vector)

    def search(self, x: Tensor) -> Tensor:
        """A point of user units in the coordinates that clients search."""
        return x

    def specification(self, kind: type[Message], phase: str) -> MessageSpec:
        """The specification of a ``Broadcast`` or ``Report`` of a phase, also of that which acceptance adds."""
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
        """Specification of a vector of ``count`` numbers, in the model's dtype unless another is given."""
        return TensorSpec((count,), dtype or self.x0.dtype)

    def common_options(self, number: int) -> dict[str, Any]:
        """The options of a client's optimizer that follow from the federation's."""
        return {
            "max_queries": UNLIMITED,
            "bounds": self.bounds,
            "prox": self.prox,
            "seed": client_seed(self.seed, number),
            "max_failures": None,
            "rescale": False,
            "track_best": False,
            "store_values": False,
        }

    def server(self) -> Any:
        """A new server, at x0."""
        return self.server_class(self)

    def client(self, number: int, gradient: Gradient | None = None) -> Any:
        """A new client i, given its number i, 0 … N − 1, and ∇fᵢ if the algorithm has ``needs_gradient``."""
        return self.client_class(self, number, gradient)

    @cached_property
    def configuration(self) -> dict[str, Any]:
        """All that server and clients must agree on, in plain values; not x0, which the server sends."""
        names = sorted(option_names(type(self)))
        options = {name: describe_option(name, getattr(self, name)) for name in names}
        fixed = {
            "algorithm": self.name,
            "version": self.version,
            "dimension": self.dimension,
            "dtype": str(self.x0.dtype),
            "directions_generator": Directions.generator,
        }
        return fixed | options | self._configuration()

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of the configuration, in hexadecimal."""
        text = json.dumps(self.configuration, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()

    def check_configuration(self, theirs: Mapping[str, Any], whose: str = "the other party") -> None:
        """Raises ``ValueError`` with the first option in which the configuration of another party differs."""
        ours = self.configuration
        for name in [*theirs, *ours]:
            given, accepted = theirs.get(name), ours.get(name)
            if given != accepted:
                what = "number of clients" if name == "clients" else name
                raise ValueError(f"{whose}'s {what} is {given!r:.200}, this federation's is {accepted!r:.200}")


def client_seed(seed: int, number: int) -> int:
    """The seed of a client's optimizer: 64 bits of the SHA-256 of the run's seed and the client's number."""
    digest = hashlib.sha256(f"client {number} of {seed}".encode()).digest()
    return int.from_bytes(digest[:8], "little")
