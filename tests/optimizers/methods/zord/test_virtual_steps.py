"""Virtual steps against a second implementation: where they go, where they stop, and in coefficients."""

import math

import pytest
import torch

from optimizers.first_order import FirstOrder, adam
from optimizers.methods.zord import virtual_steps as module
from optimizers.methods.zord.virtual_steps import virtual_steps
from surrogates.window.uncertainty import THRESHOLDS, UncertaintyRule
from surrogates.window.window_surrogate import Hyperparameters, WindowSurrogate
from tests.optimizers.surrogate_reference import Reference, nearest


def function(X):
    return (X.square() * torch.linspace(1.0, 3.0, X.shape[-1], dtype=X.dtype)).sum(-1) + X.sin().sum(-1)


def surrogate(d=4, n=40, size=15, seed=0, hyperparameters=None, spread=0.3):
    g = torch.Generator().manual_seed(seed)
    X = 1.0 + spread * torch.randn(n, d, generator=g, dtype=torch.float64)
    made = WindowSurrogate(X[0], size, hyperparameters or Hyperparameters(1.5, 1.0, 1e-6))
    made.append(X, function(X))
    return made, X.mean(0)


def sgd(lr):
    return lambda p: torch.optim.SGD([p], lr=lr)


def identity(z, step):
    return z


def by_reference(X, y, x, h, size, name, threshold, most, factory, prox, reselect):
    """The steps of virtual_steps, by brute-force windows, dense inverses and torch's own rule."""
    rows = nearest(X, x, size)
    scale = float(y[rows].std())
    first = Reference(X[rows], y[rows], scale, h.lengthscale, h.outputscale, h.noise_ratio)
    p = torch.nn.Parameter(x.clone())
    rule = factory(p)
    for taken in range(most):
        z = p.detach().clone()
        rows = nearest(X, z, size) if reselect else nearest(X, x, size)
        gp = Reference(X[rows], y[rows], scale, h.lengthscale, h.outputscale, h.noise_ratio)
        if taken:
            if name == "kept_information":
                stop = first.measure(name, z) < threshold * first.measure(name, x)
            else:
                stop = gp.measure(name, z) > threshold
            if stop:
                return z, taken
        p.grad = gp.mean(z) * scale
        rule.step()
        p.data = prox(p.detach(), None)
    return p.detach(), most


CASES = [
    ("spectral_norm", 0.1),
    ("spectral_norm", 0.35),
    ("spectral_norm", 10.0),
    ("mean_variance", 0.05),
    ("mean_variance", 0.25),
    ("relative", 0.1),
    ("relative", 0.5),
    ("descent", 0.01),
    ("descent", 1e-6),
    ("kept_information", 0.95),
    ("kept_information", 0.55),
    ("kept_information", 0.0),
]


@pytest.mark.slip(
    "surrogates/window/uncertainty.py",
    "return information >= self.threshold * start",
    "return information <= self.threshold * start",
    "virtual steps where the information is lost",
    of="optimizers/zord",
)
@pytest.mark.parametrize("outputscale", [1.0, 2.5])
@pytest.mark.parametrize(("name", "threshold"), CASES)
def test_steps_stop_where_the_rule_says(name, threshold, outputscale):
    h = Hyperparameters(1.5, outputscale, 1e-6)
    made, x = surrogate(hyperparameters=h)
    X, y = made.trajectory.X.clone(), made.trajectory.y.clone()
    stop = UncertaintyRule(name, threshold)
    z, taken = virtual_steps(made, x, FirstOrder(adam, x), identity, stop, most=9)
    expected_z, expected_taken = by_reference(X, y, x, h, 15, name, threshold, 9, adam, identity, True)
    assert taken == expected_taken
    torch.testing.assert_close(z, expected_z, rtol=0, atol=1e-6)


def test_the_cases_stop_at_different_steps():
    counts = set()
    for name, threshold in CASES:
        made, x = surrogate()
        counts.add(virtual_steps(made, x, FirstOrder(adam, x), identity, UncertaintyRule(name, threshold), most=9)[1])
    assert len(counts) >= 5, counts


@pytest.mark.parametrize("reselect", [True, False])
def test_the_window_follows_or_stays(reselect):
    made, x = surrogate(n=60, size=8)
    X, y, h = made.trajectory.X.clone(), made.trajectory.y.clone(), made.hyperparameters
    z, _ = virtual_steps(
        made, x, FirstOrder(adam, x), identity, UncertaintyRule("mean_variance", 9.0), most=8, reselect=reselect
    )
    expected, _ = by_reference(X, y, x, h, 8, "mean_variance", 9.0, 8, adam, identity, reselect)
    torch.testing.assert_close(z, expected, rtol=0, atol=1e-6)
    at = nearest(X, z if reselect else x, 8)
    other, _ = by_reference(X, y, x, h, 8, "mean_variance", 9.0, 8, adam, identity, not reselect)
    assert not torch.allclose(z, other, atol=1e-3)
    assert reselect or set(made.window.indices.tolist()) == set(at.tolist())


def test_the_prox_follows_every_step():
    made, x = surrogate()
    X, y, h = made.trajectory.X.clone(), made.trajectory.y.clone(), made.hyperparameters
    seen = []

    def prox(z, step):
        seen.append(step)
        return z.clamp(0.9, 1.1)

    stop = UncertaintyRule("mean_variance", 9.0)
    z, taken = virtual_steps(made, x, FirstOrder(adam, x), prox, stop, most=5)
    expected, _ = by_reference(X, y, x, h, 15, "mean_variance", 9.0, 5, adam, lambda z, s: z.clamp(0.9, 1.1), True)
    torch.testing.assert_close(z, expected, rtol=0, atol=1e-6)
    assert seen == [0.1] * taken


