import math

import pytest
import torch
from botorch.acquisition import LogExpectedImprovement, qLogExpectedImprovement
from botorch.optim import optimize_acqf

from optimizers import CandidateGenerator, minimize
from surrogates import DerivedGP

BOUNDS = torch.tensor([[-1.0, -2.0, 0.0], [2.0, 2.0, 4.0]], dtype=torch.float64)
X0 = torch.tensor([1.5, -1.5, 3.0], dtype=torch.float64)


def concave(X):
    return 7.0 - (X - torch.tensor([0.5, 0.5, 1.0], dtype=X.dtype)).square().sum(-1, keepdim=True)


@pytest.mark.parametrize("method", ["rgf", pytest.param("turbo", marks=pytest.mark.slow), "gld"])
def test_a_maximizing_loop_is_minimize_with_the_sign_changed(method):
    options = {"max_queries": 44, "seed": 3}
    generator = CandidateGenerator(method, X0, bounds=BOUNDS, **options)
    while not generator.stopped:
        X = generator.generate_candidates()
        generator.observe(X, concave(X))
    result = minimize(lambda x: -concave(x)[0], X0, method, bounds=BOUNDS.T, **options)
    assert generator.best_f == -result.fun and torch.equal(generator.best_X, result.x)
    assert torch.equal(generator.train_Y[:, 0], -result.history.y)
    assert generator.best_f > float(concave(X0))


def test_a_minimizing_loop_keeps_the_sign():
    generator = CandidateGenerator("rgf", X0, bounds=BOUNDS, max_queries=22, directions=10, maximize=False)
    while not generator.stopped:
        X = generator.generate_candidates()
        generator.observe(X, -concave(X))
    assert generator.best_f == generator.optimizer.best_fun == float(generator.train_Y.min())


def test_rows_may_come_in_pieces_in_any_order_with_failures_and_strangers():
    whole = CandidateGenerator("rgf", X0, bounds=BOUNDS, max_queries=30, directions=4)
    pieces = CandidateGenerator("rgf", X0, bounds=BOUNDS, max_queries=30, directions=4)
    X = whole.generate_candidates()
    Y = concave(X)
    Y[2] = math.nan
    whole.observe(X, Y)
    assert torch.equal(pieces.generate_candidates(), X)
    pieces.observe(X[3:], Y[3:])
    assert torch.equal(pieces.generate_candidates(), X[:3]) and pieces.optimizer.queries == 2
    assert torch.equal(pieces.X_pending, X[:3])
    stranger = torch.tensor([[0.5, 0.5, 1.0]], dtype=torch.float64)
    pieces.observe(torch.cat([stranger, X[2:3]]), torch.cat([concave(stranger), Y[2:3]]))
    pieces.observe(X[[1, 0]], Y[[1, 0], 0])
    assert pieces.optimizer.queries == 5 and pieces.optimizer.failures == 1
    assert torch.equal(pieces.generate_candidates(), whole.generate_candidates())
    assert pieces.best_f == 7.0 and len(pieces.train_X) == 5
    assert torch.equal(pieces.best_X, stranger[0])


def test_as_many_candidates_as_are_wanted_are_out_at_once():
    """The optimizer's own points, each chosen given those that are pending, in whatever order their values come."""
    generator = CandidateGenerator("trust_region", X0, bounds=BOUNDS, max_queries=30, seed=2)
    driven = generator.optimizer.__class__(X0, bounds=BOUNDS.T, max_queries=30, seed=2)
    observed = []
    while not generator.stopped:
        X = generator.generate_candidates(3)
        assert len(generator.X_pending) >= len(X) and torch.equal(X, generator.generate_candidates(3))
        driven.ask()
        while sum(len(driven.untold(batch)) for batch in driven.pending) < 3 and driven.ask_another() is not None:
            pass
        pending = [(batch, i, batch.points()[i]) for batch in driven.pending for i in driven.untold(batch)]
        assert torch.equal(X, torch.stack([x for _, _, x in pending[:3]]))
        batch, i, x = pending[len(X) - 1]  # the youngest of them comes first
        driven.tell(batch, -concave(x), which=[i])
        generator.observe(X[-1:], concave(X[-1:]))
        observed.append(x)
    assert len(observed) == 30 and generator.best_f == -driven.best_fun
    with pytest.raises(ValueError, match="q must be"):
        CandidateGenerator("rgf", X0, bounds=BOUNDS, max_queries=22).generate_candidates(0)


