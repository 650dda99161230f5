"""The model that scalars and seeds move (HiSo Alg. 2a), bitwise identical on server and clients."""

from __future__ import annotations

import hashlib
import math
import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from federated.core.messages import MessageError
from optimizers import HiSo
from optimizers.directions.metric import CHUNK


class ScalarModel:
    """x_r with H_r and m_r: a single-machine method whose rounds can be replayed.

    Round r = 1, 2, … consists of the method's steps (r − 1)τ … rτ − 1 with their directions.

    Args:
        method: HiSo at x0, which is modified.
        server_rate: η_s, a factor of the learning rate.
    """

    def __init__(self, method: HiSo, server_rate: float = 1.0) -> None:
        self.method, self.server_rate = method, server_rate

    @property
    def x(self) -> Tensor:
        """The point, shape ``d``; not a copy."""
        return self.method.x

    @property
    def floor(self) -> float:
        """A lower bound of H's coordinates, on which replay depends."""
        return self.method.state.learned.floor

    def go_to(self, round_number: int, step: int = 0) -> None:
        """Sets the number of the method's next step, which addresses its directions and determines probes."""
        self.method.iterations = (round_number - 1) * self.method.local_steps + step

    def follow(self, round_number: int, scalars: Tensor) -> None:
        """Moves x_t and H_t to x_{t+1} and H_{t+1} by round t's scalars (Alg. 2a, Rebuild; Alg. 2, lines 9 and 16).

        Temporary memory is a few chunks, independent of d; with a prox or bounds, a few vectors.

        Args:
            round_number: t.
            scalars: the mean c_{t,k,p}, shape ``τP``, or a probe's two. A step whose scalars are all 0 has no effect.
        """
        self.go_to(round_number)
        if self.method.probe is not None:
            self.method.follow(scalars.tolist(), self.server_rate)
            return
        for k, row in enumerate(scalars.reshape(self.method.local_steps, -1)):  # line 3
            self.go_to(round_number, k)  # line 4
            self.method.follow(present(row), self.server_rate)  # lines 5 and 6

    # The whole state, for a client that cannot replay.

    def vectors(self) -> dict[str, Tensor]:
        """Returns x and the tensors of H and m; not copies."""
        return self.method.vectors()

    def check_vectors(self, vectors: Mapping[str, Tensor], floor: float, digest: str) -> None:
        """Raises ``MessageError`` if another model's H is not positive, or its digest differs."""
        if "hessian" in vectors and not float(vectors["hessian"].min()) > 0.0:
            raise MessageError("hessian must be positive")
        if "curvature" in vectors and not float(vectors["curvature"].min()) >= 0.0:
            raise MessageError("curvature must not be negative")
        if not (floor > 0.0 and math.isfinite(floor)):
            raise MessageError(f"hessian_floor is {floor}, expected a positive finite number")
        if (found := digest_of({name: vectors[name] for name in self.vectors()}, floor)) != digest:
            raise MessageError(f"the digest of the state is {found[:16]!r}…, but the server's is {digest[:16]!r}…")

    def load_vectors(self, vectors: Mapping[str, Tensor], floor: float) -> None:
        """Copies the vectors of another model with the same options."""
        for name, tensor in self.vectors().items():
            tensor.copy_(vectors[name])
        state = self.method.state
        self.method.state = replace(state, learned=replace(state.learned, floor=floor))

    def digest(self) -> str:
        """Returns the SHA-256 of all data that replay depends on, in hexadecimal."""
        return digest_of(self.vectors(), self.floor)

    def state_dict(self) -> dict[str, Any]:
        """Returns the method's state."""
        return self.method.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores a ``state_dict``."""
        self.method.load_state_dict(state)


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
