"""ZO-L-Katyusha: the transcription against the paper's own statements, its errata, and the project's runs."""

import itertools
import math

import numpy as np
import pytest
import torch

from optimizers import ZOSVRG, AcceleratedZO, BoxRidge, ProjectedZO, ZOLKatyusha
from tests.papers import zo_l_katyusha as paper
from tests.papers.agreement import largest

# Composite problems: f + ridge/2 ||x||^2 over a box.


class Problem:
    """A smooth f with a ridge and a box in psi; ``queries`` counts the calls of f."""

    def __init__(self, d, L, mu_f, ridge, bound):
        self.d, self.L, self.mu_f, self.ridge, self.bound = d, L, mu_f, ridge, bound
        self.mu, self.queries = mu_f + ridge, 0

    def prox(self, v, step):
        return np.clip(v / (1.0 + step * self.ridge), -self.bound, self.bound)

    def value(self, x):
        """F(x), infinite outside the box."""
        inside = np.abs(x).max() <= self.bound * (1.0 + 1e-12)
        return self.smooth(x) + self.ridge / 2.0 * (x @ x) if inside else math.inf

    def __call__(self, x):
        self.queries += 1
        return self.smooth(x)

    def solved(self):
        """x*, by accelerated proximal gradient descent along the true gradient."""
        x = y = np.zeros(self.d)
        momentum = (1.0 - math.sqrt(self.mu / self.L)) / (1.0 + math.sqrt(self.mu / self.L))
        for _ in range(600):
            x_next = self.prox(y - self.gradient(y) / self.L, 1.0 / self.L)
            x, y = x_next, x_next + momentum * (x_next - x)
        return x


class Quadratic(Problem):
    """f(x) = 1/2 (x - c)^T A (x - c), A with eigenvalues from mu_f to L and no axis of its own."""

    def __init__(self, d, seed, *, L=2.0, mu_f=0.2, ridge=0.0, bound=0.5):
        super().__init__(d, L, mu_f, ridge, bound)
        rng = np.random.default_rng(seed)
        Q = np.linalg.qr(rng.standard_normal((d, d)))[0]
        self.A, self.c = Q @ np.diag(np.linspace(mu_f, L, d)) @ Q.T, 1.5 * rng.standard_normal(d)

    def smooth(self, x):
        return float(0.5 * (x - self.c) @ self.A @ (x - self.c))

    def gradient(self, x):
        return self.A @ (x - self.c)


class Logistic(Problem):
    """Sec. 5.1's f(x) = 1/n sum_i ln(1 + exp(-b_i a_i^T x)), with Gaussian a_i and random b_i."""

    def __init__(self, d, seed, *, n=30, ridge=0.02, bound=0.5):
        rng = np.random.default_rng(seed)
        a = rng.standard_normal((n, d))
        self.rows = np.where(rng.random(n) < 0.5, -1.0, 1.0)[:, None] * a
        super().__init__(d, float(np.linalg.eigvalsh(a.T @ a)[-1]) / (4 * n), 0.0, ridge, bound)

    def smooth(self, x):
        return float(np.mean(np.logaddexp(0.0, -(self.rows @ x))))

    def gradient(self, x):
        return -(self.rows.T @ (1.0 / (1.0 + np.exp(self.rows @ x)))) / len(self.rows)


OPTIONS = {"I": paper.option_I, "II": paper.option_II}


def theorem_1_parameters(problem, option, size, p):
    """Theorem 1's M, and the corollaries' theta with that M."""
    M = paper.theorem_1_M(paper.theorem_1_A(option, problem.d, size), problem.L)
    return paper.Parameters(M, min(math.sqrt(problem.mu / (M * p)), 0.5), p)


def drawn(option, d, size, p, iterations, seed):
    rng = np.random.default_rng(seed)
    draws = [OPTIONS[option](rng, d, size) for _ in range(iterations)]
    return draws, rng.random(iterations) < p


def run(problem, option, size, parameters, iterations, seed, *, beta=1e-6, line_4=paper.eq_4):
    draws, renewals = drawn(option, problem.d, size, parameters.p, iterations, seed)
    x_0 = np.zeros(problem.d)
    return paper.algorithm_1(problem, problem.prox, x_0, draws, renewals, parameters, problem.mu_f, beta, line_4)


def psi(problem, parameters, points, x_star):
    """Psi^k of Theorem 1."""
    at_star = problem.value(x_star)
    distance = float((points.z - x_star) @ (points.z - x_star))
    gaps = problem.value(points.y) - at_star, problem.value(points.w) - at_star
    return paper.theorem_1_psi(parameters, problem.mu, distance, *gaps)


# Estimators.


def test_eq_6_estimates_the_gradient_and_eq_3_as_printed_half_of_it():
    problem, x = Logistic(7, 0), np.linspace(-1.0, 1.0, 7)
    assert paper.eq_6(problem, x, 1e-6) == pytest.approx(problem.gradient(x), abs=1e-5)
    assert paper.eq_3_printed(problem, x, 1e-6) == pytest.approx(problem.gradient(x) / 2.0, abs=1e-5)


