"""What a refactoring must not change: digests of whole runs of every optimizer, algorithm and surrogate.

    python tests/digests.py record FILE            run everything, write the digests
    python tests/digests.py compare FILE [PREFIX]  run what begins with PREFIX, name every case that differs

One process, one thread, fixed seeds. A case's digests are of all queried points, of all values, of all messages, and of
the multiset of numbers in the final states, whatever their keys. They hold on one machine with one set of libraries:
record on the commit before, compare on the commit after. Cases under ``failures/`` have failing queries.
"""

import os

for _pool in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS"):
    os.environ[_pool] = "1"

import hashlib
import json
import logging
import math
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
import torch
from torch import Tensor

import optimizers
import surrogates
from federated import decode, make_federation
from federated.testing import Fault, faulty
from optimizers import L1, Box, BoxRidge, L2Ball, Ridge, Simplex
from optimizers.registry import method_class
from surrogates.kernels.stationary import radial_profile
from surrogates.window.nearest_window import NearestWindow
from surrogates.window.trajectory import Trajectory
from tests.digest_cases import ALGORITHM_CASES, METHOD_CASES

Digests = dict[str, Any]
CASES: dict[str, Callable[[], Digests]] = {}


class Stream:
    """A digest of numbers in the order in which they come."""

    def __init__(self) -> None:
        self._hash = hashlib.sha256()

    def add(self, value: Any) -> None:
        """Take a tensor, an array or a number."""
        self._hash.update(_bytes(value))

    def __str__(self) -> str:
        return self._hash.hexdigest()[:24]


def _bytes(value: Any) -> bytes:
    if isinstance(value, Tensor):
        value = value.detach().cpu().numpy()
    return np.ascontiguousarray(np.asarray(value)).tobytes()


def leaves(state: Any) -> Iterable[Any]:
    """The tensors and numbers of a state; keys and words are left out, and options, which may be spelt anew."""
    if isinstance(state, Mapping):
        for name, value in state.items():
            if name != "options":
                yield from leaves(value)
    elif isinstance(state, list | tuple):
        for value in state:
            yield from leaves(value)
    elif isinstance(state, Tensor) or (isinstance(state, int | float) and not isinstance(state, bool)):
        yield state


def numbers(state: Any) -> list[str]:
    """Digests of the distinct leaves of a state, in their own order."""
    return sorted({hashlib.sha256(_bytes(leaf)).hexdigest()[:12] for leaf in leaves(state)})


PARTS = ("x0", "x", "iterations", "record", "pending", "state")
"""Of an optimizer's state; the others are options, which may be spelt anew."""


# Optimizers.


def quadratic(x: Tensor) -> Tensor:
    return (torch.logspace(0.0, 1.0, x.shape[-1], dtype=x.dtype) * (x - 0.3).square()).sum(-1)


def wavy(x: Tensor) -> Tensor:
    return quadratic(x) + 0.3 * torch.cos(5.0 * x).sum(-1)


def run_method(method: str, d: int, options: Mapping[str, Any], failing: int = 0, fun: Any = quadratic) -> Digests:
    options = dict(options)
    if options.get("jac"):
        options["jac"] = lambda x: torch.autograd.functional.jacobian(fun, x)
    x0 = torch.linspace(0.7, 1.1, d, dtype=options.pop("dtype", torch.float64))
    opt = method_class(method)(x0, seed=11, **options)
    points, values = Stream(), Stream()
    while not opt.stopped:
        batch = opt.ask()
        asked = batch.points()
        y = fun(asked.double())
        if failing:
            at = torch.arange(opt.queries, opt.queries + len(y))
            y = torch.where(at % failing == failing - 2, torch.nan, y)
        points.add(asked)
        values.add(y)
        opt.tell(batch, y)
    state = opt.state_dict()
    return {"points": str(points), "values": str(values), "state": numbers([state[name] for name in PARTS])}


