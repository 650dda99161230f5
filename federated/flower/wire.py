"""Counts the bytes between a SuperNode and its SuperLink, in the SuperNode's process.

HTTP requests and responses are counted with their headers, including an idle node's polls and heartbeats, but without
TLS and TCP framing. An environment variable tells the SuperNode's child processes the path of the file of counts.
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
"""Environment variable with the file's path."""

LAYOUT = struct.Struct("<qq")


class Reading(NamedTuple):
    """The counts of a ``Meter``: its name, which changes when a SuperNode restarts, and the bytes sent and received."""

    name: str
    up: int
    down: int


class Meter:
    """Counts the bytes sent and received, in a file that is overwritten."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_CREAT | os.O_TRUNC | os.O_WRONLY, 0o600)
        self._lock = threading.Lock()
        self._up = self._down = 0
        self.add(0, 0)

    def add(self, up: int, down: int) -> None:
        """Adds bytes sent and received."""
        with self._lock:
            self._up, self._down = self._up + up, self._down + down
            os.pwrite(self._file, LAYOUT.pack(self._up, self._down), 0)


def reading() -> Reading | None:
    """Returns the counts of the SuperNode that started this process, or None without a meter."""
    path = os.environ.get(VARIABLE)
    try:
        return None if path is None else Reading(Path(path).name, *LAYOUT.unpack(Path(path).read_bytes()))
    except (OSError, struct.error):
        return None


def count_requests(meter: Meter, port: int) -> None:
    """Counts this process's HTTP requests to the SuperLink's port, and their responses, from now on."""
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
    """A response's body that counts its bytes as they are read."""

    def __init__(self, stream: httpx.SyncByteStream, meter: Meter) -> None:
        self._stream, self._meter = stream, meter

    def __iter__(self) -> Iterator[bytes]:
        for part in self._stream:
            self._meter.add(0, len(part))
            yield part

    def close(self) -> None:
        self._stream.close()


def _size(headers: httpx.Headers) -> int:
    """Returns the size of headers in bytes, including the empty line after them."""
    return sum(len(name) + len(value) + 4 for name, value in headers.raw) + 2
