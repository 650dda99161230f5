"""What goes on from a checkpoint and what is refused: another run's, another process's, a larger budget, a target."""

import contextlib
import importlib
import linecache
import os
import signal
import subprocess
import sys
import time

import pytest
import scipy.optimize
import torch

from optimizers import L1, RGF, minimize, run, scipy_method
from optimizers.running import checkpoint, version
from optimizers.running.version import fingerprint
from optimizers.testing import quadratic, start
from tests.faults.harness import BOUNDS, OPTIONS, X0, forked, kill, same, summary

COMMON = {"max_queries": 20, "seed": 1, "progress": False}


def other(x):
    return quadratic(x)


CHANGES = {
    "method": ({"method": "gld"}, "method"),
    "seed": ({"seed": 2}, "seed 1, this call 2"),
    "x0": ({"x0": X0 + 1e-12}, "x0"),
    "objective": ({"fun": other}, "fun 'quadratic', this call 'other'"),
    "option": ({"smoothing_radius": 0.25}, "smoothing_radius"),
    "directions": ({"directions": 4}, "directions 3, this call 4"),
    "bounds": ({"bounds": BOUNDS}, "bounds None"),
    "prox": ({"prox": L1(0.5)}, "prox None, this call 'L1("),
    "dtype": ({"x0": X0.to(torch.float32)}, "dtype"),
    "dimension": ({"x0": torch.cat([X0, X0])}, "dimension 3, this call 6"),
    "policy": ({"on_failure": "retry"}, "on_failure"),
    "batched": ({"batched": True}, "batched"),
}


def begin(path, **changes):
    arguments = {"fun": quadratic, "x0": X0, "method": "rgf", "directions": 3} | COMMON | changes
    if arguments["method"] == "gld":
        del arguments["directions"]
    return minimize(arguments.pop("fun"), arguments.pop("x0"), arguments.pop("method"), checkpoint=path, **arguments)


@pytest.mark.parametrize("lost", [None, "", ".journal"], ids=["both", "the journal", "the state"])
@pytest.mark.parametrize("change", CHANGES)
def test_another_runs_checkpoint_is_refused_with_what_differs(change, lost, tmp_path):
    path = tmp_path / "run.pt"
    begin(path)
    if lost is not None:
        path.with_name("run.pt" + lost).unlink()
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    changes, words = CHANGES[change]
    with pytest.raises(ValueError, match="another run") as caught:
        begin(path, **changes)
    assert words in str(caught.value) and str(path) in str(caught.value)
    after = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    assert after | {"run.pt.journal": b""} == before | {"run.pt.journal": b""}
    assert begin(path).nfev == 20


def test_another_x0_is_refused_where_it_is_not_kept(tmp_path):
    path = tmp_path / "run.pt"
    begin(path, track_best=False)
    with pytest.raises(ValueError, match=r"another run: it has another x0$"):
        begin(path, track_best=False, x0=X0 + 1.0, max_queries=30)


SOURCE = "def helper(x):\n    return x * x\n\n\ndef loss(x):\n    return float(helper(x).sum())\n"


def written(folder, source, monkeypatch):
    """The function ``loss`` of a module with this source, as a new process imports it."""
    path = folder / "edited.py"
    path.write_text(source)
    os.utime(path, ns=(time.time_ns(),) * 2)
    linecache.clearcache()
    monkeypatch.delitem(sys.modules, "edited", raising=False)
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    importlib.invalidate_caches()
    return importlib.import_module("edited").loss


@pytest.mark.parametrize(
    "edit",
    [
        ("def loss", "\n# a comment\ndef loss"),
        ("loss(x):\n", 'loss(x):\n    """Its value."""\n'),
        ("float(helper(x).sum())", "float(\n        helper(x).sum()  # one\n    )"),
        ("x * x", "x * x + 1.0"),  # what it calls is not compared
    ],
    ids=["moved", "documented", "laid out anew", "its helper"],
)
def test_a_function_of_the_same_source_goes_on(edit, tmp_path, monkeypatch, caplog):
    path = tmp_path / "run.pt"
    begin(path, fun=written(tmp_path, SOURCE, monkeypatch))
    edited = written(tmp_path, SOURCE.replace(*edit), monkeypatch)
    caplog.clear()
    assert begin(path, fun=edited, max_queries=30).nfev == 30 and "changed" not in caplog.text


