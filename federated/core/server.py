"""The server of a federated algorithm: it broadcasts, validates reports and aggregates them, phase by phase."""

from __future__ import annotations

import copy
import logging
import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from federated.core.acceptance import Acceptance
from federated.core.aggregation import combine
from federated.core.algorithm import ACCEPT, Algorithm, RoundSkipped
from federated.core.configuration import sample_clients
from federated.core.gate import Gate, Lengths, lengths_of, longest
from federated.core.latest import LatestVectors, among
from federated.core.messages import Broadcast, MessageError, Plain, Report
from federated.core.reception import Content, received, refusing
from federated.core.restoring import check_integers, check_saved
from federated.core.settling import Settling
from optimizers.core.state import load_fields, save_fields

logger = logging.getLogger(__name__)

SAVED = ("state", "_acceptance", "_settling", "gate")
"""Attributes of a server that its ``state_dict`` contains as fields of dataclasses, without the underscore."""


@dataclass(frozen=True)
class Arrival:
    """The report received from a client in a phase, or None and the reason why there is none."""

    client: int
    content: Content | None
    reason: str = ""


@dataclass(frozen=True)
class Outcome:
    """The result of a phase.

    Attributes:
        phase: the phase's name.
        accepted: clients whose reports were used.
        refused: refused and missing reports with reasons, without content, including late ones from other rounds.
        skipped: why the round is skipped; None otherwise.
        rejected: whether ``accept="monotone"`` restored the previous model.
        ended: whether the round has ended.
    """

    phase: str
    accepted: tuple[int, ...]
    refused: tuple[Arrival, ...] = ()
    skipped: str | None = None
    rejected: bool = False
    ended: bool = False


