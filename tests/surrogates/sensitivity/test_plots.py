"""Plots draw the numbers that were computed."""

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure

from surrogates import (
    DerivedGP,
    Estimate,
    FourierFeatures,
    FourierSurrogate,
    partial_dependence,
    plot_gradient_arrows,
    plot_partial_dependence,
    plot_sensitivity,
    plot_sign_map,
    rbf_kernel,
    sample_hyperparameters,
)
from surrogates.plotting import BLUE
from tests.surrogates.gp_models import D, derived_gp, generator, outcomes, points

BOX = torch.tensor([[-1.0, 0.0, -1.0], [1.0, 5.0, 1.0]], dtype=torch.float64)


@pytest.fixture
def axes():
    return Figure().subplots()


def test_bars_are_means_with_intervals(axes):
    samples = torch.rand(200, 3, generator=generator(0), dtype=torch.float64) + torch.arange(3)
    estimate = Estimate.from_samples(samples)
    assert plot_sensitivity(axes, estimate, names=["a", "b", "c"], level=0.5) is axes
    assert np.allclose([bar.get_width() for bar in axes.patches], estimate.mean)
    (lines,) = axes.collections
    ends = np.array([segment[:, 0] for segment in lines.get_segments()])
    assert np.allclose(ends.T, estimate.interval(0.5))
    assert [label.get_text() for label in axes.get_yticklabels()] == ["a", "b", "c"]


@pytest.mark.parametrize("of", ["slope", "value"])
def test_a_band_is_the_interval_and_bars_mark_sure_signs(axes, of):
    found = partial_dependence(derived_gp(n=40), 0, X=points(8), grid=9)
    band = getattr(found, of)
    assert plot_partial_dependence(axes, found, of=of, level=0.8) is axes
    assert np.allclose(axes.lines[0].get_xydata().T, [found.grid, band.mean])
    drawn = axes.collections[0].get_paths()[0].vertices
    low, high = band.interval(0.8).numpy()
    for t, *ends in zip(found.grid.tolist(), low, high, strict=True):
        assert set(np.round(ends, 9)) <= set(np.round(drawn[np.isclose(drawn[:, 0], t), 1], 9))
    assert axes.get_xlabel() == "x₁"
    if of == "slope":
        positive = axes.collections[1]
        covered = [
            bool(positive.get_paths())
            and any(path.contains_point((t, 0.01), radius=1e-6) for path in positive.get_paths())
            for t in found.grid.tolist()
        ]
        sure = (band.positive_probability() >= 0.975).tolist()
        assert any(sure) and not all(sure)
        assert all(inside for inside, is_sure in zip(covered, sure, strict=True) if is_sure)
        assert tuple(positive.get_facecolor()[0][:3]) == tuple(int(BLUE[k : k + 2], 16) / 255 for k in (1, 3, 5))


def models():
    X = points(7)
    derived = DerivedGP(X, outcomes(X))
    features = FourierFeatures(rbf_kernel(0.8), D, 12, seed=0)
    return {
        "derived": derived,
        "mixture": sample_hyperparameters(derived, 3, generator(1), warmup_steps=1),
        "fourier": FourierSurrogate(features, 1e-3).fit(X, outcomes(X)),
    }


@pytest.mark.parametrize("name", ["derived", "mixture", "fourier"])
def test_maps_and_arrows_are_those_of_the_posterior(name):
    model, (first, second) = models()[name], Figure().subplots(1, 2)
    at = torch.tensor([0.0, 0.3, 0.1], dtype=torch.float64)
    assert plot_sign_map(first, model, 0, BOX, plane=(0, 2), at=at, resolution=5) is first
    mesh = first.collections[0]
    x, z = (torch.linspace(-1, 1, 5).double() for _ in range(2))
    grid = torch.stack([torch.stack([u, at[1], v]) for v in z for u in x])
    posterior = model.gradient_posterior(grid)
    parts = posterior.mean.reshape(-1, 25, D), posterior.variance.reshape(-1, 25, D)
    expected = torch.special.ndtr(parts[0] / parts[1].sqrt()).mean(0)[:, 0]
    assert np.allclose(mesh.get_array().ravel(), expected)
    assert (first.get_xlabel(), first.get_ylabel()) == ("x₁", "x₃")

    assert plot_gradient_arrows(second, model, BOX, plane=(0, 1), at=at, resolution=4) is second
    arrows = second.collections[0]
    where = torch.cat([torch.from_numpy(arrows.XY), at[2:].expand(16, 1)], dim=-1).double()
    assert bool(((where[:, :2] > BOX[0, :2]) & (where[:, :2] < BOX[1, :2])).all())
    slope = model.gradient_posterior(where).mean.reshape(-1, 16, D).mean(0)[:, :2] * torch.tensor([2.0, 5.0]).double()
    drawn = torch.tensor(np.stack([arrows.U, arrows.V], -1))
    assert torch.allclose(drawn, slope / slope.norm(dim=-1).max())
    shares = torch.as_tensor(arrows.get_alpha())
    assert bool(((shares >= 0) & (shares <= 1)).all()) and shares.max() > shares.min()


def test_pictures_can_be_drawn_without_a_display(tmp_path, axes):
    model = derived_gp(n=8)
    plot_sign_map(axes, model, 0, BOX, resolution=11)
    plot_gradient_arrows(axes, model, BOX)
    axes.figure.savefig(tmp_path / "map.png")
    assert (tmp_path / "map.png").stat().st_size > 1000


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda a, m: plot_sign_map(a, m, 3, BOX), "input_index must be under 3"),
        (lambda a, m: plot_sign_map(a, m, 0, BOX, plane=(1, 1)), "two different inputs"),
        (lambda a, m: plot_sign_map(a, m, 0, BOX, plane=(0, 5)), "plane must be under 3"),
        (lambda a, m: plot_sign_map(a, m, 0, BOX.flip(0)), "below its upper bound"),
        (lambda a, m: plot_sign_map(a, m, 0, BOX, at=BOX), r"at must be of shape \(3,\)"),
        (lambda a, m: plot_sign_map(a, m, 0, BOX, names=["x"]), "one for every input, got 1"),
        (lambda a, m: plot_gradient_arrows(a, m, BOX, resolution=1), "resolution must be at least 2"),
        (
            lambda a, m: plot_partial_dependence(a, partial_dependence(m, 0, X=BOX, grid=2), of="f"),
            '"slope" or "value"',
        ),
        (lambda a, m: plot_sensitivity(a, Estimate.from_samples(torch.rand(4, 2, 3))), "one outcome without a batch"),
    ],
)
def test_bad_input(axes, call, message):
    with pytest.raises(ValueError, match=message):
        call(axes, derived_gp())


def test_several_outcomes_are_refused(axes):
    X = points(5)
    model = DerivedGP(X, torch.cat([outcomes(X), X[:, :1]], dim=-1))
    with pytest.raises(ValueError, match="one outcome without a batch"):
        plot_sign_map(axes, model, 0, BOX)
    with pytest.raises(ValueError, match="one outcome without a batch"):
        plot_gradient_arrows(axes, model, BOX)