@pytest.mark.parametrize("lost", [None, "", ".journal"], ids=["both", "the journal", "the state"])
def test_values_of_another_version_of_the_function_are_refused_kept_or_discarded(lost, tmp_path, monkeypatch):
    path = tmp_path / "run.pt"
    old = begin(path, fun=written(tmp_path, SOURCE, monkeypatch))
    if lost is not None:
        path.with_name("run.pt" + lost).unlink()
    edited = written(tmp_path, SOURCE.replace(".sum())", ".sum()) + 100.0"), monkeypatch)
    with pytest.raises(
        ValueError, match=r"a different version of loss \(.*edited\.py, line 5\).*anyway.*restart"
    ) as caught:
        begin(path, fun=edited)
    assert str(path) in str(caught.value)
    kept = begin(path, fun=edited, max_queries=30, resume="anyway")
    assert kept.nfev == 30 and kept.fun == old.fun < 100.0
    assert begin(path, fun=edited, max_queries=40).nfev == 40, "the version that was taken is the run's from then on"
    anew = begin(path, fun=edited, resume="restart")
    assert anew.nfev == 20 and anew.fun > 100.0 and anew.history.y[0] > 100.0
    assert same(summary(begin(path, fun=edited)), summary(anew))
    with pytest.raises(ValueError, match=r"resume must be .*'yes'.*anyway, check, restart"):
        begin(path, fun=edited, resume="yes")


def test_lambdas_of_a_line_are_told_apart(tmp_path):
    first, second = (lambda x: float(x.sum()), lambda x: float(x.norm()))
    same_as_first = lambda x: float(x.sum())  # noqa: E731
    path = tmp_path / "run.pt"
    begin(path, fun=first)
    assert begin(path, fun=same_as_first, max_queries=28).nfev == 28
    with pytest.raises(ValueError, match="different version"):
        begin(path, fun=second)


def test_scipys_function_with_arguments_is_compared_itself(tmp_path):
    def scaled(x, by):
        return by * float((x * x).sum())

    def changed(x, by):
        return by * float((x + x).sum())

    changed.__qualname__ = scaled.__qualname__
    method, options = scipy_method("rgf", directions=3), {"max_queries": 20, "checkpoint": tmp_path / "run.pt"}
    first = scipy.optimize.minimize(scaled, X0, args=(2.0,), method=method, options=options)
    assert scipy.optimize.minimize(scaled, X0, args=(2.0,), method=method, options=options).fun == first.fun
    with pytest.raises(ValueError, match="different version"):
        scipy.optimize.minimize(changed, X0, args=(2.0,), method=method, options=options)


def test_functions_without_source_are_told_apart(tmp_path):
    begin(tmp_path / "run.pt", fun=eval("lambda x: float((x * x).sum())"))
    with pytest.raises(ValueError, match="different version"):
        begin(tmp_path / "run.pt", fun=eval("lambda x: float((x + x).sum())"), max_queries=30)


@pytest.mark.parametrize(
    "old, new",
    [
        ("lambda x, k=1: k", "lambda x, k=2: k"),
        ("lambda x, *, k=(1, 'a'): k", "lambda x, *, k=(1, 'b'): k"),
        ("lambda x: [row['a'] for row in x]", "lambda x: [row['b'] for row in x]"),
        ("lambda x: sum(row['a'] for row in x)", "lambda x: sum(row['b'] for row in x)"),
    ],
)
def test_defaults_and_texts_of_comprehensions_are_compared(old, new):
    assert fingerprint(eval(old)) == fingerprint(eval(old)) != fingerprint(eval(new))


def test_a_default_that_keeps_values_is_not_compared():
    def remembering(x, known={}):  # noqa: B006
        return known.setdefault(x, x)

    before = fingerprint(remembering)
    assert remembering(1.0) == 1.0 and fingerprint(remembering) == before


def test_a_fingerprint_is_that_of_another_process():
    funs = "lambda x: x in {'a', 'b', 'c', 'd'}", "lambda x: max(x, key=lambda y: -y)", "lambda x, k=len, j=object(): k"
    # By its file, as the package imports torch.
    lines = f"import runpy\nfingerprint = runpy.run_path({version.__file__!r})['fingerprint']\n"
    lines += f"for f in ({', '.join(funs)}): print(fingerprint(f))"
    outputs = [
        subprocess.run(
            [sys.executable, "-c", lines], env=os.environ | {"PYTHONHASHSEED": seed}, check=True, stdout=subprocess.PIPE
        ).stdout.split()
        for seed in "12"
    ]
    assert outputs[0] == outputs[1] and len(set(outputs[0]) - {b"None"}) == 3


def test_an_optimizer_that_has_begun_without_its_x0_goes_on(tmp_path):
    path, options = tmp_path / "run.pt", {"directions": 3, "seed": 1, "track_best": False}
    whole = RGF(X0, max_queries=20, **options)
    run(whole, quadratic)
    opt = RGF(X0, max_queries=8, **options)
    run(opt, quadratic)
    run(opt, quadratic, checkpoint=path)
    again = RGF(X0, max_queries=20, **options)
    assert same(summary(run(again, quadratic, checkpoint=path)), summary(whole.result()))


