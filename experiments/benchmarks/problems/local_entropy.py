"""Local Entropy Search (Stenger et al., ICLR 2026), run like its authors' BoTorch notebook.

The acquisition function is ``botorch_community.acquisition.local_entropy_search``. The loop and its constants are from
``notebooks_community/local_entropy_search``: inputs in the unit cube; a ``SingleTaskGP`` with a trainable constant mean
and standardized values, refitted for each query; 128 paths of 256 Adam steps with rate 0.002 and eight points per path.
Among these points, the next query is the one with the largest acquisition value that has not been queried before.

Two choices of the notebook suit d = 2 only and are replaced. The initial design is x0 and a Sobol' sequence, 2d points
in all, not eight. The incumbent is the queried point with the least posterior mean, not a point of a grid.
"""

from __future__ import annotations

import warnings

import numpy as np
import torch
from botorch.exceptions.warnings import OptimizationWarning
from botorch.fit import fit_gpytorch_mll
from botorch.models import SingleTaskGP
from botorch.models.transforms import Standardize
from gpytorch.means import ConstantMean
from gpytorch.mlls import ExactMarginalLogLikelihood
from torch import Tensor

from optimizers.comparison.queries import Ended, Queries
from optimizers.designs import sobol
from optimizers.seeding import seeded

PATHS, STEPS, RATE, SUPPORT, CHUNK = 128, 256, 2e-3, 8, 8
TOLERANCE = 1e-6
SEEN = 1e-9
"""Points within this distance of an earlier query are not queried again."""


def local_entropy_search(queries: Queries, x0: np.ndarray, seed: int) -> None:
    """Queries the objective, which has a finite box, from x0 until the budget is spent."""
    lower, sides = queries.lower.double().cpu(), (queries.upper - queries.lower).double().cpu()
    d = len(x0)
    first = (torch.from_numpy(x0) - lower) / sides
    X = torch.cat([first[None], sobol(2 * d - 1, d, seed)]) if d > 1 else first[None]
    Y = torch.empty(0, 1, dtype=torch.float64)
    try:
        with seeded(seed, []), warnings.catch_warnings():
            warnings.simplefilter("ignore", OptimizationWarning)
            while True:
                asked = [queries((lower + sides * point).numpy()) for point in X[len(Y) :]]
                Y = torch.cat([Y, torch.tensor(asked, dtype=torch.float64)[:, None]])
                X = torch.cat([X, _next(X, Y)])
    except Ended:
        pass


def _next(X: Tensor, Y: Tensor) -> Tensor:
    """Returns the next query, ``1 x d`` in the unit cube, given the queries, ``n x d``, and their values, ``n x 1``."""
    from botorch_community.acquisition.local_entropy_search import LocalEntropySearch

    model = SingleTaskGP(X, Y, mean_module=ConstantMean(), outcome_transform=Standardize(m=1))
    fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
    model.eval()
    with torch.no_grad():
        means = model.posterior(X).mean.flatten()
    box = torch.stack([torch.zeros_like(X[0]), torch.ones_like(X[0])])
    search = LocalEntropySearch(
        model=model,
        x_incumbent=X[means.argmin()][None],
        num_path_samples=PATHS,
        num_descent_steps=STEPS,
        learning_rate=RATE,
        maximize=False,
        bounds=box,
        sequence_discretization_size=SUPPORT,
        sequence_subsample_size=None,
        conditional_model_chunk_size=CHUNK,
        convergence_tol=TOLERANCE,
    )
    candidates = torch.unique(torch.cat(search.sequence_X_per_path), dim=0)
    with torch.no_grad():
        values = search(candidates.unsqueeze(-2))
    unseen = torch.cdist(candidates, X).min(dim=1).values > SEEN
    if bool(unseen.any()):
        values = values.masked_fill(~unseen, -torch.inf)
    return candidates[values.argmax()][None]
