"""The scalar-only algorithm (HiSo Alg. 1): options, messages, server and client."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from federated.core.algorithm import Algorithm, NoReportError
from federated.core.client import Client
from federated.core.gate import Lengths
from federated.core.messages import BehindError, Broadcast, MessageError, MessageSpec, Plain, Report, TensorSpec
from federated.core.restoring import check_integers
from federated.core.server import Server
from federated.methods.scalar.log import LoggedRound, ScalarLog, parse_ranges
from federated.methods.scalar.model import check_vectors, follow, go_to, load_vectors, model_digest, present
from optimizers import HiSo
from optimizers.core.options import check_choice, positive_integer, take_options
from optimizers.core.values import parse_point
from optimizers.methods.hiso.curvature import StepOptions
from optimizers.methods.hiso.hiso import CurvatureLike, curvature_of

logger = logging.getLogger(__name__)

RATE = 0.01
"""Default η, unless the curvature has its own; see ``StepOptions``."""

SCALAR_DTYPES = {"float32": torch.float32, "float64": torch.float64}

LONGEST_RANGES = 1 << 15
"""Maximal length of a list of rounds in characters; a log with more gaps is not replayed."""


class HiSoOptions(Algorithm):
    """Options and messages of ``HiSo``: the communication of scalars (Alg. 1).

    A client that takes part in round r receives the scalars of the rounds since it last took part (line 6) and rebuilds
    x_r by ``model.follow`` (lines 7 and 8); directions are addressed by seed and step. The client takes its local steps
    (lines 9 to 12), returns to x_r (line 13), and sends the steps' scalars (line 14). The server averages and logs
    them, and moves its own model (line 16). A vector of size d is sent only to a client that cannot replay.

    **Bytes.** A round costs each client τP scalars up and their means down, 4 bytes each in float32: 40 bytes for P = 5
    and τ = 1, as in most cells of the paper's Table 2. A client receives the means of round r when it next takes part:
    R rounds cost a client that takes part in all of them 40R − 20 bytes. A client that takes part in fewer still
    receives the scalars of all rounds. ``payload_bytes`` counts tensors only. Directions cost nothing, because seed,
    round and step are known from the configuration and the message's header; the paper also sends seeds.

    **Replay.** The log contains the last ``log_rounds`` rounds. The server sends the scalars since the last round in
    which it accepted the client's report. A client that is further behind, after a crash or lost reports, sends its
    round and its model's digest. If the log contains that round with that digest, the client receives the scalars from
    there; otherwise it receives the whole state, which the ledger counts.

    **Digests.** Each broadcast contains the SHA-256 of the model at the start of the round. A client whose rebuilt
    model has another digest asks for the state; the server refuses a report with another digest.

    Args:
        x0: initial point, shape ``d``; with float32 or narrower, H takes 4 bytes per coordinate. A client that starts
            from another point receives the server's model.
        curvature: as in ``optimizers.HiSo``, the same on server and clients. A ``Displacement`` without ``initial``
            starts from H₀ = 1, and is not reset by a skipped round.
        log_rounds: number of rounds in the log.
        scalar_dtype: ``"float32"`` or ``"float64"``, to which scalars are rounded before they are sent or used.
        **options: see ``StepOptions`` and ``Algorithm``; ``aggregation`` applies to scalars, and ``server_rate``
            multiplies the rate.

    Attributes:
        most_numbers: number of scalars of the longest round.
        dtype_of_scalars: dtype of scalars in messages.
    """

    personal = True
    option_sets: ClassVar[tuple[type, ...]] = HiSo.option_sets
    option_hints: ClassVar[dict[str, str]] = HiSo.option_hints

    def __init__(
        self,
        x0: Any,
        *,
        curvature: CurvatureLike = "displacement",
        log_rounds: int = 1000,
        scalar_dtype: str = "float32",
        **options: Any,
    ) -> None:
        given, d = take_options(StepOptions, options), parse_point(x0).numel()
        self.curvature, steps = curvature_of(curvature).prepared(given, d)
        self.steps = replace(steps, rate=steps.rate or RATE)
        vars(self).update(vars(self.steps))
        self.log_rounds = positive_integer("log_rounds", log_rounds)
        self.scalar_dtype = check_choice("scalar_dtype", scalar_dtype, SCALAR_DTYPES)
        self.dtype_of_scalars = SCALAR_DTYPES[self.scalar_dtype]
        super().__init__(x0, **options)
        self.most_numbers = max(2, self.local_steps * self.steps.perturbations)
        self._vectors = {name: TensorSpec(tuple(t.shape), t.dtype) for name, t in self.model().vectors().items()}

    def model(self) -> HiSo:
        """Creates a model at x0; raises an error if an option is out of range."""
        x0, in_place = (self.x0.clone(), True) if self.bounds is None else (self.x0, False)
        options = self.common_options(0) | vars(self.steps) | {"seed": self.seed, "local_steps": self.local_steps}
        return HiSo(x0, curvature=self.curvature, in_place=in_place, **options)

    def max_points(self, phase: str) -> int:
        """τ steps of P + 1 or 2P points; three in a probe round."""
        count = self.steps.perturbations
        return max(3, self.local_steps * (2 * count if self.steps.scheme == "central" else count + 1))

    def numbers(self, round_number: int) -> int:
        """The number of scalars that a client sends in a round: τP, or 2 in a probe round."""
        ordinary = self.local_steps * self.steps.perturbations
        return ordinary if self.curvature.probe(self.seed, round_number) is None else 2

    def broadcasts(self, phase: str) -> MessageSpec:
        """Scalars of the missed rounds; for catching up, of more rounds, or the state."""
        scalars = TensorSpec((None,), self.dtype_of_scalars, largest=self.log_rounds * self.most_numbers)
        values: dict[str, type] = {"since": int, "rounds": str, "digest": str}
        if phase != "catch_up":
            return MessageSpec({"scalars": scalars}, values)
        values |= {"until": int, "hessian_floor": float}
        tensors = {"scalars": scalars} | self._vectors
        return MessageSpec(tensors, values, frozenset({*tensors, *values} - {"digest"}))

    def reports(self, phase: str) -> MessageSpec:
        """Scalars, with the digest of the model at which they were measured."""
        if phase == "position":
            return MessageSpec({}, {"at": int, "digest": str})
        scalars = TensorSpec((None,), self.dtype_of_scalars, largest=self.most_numbers)
        return MessageSpec({"scalars": scalars}, {"digest": str})


@dataclass
class ServerState:
    """The server's state.

    Attributes:
        model: x_r, and H_r if there is one; modified in place.
        digest: digest of the model.
        log: the last rounds.
        known: for each client, a round whose initial model it is known to have; modified in place.
    """

    model: HiSo
    digest: str
    log: ScalarLog
    known: list[int]


class ScalarOnlyServer(Server):
    """Alg. 1, lines 4, 6 and 16: sends and averages scalars, and moves its own model by them."""

    algorithm: HiSoOptions
    state: ServerState

    @property
    def x(self) -> Tensor:
        """A copy of the model, shape ``d``, as the model is modified in place."""
        return self.state.model.x.clone()

    def _start(self) -> None:
        a, model = self.algorithm, self.algorithm.model()
        self.state = ServerState(model, model_digest(model), ScalarLog(a.log_rounds), [1] * a.clients)

    def _since(self, client: int | None) -> int:
        """Returns the first round whose scalars are broadcast; the current one if the log is too short."""
        log = self.state.log
        since = max(log.first, self.round - 1) if client is None else self.state.known[client]
        fits = since >= log.first and len(log.rounds(since, self.round)) < LONGEST_RANGES
        return since if fits else self.round

    def _broadcast(self, phase: str, client: int | None) -> Mapping[str, Tensor]:
        """Line 6: the scalars of the rounds that the client has missed."""
        return {"scalars": self._scalars(self._since(client), self.round)}

    def _broadcast_values(self, phase: str, client: int | None) -> Mapping[str, Plain]:
        s, since = self.state, self._since(client)
        return {"since": since, "rounds": s.log.rounds(since, self.round), "digest": s.digest}

    def _catch_up(self, position: Report) -> tuple[Mapping[str, Tensor], Mapping[str, Plain]]:
        s, at, digest = self.state, int(position.values["at"]), str(position.values["digest"])
        if not 1 <= at <= self.round:
            raise MessageError(f"the client's model is at round {at}, but this is round {self.round}")
        until = max(at, self._since(position.client))
        rounds = s.log.rounds(at, until)
        if s.log.digest_at(at, s.digest) == digest and len(rounds) < LONGEST_RANGES:
            end = s.log.digest_at(until, s.digest)
            assert end is not None
            values: dict[str, Plain] = {"since": at, "rounds": rounds, "until": until, "digest": end}
            return {"scalars": self._scalars(at, until)}, values
        why = "is older than the log" if at < s.log.first else "has another digest"
        logger.warning("client %d receives the whole state: its model of round %d %s", position.client, at, why)
        return s.model.vectors(), {"digest": s.digest, "hessian_floor": s.model.state.learned.floor}

    def _check(self, phase: str, report: Report) -> None:
        wanted, given = self.algorithm.numbers(self.round), report.tensors["scalars"].numel()
        if given != wanted:
            raise MessageError(f"the report has {given} scalars, expected {wanted}")
        if report.values["digest"] != self.state.digest:
            theirs, ours = str(report.values["digest"])[:16], self.state.digest[:16]
            raise MessageError(f"the digest of the client's model is {theirs!r}…, but the server's is {ours!r}…")

    def _aggregate(self, phase: str, reports: Mapping[int, Report]) -> None:
        """Line 16 (Alg. 2, lines 13 to 16): averages the scalars and moves the model by them."""
        s, mean = self.state, self.combine("scalars", reports)
        s.log.append(LoggedRound(self.round, mean, s.digest))
        follow(s.model, self.round, mean, self.algorithm.server_rate)
        for client in reports:
            s.known[client] = self.round
        self.state = replace(s, digest=model_digest(s.model))

    def _unmoved(self, phase: str, reports: Mapping[int, Report], lengths: Lengths) -> tuple[int, int]:
        """Counts scalars that are exactly 0."""
        scalars = torch.cat([report.tensors["scalars"] for report in reports.values()])
        return int((scalars == 0.0).sum()), scalars.numel()

    def _check_loaded(self) -> None:
        a, s = self.algorithm, self.state
        for name, tensor in s.model.vectors().items():
            a._vectors[name].check_layout(name, tensor.dtype, tuple(tensor.shape))
        if s.digest != model_digest(s.model):
            raise MessageError("the digest does not match the model")
        check_integers("known", s.known, self.round + 1, 1)
        if len(s.known) != a.clients:
            raise MessageError(f"known has {len(s.known)} rounds, expected one for each of {a.clients} clients")
        s.log.check(self.round, lambda number: a.scalars(a.numbers(number), a.dtype_of_scalars))
        super()._check_loaded()

    def _scalars(self, start: int, stop: int) -> Tensor:
        none = torch.empty(0, dtype=self.algorithm.dtype_of_scalars, device=self.algorithm.x0.device)
        return torch.cat([none, *(entry.scalars for entry in self.state.log.between(start, stop))])


@dataclass
class ClientState:
    """The round of a client's model, and its local steps in the current round.

    Attributes:
        at: the round whose initial model the client has.
        digest: the digest of this model; empty while it is not needed.
        planned: number of local steps; 0 before the first round.
        sent: the scalars of each completed step, ``P``, or a probe's two.
        succeeded: number of scalars from successful queries.
        start: the model at the start of the round, once a local step has moved it.
    """

    at: int = 1
    digest: str = ""
    planned: int = 0
    sent: list[Tensor] = field(default_factory=list)
    succeeded: int = 0
    start: dict[str, Any] | None = None


class ScalarOnlyClient(Client):
    """Alg. 1, lines 6 to 14: rebuilds the server's model from scalars, takes its local steps, and sends scalars.

    The model is the client's optimizer. It passes the scalars of each step to the client, which moves the model by the
    rounded scalars, except after the last step. For τ > 1, x, H and m are stored twice during a round: they are
    restored from a copy, not by subtraction.
    """

    algorithm: HiSoOptions
    optimizer: HiSo
    state: ClientState

    def _start(self) -> None:
        self.optimizer, self.state = self.algorithm.model(), ClientState()
        self.optimizer.relay = self._take

    # Alg. 2b, LocalUpdate.

    def _begin(self, round_number: int) -> None:
        """Line 2: starts a round's steps at x_{r,0}; a probe is one step."""
        go_to(self.optimizer, round_number)
        planned = self.algorithm.local_steps if self.optimizer.probe is None else 1
        self.state = replace(self.state, planned=planned, sent=[], succeeded=0)

    def _take(self, scalars: list[float]) -> None:
        """Lines 4 to 8 for one step's scalars, NaN if a query failed: x_{r,k+1}, or x_{r,0} after the last step."""
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
        """Line 8: restores the model at the start of the round, and cancels a pending batch."""
        self.optimizer.cancel()
        if self.state.start is not None:
            self.optimizer.put_back(self.state.start)
            self.state.start = None

    def _report(self, phase: str) -> Mapping[str, Tensor]:
        if self.state.succeeded == 0:
            raise NoReportError("the round has no scalar: the queries failed")
        return {"scalars": torch.cat(self.state.sent)}

    def _report_values(self, phase: str) -> Mapping[str, Plain]:
        return {"digest": self.state.digest}

    # Alg. 1, lines 6 to 8.

    def _receive(self, phase: str, message: Broadcast) -> None:
        """Replays the missed rounds, and begins the next one.

        Raises:
            BehindError: if the message begins after the model's round, which leaves the model unchanged; or if the
                replayed model has another digest.
        """
        rounds = self._rounds(message, message.round)
        since, digest, at = int(message.values["since"]), str(message.values["digest"]), self.state.at
        if at < since:
            raise BehindError(f"client {self.number}'s model is at round {at}, the scalars begin with round {since}")
        self._follow(rounds, message.tensors["scalars"], message.round)
        if (own := self._digest()) != digest:
            self.state = replace(self.state, digest="")
            where = f"client {self.number}'s model of round {self.state.at}"
            raise BehindError(f"{where} has digest {own[:16]!r}…, but the server's has {digest[:16]!r}…")
        self._begin(message.round)

    def _position(self) -> tuple[Mapping[str, Tensor], Mapping[str, Plain]]:
        return {}, {"at": self.state.at, "digest": self._digest()}

    def _catch_up(self, message: Broadcast) -> None:
        digest = str(message.values["digest"])
        if "x" in message.tensors:
            missing = set(self.optimizer.vectors()) - set(message.tensors)
            if missing or "hessian_floor" not in message.values:
                raise MessageError(f"the state lacks {sorted(missing) or 'hessian_floor'}")
            given = message.tensors, float(message.values["hessian_floor"])
            check_vectors(self.optimizer, *given, digest)
            self._reset()
            load_vectors(self.optimizer, *given)
            self.state = ClientState(message.round)
        else:
            if not {"since", "rounds", "until"} <= set(message.values) or "scalars" not in message.tensors:
                raise MessageError("the message has neither a state nor scalars with their rounds")
            since, until = int(message.values["since"]), int(message.values["until"])
            if since > (at := self.state.at) or until > message.round:
                raise MessageError(f"the scalars are for rounds {since} to {until - 1}, the model is at round {at}")
            self._follow(self._rounds(message, until), message.tensors["scalars"], until)
        if (own := self._digest()) != digest:
            raise BehindError(f"the digest of the rebuilt model is {own[:16]!r}…, but the server's is {digest[:16]!r}…")

    def _rounds(self, message: Broadcast, stop: int) -> list[int]:
        """Returns the rounds of a message's scalars, after checking their number."""
        since, a = int(message.values["since"]), self.algorithm
        rounds = parse_ranges(str(message.values["rounds"]), max(1, since), stop, a.log_rounds)
        wanted, given = sum(a.numbers(r) for r in rounds), message.tensors["scalars"].numel()
        if wanted != given:
            raise MessageError(f"rounds {message.values['rounds']!r:.80} need {wanted} scalars, got {given}")
        return rounds

    def _follow(self, rounds: list[int], scalars: Tensor, at: int) -> None:
        """Replays those of the rounds that the model has not followed; it is then at round ``at``."""
        self._reset()
        start = 0
        for number in rounds:
            stop = start + self.algorithm.numbers(number)
            if number >= self.state.at:
                follow(self.optimizer, number, scalars[start:stop], self.algorithm.server_rate)
                self.state = ClientState(number + 1)
            start = stop
        self.state = replace(self.state, at=max(self.state.at, at))

    def _digest(self) -> str:
        if not self.state.digest:
            self._reset()
            self.state = replace(self.state, digest=model_digest(self.optimizer))
        return self.state.digest
