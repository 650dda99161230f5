"""A model that scalars and seeds move: its local steps, its replay, its digest (HiSo Alg. 2a, 2b)."""

from __future__ import annotations

import hashlib
import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

import torch
from torch import Tensor

from federated.core.messages import MessageError
from optimizers.batch import Batch
from optimizers.directions.hessian_update import CHUNK, squared_norm
from optimizers.methods.hiso.group_probe import GroupProbeHiSo
from optimizers.methods.hiso.hiso import DeComFL as LocalDeComFL
from optimizers.methods.hiso.hiso import HiSo as LocalHiSo
from optimizers.methods.hiso.scalar_only import ScalarOnly
from optimizers.state import load_fields, save_fields


@dataclass
class Start:
    """The model at the start of a round, kept while local steps move it.

    Attributes:
        x: x_r, shape ``d``.
        state: the fields of the method's state, H_r and m_r among them.
    """

    x: Tensor
    state: dict[str, Any]

    def state_dict(self) -> dict[str, Any]:
        """Its fields."""
        return save_fields(self)


@dataclass
class LocalRound:
    """A client's steps of the round under way.

    Attributes:
        planned: τ, 0 before the first round.
        scalars: one vector of P a step done.
        succeeded: perturbations that gave a scalar.
        start: where the round began, once a local step has moved the model.
    """

    planned: int = 0
    scalars: list[Tensor] = field(default_factory=list)
    succeeded: int = 0
    start: Start | None = None


class ReplayedModel(ScalarOnly):
    """A scalar-only method whose rounds can be replayed; a server's model and a client's optimizer alike.

    The round r = 1, 2, … has the steps (r − 1)τ … rτ − 1 of the single-machine method, and their directions.
    ``begin`` starts a client's own round, in which each step but the last moves the model by the client's own
    scalars, H and momentum too; after the last one x_r, H_r and m_r are as they were, bit for bit: they are kept
    and put back, never computed by subtraction. ``follow`` moves the model by the scalars of a round, with
    temporaries of a few chunks whatever d is (with a prox or bounds: a few vectors).

    Memory is x, H and the momentum; for τ > 1 they are held twice while a round is under way.

    Args:
        x0: initial point, shape ``d``; copied.
        steps: τ.
        scalar_dtype: what scalars are rounded to before they are sent or used.
        server_rate: η_s, a factor of the rate in ``follow``.
        hessian_reset: rounds after which H is set to H₀; None: never.
        **options: of the method.
    """

    version = 1

    def __init__(
        self,
        x0: Tensor,
        *,
        steps: int,
        scalar_dtype: torch.dtype,
        server_rate: float = 1.0,
        hessian_reset: int | None = None,
        **options: Any,
    ) -> None:
        self.steps, self.scalar_dtype = steps, scalar_dtype
        self.server_rate, self.hessian_reset = server_rate, hessian_reset
        self.local = LocalRound()
        in_place = options.get("bounds") is None
        super().__init__(x0.clone() if in_place else x0, in_place=in_place, **options)
        self._initial_floor = self.state.hessian_floor
        self._initial_rate = self.state.rate

    # A client's own round.

    def begin(self, number: int) -> None:
        """Start the local steps of a round; a batch still pending is dropped."""
        self.revert()
        self.iterations = (number - 1) * self.steps
        self.local = LocalRound(planned=self._steps_of(number))

    def _steps_of(self, number: int) -> int:
        """Local steps of a round."""
        return self.steps

    @property
    def busy(self) -> bool:
        """Whether local steps are left."""
        return len(self.local.scalars) < self.local.planned

    @property
    def scalars(self) -> Tensor:
        """What the client's steps gave, shape ``τP``: g over the number of perturbations that succeeded."""
        return torch.cat(self.local.scalars)

    def revert(self) -> None:
        """Put the model back to where the round began; a batch still pending is dropped."""
        self.cancel()
        start, self.local.start = self.local.start, None
        if start is not None:
            self._x = start.x
            self.state = replace(self.state, **start.state)

    def _tell(self, batch: Batch, values: Tensor) -> None:
        scalars = self._to_send(batch, values)
        self.local.scalars.append(scalars)
        if not self.busy:
            self.revert()
            return
        if self.local.start is None:
            self.local.start = Start(self._x.clone(), save_fields(self.state))
        self._advance(self._terms(scalars), self._rate_of_steps())

    def _to_send(self, batch: Batch, values: Tensor) -> Tensor:
        """Coefficients of the P directions, 0 for a failed one, so that their combination is the step's Δx."""
        scalars, step = self._scalars(batch, values), batch.addresses[-1][0]
        succeeded = torch.isfinite(scalars).nonzero().flatten().tolist()
        self.local.succeeded += len(succeeded)
        sent = torch.zeros(self.perturbations, dtype=torch.float64)
        for p in succeeded:
            sent[p] = float(scalars[p]) / len(succeeded)
            if self.projection:
                sent[p] = float(sent[p]) / squared_norm(self._directions(), step, p, self.state.hessian)
        sent = sent.to(self.scalar_dtype)
        return torch.where(torch.isfinite(sent), sent, 0.0)

    # Rounds of the federation.

    def follow(self, number: int, scalars: Tensor) -> None:
        """Move the model by the scalars of a round, shape ``τP``; a step whose scalars are all 0 is none."""
        self.revert()
        for k, row in enumerate(scalars.reshape(self.steps, self.perturbations)):
            self.iterations = (number - 1) * self.steps + k
            self._advance(self._terms(row), self._rate_of_steps() * self.server_rate)
        self.state = replace(self.state, rate=self._initial_rate)
        if self.state.hessian is not None and self.hessian_reset and number % self.hessian_reset == 0:
            self._reset_hessian()

    def _terms(self, scalars: Tensor) -> list[tuple[int, int, float]]:
        row = scalars.to(torch.float64).tolist()
        return [(self.iterations, p, c) for p, c in enumerate(row) if c != 0.0]

    def _rate_of_steps(self) -> float:
        assert self._initial_rate is not None
        return self._initial_rate

    def _reset_hessian(self) -> None:
        given = getattr(self, "initial_hessian", None)
        hessian = self.state.hessian
        assert hessian is not None
        if isinstance(given, Tensor):
            hessian.copy_(given)
        else:
            hessian.fill_(1.0 if given is None else float(given))
        rule = self._rule()
        if rule is not None:
            hessian.clamp_(rule.lower, rule.upper)
        self.state = replace(self.state, hessian_floor=self._initial_floor)

    # The whole state, for one who cannot replay.

    def vectors(self) -> dict[str, Tensor]:
        """x, and the tensors of the method's state, such as H and the momentum: the model's own, not copies."""
        named = {f.name: getattr(self.state, f.name) for f in fields(self.state)}
        return {"x": self._x} | {name: value for name, value in named.items() if isinstance(value, Tensor)}

    def load_vectors(self, vectors: Mapping[str, Tensor], hessian_floor: float) -> None:
        """Take the vectors of another model of the same options, in place.

        Raises:
            MessageError: for an H that is not positive; nothing has changed then.
        """
        hessian, curvature = vectors.get("hessian"), vectors.get("curvature")
        if hessian is not None and not _positive(hessian):
            raise MessageError("hessian has a coordinate that is not positive")
        if curvature is not None and bool((curvature < 0.0).any()):
            raise MessageError("curvature has a group under 0")
        if not (hessian_floor > 0.0 and math.isfinite(hessian_floor)):
            raise MessageError(f"hessian_floor is {hessian_floor}, accepted is a positive finite number")
        self.revert()
        for name, tensor in self.vectors().items():
            tensor.copy_(vectors[name])
        self.state = replace(self.state, hessian_floor=hessian_floor)

    def digest(self) -> str:
        """SHA-256 of all that replay depends on, in hexadecimal; no copy is made of vectors on the CPU."""
        found = hashlib.sha256(self.state.hessian_floor.hex().encode())
        for name, tensor in self.vectors().items():
            found.update(f"{name} {tensor.dtype} {tensor.numel()}".encode())
            for low in range(0, tensor.numel(), CHUNK):
                array = tensor[low : low + CHUNK].detach().cpu().view(torch.uint8).numpy()
                if sys.byteorder == "big":
                    array = array.reshape(-1, tensor.element_size())[:, ::-1].copy()
                found.update(array.data)
        return found.hexdigest()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """See ``Optimizer``."""
        super().load_state_dict(state)
        self._x0 = self._x.new_empty(0)

    def _state(self) -> dict[str, Any]:
        return {"method": super()._state(), "local": save_fields(self.local)}

    def _load_state(self, state: Mapping[str, Any]) -> None:
        super()._load_state(state["method"])
        self.local = load_fields(LocalRound(), state["local"], self._x.device)
        if self.local.start is not None:
            self.local.start = Start(**self.local.start)  # type: ignore[arg-type]


