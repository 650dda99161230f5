"""What all estimators have in common, from one table; each one's own truth is in its own file."""

import math

import pytest
import torch

from optimizers import (
    AllQueriesFailedError,
    Batch,
    CoordinateDifferences,
    FiniteDifferences,
    LeastSquaresDifferences,
    PriorGuidedDifferences,
    SearchGradient,
)
from optimizers.directions.directions import DISTRIBUTIONS
from tests.optimizers.estimates import assert_mean
from tests.optimizers.estimators.functions import PRIOR, A, D, X, linear, quadratic

ESTIMATORS = {
    **{name: FiniteDifferences(4, 0.3, distribution=name) for name in DISTRIBUTIONS},
    **{f"{name}-central": FiniteDifferences(4, 0.3, distribution=name, scheme="central") for name in DISTRIBUTIONS},
    "prior": PriorGuidedDifferences(PRIOR, 4, 0.3),
    "prior-unbiased": PriorGuidedDifferences(PRIOR, 4, 0.3, scaling="unbiased"),
    "coordinates": CoordinateDifferences(0.1),
    "coordinates-central": CoordinateDifferences(0.1, scheme="central"),
    "coordinates-some": CoordinateDifferences(0.1, axes=[4, 1, 2]),
    "ranks": SearchGradient(4, 0.3),
    "ranks-center": SearchGradient(4, 0.3, query_center=True),
    "ranks-antithetic": SearchGradient(4, 0.3, antithetic=True),
    "raw": SearchGradient(4, 0.3, shaping="none"),
    "raw-orthonormal": SearchGradient(4, 0.3, shaping="none", distribution="orthonormal"),
    "raw-antithetic": SearchGradient(4, 0.3, shaping="none", antithetic=True),
    "least-squares": LeastSquaresDifferences(4, 0.3),
}
QUERIES = dict.fromkeys(ESTIMATORS, 5) | {
    **{f"{name}-central": 8 for name in DISTRIBUTIONS},
    "coordinates": D + 1,
    "coordinates-central": 2 * D,
    "coordinates-some": 4,
    **dict.fromkeys(("ranks", "ranks-antithetic", "raw", "raw-orthonormal", "raw-antithetic"), 4),
}
FROM_X = [*DISTRIBUTIONS, "prior", "prior-unbiased", "coordinates", "coordinates-some"]
"""Those whose every difference is taken to f(x)."""

UNBIASED = [*DISTRIBUTIONS, *(f"{name}-central" for name in DISTRIBUTIONS), "raw", "raw-orthonormal", "raw-antithetic"]


