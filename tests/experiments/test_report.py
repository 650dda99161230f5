"""The pages of results, and the committed results that they are built from."""

import dataclasses
import html
import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from markdown_it import MarkdownIt
from PIL import Image

from experiments import registry
from experiments.harness.experiment import OF_THEOREMS, paper_of
from experiments.harness.records import to_csv
from experiments.harness.verdicts import DIFFERS, Table, with_sd
from experiments.report import entries, markdown, pages, real_data
from experiments.report.publish import publish, settings_of
from experiments.running import results
from experiments.running.results import ResultsError
from experiments.running.runner import run_experiments
from optimizers.comparison.interval import with_interval
from tests.experiments import toy
from tests.experiments.committed import NAMES, PUBLISHED, needs_results

CHEAP = "zord-fig10"
LIMIT = 16e6


TABLE = Table(("method", "paper", "ours"), (("ours <b>|x|", "1.0", "1.1 (1 to 1.2)"),), "queries & more")
FULL = dataclasses.replace(
    toy.experiment(),
    claim="values are > 0 & ``n`` < 11",
    stand_in="digits for MNIST",
    table=lambda settings, rows: TABLE,
)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Results of the toy, with a table, a stand-in and a claim that Markdown would stumble over."""
    folder = tmp_path_factory.mktemp("made")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(toy, "EXPERIMENT", FULL)
        patch.setattr(registry, "MODULES", {"toy-fig1": "tests.experiments.toy"})
        run_experiments(["toy-fig1"], folder, jobs=1)
    return folder


@pytest.fixture
def folder(made, monkeypatch, tmp_path):
    monkeypatch.setattr(toy, "EXPERIMENT", FULL)
    monkeypatch.setattr(registry, "MODULES", {"toy-fig1": "tests.experiments.toy"})
    return Path(shutil.copytree(made, tmp_path / "run"))


def rendered(page):
    """A page as HTML, by a parser of Markdown that is not ours."""
    return MarkdownIt("commonmark").enable("table").render(page)


def dead_links(folder, made):
    """The links and pictures of pages that lead nowhere, by GitHub's rule for anchors."""
    read = {name: rendered(page) for name, page in made.items()}
    heads = {name: re.findall(r"<h\d>(.*?)</h\d>", page) for name, page in read.items()}
    for name, page in read.items():
        for target in re.findall(r'(?:href|src)="(.*?)"', page):
            path, _, anchor = target.partition("#")
            if path and not ((folder / path).is_file() or path in made):
                yield name, target
            if anchor and anchor not in heads[path or name]:
                yield name, target


def test_the_pages_need_their_folder_alone_and_say_everything(folder):
    (folder / "notes.md").write_text("# Notes of mine\n\nWhat I saw.\n")
    made, wrong = pages.build(folder)
    assert not wrong and set(made) == {"index.md", "ours.md"}
    assert list(dead_links(folder, made)) == []
    assert "[Notes of mine](notes.md)" in made["index.md"]
    facts = json.loads((folder / "toy-fig1.settings.json").read_text())
    index, ours = (html.unescape(rendered(made[name])) for name in ("index.md", "ours.md"))
    for said in ("<td>1 holds</td>", "digits for MNIST", "paper, 3 seeds", '<a href="ours.md#toy-fig1">'):
        assert said in index, said
    for said in (
        "values are > 0 & <code>n</code> < 11",
        "<td>ours <b>|x|</td>",
        "queries & more",
        "1.1 (1 to 1.2)",
        "This run uses the settings of the paper's scale",
        '<img src="toy-fig1.png" alt="Toy, Fig. 1: numbers near their index" width="408">',
        "bands show ± one standard error. 3 seeds.",
        f'<code class="language-bash">{facts["command"]}',
        facts["machine"]["processor"],
        f"torch {facts['versions']['torch']}",
        facts["date"],
        "An experiment of a few numbers",
        "<td>holds on the stand-in</td>",
    ):
        assert said in ours, said


def test_a_link_that_leads_nowhere_would_be_seen(folder):
    made = {"a.md": '## here\n\n[1](#here) [2](#there) [3](b.md) [4](toy-fig1.png) <img src="no.png">'}
    assert [target for _, target in dead_links(folder, made)] == ["#there", "b.md", "no.png"]


