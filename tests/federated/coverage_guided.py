"""Mutants of messages that are bred by the lines of the receiver that they reach, with atheris.

    pip install atheris
    python tests/federated/coverage_guided.py -max_total_time=3600

The first byte chooses the receiver: a server in the first or second phase, or a client; the rest is a header, a zero
byte and a payload, which go to it with a right digest. What the receiver does beside refusing ends the run with a
report.
"""

import logging
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

import atheris

with atheris.instrument_imports(include=["federated.core"]):
    from federated.core import codec, messages, reception, server  # noqa: F401

from federated.core.codec import DIGEST, PREFIX
from federated.testing import Promises, algorithm_factory
from federated.testing.harness import make, run, states_equal
from tests.federated.mutants import refused, restored, sealed, stages

logging.disable(logging.WARNING)
MADE = make(algorithm_factory("scaffold1", directions=3), Promises(local_steps=1))
run(MADE, 1)
STAGES = list(stages(MADE))
STATES = [stage.server.state_dict() for stage in STAGES]


def seed(data: bytes, receiver: int) -> bytes:
    """The input that stands for a message."""
    end = PREFIX + int.from_bytes(data[5:PREFIX], "little")
    return bytes([receiver]) + data[PREFIX:end] + b"\0" + data[end:-DIGEST]


def attack(data: bytes) -> None:
    """Sends one mutant."""
    header, _, payload = data[1:].partition(b"\0")
    receiver, content = (data[0] if data else 0) % 3, sealed(header, payload)
    if receiver < 2:
        server = STAGES[receiver].server
        refused(server.check, content, 1)
        assert states_equal(server.state_dict(), STATES[receiver])
    else:
        client = restored(MADE, STAGES[0].client)
        if refused(client.receive, content):
            assert states_equal(client.state_dict(), STAGES[0].client)


if __name__ == "__main__":
    corpus = Path("results/coverage-guided")
    corpus.mkdir(parents=True, exist_ok=True)
    for i, stage in enumerate(STAGES):
        (corpus / f"report-{i}").write_bytes(seed(stage.report, i))
        (corpus / f"broadcast-{i}").write_bytes(seed(stage.broadcast, 2))
    atheris.Setup([*sys.argv, str(corpus)], attack)
    atheris.Fuzz()
