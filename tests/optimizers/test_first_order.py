import copy
import io

import pytest
import torch

from optimizers import FirstOrder

X = torch.tensor([1.0, -2.0], dtype=torch.float64)
G = torch.tensor([0.3, 0.7], dtype=torch.float64)


def adam(p):
    return torch.optim.Adam([p], lr=0.1)


RULES = {
    "adam": adam,
    "other betas": lambda p: torch.optim.Adam([p], lr=0.1, betas=(0.5, 0.9), eps=1e-3),
    "weight decay": lambda p: torch.optim.Adam([p], lr=0.1, weight_decay=0.1),
    "amsgrad": lambda p: torch.optim.Adam([p], lr=0.1, amsgrad=True),
    "maximize": lambda p: torch.optim.Adam([p], lr=0.1, maximize=True),
    "AdamW": lambda p: torch.optim.AdamW([p], lr=0.1),
    "momentum": lambda p: torch.optim.SGD([p], lr=0.1, momentum=0.9),
}


@pytest.mark.parametrize("factory", RULES.values(), ids=RULES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_steps_keep_state_and_leave_their_arguments(dtype, factory):
    rule, p = FirstOrder(factory, X.to(dtype)), torch.nn.Parameter(X.to(dtype))
    torchs = factory(p)
    x = X.to(dtype)
    for k in range(5):
        before, g = x.clone(), (k + 1) * G.to(dtype)
        y, step_size = rule.step(x, g)
        assert torch.equal(x, before) and step_size == 0.1 and y.dtype == dtype and not y.requires_grad
        p.grad = g.clone()
        torchs.step()
        torch.testing.assert_close(y, p.detach(), rtol=1e-14, atol=1e-15)
        x = y
    for name, value in torchs.state[p].items():
        torch.testing.assert_close(rule.state_dict()["state"][0][name], value, rtol=1e-14, atol=0.0)


@pytest.mark.parametrize("eps", [1e-8, 0.0])
def test_a_long_path_of_adam_is_torchs(eps):
    """Gradients over many orders of magnitude, zeros and an overflow of their squares among them."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(37, generator=generator, dtype=torch.float64)
    p = torch.nn.Parameter(x.clone())
    rule = FirstOrder(lambda p: torch.optim.Adam([p], lr=0.01, eps=eps), x)
    torchs = torch.optim.Adam([p], lr=0.01, eps=eps)
    for k in range(300):
        g = torch.randn(37, generator=generator, dtype=torch.float64) * 10.0 ** (k % 9 - 4)
        g[:3] = torch.tensor([0.0, 1e200 if k == 150 else 1.0, 1e-200])
        x, _ = rule.step(x, g)
        p.grad = g
        torchs.step()
        torch.testing.assert_close(x, p.detach(), rtol=1e-12, atol=1e-13, equal_nan=True)
    assert bool(x[0].isnan()) == (eps == 0.0)


def test_a_gradient_may_need_a_gradient_and_be_of_another_dtype():
    rule, other = FirstOrder(adam, X), FirstOrder(adam, X)
    x = y = X
    for _ in range(3):
        x, _ = rule.step(x, G.float().requires_grad_())
        y, _ = other.step(y, G.float().double())
        assert torch.equal(x, y) and not x.requires_grad


def test_hooks_of_a_rule_are_called_at_every_step():
    called = []

    def hooked(p):
        rule = adam(p)
        rule.register_step_pre_hook(lambda *_: called.append("before"))
        rule.register_step_post_hook(lambda *_: called.append("after"))
        return rule

    rule = FirstOrder(hooked, X)
    for _ in range(3):
        rule.step(X, G)
    assert called == ["before", "after"] * 3


def test_state_round_trip_and_reset():
    rule = FirstOrder(adam, X)
    x, _ = rule.step(X, G)
    buffer = io.BytesIO()
    torch.save(rule.state_dict(), buffer)
    buffer.seek(0)
    other = FirstOrder(adam, X)
    other.load_state_dict(torch.load(buffer, weights_only=True))
    copied = copy.deepcopy(rule)
    expected = rule.step(x, G)[0]
    assert torch.equal(other.step(x, G)[0], expected) and torch.equal(copied.step(x, G)[0], expected)
    rule.reset()
    assert torch.equal(rule.step(X, G)[0], FirstOrder(adam, X).step(X, G)[0])


@pytest.mark.parametrize(
    "factory",
    ["adam", lambda p: None, lambda p: torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)],
)
def test_other_factories_are_refused(factory):
    with pytest.raises(TypeError, match="update_rule"):
        FirstOrder(factory, X)
