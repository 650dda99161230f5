"""The project's ZoRD and RGF against ZoRD's paper, and the paper against itself."""

from functools import partial

import numpy as np
import pytest
import torch
from gpytorch.means import ZeroMean
from scipy import stats

from optimizers import RGF, Evaluator, FiniteDifferences, ZoRD, run
from surrogates import DerivedGP, gaussian_likelihood, matern_kernel, rbf_kernel
from tests.papers import zord as paper


def data(n, d, seed=0, width=2.0):
    rng = np.random.default_rng(seed)
    X = width * rng.standard_normal((n, d))
    return X, np.sin(X).sum(1) + 0.3 * (X**2).sum(1)


def bowl(x):
    return float(np.sin(x).sum() + (np.linspace(0.5, 2.0, len(x)) * x**2).sum())


def noisy_bowl():
    """``bowl`` with noise of variance 0.01 that depends on how often it was asked."""
    rng = np.random.default_rng(12)
    return lambda x: bowl(x) + 0.1 * float(rng.standard_normal())


KERNELS = {
    "matern52": (paper.matern52, matern_kernel),
    "se": (paper.squared_exponential, rbf_kernel),
}


def sgd(rate):
    return lambda p: torch.optim.SGD([p], lr=rate)


def adam(rate):
    return lambda p: torch.optim.Adam([p], lr=rate, betas=(0.9, 0.999))


RULES = {"plain": (paper.plain, sgd), "adam": (paper.adam, adam)}


# Eqs. 3, 5 and 6.


@pytest.mark.parametrize("name", KERNELS)
def test_the_kernels_derivatives_are_derivatives(name):
    kernel, h = KERNELS[name][0](1.3), 1e-5
    rng = np.random.default_rng(1)
    z, z2, X = rng.standard_normal(4), rng.standard_normal(4), rng.standard_normal((3, 4))
    steps = h * np.eye(4)
    slopes = (kernel.values(z + steps, X) - kernel.values(z - steps, X)) / (2 * h)
    np.testing.assert_allclose(kernel.first(z, X), slopes.T, atol=1e-9)
    # d_z d_z' k: the derivative of d_z k(z, z') in z', and at z = z' kappa^2 I (Sec. 2.1).
    slopes = [(kernel.first(z, (z2 + e)[None]) - kernel.first(z, (z2 - e)[None]))[0] / (2 * h) for e in steps]
    np.testing.assert_allclose(kernel.cross(z, z2), np.array(slopes).T, atol=1e-9)
    curvature = {"matern52": 5 / 3, "se": 1.0}[name] / 1.3**2
    np.testing.assert_allclose(kernel.cross(z, z), curvature * np.eye(4), atol=1e-15)


