"""The project's FZooS, FedZO, FedProx and SCAFFOLD against FZooS's paper, and the paper against itself."""

import numpy as np
import pytest
import torch

from federated import make_federation, simulate
from optimizers import FiniteDifferences
from surrogates import FourierFeatures, FourierSurrogate, rbf_kernel
from tests.papers import fzoos as paper
from tests.papers import zord

N, R, T, D = 3, 4, 3, 5


def clients(C=5.0, d=D, seed=0):
    rng = np.random.default_rng(seed)
    a, b = (rng.dirichlet(np.full(N, 1 / N), size=d).T for _ in range(2))
    return paper.client_quadratics(a, b, C)


class Recorded:
    """An objective that keeps the points at which it was asked."""

    def __init__(self, fun):
        self.fun, self.points = fun, []

    def __call__(self, x):
        self.points.append(np.array(x))
        return self.fun(x)


def sgd(rate):
    return lambda p: torch.optim.SGD([p], lr=rate)


def adam(rate):
    return lambda p: torch.optim.Adam([p], lr=rate, betas=(0.9, 0.999))


RULES = {"plain": (zord.plain, sgd), "adam": (zord.adam, adam)}


def simulated(name, functions, x0, **options):
    """x_1 ... x_R and each client's queries in their order, of a run of ``simulate``."""
    recorded, models = [Recorded(f) for f in functions], []

    def callback(record, x):
        models.append(x.copy())

    result = simulate(
        name,
        recorded,
        torch.from_numpy(x0),
        rounds=R,
        local_steps=T,
        callback=callback,
        numpy=True,
        seed=3,
        **options,
    )
    assert len(models) == R and (result.x == models[-1]).all()
    assert result.nfev == sum(len(own.points) for own in recorded)
    return np.array(models), np.array([own.points for own in recorded])


# Eqs. 87, 89, 91 and 93.

Q, SMOOTHING = 4, 0.01
MOMENTS = {"normal": 1.0, "sphere": 1 / D, "orthonormal": 1 / D}
X0 = np.linspace(-2.0, 3.0, D)


def baseline(name, rule, rate, distribution, **options):
    """A baseline's models and iterates, its directions and those of type I's controls, all read off its queries."""
    models, points = simulated(
        name,
        clients(),
        X0,
        directions=Q,
        smoothing_radius=SMOOTHING,
        distribution=distribution,
        **{"update_rule": RULES[rule][1](rate)} | options,
    )
    queries = points.reshape(N, R, -1, Q + 1, D).swapaxes(0, 1)
    directions = (queries[..., 1:, :] - queries[..., :1, :]) / SMOOTHING
    steps = T + (name == "scaffold1")
    assert queries.shape[2] == steps
    return models, queries[:, :, steps - T :, 0], directions[:, :, steps - T :], directions[:, :, 0]


def transcribed(name, rule, rate, distribution, directions, controls, **options):
    options |= {"smoothing": SMOOTHING, "moment": MOMENTS[distribution], "rule": lambda: RULES[rule][0](rate)}
    if name == "scaffold1":
        return paper.scaffold1(clients(), X0, directions, controls, **options)
    return getattr(paper, name)(clients(), X0, directions, **options)


BASELINES = {"fedzo": {}, "fedprox": {"pull": 0.7}, "scaffold1": {}, "scaffold2": {}}