PROXES = {
    "l1": lambda: L1(0.05),
    "box": lambda: Box(-0.5, 0.9),
    "ridge": lambda: Ridge(0.1),
    "box-ridge": lambda: BoxRidge(-0.5, 0.9, 0.1),
    "ball": lambda: L2Ball(1.2),
    "simplex": Simplex,
}


def _add_methods() -> None:
    for name, (method, d, given) in METHOD_CASES.items():
        options = {"max_queries": 60} | given
        prox = options.pop("prox", None)
        if prox is not None:
            options["prox"] = PROXES[prox]()
        CASES[f"optimizers/{name}"] = lambda m=method, d=d, o=options: run_method(m, d, o)
        CASES[f"optimizers/{name}/wavy"] = lambda m=method, d=d, o=options: run_method(m, d, o, fun=wavy)
        CASES[f"failures/{name}"] = lambda m=method, d=d, o=options: run_method(m, d, o, failing=7)


# Algorithms.


class Client:
    """fᵢ, and what was asked of it."""

    def __init__(self, number: int, failing: int, points: Stream, values: Stream) -> None:
        self.number, self.failing, self.points, self.values, self.calls = number, failing, points, values, 0

    def __call__(self, x: Tensor) -> Tensor:
        centre = 0.3 + 0.1 * self.number
        y = (torch.logspace(0.0, 0.5, len(x), dtype=torch.float64) * (x.double() - centre).square()).sum()
        self.calls += 1
        if self.failing and self.calls % self.failing == self.failing - 1:
            y = y * math.nan
        self.points.add(x)
        self.values.add(y)
        return y


def run_algorithm(algorithm: str, options: Mapping[str, Any], failing: int = 0) -> Digests:
    options = {"local_steps": 3, "seed": 5} | dict(options)
    rounds, d = options.pop("rounds", 4), options.pop("d", 5)
    prox, faults = options.pop("prox", None), options.pop("faults", ())
    if prox is not None:
        options["prox"] = PROXES[prox]()
    points, values, messages = Stream(), Stream(), Stream()
    clients = [Client(i, failing, points, values) for i in range(4)]
    x0 = torch.linspace(0.6, 0.9, d, dtype=options.pop("dtype", torch.float64))
    federation = faulty(make_federation(algorithm, clients, x0, **options), [Fault(*fault) for fault in faults])
    server, broadcast, aggregate = federation.server, federation.server.broadcast, federation.server.aggregate

    def take(message: Any) -> None:
        if isinstance(message, bytes):
            message = decode(message, 1 << 30)
        for tensor in message.tensors.values():
            messages.add(tensor)
        for value in message.values.values():
            if isinstance(value, int | float):
                messages.add(value)

    def broadcasting(client: int | None = None) -> Any:
        message = broadcast(client)
        take(message)
        return message

    def aggregating(arrivals: Any) -> Any:
        arrivals = list(arrivals)
        for arrival in arrivals:
            if arrival.content is not None:
                take(arrival.content)
        return aggregate(arrivals)

    server.broadcast, server.aggregate = broadcasting, aggregating
    for _ in range(rounds):
        federation.run_round()
    state = federation.state_dict()
    counts = [n for n in leaves(state["ledger"]) if isinstance(n, int)]  # the others are seconds
    parts = [state["server"]["state"], state["server"]["round"], counts]
    for client in state["clients"].values():
        parts += [client["state"], *([client["optimizer"][name] for name in PARTS])]
    return {"points": str(points), "values": str(values), "messages": str(messages), "state": numbers(parts)}


def _add_algorithms() -> None:
    for name, (algorithm, options) in ALGORITHM_CASES.items():
        CASES[f"federated/{name}"] = lambda a=algorithm, o=options: run_algorithm(a, o)
        CASES[f"failures/federated/{name}"] = lambda a=algorithm, o=options: run_algorithm(a, o, failing=6)


# Surrogates.


