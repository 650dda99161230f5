import numpy as np
import pytest
import torch

from optimizers.designs import latin_hypercube, local_cloud, sobol
from optimizers.methods.bayesian.unit_box import UnitBox


@pytest.mark.parametrize(("n", "d"), [(1, 1), (7, 3), (100, 20), (513, 2)])
def test_latin_hypercube_has_one_point_in_each_stratum(n, d):
    X = latin_hypercube(n, d, seed=3)
    assert X.dtype == torch.float64 and X.shape == (n, d)
    strata = (X * n).floor().long()
    expected = torch.arange(n)[:, None].expand(n, d)
    assert torch.equal(strata.sort(dim=0).values, expected)


def test_latin_hypercube_columns_are_independent_and_uniform_within_strata():
    n, runs = 20, 400
    X = torch.stack([latin_hypercube(n, 2, seed) for seed in range(runs)])
    products = ((X[..., 0] - 0.5) * (X[..., 1] - 0.5)).mean(dim=1)
    assert abs(float(products.mean())) < 5 * float(products.std()) / runs**0.5
    within = (X * n - (X * n).floor()).flatten().sort().values
    uniform = (torch.arange(len(within)) + 0.5) / len(within)
    assert float((within - uniform).abs().max()) < 1.63 / len(within) ** 0.5


def test_designs_are_functions_of_the_seed_and_leave_global_state():
    np.random.seed(1)  # noqa: NPY002
    torch.manual_seed(1)
    before = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    makers = [
        lambda s: latin_hypercube(9, 4, s),
        lambda s: sobol(9, 4, s),
        lambda s: local_cloud(torch.zeros(4), 9, 1.0, s),
    ]
    for make in makers:
        first = make(5)
        torch.rand(3, generator=torch.Generator().manual_seed(0))
        assert torch.equal(first, make(5)) and not torch.equal(first, make(6))
    assert torch.equal(before[0], torch.get_rng_state())
    assert (before[1] == np.random.get_state()[1]).all()  # noqa: NPY002


def test_sobol_is_balanced():
    X = sobol(64, 5, seed=np.random.default_rng(0))
    counts = torch.stack([(X * 64).floor().long()[:, j].bincount(minlength=64) for j in range(5)])
    assert bool((counts == 1).all())


def test_designs_do_not_depend_on_the_default_dtype():
    designs = []
    for dtype in (torch.float32, torch.float64):
        torch.set_default_dtype(dtype)
        try:
            cloud = local_cloud(torch.ones(3, dtype=torch.float64), 4, 0.1, 0)
            designs.append((sobol(16, 3, 1), latin_hypercube(16, 3, 1), cloud))
        finally:
            torch.set_default_dtype(torch.float32)
    assert all(map(torch.equal, *designs))
    reference = torch.quasirandom.SobolEngine(3, scramble=True, seed=1).draw(16)
    assert torch.allclose(designs[0][0].float(), reference, atol=1e-7)


@pytest.mark.parametrize("distribution", ["sphere", "orthonormal", "coordinate", "rademacher"])
def test_local_cloud_lies_on_the_sphere(distribution):
    center = torch.linspace(-2, 3, 6, dtype=torch.float64)
    cloud = local_cloud(center, 15, 0.3, seed=2, distribution=distribution)
    assert torch.allclose((cloud - center).norm(dim=1), torch.full((15,), 0.3, dtype=torch.float64), rtol=1e-12)


def test_local_cloud_orthonormal_rows_span_the_space_and_normal_has_the_root_mean_square():
    steps = local_cloud(torch.zeros(6, dtype=torch.float64), 6, 2.0, seed=0, distribution="orthonormal")
    assert torch.allclose(steps @ steps.T, 4.0 * torch.eye(6, dtype=torch.float64), atol=1e-12)
    normal = local_cloud(torch.zeros(6, dtype=torch.float64), 4000, 2.0, seed=0, distribution="normal")
    squares = normal.square().sum(1)
    assert abs(float(squares.mean()) - 4.0) < 5 * float(squares.std()) / 4000**0.5


def test_bad_designs_are_refused():
    with pytest.raises(ValueError, match="num_points"):
        latin_hypercube(0, 2, 0)
    with pytest.raises(TypeError, match="dimension"):
        latin_hypercube(3, 2.5, 0)
    with pytest.raises(ValueError, match="21201"):
        sobol(3, 30000, 0)
    with pytest.raises(ValueError, match="radius"):
        local_cloud(torch.zeros(3), 3, -1.0, 0)
    with pytest.raises(ValueError, match="shape"):
        local_cloud(torch.zeros(3, 2), 3, 1.0, 0)


def test_unit_box_keeps_fixed_coordinates_and_stays_inside():
    lower = torch.tensor([0.1, 2.0, -3.0], dtype=torch.float32)
    upper = torch.tensor([0.7, 2.0, 5.0], dtype=torch.float32)
    box = UnitBox(lower, upper, torch.tensor([0, 2]))
    u = torch.tensor([[0.0, 1.0], [1.0, 0.0], [0.25, 0.5]], dtype=torch.float64)
    z = box.from_unit(u)
    assert z.dtype == torch.float32 and bool(((z >= lower) & (z <= upper)).all())
    assert bool((z[:, 1] == 2.0).all())
    assert torch.allclose(box.to_unit(z), u, atol=1e-6)
