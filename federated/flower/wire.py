"""A count of the bytes on the wire between a SuperNode and its SuperLink, made in the SuperNode's process.

It includes HTTP requests and responses with their headers, those of an idle node's polls and heartbeats too, but not
the frames of TLS and TCP. The counts are in a file of 16 bytes, whose path an environment variable gives to the
processes that the SuperNode starts.
"""

from __future__ import annotations

import os
import struct
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx

VARIABLE = "GRADIENT_SURROGATES_WIRE"
"""Environment variable with the path of the file."""

LAYOUT = struct.Struct("<qq")


class Reading(NamedTuple):
    """A meter's name, which a restarted SuperNode changes, and the bytes sent to the SuperLink and received from it."""

    name: str
    up: int
    down: int


class Meter:
    """Counts of bytes, kept in a file.

    Args:
        path: the file, which is overwritten.
    """

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_CREAT | os.O_TRUNC | os.O_WRONLY, 0o600)
        self._lock = threading.Lock()
        self._up = self._down = 0
        self.add(0, 0)

    def add(self, up: int, down: int) -> None:
        """Adds bytes that were sent and received."""
        with self._lock:
            self._up, self._down = self._up + up, self._down + down
            os.pwrite(self._file, LAYOUT.pack(self._up, self._down), 0)


def reading() -> Reading | None:
    """The counts of the SuperNode that started this process; None if it has no meter."""
    path = os.environ.get(VARIABLE)
    try:
        return None if path is None else Reading(Path(path).name, *LAYOUT.unpack(Path(path).read_bytes()))
    except (OSError, struct.error):
        return None


def count_requests(meter: Meter, port: int) -> None:
    """Makes a meter count this process's HTTP requests to a port, and their responses, from now on.

    Args:
        meter: the meter.
        port: the SuperLink's port; requests to other ports are not counted.
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
    """A response's body whose bytes are counted as they are read."""

    def __init__(self, stream: httpx.SyncByteStream, meter: Meter) -> None:
        self._stream, self._meter = stream, meter

    def __iter__(self) -> Iterator[bytes]:
        for part in self._stream:
            self._meter.add(0, len(part))
            yield part

    def close(self) -> None:
        self._stream.close()


def _size(headers: httpx.Headers) -> int:
    """Bytes of headers as they are sent, including the empty line after them."""
    return sum(len(name) + len(value) + 4 for name, value in headers.raw) + 2
