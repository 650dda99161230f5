"""HiSo and DeComFL: the transcription against the paper's own equalities, its errata, and the project's runs."""

import functools
import itertools
from typing import get_args

import numpy as np
import pytest
import torch

from federated import Report, Server, decode, simulate
from optimizers import Displacement, minimize
from optimizers.methods.hiso.displacement import Update
from tests.papers import hiso as paper
from tests.papers.agreement import TOLERANCE, largest

D, CLIENTS = 6, 4
X_0 = np.linspace(-0.8, 1.1, D)


class Smooth:
    """A client's function, neither quadratic nor convex; it keeps the points that it is asked at."""

    def __init__(self, number):
        self.scales = 1.0 + np.arange(D) * (1.0 + number) / 4.0
        self.centre = np.cos(np.arange(D) + number)
        self.asked = []

    def __call__(self, x):
        x = np.asarray(x)
        self.asked.append(x.copy())
        z = x - self.centre
        return float(np.sum(0.5 * self.scales * z**2 + 0.1 * np.cos(2.0 * x)) + 0.05 * z[0] * z[1] ** 2)

    def gradient(self, x):
        z = x - self.centre
        slope = self.scales * z - 0.2 * np.sin(2.0 * x)
        slope[0] += 0.05 * z[1] ** 2
        slope[1] += 0.1 * z[0] * z[1]
        return slope

    def hessian(self, x):
        z = x - self.centre
        matrix = np.diag(self.scales - 0.4 * np.cos(2.0 * x))
        matrix[0, 1] = matrix[1, 0] = 0.1 * z[1]
        matrix[1, 1] += 0.1 * z[0]
        return matrix


def clients():
    return [Smooth(i) for i in range(CLIENTS)]


def drawn(seed, rounds, tau, P):
    """Directions and clients of each round, for runs of the transcription alone."""
    rng = np.random.default_rng(seed)
    u = [rng.standard_normal((tau, P, D)) for _ in range(rounds)]
    participants = [
        sorted(rng.choice(CLIENTS, 1 + rng.integers(CLIENTS), replace=False).tolist()) for _ in range(rounds)
    ]
    return u, participants


def rule(reading="per_step", **changed):
    return paper.Rule(**({"eta": 0.01, "mu": 1e-2, "nu": 0.2, "epsilon": 1e-3, "reading": reading} | changed))


# The project's runs, and what is read off them.


class Recorded:
    """A run of ``simulate``: models, participants, messages up and down, and the points that each client asked at."""

    def __init__(self, monkeypatch, algorithm, rounds, **options):
        self.objectives, self.up, self.down, self.x = clients(), [], [], [X_0]
        aggregate, broadcast = Server.aggregate, Server.broadcast

        def aggregated(server, arrivals):
            arrivals = list(arrivals)
            reports = [a.content if isinstance(a.content, Report) else decode(a.content) for a in arrivals]
            self.up.append({r.client: r for r in reports})
            return aggregate(server, arrivals)

        def broadcasted(server, client=None):
            message = broadcast(server, client)
            self.down.append((client, message))
            return message

        with monkeypatch.context() as patched:
            patched.setattr(Server, "aggregate", aggregated)
            patched.setattr(Server, "broadcast", broadcasted)
            self.result = simulate(
                algorithm,
                self.objectives,
                torch.from_numpy(X_0.copy()),
                rounds=rounds,
                numpy=True,
                callback=lambda record, x: self.x.append(x.copy()),
                scalar_dtype="float64",
                **options,
            )
        self.participants = [record.participants for record in self.result.history[1:]]

    def directions(self, tau, P, mu):
        """u of each round off the queries x, x + mu u_1 ... x + mu u_P of its first client; H is 1."""
        at, u = dict.fromkeys(range(CLIENTS), 0), []
        for C_r in self.participants:
            for i in C_r:
                points = np.array(self.objectives[i].asked[at[i] : at[i] + tau * (P + 1)]).reshape(tau, P + 1, D)
                at[i] += tau * (P + 1)
                if i == C_r[0]:
                    u.append((points[:, 1:] - points[:, :1]) / mu)
        return u


SIZES = [(1, 1, CLIENTS), (1, 4, 2), (4, 1, 2), (3, 3, CLIENTS), (5, 2, 3)]
FEDERATIONS = [pytest.param(*size, id="tau={}, P={}, {} of {}".format(*size, CLIENTS)) for size in SIZES]
ROUNDS = 8


