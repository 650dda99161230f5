"""What every experiment promises, at its quick scale: records, determinism, readable figures, verdicts."""

import re

import numpy as np
import pytest

from experiments import registry
from experiments.harness.records import distinct, from_csv, to_csv
from experiments.report import entries, pages
from experiments.report.publish import settings_of
from experiments.running import results
from experiments.running.runner import run_experiments
from optimizers.comparison.records import mean_curve, seeds_of
from surrogates import plotting
from tests.experiments import quick
from tests.experiments.committed import NAMES, PUBLISHED, needs_results
from tests.experiments.quick import SEEDS
from tests.experiments.readable import faults, misplaced
from tests.experiments.words import unexplained

CLAIMS_NOTHING = ("zord-fig5",)
"""Figures whose papers claim nothing of them that can be measured."""
CROWDED = ("fzoos-fig7", "hiso-table5", "zord-table1")
"""Figures whose panels are many and whose records are few."""
WITHOUT_BANDS = ("zord-fig5",)
"""What is filled there is a surface."""
FAMILIES = (
    "zord rgf prgf least_squares_gradient es gld turbo1 turbom cobbo cma_es gradient_descent",
    "fzoos fedzo fedprox fedprox_d scaffold1 scaffold2",
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


LONG = (
    "beyond-gamma",
    "beyond-liars",
    "beyond-parallel",
    "beyond-plateau",
    "beyond-zord",
    "fzoos-fig4",
    "fzoos-fig5b",
    "katyusha-fig2",
)
"""Experiments whose quick runs take some seconds."""
SHARED = ("fzoos-fig1", "katyusha-fig1")
"""The same, but other files use these runs too."""
AGAIN = ("beyond-curvature", "calibration", "zord-fig3", "zord-table1")
"""The same, but for a second run alone."""
SETTINGS = (
    *(
        "fzoos-fig2",
        "fzoos-fig3",
        "fzoos-fig5a",
        "fzoos-fig6",
        "fzoos-fig9",
        "fzoos-fig10",
        "fzoos-fig11",
        "fzoos-fig12",
    ),
    *("hiso-fig8", "hiso-table2", "hiso-table5", "zord-fig8"),
)
"""Experiments that differ from one that is not slow in their settings alone."""


def slow(*names):
    """All experiments, of which some are only run with the slow tests."""
    return [pytest.param(name, marks=pytest.mark.slow if name in names else ()) for name in registry.MODULES]


@pytest.fixture(scope="module", params=slow(*LONG, *SETTINGS))
def finished(request):
    if not installed(request.param):
        pytest.skip(f"{request.param}: its extra is not installed")
    return quick.finished(request.param)


def test_records_are_finite_plain_and_survive_csv(finished):
    _, _, rows = finished
    assert seeds_of(rows) == SEEDS
    assert all(type(value) in (str, int, float) for row in rows for value in row.values())
    assert all(np.isfinite(row["value"]) for row in rows)
    assert from_csv(to_csv(rows)) == rows


@pytest.mark.parametrize("name", slow(*LONG, *SETTINGS, *SHARED, *AGAIN))
def test_a_seed_gives_the_same_bytes_whatever_ran_before_it(name):
    if not installed(name):
        pytest.skip(f"{name}: its extra is not installed")
    experiment, settings, rows = quick.finished(name)
    again = experiment.run(settings, [1])
    assert to_csv(again) == to_csv([row for row in rows if row["seed"] == 1])


def test_seeds_differ(finished):
    _, _, rows = finished
    one, two = ([row["value"] for row in rows if row["seed"] == seed] for seed in (0, 1))
    assert one != two


def test_methods_of_an_experiment_have_colours_of_their_own(finished):
    _, _, rows = finished
    if all("method" in row for row in rows):
        # A method without a style of its own may share a colour with another, or is drawn along an axis.
        known = [method for method in distinct(rows, "method") if method in plotting.METHODS]
        assert len({plotting.METHODS[method].color for method in known}) == len(known)


def test_a_table_has_our_values(finished):
    experiment, settings, rows = finished
    if experiment.table:
        table = experiment.table(settings, rows)
        assert table.caption and len(table.rows) > 0 and all(row[0].strip() and any(row[1:]) for row in table.rows)
        assert not unexplained(table.caption, settings, experiment.id, SEEDS)


def test_claims_are_judged_on_all_seeds(finished):
    experiment, settings, rows = finished
    verdicts = experiment.judged(settings, rows)
    paper = [verdict for verdict in verdicts if not verdict.control]
    assert not paper if experiment.paper == "ours" else paper or experiment.id in CLAIMS_NOTHING
    for verdict in verdicts:
        assert verdict.seeds == SEEDS and verdict.stand_in == experiment.stands_in(settings)
        assert not unexplained(verdict.claim, settings, experiment.id, SEEDS), verdict.claim
        assert np.isfinite(verdict.estimate) and np.isfinite(verdict.interval).all()
        assert verdict.interval[0] <= verdict.interval[1]


def test_figures_say_what_their_axes_are(finished):
    experiment, settings, rows = finished
    assert experiment.stands_in(settings) or not experiment.data
    assert bool(experiment.plot) or experiment.table
    with plotting.applied():
        for figure in experiment.figures(settings, rows).values():
            check_figure(experiment, settings, figure)
    assert not unexplained(experiment.captioned(settings), settings, experiment.id, SEEDS)


def check_figure(experiment, settings, figure):
    """Labels, a legend or methods along an axis, the stand-in's name, what bands are, and nothing unreadable."""
    assert faults(figure) == []
    assert experiment.stands_in(settings) in figure.get_suptitle()
    panels = [axes for axes in figure.axes if axes.get_subplotspec()]  # others are colour bars
    shared = any(axes.get_shared_x_axes().get_siblings(axes) != [axes] for axes in panels)
    for axes in panels:
        spec = axes.get_subplotspec()
        if spec.is_last_row() or not shared:
            assert axes.get_xlabel()
        if spec.is_first_col():
            assert axes.get_ylabel()
    titles_tell = all(len(axes.lines) == 1 for axes in panels)
    assert figure.legends or titles_tell or rows_are_methods(panels[0])
    if any(axes.collections for axes in panels) and experiment.id not in WITHOUT_BANDS:
        assert re.search("band|bar|error", experiment.captioned(settings))


def rows_are_methods(axes):
    return (
        len({label.get_text() for label in axes.get_yticklabels()} & {m.label for m in plotting.METHODS.values()}) > 1
    )


@needs_results
@pytest.mark.parametrize("name", NAMES)
def test_published_pictures_are_as_wide_as_they_are_printed(name):
    if not name.startswith(registry.SCOREBOARDS):
        pictures = entries.read(PUBLISHED, name).pictures
        assert all(inches in (plotting.COLUMN, plotting.PAGE) for _, inches in pictures)


@needs_results
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in CROWDED else pytest.mark.slow)
        for name in NAMES
        if name in registry.MODULES
    ],
)
def test_published_figures_are_readable_at_their_printed_size(name):
    """At the scale that was run they have more methods, panels and digits than at the quick one."""
    if not installed(name):
        pytest.skip(f"{name}: its extra is not installed")
    experiment = registry.get(name)
    settings, _ = settings_of(experiment, results.read_json(PUBLISHED / f"{name}.settings.json"))
    with plotting.applied():
        for figure in experiment.figures(settings, results.read_rows(PUBLISHED, name)).values():
            check_figure(experiment, settings, figure)
            assert misplaced(figure) == []


