"""The server's list of who is who: the key of each client's node."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization

from federated.core.messages import plain


def read_keys(path: Path, clients: int) -> dict[bytes, int]:
    """The clients by their nodes' keys, from a file with a line for each client.

    A line is the client's number and the key as ``ssh-keygen`` writes it to a ``.pub`` file, ``0 ecdsa-sha2-nistp384
    AAAA…``, perhaps with a comment after it. Lines that are empty or begin with ``#`` say nothing.

    Args:
        path: the file.
        clients: N; each client has one line.

    Raises:
        OSError: if the file cannot be read.
        ValueError: for a line that is no number and key, a key or client with two lines, or a client without one.
    """
    keys: dict[bytes, int] = {}
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        client, _, key = line.strip().partition(" ")
        where = f"line {number} of {path}"
        if not (client.isascii() and client.isdigit() and len(client) < 10 and int(client) < clients):
            raise ValueError(f"{where} begins with {plain(client, 40)!r}, not with a client from 0 to {clients - 1}")
        try:
            found = _canonical(serialization.load_ssh_public_key(key.strip().encode()))
        except (ValueError, UnsupportedAlgorithm) as error:
            raise ValueError(f"{where} has no public key after the client's number: {plain(error)}") from None
        if found in keys or int(client) in keys.values():
            raise ValueError(f"{where} gives a second key to client {client}, or the key of another client")
        keys[found] = int(client)
    if missing := sorted(set(range(clients)) - set(keys.values())):
        raise ValueError(f"{path} has no key of clients {missing}")
    return keys


def client_of(keys: Mapping[bytes, int], public_key: bytes) -> int | None:
    """The client of a node's key, as Flower gives it (PEM); None where it is none of the list."""
    try:
        return keys.get(_canonical(serialization.load_pem_public_key(public_key)))
    except (ValueError, UnsupportedAlgorithm):
        return None


def _canonical(key: Any) -> bytes:
    made: bytes = key.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    return made