@pytest.mark.slip(
    "federated/methods/local_descent.py",
    "self.pull * (self._x - s.anchor)",
    "self.pull * (s.anchor - self._x)",
    "the sign of the proximal term (FZooS eq. 89)",
    of="federated/fedprox",
)
@pytest.mark.slip(
    "federated/methods/local_descent.py",
    "g = g if s.correction is None else g + s.correction",
    "g = g if s.correction is None else g - s.correction",
    "the sign of the corrections (FZooS eqs. 91 and 93)",
    of="federated/scaffold1 federated/scaffold2",
)
@pytest.mark.slip(
    "federated/methods/local_descent.py",
    "return s.total / s.estimates if s.estimates else None",
    "return s.total if s.estimates else None",
    "the sum of T estimates, not their mean (FZooS eq. 93)",
    of="federated/scaffold2",
)
@pytest.mark.slip(
    "federated/methods/scaffold.py",
    'correction = message.tensors["control"] - estimate',
    'correction = estimate - message.tensors["control"]',
    "own minus mean, not mean minus own (FZooS eq. 91)",
    of="federated/scaffold1",
)
@pytest.mark.slip(
    "federated/methods/scaffold.py",
    'message.tensors["control"] - own',
    'own - message.tensors["control"]',
    "own minus mean, not mean minus own (FZooS eq. 93)",
    of="federated/scaffold2",
)
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("distribution", MOMENTS)
@pytest.mark.parametrize("name", BASELINES)
def test_baselines_are_appendix_f(name, distribution, rule, agree):
    rate, options = {"plain": 2.0, "adam": 0.1}[rule], BASELINES[name]
    models, iterates, directions, controls = baseline(name, rule, rate, distribution, **options)
    expected = transcribed(name, rule, rate, distribution, directions, controls, **options)
    agree(f"Appx. F, {name}, x_r", f"simulate, {distribution}, {rule}", expected.x, models)
    agree(f"Appx. F, {name}, x_r,t", f"simulate, {distribution}, {rule}", expected.local[:, :, :-1], iterates)
    assert np.abs(models[-1] - X0).max() > 0.3
    assert np.ptp(expected.local[-1, :, -1], axis=0).max() > 0.01


def test_scaffold_2_with_shared_directions_is_proposition_f4s(agree):
    """Prop. F.4: the u_q are shared across all iterations and rounds."""
    models, _, directions, controls = baseline("scaffold2", "plain", 2.0, "sphere", redraw="never")
    np.testing.assert_allclose(directions, np.broadcast_to(directions[:1, :, :1], directions.shape), atol=1e-12)
    expected = transcribed("scaffold2", "plain", 2.0, "sphere", directions, controls)
    agree("Appx. F, scaffold2, x_r", "simulate, directions shared", expected.x, models)


@pytest.mark.parametrize("distribution", ["normal", "sphere", "orthonormal"])
def test_finite_differences_are_equation_7(distribution, agree):
    y, x = clients()[0], np.linspace(-1.0, 1.0, D)
    estimator = FiniteDifferences(Q, SMOOTHING, distribution=distribution, seed=2)
    given = estimator(lambda p: y(p.numpy()), torch.from_numpy(x)).gradient
    directions = (estimator.points(torch.from_numpy(x)).numpy()[1:] - x) / SMOOTHING
    expected = paper.differences(y, x, SMOOTHING, directions, MOMENTS[distribution])
    agree("eq. 7", f"FiniteDifferences, {distribution}", expected, given)


def test_equations_7_and_87_lack_d_for_unit_vectors():
    """A whole basis gives grad f exactly, and 1/Q of eq. 7 its dth part; for normal directions 1/Q is right."""
    slope, rng = np.linspace(1.0, 2.0, D), np.random.default_rng(1)
    basis = np.linalg.qr(rng.standard_normal((D, D)))[0].T
    y = slope.__matmul__
    printed = paper.differences(y, np.zeros(D), SMOOTHING, basis)
    np.testing.assert_allclose(printed, slope / D, rtol=1e-12)
    np.testing.assert_allclose(paper.differences(y, np.zeros(D), SMOOTHING, basis, 1 / D), slope, rtol=1e-12)
    normal = rng.standard_normal((40_000, D))
    np.testing.assert_allclose(paper.differences(y, np.zeros(D), SMOOTHING, normal), slope, atol=0.15)


