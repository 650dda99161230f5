"""The general scalar-only algorithm (HiSo Alg. 1): its options and messages, its server and its client."""

from __future__ import annotations

import logging
import math
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Unpack

import torch
from torch import Tensor

from federated.core.algorithm import Algorithm, FederatedOptions, NoReportError
from federated.core.client import Client
from federated.core.gate import Lengths
from federated.core.messages import BehindError, Broadcast, MessageError, MessageSpec, Plain, Report, TensorSpec
from federated.core.restoring import check_integers
from federated.core.server import Server
from federated.methods.scalar.log import LoggedRound, ScalarLog, parse_ranges
from federated.methods.scalar.model import ScalarModel, present
from optimizers import HiSo
from optimizers.core.options import check_choice, positive_integer

logger = logging.getLogger(__name__)

SCALAR_DTYPES = {"float32": torch.float32, "float64": torch.float64}

LONGEST_RANGES = 1 << 15
"""Letters of a list of rounds at most; a log so gappy that it takes more is not replayed."""


class ScalarOnly(Algorithm):
    r"""HiSo's Alg. 1: what is communicated, apart from what is done with it.

    A client that comes to round r gets the scalars of the rounds since it last came (line 6), and *rebuilds* x_r by
    ``model.follow(round, scalars)`` (lines 7 and 8), a pure function of the model, the round's number and its scalars,
    as directions are addressed by seed and step. It makes its local steps (lines 9 to 12), goes back to x_r (line 13),
    and sends their scalars (line 14). The server takes their mean (line 16), logs it, and follows it itself. No vector
    of size d is sent, but to a client that cannot replay. A subclass says what the model is, and its scalars' number.

    **Bytes.** τP scalars go up, and their means down, to each client, 4 bytes each in float32: 40 bytes a round for
    P = 5 and τ = 1. The paper prints no such number; most cells of its Table 2 have as many bytes a round. Round r's
    means go down when the client next takes part: a client in all of R rounds has 40R − 20 bytes, and one that takes
    part in some gets the scalars of all R down all the same. Counted is what ``payload_bytes`` counts: tensors.
    Directions cost nothing, being addressed by (seed, round, step), which the configuration and the message's frame
    hold; so do digests. The paper sends seeds, too.

    **Replay.** The log holds the last ``log_rounds`` rounds. The server knows the last round at which it accepted a
    client's report, and sends what came since. A client that is further behind, having crashed or lost reports, says
    its round and its model's digest: where the server's log has that round with that digest, it sends the scalars from
    there; where not (older than the log, or another model), the whole state, which the ledger counts.

    **Digests.** Each broadcast has the SHA-256 of the model at the start of the round. A client whose rebuilt model has
    another one says so, and gets the state; a report with another one is refused.

    Args:
        x0: initial point, shape ``d``. Clients start from their own; one with another is sent the server's model.
        log_rounds: rounds in the log.
        scalar_dtype: ``"float32"`` or ``"float64"``: what scalars are rounded to before they are sent or used.
        **common: see ``Algorithm``; ``aggregation`` is of scalars, and ``server_rate`` multiplies the rate.

    Attributes:
        most_numbers: scalars of the longest round.
        dtype_of_scalars: their dtype in messages.
    """

    personal = True
    most_numbers: int

    def __init__(
        self, x0: Any, *, log_rounds: int = 1000, scalar_dtype: str = "float32", **common: Unpack[FederatedOptions]
    ) -> None:
        self.log_rounds = positive_integer("log_rounds", log_rounds)
        self.scalar_dtype = check_choice("scalar_dtype", scalar_dtype, SCALAR_DTYPES)
        self.dtype_of_scalars = SCALAR_DTYPES[self.scalar_dtype]
        super().__init__(x0, **common)
        self._vectors = {name: TensorSpec(tuple(t.shape), t.dtype) for name, t in self.model().vectors().items()}

    @abstractmethod
    def model(self) -> ScalarModel:
        """A new model at x0; raises for options out of range."""

    @abstractmethod
    def numbers(self, round_number: int) -> int:
        """Scalars that a client sends in a round, at most ``most_numbers``."""

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
        known: for each client, the round at whose start it is known to be; changed in place.
    """

    model: ScalarModel
    digest: str
    log: ScalarLog
    known: list[int]


class ScalarOnlyServer(Server):
    """Alg. 1, lines 4, 6 and 16: sends scalars, averages scalars, and follows them with a model of its own."""

    algorithm: ScalarOnly
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
        fits = since >= log.first and len(log.rounds(since, self.round)) < LONGEST_RANGES
        return since if fits else self.round

    def _broadcast(self, phase: str, client: int | None) -> Mapping[str, Tensor]:
        """Line 6: the scalars of the rounds that the client lacks."""
        return {"scalars": self._scalars(self._since(client), self.round)}

    def _broadcast_values(self, phase: str, client: int | None) -> Mapping[str, Plain]:
        s, since = self.state, self._since(client)
        return {"since": since, "rounds": s.log.rounds(since, self.round), "digest": s.digest}

    def _catch_up(self, position: Report) -> tuple[Mapping[str, Tensor], Mapping[str, Plain]]:
        s, at, digest = self.state, int(position.values["at"]), str(position.values["digest"])
        if not 1 <= at <= self.round:
            raise MessageError(f"the client is at round {at}, this is round {self.round}")
        until = max(at, self._since(position.client))
        rounds = s.log.rounds(at, until)
        if s.log.digest_at(at, s.digest) == digest and len(rounds) < LONGEST_RANGES:
            end = s.log.digest_at(until, s.digest)
            assert end is not None
            values: dict[str, Plain] = {"since": at, "rounds": rounds, "until": until, "digest": end}
            return {"scalars": self._scalars(at, until)}, values
        why = "is older than the log" if at < s.log.first else "has another digest"
        logger.warning("client %d gets the whole state: its model of round %d %s", position.client, at, why)
        return s.model.vectors(), {"digest": s.digest, "hessian_floor": s.model.floor}

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
        """Line 16 (Alg. 2, lines 13 to 16): the mean scalars, which the server's own model follows."""
        s, mean = self.state, self.combine("scalars", reports)
        s.log.append(LoggedRound(self.round, mean, s.digest))
        s.model.follow(self.round, mean)
        for client in reports:
            s.known[client] = self.round
        self.state = replace(s, digest=s.model.digest())

    def _unmoved(self, phase: str, reports: Mapping[int, Report], lengths: Lengths) -> tuple[int, int]:
        """Scalars that are exactly 0."""
        scalars = torch.cat([report.tensors["scalars"] for report in reports.values()])
        return int((scalars == 0.0).sum()), scalars.numel()

    def _check_loaded(self) -> None:
        a, s = self.algorithm, self.state
        for name, tensor in s.model.vectors().items():
            a._vectors[name].check_layout(name, tensor.dtype, tuple(tensor.shape))
        if s.digest != s.model.digest():
            raise MessageError("the digest is not that of the model")
        check_integers("known", s.known, self.round + 1, 1)
        if len(s.known) != a.clients:
            raise MessageError(f"known are {len(s.known)} rounds of {a.clients} clients")
        s.log.check(self.round, lambda number: a.scalars(a.numbers(number), a.dtype_of_scalars))
        super()._check_loaded()

    def _scalars(self, start: int, stop: int) -> Tensor:
        none = torch.empty(0, dtype=self.algorithm.dtype_of_scalars, device=self.algorithm.x0.device)
        return torch.cat([none, *(entry.scalars for entry in self.state.log.between(start, stop))])


