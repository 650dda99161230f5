"""A notebook that is run shows a bar, as a widget or, without ipywidgets, as text without a warning."""

from pathlib import Path

import pytest

nbformat = pytest.importorskip("nbformat")
nbclient = pytest.importorskip("nbclient")
pytest.importorskip("ipykernel")

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]

WITHOUT_WIDGETS = """
import sys
sys.modules["ipywidgets"] = None  # as if it were not installed
"""

MINIMIZE = """
import time
from optimizers import minimize

def f(x):
    time.sleep(0.05)
    return float((x - 1.0) @ (x - 1.0)) if x[0] > -3 else float("nan")

result = minimize(f, [0.0, 0.5], "rgf", max_queries=39)
"""

SIMULATE = """
import time
import torch
from federated import simulate

def f(x):
    time.sleep(0.02)
    return float((x - 1.0) @ (x - 1.0))

result = simulate("fedzo", [f, f], torch.zeros(2), rounds=10, local_steps=2, directions=1, fun=lambda x: float(x @ x))
"""


def outputs(*cells):
    """The outputs of the last cell of a notebook, after it was run here."""
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    nbclient.NotebookClient(notebook, timeout=120, resources={"metadata": {"path": str(ROOT)}}).execute()
    return notebook.cells[-1].outputs


def bar_of(shown):
    """The last text of a bar that is written to a stream; nothing else may be in the outputs."""
    assert {output.output_type for output in shown} == {"stream"}
    text = "".join(output.text for output in shown)
    assert "arning" not in text and "IProgress" not in text
    return text.split("\r")[-1]


def test_a_bar_of_minimize_in_text():
    bar = bar_of(outputs(WITHOUT_WIDGETS, MINIMIZE))
    assert "RGF: 100%" in bar and "39/39" in bar and "best " in bar and "0 failed" in bar


def test_a_bar_of_simulate_in_text():
    bar = bar_of(outputs(WITHOUT_WIDGETS, SIMULATE))
    assert "fedzo: 100%" in bar and "10/10" in bar and "best " in bar and "queries" in bar


def test_a_bar_as_a_widget():
    pytest.importorskip("ipywidgets")
    (bar,) = outputs(MINIMIZE)
    assert bar.output_type == "display_data" and "application/vnd.jupyter.widget-view+json" in bar.data
    assert "RGF: " in bar.data["text/plain"] and "/39" in bar.data["text/plain"]


def test_a_short_run_has_no_bar():
    short = MINIMIZE.replace("0.05", "0.0")
    assert outputs(WITHOUT_WIDGETS, short) == []


def test_a_plot_is_shown():
    run = MINIMIZE.replace("0.05", "0.0")
    shown = outputs(run, "%matplotlib inline\nresult.plot().set_yscale('log')")
    assert any("image/png" in output.get("data", {}) for output in shown)
