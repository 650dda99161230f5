"""First-order baselines: FedAvg, FedAdam, FedYogi and FedAdagrad.

References:
    S. J. Reddi et al., Adaptive federated optimization, ICLR 2021 (arXiv 2003.00295), Alg. 2.
    H. B. McMahan et al., Communication-efficient learning of deep networks from decentralized data, 2017.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, get_args

import torch
from torch import Tensor

from federated.core.algorithm import NoReportError, RoundSkipped
from federated.core.client import Client
from federated.core.messages import Broadcast, Report
from federated.core.server import Server
from federated.core.settling import rate_in
from federated.methods.averaging import AveragingServer, LocalSteps
from federated.methods.local_descent import LocalGradientDescent, sgd
from optimizers.core.options import check_choice, nonnegative, positive
from optimizers.first_order import UpdateRule

Conventions = Literal["reddi", "flower"]


@dataclass
class Moments:
    """The server's model x, and the moving averages m of Δ and v of Δ², each of shape ``d``."""

    x: Tensor
    m: Tensor
    v: Tensor


class GradientClient(Client):
    """Takes T first-order steps from the server's x."""

    algorithm: FedAvg
    optimizer: LocalGradientDescent

    def _start(self) -> None:
        a = self.algorithm
        self.optimizer = LocalGradientDescent(
            a.x0, jac=self.gradient, update_rule=a.update_rule, **a.common_options(self.number)
        )

    def _receive(self, phase: str, message: Broadcast) -> None:
        a, rate = self.algorithm, rate_in(message)
        self.optimizer.begin(message.tensors["x"], steps=a.local_steps, reset=a.reset_rule, rate=rate)

    def _busy(self, phase: str) -> bool:
        return self.optimizer.busy

    def _report(self, phase: str) -> Mapping[str, Tensor]:
        if self.optimizer.state.last_good is None:
            raise NoReportError("the round has no gradient: the queries failed")
        return {"x": self.optimizer.x}

    @property
    def gradients(self) -> int:
        """Number of gradient evaluations since the client was created."""
        return self.optimizer.state.gradients


class FedAvg(LocalSteps):
    """FedAvg (McMahan et al. 2017): the mean of the clients' iterates after T gradient steps each.

    On the same messages the result equals that of Flower's FedAvg, if the weights are the numbers of examples.

    **When to use it.** If the clients' functions have gradients.

    **Cost.** A step costs one value of fᵢ, which detects failures, and one gradient; d numbers are sent each way.

    Args:
        update_rule: factory of the local rule, a torch optimizer.
        **options: see ``LocalSteps``; a round rejected by ``accept`` still changes the server's moments.
    """

    name = "fedavg"
    client_class = GradientClient
    needs_gradient = True

    def __init__(self, x0: Any, *, update_rule: UpdateRule = sgd, **options: Any) -> None:
        super().__init__(x0, update_rule=update_rule, **options)

    def max_points(self, phase: str) -> int:
        """T points, with a gradient at each of them."""
        return self.local_steps


class MomentServer(AveragingServer):
    """Moves x by moments of the clients' mean displacement."""

    algorithm: AdaptiveFedOpt
    state: Moments

    def _start(self) -> None:
        x, a = self.algorithm.x0, self.algorithm
        v = torch.full_like(x, a.tau**2 if a.conventions == "reddi" else 0.0)
        self.state = Moments(x, torch.zeros_like(x), v)

    def _aggregate(self, phase: str, reports: Mapping[int, Report]) -> None:
        a, s = self.algorithm, self.state
        delta = self.combine("x", reports) - s.x
        m = a.beta1 * s.m + (1.0 - a.beta1) * delta
        v = a._second_moment(s.v, delta.square())
        if not bool(torch.isfinite(v).all()):
            raise RoundSkipped("the second moment is not finite")
        x = s.x + a._rate(self.round) * m / (v.sqrt() + a.tau)
        self.state = Moments(self.confined(x), m, v)


