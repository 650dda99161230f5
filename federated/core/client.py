"""The client of a federated algorithm: it receives a broadcast, requests and receives values, and reports."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from federated.core.acceptance import PointValues
from federated.core.algorithm import ACCEPT, UNLIMITED, Algorithm, Gradient
from federated.core.ledger import Spent
from federated.core.messages import Broadcast, MessageError, Plain, Report
from federated.core.reception import Content, received, refusing
from federated.core.restoring import check_integers, check_saved
from optimizers.core.batch import Batch
from optimizers.core.optimizer import Optimizer
from optimizers.core.options import check_integer
from optimizers.core.state import load_fields, save_fields
from optimizers.directions.directions import MAX_STEP


class Client(ABC):
    """One client of a federation; ``federated/core/algorithm.py`` describes the methods of a subclass.

    Example::

        client.receive(broadcast)
        while (batch := client.ask()) is not None:
            client.tell(batch, f(batch.points()))
        report = client.report()

    Attributes:
        algorithm: the options.
        number: the client's number i, 0 … N − 1.
        gradient: ∇fᵢ, if the algorithm needs it.
        optimizer: the optimizer that makes and counts the queries.
        round: the round of the last broadcast; 0 initially.
    """

    optimizer: Optimizer
    state: Any = None

    def __init__(self, algorithm: Algorithm, number: int, gradient: Gradient | None = None) -> None:
        check_integer("number", number, 0, algorithm.clients)
        if algorithm.needs_gradient and not callable(gradient):
            raise TypeError(f"{algorithm.name} needs gradients: client {number} has {gradient!r}")
        self.algorithm, self.number, self.gradient = algorithm, number, gradient
        self.round = 0
        self._phase: int | None = None
        self._reported = True
        self._spent_before = Spent()
        self._start()
        options = algorithm.common_options(number)
        self._values = PointValues(algorithm.x0, **options) if algorithm.asks_acceptance else None

    # For subclasses to implement.

    @abstractmethod
    def _start(self) -> None:
        """Sets ``self.optimizer``, and ``self.state`` if the optimizer does not contain the whole state."""

    @abstractmethod
    def _receive(self, phase: str, message: Broadcast) -> None:
        """Prepares the optimizer for the phase; raises errors before it changes anything."""

    @abstractmethod
    def _busy(self, phase: str) -> bool:
        """Whether the phase has queries left; a pure function of the state."""

    @abstractmethod
    def _report(self, phase: str) -> Mapping[str, Tensor]:
        """Returns the report's tensors; a pure function of the state."""

    def _report_values(self, phase: str) -> Mapping[str, Plain]:
        return {}

    def _position(self) -> tuple[Mapping[str, Tensor], Mapping[str, Plain]]:
        """Returns tensors and values that tell the server which data the client has missed."""
        return {}, {}

    def _catch_up(self, message: Broadcast) -> None:
        """Updates the state by the message from ``Server._catch_up``."""
        raise MessageError(f"{self.algorithm.name} does not support catching up")

    @property
    def gradients(self) -> int:
        """Number of gradient evaluations since the client was created."""
        return 0

    # For the engine.

    @property
    def spent(self) -> Spent:
        """Queries, failed queries and gradient evaluations since the client was created."""
        asking = [optimizer for optimizer in (self.optimizer, self._values) if optimizer is not None]
        return Spent(sum(o.queries for o in asking), sum(o.failures for o in asking), self.gradients)

    def receive(self, content: Content) -> None:
        """Begins a phase with the server's broadcast; a refused message changes nothing.

        Raises:
            MessageError: if the broadcast is invalid or not later than the last one, or the round's preceding phase was
                missed.
            BehindError: if the client must catch up first.
        """
        phases = self.algorithm.exchanges
        message = received(content, Broadcast, self.algorithm, phases, head=self._check_order)
        with refusing():
            if (asked := self._acceptance_in(message.phase)) is not None:
                asked.receive(message)
            else:
                self._receive(message.phase, message)
        self.round, self._phase, self._reported = message.round, phases.index(message.phase), False
        self._spent_before = self.spent

    def ask(self) -> Batch | None:
        """Returns the batch to evaluate, the same one until its values are told; None at the end of the phase."""
        phase = self._present_phase()
        return self._optimizer_in(phase).ask() if self._unfinished(phase) else None

    def tell(self, batch: Batch, values: Any, *, retries: int = 0) -> None:
        """Takes the values of the pending batch; see ``Optimizer.tell``."""
        self._optimizer_in(self._present_phase()).tell(batch, values, retries=retries)

    def report(self) -> Report:
        """Returns the phase's report, the same one when called again.

        Raises:
            RuntimeError: if queries remain.
            NoReportError: if the client has nothing to report.
        """
        phase = self._present_phase()
        if self._unfinished(phase):
            raise RuntimeError(f"client {self.number} must finish its queries of phase {phase!r} before it can report")
        asked = self._acceptance_in(phase)
        tensors, values = (self._report(phase), self._report_values(phase)) if asked is None else (asked.report(), {})
        report = self._message(phase, tensors, values)
        self._reported = True
        return report

    def position(self) -> Report:
        """Returns the message with which a client that is behind asks the server for missed data."""
        self._spent_before = self.spent
        return self._message("position", *self._position())

    def catch_up(self, content: Content) -> None:
        """Updates the client by the server's answer to ``position``; a refused answer changes nothing.

        Raises:
            MessageError: if the answer is invalid.
            BehindError: if the client's model still differs from the server's.
        """
        message = received(content, Broadcast, self.algorithm, ("catch_up",), head=self._check_present)
        with refusing():
            self._catch_up(message)

    def state_dict(self) -> dict[str, Any]:
        """Returns the complete state as tensors and plain values."""
        return {
            "configuration": self.algorithm.configuration,
            "number": self.number,
            "round": self.round,
            "phase": self._phase,
            "reported": self._reported,
            "marks": list(self._spent_before),
            "state": None if self.state is None else save_fields(self.state),
            "optimizer": self.optimizer.state_dict(),
            "values": None if self._values is None else self._values.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores a ``state_dict`` into a new client.

        Raises:
            ValueError: if the state belongs to another configuration or client, or is invalid. After an invalid state
                this client may be partially restored: discard it.
        """
        with refusing():
            a = self.algorithm
            a.check_configuration(state["configuration"], "the state")
            if state["number"] != self.number:
                raise MessageError(f"the state belongs to client {state['number']}, but this is client {self.number}")
            check_integers("round", [state["round"]], a.last_round + 1)
            check_integers("phase", [] if state["phase"] is None else [state["phase"]], len(a.exchanges))
            check_integers("marks", state["marks"], UNLIMITED)
            check_saved("reported", True, state["reported"], {})
            check_saved("state", self.state, state["state"], a.state_vectors, growing=True)
            loaded = None if self.state is None else load_fields(self.state, state["state"], a.x0.device)
            self._check_optimizer(self.optimizer, state["optimizer"])
            if self._values is None:
                check_saved("values", None, state["values"], {})
            else:
                self._check_optimizer(self._values, state["values"])
                self._values.load_state_dict(state["values"])
            self.optimizer.load_state_dict(state["optimizer"])
            self.state, self.round, self._phase = loaded, state["round"], state["phase"]
            self._reported, self._spent_before = state["reported"], Spent(*state["marks"])
            if self._reported and self._phase is not None:
                report = self.report()
                a.specification(Report, report.phase).check_layout(report.layout, report.values)

    def _check_optimizer(self, optimizer: Optimizer, saved: Mapping[str, Any]) -> None:
        """Raises an error unless an optimizer with these options can be in the saved state."""
        if saved["seed"] != optimizer.seed:
            raise MessageError(f"the optimizer's seed is {saved['seed']!r:.40}, but this client's is {optimizer.seed}")
        check_saved("optimizer", optimizer, saved, self.algorithm.state_vectors, growing=True)
        check_integers("iterations", [saved["iterations"]], MAX_STEP)
        counts = ("queries", "failures", "failed_in_a_row", "last_improvement")
        check_integers("counts", [saved["record"][name] for name in counts], UNLIMITED)

    def _check_present(self, message: Broadcast) -> None:
        """Raises ``MessageError`` if the round is earlier than that of the last broadcast."""
        if (given := message.round) < max(self.round, 1):
            raise MessageError(f"the {message.phase} is for round {given}, but round {self.round} was already received")

    def _check_order(self, message: Broadcast) -> None:
        """Raises ``MessageError`` unless a broadcast follows the last one without missing a phase of its round."""
        phases = self.algorithm.exchanges
        index = phases.index(message.phase)
        last = (self.round, -1 if self._phase is None else self._phase)
        if message.round < 1 or (message.round, index) <= last:
            raise MessageError(f"round {message.round}, phase {message.phase!r} was already received")
        if index > 0 and (last != (message.round, index - 1) or not self._reported):
            last_phase = f"{phases[index - 1]!r}, in which client {self.number} did not take part"
            raise MessageError(f"phase {message.phase!r} of round {message.round} must follow {last_phase}")

    def _present_phase(self) -> str:
        if self._phase is None:
            raise RuntimeError(f"client {self.number} has received nothing yet")
        return self.algorithm.exchanges[self._phase]

    def _acceptance_in(self, phase: str) -> PointValues | None:
        """Returns the acceptance phase's optimizer in that phase, otherwise None."""
        return self._values if phase == ACCEPT else None

    def _optimizer_in(self, phase: str) -> Optimizer:
        return self._acceptance_in(phase) or self.optimizer

    def _unfinished(self, phase: str) -> bool:
        asked = self._acceptance_in(phase)
        return asked.busy if asked is not None else bool(self.optimizer.pending) or self._busy(phase)

    def _message(self, phase: str, tensors: Mapping[str, Tensor], values: Mapping[str, Plain]) -> Report:
        spent = self.spent.since(self._spent_before)._asdict() | {"total_queries": self.spent.queries}
        return self.algorithm.message(Report, self.round, phase, tensors, values, client=self.number, **spent)
