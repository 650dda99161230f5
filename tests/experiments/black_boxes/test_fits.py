"""Photographs and fits: their values are those of other libraries, of formulas, and of what is known at a truth."""

import numpy as np
import pytest
from sklearn.datasets import load_breast_cancer, load_diabetes
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import accuracy_score, mean_absolute_error, pairwise_distances_argmin_min

from experiments.workloads.black_boxes import fits, photographs


def test_registration_is_zero_at_the_truth_and_moves_a_plane_as_matrices_do():
    problem = photographs.registration(3)
    assert problem(problem.truth) == 0.0 < problem(problem.truth + 0.05)
    rows, columns = np.mgrid[:428, :642]
    plane = photographs.Registration(2.0 * rows + 3.0 * columns, problem.truth)
    unmoved = np.log(1 / 0.6) / np.log(1.6 / 0.6)  # a stretch of 1
    u = np.array([0.5, unmoved, unmoved, 0.5, 0.5, 0.5])
    assert plane.part(u) == pytest.approx(plane.grey[136:296:4, 243:403:4], rel=1e-12)
    move = photographs.named(photographs.MOVES, problem.truth)
    c, s = np.cos(move["angle"]), np.sin(move["angle"])
    matrix = np.array([[c, s], [-s, c]]) @ np.diag([move["stretch_down"], move["stretch_across"]])
    corner = matrix @ [-78.0, -78.0] + [214.0 + move["down"], 321.0 + move["across"]]
    expected = move["brightness"] * ([2.0, 3.0] @ corner)
    assert plane.part(problem.truth)[0, 0] == pytest.approx(expected, rel=1e-12)


def test_a_palettes_error_is_scikit_learns_distance_to_the_nearest():
    problem, u = photographs.palette(1), np.random.default_rng(2).random(24)
    nearest = pairwise_distances_argmin_min(problem.pixels, u.reshape(8, 3))[1]
    assert problem(u) == pytest.approx(nearest.mean(), rel=1e-12)
    assert len(problem.pixels) == 2000 and problem.pixels.min() >= 0.0 and problem.pixels.max() <= 1.0


def test_populations_keep_what_the_equations_keep_and_fit_the_pelts():
    """δh − γ log h + βl − α log l is constant along a solution."""
    problem = fits.populations(0)
    u = np.array([0.5, 0.5, 0.6, 0.4, 0.5, 0.5])
    hares, lynxes = problem.sizes(u)
    v = fits.named(fits.RATES, u)
    kept = v["delta"] * hares - v["gamma"] * np.log(hares) + v["beta"] * lynxes - v["alpha"] * np.log(lynxes)
    assert np.ptp(kept) < 1e-3 * np.abs(kept).max() and np.ptp(hares) > 1.0
    # The posterior means of Carpenter's case study.
    known = {"alpha": 0.55, "beta": 0.028, "gamma": 0.80, "delta": 0.024, "hares": 33.96, "lynxes": 5.95}
    at = [np.log(known[r.name] / r.low) / np.log(r.high / r.low) for r in fits.RATES]
    assert problem(np.array(at)) < 0.3
    assert len(problem.years) == 16 and not np.array_equal(problem.years, fits.populations(1).years)


def test_accuracy_and_absolute_error_are_scikit_learns():
    wrong, error = fits.drawn(load_breast_cancer(), 4), fits.drawn(load_diabetes(), 4)
    assert wrong.inputs.shape == (455, 30) and error.inputs.shape == (353, 10)
    model = LogisticRegression().fit(wrong.inputs, wrong.targets)
    weights = np.array([*model.coef_[0], *model.intercept_])
    share = accuracy_score(wrong.targets, model.predict(wrong.inputs))
    assert wrong.wrong(weights) == pytest.approx(1.0 - share, abs=1e-12) and share > 0.97
    weights = np.random.default_rng(0).uniform(-1, 1, 11)
    predicted = error.inputs @ weights[:10] + weights[10]
    median = mean_absolute_error(error.targets, np.full(353, np.median(error.targets)))
    assert error.absolute_error(weights) == pytest.approx(mean_absolute_error(error.targets, predicted) / median)