@pytest.mark.slip(
    "surrogates/kernels/stationary.py",
    '"matern52": 5 / 3}',
    '"matern52": 5 / 6}',
    "a prior variance of -h'(0), not -2h'(0) (ZoRD, Sec. 2.1)",
    of="optimizers/zord",
)
@pytest.mark.slip(
    "surrogates/conditioning.py",
    "return remaining_covariance(prior, explained)",
    "return remaining_covariance(prior, -explained)",
    "observations that add to the covariance (ZoRD eq. 5)",
    of="optimizers/zord federated/fzoos",
)
@pytest.mark.slip(
    "surrogates/gradient_posterior.py",
    "torch.linalg.eigvalsh(covariance.masked_fill(unknown, 0.0))[..., -1]",
    "torch.linalg.eigvalsh(covariance.masked_fill(unknown, 0.0))[..., 0]",
    "the least eigenvalue, not the largest (ZoRD, Sec. 3.2)",
    of="optimizers/zord",
)
@pytest.mark.parametrize("name", KERNELS)
def test_the_derived_gp_is_equations_3_and_5(name, agree):
    (X, y), noise, lengthscale = data(25, 4), 1e-3, 1.7
    ours, theirs = KERNELS[name]
    kernel = ours(lengthscale)
    model = DerivedGP(
        torch.from_numpy(X),
        torch.from_numpy(y)[:, None],
        likelihood=gaussian_likelihood(noise),
        covar_module=theirs(lengthscale),
        mean_module=ZeroMean(),
        outcome_transform=None,
    )
    points = np.random.default_rng(2).standard_normal((2, 4))
    x = torch.from_numpy(points)
    values, gradients = model.posterior(x), model.gradient_posterior(x)
    note = partial(agree, project=f"DerivedGP, {name}")

    at = [[paper.posterior(kernel, X, y, noise, a, b) for b in points] for a in points]
    note("eq. 3, mu", expected=[at[i][i][0] for i in range(2)], given=values.mean.detach()[:, 0])
    covariance = values.distribution.covariance_matrix.detach()
    note("eq. 3, sigma^2", expected=[[at[i][j][1] for j in range(2)] for i in range(2)], given=covariance)
    means = [paper.gradient_mean(kernel, X, y, noise, a) for a in points]
    note("eqs. 5 and 6, grad mu", expected=means, given=gradients.mean)
    blocks = [[paper.gradient_covariance(kernel, X, noise, a, b) for b in points] for a in points]
    note("eq. 5, d sigma^2(x, x')", expected=np.block(blocks), given=gradients.joint_covariance())
    note("eq. 5, d sigma^2(x)", expected=[blocks[i][i] for i in range(2)], given=gradients.covariance_matrix)
    norms = [paper.uncertainty(kernel, X, noise, a) for a in points]
    note("Sec. 3.2, ||d sigma^2||", expected=norms, given=gradients.spectral_norm)


def test_the_gradient_mean_is_the_means_gradient():
    (X, y), kernel, h = data(12, 3), paper.matern52(1.5), 1e-5
    x = np.array([0.3, -0.2, 0.7])
    steps = h * np.eye(3)

    def mu(z):
        return paper.posterior(kernel, X, y, 0.1, z, z)[0]

    slopes = [(mu(x + e) - mu(x - e)) / (2 * h) for e in steps]
    np.testing.assert_allclose(paper.gradient_mean(kernel, X, y, 0.1, x), slopes, atol=1e-8)


# Eq. 2 and Algorithm 1.

MOMENTS = {"normal": 1.0, "rademacher": 1.0, "sphere": 1 / 6, "coordinate": 1 / 6, "orthonormal": 1 / 6}


@pytest.mark.slip(
    "optimizers/directions/directions.py",
    'in ("normal", "rademacher") else 1.0 / self.d',
    'in ("normal", "rademacher") else 1.0',
    "E u_j² = 1 for unit vectors: eq. 2 loses its d",
    of="optimizers/rgf",
)
@pytest.mark.slip(
    "optimizers/estimators/finite_differences.py",
    "return (values[1:] - values[0]) / self.smoothing_radius",
    "return (values[0] - values[1:]) / self.smoothing_radius",
    "the sign of forward differences (ZoRD eq. 2)",
    of="optimizers/rgf federated/fedzo federated/fedprox federated/scaffold1 federated/scaffold2",
)
@pytest.mark.slip(
    "optimizers/estimators/finite_differences.py",
    "coefficients = terms * (c / int(kept.sum()))",
    "coefficients = terms * c",
    "eq. 2 as ZoRD prints it, without 1/n",
    of="optimizers/rgf federated/fedzo federated/fedprox federated/scaffold1 federated/scaffold2",
)
@pytest.mark.parametrize("distribution", MOMENTS)
def test_finite_differences_are_equation_2_as_read(distribution, agree):
    estimator = FiniteDifferences(4, 0.01, distribution=distribution, seed=3)
    x = np.linspace(-1.0, 1.0, 6)
    points = estimator.points(torch.from_numpy(x), step=2).numpy()
    given = estimator(lambda p: bowl(p.numpy()), torch.from_numpy(x), step=2).gradient
    directions = (points[1:] - x) / 0.01
    expected = paper.differences_as_read(bowl, x, 0.01, directions, bowl(x), MOMENTS[distribution])
    agree("eq. 2 as read", f"FiniteDifferences, {distribution}", expected, given)


