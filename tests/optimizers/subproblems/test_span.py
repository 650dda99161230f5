import numpy as np
import pytest
import torch

from optimizers.subproblems.span import carried_metric, coordinates, covering, unit_outside


def normal(*shape, seed=0):
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(shape))


def dense(metric, basis):
    """AᵀA in the variables: B's part, and c² in all directions outside."""
    inside, c = metric[:, :-1], metric[:, -1].norm()
    return basis.mT @ inside.mT @ inside @ basis + c**2 * (torch.eye(basis.shape[1]) - basis.mT @ basis)


def assert_spans(basis, rows):
    np.testing.assert_allclose(basis @ basis.mT, np.eye(len(basis)), atol=1e-12)
    np.testing.assert_allclose(rows @ basis.mT @ basis, rows, atol=1e-5)


def test_a_basis_covers_its_rows_grows_by_what_is_new_and_is_made_anew_when_most_of_it_is_unused():
    rows = normal(6, 20)
    basis, grown = covering(rows.new_empty(0, 20), rows)
    assert grown and len(basis) == np.linalg.matrix_rank(rows.numpy()) == 6
    assert_spans(basis, rows)
    more = torch.cat([rows, 2.0 * rows[:1] - rows[1:2], normal(2, 20, seed=1)])
    wider, grown = covering(basis, more)
    assert grown and len(wider) == 8 and torch.equal(wider[:6], basis)
    assert_spans(wider, more)
    many = covering(rows.new_empty(0, 20), normal(18, 20, seed=2))[0]
    few, grown = covering(many, rows[:3])
    assert not grown and len(few) == 3
    assert_spans(few, rows[:3])


def test_a_basis_has_no_more_vectors_than_variables():
    rows = normal(9, 4)
    basis, _ = covering(rows.new_empty(0, 4), rows)
    assert len(basis) == 4
    assert_spans(basis, rows)


@pytest.mark.parametrize("grown", [True, False])
def test_a_metric_stays_the_same_in_another_basis(grown):
    rows, d = normal(5, 12), 12
    before = covering(rows.new_empty(0, d), rows)[0]
    metric = torch.block_diag(normal(5, 5, seed=1), torch.tensor([[0.7]], dtype=torch.float64))
    if grown:
        after = covering(before, torch.cat([rows, normal(2, d, seed=2)]))[0]
    else:
        after = covering(rows.new_empty(0, d), torch.cat([rows[:2], normal(2, d, seed=3)]))[0]
    carried = carried_metric(metric, before, after, grown)
    s = normal(7, len(after), seed=4) @ after
    lengths = (coordinates(after, s) @ carried.mT).square().sum(1)
    np.testing.assert_allclose(lengths, (s @ dense(metric, before) * s).sum(1), rtol=1e-10)
    assert float(carried[:, -1].norm()) == pytest.approx(0.7)


def test_a_direction_outside_is_a_unit_vector_orthogonal_to_the_span():
    basis = covering(normal(0, 15), normal(9, 15))[0]
    outside = unit_outside(basis, normal(15, seed=2))
    np.testing.assert_allclose(basis @ outside, np.zeros(9), atol=1e-12)
    assert float(outside.norm()) == pytest.approx(1.0)