class Server(ABC):
    """The server of one federation; ``federated/core/algorithm.py`` describes the methods of a subclass.

    Attributes:
        algorithm: the options.
        round: r, the current round, from 1.
        participants: the clients of the current phase, in ascending order.
        gate: statistics of the reports that were used.
    """

    state: Any
    round: int
    participants: tuple[int, ...]
    _phase: int
    _all_known: bool

    def __init__(self, algorithm: Algorithm) -> None:
        self.algorithm, self.gate = algorithm, Gate()
        self._start()
        self._acceptance = Acceptance(self.x, {}) if algorithm.asks_acceptance else None
        self._settling = Settling(x := algorithm.search(self.x), torch.zeros_like(x)) if algorithm.settles else None
        self._begin_round(1)

    # For subclasses to implement.

    @abstractmethod
    def _start(self) -> None:
        """Sets the initial ``self.state``."""

    @abstractmethod
    def _broadcast(self, phase: str, client: int | None) -> Mapping[str, Tensor]:
        """Returns the tensors of the phase's broadcast; ``client`` is None unless broadcasts are personal."""

    @abstractmethod
    def _aggregate(self, phase: str, reports: Mapping[int, Report]) -> None:
        """Updates the state by the accepted reports: one or more, in ascending order of clients."""

    def _broadcast_values(self, phase: str, client: int | None) -> Mapping[str, Plain]:
        return {}

    def _check(self, phase: str, report: Report) -> None:
        """Raises ``MessageError`` if a report fails the algorithm's own checks."""
        return

    def _unmoved(self, phase: str, reports: Mapping[int, Report], lengths: Lengths) -> tuple[int, int]:
        """Returns how many of the clients' numbers indicate no change, and their total; here, iterates equal to x."""
        moves = lengths.get("x", {}).values()
        return sum(length == 0.0 for length in moves), len(moves)

    def _skipped(self, phase: str) -> None:
        """Repairs the state after a phase without a valid report."""
        return

    def _take_back(self, previous: Tensor) -> None:
        """Restores the model x_{r−1}, for an algorithm with ``asks_acceptance``."""
        self.state = replace(self.state, x=previous)

    def _catch_up(self, position: Report) -> tuple[Mapping[str, Tensor], Mapping[str, Plain]]:
        """Returns the tensors and values that update a client from its position to the current round."""
        raise MessageError(f"{self.algorithm.name} does not support catching up")

    # For the engine.

    @property
    def x(self) -> Tensor:
        """The model, shape ``d``."""
        return self.state.x

    @property
    def phase(self) -> str:
        """Name of the current phase."""
        return self.algorithm.exchanges[self._phase]

    def broadcast(self, client: int | None = None) -> Broadcast:
        """Returns the current phase's broadcast (to ``client`` if ``algorithm.personal``); changes no state."""
        if self._acceptance is not None and self.phase == ACCEPT:
            previous = {} if self._all_known else {"previous": self._acceptance.previous}
            return self._message(ACCEPT, {"x": self.x} | previous, {})
        tensors, values = self._broadcast(self.phase, client), self._broadcast_values(self.phase, client)
        if self._settling is not None and self._phase == 0:
            values = {**values, "rate": self._settling.scale}
        return self._message(self.phase, tensors, values)

    def catch_up(self, content: Content, sender: int) -> Broadcast:
        """Returns the message that lets client ``sender`` follow the current broadcast, given its position.

        Raises:
            MessageError: if the position is refused.
        """
        with refusing():
            a, head = self.algorithm, self._check_participant
            report = received(content, Report, a, ("position",), sender=sender, head=head)
            return self._message("catch_up", *self._catch_up(report))

    def check(self, content: Content, sender: int) -> Report:
        """Validates and returns client ``sender``'s report of the current phase without changing the state.

        Raises:
            MessageError: with the reason, if the report is refused.
        """
        a, head, body = self.algorithm, self._check_address, self._check_body
        return received(content, Report, a, a.exchanges, sender=sender, head=head, body=body)

    def aggregate(self, arrivals: Iterable[Arrival | Report]) -> Outcome:
        """Ends the phase: aggregates valid reports, refuses the others, and proceeds to the next phase or round.

        The order of arrivals does not matter, except that the first of several valid reports of a client counts.
        The gate may refuse reports. Without a quorum the round is skipped, and only ``_skipped`` may change the state.
        """
        number, phase = self.round, self.phase
        accepted: dict[int, Report] = {}
        refused: list[Arrival] = []
        for given in arrivals:
            arrival = given if isinstance(given, Arrival) else Arrival(given.client, given)
            try:
                if arrival.content is None:
                    raise MessageError(arrival.reason or "no report arrived")
                report = self.check(arrival.content, arrival.client)
                if report.client in accepted:
                    raise MessageError("a second report of the same phase")
                accepted[report.client] = report
            except MessageError as error:
                refused.append(Arrival(arrival.client, None, str(error)))
        heard = set(accepted) | {refusal.client for refusal in refused}
        refused += [Arrival(c, None, "no report arrived") for c in self.participants if c not in heard]
        reports = {client: accepted[client] for client in sorted(accepted)}
        lengths = self._lengths(phase, reports)
        for client, reason in self.gate.left_out(phase, lengths, self.algorithm.gate).items():
            refused.append(Arrival(client, None, reason))
            del reports[client]
            lengths = {name: {c: n for c, n in given.items() if c != client} for name, given in lengths.items()}
        for refusal in refused:
            logger.warning("round %d, client %s: %s", number, refusal.client, refusal.reason)
        skipped, rejected = self._use_reports(phase, reports, lengths)
        everyone = len(reports) == len(self.participants)
        used = () if skipped is not None else self.participants if everyone else tuple(reports)
        ended = skipped is not None or self._phase + 1 == len(self.algorithm.exchanges)
        if ended:
            if self._settling is not None:
                self._settling = self._settling.after(self.algorithm.search(self.x), rejected)
            self._begin_round(number + 1)
        else:
            self._enter(self._phase + 1, used)
        return Outcome(phase, used, tuple(refused), skipped, rejected, ended)

    def state_dict(self) -> dict[str, Any]:
        """Returns the complete state as tensors and plain values."""
        parts = {name.removeprefix("_"): getattr(self, name) for name in SAVED}
        saved = {name: None if part is None else save_fields(part) for name, part in parts.items()}
        place = {"round": self.round, "phase": self._phase, "participants": list(self.participants)}
        return {"configuration": self.algorithm.configuration} | place | saved

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores a ``state_dict`` after validating all of it.

        Raises:
            ValueError: if the state belongs to another configuration or is invalid; the server is then unchanged.
        """
        with refusing():
            self.algorithm.check_configuration(state["configuration"], "the state")
            loaded, device = copy.copy(self), self.algorithm.x0.device
            for name in SAVED:
                current, saved = getattr(self, name), state[name.removeprefix("_")]
                check_saved(name, current, saved, self.algorithm.state_vectors)
                setattr(loaded, name, None if current is None else load_fields(current, saved, device))
            loaded.round = state["round"]
            loaded._enter(state["phase"], tuple(state["participants"]))
            loaded._check_loaded()
        vars(self).update(vars(loaded))

    def _check_loaded(self) -> None:
        """Raises an error if a server with these options cannot be in the loaded state."""
        a = self.algorithm
        check_integers("round", [self.round], a.last_round + 1, 1)
        check_integers("phase", [self._phase], len(a.exchanges))
        check_integers("participants", self.participants, a.clients)
        self.gate.check()
        if self._acceptance is not None:
            check_integers("acceptance's clients", list(self._acceptance.values), a.clients)
            if not all(type(value) is float for value in self._acceptance.values.values()):
                raise MessageError("acceptance's values must be floats")
        if self._settling is not None and not 0.0 < self._settling.scale <= 1.0:
            raise MessageError(f"settling's scale is {self._settling.scale}, expected a number in (0, 1]")
        if self._phase == 0 and self.participants != sample_clients(a.seed, self.round, a.clients, a.participants):
            raise MessageError(f"participants {self.participants!r:.80} are not the sample of round {self.round}")
        self.broadcast()

    # For subclasses to use.

    def combine(self, name: str, reports: Mapping[int, Report]) -> Tensor:
        """Returns the mean of the reports' tensors with this name, by the algorithm's aggregation and weights."""
        vectors = {client: report.tensors[name] for client, report in reports.items()}
        return self.mean_of(vectors, self.x if name == "x" else None)

    def mean_of(self, vectors: Mapping[int, Tensor], about: Tensor | None = None) -> Tensor:
        """Returns the mean of the clients' vectors, by the algorithm's aggregation and weights; see ``combine``."""
        a = self.algorithm
        weights = [a.weights[client] for client in vectors]
        return combine(a.aggregation, list(vectors.values()), weights, a.trim, about)

    def mean_of_latest(self, vectors: LatestVectors) -> Tensor:
        """Returns ``mean_of`` of the latest vectors; the cost of a plain mean depends only on how many changed."""
        return vectors.mean() if self.algorithm.aggregation == "mean" else self.mean_of(dict(vectors.items()))

    def moved(self, x: Tensor, mean: Tensor) -> Tensor:
        """Returns x + η_s (mean − x), projected onto the bounds; the mean itself for η_s = 1.

        Raises:
            RoundSkipped: if the result is not finite.
        """
        rate = self.algorithm.server_rate
        return self.confined(mean if rate == 1.0 else x + rate * (mean - x))

    def confined(self, x: Tensor) -> Tensor:
        """Returns x projected onto the bounds.

        Raises:
            RoundSkipped: if x is not finite.
        """
        if not bool(torch.isfinite(x).all()):
            raise RoundSkipped("the new model is not finite")
        box = self.algorithm.box
        return x if box is None else torch.clamp(x, *box)

    def _lengths(self, phase: str, reports: Mapping[int, Report]) -> dict[str, dict[int, float]]:
        """Returns the lengths of the reports' tensors for the gate, by tensor name and client."""
        if self.algorithm.gate == math.inf or not reports:
            return {}
        if self._acceptance is not None and phase == ACCEPT:
            return {"value": {client: abs(change) for client, change in self._acceptance.changes(reports).items()}}
        found = {}
        for name in self.algorithm.specification(Report, phase).tensors.keys() - self.algorithm.ungated:
            tensors = [report.tensors[name] for report in reports.values() if name in report.tensors]
            if len({tensor.shape for tensor in tensors}) == 1 and tensors[0].is_floating_point():
                lengths = lengths_of(tensors, self.x if name == "x" else None)
                found[name] = dict(zip((c for c, r in reports.items() if name in r.tensors), lengths, strict=True))
        return found

    def _use_reports(self, phase: str, reports: Mapping[int, Report], lengths: Lengths) -> tuple[str | None, bool]:
        """Uses a phase's reports; returns why the round is skipped, or None, and whether the model was rejected."""
        few = f"{len(reports)} usable reports are fewer than the quorum of {self.algorithm.needed}"
        skipped = None if len(reports) >= self.algorithm.needed else few if reports else "no valid report"
        acceptance, rejected = self._acceptance, False
        if acceptance is not None and phase == ACCEPT:
            rejected = skipped is not None or not acceptance.decide(reports, self.mean_of)
            if rejected:
                self._take_back(acceptance.previous)
        elif skipped is None:
            if acceptance is not None and self._phase == 0:
                acceptance.previous = self.x.clone()
            zeros, heard = self._unmoved(phase, reports, lengths)
            try:
                self._aggregate(phase, reports)
            except RoundSkipped as error:
                skipped = f"{error}{longest(lengths)}"
            else:
                self.gate = self.gate.after(phase, lengths).counting(self.round, zeros, heard)
        if skipped is not None:
            logger.warning("round %d is skipped in phase %s: %s", self.round, phase, skipped)
            if phase != ACCEPT:
                self._skipped(phase)
        return skipped, rejected

    def _begin_round(self, number: int) -> None:
        a, self.round = self.algorithm, number
        self._enter(0, sample_clients(a.seed, number, a.clients, a.participants))

    def _enter(self, phase: int, participants: tuple[int, ...]) -> None:
        """Begins a phase; ``_all_known`` is whether the values of all participants at x_{r−1} are known."""
        self._phase, self.participants = phase, participants
        values = self._acceptance.values if self._acceptance is not None and phase else {}
        self._all_known = all(client in values for client in participants)

    def _message(self, phase: str, tensors: Mapping[str, Tensor], values: Mapping[str, Plain]) -> Broadcast:
        message = self.algorithm.message(Broadcast, self.round, phase, tensors, values)
        self.algorithm.specification(Broadcast, phase).check(message)
        return message

    def _check_address(self, report: Report) -> None:
        """Raises ``MessageError`` unless the report belongs to the current phase and a participant."""
        if (report.round, report.phase) != (self.round, self.phase):
            late, now = "late: " if report.round < self.round else "", f"round {self.round}, phase {self.phase!r}"
            raise MessageError(
                f"{late}the report is for round {report.round}, phase {report.phase!r}, but this is {now}"
            )
        self._check_participant(report)

    def _check_body(self, report: Report) -> None:
        if self.phase != ACCEPT:
            self._check(self.phase, report)
        elif ("previous_value" in report.tensors) == self._all_known:
            raise MessageError("previous_value must be reported if and only if previous was sent")

    def _check_participant(self, report: Report) -> None:
        """Raises ``MessageError`` unless the report is from a participant, with consistent counts."""
        if report.round > self.round:
            raise MessageError(f"the {report.phase} is for round {report.round}, but this is round {self.round}")
        if not among(report.client, self.participants):
            raise MessageError(f"client {report.client} does not take part in this phase")
        if not report.failures <= report.queries <= report.total_queries:
            counts = f"{report.failures} failures, {report.queries} queries and {report.total_queries} total queries"
            raise MessageError(f"{counts} are inconsistent")
        if report.phase in self.algorithm.exchanges:
            self.algorithm.check_spent(report.phase, report.queries, report.failures, report.gradients)
