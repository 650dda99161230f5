import numpy as np
import pytest
import torch

from optimizers import SurrogateTrustRegion


def normal(*shape, seed=0):
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(shape))


def begun(d, budget, count=3):
    """A run after its design and a few more queries, with a query pending."""
    opt = SurrogateTrustRegion(0.1 * normal(d), bounds=[(-5.0, 5.0)] * d, max_queries=budget)
    for _ in range(count):
        batch = opt.ask()
        opt.tell(batch, [quadratic(x) for x in batch])
    return opt, opt._box.part(opt.ask().explicit)


@pytest.mark.parametrize(("d", "budget"), [(6, 100), (30, 40)])
def test_informative_points_are_in_the_box_about_the_end_and_pending_ones_are_not_asked_again(d, budget):
    opt, out = begun(d, budget)
    points = opt._models.informative_points(opt.state, out)
    assert bool((points >= opt._box.lower).all() and (points <= opt._box.upper).all())
    plan, run = opt.state.plan, opt.state.run
    end = plan.points[0] if type(plan).__name__ == "Step" else run.center
    lengths = (points - end).norm(dim=1) / run.radius.delta
    assert float(lengths.max()) <= 1.0 + 1e-9
    again = opt._models.informative_points(opt.state, torch.cat([out, points[:1]]))
    assert float((again[0] - points[0]).norm()) > 0.1 * run.radius.delta


def test_in_a_span_points_go_outside_what_is_known():
    opt, out = begun(60, 60)
    state = opt.state
    end = state.plan.points[0] if type(state.plan).__name__ == "Step" else state.run.center
    first = opt._models.informative_points(state, out)[0] - end
    seen = torch.linalg.qr((torch.cat([state.data.points, out]) - end).mT).Q
    assert float((seen.mT @ first).norm()) < 0.3 * float(first.norm())


def test_several_are_out_in_a_span_of_many_rows():
    x0 = torch.full((62,), -2.0, dtype=torch.float64)
    opt = SurrogateTrustRegion(x0, bounds=[(-5.0, 5.0)] * 62, max_queries=60)
    while not opt.stopped:
        out = []
        while sum(map(len, out)) < 8 and (batch := opt.ask_another()) is not None:
            out.append(batch)
        for batch in out:
            opt.tell(batch, [quadratic(x) for x in batch])
    assert len(opt.state.fit.basis) > 40 and opt.best_fun < 0.5 * quadratic(x0)


def quadratic(x):
    return float((torch.logspace(0, 2, len(x), dtype=torch.float64) * (x - 0.7).square()).sum())


def rounds(q, count, seed):
    """The best value after ``count`` rounds of at most q queries, whose values all arrive at the end of the round."""
    opt = SurrogateTrustRegion(normal(6, seed=seed), bounds=[(-5.0, 5.0)] * 6, max_queries=200)
    for _ in range(count):
        out = []
        while sum(map(len, out)) < q and (batch := opt.ask_another()) is not None:
            out.append(batch)
        for batch in out:
            opt.tell(batch, [quadratic(x) for x in batch])
    return opt.best_fun


def test_eight_at_a_time_are_far_ahead_of_one_in_as_many_rounds():
    assert np.median([rounds(8, 10, s) for s in range(3)]) < 1e-3 * np.median([rounds(1, 10, s) for s in range(3)])


def test_a_step_that_takes_too_long_is_passed_over_and_counts_when_it_comes():
    x0 = torch.full((6,), -2.0, dtype=torch.float64)
    opt = SurrogateTrustRegion(x0, bounds=[(-5.0, 5.0)] * 6, max_queries=80)
    design = opt.ask()
    opt.tell(design, [quadratic(x) for x in design])
    slow = opt.ask()
    kinds = []
    for _ in range(8):
        batch = opt.ask_another()
        kinds.append(batch.info["kind"])
        opt.tell(batch, [quadratic(x) for x in batch])
    assert kinds[:3] == ["Beside"] * 3 and {"Step", "GeometryQuery"} & set(kinds)
    count = len(opt.state.data.values)
    opt.tell(slow, [quadratic(x) for x in slow])
    assert len(opt.state.data.values) == count + 1


def test_with_noise_queries_beside_a_step_are_chosen_given_all_queries_of_its_model():
    generator = np.random.default_rng(0)
    opt = SurrogateTrustRegion(torch.ones(2, dtype=torch.float64), bounds=[(-5.0, 5.0)] * 2, max_queries=80, noise=1.0)
    while opt.queries < 80:
        batch = opt.ask()
        opt.tell(batch, [quadratic(x) + generator.standard_normal() for x in batch])
    assert len(opt._models.window(opt.state, opt.state.run.center_index)) == 40  # a window without noise is of 10
