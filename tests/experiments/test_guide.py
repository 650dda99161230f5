"""The guide: calls that exist, defaults that are what it says, and grounds that the published results have."""

import ast
import inspect

import numpy as np
import pytest

import federated
import optimizers
from experiments import guide, report
from experiments.advice import ADVICE, DEFAULTS
from experiments.guide import Ground, look_up
from experiments.publish import PUBLISHED, README, with_table
from experiments.verdicts import judge
from federated.registry import algorithm_class
from optimizers.registry import method_class

ENTRIES, _ = report.read_all(PUBLISHED)


@pytest.mark.parametrize("advice", ADVICE, ids=lambda advice: advice.case)
def test_a_call_names_what_exists(advice):
    """Methods by name, and their options."""
    call = ast.parse(advice.use, mode="eval").body
    caller = ast.unparse(call.func)
    keywords = {keyword.arg for keyword in call.keywords}
    names = [argument.value for argument in call.args if isinstance(argument, ast.Constant)]
    if caller == "scipy.optimize.minimize":
        assert keywords == {"method"}
        return
    known = {"minimize": (optimizers.minimize, method_class), "simulate": (federated.simulate, algorithm_class)}
    function, class_of = known[caller]
    accepted = set(inspect.signature(function).parameters) | options_of(class_of(names[0]))
    assert keywords <= accepted, keywords - accepted


def options_of(cls):
    """What the classes of a method document as arguments."""
    return {name for base in cls.__mro__ for name in inspect.signature(base.__init__).parameters} | {
        line.split(":")[0].strip() for base in cls.__mro__ for line in (base.__doc__ or "").splitlines() if ":" in line
    }


@pytest.mark.parametrize("default", DEFAULTS, ids=lambda default: default.title)
def test_a_default_is_the_librarys(default):
    classes = {cls.__name__: cls for cls in (method_class("zord"), method_class("hiso"), algorithm_class("fzoos"))}
    assert inspect.signature(classes[default.method]).parameters[default.option].default == default.value


@pytest.mark.parametrize("item", [*ADVICE, *DEFAULTS], ids=lambda item: item.title)
def test_every_ground_is_in_the_published_results(item):
    found = look_up(item.grounds, ENTRIES)
    assert [(f.entry.id, f.verdict.claim.startswith(g.claim)) for f, g in zip(found, item.grounds, strict=True)] == [
        (g.experiment, True) for g in item.grounds
    ]


def test_the_pages_are_built_from_the_published_results():
    assert (PUBLISHED / "which-method.md").read_text() == guide.markdown(ENTRIES)
    table = guide.short_table(ENTRIES, "experiments/published/index.html")
    text = README.read_text()
    assert table in text and text == with_table(text, table, "which method")
    page = (PUBLISHED / "index.html").read_text()
    assert all(f'href="#{ground.experiment}"' in page for item in ADVICE for ground in item.grounds)


def test_other_results_show_other_numbers_and_what_was_not_run_is_left_out():
    (entry,) = [entry for entry in ENTRIES if entry.id == "beyond-gamma"]
    claim = "FZooS, adaptive γ ends within 0.25 of the best fixed γ, d = 50"
    worse = judge(claim, "regret", {"a": np.array([0.5, 0.6]), "b": np.zeros(2)}, (0, 1), below=0.25)
    other = report.Entry(entry.id, entry.facts, [worse], b"")
    (found,) = look_up([Ground("beyond-gamma", claim), Ground("zord-fig3", "ZoRD")], [other])
    assert found.word == "holds in 1 of 2 settings" and found.measured.startswith("regret, mean of 2 settings 0.28")
    text = guide.markdown([other])
    assert "**holds in 1 of 2 settings**" in text and "Katyusha" not in text
