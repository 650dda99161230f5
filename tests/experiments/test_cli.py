"""The command line as a user types it."""

import dataclasses
import errno
import io
import json
import shlex
import shutil
import subprocess
import sys
import types
from importlib import metadata

import pytest
from rich.console import Console

import experiments
import federated
import optimizers
import surrogates
from experiments import registry
from experiments.cli import SHELLS, main
from experiments.harness.records import to_csv
from experiments.program import MODULE
from experiments.running import listing
from tests.experiments import quick, toy


@pytest.fixture
def toy_only(monkeypatch):
    monkeypatch.setattr(registry, "MODULES", {"toy-fig1": "tests.experiments.toy"})
    monkeypatch.setattr(registry, "ESTIMATION_ERROR", ("toy-fig1",))


def listed(capsys, *arguments):
    """What ``list --json`` prints."""
    assert main(["list", "--json", *arguments]) == 0
    return json.loads(capsys.readouterr().out)["experiments"]


def test_list_says_what_is_needed_and_whether_it_is_here(monkeypatch, tmp_path, capsys):
    needy = dataclasses.replace(toy.experiment(), data=("mnist",), stand_in="digits for MNIST", extra="absent")
    monkeypatch.setattr(toy, "EXPERIMENT", dataclasses.replace(needy, cost={"paper": "3 h", "quick": "days on a GPU"}))
    monkeypatch.setattr(registry, "MODULES", {"toy-fig1": "tests.experiments.toy"})
    monkeypatch.setitem(registry.EXTRAS, "absent", ("no_such_module",))
    assert main(["list"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "toy-fig1 Toy, Fig. 1: numbers near their index see left – 3 h" in text and "quick: days on a GPU" in text
    assert "mnist (--data DIR, in DIR/mnist)" in text and "digits for MNIST" in text
    assert "(no_such_module); run: pip install 'gradient-surrogates-experiments[absent]'" in text
    (found,) = listed(capsys)
    assert (found["paper"], found["source"], found["extra"]) == ("ours", "Toy, Fig. 1", "absent")
    assert found["cost"] == {"quick": "days on a GPU", "reduced": "", "paper": "3 h"}
    assert found["data"] == {"mnist": None} and "no_such_module" in found["missing"]
    assert listed(capsys, "--data", str(tmp_path))[0]["data"] == {"mnist": False}
    (tmp_path / "mnist").mkdir()
    assert listed(capsys, "--data", str(tmp_path), "--paper", "ours")[0]["data"] == {"mnist": True}
    assert main(["list", "--data", str(tmp_path)]) == 0
    assert "mnist (here)" in capsys.readouterr().out
    assert listed(capsys, "--paper", "zord") == []
    monkeypatch.setattr(registry, "MODULES", {"hiso-y": "cma_missing"})
    monkeypatch.setitem(registry.EXTRAS, "absent", ("cma_missing",))
    assert "(cma_missing); run" in listed(capsys)[0]["missing"]
    assert main(["list"]) == 0
    assert "'./experiments[absent]'" in " ".join(capsys.readouterr().out.split())


def test_help_has_no_markup_and_the_name_that_was_typed(monkeypatch, capsys):
    names = {"/usr/bin/gradient-surrogates": "gradient-surrogates", "/x/experiments/__main__.py": MODULE}
    for typed, name in names.items():
        monkeypatch.setattr(sys, "argv", [typed])
        pages = ([], ["list"], ["run"], ["figures"], ["report"], ["publish"], ["completion"])
        for command in (*pages, ["benchmark", "hiso"], ["benchmark", "problems"]):
            with pytest.raises(SystemExit) as ended:
                main([*command, "--help"])
            page = capsys.readouterr().out
            assert ended.value.code == 0 and page.startswith(f"usage: {' '.join([name, *command])}"), page
            assert "`" not in page and "**" not in page and ":class:" not in page
            assert name == MODULE or MODULE not in page
        assert main(["benchmark", "--help"]) == 0
        page = capsys.readouterr().out
        unwrapped = "".join(page.split())  # argparse breaks lines at hyphens
        assert page.startswith(f"usage: {name} benchmark NAME") and all(b in unwrapped for b in registry.BENCHMARKS)
        with pytest.raises(SystemExit):
            main(["run", "--sedes"])
        assert f"{name} run: error: unrecognized arguments: --sedes; did you mean --seeds?" in capsys.readouterr().err


def test_the_version_is_the_packages(capsys):
    with pytest.raises(SystemExit):
        main(["--version"])
    assert capsys.readouterr().out == f"gradient-surrogates {metadata.version('gradient-surrogates')}\n"
    for package in (experiments, federated, optimizers, surrogates):
        assert package.__version__ == metadata.version("gradient-surrogates")


def test_the_version_needs_no_torch():
    code = "import sys; from experiments.__main__ import main; sys.argv = ['', '--version']; main(); "
    code += "print('torch' in sys.modules)"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert shown == f"gradient-surrogates {metadata.version('gradient-surrogates')}\nFalse\n"


def test_bash_completes_commands_ids_options_and_folders(tmp_path, capsys):
    """A real bash, with the script that is printed, asked as its Tab key asks."""
    pytest.importorskip("shtab")
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("there is no bash")
    for shell in SHELLS:
        assert main(["completion", shell]) == 0
        (tmp_path / shell).write_text(capsys.readouterr().out)

    def completed(*words):
        typed = " ".join(map(shlex.quote, ("gradient-surrogates", *words)))
        ask = f"source {tmp_path}/bash; COMP_WORDS=({typed}); COMP_CWORD={len(words)}; _shtab_gradient_surrogates; "
        done = subprocess.run([bash, "-c", ask + 'echo "${COMPREPLY[@]}"'], capture_output=True, text=True, check=True)
        return done.stdout.split()

    assert completed("li") == ["list"]
    assert completed("run", "zord-fig2") == ["zord-fig2a", "zord-fig2b"]
    assert completed("list", "--j") == ["--json"] and completed("run", "--scale", "re") == ["reduced"]
    assert completed("benchmark", "der") == ["derived-gp"]
    (tmp_path / "folder").mkdir()
    assert completed("run", "zord-fig1", "--out", str(tmp_path / "fol")) == [str(tmp_path / "folder")]


def test_a_missing_extra_is_answered_with_the_pip_command(monkeypatch, tmp_path, capsys):
    needy = dataclasses.replace(toy.experiment(), id="hiso-x", extra="absent")
    monkeypatch.setitem(sys.modules, "needy", types.SimpleNamespace(EXPERIMENT=needy))
    modules = {"toy-fig1": "tests.experiments.toy", "hiso-x": "needy", "hiso-y": "no_such_module"}
    monkeypatch.setattr(registry, "MODULES", modules)
    monkeypatch.setitem(registry.EXTRAS, "absent", ("no_such_module",))
    for name in ("hiso-x", "hiso-y"):
        assert main(["run", name, "--out", str(tmp_path)]) == 2
        assert "(no_such_module); run: pip install 'gradient-surrogates-exp" in capsys.readouterr().err
    run = ["--scale", "quick", "--jobs", "1", "--out", str(tmp_path)]
    assert main(["run", "--all", *run]) == 1
    assert capsys.readouterr().err.count("left out: ") == 2 and (tmp_path / "toy-fig1.csv").exists()
    assert main(["run", "--paper", "ours", *run]) == 0
    assert "left out" not in capsys.readouterr().err


def test_data_that_are_not_there_are_named_with_what_is_used(toy_only, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(toy, "EXPERIMENT", dataclasses.replace(toy.experiment(), data=("mnist",), stand_in="digits"))
    out = ["--jobs", "1", "--out", str(tmp_path / "out")]
    assert main(["run", "toy-fig1", "--data", str(tmp_path), *out]) == 0
    assert f"toy-fig1: {tmp_path} has no mnist; a stand-in is used" in capsys.readouterr().err
    assert main(["run", "toy-fig1", "--data", str(tmp_path / "absent"), *out]) == 2
    assert "absent is not a folder" in capsys.readouterr().err


def test_run_takes_ids_or_a_paper_or_all(capsys):
    assert main(["run"]) == 2
    assert main(["run", "zord-fig1", "--all"]) == 2
    assert main(["run", "zord-fig1", "--paper", "zord"]) == 2
    assert capsys.readouterr().err.count("error: run ") == 3


def test_report_is_written_beside_the_results_and_read_in_a_terminal(toy_only, tmp_path, capsys):
    assert main(["run", "toy-fig1", "--jobs", "1", "--out", str(tmp_path)]) == 0
    (tmp_path / "other.partial.jsonl").write_text("{}\n[0, [], 1.0]\n")
    capsys.readouterr()
    assert main(["report", "--from", str(tmp_path)]) == 0
    assert "values are positive" in (tmp_path / "ours.md").read_text()
    said = capsys.readouterr()
    assert "other is not finished: 1 seeds" in said.err
    command = shlex.split(said.out.rpartition(": ")[2])
    shown = subprocess.run([sys.executable, *command[1:]], capture_output=True, text=True, check=True)
    assert command[0] == "python" and "How a claim is judged" in shown.stdout
    assert main(["report", "--from", str(tmp_path / "nowhere")]) == 2
    assert "nowhere is not a folder" in capsys.readouterr().err


def test_publish_writes_to_the_folder_that_is_named_alone(toy_only, tmp_path, monkeypatch, capsys):
    assert main(["run", "toy-fig1", "--jobs", "1", "--out", str(tmp_path / "results")]) == 0
    monkeypatch.chdir(tmp_path)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*.*")}
    with pytest.raises(SystemExit):
        main(["publish"])
    assert "required: --to" in capsys.readouterr().err
    (tmp_path / "mine.md").write_text("mine <!-- reproduced -->\nold\n<!-- /reproduced --> end")
    assert main(["publish", "--to", "out", "--readme", "mine.md"]) == 0
    assert (tmp_path / "mine.md").read_text() == "mine <!-- reproduced -->\n\n<!-- /reproduced --> end"
    assert "toy-fig1: paper, 3 seeds" in capsys.readouterr().out and (tmp_path / "out" / "ours.md").exists()
    assert before.items() <= {path: path.read_bytes() for path in tmp_path.rglob("*.*") if path.is_file()}.items()


def test_a_full_disk_is_said_with_what_to_do(toy_only, tmp_path, monkeypatch, capsys):
    def full(path, content):
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    monkeypatch.setattr("experiments.running.results.replace", full)
    assert main(["run", "toy-fig1", "--jobs", "1", "--out", str(tmp_path)]) == 2
    message = capsys.readouterr().err
    assert "No space left on device" in message and str(tmp_path) in message and "--resume" in message


def test_list_names_every_experiment_and_benchmark(capsys):
    assert main(["list"]) == 0
    text = capsys.readouterr().out
    for name in (*registry.MODULES, *registry.BENCHMARKS):
        assert name in text
    assert [one["id"] for one in listed(capsys)] == list(registry.MODULES)


def test_a_terminal_gets_links_to_the_committed_figures():
    """As OSC 8 has them; what is piped has none."""
    text = io.StringIO()
    (table, *_) = listing.listing(listing.described("zord"))
    Console(file=text, force_terminal=True, width=100, legacy_windows=False).print(table)
    target = (listing.PUBLISHED / "zord-fig2a.png").as_uri()
    assert f";{target}\x1b\\" in text.getvalue()


def test_every_registered_module_defines_the_experiment_of_its_id():
    for name in registry.MODULES:
        experiment = registry.get(name)
        assert experiment.id == name
        assert {"paper", "quick"} <= set(experiment.scales)
        assert experiment.claim and experiment.shows and sys.modules[registry.MODULES[name]].__doc__


@pytest.mark.parametrize(
    "argv",
    [["run", "zord-fig2"], ["run", "zord-fig1", "zord-fig2"], ["publish", "zord-fig1", "zord-fig2", "--to", "out"]],
)
def test_an_unknown_experiment_is_answered_with_the_nearest_names(argv, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(argv) == 2
    message = capsys.readouterr().err
    assert "unknown experiment 'zord-fig2'" in message and "zord-fig2a" in message and "zord-fig2b" in message
    assert not list(tmp_path.iterdir())


def test_a_name_near_nothing_is_answered_with_all_names():
    with pytest.raises(registry.UnknownNameError, match=", ".join(registry.MODULES)):
        registry.get("qqqq")


def test_run_writes_to_out_and_closes_with_a_summary(toy_only, tmp_path, capsys):
    assert main(["run", "toy-fig1", "--seeds", "2", "--jobs", "1", "--out", str(tmp_path / "here")]) == 0
    assert (tmp_path / "here" / "toy-fig1.png").exists()
    text = capsys.readouterr().out
    assert "holds: values are positive" in text and "1 holds, 0 hold partly, 0 undecided, 0 do not hold" in text
    table = text[text.index("\nexperiment ") :].split()
    heads = "experiment seeds reproduced partly undecided not reproduced own claims hold figure"
    assert " ".join(table).startswith(heads) and table[len(heads.split()) + 1 :][:5] == [
        "toy-fig1",
        "2",
        "1",
        "of",
        "1",
    ]
    assert "toy-fig1.png" in table and text.count(str(tmp_path)) == 2  # where all of them are, and how to make a page


def test_figures_writes_to_results_by_default(toy_only, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["figures", "--jobs", "1"]) == 0
    assert (tmp_path / "results" / "toy-fig1.csv").exists()


def test_a_failure_is_the_exit_status(toy_only, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(toy, "EXPERIMENT", toy.experiment(fail_at=0))
    assert main(["run", "toy-fig1", "--jobs", "1", "--out", str(tmp_path)]) == 1
    assert "this seed fails" in capsys.readouterr().err


def test_an_interrupt_says_what_is_kept(toy_only, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(toy, "EXPERIMENT", toy.experiment(interrupt_at=1))
    assert main(["run", "toy-fig1", "--jobs", "1", "--out", str(tmp_path)]) == 130
    assert "toy-fig1: 1 seeds" in capsys.readouterr().err


def test_benchmark_passes_its_own_arguments_on(monkeypatch):
    seen = []
    module = types.SimpleNamespace(main=seen.append)
    monkeypatch.setitem(sys.modules, registry.BENCHMARKS["derived-gp"], module)
    assert main(["benchmark", "derived-gp", "--quick", "--out", "x"]) == 0
    assert seen == [["--quick", "--out", "x"]]


def test_a_folder_that_cannot_be_written_is_named(toy_only, tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert main(["run", "toy-fig1", "--jobs", "1", "--out", str(tmp_path / "file")]) == 2
    assert "file" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "near"),
    [
        (["rnu"], "run"),
        (["run", "--scale", "quik"], "quick"),
        (["list", "--paper", "zor"], "zord"),
        (["completion", "bsh"], "bash"),
        (["benchmark", "hisu"], "hiso"),
    ],
)
def test_a_choice_that_there_is_not_names_the_nearest(arguments, near, capsys):
    with pytest.raises(SystemExit):
        main(arguments)
    said = capsys.readouterr().err
    assert f"invalid choice: {arguments[-1]!r} (choose from" in said and said.endswith(f"); did you mean {near}?\n")


def test_unrecognized_arguments_are_refused(capsys):
    with pytest.raises(SystemExit):
        main(["run", "zord-fig1", "--seed", "3"])
    assert "unrecognized arguments: --seed 3; did you mean --seeds?" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["run", "zord-fig1", "--sedes", "3"])
    assert "--sedes" in capsys.readouterr().err


@pytest.mark.slow
def test_the_module_runs_and_seeds_in_parallel_give_the_same_records(tmp_path):
    command = [sys.executable, "-m", "experiments", "run", "zord-fig1", "--scale", "quick", "--seeds", "2"]
    command += ["--jobs", "2", "--out", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "zord-fig1.csv").read_text() == to_csv(quick.rows_of("zord-fig1"))
    assert "zord-fig1 (ZoRD, Fig. 1)" in done.stdout and str(tmp_path) in done.stdout