def pair_of(name, i):
    """The query that leaves with query i; i itself where it has no pair."""
    if name.endswith("-central"):
        return (i + QUERIES[name] // 2) % QUERIES[name]
    return i ^ 1 if name.endswith("-antithetic") else i


@pytest.fixture(params=ESTIMATORS)
def name(request):
    return request.param


def test_queries_are_counted_and_those_of_the_points(name):
    estimator, calls = ESTIMATORS[name], []
    estimate = estimator(lambda x: calls.append(x) or linear(x), X, 3)
    assert len(calls) == QUERIES[name] == estimator.queries_needed(D) == estimate.queries
    assert torch.equal(torch.stack(calls), estimator.points(X, 3))
    if name in FROM_X or name == "ranks-center":
        assert torch.equal(calls[0], X)


def test_a_batch_and_its_points_give_the_same_estimate(name):
    estimator = ESTIMATORS[name]
    batch = estimator.batch(X, 3)
    for lost in ([], [1], [-1]):
        values = quadratic(batch.points())
        values[lost] = math.nan
        ours, theirs = estimator.from_values(batch, values), estimator.estimate(X, batch.points(), values)
        torch.testing.assert_close(ours.gradient, theirs.gradient, rtol=1e-12, atol=1e-12)
        assert ours.differences == theirs.differences and ours.queries == theirs.queries


def test_a_saved_batch_gives_the_same_estimate(name):
    estimator = ESTIMATORS[name]
    batch = estimator.batch(X, 3, number=7)
    again = Batch.from_state_dict(batch.state_dict(), None, torch.device("cpu"))
    assert again.same_as(batch) and again.id == 7
    values = quadratic(batch.points())
    assert torch.equal(estimator.from_values(batch, values).gradient, estimator.from_values(again, values).gradient)


def test_a_failed_query_leaves_with_its_pair_whatever_its_value(name):
    """NaN and ±inf are alike, the other of a pair does not count any more, and the rest does."""
    estimator = ESTIMATORS[name]
    batch = estimator.batch(X)
    values = quadratic(batch.points())
    before = estimator.estimate(X, batch.points(), values)
    for i in range(QUERIES[name]):
        if i == 0 and (name in FROM_X or name == "ranks-center"):
            continue
        pair, found = pair_of(name, i), []
        for bad, other in ((math.nan, 1.0), (math.inf, math.nan), (-math.inf, -5.0)):
            told = values.clone()
            told[i] = bad
            if pair != i:
                told[pair] = other
            found.append(estimator.estimate(X, batch.points(), told))
        assert torch.equal(found[0].gradient, found[1].gradient)
        assert torch.equal(found[0].gradient, found[2].gradient)
        assert not torch.equal(found[0].gradient, before.gradient)
        assert found[0].queries == before.queries
        gone = 2 if name.endswith("-antithetic") else 1
        assert found[0].differences == before.differences - gone


AMONG_FAILURES = ("normal", "coordinate", "sphere-central", "orthonormal-central", "raw", "raw-antithetic")
"""Each rule for failed queries and each kind of direction has a case here; all other cases are slow."""


@pytest.mark.parametrize(
    "unbiased",
    [pytest.param(name, marks=() if name in AMONG_FAILURES else pytest.mark.slow) for name in UNBIASED],
)
def test_failures_that_do_not_depend_on_the_direction_leave_the_mean(unbiased):
    estimator, generator, samples = ESTIMATORS[unbiased], torch.Generator().manual_seed(1), []
    for step in range(800):
        batch = estimator.batch(X, step)
        failed = torch.rand(len(batch), generator=generator) < 0.2
        failed[:1] &= unbiased not in FROM_X
        values = torch.where(failed, math.nan, linear(batch.points()) - linear(X))
        if (found := estimator.from_values(batch, values)) is not None:
            samples.append(found.gradient)
    assert len(samples) > 640
    assert_mean(torch.stack(samples), A)


def test_no_estimate_without_a_difference(name):
    """All failed; f(x) alone failed, or is all that is left; of values that are compared, one is left."""
    estimator = ESTIMATORS[name]
    batch = estimator.batch(X)
    values = linear(batch.points())
    nothing = torch.full_like(values, math.nan)
    one, without_x = nothing.clone(), values.clone()
    one[0], without_x[0] = values[0], math.nan
    for told, lost in ((nothing, True), (one, True), (without_x, name in FROM_X)):
        assert (estimator.from_values(batch, told) is None) == lost
        if lost:
            with pytest.raises(AllQueriesFailedError, match="finite"):
                estimator.estimate(X, batch.points(), told)


def test_an_estimate_that_overflows_is_none(name):
    estimator = ESTIMATORS[name]
    batch = estimator.batch(X)
    values = torch.tensor([1.7e308, -1.7e308], dtype=torch.float64).repeat(QUERIES[name])[: QUERIES[name]]
    found = estimator.from_values(batch, values)
    assert found is None or bool(found.gradient.isfinite().all())


def test_dtype_follows_x(name):
    estimator = ESTIMATORS[name]
    gradient = estimator(lambda z: float(z.double() @ A), X.float()).gradient
    assert gradient.dtype == torch.float32
    exact = estimator(lambda z: float(z @ A), X.float().double()).gradient
    torch.testing.assert_close(gradient.double(), exact, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "estimator",
    [CoordinateDifferences(1e-3), CoordinateDifferences(1e-3, scheme="central"), LeastSquaresDifferences(D, 1e-3)],
)
def test_displacements_count_as_they_were_rounded(estimator):
    """At x = 100 float32 has steps of 8e-6: λ = 1e-3 is rounded by up to 0.4%, what was done by nothing."""
    gradient = estimator(lambda z: float(z.double() @ A), 100.0 * X.float()).gradient
    assert (gradient - A).norm() < 1e-5 * A.norm()


@pytest.mark.parametrize(
    ("make", "kind", "word"),
    [
        (lambda: FiniteDifferences(2.5), TypeError, "directions must be an integer"),
        (lambda: FiniteDifferences(0), ValueError, "directions must be at least 1"),
        (lambda: FiniteDifferences(4, 0.0), ValueError, "smoothing_radius"),
        (lambda: FiniteDifferences(4, seed=1.5), TypeError, "seed"),
        (lambda: FiniteDifferences(4, distribution="gaussian"), ValueError, "sphere"),
        (lambda: FiniteDifferences(4, scheme="backward"), ValueError, "central"),
        (lambda: CoordinateDifferences(-1.0), ValueError, "smoothing_radius"),
        (lambda: CoordinateDifferences(scheme="backward"), ValueError, "central"),
        (lambda: PriorGuidedDifferences(PRIOR, 0), ValueError, "directions"),
        (lambda: PriorGuidedDifferences(PRIOR, 4, scaling="none"), ValueError, "projection"),
        (lambda: SearchGradient(1), ValueError, "at least 2"),
        (lambda: SearchGradient(5, antithetic=True), ValueError, "must be even"),
        (lambda: SearchGradient(4, shaping="rank"), ValueError, "centred_ranks"),
        (lambda: LeastSquaresDifferences(4, ridge=-1.0), ValueError, "ridge"),
        (lambda: LeastSquaresDifferences(0), ValueError, "directions"),
    ],
)
def test_arguments_out_of_range(make, kind, word):
    with pytest.raises(kind, match=word):
        make()


def test_points_out_of_range(name):
    estimator = ESTIMATORS[name]
    points = estimator.points(X)
    values = linear(points)
    with pytest.raises(TypeError, match="x must be real"):
        estimator.points(X + 1j)
    with pytest.raises(ValueError, match="x must have shape"):
        estimator.points(X.unsqueeze(0))
    with pytest.raises(ValueError, match="x must be finite"):
        estimator.points(X * math.nan)
    with pytest.raises(ValueError, match="points must have shape"):
        estimator.estimate(X, points[:, :2], values)
    with pytest.raises(ValueError, match="values"):
        estimator.estimate(X, points, values[:3])
    with pytest.raises(TypeError):
        estimator.estimate(X, points, values + 1j)
    if "least-squares" not in name:
        with pytest.raises(ValueError, match="larger smoothing_radius"):
            estimator.estimate(X, X.repeat(len(points), 1), values)
        with pytest.raises(ValueError, match="estimate needs the"):
            estimator.estimate(X, points[:3], values[:3])