@pytest.mark.parametrize("kind", ["normal", "unit"])
def test_equation_2_as_printed_is_not_an_estimate_of_the_gradient(kind):
    """Its mean is n (normal) or n/d (unit) gradients: eq. 2 needs 1/n or d/n, and is right as printed for a basis."""
    d, n, draws = 8, 5, 4000
    slope = np.linspace(1.0, 2.0, d)
    directions = np.random.default_rng(4).standard_normal((draws, n, d))
    if kind == "unit":
        directions /= np.linalg.norm(directions, axis=-1, keepdims=True)
    y = slope.__matmul__
    x, moment = np.zeros(d), 1.0 if kind == "normal" else 1 / d
    printed = np.array([paper.differences_as_printed(y, x, 0.01, u, 0.0) for u in directions])
    read = np.array([paper.differences_as_read(y, x, 0.01, u, 0.0, moment) for u in directions])
    error = 5 * read.std(0) / np.sqrt(draws)
    assert (np.abs(read.mean(0) - slope) < error).all()
    assert (np.abs(printed.mean(0) - slope) > 2 * error).all()
    np.testing.assert_allclose(printed.mean(0), n * moment * read.mean(0), rtol=1e-12)
    basis = paper.differences_as_printed(y, x, 0.01, np.eye(d), 0.0)
    np.testing.assert_allclose(basis, slope, rtol=1e-12)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("directions", [4, 10])
@pytest.mark.parametrize("boxed", [False, True])
def test_rgf_is_algorithm_1(rule, directions, boxed, agree):
    """Appx. C.1: lambda = 0.01, orthonormal directions in blocks of at most d, [0, 10]^d; read off the queries."""
    ours, theirs = RULES[rule]
    rate = 0.2 if rule == "adam" else 0.5 if boxed else 0.02
    d, iterations, smoothing = 6, 25, 0.01
    lower, upper = np.full(d, 0.1), np.linspace(2.0, 4.0, d)
    x0 = np.linspace(0.5, 1.5, d)
    options = {"bounds": list(zip(lower, upper, strict=True)), "confine_queries": False} if boxed else {}
    optimizer = RGF(
        torch.from_numpy(x0),
        max_queries=iterations * (directions + 1),
        directions=directions,
        smoothing_radius=smoothing,
        update_rule=theirs(rate),
        store_points=True,
        seed=5,
        **options,
    )
    result = run(optimizer, Evaluator(bowl, numpy=True))
    queries = result.history.x.numpy().reshape(iterations, directions + 1, d)
    y, project, start = bowl, lambda x: x, x0
    if boxed:
        queries, start = 10 * (queries - lower) / (upper - lower), 10 * (x0 - lower) / (upper - lower)
        y, project = paper.rescaled(bowl, lower, upper), paper.box(0.0, 10.0)
    drawn = (queries[:, 1:] - queries[:, :1]) / smoothing

    def estimate(t, x, at_x):
        return paper.differences_as_read(y, x, smoothing, drawn[t - 1], at_x, 1 / d)

    expected = paper.gradient_descent(
        y, start, estimate=estimate, iterations=iterations, step=ours(rate), project=project
    )
    last = optimizer.x.numpy()
    last = 10 * (last - lower) / (upper - lower) if boxed else last
    agree(f"Alg. 1, {rule}", f"RGF, n = {directions}, box {boxed}", expected.x, np.vstack([queries[1:, 0], last]))
    assert np.abs(expected.x[-1] - start).max() > 0.3
    assert bool((expected.x[-1] == 0.0).any()) == boxed
    assert y(expected.returned) == expected.y.min() < y(start)


# Algorithm 2.


