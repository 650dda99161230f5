"""A federated algorithm: its options and phases, and the makers of its two halves.

**A new algorithm** is a file of its own, registered by a line in ``federated/registry.py``, with three classes::

    class FedZO(Algorithm):                      # options; the same object on the server and on every client
        name = "fedzo"                           # `version` is raised when messages or states change meaning
        server_class, client_class = FedZOServer, FedZOClient

        def __init__(self, x0, *, directions: int = 20, **common: Unpack[FederatedOptions]):
            self.directions = directions         # every option is kept under its own name, before super().__init__
            super().__init__(x0, **common)       # x0, clients, seed, weights, dimension, dtype are then known

        def broadcasts(self, phase): return MessageSpec({"x": self.vector})   # what goes down in a phase
        def reports(self, phase): return MessageSpec({"x": self.vector})      # what comes up; others are refused

    class FedZOServer(Server):
        def _start(self): self.state = ServerState(self.algorithm.x0)         # one dataclass; `x` is the model
        def _broadcast(self, phase, client): return {"x": self.state.x}       # tensors; CHANGES NO STATE
        def _aggregate(self, phase, reports): ...                             # {client: Report}, all valid

    class FedZOClient(Client):
        def _start(self): self.optimizer = ...                                # an `optimizers.Optimizer`
        def _receive(self, phase, message): ...                               # set the optimizer up for the phase
        def _busy(self, phase): return ...                                    # whether it has queries left to ask
        def _report(self, phase): return {"x": self.optimizer.x}              # tensors; CHANGES NO STATE

- **Phases.** ``phases`` names a round's exchanges, ``("local",)`` by default; it may be set in ``__init__``. Each
  is one broadcast down and one report up, with queries between. Clients whose report of a phase was accepted
  are those of the next (``Server._next_participants``). What is known from an earlier phase is not sent again.
- **Messages** are tensors by name, and plain ``values`` (numbers, strings) where ``_broadcast_values`` or
  ``_report_values`` give some. ``payload_bytes`` counts tensors: send what a paper counts as tensors, and what
  proves something (a digest) as values. Names, shapes, dtypes and finiteness are checked by the base against
  the specifications, round, phase, participation and the configuration's fingerprint too; a further check of an
  algorithm goes into ``Server._check``, which raises ``MessageError`` with the reason.
- **Where all reports fail** ``_aggregate`` is not called, the round is skipped, and ``_skipped(phase)`` may mend
  the state. ``_aggregate`` may raise ``RoundSkipped(reason)`` itself, before it changes anything.
- **State.** ``self.state`` of a half is one dataclass, saved as ``optimizers.state`` says (tensors, numbers,
  strings, lists, dicts, objects with ``state_dict``); a client's optimizer is saved beside it. Give a client none
  where the optimizer holds everything. Assign a new dataclass in ``_aggregate``; write to no tensor in place.
- **Queries** are asked by the client's optimizer and counted by it. It is made with ``max_queries=UNLIMITED``,
  ``max_failures=None``, ``track_best=False`` and ``seed=client_seed(algorithm.seed, number)``; ``common_options()``
  gives these. Directions are best addressed by round and step, so that a client that lost its state goes on
  with new ones. A client that cannot report (all its queries failed) raises ``NoReportError`` in ``_report``.
- **Acceptance.** An algorithm whose clients are sent x each round may set ``self.asks_acceptance`` (as FedZO does by
  its option ``accept``): the base then adds a phase in which clients say whether F fell, and puts x back by
  ``Server._take_back`` where it did not.
- **Catching up.** A client that cannot follow a broadcast (its state is of an older round) raises
  ``BehindError`` in ``_receive``, having changed nothing. The engine then carries ``Client._position`` up,
  ``Server._catch_up`` down to ``Client._catch_up``, and gives the broadcast again. Specifications are
  those of the phases ``"position"`` and ``"catch_up"``. ``personal = True`` if broadcasts differ between clients.
- **Configuration.** ``configuration`` lists every plain option, the rules and the prox; add by ``_configuration``
  what both sides must share beyond them, such as the fingerprint of Fourier features.
- **Randomness** is addressed by seed, round and step as in ``optimizers``; nothing reads a global generator.
- **Tests.** ``federated.testing.check_algorithm`` holds an algorithm to all of this.
"""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Required, TypedDict

import torch
from torch import Tensor

from federated.core.acceptance import ACCEPT
from federated.core.aggregation import AGGREGATIONS
from federated.core.configuration import check_choice, check_weights, describe_option, participants_per_round
from federated.core.messages import MessageSpec, TensorSpec
from optimizers.bounds import BoundsLike, parse_bounds
from optimizers.directions.directions import Directions
from optimizers.options import (
    ProxLike,
    check_integer,
    check_prox,
    option_names,
    positive,
    positive_integer,
    refuse_unknown,
)
from optimizers.values import parse_point

UNLIMITED = 1 << 62
"""The budget of a client's optimizer: a federation ends by its rounds."""

Gradient = Callable[[Tensor], Any]


class FederatedOptions(TypedDict, total=False):
    """Options that every algorithm takes, documented in ``Algorithm``."""

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


class RoundSkipped(Exception):
    """Raised by ``Server._aggregate`` before it changes anything: the round is skipped for this reason."""


class NoReportError(RuntimeError):
    """Raised by ``Client._report``: the client has nothing to report, for this reason."""


