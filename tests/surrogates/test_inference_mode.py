"""Under PyTorch's inference mode all posteriors are what they are elsewhere, and spoil no later derivative."""

import pytest
import torch
from botorch.models.transforms import Log, Normalize, Warp
from gpytorch.kernels import LinearKernel, RBFKernel, ScaleKernel
from gpytorch.means import LinearMean

from surrogates import DerivedGP, GradientInformation, matern_kernel
from tests.surrogates.gp_models import configured
from tests.surrogates.reference import assert_close


class Own(RBFKernel):
    """A kernel that is differentiated automatically."""


MODELS = {
    "compiled": lambda: {"covar_module": matern_kernel(1.0)},
    "sum": lambda: {"covar_module": ScaleKernel(RBFKernel()) + LinearKernel()},
    "automatic": lambda: {"covar_module": ScaleKernel(Own())},
    "mean": lambda: {"mean_module": configured(LinearMean(2))},
    "warp": lambda: {"input_transform": Warp(d=2, indices=[0])},
    "normalize": lambda: {"input_transform": Normalize(2)},
}
U = torch.tensor([0.6, -0.8], dtype=torch.float64)
ASKED = {
    "mean": lambda gp, x: gp.gradient_posterior(x).mean,
    "trace": lambda gp, x: gp.gradient_posterior(x).trace,
    "variance": lambda gp, x: gp.gradient_posterior(x).variance,
    "covariance": lambda gp, x: gp.gradient_posterior(x).covariance_matrix,
    "direction": lambda gp, x: gp.gradient_posterior(x).directional_variance(U),
    "hessian": lambda gp, x: gp.hessian_posterior(x).mean,
    "hessian variance": lambda gp, x: gp.hessian_posterior(x).variance,
    "transformed": lambda gp, x: gp.transformed_gradient_posterior(x).delta_method_mean,
    "joint": lambda gp, x: gp.joint_posterior(x).mean,
    "value": lambda gp, x: gp.posterior(x).mean,
    "information": lambda gp, x: GradientInformation(gp, x[:1].detach())(x[1:]),
}


def model(name):
    X = torch.rand(7, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return DerivedGP(X, X.sin().sum(-1, keepdim=True) + 5, **MODELS[name]()).double()


@pytest.mark.parametrize("ask", ASKED)
@pytest.mark.parametrize("name", MODELS)
def test_inference_mode(name, ask):
    gp, fresh = model(name), model(name)
    X = torch.rand(2, 2, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    with torch.inference_mode():
        found = ASKED[ask](gp, X.clone())
    x = X.clone().requires_grad_(True)
    after, expected = ASKED[ask](gp, x), ASKED[ask](fresh, x)
    assert_close(found, expected.detach(), 1e-12)
    slopes = [torch.autograd.grad(value.sum(), x, retain_graph=True)[0] for value in (after, expected)]
    assert_close(slopes[0], slopes[1], 1e-12)


def test_through_a_logarithm_too():
    X = torch.rand(7, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    gp = DerivedGP(X, X.sin().sum(-1, keepdim=True) + 5, outcome_transform=Log())
    with torch.inference_mode():
        found = gp.transformed_gradient_posterior(X[:2] + 0.01).delta_method_mean
    assert_close(found, gp.transformed_gradient_posterior(X[:2] + 0.01).delta_method_mean, 1e-12)
