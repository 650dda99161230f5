import pytest
import torch

from optimizers import Directions
from optimizers.directions import metric
from optimizers.directions.metric import compute_dtype
from optimizers.methods.hiso import update as update_module
from optimizers.methods.hiso.update import learn, update
from tests.memory import printed, reads_peak

D = 1500
TERMS = [(3, 0, 0.7), (3, 1, -1.3), (2**40 + 1, 5, 0.25)]
RULE = (0.3, 1e-3, 0.5, 2.5)
DTYPES = (torch.float64, torch.float32, torch.bfloat16)


def tensors(dtype, d=D):
    wide = compute_dtype(dtype)
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(d, generator=generator, dtype=torch.float64).to(dtype)
    hessian = torch.rand(d, generator=generator, dtype=torch.float64).add(0.5).to(wide)
    momentum = torch.randn(d, generator=generator, dtype=torch.float64).to(wide)
    return x, hessian, momentum


def updated(dtype, distribution="normal", d=D):
    x, hessian, momentum = tensors(dtype, d)
    directions = Directions(7, d, distribution)
    update(x, directions, TERMS, 0.1, hessian=hessian, learning=RULE, momentum=momentum, decay=0.6)
    return x, hessian, momentum


def same(ours, theirs):
    return all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


@pytest.mark.slip(
    "optimizers/methods/hiso/update_numba.py",
    "d[j] = d[j] / np.sqrt(h[j])",
    "d[j] = d[j] / h[j]",
    "a step along H⁻¹u, not H^(-1/2)u (HiSo Alg. 2a, line 5)",
    of="optimizers/hiso federated/hiso",
)
@pytest.mark.slip(
    "optimizers/methods/hiso/update_numba.py",
    "target[j] = target[j] - rate * d[j]",
    "target[j] = target[j] + rate * d[j]",
    "a step along the gradient",
    of="optimizers/hiso optimizers/decomfl federated/hiso federated/decomfl",
)
@pytest.mark.slip(
    "optimizers/methods/hiso/update.py",
    "_rounded((rate, decay, 1.0 - decay, 1.0 - nu, nu, *others), dtype)",
    "_rounded((rate, decay, 1.0 - decay, nu, 1.0 - nu, *others), dtype)",
    "ν and 1 - ν, swapped (HiSo eq. 12)",
    of="optimizers/hiso federated/hiso",
)
@pytest.mark.slip(
    "optimizers/methods/hiso/update.py",
    "_rounded((rate, decay, 1.0 - decay, 1.0 - nu",
    "_rounded((rate, 1.0 - decay, decay, 1.0 - nu",
    "the weights of the momentum, swapped",
    of="optimizers/hiso optimizers/decomfl federated/hiso federated/decomfl",
)
@pytest.mark.parametrize("distribution", ["normal", "rademacher"])
def test_update_is_its_formula(distribution):
    x, hessian, momentum = tensors(torch.float64)
    u = Directions(7, D, distribution)
    delta = sum(c * u.row(step, row) for step, row, c in TERMS) * hessian**-0.5
    m = 0.6 * momentum + 0.4 * delta
    h = ((1 - 0.3) * hessian + 0.3 * (delta**2 + 1e-3)).clip(0.5, 2.5)
    assert (h == 0.5).any() and (h == 2.5).any() and ((h > 0.5) & (h < 2.5)).any()
    for ours, theirs in zip(updated(torch.float64, distribution), (x - 0.1 * m, h, m), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-14, atol=1e-14)


def test_each_part_may_be_absent():
    x, hessian, _ = tensors(torch.float64)
    u = Directions(7, D)
    sums = sum(c * u.row(step, row) for step, row, c in TERMS)
    moved, kept = x.clone(), hessian.clone()
    update(moved, u, TERMS, 0.1)
    torch.testing.assert_close(moved, x - 0.1 * sums, rtol=1e-14, atol=1e-14)
    moved = x.clone()
    update(moved, u, TERMS, 0.1, hessian=kept)
    torch.testing.assert_close(moved, x - 0.1 * sums / hessian.sqrt(), rtol=1e-14, atol=1e-14)
    assert torch.equal(kept, hessian)


