"""Bounds whose variables may be integers, be searched on a log scale, and have names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from scipy.optimize import Bounds
from torch import Tensor

from optimizers.core.pairs import parse_pairs

Flags = bool | int | Sequence[bool] | Sequence[int] | np.ndarray | Tensor | None


class Space(Bounds):
    """Bounds with integers, log scales and names; SciPy accepts it as ``Bounds``.

    Example::

        space = Space([(1e-4, 1e2), (1, 12)], log=[True, False], integrality=[0, 1], names=["C", "depth"])
        result = minimize(lambda p: loss(C=p["C"], depth=p["depth"]), [1.0, 4], bounds=space, max_queries=60)
        result.params  # {"C": 0.83, "depth": 6}

    Args:
        bounds: ``scipy.optimize.Bounds``, or d pairs (lower, upper), where None and ±inf mean no bound.
        integrality: 1 or True for each variable that is an integer, as in ``scipy.optimize.milp`` and
            ``differential_evolution``; one number applies to all variables. The objective gets whole numbers; x0 is
            rounded.
        log: True for each variable that is searched on a log10 scale; its lower bound must be positive. For such a
            variable, distances in options such as ``x_scale`` are in decades.
        names: a name for each variable. The objective then receives a dictionary from names to values, ``int`` for
            integers and ``float`` for others; ``params`` of a result is such a dictionary.

    Raises:
        TypeError: if bounds have another type.
        ValueError: for bounds that are not pairs of numbers, flags that are not 0 or 1, an interval without an
            integer, a lower bound that is not positive for ``log``, or names that are not d different strings.

    Attributes:
        lb, ub: the bounds, shape ``d``; those of integers are whole numbers.
        integrality, log: shape ``d``, booleans.
        names: the names, or None.
    """

    def __init__(
        self, bounds: Any, *, integrality: Flags = None, log: Flags = None, names: Sequence[str] | None = None
    ) -> None:
        # Scalar bounds apply to all variables.
        given: tuple[Any, ...] = (getattr(bounds, "lb", 0), integrality, log, names)
        sizes = [np.size(part) for part in given]
        lower, upper = parse_pairs(bounds, max(sizes) if isinstance(bounds, Bounds) else len(bounds))
        self.integrality, self.log = (
            _flags(name, given, len(lower)) for name, given in (("integrality", integrality), ("log", log))
        )
        for j in np.flatnonzero(self.log & ~(lower > 0.0)):
            raise ValueError(f"log: variable {j} has the lower bound {lower[j]}; a log scale needs a positive one")
        whole = np.where(self.integrality, np.ceil(lower), lower), np.where(self.integrality, np.floor(upper), upper)
        for j in np.flatnonzero((whole[0] > whole[1]) & (lower <= upper)):
            raise ValueError(f"integrality: variable {j} has no integer in its bounds [{lower[j]}, {upper[j]}]")
        super().__init__(*whole)
        self.names = None if names is None else tuple(names)
        if self.names is not None and (
            len(set(self.names)) != len(lower) or not all(isinstance(name, str) for name in self.names)
        ):
            raise ValueError(f"names must be {len(lower)} different strings, one for each variable, got {names!r:.80}")

    def rounded(self, x: Tensor) -> Tensor:
        """Rounds the integers of points in user units, ``... x d``."""
        return torch.where(torch.as_tensor(self.integrality, device=x.device), x.round(), x)

    def named(self, x: Any) -> dict[str, int | float]:
        """Returns the values of a point, shape ``d``, by name.

        Raises:
            ValueError: if the variables have no names.
        """
        if self.names is None:
            raise ValueError("the variables have no names: pass names=[...] to Space")
        values = zip(self.names, self.integrality, x, strict=True)
        return {name: round(float(value)) if whole else float(value) for name, whole, value in values}

    def point(self, values: Mapping[str, float]) -> np.ndarray:
        """Returns the point with the given values by name, shape ``d``.

        Raises:
            ValueError: if the variables have no names or other names.
        """
        if self.names is None or set(values) != set(self.names):
            has = "no names: pass names=[...] to Space" if self.names is None else f"the names {', '.join(self.names)}"
            raise ValueError(f"the variables have {has}; got values of {', '.join(map(str, values))}")
        return np.array([values[name] for name in self.names], dtype=np.float64)

    def description(self) -> dict[str, Any]:
        """The properties that ``Bounds`` does not have, as plain values."""
        names = None if self.names is None else list(self.names)
        return {"integrality": self.integrality.tolist(), "log": self.log.tolist(), "names": names}


def handed_out(points: Tensor, space: Space | None, *, arrays: bool) -> Any:
    """Converts one point or ``q x d`` points to what an objective receives: dictionaries if variables have names."""
    if space is not None and space.names is not None:
        return space.named(points) if points.ndim == 1 else [space.named(x) for x in points]
    return points.cpu().numpy() if arrays else points


def _flags(name: str, given: Any, d: int) -> np.ndarray:
    flags = np.zeros(d) if given is None else np.asarray(given)
    if flags.shape not in ((), (1,), (d,)) or not np.isin(flags, (0, 1)).all():
        raise ValueError(f"{name} must be 0 or 1 (False or True), one for each of {d} variables, got {given!r:.80}")
    return np.broadcast_to(flags, d).astype(bool)