@pytest.mark.parametrize(
    "said",
    [
        *("a <b> c", "x_{r−1} and x_r", "_x_", "(f − f*)/(f₀ − f*)", "a*b*c", "[0, 10](x)", "[a][b]", "$5 and $6"),
        *("~x~", "&amp; & &#42;", "a\\b", "`", "1 < 2 > 0", "d = 5 | 6"),
    ],
)
def test_a_text_is_read_as_it_was_written(said):
    assert html.unescape(rendered(markdown.text(said))) == f"<p>{said}</p>\n"
    code = said.replace("`", "'")
    row = rendered(markdown.table(["text", "code"], [[markdown.text(said), markdown.text(f"``{code}``")]]))
    assert f"<td>{said}</td>\n<td><code>{code}</code></td>" in html.unescape(row)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (
            "toy-fig1.settings.json",
            '{"format": 99}',
            "another version .format 99; this version reads format 1.; run toy-fig1",
        ),
        ("toy-fig1.settings.json", '{"experiment": "toy', "cannot be read"),
        ("toy-fig1.verdicts.json", '[{"claim": "x"}]', "another version"),
        ("toy-fig1.png", None, "toy-fig1.png does not exist; run toy-fig1 again"),
        ("toy-fig1.verdicts.json", None, "toy-fig1.verdicts.json does not exist"),
    ],
)
def test_results_that_cannot_be_read_are_named(folder, name, content, message):
    if content is None:
        (folder / name).unlink()
    else:
        (folder / name).write_text(content)
    with pytest.raises(ResultsError, match=message):
        pages.build(folder)


def test_results_beside_unreadable_ones_are_shown(folder):
    (folder / "old-fig1.settings.json").write_text("{}")
    made, wrong = pages.build(folder)
    assert "toy-fig1" in made["index.md"] and len(wrong) == 1 and "old-fig1" in wrong[0]


def test_publishing_keeps_the_records_and_makes_the_rest_anew(folder, tmp_path, monkeypatch):
    target = tmp_path / "published"
    before = (folder / "toy-fig1.csv").read_bytes()
    (folder / "toy-fig1.verdicts.json").write_text("[]")
    lines = publish(folder, target)
    assert "toy-fig1: paper, 3 seeds, 1 verdicts" in lines
    assert (target / "toy-fig1.csv").read_bytes() == before
    (verdict,) = results.read_verdicts(target, "toy-fig1")
    assert verdict.status == "reproduced"
    assert Image.open(target / "toy-fig1.png").mode == "P"
    assert {path.name: path.read_text() for path in target.glob("*.md")} == pages.build(target)[0]
    run_experiments(["toy-fig1"], tmp_path / "quick", scale="quick", jobs=1)
    assert publish(tmp_path / "quick", target)[0] == "toy-fig1: quick scale, only its cost was recorded"
    assert (target / "toy-fig1.csv").read_bytes() == before
    monkeypatch.setattr("experiments.report.publish.PACKED_FROM", 10)
    publish(folder, target)
    assert not (target / "toy-fig1.csv").exists()
    assert to_csv(results.read_rows(target, "toy-fig1")).encode() == before


def test_publishing_the_published_makes_all_that_follows_from_the_records_anew(folder, tmp_path, monkeypatch):
    target = tmp_path / "published"
    publish(folder, target)
    before = {path.name: path.read_bytes() for path in target.iterdir()}
    assert publish(target, target)[0] == "toy-fig1: paper, 3 seeds, 1 verdicts"
    assert {path.name: path.read_bytes() for path in target.iterdir()} == before
    words = dataclasses.replace(FULL, shows=lambda settings: f"{len(settings.num_queries)} panels", stand_in="")
    monkeypatch.setattr(toy, "EXPERIMENT", words)
    publish(target, target)
    after = {path.name: path.read_bytes() for path in target.iterdir()}
    assert {name for name in after if after[name] == before[name]} == {"toy-fig1.csv", "costs.json"}
    assert "2 panels" in (target / "ours.md").read_text() and "stand-in" not in (target / "ours.md").read_text()


def test_a_command_says_where_its_scale_has_other_settings_than_the_run(folder, tmp_path, monkeypatch):
    target = tmp_path / "published"
    publish(folder, target)
    command = "python -m experiments run toy-fig1 --scale paper --seeds 3"
    assert entries.read(target, "toy-fig1").facts["command"] == command
    monkeypatch.setattr(toy, "EXPERIMENT", dataclasses.replace(FULL, scales={"paper": toy.Settings((5,))}))
    publish(target, target)
    changed = entries.read(target, "toy-fig1").facts["command"]
    assert changed == f"{command}  # the settings of this scale have changed since this run"


def test_verdicts_of_an_older_version_are_read(folder):
    path = folder / "toy-fig1.verdicts.json"
    (found,) = json.loads(path.read_text())
    path.write_text(json.dumps([{key: found[key] for key in found if key not in ("undecided", "stand_in")}]))
    (verdict,) = results.read_verdicts(folder, "toy-fig1")
    assert (verdict.undecided, verdict.stand_in, verdict.said()) == (0, "", "holds")
    facts = json.loads((folder / "toy-fig1.settings.json").read_text())
    (folder / "toy-fig1.settings.json").write_text(json.dumps({k: v for k, v in facts.items() if k != "differences"}))
    assert not pages.build(folder)[1]


