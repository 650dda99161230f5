import numpy as np
import pytest
import torch

from optimizers import LeastSquaresGradient

X0 = torch.tensor([1.0, -1.0, 0.5, 2.0, 0.0, -0.5], dtype=torch.float64)
A = torch.tensor([1.0, -2.0, 0.5, 3.0, 0.0, 1.5], dtype=torch.float64)


def linear(x):
    return x @ A + 2.0


def quadratic(x):
    return x.square().sum(-1)


def run(opt, fun):
    while not opt.stopped:
        batch = opt.ask()
        opt.tell(batch, fun(batch.points()))
    return opt


def cloud(n, seed=0):
    g = torch.Generator().manual_seed(seed)
    return X0 + 0.3 * torch.randn(n, 6, generator=g, dtype=torch.float64)


def given(X, y, **options):
    return LeastSquaresGradient(X0, max_queries=50, history=(X, y), **options)


def gradient(x, X, y, **options):
    opt = given(X, y, **options)
    return opt.surrogate.gradient(x, opt._size, opt.ridge)


@pytest.mark.slip(
    "optimizers/methods/zord/least_squares_gradient.py",
    "y[1:] - y[0]",
    "y[0] - y[1:]",
    "the sign of the differences",
    of="optimizers/least_squares_gradient",
)
def test_enough_points_give_the_gradient_of_a_linear_function():
    X = cloud(12)
    torch.testing.assert_close(gradient(X0, X, linear(X)), A)


def test_fewer_give_its_projection_onto_their_span():
    X = cloud(4)
    basis = (X[1:] - X[0]).T
    torch.testing.assert_close(gradient(X0, X, linear(X)), basis @ torch.linalg.pinv(basis) @ A)


@pytest.mark.parametrize("ridge", [0.0, 0.05])
def test_it_is_the_regression_of_the_nearest(ridge):
    X, y = cloud(30), quadratic(cloud(30))
    rows = (X - X0).norm(dim=1).argsort()[:9]
    D, r = (X[rows[1:]] - X[rows[0]]).numpy(), (y[rows[1:]] - y[rows[0]]).numpy()
    s = np.linalg.norm(D, 2)
    expected = np.linalg.lstsq(
        np.vstack([D, np.sqrt(ridge) * s * np.eye(6)]), np.concatenate([r, np.zeros(6)]), rcond=None
    )[0]
    found = gradient(X0, X, y, window=9, ridge=ridge)
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-8)


def test_the_default_window_is_three_times_the_dimension():
    X = cloud(80)
    default, same, other = (
        gradient(X0, X, quadratic(X), **options) for options in ({}, {"window": 18}, {"window": 17})
    )
    assert torch.equal(default, same) and not torch.equal(default, other)


def test_steps_follow_the_rule_with_the_windows_of_where_they_are():
    X = cloud(40)
    opt = given(X, quadratic(X), steps=3, window=8, update_rule=lambda p: torch.optim.SGD([p], lr=0.1))
    x = X0.clone()
    for _ in range(3):
        x = x - 0.1 * gradient(x, X, quadratic(X), window=8)
    torch.testing.assert_close(opt.ask().points()[0], x)
    assert opt.state.steps == 3


def test_it_descends():
    assert run(LeastSquaresGradient(X0, max_queries=150), quadratic).best_fun < 0.02 * float(quadratic(X0))


def test_points_at_one_place_give_no_gradient():
    X = X0.expand(5, 6)
    assert torch.equal(gradient(X0, X, quadratic(X)), torch.zeros(6).double())


@pytest.mark.parametrize(
    ("option", "error"),
    [
        ({"window": 1}, ValueError),
        ({"ridge": -1.0}, ValueError),
        ({"ridge": "1"}, TypeError),
        ({"steps": 0}, ValueError),
    ],
)
def test_bad_options_are_refused(option, error):
    with pytest.raises(error, match=next(iter(option))):
        LeastSquaresGradient(X0, max_queries=50, **option)
