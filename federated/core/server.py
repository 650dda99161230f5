"""The server's half of a federated algorithm: broadcast, judge reports, aggregate, next phase."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, cast

import torch
from torch import Tensor

from federated.core.acceptance import ACCEPT, Acceptance
from federated.core.aggregation import combine
from federated.core.algorithm import Algorithm, RoundSkipped
from federated.core.codec import decode, frame_limit
from federated.core.configuration import sample_clients
from federated.core.messages import Broadcast, Message, MessageError, Plain, Report
from optimizers.state import load_fields, save_fields

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Arrival:
    """What came back from one client, or did not.

    Attributes:
        client: whose link it came over; None where that is not known.
        content: the report or its bytes; None where none came.
        reason: why none came.
    """

    client: int | None
    content: Report | bytes | None
    reason: str = ""


@dataclass(frozen=True)
class Refusal:
    """A report that was refused, or is missing: whose (None: unknown) and why."""

    client: int | None
    reason: str


@dataclass(frozen=True)
class Outcome:
    """What became of a phase.

    Attributes:
        round: r.
        phase: its name.
        accepted: clients whose reports were used.
        refused: the others, with reasons; late reports of other rounds too.
        skipped: why the round is skipped, or None.
        rejected: whether the round's model was taken back.
        ended: whether the round is over.
    """

    round: int
    phase: str
    accepted: tuple[int, ...]
    refused: tuple[Refusal, ...] = field(default=())
    skipped: str | None = None
    rejected: bool = False
    ended: bool = False


class Server(ABC):
    """The server of one federation; ``federated/core/algorithm.py`` says what a subclass implements.

    Attributes:
        algorithm: the options.
        round: r, the round to come or under way, from 1.
        participants: clients of the phase to come, ascending.
    """

    state: Any
    round: int
    participants: tuple[int, ...]

    def __init__(self, algorithm: Algorithm) -> None:
        self.algorithm = algorithm
        self.fingerprint = algorithm.fingerprint
        self._begin_round(1)
        self._start()
        self._acceptance = Acceptance(self.x, {}) if algorithm.asks_acceptance else None

    # What an algorithm implements.

    @abstractmethod
    def _start(self) -> None:
        """Make the initial ``self.state``."""

    @abstractmethod
    def _broadcast(self, phase: str, client: int | None) -> Mapping[str, Tensor]:
        """Tensors of the phase's message; ``client`` is a number where broadcasts are personal."""

    @abstractmethod
    def _aggregate(self, phase: str, reports: Mapping[int, Report]) -> None:
        """Move the state by the accepted reports, in ascending order of clients, at least one."""

    def _broadcast_values(self, phase: str, client: int | None) -> Mapping[str, Plain]:
        return {}

    def _check(self, phase: str, report: Report) -> None:
        """Raise ``MessageError`` for a report that fails a check of the algorithm's own."""
        return

    def _skipped(self, phase: str) -> None:
        """Mend the state where a phase had no valid report."""
        return

    def _take_back(self, previous: Tensor) -> None:
        """Put the model back to x_{r−1}, for an algorithm that ``asks_acceptance``."""
        self.state = replace(self.state, x=previous)

    def _next_participants(self, accepted: tuple[int, ...]) -> tuple[int, ...]:
        """Clients of the next phase of the round."""
        return accepted

    def _catch_up(self, position: Report) -> tuple[Mapping[str, Tensor], Mapping[str, Plain]]:
        """Tensors and values that bring a client from its position to the present."""
        raise MessageError(f"{self.algorithm.name} has nothing to catch up with")

    # What an engine calls.

    @property
    def x(self) -> Tensor:
        """The model, shape ``d``."""
        return self.state.x

    @property
    def phase(self) -> str:
        """Name of the phase to come."""
        return self.algorithm.exchanges[self._phase]

    def broadcast(self, client: int | None = None) -> Broadcast:
        """The message of the phase; changes nothing.

        Args:
            client: for whom, where ``algorithm.personal``.
        """
        if self._acceptance is not None and self.phase == ACCEPT:
            return self._message(ACCEPT, self._acceptance.message(self.x, self.participants), {})
        tensors = self._broadcast(self.phase, client)
        return self._message(self.phase, tensors, self._broadcast_values(self.phase, client))

    def catch_up(self, position: Report | bytes) -> Broadcast:
        """What brings a client that is behind to where it can follow the present broadcast.

        Raises:
            MessageError: for a position that is refused.
        """
        report = self._parse(position, "position")
        self._check_frame(report, "position")
        self.algorithm.reports("position").check(report)
        tensors, values = self._catch_up(report)
        return self._message("catch_up", tensors, values)

    def check(self, content: Report | bytes, sender: int | None = None) -> Report:
        """The report, if it is a valid one of this phase; changes nothing.

        Args:
            content: the report or its bytes.
            sender: whose link it came over.

        Raises:
            MessageError: with the reason for which it is refused.
        """
        report = self._parse(content, self.phase)
        if sender is not None and report.client != sender:
            raise MessageError(f"client {sender} sent a report in the name of client {report.client}")
        self._check_frame(report, self.phase)
        self.algorithm.report_spec(self.phase).check(report)
        report = cast(Report, report.to(self.algorithm.x0.device))
        if self.phase == ACCEPT:
            self._check_values(report)
        else:
            self._check(self.phase, report)
        return report

    def aggregate(self, arrivals: Iterable[Arrival | Report | bytes]) -> Outcome:
        """End the phase with what arrived: use the valid reports, refuse the others, go on.

        The order of arrivals does not matter but among several of one client, where the first valid one counts.
        With no valid report the round is skipped: the state stays as it is but for ``_skipped``.
        """
        number, phase = self.round, self.phase
        accepted: dict[int, Report] = {}
        refused: list[Refusal] = []
        for given in arrivals:
            arrival = given if isinstance(given, Arrival) else Arrival(None, given)
            try:
                if arrival.content is None:
                    raise MessageError(arrival.reason or "no report arrived")
                report = self.check(arrival.content, arrival.client)
                if report.client in accepted:
                    raise MessageError("a second report of the same phase")
                accepted[report.client] = report
            except MessageError as error:
                refused.append(Refusal(_sender(arrival), error.reason))
        heard = set(accepted) | {refusal.client for refusal in refused}
        refused += [Refusal(c, "no report arrived") for c in self.participants if c not in heard]
        for refusal in refused:
            logger.warning("round %d, client %s: %s", number, refusal.client, refusal.reason)
        reports = {client: accepted[client] for client in sorted(accepted)}
        skipped, rejected = self._used(phase, reports)
        used = tuple(reports) if skipped is None else ()
        ended = skipped is not None or self._phase + 1 == len(self.algorithm.exchanges)
        if ended:
            self._begin_round(number + 1)
        else:
            self._phase += 1
            self.participants = used if self.phase == ACCEPT else self._next_participants(used)
        return Outcome(number, phase, used, tuple(refused), skipped, rejected, ended)

    def report_limit(self, phase: str | None = None) -> int:
        """Bytes at most of a report that is accepted."""
        return frame_limit(self.algorithm.report_spec(phase or self.phase).max_bytes)

    def state_dict(self) -> dict[str, Any]:
        """All that the server's future depends on: tensors and plain values."""
        return {
            "configuration": self.algorithm.configuration,
            "round": self.round,
            "phase": self._phase,
            "participants": list(self.participants),
            "state": save_fields(self.state),
            "acceptance": None if self._acceptance is None else self._acceptance.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a ``state_dict``.

        Raises:
            ValueError: if it is of another configuration; this server stays as it was.
        """
        self.algorithm.check_configuration(state["configuration"], "the state")
        loaded = load_fields(self.state, state["state"], self.algorithm.x0.device)
        self.state, self.round, self._phase = loaded, state["round"], state["phase"]
        self.participants = tuple(state["participants"])
        if self._acceptance is not None:
            self._acceptance.load_state_dict(state["acceptance"])

    # What a subclass uses.

    def combine(self, name: str, reports: Mapping[int, Report]) -> Tensor:
        """The reports' mean of a tensor, by the chosen aggregation and the clients' weights."""
        return self.mean_of({client: report.tensors[name] for client, report in reports.items()})

    def mean_of(self, vectors: Mapping[int, Tensor]) -> Tensor:
        """The mean of vectors by client, by the chosen aggregation and the clients' weights."""
        a = self.algorithm
        weights = [a.weights[client] for client in vectors]
        return combine(a.aggregation, list(vectors.values()), weights, a.trim)

    def moved(self, x: Tensor, mean: Tensor) -> Tensor:
        """x + η_s (mean − x), projected onto the bounds; the mean itself for η_s = 1.

        Raises:
            RoundSkipped: if it is not finite.
        """
        rate = self.algorithm.server_rate
        return self.confined(mean if rate == 1.0 else x + rate * (mean - x))

    def confined(self, x: Tensor) -> Tensor:
        """x projected onto the bounds; raises ``RoundSkipped`` if it is not finite."""
        if not bool(torch.isfinite(x).all()):
            raise RoundSkipped("the new model is not finite")
        box = self.algorithm.box
        return x if box is None else torch.clamp(x, *box)

    # Parts.

    def _used(self, phase: str, reports: Mapping[int, Report]) -> tuple[str | None, bool]:
        """Aggregate, or decide on the model: why the round is skipped, and whether the model was taken back."""
        skipped = None if reports else "no valid report"
        acceptance, rejected = self._acceptance, False
        if acceptance is not None and phase == ACCEPT:
            tensors = {client: report.tensors for client, report in reports.items()}
            rejected = not (reports and acceptance.decide(tensors, self.algorithm.weights))
            if rejected:
                self._take_back(acceptance.previous)
        elif reports:
            if acceptance is not None and self._phase == 0:
                acceptance.previous = self.x.clone()
            try:
                self._aggregate(phase, reports)
            except RoundSkipped as error:
                skipped = str(error)
        if skipped is not None:
            logger.warning("round %d is skipped in phase %s: %s", self.round, phase, skipped)
            if phase != ACCEPT:
                self._skipped(phase)
        return skipped, rejected

    def _check_values(self, report: Report) -> None:
        """Both values are needed of a client whose value at x_{r−1} is not known."""
        assert self._acceptance is not None
        asked = "previous" in self._acceptance.message(self.x, self.participants)
        if asked != ("previous_value" in report.tensors):
            raise MessageError("previous_value is wanted where previous was sent, and only there")

    def _begin_round(self, number: int) -> None:
        a = self.algorithm
        self.round, self._phase = number, 0
        self.participants = sample_clients(a.seed, number, a.clients, a.participants)

    def _message(self, phase: str, tensors: Mapping[str, Tensor], values: Mapping[str, Plain]) -> Broadcast:
        message = Broadcast(
            algorithm=self.algorithm.name,
            fingerprint=self.fingerprint,
            round=self.round,
            phase=phase,
            tensors=dict(tensors),
            values=dict(values),
        )
        self.algorithm.broadcast_spec(phase).check(message)
        return message

    def _parse(self, content: Report | bytes, phase: str) -> Report:
        message: Message = content if isinstance(content, Message) else decode(content, self.report_limit(phase))
        if not isinstance(message, Report):
            raise MessageError(f"a {message.kind} is no report")
        return message

    def _check_frame(self, report: Report, phase: str) -> None:
        a = self.algorithm
        if report.algorithm != a.name:
            raise MessageError(f"the report is of {report.algorithm!r}, this federation runs {a.name!r}")
        if report.fingerprint != self.fingerprint:
            raise MessageError(
                f"the configuration's fingerprint is {report.fingerprint[:16]!r}…, "
                f"this federation's is {self.fingerprint[:16]!r}…"
            )
        if not report.client < a.clients:
            raise MessageError(f"client {report.client} is unknown: there are {a.clients}")
        if report.phase != phase or (phase != "position" and report.round != self.round):
            late = "late: " if report.round < self.round else ""
            raise MessageError(
                f"{late}the report is of round {report.round}, phase {report.phase!r}; "
                f"this is round {self.round}, phase {phase!r}"
            )
        if report.client not in self.participants:
            raise MessageError(f"client {report.client} was not asked in this phase")
        if not report.failures <= report.queries <= report.total_queries:
            raise MessageError(
                f"{report.failures} failures, {report.queries} queries and {report.total_queries} in all "
                "do not go together"
            )


def _sender(arrival: Arrival) -> int | None:
    if arrival.client is None and isinstance(arrival.content, Report):
        return arrival.content.client
    return arrival.client
