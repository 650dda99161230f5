import math
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from optimizers import RGF, DeComFL, HiSo, ModuleObjective, minimize, run
from optimizers.evaluation import Evaluator
from tests.memory import printed, reads_peak

METHODS = [
    (DeComFL, {}),
    (DeComFL, {"distribution": "rademacher", "scheme": "central"}),
    (HiSo, {}),
    (RGF, {}),
    (RGF, {"bounds": [(-2.0, 2.0)] * 67}),
]


def network(dtype=torch.float64):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3)).to(dtype)


def samples(n=40, dtype=torch.float64):
    generator = torch.Generator().manual_seed(5)
    inputs = torch.randn(n, 4, generator=generator, dtype=torch.float64)
    return inputs.to(dtype), (inputs[:, 0] > 0).long() + (inputs[:, 1] > 0.5).long()


def objective(module, data=None, **options):
    data = samples() if data is None else data
    return ModuleObjective(module, lambda m, rows: cross_entropy(m(rows[0]), rows[1]), data=data, **options)


def parameters(module):
    return torch.cat([p.detach().reshape(-1) for p in module.parameters()])


def functional_loss(module, x, inputs, labels):
    """The loss at x by torch's own functional call, the module untouched."""
    named, offset = {}, 0
    for name, p in module.named_parameters():
        named[name] = x[offset : offset + p.numel()].view(p.shape)
        offset += p.numel()
    return float(cross_entropy(torch.func.functional_call(module, named, (inputs,)), labels))


def test_vector_is_the_parameters_in_their_order():
    module = network()
    f = objective(module)
    assert f.dimension == 67 and torch.equal(f.x0(), parameters(module))
    x = torch.arange(67, dtype=torch.float64)
    f.load(x)
    assert torch.equal(parameters(module), x) and torch.equal(f.x0(), x)
    f.x0().zero_()
    assert torch.equal(parameters(module), x)


@pytest.mark.parametrize(("method", "options"), METHODS)
def test_batch_values_are_the_losses_at_its_points(method, options):
    module, reference = network(), network()
    f = objective(module)
    opt = method(f.x0(), max_queries=100, seed=1, **options)
    for _ in range(3):
        batch = opt.ask()
        values = f(batch)
        expected = [functional_loss(reference, x, *samples()) for x in batch]
        assert values.tolist() == expected
        assert [f.evaluate_at(batch, i) for i in range(len(batch))] == expected
        assert torch.equal(parameters(module), batch.write_point(None, torch.empty(67, dtype=torch.float64)))
        opt.tell(batch, values)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("method", [DeComFL, HiSo])
def test_parameters_are_the_base_bit_for_bit_after_hundreds_of_queries(dtype, method):
    module = network(dtype)
    f = objective(module, samples(dtype=dtype))
    opt = method(f.x0(), max_queries=10_000, rate=1e-3)
    for _ in range(60):
        batch = opt.ask()
        opt.tell(batch, f(batch))
        assert all(p.dtype == dtype for p in module.parameters())
        assert torch.equal(parameters(module), batch.base)
    assert opt.x.dtype == dtype and opt.queries > 300
    assert dtype == torch.bfloat16 or opt.best_fun < f(opt.x0)


def test_bfloat16_parameters_with_a_float32_iterate():
    module = network(torch.bfloat16)
    f = objective(module, samples(dtype=torch.bfloat16))
    x0 = f.x0(torch.float32)
    assert torch.equal(x0, parameters(module).float())
    opt = DeComFL(x0, rate=1e-3, max_queries=100)
    batch = opt.ask()
    f(batch)
    f.evaluate_at(batch, 2)
    assert torch.equal(parameters(module), batch.base.bfloat16())


def test_dtypes_may_be_mixed_and_parameters_shared_frozen_or_strided():
    module = network(torch.float32)
    module[2].to(torch.float64)
    module[2].weight.data = module[2].weight.data.t().contiguous().t()
    module[0].bias.requires_grad_(False)
    module.again = module[0]

    def loss(m):
        return m[2](m[1](m[0](samples(dtype=torch.float32)[0])).double()).square().mean()

    f = ModuleObjective(module, loss)
    assert f.dimension == 59 and f.x0().dtype == torch.float64
    before = [p.detach().clone() for p in module.parameters()]
    opt = HiSo(f.x0(), max_queries=100)
    batch = opt.ask()
    values = f(batch)
    assert len(set(values.tolist())) == len(batch)
    assert all(map(torch.equal, before, module.parameters()))
    assert values.tolist() == [f(x) for x in batch]
    assert not module[2].weight.is_contiguous()


def test_a_tied_parameter_has_either_name(caplog):
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding, self.head = nn.Embedding(5, 3), nn.Linear(3, 5, bias=False)
            self.head.weight = self.embedding.weight

    module = Tied().double()
    by_first, by_second = (
        ModuleObjective(module, lambda m: m.head.weight.sum(), parameters=[name])
        for name in ("embedding.weight", "head.weight")
    )
    assert torch.equal(by_first.x0(), by_second.x0()) and by_second.dimension == 15
    (record,) = caplog.records
    assert "'head.weight' and 'embedding.weight' are one tensor" in record.getMessage()
    with pytest.raises(ValueError, match=r"no parameter 'head\.weigth'; did you mean 'head\.weight'"):
        ModuleObjective(module, lambda m: 0.0, parameters=["head.weigth"])


