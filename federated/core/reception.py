"""What a client and the server check first of every message that arrives."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

from federated.core.algorithm import Algorithm
from federated.core.codec import decode, frame_limit
from federated.core.messages import Broadcast, Message, MessageError, Report

M = TypeVar("M", Broadcast, Report)


def largest_payload(algorithm: Algorithm, kind: type[Message], phases: Iterable[str]) -> int:
    """Bytes of the largest payload that a message of a kind has in any of the phases."""
    return max(algorithm.specification(kind, phase).max_bytes for phase in phases)


def received(content: Message | bytes, kind: type[M], algorithm: Algorithm, phases: tuple[str, ...]) -> M:
    """The message that arrived, its tensors on the model's device.

    The receiver has still to check whether the message belongs to the present round and phase.

    Args:
        content: the message, or the bytes that ``encode`` made of it.
        kind: ``Broadcast`` for a client, ``Report`` for the server.
        algorithm: the receiver's.
        phases: the phases that the message may be of; they also bound how many bytes are read.

    Raises:
        MessageError: if the bytes are no message, or the message is of another kind, algorithm, configuration
            or phase, or does not fit the specification of its phase.
    """
    if not isinstance(content, Message):
        content = decode(content, frame_limit(largest_payload(algorithm, kind, phases)))
    if not isinstance(content, kind):
        raise MessageError(f"a {content.kind} is no {kind.kind}")
    if content.algorithm != algorithm.name:
        raise MessageError(f"the {kind.kind} is of {content.algorithm!r}, this federation runs {algorithm.name!r}")
    if content.fingerprint != algorithm.fingerprint:
        raise MessageError(
            f"the configuration's fingerprint is {content.fingerprint[:16]!r}…, "
            f"this federation's is {algorithm.fingerprint[:16]!r}…"
        )
    if content.phase not in phases:
        raise MessageError(f"phase {content.phase!r} is unknown, accepted are {list(phases)}")
    algorithm.specification(kind, content.phase).check(content)
    return content.to(algorithm.x0.device)