@functools.cache
def free_directions(tau, P, participation):
    """The directions of DeComFL's run, where H = 1: so an error in H cannot hide in them."""
    options = {"local_steps": tau, "perturbations": P, "participation": participation, "seed": 5}
    with pytest.MonkeyPatch.context() as patch:
        free = Recorded(patch, "decomfl", ROUNDS, rate=0.01, smoothing_radius=1e-2, **options)
    return free.directions(tau, P, 1e-2)


RULES = {"plain": {}, "clip": {"lower": 0.6, "upper": 1.5}, "eq7": {"projection": True}}


def agree(record_property, transcription, run, expected, objectives, P):
    """Models, messages up and down, and every queried point, in their order."""
    pairs = list(zip(expected.x, run.x, strict=True))
    for r, C_r in enumerate(run.participants):
        for i in C_r:
            tensors = run.up[r][i].tensors
            assert set(tensors) == {"scalars"}
            pairs.append((expected.sent[r][i].ravel(), P * tensors["scalars"].numpy()))  # a message has g/P
    logged = [0] * CLIENTS
    for client, message in run.down:
        assert set(message.tensors) == {"scalars"}
        r = message.round - 1
        missed = [expected.mean[t].ravel() for t in range(logged[client], r)]
        logged[client] = r
        pairs.append((np.concatenate([np.zeros(0), *missed]), P * message.tensors["scalars"].numpy()))
    for theirs, ours in zip(objectives, run.objectives, strict=True):
        assert len(theirs.asked) == len(ours.asked)
        pairs.append((theirs.asked, ours.asked))
    largest(record_property, transcription, f"simulate, {len(run.participants)} rounds", pairs)


@pytest.mark.slip(
    "federated/methods/scalar/scalar_only.py",
    "follow(s.model, self.round, mean, ",
    "follow(s.model, self.round, 2.0 * mean, ",
    "twice the mean of the scalars (HiSo Alg. 2, line 16)",
    of="federated/hiso federated/decomfl",
)
@pytest.mark.slip(
    "federated/methods/scalar/scalar_only.py",
    "self.optimizer.follow(present(s.sent[-1]))",
    "s.sent[-1].clone()",
    "local steps that all start at x_r (HiSo Alg. 2b, line 6)",
    of="federated/hiso federated/decomfl",
)
@pytest.mark.slip(
    "federated/methods/scalar/hiso.py",
    "super().__init__(x0, curvature=None, **options)",
    'super().__init__(x0, curvature="displacement", **options)',
    "a DeComFL that learns H",
    of="federated/decomfl",
)
@pytest.mark.parametrize(("tau", "P", "participation"), FEDERATIONS)
def test_decomfl_is_the_papers(record_property, monkeypatch, tau, P, participation):
    eta, mu = 0.02, 1e-2
    options = {"local_steps": tau, "perturbations": P, "participation": participation, "seed": 5}
    run = Recorded(monkeypatch, "decomfl", ROUNDS, rate=eta, smoothing_radius=mu, **options)
    objectives = clients()
    expected = paper.decomfl(objectives, X_0, run.participants, run.directions(tau, P, mu), eta, mu)
    agree(record_property, f"DeComFL, eq. 4, tau={tau}, P={P}", run, expected, objectives, P)
    assert np.abs(run.x[-1] - X_0).max() > 0.1


@pytest.mark.parametrize("reading", paper.READINGS)
@pytest.mark.parametrize(
    ("tau", "P", "participation", "changed"),
    [
        pytest.param(*size, name, marks=pytest.mark.slow if name != "plain" and size == SIZES[-1] else ())
        for size in SIZES
        for name in RULES
        if name == "plain" or size in SIZES[3:]
    ],
)
def test_hiso_is_the_papers(record_property, monkeypatch, tau, P, participation, reading, changed):
    options = {"local_steps": tau, "perturbations": P, "participation": participation, "seed": 5}
    changed = RULES[changed]
    used = rule(reading, **changed)
    run = Recorded(
        monkeypatch,
        "hiso",
        ROUNDS,
        rate=used.eta,
        smoothing_radius=used.mu,
        projection=used.projection,
        curvature=Displacement(
            update=reading,
            weight=used.nu,
            epsilon=used.epsilon,
            lower=used.lower,
            upper=used.upper,
            initial=torch.linspace(0.7, 1.3, D, dtype=torch.float64),
        ),
        **options,
    )
    u, objectives, H_0 = free_directions(tau, P, participation), clients(), np.linspace(0.7, 1.3, D)
    expected = paper.algorithm_2(objectives, X_0, H_0, run.participants, u, used)
    name = f"HiSo Alg. 2, {reading}, tau={tau}, P={P}" + "".join(f", {key}" for key in changed)
    agree(record_property, name, run, expected, objectives, P)
    assert np.abs(expected.state[-1] - H_0).max() > 0.1
    others = [other for other in paper.READINGS if tau > 1 and other != reading]
    for other in others:
        run_of_other = paper.algorithm_2(clients(), X_0, H_0, run.participants, u, used._replace(reading=other))
        assert np.abs(run_of_other.x[-1] - run.x[-1]).max() > 1e3 * TOLERANCE