@pytest.mark.parametrize("rule", RULES)
def test_fedprox_with_1_over_q_pulls_d_times_as_hard(rule, agree):
    """Eq. 89 with eq. 7 as printed over unit vectors: Delta is grad f/d, hence gamma acts as d gamma on grad f.

    Gradient descent is slower by d besides; Adam, which divides by the gradient's size, is not. So a program with eq.
    7's 1/Q, unit vectors, gamma = 1 and Adam is FedProx of the pull d (and of d times Adam's epsilon).
    """
    gamma, rate = 1.0, 0.05
    update_rule = {
        "plain": lambda p: torch.optim.SGD([p], lr=rate / D),
        "adam": lambda p: torch.optim.Adam([p], lr=rate, eps=D * 1e-8),
    }[rule]
    models, _, directions, _ = baseline("fedprox", rule, rate, "orthonormal", pull=D * gamma, update_rule=update_rule)
    options = {"smoothing": SMOOTHING, "rule": lambda: RULES[rule][0](rate), "pull": gamma}
    printed = paper.fedprox(clients(), X0, directions, moment=1.0, **options)
    agree("eq. 89, 1/Q and gamma", f"simulate, pull d gamma, {rule}", printed.x, models)
    read = paper.fedprox(clients(), X0, directions, moment=1 / D, **options)
    assert np.abs(read.x[-1] - printed.x[-1]).max() > 0.01


def test_the_programs_fedprox_is_ours_of_the_pull_d():
    """gamma = 1, 1/Q and unit vectors against gamma = d and d/Q, both with Adam's own epsilon of 1e-8.

    Adam's steps do not change with the scale of its gradients but for epsilon over their size: hence the tolerance.
    """
    models, _, directions, _ = baseline("fedprox", "adam", 0.05, "orthonormal", pull=float(D))
    program = paper.fedprox(
        clients(), X0, directions, smoothing=SMOOTHING, moment=1.0, pull=1.0, rule=lambda: RULES["adam"][0](0.05)
    )
    np.testing.assert_allclose(models, program.x, rtol=0, atol=1e-5)
    weak, _, _, _ = baseline("fedprox", "adam", 0.05, "orthonormal", pull=1.0)
    assert np.abs(weak[-1] - program.x[-1]).max() > 0.01


# Appx. D and eqs. 3 and 4.


def transcribed_features(features):
    """phi of a ``FourierFeatures``, whose sines are cosines of phase -pi/2."""
    v, b = features.frequencies.numpy(), features.phases
    if b is None:
        h = len(v)
        v, b = np.vstack([v, v]), torch.cat([torch.zeros(h), torch.full((h,), -torch.pi / 2, dtype=torch.float64)])
    return paper.Features(v, b.numpy(), paper.feature_scale(features.num_features))


def sample(n, d, seed=4):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, d))
    return X, np.sin(X).sum(1)


@pytest.mark.parametrize("kind", ["cosine", "paired", "orthogonal"])
def test_fourier_surrogates_are_equations_3_and_4(kind, agree):
    features = FourierFeatures(rbf_kernel(1.3), D, 60, 5, kind)
    phi = transcribed_features(features)
    (X, y), x, noise = sample(20, D), np.linspace(-0.5, 0.5, D), 1e-3
    points, at, note = torch.from_numpy(X), torch.from_numpy(x[None]), f"{kind} features"
    agree("Appx. D, phi", f"FourierFeatures, {note}", phi.values(X), features.features(points).mT)
    agree(
        "Appx. D, nabla phi", f"FourierFeatures, {note}", phi.jacobian(x), features.jacobian(torch.tensor(x[None]))[0]
    )

    fitted = FourierSurrogate(features, noise).fit(points, torch.from_numpy(y))
    w = paper.surrogate_weights(phi, X, y, noise)
    agree("eq. 3, w", f"FourierSurrogate, {note}", w, fitted.weights)
    gradient = fitted.gradient(at)[0]
    agree("eq. 3, grad mu-hat", f"FourierSurrogate, {note}", paper.surrogate_gradient(phi, w, x), gradient)
    direct = zord.gradient_mean(phi.kernel, X, y, noise, x)
    np.testing.assert_allclose(paper.surrogate_gradient(phi, w, x), direct, atol=1e-12)

    m = zord.gls_mean(phi.kernel, X, y, noise)
    estimated = FourierSurrogate(features, noise, "estimated").fit(points[:12], torch.from_numpy(y[:12]))
    estimated.append(points[12:], torch.from_numpy(y[12:]))
    w2 = paper.surrogate_weights(phi, X, y - m, noise)
    agree("eq. 3, w of y - m", f"FourierSurrogate, appended, {note}", w2, estimated.weights)

    mean = FourierSurrogate.from_weights(features, (fitted.weights + estimated.weights) / 2)
    expected = (paper.surrogate_gradient(phi, w, x) + paper.surrogate_gradient(phi, w2, x)) / 2
    agree("eq. 4, grad mu-hat", f"from_weights, {note}", expected, mean.gradient(at)[0])


