"""HiSo and DeComFL, transcribed line by line in plain NumPy.

Paper: Li, Ying, Liu, Dong and Yang, Reconciling Hessian-informed acceleration and scalar-only communication for
efficient federated zeroth-order fine-tuning, 2025: eqs. 1, 2, 4-8, 11, 12, 112, 113, Alg. 1, 2, 2a, 2b, Appx. C.
The authors' program, which has a rule of its own, is the last function.

Every function names its equation or its lines. What is random in the paper is an argument: the directions u and the
clients C_r of each round. Letters are the paper's: d dimension, M clients, C_r those of round r, tau local steps, P
perturbations, eta learning rate, mu smoothing radius, nu and epsilon of eq. 12. H is diagonal and held as a vector of
shape ``d``. Rounds r and local steps k count from 0, as in the paper. Shapes: ``u[r]`` is ``tau x P x d``, the scalars
g of one round are ``tau x P``.

A function whose name ends in ``_printed`` is a line that does not hold as printed; beside it stands the line as read,
and ``test_hiso.py`` shows why it is read so.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

READINGS = ("per_step", "per_round", "printed", "last_step")
"""How H learns over the tau local steps of a round; for tau = 1 all four are the same.

- ``per_step``: eq. 12, each line with the Delta x_{r,k} of its own step, which is made with H_{r,k}. The paper has
  eq. 12's H_{r,k}, but prints no step that is made with it: in every line the root is that of H_r.
- ``per_round``: Appx. C: H_r for all steps of the round, then one update with the sum of the Delta x_{r,k}.
- ``printed``: H_r for all steps of the round, as Alg. 2's line 14, Alg. 2a's line 5 and Alg. 2b's lines 4 and 5 print
  it, then eq. 12's chain of tau updates with these Delta x_{r,k}.
- ``last_step``: H_r for all steps of the round, then one update with the last step's Delta x alone. That is what
  Alg. 2a's line 6 does when it writes H_{t+1} from H_t anew in each k, and the authors' program
  (``authors_program``).