def test_eqs_2_and_5_average_to_eq_6():
    problem, x, d = Logistic(7, 1), np.linspace(-1.0, 1.0, 7), 7
    axes = np.eye(d)
    assert paper.eq_5(problem, x, axes, 1e-3) == pytest.approx(paper.eq_6(problem, x, 1e-3), abs=1e-12)
    one_by_one = np.mean([paper.eq_2(problem, x, e, 1e-3) for e in axes], axis=0)
    assert one_by_one == pytest.approx(paper.eq_6(problem, x, 1e-3), abs=1e-12)


@pytest.mark.parametrize("size", [1, 2, 4])
def test_eq_4_has_eq_5s_mean_and_line_4_as_printed_has_not(size):
    # Appx. A: E sum_u u u^T = |S|/d I for both options. Option I by all its subsets; option II, for |S| = 1 on a
    # quadratic, by the axes of a rotation and their opposites: they have the sphere's second moments and no third ones.
    d, beta = 4, 1e-2
    problem = Quadratic(d, 0)
    x, w = np.linspace(-0.5, 1.0, d), np.linspace(1.0, -1.0, d)
    reference = paper.eq_6(problem, w, beta)
    every = [np.eye(d)[list(chosen)] for chosen in itertools.combinations(range(d), size)]
    rotation = np.linalg.qr(np.random.default_rng(1).standard_normal((d, d)))[0]
    sphere = [sign * u[None] for u in rotation for sign in (1.0, -1.0)]
    for draws, mean in [(every, paper.eq_6(problem, x, beta)), (sphere, problem.gradient(x))]:
        estimates = [paper.eq_4(problem, x, S, reference, beta) for S in draws]
        assert np.mean(estimates, axis=0) == pytest.approx(mean, abs=1e-9)
        printed = [paper.line_4_printed(problem, x, S, reference, beta) for S in draws]
        assert np.mean(printed, axis=0) == pytest.approx(mean + (1.0 - 1.0 / d) * reference, abs=1e-9)


def test_options_draw_what_line_3_says():
    rng, d, size = np.random.default_rng(0), 5, 3
    counts, moments = np.zeros(d), np.zeros((d, d))
    for _ in range(4000):
        S = paper.option_I(rng, d, size)
        assert len(np.unique(S, axis=0)) == size
        assert np.array_equal(np.sort(S, axis=1)[:, :-1], np.zeros((size, d - 1)))
        counts += S.sum(axis=0)
        u = paper.option_II(rng, d, size)
        assert np.linalg.norm(u, axis=1) == pytest.approx(1.0)
        moments += u.T @ u
    assert counts / 4000 == pytest.approx(size / d, abs=0.05)
    assert moments / 4000 == pytest.approx(size / d * np.eye(d), abs=0.05)


@pytest.mark.parametrize(("option", "size"), [("I", 1), ("I", 3), ("I", 5), ("II", 1), ("II", 3)])
def test_lemmas_1_and_2_bound_eq_4(option, size):
    d, beta, rng = 5, 1e-3, np.random.default_rng(2)
    problem = Logistic(d, 3)
    draws = [np.eye(d)[list(chosen)] for chosen in itertools.combinations(range(d), size)]
    if option == "II":
        draws = [paper.option_II(rng, d, size) for _ in range(3000)]
    for distance in (0.0, 1e-3, 0.3, 3.0):
        x = rng.standard_normal(d)
        w, gradient = x + distance * rng.standard_normal(d), problem.gradient(x)
        reference = paper.eq_6(problem, w, beta)
        estimates = np.array([paper.eq_4(problem, x, S, reference, beta) for S in draws])
        values = problem.smooth(w), problem.smooth(x)
        bound = paper.lemma_error(option, problem.L, d, size, beta, *values, gradient, w, x)
        assert np.mean(np.sum((estimates - gradient) ** 2, axis=1)) <= bound
        if option == "I":
            bias = np.sum((estimates.mean(axis=0) - gradient) ** 2)
            assert 0.0 < bias <= paper.lemma_bias("I", problem.L, d, beta)


def test_lemma_2_bounds_eq_5s_bias():
    # At a radius at which the bias is seen; axes of rotations, and their opposites, leave little noise in the mean.
    d, beta, rng, problem = 5, 3.0, np.random.default_rng(4), Logistic(5, 3)
    rotations = [np.linalg.qr(rng.standard_normal((d, d)))[0] for _ in range(300)]
    for x in rng.standard_normal((3, d)):
        means = [paper.eq_5(problem, x, np.concatenate([u, -u]), beta) for u in rotations]
        bias = np.sum((np.mean(means, axis=0) - problem.gradient(x)) ** 2)
        assert 1e-4 < bias <= paper.lemma_bias("II", problem.L, d, beta)


def test_the_appendixs_sign_in_lemmas_1_and_2_gives_a_negative_bound():
    problem, x, beta = Logistic(5, 4), np.ones(5), 1e-6
    gradient = problem.gradient(x)
    w = x - 0.1 * gradient
    printed = problem.smooth(w) - problem.smooth(x) + gradient @ (w - x)
    assert printed < 0.0
    assert problem.smooth(w) - problem.smooth(x) - gradient @ (w - x) > 0.0
    reference = paper.eq_6(problem, w, beta)
    errors = [np.sum((paper.eq_4(problem, x, e[None], reference, beta) - gradient) ** 2) for e in np.eye(5)]
    assert np.mean(errors) > 1e-9 > 4.0 * 5 * problem.L * printed