def draw(num_features, d, lengthscale, scale, seed):
    """Appx. D: v ~ N(0, I/l^2), b uniform in [0, 2 pi]."""
    rng = np.random.default_rng(seed)
    v = rng.standard_normal((num_features, d)) / lengthscale
    return paper.Features(v, rng.uniform(0, 2 * np.pi, num_features), scale(num_features))


def test_the_scale_of_appendix_d_doubles_the_kernel():
    """2/sqrt(M) gives 2 k, sqrt(2/M) gives k, which is what the proof of Lemma E.3 writes phi'phi' as."""
    M, lengthscale = 20_000, 1.2
    X, _ = sample(6, 3)
    exact = zord.squared_exponential(lengthscale).values(X, X)
    printed, read = (
        draw(M, 3, lengthscale, scale, 6).kernel.values(X, X) for scale in (paper.printed_scale, paper.feature_scale)
    )
    np.testing.assert_allclose(read, exact, atol=0.04)
    np.testing.assert_allclose(printed, 2 * exact, atol=0.08)
    features = draw(M, 3, lengthscale, paper.feature_scale, 6)
    cosines = np.cos(features.v @ X[0] + features.b) * np.cos(features.v @ X[1] + features.b)
    assert read[0, 1] == pytest.approx(2 * cosines.mean(), rel=1e-12)
    project = FourierFeatures(rbf_kernel(lengthscale), 3, M, 6, "cosine").kernel(torch.from_numpy(X)).numpy()
    np.testing.assert_allclose(project, exact, atol=0.04)


def test_lemma_e3_bounds_the_features_errors(record_property):
    """With sqrt(2/M); with the printed 2/sqrt(M) its first line fails in every draw."""
    M, d, lengthscale, delta, draws = 400, 3, 1.0, 0.1, 300
    x, x2, kernel = np.zeros(d), np.full(d, 0.3), zord.squared_exponential(lengthscale)
    exact, slope = kernel.values(x[None], x2[None])[0, 0], kernel.first(x, x2[None])[0]
    failed = np.zeros(3)
    for seed in range(draws):
        features = draw(M, d, lengthscale, paper.feature_scale, seed)
        value = features.kernel.values(x[None], x2[None])[0, 0]
        gradient = features.kernel.first(x, x2[None])[0]
        bound = paper.kernel_error(M, delta)
        failed += [
            abs(value - exact) > bound,
            np.linalg.norm(gradient - slope) > paper.kernel_gradient_error(M, delta, d / lengthscale**2),
            abs(2 * value - exact) > bound,
        ]
    record_property("shares that failed", (failed / draws).tolist())
    assert (failed[:2] <= delta * draws).all() and failed[2] == draws


# Algorithm 2.

M, LENGTHSCALE = 80, 1.0
LOWER, UPPER = np.full(D, -10.0), np.full(D, 10.0)
START = np.linspace(-4.0, 6.0, D)


