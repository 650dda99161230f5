"""Running, writing, interrupting and going on."""

import dataclasses
import errno
import io
import json
from contextlib import closing

import pytest

from experiments import registry
from experiments.harness.experiment import SCALES
from experiments.harness.records import from_csv
from experiments.running import results, runner
from experiments.running.results import ResultsError, versions
from experiments.running.runner import Interrupted, run_experiments
from optimizers.running import journal
from tests.experiments import toy

FILES = {f"toy-fig1.{suffix}" for suffix in ("png", "pdf", "csv", "settings.json", "verdicts.json")}


@pytest.fixture(autouse=True)
def registered(monkeypatch):
    monkeypatch.setitem(registry.MODULES, "toy-fig1", "tests.experiments.toy")


def _run(out, **options):
    return run_experiments(["toy-fig1"], out, jobs=1, **options)


def _replace(monkeypatch, **settings):
    monkeypatch.setattr(toy, "EXPERIMENT", toy.experiment(**settings))


def test_all_files_are_written_and_say_what_made_them(tmp_path):
    (outcome,) = _run(tmp_path, command="python -m experiments run toy-fig1")
    assert {path.name for path in tmp_path.iterdir()} == FILES
    assert (tmp_path / "toy-fig1.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "toy-fig1.pdf").read_bytes().startswith(b"%PDF")
    rows = from_csv((tmp_path / "toy-fig1.csv").read_text())
    assert rows == toy.EXPERIMENT.run(toy.Settings(), range(3))
    facts = json.loads((tmp_path / "toy-fig1.settings.json").read_text())
    assert facts["settings"] == {"num_queries": [5, 10], "fail_at": -1, "interrupt_at": -1}
    assert facts["seeds"] == [0, 1, 2] and facts["versions"] == versions()
    assert facts["command"] == "python -m experiments run toy-fig1"
    (verdict,) = json.loads((tmp_path / "toy-fig1.verdicts.json").read_text())
    assert verdict["status"] == "reproduced" and verdict["seeds"] == [0, 1, 2]
    assert outcome.verdicts[0].estimate == verdict["estimate"]


def test_same_seeds_write_the_same_bytes(tmp_path):
    for name in ("a", "b"):
        _run(tmp_path / name)
    for name in ("toy-fig1.csv", "toy-fig1.verdicts.json", "toy-fig1.png", "toy-fig1.pdf"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


def test_more_seeds_keep_the_first_ones(tmp_path):
    _run(tmp_path / "a", seeds=2)
    _run(tmp_path / "b", seeds=4)
    few, many = ((tmp_path / name / "toy-fig1.csv").read_text() for name in ("a", "b"))
    assert many.startswith(few) and len(many) > len(few)


def test_scale_chooses_the_settings(tmp_path):
    _run(tmp_path, scale="quick")
    assert len(from_csv((tmp_path / "toy-fig1.csv").read_text())) == 3
    with pytest.raises(ValueError, match="no scale 'huge'; it has paper, quick"):
        _run(tmp_path, scale="huge")


def test_an_interrupt_keeps_finished_seeds_and_resume_goes_on(tmp_path, monkeypatch):
    _run(tmp_path / "whole")
    calls = []
    original = runner._run_seed

    def interrupted_at_the_last(task):
        calls.append(task[2])
        if task[2] == 2 and calls.count(2) == 1:
            raise KeyboardInterrupt
        return original(task)

    monkeypatch.setattr(runner, "_run_seed", interrupted_at_the_last)
    with pytest.raises(Interrupted) as interrupted:
        _run(tmp_path / "cut")
    assert interrupted.value.runs[0].finished == 2
    assert [path.name for path in (tmp_path / "cut").iterdir()] == ["toy-fig1.partial.jsonl"]
    _run(tmp_path / "cut", resume=True)
    assert calls == [0, 1, 2, 2]
    assert {path.name for path in (tmp_path / "cut").iterdir()} == FILES
    for name in ("toy-fig1.csv", "toy-fig1.verdicts.json"):
        assert (tmp_path / "cut" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def test_an_interrupt_leaves_earlier_results_alone(tmp_path, monkeypatch):
    _run(tmp_path)
    before = (tmp_path / "toy-fig1.csv").read_bytes()
    _replace(monkeypatch, interrupt_at=1)
    with pytest.raises(Interrupted):
        _run(tmp_path)
    assert (tmp_path / "toy-fig1.csv").read_bytes() == before


def test_resume_survives_a_cut_line_and_refuses_other_settings(tmp_path, monkeypatch):
    _replace(monkeypatch, interrupt_at=2)
    with pytest.raises(Interrupted):
        _run(tmp_path)
    partial = tmp_path / "toy-fig1.partial.jsonl"
    kept = partial.read_text()
    partial.write_text(kept + '[3,"run",2,[{"seed": 2, "val')
    _replace(monkeypatch)
    with pytest.raises(ResultsError, match=r"settings interrupt_at \(2 there, -1 here\); run without --resume"):
        _run(tmp_path, resume=True)
    assert partial.read_text() == kept
    _replace(monkeypatch, interrupt_at=2)
    with pytest.raises(Interrupted) as interrupted:
        _run(tmp_path, resume=True)
    assert interrupted.value.runs[0].finished == 2


def test_a_failing_seed_is_reported_and_does_not_stop_the_others(tmp_path, monkeypatch):
    _replace(monkeypatch, fail_at=1)
    (outcome,) = _run(tmp_path)
    assert "seed 1" in outcome.failure and "this seed fails" in outcome.failure
    assert outcome.finished == 2 and not outcome.verdicts
    assert {path.name for path in tmp_path.iterdir()} == {"toy-fig1.partial.jsonl"}


def test_a_seed_whose_process_dies_is_reported(tmp_path, monkeypatch):
    monkeypatch.setattr(runner, "run_tasks", lambda function, tasks, keep, *, died, **options: died(tasks[1]))
    (outcome,) = _run(tmp_path)
    assert outcome.failure.startswith("seed 1: its process died") and outcome.finished == 0


def test_a_partial_run_of_an_earlier_version_is_refused_and_kept_aside(tmp_path):
    partial = tmp_path / "toy-fig1.partial.jsonl"
    partial.write_text('{"experiment": "toy-fig1", "settings": {}, "versions": {}}\n[0, [], 1.0]\n')
    with pytest.raises(ResultsError, match=r"a journal of a run.*run without --resume to start over"):
        _run(tmp_path, resume=True)
    _run(tmp_path)
    assert partial.with_name("toy-fig1.partial.jsonl.bak").exists() and not partial.exists()


def test_another_process_with_the_same_run_is_refused(tmp_path):
    held = closing(results.PartialRun(tmp_path / "toy-fig1.partial.jsonl", {}, resume=False))
    with held, pytest.raises(ResultsError, match="in use"):
        _run(tmp_path, resume=True)


def _calls(monkeypatch):
    calls = []
    original = runner._run_seed

    def counted(task):
        calls.append(task[2])
        return original(task)

    monkeypatch.setattr(runner, "_run_seed", counted)
    return calls


def test_resume_repeats_no_seed_of_a_finished_experiment(tmp_path, monkeypatch):
    _run(tmp_path, seeds=2)
    calls = _calls(monkeypatch)
    (outcome,) = _run(tmp_path, seeds=2, resume=True)
    assert calls == [] and outcome.finished == 2 and outcome.verdicts[0].seeds == (0, 1)
    _run(tmp_path, seeds=4, resume=True)
    assert calls == [2, 3]
    _run(tmp_path / "whole", seeds=4)
    assert (tmp_path / "toy-fig1.csv").read_bytes() == (tmp_path / "whole" / "toy-fig1.csv").read_bytes()


def test_resume_refuses_results_of_other_versions(tmp_path):
    _run(tmp_path)
    path = tmp_path / "toy-fig1.settings.json"
    facts = json.loads(path.read_text())
    path.write_text(json.dumps({**facts, "versions": {**facts["versions"], "torch": "1.0"}}))
    with pytest.raises(ResultsError, match=r"differs in versions torch \('1.0' there.*without --resume"):
        _run(tmp_path, resume=True)


def test_starting_over_keeps_the_seeds_of_a_cut_run_aside(tmp_path, monkeypatch):
    _replace(monkeypatch, interrupt_at=2)
    with pytest.raises(Interrupted):
        _run(tmp_path)
    kept = (tmp_path / "toy-fig1.partial.jsonl").read_text()
    _replace(monkeypatch)
    _run(tmp_path)
    assert (tmp_path / "toy-fig1.partial.jsonl.bak").read_text() == kept


def test_a_full_disk_keeps_what_was_finished(tmp_path, monkeypatch):
    _run(tmp_path / "whole")

    class Disk(io.FileIO):
        def write(self, data):
            if b'"run",2,' in bytes(data):
                super().write(bytes(data)[:9])
                raise OSError(errno.ENOSPC, "No space left on device")
            return super().write(data)

    with monkeypatch.context() as patch:
        patch.setattr(journal, "open", lambda path, mode, buffering: Disk(path, "a"), raising=False)
        with pytest.raises(OSError, match="No space left"):
            _run(tmp_path / "cut")
    calls = _calls(monkeypatch)
    _run(tmp_path / "cut", resume=True)
    assert calls == [2]
    assert (tmp_path / "cut/toy-fig1.csv").read_bytes() == (tmp_path / "whole/toy-fig1.csv").read_bytes()


def test_a_write_that_fails_leaves_the_file_before_it_and_nothing_beside(tmp_path, monkeypatch):
    path = tmp_path / "file"
    results.replace(path, b"before")

    def full(number):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space left"):
        results.replace(path, b"after")
    assert path.read_bytes() == b"before" and list(tmp_path.iterdir()) == [path]


def test_device_and_data_reach_the_settings_that_have_them(tmp_path, monkeypatch):
    @dataclasses.dataclass(frozen=True)
    class Settings:
        device: str = "cpu"
        data: str = ""

    plain = toy.experiment()
    experiment = dataclasses.replace(plain, scales={"paper": Settings()}, data=("mnist",), stand_in="digits for MNIST")
    assert experiment.stands_in(runner.configured(experiment, "paper", None, tmp_path)) == "digits for MNIST"
    (tmp_path / "mnist").mkdir()
    settings = runner.configured(experiment, "reduced", "cpu", tmp_path)
    assert settings == Settings("cpu", str(tmp_path)) and experiment.stands_in(settings) == ""
    assert runner.configured(plain, "paper", "cpu", tmp_path) == toy.Settings()
    with pytest.raises(ValueError, match="device 'warp' is not available"):
        runner.configured(experiment, "paper", "warp", None)
    with pytest.raises(ValueError, match="absent is not a folder"):
        runner.configured(experiment, "paper", None, tmp_path / "absent")

    def check(settings):
        raise ValueError(f"{settings.data}/mnist is not what torchvision wrote")

    monkeypatch.setattr(toy, "EXPERIMENT", dataclasses.replace(experiment, check=check))
    with pytest.raises(ValueError, match=r"toy-fig1: .*mnist is not what torchvision wrote"):
        _run(tmp_path / "out", data=tmp_path)
    assert not (tmp_path / "out").exists()


def test_a_stand_in_is_named_above_the_figure():
    experiment = dataclasses.replace(toy.experiment(), stand_in="digits for MNIST")
    settings = experiment.settings("quick")
    figure = experiment.figures(settings, experiment.run(settings, range(2)))[""]
    assert figure.get_suptitle() == "stand-in: digits for MNIST"


def test_default_seeds_go_by_scale():
    plain = toy.experiment()
    many = dataclasses.replace(plain, seeds=10)
    assert [many.num_seeds(scale) for scale in SCALES] == [3, 10, 10]
    partly = dataclasses.replace(plain, seeds={"reduced": 5, "paper": 20})
    assert [partly.num_seeds(scale) for scale in SCALES] == [3, 5, 20]
    scaled = dataclasses.replace(plain, seeds={"quick": 2, "reduced": 5, "paper": 20})
    assert [scaled.num_seeds(scale) for scale in SCALES] == [2, 5, 20]
    assert plain.settings("reduced") is plain.settings("paper")
    assert plain.paper == "ours" and registry.get("hiso-fig4").paper == "hiso"


@pytest.mark.parametrize(
    ("options", "message"), [({"seeds": 1}, "seeds must be at least 2.* got 1"), ({"jobs": 0}, "at least 1, got 0")]
)
def test_bad_options_are_named_before_anything_runs(tmp_path, options, message):
    with pytest.raises(ValueError, match=message):
        run_experiments(["toy-fig1"], tmp_path, **options)
    assert not list(tmp_path.iterdir())
