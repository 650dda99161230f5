"""Algorithms that send nothing but scalars (HiSo Alg. 1): the general interface, its server and its client."""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Unpack

import torch
from torch import Tensor

from federated.core.algorithm import Algorithm, FederatedOptions, NoReportError
from federated.core.client import Client
from federated.core.messages import BehindError, Broadcast, MessageError, MessageSpec, Plain, Report, TensorSpec
from federated.core.server import Server
from federated.methods.scalar.replayed_model import ReplayedModel
from federated.methods.scalar.scalar_log import LoggedRound, ScalarLog, joined, parse_ranges, ranges
from optimizers.options import check_choice, positive_integer

logger = logging.getLogger(__name__)

SCALAR_DTYPES = {"float32": torch.float32, "float64": torch.float64}

LONGEST_RANGES = 1 << 15
"""Letters of a list of rounds at most; a log so gappy that it takes more is not replayed."""


class ScalarOnlyAlgorithm(Algorithm):
    r"""HiSo's Alg. 1: what is communicated, apart from what is done with it.

    1. A client that comes to round r gets the scalars of the rounds since it last came, and *rebuilds* x_r by
       ``model.follow(round, scalars)``: a pure function of the model, the round's number and its scalars, as
       directions are addressed by seed and step.
    2. It makes its local steps (``model.begin``, ask and tell), goes back to x_r, and sends ``model.scalars``.
    3. The server takes their mean, logs it, and follows it itself.

    A subclass says what the model is (``model``) and how many scalars a round has (``numbers``, which may depend
    on the round). No vector of size d is sent, but to a client that cannot replay.

    **Bytes.** A round has ``numbers`` scalars up, and the mean ones down, to each client: τP · 4 bytes each way in
    float32. For P = 5 and τ = 1 that is the paper's 40 bytes a round. Round r's mean goes down when the client next
    takes part: a client in all of R rounds has 40R − 20 bytes, and one that takes part in some gets the scalars
    of all R down all the same. Counted is what ``payload_bytes`` counts: tensors. Directions cost nothing, being
    addressed by (seed, round, step), which the configuration and the message's frame hold; so do digests.

    **Replay.** The log holds the last ``log_rounds`` rounds. The server knows the last round at which it accepted
    a client's report, and sends what came since. A client that is further behind, having crashed or lost reports,
    says its round and its model's digest: where the server's log has that round with that digest, it sends the
    scalars from there; where not (older than the log, or another model), the whole state, which the ledger counts.

    **Digests.** Each broadcast has the SHA-256 of the model at the start of the round. A client whose rebuilt model
    has another one says so, and gets the state; a report with another one is refused.

    Args:
        x0: initial point, shape ``d``. Clients start from their own, which should be the same: a client with
            another is sent the server's model.
        log_rounds: rounds in the log.
        scalar_dtype: ``"float32"`` or ``"float64"``: what scalars are rounded to.
        **common: see ``Algorithm``; ``aggregation`` is of scalars, and ``server_rate`` multiplies the rate.
    """

    server_class: ClassVar[type[Server]]
    client_class: ClassVar[type[Client]]
    personal = True

    def __init__(
        self,
        x0: Any,
        *,
        log_rounds: int = 1000,
        scalar_dtype: str = "float32",
        **common: Unpack[FederatedOptions],
    ) -> None:
        self.log_rounds = positive_integer("log_rounds", log_rounds)
        self.scalar_dtype = check_choice("scalar_dtype", scalar_dtype, tuple(SCALAR_DTYPES))
        super().__init__(x0, **common)
        self._vectors = {name: TensorSpec(tuple(t.shape), t.dtype) for name, t in self.model().vectors().items()}

    # What a subclass says.

    @abstractmethod
    def model(self) -> ReplayedModel:
        """A new model at x0."""

    @abstractmethod
    def numbers(self, round_number: int) -> int:
        """Scalars that a client sends in a round, at most ``most_numbers``."""

    @property
    def most_numbers(self) -> int:
        """Scalars of the longest round."""
        return self.numbers(1)

    # Messages.

    @property
    def dtype_of_scalars(self) -> torch.dtype:
        """The dtype of scalars in messages."""
        return SCALAR_DTYPES[self.scalar_dtype]

    def broadcasts(self, phase: str) -> MessageSpec:
        """Scalars of the rounds that a client lacks; to catch up, those of more rounds, or the state."""
        scalars = TensorSpec((None,), self.dtype_of_scalars, largest=self.log_rounds * self.most_numbers)
        values: dict[str, type] = {"since": int, "rounds": str, "digest": str}
        if phase != "catch_up":
            return MessageSpec({"scalars": scalars}, values)
        values |= {"until": int, "hessian_floor": float}
        tensors = {"scalars": scalars} | self._vectors
        return MessageSpec(tensors, values, frozenset({*tensors, *values} - {"digest"}))

    def reports(self, phase: str) -> MessageSpec:
        """Scalars up, with the digest of the model that they were measured at."""
        if phase == "position":
            return MessageSpec({}, {"at": int, "digest": str})
        scalars = TensorSpec((None,), self.dtype_of_scalars, largest=self.most_numbers)
        return MessageSpec({"scalars": scalars}, {"digest": str})