"""


# Sec. 3.1 and 3.2: the estimator, its scalars, and DeComFL.


def eq_1(f, x, u, mu):
    """Eq. 1: the forward random gradient estimate (1/mu) (f(x + mu u) - f(x)) u."""
    return 1.0 / mu * (f(x + mu * u) - f(x)) * u


def eq_2(x_0, eta, g, u):
    """Eq. 2: x_{R+1} = x_0 - eta sum_r g_r u_r, from scalars g and directions u alone."""
    return x_0 - eta * sum(g[r] * u[r] for r in range(len(g)))


def eq_4_by_models(x_r, local_models):
    """Eq. 4, first form: x_{r+1} = 1/|C_r| sum_i x^(i)_{r,tau}."""
    return sum(local_models.values()) / len(local_models)


def eq_4_by_scalars(x_r, eta, g, u):
    """Eq. 4, last form: x_{r+1} = x_r - eta 1/|C_r| sum_i sum_k g^(i)_{r,k} u_{r,k}; P = 1, g by client."""
    tau = len(u)
    return x_r - eta * sum(g[i][k, 0] * u[k, 0] for i in g for k in range(tau)) / len(g)


# Sec. 4.1: the ascent direction.


def eq_5(gradient, g, H, u):
    """Eq. 5 with eq. 6 put in: ||grad f - g H^(-1/2) u||^2."""
    return np.sum((gradient - g * H**-0.5 * u) ** 2)


def eq_7(gradient, H, u):
    """Eq. 7: g^o = (u^T H^-1 u)^-1 u^T H^(-1/2) grad f."""
    return (u @ (H**-1.0 * u)) ** -1.0 * (u @ (H**-0.5 * gradient))


def eq_8(f, x, H, u, mu):
    """Eq. 8: Delta x = (1/mu) (f(x + mu H^(-1/2) u) - f(x)) H^(-1/2) u."""
    return 1.0 / mu * (f(x + mu * H**-0.5 * u) - f(x)) * H**-0.5 * u


# Sec. 4.2: learning the curvature.


def eq_11_printed(f, x, u, mu):
    """Eq. 11 as printed: u^T hess f(x) u ~ (f(x + mu u) + f(x - mu u) - 2 f(x))/(2 mu^2); that is half of it."""
    return (f(x + mu * u) + f(x - mu * u) - 2.0 * f(x)) / (2.0 * mu**2)


def eq_11(f, x, u, mu):
    """Eq. 11 as read: divided by mu^2."""
    return (f(x + mu * u) + f(x - mu * u) - 2.0 * f(x)) / mu**2


def eq_12_line(H, delta, nu, epsilon, lower=0.0, upper=np.inf):
    """One line of eq. 12: (1 - nu) H + nu (1/m) sum_{i in S_r} ([Delta x]^2 + epsilon).

    The summand has no i: Delta x is the global one, and the mean over clients of m equal terms is that term. The
    clients' own squares, which it might have meant, do not follow from the scalars that a client is sent. ``lower`` and
    ``upper`` are beta_l and beta_u of the clipping step that the text after Assumption 4 speaks of.
    """
    return np.clip((1.0 - nu) * H + nu * (delta**2 + epsilon), lower, upper)


def eq_12_printed(H_r, deltas, nu, epsilon):
    """Eq. 12 as printed, from Delta x_{r,0} (bottom line) to Delta x_{r,tau} (top line), which does not exist.

    Raises:
        IndexError: for every tau, as Alg. 2b's loop ends with k = tau - 1.
    """
    H = eq_12_line(H_r, deltas[0], nu, epsilon)  # H_{r,1}
    tau = len(deltas)
    for k in range(1, tau + 1):
        H = eq_12_line(H, deltas[k], nu, epsilon)  # ..., H_{r,tau} with [Delta x_{r,tau}]^2
    return H


def eq_12(H_r, deltas, nu, epsilon, lower=0.0, upper=np.inf):
    """Eq. 12 as read: H_{r,k+1} from H_{r,k} and Delta x_{r,k}, k = 0 ... tau - 1; H_{r+1} = H_{r,tau}."""
    H = H_r
    for delta in deltas:
        H = eq_12_line(H, delta, nu, epsilon, lower, upper)
    return H


# Appx. E: P perturbations.


def eq_112(f, x, H, u, mu, projection=False):
    """Eq. 112: the scalars g_p = (1/mu) (f(x + mu H^(-1/2) u_p) - f(x)), shape ``P``; f(x) is queried once.

    ``projection`` keeps eq. 7's factor 1/(u^T H^-1 u), which the text after eq. 7 leaves to the learning rate.
    """
    at_x = f(x)
    g = np.array([1.0 / mu * (f(x + mu * H**-0.5 * u_p) - at_x) for u_p in u])
    return g / np.array([u_p @ (H**-1.0 * u_p) for u_p in u]) if projection else g


def eq_112_delta(g, H, u):
    """Eq. 112, last line: Delta x = H^(-1/2) (1/P) sum_p g_p u_p."""
    P = len(g)
    return H**-0.5 * (1.0 / P) * sum(g[p] * u[p] for p in range(P))


def eq_113_printed(g, H, u):
    """Eq. 113 as printed: Delta x_{r,k} = (1/tau) sum_k (1/P) sum_p g_{r,k,p} H_r^(-1/2) u_{r,k,p}.

    The left side has a k that the right side sums over, and a 1/tau that neither eq. 4 nor Alg. 2's line 16 has.
    """
    tau = len(g)
    return 1.0 / tau * sum(eq_112_delta(g[k], H, u[k]) for k in range(tau))


# Alg. 1: the general scalar-only interface.


class Interface(NamedTuple):
    """What Alg. 1 leaves open; r and k name the shared seeds, hence the directions.

    Attributes:
        find: line 10, ``find(f, x, state, r, k)``: a client's scalars of one step.
        step: line 7, ``step(state, r, k, scalars)``: Delta x and the state after the step.
        finish: line 7, ``finish(state, r, deltas)``: the state after a round, from all its Delta x.
        aggregate: line 16, ``aggregate({client: [scalars of each k]})``: the scalars of the global Delta x_r.
    """

    find: object
    step: object
    finish: object
    aggregate: object


class Run(NamedTuple):
    """A run of R rounds.

    Attributes:
        x: x_0 ... x_R.
        state: the state at the start of each round (H_r; None for DeComFL), R + 1 entries.
        sent: of each round, the scalars that each client of C_r sent, ``tau x P``.
        mean: of each round, the scalars that the server aggregated, ``tau x P``.
        starts: of each round, each client's x^(i)_{r,0} as it rebuilt it.
    """

    x: list
    state: list
    sent: list
    mean: list
    starts: list


def algorithm_1(objectives, x_0, state_0, participants, tau, eta, interface):
    """Alg. 1: generalized scalar-only communication; ``participants[r]`` is C_r.

    The server's own model and state (Alg. 2's line 16 calls the model optional) are kept beside, by the same lines.
    """
    memory = []  # line 2: the scalars of each round, and below each client's last round and what it holds
    held = dict.fromkeys(range(len(objectives)), (0, x_0, state_0))
    run = Run([x_0], [state_0], [], [], [])

    def rebuilt(x, state, r):
        """Lines 7 and 8 for one round r'."""
        start, deltas = state, []
        for k in range(tau):
            delta, state = interface.step(state, r, k, memory[r][k])
            deltas.append(delta)
        return x - eta * sum(deltas), interface.finish(start, r, deltas)

    for r, C_r in enumerate(participants):  # line 3, line 4
        sent, starts = {}, {}
        for i in C_r:  # line 5
            r_l, x, state = held[i]
            for missed in range(r_l, r):  # lines 6 to 8
                x, state = rebuilt(x, state, missed)
            held[i] = (r, x, state)  # line 13: what local steps change is reset, here by never being kept
            starts[i] = x
            sent[i] = []
            for k in range(tau):  # line 9
                scalars = interface.find(objectives[i], x, state, r, k)  # line 10
                delta, state = interface.step(state, r, k, scalars)
                x = x - eta * delta  # line 11
                sent[i].append(scalars)  # line 14
        memory.append(interface.aggregate(sent))  # line 16
        x, state = rebuilt(run.x[r], run.state[r], r)
        run.x.append(x), run.state.append(state), run.starts.append(starts)
        run.sent.append({i: np.array(g) for i, g in sent.items()}), run.mean.append(np.array(memory[r]))
    return run