def followed(make, x0, *, rule, rate, queries, lengthscale, window, low=None, high=None, noise=None, **options):
    """A run of ``ZoRD`` with the paper's options, and its transcription from the same initial design.

    Args:
        make: makes the objective, anew for each of the two runs.

    Returns:
        The transcription, the project's x_1 ... x_T in search coordinates, and the least value of each run.
    """
    ours, theirs = RULES[rule]
    nugget, most = options.pop("nugget", 1e-6), options.pop("most", 10)
    bounds = None if low is None else list(zip(low, high, strict=True))
    optimizer = ZoRD(
        torch.from_numpy(x0),
        max_queries=queries,
        bounds=bounds,
        uncertainty="spectral_norm",
        max_virtual_steps=most,
        lengthscale=lengthscale,
        window=window,
        nugget=nugget,
        noise=noise,
        update_rule=theirs(rate),
        reset_after=None,
        store_points=True,
        **{"start": "last"} | options,
    )
    result = run(optimizer, Evaluator(make(), numpy=True))
    asked = result.history.x.numpy()
    y, project, start = make(), lambda x: x, x0
    if low is not None:
        y, project = paper.rescaled(y, low, high), paper.box(0.0, 10.0)
        asked, start = 10 * (asked - low) / (high - low), 10 * (x0 - low) / (high - low)
    design, iterates = asked[:10], asked[10:]
    values = np.array([y(x) for x in design])
    expected = paper.zord(
        y,
        start,
        X=design,
        values=values,
        iterations=len(iterates),
        kernel=paper.matern52(lengthscale),
        noise=lambda s: nugget if noise is None else noise / s**2,
        step=ours(rate),
        most=most,
        threshold=options.get("threshold", paper.C),
        project=project,
        window=window,
        mean=paper.gls_mean,
        scale=paper.spread,
        from_best=options.get("start") == "best",
    )
    assert len(iterates) == queries - 10
    return expected, iterates, (min(values.min(), expected.y.min()), result.best_fun)


BOX = {"low": np.full(4, -20.0), "high": np.full(4, 20.0), "lengthscale": 1.5, "nugget": 1e-3}
PLAIN = {"nugget": 1e-4, "rule": "plain", "rate": 0.05, "window": 150, "lengthscale": 2.0}
ADAM = {"nugget": 1e-4, "rule": "adam", "rate": 0.1, "window": 150, "lengthscale": 2.0}
CASES = {
    "plain": PLAIN,
    "plain, noise of known variance": PLAIN | {"noise": 0.01, "make": noisy_bowl, "lengthscale": 2.1, "most": 3},
    "plain, 12 nearest": PLAIN | {"window": 12},
    "plain, from the best": PLAIN | {"start": "best"},
    "plain, c = 0": PLAIN | {"threshold": 0.0},
    "Adam": ADAM,
    "Adam, Ackley": ADAM | BOX | {"make": lambda: paper.ackley, "most": 5},
    "Adam, Levy, 20 nearest": ADAM | BOX | {"make": lambda: paper.levy, "window": 20},
    "Adam, Levy, in a corner": ADAM | BOX | {"make": lambda: paper.levy, "low": np.array([-20.0, -20.0, 5.0, 2.0])},
}


