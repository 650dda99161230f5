"""The benchmark of FZooS's client round: what it measures is a round, and its summary says what was missed."""

import json

import torch

from experiments.benchmarks import fzoos
from experiments.cli import main
from experiments.papers.fzoos.quadratics import quadratics


def test_it_times_every_phase_of_every_round(tmp_path, capsys):
    arguments = ["--dimension", "10", "--features", "40", "--history", "50", "--rounds", "2"]
    assert main(["benchmark", "fzoos", *arguments, "--out", str(tmp_path)]) == 0
    seconds = json.loads((tmp_path / "benchmark-fzoos.json").read_text())["seconds"]
    assert {name: len(times) for name, times in seconds.items()} == {
        "local": 4,
        "surrogate": 4,
        "gamma": 4,
        "first fit": 2,
    }
    assert min(min(times) for times in seconds.values()) >= 0.0
    assert "met     a client's round" in capsys.readouterr().out


def test_the_trajectory_is_as_long_as_asked_and_leads_to_the_start():
    problem = quadratics(10, 2, 5.0, seed=0)
    points = fzoos.trajectory(problem, 50, seed=1)
    assert points.shape == (50, 10)
    assert float(points.min()) >= 0.0 and float(points.max()) <= 1.0
    centres = points[2::6]
    assert float((centres[-1] - problem.x0).abs().max()) <= 0.011
    assert float((centres[1:] - centres[:-1]).abs().max()) <= 0.011
    assert not torch.equal(points, fzoos.trajectory(problem, 50, seed=2))


def test_the_summary_says_what_was_missed():
    times = {"local": [1.0, 3.0], "surrogate": [2.0, 2.0], "gamma": [0.5, 0.5], "first fit": [9.0]}
    text = "\n".join(fzoos.summary(times, 300, 10_000, 3000, {"fedzo, Q = 5": 600.0, "fzoos": 900.0}))
    assert "MISSED  a client's round, seconds, at most 4: 4.5" in text
    assert "MISSED  Fig. 1, one C and one seed, minutes on one thread, at most 20: 25" in text
    quick = "\n".join(fzoos.summary({name: [0.1] for name in times}, 300, 10_000, 3000, {}))
    assert "MISSED" not in quick and "Fig. 1" not in quick
