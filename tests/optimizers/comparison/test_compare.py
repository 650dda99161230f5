"""A user's own function under several methods: equal budgets and starts, failures, labels of one's own."""

import base64
import html
import io
import json
import math
import os
import re
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import torch
from matplotlib import image
from scipy.optimize import Bounds, OptimizeResult

from optimizers import L1, compare, minimize
from optimizers.comparison.comparison import PANELS, Comparison
from optimizers.comparison.records import where
from optimizers.core.result import Result
from optimizers.registry import METHODS

BOX = [(-1.0, 1.0)] * 3


def bowl(x):
    return float((x - 0.3).square().sum())


def test_values_are_those_of_minimize_from_the_same_starts():
    starts = [torch.zeros(3, dtype=torch.float64), torch.full((3,), 0.9, dtype=torch.float64)]
    found = compare(bowl, bounds=BOX, max_queries=24, seeds=2, starts=starts, methods=["rgf", "gld"])
    for seed, x0 in enumerate(starts):
        for method in ("rgf", "gld"):
            result = minimize(bowl, x0, method, bounds=BOX, max_queries=24, seed=seed)
            rows = where(found.rows, seed=seed, method=method)
            assert [row["value"] for row in rows] == np.minimum.accumulate(result.history.y.numpy()).tolist()
            assert rows[-1]["queries"] == 24 and rows[0]["value"] == pytest.approx(bowl(x0))


def test_every_method_is_compared_by_default(monkeypatch):
    grouped = [name for names in PANELS.values() for name in names]
    assert len(set(grouped)) == len(grouped) and set(grouped) < set(METHODS)
    ran = []

    def minimize_no_more(fun, x0, method, **options):
        ran.append(method)
        return Result(stop_reason="budget", history=OptimizeResult(best_y=torch.zeros(2)))

    monkeypatch.setattr("optimizers.comparison.compare.minimize", minimize_no_more)
    assert (
        set(compare(bowl, bounds=BOX, max_queries=2, seeds=2).methods)
        == set(METHODS) - {"gradient_descent", "accelerated_zo"}
        == set(ran)
    )


def test_a_method_of_ones_own_is_one_entry_and_ranked_by_what_it_reached():
    methods = {"gld": "gld", "bold": ("rgf", {"directions": 3})}
    found = compare(bowl, bounds=Bounds([-1.0] * 3, [1.0] * 3), max_queries=30, seeds=3, methods=methods)
    assert found.methods == ("gld", "bold")
    means = [found.final(method).mean() for method in found.ranking()]
    assert means == sorted(means)
    text = str(found)
    assert text.index(found.ranking()[0]) < text.index(found.ranking()[1])
    (axes,) = found.figure().axes
    assert axes.get_title() == "" and [text.get_text() for text in axes.get_legend().get_texts()] == ["GLD", "bold"]
    assert axes.get_xlabel() == "queries" and axes.get_ylabel() == "least value found"


def test_lines_of_a_panel_have_different_colours_and_many_methods_have_panels():
    labels = ("zord", "trust_region", "mine", "trust region", "Hiso", "l-bfgs-b")  # three of them are blue alone
    rows = [{"seed": s, "method": m, "queries": 1, "value": 1.0} for s in (0, 1) for m in labels]
    (axes,) = Comparison(rows, labels, 2).figure().axes
    assert len({line.get_color() for line in axes.lines}) == len(labels)
    shown = [text.get_text() for text in axes.get_legend().get_texts()]
    assert shown == ["ZoRD", "trust region on the GP", "mine", "trust region", "HiSo", "L-BFGS-B"]
    many = (*labels, "A", "B")
    rows = [{"seed": s, "method": m, "queries": 1, "value": 1.0} for s in (0, 1) for m in many]
    axes = Comparison(rows, many, 2).figure().axes
    assert [panel.get_title() for panel in axes] == ["ZoRD and its baselines", "others"]


