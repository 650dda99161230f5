import pytest
import torch

from optimizers import Directions
from optimizers.directions import metric
from optimizers.directions.groups import GroupDiagonal, Groups
from optimizers.directions.metric import add_over_root, compute_dtype, over_root, squared_norm

D = 1500


def tensors(dtype):
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(D, generator=generator, dtype=torch.float64).to(dtype)
    return x, torch.rand(D, generator=generator, dtype=torch.float64).add(0.5).to(compute_dtype(dtype))


@pytest.mark.slip(
    "optimizers/directions/directions_numba.py",
    "scale * (source[j] / np.sqrt(h[j]))",
    "scale * (source[j] / h[j])",
    "queries along H⁻¹u, not H^(-1/2)u (HiSo Alg. 2b, line 4)",
    of="optimizers/hiso federated/hiso",
)
@pytest.mark.parametrize("distribution", ["normal", "rademacher", "sphere"])
def test_a_direction_is_added_by_its_formula(distribution):
    x, h = tensors(torch.float64)
    u = Directions(7, D, distribution)
    expected = x - 0.3 * u.row(3, 1) / h.sqrt()
    torch.testing.assert_close(add_over_root(x, u, 3, 1, -0.3, h), expected, rtol=1e-14, atol=1e-14)


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("distribution", ["normal", "rademacher"])
def test_bits_depend_on_neither_compilation_nor_chunks_threads_or_pieces(dtype, distribution, compiled, monkeypatch):
    if compiled and metric._compiled is None:
        pytest.skip("numba is not installed")
    (x, h), u = tensors(dtype), Directions(7, D, distribution)
    whole = add_over_root(x.clone(), u, 2**40 + 1, 5, 0.7, h)
    if not compiled:
        monkeypatch.setattr(metric, "_compiled", None)
    threads = torch.get_num_threads()
    try:
        for count in (1, 3):
            torch.set_num_threads(count)
            for chunk in (D, 257, 100):
                monkeypatch.setattr(metric, "CHUNK", chunk)
                assert torch.equal(add_over_root(x.clone(), u, 2**40 + 1, 5, 0.7, h), whole)
    finally:
        torch.set_num_threads(threads)
    for low, high in ((0, 1), (1, 300), (300, 1025), (1025, D)):
        add_over_root(x[low:high], u, 2**40 + 1, 5, 0.7, h[low:high], low)
    assert torch.equal(x, whole)


def test_one_number_a_group_is_the_dense_metric_bitwise(monkeypatch):
    (x, _), u, groups = tensors(torch.float64), Directions(7, D), Groups(7, D)
    diagonal = GroupDiagonal(groups, torch.linspace(0.3, 4.0, 7, dtype=torch.float64))
    dense = add_over_root(x.clone(), u, 1, 0, 0.3, diagonal.tensor())
    monkeypatch.setattr(metric, "CHUNK", 100)
    assert torch.equal(add_over_root(x.clone(), u, 1, 0, 0.3, diagonal), dense)
    piece = x[250:450].clone()
    assert torch.equal(add_over_root(piece, u, 1, 0, 0.3, diagonal[250:450], 250), dense[250:450])


@pytest.mark.parametrize("d", [1, 255, 256, 9000])
@pytest.mark.parametrize("distribution", ["normal", "rademacher"])
def test_squared_norm(d, distribution, monkeypatch):
    hessian = torch.linspace(0.5, 3.0, d, dtype=torch.float32)
    u = Directions(2, d, distribution)
    values = squared_norm(u, 4, 3, hessian), squared_norm(u, 4, 3)
    row = u.row(4, 3)
    assert values == pytest.approx((float((row**2 / hessian.double()).sum()), float((row**2).sum())), rel=1e-14)
    monkeypatch.setattr(metric, "_compiled", None)
    monkeypatch.setattr(metric, "CHUNK", 512)
    assert (squared_norm(u, 4, 3, hessian), squared_norm(u, 4, 3)) == values


def test_over_root():
    u, hessian = torch.randn(3, 50, generator=torch.Generator().manual_seed(0)), torch.linspace(0.1, 9.0, 50)
    torch.testing.assert_close(over_root(u, hessian), u * hessian.double().rsqrt().float(), rtol=3e-7, atol=0)