# Theorem 1 and the corollaries.


def test_theorem_1s_constants_are_its_proofs():
    for option, d, size in [("I", 4, 1), ("I", 4, 3), ("I", 4, 4), ("II", 4, 1), ("II", 9, 3), ("II", 4, 4)]:
        L, mu, theta, p, beta = 1.7, 0.3, 0.4, 0.2, 1e-2
        A = paper.theorem_1_A(option, d, size)
        M, eta = paper.theorem_1_M(A, L), 1.0 / (3.0 * theta)
        parameters = paper.Parameters(M, theta, p)
        # Lemma 3's weight on ||g - grad f||^2 pays for the variance with line 2's 1/2 on w, exactly,
        assert eta / (2.0 * (M - L * eta * theta)) * A * L == pytest.approx(1.0 / (2.0 * theta))
        # and costs beta^2 d^2 L/(A theta) by Lemmas 1 and 2; the bias costs beta^2 L^2 d/mu.
        smoothing = eta / (2.0 * (M - L * eta * theta)) * 2.0 * L**2 * beta**2 * d**2 + beta**2 * L**2 * d / mu
        delta = paper.theorem_1_delta(parameters, mu)
        assert paper.theorem_1_bound(3, 0.0, parameters, A, mu, L, d, beta) == pytest.approx(smoothing / delta)
        assert paper.theorem_1_bound(3, 2.0, parameters, A, mu, L, d, 0.0) == pytest.approx(2.0 * (1.0 - delta) ** 3)
        # Psi = Z + Y + W, Z = (M + eta mu)/(2 eta) ||z - x*||^2; eq. 12: E W^{k+1} = (1 - p) W^k + (1 + theta)/2 Y^k.
        assert paper.theorem_1_psi(parameters, mu, 2.0, 0.0, 0.0) == pytest.approx((M + eta * mu) / eta)
        Y, W = (paper.theorem_1_psi(parameters, mu, 0.0, *gaps) for gaps in [(1.0, 0.0), (0.0, 1.0)])
        gap_y, gap_w = 0.7, 1.9
        mean_W = p * W * gap_y + (1.0 - p) * W * gap_w
        assert mean_W == pytest.approx((1.0 - p) * W * gap_w + (1.0 + theta) / 2.0 * Y * gap_y)
        # Delta: the least of the three contractions of the proof's last lines.
        contractions = [eta * mu / 2.0 / (M + eta * mu), theta / 2.0, p * theta / (1.0 + theta)]
        assert delta == pytest.approx(min(contractions))
    assert paper.theorem_1_A("I", 4, 3) == pytest.approx(16.0 / 9.0)
    assert paper.theorem_1_A("I", 16, 15) == paper.theorem_1_A("I", 4, 4) == paper.theorem_1_A("I", 1, 1) == 1.0


SETTINGS = [("I", 1), ("I", 3), ("I", 4), ("II", 1), ("II", 3)]


@pytest.mark.parametrize(
    ("option", "size"),
    [
        pytest.param(
            *case, marks=pytest.mark.slow if case in (("I", 3), ("II", 1)) else (), id=f"{case[0]}, |S|={case[1]}"
        )
        for case in SETTINGS
    ],
)
def test_theorem_1s_bound_holds_over_200_runs(record_property, option, size):
    # The full batch draws nothing (S is all axes, p = 1): its one run is the mean.
    d, beta, iterations, runs = 4, 1e-4, 80, 1 if size == 4 else 200
    problem = Quadratic(d, 3, L=1.0, mu_f=0.2, ridge=0.2)
    x_star = problem.solved()
    assert 0 < np.sum(np.abs(x_star) == problem.bound) < d
    parameters = theorem_1_parameters(problem, option, size, 1.0 if size == d else 1.0 / d)
    seen = range(0, iterations + 1, 4)
    means = np.zeros(len(seen))
    for seed in range(runs):
        points = run(problem, option, size, parameters, iterations, seed, beta=beta)
        means += np.array([psi(problem, parameters, points[k], x_star) for k in seen]) / runs
    A = paper.theorem_1_A(option, d, size)
    bounds = [paper.theorem_1_bound(k, means[0], parameters, A, problem.mu, problem.L, d, beta) for k in seen]
    assert np.all(means <= np.array(bounds) * (1.0 + 1e-12))
    assert bounds[-1] < 0.3 * bounds[0]
    record_property("largest_share_of_bound", float(np.max(means[1:] / bounds[1:])))


def test_theorem_1s_bound_fails_for_line_4_as_printed():
    d, beta, iterations = 4, 1e-6, 500
    problem = Quadratic(d, 3, L=1.0, mu_f=0.2, ridge=0.2)
    x_star = problem.solved()
    for option, size in [("I", 1), ("I", d), ("II", 1)]:
        parameters = theorem_1_parameters(problem, option, size, 1.0 if size == d else 1.0 / d)
        ends = {}
        for line_4 in (paper.eq_4, paper.line_4_printed):
            trials = [run(problem, option, size, parameters, iterations, s, beta=beta, line_4=line_4) for s in range(5)]
            ends[line_4] = np.mean([psi(problem, parameters, points[-1], x_star) for points in trials])
            start = psi(problem, parameters, trials[0][0], x_star)
        A = paper.theorem_1_A(option, d, size)
        bound = paper.theorem_1_bound(iterations, start, parameters, A, problem.mu, problem.L, d, beta)
        assert ends[paper.eq_4] <= bound < ends[paper.line_4_printed]