@dataclass
class ServerState:
    """What the server knows.

    Attributes:
        model: x_r, and H_r where there is one; moved in place.
        digest: of it.
        log: the last rounds.
        known: for each client, the round at whose start it is known to be.
    """

    model: ReplayedModel
    digest: str
    log: ScalarLog
    known: list[int]


class ScalarOnlyServer(Server):
    """Sends scalars, averages scalars, and follows them with a model of its own."""

    algorithm: ScalarOnlyAlgorithm
    state: ServerState

    @property
    def x(self) -> Tensor:
        """A copy of the model, shape ``d``: the model itself is moved in place."""
        return self.state.model.x.clone()

    def _start(self) -> None:
        a, model = self.algorithm, self.algorithm.model()
        self.state = ServerState(model, model.digest(), ScalarLog(a.log_rounds), [1] * a.clients)

    def _since(self, client: int | None) -> int:
        """The round from which on a broadcast has the scalars; the present one if the log is too short."""
        log = self.state.log
        since = max(log.first, self.round - 1) if client is None else self.state.known[client]
        fits = since >= log.first and len(ranges([e.round for e in log.between(since, self.round)])) < LONGEST_RANGES
        return since if fits else self.round

    def _broadcast(self, phase: str, client: int | None) -> Mapping[str, Tensor]:
        return {"scalars": self._joined(self._since(client), self.round)}

    def _broadcast_values(self, phase: str, client: int | None) -> Mapping[str, Plain]:
        since = self._since(client)
        rounds = [entry.round for entry in self.state.log.between(since, self.round)]
        return {"since": since, "rounds": ranges(rounds), "digest": self.state.digest}

    def _catch_up(self, position: Report) -> tuple[Mapping[str, Tensor], Mapping[str, Plain]]:
        s, at, digest = self.state, int(position.values["at"]), str(position.values["digest"])
        if not 1 <= at <= self.round:
            raise MessageError(f"the client is at round {at}, this is round {self.round}")
        until = max(at, self._since(position.client))
        rounds = ranges([entry.round for entry in s.log.between(at, until)])
        if s.log.digest_at(at, s.digest) == digest and len(rounds) < LONGEST_RANGES:
            end = s.log.digest_at(until, s.digest)
            assert end is not None
            values: dict[str, Plain] = {"since": at, "rounds": rounds, "until": until, "digest": end}
            return {"scalars": self._joined(at, until)}, values
        why = "is older than the log" if at < s.log.first else "has another digest"
        logger.warning("client %d gets the whole state: its model of round %d %s", position.client, at, why)
        return s.model.vectors(), {"digest": s.digest, "hessian_floor": s.model.state.hessian_floor}

    def _check(self, phase: str, report: Report) -> None:
        wanted, given = self.algorithm.numbers(self.round), report.tensors["scalars"].numel()
        if given != wanted:
            raise MessageError(f"scalars are {given}, accepted are {wanted}")
        if report.values["digest"] != self.state.digest:
            raise MessageError(
                f"the digest of the client's model is {str(report.values['digest'])[:16]!r}…, "
                f"the server's is {self.state.digest[:16]!r}…"
            )

    def _aggregate(self, phase: str, reports: Mapping[int, Report]) -> None:
        s, mean = self.state, self.combine("scalars", reports)
        s.log.append(LoggedRound(self.round, mean, s.digest))
        s.model.follow(self.round, mean)
        known = [self.round if c in reports else at for c, at in enumerate(s.known)]
        self.state = replace(s, digest=s.model.digest(), known=known)

    def _joined(self, start: int, stop: int) -> Tensor:
        entries = self.state.log.between(start, stop)
        return joined(entries, self.algorithm.dtype_of_scalars, self.algorithm.x0.device)


