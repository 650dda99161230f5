import copy
import hashlib
import itertools
import math
import pickle
from concurrent.futures import ThreadPoolExecutor

import mpmath
import numpy as np
import pytest
import torch
from scipy import integrate, stats
from torch.utils._python_dispatch import TorchDispatchMode

from optimizers import Directions
from optimizers.directions import directions, fixed_order, normal, philox
from optimizers.directions.directions import DISTRIBUTIONS

COMPILED = directions._compiled
needs_numba = pytest.mark.skipif(COMPILED is None, reason="numba is not installed")
STREAMED = ("normal", "rademacher", "sphere", "coordinate")
DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)

# Random123's kat_vectors for philox4x32 with 10 rounds: counter, key, output.
KNOWN_ANSWERS = [
    ("00000000 00000000 00000000 00000000", "00000000 00000000", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
]


def use(monkeypatch, compiled):
    for module in (directions, fixed_order):
        monkeypatch.setattr(module, "_compiled", compiled)


@pytest.fixture(params=["compiled", "torch"])
def path(request, monkeypatch):
    if request.param == "torch":
        use(monkeypatch, None)
    elif COMPILED is None:
        pytest.skip("numba is not installed")
    return request.param


def hexadecimal(text):
    return tuple(int(word, 16) for word in text.split())


@pytest.mark.parametrize(("counter", "key", "output"), KNOWN_ANSWERS)
def test_known_answers(counter, key, output):
    counter, key, output = (hexadecimal(text) for text in (counter, key, output))
    assert philox.philox4x32(counter, key) == output
    tensors = tuple(torch.tensor([word]) for word in counter)
    assert tuple(int(word) for word in philox.philox4x32(tensors, key)) == output
    group, lane = divmod(counter[0], philox.LANES)
    made = philox.words(key, torch.tensor([counter[1]]), counter[2:], group, 1)
    assert tuple(made[0, 0, :, lane].tolist()) == output


@needs_numba
@pytest.mark.parametrize(("counter", "key", "output"), KNOWN_ANSWERS)
def test_known_answers_of_the_compiled_generator(counter, key, output):
    counter, key, output = (hexadecimal(text) for text in (counter, key, output))
    group, lane = divmod(counter[0], philox.LANES)
    made = np.empty(256, np.uint32)
    COMPILED._words(*key, *counter[1:], group, made)
    assert tuple(made.reshape(4, 64)[:, lane].tolist()) == output


DIGESTS = {
    "normal": "44bf3e8c46bb3060",
    "rademacher": "497ab415ca815fa2",
    "sphere": "636d90dd0776b6b1",
    "coordinate": "16fb870c5413cca5",
    "orthonormal": "9566f427226bd60d",
}


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_numbers_are_those_of_this_version(distribution, path):
    assert Directions.generator == "philox4x32-10/1"
    made = Directions(2**63 + 11, 777, distribution).block(2**40 + 3, [0, 5, 2])
    assert hashlib.sha256(made.numpy().tobytes()).hexdigest()[:16] == DIGESTS[distribution]


@needs_numba
@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
@pytest.mark.parametrize("d", [1, 2, 255, 256, 257, 8193, 70_001])
def test_compiled_and_torch_paths_have_the_same_bits(distribution, d, monkeypatch):
    rows = [0, 3, 1] if distribution == "orthonormal" else [0, 3, 2**32 - 1]
    made = []
    for compiled in (COMPILED, None):
        use(monkeypatch, compiled)
        u = Directions(7 + 2**45, d, distribution)
        made.append([u.block(2**33 + 1, rows, dtype) for dtype in DTYPES])
        for dtype in DTYPES:
            x = torch.linspace(-1, 1, d, dtype=torch.float64).to(dtype)
            made[-1].append(u.add_to(x, 9, 2, 0.37))
    assert all(torch.equal(a, b) for a, b in zip(*made, strict=True))


@needs_numba
def test_compiled_and_torch_frames_have_the_same_bits(monkeypatch):
    for d in (1, 2, 5, 32, 100, 128):
        frames = []
        for compiled in (COMPILED, None):
            use(monkeypatch, compiled)
            u = Directions(1, d, "orthonormal")
            frames.append(torch.stack([u.block(step, min(d, 4)) for step in range(30)]))
        assert torch.equal(*frames)


@needs_numba
def test_compiled_and_torch_normals_agree_over_many_words():
    n = 1 << 21
    fast = Directions(3, n).row(1, 1, dtype=torch.float32)
    words = philox.words((3, 0), torch.tensor([1]), (1, 0), 0, n // 256)
    assert torch.equal(normal.normals(words).flatten(), fast)


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_any_chunk_any_order_any_thread_count(distribution, path, monkeypatch):
    d = 300 if distribution == "orthonormal" else 20_001
    u = Directions(5, d, distribution)
    whole = u.block(2, 4)
    for start, stop in [(0, 1), (1, 255), (255, 257), (d // 3, d // 2 + 1), (d - 1, d), (7, 7)]:
        fresh = Directions(5, d, distribution)
        assert torch.equal(fresh.row(2, 3, start, stop), whole[3, start:stop])
    assert torch.equal(u.block(2, [3, 0, 3]), whole[[3, 0, 3]])
    monkeypatch.setattr(directions, "CHUNK", 1024)
    assert torch.equal(Directions(5, d, distribution).block(2, 4), whole)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(3 - min(2, threads))
        assert torch.equal(Directions(5, d, distribution).block(2, 4), whole)
    finally:
        torch.set_num_threads(threads)
    with ThreadPoolExecutor(3) as pool:
        rows = list(pool.map(lambda row: Directions(5, d, distribution).row(2, row), range(4)))
    assert torch.equal(torch.stack(rows), whole)


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_dtype_rounds_one_number(distribution, path):
    u = Directions(5, 500, distribution)
    wide = u.block(1, 3)
    single = u.block(1, 3, torch.float32)
    assert torch.equal(single, wide.float())
    if distribution in ("normal", "rademacher", "coordinate"):
        assert torch.equal(single.double(), wide)
    for dtype in (torch.float16, torch.bfloat16):
        assert torch.equal(u.block(1, 3, dtype), single.to(dtype))


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_add_to_rounds_product_and_sum(distribution, dtype, path):
    d = 200 if distribution == "orthonormal" else 9000
    u = Directions(5, d, distribution)
    x = torch.linspace(-2, 2, d, dtype=torch.float64).to(dtype)
    wide = torch.promote_types(dtype, torch.float32)
    expected = (x.to(wide) + u.row(3, 1, dtype=wide) * 0.1).to(dtype)
    pieces = x.clone()
    assert u.add_to(x, 3, 1, 0.1) is x
    assert torch.equal(x, expected)
    for start in range(0, d, 331):
        u.add_to(pieces[start : start + 331], 3, 1, 0.1, start)
    assert torch.equal(pieces, expected)


def test_add_to_shapes_parameters_and_strided_tensors(path):
    u = Directions(5, 12)
    row = u.row(3, 1)
    matrix = torch.zeros(3, 4, dtype=torch.float64)
    assert torch.equal(u.add_to(matrix, 3, 1, 2.0).flatten(), 2 * row)
    strided = torch.zeros(4, 3, dtype=torch.float64).T
    assert torch.equal(u.add_to(strided, 3, 1, 2.0).flatten(), 2 * row)
    parameter = torch.nn.Parameter(torch.zeros(12, dtype=torch.float64))
    loss = parameter.square().sum()
    version = parameter._version
    u.add_to(parameter, 3, 1, 2.0)
    assert torch.equal(parameter.detach(), 2 * row) and parameter._version > version
    with pytest.raises(RuntimeError, match="inplace"):
        loss.backward()


class LargestAllocation(TorchDispatchMode):
    def __init__(self, x):
        super().__init__()
        self.x, self.largest = x.untyped_storage().data_ptr(), 0

    def __torch_dispatch__(self, function, kinds, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, tuple | list) else (out,):
            if isinstance(tensor, torch.Tensor) and tensor.untyped_storage().data_ptr() != self.x:
                self.largest = max(self.largest, tensor.untyped_storage().nbytes())
        return out


@pytest.mark.parametrize("distribution", STREAMED)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_add_to_makes_no_large_temporary(distribution, dtype, path):
    x = torch.zeros(600_000, dtype=dtype)
    with LargestAllocation(x) as log:
        Directions(1, len(x), distribution).add_to(x, 0, 0, 0.1)
    assert x.count_nonzero() > 0
    assert log.largest <= 32 * directions.CHUNK


def test_global_generators_are_left_alone(path):
    states = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    before = Directions(1, 100).row(0, 0)
    torch.manual_seed(12345)
    assert torch.equal(Directions(1, 100).row(0, 0), before)
    torch.set_rng_state(states[0])
    for distribution in DISTRIBUTIONS:
        Directions(1, 100, distribution).block(0, 3)
    assert torch.equal(torch.get_rng_state(), states[0])
    assert (np.random.get_state()[1] == states[1]).all()  # noqa: NPY002


def test_axes_are_unit_vectors():
    axes = Directions(0, 5, "axis")
    assert torch.equal(axes.block(7, 5), torch.eye(5, dtype=torch.float64))
    assert torch.equal(axes.row(0, 3, 2, 5), torch.tensor([0.0, 1.0, 0.0], dtype=torch.float64))
    assert axes.row(0, 1, dtype=torch.float32).dtype == torch.float32
    for start in (0, 2, 4):
        x = torch.full((1,), -0.0, dtype=torch.float64)
        axes.add_to(x, 0, 2, 1.5, start)
        assert math.copysign(1.0, float(x)) * float(x) == (1.5 if start == 2 else 0.0)
        assert start == 2 or math.copysign(1.0, float(x)) == -1.0
    table = torch.zeros(2, 5, dtype=torch.float64).T
    axes = Directions(0, 10, "axis")
    assert torch.equal(axes.add_to(table, 0, 3, 2.0), torch.tensor([[0.0, 0.0], [0.0, 2.0], *[[0.0, 0.0]] * 3]))
    with pytest.raises(ValueError, match="row must be under 10"):
        axes.row(0, 10)


@pytest.mark.parametrize("distribution", [*DISTRIBUTIONS, "axis"])
def test_copies_give_the_same_numbers(distribution):
    u = Directions(1, 50, distribution)
    row = u.row(3, 4)
    for other in (copy.deepcopy(u), pickle.loads(pickle.dumps(u)), eval(repr(u))):
        assert torch.equal(other.row(3, 4), row)


def test_square_root_is_the_correctly_rounded_one():
    for dtype in (np.float32, np.float64):
        x = np.random.default_rng(0).random(1000).astype(dtype) * 300
        with mpmath.workdps(60):
            exact = [float(dtype(mpmath.nstr(mpmath.sqrt(mpmath.mpf(float(v))), 40))) for v in x]
        assert normal.square_root(torch.from_numpy(x)).tolist() == exact


def exact_pair(a, b):
    """The documented transform of two words, in 40 digits."""
    with mpmath.workdps(40):
        u = mpmath.mpf(float(min(np.float32(a >> 1) + np.float32(0.5), np.float32(2.0**31 - 128)))) / 2**31
        r = mpmath.sqrt(-2 * mpmath.log(u)) * (-1 if b >> 31 else 1)
        inside = ((b << 2) & 0xFFFFFFFF) | 2
        inside -= 2**32 if inside >= 2**31 else 0
        angle = mpmath.mpf(inside) * mpmath.pi / 2**33
        pair = r * mpmath.cos(angle), r * mpmath.sin(angle)
        return pair[::-1] if (b >> 30) & 1 else pair


def test_normals_are_the_exact_box_muller_transform_of_the_words():
    edges = [0, 1, 2, 3, 2**30 - 1, 2**30, 2**31 - 1, 2**31, 3 * 2**30, 2**32 - 129, 2**32 - 1]
    random = np.random.default_rng(0).integers(0, 2**32, (2, 2000))
    grid = np.array([(p, q) for p in edges for q in edges]).T
    a, b = np.concatenate((grid, random), axis=1)
    made = normal.normal_pairs(torch.from_numpy(a), torch.from_numpy(b))
    exact = np.array([exact_pair(p, q) for p, q in zip(a.tolist(), b.tolist(), strict=True)], dtype=float).T
    for ours, theirs in zip(made, exact, strict=True):
        assert np.abs(ours.numpy() / theirs - 1).max() < 4e-7
        assert (ours != 0).all()
    assert 6.6 < max(value.abs().max() for value in made) < math.sqrt(2 * 32 * math.log(2)) + 1e-6


SAMPLE = 1 << 21


@pytest.fixture(scope="module")
def sample():
    return torch.cat([Directions(seed, SAMPLE // 2).row(3, 1) for seed in (0, 1)])


def test_normals_pass_kolmogorov_smirnov(sample):
    assert stats.kstest(sample.numpy(), "norm").pvalue > 1e-3
    for part in (
        sample.view(-1, 256)[:, :128],
        sample.view(-1, 256)[:, 128:],
        sample.abs().view(-1, 2)[:, 0],
    ):
        flat = part.flatten().numpy()
        cdf = stats.halfnorm.cdf if (flat >= 0).all() else stats.norm.cdf
        assert stats.kstest(flat, cdf).pvalue > 1e-3


@pytest.mark.parametrize("power", range(1, 9))
def test_normal_moments(sample, power):
    expected = 0.0 if power % 2 else math.prod(range(1, power, 2))
    spread = math.sqrt(math.prod(range(1, 2 * power, 2)) - expected**2)
    assert abs(sample.pow(power).mean() - expected) < 4.5 * spread / math.sqrt(SAMPLE)


@pytest.mark.parametrize("threshold", [1.0, 2.0, 3.0, 4.0, 4.5])
def test_normal_tails(sample, threshold):
    for count in ((sample > threshold).sum(), (sample < -threshold).sum()):
        expected = SAMPLE * stats.norm.sf(threshold)
        assert abs(count - expected) < 4.5 * math.sqrt(expected)


def test_normals_are_uncorrelated_along_coordinates_and_between_addresses():
    d = 1 << 18
    addresses = [(0, 0, 0), (1, 0, 0), (2**32, 0, 0), (0, 1, 0), (0, 2**32, 0), (0, 0, 1), (0, 1, 1)]
    rows = torch.stack([Directions(seed, d).row(step, row) for seed, step, row in addresses])
    off = ~torch.eye(len(rows), dtype=torch.bool)
    for made in (rows, rows.square() - 1, rows.abs().log()):
        centered = made - made.mean(-1, keepdim=True)
        correlation = torch.corrcoef(centered)
        assert correlation[off].abs().max() < 4.5 / math.sqrt(d)
        for lag in (1, 2, 4, 63, 64, 127, 128, 192, 255, 256, 512):
            first, second = centered[0, :-lag], centered[0, lag:]
            assert abs((first * second).mean() / centered[0].var()) < 4.5 / math.sqrt(d)


@pytest.mark.parametrize("distribution", ["normal", "rademacher", "sphere", "orthonormal"])
def test_addresses_do_not_collide(distribution):
    addresses = [(s, t, r) for s in (0, 1, 2**32, 2**63) for t in (0, 1, 2**32, 2**55) for r in (0, 1, 7, 2**31)]
    if distribution == "orthonormal":
        addresses = [(s, t, r) for s, t, r in addresses if r < 8]
    made = torch.stack([Directions(s, 100, distribution).row(t, r) for s, t, r in addresses])
    assert len(torch.unique(made, dim=0)) == len(addresses)


def test_signs_are_balanced_and_independent_of_the_normals():
    d = 1 << 20
    signs = Directions(4, d, "rademacher").row(2, 1)
    assert torch.equal(signs.abs(), torch.ones(d).double())
    for part in signs.view(-1, 8192).T.reshape(32, -1):
        assert abs(part.sum()) < 4.5 * math.sqrt(len(part))
    for lag in (1, 64, 256, 512, 8192):
        assert abs((signs[:-lag] * signs[lag:]).sum()) < 4.5 * math.sqrt(d)
    assert abs((signs * Directions(4, d).row(2, 1)).sum()) < 4.5 * math.sqrt(d)


def test_sphere_is_uniform():
    d, n = 5, 4000
    u = Directions(0, d, "sphere").block(1, n)
    torch.testing.assert_close(u.norm(dim=-1), torch.ones(n).double(), rtol=1e-15, atol=0)
    for j in range(d):
        assert stats.kstest((u[:, j].numpy() + 1) / 2, stats.beta((d - 1) / 2, (d - 1) / 2).cdf).pvalue > 1e-3
    z = Directions(0, d, "normal").block(1, n)
    torch.testing.assert_close(u, z / z.norm(dim=-1, keepdim=True))
    assert set(Directions(0, 1, "sphere").block(0, 100).flatten().tolist()) == {-1.0, 1.0}


def test_coordinates_are_uniform_unit_vectors():
    d, n = 7, 7000
    u = Directions(0, d, "coordinate").block(1, n)
    assert torch.equal(u.sum(-1), torch.ones(n).double()) and ((u == 0) | (u == 1)).all()
    assert stats.chisquare(u.sum(0).numpy()).pvalue > 1e-3


def test_orthonormal_rows(path):
    d = 40
    u = Directions(0, d, "orthonormal")
    block = u.block(1, 2 * d)
    eye = torch.eye(d, dtype=torch.float64)
    torch.testing.assert_close(block[:d] @ block[:d].T, eye, atol=1e-14, rtol=0)
    torch.testing.assert_close(block[d:] @ block[d:].T, eye, atol=1e-14, rtol=0)
    z = Directions(0, d).block(1, d)
    q, r = torch.linalg.qr(z.T)
    torch.testing.assert_close(block[:d], (q * r.diagonal().sign()).T, atol=1e-9, rtol=0)
    for row in (0, d - 1, d, 2 * d - 1):
        assert torch.equal(Directions(0, d, "orthonormal").row(1, row), block[row])
    grown = Directions(0, d, "orthonormal")
    assert all(torch.equal(grown.row(1, row), block[row]) for row in (0, 1, 5, 3, d + 1, 6))
    assert torch.equal(u.block(1, 3), block[:3])
    assert torch.equal(u.block(1, [5, d + 2, 1]), block[[5, d + 2, 1]])


def test_orthonormal_rows_are_haar():
    d, n = 4, 3000
    u = Directions(0, d, "orthonormal")
    frames = torch.stack([u.block(step, d) for step in range(n)])
    cdf = stats.beta((d - 1) / 2, (d - 1) / 2).cdf
    for i in range(d):
        for j in range(d):
            assert stats.kstest((frames[:, i, j].numpy() + 1) / 2, cdf).pvalue > 1e-4
    determinants = torch.linalg.det(frames).round()
    assert abs(determinants.sum()) < 4.5 * math.sqrt(n)


def test_orthonormal_rows_of_nearly_dependent_vectors():
    v = torch.ones(3, 50, dtype=torch.float64)
    v[1:] += 1e-9 * torch.from_numpy(np.random.default_rng(0).standard_normal((2, 50)))
    q = fixed_order.orthonormalize(v)
    torch.testing.assert_close(q @ q.T, torch.eye(3, dtype=torch.float64), atol=1e-14, rtol=0)


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_second_moment(distribution):
    d, n = 6, 5000
    directions_ = Directions(0, d, distribution)
    u = torch.cat([directions_.block(step, 2) for step in range(n)])
    moment = u.T @ u / len(u)
    expected = directions_.second_moment * torch.eye(d).double()
    spread = (u.unsqueeze(2) * u.unsqueeze(1)).std(0) / math.sqrt(len(u))
    assert ((moment - expected).abs() <= 4.5 * spread + 1e-12).all()


def share_by_quadrature(distribution, d, a, b):
    """E[u clip(u, −a, b)]/E[u²] over the density of one coordinate, or the sum over its values."""
    if distribution == "rademacher" or (distribution in ("sphere", "orthonormal") and d == 1):
        return np.mean([min(1.0, a), min(1.0, b)])
    if distribution == "coordinate":
        return min(1.0, b)
    if distribution == "normal":
        weight, value, ends = stats.norm.pdf, float, [-6.6, -a, b, 6.6]
    else:
        weight, value, ends = (lambda t: math.cos(t) ** (d - 2)), math.sin, [-math.pi / 2, math.pi / 2]
        ends += [-math.asin(min(1.0, a)), math.asin(min(1.0, b))]

    def mean(f):
        ordered = sorted({min(max(e, min(ends)), max(ends)) for e in ends if math.isfinite(e)})
        return sum(integrate.quad(lambda t: weight(t) * f(value(t)), *pair)[0] for pair in itertools.pairwise(ordered))

    return mean(lambda u: u * min(max(u, -a), b)) / mean(lambda u: u * u)


@pytest.mark.parametrize("d", [1, 2, 3, 30])
@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_the_share_that_clipping_leaves(distribution, d):
    a = torch.tensor([0.0, 0.0, 0.3, 0.0, 1e-3, 0.05, 0.7, math.inf], dtype=torch.float64)
    b = torch.tensor([0.0, 0.2, 0.1, math.inf, 1e-3, 0.4, 1.5, math.inf], dtype=torch.float64)
    share = Directions(0, d, distribution).clipped_share(a, b)
    expected = [share_by_quadrature(distribution, d, *pair) for pair in zip(a.tolist(), b.tolist(), strict=True)]
    torch.testing.assert_close(share, torch.tensor(expected, dtype=torch.float64), rtol=1e-7, atol=1e-9)
    assert share[0] == 0.0 and share[-1] == 1.0


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_no_coordinate_exceeds_the_reach(distribution):
    directions_ = Directions(0, 3, distribution)
    assert float(directions_.block(0, 999).abs().max()) <= directions_.reach * (1 + 1e-15)


def test_bad_input():
    u = Directions(0, 10)
    for seed in (-1, 2**64):
        with pytest.raises(ValueError, match="seed"):
            Directions(seed, 10)
    for bad in (1.0, "1", None, torch.tensor(1.5)):
        with pytest.raises(TypeError, match="integer"):
            Directions(bad, 10)
    with pytest.raises(ValueError, match="d must be at least 1"):
        Directions(0, 0)
    with pytest.raises(ValueError, match="orthonormal"):
        Directions(0, 10, "gaussian")
    for step, row in ((-1, 0), (2**56, 0), (0, -1), (0, 2**32)):
        with pytest.raises(ValueError, match=r"(step|row) must be (at least 0|under)"):
            u.row(step, row)
    for start, stop in ((-1, 5), (0, 11), (6, 5)):
        with pytest.raises(ValueError, match=r"st(art|op) must be (at least 0|under)"):
            u.row(0, 0, start, stop)
    with pytest.raises(TypeError, match="dtype"):
        u.row(0, 0, dtype=torch.int64)
    with pytest.raises(TypeError, match="integer"):
        u.block(0, 2.0)
    x = torch.zeros(10)
    with pytest.raises(ValueError, match="scale"):
        u.add_to(x, 0, 0, math.nan)
    with pytest.raises(ValueError, match="stop"):
        u.add_to(x, 0, 0, 1.0, start=1)
    with pytest.raises(ValueError, match="stop"):
        u.add_to(torch.zeros(11), 0, 0, 1.0)
    with pytest.raises(TypeError, match="dtype"):
        u.add_to(torch.zeros(10, dtype=torch.int64), 0, 0, 1.0)
    with pytest.raises(TypeError, match="Tensor"):
        u.add_to(np.zeros(10), 0, 0, 1.0)
    assert (x == 0).all()


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("compiled", [True, False])
def test_cuda_has_the_same_bits(distribution, dtype, compiled, monkeypatch):
    if compiled:
        pytest.importorskip("triton")
    else:
        monkeypatch.setattr(directions, "compiled", lambda *names: None)
    d = 300 if distribution == "orthonormal" else 1_000_003
    cpu, cuda = Directions(3, d, distribution), Directions(3, d, distribution)
    assert torch.equal(cuda.block(1, 3, dtype, "cuda").cpu(), cpu.block(1, 3, dtype))
    x = torch.linspace(-1, 1, d, dtype=torch.float64).to(dtype)
    assert torch.equal(cuda.add_to(x.cuda(), 1, 2, 0.3).cpu(), cpu.add_to(x, 1, 2, 0.3))


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("distribution", ["normal", "rademacher"])
def test_more_rows_than_cuda_has_blocks_along_an_axis_on_the_last_device(distribution):
    u, rows, last = Directions(3, 5, distribution), range(70_000), torch.cuda.device_count() - 1
    made = u.block(1, rows, torch.float32, torch.device("cuda", last))
    assert torch.equal(made.cpu(), u.block(1, rows, torch.float32))