@pytest.mark.slip(
    "surrogates/kernels/one_pass_numba.py",
    "return (-5.0 / 6.0) * (1 + a) * exp(-a)",
    "return (-5.0 / 6.0) * (1 - a) * exp(-a)",
    "the compiled h' of Matérn 5/2 with 1 - a, not 1 + a",
    of="optimizers/zord",
)
@pytest.mark.slip(
    "surrogates/kernels/one_pass_numba.py",
    "weight[i] = c[i] * alpha[i] * v",
    "weight[i] = c[i] * alpha[i]",
    "the compiled mean gradient without 1/ℓ²",
    of="optimizers/zord federated/fzoos",
)
@pytest.mark.slip(
    "surrogates/window/uncertainty.py",
    "return MEASURES[self.uncertainty](posterior, d) <= self.threshold",
    "return MEASURES[self.uncertainty](posterior, d) >= self.threshold",
    "virtual steps where the gradient is uncertain (ZoRD, Sec. 3.2)",
    of="optimizers/zord",
)
@pytest.mark.slip(
    "optimizers/methods/zord/virtual_steps.py",
    "known = surrogate.pass_at(z, reselect=reselect)",
    "known = surrogate.pass_at(x, reselect=reselect)",
    "the gradient at x, not at z (ZoRD Alg. 2, line 5)",
    of="optimizers/zord",
)
@pytest.mark.slip(
    "optimizers/methods/zord/virtual_steps.py",
    "z = prox(stepped, step_size)  # line 5",
    "z = stepped  # line 5",
    "virtual steps that leave the box (ZoRD Alg. 2, line 5)",
    of="optimizers/zord",
)
@pytest.mark.slip(
    "optimizers/methods/zord/trajectory_descent.py",
    'from_best = self.start == "best" or state.failed > 0',
    'from_best = self.start == "last" or state.failed > 0',
    "the last iterate, not the best (ZoRD Alg. 2, line 3)",
    of="optimizers/zord optimizers/least_squares_gradient",
)
@pytest.mark.parametrize("case", CASES)
def test_zord_is_algorithm_2(case, agree):
    """Appx. C: [0, 10]^d, Adam or plain steps, c = 0.35, the nearest queries. Where the paper is silent: ``followed``.

    Both runs are left to themselves. Virtual steps let rounding errors grow, the more the smaller the nugget is.
    """
    options = {"make": lambda: bowl, "x0": np.array([1.5, -1.0, 0.8, 1.2])} | CASES[case]
    if "low" in options:
        options["x0"] = np.array([6.0, -4.5, 5.2, 3.1])
    expected, iterates, (least, fun) = followed(queries=45, **options)
    agree("Alg. 2", f"ZoRD, {case}", expected.x, iterates)
    agree("Alg. 2, line 10", f"ZoRD, {case}", least, fun)
    assert (len(set(expected.steps)) > 1) == (case != "plain, c = 0")
    assert bool((expected.x[-1] == 0.0).any()) == (case == "Adam, Levy, in a corner")


@pytest.mark.parametrize("name", ["ackley", "levy"])
def test_an_iteration_from_the_same_queries_is_algorithm_2s(name, agree):
    """The nugget of the authors' program, 1e-6: each iteration begins from the queries that the project has made."""
    fun, x0, nugget, d = getattr(paper, name), np.array([6.0, -4.5, 5.2, 3.1]), 1e-6, 4
    optimizer = ZoRD(
        torch.from_numpy(x0),
        max_queries=45,
        uncertainty="spectral_norm",
        lengthscale=1.5,
        nugget=nugget,
        start="last",
        update_rule=sgd(0.2),
        reset_after=None,
        store_points=True,
    )
    X = run(optimizer, Evaluator(fun, numpy=True)).history.x.numpy()
    values = np.array([fun(x) for x in X])
    steps, expected = [], []
    for t in range(10, 45):
        iteration = paper.zord(
            fun,
            X[t - 1] if t > 10 else x0,
            X=X[:t],
            values=values[:t],
            iterations=1,
            kernel=paper.matern52(1.5),
            noise=lambda s: nugget,
            step=paper.plain(0.2),
            most=10,
            mean=paper.gls_mean,
            scale=paper.spread,
        )
        expected.append(iteration.x[0])
        steps.append(int(iteration.steps[0]))
    agree("Alg. 2, each iteration", f"ZoRD, {name}, nugget 1e-6", np.reshape(expected, (35, d)), X[10:])
    assert len(set(steps)) > 2