def split(points, active, count=5):
    """Iterates, ``R x N x T``, and active queries of each kind, of the clients' queries of a run in their order.

    A client's first batch has x_0 and ``count`` points about it.
    """
    before, around, along, iterates = [], [], [], []
    for own in points:
        first, rest = own[: count + 1], list(own[count + 1 :])
        steps = [[first[0]]]
        batches = [[first[1:]]]
        before.append(first[1:])
        ends = [[]]
        for step in range(1, R * T):
            if step % T == 0:
                steps.append([])
                batches.append([])
                ends.append([])
            steps[-1].append(rest.pop(0))
            batches[-1].append(np.array([rest.pop(0) for _ in range(count if active == "step" else 0)]).reshape(-1, D))
            if active == "round" and step % T == T - 1:
                ends[-1] = np.array([rest.pop(0) for _ in range(count)])
        assert not rest
        iterates.append(steps)
        along.append(batches)
        around.append(ends)
    swapped = [list(map(list, zip(*kind, strict=True))) for kind in (iterates, along, around)]
    return before, np.array(swapped[0]), swapped[1], swapped[2]


GAMMAS = {
    "0.7": (0.7, lambda r, t: 0.7),
    "1/t": ("inverse", paper.inverse),
    "Cor. 1": (paper.corollary_1(1.0, 2.0, 1.0, 0.9, T, N, 0.01),) * 2,
}


NUGGET = 1e-5


def project_options(gamma, active, rule, *, correction_at="iterate", window=None, kind="cosine", lower=LOWER):
    """Options of the project's FZooS: the paper's (Appx. G) but for M, and the readings."""
    return {
        "bounds": list(zip(lower, UPPER, strict=True)),
        "gamma": GAMMAS[gamma][0],
        "active": active,
        "correction_at": correction_at,
        "num_features": M,
        "feature_kind": kind,
        "feature_seed": 11,
        "lengthscale": LENGTHSCALE,
        "nugget": NUGGET,
        "window": window or 150,
        "rate_schedule": "constant",
        "update_rule": RULES[rule][1]({"plain": 0.01, "adam": 0.02}[rule]),
    }


def transcribed_fzoos(points, gamma, active, rule, *, correction_at="iterate", window=None, kind="cosine", lower=LOWER):
    """Algorithm 2 with the active queries of a run of the project's, and that run's iterates, in [0, 1]^d."""
    before, iterates, along, around = split((points - lower) / (UPPER - lower), active)
    features = FourierFeatures(rbf_kernel(LENGTHSCALE), D, M, 11, kind)
    expected = paper.fzoos(
        [paper.normalised(f, lower, UPPER) for f in clients()],
        (START - lower) / (UPPER - lower),
        rounds=R,
        steps=T,
        features=transcribed_features(features),
        kernel=zord.squared_exponential(LENGTHSCALE),
        noise=NUGGET,
        gamma=GAMMAS[gamma][1],
        rule=lambda: RULES[rule][0]({"plain": 0.01, "adam": 0.02}[rule]),
        before=[np.empty((0, D))] * N if active == "step" else before,
        along=along if active == "step" else None,
        around=around if active == "round" else None,
        queries="left",
        correction_at=correction_at,
        window=window,
        mean=zord.gls_mean,
        project=zord.box(0.0, 1.0),
    )
    return expected, iterates


def compare(agree, gamma, active, rule, **readings):
    models, points = simulated("fzoos", clients(), START, **project_options(gamma, active, rule, **readings))
    expected, iterates = transcribed_fzoos(points, gamma, active, rule, **readings)
    lower = readings.get("lower", LOWER)
    models, start = (models - lower) / (UPPER - lower), (START - lower) / (UPPER - lower)
    said = ", ".join(f"{name} {value if name != 'lower' else 'moved'}" for name, value in readings.items())
    note = f"simulate, gamma {gamma}, active {active}, {rule}" + (f", {said}" if said else "")
    agree("Alg. 2, x_r", note, expected.x, models)
    agree("Alg. 2, x_r,t", note, expected.local[:, :, :-1], iterates)
    assert np.abs(models[-1] - start).max() > 0.02
    assert bool((iterates == 0.0).any()) == ("lower" in readings)


