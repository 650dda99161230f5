"""What is said beside figures and tables is what was run: every number of a text is one of the settings."""

import dataclasses

import pytest

from experiments import registry
from experiments.report import entries
from experiments.report.publish import settings_of
from experiments.running.runner import run_experiments
from tests.experiments import toy
from tests.experiments.committed import ENTRIES, NAMES, needs_results
from tests.experiments.words import NOT_SETTINGS, numbers, of_settings, unexplained

EXPERIMENTS = [entry for entry in ENTRIES if entry.id in NAMES]
SCALES = [(name, scale) for name in registry.MODULES for scale in registry.get(name).scales]


def said(entry):
    """The published texts of an experiment that speak of the run."""
    table = entry.facts["table"]
    return [entry.facts["shows"], *(v.claim for v in entry.verdicts), *([table["caption"]] if table else [])]


@pytest.mark.parametrize(("name", "scale"), SCALES)
def test_what_a_scale_shows_has_its_numbers(name, scale):
    experiment = registry.get(name)
    settings = experiment.settings(scale)
    assert experiment.shown(settings) and not unexplained(experiment.shown(settings), settings, name)


@needs_results
@pytest.mark.parametrize("entry", EXPERIMENTS, ids=lambda entry: entry.id)
def test_what_is_published_has_the_numbers_of_its_run(entry):
    experiment = registry.get(entry.id)
    settings, _ = settings_of(experiment, entry.facts)
    assert entry.facts["shows"] == experiment.shown(settings)
    assert entry.facts["differences"] == experiment.differences(settings)
    for text in said(entry):
        assert not unexplained(text, settings, entry.id, entry.facts["seeds"]), text


def test_a_text_of_the_papers_scale_is_seen_beside_a_smaller_run():
    experiment = dataclasses.replace(toy.experiment(), shows="numbers of six environments after 1,000 queries")
    settings = dataclasses.replace(experiment.settings(), num_queries=(100, 200))
    assert unexplained(experiment.shown(settings), settings) == [1000.0, 6.0]
    made = dataclasses.replace(experiment, shows=lambda s: f"two numbers after {s.num_queries[0]} and 200 queries")
    assert not unexplained(made.shown(settings), settings)
    assert unexplained(made.shown(settings), experiment.settings()) == [100.0, 200.0]
    table3 = registry.get("zord-table3")
    two = dataclasses.replace(table3.settings("reduced"), environments=("acrobot", "lunar_lander"))
    assert unexplained("reward of controllers after 1,000 queries in six environments", two) == [1000.0, 6.0]
    assert unexplained(table3.shown(table3.settings("paper")), two, "zord-table3") == [1000.0]


def test_numbers_are_read_as_they_are_written():
    assert numbers("ε = 0.3, 1e-10 in 6,000 queries, 95% of five; d = 10 (3 seeds), ν=0.1.") == [
        0.3, 1e-10, 6000.0, 0.95, 10.0, 3.0, 0.1, 5.0
    ]  # fmt: skip
    assert not numbers("TuRBO-10 on CIFAR-10, eq. 14 and Fig. 2a, Matérn 5/2 in log10 of 1/t")
    assert of_settings(toy.Settings((5, 10), 3)) == {2.0, 5.0, 10.0, 3.0, -1.0}


@needs_results
def test_what_no_setting_decides_is_said_somewhere():
    """The list of such numbers has none that no text needs."""
    needed = {name: set() for name in NOT_SETTINGS}
    for entry in EXPERIMENTS:
        settings, _ = settings_of(registry.get(entry.id), entry.facts)
        for text in said(entry):
            needed.setdefault(entry.id, set()).update(unexplained(text, settings, "", entry.facts["seeds"]))
    assert needed == {name: {*map(float, found)} for name, found in NOT_SETTINGS.items()} | {
        name: set() for name in needed if name not in NOT_SETTINGS
    }


def test_differences_name_what_a_run_has_less_of():
    experiment = registry.get("fzoos-fig4")
    assert experiment.differences(experiment.settings("paper")) == []
    assert experiment.differences(experiment.settings("reduced")) == ["rounds: 25 instead of 50"]


def test_results_are_written_with_the_texts_of_their_settings(tmp_path, monkeypatch):
    shows = dataclasses.replace(toy.experiment(), shows=lambda s: f"{s.num_queries[-1]} queries", stand_in="toys")
    monkeypatch.setattr(toy, "EXPERIMENT", shows)
    monkeypatch.setattr(registry, "MODULES", {"toy-fig1": "tests.experiments.toy"})
    (outcome,) = run_experiments(["toy-fig1"], tmp_path, scale="quick", jobs=1)
    (entry,), _ = entries.read_all(tmp_path)
    assert entry.facts["shows"] == "5 queries"
    assert entry.facts["differences"] == ["num_queries: (5) instead of (5, 10)"]
    assert outcome.verdicts == list(entry.verdicts) and entry.verdicts[0].stand_in == "toys"
    assert entry.verdicts[0].line().startswith("holds on the stand-in: values are positive")
