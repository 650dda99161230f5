"""Hyperparameter tuning by cross-validation on data of scikit-learn: the mean loss over the folds.

Gradient-boosted trees (LightGBM) and a perceptron minimize the log loss in nats; kernel ridge regression with a
lengthscale for each input minimizes the root mean square error in units of the target. The seed draws four fifths of
the data, the folds, and the random numbers of the learners.

A query takes about a tenth of a second for three fits of up to 200 trees or of a perceptron, and tens of milliseconds
for five dense solves of kernel ridge regression. f is deterministic; it jumps where an integer or a bag of trees
changes, and is smooth for kernel ridge regression. LightGBM: MIT; scikit-learn: BSD 3-clause; data of UCI: CC BY 4.0;
the diabetes data of Efron et al. (2004) were published without a licence.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import numpy as np
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits
from sklearn.ensemble import HistGradientBoostingRegressor, RandomForestRegressor
from sklearn.exceptions import ConvergenceWarning
from sklearn.kernel_ridge import KernelRidge
from sklearn.model_selection import KFold, StratifiedKFold, cross_val_score
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from threadpoolctl import ThreadpoolController

from experiments.workloads.black_boxes.black_box import PROBLEM, BlackBox, central, cube
from experiments.workloads.black_boxes.variables import Variable, named, space
from optimizers import Space

Learner = Callable[[dict[str, Any], int], Any]
"""Maps hyperparameters and a seed to scikit-learn's estimator."""

TREES = (
    Variable("n_estimators", 20, 200, log=True, whole=True),
    Variable("learning_rate", 0.01, 0.5, log=True),
    Variable("num_leaves", 4, 64, log=True, whole=True),
    Variable("max_depth", 2, 12, whole=True),
    Variable("min_child_samples", 2, 60, log=True, whole=True),
    Variable("min_child_weight", 1e-3, 10.0, log=True),
    Variable("subsample", 0.4, 1.0),
    Variable("colsample_bytree", 0.3, 1.0),
    Variable("reg_alpha", 1e-4, 10.0, log=True),
    Variable("reg_lambda", 1e-4, 10.0, log=True),
    Variable("min_split_gain", 1e-4, 1.0, log=True),
    Variable("max_bin", 8, 255, log=True, whole=True),
)
"""Hyperparameters by LightGBM's names."""

LENGTH_SCALES = tuple(Variable(f"length_scale_{i}", 0.1, 100.0, log=True) for i in range(10))
RIDGE = (*LENGTH_SCALES, Variable("alpha", 1e-4, 10.0, log=True))
"""Lengthscales in standard deviations of the inputs, and the ridge."""

PERCEPTRON = (
    Variable("learning_rate_init", 1e-4, 0.3, log=True),
    Variable("alpha", 1e-6, 1.0, log=True),
    Variable("one_minus_beta_1", 0.01, 0.9, log=True),
    Variable("one_minus_beta_2", 1e-4, 0.1, log=True),
    Variable("epsilon", 1e-10, 1e-2, log=True),
    Variable("width", 8, 64, log=True, whole=True),
    Variable("batch_size", 16, 128, log=True, whole=True),
    Variable("max_iter", 4, 20, log=True, whole=True),
    Variable("scale", 0.1, 10.0, log=True),
    Variable("power", 0.3, 3.0, log=True),
)
"""Hyperparameters of Adam, of the network, and of its inputs ``scale`` p^``power`` for pixels p in [0, 1]."""

FOREST = (
    Variable("n_estimators", 10, 100, log=True, whole=True),
    Variable("max_depth", 2, 20, whole=True),
    Variable("min_samples_leaf", 1, 30, log=True, whole=True),
    Variable("min_samples_split", 2, 20, whole=True),
    Variable("max_features", 0.1, 1.0),
)
"""Hyperparameters of a random forest by scikit-learn's names."""

BOOSTING = (
    Variable("learning_rate", 0.01, 1.0, log=True),
    Variable("max_iter", 10, 100, log=True, whole=True),
    Variable("max_leaf_nodes", 3, 31, log=True, whole=True),
    Variable("min_samples_leaf", 2, 60, log=True, whole=True),
    Variable("l2_regularization", 1e-4, 100.0, log=True),
    Variable("max_bins", 4, 255, log=True, whole=True),
)
"""Hyperparameters of scikit-learn's gradient boosting by its names."""


@cache
def _threads() -> ThreadpoolController:
    return ThreadpoolController()


@dataclasses.dataclass(frozen=True)
class Tuning:
    """The cross-validated loss of a learner: ``loss`` of its hyperparameters, or f(u) for u in [0, 1]^d.

    Attributes:
        variables: the hyperparameters.
        learner: creates the estimator.
        inputs: ``n x p``.
        targets: shape ``n``.
        folds: scikit-learn's splitter.
        scoring: scikit-learn's name of the negative loss.
        seed: seed of the learner.
    """

    variables: tuple[Variable, ...]
    learner: Learner
    inputs: np.ndarray
    targets: np.ndarray
    folds: Any
    scoring: str
    seed: int

    def __call__(self, u: np.ndarray) -> float:
        """Returns f at u, shape ``d``."""
        return self.loss(named(self.variables, u))

    @property
    def space(self) -> Space:
        """The space of the hyperparameters in their own units, whose points ``loss`` takes."""
        return space(self.variables)

    def loss(self, values: dict[str, Any]) -> float:
        """Returns the loss, NaN if a fit fails; runs on one BLAS thread, because more threads change the last bits."""
        estimator = self.learner(values, self.seed)
        with _threads().limit(limits=1), warnings.catch_warnings():
            for ignored in (ConvergenceWarning, RuntimeWarning):
                warnings.simplefilter("ignore", ignored)
            try:
                scores = cross_val_score(
                    estimator, self.inputs, self.targets, cv=self.folds, scoring=self.scoring, error_score="raise"
                )
            except (ValueError, np.linalg.LinAlgError):
                return float("nan")
        return -float(scores.mean())


