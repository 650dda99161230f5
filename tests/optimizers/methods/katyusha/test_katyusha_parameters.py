"""M, θ and p against numbers worked out by hand from Sec. 4; ``tests/papers`` compares whole runs."""

import math

import pytest
import torch

from optimizers import CoordinateDifferences, FiniteDifferences, ZOLKatyusha
from optimizers.methods.katyusha.parameters import (
    KatyushaParameters,
    by_rule,
    corollary_1,
    corollary_2,
    corollary_3,
    general_convex,
    theorem_1,
    variance_constant,
)
from optimizers.methods.katyusha.zo_l_katyusha import variance_reduced, z_step
from tests.optimizers.composite import PROXES, logistic, quadratic


def derivatives(problem, x, smoothing_radius):
    return CoordinateDifferences(smoothing_radius)(problem.f, x, batched=True).gradient


def points(problem, count=20, seed=3):
    generator = torch.Generator().manual_seed(seed)
    triples = torch.randn(count, 3, problem.d, generator=generator, dtype=torch.float64)
    near = problem.minimizer + 10.0 ** -torch.arange(count, dtype=torch.float64)[:, None, None].remainder(4) * triples
    return [[problem.prox(p, 1e-12) for p in triple] for triple in near]


@pytest.mark.slip(
    "optimizers/methods/katyusha/parameters.py",
    "return (variance_constant(option, d, size) + 1.0)",
    "return variance_constant(option, d, size)",
    "M = A L/3, not (A + 1) L/3 (Katyusha, Theorem 1)",
    of="optimizers/zo_l_katyusha",
)
def test_theorem_1s_constants_by_hand():
    assert variance_constant("I", 5, 2) == 4 * 5 * 3 / (4 * 2)
    assert variance_constant("I", 40, 39) == 1.0, "the max with 1"
    assert variance_constant("I", 1, 1) == variance_constant("I", 7, 7) == 1.0
    assert variance_constant("II", 5, 2) == 10.0 and variance_constant("II", 1, 1) == 4.0
    q = theorem_1("II", 3.0, 0.01, 5, 2)
    assert pytest.approx(11.0) == q.M and q.probability == 0.2
    assert q.theta == pytest.approx(math.sqrt(0.01 / (11.0 * 0.2))) and q.eta == pytest.approx(1 / (3 * q.theta))
    full = theorem_1("I", 3.0, 0.01, 5, 5)
    assert (full.M, full.probability, full.reference_weight) == (2.0, 1.0, 0.5)
    assert theorem_1("II", 3.0, 0.01, 5, 5).probability == 0.2


@pytest.mark.slip(
    "optimizers/methods/katyusha/parameters.py",
    'min(math.sqrt(positive("mu", mu) / (M * p)), 0.5)',
    'min(positive("mu", mu) / (M * p), 0.5)',
    "θ without its root (Katyusha, Cor. 1 and 2)",
    of="optimizers/zo_l_katyusha",
)
@pytest.mark.slip(
    "optimizers/methods/katyusha/parameters.py",
    '4.0 * d * positive("L", L) / size + L / 3.0',
    '4.0 * d * positive("L", L) / (3.0 * size) + L / 3.0',
    "M with a lost 3 (Katyusha, Cor. 2)",
    of="optimizers/zo_l_katyusha",
)
def test_corollaries_by_hand():
    one = corollary_1(3.0, 0.001, 9, 2)
    assert pytest.approx(4 * 9 * 7 * 3.0 / (3 * 8 * 2) + 1.0) == one.M and one.probability == 1 / 9
    two = corollary_2(3.0, 0.001, 9, 2)
    assert pytest.approx(4 * 9 * 3.0 / 2 + 1.0) == two.M and two.theta == pytest.approx(math.sqrt(9 * 0.001 / two.M))
    assert pytest.approx(3.0 * (theorem_1("II", 3.0, 0.001, 9, 2).M - 1.0)) == two.M - 1.0, "the 3 that Cor. 2 lost"
    three = corollary_3(3.0, 0.01)
    assert (three.M, three.probability, three.reference_weight) == (2.0, 1.0, 0.5)
    assert three.theta == pytest.approx(math.sqrt(0.005))
    for wrong in (lambda: corollary_1(1.0, 1.0, 8, 3), lambda: corollary_2(1.0, 1.0, 8, 3)):
        with pytest.raises(ValueError, match=r"got 3 for d = 8: .*theorem_1"):
            wrong()
    with pytest.raises(ValueError, match="corollary_3"):
        corollary_1(1.0, 1.0, 1, 1)


