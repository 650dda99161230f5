"""The model that scalars and seeds move (HiSo Alg. 2a), bitwise identical on server and clients.

The model x_r with H_r and m_r is a single-machine ``HiSo`` whose rounds can be replayed: round r = 1, 2, … consists of
the method's steps (r − 1)τ … rτ − 1 with their directions.
"""

from __future__ import annotations

import hashlib
import math
import sys
from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from federated.core.messages import MessageError
from optimizers import HiSo
from optimizers.directions.metric import CHUNK


def go_to(model: HiSo, round_number: int, step: int = 0) -> None:
    """Sets the number of the model's next step, which addresses its directions and determines probes."""
    model.iterations = (round_number - 1) * model.local_steps + step


def follow(model: HiSo, round_number: int, scalars: Tensor, server_rate: float = 1.0) -> None:
    """Moves x_t and H_t to x_{t+1} and H_{t+1} by round t's scalars (Alg. 2a, Rebuild; Alg. 2, lines 9 and 16).

    Temporary memory is a few chunks, independent of d; with a prox or bounds, a few vectors.

    Args:
        model: x_t and H_t, which are modified.
        round_number: t.
        scalars: the mean c_{t,k,p}, shape ``τP``, or a probe's two. A step whose scalars are all 0 has no effect.
        server_rate: η_s, a factor of the learning rate.
    """
    go_to(model, round_number)
    if model.probe is not None:
        model.follow(scalars.tolist(), server_rate)
        return
    for k, row in enumerate(scalars.reshape(model.local_steps, -1)):  # line 3
        go_to(model, round_number, k)  # line 4
        model.follow(present(row), server_rate)  # lines 5 and 6


# The whole state, for a client that cannot replay.


def check_vectors(model: HiSo, vectors: Mapping[str, Tensor], floor: float, digest: str) -> None:
    """Raises ``MessageError`` if another model's H is not positive, or its digest differs."""
    if "hessian" in vectors and not float(vectors["hessian"].min()) > 0.0:
        raise MessageError("hessian must be positive")
    if "curvature" in vectors and not float(vectors["curvature"].min()) >= 0.0:
        raise MessageError("curvature must not be negative")
    if not (floor > 0.0 and math.isfinite(floor)):
        raise MessageError(f"hessian_floor is {floor}, expected a positive finite number")
    if (found := digest_of({name: vectors[name] for name in model.vectors()}, floor)) != digest:
        raise MessageError(f"the digest of the state is {found[:16]!r}…, but the server's is {digest[:16]!r}…")


def load_vectors(model: HiSo, vectors: Mapping[str, Tensor], floor: float) -> None:
    """Copies the vectors of another model with the same options, and the lower bound of H's coordinates."""
    for name, tensor in model.vectors().items():
        tensor.copy_(vectors[name])
    model.state = replace(model.state, learned=replace(model.state.learned, floor=floor))


def model_digest(model: HiSo) -> str:
    """Returns the SHA-256 of all data that replay depends on, in hexadecimal."""
    return digest_of(model.vectors(), model.state.learned.floor)


def digest_of(vectors: Mapping[str, Tensor], floor: float) -> str:
    """Returns the SHA-256 of a model's vectors and floor, in hexadecimal; vectors on the CPU are not copied."""
    found = hashlib.sha256(floor.hex().encode())
    for name, tensor in vectors.items():
        found.update(f"{name} {tensor.dtype} {tensor.numel()}".encode())
        for low in range(0, tensor.numel(), CHUNK):
            array = tensor[low : low + CHUNK].detach().cpu().view(torch.uint8).numpy()
            if sys.byteorder == "big":
                array = array.reshape(-1, tensor.element_size())[:, ::-1].copy()
            found.update(array.data)
    return found.hexdigest()


def present(scalars: Tensor) -> list[float]:
    """Converts a message's scalars for ``HiSo.follow``: 0, a failed perturbation, becomes NaN."""
    return [c or math.nan for c in scalars.tolist()]