@pytest.mark.parametrize(("tau", "P", "participation"), FEDERATIONS)
def test_the_last_step_alone_is_the_authors_program(record_property, monkeypatch, tau, P, participation):
    options = {"local_steps": tau, "perturbations": P, "participation": participation, "seed": 5}
    used = rule("last_step", epsilon=0.0)
    curvature = Displacement(update="last_step", weight=used.nu, epsilon=0.0)
    shared = {"rate": used.eta, "smoothing_radius": used.mu} | options
    run = Recorded(monkeypatch, "hiso", ROUNDS, curvature=curvature, **shared)
    u, objectives = free_directions(tau, P, participation), clients()
    program = paper.authors_program(objectives, X_0, run.participants, u, used.eta, used.mu, 1.0 - used.nu)
    agree(record_property, f"the authors' program, tau={tau}, P={P}", run, program, objectives, P)
    transcribed = paper.algorithm_2(clients(), X_0, np.ones(D), run.participants, u, used)
    pairs = [*zip(program.x, transcribed.x, strict=True), *zip(program.state, transcribed.state, strict=True)]
    largest(record_property, "the authors' program", f"HiSo Alg. 2, last_step, epsilon=0, tau={tau}, P={P}", pairs)
    assert np.abs(program.state[-1] - 1.0).max() > 0.1


MACHINE = {"max_queries": 200, "seed": 3, "scheme": "forward"}


def queried(method, **options):
    """One machine's queried points."""
    objective = Smooth(1)
    minimize(objective, torch.from_numpy(X_0.copy()), method, numpy=True, **MACHINE, **options)
    return np.array(objective.asked)


@pytest.mark.slip(
    "optimizers/methods/hiso/hiso.py",
    "c = [g_p / count if math.isfinite(g_p)",
    "c = [g_p if math.isfinite(g_p)",
    "the sum over perturbations, not their mean (HiSo Alg. 2b, line 4)",
    of="optimizers/hiso optimizers/decomfl federated/hiso federated/decomfl",
)
@pytest.mark.slip(
    "optimizers/methods/hiso/hiso.py",
    "c = [c_p / squared_norm(u, at, p, H)",
    "c = [c_p / squared_norm(u, at, p)",
    "u'u, not u'H⁻¹u (HiSo eq. 7)",
    of="optimizers/hiso federated/hiso",
)
@pytest.mark.parametrize("projection", [False, True], ids=["", "eq7"])
@pytest.mark.parametrize(
    ("reading", "tau", "P"),
    [
        pytest.param(*case, marks=pytest.mark.slow if case[2] == 3 and case[0] not in ("decomfl", "per_step") else ())
        for case in [
            *(("decomfl", 1, P) for P in (1, 3)),
            *itertools.product(paper.READINGS, (1, 4), (1, 3)),
        ]
    ],
)
def test_one_machine_is_the_papers(record_property, reading, tau, P, projection):
    rounds, length = MACHINE["max_queries"] // (P + 1) // tau, tau * (P + 1)
    used = rule("per_step" if reading == "decomfl" else reading, projection=projection)
    shared = {"perturbations": P, "rate": used.eta, "smoothing_radius": used.mu}
    free = queried("decomfl", **shared)[: rounds * length].reshape(rounds, tau, P + 1, D)
    u = (free[:, :, 1:] - free[:, :, :1]) / used.mu
    H_0 = np.ones(D)
    if reading == "decomfl":
        points, used = queried("decomfl", projection=projection, **shared), used._replace(nu=0.0)
    else:
        curvature = Displacement(update=reading, weight=used.nu, epsilon=used.epsilon, initial=1.0)
        points = queried("hiso", **shared, curvature=curvature, local_steps=tau, projection=projection)
    objective = Smooth(1)
    paper.algorithm_2([objective], X_0, H_0, [[0]] * rounds, list(u), used)
    name = f"HiSo Alg. 2, N = 1, {reading}, tau={tau}, P={P}" + (", eq. 7" if projection else "")
    largest(record_property, name, f"minimize, {len(points)} queries", [(objective.asked, points[: rounds * length])])
    assert np.abs(points[-1] - X_0).max() > 0.1


