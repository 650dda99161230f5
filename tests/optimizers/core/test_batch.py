import io
import math

import pytest
import torch

from optimizers import Batch, Directions
from optimizers.core.bounds import Domain

D = 7
ADDRESSES = ((3, 0), (3, 0), (3, 0), (3, 2), (5, 1))
SCALES = torch.tensor([0.0, 0.1, -0.1, 2.0, 0.5], dtype=torch.float64)


def make(dtype=torch.float64, distribution="normal", domain=None, metric=None):
    base = torch.arange(D, dtype=dtype)
    return Batch(
        4,
        base,
        SCALES,
        ADDRESSES,
        Directions(11, D, distribution),
        metric=metric,
        domain=domain,
        info={"why": "test", "vector": base + 1},
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("distribution", ["normal", "rademacher", "sphere", "coordinate", "orthonormal"])
def test_points_are_base_plus_scaled_directions(dtype, distribution):
    batch = make(dtype, distribution)
    u = Directions(11, D, distribution)
    for i, (step, row) in enumerate(ADDRESSES):
        expected = batch.base + float(SCALES[i]) * u.row(step, row, dtype=dtype)
        assert torch.equal(batch.point(i), expected)
        assert torch.equal(batch.points()[i], expected)
        pieces = [batch.point(i, start, min(start + 2, D)) for start in range(0, D, 2)]
        assert torch.equal(torch.cat(pieces), expected)


def test_base_point_is_exact_and_new():
    batch = make()
    point = batch.point(0)
    assert torch.equal(point, batch.base)
    point += 1.0
    batch.points().zero_()
    assert torch.equal(batch.base, torch.arange(D, dtype=torch.float64))


def test_combine_is_the_weighted_sum_of_directions():
    batch = make(metric=torch.linspace(0.5, 2.0, D, dtype=torch.float64))
    c = torch.tensor([0.0, 1.5, -0.25, 3.0, 1.0], dtype=torch.float64)
    expected = sum(ci * u for ci, u in zip(c, batch.direction_rows(range(5)), strict=True))
    torch.testing.assert_close(batch.combine(c), expected, rtol=1e-14, atol=1e-14)
    assert batch.combine(torch.tensor([0.0, math.inf, 0.0, 0.0, 0.0])).isnan().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("distribution", ["normal", "sphere", "orthonormal"])
def test_a_block_combines_to_the_same_bits(monkeypatch, dtype, distribution):
    batch, c = make(dtype, distribution), torch.tensor([0.1, 1.5, -0.25, 3.0, 1e-3], dtype=torch.float64)
    blocked = batch.combine(c)
    monkeypatch.setattr("optimizers.core.batch.SMALL", 0)
    assert torch.equal(batch.combine(c), blocked)


def test_domain_maps_and_clamps():
    lower, upper = torch.full((D,), -1.0), torch.linspace(1.0, 3.0, D)
    lower, upper = lower.double(), upper.double()
    domain = Domain.of(lower, upper, rescale=True)
    batch = make(domain=domain)
    z = make().points()
    expected = torch.clamp(lower + z * (upper - lower) / 10.0, lower, upper)
    torch.testing.assert_close(batch.points(), expected, rtol=1e-14, atol=1e-14)
    assert torch.equal(batch.points()[3, 2:5], batch.point(3, 2, 5))
    free = make(domain=Domain.of(lower, upper, rescale=True, confine=False))
    assert not domain.contains(free.points()).all() and domain.contains(batch.points()).all()


@pytest.mark.parametrize("distribution", ["normal", "sphere", "orthonormal"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_chosen_points_are_those_of_the_batch(distribution, dtype):
    box = Domain.of(torch.zeros(D, dtype=dtype), torch.full((D,), 5.0, dtype=dtype), rescale=False)
    batch = make(dtype, distribution, box)
    chosen = [4, 1, 0, 1]
    assert torch.equal(batch.points(chosen), batch.points()[chosen])
    for i, x in batch.each(chosen):
        assert torch.equal(x, batch.point(i))
        x.zero_()
    assert [i for i, _ in batch.each(chosen)] == chosen


def test_directions_of_points_taken_one_by_one_are_made_in_one_block(monkeypatch):
    blocks = []
    make_rows = Directions._make
    monkeypatch.setattr(Directions, "_make", lambda self, *a: blocks.append(a) or make_rows(self, *a))
    addresses = tuple((0, row) for row in range(6))
    u = Directions(0, D, "orthonormal")
    batch = Batch(0, torch.zeros(D), torch.ones(6), addresses, u)
    assert len(list(batch)) == 6 and len(blocks) == 1


def test_explicit_points():
    points = torch.rand(3, D, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    batch = Batch(0, points[0], torch.zeros(3), explicit=points)
    assert len(batch) == 3 and torch.equal(batch.points(), points) and torch.equal(batch.point(2), points[2])
    assert all(torch.equal(a, b) for a, b in zip(batch, points, strict=True))
    with pytest.raises(ValueError, match="no directions"):
        batch.combine(torch.ones(3))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_state_round_trip(dtype):
    batch = make(dtype, "orthonormal", metric=torch.linspace(0.5, 2.0, D, dtype=dtype))
    buffer = io.BytesIO()
    torch.save(batch.state_dict(), buffer)
    buffer.seek(0)
    loaded = Batch.from_state_dict(torch.load(buffer, weights_only=True), None, torch.device("cpu"))
    assert loaded.same_as(batch) and torch.equal(loaded.points(), batch.points())
    assert loaded.info["why"] == "test" and torch.equal(loaded.info["vector"], batch.info["vector"])


def test_another_generator_is_refused():
    state = make().state_dict()
    state["directions"]["generator"] = "another/9"
    with pytest.raises(ValueError, match="another/9"):
        Batch.from_state_dict(state, None, torch.device("cpu"))


def test_same_as_sees_every_difference():
    batch = make()
    assert batch.same_as(make())
    assert not batch.same_as(make(distribution="rademacher"))
    assert not batch.same_as(make(dtype=torch.float32))
    state = batch.state_dict()
    for name, value in {"id": 5, "scales": SCALES + 1, "base": batch.base + 1}.items():
        assert not batch.same_as(Batch.from_state_dict(state | {name: value}, None, torch.device("cpu")))


def test_malformed_batches_are_refused():
    base = torch.zeros(D)
    with pytest.raises(ValueError, match="scales"):
        Batch(0, base, torch.zeros(2), ((0, 0),), Directions(0, D))
    with pytest.raises(ValueError, match="directions or explicit"):
        Batch(0, base, torch.ones(1), ((0, 0),))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("distribution", ["normal", "rademacher"])
def test_metric_scales_directions_by_inverse_roots(dtype, distribution):
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    metric = torch.linspace(0.5, 9.0, D, dtype=wide)
    base, u = torch.arange(D, dtype=dtype), Directions(11, D, distribution)
    batch = Batch(4, base, SCALES, ADDRESSES, u, metric=metric)
    dense = batch.points()
    for i, (step, row) in enumerate(ADDRESSES):
        root = torch.tensor([math.sqrt(h) for h in metric.tolist()], dtype=wide)
        expected = (base.to(wide) + float(SCALES[i]) * (u.row(step, row, dtype=wide) / root)).to(dtype)
        assert torch.equal(dense[i], expected) and torch.equal(batch.point(i), expected)
        assert torch.equal(batch.point(i, 2, 5), expected[2:5])
    c = torch.tensor([0.0, 1.5, -0.25, 3.0, 1.0], dtype=torch.float64)
    combined = (c[:, None] * batch.direction_rows(range(5)).double()).sum(0)
    tolerance = {torch.float64: 1e-14, torch.float32: 1e-6, torch.bfloat16: 5e-2}[dtype]
    torch.testing.assert_close(batch.combine(c).double(), combined, rtol=tolerance, atol=tolerance)
    loaded = Batch.from_state_dict(batch.state_dict(), None, torch.device("cpu"))
    assert batch.same_as(loaded) and torch.equal(loaded.points(), dense)
    assert not batch.same_as(Batch(4, base, SCALES, ADDRESSES, u, metric=metric + 1))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", ["plain", "metric", "domain", "explicit"])
def test_points_are_written_over_a_vector_in_pieces(dtype, kind):
    box = torch.full((D,), 1.25, dtype=torch.float64), torch.full((D,), 4.5, dtype=torch.float64)
    batch = Batch(
        0,
        torch.arange(D, dtype=torch.float64),
        torch.zeros(5) if kind == "explicit" else SCALES,
        () if kind == "explicit" else ADDRESSES,
        None if kind == "explicit" else Directions(11, D),
        metric=torch.linspace(0.5, 9.0, D, dtype=torch.float64) if kind == "metric" else None,
        explicit=torch.linspace(0, 1, 5 * D, dtype=torch.float64).view(5, D) if kind == "explicit" else None,
        domain=Domain.of(*box, rescale=True) if kind == "domain" else None,
    )
    out = torch.full((D,), torch.nan, dtype=dtype)
    for i in range(5):
        for low, high in ((0, 3), (3, D)):
            assert batch.write_point(i, out[low:high], low).data_ptr() == out[low:high].data_ptr()
        assert torch.equal(out, batch.point(i).to(dtype))
    base = batch.base if batch.domain is None else batch.domain.to_user(batch.base)
    assert torch.equal(batch.write_point(None, out[2:], 2), base[2:].to(dtype))
