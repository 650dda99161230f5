"""The guide: calls that exist, defaults that are what it says, and grounds that the published results have."""

import dataclasses
import inspect

import numpy as np
import pytest
import scipy.optimize
import torch

import optimizers
from experiments.harness.verdicts import judge
from experiments.report.advice import ADVICE, DEFAULTS, GUIDE
from experiments.report.entries import Entry
from experiments.report.guide import guide, look_up
from federated import Algorithm, make_federation
from federated.registry import algorithm_class
from optimizers import L1, GroupProbe, ModuleObjective, Optimizer, Space
from optimizers.registry import method_class
from tests.experiments.committed import ENTRIES, needs_results

DEFAULT = inspect.signature(optimizers.minimize).parameters["method"].default


def made(advice):
    """What an advised call makes of its method's name and options, on a small problem; ``...`` is 10."""
    x0, parts = torch.full((4,), 0.5, dtype=torch.float64), [range(2), range(2, 4)]
    given = {"max_queries": 10}

    def minimize(f, start, method=DEFAULT, workers=None, **options):
        return method_class(method)(start, **{k: given[k] if v is ... else v for k, v in options.items()})

    def simulate(algorithm, objectives, start, *, rounds, local_steps, **options):
        assert rounds > 0
        return make_federation(algorithm, objectives, start, local_steps=local_steps, **options).algorithm

    def f(x):
        return (x * x).sum()

    names = {"f": f, "x0": x0, "best": x0, "d": 4, "n": 10, "width": 2.0, "bounds": [(-1, 1)] * 4, "objectives": [f, f]}
    names |= {"X": torch.rand(6, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)}
    names |= {"y": names["X"].sum(1), "prox": L1(0.1), "GroupProbe": lambda groups: GroupProbe(groups=parts)}
    names |= {
        "constraints": scipy.optimize.LinearConstraint(np.eye(4), 0.0, np.inf),
        "Space": Space,
        "integrality": [1, 1, 1, 0],
    }
    names |= {"objective": ModuleObjective(torch.nn.Linear(2, 1), torch.sum)}
    return eval(advice.use, names | {"minimize": minimize, "simulate": simulate, "scipy": scipy})


@pytest.mark.parametrize("advice", ADVICE, ids=lambda advice: advice.title)
def test_an_advised_call_is_accepted(advice):
    """Misspelt methods and options are refused by their classes."""
    found = made(advice)
    assert isinstance(found, Optimizer | Algorithm) or found.success


def test_a_call_with_an_option_that_is_not_there_would_be_seen():
    for use in (
        'minimize(f, x0, "zord", gates=1, max_queries=9)',
        'simulate("fzoos", objectives, x0, rounds=1, local_steps=1, gama=1)',
    ):
        with pytest.raises(TypeError, match=r"gate|gamma"):
            made(dataclasses.replace(ADVICE[0], use=use))


@pytest.mark.parametrize("default", GUIDE["default"], ids=lambda default: default["option"])
def test_a_default_is_the_librarys(default):
    classes = {cls.__name__: cls for cls in (method_class("zord"), method_class("hiso"), algorithm_class("fzoos"))}
    parameter = inspect.signature(classes[default["method"]]).parameters[default["option"]]
    assert parameter.default == default.get("value")


@needs_results
@pytest.mark.parametrize("item", [*ADVICE, *DEFAULTS], ids=lambda item: item.title)
def test_every_ground_is_in_the_published_results_and_one_is_decided(item):
    found = look_up(item.grounds, ENTRIES)
    assert [e.id for e, _ in found] == [experiment for experiment, _ in item.grounds]
    assert all(v.claim.startswith(claim) for (_, v), (_, claim) in zip(found, item.grounds, strict=True))
    assert any(verdict.status != "undecided" for _, verdict in found)


@needs_results
def test_both_tables_have_a_row_for_each_item():
    cases, defaults = guide(ENTRIES).split("\n## ")[1:]
    for item, part in [*((advice, cases) for advice in ADVICE), *((default, defaults) for default in DEFAULTS)]:
        (row,) = (line for line in part.splitlines() if line.startswith(f"| {item.title} |"))
        assert (item.use if item in ADVICE else item.why) in row and "md#" in row and f"\n### {item.title}\n" in part


@needs_results
def test_an_undecided_ground_supports_nothing():
    advice = ADVICE[0]
    experiment, claim = advice.grounds[0]
    (entry,) = [entry for entry in ENTRIES if entry.id == experiment]
    open_ = judge(claim, "gap", {"": np.array([-1.0, 1.0])}, below=0.0)
    stood_in = dataclasses.replace(open_, stand_in="digits")
    for verdict, word in ((open_, "undecided"), (stood_in, "undecided on the stand-in")):
        page = guide([Entry(entry.id, entry.facts, [verdict], ())])
        row = next(line for line in page.splitlines() if line.startswith(f"| {advice.title}"))
        assert row.endswith("|  |") and f"| **{word}** |" in page


@needs_results
def test_other_results_show_other_numbers_and_what_was_not_run_is_left_out():
    (entry,) = [entry for entry in ENTRIES if entry.id == "beyond-gamma"]
    claim = "FZooS, adaptive γ ends within 0.25 of the best fixed γ, d = 50"
    worse = judge(claim, "regret", {"a": np.array([0.5, 0.6]), "b": np.zeros(2)}, below=0.25, control=True)
    other = Entry(entry.id, entry.facts, [worse], ())
    assert look_up([("beyond-gamma", claim), ("zord-fig3", "ZoRD")], [other]) == [(other, worse)]
    page = guide([other])
    assert f"| holds partly, in 1 of 2 settings | {claim} | regret, mean of 2 settings: 0.275" in page
    assert "Katyusha" not in page and guide([]) == ""