def mean_scalars(sent):
    """Alg. 2's line 13: g_{r,k} = 1/|C_r| sum_i g^(i)_{r,k}."""
    tau = len(next(iter(sent.values())))
    return [sum(g[k] for g in sent.values()) / len(sent) for k in range(tau)]


def decomfl_interface(u, mu):
    """DeComFL as an instance of Alg. 1: H = 1 and no state (Sec. 3.2; Corollary 2)."""
    one = np.ones(u[0].shape[-1])
    return Interface(
        find=lambda f, x, state, r, k: eq_112(f, x, one, u[r][k], mu),
        step=lambda state, r, k, g: (eq_112_delta(g, one, u[r][k]), None),
        finish=lambda state, r, deltas: None,
        aggregate=mean_scalars,
    )


def hiso_interface(u, mu, nu, epsilon, reading):
    """HiSo as an instance of Alg. 1: the state is H."""

    def step(H, r, k, g):
        delta = eq_112_delta(g, H, u[r][k])
        return delta, (eq_12_line(H, delta, nu, epsilon) if reading == "per_step" else H)

    def finish(H_r, r, deltas):
        return {
            "per_step": lambda: eq_12(H_r, deltas, nu, epsilon),
            "per_round": lambda: eq_12_line(H_r, sum(deltas), nu, epsilon),
            "printed": lambda: eq_12(H_r, deltas, nu, epsilon),
            "last_step": lambda: eq_12_line(H_r, deltas[-1], nu, epsilon),
        }[reading]()

    return Interface(
        find=lambda f, x, H, r, k: eq_112(f, x, H, u[r][k], mu),
        step=step,
        finish=finish,
        aggregate=mean_scalars,
    )


# Alg. 2, 2a, 2b: HiSo.


class Rule(NamedTuple):
    """What HiSo is run with; the paper gives no values of H_0, nu and epsilon.

    Attributes:
        eta: learning rate.
        mu: smoothing radius.
        nu: weight of the newest displacement in eq. 12.
        epsilon: of eq. 12.
        reading: one of ``READINGS``.
        lower: beta_l of the clipping step after Assumption 4.
        upper: beta_u.
        projection: whether scalars keep eq. 7's factor 1/(u^T H^-1 u).
    """

    eta: float
    mu: float
    nu: float
    epsilon: float
    reading: str
    lower: float = 0.0
    upper: float = np.inf
    projection: bool = False