LESSONS = [TERMS[:2], TERMS[2:], TERMS]


def learned(dtype, distribution="normal", d=D):
    _, hessian, _ = tensors(dtype, d)
    learn(hessian, Directions(7, d, distribution), LESSONS, RULE)
    return (hessian,)


@pytest.mark.parametrize("distribution", ["normal", "rademacher"])
def test_learning_in_turn_is_its_formula_with_the_root_of_the_first_h(distribution):
    """Eq. 12's chain of displacements that were all made with the H before it."""
    _, start, _ = tensors(torch.float64)
    u, h, others = Directions(7, D, distribution), start, start
    for terms in LESSONS:
        sums = sum(c * u.row(step, row) for step, row, c in terms)
        h = ((1 - 0.3) * h + 0.3 * (sums**2 / start + 1e-3)).clip(0.5, 2.5)
        others = ((1 - 0.3) * others + 0.3 * (sums**2 / others + 1e-3)).clip(0.5, 2.5)
    (ours,) = learned(torch.float64, distribution)
    torch.testing.assert_close(ours, h, rtol=1e-13, atol=0)
    assert float((ours - others).abs().max()) > 0.01


@pytest.mark.parametrize("dtype", DTYPES)
def test_one_lesson_is_the_updates_bit_for_bit(dtype):
    x, hessian, _ = tensors(dtype)
    alone = hessian.clone()
    update(x, Directions(7, D), TERMS, 0.1, hessian=hessian, learning=RULE)
    learn(alone, Directions(7, D), [TERMS], RULE)
    assert torch.equal(alone, hessian)


@pytest.mark.parametrize("dtype", DTYPES)
def test_ones_are_no_hessian(dtype):
    (x, ones, _), u = tensors(dtype), Directions(7, D)
    ones.fill_(1.0)
    without = x.clone()
    update(x, u, TERMS, 0.1, hessian=ones)
    update(without, u, TERMS, 0.1)
    assert torch.equal(x, without)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("distribution", ["normal", "rademacher"])
def test_compiled_and_torch_are_the_same_bits(dtype, distribution, monkeypatch):
    if update_module._compiled is None:
        pytest.skip("numba is not installed")
    d = 20_000
    compiled = updated(dtype, distribution, d) + learned(dtype, distribution, d)
    monkeypatch.setattr(update_module, "_compiled", None)
    assert same(updated(dtype, distribution, d) + learned(dtype, distribution, d), compiled)


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("distribution", ["normal", "rademacher"])
def test_bits_depend_on_neither_chunks_nor_threads(dtype, distribution, compiled, monkeypatch):
    if not compiled:
        monkeypatch.setattr(update_module, "_compiled", None)
    whole = updated(dtype, distribution) + learned(dtype, distribution)
    threads = torch.get_num_threads()
    try:
        for count in (1, 2, 5):
            torch.set_num_threads(count)
            for chunk in (D, 256, 257, 100):
                for module in (metric, update_module):
                    monkeypatch.setattr(module, "CHUNK", chunk)
                assert same(updated(dtype, distribution) + learned(dtype, distribution), whole)
    finally:
        torch.set_num_threads(threads)


MEMORY = """
import torch
from optimizers import Directions
from optimizers.methods.hiso.update import update

def step(d):
    x, hessian = torch.ones(d), torch.ones(d)
    start_meter()
    eq12 = (0.05, 1e-8, 0.0, torch.inf)
    update(x, Directions(0, d), [(0, 0, 1.0), (0, 1, 0.5)], 1e-3, hessian=hessian, learning=eq12)
    return grown()

step(1000)
print(step(10**8))
"""


@pytest.mark.slow
@reads_peak
def test_temporaries_of_one_update_of_1e8_coordinates_are_under_64_mb():
    (grown,) = printed(MEMORY)
    assert grown < 64e6
