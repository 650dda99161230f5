import math

import pytest
import torch

pytest.importorskip("flwr")

from flwr.cli.config_utils import load_and_validate
from flwr.common.config import parse_config_args

from federated import ALGORITHMS, algorithm_class
from federated.flower import __main__ as commands
from federated.flower import configuration
from federated.flower.configuration import NodeConfig, RunConfig, imported
from federated.methods.scalar.hiso import HiSo
from optimizers import GroupProbe
from tests.federated.flower.setting import DEFAULTS, SMALL

SET = {"dimension": 4}
POINT = torch.linspace(0.0, 1.0, 3)


def make_point():
    return POINT.double()


def adam(p):
    return torch.optim.Adam([p], lr=0.5)


def made(**changes):
    return RunConfig.of(DEFAULTS | SET | changes).make_algorithm()


def test_the_apps_defaults_are_those_of_the_class_and_flower_accepts_the_app():
    assert RunConfig.of(DEFAULTS) == RunConfig()
    config, warnings = load_and_validate(commands.APP / "pyproject.toml")
    assert config["tool"]["flwr"]["app"]["config"] == DEFAULTS and not warnings


@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_every_algorithm_is_made_as_by_its_class(name):
    options = SMALL.get(name, "")
    algorithm = made(algorithm=name, options=options, clients=3, seed=5, participation=2, **{"local-steps": 4})
    given = dict(part.split(" = ") for part in options.split(", ") if part)
    values = {k: v.strip("'") if "'" in v else int(v) for k, v in given.items()}
    theirs = algorithm_class(name)(
        torch.zeros(4, dtype=torch.float64), clients=3, seed=5, participation=2, local_steps=4, **values
    )
    assert algorithm.fingerprint == theirs.fingerprint


@pytest.mark.parametrize(
    ("given", "x0"),
    [
        ({"x0": "0.5"}, torch.full((4,), 0.5, dtype=torch.float64)),
        ({"x0": "-1", "dtype": "float32"}, torch.full((4,), -1.0)),
        ({"x0": 0.1 + 0.2}, torch.full((4,), 0.1 + 0.2, dtype=torch.float64)),
        ({"x0": 1e-7}, torch.full((4,), 1e-7, dtype=torch.float64)),
        ({"x0": -1}, torch.full((4,), -1.0, dtype=torch.float64)),
        ({"x0": "[1, 2.5]", "dimension": 0}, torch.tensor([1.0, 2.5], dtype=torch.float64)),
        ({"x0": f"{__name__}:POINT"}, POINT),
        ({"x0": f"{__name__}:make_point"}, POINT.double()),
    ],
)
def test_initial_points(given, x0):
    found = made(**given).x0
    assert torch.equal(found, x0) and found.dtype == x0.dtype


def test_bounds_weights_and_objects():
    algorithm = made(bounds="[0, 1]", weights="[1.0, 3.0]", x0="0.5")
    assert [len(b) for b in algorithm.box] == [4, 4] and algorithm.weights == (1.0, 3.0)
    pairs = made(bounds="[[0, 1], [0, 2], [0, 3], [0, 4]]", x0="0.5")
    assert pairs.box[1].tolist() == [1.0, 2.0, 3.0, 4.0]
    rule = made(options=f"update_rule = '{__name__}:adam'")
    assert rule.update_rule is adam and rule.fingerprint != made().fingerprint
    prox = made(options="prox = 'tests.federated.flower.test_configuration:half'")
    assert prox.prox is half


def test_a_curvature_is_a_table():
    text = "rate = 0.1, curvature = {name = 'group_probe', groups = 2, clip = inf}"
    algorithm = made(algorithm="hiso", options=text)
    same = HiSo(algorithm.x0, clients=algorithm.clients, rate=0.1, curvature=GroupProbe(groups=2, clip=math.inf))
    assert algorithm.configuration == same.configuration and algorithm.curvature.groups.sizes.tolist() == [2, 2]
    assert made(algorithm="hiso").fingerprint != algorithm.fingerprint
    with pytest.raises(TypeError, match="did you mean 'groups'"):
        made(algorithm="hiso", options="curvature = {name = 'group_probe', group = 2}")


def half(z, step):
    return z / (1.0 + step)


def test_what_the_command_line_makes_of_the_readmes_text():
    text = 'algorithm="fzoos" dimension=20 rounds=5 bounds="[0, 1]" options="gamma = \'adaptive\', num_features = 500"'
    given = parse_config_args([text])
    config = RunConfig.of(DEFAULTS | given)
    assert config.make_algorithm().num_features == 500 and config.make_algorithm().gamma == "adaptive"
    node = NodeConfig.of(
        parse_config_args(['client=1 objective="federated.flower.example:quadratic" arguments="center=0.6"'])
    )
    evaluators, gradients = node.prepared(config.make_algorithm())
    assert not gradients
    f = evaluators[1].fun
    x = torch.tensor([0.6, 0.7, 0.6], dtype=torch.float64)
    assert float(f(x)) == pytest.approx(0.01 * (2 / 3) / 3)


