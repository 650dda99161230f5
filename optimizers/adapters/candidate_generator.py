"""An optimizer as the candidate generator of a BoTorch loop."""

from __future__ import annotations

from typing import Any

import torch
from botorch.fit import fit_gpytorch_mll
from botorch.models.transforms.input import Normalize
from gpytorch.mlls import ExactMarginalLogLikelihood
from torch import Tensor

from optimizers.core.optimizer import Optimizer
from optimizers.core.options import check_boolean, check_integer, optional
from optimizers.core.space import Space
from optimizers.core.values import parse_point, parse_points, parse_values
from optimizers.registry import method_class
from optimizers.seeding import seeded
from surrogates import DerivedGP


class CandidateGenerator:
    """Generates candidates X for a BoTorch loop, and learns from the values Y that the loop observes.

    Example::

        generator = CandidateGenerator("zord", x0, bounds=bounds, max_queries=200)   # maximizes
        while not generator.stopped:
            X_next = generator.generate_candidates()                                 # q x d
            generator.observe(X_next, objective(X_next))                             # n x d, n x 1

        acquisition = LogExpectedImprovement(generator.model, best_f=generator.best_f)
        X_next, _ = optimize_acqf(acquisition, bounds, q=1, num_restarts=8, raw_samples=64)
        generator.observe(X_next, objective(X_next))

    Values keep the loop's sign; with ``maximize`` (BoTorch's convention) the optimizer minimizes −Y. Any point may be
    observed, in any order, and all finite values enter ``model``. The optimizer is told the values of its candidates
    (rows of X that equal one in the dtype of X) and, if the method has a model of f, those of all other rows. Pass
    ``X_pending`` to acquisition functions as pending points.

    Args:
        method: the name of a method, or an ``Optimizer`` subclass.
        x0: the initial point, shape ``d``.
        bounds: the bounds in BoTorch's form, ``2 x d``, with the lower bounds in the first row, a ``Space``, or None.
        max_queries: the budget; points that the optimizer did not generate do not count.
        maximize: whether larger values are better.
        **options: options of the optimizer, such as ``seed``, or ``prox`` for a constraint set with a projection.

    Attributes:
        optimizer: the optimizer, which minimizes.
        bounds: the bounds, ``2 x d``, or None.
    """

    def __init__(
        self,
        method: str | type[Optimizer],
        x0: Any,
        *,
        bounds: Tensor | Space | None = None,
        max_queries: int,
        maximize: bool = True,
        **options: Any,
    ) -> None:
        point = parse_point(x0)
        d = point.numel()
        box: Any = bounds if isinstance(bounds, Space) else None
        if bounds is not None:
            bounds = torch.stack([torch.from_numpy(s) for s in (box.lb, box.ub)]) if box else torch.as_tensor(bounds)
            if bounds.shape != (2, d):
                raise ValueError(f"bounds must have BoTorch's shape (2, {d}), got shape {tuple(bounds.shape)}")
            if d == 2 and not _within(point, bounds) and _within(point, bounds.mT):
                raise ValueError(
                    "bounds must have the lower bounds in the first row and the upper bounds in the second: x0 lies "
                    "outside these bounds, but inside their transpose, which is probably meant"
                )
        self.maximize = check_boolean("maximize", maximize)
        box = box if box or bounds is None else bounds.mT
        self.optimizer = method_class(method)(x0, bounds=box, max_queries=max_queries, **options)
        self.bounds = None if bounds is None else bounds.to(self.optimizer.x)
        self._X = self.optimizer.x.new_empty(0, d)
        self._Y = self.optimizer.x.new_empty(0, 1)
        self._model: DerivedGP | None = None
        self._modelled = 0

    @property
    def stopped(self) -> bool:
        """Whether the optimizer's run is over; points can still be observed, and the model fitted."""
        return self.optimizer.stopped

    @property
    def best_f(self) -> float:
        """The best observed value, with the loop's sign; ``RuntimeError`` if no finite value has been observed."""
        if len(self._Y) == 0:
            raise RuntimeError("no finite value has been observed; call observe first")
        return float(self._Y.max() if self.maximize else self._Y.min())

    @property
    def best_X(self) -> Tensor:
        """The point whose observed value is ``best_f``, shape ``d``; raises the same error as ``best_f``."""
        return self._X[int(torch.eq(self._Y, self.best_f).flatten().nonzero()[0])].clone()

    @property
    def train_X(self) -> Tensor:
        """The points with finite values in the order of observation, ``n x d``."""
        return self._X.clone()

    @property
    def train_Y(self) -> Tensor:
        """The values at ``train_X`` with the loop's sign, ``n x 1``."""
        return self._Y.clone()

    @property
    def X_pending(self) -> Tensor:
        """The candidates that have not been observed, ``m x d``, the oldest first."""
        pending = [batch.points()[self.optimizer.untold(batch)] for batch in self.optimizer.pending]
        return torch.cat([self._X[:0], *pending])

    def generate_candidates(self, q: int | None = None) -> Tensor:
        """Returns the candidates that have not been observed, ``q x d``, the oldest first.

        The same candidates are returned until they are observed.

        Args:
            q: the number of candidates. If fewer are pending, the optimizer chooses more, given the pending ones; if it
                needs their values first, fewer than q are returned. None: the optimizer's next batch.

        Raises:
            RuntimeError: if the run is over.
            ValueError: if q is less than 1.
        """
        q = optional(check_integer, "q", q, 1)
        batch = self.optimizer.ask()
        if q is None:
            return batch.points()[self.optimizer.untold(batch)]
        while len(self.X_pending) < q and self.optimizer.ask_another() is not None:
            pass
        return self.X_pending[:q]

    def observe(self, X: Tensor, Y: Tensor) -> None:
        """Adds observations.

        Args:
            X: the points, ``n x d``.
            Y: their values with the loop's sign, ``n x 1`` or ``n``. NaN and ±inf mark failed evaluations.

        Raises:
            ValueError: if a shape is wrong or a point is not finite.
            TypeError: for complex or non-numeric points or values, and values that require a gradient.
        """
        X, Y = parse_points("X", X, self.optimizer.dimension).to(self._X.device), torch.as_tensor(Y)
        if Y.shape not in {(len(X),), (len(X), 1)}:
            raise ValueError(f"Y must have shape ({len(X)}, 1), one value for each row of X, got {tuple(Y.shape)}")
        Y = parse_values(Y, len(X)).to(self._X.device)
        told = torch.ones(len(X), dtype=torch.bool) if self.optimizer.has_model else self.optimizer.is_pending(X)
        if bool(told.any()):
            self.optimizer.tell(X[told], (-Y if self.maximize else Y)[told])
        finite = torch.isfinite(Y)
        self._X = torch.cat([self._X, X[finite].to(self._X)])
        self._Y = torch.cat([self._Y, Y[finite, None].to(self._Y)])

    @property
    def model(self) -> DerivedGP:
        """A DerivedGP of all finite observations with the loop's sign, for BoTorch's acquisition functions.

        New observations are added to it in place. Only ``fit`` changes its hyperparameters.

        Raises:
            RuntimeError: if fewer than two finite values have been observed.
        """
        if self._model is None:
            return self.fit()
        if self._modelled < len(self._Y):
            self._model.add_observations(self._X[self._modelled :], self._Y[self._modelled :])
            self._modelled = len(self._Y)
        return self._model

    def fit(self, **options: Any) -> DerivedGP:
        """Fits a new model to all finite observations by maximum marginal likelihood, and makes it ``model``.

        Args:
            **options: arguments of ``DerivedGP`` other than the data, such as ``covar_module``. If there are bounds,
                ``input_transform`` defaults to ``Normalize`` with these bounds.

        Raises:
            RuntimeError: if fewer than two finite values have been observed.
        """
        if len(self._Y) < 2:
            raise RuntimeError(
                f"a model needs at least two finite values, got {len(self._Y)}; observe more points before model or fit"
            )
        if self.bounds is not None:
            options.setdefault("input_transform", Normalize(self._X.shape[1], bounds=self.bounds))
        model = DerivedGP(self._X, self._Y, **options)
        with seeded(self.optimizer.seed, [self._X.device]):
            fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
        self._model, self._modelled = model, len(self._Y)
        return model


def _within(x: Tensor, bounds: Tensor) -> bool:
    lower, upper = bounds.to(x)
    return bool(((lower <= x) & (x <= upper)).all())
