"""The trust boundary: what comes from a named sender becomes a message, or is refused with a reason."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from federated.core.algorithm import Algorithm
from federated.core.codec import Frame, frame_limit, opened
from federated.core.messages import Broadcast, Message, MessageError, Report

M = TypeVar("M", Broadcast, Report)

Content = Message | bytes | Frame
"""What arrives: bytes of ``encode``, a frame that another encoding was opened to, or the object itself."""


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
    """The message that a sender's content is, its tensors on the model's device.

    Before a tensor exists its header is checked: kind, algorithm, fingerprint, phase, sender, round and ``head``, and
    then names, dtypes and shapes against the specification of its phase. Nothing is trusted: whatever goes wrong
    inside is a refusal.

    Args:
        content: what arrived.
        kind: ``Broadcast`` for a client, ``Report`` for the server.
        algorithm: the receiver's.
        phases: the phases that the message may be of; they also bound how many bytes are read.
        sender: the client whose link it came over; None for the server.
        head: checks the message without its tensors, by what the receiver waits for: round, phase and sender.
        body: checks the whole message.

    Raises:
        MessageError: if the content is refused, with the reason. Nothing else is raised.
    """
    with refusing():
        limit = frame_limit(max(algorithm.specification(kind, phase).max_bytes for phase in phases))
        given = content if isinstance(content, Message | Frame) else opened(content, limit)
        header = given.header if isinstance(given, Frame) else given
        if not isinstance(header, kind):
            raise MessageError(f"a {header.kind} is no {kind.kind}")
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
    """Makes a ``MessageError`` of every exception of the block."""
    try:
        yield
    except MessageError:
        raise
    except Exception as error:
        raise MessageError(error if type(error) is ValueError else f"{type(error).__name__}: {error}") from error


def _check_header(header: Message, algorithm: Algorithm, phases: tuple[str, ...], sender: int | None) -> None:
    if header.algorithm != algorithm.name:
        raise MessageError(f"the {header.kind} is of {header.algorithm!r}, this federation runs {algorithm.name!r}")
    if header.fingerprint != algorithm.fingerprint:
        raise MessageError(
            f"the configuration's fingerprint is {header.fingerprint[:16]!r}…, "
            f"this federation's is {algorithm.fingerprint[:16]!r}…"
        )
    if header.phase not in phases:
        raise MessageError(f"phase {header.phase!r} is unknown, accepted are {list(phases)}")
    if isinstance(header, Report) and header.client != sender:
        raise MessageError(f"client {sender} sent a {header.kind} in the name of client {header.client}")
    if not 0 <= header.round <= algorithm.last_round:
        raise MessageError(
            f"round {header.round} is none: a federation of these options ends by {algorithm.last_round}"
        )