# The transcription against itself: equalities that the paper states.


def test_alg_2_is_an_instance_of_alg_1(record_property):
    u, participants = drawn(1, 10, 3, 2)
    for reading in paper.READINGS:
        used = rule(reading)
        interface = paper.hiso_interface(u, used.mu, used.nu, used.epsilon, reading)
        general = paper.algorithm_1(clients(), X_0, np.ones(D), participants, 3, used.eta, interface)
        concrete = paper.algorithm_2(clients(), X_0, np.ones(D), participants, u, used)
        pairs = [*zip(general.x, concrete.x, strict=True), *zip(general.state, concrete.state, strict=True)]
        pairs += [(general.sent[r][i], concrete.sent[r][i]) for r, C_r in enumerate(participants) for i in C_r]
        largest(record_property, "HiSo Alg. 1", f"HiSo Alg. 2, {reading}", pairs)


def test_decomfl_is_an_instance_of_alg_1_and_hiso_without_learning(record_property):
    u, participants = drawn(2, 10, 3, 2)
    direct = paper.decomfl(clients(), X_0, participants, u, 0.02, 1e-2)
    general = paper.algorithm_1(clients(), X_0, None, participants, 3, 0.02, paper.decomfl_interface(u, 1e-2))
    largest(record_property, "DeComFL, eq. 4", "HiSo Alg. 1 with H = 1", zip(direct.x, general.x, strict=True))
    for reading in paper.READINGS:
        fixed = paper.algorithm_2(clients(), X_0, np.ones(D), participants, u, rule(reading, eta=0.02, nu=0.0))
        pairs = zip(direct.x, fixed.x, strict=True)
        largest(record_property, "DeComFL, eq. 4", f"HiSo Alg. 2, nu = 0, {reading}", pairs)


@pytest.mark.parametrize("reading", paper.READINGS)
def test_a_client_that_missed_rounds_rebuilds_the_servers_model(record_property, reading):
    u, participants = drawn(3, 15, 3, 2)
    run = paper.algorithm_2(clients(), X_0, np.ones(D), participants, u, rule(reading))
    pairs = [(start, run.x[r]) for r in range(len(u)) for start in run.starts[r].values()]
    assert any(len(C_r) < CLIENTS for C_r in participants)
    largest(record_property, "Alg. 2a, rebuilt x", f"Alg. 2 line 16, {reading}", pairs)


def test_the_forms_of_eq_4_and_eq_2_agree(record_property):
    u, _ = drawn(4, 8, 3, 1)
    everyone = [list(range(CLIENTS))] * len(u)
    run = paper.decomfl(clients(), X_0, everyone, u, 0.02, 1e-2)
    scalars = [paper.eq_4_by_scalars(run.x[r], 0.02, run.sent[r], u[r]) for r in range(len(u))]
    largest(record_property, "eq. 4, by models", "eq. 4, by scalars", zip(run.x[1:], scalars, strict=True))
    g, directions = np.concatenate(run.mean)[:, 0], np.concatenate(u)[:, 0]
    largest(record_property, "eq. 2", "eq. 4", [(paper.eq_2(X_0, 0.02, g, directions), run.x[-1])])
    f = Smooth(0)
    first = paper.eq_1(f, X_0, u[0][0, 0], 1e-2)
    largest(record_property, "eq. 1", "eq. 8 with H = 1", [(first, paper.eq_8(f, X_0, np.ones(D), u[0][0, 0], 1e-2))])


def test_every_reading_is_a_rule_of_the_projects():
    assert get_args(Update) == paper.READINGS