def test_corollaries_choose_theorem_1s_m_but_for_corollary_2s_lost_3():
    L, mu = 1.3, 1e-3
    for d, size in [(4, 1), (9, 2), (40, 6), (2, 1)]:
        one, two = paper.corollary_1(L, mu, d, size), paper.corollary_2(L, mu, d, size)
        assert math.isclose(one.M, paper.theorem_1_M(paper.theorem_1_A("I", d, size), L))
        assert math.isclose(two.M, paper.theorem_1_M(paper.theorem_1_A("II", d, size), L))
        printed = paper.corollary_2_printed(L, mu, d, size)
        assert math.isclose(printed.M - L / 3.0, 3.0 * (two.M - L / 3.0))
        for found in (one, two, printed):
            assert found.p == 1.0 / d
            assert found.theta == pytest.approx(min(math.sqrt(d * mu / found.M), 0.5))
        for corollary in (paper.corollary_1, paper.corollary_2, paper.corollary_2_printed):
            with pytest.raises(ValueError, match="sqrt"):
                corollary(L, mu, d, math.isqrt(d) + 1)
    three = paper.corollary_3(L, mu)
    assert math.isclose(three.M, 2.0 * L / 3.0)
    assert math.isclose(three.M, paper.theorem_1_M(paper.theorem_1_A("I", 9, 9), L))
    assert (three.theta, three.p) == (math.sqrt(mu / three.M), 1.0)
    assert paper.corollary_3(1.0, 1.0).theta == paper.corollary_1(1.0, 1.0, 9, 3).theta == 0.5


def test_theta_over_a_half_leaves_the_box():
    # Printed is theta in (0, 1); over 1/2, line 2's weight of y is negative and y leaves psi's domain: F is infinite.
    problem = Quadratic(4, 3, L=1.0, mu_f=0.1, ridge=0.1)
    x_star = problem.solved()
    for theta, inside in [(0.5, True), (0.9, False)]:
        parameters = theorem_1_parameters(problem, "I", 1, 0.25)._replace(theta=theta)
        points = run(problem, "I", 1, parameters, 100, 0)
        assert math.isfinite(max(psi(problem, parameters, one, x_star) for one in points)) == inside


# Alg. 1's runs.


def first_below(problem, points, renewals, size, gap):
    """Queries after which F(y) - F(x*) is under the gap; infinite if never."""
    at_star = problem.value(problem.solved())
    queries = problem.d + 1 + np.concatenate([[0], np.cumsum(size + 1 + (problem.d + 1) * renewals)])
    for k, one in enumerate(points):
        if problem.value(one.y) - at_star < gap:
            return int(queries[k])
    return math.inf


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2))])
def test_option_II_with_theorem_1s_m_reaches_1e_8_within_6000_queries(record_property, seed):
    problem = Logistic(20, seed)
    parameters = paper.corollary_2(problem.L, problem.mu, 20, 1)
    assert math.isclose(parameters.M, paper.theorem_1_M(paper.theorem_1_A("II", 20, 1), problem.L))
    draws, renewals = drawn("II", 20, 1, parameters.p, 2000, seed)
    problem.queries = 0
    points = paper.algorithm_1(problem, problem.prox, np.zeros(20), draws, renewals, parameters, 0.0, 1e-6)
    assert problem.queries == 21 + 2000 * 2 + int(renewals.sum()) * 21
    needed = first_below(problem, points, renewals, 1, 1e-8)
    record_property("queries_to_1e-8", needed)
    assert 0 < np.sum(np.abs(problem.solved()) == problem.bound) < 20
    assert needed <= 6000
    # Corollary 2's printed M, three times as large, takes longer.
    printed = paper.corollary_2_printed(problem.L, problem.mu, 20, 1)
    slower = paper.algorithm_1(problem, problem.prox, np.zeros(20), draws, renewals, printed, 0.0, 1e-6)
    assert first_below(problem, slower, renewals, 1, 1e-8) > 1.3 * needed


@pytest.mark.parametrize(("option", "size"), [("I", 1), ("I", 4), ("I", 20), ("II", 4)])
def test_alg_1_converges_with_its_corollary(option, size):
    problem = Logistic(20, 0)
    if size == 20:
        parameters = paper.corollary_3(problem.L, problem.mu)
    else:
        parameters = (paper.corollary_1 if option == "I" else paper.corollary_2)(problem.L, problem.mu, 20, size)
    draws, renewals = drawn(option, 20, size, parameters.p, 2000 if size < 20 else 300, 0)
    points = paper.algorithm_1(problem, problem.prox, np.zeros(20), draws, renewals, parameters, 0.0, 1e-6)
    assert math.isfinite(first_below(problem, points, renewals, size, 1e-8))