def test_an_optimizer_that_has_begun_is_in_its_file_before_a_query(tmp_path):
    path, options = tmp_path / "run.pt", {"directions": 3, "seed": 1, "max_queries": 20}
    whole = run(RGF(X0, **options), quadratic)

    def attempt():
        opt = RGF(X0, **options)
        for _ in range(2):
            batch = opt.ask()
            opt.tell(batch, quadratic(batch.points()))
        batch = opt.ask()
        opt.tell(batch, quadratic(batch.points([2])), which=[2])
        run(opt, dies, checkpoint=path)

    def dies(x):
        kill()

    dies.__qualname__ = quadratic.__qualname__

    assert forked(attempt) == -signal.SIGKILL
    assert same(summary(run(RGF(X0, **options), quadratic, checkpoint=path, resume="anyway")), summary(whole))


@pytest.mark.parametrize("forks", [False, True])
def test_a_second_process_is_refused_until_the_first_has_ended(forks, tmp_path):
    """Also where the first has left processes behind that it had forked, such as a pool's."""
    path, (ready, begun), (held, ended), mended = tmp_path / "run.pt", os.pipe(), os.pipe(), []

    def fun(x):
        if mended:
            return quadratic(x)
        if forks and os.fork() == 0:
            time.sleep(60.0)
            os._exit(0)
        os.write(begun, b".")
        os.read(held, 1)
        kill()

    child = os.fork()
    if child == 0:
        os.setsid()
        begin(path, fun=fun)
        os._exit(1)
    try:
        os.read(ready, 1)
        with pytest.raises(RuntimeError, match=r"run\.pt\.journal is in use: another process"):
            begin(path, fun=fun)
        os.write(ended, b".")
        os.waitpid(child, 0)
        mended.append(True)
        assert begin(path, fun=fun).nfev == 20
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)


def test_a_run_in_the_same_process_is_refused_too(tmp_path):
    def fun(x):
        with pytest.raises(RuntimeError, match="is in use"):
            begin(tmp_path / "run.pt")
        return quadratic(x)

    begin(tmp_path / "run.pt", fun=fun)


@pytest.mark.parametrize("argument", [{"progress": "sometimes"}, {"callback": 3}, {"workers": 0}])
def test_a_call_that_is_refused_gives_the_checkpoint_up(argument, tmp_path):
    with pytest.raises((ValueError, TypeError)) as caught:
        begin(tmp_path / "run.pt", **argument)
    assert caught.value.__traceback__ is not None  # it holds the frames, as a notebook does
    assert begin(tmp_path / "run.pt").nfev == 20


SLOW = ("prgf", "turbo", "least_squares_gradient")
LONGER = ["zord", "rgf", *(pytest.param(m, marks=pytest.mark.slow) for m in SLOW)]
"""Methods whose batches do not become smaller towards the end of the budget."""


@pytest.mark.parametrize("keep", ["both", "journal", "state"])
@pytest.mark.parametrize("method", LONGER)
def test_a_larger_budget_goes_on_as_if_it_had_been_there(method, keep, tmp_path):
    path, common = tmp_path / "run.pt", {"seed": 1, "progress": False, **OPTIONS.get(method, {})}
    for budget in (13, 21, 30):
        ours = minimize(quadratic, X0, method, max_queries=budget, checkpoint=path, **common)
        if keep != "both":
            path.with_name("run.pt" + {"journal": "", "state": ".journal"}[keep]).unlink()
    whole = minimize(quadratic, X0, method, max_queries=30, **common)
    assert same(summary(ours), summary(whole))


@pytest.mark.parametrize("method", ["trust_region", "es", "gld", "decomfl"])
def test_batches_that_the_budget_of_then_made_smaller_stay_so(method, tmp_path):
    """The journal is told again under the budgets under which its batches were asked."""
    found = []
    for name in ("both", "journal", "state"):
        path, common = tmp_path / name, {"seed": 1, "progress": False}
        minimize(quadratic, X0, method, max_queries=13, checkpoint=path, **common)
        if name != "both":
            path.with_name(name + {"journal": "", "state": ".journal"}[name]).unlink()
        found.append(summary(minimize(quadratic, X0, method, max_queries=30, checkpoint=path, **common)))
    assert same(found[1], found[0]) and same(found[2], found[0]) and found[0]["nfev"] > 13


