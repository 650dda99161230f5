"""The guide: calls that exist, defaults that are what it says, and grounds that the published results have."""

import dataclasses
import inspect
import re

import numpy as np
import pytest
import scipy.optimize
import torch

import optimizers
from experiments.harness.verdicts import judge
from experiments.page import guide
from experiments.page.advice import ADVICE, DEFAULTS, Ground
from experiments.page.entries import Entry
from experiments.page.guide import look_up
from experiments.page.publish import PUBLISHED
from federated import Algorithm, make_federation
from federated.registry import algorithm_class
from optimizers import L1, GroupProbe, ModuleObjective, Optimizer
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
    names |= {"objective": ModuleObjective(torch.nn.Linear(2, 1), torch.sum)}
    return eval(advice.use, names | {"minimize": minimize, "simulate": simulate, "scipy": scipy})


@pytest.mark.parametrize("advice", ADVICE, ids=lambda advice: advice.case)
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


@pytest.mark.parametrize("default", DEFAULTS, ids=lambda default: default.title)
def test_a_default_is_the_librarys(default):
    classes = {cls.__name__: cls for cls in (method_class("zord"), method_class("hiso"), algorithm_class("fzoos"))}
    assert inspect.signature(classes[default.method]).parameters[default.option].default == default.value


@needs_results
@pytest.mark.parametrize("item", [*ADVICE, *DEFAULTS], ids=lambda item: item.title)
def test_every_ground_is_in_the_published_results(item):
    found = look_up(item.grounds, ENTRIES)
    assert [(f.entry.id, f.verdict.claim.startswith(g.claim)) for f, g in zip(found, item.grounds, strict=True)] == [
        (g.experiment, True) for g in item.grounds
    ]


@needs_results
@pytest.mark.parametrize("item", [*ADVICE, *DEFAULTS], ids=lambda item: item.title)
def test_something_decided_supports_every_advice(item):
    assert any(ground.decided for ground in look_up(item.grounds, ENTRIES))


@needs_results
def test_an_undecided_ground_supports_nothing():
    advice = ADVICE[0]
    (entry,) = [entry for entry in ENTRIES if entry.id == advice.grounds[0].experiment]
    open_ = judge(advice.grounds[0].claim, "gap", {"": np.array([-1.0, 1.0])}, (0, 1), below=0.0)
    stood_in = dataclasses.replace(open_, stand_in="digits")
    for verdict, word in ((open_, "undecided"), (stood_in, "undecided on the stand-in")):
        other = Entry(entry.id, entry.facts, [verdict], ())
        (found,) = look_up(advice.grounds[:1], [other])
        assert not found.decided and found.word == word
        row = next(line for line in guide.short_table([other]).splitlines() if advice.case in line)
        assert row.endswith("|  |") and f"**{word}**" in guide.markdown([other])


@needs_results
def test_the_pages_are_built_from_the_published_results():
    assert (PUBLISHED / "which-method.md").read_text() == guide.markdown(ENTRIES)
    page = (PUBLISHED / "which-method.html").read_text()
    for item in ADVICE:
        assert all(f'#{ground.experiment}"' in page for ground in item.grounds)
    folder = {path.name: path.read_text() for path in PUBLISHED.glob("*.html")}
    for target, anchor in re.findall(r'href="([^"#]+)#([^"]+)"', page):
        assert f'id="{anchor}"' in folder[target]


@needs_results
def test_other_results_show_other_numbers_and_what_was_not_run_is_left_out():
    (entry,) = [entry for entry in ENTRIES if entry.id == "beyond-gamma"]
    claim = "FZooS, adaptive γ ends within 0.25 of the best fixed γ, d = 50"
    worse = judge(claim, "regret", {"a": np.array([0.5, 0.6]), "b": np.zeros(2)}, (0, 1), below=0.25)
    other = Entry(entry.id, entry.facts, [worse], ())
    (found,) = look_up([Ground("beyond-gamma", claim), Ground("zord-fig3", "ZoRD")], [other])
    assert found.word == "holds partly, in 1 of 2 settings" and found.measured.startswith(
        "regret, mean of 2 settings: 0.275"
    )
    text = guide.markdown([other])
    assert "**holds partly, in 1 of 2 settings**" in text and "Katyusha" not in text
