"""The page of results, and the committed results that it is built from."""

import dataclasses
import html.parser
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from experiments import registry
from experiments.harness.experiment import paper_of
from experiments.harness.records import to_csv
from experiments.harness.verdicts import Table, with_sd
from experiments.page import report
from experiments.page.publish import PUBLISHED, publish, settings_of
from experiments.page.summary import SUMMARIES, verdict_table
from experiments.running import results
from experiments.running.results import ResultsError
from experiments.running.runner import run_experiments
from optimizers.comparison.interval import with_interval
from tests.experiments import toy
from tests.experiments.committed import ENTRIES, NAMES, needs_results

CHEAP = "zord-fig10"
LIMIT = 14e6


TABLE = Table(("method", "paper", "ours"), (("ours <b>", "1.0", "1.1 (1 to 1.2)"),), "queries & more")
FULL = dataclasses.replace(
    toy.experiment(),
    claim="values are > 0 & ``n`` < 11",
    stand_in="digits for MNIST",
    table=lambda settings, rows: TABLE,
)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Results of the toy, with a table, a stand-in and a claim that HTML would stumble over."""
    folder = tmp_path_factory.mktemp("made")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(toy, "EXPERIMENT", FULL)
        patch.setattr(registry, "MODULES", {"toy-fig1": "tests.experiments.toy"})
        run_experiments(["toy-fig1"], folder, jobs=1, show_progress=False)
    return folder


@pytest.fixture
def folder(made, monkeypatch, tmp_path):
    monkeypatch.setattr(toy, "EXPERIMENT", FULL)
    monkeypatch.setattr(registry, "MODULES", {"toy-fig1": "tests.experiments.toy"})
    return Path(shutil.copytree(made, tmp_path / "run"))


class _Tags(html.parser.HTMLParser):
    """Which elements a page has, that they are closed, and what they refer to."""

    VOID = ("meta", "img", "br")

    def __init__(self, text):
        super().__init__()
        self.open, self.seen, self.references, self.ids = [], [], [], set()
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.seen.append(tag)
        for key, value in attributes:
            if key in ("src", "href"):
                self.references.append(value)
            if key == "id":
                self.ids.add(value)
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_the_pages_need_their_folder_alone_and_say_everything(folder):
    pages, wrong = report.build(folder)
    assert not wrong and set(pages) == {"index.html", "ours.html"}
    tags = {name: _Tags(text) for name, text in pages.items()}
    for name, found in tags.items():
        assert not found.open and not {"script", "link", "iframe"} & set(found.seen)
        for reference in found.references:
            target, _, anchor = reference.partition("#")
            assert (target or name) in pages or (folder / target).exists()
            assert not anchor or anchor in tags[target or name].ids
        assert '<meta name="viewport" content="width=device-width, initial-scale=1">' in pages[name]
    facts = json.loads((folder / "toy-fig1.settings.json").read_text())
    for said in ("1 reproduced on the stand-in", "digits for MNIST", "paper, 3 seeds"):
        assert said in pages["index.html"] and said in pages["ours.html"], said
    for said in (
        "values are &gt; 0 &amp; <code>n</code> &lt; 11",
        "ours &lt;b&gt;",
        "queries &amp; more",
        "1.1 (1 to 1.2)",
        "The settings are those of the paper's scale",
        "&quot;num_queries&quot;: [ 5, 10 ]",
        'src="toy-fig1.png"',
        'loading="lazy"',
        "bands one standard error to either side. 3 seeds.",
        facts["command"],
        facts["machine"]["processor"],
        facts["versions"]["torch"],
        facts["date"],
        "An experiment of a few numbers",
    ):
        assert said in pages["ours.html"], said


def test_the_same_results_give_the_same_bytes(folder, tmp_path):
    first = report.build(folder)[0]
    shutil.copytree(folder, tmp_path / "copy")
    assert report.build(tmp_path / "copy")[0] == first


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("toy-fig1.settings.json", '{"format": 99}', "another version .format 99, this one reads 1.; run toy-fig1"),
        ("toy-fig1.settings.json", '{"experiment": "toy', "cannot be read"),
        ("toy-fig1.verdicts.json", '[{"claim": "x"}]', "another version"),
        ("toy-fig1.png", None, "toy-fig1.png is not there; run toy-fig1 again"),
        ("toy-fig1.verdicts.json", None, "toy-fig1.verdicts.json is not there"),
    ],
)
def test_results_that_cannot_be_read_are_named(folder, name, content, message):
    if content is None:
        (folder / name).unlink()
    else:
        (folder / name).write_text(content)
    with pytest.raises(ResultsError, match=message):
        report.build(folder)


def test_results_beside_unreadable_ones_are_shown(folder):
    (folder / "old-fig1.settings.json").write_text("{}")
    pages, wrong = report.build(folder)
    assert "toy-fig1" in pages["index.html"] and len(wrong) == 1 and "old-fig1" in wrong[0]


def test_publishing_keeps_the_records_and_makes_the_rest_anew(folder, tmp_path, monkeypatch):
    target = tmp_path / "published"
    before = (folder / "toy-fig1.csv").read_bytes()
    (folder / "toy-fig1.verdicts.json").write_text("[]")
    lines = publish(folder, target=target)
    assert "toy-fig1: paper, 3 seeds, 1 verdicts" in lines
    assert (target / "toy-fig1.csv").read_bytes() == before
    (verdict,) = results.read_verdicts(target, "toy-fig1")
    assert verdict.status == "reproduced"
    assert Image.open(target / "toy-fig1.png").mode == "P"
    assert {name: (target / name).read_text() for name in ("index.html", "ours.html")} == report.build(target)[0]
    table = (target / "verdicts.md").read_text()
    row = "| numbers near their index | paper, 3 seeds | stand-in: digits for MNIST | 1 |  |  |  |"
    assert f"| [Toy, Fig. 1](toy-fig1.png) {row}" in table
    assert "| all on the stand-ins | | | | 1 | 0 | 0 | 0 |" in table
    run_experiments(["toy-fig1"], tmp_path / "quick", scale="quick", jobs=1, show_progress=False)
    assert publish(tmp_path / "quick", target=target)[0] == "toy-fig1: quick, only its cost is noted"
    assert (target / "toy-fig1.csv").read_bytes() == before
    monkeypatch.setattr("experiments.page.publish.PACKED_FROM", 10)
    publish(folder, target=target)
    assert not (target / "toy-fig1.csv").exists()
    assert to_csv(results.read_rows(target, "toy-fig1")).encode() == before


def test_publishing_the_published_makes_all_that_follows_from_the_records_anew(folder, tmp_path, monkeypatch):
    target = tmp_path / "published"
    publish(folder, target=target)
    before = {path.name: path.read_bytes() for path in target.iterdir()}
    assert publish(target, target=target)[0] == "toy-fig1: paper, 3 seeds, 1 verdicts"
    assert {path.name: path.read_bytes() for path in target.iterdir()} == before
    words = dataclasses.replace(FULL, shows=lambda settings: f"{len(settings.num_queries)} panels", stand_in="")
    monkeypatch.setattr(toy, "EXPERIMENT", words)
    publish(target, target=target)
    after = {path.name: path.read_bytes() for path in target.iterdir()}
    assert {name for name in after if after[name] == before[name]} == {"toy-fig1.csv", "costs.json", "which-method.md"}
    assert "2 panels" in (target / "ours.html").read_text() and "stand-in:" not in (target / "verdicts.md").read_text()


def test_verdicts_of_an_older_version_are_read(folder):
    path = folder / "toy-fig1.verdicts.json"
    (found,) = json.loads(path.read_text())
    path.write_text(json.dumps([{key: found[key] for key in found if key not in ("undecided", "stand_in")}]))
    (verdict,) = results.read_verdicts(folder, "toy-fig1")
    assert (verdict.undecided, verdict.stand_in, verdict.said()) == (0, "", "reproduced")
    facts = json.loads((folder / "toy-fig1.settings.json").read_text())
    (folder / "toy-fig1.settings.json").write_text(json.dumps({k: v for k, v in facts.items() if k != "differences"}))
    assert not report.build(folder)[1]


def test_a_page_says_what_a_smaller_run_has_less_of(folder, monkeypatch, tmp_path):
    run_experiments(["toy-fig1"], tmp_path / "quick", scale="quick", jobs=1, show_progress=False)
    assert "<li>num_queries: (5) in the place of (5, 10)</li>" in report.build(tmp_path / "quick")[0]["ours.html"]


def test_settings_are_rebuilt_or_refused():
    experiment = toy.experiment()
    changed = dataclasses.replace(experiment.settings("paper"), num_queries=(7, 8))
    assert settings_of(experiment, {"settings": results.as_json(changed)}) == (changed, "other")
    assert settings_of(experiment, {"settings": results.as_json(experiment.settings("quick"))})[1] == "quick"
    with pytest.raises(ResultsError, match=r"\(gone differ\); run it again"):
        settings_of(experiment, {"settings": {**results.as_json(changed), "gone": 1}})


def test_tables_are_rectangular_and_their_intervals_are_the_verdicts():
    with pytest.raises(ValueError, match="3 columns has a row of 2"):
        Table(("a", "b", "c"), (("1", "2"),))
    assert with_interval([2.0, 2.0]) == "2 (2 to 2)"
    assert with_sd([1.0, 3.0]) == "2 ± 1.4" and with_sd([120.0], ".0f", ".0f") == "120 ± 0"


@needs_results
def test_the_committed_pages_are_built_from_the_committed_files():
    pages, wrong = report.build(PUBLISHED)
    assert not wrong
    assert pages == {path.name: path.read_text() for path in PUBLISHED.glob("*.html")}
    assert all(len(page) < 250_000 for page in pages.values())
    assert verdict_table(ENTRIES) == (PUBLISHED / "verdicts.md").read_text()
    assert sum(path.stat().st_size for path in PUBLISHED.iterdir()) < LIMIT


def test_every_figure_of_a_paper_is_in_its_summary():
    listed = {summary.paper: {e for p in summary.points for e in p.experiments} for summary in SUMMARIES}
    for name in registry.MODULES:
        paper = paper_of(name)
        if paper != "ours":
            assert name in listed[paper], name
    assert {name for names in listed.values() for name in names} <= set(registry.MODULES)


@needs_results
def test_the_committed_results_belong_to_this_version():
    for name in NAMES:
        facts = results.read_json(PUBLISHED / f"{name}.settings.json")
        settings_of(registry.get(name), facts)
        assert facts["scale"] in ("reduced", "paper") and facts["date"] and facts["machine"]
        assert (PUBLISHED / f"{name}.csv").exists() != (PUBLISHED / f"{name}.csv.xz").exists()


@needs_results
def test_a_committed_experiment_can_be_run_again():
    """Bitwise on the processor and with the versions of its run, else to what rounding becomes in its fits."""
    experiment = registry.get(CHEAP)
    facts = results.read_json(PUBLISHED / f"{CHEAP}.settings.json")
    settings, _ = settings_of(experiment, facts)
    kept = results.read_rows(PUBLISHED, CHEAP)
    seeds = facts["seeds"][:2]
    again = experiment.run(settings, seeds)
    kept = [row for row in kept if row["seed"] in seeds]
    if facts["versions"] == results.versions() and facts["machine"] == results.machine():
        assert to_csv(again) == to_csv(kept)
    keys = [{key: value for key, value in row.items() if key != "value"} for row in again]
    assert keys == [{key: value for key, value in row.items() if key != "value"} for row in kept]
    np.testing.assert_allclose([row["value"] for row in again], [row["value"] for row in kept], rtol=1e-5, atol=1e-5)


@needs_results
@pytest.mark.slow
def test_the_committed_verdicts_follow_from_the_committed_records():
    for name in NAMES:
        experiment = registry.get(name)
        facts = results.read_json(PUBLISHED / f"{name}.settings.json")
        settings, _ = settings_of(experiment, facts)
        rows = results.read_rows(PUBLISHED, name)
        assert sorted({row["seed"] for row in rows}) == facts["seeds"]
        found = experiment.claims(settings, rows)
        for verdict, kept in zip(found, results.read_verdicts(PUBLISHED, name), strict=True):
            assert (verdict.claim, verdict.status, verdict.seeds) == (kept.claim, kept.status, kept.seeds)
            assert verdict.estimate == pytest.approx(kept.estimate, rel=1e-9, abs=1e-12)
            assert verdict.interval == pytest.approx(kept.interval, rel=1e-9, abs=1e-12)