def test_zord_in_more_dimensions_than_queries_is_algorithm_2(agree):
    """There ||d sigma^2|| is the prior's kappa^2 everywhere (Sec. 2.1), and V_t is 1 or its bound."""
    x0 = np.linspace(-1.0, 1.0, 70)
    for lengthscale, steps in ((1.5, 1), (4.0, 10)):
        expected, iterates, _ = followed(
            lambda: bowl, x0, rule="plain", rate=0.05, queries=30, lengthscale=lengthscale, window=150, nugget=1e-4
        )
        agree("Alg. 2", f"ZoRD, d = 70, l = {lengthscale}", expected.x, iterates)
        assert (expected.steps == steps).all()


@pytest.mark.parametrize("noise", [0.0, 0.1])
def test_algorithm_2_as_printed_never_moves(noise):
    """D_0 is empty and grad mu_t(x_0) = 0 given values at x_0 only: the paper needs queries that it does not list."""
    rng = np.random.default_rng(6)
    x0 = np.array([1.0, -2.0])
    printed = paper.zord(
        lambda x: bowl(x) + noise * float(rng.standard_normal()),
        x0,
        X=np.empty((0, 2)),
        values=np.empty(0),
        iterations=5,
        kernel=paper.matern52(1.0),
        noise=lambda s: 1e-2,
        step=paper.plain(0.1),
        most=3,
    )
    assert (printed.x == x0).all()
    another = np.array([[1.1, -2.0]])
    started = paper.zord(
        bowl,
        x0,
        X=another,
        values=np.array([bowl(another[0])]),
        iterations=5,
        kernel=paper.matern52(1.0),
        noise=lambda s: 1e-2,
        step=paper.plain(0.1),
        most=3,
    )
    assert (started.x[0] != x0).any()


# Eq. 56.


def test_the_synthetic_functions_have_their_minima():
    assert abs(paper.ackley(np.zeros(7))) < 1e-14 and paper.levy(np.ones(7)) < 1e-30
    rng = np.random.default_rng(7)
    for x in rng.uniform(-7.5, 7.5, (200, 7)):
        assert paper.ackley(x) > 0 and paper.levy(x) > 0


# Theorems 1 and 2.


def test_theorem_1_covers_the_gradient(record_property):
    """(f(X) + noise, grad f(x)) drawn jointly from the GP: the bound fails in a share delta of the draws at most."""
    rng, d, noise = np.random.default_rng(8), 5, 1e-2
    kernel = paper.matern52(1.2)
    X, x = rng.standard_normal((12, d)), 0.3 * rng.standard_normal(d)
    first = kernel.first(x, X)
    joint = np.block([[paper.covariance(kernel, X, noise), first], [first.T, kernel.cross(x, x)]])
    draws = rng.multivariate_normal(np.zeros(12 + d), joint, size=4000, method="cholesky")
    solved = np.linalg.solve(paper.covariance(kernel, X, noise), draws[:, :12].T)
    errors = np.linalg.norm(draws[:, 12:] - (first.T @ solved).T, axis=1)
    one = paper.gradient_mean(kernel, X, draws[0, :12], noise, x)
    assert errors[0] == pytest.approx(np.linalg.norm(draws[0, 12:] - one), rel=1e-9)
    root = np.sqrt(paper.uncertainty(kernel, X, noise, x))
    for delta in (0.5, 0.1, 0.01):
        failed = float((errors > paper.beta(d, delta) * root).mean())
        record_property(f"share that failed, delta = {delta}", failed)
        assert failed <= delta
    # E||grad f - grad mu||^2 is the trace, which the norm times d bounds.
    trace = np.trace(paper.gradient_covariance(kernel, X, noise, x))
    assert (errors**2).mean() == pytest.approx(trace, rel=0.05) and trace <= d * root**2


@pytest.mark.parametrize("m", [1, 2, 10, 100, 1000])
def test_lemma_b1_holds(m):
    """Eq. 12: P(||zeta|| <= sqrt(m + 2 (sqrt(m) + 1) ln(1/delta))) >= 1 - delta for zeta ~ N(0, I_m)."""
    for delta in (1e-6, 1e-3, 0.1, 0.3, 0.5, 0.9):
        assert stats.chi2.sf(paper.beta(m, delta) ** 2, m) <= delta


