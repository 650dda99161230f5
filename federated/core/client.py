"""The client's half of a federated algorithm: receive, ask and tell, report."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, cast

import torch
from torch import Tensor

from federated.core.acceptance import ACCEPT, PointValues
from federated.core.algorithm import Algorithm, Gradient, NoReportError
from federated.core.codec import decode, frame_limit
from federated.core.messages import Broadcast, MessageError, Plain, Report
from optimizers.batch import Batch
from optimizers.optimizer import Optimizer
from optimizers.options import check_integer
from optimizers.state import load_fields, save_fields


class Client(ABC):
    """One client, which is one optimizer; ``federated/core/algorithm.py`` says what a subclass implements.

    Example::

        client.receive(broadcast)
        while (batch := client.ask()) is not None:
            client.tell(batch, f(batch.points()))
        report = client.report()

    Attributes:
        algorithm: the options.
        number: which client, 0 … N − 1.
        gradient: ∇fᵢ, where the algorithm needs it.
        optimizer: asks, is told, and counts the queries.
        round: of the last broadcast that was received; 0 before.
    """

    optimizer: Optimizer
    state: Any = None

    def __init__(self, algorithm: Algorithm, number: int, gradient: Gradient | None = None) -> None:
        check_integer("number", number, 0)
        if number >= algorithm.clients:
            raise ValueError(f"client {number} is asked for, there are {algorithm.clients}")
        if algorithm.needs_gradient and not callable(gradient):
            raise TypeError(f"{algorithm.name} needs gradients: client {number} has {gradient!r}")
        self.algorithm, self.number, self.gradient = algorithm, number, gradient
        self.fingerprint = algorithm.fingerprint
        self.round = 0
        self._phase: int | None = None
        self._reported = True
        self._marks = [0, 0, 0]
        self._start()
        options = algorithm.common_options(number)
        self._values = PointValues(algorithm.x0, **options) if algorithm.asks_acceptance else None

    # What an algorithm implements.

    @abstractmethod
    def _start(self) -> None:
        """Make ``self.optimizer``, and ``self.state`` where it does not hold everything."""

    @abstractmethod
    def _receive(self, phase: str, message: Broadcast) -> None:
        """Set the optimizer up for the phase; raise before changing anything."""

    @abstractmethod
    def _busy(self, phase: str) -> bool:
        """Whether there are queries left to ask in the phase; a pure function of the state."""

    @abstractmethod
    def _report(self, phase: str) -> Mapping[str, Tensor]:
        """Tensors of the report; a pure function of the state."""

    def _report_values(self, phase: str) -> Mapping[str, Plain]:
        return {}

    def _position(self) -> tuple[Mapping[str, Tensor], Mapping[str, Plain]]:
        """Tensors and values that say from where the client must be caught up."""
        return {}, {}

    def _catch_up(self, message: Broadcast) -> None:
        """Take what ``Server._catch_up`` sent."""
        raise MessageError(f"{self.algorithm.name} has nothing to catch up with")

    @property
    def gradients(self) -> int:
        """Gradient evaluations since the client began."""
        return 0

    # What an engine calls.

    @property
    def queries(self) -> int:
        """Queries since the client began, failed ones too."""
        return self.optimizer.queries + (0 if self._values is None else self._values.queries)

    @property
    def failures(self) -> int:
        """Failed queries since the client began."""
        return self.optimizer.failures + (0 if self._values is None else self._values.failures)

    @property
    def remaining(self) -> int:
        """Queries that the budget of what is asking still holds."""
        return self._asking(self._present_phase()).remaining

    def receive(self, message: Broadcast | bytes) -> None:
        """Take a phase's broadcast.

        Raises:
            MessageError: for a message that is refused, of an earlier phase, or of a phase whose predecessor
                this client missed; nothing has changed then.
            BehindError: if it must be caught up first.
        """
        a = self.algorithm
        message = self._parse(message)
        if message.phase not in a.exchanges:
            raise MessageError(f"phase {message.phase!r} is unknown, accepted are {list(a.exchanges)}")
        index = a.exchanges.index(message.phase)
        last = (self.round, -1 if self._phase is None else self._phase)
        if (message.round, index) <= last:
            raise MessageError(f"round {message.round}, phase {message.phase!r} was received before")
        if index > 0 and (last != (message.round, index - 1) or not self._reported):
            raise MessageError(
                f"phase {message.phase!r} of round {message.round} follows {a.exchanges[index - 1]!r}, "
                f"in which client {self.number} took no part"
            )
        a.broadcast_spec(message.phase).check(message)
        message = cast(Broadcast, message.to(a.x0.device))
        if self._values is not None and message.phase == ACCEPT:
            names = [name for name in ("x", "previous") if name in message.tensors]
            self._values.begin(torch.stack([message.tensors[name] for name in names]))
        else:
            self._receive(message.phase, message)
        self.round, self._phase, self._reported = message.round, index, False
        self._marks = [self.queries, self.failures, self.gradients]

    def ask(self) -> Batch | None:
        """The batch to evaluate, the same one until it is told; None when the phase has no more."""
        phase = self._present_phase()
        return self._asking(phase).ask() if self._unfinished(phase) else None

    def tell(self, batch: Batch, values: Any, *, retries: int = 0) -> None:
        """Take the values of the pending batch, as ``Optimizer.tell``."""
        self._asking(self._present_phase()).tell(batch, values, retries=retries)

    def report(self) -> Report:
        """The phase's report; the same one if asked again.

        Raises:
            RuntimeError: if queries are left to ask.
            NoReportError: if the algorithm has nothing to report.
        """
        phase = self._present_phase()
        if self._unfinished(phase):
            raise RuntimeError(f"client {self.number} has queries left to ask in phase {phase!r}")
        if self._values is not None and phase == ACCEPT:
            report = self._make(phase, _values_by_name(self._values), {})
        else:
            report = self._make(phase, self._report(phase), self._report_values(phase))
        self._reported = True
        return report

    def position(self) -> Report:
        """What a client that is behind tells the server."""
        self._marks = [self.queries, self.failures, self.gradients]
        return self._make("position", *self._position())

    def catch_up(self, message: Broadcast | bytes) -> None:
        """Take what the server sent for a position.

        Raises:
            MessageError: for a message that is refused.
        """
        message = self._parse(message, "catch_up")
        if message.phase != "catch_up":
            raise MessageError(f"phase {message.phase!r} is not the one to catch up with")
        self.algorithm.broadcasts("catch_up").check(message)
        self._catch_up(cast(Broadcast, message.to(self.algorithm.x0.device)))

    def state_dict(self) -> dict[str, Any]:
        """All that the client's future depends on: tensors and plain values."""
        return {
            "configuration": self.algorithm.configuration,
            "number": self.number,
            "round": self.round,
            "phase": self._phase,
            "reported": self._reported,
            "marks": list(self._marks),
            "state": None if self.state is None else save_fields(self.state),
            "optimizer": self.optimizer.state_dict(),
            "values": None if self._values is None else self._values.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a ``state_dict``.

        Raises:
            ValueError: if it is of another configuration or client; this client stays as it was.
        """
        self.algorithm.check_configuration(state["configuration"], "the state")
        if state["number"] != self.number:
            raise ValueError(f"the state is of client {state['number']}, this is client {self.number}")
        loaded = self.state
        if self.state is not None:
            loaded = load_fields(self.state, state["state"], self.algorithm.x0.device)
        self.optimizer.load_state_dict(state["optimizer"])
        if self._values is not None:
            self._values.load_state_dict(state["values"])
        self.state, self.round, self._phase = loaded, state["round"], state["phase"]
        self._reported, self._marks = state["reported"], list(state["marks"])

    # Parts.

    def _present_phase(self) -> str:
        if self._phase is None:
            raise RuntimeError(f"client {self.number} has received nothing yet")
        return self.algorithm.exchanges[self._phase]

    def _asking(self, phase: str) -> Optimizer:
        return self.optimizer if self._values is None or phase != ACCEPT else self._values

    def _unfinished(self, phase: str) -> bool:
        if self._values is not None and phase == ACCEPT:
            return self._values.busy
        return self.optimizer.pending is not None or self._busy(phase)

    def _parse(self, message: Broadcast | bytes, phase: str | None = None) -> Broadcast:
        a = self.algorithm
        if not isinstance(message, Broadcast):
            phases = a.exchanges if phase is None else (phase,)
            limit = frame_limit(max(a.broadcast_spec(p).max_bytes for p in phases))
            decoded = decode(message, limit)
            if not isinstance(decoded, Broadcast):
                raise MessageError(f"a {decoded.kind} is no broadcast")
            message = decoded
        if message.algorithm != a.name:
            raise MessageError(f"the broadcast is of {message.algorithm!r}, this client runs {a.name!r}")
        if message.fingerprint != self.fingerprint:
            raise MessageError(
                f"the configuration's fingerprint is {message.fingerprint[:16]!r}…, "
                f"this client's is {self.fingerprint[:16]!r}…"
            )
        return message

    def _make(self, phase: str, tensors: Mapping[str, Tensor], values: Mapping[str, Plain]) -> Report:
        queries, failures, gradients = self._marks
        return Report(
            algorithm=self.algorithm.name,
            fingerprint=self.fingerprint,
            round=self.round,
            phase=phase,
            tensors=dict(tensors),
            values=dict(values),
            client=self.number,
            queries=self.queries - queries,
            failures=self.failures - failures,
            gradients=self.gradients - gradients,
            total_queries=self.queries,
        )


def _values_by_name(asked: PointValues) -> dict[str, Tensor]:
    """The values of x_r and, where it was asked for, of x_{r−1}, each of shape ``1``."""
    values = asked.state.values
    if not bool(torch.isfinite(values).all()):
        raise NoReportError("no value at the new or the previous model: the query failed")
    return dict(zip(("value", "previous_value"), values.split(1), strict=False))