def test_failed_queries_count_and_are_no_value():
    def fails_outside(x):
        return math.nan if float(x[0]) > 0 else bowl(x)

    starts = [torch.full((3,), -0.5, dtype=torch.float64)] * 2
    found = compare(fails_outside, bounds=BOX, max_queries=20, seeds=2, starts=starts, methods=["gld"])
    assert all(math.isfinite(row["value"]) for row in found.rows)
    assert {row["queries"] for row in found.rows} == set(range(1, 21))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"seeds": 1}, "at least two seeds, got 1"),
        ({"seeds": 2, "starts": [[0.0, 0.0, 0.0]]}, "a start for each of the 2 seeds, got 1"),
        ({"methods": ["zrod"]}, "unknown method 'zrod'.*zord"),
        ({"methods": {"mine": ("rgf", {"max_queries": 9})}}, "all methods have the same budget"),
        ({"bounds": [(0, None)] * 3}, "without starts, bounds must be d finite pairs"),
    ],
)
def test_bad_input_is_named(options, message):
    with pytest.raises(ValueError, match=message):
        compare(bowl, **{"bounds": BOX, "max_queries": 10, **options})


class Counted:
    """The bowl, which notes each call as a line in a file, so that calls of all processes count; it may fail."""

    def __init__(self, path, breaks_at=None):
        self.path, self.breaks_at = path, breaks_at

    def __call__(self, x):
        with open(self.path, "a") as file:
            file.write("x\n")
        if self.breaks_at is not None and self.calls() == self.breaks_at:
            raise KeyboardInterrupt
        return bowl(x)

    def calls(self):
        return len(self.path.read_text().splitlines()) if self.path.exists() else 0


MIXED = ["rgf", "COBYQA", "cma", "L-BFGS-B", "bfgs"]


def test_outside_methods_have_the_same_budget_and_starts(tmp_path):
    fun = Counted(tmp_path / "calls")
    starts = [torch.zeros(3, dtype=torch.float64), torch.full((3,), 0.9, dtype=torch.float64)]
    found = compare(fun, bounds=BOX, max_queries=21, seeds=2, starts=starts, methods=MIXED)
    assert found.methods == tuple(MIXED) and fun.calls() <= 21 * 10
    for method in MIXED:
        for seed, x0 in enumerate(starts):
            rows = where(found.rows, seed=seed, method=method)
            values = [row["value"] for row in rows]
            assert [row["queries"] for row in rows] == list(range(1, 22)) and values == sorted(values, reverse=True)
            assert method in ("COBYQA", "cma") or values[0] == pytest.approx(bowl(x0))
    assert found.final("L-BFGS-B").max() < 1e-9
    legend = [text.get_text() for text in found.figure().axes[0].get_legend().get_texts()]
    assert legend == ["RGF", "COBYQA", "CMA-ES", "L-BFGS-B", "bfgs"]


def test_outside_methods_get_points_and_options_as_ours_do():
    seen = []

    def kind(x):
        seen.append(type(x))
        return float(((x - 0.3) ** 2).sum())

    starts = [np.zeros(3), np.ones(3)]
    reached = {"zord": "zord", "simplex": ("Nelder-Mead", {"adaptive": True})}
    found = compare(kind, bounds=BOX, max_queries=150, seeds=2, starts=starts, methods=reached, numpy=True, target=0.02)
    assert set(seen) == {np.ndarray} and len(seen) < 400
    assert all(found.final(method).max() <= 0.02 for method in reached)
    assert all(len(where(found.rows, method="simplex", seed=seed)) == 150 for seed in (0, 1))
    seen.clear()
    compare(kind, bounds=BOX, max_queries=9, seeds=2, starts=[[0.0] * 3, [1.0] * 3], methods=["gld", "powell"])
    assert set(seen) == {np.ndarray}
    with pytest.raises(ValueError, match="'cobyqa' does not take 'stagnation'"):
        compare(bowl, bounds=BOX, max_queries=10, seeds=2, methods=["cobyqa"], stagnation=3)
    with pytest.raises(ValueError, match="'newton-cg' needs derivatives"):
        compare(bowl, bounds=BOX, max_queries=10, seeds=2, methods=["newton-cg"])
    with pytest.raises(TypeError, match="compare has no argument 'method'; did you mean 'methods'"):
        compare(bowl, bounds=BOX, max_queries=10, seeds=2, method=["rgf"])
    with pytest.raises(ValueError, match="unknown method 'cobyqua'; did you mean 'cobyqa'"):
        compare(bowl, bounds=BOX, max_queries=10, seeds=2, methods=["cobyqua"])