def learned(H, delta, rule):
    """Eq. 12's line under a rule."""
    return eq_12_line(H, delta, rule.nu, rule.epsilon, rule.lower, rule.upper)


def algorithm_2a_printed(H, g, u, nu, epsilon):
    """Alg. 2a, lines 3 to 7, for one round t as printed; ``H[t]`` is its start.

    Raises:
        KeyError: at k = 0, as line 6 wants Delta x_{t,tau}.
    """
    t, tau, delta = 0, len(g), {}
    H = {t: H}
    for k in range(tau):  # line 3
        delta[t, k] = eq_112_delta(g[k], H[t], u[k])  # line 5
        H[t + 1] = (1.0 - nu) * H[t] + nu * (delta[t, tau] ** 2 + epsilon)  # line 6
    return H[t + 1]


def algorithm_2a(H_t, g_t, u_t, rule):
    """Alg. 2a, lines 3 to 7, for one round t: its Delta x_{t,k}, and H_{t+1}."""
    deltas, H = [], H_t
    for k in range(len(g_t)):  # line 3; line 4 is the argument u
        deltas.append(eq_112_delta(g_t[k], H if rule.reading == "per_step" else H_t, u_t[k]))  # line 5
        if rule.reading in ("per_step", "printed"):
            H = learned(H, deltas[k], rule)  # line 6 with Delta x_{t,k}: eq. 12
        if rule.reading == "last_step":
            H = learned(H_t, deltas[k], rule)  # line 6 with Delta x_{t,k} and its own H_t: the last k remains
    if rule.reading == "per_round":
        H = learned(H_t, sum(deltas), rule)  # Appx. C
    return deltas, H


def algorithm_2b(f_i, x_r, H_r, u_r, rule, line_4="read"):
    """Alg. 2b: the scalars g^(i)_{r,k,p} of a client's local steps, shape ``tau x P``.

    Args:
        line_4: ``"printed"`` takes f_i's second value at x^(i)_r, the start of the round, which is what x_{i,r}^(i) can
            mean; ``"read"`` takes it at x^(i)_{r,k}, as eq. 8 and Appx. C print it.
    """
    x, H, g = x_r, H_r, []
    for k in range(len(u_r)):  # line 2; line 3 is the argument u
        if line_4 == "printed":
            g.append(np.array([1.0 / rule.mu * (f_i(x + rule.mu * H**-0.5 * u_p) - f_i(x_r)) for u_p in u_r[k]]))
        else:
            g.append(eq_112(f_i, x, H, u_r[k], rule.mu, rule.projection))  # line 4
        delta = eq_112_delta(g[k], H, u_r[k])  # line 5
        x = x - rule.eta * delta  # line 6
        if rule.reading == "per_step":
            H = learned(H, delta, rule)
    return np.array(g)  # line 9; line 8: the caller's x_r and H_r are unchanged


def algorithm_2(objectives, x_0, H_0, participants, u, rule):
    """Alg. 2: HiSo; ``participants[r]`` is C_r.

    Alg. 2 prints no H of the server's own, which its lines 14 and 16 need: it learns as Alg. 2a says.
    """
    scalars = []  # line 2: {g}; the seeds are u
    last = dict.fromkeys(range(len(objectives)), 0)  # line 1: r'_i = 0
    x_of = dict.fromkeys(range(len(objectives)), x_0)  # x^(i)_{r',0}
    H_of = dict.fromkeys(range(len(objectives)), H_0)
    run = Run([x_0], [H_0], [], [], [])
    for r, C_r in enumerate(participants):  # line 4, line 5; line 6 is u[r]
        sent = {}
        for i in C_r:  # line 7
            for t in range(last[i], r):
                deltas, H_of[i] = algorithm_2a(H_of[i], scalars[t], u[t], rule)  # line 8
                x_of[i] = x_of[i] - rule.eta * sum(deltas)  # line 9, whose Delta x^(i) are the rebuilt, global ones
            sent[i] = algorithm_2b(objectives[i], x_of[i], H_of[i], u[r], rule)  # lines 10 and 11
        mean = sum(sent.values()) / len(C_r)  # line 13
        deltas, H = algorithm_2a(run.state[r], mean, u[r], rule)  # line 14
        scalars.append(mean)  # line 15
        last.update(dict.fromkeys(C_r, r))
        run.x.append(run.x[r] - rule.eta * sum(deltas))  # line 16
        run.state.append(H), run.sent.append(sent), run.mean.append(mean)
        run.starts.append({i: x_of[i] for i in C_r})
    return run


