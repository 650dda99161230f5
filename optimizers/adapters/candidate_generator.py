"""An optimizer as the candidate generator of a BoTorch-style loop, with a DerivedGP of the observations."""

from __future__ import annotations

from typing import Any

import torch
from botorch.fit import fit_gpytorch_mll
from botorch.models.transforms.input import Normalize
from gpytorch.mlls import ExactMarginalLogLikelihood
from torch import Tensor

from optimizers.core.batch import Batch
from optimizers.core.optimizer import Optimizer
from optimizers.core.options import check_boolean
from optimizers.core.values import numeric, parse_point, parse_values
from optimizers.registry import method_class
from optimizers.seeding import seeded
from surrogates import DerivedGP


class CandidateGenerator:
    """Generates candidates X for a loop that evaluates them, and observes their values Y, as in BoTorch's loops.

    Example::

        generator = CandidateGenerator("zord", x0, bounds=bounds, max_queries=200)   # maximizes
        while not generator.stopped:
            X_next = generator.generate_candidates()                                 # q x d
            generator.observe(X_next, objective(X_next))                             # n x d, n x 1

        acquisition = LogExpectedImprovement(generator.model, best_f=generator.best_f)
        X_next, _ = optimize_acqf(acquisition, bounds, q=1, num_restarts=8, raw_samples=64)
        generator.observe(X_next, objective(X_next))

    Values have the loop's own sign: with ``maximize`` (BoTorch's convention) the optimizer is told −Y. Any points may
    be observed. Rows that the optimizer has asked for may come in any order and in pieces, and are told to it when its
    batch is complete; other rows enter the model only. Two rows are the same if they are equal in X's own dtype.

    Args:
        method: a method's name or an ``Optimizer`` subclass.
        x0: initial point, shape ``d``.
        bounds: bounds as BoTorch has them, ``2 x d``, lower ones in the first row; None: no box.
        max_queries: the optimizer's query budget; rows that it did not ask for do not count.
        maximize: whether larger Y are better.
        **options: options of the optimizer, such as ``seed``.

    Attributes:
        optimizer: the optimizer, which minimizes.
        bounds: the box, ``2 x d``, or None.
    """

    def __init__(
        self,
        method: str | type[Optimizer],
        x0: Any,
        *,
        bounds: Tensor | None = None,
        max_queries: int,
        maximize: bool = True,
        **options: Any,
    ) -> None:
        point = parse_point(x0)
        d = point.numel()
        if bounds is not None:
            bounds = torch.as_tensor(bounds)
            if bounds.shape != (2, d):
                raise ValueError(f"bounds must have BoTorch's shape (2, {d}), got {tuple(bounds.shape)}")
            if d == 2 and not _within(point, bounds) and _within(point, bounds.mT):
                raise ValueError(
                    "bounds must be BoTorch's, lower ones in the first row: x0 is in them if they are pairs"
                )
        self.maximize = check_boolean("maximize", maximize)
        box = None if bounds is None else bounds.mT
        self.optimizer = method_class(method)(x0, bounds=box, max_queries=max_queries, **options)
        self.bounds = None if bounds is None else bounds.to(self.optimizer.x)
        self._X = self.optimizer.x.new_empty(0, d)
        self._Y = self.optimizer.x.new_empty(0, 1)
        self._answers: dict[int, float] = {}
        self._model: DerivedGP | None = None
        self._modelled = 0

    @property
    def stopped(self) -> bool:
        """Whether the optimizer's run is over; points can still be observed and the model fitted."""
        return self.optimizer.stopped

    @property
    def best_f(self) -> float:
        """The best observed value, in the loop's sign.

        Raises:
            RuntimeError: if no finite value has been observed.
        """
        if len(self._Y) == 0:
            raise RuntimeError("no finite value has been observed")
        return float(self._Y.max() if self.maximize else self._Y.min())

    @property
    def best_X(self) -> Tensor:
        """The point whose observed value is ``best_f``, shape ``d``.

        Raises:
            RuntimeError: if no finite value has been observed.
        """
        return self._X[int(torch.eq(self._Y, self.best_f).flatten().nonzero()[0])].clone()

    @property
    def train_X(self) -> Tensor:
        """The observed points whose values are finite, in the order of observation, ``n x d``."""
        return self._X.clone()

    @property
    def train_Y(self) -> Tensor:
        """The values of ``train_X``, in the loop's sign, ``n x 1``."""
        return self._Y.clone()

    def generate_candidates(self) -> Tensor:
        """The points of the optimizer's batch that are not observed yet, ``q x d``.

        Raises:
            RuntimeError: if the run is over.
        """
        points = self.optimizer.ask().points()
        return points[[i for i in range(len(points)) if i not in self._answers]]

    def observe(self, X: Tensor, Y: Tensor) -> None:
        """Adds observations.

        Args:
            X: points, ``n x d``.
            Y: values of the points in the loop's sign, ``n x 1`` or ``n``; NaN and ±inf are failed queries.

        Raises:
            ValueError: for another shape, or points that are not finite.
            TypeError: for points that are not real numbers, and for values that are complex or not numeric,
                or carry a gradient.
        """
        X, Y = self._checked(X, Y)
        if self.optimizer.pending:
            self._match(self.optimizer.ask(), X, Y)
        finite = torch.isfinite(Y)
        self._X = torch.cat([self._X, X[finite].to(self._X)])
        self._Y = torch.cat([self._Y, Y[finite, None].to(self._Y)])

    def _checked(self, X: Any, Y: Any) -> tuple[Tensor, Tensor]:
        X, Y = numeric("X", X).to(self._X.device), torch.as_tensor(Y)
        d = self.optimizer.dimension
        if X.ndim != 2 or X.shape[1] != d:
            raise ValueError(f"X must have shape (n, {d}), got {tuple(X.shape)}")
        if not bool(torch.isfinite(X).all()):
            raise ValueError(f"X must be finite, row {int((~torch.isfinite(X)).any(dim=1).nonzero()[0])} is not")
        if Y.shape not in {(len(X),), (len(X), 1)}:
            raise ValueError(f"Y must have shape ({len(X)}, 1), one value for each row of X, got {tuple(Y.shape)}")
        return X, parse_values(Y, len(X)).to(self._X.device)

    def _match(self, pending: Batch, X: Tensor, Y: Tensor) -> None:
        """Collects the values of the pending batch's points among the rows, and tells the batch when it has all."""
        answers, asked = dict(self._answers), pending.points().to(X.dtype)
        for x, y in zip(X, Y.tolist(), strict=True):
            for i in (asked == x).all(dim=1).nonzero().flatten().tolist():
                if i not in answers:
                    answers[i] = y
                    break
        if len(answers) == len(asked):
            values = torch.tensor([answers[i] for i in range(len(asked))], dtype=torch.float64)
            self.optimizer.tell(pending, -values if self.maximize else values)
            answers = {}
        self._answers = answers

    @property
    def model(self) -> DerivedGP:
        """A DerivedGP of all finite observations, Y in the loop's sign, for BoTorch's acquisition functions.

        New observations are added in place, so that acquisition functions of the model see them; the hyperparameters
        change only in ``fit``.

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
        """Fits a new model to all finite observations by marginal likelihood; it becomes ``model``.

        Args:
            **options: ``DerivedGP``'s arguments beyond the data, such as its kernel. Its ``input_transform`` is
                ``Normalize`` of the bounds if there are bounds and none is given.

        Raises:
            RuntimeError: if fewer than two finite values have been observed.
        """
        if len(self._Y) < 2:
            raise RuntimeError(f"a model needs at least two finite values, {len(self._Y)} observed")
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