def test_parameters_by_name():
    module = network()
    f = objective(module, parameters=["2.bias", "0.weight"])
    assert torch.equal(f.x0(), torch.cat([module[0].weight.reshape(-1), module[2].bias]).detach())
    with pytest.raises(ValueError, match=r"'2.biass'; did you mean '2.bias'"):
        objective(module, parameters=["2.biass"])


def test_a_point_is_evaluated_on_all_rows_and_leaves_the_parameters():
    module = network()
    f = objective(module, batch_size=3)
    x = torch.linspace(-1, 1, 67, dtype=torch.float64)
    before = parameters(module).clone()
    assert f(x) == functional_loss(network(), x, *samples())
    assert torch.equal(parameters(module), before)


class Counting(nn.Module):
    """Dropout, batch normalisation, and a buffer that the forward pass replaces."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.norm, self.drop = nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Dropout(0.5)
        self.last = nn.Linear(6, 3)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls = self.calls + 1
        return self.last(self.drop(self.norm(self.first(x))))


@pytest.mark.parametrize("raises", [False, True])
def test_buffers_modes_and_the_global_random_state_are_left(raises):
    module = Counting().train()
    module.norm.eval()
    modes = [m.training for m in module.modules()]
    seen = []

    def loss(m, rows):
        seen.append((m.training, m.norm.training))
        value = cross_entropy(m(rows[0].float()), rows[1])
        m.eval()
        if raises and len(seen) == 4:
            raise ArithmeticError
        return value

    f = ModuleObjective(module, loss, data=samples())
    opt = DeComFL(f.x0(), rate=1e-2, max_queries=100)
    batch = opt.ask()
    buffers = {name: (b, b.clone()) for name, b in module.named_buffers()}
    state = torch.get_rng_state()
    if raises:
        with pytest.raises(ArithmeticError):
            f(batch)
    else:
        assert bool(torch.isfinite(f(batch)).all())
    assert torch.equal(torch.get_rng_state(), state)
    assert [m.training for m in module.modules()] == modes
    assert set(seen) == {(True, False)}
    for name, buffer in module.named_buffers():
        assert buffer is buffers[name][0] and torch.equal(buffer, buffers[name][1])
    assert torch.equal(parameters(module), batch.base)


def test_randomness_is_common_to_a_step_and_new_at_the_next():
    f = objective(Counting(), samples(dtype=torch.float32), seed=3)
    opt = DeComFL(f.x0(), rate=1e-30, smoothing_radius=1e-30, max_queries=100)
    values = []
    for _ in range(2):
        batch = opt.ask()
        torch.manual_seed(len(values))
        values.append(f(batch))
        assert len(set(values[-1].tolist())) == 1
        opt.tell(batch, values[-1])
    assert values[0][0] != values[1][0]


@pytest.mark.parametrize("kind", ["tensor", "tuple", "mapping"])
def test_minibatches_are_addressed_by_seed_and_step(kind):
    n, rows = 50, torch.arange(50)
    data = {"tensor": rows, "tuple": (rows, rows.double()), "mapping": {"a": rows, "b": rows}}[kind]
    drawn = []

    def loss(m, minibatch):
        parts = minibatch if kind == "tuple" else list(minibatch.values()) if kind == "mapping" else [minibatch]
        assert all(torch.equal(part.long(), parts[0]) for part in parts)
        drawn.append(parts[0].tolist())
        return 1.0

    def draws(seed, disturb):
        drawn.clear()
        f = ModuleObjective(network(), loss, data=data, batch_size=8, seed=seed)
        opt = DeComFL(f.x0(), rate=1.0, max_queries=200)
        for _ in range(30):
            batch = opt.ask()
            torch.manual_seed(disturb)
            opt.tell(batch, f(batch))
        return list(drawn)

    first = draws(1, 1)
    assert first == draws(1, 2) and first != draws(2, 1)
    assert all(len(set(rows)) == 8 and set(rows) <= set(range(n)) for rows in first)
    steps = [tuple(tuple(rows) for rows in first[i : i + 6]) for i in range(0, 180, 6)]
    assert all(len(set(step)) == 1 for step in steps)
    assert len(set(steps)) == 30
    counts = torch.bincount(torch.tensor([row for step in steps for row in step[0]]), minlength=n)
    assert int(counts.max()) <= 14 and int((counts == 0).sum()) <= 3


@pytest.mark.parametrize(("method", "options"), METHODS)
@pytest.mark.parametrize("in_place", [False, True])
def test_minimize_by_name_equals_ask_and_tell(method, options, in_place):
    if in_place:
        if method is RGF:
            pytest.skip("RGF makes new iterates")
        options = options | {"in_place": True}
    modules = [network(), network()]
    fs = [objective(m, batch_size=10) for m in modules]
    result = minimize(fs[0], fs[0].x0(), method.method, max_queries=120, seed=2, **options)
    opt = method(fs[1].x0(), max_queries=120, seed=2, **options)
    while not opt.stopped:
        batch = opt.ask()
        opt.tell(batch, fs[1](batch))
    assert torch.equal(result.x, opt.best_x) and result.nfev == opt.queries
    assert torch.equal(parameters(modules[0]), parameters(modules[1]))


@pytest.mark.slow
def test_tuning_lowers_the_loss():
    module = network()
    f = objective(module, batch_size=20)
    before = f(f.x0())
    result = minimize(f, f.x0(), "decomfl", max_queries=3000, track_best=False)
    f.load(result.x)
    assert f(f.x0()) < 0.6 * before
    f.load(f.x0().zero_())
    f.load(result.x.numpy())
    assert torch.equal(parameters(module), result.x)


def test_failed_queries_are_counted_and_leave_the_base():
    module = network()
    calls = 0

    def loss(m):
        nonlocal calls
        calls += 1
        if calls % 5 == 0:
            raise ArithmeticError
        return math.nan if calls % 7 == 0 else parameters(m).square().sum()

    f = ModuleObjective(module, loss)
    result = minimize(f, f.x0(), "decomfl", max_queries=70)
    assert result.nfail == 70 // 5 + 70 // 7 - 70 // 35 and result.fun < float(f.x0().square().sum()) + 1e-9
    opt = DeComFL(f.x0(), max_queries=70)
    batch = opt.ask()
    values, _ = Evaluator(f)(batch)
    assert values.isnan().any() and torch.equal(parameters(module), batch.base)


def test_what_is_no_objective_is_refused():
    module = network()
    inputs, labels = samples()
    f = objective(module)
    before = parameters(module).clone()
    for kind, message, call in (
        (TypeError, "torch.nn.Module", lambda: ModuleObjective(lambda x: x, lambda m: 0.0)),
        (TypeError, "loss_fn must be callable, got float", lambda: ModuleObjective(module, 3.0)),
        (TypeError, r"called as loss_fn\(module\): .*'batch'", lambda: ModuleObjective(module, lambda m, batch: 0.0)),
        (
            TypeError,
            r"called as loss_fn\(module, minibatch\)",
            lambda: ModuleObjective(module, lambda m: 0.0, data=inputs),
        ),
        (ValueError, r"ModuleObjective.x0\(\) makes", lambda: minimize(f, list(module.parameters()), max_queries=9)),
        (ValueError, "no parameter", lambda: ModuleObjective(nn.Tanh(), lambda m: 0.0)),
        (ValueError, "batch_size needs data", lambda: ModuleObjective(module, len, batch_size=3)),
        (
            ValueError,
            "batch_size must be at most 40, the number of rows in data, got 41",
            lambda: objective(module, batch_size=41),
        ),
        (ValueError, "equally many rows", lambda: objective(module, (inputs, labels[:-1]))),
        (TypeError, "data must be", lambda: objective(module, [1, 2])),
        (ValueError, "67 parameters", lambda: f(torch.zeros(66))),
        (ValueError, "67 parameters", lambda: f.load(torch.zeros(68))),
        (ValueError, "67 parameters", lambda: f.load(np.zeros(68))),
        (ValueError, "67 parameters", lambda: f(DeComFL(torch.zeros(5), max_queries=50).ask())),
        (TypeError, "a point must be", lambda: f([0.0] * 67)),
        (ValueError, "in place", lambda: Evaluator(f, batched=True)),
        (ValueError, "in place", lambda: run(DeComFL(f.x0(), max_queries=50), f, executor=ThreadPoolExecutor(1))),
        (TypeError, "real numbers", lambda: ModuleObjective(module, lambda m: "low")(f.x0())),
        (ValueError, "one number", lambda: ModuleObjective(module, lambda m: torch.ones(2))(f.x0())),
    ):
        with pytest.raises(kind, match=message):
            call()
    assert torch.equal(parameters(module), before)


MEMORY = """
import gc, sys, torch
from torch import nn
from optimizers import ModuleObjective, minimize, run

def tune(width, layers):
    module = nn.Sequential(*[m for _ in range(layers) for m in (nn.Linear(width, width), nn.Tanh())])
    inputs = torch.ones(2, width)
    f = ModuleObjective(module, lambda m: m(inputs).square().mean())
    method, *groups = sys.argv[1].split("-")
    options = {"curvature": {"name": "group_probe", "groups": module}} if groups else {}
    result = minimize(f, f.x0(), method, max_queries=40, in_place=True, **options)
    f.load(result.x)
    return f.dimension

tune(8, 2)
gc.collect()
start_meter()
d = tune(1600, 8)
assert d > 20_000_000
print(grown() / (4 * d))
"""


@pytest.mark.slow
@reads_peak
@pytest.mark.parametrize(("method", "limit"), [("decomfl", 2.5), ("hiso-groups", 2.5), ("hiso", 3.5)])
def test_memory_of_tuning_20_million_parameters(method, limit):
    """In units of the parameters, the module's own included."""
    (vectors,) = printed(MEMORY, method)
    assert vectors < limit