@pytest.mark.slip(
    "federated/methods/fzoos/fzoos.py",
    "g = g + gamma * correction",
    "g = g - gamma * correction",
    "the sign of the correction (FZooS eq. 5)",
    of="federated/fzoos",
)
@pytest.mark.slip(
    "federated/methods/fzoos/fzoos.py",
    "own is None else w - own",
    "own is None else own - w",
    "w_i - w, not w - w_i (FZooS eqs. 3 and 4)",
    of="federated/fzoos",
)
@pytest.mark.slip(
    "federated/methods/fzoos/client_surrogates.py",
    "fourier.append(X[start : start + size], y[start : start + size])",
    "fourier = self._new().fit(X[start : start + size], y[start : start + size])",
    "w_i of a round's queries alone (FZooS Alg. 2, line 8)",
    of="federated/fzoos",
)
@pytest.mark.slip(
    "federated/methods/fzoos/gamma.py",
    "return 1.0 / t",
    "return 1.0 / (t + 1)",
    "γ_t = 1/(t + 1), not 1/t (FZooS, Appx. E.3)",
    of="federated/fzoos",
)
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("active", [None, "round", "step"])
@pytest.mark.parametrize("gamma", GAMMAS)
def test_fzoos_is_algorithm_2(gamma, active, rule, agree):
    """Appx. G: squared exponential kernels, [0, 1]^d, 5 active queries, read off the run."""
    compare(agree, gamma, active, rule)


READINGS = {
    "Fig. 5b": {"correction_at": "start"},
    "the 7 nearest": {"window": 7},
    "orthogonal features": {"kind": "orthogonal"},
    "projection": {"lower": np.append(LOWER[:-1], 5.5)},
}


@pytest.mark.parametrize("reading", READINGS)
def test_fzoos_under_other_readings_is_algorithm_2(reading, agree):
    compare(agree, "1/t", "round", "adam", **READINGS[reading])


@pytest.mark.parametrize("active", [None, "round"])
def test_fzoos_sends_the_papers_weights(active, agree):
    """Lines 9 to 11: what the server sends after each round is w_r."""
    recorded = [Recorded(f) for f in clients()]
    federation = make_federation(
        "fzoos",
        recorded,
        torch.from_numpy(START),
        local_steps=T,
        seed=3,
        numpy=True,
        **project_options("1/t", active, "adam"),
    )
    sent = []
    for _ in range(R):
        federation.run_round()
        sent.append(federation.server.broadcast(0).tensors["w"].numpy())
    points = np.array([own.points for own in recorded])
    expected, _ = transcribed_fzoos(points, "1/t", active, "adam")
    agree("Alg. 2, w_r", f"Server.broadcast, active {active}", expected.w, np.array(sent))
    assert np.abs(expected.w).max() > 0.1


def free(before, **options):
    """A run of the transcription alone, from queries made ``before`` round 1, and each client's queries."""
    recorded = [Recorded(paper.normalised(f, LOWER, UPPER)) for f in clients()]
    result = paper.fzoos(
        recorded,
        np.full(D, 0.75),
        steps=T,
        features=draw(M, D, LENGTHSCALE, paper.feature_scale, 7),
        kernel=zord.squared_exponential(LENGTHSCALE),
        noise=1e-3,
        rule=lambda: zord.adam(0.02),
        before=before,
        **options,
    )
    return result, np.array([own.points for own in recorded])


def test_algorithm_2_as_printed_never_moves():
    """D_{1,0} is empty, and given values at x_0 only the gradient there is 0: active queries have to come first."""
    printed, _ = free([[]] * N, rounds=3, gamma=lambda r, t: 0.0)
    assert (printed.x == 0.75).all() and (printed.local == 0.75).all()
    about = 0.75 + np.random.default_rng(8).uniform(-0.01, 0.01, (N, 5, D))
    started, _ = free(about, rounds=3, gamma=lambda r, t: 0.0)
    assert (started.x != 0.75).any()


