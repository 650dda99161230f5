"""Cross-validated losses are what solves, fits and logarithms written out by hand give."""

import numpy as np
import pytest
from sklearn.neural_network import MLPClassifier

from experiments.workloads.black_boxes import tuning
from experiments.workloads.black_boxes.black_box import central, cube
from experiments.workloads.black_boxes.variables import named


def point(task, seed=0):
    return central(*cube(len(task.variables), 0.5, 0.5), seed)


def by_hand(task, fitted):
    """The mean over the folds of −log of the probability that goes to the right class."""
    losses = []
    for train, test in task.folds.split(task.inputs, task.targets):
        probabilities = fitted(task.inputs[train], task.targets[train]).predict_proba(task.inputs[test])
        given = probabilities[np.arange(len(test)), task.targets[test]].clip(1e-15)
        losses.append(-np.log(given).mean())
    return np.mean(losses)


def test_kernel_ridge_is_a_solve_for_each_fold():
    task = tuning.diabetes(3)
    u = point(task)
    scales, alpha = 0.1 * 1000.0 ** u[:10], 1e-4 * 1e5 ** u[10]
    scaled = task.inputs / scales
    kernel = np.exp(-0.5 * np.square(scaled[:, None] - scaled).sum(-1))
    errors = []
    for train, test in task.folds.split(task.inputs):
        weights = np.linalg.solve(kernel[np.ix_(train, train)] + alpha * np.eye(len(train)), task.targets[train])
        errors.append(np.sqrt(np.square(kernel[np.ix_(test, train)] @ weights - task.targets[test]).mean()))
    assert len(errors) == 5 and task(u) == pytest.approx(np.mean(errors), rel=1e-9)


def test_trees_are_lightgbms():
    lightgbm = pytest.importorskip("lightgbm", reason="pip install '.[problems]'")
    task = tuning.breast_cancer(1)
    u = point(task)
    values = named(tuning.TREES, u)

    def fitted(inputs, targets):
        model = lightgbm.LGBMClassifier(
            **values, subsample_freq=1, random_state=1, n_jobs=1, deterministic=True, force_row_wise=True, verbose=-1
        )
        return model.fit(inputs, targets)

    assert task(u) == pytest.approx(by_hand(task, fitted), rel=1e-9)


@pytest.mark.parametrize("name", tuning.WITH_INTEGERS)
def test_a_space_has_the_hyperparameters_in_their_own_units(name):
    if name.startswith("lightgbm"):
        pytest.importorskip("lightgbm", reason="pip install '.[problems]'")
    task = tuning.WITH_INTEGERS[name].draw(2)
    u, space = np.full(len(task.variables), 0.5), task.space
    middle = np.where(space.log, np.sqrt(space.lb * space.ub), 0.5 * (space.lb + space.ub))
    middle = np.where(space.integrality, np.round(middle), middle)
    own = named(task.variables, u)
    assert space.named(middle) == pytest.approx(own)
    assert task.loss(space.named(np.array([*own.values()]))) == task(u)


def test_a_forest_is_scikit_learns():
    from sklearn.ensemble import RandomForestRegressor

    task = tuning.WITH_INTEGERS["forest_diabetes"].draw(1)
    values = named(tuning.FOREST, np.zeros(5))
    errors = []
    for train, test in task.folds.split(task.inputs):
        model = RandomForestRegressor(**values, random_state=1).fit(task.inputs[train], task.targets[train])
        errors.append(np.sqrt(np.square(model.predict(task.inputs[test]) - task.targets[test]).mean()))
    assert task.loss(values) == pytest.approx(np.mean(errors), rel=1e-9)


def test_a_perceptron_is_scikit_learns_on_curved_pixels():
    task = tuning.digits(2)
    u = point(task)
    u[7] = 0.0
    rate, alpha, beta_1, beta_2, epsilon, width, batch, epochs, scale, power = named(tuning.PERCEPTRON, u).values()
    assert epochs == 4

    class Curved(MLPClassifier):
        def fit(self, inputs, targets):
            return super().fit(scale * inputs**power, targets)

        def predict_proba(self, inputs):
            return super().predict_proba(scale * inputs**power)

    def fitted(inputs, targets):
        adam = {"learning_rate_init": rate, "beta_1": 1 - beta_1, "beta_2": 1 - beta_2, "epsilon": epsilon}
        shape = {"hidden_layer_sizes": (width,), "batch_size": batch, "max_iter": epochs, "alpha": alpha}
        return Curved(**adam, **shape, random_state=2).fit(inputs, targets)

    with pytest.warns(UserWarning, match="Maximum iterations"):
        expected = by_hand(task, fitted)
    assert task(u) == pytest.approx(expected, rel=1e-9)


def test_a_fit_that_fails_is_nan():
    def failing(values, seed):
        raise ValueError("no fit")

    class Failing(MLPClassifier):
        def fit(self, inputs, targets):
            raise ValueError("weights are not finite")

    task = tuning.digits(0)
    broken = tuning.Tuning(
        task.variables, lambda values, seed: Failing(), task.inputs, task.targets, task.folds, task.scoring, 0
    )
    assert np.isnan(broken(point(task)))
    wrong = tuning.Tuning(task.variables, failing, task.inputs, task.targets, task.folds, task.scoring, 0)
    with pytest.raises(ValueError, match="no fit"):
        wrong(point(task))


@pytest.mark.parametrize("draw", [tuning.breast_cancer, tuning.diabetes, tuning.digits])
def test_a_seed_draws_rows_without_replacement(draw):
    first, other = draw(0), draw(1)
    assert first.inputs.shape == other.inputs.shape and not np.array_equal(first.targets, other.targets)
    assert len(np.unique(first.inputs, axis=0)) == len(first.inputs)
    assert np.array_equal(first.inputs, draw(0).inputs)