@dataclass
class ClientState:
    """Where a client's model stands.

    Attributes:
        at: the round at whose start it is.
        digest: of it; empty while it was not needed.
    """

    at: int = 1
    digest: str = ""


class ScalarOnlyClient(Client):
    """Rebuilds the server's model from scalars, makes its local steps, and sends scalars."""

    algorithm: ScalarOnlyAlgorithm
    optimizer: ReplayedModel
    state: ClientState

    def _start(self) -> None:
        self.optimizer, self.state = self.algorithm.model(), ClientState()

    @property
    def x(self) -> Tensor:
        """A copy of the client's model, shape ``d``."""
        return self.optimizer.x.clone()

    def _receive(self, phase: str, message: Broadcast) -> None:
        """Follow the rounds that were missed, and begin the next.

        Raises:
            BehindError: if the message begins later than the model stands, which is then unchanged; or if the
                model comes out with another digest, where it is what the scalars made of it.
        """
        rounds = self._rounds(message, message.round)
        since, digest = int(message.values["since"]), str(message.values["digest"])
        if not self.state.at >= since:
            raise BehindError(
                f"the model of client {self.number} is of round {self.state.at}, the scalars begin with {since}"
            )
        self._follow(rounds, message.tensors["scalars"], message.round)
        if self._digest() != digest:
            self._refuse_own(digest)
        self.optimizer.begin(message.round)

    def _busy(self, phase: str) -> bool:
        return self.optimizer.busy

    def _report(self, phase: str) -> Mapping[str, Tensor]:
        if self.optimizer.local.succeeded == 0:
            raise NoReportError("no scalar in the whole round: the queries failed")
        return {"scalars": self.optimizer.scalars}

    def _report_values(self, phase: str) -> Mapping[str, Plain]:
        return {"digest": self.state.digest}

    def _position(self) -> tuple[Mapping[str, Tensor], Mapping[str, Plain]]:
        return {}, {"at": self.state.at, "digest": self._digest()}

    def _catch_up(self, message: Broadcast) -> None:
        digest = str(message.values["digest"])
        if "x" in message.tensors:
            missing = set(self.optimizer.vectors()) - set(message.tensors)
            if missing or "hessian_floor" not in message.values:
                raise MessageError(f"the state lacks {sorted(missing) or 'hessian_floor'}")
            self.optimizer.load_vectors(message.tensors, float(message.values["hessian_floor"]))
            self.state = ClientState(message.round)
        else:
            if not {"since", "rounds", "until"} <= set(message.values) or "scalars" not in message.tensors:
                raise MessageError("the message has neither a state nor scalars with their rounds")
            since, until = int(message.values["since"]), int(message.values["until"])
            if since > self.state.at or until > message.round:
                raise MessageError(
                    f"the scalars are of rounds {since} to {until - 1}, the model is of round {self.state.at}"
                )
            self._follow(self._rounds(message, until), message.tensors["scalars"], until)
        if self._digest() != digest:
            raise MessageError(
                f"the digest of the rebuilt model is {self.state.digest[:16]!r}…, the server's is {digest[:16]!r}…"
            )

    # Parts.

    def _rounds(self, message: Broadcast, stop: int) -> list[int]:
        """The rounds whose scalars a message has, checked against their number."""
        since, a = int(message.values["since"]), self.algorithm
        rounds = parse_ranges(str(message.values["rounds"]), max(1, since), stop, a.log_rounds)
        wanted, given = sum(a.numbers(r) for r in rounds), message.tensors["scalars"].numel()
        if wanted != given:
            raise MessageError(f"the scalars of rounds {message.values['rounds']!r:.80} are {wanted}, got {given}")
        return rounds

    def _follow(self, rounds: list[int], scalars: Tensor, at: int) -> None:
        """Follow those of the rounds that the model has not followed; it then stands at round ``at``."""
        self.optimizer.revert()
        start = 0
        for number in rounds:
            stop = start + self.algorithm.numbers(number)
            if number >= self.state.at:
                self.optimizer.follow(number, scalars[start:stop])
                self.state = ClientState(number + 1)
            start = stop
        self.state = replace(self.state, at=max(self.state.at, at))

    def _digest(self) -> str:
        if not self.state.digest:
            self.optimizer.revert()
            self.state = replace(self.state, digest=self.optimizer.digest())
        return self.state.digest

    def _refuse_own(self, digest: str) -> None:
        own, self.state = self.state.digest, replace(self.state, digest="")
        raise BehindError(
            f"the model of client {self.number} has digest {own[:16]!r}… at the start of round {self.state.at}, "
            f"the server's has {digest[:16]!r}…"
        )