def _data(n: int, d: int, seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    X = torch.rand(n, d, generator=generator, dtype=torch.float64)
    return X, (quadratic(X) + torch.sin(3.0 * X).sum(-1))[:, None]


def _posterior(posterior: Any) -> list[Any]:
    found = [posterior.mean, posterior.variance, posterior.trace, posterior.covariance_matrix]
    return [*found, posterior.joint_covariance(), posterior.spectral_norm, posterior.descent_probability()]


def run_model(kernel: Callable[[], Any] | None, d: int = 3, n: int = 20, fit: bool = False, **options: Any) -> Digests:
    from botorch.fit import fit_gpytorch_mll
    from gpytorch.mlls import ExactMarginalLogLikelihood

    X, Y = _data(n, d, 3)
    if kernel is not None:
        options["covar_module"] = kernel().double()
    torch.manual_seed(0)
    model = surrogates.DerivedGP(X[:-4], Y[:-4], **options)
    if fit:
        fit_gpytorch_mll(
            ExactMarginalLogLikelihood(model.likelihood, model), optimizer_kwargs={"options": {"maxiter": 5}}
        )
    model.eval()
    found, at = Stream(), X[-4:] + 0.1
    for _ in range(2):
        joint = model.joint_posterior(at)
        for value in [*_posterior(model.gradient_posterior(at)), joint.mean, joint.covariance_matrix]:
            found.add(value)
        value = model.posterior(at)
        found.add(value.mean)
        found.add(value.variance)
        found.add(surrogates.GradientInformation(model, X[0])(at[:, None, :]))
        model.add_observations(X[-4:], Y[-4:])
    return {"numbers": str(found)}


def run_observed_gradients() -> Digests:
    X, Y = _data(12, 3, 4)
    G = torch.cos(3.0 * X) * 3.0
    model = surrogates.GradientObservationGP(X, Y, G)
    model.eval()
    found = Stream()
    posterior = model.gradient_posterior(X[:3] + 0.1)
    for value in (posterior.mean, posterior.variance, model.posterior(X[:3] + 0.2).mean):
        found.add(value)
    return {"numbers": str(found)}


def run_features(kernel: str, kind: str, d: int) -> Digests:
    maker = {"rbf": surrogates.rbf_kernel, "matern": surrogates.matern_kernel}[kernel]
    features = surrogates.FourierFeatures(maker(0.7), d, 32, 9, kind)
    X, Y = _data(50, d, 6)
    found = Stream()
    for value in (features.features(X), features.gradient(X[:3], torch.linspace(0, 1, 32, dtype=torch.float64))):
        found.add(value)
    surrogate = surrogates.FourierSurrogate(features, 1e-4, "estimated").fit(X[:20], Y[:20, 0])
    for start in (20, 30, 40):
        found.add(surrogate.weights)
        posterior = surrogate.gradient_posterior(X[:4] + 0.05)
        for value in (posterior.mean, posterior.trace):
            found.add(value)
        surrogate.append(X[start : start + 10], Y[start : start + 10, 0])
    return {"numbers": str(found), "fingerprint": features.fingerprint}


def run_trajectory() -> Digests:
    X, Y = _data(60, 4, 8)
    trajectory = Trajectory(4)
    trajectory.append(X[:30], Y[:30, 0])
    profile = radial_profile(surrogates.matern_kernel(0.8).base_kernel)
    window = NearestWindow(trajectory, 12, precision=0.8**-2, profile=profile, noise=1e-6)
    found = Stream()
    for i in range(30, 60):
        trajectory.append(X[i : i + 1], Y[i : i + 1, 0])
        window.move_to(X[i] * 0.9)
        for value in (window.indices, window.L, window.squared_distances):
            found.add(value)
    return {"numbers": str(found), "state": numbers([trajectory.state_dict(), window.state_dict()])}


def _add_surrogates() -> None:
    from gpytorch.kernels import MaternKernel, RBFKernel, RQKernel, ScaleKernel

    kernels = {
        "rbf": lambda: ScaleKernel(RBFKernel()),
        "rbf-ard": lambda: ScaleKernel(RBFKernel(ard_num_dims=3)),
        "matern32": lambda: ScaleKernel(MaternKernel(nu=1.5)),
        "matern52-ard": lambda: ScaleKernel(MaternKernel(nu=2.5, ard_num_dims=3)),
        "rq": lambda: ScaleKernel(RQKernel()),
        "sum": lambda: ScaleKernel(RBFKernel()) + ScaleKernel(MaternKernel(nu=2.5, active_dims=[0, 2])),
        "product": lambda: RBFKernel() * RQKernel(),
    }
    for name, kernel in kernels.items():
        CASES[f"surrogates/derived_gp/{name}"] = lambda k=kernel: run_model(k)
    CASES["surrogates/derived_gp/default"] = lambda: run_model(None)
    CASES["surrogates/derived_gp/fitted"] = lambda: run_model(None, fit=True)
    CASES["surrogates/derived_gp/wide"] = lambda: run_model(kernels["matern52-ard"], n=40)
    CASES["surrogates/observed_gradients"] = run_observed_gradients
    for kind in ("cosine", "paired", "orthogonal", "sobol"):
        for kernel in ("rbf", "matern"):
            CASES[f"surrogates/features/{kernel}-{kind}"] = lambda k=kernel, c=kind: run_features(k, c, 5)
    CASES["surrogates/trajectory"] = run_trajectory


def run_directions() -> Digests:
    found = Stream()
    for distribution in ("normal", "rademacher", "sphere", "coordinate", "orthonormal"):
        directions = optimizers.Directions(3, 17, distribution)
        for step in (0, 5, 1 << 40):
            found.add(directions.block(step, 6))
            found.add(directions.row(step, 2, 3, 11, torch.float32))
    return {"numbers": str(found)}


_add_methods()
_add_algorithms()
_add_surrogates()
CASES["optimizers/directions"] = run_directions


def run_all(prefixes: tuple[str, ...] = ()) -> dict[str, Digests]:
    torch.set_num_threads(1)
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    found = {}
    for name, case in CASES.items():
        if prefixes and not name.startswith(prefixes):
            continue
        start = time.perf_counter()
        try:
            found[name] = case()
        except Exception as error:
            found[name] = {"error": f"{type(error).__name__}: {error}"}
        if "--times" in sys.argv:
            print(f"{time.perf_counter() - start:7.2f} s  {name}  {found[name].get('error', '')}", file=sys.stderr)
    return found


def differences(before: Mapping[str, Digests], after: Mapping[str, Digests]) -> list[str]:
    """A line for each case and digest that is not the same."""
    lines = []
    for name, digests in after.items():
        old = before.get(name)
        if old is None:
            lines.append(f"{name}: not recorded before")
            continue
        for part in sorted({*old, *digests}):
            ours, theirs = digests.get(part), old.get(part)
            if ours == theirs:
                continue
            if isinstance(ours, list) and isinstance(theirs, list):
                gone, new = len(set(theirs) - set(ours)), len(set(ours) - set(theirs))
                lines.append(f"{name}: {part}: {gone} numbers gone, {new} new")
            else:
                lines.append(f"{name}: {part}: {theirs} before, {ours} after")
    return lines


def main(arguments: list[str]) -> int:
    """Record or compare."""
    arguments = [a for a in arguments if a != "--times"]
    what, file, prefixes = arguments[0], Path(arguments[1]), tuple(arguments[2:])
    found = run_all(prefixes)
    if what == "record":
        file.write_text(json.dumps(found, indent=1))
        failed = [name for name, digests in found.items() if "error" in digests]
        print(f"{len(found)} cases, {len(failed)} of them raise: {', '.join(failed)}")
        return 0
    lines = differences(json.loads(file.read_text()), found)
    print("\n".join([*lines, f"{len(found)} cases compared, {len(lines)} differences"]))
    return bool(lines)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
