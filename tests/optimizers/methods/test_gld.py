import math

import pytest
import torch

from optimizers import GLD, Simplex
from optimizers.methods.gld import halved_radii
from optimizers.testing import quadratic
from tests.optimizers.estimates import step

X0 = torch.full((5,), 3.0, dtype=torch.float64)


def test_radii():
    assert halved_radii(8.0, 1.0) == [8.0, 4.0, 2.0, 1.0]
    assert halved_radii(5.0, 0.1) == [5.0, 2.5, 1.25, 0.625, 0.3125, 0.15625, 0.078125]
    assert halved_radii(1.0, 1.0) == [1.0]


def test_points_lie_on_the_spheres():
    batch = GLD(X0, max_queries=100, widest=8.0, narrowest=1.0).ask()
    distances = (batch.points() - X0).norm(dim=1)
    torch.testing.assert_close(distances, torch.tensor([0.0, 8.0, 4.0, 2.0, 1.0]).double(), rtol=1e-12, atol=0)


@pytest.mark.slip(
    "optimizers/methods/gld.py",
    "if float(totals[i]) < self.state.value:",
    "if float(totals[i]) > self.state.value:",
    "moves to where f is larger (Golovin et al., Alg. 1)",
    of="optimizers/gld",
)
def test_it_moves_to_the_best_and_never_up():
    opt = GLD(X0, max_queries=200, narrowest=0.1)
    best = math.inf
    while not opt.stopped:
        batch = opt.ask()
        values = quadratic(batch.points())
        values[1] = math.nan
        opt.tell(batch, values)
        values[1] = math.inf
        if float(values.min()) < best:
            best = float(values.min())
            assert torch.equal(opt.x, batch.points()[values.argmin()])
        assert opt.state.value == best == opt.best_fun and torch.equal(opt.x, opt.best_x)


def test_x0_is_queried_first_and_once():
    opt = GLD(X0, max_queries=100, narrowest=0.1)
    assert torch.equal(opt.ask().points()[0], X0) and len(opt.ask()) == 8
    step(opt, quadratic)
    assert len(opt.ask()) == 7


def test_narrowest_radius_follows_the_queries_a_variable():
    """2Rd/(q + 5d) for d = 5 and R = 5 is 2 at first, 1 after 25 queries and 1/4 after 175."""
    opt, seen = GLD(X0, max_queries=300), {}
    while not opt.stopped:
        seen[opt.queries] = min(opt.radii)
        step(opt, quadratic)
    for queries, narrowest in seen.items():
        wanted = 50.0 / (queries + 25.0)
        assert wanted / 2.0 < narrowest <= wanted * (1 + 1e-9)
    assert seen[0] == 1.25


def test_bounded_and_simplex_iterates_are_what_was_queried():
    opt = GLD(X0, max_queries=300, bounds=[(2.0, 4.0)] * 5)
    while not opt.stopped:
        step(opt, quadratic)
    torch.testing.assert_close(opt.x, opt.best_x, rtol=1e-14, atol=0)
    assert opt.best_fun < 1.1 * float(quadratic(torch.full((5,), 2.0).double()))
    opt = GLD(torch.full((5,), 0.2).double(), max_queries=300, prox=Simplex())
    while not opt.stopped:
        step(opt, lambda x: x[0])
    assert float(opt.best_x[0]) == 0.0 and float(opt.best_x.sum()) == pytest.approx(1.0)


def test_options_out_of_range():
    with pytest.raises(ValueError, match="narrowest"):
        GLD(X0, max_queries=100, widest=1.0, narrowest=2.0)
