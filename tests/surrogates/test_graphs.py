"""What is first read without gradients has its graph when it is read with them; ``torch.func`` works or is refused."""

import pytest
import torch

from surrogates import FourierFeatures, FourierSurrogate, GradientObservationGP, rbf_kernel
from tests.surrogates.gp_models import D, derived_gp, kernel_named, outcomes, points
from tests.surrogates.reference import assert_close


def both_reads(read):
    """A number read without gradients before it is read with them, and one read with them alone."""
    at, again = (points(2, seed=5).requires_grad_(True) for _ in range(2))
    holder = read(at)
    with torch.no_grad():
        value = holder()
        assert not value.requires_grad
        assert torch.equal(holder(), value)
    late, early = holder(), read(again)()
    assert_close(late, value, 1e-12)
    return (torch.autograd.grad(t.square().sum(), x)[0] for t, x in ((late, at), (early, again)))


GRADIENTS = ("mean", "trace", "variance", "covariance_matrix", "spectral_norm")


@pytest.mark.parametrize("kernel", ["matern 5/2", "sum of products"])
@pytest.mark.parametrize("name", GRADIENTS)
def test_a_gradient_that_was_read_without_gradients(name, kernel):
    gp = derived_gp(kernel_named(kernel))

    def read(at):
        posterior = gp.gradient_posterior(at)
        return lambda: getattr(posterior, name)

    assert_close(*both_reads(read), 1e-12)


def test_a_hessian_and_samples_that_were_read_without_gradients():
    gp = derived_gp()

    def hessian(at):
        posterior = gp.hessian_posterior(at)
        return lambda: posterior.mean

    def variance(at):
        posterior = gp.hessian_posterior(at)
        return lambda: posterior.variance

    def samples(at):
        posterior, base = gp.joint_posterior(at), torch.ones(1, 2, D + 1, dtype=torch.float64)
        return lambda: posterior.distribution.rsample(base_samples=base)

    for read in (hessian, variance, samples):
        assert_close(*both_reads(read), 1e-9)


TRANSFORMS = {
    "vmap": lambda f: torch.func.vmap(f)(points(4)),
    "jacrev": lambda f: torch.func.jacrev(f)(points(1)[0]),
    "jacfwd": lambda f: torch.func.jacfwd(f)(points(1)[0]),
}


@pytest.mark.parametrize("transform", TRANSFORMS)
def test_posteriors_under_torch_func(transform):
    gp, transformed = derived_gp(), TRANSFORMS[transform]
    fourier = FourierSurrogate(FourierFeatures(rbf_kernel(1.0), D, 6, seed=1), 1e-2).fit(points(4), outcomes(points(4)))
    for refused in (
        lambda x: gp.gradient_posterior(x[None]).mean,
        lambda x: gp.hessian_posterior(x[None]).mean,
        lambda x: gp.joint_posterior(x[None]).mean,
        lambda x: fourier.gradient_posterior(x[None]).mean,
    ):
        with pytest.raises(TypeError, match="Instead of vmap"):
            transformed(refused)
    given = GradientObservationGP(points(4), outcomes(points(4)), points(4))
    at = points(4) if transform == "vmap" else points(1)
    for works, by_hand in (
        (lambda x: given.posterior(x[None]).mean[0, 0], lambda x: given.posterior(x).mean),
        (lambda x: fourier.value(x[None])[0], fourier.value),
    ):
        found = transformed(works)
        if transform == "vmap":
            assert_close(found, by_hand(at).reshape(-1), 1e-12)
            continue
        at.requires_grad_(True)
        assert_close(found, torch.autograd.grad(by_hand(at).sum(), at)[0][0], 1e-9)
