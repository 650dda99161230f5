import math

import numpy as np
import pytest
import torch

from optimizers import L1, GradientDescent
from optimizers.testing import quadratic, start
from tests.optimizers.estimates import step

RULES = {
    "adam": lambda p: torch.optim.Adam([p], lr=0.1),
    "momentum": lambda p: torch.optim.SGD([p], lr=0.01, momentum=0.9),
    "rmsprop": lambda p: torch.optim.RMSprop([p], lr=0.05, centered=True),
}


def gradient(x):
    x = x.clone().requires_grad_()
    return torch.autograd.grad(quadratic(x), x)[0]


@pytest.mark.slip(
    "optimizers/first_order.py",
    "self._parameter.grad = gradient.to(x)",
    "self._parameter.grad = -gradient.to(x)",
    "steps along the gradient, not against it",
    of="optimizers/gradient_descent",
)
@pytest.mark.parametrize("rule", RULES)
def test_iterates_are_torchs_own(rule):
    opt = GradientDescent(start(), max_queries=30, jac=gradient, update_rule=RULES[rule])
    p = torch.nn.Parameter(start())
    torchs = RULES[rule](p)
    while not opt.stopped:
        step(opt, quadratic)
        torchs.zero_grad()
        quadratic(p).backward()
        torchs.step()
        torch.testing.assert_close(opt.x, p.detach(), rtol=1e-13, atol=1e-14)
    assert opt.state.gradients == 30


@pytest.mark.slip(
    "optimizers/core/method.py",
    "self._x = self._prox(z, step_size)",
    "self._x = self._prox(z, 1.0)",
    "a prox whose step is not the rule's",
    of="optimizers/gradient_descent",
)
def test_the_prox_follows_the_step():
    # argmin ½‖x − c‖² + w‖x‖₁ is the soft threshold of c.
    c = torch.tensor([2.0, -0.3, 0.1, -4.0], dtype=torch.float64)
    opt = GradientDescent(
        torch.zeros(4).double(),
        max_queries=200,
        jac=lambda x: x - c,
        prox=L1(0.5),
        update_rule=lambda p: torch.optim.SGD([p], lr=0.5),
    )
    while not opt.stopped:
        step(opt, lambda x: (x - c).square().sum() / 2)
    torch.testing.assert_close(opt.x, torch.nn.functional.softshrink(c, 0.5), rtol=0, atol=1e-12)


def test_the_chain_rule_through_a_rescaled_box():
    bounds = [(1.0, 1.5)] * 5
    opt = GradientDescent(
        torch.full((5,), 1.25).double(),
        max_queries=10,
        jac=gradient,
        bounds=bounds,
        rescale=True,
        update_rule=lambda p: torch.optim.SGD([p], lr=1e-3),
    )
    moved = step(opt, quadratic)
    expected = 1e-3 * 0.05**2 * gradient(torch.full((5,), 1.25).double())
    torch.testing.assert_close(moved, expected, rtol=1e-6, atol=1e-12)


def test_failures_go_half_the_way_back():
    opt = GradientDescent(start(), max_queries=30, jac=gradient)
    step(opt, quadratic)
    there = opt.x
    step(opt, lambda x: math.nan)
    torch.testing.assert_close(opt.x, (there + start()) / 2, rtol=0, atol=0)
    opt.jac = lambda x: torch.full_like(x, math.inf)
    before = opt.x
    step(opt, quadratic)
    torch.testing.assert_close(opt.x, (before + start()) / 2, rtol=0, atol=0)


def test_gradients_that_are_refused_lose_nothing():
    opt = GradientDescent(start(), max_queries=30, jac=lambda x: x[:2])
    with pytest.raises(ValueError, match="shape"):
        step(opt, quadratic)
    assert opt.queries == 0 and opt.pending
    opt.jac = lambda x: np.asarray(gradient(x))
    step(opt, quadratic)
    assert opt.queries == 1


def test_jac_is_needed():
    for jac in (None, 3):
        with pytest.raises(TypeError, match="jac"):
            GradientDescent(start(), max_queries=30, jac=jac)
