"""``python -m experiments benchmark federation``: the cost of a round for a server with many clients, and for a client.

The server is the library's, with codec, checks, ledger and history. Simulated clients return valid reports of random
numbers at once. The clients' time is subtracted, so the listed processor time is the server's alone. Memory is the
growth of the process's peak memory from before the federation is created; it includes received reports and the state
kept for all clients. Rounds with 20 sampled clients are measured, and rounds with all clients if their reports fit into
``--reports-mb``. A client's time is measured with two real clients whose objective costs almost nothing. Bytes are the
payload of one client in one round. FZooS is skipped if its frequencies exceed ``--features-mb``.
"""

from __future__ import annotations

import logging
import multiprocessing
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise
from statistics import median
from typing import Any

import torch
from torch import Tensor

from experiments.benchmarks import output
from experiments.benchmarks.output import Target
from experiments.benchmarks.timing import status
from federated.core.algorithm import Algorithm
from federated.core.codec import encode, opened
from federated.core.messages import Report
from federated.engine.federation import Federation
from federated.engine.host import Host, Request, Service
from federated.registry import algorithm_class
from optimizers import Evaluator

SAMPLED = 20
"""Number of sampled clients in rounds with partial participation."""

LINEAR, MOST_GB = 2.0, 2.0
ROUNDS = 3


@dataclass(frozen=True)
class Case:
    """An algorithm and the size of its problem.

    Attributes:
        name: name of the algorithm.
        d: the dimension.
        features: M of FZooS; 0 for other algorithms.
    """

    name: str
    d: int
    features: int = 0

    @property
    def label(self) -> str:
        """Name of the algorithm, with M for FZooS."""
        return f"{self.name}, M = {self.features:,}" if self.features else self.name

    def make(self, clients: int, sampled: int, steps: int) -> Algorithm:
        """Creates the algorithm for a number of clients."""
        options: dict[str, Any] = {"num_features": self.features} if self.features else {}
        options |= {"clients": clients, "participation": sampled, "local_steps": steps}
        made = algorithm_class(self.name)(torch.full((self.d,), 0.5, dtype=torch.float64), **options)
        assert isinstance(made, Algorithm)
        return made


@dataclass(frozen=True)
class Row:
    """The measured cost of one round.

    Attributes:
        clients: N.
        sampled: number of clients in the round.
        milliseconds: processor time of the server, median over rounds.
        megabytes: increase of the process's peak memory.
        up: payload bytes from a client.
        down: payload bytes to a client.
    """

    case: Case
    clients: int
    sampled: int
    milliseconds: float
    megabytes: float
    up: float
    down: float


@dataclass
class TimedHost(Host):
    """A host that measures its clients.

    Attributes:
        seconds: processor time of the clients so far.
    """

    seconds: float = 0.0

    def serve(self, request: Request) -> Service:
        """Runs one client through a phase."""
        start = time.process_time()
        service = self.answer(request)
        self.seconds += time.process_time() - start
        return service

    def answer(self, request: Request) -> Service:
        """Returns the client's response."""
        return super().serve(request)


@dataclass
class AnsweringHost(TimedHost):
    """A host whose clients report random numbers at once, which are drawn once per shape."""

    drawn: dict[tuple[int, ...], Tensor] = field(default_factory=dict)

    def answer(self, request: Request) -> Service:
        """Returns a client's report of random numbers."""
        assert isinstance(request.message, bytes)
        header = opened(request.message).header
        specification = self.algorithm.reports(header.phase)
        known: Any = self.algorithm
        tensors = {}
        for name, wanted in specification.tensors.items():
            shape = tuple(known.numbers(header.round) if n is None else n for n in wanted.shape)
            if shape not in self.drawn:
                self.drawn[shape] = 1e-3 * torch.randn(shape, generator=torch.Generator().manual_seed(0)).double()
            tensors[name] = self.drawn[shape].to(wanted.dtype)
        report = Report(
            algorithm=header.algorithm,
            fingerprint=header.fingerprint,
            round=header.round,
            phase=header.phase,
            tensors=tensors,
            values={name: header.values[name] for name in specification.values},
            client=request.client,
        )
        return Service(request.client, encode(report), report.payload_bytes)


def main(arguments: Sequence[str]) -> int:
    """Runs the benchmark."""
    options = output.options_of(
        "federation",
        __doc__,
        arguments,
        clients=((10, 100, 1000, 10_000), "N"),
        dimensions=((100, 10_000, 1_000_000), "d"),
        features=((1000, 10_000), "M of FZooS"),
        steps=(5, "local steps of a client"),
        reports_mb=(1000, "largest total size of a round's reports in MB"),
        features_mb=(100, "largest size of FZooS's frequencies in MB"),
    )
    cases = [Case(name, d) for name in ("fedzo", "hiso") for d in options.dimensions]
    cases += [
        Case("fzoos", d, m) for m in options.features for d in options.dimensions if 4e-6 * m * d <= options.features_mb
    ]
    rows, clients = [], {}
    for case in cases:
        clients[case] = apart(client_seconds, case, options.steps)
        for n in options.clients:
            for sampled in sorted({n, min(n, SAMPLED)}):
                if sampled * bytes_up(case) <= 1e6 * options.reports_mb:
                    rows.append(apart(measured, case, n, sampled, options.steps))
                    print(_line(rows[-1], clients[case]), file=sys.stderr, flush=True)
    text = summary(rows, clients, options.steps)
    numbers = {"rows": [asdict(row) for row in rows], "clients": [asdict(c) | {"s": s} for c, s in clients.items()]}
    return output.write(options.out, "federation", text, **numbers)