def test_the_readings_agree_for_one_local_step(record_property):
    u, participants = drawn(5, 15, 1, 3)
    runs = [paper.algorithm_2(clients(), X_0, np.ones(D), participants, u, rule(reading)) for reading in paper.READINGS]
    for reading, run in zip(paper.READINGS, runs, strict=True):
        pairs = [*zip(run.x, runs[0].x, strict=True), *zip(run.state, runs[0].state, strict=True)]
        largest(record_property, "HiSo Alg. 2, tau=1, per_step", f"tau=1, {reading}", pairs)


def test_the_readings_differ_for_several_local_steps():
    u, participants = drawn(5, 15, 3, 3)
    ends = [
        paper.algorithm_2(clients(), X_0, np.ones(D), participants, u, rule(reading)).state[-1]
        for reading in paper.READINGS
    ]
    for k, one in enumerate(ends):
        for other in ends[k + 1 :]:
            assert np.abs(one - other).max() > 1e-3


def test_the_last_step_alone_is_alg_2a_with_its_own_h_in_line_6(record_property):
    # H_{t+1} <- (1 - nu) H_t + ..., written anew in each k from the same H_t, keeps nothing of the earlier steps.
    u, _ = drawn(6, 1, 4, 2)
    g, used, H_t = np.random.default_rng(0).standard_normal((4, 2)), rule("last_step"), np.linspace(0.5, 2.0, D)
    deltas, H = paper.algorithm_2a(H_t, g, u[0], used)
    five_lines = (1 - used.nu) * H_t + used.nu * ((H_t**-0.5 * (g[3] @ u[0][3]) / 2) ** 2 + used.epsilon)
    largest(record_property, "Alg. 2a, last_step", "H from the last local step", [(H, five_lines)])
    assert len(deltas) == 4


def test_appendix_c_is_alg_2_once_a_round(record_property):
    u, _ = drawn(7, 8, 3, 2)
    used, x, H = rule("per_round"), X_0, np.ones(D)
    everyone = [list(range(CLIENTS))] * len(u)
    run = paper.algorithm_2(clients(), X_0, H, everyone, u, used)
    pairs = []
    for r in range(len(u)):
        x, H = paper.appendix_c(clients(), x, H, everyone[r], u[r], used)
        pairs += [(x, run.x[r + 1]), (H, run.state[r + 1])]
    largest(record_property, "Appx. C, by models", "HiSo Alg. 2, per_round", pairs)


@pytest.mark.parametrize("reading", paper.READINGS)
def test_scalars_average_the_clients_models_where_h_is_fixed_within_a_round(record_property, reading):
    # Appx. C's x_{r+1} is the mean of the models; with an H that each client learns on its way they do not have one H.
    u, _ = drawn(12, 1, 3, 2)
    everyone, used = [0, 1, 2, 3], rule(reading)
    run = paper.algorithm_2(clients(), X_0, np.ones(D), [everyone], u, used)
    x, _ = paper.appendix_c(clients(), X_0, np.ones(D), everyone, u[0], used)
    if reading == "per_step":
        assert np.abs(x - run.x[1]).max() > 1e-3
    else:
        largest(record_property, "Appx. C, mean of the models", f"HiSo Alg. 2, {reading}", [(x, run.x[1])])


def test_eq_7_solves_eqs_5_and_6():
    rng = np.random.default_rng(1)
    gradient, u, H = rng.standard_normal(D), rng.standard_normal(D), np.linspace(0.3, 3.0, D)
    best = paper.eq_7(gradient, H, u)
    least = paper.eq_5(gradient, best, H, u)
    for g in best + np.array([-1.0, -1e-3, 1e-3, 1.0]):
        assert paper.eq_5(gradient, g, H, u) > least
    # and eq. 112's scalar with the factor kept tends to it with mu
    errors = [
        abs(paper.eq_112(f := Smooth(0), X_0, H, u[None], mu, True)[0] - paper.eq_7(f.gradient(X_0), H, u))
        for mu in (1e-2, 1e-3, 1e-4)
    ]
    assert errors[1] < 0.2 * errors[0]
    assert errors[2] < 0.2 * errors[1]


# Errata: as printed, beside as read.


def test_eq_11_prints_half_of_the_curvature():
    f, u = Smooth(2), np.random.default_rng(2).standard_normal(D)
    curvature = u @ f.hessian(X_0) @ u
    assert paper.eq_11(f, X_0, u, 1e-3) == pytest.approx(curvature, rel=1e-4)
    assert paper.eq_11_printed(f, X_0, u, 1e-3) == pytest.approx(curvature / 2.0, rel=1e-4)


