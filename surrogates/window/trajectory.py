"""The growing history of queries of one optimizer or client."""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from typing import Any

import torch
from torch import Tensor

from surrogates.window.nearest import NearestSearch


class Trajectory:
    """Queries x₁, x₂, … with their values y (and noise variances), appended at constant amortised cost.

    Failed queries (y NaN or infinite) are kept apart, where no model sees them, and are counted. `X`, `y` and
    `noise` are views into storage that doubles when it is full: appending copies nothing else, and a view
    taken earlier keeps its values. Storage is at most twice the rows held; while it grows, old and new exist
    together.

    Values and noise are float64 whatever X is: differences of values are what gradients are made of.

    ZoRD (Shu et al., 2023, Appx. C.1) conditions on the 150 queries nearest to the current point: `nearest`.

    Args:
        d: Dimension of the inputs.
        dtype: torch.float64 or torch.float32, of X.
        device: Where they live.
        capacity: Rows that storage is made for at first.

    Raises:
        ValueError: If d or capacity is not a positive integer.
        TypeError: If dtype is not one of the two.
    """

    def __init__(
        self,
        d: int,
        *,
        dtype: torch.dtype = torch.float64,
        device: torch.device | str | None = None,
        capacity: int = 64,
    ) -> None:
        for name, value in (("d", d), ("capacity", capacity)):
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ValueError(f"{name} must be a positive integer, got {value!r}.")
        if dtype not in (torch.float32, torch.float64):
            raise TypeError(f"dtype must be torch.float32 or torch.float64, got {dtype}.")
        options: dict[str, Any] = {
            "dtype": dtype,
            "device": torch.device("cpu" if device is None else device),
        }
        self.d = d
        self._X = torch.empty(capacity, d, **options)
        self._y = torch.empty(capacity, dtype=torch.float64, device=options["device"])
        self._noise: Tensor | None = None
        self._failed_X = torch.empty(0, d, **options)
        self._length = 0
        self._failures = 0
        self._search = NearestSearch()

    def __len__(self) -> int:
        """Queries that gave a finite value."""
        return self._length

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of X; y and noise are float64."""
        return self._X.dtype

    @property
    def device(self) -> torch.device:
        """Device of X, y and noise."""
        return self._X.device

    @property
    def X(self) -> Tensor:
        """Inputs, n x d, in the order of appending; a view, not to be written to."""
        return self._X[: self._length]

    @property
    def y(self) -> Tensor:
        """Values, n, all finite; a view, not to be written to."""
        return self._y[: self._length]

    @property
    def noise(self) -> Tensor | None:
        """Noise variances, n, or None where none were given; a view, not to be written to."""
        return None if self._noise is None else self._noise[: self._length]

    @property
    def failed_X(self) -> Tensor:
        """Where queries failed, in the order of appending."""
        return self._failed_X[: self._failures]

    @property
    def failures(self) -> int:
        """Number of failed queries."""
        return self._failures

    @property
    def best(self) -> int:
        """Row of the lowest value, the first of equals.

        Raises:
            ValueError: If no query has succeeded.
        """
        self._require_data()
        return int((self.y == self.y.min()).nonzero()[0, 0])

    def append(self, X: Tensor, y: Tensor | float, noise: Tensor | float | None = None) -> int:
        """Append one query or several.

        Args:
            X: m x d, or d for one.
            y: m values, or a number for one. NaN and infinities are failures.
            noise: m noise variances, or one for all; with every append or with none.

        Returns:
            How many of the m failed.

        Raises:
            TypeError: If X is not a tensor of this trajectory's dtype and device, or y or noise are not real numbers
                on that device.
            ValueError: If shapes differ, X is not finite, a noise of a successful query is not finite and
                positive, or noise is given where earlier queries have none (or the other way round).
                Nothing is appended then.
        """
        X = self._check_points(X)
        y = self._check_values("y", y, X.shape[0])
        failed = ~torch.isfinite(y)
        if noise is not None:
            noise = self._check_values("noise", noise, X.shape[0])
            bad = ~(failed | (torch.isfinite(noise) & (noise > 0)))
            if bad.any():
                raise ValueError(
                    f"noise variances must be finite and positive, got {noise[bad][0].item()} in row "
                    f"{int(bad.nonzero()[0, 0])}."
                )
        count = int(failed.sum())
        if count < X.shape[0] and self._length and (noise is None) != (self._noise is None):
            raise ValueError(
                f"noise was {'' if noise is None else 'not '}given for the {self._length} earlier queries "
                f"and is {'not ' if noise is None else ''}given now: give it with every append or with none."
            )
        if count:
            self._failed_X = _reserve(self._failed_X, self._failures, count)
            self._failed_X[self._failures : self._failures + count] = X[failed]
            self._failures += count
            if count == X.shape[0]:
                return count
            X, y = X[~failed], y[~failed]
            noise = None if noise is None else noise[~failed]
        self._store(X, y, noise)
        return count

    def nearest(
        self,
        x: Tensor,
        k: int,
        precision: Tensor | float | None = None,
        held: tuple[list[int], Tensor] | None = None,
    ) -> Tensor:
        """Rows of the k queries nearest to x in Σⱼ wⱼ (xⱼ − Xᵢⱼ)², nearest first, ties by lower row.

        Exact by float64 evaluation of the differences, and independent of what was asked before. The first
        question reads the whole history; one for a point near an earlier one evaluates little more than the k
        rows (see `surrogates.window.nearest`).

        Args:
            x: d.
            k: How many; all n where k > n.
            precision: 1/ℓⱼ² of an ARD kernel, d of them; None or one number for the Euclidean order.
            held: k row numbers likely to be near and a compact copy of these rows, for speed alone.

        Returns:
            min(k, n) row numbers (int64).

        Raises:
            TypeError: If x is not a tensor of this trajectory's dtype and device, or k not an integer.
            ValueError: If the trajectory is empty, k < 1, shapes differ, x is not finite, or precision is not
                finite and positive.
        """
        self._require_data()
        x = self._check_points(x)
        if x.shape[0] != 1:
            raise ValueError(f"x must be one point of dimension {self.d}, got {x.shape[0]} points.")
        if not isinstance(k, int) or isinstance(k, bool):
            raise TypeError(f"k must be an integer, got {type(k).__name__}.")
        if k < 1:
            raise ValueError(f"k must be at least 1, got {k}.")
        metric = check_precision(precision, self.d, self.device)
        if metric is not None and metric.ndim == 0:
            metric = None
        k = min(k, self._length)
        return self._search.nearest(self.X, x[0], k, metric, held if held is not None and len(held[0]) >= k else None)

    def state_dict(self) -> dict[str, Any]:
        """Everything held, as tensors that no later append changes; loading it is exact to the bit."""
        return {
            "version": 1,
            "d": self.d,
            "X": self.X.clone(),
            "y": self.y.clone(),
            "noise": None if self.noise is None else self.noise.clone(),
            "failed_X": self.failed_X.clone(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Replace what is held by what `state_dict` gave, on this trajectory's device.

        Raises:
            ValueError: If the state is of another version or dimension, or does not fit together.
            TypeError: If its dtype is not this trajectory's. Nothing changes then.
        """
        expected = {"version", "d", "X", "y", "noise", "failed_X"}
        if set(state) != expected:
            raise ValueError(f"a Trajectory's state has {sorted(expected)}, got {sorted(state)}.")
        if state["version"] != 1 or state["d"] != self.d:
            raise ValueError(
                f"the state is of version {state['version']} and dimension {state['d']}; this Trajectory "
                f"takes version 1 and dimension {self.d}."
            )
        other = Trajectory(self.d, dtype=self.dtype, device=self.device, capacity=max(1, len(state["X"])))
        moved: dict[str, Any] = {
            name: None if state[name] is None else state[name].to(self.device)
            for name in ("X", "y", "noise", "failed_X")
        }
        if len(state["X"]) and other.append(moved["X"], moved["y"], moved["noise"]):
            raise ValueError("the state's y has values that are not finite.")
        if len(state["failed_X"]):
            other.append(moved["failed_X"], torch.full(moved["failed_X"].shape[:1], torch.nan, device=self.device))
        self.__dict__.update(other.__dict__)

    def _store(self, X: Tensor, y: Tensor, noise: Tensor | None) -> None:
        start, stop = self._length, self._length + X.shape[0]
        self._X, self._y = _reserve(self._X, start, X.shape[0]), _reserve(self._y, start, X.shape[0])
        self._X[start:stop], self._y[start:stop] = X, y
        if noise is not None:
            storage = torch.empty_like(self._y) if self._noise is None else self._noise
            self._noise = _reserve(storage, start, X.shape[0])
            self._noise[start:stop] = noise
        self._length = stop

    def _require_data(self) -> None:
        if not self._length:
            raise ValueError(f"the trajectory holds no successful query ({self._failures} failed).")

    def _check_points(self, X: Tensor) -> Tensor:
        if not isinstance(X, Tensor):
            raise TypeError(f"points must be a torch tensor, got {type(X).__name__}.")
        self._check_kind("points", X)
        X = X.detach()
        if X.ndim == 1:
            X = X.unsqueeze(0)
        if X.ndim != 2 or X.shape[1] != self.d:
            raise ValueError(f"points must be of shape m x {self.d} or {self.d}, got {tuple(X.shape)}.")
        # A finite sum proves that every term is; an infinite one may be overflow.
        if not isfinite(float(X.sum())) and not torch.isfinite(X).all():
            raise ValueError("points must be finite, got NaN or infinity.")
        return X.contiguous()

    def _check_values(self, name: str, values: Tensor | float, m: int) -> Tensor:
        if not isinstance(values, Tensor):
            if isinstance(values, bool | complex) or not hasattr(values, "__float__"):
                raise TypeError(f"{name} must be a torch tensor or a number, got {type(values).__name__}.")
            values = torch.tensor(float(values), dtype=torch.float64, device=self.device)
        if not values.dtype.is_floating_point or values.device != self.device:
            raise TypeError(f"{name} must be real on {self.device}, got {values.dtype} on {values.device}.")
        values = values.detach().double()
        if values.ndim == 0 and (m == 1 or name == "noise"):
            return values.expand(m)
        if values.shape != (m,):
            raise ValueError(f"{name} must be of shape ({m},) for {m} points, got {tuple(values.shape)}.")
        return values

    def _check_kind(self, name: str, values: Tensor) -> None:
        if values.dtype != self.dtype or values.device != self.device:
            raise TypeError(f"{name} must be {self.dtype} on {self.device}, got {values.dtype} on {values.device}.")


def check_precision(precision: Tensor | float | None, d: int, device: torch.device) -> Tensor | None:
    """Weights of a diagonal metric as a float64 tensor of shape (d,), or () where they are all one number.

    Raises:
        ValueError: If they are neither one number nor d, or not finite and positive.
    """
    if precision is None:
        return None
    result = torch.as_tensor(precision, dtype=torch.float64, device=device).detach().squeeze().contiguous()
    if result.ndim and result.shape != (d,):
        raise ValueError(f"precision must be one number or {d}, got shape {tuple(torch.as_tensor(precision).shape)}.")
    if not (torch.isfinite(result) & (result > 0)).all():
        raise ValueError(f"precision must be finite and positive (1/ℓ² of each input), got {precision!r}.")
    return result


def _reserve(storage: Tensor, length: int, rows: int) -> Tensor:
    """The storage, or one at least twice as long with the first ``length`` rows copied."""
    if length + rows <= storage.shape[0]:
        return storage
    grown = storage.new_empty(max(2 * storage.shape[0], length + rows), *storage.shape[1:])
    grown[:length] = storage[:length]
    return grown
