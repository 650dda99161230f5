import pytest

pytest.importorskip("flwr")

from flwr.common.config import parse_config_args

from federated.flower.configuration import NodeConfig, RunConfig, check_config

READ = [
    [""],
    ["rounds=3"],
    ["rounds=3 seed=1"],
    ["rounds=3", "seed=1", "rounds=4"],
    ["rounds=3\n  seed=1\t"],
    ['algorithm="fzoos" bounds="[0, 1]" options="gamma = \'adaptive\', num_features = 500"'],
    ["algorithm='hiso' options='curvature = {name = \"group_probe\"}' timeout=1e3"],
    ["x0=0.95 participation=2"],
    ['"local-steps"=3'],
]


@pytest.mark.parametrize("texts", READ)
def test_pairs_are_read_as_by_flower(texts):
    texts = ["dimension=3", *texts]
    assert check_config(RunConfig, texts) == parse_config_args(texts)


def test_a_file_is_read_as_by_flower(tmp_path, monkeypatch):
    path = tmp_path / "run.toml"
    path.write_text('# all of it\ndimension = 3\nrounds = 3\nlocal-steps = 2\nbounds = "[0, 1]"\n')
    assert check_config(RunConfig, [str(path)]) == parse_config_args([str(path)])
    monkeypatch.setenv("HOME", str(tmp_path))
    assert check_config(RunConfig, ["~/run.toml"]) == parse_config_args(["~/run.toml"])


@pytest.mark.parametrize(
    ("texts", "reason"),
    [
        (["algorithm=hiso"], "'algorithm=hiso' cannot be read: .* write pairs .* text in quotes, as in"),
        (["rounds=3, seed=1"], "'rounds=3, seed=1' cannot be read: .* write pairs with spaces between them"),
        (["rounds=3 rounds=4"], "'rounds=3 rounds=4' cannot be read"),
        (["bounds=[0,"], "text in quotes, as in .* bounds="),
        (["nowhere.toml"], "'nowhere.toml' cannot be read: .*No such file"),
        (["rounds=3", "run.toml"], "'run.toml' is not part of a pair key=value"),
        (["run.toml", "rounds=3"], "'run.toml' is not part of a pair key=value"),
    ],
)
def test_what_flower_refuses_is_refused_with_the_reason(texts, reason):
    with pytest.raises(Exception):  # noqa: B017
        parse_config_args(texts)
    with pytest.raises(ValueError, match=reason):
        check_config(RunConfig, texts)


@pytest.mark.parametrize("text", ["rounds = 3", "rounds= 3", "rounds", "rounds=3 seed", "rounds: 3"])
def test_what_flower_would_leave_out_is_refused(text):
    assert parse_config_args([text]).keys() <= {"rounds"} and parse_config_args([text]) != {"rounds": 4}
    with pytest.raises(ValueError, match="is not part of a pair key=value"):
        check_config(RunConfig, [text])


def run_config(text):
    check_config(RunConfig, ["dimension=3", text])


def node_config(text):
    check_config(NodeConfig, [f"client=0 {text}"])


@pytest.mark.parametrize(
    ("check", "text", "reason"),
    [
        (run_config, "local_steps=3", "run config 'local_steps' is unknown; did you mean 'local-steps'\\?"),
        (run_config, "step=3", "run config 'step' is unknown.*accepted: algorithm, bounds"),
        (run_config, "options.directions=3", "run config options must be text, got {'directions': 3}"),
        (run_config, "bounds=[0,1]", 'bounds must be text, got \\[0, 1\\]: write bounds="\\[0, 1\\]"'),
        (run_config, "output=3", 'output must be text, got 3: write output="3"'),
        (run_config, 'algorithm="hizo"', "unknown algorithm 'hizo'; did you mean 'hiso'"),
        (run_config, 'x0="zero"', "x0 is not a TOML value"),
        (run_config, "rounds=-1", "rounds must be at least 0"),
        (node_config, 'objective="myfed.plain"', "must be an import path .package.module:name., got 'myfed.plain'"),
        (node_config, 'objective="myfed:Client" arguments="c=.15"', "arguments must read like .* got 'c=.15'"),
        (node_config, 'objective="myfed:Client" retrys=3', "config 'retrys' is unknown; did you mean 'retries'"),
    ],
)
def test_a_config_is_refused_with_its_key_before_anything_starts(check, text, reason):
    with pytest.raises(ValueError, match=reason):
        check(text)


def test_a_config_that_is_right_is_taken():
    assert check_config(RunConfig, ["dimension=3", "x0=0.95"]) == {
        "dimension": 3,
        "x0": 0.95,
    }  # a number is a point, too
    run_config("x0=1")
    node_config('objective="myfed:Client" arguments="c=0.15"')