def test_alg_2b_line_4_as_printed_is_no_difference_quotient():
    # From the second local step on it has (f(x_{r,k}) - f(x_r))/mu in it, which grows without limit as mu falls.
    f, u = Smooth(0), drawn(8, 1, 2, 1)[0][0]
    errors, printed_errors = [], []
    for mu in (1e-2, 1e-3, 1e-4):
        used = rule(mu=mu, nu=0.0)
        g = paper.algorithm_2b(f, X_0, np.ones(D), u, used)
        g_printed = paper.algorithm_2b(f, X_0, np.ones(D), u, used, line_4="printed")
        assert g[0, 0] == g_printed[0, 0]  # x_{r,0} is x_r
        slope = u[1, 0] @ f.gradient(X_0 - used.eta * g[0, 0] * u[0, 0])
        errors.append(abs(g[1, 0] - slope))
        printed_errors.append(abs(g_printed[1, 0] - slope))
    assert errors[0] > 5.0 * errors[1] > 25.0 * errors[2]
    assert printed_errors[0] < 0.2 * printed_errors[1] < 0.04 * printed_errors[2]


def test_eq_12s_and_alg_2as_last_displacement_does_not_exist():
    u, _ = drawn(9, 1, 3, 2)
    g, H = np.ones((3, 2)), np.ones(D)
    with pytest.raises(KeyError):
        paper.algorithm_2a_printed(H, g, u[0], 0.2, 1e-3)
    for tau in (1, 3):
        deltas, _ = paper.algorithm_2a(H, g[:tau], u[0][:tau], rule("printed"))
        with pytest.raises(IndexError):
            paper.eq_12_printed(H, deltas, 0.2, 1e-3)
        # as read it makes tau updates, which is what "tau update steps" asks for: each keeps 1 - nu of H_r
        kept = paper.eq_12(H + 1.0, deltas, 0.2, 1e-3) - paper.eq_12(H, deltas, 0.2, 1e-3)
        assert kept == pytest.approx(0.8**tau)


def test_eq_12s_mean_over_clients_is_of_equal_terms():
    # The clients' own squares are another number, and two federations with the same mean scalars differ in it: so it
    # cannot be meant, as H is to be rebuilt from the mean scalars.
    u = np.random.default_rng(3).standard_normal((1, D))
    one, other, H = [1.0, 3.0], [-2.0, 6.0], np.ones(D)
    means = [paper.eq_112_delta([np.mean(g)], H, u) for g in (one, other)]
    assert np.array_equal(means[0], means[1])
    squares = [np.mean([paper.eq_112_delta([g], H, u) ** 2 for g in gs], axis=0) for gs in (one, other)]
    assert np.abs(squares[0] - squares[1]).max() > 1.0


def test_appendix_c_as_printed_learns_from_eta_and_contradicts_eq_12():
    # For tau = 1 both are one update from one displacement; as printed the square has a factor eta^2.
    u, _ = drawn(10, 1, 1, 2)
    for eta in (1e-1, 1e-3):
        used, H = rule("per_round", eta=eta), np.ones(D)
        run = paper.algorithm_2(clients(), X_0, H, [[0, 1, 2, 3]], u, used)
        _, read = paper.appendix_c(clients(), X_0, H, [0, 1, 2, 3], u[0], used)
        _, printed = paper.appendix_c(clients(), X_0, H, [0, 1, 2, 3], u[0], used, update="printed")
        assert read == pytest.approx(run.state[1], abs=1e-12)
        rest = (1.0 - used.nu) * H + used.nu * used.epsilon
        assert printed - rest == pytest.approx(eta**2 * (read - rest), rel=1e-6)


def test_eq_113_as_printed_moves_the_server_by_a_share_of_the_clients_mean():
    tau = 3
    u, _ = drawn(11, 1, tau, 2)
    run = paper.algorithm_2(clients(), X_0, np.ones(D), [[0, 1, 2, 3]], u, rule("per_round"))
    move = (X_0 - run.x[1]) / rule().eta
    assert paper.eq_113_printed(run.mean[0], np.ones(D), u[0]) == pytest.approx(move / tau, rel=1e-9)