BAD = {
    "unknown name": ({"roundz": 3}, ValueError, "did you mean 'rounds'"),
    "type": ({"rounds": "3"}, TypeError, "rounds must be a whole number, got '3': write rounds=3$"),
    "truth for a number": ({"clients": True}, TypeError, "clients must be a whole number, got True$"),
    "a number for text": ({"weights": 0.5}, TypeError, 'weights must be text, got 0.5: write weights="0.5"$'),
    "text for a number": ({"participation": "half"}, TypeError, "participation must be a number, got 'half'$"),
    "negative": ({"rounds": -1}, ValueError, "rounds"),
    "nan": ({"timeout": float("nan")}, TypeError, "timeout"),
    "unknown algorithm": ({"algorithm": "fzos"}, ValueError, "did you mean 'fzoos'"),
    "unknown option": ({"options": "directionz = 3"}, TypeError, "did you mean 'directions'"),
    "options that are no TOML": ({"options": "directions: 3"}, ValueError, "options must read like"),
    "an option with a run config of its own": ({"options": "seed = 3"}, ValueError, r"\['seed'\]"),
    "no clients": ({"clients": 0}, ValueError, "clients"),
    "a sample larger than the federation": (
        {"participation": 3},
        ValueError,
        "participation is 3: ",
    ),
    "weights of other clients": ({"weights": "[1.0]"}, ValueError, "expected 2 weights"),
    "no dimension": ({"dimension": 0}, ValueError, "add the dimension"),
    "two dimensions": ({"x0": "[1, 2]"}, ValueError, "x0 has 2 coordinates, but dimension is 4"),
    "x0 that is no TOML": ({"x0": "zero"}, ValueError, "x0 is not a TOML value"),
    "x0 that is no point": ({"x0": "true"}, TypeError, "a number, a list or an import path"),
    "x0 that is not finite": ({"x0": "nan"}, ValueError, "finite"),
    "a number x0 that is not finite": ({"x0": float("inf")}, ValueError, "finite"),
    "truth for x0": ({"x0": True}, TypeError, "x0 must be text, got True"),
    "x0 elsewhere": ({"x0": "nowhere.at:all"}, ValueError, "x0 'nowhere.at:all' cannot be imported"),
    "dtype": ({"dtype": "float8"}, ValueError, "did you mean"),
    "a rule elsewhere": (
        {"options": "update_rule = 'torch:nothing'"},
        ValueError,
        "option update_rule 'torch:nothing'",
    ),
    "a rule that is no path": ({"options": "update_rule = 3"}, ValueError, "must be an import path"),
    "bounds": ({"bounds": "[1, 0]"}, ValueError, "lower 1.0 > upper 0.0"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_run_config_that_is_refused(name):
    changes, error, reason = BAD[name]
    with pytest.raises(error, match=reason):
        made(**changes)


ELSEWHERE = ("x0 elsewhere", "a rule elsewhere")


@pytest.mark.parametrize("name", BAD)
def test_what_is_wrong_is_found_without_an_import(name, monkeypatch):
    monkeypatch.setattr(configuration, "resolve_name", None)
    changes, error, reason = BAD[name]
    if name in ELSEWHERE:
        RunConfig.of(DEFAULTS | SET | changes).check()
        return
    with pytest.raises(error, match=reason):
        RunConfig.of(DEFAULTS | SET | changes).check()


@pytest.mark.parametrize("name", sorted(ALGORITHMS))
@pytest.mark.parametrize("changes", [{}, {"x0": "nowhere:x", "bounds": "[0, 1]"}, {"dimension": 10**12}])
def test_what_is_right_is_not_refused_before_its_paths_are_imported(name, changes, monkeypatch):
    monkeypatch.setattr(configuration, "resolve_name", None)
    options = ", ".join(filter(None, [SMALL.get(name, ""), "server_rate = 0.5", "trim = 0.2"]))
    RunConfig.of(DEFAULTS | SET | {"algorithm": name, "options": options} | changes).check()


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"x0": "nowhere:x", "options": "directionz = 3"}, "did you mean 'directions'"),
        ({"x0": "nowhere:x", "bounds": "0 to 1"}, "bounds is not a TOML value"),
        ({"x0": "nowhere:x", "algorithm": "fedz"}, "did you mean 'fedzo'"),
        ({"options": "prox = 'half'"}, "option prox must be an import path"),
        ({"fun": "mean"}, "fun must be an import path"),
        ({"options": "prox = 'nowhere:half'", "x0": "zero"}, "x0 is not a TOML value"),
    ],
)
def test_what_surrounds_a_path_is_checked_without_an_import(changes, reason):
    with pytest.raises((TypeError, ValueError), match=reason):
        RunConfig.of(DEFAULTS | SET | changes).check()


def test_imports():
    assert imported("math:pi", "it") == imported("math:pi", "it")
    assert imported("os:path.join", "it")("a", "b")
    for path in ("math", "math:", ":pi", "math:pi:e", "math:pi()", "../math:pi", 3, "a b:c"):
        with pytest.raises(ValueError, match="it must be an import path"):
            imported(path, "it")