def apart(function: Callable[..., Any], *arguments: Any) -> Any:
    """Runs a function in a separate process, whose memory is measured alone; returns its result."""
    context = multiprocessing.get_context("fork")
    with ProcessPoolExecutor(1, context, initializer=logging.disable, initargs=(logging.WARNING,)) as pool:
        return pool.submit(function, *arguments).result()


def measured(case: Case, clients: int, sampled: int, steps: int) -> Row:
    """Measures the rounds of a federation for one row of the table."""
    before = status("VmRSS")
    federation = standing(case, clients, sampled, steps)
    host, seconds = federation.host, []
    assert isinstance(host, AnsweringHost)
    for _ in range(ROUNDS):
        start, answering = time.process_time(), host.seconds
        federation.run_round()
        seconds.append(time.process_time() - start - (host.seconds - answering))
    counts = {name: federation.ledger.total(name, round=ROUNDS) / sampled for name in ("payload_up", "payload_down")}
    megabytes = 1.024e-3 * (status("VmHWM") - before)
    assert not any(record.refused for record in federation.history)
    return Row(case, clients, sampled, 1e3 * median(seconds), megabytes, *counts.values())


def standing(case: Case, clients: int, sampled: int, steps: int) -> Federation:
    """Creates a federation; for FZooS its server already has a surrogate of every client."""
    algorithm = case.make(clients, sampled, steps)
    federation = Federation(algorithm, AnsweringHost(algorithm, {}))
    if case.features and sampled < clients:
        generator, state = torch.Generator().manual_seed(1), federation.server.state
        drawn = {c: 1e-3 * torch.randn(case.features, generator=generator).double() for c in range(clients)}
        surrogates = state.surrogates.replaced(drawn)
        federation.server.state = replace(state, surrogates=surrogates, w=surrogates.mean(), w_version=1)
    return federation


def bytes_up(case: Case) -> int:
    """Returns the payload bytes of a client's largest report."""
    algorithm = case.make(1, 1, 1)
    return max(algorithm.reports(phase).max_bytes for phase in algorithm.exchanges)


def objective(x: Tensor) -> float:
    """Returns the value of a function that costs almost nothing."""
    return float(x[:100].square().sum())


def client_seconds(case: Case, steps: int) -> float:
    """Returns a client's processor seconds per round: the mean over two clients, then the median over rounds."""
    algorithm, seconds = case.make(2, 2, steps), [0.0]
    host = TimedHost(algorithm, dict.fromkeys(range(2), Evaluator(objective)))
    federation = Federation(algorithm, host)
    for _ in range(ROUNDS):
        federation.run_round()
        seconds.append(host.seconds)
    return median(after - before for before, after in pairwise(seconds)) / 2


def summary(rows: Sequence[Row], clients: Mapping[Case, float], steps: int) -> list[str]:
    """Formats the table and the targets as Markdown."""
    lines = [
        f"One round with {steps} local steps in float64 on one thread.",
        "",
        "| algorithm | d | clients | in the round | server, ms | per client, µs | server, MB | up, bytes | down, "
        "bytes | client, s |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    lines += [_line(row, clients[row.case]) for row in rows]
    return [*lines, "", *output.target_lines(targets(rows))]


def _line(row: Row, client: float) -> str:
    return (
        f"| {row.case.label} | {row.case.d:,} | {row.clients:,} | {row.sampled:,} | {row.milliseconds:,.1f} "
        f"| {1e3 * row.milliseconds / row.sampled:,.0f} | {row.megabytes:,.0f} | {row.up:,.0f} | {row.down:,.0f} "
        f"| {client:.2g} |"
    )


def targets(rows: Sequence[Row]) -> list[Target]:
    """Returns the targets for the server's time per sampled client, and for its memory."""
    made = []
    for case in dict.fromkeys(row.case for row in rows):
        of = {(row.clients, row.sampled): row for row in rows if row.case == case}
        whole = sorted(n for n, sampled in of if n == sampled)
        few = sorted(n for n, sampled in of if sampled == SAMPLED and n > SAMPLED)
        if len(whole) > 1 and whole[-1] >= 1000:
            a, b = (of[n, n].milliseconds / n for n in whole[-2:])
            said = f"{case.label}, d = {case.d:,}: server's time per client, {whole[-1]:,} over {whole[-2]:,} clients"
            made.append(Target(said, b / a, LINEAR))
        if len(few) > 1:
            a, b = (of[n, SAMPLED].milliseconds for n in (few[0], few[-1]))
            said = f"{case.label}, d = {case.d:,}: {SAMPLED} of {few[-1]:,} clients over {SAMPLED} of {few[0]:,}"
            made.append(Target(said, b / a, LINEAR))
    if large := [row for row in rows if row.case.features]:
        most = max(large, key=lambda row: row.megabytes)
        said = f"server's memory, GB, {most.clients:,} clients, M = {most.case.features:,}"
        made.append(Target(said, most.megabytes / 1e3, MOST_GB))
    return made