def test_without_bounds_there_are_starts():
    call = {"bounds": None, "max_queries": 40, "seeds": 2, "methods": ["rgf", "bfgs", "cobyqa"]}
    found = compare(bowl, starts=[torch.full((3,), v, dtype=torch.float64) for v in (3.0, -9.0)], **call)
    assert found.final("bfgs").max() < 1e-9 and found.final("cobyqa").max() < 1e-3
    with pytest.raises(ValueError, match="without starts, bounds must be"):
        compare(bowl, **call)


def test_it_prints_a_line_a_method_also_where_all_queries_failed():
    def fails_high(x):
        return math.nan if float(x[1]) > 0 else bowl(x)

    starts = [torch.full((3,), -0.5, dtype=torch.float64), torch.full((3,), 0.9, dtype=torch.float64)]
    found = compare(fails_high, bounds=BOX, max_queries=12, seeds=2, starts=starts, methods=["gld", "bfgs"])
    assert repr(found) == str(found) and len(str(found).splitlines()) == 3 and len(repr(found)) < 200
    assert np.isinf(found.final("bfgs")).tolist() == [False, True] and found.ranking() == ["gld", "bfgs"]
    assert "bfgs  no value in 1 of 2 runs" in str(found)
    assert len(found.figure().axes) == 1
    lost = compare(lambda x: math.nan, bounds=BOX, max_queries=12, seeds=2, methods=["gld", "powell"])
    assert lost.rows == [] and str(lost).count("no value in 2 of 2 runs") == 2 and len(lost.figure().axes) == 1