def test_both_readings_of_what_a_step_queries_descend_with_as_many_queries():
    """D_{r,t-1} of Sec. 3.1 has T (r - 1) + t - 1 queries; the project queries the point that is left."""
    about, fun = 0.75 + np.random.default_rng(8).uniform(-0.01, 0.01, (N, 5, D)), paper.global_quadratic
    runs = {
        queries: free(about, rounds=R, gamma=paper.inverse, queries=queries, mean=zord.gls_mean)
        for queries in ("reached", "left")
    }
    for queries, (result, points) in runs.items():
        assert points.shape == (N, 5 + R * T, D)
        first = result.local[:, :, 1:] if queries == "reached" else result.local[:, :, :-1]
        np.testing.assert_array_equal(points[:, 5:], first.swapaxes(0, 1).reshape(N, R * T, D))
        assert fun(20 * result.x[-1] - 10) < 0.6 * fun(np.full(D, 5.0))
    assert np.abs(runs["reached"][0].x - runs["left"][0].x).max() > 1e-3


# Prop. B.1, Thm. 1, Prop. E.1.


def test_proposition_b1_is_the_minimum_and_equation_10_is_not():
    """Eq. 10 divides by ||c||, Prop. B.1 by its square, which is what eq. 9's parabola asks for."""
    rng = np.random.default_rng(9)
    truth, own, reference, then = rng.standard_normal((4, D))
    best = paper.best_gamma(truth, own, reference - then)
    at = [paper.disparity(truth, paper.corrected(own, g, reference, then)) for g in (best - 1e-3, best, best + 1e-3)]
    assert at[1] < min(at[0], at[2])
    printed = paper.best_gamma_of_equation_10(truth, own, reference - then)
    assert paper.disparity(truth, paper.corrected(own, printed, reference, then)) > at[1] + 0.1
    drift = truth - own
    assert paper.best_gamma(truth, own, drift) == pytest.approx(1.0)
    assert paper.disparity(truth, paper.corrected(own, 1.0, drift, np.zeros(D))) < 1e-28


def test_corollary_1_minimises_theorem_1s_bound_and_equation_37_does_not():
    """Eq. 37 has lost kappa, which is 1 for a lengthscale of 1 only."""
    G, omega, kappa, rho, r, epsilon = 0.7, 9.0, 4.0, 0.9, 2, 0.01
    second, third = paper.theorem_1_terms(omega, kappa, rho, r, T, N, epsilon, G)

    def bound(gamma):
        return gamma**2 * second + (1 - gamma) ** 2 * third

    best = paper.corollary_1(G, omega, kappa, rho, T, N, epsilon)(r, 1)
    assert bound(best) < min(bound(best - 1e-3), bound(best + 1e-3))
    assert bound(paper.equation_37(G, omega, rho, r, T, N, epsilon)) > 1.01 * bound(best)
    assert paper.equation_37(G, omega, rho, r, T, N, epsilon) == paper.corollary_1(G, omega, 1.0, rho, T, N, epsilon)(
        r, 1
    )


def test_theorem_1s_mean_rate_is_no_bound():
    """Eq. 36 (c) takes mean(rho_i^n) <= (mean rho_i)^n, which is Jensen's inequality the wrong way round.

    Thm. 1 holds with the largest rho_i. And each rho_i is 1, as ZoRD's r is.
    """
    rho = np.array([1.0, 0.5, 0.9])
    for n in range(2, 20):
        assert (rho**n).mean() > rho.mean() ** n
        assert (rho**n).mean() <= rho.max() ** n
    kernel, x = zord.squared_exponential(0.7), np.full((1, D), 0.3)
    ratio = zord.uncertainty(kernel, x, 1e-3, x[0]) / zord.uncertainty(kernel, x[:0], 1e-3, x[0])
    assert ratio == pytest.approx(1.0, rel=1e-12)