def decomfl(objectives, x_0, participants, u, eta, mu):
    """DeComFL (Sec. 3.2, eqs. 1, 4): local steps of ZO-SGD along shared directions, and the mean of the models.

    That is eq. 4's first form, with no scalar in it; ``sent`` has the scalars that would replace the models.
    """
    run = Run([x_0], [None], [], [], [])
    for r, C_r in enumerate(participants):
        sent, models = {}, {}
        for i in C_r:
            x, g = run.x[r], []
            for u_k in u[r]:
                at_x = objectives[i](x)
                g.append(np.array([(objectives[i](x + mu * u_p) - at_x) / mu for u_p in u_k]))
                x = x - eta * sum(g_p * u_p for g_p, u_p in zip(g[-1], u_k, strict=True)) / len(u_k)
            sent[i], models[i] = np.array(g), x
        run.x.append(eq_4_by_models(run.x[r], models))
        run.state.append(None), run.sent.append(sent), run.mean.append(sum(sent.values()) / len(C_r))
        run.starts.append(dict.fromkeys(C_r, run.x[r]))
    return run


# Appx. C: the same without a word on communication.


def appendix_c(objectives, x_r, H_r, C_r, u_r, rule, update="read"):
    """Appx. C, one round: x_{r+1} and H_{r+1} by models instead of scalars.

    Args:
        update: ``"printed"`` squares x_{r+1} - x_r, which is -eta sum_k Delta x_{r,k}; ``"read"`` squares
            sum_k Delta x_{r,k}, as eq. 12 squares Delta x.
    """
    models = {}
    for i in C_r:
        x = x_r  # receive model
        for u_k in u_r:
            g = eq_112(objectives[i], x, H_r, u_k, rule.mu)
            x = x - rule.eta * eq_112_delta(g, H_r, u_k)  # local update
        models[i] = x
    x_next = eq_4_by_models(x_r, models)  # aggregate model
    moved = (x_next - x_r) if update == "printed" else (x_r - x_next) / rule.eta
    return x_next, eq_12_line(H_r, moved, rule.nu, rule.epsilon)


# The authors' program.


def authors_program(objectives, x_0, participants, u, eta, mu, smooth):
    """The rule of the authors' program: ``AdamForwardGradientEstimatorBatch`` of github.com/ZidongLiu/DeComFL, 0c426e6.

    A round moves x by all tau steps along u/sqrt(K), and then K <- smooth K + (1 - smooth) (Delta x)^2 of the last of
    them. K is 1 at first, and a client's local steps leave it alone. There is neither epsilon nor clipping; ``smooth``
    is 1 - nu. For P > 1 its ``...Paramwise`` estimator is another rule: it squares each perturbation by itself.
    """

    def step(x, K, g_k, u_k):
        delta = np.mean(g_k[:, None] * (u_k / np.sqrt(K)), axis=0)
        return x - eta * delta, delta

    def pulled(x, K, g, u_r):
        for g_k, u_k in zip(g, u_r, strict=True):
            x, delta = step(x, K, g_k, u_k)
        return x, smooth * K + (1.0 - smooth) * delta**2

    K = np.ones(len(x_0))
    run, held = Run([x_0], [K], [], [], []), dict.fromkeys(range(len(objectives)), (0, x_0, K))
    for r, C_r in enumerate(participants):
        sent, starts = {}, {}
        for i in C_r:
            last, x, K = held[i]
            for missed in range(last, r):
                x, K = pulled(x, K, run.mean[missed], u[missed])
            held[i], starts[i], g = (r, x, K), x, []
            for u_k in u[r]:
                at_x = objectives[i](x)
                g.append(np.array([(objectives[i](x + mu * z) - at_x) / mu for z in u_k / np.sqrt(K)]))
                x, _ = step(x, K, g[-1], u_k)
            sent[i] = np.array(g)
        run.sent.append(sent), run.starts.append(starts), run.mean.append(np.mean(list(sent.values()), axis=0))
        x, K = pulled(run.x[r], run.state[r], run.mean[r], u[r])
        run.x.append(x), run.state.append(K)
    return run
