import math

import pytest
import torch

from optimizers import L1, Directions, GroupProbe, HiSo, ModuleObjective, minimize, run
from optimizers.core.options import take_options
from optimizers.methods.hiso.group_probe import Probe, bias_corrected, held_up, probed_group
from optimizers.testing import Promises, method_factory, quadratic, start
from tests.optimizers.batteries import options_battery

VARIANTS = {
    "single": (method_factory("hiso", curvature="group_probe"), Promises(convergence=1e-9)),
    "one group": (
        method_factory("hiso", curvature=GroupProbe(groups=1), distribution="rademacher", perturbations=2),
        Promises(convergence=1e-3),
    ),
}


@options_battery(VARIANTS)
def test_battery(check, factory, promises):
    check(factory, promises)


def drive(opt, fun, steps=1):
    for _ in range(steps):
        batch = opt.ask()
        opt.tell(batch, torch.stack([torch.as_tensor(fun(x), dtype=torch.float64) for x in batch]))
    return opt


def make(d=6, dtype=torch.float64, **options):
    options = {"max_queries": 10_000, "curvature": take_options(GroupProbe, options)} | options
    return HiSo(start(d, dtype), **options)


def quadratic_of(matrix):
    return lambda x: 0.5 * x @ matrix @ x


def matrix_of(d, seed=0):
    root = torch.randn(d, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return root @ root.T + 0.1 * torch.eye(d, dtype=torch.float64)


# Curvature.


def test_single_coordinates_are_exact_after_d_probes():
    d = 100
    diagonal = 10 ** torch.linspace(-2.0, 2.0, d, dtype=torch.float64)
    opt = HiSo(torch.ones(d, dtype=torch.float64), curvature="group_probe", max_queries=3 * d + 2)
    drive(opt, lambda x: 0.5 * (diagonal * x**2).sum(), d)
    assert opt.queries == 3 * d and bool((opt.x == 1.0).all())
    assert float((opt.hessian / diagonal - 1.0).abs().max()) < 1e-6


def test_group_estimate_has_the_mean_and_the_variance_of_the_formulas():
    """10,000 probes by the method's own queries: E â = tr A_b/n, Var â = 2‖off A_b‖²_F/n², three standard errors."""
    d, draws = 7, 10_000
    matrix, members = matrix_of(d), torch.tensor([1, 3, 4, 6])
    opt = make(d, groups=[[0, 2, 5], members], initial_probes=draws)
    batch = opt.ask()
    directions, found = Directions(opt.seed, d, "rademacher"), torch.empty(draws, dtype=torch.float64)
    m, only = float(batch.scales[1]), Probe(opt.curvature.groups, 1).mask(opt.x)
    u = torch.stack([directions.row(2 * k + 1, 0) for k in range(draws)]) / only.tensor().sqrt()
    f = quadratic_of(matrix)
    x, h = start(d), 1e-3 * math.sqrt(d / 4)
    points = torch.stack([x.expand(draws, d), x + h * u, x - h * u], dim=1)
    values = 0.5 * torch.einsum("nqi,ij,nqj->nq", points, matrix, points)
    for k in range(draws):
        found[k] = Probe.scalars(_Scales(h), values[k])[1] / 4
    block = matrix[members][:, members]
    off = block - torch.diag(block.diagonal())
    mean, variance = float(block.trace()) / 4, 2.0 * float(off.square().sum()) / 16
    assert abs(float(found.mean()) - mean) < 3.0 * math.sqrt(variance / draws)
    fourth = float((found - mean).pow(4).mean())
    assert abs(float(found.var()) - variance) < 3.0 * math.sqrt((fourth - variance**2) / draws)
    assert m == pytest.approx(1e-3 * math.sqrt(d / 3))
    drive(opt, f)
    asked = opt.ask()
    assert torch.equal(asked.points()[1], opt.x + h * u[0]) and torch.equal(asked.points()[0], opt.x)


class _Scales:
    """The one part of a batch that the scalars need."""

    def __init__(self, m):
        self.scales = torch.tensor([0.0, m, -m])


def test_moving_average_is_bias_corrected_and_kept_up():
    opt = make(4, groups=2, initial_probes=50, probe_weight=0.3, rise_weight=0.0, smoothing_radius=1e-2)
    seen: list[float] = []
    for k in range(9):
        factor = 1.0 + k
        before = len(seen)
        batch = opt.ask()
        f = lambda x, a=factor: a * (x[0] ** 2 + x[1] ** 2) + 1e-12 * (x[2:] ** 2).sum()  # noqa: E731
        values = torch.stack([f(x) for x in batch])
        if batch.info["group"] == 0:
            seen.append(abs(Probe.scalars(batch, values)[1]) / 2)
        opt.tell(batch, values)
        if len(seen) > before:
            weights = torch.tensor([0.7 ** (len(seen) - 1 - i) for i in range(len(seen))], dtype=torch.float64)
            mean = float((weights * torch.tensor(seen, dtype=torch.float64)).sum() / weights.sum())
            assert float(opt.state.learned.curvature[0]) == pytest.approx(mean, rel=1e-12)
    h = opt.hessian
    assert float(h[2]) == pytest.approx(1e-8 * float(h[0])) and opt.state.learned.floor == pytest.approx(float(h[2]))


def test_curvature_rises_faster_than_it_falls():
    opt = make(4, groups=1, initial_probes=50, probe_weight=0.1, rise_weight=0.5, shared_weight=0.0)
    h, rising = 0.0, 0
    for k in range(30):
        a = 9.0 if k % 7 == 3 else 1.0
        drive(opt, lambda x, a=a: 0.5 * a * x.square().sum())
        weight = 0.1 / (1.0 - 0.9 ** (k + 1))
        rising += a > h and k > 0
        h += (max(weight, 0.5) if a > h else weight) * (a - h)
        assert float(opt.state.learned.curvature[0]) == pytest.approx(h, rel=1e-6)
    assert rising == 4


def test_groups_share_what_a_probe_finds():
    """f becomes a times itself after the first probes: the group that is not probed follows, doubling at most."""
    for a, factor in ((1.0, 1.0), (3.0, 1.2), (0.5, 0.95), (1e4, 2.0)):
        opt = make(4, groups=2, initial_probes=1, probe_every=1, shared_weight=0.1)
        drive(opt, quadratic_of(torch.diag(torch.tensor([1.0, 1.0, 9.0, 9.0], dtype=torch.float64))), 2)
        assert opt.state.learned.curvature.tolist() == pytest.approx([1.0, 9.0], rel=1e-6)
        group = opt.ask().info["group"]
        drive(opt, quadratic_of(a * torch.diag(torch.tensor([1.0, 1.0, 9.0, 9.0], dtype=torch.float64))))
        other = 1 - group
        assert float(opt.state.learned.curvature[other]) == pytest.approx(factor * (1.0, 9.0)[other], rel=1e-5)


def test_rate_is_warmed_up():
    """From the same states, the warm-up alone makes step t shorter: t/(K + 1) of it for t up to K."""
    slow, fast = (make(4, groups=1, initial_probes=1, probe_every=100, warmup=k, seed=4) for k in (3, 0))
    drive(slow, quadratic)
    for t in range(1, 7):
        fast.load_state_dict(slow.state_dict() | {"options": fast.state_dict()["options"]})
        before = slow.x
        drive(slow, quadratic), drive(fast, quadratic)
        moved, whole = slow.x - before, fast.x - before
        torch.testing.assert_close(moved, min(1.0, t / 4.0) * whole, rtol=1e-12, atol=1e-15)
        assert slow.state.rate == fast.state.rate


def test_weights_are_the_textbooks():
    found = [bias_corrected(0.1, t) for t in (1, 2, 3, 255)]
    assert found == pytest.approx([1.0, 0.1 / 0.19, 0.1 / 0.271, 0.1])


def test_groups_without_a_probe_have_the_largest_curvature():
    curvature = torch.tensor([2.0, 0.0, 1e-12, 0.0], dtype=torch.float64)
    probes = torch.tensor([1, 0, 3, 1], dtype=torch.uint8)
    assert held_up(curvature, probes).tolist() == [2.0, 2.0, 2e-8, 2e-8]
    assert held_up(torch.zeros(4), probes) is None


class Own(HiSo):
    """A user's subclass."""


def test_a_subclass_has_the_curvature_that_it_is_given():
    runs = [drive(cls(start(), curvature="group_probe", max_queries=200), quadratic, 20) for cls in (HiSo, Own)]
    assert torch.equal(runs[0].x, runs[1].x) and torch.equal(runs[0].hessian, runs[1].hessian)
    assert not torch.equal(runs[0].x, drive(HiSo(start(), max_queries=200), quadratic, 20).x)


# Schedule.


def test_schedule():
    asked = [probed_group(r, 3, groups=4, initial=2, every=10) for r in range(1, 4009)]
    assert asked[:8] == [0, 1, 2, 3, 0, 1, 2, 3]
    later = [(r, b) for r, b in enumerate(asked, 1) if r > 8 and b is not None]
    assert [r for r, _ in later] == list(range(18, 4009, 10))
    counts = [sum(b == g for _, b in later) for g in range(4)]
    assert sum((c - 100) ** 2 / 100 for c in counts) < 16.3
    assert asked != [probed_group(r, 4, 4, 2, 10) for r in range(1, 4009)]


def test_queries_of_rounds():
    opt = make(6, groups=3, initial_probes=1, probe_every=2, perturbations=4)
    lengths = [len(drive(opt, quadratic).ask()) for _ in range(8)]
    assert lengths == [3, 3, 8, 3, 8, 3, 8, 3]
    single, groups = make(6), make(6, groups=3)
    for opt, initial, every in ((single, 6, 50), (groups, 12, 10)):
        probed = [r for r in range(1, 120) if opt.curvature.probe(0, r) is not None]
        assert probed == [*range(1, initial + 1), *range(initial + every, 120, every)]


# Steps.


@pytest.mark.parametrize("distribution", ["normal", "rademacher"])
def test_run_is_a_literal_transcription(distribution):
    d, count, mu = 6, 2, 1e-2
    matrix = matrix_of(d)
    f = quadratic_of(matrix)
    opt = make(
        d,
        groups=[[0, 1, 2, 3], [4, 5]],
        initial_probes=1,
        probe_every=3,
        perturbations=count,
        smoothing_radius=mu,
        distribution=distribution,
        seed=5,
    )
    x, mean, mass, steps_done = start(d), 0.0, 0.0, 0
    curvature, told = torch.zeros(2, dtype=torch.float64), [0, 0]
    masks = torch.tensor([[1.0] * 4 + [0.0] * 2, [0.0] * 4 + [1.0] * 2], dtype=torch.float64)
    steps, signs = Directions(5, d, distribution), Directions(5, d, "rademacher")
    rate = count / (d + count + (1 if distribution == "normal" else -1))
    for k in range(40):
        b = None if opt.probe is None else opt.probe.group
        drive(opt, f)
        if b is not None:
            z = signs.row(k, 0) * masks[b]
            m = mu * math.sqrt(d) / float(z.norm())
            g = (f(x + m * z) - f(x - m * z)) / (2 * m)
            c = (f(x + m * z) + f(x - m * z) - 2 * f(x)) / m**2
            told[b] += 1
            estimate = abs(c) / float(z.norm()) ** 2
            weight = max(0.2 / (1 - 0.8 ** told[b]), 0.3 if estimate > curvature[b] else 0.0)
            old = float(curvature[b])
            if told[b] > 1:
                curvature *= min(1.0 + 0.1 * (estimate / old - 1.0), 2.0)
            curvature[b] = old + weight * (estimate - old)
            x = x - g / max(c, curvature[b] * float(z.norm()) ** 2) * z
        else:
            h = (curvature[:, None] * masks).sum(0)
            zs = steps.block(k, count) / h.sqrt()
            gs = []
            for z in zs:
                m = mu * math.sqrt(d) / float(z.norm())
                gs.append(float((f(x + m * z) - f(x - m * z)) / (2 * m)) / count)
            limit = 1.5 * math.sqrt(mean) if steps_done >= 10 else math.inf
            steps_done += 1
            gs = [min(max(g, -limit), limit) for g in gs]
            mass = (299 * mass + 1) / 300
            mean += 1 / 300 / mass * (sum(g * g for g in gs) / count - mean)
            x = x - rate * min(1.0, steps_done / 101) * (torch.tensor(gs, dtype=torch.float64) @ zs)
        torch.testing.assert_close(opt.x, x, rtol=1e-5, atol=1e-7)
    torch.testing.assert_close(opt.state.learned.curvature, curvature, rtol=1e-6, atol=0)
    gain = torch.tensor([mean, mass, steps_done], dtype=torch.float64)
    torch.testing.assert_close(opt.state.learned.gain, gain, rtol=1e-3, atol=0)
    assert steps_done > 10


def test_the_step_is_the_best_where_h_is_exact():
    """One step's expected loss at η and at η/2, 1.5η: over 2,000 directions, differences beyond 4 standard errors."""
    d, count, n = 5, 2, 2000
    diagonal = torch.logspace(-2.0, 2.0, d, dtype=torch.float64)
    f = lambda x: 0.5 * (diagonal * x**2).sum(-1)  # noqa: E731
    x0 = 1.0 / diagonal.sqrt()
    u = torch.stack([Directions(s, d).block(0, count) for s in range(n)])
    z = u / diagonal.sqrt()
    moved = ((z @ (diagonal * x0))[..., None] * z).mean(1)
    rate = make(d, perturbations=count).state.rate
    best, *others = (f(x0 - factor * rate * moved) for factor in (1.0, 0.5, 1.5))
    for other in others:
        difference = other - best
        assert float(difference.mean()) > 4.0 * float(difference.std()) / math.sqrt(n)


def test_log_uniform_quadratic():
    """d = 100, condition 1e4, 6,000 queries: below 1e-10 of where it started."""
    d = 100
    generator = torch.Generator().manual_seed(11)
    diagonal = 10 ** (4.0 * torch.rand(d, generator=generator, dtype=torch.float64) - 2.0)
    f = lambda x: 0.5 * (diagonal * x**2).sum(-1)  # noqa: E731
    x0 = torch.randn(d, generator=generator, dtype=torch.float64)
    result = minimize(f, x0, "hiso", curvature="group_probe", max_queries=6000, batched=True, seed=1)
    assert result.nfev <= 6000 and result.fun < 1e-10 * float(f(x0))


def test_units_of_f_do_not_matter():
    runs = [drive(make(5, seed=2), lambda x, a=a: a * quadratic(x), 40).x for a in (1.0, 2.0**20, 2.0**-20)]
    assert torch.equal(runs[0], runs[1]) and torch.equal(runs[0], runs[2])


def test_no_step_without_curvature():
    opt = drive(make(3, groups=1), lambda x: 7.0, 30)
    assert torch.equal(opt.x, start(3)) and not opt.state.learned.curvature.any()
    concave = drive(make(3, groups=1, initial_probes=1), lambda x: -x.square().sum(), 1)
    assert torch.equal(concave.x, start(3)) and float(concave.state.learned.curvature) == pytest.approx(2.0, rel=1e-6)


def test_a_failed_probe_teaches_nothing():
    opt = make(4, groups=2)
    batch = opt.ask()
    opt.tell(batch, torch.tensor([1.0, math.nan, 2.0]))
    assert opt.state.learned.probes.tolist() == [0, 0] and torch.equal(opt.x, start(4)) and opt.failures == 1
    drive(opt, quadratic)
    assert opt.state.learned.probes.tolist() == [0, 1]


def test_large_scalars_are_clipped():
    opt = drive(make(4, groups=1, perturbations=1, clip=3.0, warmup=0), quadratic, 18)
    mean = math.sqrt(float(opt.state.learned.gain[0]))
    batch, before = opt.ask(), opt.x
    m = float(batch.scales[0])
    z = batch.direction_rows([0])[0]
    opt.tell(batch, torch.tensor([2e6 * m, 0.0], dtype=torch.float64))
    torch.testing.assert_close(opt.x, before - opt.state.rate * 3.0 * mean * z, rtol=1e-10, atol=1e-12)


def test_prox_has_each_groups_own_step():
    options = {"groups": 2, "initial_probes": 1, "seed": 1, "perturbations": 1}
    runs = [drive(make(4, prox=prox, **options), quadratic, 1) for prox in (None, L1(0.5))]
    free, penalised = (opt.x for opt in runs)
    signs = Directions(1, 4, "rademacher").row(0, 0)[:2]
    c = float(quadratic(signs_at(signs)) - quadratic(torch.ones(4, dtype=torch.float64))) * 2.0
    expected = free.clone()
    expected[:2] = free[:2].sign() * (free[:2].abs() - 0.5 / c).clamp(min=0.0)
    torch.testing.assert_close(penalised, expected, rtol=1e-6, atol=0)


def signs_at(signs):
    return torch.cat([1.0 + signs, torch.ones(2, dtype=torch.float64)])


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_in_place_is_the_same_run(dtype):
    own = start(40, dtype)
    common = {"max_queries": 400, "seed": 1, "curvature": GroupProbe(groups=4), "smoothing_radius": 0.05}
    moved, plain = HiSo(own, in_place=True, **common), HiSo(start(40, dtype), **common)
    while not plain.stopped:
        for opt in (moved, plain):
            batch = opt.ask()
            opt.tell(batch, torch.stack([quadratic(x.double()) for x in batch]))
        assert torch.equal(own, plain.x)
    assert moved.x.data_ptr() == own.data_ptr() and not torch.equal(own, start(40, dtype))


def test_a_module_is_tuned_by_its_tensors():
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.Tanh(), torch.nn.Linear(6, 1)).double()
    inputs = torch.randn(50, 4, dtype=torch.float64)
    labels = inputs.sum(1, keepdim=True).sin()
    objective = ModuleObjective(module, lambda m, b: torch.nn.functional.mse_loss(m(b[0]), b[1]), data=(inputs, labels))
    opt = HiSo(objective.x0(), curvature=GroupProbe(groups=objective), max_queries=600, in_place=True)
    before = objective(objective.x0())
    run(opt, objective)
    assert len(opt.curvature.groups) == 4 and objective(opt.x) < 0.5 * before