class DeComFLModel(ReplayedModel, LocalDeComFL):
    """DeComFL: x alone."""


class HiSoModel(ReplayedModel, LocalHiSo):
    """HiSo: x and H."""


class GroupProbeModel(ReplayedModel, GroupProbeHiSo):
    """HiSo with a measured curvature: x, and h of each group. A probe round has one step and two scalars, g and c."""

    def _number(self) -> int:
        return self.iterations // self.steps + 1

    def _steps_of(self, number: int) -> int:
        return self.steps if self.schedule.group(number) is None else 1

    def _to_send(self, batch: Batch, values: Tensor) -> Tensor:
        if "group" not in batch.info:
            return super()._to_send(batch, values)
        sent = torch.tensor(self._probe_scalars(batch, values), dtype=torch.float64).to(self.scalar_dtype)
        self.local.succeeded = int(torch.isfinite(sent).all())
        return sent

    def follow(self, number: int, scalars: Tensor) -> None:
        """Move the model by the scalars of a round: shape ``τP``, or ``2`` in a probe round."""
        group = self.schedule.group(number)
        if group is None:
            super().follow(number, scalars)
            return
        self.revert()
        self.iterations = (number - 1) * self.steps
        g, c = scalars.to(torch.float64).tolist()
        self._learn(group, g, c, self.server_rate)


def _positive(hessian: Tensor) -> bool:
    return all(bool((hessian[i : i + CHUNK] > 0.0).all()) for i in range(0, hessian.numel(), CHUNK))