@pytest.mark.parametrize("name", ["spectral_norm", "mean_variance", "relative", "kept_information"])
@pytest.mark.parametrize("threshold", [None, 0.99])
@pytest.mark.parametrize("outputscale", [1.0, 3.0])
def test_steps_in_coefficients_are_those_in_space(name, threshold, outputscale):
    h = Hyperparameters(6.0, outputscale, 1e-6)
    stop = UncertaintyRule(name, threshold)
    results = []
    for margin in (None, math.inf):
        made, x = surrogate(d=120, n=30, size=30, hyperparameters=h, spread=0.4)
        results.append(virtual_steps(made, x, FirstOrder(sgd(0.02), x), identity, stop, most=10, margin=margin))
    (direct, steps), (span, span_steps) = results
    assert steps == span_steps
    assert float((direct - x).norm()) > 0.1
    torch.testing.assert_close(span, direct, rtol=0, atol=1e-11 * float((direct - x).norm()))


def test_coefficients_are_taken_only_where_they_serve():
    taken = []
    original = module.steps_in_span

    def counted(*given, **named):
        taken.append(original(*given, **named))
        return taken[-1]

    def run(rule=None, d=120, n=30, size=30, margin=math.inf, **options):
        taken.clear()
        made, x = surrogate(d=d, n=n, size=size, hyperparameters=Hyperparameters(6.0), spread=0.4)
        name = options.pop("name", "mean_variance")
        virtual_steps(
            made,
            x,
            FirstOrder(rule or sgd(0.01), x),
            identity,
            UncertaintyRule(name),
            most=5,
            margin=margin,
            **options,
        )
        return any(found is not None for found in taken)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "steps_in_span", counted)
        assert run()
        assert not run(rule=adam)
        assert not run(rule=lambda p: torch.optim.SGD([p], lr=0.01, momentum=0.5))
        assert not run(margin=None)
        assert not run(margin=1e-9)
        assert not run(size=20) and run(size=20, reselect=False)
        assert not run(d=40)
        assert not run(name="descent")


def test_beyond_the_margin_the_steps_are_made_in_space():
    made, x = surrogate(d=120, n=30, size=30, hyperparameters=Hyperparameters(6.0), spread=0.4)
    stop = UncertaintyRule("mean_variance", 9.0)
    free, _ = virtual_steps(made, x, FirstOrder(sgd(0.02), x), identity, stop, most=10, margin=math.inf)
    reach = float((free - x).abs().max())
    box = (x - 0.3 * reach, x + 0.3 * reach)

    def clamp(z, step):
        return z.clamp(*box)

    kept, taken = virtual_steps(made, x, FirstOrder(sgd(0.02), x), clamp, stop, most=10, margin=0.3 * reach)
    assert taken == 10 and bool(((kept >= box[0]) & (kept <= box[1])).all())
    assert float((kept - free).norm()) > 0.1 * reach


def test_steps_that_would_not_be_finite_are_not_made():
    made, x = surrogate()
    z, taken = virtual_steps(
        made, x, FirstOrder(sgd(1e308), x), identity, UncertaintyRule("mean_variance", 9.0), most=5
    )
    assert bool(z.isfinite().all()) and taken < 5


class Fading:
    """A flat surrogate whose information about the gradient is multiplied by a factor at each step."""

    window = "the only one"

    def __init__(self, factor, first=1.0):
        self.known, self.factor = first, factor

    def begin(self, x):
        pass

    def keep(self):
        return self

    def pass_at(self, x, reselect=True):
        return self.known

    def mean_gradient(self, known):
        return torch.zeros(2)

    def information(self, window, x, known):
        self.known *= self.factor
        return known


def steps_on(fading, most):
    x, stop = torch.zeros(2), UncertaintyRule("kept_information")
    return virtual_steps(fading, x, FirstOrder(sgd(0.1), x), identity, stop, most=most)[1]


@pytest.mark.parametrize(("factor", "steps"), [(0.79, 1), (0.81, 2), (0.9, 3), (1.0, 7), (1.2, 7)])
def test_the_first_step_is_always_taken_and_the_cap_always_ends(factor, steps):
    """0.81² < 0.8 ≤ 0.81, and 0.9³ < 0.8 ≤ 0.9²: a step goes on from a point that keeps enough."""
    assert steps_on(Fading(factor), 7) == steps


def test_without_information_only_the_cap_ends():
    assert steps_on(Fading(1.0, first=0.0), 6) == 6


def test_thresholds():
    assert THRESHOLDS == {
        "spectral_norm": 0.35,
        "mean_variance": 0.35,
        "relative": 0.8,
        "descent": 0.05,
        "kept_information": 0.8,
    }
    with pytest.raises(ValueError, match="kept_information, mean_variance, relative, spectral_norm"):
        UncertaintyRule("variance")
    with pytest.raises(ValueError, match="threshold"):
        UncertaintyRule("relative", -1.0)
    with pytest.raises(TypeError, match="threshold"):
        UncertaintyRule("relative", "0.5")
    assert UncertaintyRule("relative", 2).threshold == 2.0