def test_an_unreadable_figure_is_found():
    with plotting.applied():
        figure, axes = plotting.panels(1, 2, width=5.0)
        for i in range(8):
            axes[0, 0].plot([0, 1], [0, i], label=f"method {i}")
        axes[0, 0].set_xticks([0.0, 0.01], ["many words", "that meet"])
        axes[0, 1].text(0.9, 0.5, "what goes over the edge of the paper", fontsize=6).set_in_layout(False)
    found = [*faults(figure), *misplaced(figure)]
    assert {fault.rpartition(" ")[2] for fault in found} == {"wide", "methods", "overlap", "cut", "pt"}


def test_methods_that_share_a_figure_have_colours_of_their_own():
    labels = [found.label for found in plotting.METHODS.values()]
    assert len(set(labels)) == len(labels)
    for family in FAMILIES:
        colors = [plotting.METHODS[method].color for method in family.split()]
        assert len(set(colors)) == len(colors)


def test_a_method_without_a_style_gets_one_from_its_name():
    names = [f"my_method_{i}" for i in range(20)]
    looks = [plotting.METHODS[name] for name in names]
    assert looks == [plotting.METHODS[name] for name in names] and len({look[1:] for look in looks}) > 10
    assert looks[3].label == "my method 3" and names[3] not in plotting.METHODS
    figure, axes = plotting.panels(1, 1)
    for name in names:
        plotting.draw(axes[0, 0], name, mean_curve([1, 2], [[0.0, 1.0], [1.0, 2.0]]))
    figure.canvas.draw()
    assert [line.get_color() for line in axes[0, 0].lines] == [look.color for look in looks]


NEW = '''"""A new contributor's figure: how it was read."""
import dataclasses

from experiments.harness.curves import draw_methods
from experiments.harness.experiment import Experiment
from experiments.harness.verdicts import judge_pairs
from optimizers.comparison.records import by_seed
from surrogates import plotting


@dataclasses.dataclass(frozen=True)
class Settings:
    counts: tuple[int, ...] = (1, 2)


def run_seed(settings, seed):
    slopes = {"random_search": 2, "rgf": 1}
    return [
        {"seed": seed, "method": method, "queries": n, "value": slope * n + seed}
        for method, slope in slopes.items()
        for n in settings.counts
    ]


def plot(settings, rows):
    methods = ("random_search", "rgf")
    return plotting.grid(
        {"a panel": {}},
        lambda panel, cell: draw_methods(panel, rows, "queries", methods, **cell),
        columns=1, xlabel="queries", ylabel="value", legend=2,
    )


def claims(settings, rows):
    def last(cell, method):
        return by_seed(rows, method=method, queries=2)

    pairs = [("random_search", "rgf", False)]
    return judge_pairs(pairs, "{} ends above {}", "difference", last, {"": None}, above=0.0)


EXPERIMENTS = tuple(
    Experiment(f"new-fig{i}", "two lines", "One is above.", {"paper": Settings()}, run_seed, plot, claims)
    for i in (1, 2)
)
'''


def test_a_new_experiment_is_one_module_and_one_line(tmp_path, monkeypatch):
    (tmp_path / "new_figures.py").write_text(NEW)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(
        registry, "MODULES", {"new-fig1": "new_figures", "new-fig2": "new_figures", "new-fig3": "new_figures"}
    )
    for outcome in run_experiments(["new-fig1", "new-fig2"], tmp_path / "out", seeds=3, jobs=1):
        assert not outcome.failure
        assert [(v.claim, v.status) for v in outcome.verdicts] == [("random search ends above RGF", "reproduced")]
    made, wrong = pages.build(tmp_path / "out")
    assert not wrong and "A new contributor's figure: how it was read." in made["ours.md"]
    with pytest.raises(registry.UnknownNameError, match="new_figures 'new-fig3'; the closest are"):
        registry.get("new-fig3")
