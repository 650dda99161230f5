import math

import numpy as np
import pytest
import scipy.optimize
import torch

from optimizers import Space, SurrogateTrustRegion, least_squares, minimize
from optimizers.core.residuals import LOSSES, Loss
from optimizers.methods.trust_region.residuals import ResidualData
from surrogates.pinned.prior import Hyperparameters, PinnedPrior


def curved(x):
    """Rosenbrock's residuals and a third one, so that the least cost is not 0."""
    return np.array([10.0 * (x[1] - x[0] ** 2), 1.0 - x[0], 0.1 * x[0] * x[1]])


def log_loss(z):
    return np.stack([np.log1p(z), 1.0 / (1.0 + z), -1.0 / (1.0 + z) ** 2])


PRECISE = {"xtol": 1e-14, "ftol": 1e-14, "gtol": 1e-14}


@pytest.mark.parametrize(
    ("bounds", "loss", "f_scale"),
    [
        (None, "linear", 1.0),
        ([(-2.0, 0.5), (-2.0, 2.0)], "linear", 1.0),
        (None, "soft_l1", 0.05),
        ([(-2.0, 0.5), (-2.0, 2.0)], "huber", 0.05),
        (None, "cauchy", 0.3),
        (None, "arctan", 2.0),
        (None, log_loss, 0.3),
    ],
)
def test_the_result_is_that_of_scipy(bounds, loss, f_scale):
    found = least_squares(curved, [-1.2, 1.0], bounds=bounds, loss=loss, f_scale=f_scale, max_queries=70)
    box = {} if bounds is None else {"bounds": np.array(bounds).T}
    expected = scipy.optimize.least_squares(
        curved, [-1.2, 1.0], "3-point", loss=loss, f_scale=f_scale, **box, **PRECISE
    )
    assert found.cost == pytest.approx(expected.cost, rel=1e-9)
    assert found.x == pytest.approx(expected.x, abs=1e-5)
    assert found.fun == pytest.approx(curved(found.x), abs=1e-12)
    assert found.jac == pytest.approx(expected.jac, abs=1e-3)
    assert found.grad == pytest.approx(expected.grad, abs=1e-4)
    assert found.optimality < 1e-4
    assert found.active_mask.tolist() == expected.active_mask.tolist()
    assert found.nfev == 70 and found.history.y[0] == pytest.approx(Loss(loss, f_scale).cost(curved([-1.2, 1.0])))


@pytest.mark.parametrize("bounds", [pytest.param(None, marks=pytest.mark.slow), [(-2.0, 0.5), (-2.0, 2.0)]])
def test_clusters_of_queries_do_not_spoil_the_jacobian(bounds):
    """A run that has converged begins elsewhere and leaves clusters of queries; rounding decides on where they are."""
    for i in range(8):
        found = least_squares(curved, [-1.2 + 1e-9 * i, 1.0], bounds=bounds, max_queries=56 + 2 * i)
        exact = [[-20.0 * found.x[0], 10.0], [-1.0, 0.0], [0.1 * found.x[1], 0.1 * found.x[0]]]
        assert found.jac == pytest.approx(np.array(exact), abs=1e-4)


def test_a_jacobian_is_returned_where_near_queries_make_the_covariance_singular():
    """Box's function; 30 queries leave some at 1e-5 of the distance of the others."""
    i = np.arange(1.0, 11.0)

    def box(x):
        return np.exp(-0.1 * i * x[0]) - np.exp(-0.1 * i * x[1]) - x[2] * (np.exp(-0.1 * i) - np.exp(-i))

    for queries in (24, 27, 30, 33):
        found = least_squares(box, [0.0, 10.0, 20.0], max_queries=queries)
        first, second = (0.1 * i * np.exp(-0.1 * i * x) for x in found.x[:2])
        exact = np.stack([-first, second, np.exp(-i) - np.exp(-0.1 * i)], axis=1)
        assert found.jac == pytest.approx(exact, abs=0.15)


@pytest.mark.parametrize("loss", [*LOSSES, log_loss])
def test_derivatives_of_a_loss_are_those_of_its_cost(loss):
    cost, r, step = Loss(loss, 0.7), np.array([0.3, -0.6, 1.9, -4.0]), 1e-5 * np.eye(4)
    slopes, curvatures = cost.derivatives(r)
    assert slopes == pytest.approx([(cost.cost(r + e) - cost.cost(r - e)) / 2e-5 for e in step], rel=1e-6)
    differences = [(cost.derivatives(r + e)[0] - cost.derivatives(r - e)[0])[i] / 2e-5 for i, e in enumerate(step)]
    assert curvatures == pytest.approx(differences, rel=1e-5, abs=1e-6)