class Algorithm(ABC):
    """Options of a federated algorithm that minimizes F(x) = Σᵢ pᵢ fᵢ(x) (+ ψ), pᵢ = wᵢ/Σw.

    Args:
        x0: initial point of the server, shape ``d``; its floating dtype and device are the federation's.
        clients: N.
        local_steps: T, steps of a client in a round.
        seed: seed of every random number, 0 ≤ seed < 2⁶⁴.
        participation: clients of a round: an integer is their number, a float their share of N.
        weights: wᵢ > 0, one a client; None: equal.
        bounds: box that every iterate and query stays in.
        prox: proximal operator of ψ; clients apply it after each local step. The mean of proximal points is
            feasible where ψ is the indicator of a convex set; zeros of an L1 prox do not survive it.
        server_rate: η_s: x ← x + η_s (mean − x), then into the bounds.
        aggregation: ``"mean"``, or ``"median"`` or ``"trimmed_mean"``, coordinate-wise and without weights.
        trim: share that ``"trimmed_mean"`` leaves out at each end, under 1/2.

    Raises:
        TypeError: for a misspelt option, with the nearest name.
        ValueError: for an argument out of range, no clients, or a sample larger than the federation.
    """

    name: ClassVar[str]
    version: ClassVar[int] = 1
    server_class: ClassVar[type[Any]]
    client_class: ClassVar[type[Any]]
    needs_gradient: ClassVar[bool] = False
    personal: ClassVar[bool] = False
    asks_acceptance: bool = False
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
        **unknown: Any,
    ) -> None:
        refuse_unknown(type(self), unknown)
        self.x0 = parse_point(x0)
        check_integer("clients", clients, 1)
        check_integer("seed", seed, 0)
        if seed >= 2**64:
            raise ValueError(f"seed must be under 2**64, got {seed}")
        self.clients, self.seed = int(clients), int(seed)
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
        if self.aggregation != "mean" and len(set(self.weights)) > 1:
            raise ValueError(f"aggregation {aggregation!r} heeds no weights: leave them equal")
        if not 0.0 <= trim < 0.5:
            raise ValueError(f"trim must be from 0 to under 0.5, got {trim}")
        self.trim = float(trim)

    # What an algorithm says.

    @abstractmethod
    def broadcasts(self, phase: str) -> MessageSpec:
        """What the server's message of a phase holds."""

    @abstractmethod
    def reports(self, phase: str) -> MessageSpec:
        """What a client's message of a phase holds."""

    def _configuration(self) -> dict[str, Any]:
        """What both sides must share beyond the options, in plain values."""
        return {}

    # What its halves use.

    @property
    def dimension(self) -> int:
        """Dimension d."""
        return self.x0.numel()

    @property
    def vector(self) -> TensorSpec:
        """A vector like the model: shape ``d``, its dtype, finite."""
        return TensorSpec((self.dimension,), self.x0.dtype)

    @property
    def exchanges(self) -> tuple[str, ...]:
        """Names of a round's phases, with the one that ``asks_acceptance`` adds."""
        return self.phases + ((ACCEPT,) if self.asks_acceptance else ())

    def broadcast_spec(self, phase: str) -> MessageSpec:
        """``broadcasts``, or what goes down where clients are asked to accept a model."""
        if phase != ACCEPT:
            return self.broadcasts(phase)
        return MessageSpec({"x": self.vector, "previous": self.vector}, optional=frozenset({"previous"}))

    def report_spec(self, phase: str) -> MessageSpec:
        """``reports``, or what comes up where clients are asked to accept a model."""
        if phase != ACCEPT:
            return self.reports(phase)
        one = self.scalars(1, torch.float64)
        return MessageSpec({"value": one, "previous_value": one}, optional=frozenset({"previous_value"}))

    def scalars(self, count: int, dtype: torch.dtype | None = None) -> TensorSpec:
        """So many numbers, in the model's dtype unless another is given."""
        return TensorSpec((count,), dtype or self.x0.dtype)

    def common_options(self, number: int) -> dict[str, Any]:
        """Options of a client's optimizer that follow from the federation."""
        return {
            "max_queries": UNLIMITED,
            "bounds": self.bounds,
            "prox": self.prox,
            "seed": client_seed(self.seed, number),
            "max_failures": None,
            "rescale": False,
            "track_best": False,
        }

    def server(self) -> Any:
        """A new ``Server``, at x0."""
        return self.server_class(self)

    def client(self, number: int, gradient: Gradient | None = None) -> Any:
        """A new ``Client``.

        Args:
            number: which, 0 … N − 1.
            gradient: ∇fᵢ, for an algorithm with ``needs_gradient``.
        """
        return self.client_class(self, number, gradient)

    @property
    def configuration(self) -> dict[str, Any]:
        """All that server and clients must agree on, in plain values; x0 is not of it, the server sends it."""
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

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the configuration, in hexadecimal."""
        text = json.dumps(self.configuration, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()

    def check_configuration(self, theirs: Mapping[str, Any], whose: str = "the other party") -> None:
        """Make sure that another party, or a saved state, has the same configuration.

        Raises:
            ValueError: with the first name under which they differ.
        """
        ours = self.configuration
        for name in [*theirs, *ours]:
            given, accepted = theirs.get(name), ours.get(name)
            if given != accepted:
                raise ValueError(f"{whose}'s {name} is {given!r:.200}, this federation's is {accepted!r:.200}")


def client_seed(seed: int, number: int) -> int:
    """The seed of a client: 64 bits of SHA-256 of (seed, number)."""
    digest = hashlib.sha256(f"client {number} of {seed}".encode()).digest()
    return int.from_bytes(digest[:8], "little")
