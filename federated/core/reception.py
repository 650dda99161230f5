"""The trust boundary: content from a sender becomes a valid message, or is refused with a reason."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from federated.core.algorithm import Algorithm
from federated.core.codec import Frame, frame_limit, opened
from federated.core.messages import Broadcast, Message, MessageError, Report

M = TypeVar("M", Broadcast, Report)

Content = Message | bytes | Frame
"""Received content: encoded bytes, a frame opened from another encoding, or the message object itself."""


def received(
    content: Content,
    kind: type[M],
    algorithm: Algorithm,
    phases: tuple[str, ...],
    *,
    sender: int | None = None,
    head: Callable[[M], None],
    body: Callable[[M], None] | None = None,
) -> M:
    """Validates a sender's content and returns the message, with its tensors on the model's device.

    The header is checked before any tensor is built, then names, dtypes and shapes against the phase's specification.
    Any exception in these checks refuses the message.

    Args:
        content: the received content.
        kind: ``Broadcast`` for a client, ``Report`` for the server.
        algorithm: the receiver's algorithm.
        phases: the allowed phases, which also bound the number of bytes that are read.
        sender: the client at the other end of the connection; None for the server.
        head: the receiver's own checks of the message without its tensors.
        body: the receiver's own checks of the whole message.

    Raises:
        MessageError: with the reason, if the content is refused; no other exception is raised.
    """
    with refusing():
        limit = frame_limit(max(algorithm.specification(kind, phase).max_bytes for phase in phases))
        given = content if isinstance(content, Message | Frame) else opened(content, limit)
        header = given.header if isinstance(given, Frame) else given
        if not isinstance(header, kind):
            raise MessageError(f"the message is a {header.kind}, expected a {kind.kind}")
        _check_header(header, algorithm, phases, sender)
        head(header)
        specification = algorithm.specification(kind, header.phase)
        if isinstance(given, Frame):
            specification.check_layout({entry.name: entry.layout for entry in given.entries}, header.values)
        message = given.message() if isinstance(given, Frame) else given
        assert isinstance(message, kind)
        specification.check(message)
        if body is not None:
            body(message)
        return message.to(algorithm.x0.device)


@contextmanager
def refusing() -> Iterator[None]:
    """Converts every exception of the block to a ``MessageError``."""
    try:
        yield
    except MessageError:
        raise
    except Exception as error:
        raise MessageError(error if type(error) is ValueError else f"{type(error).__name__}: {error}") from error


def _check_header(header: Message, algorithm: Algorithm, phases: tuple[str, ...], sender: int | None) -> None:
    if header.algorithm != algorithm.name:
        raise MessageError(f"the {header.kind} is for {header.algorithm!r}, this federation runs {algorithm.name!r}")
    if header.fingerprint != algorithm.fingerprint:
        theirs, ours = header.fingerprint[:16], algorithm.fingerprint[:16]
        raise MessageError(f"the configuration's fingerprint is {theirs!r}…, but this federation's is {ours!r}…")
    if header.phase not in phases:
        raise MessageError(f"phase {header.phase!r} is unknown, expected one of {list(phases)}")
    if isinstance(header, Report) and header.client != sender:
        raise MessageError(f"client {sender} sent a {header.kind} in the name of client {header.client}")
    if not 0 <= header.round <= algorithm.last_round:
        raise MessageError(f"round {header.round} is not a valid round: the last one is {algorithm.last_round}")