@dataclass
class ClientState:
    """Where a client's model stands, and its local steps of the round under way.

    Attributes:
        at: the round at whose start the model is.
        digest: of it there; empty while it was not needed.
        planned: steps of the client's own, 0 before its first round.
        sent: one vector of scalars a step done, ``P``, or a probe's two.
        succeeded: scalars that the queries gave.
        start: the model at the start of the round, once a local step has moved it.
    """

    at: int = 1
    digest: str = ""
    planned: int = 0
    sent: list[Tensor] = field(default_factory=list)
    succeeded: int = 0
    start: dict[str, Any] | None = None


class ScalarOnlyClient(Client):
    """Alg. 1, lines 6 to 14: rebuilds the server's model from scalars, makes its local steps, and sends scalars.

    The model's method is the client's optimizer. It relays the scalars of each step to the client, which lets it follow
    them, as they are sent, until the last. For τ > 1 x, H and m are held twice while a round is under way: they are put
    back and never computed by subtraction.
    """

    algorithm: ScalarOnly
    optimizer: HiSo
    state: ClientState

    def _start(self) -> None:
        self.model, self.state = self.algorithm.model(), ClientState()
        self.optimizer = self.model.method
        self.optimizer.relay = self._take

    @property
    def x(self) -> Tensor:
        """A copy of the client's model, shape ``d``."""
        return self.model.x.clone()

    # Alg. 2b, LocalUpdate.

    def _begin(self, round_number: int) -> None:
        """Line 2: start the steps of a round at x_{r,0}; a probe is one step."""
        self.model.go_to(round_number)
        planned = self.algorithm.local_steps if self.optimizer.probe is None else 1
        self.state = replace(self.state, planned=planned, sent=[], succeeded=0)

    def _take(self, scalars: list[float]) -> None:
        """Lines 4 to 8 for one step's scalars, NaN where a query failed: x_{r,k+1}, and after the last step x_{r,0}."""
        s, probe, given = self.state, self.optimizer.probe is not None, [math.isfinite(c) for c in scalars]
        s.succeeded += all(given) if probe else sum(given)
        sent = torch.tensor(scalars, dtype=torch.float64).to(self.algorithm.dtype_of_scalars)
        s.sent.append(sent if probe else torch.where(torch.isfinite(sent), sent, 0.0))
        if not self._busy():
            self._reset()
            return
        if s.start is None:
            s.start = self.optimizer.snapshot()
        self.optimizer.follow(present(s.sent[-1]))

    def _busy(self, phase: str = "local") -> bool:
        return len(self.state.sent) < self.state.planned

    def _reset(self) -> None:
        """Line 8: the model as it was at the start of the round; a batch that is pending is dropped."""
        self.optimizer.cancel()
        start, self.state.start = self.state.start, None
        if start is not None:
            self.optimizer.put_back(start)

    def _report(self, phase: str) -> Mapping[str, Tensor]:
        if self.state.succeeded == 0:
            raise NoReportError("no scalar in the whole round: the queries failed")
        return {"scalars": torch.cat(self.state.sent)}

    def _report_values(self, phase: str) -> Mapping[str, Plain]:
        return {"digest": self.state.digest}

    # Alg. 1, lines 6 to 8.

    def _receive(self, phase: str, message: Broadcast) -> None:
        """Follow the rounds that were missed, and begin the next.

        Raises:
            BehindError: if the message begins later than the model stands, which is then unchanged; or if the model
                comes out with another digest, where it is what the scalars made of it.
        """
        rounds = self._rounds(message, message.round)
        since, digest = int(message.values["since"]), str(message.values["digest"])
        if not self.state.at >= since:
            raise BehindError(
                f"the model of client {self.number} is of round {self.state.at}, the scalars begin with {since}"
            )
        self._follow(rounds, message.tensors["scalars"], message.round)
        if (own := self._digest()) != digest:
            self.state = replace(self.state, digest="")
            raise BehindError(
                f"the model of client {self.number} has digest {own[:16]!r}… at the start of round {self.state.at}, "
                f"the server's has {digest[:16]!r}…"
            )
        self._begin(message.round)

    def _position(self) -> tuple[Mapping[str, Tensor], Mapping[str, Plain]]:
        return {}, {"at": self.state.at, "digest": self._digest()}

    def _catch_up(self, message: Broadcast) -> None:
        digest = str(message.values["digest"])
        if "x" in message.tensors:
            missing = set(self.model.vectors()) - set(message.tensors)
            if missing or "hessian_floor" not in message.values:
                raise MessageError(f"the state lacks {sorted(missing) or 'hessian_floor'}")
            given = message.tensors, float(message.values["hessian_floor"])
            self.model.check_vectors(*given, digest)
            self._reset()
            self.model.load_vectors(*given)
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
            raise BehindError(
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
        self._reset()
        start = 0
        for number in rounds:
            stop = start + self.algorithm.numbers(number)
            if number >= self.state.at:
                self.model.follow(number, scalars[start:stop])
                self.state = ClientState(number + 1)
            start = stop
        self.state = replace(self.state, at=max(self.state.at, at))

    def _digest(self) -> str:
        if not self.state.digest:
            self._reset()
            self.state = replace(self.state, digest=self.model.digest())
        return self.state.digest