def test_rules_of_ours_by_hand():
    q = by_rule("balanced", "I", 3.0, 0.01, 40, 10)
    assert pytest.approx(4 * 40 * 30 / (39 * 10) + 1.0) == q.M and q.probability == 0.25
    assert q.theta == pytest.approx(math.sqrt(0.01 / (0.25 * q.M))) and q.reference_weight == 0.5
    assert by_rule("balanced", "II", 3.0, 0.01, 40, 1) == theorem_1("II", 3.0, 0.01, 40, 1)
    q = by_rule("without_reference", "I", 3.0, 0.01, 5, 5)
    assert (q.M, q.probability, q.reference_weight) == (2.0, 1.0, 0.0)


def test_the_rule_without_strong_convexity_by_hand():
    M = (4 * 40 * 30 / (39 * 10) + 1.0) / 2.0
    early, late = (general_convex("I", 3.0, 40, 10, epoch, curvature=0.02) for epoch in (6, 10**4))
    assert pytest.approx(M) == early.M == late.M and early.probability == 0.25 and early.reference_weight == 0.5
    assert early.theta == 0.2 and late.theta == pytest.approx(0.5 * math.sqrt(0.02 / (M * 0.25)))
    full = general_convex("I", 3.0, 5, 5, 8)
    assert (full.M, full.probability, full.reference_weight) == (2.0, 1.0, 0.0) and full.theta == 2 / 12


def test_rules_by_name():
    assert by_rule("corollary", "I", 1.0, 0.1, 9, 3) == corollary_1(1.0, 0.1, 9, 3)
    assert by_rule("corollary", "I", 1.0, 0.1, 9, 9) == corollary_3(1.0, 0.1)
    assert by_rule("corollary", "II", 1.0, 0.1, 9, 3) == corollary_2(1.0, 0.1, 9, 3)
    assert by_rule("theorem_1", "II", 1.0, 0.1, 9, 8) == theorem_1("II", 1.0, 0.1, 9, 8)
    with pytest.raises(ValueError, match="full"):
        by_rule("without_reference", "II", 1.0, 0.1, 9, 9)


def test_theta_is_at_most_a_half():
    for q in (
        theorem_1("I", 1.0, 1.0, 100, 1),
        corollary_3(1.0, 1.0),
        by_rule("without_reference", "I", 1.0, 1.0, 5, 5),
    ):
        assert q.theta == 0.5
    assert general_convex("I", 1.0, 10, 1, 0).theta == 0.5
    assert general_convex("I", 1.0, 10, 1, 96).theta == pytest.approx(0.02)
    assert general_convex("II", 1.0, 10, 1, 10**6, curvature=100.0).theta == 0.5


