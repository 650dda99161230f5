import pytest
import torch
from gpytorch.kernels import (
    LinearKernel,
    Matern52KernelGrad,
    MaternKernel,
    PeriodicKernel,
    RBFKernel,
    RBFKernelGrad,
    RQKernel,
    ScaleKernel,
)

from surrogates import UnsupportedKernelError
from surrogates.kernels.stationary import radial_profile
from tests.surrogates.reference import STEP, assert_close, kernel_function, mp, to_tensor

SQUARES = [1e-14, 1e-6, 1e-3, 0.3, 1.0, 4.7, 60.0]


def kernel(name):
    built = {
        "rbf": RBFKernel,
        "matern12": lambda: MaternKernel(nu=0.5),
        "matern32": lambda: MaternKernel(nu=1.5),
        "matern52": lambda: MaternKernel(nu=2.5),
        "rq": RQKernel,
    }[name]().double()
    built.lengthscale = torch.ones(1, 1, dtype=torch.float64)
    if name == "rq":
        built.alpha = torch.tensor([1.3], dtype=torch.float64)
    return built


def h(name):
    k = kernel_function(kernel(name))
    return lambda r2: k([mp.sqrt(r2)], [mp.mpf(0)])


def differences(function, r2):
    with mp.workdps(200):
        step = mp.mpf(r2) * STEP
        up, here, down = (function(mp.mpf(r2) + j * step) for j in (1, 0, -1))
        return here, (up - down) / (2 * step), (up - 2 * here + down) / step**2


@pytest.mark.slip(
    "surrogates/kernels/stationary.py",
    "return torch.exp(-0.5 * r2)",
    "return torch.exp(-r2)",
    "the squared exponential without 1/2 in its exponent",
)
@pytest.mark.slip(
    "surrogates/kernels/stationary.py",
    "return (-5 / 6) * (1 + a)",
    "return (-5 / 3) * (1 + a)",
    "h' of Matérn 5/2, doubled",
)
@pytest.mark.parametrize("name", ["rbf", "matern12", "matern32", "matern52", "rq"])
def test_profiles_and_their_derivatives_equal_differences_in_high_precision(name):
    profile = radial_profile(kernel(name))
    for r2 in SQUARES:
        value, first, second = map(to_tensor, differences(h(name), r2))
        at = torch.tensor([[r2]], dtype=torch.float64)
        assert_close(profile.h(at).squeeze(), value, 1e-14)
        assert_close(profile.h1(at).squeeze(), first, 1e-13)
        if name != "matern12":
            assert_close(profile.h2(at).squeeze(), second, 1e-13)


@pytest.mark.parametrize("name", ["rbf", "matern32", "matern52", "rq"])
def test_values_at_zero_are_the_limits(name):
    profile, zero = radial_profile(kernel(name)), torch.zeros(1, 1, dtype=torch.float64)
    near = mp.mpf(10) ** -30
    assert profile.h(zero) == 1
    assert_close(profile.h1(zero).squeeze(), to_tensor(differences(h(name), near)[1]), 1e-13)
    assert_close(-2 * profile.h1(zero).squeeze(), torch.tensor(profile.prior_curvature, dtype=torch.float64), 1e-15)
    if name == "matern32":
        assert profile.h2(zero) == 0
    else:
        assert_close(profile.h2(zero).squeeze(), to_tensor(differences(h(name), near)[2]), 1e-13)


@pytest.mark.parametrize("name", ["rbf", "matern32", "matern52", "rq"])
def test_derivatives_with_respect_to_points_are_finite_on_a_datum(name):
    profile = radial_profile(kernel(name))
    for function in (profile.h, profile.h1, profile.h2):
        r2 = torch.zeros(1, 1, dtype=torch.float64, requires_grad=True)
        function(r2).sum().backward()
        assert r2.grad.isfinite().all()


def test_matern_half_has_a_mean_and_no_covariance():
    profile = radial_profile(MaternKernel(nu=0.5))
    assert not profile.has_gradient
    with pytest.raises(ValueError, match=r"nu=0.5.*no gradient covariance.*nu=1.5"):
        profile.h2(torch.ones(1))
    with pytest.raises(ValueError, match=r"nu=0.5.*no gradient covariance"):
        profile.prior_curvature


def test_value_part_of_the_gradient_kernels():
    assert radial_profile(RBFKernelGrad()).name == "rbf"
    assert radial_profile(Matern52KernelGrad()).name == "matern52"


@pytest.mark.parametrize("unsupported", [PeriodicKernel, LinearKernel, lambda: ScaleKernel(RBFKernel())])
def test_other_kernels_are_refused_by_name(unsupported):
    other = unsupported()
    with pytest.raises(UnsupportedKernelError, match=rf"{type(other).__name__}.*RBFKernel, MaternKernel.*RQKernel"):
        radial_profile(other)


def test_a_subclass_is_not_taken_for_its_parent():
    class Warped(RBFKernel):
        def forward(self, x1, x2, **params):
            return super().forward(x1**3, x2**3, **params)

    with pytest.raises(UnsupportedKernelError, match="Warped"):
        radial_profile(Warped())