def trees(values: dict[str, Any], seed: int) -> Any:
    """Returns LightGBM's classifier on one thread, with bagging for each tree."""
    from lightgbm import LGBMClassifier

    fixed: dict[str, Any] = {"subsample_freq": 1, "n_jobs": 1, "verbose": -1}
    fixed |= {"deterministic": True, "force_row_wise": True}
    return LGBMClassifier(**values, **fixed, random_state=seed)


def _divided(inputs: np.ndarray, by: np.ndarray) -> np.ndarray:
    return inputs / by


def kernel_ridge(values: dict[str, Any], seed: int) -> Any:
    """Returns ridge regression with the kernel exp(−Σ (xᵢ − x'ᵢ)²/(2 ℓᵢ²)), which draws no random numbers."""
    scales = np.array([values[variable.name] for variable in LENGTH_SCALES])
    scaled = FunctionTransformer(_divided, kw_args={"by": scales})
    return make_pipeline(scaled, KernelRidge(kernel="rbf", gamma=0.5, alpha=values["alpha"]))


def _curved(pixels: np.ndarray, scale: float, power: float) -> np.ndarray:
    return scale * pixels**power


def perceptron(values: dict[str, Any], seed: int) -> Any:
    """Returns a perceptron with one hidden ReLU layer, trained with Adam for a number of epochs."""
    curved = FunctionTransformer(_curved, kw_args={name: values[name] for name in ("scale", "power")})
    kept = ("learning_rate_init", "alpha", "epsilon", "batch_size", "max_iter")
    network = MLPClassifier(
        hidden_layer_sizes=(values["width"],),
        beta_1=1.0 - values["one_minus_beta_1"],
        beta_2=1.0 - values["one_minus_beta_2"],
        n_iter_no_change=10**6,
        random_state=seed,
        **{name: values[name] for name in kept},
    )
    return make_pipeline(curved, network)


def forest(values: dict[str, Any], seed: int) -> Any:
    """Returns a random forest on one thread."""
    return RandomForestRegressor(**values, random_state=seed)


def boosting(values: dict[str, Any], seed: int) -> Any:
    """Returns gradient-boosted trees without early stopping."""
    return HistGradientBoostingRegressor(**values, early_stopping=False, random_state=seed)


def _drawn(data: Any, count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rows = np.random.default_rng([seed, PROBLEM]).permutation(len(data.target))[:count]
    return data.data[rows], data.target[rows]


def breast_cancer(seed: int) -> Tuning:
    """Returns tree-based classification of tumours as malignant: 455 of 569 patients, 30 inputs, three folds."""
    inputs, targets = _drawn(load_breast_cancer(), 455, seed)
    folds = StratifiedKFold(3, shuffle=True, random_state=seed)
    return Tuning(TREES, trees, inputs, targets, folds, "neg_log_loss", seed)


def diabetes(seed: int) -> Tuning:
    """Returns kernel ridge regression of diabetes' progression in a year: 354 of 442 patients, ten inputs, five folds.

    Inputs are standardized and the target is centered, since there is no intercept.
    """
    inputs, targets = _drawn(load_diabetes(), 354, seed)
    inputs = (inputs - inputs.mean(0)) / inputs.std(0)
    folds = KFold(5, shuffle=True, random_state=seed)
    return Tuning(RIDGE, kernel_ridge, inputs, targets - targets.mean(), folds, "neg_root_mean_squared_error", seed)


def diabetes_trees(variables: tuple[Variable, ...], learner: Learner, seed: int) -> Tuning:
    """Returns tree-based regression of diabetes' progression in a year: 354 of 442 patients, ten inputs, five folds."""
    folds = KFold(5, shuffle=True, random_state=seed)
    return Tuning(variables, learner, *_drawn(load_diabetes(), 354, seed), folds, "neg_root_mean_squared_error", seed)


def digits(seed: int) -> Tuning:
    """Returns a perceptron that reads digits: 500 of 1,797 images of 8 x 8 pixels, three folds."""
    inputs, targets = _drawn(load_digits(), 500, seed)
    folds = StratifiedKFold(3, shuffle=True, random_state=seed)
    return Tuning(PERCEPTRON, perceptron, inputs / 16.0, targets, folds, "neg_log_loss", seed)


def _problem(
    name: str, variables: tuple[Variable, ...], draw: Callable[[int], Tuning], needs: tuple[str, ...] = ()
) -> BlackBox:
    box = cube(len(variables), 0.5, 0.5)
    return BlackBox(name, *box, partial(central, *box), draw, 20 * len(variables), needs)


PROBLEMS = (
    _problem("lightgbm_breast_cancer", TREES, breast_cancer, ("lightgbm",)),
    _problem("kernel_ridge_diabetes", RIDGE, diabetes),
    _problem("perceptron_digits", PERCEPTRON, digits),
)

WITH_INTEGERS = {
    box.name: box
    for box in (
        *PROBLEMS,
        _problem("forest_diabetes", FOREST, partial(diabetes_trees, FOREST, forest)),
        _problem("boosting_diabetes", BOOSTING, partial(diabetes_trees, BOOSTING, boosting)),
    )
}
"""Problems that minimize ``Tuning.loss`` on ``Tuning.space``; all but kernel ridge regression have integer variables.
"""
