"""What every experiment promises, at its quick scale: records, determinism, labelled figures, verdicts."""

import numpy as np
import pytest

from experiments import registry
from experiments.harness import style
from experiments.harness.records import distinct, from_csv, seeds_of, to_csv

SEEDS = (0, 1, 2)
FAMILIES = (
    "zord rgf prgf least_squares_gradient es gld turbo1 turbom cobbo cma_es gradient_descent",
    "fzoos fedzo fedprox scaffold1 scaffold2",
    "hiso decomfl hiso_scalar fedzo fedavg fedadam fedyogi fedadagrad",
    "zo_l_katyusha zo_l_katyusha_full zo_svrg projected_zo accelerated_zo proximal_gradient",
    "cosine paired orthogonal sobol",
)


def installed(name):
    """Whether what the experiment needs is."""
    try:
        registry.require(registry.get(name).extra, name)
    except registry.MissingExtraError:
        return False
    return True


@pytest.fixture(scope="module", params=list(registry.MODULES))
def finished(request):
    if not installed(request.param):
        pytest.skip(f"{request.param}: its extra is not installed")
    experiment = registry.get(request.param)
    settings = experiment.settings("quick")
    return experiment, settings, experiment.run(settings, SEEDS)


def test_records_are_finite_plain_and_survive_csv(finished):
    _, _, rows = finished
    assert seeds_of(rows) == SEEDS
    assert all(type(value) in (str, int, float) for row in rows for value in row.values())
    assert all(np.isfinite(row["value"]) for row in rows)
    assert from_csv(to_csv(rows)) == rows


def test_a_seed_gives_the_same_bytes_whatever_ran_before_it(finished):
    experiment, settings, rows = finished
    again = experiment.run(settings, [1])
    assert to_csv(again) == to_csv([row for row in rows if row["seed"] == 1])


def test_seeds_differ(finished):
    _, _, rows = finished
    one, two = ([row["value"] for row in rows if row["seed"] == seed] for seed in (0, 1))
    assert one != two


def test_methods_of_an_experiment_have_colours_of_their_own(finished):
    _, _, rows = finished
    if all("method" in row for row in rows):
        # What style does not know has no colour: drawn along an axis, such as fixed values of γ.
        known = [method for method in distinct(rows, "method") if method in style.METHODS]
        colors = [style.METHODS[method].color for method in known]
        assert known and len(set(colors)) == len(colors)


def test_a_table_has_our_values(finished):
    experiment, settings, rows = finished
    if experiment.table:
        table = experiment.table(settings, rows)
        assert table.caption and len(table.rows) > 0 and all(all(map(str.strip, row[:2])) for row in table.rows)


def test_claims_are_judged_on_all_seeds(finished):
    experiment, settings, rows = finished
    verdicts = experiment.claims(settings, rows)
    assert any(not verdict.control for verdict in verdicts)
    for verdict in verdicts:
        assert verdict.seeds == SEEDS
        assert np.isfinite(verdict.estimate) and np.isfinite(verdict.interval).all()
        assert verdict.interval[0] <= verdict.interval[1]


def test_figures_say_what_their_axes_are(finished):
    experiment, settings, rows = finished
    with style.applied():
        figure = experiment.draw(settings, rows)
        figure.canvas.draw()
    assert experiment.stands_in(settings) or not experiment.data
    assert experiment.stands_in(settings) in figure.get_suptitle()
    shared = any(axes.get_shared_x_axes().get_siblings(axes) != [axes] for axes in figure.axes)
    for axes in figure.axes:
        spec = axes.get_subplotspec()
        if spec.is_last_row() or not shared:
            assert axes.get_xlabel()
        if spec.is_first_col():
            assert axes.get_ylabel()
    assert figure.legends and figure.legends[0].get_texts()


def test_progress_is_called_once_a_seed():
    experiment = registry.get("zord-fig10")
    calls = []
    experiment.run(experiment.settings("quick"), SEEDS, progress=lambda: calls.append(1))
    assert len(calls) == len(SEEDS)


def test_methods_that_share_a_figure_have_colours_of_their_own():
    labels = [found.label for found in style.METHODS.values()]
    assert len(set(labels)) == len(labels)
    for family in FAMILIES:
        colors = [style.METHODS[method].color for method in family.split()]
        assert len(set(colors)) == len(colors)