def test_proposition_e1_holds_for_the_trace_and_not_for_the_norm():
    """Eq. 47 bounds the least eigenvalue's place: ||kappa I - B|| is kappa - lambda_min(B), not kappa - ||B||.

    With fewer queries than dimensions the norm is kappa, above the bound; the mean eigenvalue, trace/d, obeys it. And
    Prop. E.1 prints iota^2 where eqs. 47 and 48 and Cor. E.1 have iota: that fails already for d = n = 1, where eq. 47
    is an equality.
    """
    rng, l, noise = np.random.default_rng(10), 0.8, 1e-2
    kernel, kappa, iota = zord.squared_exponential(l), l**-2, 3 * l**2
    slope = -np.exp(-iota / (2 * l**2)) / (2 * l**2)
    for d, n in ((1, 1), (4, 2), (4, 30)):
        X = rng.standard_normal((n, d))
        X *= np.sqrt(iota) / np.linalg.norm(X, axis=1, keepdims=True)
        covariance = zord.gradient_covariance(kernel, X, noise, np.zeros(d))
        bound, norm = paper.equation_47(kappa, iota, slope, d, n, noise), np.linalg.norm(covariance, 2)
        assert np.trace(covariance) / d <= bound * (1 + 1e-12)
        if d == 1:
            assert norm == pytest.approx(bound, rel=1e-12)
            assert paper.proposition_e1(kappa, iota, slope, d, n, noise) < 0.9 * norm
        elif n < d:
            assert norm == pytest.approx(kappa, rel=1e-12) and bound < kappa


# Appx. G.


def test_active_queries_by_the_norm_are_arbitrary_in_many_dimensions():
    """Appx. G ranks candidates by ||d sigma^2||, which is kappa for all while queries are fewer than dimensions.

    Their traces differ. With more queries the norm ranks too.
    """
    rng, kernel = np.random.default_rng(11), zord.squared_exponential(1.0)
    for d, n, ranks in ((20, 8, False), (2, 8, True)):
        X, candidates = rng.uniform(0, 1, (n, d)), rng.uniform(0.49, 0.51, (30, d))
        covariances = [zord.gradient_covariance(kernel, X, 1e-6, x) for x in candidates]
        norms = np.array([np.linalg.norm(C, 2) for C in covariances])
        traces = np.array([np.trace(C) for C in covariances])
        assert (np.ptp(norms) > 1e-6 * norms.max()) == ranks
        assert np.ptp(traces) > 1e-6 * traces.max()
        if ranks:
            chosen = paper.most_uncertain(kernel, X, 1e-6, candidates, 5)
            np.testing.assert_array_equal(chosen, candidates[np.argsort(-norms)[:5]])


@pytest.mark.parametrize("C", [0.5, 5.0, 50.0])
def test_equation_98s_mean_is_equation_99(C):
    for x in np.random.default_rng(12).uniform(-10, 10, (5, D)):
        own = [f(x) for f in clients(C)]
        assert np.mean(own) == pytest.approx(paper.global_quadratic(x), rel=1e-10)
        assert np.ptp(own) > 1e-3 * C


def test_a_higher_share_of_classes_is_less_heterogeneous():
    """Appx. G.2 says so; G.3's "the higher the value of P, the more heterogeneous" is a slip.

    Two clients that hold P c of c classes each share P of theirs on average: their labels differ by 1 - P.
    """
    rng, classes, draws = np.random.default_rng(13), 10, 400
    means = []
    for P in (0.1, 0.4, 0.7, 1.0):
        sets = [[rng.permutation(classes)[: round(P * classes)] for _ in range(10)] for _ in range(draws)]
        means.append(np.mean([paper.label_heterogeneity(labels, classes) for labels in sets]))
        assert means[-1] == pytest.approx(1 - P, abs=0.01)
    assert means == sorted(means, reverse=True) and means[-1] == 0.0