@pytest.mark.parametrize("noise", [0.0, 0.01])
def test_the_model_of_a_cost_is_the_cost_of_the_models(noise):
    U = torch.randn(9, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    R = torch.stack([U.pow(3).sum(-1), torch.sin(U).sum(-1) + 0.4, 2.0 * U[:, 1] - U[:, 2]], dim=-1)
    r0, v = torch.tensor([0.2, 0.4, -1.0], dtype=torch.float64), torch.tensor([0.3, -0.8, 0.5], dtype=torch.float64)
    cost = Loss("cauchy", 0.8)
    model = ResidualData(cost, PinnedPrior(), U, R - r0, r0, 4.0).model(Hyperparameters(2.0, noise))
    gradient, hessian = model.derivatives(v)
    for i, e in enumerate(1e-5 * torch.eye(3, dtype=torch.float64)):
        assert float(gradient[i]) == pytest.approx((model.mean(v + e) - model.mean(v - e)) / 2e-5, rel=1e-6)
        slope = (model.derivatives(v + e)[0] - model.derivatives(v - e)[0]) / 2e-5
        assert hessian[i].tolist() == pytest.approx(slope.tolist(), rel=1e-5, abs=1e-7)
    at_data = [model.mean(u) for u in U]
    assert model.means().tolist() == pytest.approx(at_data)
    told = [(cost.cost(r.numpy()) - cost.cost(model.at_pin()[0].numpy())) / 4.0 for r in R]
    if noise:
        gaps = np.array(told) - model.means().numpy()
        assert gaps == pytest.approx(model.noise_posterior()[0][:-1].numpy())
    else:
        assert at_data == pytest.approx(told, abs=1e-9)
        assert not bool(model.noise_posterior()[1].any()) and model.noise == 0.0


def test_linear_residuals_take_one_point_for_each_variable_and_a_few_steps():
    rng = np.random.default_rng(0)
    A, b = rng.standard_normal((30, 10)), rng.standard_normal(30)
    least = 0.5 * float(np.linalg.lstsq(A, b)[1][0])
    found = least_squares(lambda x: A @ x - b, np.zeros(10), max_queries=17)
    assert found.cost - least <= 1e-6 * found.history.y[0]
    scalar = minimize(lambda x: 0.5 * float(((A @ x - b) ** 2).sum()), np.zeros(10), max_queries=17)
    assert scalar.fun - least > 1e-2 * found.history.y[0]


def test_queries_with_a_missing_residual_have_failed():
    def partly(x):
        return np.where(np.arange(3) == 1, math.nan, curved(x)) if x[0] > 0.9 else curved(x)

    found = least_squares(partly, [-1.2, 1.0], max_queries=60)
    at_border = scipy.optimize.least_squares(curved, [-1.2, 1.0], bounds=([-9.0, -9.0], [0.9, 9.0]), **PRECISE)
    assert found.nfail > 0 and found.x[0] <= 0.9
    assert found.cost < at_border.cost + 2e-3


@pytest.mark.parametrize(
    "bounds", [pytest.param(([-9.0, -9.0], [0.9, 9.0]), marks=pytest.mark.slow), (-9.0, [0.9, 9.0]), (-9.0, 0.5)]
)
def test_a_tuple_of_bounds_is_scipys(bounds):
    theirs = scipy.optimize.least_squares(curved, [-1.2, 0.4], bounds=bounds, **PRECISE)
    ours = least_squares(curved, [-1.2, 0.4], bounds=bounds, max_queries=40)
    np.testing.assert_allclose(ours.x, theirs.x, atol=1e-5)
    np.testing.assert_array_equal(ours.active_mask, theirs.active_mask)


def test_equal_bounds_fix_a_variable():
    found = least_squares(curved, [0.3, 1.0], bounds=[(0.3, 0.3), (None, None)], max_queries=20)
    assert found.x == pytest.approx([0.3, 0.09 / (1.0 + 0.01 * 0.09 / 100.0)], abs=1e-6)
    assert found.jac[:, 0].tolist() == [0.0, 0.0, 0.0]
    assert found.jac[:, 1] == pytest.approx([10.0, 0.0, 0.03], abs=1e-6)


@pytest.mark.slow
def test_noisy_residuals_give_the_query_of_least_expected_cost():
    errors = []
    for seed in range(6):
        rng = np.random.default_rng(seed)
        found = least_squares(
            lambda x, rng=rng: curved(x) + 0.1 * rng.standard_normal(3), [-1.2, 1.0], max_queries=60, store_points=True
        )
        assert found.fun_std > 0.0 and found.x.tolist() in found.history.x.tolist()
        true = [0.5 * float((curved(x) ** 2).sum()) for x in (found.x, found.best_x)]
        errors.append(
            [abs(found.cost - true[0]), abs(found.best_fun - true[1]), np.abs(found.fun - curved(found.x)).max()]
        )
    estimated, told, residual = np.mean(errors, axis=0)
    assert estimated < told and residual < 0.1


def test_a_run_resumes_bitwise_from_a_checkpoint_and_between_calls(tmp_path):
    whole = least_squares(curved, [-1.2, 1.0], max_queries=30)
    path = tmp_path / "run"
    least_squares(curved, [-1.2, 1.0], max_queries=14, checkpoint=path)
    resumed = least_squares(curved, [-1.2, 1.0], max_queries=30, checkpoint=path)
    assert resumed.history.y.tolist() == whole.history.y.tolist() and resumed.jac.tolist() == whole.jac.tolist()
    with pytest.raises(ValueError, match="residuals 'linear"):
        least_squares(curved, [-1.2, 1.0], loss="huber", max_queries=30, checkpoint=path)
    x0 = torch.tensor([-1.2, 1.0], dtype=torch.float64)
    cost = Loss()
    saved = SurrogateTrustRegion(x0, residuals=cost, max_queries=30)
    while not saved.stopped:
        batch = saved.ask()
        new = SurrogateTrustRegion(x0, residuals=cost, max_queries=30)
        new.load_state_dict(saved.state_dict())
        new.tell(batch, [(cost.cost(curved(x)), curved(x)) for x in batch.points().numpy()])
        saved = new
    assert saved.result().history.y.tolist() == whole.history.y.tolist()


def test_workers_and_batches_evaluate_residuals():
    with_workers = least_squares(curved, [-1.2, 1.0], max_queries=40, workers=3)
    assert with_workers.cost == pytest.approx(0.0046065332, rel=1e-3)
    batched = least_squares(lambda X: np.stack([curved(x) for x in X]), [-1.2, 1.0], max_queries=25, batched=True)
    alone = least_squares(curved, [-1.2, 1.0], max_queries=25)
    assert batched.history.y.tolist() == alone.history.y.tolist()


@pytest.mark.parametrize(
    ("arguments", "kind", "says"),
    [
        ({"loss": "huberr"}, ValueError, "did you mean 'huber'"),
        ({"f_scale": 0.0}, ValueError, "f_scale must be positive"),
        ({"prox": lambda z, t: z}, ValueError, "constraints or a prox"),
        ({"max_nfev": 3}, TypeError, "least_squares has no argument 'max_nfev': max_queries is the budget"),
        ({"method": "lm"}, ValueError, "leave out method='lm': .* methods of scipy.optimize.least_squares"),
        ({"ftol": 1e-8}, TypeError, "no argument 'ftol': target and stagnation"),
        ({"f_scal": 1.0}, TypeError, "did you mean 'f_scale'"),
    ],
)
def test_bad_arguments(arguments, kind, says):
    with pytest.raises(kind, match=says):
        least_squares(curved, [-1.2, 1.0], max_queries=30, **arguments)


def test_the_number_of_residuals_must_not_change():
    with pytest.raises(ValueError, match=r"gave \(2,\) constraint values, but earlier queries gave \(3,\)"):
        least_squares(lambda x: curved(x)[: 3 if x[0] < 0.0 else 2], [-1.2, 1.0], max_queries=60)


def test_a_run_continues_from_residuals_at_hand():
    first = least_squares(curved, [-1.2, 1.0], max_queries=12, store_points=True)
    R = np.stack([curved(x) for x in first.history.x])
    found = least_squares(curved, None, history=(first.history.x, R), max_queries=10)
    assert found.history.y[0] < first.history.y[0] and found.cost == pytest.approx(0.0046065332, rel=1e-6)


def test_integers_are_calibrated_too():
    space = Space([(-9, 9), (-9.0, 9.0)], integrality=[1, 0])
    found = least_squares(
        lambda x: np.array([x[0] - 2.4, 3.0 * (x[1] - 0.5 * x[0])]), [-5, 4.0], bounds=space, max_queries=25
    )
    assert found.x == pytest.approx([2.0, 1.0], abs=1e-4) and found.cost == pytest.approx(0.08, abs=1e-6)
