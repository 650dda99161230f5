"""Bytes on the wire between a SuperNode and its SuperLink, counted in the SuperNode's process.

Counted are the HTTP requests and responses with their headers: all that the two say to each other, the polls and
heartbeats of an idle node too, but not the frames of TLS and TCP. The counts are in a file of 16 bytes
whose path the processes that the SuperNode starts find in their environment.
"""

from __future__ import annotations

import os
import struct
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

VARIABLE = "GRADIENT_SURROGATES_WIRE"
"""Environment variable with the file's path."""

LAYOUT = struct.Struct("<qq")


@dataclass(frozen=True)
class Reading:
    """What a meter stands at.

    Attributes:
        name: of the meter: a SuperNode that is started anew has a new one, from 0.
        up: bytes sent to the SuperLink.
        down: bytes received from it.
    """

    name: str
    up: int
    down: int


class Meter:
    """Counts bytes into a file.

    Args:
        path: the file, made anew.
    """

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_CREAT | os.O_TRUNC | os.O_WRONLY, 0o600)
        self._lock = threading.Lock()
        self._up = self._down = 0
        self.add(0, 0)

    def add(self, up: int, down: int) -> None:
        """Count what was sent and received."""
        with self._lock:
            self._up, self._down = self._up + up, self._down + down
            os.pwrite(self._file, LAYOUT.pack(self._up, self._down), 0)


def reading() -> Reading | None:
    """The meter of the SuperNode that started this process; None where it counts no bytes."""
    path = os.environ.get(VARIABLE)
    try:
        return None if path is None else Reading(Path(path).name, *LAYOUT.unpack(Path(path).read_bytes()))
    except (OSError, struct.error):
        return None


def count_requests(meter: Meter, port: int) -> None:
    """From now on, count every HTTP request of this process to a port, and its response.

    Args:
        meter: what to count into.
        port: the SuperLink's; requests to others are not counted.
    """
    transport: Any = httpx.HTTPTransport
    send = transport.handle_request

    def counted(self: httpx.HTTPTransport, request: httpx.Request) -> httpx.Response:
        response: httpx.Response = send(self, request)
        if request.url.port == port:
            line = len(f"{request.method} {request.url.raw_path.decode()} HTTP/1.1\r\n")
            sent = line + _size(request.headers) + int(request.headers.get("content-length", 0))
            line = len(f"HTTP/1.1 {response.status_code} {response.reason_phrase}\r\n")
            meter.add(sent, line + _size(response.headers))
            assert isinstance(response.stream, httpx.SyncByteStream)
            response.stream = _Counted(response.stream, meter)
        return response

    transport.handle_request = counted


class _Counted(httpx.SyncByteStream):
    """A response's body that is counted as it is read."""

    def __init__(self, stream: httpx.SyncByteStream, meter: Meter) -> None:
        self._stream, self._meter = stream, meter

    def __iter__(self) -> Iterator[bytes]:
        for part in self._stream:
            self._meter.add(0, len(part))
            yield part

    def close(self) -> None:
        self._stream.close()


def _size(headers: httpx.Headers) -> int:
    """Bytes of headers as they are sent, with the empty line after them."""
    return sum(len(name) + len(value) + 4 for name, value in headers.raw) + 2
