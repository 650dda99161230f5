"""The server's list of the clients' node keys."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization

from federated.core.messages import plain


def read_keys(path: Path, clients: int) -> dict[bytes, int]:
    """Reads a file of the nodes' public keys; returns a mapping from canonical keys to clients, 0 … N − 1.

    Each client has one line: its number and a key as in the ``.pub`` files of ``ssh-keygen``, ``0 ecdsa-sha2-nistp384
    AAAA…``, optionally with a comment. Empty lines and lines that begin with ``#`` are ignored.

    Raises:
        OSError: if the file cannot be read.
        ValueError: if a line is malformed, a key or client occurs twice, or a client is missing.
    """
    keys: dict[bytes, int] = {}
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        client, _, key = line.strip().partition(" ")
        where = f"line {number} of {path}"
        if not (client.isascii() and client.isdigit() and len(client) < 10 and int(client) < clients):
            raise ValueError(f"{where} begins with {plain(client, 40)!r}, expected a client from 0 to {clients - 1}")
        try:
            found = _canonical(serialization.load_ssh_public_key(key.strip().encode()))
        except (ValueError, UnsupportedAlgorithm) as error:
            raise ValueError(f"{where} has no valid public key after the client's number: {plain(error)}") from None
        if found in keys or int(client) in keys.values():
            raise ValueError(f"{where} has a second key for client {client}, or another client's key")
        keys[found] = int(client)
    if missing := sorted(set(range(clients)) - set(keys.values())):
        raise ValueError(f"{path} has no keys of clients {missing}")
    return keys


def client_of(keys: Mapping[bytes, int], public_key: bytes) -> int | None:
    """Returns the client of a node's key in Flower's format (PEM), or None if the key is not in the list."""
    try:
        return keys.get(_canonical(serialization.load_pem_public_key(public_key)))
    except (ValueError, UnsupportedAlgorithm):
        return None


def _canonical(key: Any) -> bytes:
    made: bytes = key.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    return made