class AdaptiveFedOpt(FedAvg):
    """Shared part of FedAdam, FedYogi and FedAdagrad (Reddi et al., Alg. 2).

        Δ_t = Σᵢ pᵢ xᵢ − x_t,   m ← β₁m + (1 − β₁)Δ,   x ← x + η m/(√v + τ)

    with m₋₁ = 0, and v given by the algorithm. ``server_rate`` is η. Bounds are enforced by projection; a prox is
    refused, because the step leaves the convex hull of the clients' iterates.

    **Conventions.** ``"reddi"`` follows the paper: v₋₁ = τ² and no bias correction. ``"flower"`` reproduces Flower's
    strategies (1.41, 1.42) on the same messages: v₋₁ = 0, and FedAdam's η is multiplied by √(1 − β₂^(t+1))/(1 −
    β₁^(t+1)) with t from 1.

    Args:
        server_rate: η.
        beta1: β₁, in [0, 1).
        beta2: β₂, in [0, 1); FedAdagrad ignores it.
        tau: τ > 0, in x's units, like Δ and √v; the default is the paper's value.
        conventions: ``"reddi"`` or ``"flower"``.
        **options: see ``FedAvg``.
    """

    server_class: ClassVar[type[Server]] = MomentServer

    def __init__(
        self,
        x0: Any,
        *,
        server_rate: float = 0.1,
        beta1: float = 0.9,
        beta2: float = 0.99,
        tau: float = 1e-3,
        conventions: Conventions = "reddi",
        **options: Any,
    ) -> None:
        self.beta1, self.beta2 = nonnegative("beta1", beta1), nonnegative("beta2", beta2)
        if max(self.beta1, self.beta2) >= 1.0:
            raise ValueError(f"beta1 and beta2 must be less than 1, got {beta1} and {beta2}")
        self.tau = positive("tau", tau)
        self.conventions = check_choice("conventions", conventions, get_args(Conventions))
        if options.get("prox") is not None:
            raise ValueError(f"{self.name} does not support a prox: its server's step is not a mean of proximal points")
        super().__init__(x0, server_rate=server_rate, **options)

    def _rate(self, round_number: int) -> float:
        return self.server_rate

    def _second_moment(self, v: Tensor, square: Tensor) -> Tensor:
        """Returns the new v, given Δ²."""
        raise NotImplementedError


class FedAdam(AdaptiveFedOpt):
    """FedAdam (Reddi et al., Alg. 2): v ← β₂v + (1 − β₂)Δ². See ``AdaptiveFedOpt`` for the arguments.

    **When to use it.** If the clients' gradients exist and their coordinates differ in size.

    **Cost.** As for FedAvg; the server stores two more vectors.
    """

    name = "fedadam"

    def _rate(self, round_number: int) -> float:
        if self.conventions == "reddi":
            return self.server_rate
        t = round_number + 1.0
        return self.server_rate * math.sqrt(1.0 - self.beta2**t) / (1.0 - self.beta1**t)

    def _second_moment(self, v: Tensor, square: Tensor) -> Tensor:
        return self.beta2 * v + (1.0 - self.beta2) * square


class FedYogi(AdaptiveFedOpt):
    """FedYogi (Reddi et al., Alg. 2): v ← v − (1 − β₂)Δ² sign(v − Δ²). See ``AdaptiveFedOpt`` for the arguments.

    **When to use it.** Instead of FedAdam if Δ is sparse or changes in size, because v grows and shrinks slowly.

    **Cost.** As for FedAvg; the server stores two more vectors.
    """

    name = "fedyogi"

    def _second_moment(self, v: Tensor, square: Tensor) -> Tensor:
        return v - (1.0 - self.beta2) * square * torch.sign(v - square)


class FedAdagrad(AdaptiveFedOpt):
    """FedAdagrad (Reddi et al., Alg. 2): v ← v + Δ², with β₁ = 0 as in its experiments. See ``AdaptiveFedOpt``.

    **When to use it.** Instead of FedAdam if Δ is sparse; its steps become ever shorter.

    **Cost.** As for FedAvg; the server stores two more vectors.
    """

    name = "fedadagrad"

    def __init__(self, x0: Any, *, beta1: float = 0.0, **options: Any) -> None:
        super().__init__(x0, beta1=beta1, **options)

    def _second_moment(self, v: Tensor, square: Tensor) -> Tensor:
        return v + square