@pytest.mark.parametrize("method", ["es", "gld"])
def test_a_batch_that_the_budget_of_then_made_smaller_stays_so_behind_a_state(method, tmp_path, monkeypatch):
    calls = []

    def fun(x):
        calls.append(x)
        if len(calls) == 13:  # in the last batch, which the budget has made smaller
            raise SystemExit
        return quadratic(x)

    common, found = {"seed": 1, "progress": False}, []
    with monkeypatch.context() as patch, pytest.raises(SystemExit):
        patch.setattr(checkpoint, "LEAST_BETWEEN", 0.0)
        patch.setattr(checkpoint, "MOST_SHARE", 1e9)
        patch.setattr(checkpoint.Checkpoint, "close", lambda self: self._journal.close())
        minimize(fun, X0, method, max_queries=13, checkpoint=tmp_path / "run.pt", **common)
    (tmp_path / "other.pt.journal").write_bytes((tmp_path / "run.pt.journal").read_bytes())
    for name in ("run.pt", "other.pt"):
        found.append(summary(minimize(fun, X0, method, max_queries=30, checkpoint=tmp_path / name, **common)))
    assert same(*found) and found[0]["nfev"] > 13


def test_a_smaller_budget_is_spent_already(tmp_path):
    begin(tmp_path / "run.pt")
    result = begin(tmp_path / "run.pt", max_queries=12)
    assert (result.nfev, result.stop_reason) == (20, "budget")
    assert begin(tmp_path / "run.pt", max_queries=40).nfev == 40


@pytest.mark.parametrize("method", ["zord", "rgf"])
def test_a_target_is_changed_and_dropped(method, tmp_path):
    calls = []

    def fun(x):
        calls.append(x)
        return quadratic(x)

    path, common = tmp_path / "run.pt", {"max_queries": 39, "seed": 1, "progress": False}
    whole = minimize(quadratic, X0, method, **common)
    first = float(whole.history.best_y[10])
    ours = minimize(fun, X0, method, checkpoint=path, target=first, **common)
    assert ours.stop_reason == "target reached" and ours.nfev == len(calls) <= 11 and ours.fun <= first
    again = minimize(fun, X0, method, checkpoint=path, target=first, **common)
    assert same(summary(again), summary(ours)) and len(calls) == ours.nfev
    path.unlink()
    assert same(summary(minimize(fun, X0, method, checkpoint=path, **common)), summary(whole))
    assert len(calls) == 39


def test_a_run_that_has_ended_is_given_again_without_a_call(tmp_path):
    ours = begin(tmp_path / "run.pt")

    def quadratic(x):
        raise AssertionError

    quadratic.__qualname__ = "quadratic"
    assert same(summary(begin(tmp_path / "run.pt", fun=quadratic, resume="anyway")), summary(ours))


def test_a_failure_of_the_first_query_is_mended_and_goes_on(tmp_path):
    def mended(x):
        if bad:
            raise OSError("a slip")
        return quadratic(x)

    bad = [1]
    with pytest.raises(OSError, match="a slip"):
        begin(tmp_path / "run.pt", fun=mended)
    bad.clear()
    assert begin(tmp_path / "run.pt", fun=mended).nfev == 20


@pytest.mark.parametrize("at", [1, 5, 14])
def test_a_step_that_raises_is_made_again_from_the_journal(at, tmp_path, monkeypatch):
    """The value has come and is in the journal, whether the state is saved after it or not."""
    monkeypatch.setattr(checkpoint, "LEAST_BETWEEN", 0.0)
    calls, tell = [], RGF._tell

    def fun(x):
        calls.append(x)
        return quadratic(x)

    def raises(self, batch, values):
        if len(calls) >= at:
            raise MemoryError
        tell(self, batch, values)

    with monkeypatch.context() as patch:
        patch.setattr(RGF, "_tell", raises)
        with pytest.raises(MemoryError):
            begin(tmp_path / "run.pt", fun=fun)
    ours = begin(tmp_path / "run.pt", fun=fun)
    assert len(calls) == 20 and same(summary(ours), summary(begin(tmp_path / "other.pt")))


def test_a_checkpoint_lasts_through_forks_of_the_run(tmp_path):
    """A child that ends closes its copies of the files, and writes nothing to them."""

    def fun(x):
        assert forked(lambda: None) == 0
        return quadratic(x)

    whole = summary(begin(None, max_queries=8))
    assert same(summary(begin(tmp_path / "run.pt", fun=fun, max_queries=8)), whole)


def test_a_run_that_its_callback_ended_is_given_again_if_it_does_so_again(tmp_path):
    """The callback is asked anew, before any query: as scipy's maxiter, or a limit of hours that has been raised."""
    calls = []

    def fun(x):
        calls.append(1)
        return quadratic(x)

    def call(limit):
        def stops(result):
            return result.nit >= limit

        return minimize(fun, start(), "rgf", max_queries=60, directions=10, checkpoint=tmp_path / "run", callback=stops)

    first, again = call(2), call(2)
    assert first.nit == again.nit == 2 and first.stop_reason == again.stop_reason == "callback" and len(calls) == 22
    assert call(3).nit == 3 and len(calls) == 33
    assert call(99).stop_reason == "budget" and len(calls) == 60