def test_the_full_batch_has_no_variance_and_its_reference_is_the_last_but_one_y():
    # Sec. 3: |S| = d and p = 1 give g = eq. 6 at x and w^{k+1} = y^k; so w^k is y^{k-1}, and line 2's half on it is not
    # a half more on y^k.
    problem = Logistic(6, 1)
    points = run(problem, "I", 6, paper.corollary_3(problem.L, problem.mu), 30, 0)
    for before, one in itertools.pairwise(points):
        assert np.array_equal(one.w, before.y)
    assert max(np.abs(one.w - one.y).max() for one in points[2:10]) > 1e-3
    x, w = points[5].x, points[5].w
    g = paper.eq_4(problem, x, np.eye(6), paper.eq_6(problem, w, 1e-6), 1e-6)
    assert g == pytest.approx(paper.eq_6(problem, x, 1e-6), abs=1e-12)


@pytest.mark.parametrize(("option", "size"), [("I", 1), ("II", 2), ("I", 6)])
def test_alg_1s_points_are_what_the_proofs_take_them_for(option, size):
    # Sec. 4.1: theta (z - x) = 1/2 (x - w) + (1/2 - theta) (x - y);
    # y^{k+1} = theta z^{k+1} + 1/2 w^k + (1/2 - theta) y^k.
    # Appx. A.4: (M/eta) (z^k - z^{k+1}) + mu_f (x^k - z^{k+1}) - g^k is a subgradient of psi at z^{k+1}.
    problem, beta = Quadratic(6, 0, ridge=0.3), 1e-6
    parameters = theorem_1_parameters(problem, option, size, 1.0 if size == 6 else 0.3)
    M, theta, p = parameters
    draws, renewals = drawn(option, 6, size, p, 60, 1)
    points = paper.algorithm_1(problem, problem.prox, np.full(6, 0.1), draws, renewals, parameters, problem.mu_f, beta)
    faces = 0
    for S, renew, (now, after) in zip(draws, renewals, itertools.pairwise(points), strict=True):
        x, y, z, w = now
        assert theta * (z - x) == pytest.approx(0.5 * (x - w) + (0.5 - theta) * (x - y), abs=1e-12)
        assert after.y == pytest.approx(theta * after.z + 0.5 * w + (0.5 - theta) * y, abs=1e-12)
        assert np.array_equal(after.w, y if renew else w)
        g = paper.eq_4(problem, x, S, paper.eq_6(problem, w, beta), beta)
        outward = 3.0 * theta * M * (z - after.z) + problem.mu_f * (x - after.z) - g - problem.ridge * after.z
        face = np.sign(after.z) * (np.abs(after.z) == problem.bound)
        assert outward[face == 0.0] == pytest.approx(0.0, abs=1e-9)
        assert np.all(outward * face >= 0.0)
        faces += np.count_nonzero(face)
    assert faces > 20
    assert 0 < sum(renewals) <= 60


def final_gap(problem, option, size, line_4):
    """F(y) - F(x*) after a long run, the largest of the second half of the run."""
    p = 1.0 if size == problem.d else 1.0 / problem.d
    points = run(problem, option, size, theorem_1_parameters(problem, option, size, p), 1500, 7, line_4=line_4)
    return max(problem.value(one.y) for one in points[750:]) - problem.value(problem.solved())


@pytest.mark.parametrize("size", [1, pytest.param(5, marks=pytest.mark.slow)])
def test_line_4s_lost_d_is_invisible_on_a_box_for_option_I(size):
    # As printed E g = (2 - 1/d) grad f(x*) at x = w = x*. On a box a multiple of the gradient has the same fixed
    # points, and coordinates carry no noise from a face's slope to a free one. With a ridge in psi it has others.
    for seed in range(2):
        assert final_gap(Quadratic(5, seed), "I", size, paper.line_4_printed) < 1e-12
        assert final_gap(Quadratic(5, seed, ridge=0.2), "I", size, paper.eq_4) < 1e-12
        assert final_gap(Quadratic(5, seed, ridge=0.2), "I", size, paper.line_4_printed) > 1e-5


def test_line_4s_lost_d_stalls_option_II_on_a_box_too():
    # A direction of the sphere carries what is left of the slope at a face, (d - 1) <grad f, u> u, to all coordinates.
    for seed in range(2):
        assert final_gap(Quadratic(5, seed), "II", 1, paper.eq_4) < 1e-12
        assert final_gap(Quadratic(5, seed), "II", 1, paper.line_4_printed) > 1e-3
        assert final_gap(Quadratic(5, seed, ridge=0.2), "II", 1, paper.line_4_printed) > 1e-3


# Eq. 14.


def gaps_of_eq_14(problem, bound, iterations, *, sign=1.0, estimate=None):
    problem.bound = bound
    estimate = estimate or (lambda y, u: paper.eq_2(problem, y, u, 1e-7))
    u = paper.option_II(np.random.default_rng(5), problem.d, iterations)
    path = paper.eq_14(estimate, lambda v: problem.prox(v, 1.0), np.zeros(problem.d), u, problem.L, problem.mu_f, sign)
    at_star = problem.value(problem.solved())
    return np.array([problem.value(x) for x in path]) - at_star


