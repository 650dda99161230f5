"""The model that scalars and seeds move (HiSo Alg. 2a): what a server and a client hold alike, to the bit."""

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
    """x_r, and the H_r and m_r that go with it: a single-machine method whose rounds can be replayed.

    The round r = 1, 2, … has the steps (r − 1)τ … rτ − 1 of the method, and their directions. Memory is what the method
    has: x, H and m.

    Args:
        method: HiSo at x0, which is moved.
        server_rate: η_s, a factor of the rate.
    """

    def __init__(self, method: HiSo, server_rate: float = 1.0) -> None:
        self.method, self.server_rate = method, server_rate

    @property
    def x(self) -> Tensor:
        """The point, shape ``d``: the model's own."""
        return self.method.x

    @property
    def floor(self) -> float:
        """A number that no coordinate of H is under, which replay depends on, too."""
        return self.method.state.learned.floor

    def go_to(self, round_number: int, step: int = 0) -> None:
        """Number the method's next step: its directions' address, and whether it is a probe."""
        self.method.iterations = (round_number - 1) * self.method.local_steps + step

    def follow(self, round_number: int, scalars: Tensor) -> None:
        """Alg. 2a, Rebuild, for one round t, and Alg. 2, lines 9 and 16: x_{t+1} and H_{t+1} from the round's scalars.

        Temporaries are a few chunks whatever d is; with a prox or bounds, a few vectors.

        Args:
            round_number: t.
            scalars: the mean c_{t,k,p}, shape ``τP``; a step whose scalars are all 0 is none. Or a probe's two.
        """
        self.go_to(round_number)
        if self.method.probe is not None:
            self.method.follow(scalars.tolist(), self.server_rate)
            return
        for k, row in enumerate(scalars.reshape(self.method.local_steps, -1)):  # line 3
            self.go_to(round_number, k)  # line 4
            self.method.follow(present(row), self.server_rate)  # lines 5 and 6

    # The whole state, for one who cannot replay.

    def vectors(self) -> dict[str, Tensor]:
        """x, and the tensors of H and m: the model's own, not copies."""
        return self.method.vectors()

    def check_vectors(self, vectors: Mapping[str, Tensor], floor: float, digest: str) -> None:
        """Raises ``MessageError`` for another model's H that is not positive, or another digest than theirs."""
        if "hessian" in vectors and not float(vectors["hessian"].min()) > 0.0:
            raise MessageError("hessian has a coordinate that is not positive")
        if "curvature" in vectors and not float(vectors["curvature"].min()) >= 0.0:
            raise MessageError("curvature has a group under 0")
        if not (floor > 0.0 and math.isfinite(floor)):
            raise MessageError(f"hessian_floor is {floor}, accepted is a positive finite number")
        if (found := digest_of({name: vectors[name] for name in self.vectors()}, floor)) != digest:
            raise MessageError(f"the digest of the state is {found[:16]!r}…, the server's is {digest[:16]!r}…")

    def load_vectors(self, vectors: Mapping[str, Tensor], floor: float) -> None:
        """Take the vectors of another model of the same options, in place."""
        for name, tensor in self.vectors().items():
            tensor.copy_(vectors[name])
        state = self.method.state
        self.method.state = replace(state, learned=replace(state.learned, floor=floor))

    def digest(self) -> str:
        """SHA-256 of all that replay depends on, in hexadecimal."""
        return digest_of(self.vectors(), self.floor)

    def state_dict(self) -> dict[str, Any]:
        """The method's."""
        return self.method.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a ``state_dict``."""
        self.method.load_state_dict(state)


def digest_of(vectors: Mapping[str, Tensor], floor: float) -> str:
    """SHA-256 of a model's vectors and its floor, in hexadecimal; no copy is made of vectors on the CPU."""
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
    """The scalars of a message as ``HiSo.follow`` takes them: 0 stands for a perturbation that failed, as NaN there."""
    return [c or math.nan for c in scalars.tolist()]