def test_a_page_says_what_a_smaller_run_has_less_of(folder, monkeypatch, tmp_path):
    run_experiments(["toy-fig1"], tmp_path / "quick", scale="quick", jobs=1)
    assert "- num_queries: (5) instead of (5, 10)\n" in pages.build(tmp_path / "quick")[0]["ours.md"]


def test_settings_are_rebuilt_or_refused():
    experiment = toy.experiment()
    changed = dataclasses.replace(experiment.settings("paper"), num_queries=(7, 8))
    assert settings_of(experiment, {"settings": results.as_json(changed)}) == (changed, "other")
    assert settings_of(experiment, {"settings": results.as_json(experiment.settings("quick"))})[1] == "quick"
    with pytest.raises(ResultsError, match=r"settings differ .* in gone; run the experiment again"):
        settings_of(experiment, {"settings": {**results.as_json(changed), "gone": 1}})


def test_tables_are_rectangular_and_their_intervals_are_the_verdicts():
    with pytest.raises(ValueError, match=r"3 cells, got 2"):
        Table(("a", "b", "c"), (("1", "2"),))
    assert with_interval([2.0, 2.0]) == "2 (2 to 2)"
    assert with_sd([1.0, 3.0]) == "2 ± 1.4" and with_sd([120.0], ".0f", ".0f") == "120 ± 0"


@needs_results
def test_the_committed_pages_are_built_from_the_committed_files():
    made, wrong = pages.build(PUBLISHED)
    written = {path.name: path.read_text() for path in PUBLISHED.glob("*.md")}
    assert not wrong and made.items() <= written.items()
    assert list(dead_links(PUBLISHED, written)) == []
    assert all(len(page) < 250_000 for page in made.values())
    assert sum(path.stat().st_size for path in PUBLISHED.iterdir()) < LIMIT


def test_every_figure_of_a_paper_is_in_its_summary():
    listed = {
        name: {e for p in summary["points"] for e in p["experiments"]} for name, summary in pages.SUMMARIES.items()
    }
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


@pytest.mark.slow
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


def test_a_run_on_real_data_is_counted_apart_and_records_no_path(tmp_path, monkeypatch):
    @dataclasses.dataclass(frozen=True)
    class Settings(toy.Settings):
        data: str = ""

    def differs(settings):
        return f"{len(list(Path(settings.data, 'mnist').iterdir()))} of 7 images"

    monkeypatch.setitem(OF_THEOREMS, "toy-fig1", "zord")
    experiment = dataclasses.replace(FULL, scales={"paper": Settings()}, data=("mnist",), differs=differs)
    monkeypatch.setattr(toy, "EXPERIMENT", experiment)
    monkeypatch.setattr(registry, "MODULES", {"toy-fig1": "tests.experiments.toy"})
    (tmp_path / "secret" / "mnist").mkdir(parents=True)
    (tmp_path / "secret" / "mnist" / "image").touch()
    out, target = tmp_path / "run", tmp_path / "published"
    run_experiments(["toy-fig1"], out, jobs=1, data=tmp_path / "secret")
    publish(out, target)
    (entry,), _ = entries.read_all(target)
    (verdict,) = entry.verdicts
    assert (verdict.differs, verdict.stand_in, entry.facts["settings"]["data"]) == ("1 of 7 images", "", "DIR")
    assert verdict.said() == "reproduced on the paper's data, other model or size"
    assert entry.facts["command"].endswith("--data DIR") and entries.tallies([entry]) == {DIFFERS: {"reproduced": 1}}
    first = {"experiment": "toy-fig1", "claim": verdict.claim, "status": "partly", "held": 1, "settings": 2}
    (target / real_data.FIRST).write_text(json.dumps([first | {"scale": "quick", "seeds": 2}]))
    publish(target, target)
    line = (target / pages.REAL_DATA).read_text().splitlines()[-1]
    assert line.endswith("| partly, in 1 of 2 | quick, 2 seeds | **reproduced** | paper, 3 seeds | 1 of 7 images |")
    for path in target.iterdir():
        assert b"secret" not in path.read_bytes(), path


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("ZoRD needs fewer queries than TuRBO-1", "ZoRD needs fewer queries than TuRBO-10", False),
        (
            "HiSo needs fewer rounds than DeComFL to accuracy 0.6",
            "HiSo needs fewer rounds than DeComFL to accuracy 0.4",
            True,
        ),
        ("a budget of 1,000 queries", "a budget of 200 queries", True),
    ],
)
def test_a_claim_then_and_now_may_differ_in_numbers_but_not_in_names(one, other, same):
    assert (real_data._key(one) == real_data._key(other)) is same
