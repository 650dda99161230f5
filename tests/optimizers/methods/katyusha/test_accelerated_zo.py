"""Eq. 14; its iterates are compared with the paper's in ``tests/papers``."""

import itertools
import math

import pytest
import torch

from optimizers.methods.katyusha.accelerated_zo import AcceleratedZO
from optimizers.methods.katyusha.nesterov_spokoiny import NesterovSpokoiny
from tests.optimizers.composite import PROXES


@pytest.mark.slow
def test_it_grows_on_a_flat_spectrum_where_nesterov_and_spokoinys_method_falls():
    """Nine eigenvalues of ten at L: their mean is 1.6 times 4 √(Lμ)."""
    curvatures = torch.full((20,), 50.0, dtype=torch.float64)
    curvatures[:2] = 1.0
    common = {"smoothness": 50.0, "strong_convexity": 1.0, "smoothing_radius": 1e-6}
    gaps = {AcceleratedZO: [], NesterovSpokoiny: []}
    for method, seed in itertools.product(gaps, range(2)):
        opt = method(torch.ones(20, dtype=torch.float64), max_queries=3000, seed=seed, **common)
        while not opt.stopped:
            batch = opt.ask()
            opt.tell(batch, 0.5 * batch.points().square() @ curvatures)
        gaps[method].append(float(0.5 * opt.x.square() @ curvatures))
    assert min(gaps[AcceleratedZO]) > 1e3 * float(curvatures.sum()) and max(gaps[NesterovSpokoiny]) < 30.0


def test_momentum():
    opt = AcceleratedZO(torch.zeros(4), max_queries=50, smoothness=9.0, strong_convexity=1.0)
    assert opt.momentum == pytest.approx(0.5)
    opt = AcceleratedZO(torch.zeros(4), max_queries=50, smoothness=9.0, strong_convexity=1.0, printed_sign=True)
    assert opt.momentum == pytest.approx(-0.5)
    opt = AcceleratedZO(torch.zeros(4), max_queries=50, smoothness=1.0, strong_convexity=4.0)
    assert opt.momentum == 0.0


def test_the_ridge_of_a_prox_counts():
    opt = AcceleratedZO(torch.zeros(4), prox=PROXES["box and ridge"], max_queries=50, smoothness=8.0)
    assert opt.momentum == pytest.approx(0.6)


def test_a_failed_query_leaves_the_state():
    opt = AcceleratedZO(torch.ones(4), max_queries=50, smoothness=2.0, strong_convexity=1.0)
    opt.tell(opt.ask(), [0.0, math.nan])
    assert torch.equal(opt.x, torch.ones(4)) and torch.equal(opt.state.y, torch.ones(4))


def test_without_strong_convexity_it_says_what_goes_without():
    with pytest.raises(ValueError, match="nesterov_spokoiny"):
        AcceleratedZO(torch.ones(4), max_queries=50)