@pytest.mark.parametrize("seed", range(2))
def test_eq_14_with_plus_converges_free_and_stalls_in_a_box(seed):
    problem = Quadratic(20, seed)
    free, box = gaps_of_eq_14(problem, math.inf, 1500), gaps_of_eq_14(problem, 0.5, 1500)
    assert free[-1] < 1e-10 * free[0]
    assert box[500:].min() > 1e-2 * box[0]


@pytest.mark.parametrize("seed", range(2))
def test_eq_14s_printed_sign_is_slower_than_no_momentum(seed):
    problem = Quadratic(20, seed)
    plus, none, minus = (gaps_of_eq_14(problem, math.inf, 1000, sign=sign)[-1] for sign in (1.0, 0.0, -1.0))
    assert 100.0 * plus < none < minus / 3.0


def test_eq_14s_estimator_is_eq_2():
    # "The simple 2-point estimator (3)": eq. 3 has d + 1 points, and with it nothing stalls in the box.
    problem = Quadratic(20, 0)
    gaps = gaps_of_eq_14(problem, 0.5, 3000, estimate=lambda y, u: paper.eq_6(problem, y, 1e-7))
    assert gaps[-1] < 1e-12 * gaps[0]


# The project's runs.

BETA = 1e-3


def values_at(problem, batch):
    return torch.tensor([problem.smooth(x) for x in batch.points().numpy()], dtype=torch.float64)


def asked(optimizer, problem):
    """Drive an optimizer to its stop: the points of each of its batches."""
    batches = []
    while not optimizer.stopped:
        batch = optimizer.ask()
        batches.append(batch.points().numpy().copy())
        optimizer.tell(batch, values_at(problem, batch))
    return batches


def project(problem, cls, queries, **options):
    return cls(
        torch.zeros(problem.d, dtype=torch.float64),
        prox=BoxRidge(-problem.bound, problem.bound, problem.ridge),
        smoothness=problem.L,
        strong_convexity=problem.mu_f,
        smoothing_radius=BETA,
        max_queries=queries,
        seed=11,
        **options,
    )


def axes_of(points):
    """S off a batch of x and x + beta e_i."""
    return np.eye(points.shape[1])[np.argmax(np.abs(points[1:] - points[0]), axis=1)]


PROBLEMS = {"ridge": lambda: Logistic(9, 2), "mu_f": lambda: Quadratic(9, 1, ridge=0.1)}


def corollary(option, L, mu, d, size):
    """The corollary, as printed, that speaks of the option and |S|."""
    if option == "II":
        return paper.corollary_2_printed(L, mu, d, size)
    return paper.corollary_3(L, mu) if size == d else paper.corollary_1(L, mu, d, size)


def theorem(option, L, mu, d, size):
    """Theorem 1's M with the corollaries' p and theta."""
    p = 1.0 if option == "I" and size == d else 1.0 / d
    M = paper.theorem_1_M(paper.theorem_1_A(option, d, size), L)
    return paper.Parameters(M, min(math.sqrt(mu / (M * p)), 0.5), p)


def traced(optimizer, problem):
    """Drive an optimizer to its stop: S, whether w is renewed, and x of each iteration, and each w that is queried."""
    d, full = problem.d, optimizer.batch_size == "full"
    batches = asked(optimizer, problem)
    draws, renewals, x, w = [], [], [], [] if full else [batches.pop(0)[0]]
    while batches:
        points = batches.pop(0)
        draws.append((points[1:] - points[0]) / BETA), x.append(points[0])
        renewals.append(full or bool(batches and len(batches[0]) == d + 1))
        if batches and renewals[-1] and not full:
            w.append(batches.pop(0)[0])
    return draws, renewals, x, w


ITERATIONS = [
    (option, size, rule)
    for option, size, rules in [
        ("I", 1, ("corollary", "theorem_1")),
        ("I", 3, ("corollary",)),
        ("I", 7, ("theorem_1",)),
        ("I", "full", ("corollary", "theorem_1")),
        ("II", 1, ("corollary", "theorem_1")),
        ("II", 3, ("corollary", "theorem_1")),
        ("II", 7, ("theorem_1",)),
    ]
    for rule in rules
]
OF_MU_F = [("I", 1, "corollary"), ("I", "full", "corollary"), ("II", 1, "theorem_1")]