@pytest.mark.parametrize(
    "wrong",
    [
        {"theta": 0.6},
        {"theta": 0.0},
        {"reference_weight": 0.7},
        {"reference_weight": -0.1},
        {"M": math.inf},
        {"M": -1.0},
        {"probability": 0.0},
        {"probability": 1.5},
    ],
)
def test_parameters_out_of_range(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        KatyushaParameters(**({"theta": 0.4, "M": 1.0, "probability": 0.1} | wrong))


def test_arguments_out_of_range():
    with pytest.raises(ValueError, match="mu must be positive"):
        theorem_1("I", 1.0, 0.0, 10, 1)
    with pytest.raises(ValueError, match="at most d = 10"):
        by_rule("balanced", "I", 1.0, 1.0, 10, 11)
    with pytest.raises(ValueError, match="L must be positive"):
        corollary_3(0.0, 1.0)


@pytest.mark.parametrize("size", [1, 2, 8])
def test_option_Is_estimate_is_unbiased_and_its_variance_is_exact(size):
    """Exactly, over all sets S: mean D(x), variance (d/|S| − 1) ‖D(x) − D(w)‖²."""
    problem, smoothing_radius = quadratic(PROXES["none"]), 1e-3
    d, sets = problem.d, torch.combinations(torch.arange(problem.d), size)
    for x, w, _ in points(problem, 6):
        Dx, Dw = derivatives(problem, x, smoothing_radius), derivatives(problem, w, smoothing_radius)
        g = variance_reduced(Dw.expand(len(sets), -1), sets, Dx[sets])
        assert torch.allclose(g.mean(0), Dx, rtol=1e-9, atol=1e-9)
        variance = float((g - Dx).square().sum(-1).mean())
        assert variance == pytest.approx((d / size - 1) * float((Dx - Dw).square().sum()), rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("size", [pytest.param(1, marks=pytest.mark.slow), 3])
def test_option_IIs_estimate_is_unbiased_with_lemma_2s_variance(size):
    """Over many draws of the sphere: a quadratic's ∇f(x) within 5 standard errors, the error under Lemma 2's bound."""
    problem, radius, draws = quadratic(PROXES["none"]), 1e-6, 1000
    d = problem.d
    for x, w, _ in points(problem, 2):
        Dw, found = derivatives(problem, w, radius), []
        for step in range(draws):
            estimator = FiniteDifferences(size, radius, distribution="sphere", seed=1)
            batch = estimator.batch(x, step)
            values = problem.f(batch.points()) - (batch.points() - x) @ Dw
            found.append(Dw + estimator.from_values(batch, values).gradient)
        g, gradient = torch.stack(found), problem.gradient(x)
        error = (g - gradient).mean(0).abs() / (g.std(0) / math.sqrt(draws) + 1e-5)
        assert float(error.max()) < 5.0
        bregman = float(problem.f(w) - problem.f(x) - gradient @ (w - x))
        bound = variance_constant("II", d, size) * problem.L * bregman + 2 * (problem.L * radius * d) ** 2
        assert float((g - gradient).square().sum(-1).mean()) <= bound


@pytest.mark.parametrize("mu_f", [0.0, 0.7])
@pytest.mark.parametrize("prox", PROXES.values(), ids=PROXES)
def test_z_step_is_its_argmin(prox, mu_f):
    generator = torch.Generator().manual_seed(0)
    x, z, g = torch.randn(3, 5, generator=generator, dtype=torch.float64)
    q = KatyushaParameters(2.0, 0.3, 0.1)
    M, eta = 2.0, 1.0 / 0.9

    def objective(u):
        near = M / (2 * eta) * (u - z).square().sum(-1) + mu_f / 2 * (u - x).square().sum(-1)
        return prox.value(u) + u @ g + near

    best = z_step(q, mu_f, prox, x, z, g)
    others = best + 10.0 ** torch.linspace(-6, 0, 400, dtype=torch.float64)[:, None] * torch.randn(
        400, 5, generator=generator, dtype=torch.float64
    )
    others = torch.cat([others, prox(others, 1e-12)])
    gain = objective(others) - objective(best)
    strong = (M / eta + mu_f + prox.strong_convexity) / 2 * (others - best).square().sum(-1)
    assert bool((gain >= strong - 1e-12).all())


@pytest.mark.parametrize("seed", range(2))
def test_without_reference_falls_as_theorem_1_would_without_w(seed):
    """Ours: Ψ = (μ + 3θM)/2 ‖z − x*‖² + (F(y) − F*)/θ falls by 1 − min{μ/(2μ + 6θM), θ} a step, up to the smoothing."""
    problem = logistic(PROXES["box and ridge"], d=12, n=20, mu_f=0.02, seed=seed)
    mu = problem.mu_f + problem.mu_psi
    q = by_rule("without_reference", "I", problem.L, mu, 5, 5)
    optimizer = ZOLKatyusha(
        torch.zeros(12, dtype=torch.float64),
        batch_size="full",
        parameters="without_reference",
        prox=problem.prox,
        smoothness=problem.L,
        strong_convexity=problem.mu_f,
        smoothing_radius=1e-7,
        max_queries=13 * 60,
    )
    assert optimizer.current_parameters == q
    rate = 1.0 - min(mu / (2 * mu + 6 * q.theta * q.M), q.theta)

    def psi():
        distance = float((optimizer.state.z - problem.minimizer).square().sum())
        return (mu + 3 * q.theta * q.M) / 2 * distance + float(problem.gap(optimizer.x)) / q.theta

    before = psi()
    while not optimizer.stopped:
        batch = optimizer.ask()
        optimizer.tell(batch, problem.f(batch.points()))
        after = psi()
        assert after <= rate * before + 1e-7
        before = after