@pytest.mark.parametrize("noise", [1e-3, 1.0])
def test_theorem_2_and_lemma_b6_bound_the_uncertainty(noise, record_property):
    """||d sigma_t^2|| falls, by the factor 1/(1 + 1/sigma^2) at most, as queries come."""
    rng, d = np.random.default_rng(9), 3
    kernel, X, x = paper.matern52(1.0), rng.standard_normal((25, d)), np.zeros(d)
    before, least = paper.uncertainty(kernel, X[:0], noise, x), 1.0
    assert before == pytest.approx(5 / 3, rel=1e-12)  # kappa^2 (Sec. 2.1)
    for t in range(1, 26):
        after = paper.uncertainty(kernel, X[:t], noise, x)
        assert paper.least_ratio(noise) * before <= after <= before * (1 + 1e-12)
        least, before = min(least, after / before), after
    record_property("least ratio", least)
    assert least < 0.99


def test_theorem_2s_rate_is_always_1():
    """Its r is a maximum over t >= 1 and x: at x = x_1 nothing is learned at t = 1, nor anywhere while t < d.

    A maximum of ratios in [1/(1 + 1/sigma^2), 1] that attains 1 makes kappa beta r^t a constant: the theorem's second
    part says nothing for any kernel that depends on z - z' and is differentiable. Its first part stands (above).
    """
    rng, d, noise = np.random.default_rng(10), 4, 1e-2
    X = rng.standard_normal((6, d))
    for kernel in (paper.matern52(0.8), paper.squared_exponential(0.8)):
        prior = np.linalg.norm(kernel.cross(X[0], X[0]), 2)
        assert paper.uncertainty(kernel, X[:1], noise, X[0]) == pytest.approx(prior, rel=1e-15)
        for t in range(1, d):
            for x in rng.standard_normal((5, d)):
                assert paper.uncertainty(kernel, X[:t], noise, x) == pytest.approx(prior, rel=1e-12)
        about = 0.3 * np.vstack([np.eye(d), -np.eye(d)])
        assert paper.uncertainty(kernel, about, noise, np.zeros(d)) < 0.5 * prior


def test_slips_of_the_proofs():
    """Eqs. 14, 30 and 51 as printed do not follow from what is above them; as read eqs. 14 and 30 do."""
    rng = np.random.default_rng(11)
    kernel, X, x, noise = paper.matern52(0.5), rng.standard_normal((9, 3)), np.zeros(3), 1e-2
    C = paper.gradient_covariance(kernel, X, noise, x)
    values, vectors = np.linalg.eigh(C)
    zeta = rng.standard_normal(3)
    # Eq. 14 prints ||C^{-1/2} zeta|| for zeta = C^{-1/2}(grad f - grad mu); it is ||C^{1/2} zeta||.
    error = vectors @ (np.sqrt(values) * (vectors.T @ zeta))
    np.testing.assert_allclose(vectors @ ((vectors.T @ error) / np.sqrt(values)), zeta, rtol=1e-9)
    printed = np.linalg.norm(vectors @ ((vectors.T @ zeta) / np.sqrt(values)))
    assert abs(printed - np.linalg.norm(error)) > 0.1
    # Eq. 30 prints ||d sigma_t^2|| <= r sqrt(||d sigma_{t-1}^2||), without the root on the left; here r = 1.
    before, after = (paper.uncertainty(kernel, X[:t], noise, x) for t in (0, 1))
    assert after > np.sqrt(before) and np.sqrt(after) <= np.sqrt(before)
    # Eq. 51 adds kappa beta r^t to eq. 49's squares, where eq. 50, ||G|| <= ||G'|| + kappa beta r^t, has to be squared.
    estimated, bound = 2.0, 1.5
    assert (estimated + bound) ** 2 > estimated**2 + bound
    assert (estimated + bound) ** 2 <= 2 * estimated**2 + 2 * bound**2