# Options.


@pytest.mark.parametrize(
    ("message", "options"),
    [
        ("overlap", {"groups": [range(4), range(3, 6)]}),
        ("do not cover", {"groups": [range(4)]}),
        ("at least 20 queries", {"max_queries": 19}),
        ("scheme='central'", {"scheme": "forward"}),
        ("does not support momentum", {"momentum": 0.5}),
        ("does not support projection", {"projection": True}),
        ("clip", {"clip": 0.0}),
        ("probe_weight", {"probe_weight": 0.0}),
        ("rise_weight", {"rise_weight": 1.5}),
        ("shared_weight", {"shared_weight": -0.1}),
        ("warmup", {"warmup": -1}),
        ("probe_every", {"probe_every": 0}),
        ("initial_probes", {"initial_probes": 0}),
    ],
)
def test_bad_options_are_refused(message, options):
    with pytest.raises(ValueError, match=message):
        make(**options)


def test_a_misspelt_option_names_the_nearest():
    with pytest.raises(TypeError, match="GroupProbe has no option 'group'; did you mean 'groups'"):
        make(curvature={"name": "group_probe", "group": 2})


def test_states_of_other_groups_are_refused():
    state = make(6, groups=2).state_dict()
    with pytest.raises(ValueError, match="groups"):
        make(6, groups=[range(2), range(2, 6)]).load_state_dict(state)