def test_the_model_is_shared_with_botorchs_acquisitions():
    generator = CandidateGenerator("turbo", X0, bounds=BOUNDS, max_queries=20, initial_points=10)
    with pytest.raises(RuntimeError, match="two finite values"):
        generator.model
    X = generator.generate_candidates()
    generator.observe(X, concave(X))
    torch.manual_seed(0)
    before = torch.get_rng_state()
    model = generator.model
    assert torch.equal(before, torch.get_rng_state())
    assert isinstance(model, DerivedGP)
    assert float((model.posterior(X).mean - concave(X)).detach().abs().max()) < 0.2
    x = torch.tensor([[0.2, -0.4, 2.0]], dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(model.posterior(x).mean.sum(), x)
    assert torch.allclose(model.gradient_posterior(x.detach()).mean, slope, rtol=1e-8)
    acquisition = LogExpectedImprovement(model, best_f=generator.best_f)
    X_next, _ = optimize_acqf(acquisition, BOUNDS, q=1, num_restarts=4, raw_samples=32, options={"seed": 0})
    best = generator.best_f
    generator.observe(X_next, concave(X_next))
    assert generator.best_f > best
    assert generator.model is model and model.train_targets.shape[-1] == 11
    assert float((model.posterior(X_next).mean - concave(X_next)).detach().abs()) < 0.2
    q = qLogExpectedImprovement(generator.model, best_f=generator.best_f)
    assert bool(torch.isfinite(q(X[:3])))
    assert generator.fit() is generator.model is not model
    assert generator.optimizer.queries == 10


def test_bad_input_is_refused():
    with pytest.raises(ValueError, match=r"\(2, 3\)"):
        CandidateGenerator("rgf", X0, bounds=BOUNDS.T, max_queries=20, directions=10)
    generator = CandidateGenerator("rgf", X0, bounds=BOUNDS, max_queries=20, directions=10)
    X = generator.generate_candidates()
    with pytest.raises(ValueError, match="Y must have shape"):
        generator.observe(X, torch.zeros(3))
    with pytest.raises(ValueError, match="X must have shape"):
        generator.observe(X[:, :2], torch.zeros(len(X)))
    with pytest.raises(ValueError, match="row 1 is not"):
        generator.observe(torch.where(torch.arange(len(X))[:, None] == 1, torch.nan, X), torch.zeros(len(X)))
    with pytest.raises(TypeError, match="real"):
        generator.observe(X, torch.zeros(len(X), dtype=torch.complex64))
    with pytest.raises(TypeError, match="carry a gradient"):
        generator.observe(X, torch.zeros(len(X), requires_grad=True))
    with pytest.raises(RuntimeError, match="no finite value"):
        generator.best_f
    assert generator.optimizer.queries == 0 and len(generator.train_X) == 0


def test_rows_are_matched_in_the_dtype_they_come_in():
    """A loop in float32 around a float64 run, where rounding X once must not keep the run waiting."""
    generator = CandidateGenerator("rgf", X0, bounds=BOUNDS, max_queries=20, directions=10)
    X = generator.generate_candidates().float()
    assert not torch.equal(X.double(), generator.generate_candidates())
    generator.observe(X, concave(X))
    assert generator.optimizer.queries == len(X) and generator.train_X.dtype == torch.float64


def test_pairs_in_two_dimensions_are_not_taken_for_rows():
    with pytest.raises(ValueError, match=r"lower bounds in the first row.*transpose"):
        CandidateGenerator("rgf", torch.zeros(2).double(), bounds=[(-1.0, 1.0), (-1.0, 1.0)], max_queries=5)
    rows = torch.tensor([[-1.0, -1.0], [1.0, 1.0]])
    assert CandidateGenerator("rgf", torch.zeros(2).double(), bounds=rows, max_queries=5).bounds is not None