@pytest.mark.slip(
    "optimizers/methods/katyusha/zo_l_katyusha.py",
    "return theta * z + weight * w + (1.0 - weight - theta) * y",
    "return theta * z + weight * y + (1.0 - weight - theta) * w",
    "the weights of w and y, swapped (Katyusha Alg. 1, line 2)",
    of="optimizers/zo_l_katyusha",
)
@pytest.mark.slip(
    "optimizers/methods/katyusha/zo_l_katyusha.py",
    "factor * (derivatives - reference.gather(-1, axes))",
    "factor * derivatives - reference.gather(-1, axes) / axes.shape[-1]",
    "line 4 as printed, without d (Katyusha Alg. 1)",
    of="optimizers/zo_l_katyusha",
)
@pytest.mark.slip(
    "optimizers/methods/katyusha/zo_l_katyusha.py",
    "factor = reference.shape[-1] / axes.shape[-1]",
    "factor = 1.0 / axes.shape[-1]",
    "a mean of coordinates without d (Katyusha eq. 4)",
    of="optimizers/zo_l_katyusha optimizers/zo_svrg",
)
@pytest.mark.slip(
    "optimizers/methods/katyusha/zo_l_katyusha.py",
    "(pull * x + z - q.eta / q.M * g)",
    "(pull * x + z + q.eta / q.M * g)",
    "the sign of the step of z (Katyusha Alg. 1, line 5)",
    of="optimizers/zo_l_katyusha",
)
@pytest.mark.slip(
    "optimizers/methods/katyusha/zo_l_katyusha.py",
    "y = x + q.theta * (z - state.z)",
    "y = self._x + q.theta * (z - state.z)",
    "y^{k+1} from y^k, not x^k (Katyusha Alg. 1, line 6)",
    of="optimizers/zo_l_katyusha",
)
@pytest.mark.slip(
    "optimizers/methods/katyusha/zo_l_katyusha.py",
    "                state.wanted = y\n",
    "                state.wanted = self._x\n",
    "w = y^{k+1}, not y^k (Katyusha Alg. 1, line 7)",
    of="optimizers/zo_l_katyusha",
)
@pytest.mark.parametrize(
    ("name", "option", "size", "rule"),
    [
        *(("ridge", *case) for case in ITERATIONS),
        *(("mu_f", *case) for case in OF_MU_F),
        *(pytest.param("mu_f", *case, marks=pytest.mark.slow) for case in ITERATIONS if case not in OF_MU_F),
    ],
)
def test_katyusha_is_alg_1(record_property, name, option, size, rule):
    # Nothing is given but L, mu and the rule's name: M, theta and p are compared as well as the iterates.
    problem = PROBLEMS[name]()
    d = problem.d
    number = d if size == "full" else size
    parameters = (corollary if rule == "corollary" else theorem)(option, problem.L, problem.mu, d, number)
    queries = 1500 if size == 7 else 700
    optimizer = project(problem, ZOLKatyusha, queries, option=option, batch_size=size, parameters=rule)
    found = optimizer.current_parameters
    assert (found.M, found.theta, found.probability) == pytest.approx(parameters, rel=1e-12)
    draws, renewals, x, w = traced(optimizer, problem)
    points = paper.algorithm_1(
        problem.smooth, problem.prox, np.zeros(d), draws, renewals, parameters, problem.mu_f, BETA
    )
    pairs = [*zip((one.x for one in points), x, strict=False), (points[-1].y, optimizer.x.numpy())]
    if size != "full":
        renewed = [points[0].w] + [points[k + 1].w for k, renew in enumerate(renewals) if renew]
        pairs += zip(renewed, w, strict=False)
        assert len(w) > 10
    kind = f"|S|={size}, {rule}"
    largest(record_property, f"Alg. 1, option {option}, {kind}, {name}", f"ZOLKatyusha, {len(draws)} iterations", pairs)
    assert np.abs(x[-1]).max() > 0.3


def test_a_batch_of_all_coordinates_is_the_full_batch():
    problem = Logistic(9, 2)
    one, other = (project(problem, ZOLKatyusha, 300, batch_size=size, parameters="corollary") for size in (9, "full"))
    assert np.array_equal(asked(one, problem), asked(other, problem))


@pytest.mark.parametrize("name", PROBLEMS)
def test_without_reference_is_corollary_3_with_w_at_y(record_property, name):
    # Ours: line 2's half on w goes to y; M, theta and p are Corollary 3's.
    problem = PROBLEMS[name]()
    M, theta, _ = paper.corollary_3(problem.L, problem.mu)
    sigma, eta = problem.mu_f / M, 1.0 / (3.0 * theta)
    optimizer = project(problem, ZOLKatyusha, 800, batch_size="full", parameters="without_reference")
    batches = asked(optimizer, problem)
    y, z, pairs = np.zeros(problem.d), np.zeros(problem.d), []
    for points in batches:
        x = theta * z + (1.0 - theta) * y
        pairs.append((x, points[0]))
        g = paper.eq_6(problem.smooth, x, BETA)
        step = eta / ((1.0 + eta * sigma) * M)
        z_next = problem.prox((eta * sigma * x + z - eta / M * g) / (1.0 + eta * sigma), step)
        y, z = x + theta * (z_next - z), z_next
    pairs.append((y, optimizer.x.numpy()))
    largest(record_property, f"ours, no weight on w, {name}", f"ZOLKatyusha, {len(batches)} iterations", pairs)
    assert np.abs(y).max() > 0.3