def test_psi_of_a_prox_is_part_of_the_value():
    found = compare(bowl, bounds=BOX, max_queries=30, seeds=2, methods=["rgf"], prox=L1(2.0))
    x0 = torch.rand(2, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 2 - 1
    for seed in range(2):
        value = found.rows[30 * seed]["value"]
        assert value == pytest.approx(bowl(x0[seed]) + 2.0 * float(x0[seed].abs().sum()))


def test_a_checkpoint_keeps_finished_runs(tmp_path):
    call = {"bounds": BOX, "max_queries": 11, "seeds": 2, "methods": MIXED}
    whole = compare(bowl, **call)
    path, fun = tmp_path / "comparison.jsonl", Counted(tmp_path / "calls", breaks_at=60)
    with pytest.raises(KeyboardInterrupt):
        compare(fun, checkpoint=path, **call)
    kept = path.read_bytes()
    assert len(kept.splitlines()) == 1 + 5, "five runs of 11 queries were finished"
    assert compare(fun, checkpoint=path, **call).rows == whole.rows
    assert fun.calls() == 60 + 5 * 11 and path.read_bytes().startswith(kept)
    assert compare(fun, checkpoint=path, **call).rows == whole.rows and fun.calls() == 60 + 5 * 11


@pytest.mark.parametrize("method", ["rgf", "powell"])
def test_ctrl_c_ends_the_comparison_and_its_run_is_not_kept(tmp_path, method):
    class Interrupting(Counted):
        def __call__(self, x):
            value = super().__call__(x)
            if self.calls() == 20:
                signal.raise_signal(signal.SIGINT)
            return value

    call = {"bounds": BOX, "max_queries": 14, "seeds": 2, "methods": [method]}
    path, fun = tmp_path / "comparison.jsonl", Interrupting(tmp_path / "calls")
    with pytest.raises(KeyboardInterrupt):
        compare(fun, checkpoint=path, **call)
    assert fun.calls() == 20 and len(path.read_bytes().splitlines()) == 2
    assert compare(fun, checkpoint=path, **call).rows == compare(bowl, **call).rows


def test_a_line_that_a_kill_cut_costs_its_run_alone(tmp_path):
    call = {"bounds": BOX, "max_queries": 7, "seeds": 2, "methods": ["gld", "powell"]}
    path, fun = tmp_path / "comparison.jsonl", Counted(tmp_path / "calls")
    whole = compare(fun, checkpoint=path, **call).rows
    lines, calls = path.read_bytes().splitlines(keepends=True), fun.calls()
    for keep in (1, len(lines[-1]) // 2, len(lines[-1]) - 1):
        path.write_bytes(b"".join(lines[:-1]) + lines[-1][:keep])
        assert compare(fun, checkpoint=path, **call).rows == whole
        calls += 7
        assert fun.calls() == calls and path.read_bytes() == b"".join(lines)
    for keep in (0, 5, len(lines[0]) - 1):
        path.write_bytes(lines[0][:keep])
        assert compare(fun, checkpoint=path, **call).rows == whole


def test_a_checkpoint_of_another_call_and_a_damaged_one_are_refused(tmp_path):
    path = tmp_path / "comparison.jsonl"
    call = {"bounds": BOX, "max_queries": 7, "seeds": 2, "methods": {"rgf": "rgf", "mine": ("rgf", {"directions": 3})}}
    compare(bowl, checkpoint=path, **call)
    kept = path.read_bytes()
    moved = [torch.zeros(3), torch.ones(3)]
    for change, named in (
        ({"max_queries": 8}, r"max_queries \(7 there, 8 here\)"),
        ({"bounds": Bounds([-1.0] * 3, [2.0] * 3)}, "bounds"),
        ({"seeds": 3}, "starts"),
        ({"starts": moved}, "starts"),
        ({"methods": ["rgf"]}, "method mine"),
        ({"methods": {"rgf": "rgf", "mine": ("rgf", {"directions": 4})}}, "method mine .*3.* there, .*4.* here"),
        ({"rescale": False}, r"option rescale \(None there, False here\)"),
    ):
        with pytest.raises(ValueError, match=f"holds another comparison, which differs in .*{named}"):
            compare(bowl, checkpoint=path, **{**call, **change})
    with pytest.raises(ValueError, match=r"fun \('tests.*\.bowl' there, 'math\.prod' here\)"):
        compare(math.prod, checkpoint=path, **call)
    lines = kept.splitlines(keepends=True)
    path.write_bytes(lines[0] + lines[1].replace(b"0.", b"1.", 1) + b"".join(lines[2:]))
    with pytest.raises(ValueError, match=r"line 2 of .* is damaged"):
        compare(bowl, checkpoint=path, **call)
    for other in (b"my notes", b'{"a": 1}\n', b"a,b\n1,2\n"):
        path.write_bytes(other)
        with pytest.raises(ValueError, match="is not a journal of a run"):
            compare(bowl, checkpoint=path, **call)
        assert path.read_bytes() == other


def test_more_jobs_say_what_cannot_be_pickled():
    call = {"bounds": BOX, "max_queries": 7, "seeds": 2, "jobs": 2}
    with pytest.raises(TypeError, match="fun must be picklable for more than one job"):
        compare(lambda x: 0.0, methods=["rgf"], **call)
    with pytest.raises(TypeError, match="methods must be picklable for more than one job"):
        compare(bowl, methods={"mine": ("rgf", {"update_rule": lambda p: torch.optim.SGD([p], lr=0.1)})}, **call)
    with pytest.raises(ValueError, match="jobs must be at least 1, got 0"):
        compare(bowl, methods=["rgf"], **{**call, "jobs": 0})


@pytest.mark.slow
def test_jobs_give_the_same_to_the_bit_and_keep_what_is_finished(tmp_path):
    call = {"bounds": BOX, "max_queries": 40, "seeds": 2, "methods": ["zord", *MIXED]}
    alone = compare(bowl, **call)
    path, fun = tmp_path / "comparison.jsonl", Counted(tmp_path / "calls", breaks_at=150)
    with pytest.raises(KeyboardInterrupt):
        compare(fun, checkpoint=path, jobs=2, **call)
    finished, calls = len(path.read_bytes().splitlines()) - 1, fun.calls()
    assert finished >= 1
    assert compare(fun, checkpoint=path, jobs=2, **call).rows == alone.rows
    assert fun.calls() - calls == sum(
        len(json.loads(line.rpartition(b"\t")[0])[-1]) for line in path.read_bytes().splitlines()[1 + finished :]
    )


KILLED = """
import sys, time
from pathlib import Path
from optimizers import compare

def loss(x):
    with open(sys.argv[2], "a") as file:
        file.write("x\\n")
    time.sleep(0.004)
    return float((x - 0.3).square().sum())

if __name__ == "__main__":
    call = {"bounds": [(-1, 1)] * 3, "max_queries": 50, "seeds": 2, "methods": ["rgf", "nelder-mead", "cma", "gld"]}
    found = compare(loss, checkpoint=sys.argv[1], jobs=int(sys.argv[3]), **call)
    Path(sys.argv[1] + ".rows").write_text(repr(found.rows))
"""


@pytest.mark.slow
@pytest.mark.parametrize("jobs", ["1", "2"])
def test_kills_lose_no_finished_run(tmp_path, jobs):
    script, path, calls = (tmp_path / name for name in ("script.py", "comparison.jsonl", "calls"))
    script.write_text(KILLED)
    kept, kills = 0, 0
    while True:
        process = subprocess.Popen([sys.executable, script, path, calls, jobs], start_new_session=True)
        while process.poll() is None and kills < 4:
            time.sleep(0.002)
            if path.exists() and len(path.read_bytes().splitlines()) > kept + 1:
                kills += 1
                os.killpg(process.pid, signal.SIGKILL)
        if process.wait() == 0:
            break
        lines = path.read_bytes().splitlines()
        assert len(lines) > kept
        kept = len(lines) - 1
    methods = ["rgf", "nelder-mead", "cma", "gld"]
    whole = compare(bowl, bounds=[(-1, 1)] * 3, max_queries=50, seeds=2, methods=methods)
    assert kills == 4 and path.with_name(path.name + ".rows").read_text() == repr(whole.rows)
    made, in_flight = len(calls.read_text().splitlines()), kills * int(jobs) * 50
    assert 7 * 50 <= made <= 8 * 50 + in_flight


@pytest.mark.slow
def test_a_dead_worker_and_a_function_that_no_process_finds_are_said(tmp_path):
    call = {"bounds": BOX, "max_queries": 5, "seeds": 2, "methods": ["rgf"], "jobs": 2}
    with pytest.raises(RuntimeError, match=r"the process of \(0, 'rgf'\) died"):
        compare(dies, **call)
    script = tmp_path / "script.py"
    script.write_text(
        "import types, sys\n"
        "from optimizers import compare\n"
        "if __name__ == '__main__':\n"
        "    here_alone = sys.modules['here_alone'] = types.ModuleType('here_alone')\n"
        "    exec('def loss(x): return 0.0', here_alone.__dict__)\n"
        "    compare(here_alone.loss, bounds=[(-1, 1)] * 3, max_queries=5, seeds=2, methods=['rgf'], jobs=2)\n"
    )
    ran = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False)
    assert "another process cannot load the function or its options" in ran.stderr


def dies(x):
    os._exit(1)


def test_a_notebook_shows_the_table_and_the_figure():
    found = compare(bowl, bounds=BOX, max_queries=12, methods=("gld",), seeds=2)
    parts = re.fullmatch(
        r'<pre>(.*)</pre>\n<img src="data:image/png;base64,([^"]*)" alt=.*>', found._repr_html_(), re.DOTALL
    )
    assert html.unescape(parts[1]) == str(found)
    pixels = image.imread(io.BytesIO(base64.b64decode(parts[2])))
    assert pixels.shape[0] > 200 and pixels[..., :3].min() < 0.5