@pytest.mark.slip(
    "optimizers/methods/katyusha/accelerated_zo.py",
    "return -m if self.printed_sign else m",
    "return m if self.printed_sign else -m",
    "the sign of the momentum (Katyusha eq. 14)",
    of="optimizers/accelerated_zo",
)
@pytest.mark.slip(
    "optimizers/methods/katyusha/accelerated_zo.py",
    "root = math.sqrt(min((self.mu_f + self.mu_psi) * self.step_factor / self.state.smoothness, 1.0))",
    "root = min((self.mu_f + self.mu_psi) * self.step_factor / self.state.smoothness, 1.0)",
    "a momentum of μ/L, not its root (Katyusha eq. 14)",
    of="optimizers/accelerated_zo",
)
@pytest.mark.slip(
    "optimizers/methods/katyusha/accelerated_zo.py",
    "return self._batch(self._estimator, self.state.y)",
    "return self._batch(self._estimator, self._x)",
    "the estimate at x, not at y (Katyusha eq. 14)",
    of="optimizers/accelerated_zo",
)
@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize("bound", [0.5, 1e6])
def test_accelerated_zo_is_eq_14(record_property, bound, sign):
    problem = Quadratic(9, 1, bound=bound)
    optimizer = project(problem, AcceleratedZO, 600, printed_sign=sign < 0.0)
    batches = asked(optimizer, problem)
    u = [(points[1] - points[0]) / BETA for points in batches]
    path = paper.eq_14(
        lambda y, u: paper.eq_2(problem.smooth, y, u, BETA),
        lambda v: np.clip(v, -bound, bound),
        np.zeros(9),
        u,
        problem.L,
        problem.mu_f,
        sign,
    )
    momentum = sign * (1.0 - math.sqrt(problem.mu_f / problem.L)) / (1.0 + math.sqrt(problem.mu_f / problem.L))
    y = [path[0]] + [after + momentum * (after - before) for before, after in itertools.pairwise(path)]
    pairs = [*zip(y, (points[0] for points in batches), strict=False), (path[-1], optimizer.x.numpy())]
    where = "box" if bound == 0.5 else "free"
    sense = "as read" if sign > 0.0 else "as printed"
    largest(record_property, f"eq. 14, {sense}, {where}", f"AcceleratedZO, {len(batches)} iterations", pairs)
    assert np.abs(path[-1]).max() > 0.3


@pytest.mark.slip(
    "optimizers/methods/katyusha/smooth_method.py",
    'self.current_smoothing_radius, distribution="sphere"',
    'self.current_smoothing_radius, distribution="normal"',
    "a normal u, not a unit vector (Katyusha eq. 2)",
    of="optimizers/projected_zo optimizers/accelerated_zo optimizers/nesterov_spokoiny",
)
@pytest.mark.parametrize("name", PROBLEMS)
def test_projected_zo_is_along_eq_2(record_property, name):
    problem = PROBLEMS[name]()
    d = problem.d
    optimizer = project(problem, ProjectedZO, 600, estimator="two_point", step_schedule="constant")
    batches = asked(optimizer, problem)
    path = paper.projected_zo(
        lambda x, u: paper.eq_2(problem.smooth, x, u, BETA),
        problem.prox,
        np.zeros(d),
        [(points[1] - points[0]) / BETA for points in batches],
        1.0 / (d * problem.L),
    )
    pairs = [(x, points[0]) for x, points in zip(path, batches, strict=False)]
    pairs.append((path[-1], optimizer.x.numpy()))
    largest(record_property, f"eq. 2, {name}", f"ProjectedZO, {len(batches)} iterations", pairs)
    assert np.abs(path[-1]).max() > 0.3


@pytest.mark.parametrize("name", PROBLEMS)
def test_projected_zo_on_coordinates_is_along_eq_6(record_property, name):
    problem = PROBLEMS[name]()
    optimizer = project(problem, ProjectedZO, 800, estimator="coordinates", step_schedule="constant")
    batches = asked(optimizer, problem)
    path = paper.projected_zo(
        lambda x, u: paper.eq_6(problem.smooth, x, BETA),
        problem.prox,
        np.zeros(problem.d),
        range(len(batches)),
        1.0 / problem.L,
    )
    pairs = [(x, points[0]) for x, points in zip(path, batches, strict=False)]
    pairs.append((path[-1], optimizer.x.numpy()))
    largest(record_property, f"eq. 6, {name}", f"ProjectedZO, {len(batches)} iterations", pairs)
    assert np.abs(path[-1]).max() > 0.3


@pytest.mark.parametrize(
    ("name", "size"),
    [
        *(("ridge", 1), ("mu_f", 3)),
        *(pytest.param(*case, marks=pytest.mark.slow) for case in (("ridge", 3), ("mu_f", 1))),
    ],
)
def test_zo_svrg_is_along_eq_4_with_option_I(record_property, name, size):
    # The paper prints no formula of its ZO-SVRG; its estimate is eq. 4's, without acceleration.
    problem = PROBLEMS[name]()
    d = problem.d
    optimizer = project(problem, ZOSVRG, 1200, batch_size=size)
    x, pairs, step = np.zeros(d), [], size / (d * problem.L)
    batches = asked(optimizer, problem)
    for points in batches:
        pairs.append((x, points[0]))
        if len(points) == d + 1:
            reference = paper.eq_6(problem.smooth, x, BETA)
        else:
            g = paper.eq_4(problem.smooth, x, axes_of(points), reference, BETA)
            x = problem.prox(x - step * g, step)
    pairs.append((x, optimizer.x.numpy()))
    largest(record_property, f"eqs. 4, 5, 6, |S|={size}, {name}", f"ZOSVRG, {len(batches)} batches", pairs)
    assert np.abs(x).max() > 0.3
