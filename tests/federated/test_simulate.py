import inspect
import logging
import os
import signal
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np
import pytest
import torch

from federated import ALGORITHMS, Algorithm, algorithm_class, simulate
from federated.core.codec import encode
from federated.core.messages import Broadcast
from federated.engine.checkpoint import FORMAT, read_checkpoint
from federated.engine.workers import WorkerError
from federated.simulate import make_federation
from federated.testing import Fault, Quadratic, faulty
from federated.testing.harness import states_equal, trace
from optimizers import FailedQueryError
from optimizers.core.files import read_state
from optimizers.running import interrupts

X0 = torch.linspace(0.1, 0.9, 5, dtype=torch.float64)
OPTIONS = {"local_steps": 2, "directions": 3}


def clients(n=4):
    return [Quadratic(i) for i in range(n)]


def mean_value(x):
    return sum(f.value(x) for f in clients()) / 4


def test_the_result_says_what_happened():
    result = simulate("fedzo", clients(), X0, rounds=3, fun=mean_value, **OPTIONS)
    assert result.nit == 3 and result.nfev == 3 * 4 * 2 * 4 and result.nfail == 0 and result.skipped == 0
    assert result.fun == float(mean_value(result.x)) < result.history[0].fun
    assert result.message == "3 rounds done." and result.algorithm == "fedzo"
    assert [r.queries for r in result.history] == [0, 32, 64, 96]
    assert len(result.ledger.to_rows()) == 12
    assert np.isnan(simulate("fedzo", clients(), X0, rounds=0, **OPTIONS).fun)


def test_the_signature_shows_the_usual_options_with_the_defaults_that_they_have():
    shown = inspect.signature(simulate).parameters
    passed = {**inspect.signature(Algorithm).parameters, **inspect.signature(make_federation).parameters}
    common = {name for name in shown if name in passed}
    assert common >= {"local_steps", "seed", "bounds", "participation", "weights", "fun", "workers", "timeout"}
    assert all(shown[name] == passed[name] for name in common)


def test_numpy_batched_and_plain_objectives_agree():
    plain = simulate("fedzo", clients(), X0, rounds=2, **OPTIONS).x
    arrays = [lambda x, f=f: float(f(torch.from_numpy(x))) for f in clients()]
    assert np.array_equal(simulate("fedzo", arrays, X0, rounds=2, numpy=True, **OPTIONS).x, plain)
    whole = [lambda X, f=f: [f(x) for x in X] for f in clients()]
    assert torch.equal(simulate("fedzo", whole, X0, rounds=2, batched=True, **OPTIONS).x, plain)


def test_every_algorithm_has_its_name():
    for name in ALGORITHMS:
        assert algorithm_class(name).name == name and issubclass(algorithm_class(name), Algorithm)
    assert algorithm_class(algorithm_class("fedzo")) is algorithm_class("fedzo")
    with pytest.raises(ValueError, match="did you mean 'fedprox'"):
        simulate("fedprx", clients(), X0, rounds=1)
    with pytest.raises(TypeError, match="name or a subclass of Algorithm"):
        simulate(simulate, clients(), X0, rounds=1)


@pytest.mark.parametrize("name", ["scaffold2", "fedadam"])
def test_a_run_that_was_killed_goes_on_bitwise(name, tmp_path):
    options = {"local_steps": 2, "participation": 0.5}
    whole = simulate(name, clients(), X0, rounds=5, **options)

    def interrupt(record, x):
        if record.round == 3:
            raise KeyboardInterrupt

    path = tmp_path / "federation.pt"
    with pytest.raises(KeyboardInterrupt):
        simulate(name, clients(), X0, rounds=5, checkpoint=path, callback=interrupt, **options)
    resumed = simulate(name, clients(), X0, rounds=5, checkpoint=path, **options)
    assert torch.equal(resumed.x, whole.x) and resumed.nfev == whole.nfev
    assert repr(list(map(asdict, resumed.history))) == repr(list(map(asdict, whole.history)))
    asked = clients()
    again = simulate(name, asked, X0, rounds=5, checkpoint=path, **options)
    assert torch.equal(again.x, whole.x) and again.nit == 5 and not sum(f.queries for f in asked)
    beside = ["federation.pt.history.jsonl", "federation.pt.ledger.csv"]
    assert sorted(os.listdir(tmp_path)) == ["federation.pt", *beside]


def test_checkpoints_are_made_as_often_as_asked(tmp_path):
    path, times = tmp_path / "f.pt", []

    def note(record, x):
        times.append(os.path.exists(path) and read_state(path, FORMAT)["server"]["round"] - 1)

    simulate("fedzo", clients(), X0, rounds=5, checkpoint=path, checkpoint_every=2, callback=note, **OPTIONS)
    assert times == [False, False, 2, 2, 4]
    assert read_state(path, FORMAT)["server"]["round"] == 6


@pytest.mark.parametrize(
    ("given", "error", "words"),
    [
        ({"checkpoint": True}, TypeError, "checkpoint must be the path"),
        ({"checkpoint": 3}, TypeError, "checkpoint must be the path"),
        ({"checkpoint": b"no checkpoint"}, ValueError, "is not a checkpoint"),
        ({"checkpoint": [1.0]}, ValueError, "is not a checkpoint"),
    ],
)
def test_what_is_no_checkpoint_is_refused_before_a_query(given, error, words, tmp_path):
    objectives = clients()
    path = tmp_path / "file.pt"
    for name, value in given.items():
        if isinstance(value, bytes):
            path.write_bytes(value)
            given = {name: path}
        elif isinstance(value, list):
            torch.save(value, path)
            given = {name: path}
    with pytest.raises(error, match=words):
        simulate("fedzo", objectives, X0, rounds=2, **given, **OPTIONS)
    assert sum(f.queries for f in objectives) == 0


def test_another_configuration_cannot_resume(tmp_path):
    path = tmp_path / "f.pt"
    simulate("fedzo", clients(), X0, rounds=1, checkpoint=path, **OPTIONS)
    objectives = clients()
    for change, word in (
        ({"seed": 3}, "seed"),
        ({"local_steps": 3}, "local_steps"),
        ({"smoothing_radius": 0.1}, "smoothing_radius"),
    ):
        with pytest.raises(ValueError, match=f"the state has {word} "):
            simulate("fedzo", objectives, X0, rounds=2, checkpoint=path, **OPTIONS | change)
    with pytest.raises(ValueError, match="algorithm"):
        simulate("fedprox", objectives, X0, rounds=2, checkpoint=path, **OPTIONS)
    with pytest.raises(ValueError, match="began at another x0"):
        simulate("fedzo", objectives, X0 + 0.01, rounds=2, checkpoint=path, **OPTIONS)
    with pytest.raises(ValueError, match=r"the state has clients 4, this federation has 3"):
        simulate("fedzo", objectives[:3], X0, rounds=2, checkpoint=path, **OPTIONS)
    with pytest.raises(ValueError, match="dimension"):
        simulate("fedzo", [f.value for f in objectives], X0[:3], rounds=2, checkpoint=path, **OPTIONS)
    assert sum(f.queries for f in objectives) == 0


def test_callbacks_stop():
    def by_value(record, x):
        return record.round == 2

    def by_exception(record, x):
        if record.round == 2:
            raise StopIteration

    for callback in (by_value, by_exception):
        result = simulate("fedzo", clients(), X0, rounds=9, callback=callback, **OPTIONS)
        assert result.nit == 2 and "callback" in result.message and result.status == 99 and not result.success


@pytest.mark.parametrize(
    ("callback", "says"),
    [
        (3, "callback must be callable, got int"),
        (lambda x: None, r"called as callback\(record, x\): too many positional arguments, got callback\(x\)"),
        (lambda record, x, best: None, "missing a required argument: 'best'"),
    ],
)
def test_a_callback_of_other_arguments_is_refused_before_a_query(callback, says):
    objectives = clients()
    with pytest.raises(TypeError, match=says):
        simulate("fedzo", objectives, X0, rounds=1, callback=callback, **OPTIONS)
    assert not any(f.queries for f in objectives)
    assert simulate("fedzo", objectives, X0, rounds=1, callback=slice, **OPTIONS).nit == 1  # it has no signature


def test_objectives_that_raise_end_the_run_where_asked():
    objectives = clients()
    objectives[2].failing = 5
    with pytest.raises((ArithmeticError, FailedQueryError)):
        simulate("fedzo", objectives, X0, rounds=3, on_failure="raise", **OPTIONS)
    with pytest.raises(ValueError, match=r"real numbers|shape"):
        simulate("fedzo", [lambda x: x], X0, rounds=1, **OPTIONS)


def raising(x):
    raise LookupError("no value")


def elsewhere(x):
    raise LookupError("no value here")


def test_what_clients_raise_is_logged_by_their_numbers_and_traced_once(caplog):
    assert simulate("fedzo", [raising, raising, elsewhere, raising], X0, rounds=2, **OPTIONS).nfail == 64
    warned = [record for record in caplog.records if record.name == "optimizers.evaluation"]
    for client, record in enumerate(warned):
        assert record.getMessage().startswith(f"client {client}'s objective raised LookupError at point 0 of batch 0")
    assert [record.exc_info is not None for record in warned] == [True, False, True, False]
    with pytest.raises(LookupError) as raised:
        simulate("fedzo", [torch.sum, raising], X0, rounds=1, on_failure="raise", **OPTIONS)
    assert raised.value.__notes__ == ["raised by client 1's objective at point 0 of batch 0"]


def interrupting(objective, number, then=lambda: None):
    """The objective, which interrupts the process at one of its queries."""

    def fun(x):
        fun.queries += 1
        if fun.queries == number:
            os.kill(os.getpid(), signal.SIGINT)
            then()
        return objective.value(x)

    fun.queries = 0
    return fun


def test_an_interrupt_ends_the_run_after_its_round_and_the_same_call_goes_on(tmp_path, caplog):
    whole = simulate("scaffold2", [f.value for f in clients()], X0, rounds=5, **OPTIONS)
    path = tmp_path / "f.pt"
    objectives = [f.value for f in clients()]
    objectives[1] = interrupting(clients()[1], 20)  # each round asks 8
    cut = simulate("scaffold2", objectives, X0, rounds=5, checkpoint=path, checkpoint_every=5, **OPTIONS)
    assert cut.nit == 3 and cut.status == 98 and not cut.success and objectives[1].queries == 24
    assert cut.message == "Interrupted after 3 rounds. The same call with the same checkpoint resumes the run."
    assert "the round that is running has 5 s to finish" in caplog.text
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    result = simulate("scaffold2", objectives, X0, rounds=5, checkpoint=path, **OPTIONS)
    assert torch.equal(result.x, whole.x) and result.status == 1 and result.success and objectives[1].queries == 40
    alone = simulate("fedzo", [interrupting(clients()[0], 3)], X0, rounds=3, **OPTIONS)
    assert alone.message == "Interrupted after 1 round." and alone.nit == 1


def test_a_round_that_outlasts_an_interrupt_is_left_out(tmp_path, monkeypatch):
    monkeypatch.setattr(interrupts, "GRACE", 0.2)
    path, objectives = tmp_path / "f.pt", [f.value for f in clients()]
    objectives[1] = interrupting(clients()[1], 20, lambda: time.sleep(60.0))
    began = time.monotonic()
    cut = simulate("scaffold2", objectives, X0, rounds=5, checkpoint=path, **OPTIONS)
    assert time.monotonic() - began < 30.0 and cut.nit == 2 and "after 2 rounds" in cut.message
    plain = [f.value for f in clients()]
    result = simulate("scaffold2", plain, X0, rounds=5, checkpoint=path, **OPTIONS)
    assert torch.equal(result.x, simulate("scaffold2", plain, X0, rounds=5, **OPTIONS).x)


def test_an_interrupt_of_all_processes_leaves_a_round_whole(tmp_path):
    objectives = [Interrupting(0, parent=os.getpid()), Quadratic(1)]
    cut = simulate("fedzo", objectives, X0, rounds=4, workers=2, start_method="fork", **OPTIONS)
    assert cut.nit == 1 and cut.nfail == 0 and not cut.success
    assert torch.equal(cut.x, simulate("fedzo", clients(2), X0, rounds=1, **OPTIONS).x)


def test_a_run_in_which_nothing_worked_is_no_success():
    def broken(x):
        raise ArithmeticError("no value")

    for objectives in ([broken] * 3, [lambda x: float("nan")] * 3):
        result = simulate("fedzo", objectives, X0, rounds=2, **OPTIONS)
        assert result.nfev == result.nfail > 0 and not result.success
    assert simulate("fedzo", [broken, *clients(2)], X0, rounds=2, **OPTIONS).success


class Wordy(Quadratic):
    """A client that answers in words."""

    def __init__(self, answer, slope):
        super().__init__(1)
        self.answer, self.slope = answer, slope

    def __call__(self, x):
        return self.answer or super().__call__(x)

    def gradient(self, x):
        return self.slope or super().gradient(x)


@pytest.mark.parametrize(("answer", "slope"), [("0.5", ""), ("", "steep"), ("", [1.0, "b"])])
@pytest.mark.parametrize("workers", [1, 2])
def test_a_client_whose_function_returns_a_text_is_named(answer, slope, workers):
    given = [Quadratic(0), Wordy(answer, slope)]
    with pytest.raises((TypeError, ValueError), match="must be real numbers") as raised:
        simulate("fedavg", given, X0, rounds=1, local_steps=2, workers=workers, start_method="fork")
    said = " ".join([str(raised.value), *getattr(raised.value, "__notes__", ())])
    assert "client 1's objective" in said


def test_a_gradient_of_another_shape_is_named():
    given = [Quadratic(0), Wordy("", [1.0, 2.0])]
    with pytest.raises(ValueError, match=r"the gradient of client 1's objective has shape \(2,\), expected \(5,\)"):
        simulate("fedavg", given, X0, rounds=1, local_steps=2)


def test_reports_that_are_not_used_are_said_and_most_of_them_are_no_success():
    def broken(x):
        raise ArithmeticError("no value")

    result = simulate("fedzo", [*[broken] * 9, *clients(1)], X0, rounds=2, **OPTIONS)
    assert not result.success and result.skipped == 0
    assert result.message.endswith("queries failed, 18 of 20 reports were not used.")
    half = simulate("fedzo", [broken, *clients(1)], X0, rounds=2, **OPTIONS)
    assert half.success and "2 of 4 reports were not used" in half.message
    assert "not used" not in simulate("fedzo", clients(2), X0, rounds=1, **OPTIONS).message


@pytest.mark.parametrize(("quorum", "needed"), [(3, 3), (0.5, 2), (0.51, 3), (1.0, 4), (1, 1)])
def test_a_round_without_a_quorum_is_skipped(quorum, needed):
    for missing in range(4):
        lost = [Fault("drop", 1, client) for client in range(missing)]
        made = faulty(make_federation("fedzo", clients(4), X0, quorum=quorum, **OPTIONS), lost)
        record = made.run_round()
        if 4 - missing >= needed:
            assert record.skipped is None and len(record.accepted) == 4 - missing
        else:
            assert record.skipped == f"{4 - missing} usable reports are fewer than the quorum of {needed}"
            assert torch.equal(made.server.x, X0)


@pytest.mark.parametrize("quorum", [0, 5, 0.0, 1.5, -1, True, "half"])
def test_a_quorum_is_checked(quorum):
    with pytest.raises((ValueError, TypeError), match="quorum"):
        simulate("fedzo", clients(4), X0, rounds=1, quorum=quorum, **OPTIONS)


def test_scalars_that_are_zero_are_said(caplog):
    """HiSo on a metric in steps of 0.1, which most perturbations do not change."""

    def steps(x):
        return float(torch.floor(10.0 * (x - 0.3).square().sum()) / 10.0)

    with caplog.at_level(logging.WARNING, "federated.core.gate"):
        result = simulate("hiso", [steps] * 4, X0, rounds=4, rate=0.01, local_steps=2)
    zeros = 4 * 4 * 2 * 5
    assert f" of {zeros} reported numbers were exactly 0" in result.message and "smoothing radius" in result.message
    assert [record.message.partition(":")[0] for record in caplog.records] == ["round 1", "round 2", "round 4"]
    smooth = simulate("hiso", clients(4), X0, rounds=2, rate=0.01, local_steps=2)
    assert "exactly 0" not in smooth.message


def test_an_array_is_answered_by_arrays():
    seen = []

    def mean(x):
        seen.append(type(x))
        return np.square(x).sum()

    def squares(x):
        assert isinstance(x, np.ndarray)
        return np.square(x - 0.3).sum()

    def note(record, x):
        seen.append(type(x))

    result = simulate("fedzo", [squares] * 2, X0.numpy(), rounds=2, fun=mean, callback=note, **OPTIONS)
    assert set(seen) == {np.ndarray} and isinstance(result.x, np.ndarray) and result.x.dtype == np.float64
    tensors = simulate("fedzo", [lambda x: (x - 0.3).square().sum()] * 2, X0.numpy(), rounds=2, numpy=False, **OPTIONS)
    assert isinstance(tensors.x, torch.Tensor) and np.allclose(result.x, tensors.x, rtol=1e-12)
    with pytest.raises(TypeError, match="fun must be callable, got int"):
        simulate("fedzo", clients(), X0, rounds=1, fun=3, **OPTIONS)


def test_retries_are_counted():
    objectives = clients()
    objectives[0].failing = 3
    result = simulate("fedzo", objectives, X0, rounds=2, on_failure="retry", retries=2, **OPTIONS)
    assert result.nfev == sum(f.queries for f in objectives)
    assert result.nfail == objectives[0].failures > 0


def test_corrupt_faults_need_bytes():
    with pytest.raises(ValueError, match="codec"):
        faulty(make_federation("fedzo", clients(), X0, codec=False, **OPTIONS), [Fault("corrupt", 1, 0)])
    for bad in ({"kind": "vanish"}, {"how": "bend"}, {"round": 0}, {"client": -1}):
        with pytest.raises(ValueError):
            Fault(**{"kind": "drop", "round": 1, "client": 0} | bad)


def test_clients_are_served_in_any_order():
    a = make_federation("scaffold1", clients(), X0, **OPTIONS)
    b = make_federation("scaffold1", clients(), X0, **OPTIONS)
    serve = b.host.serve_all
    b.host.serve_all = lambda requests: reversed(list(serve(requests[::-1])))
    for _ in range(3):
        a.run_round(), b.run_round()
    assert trace(a) == trace(b)


@dataclass
class Interrupting(Quadratic):
    """Interrupts its process and its parent, as a terminal does, at the third query."""

    parent: int = 0

    def __call__(self, x):
        if self.queries == 2:
            os.kill(self.parent, signal.SIGINT)
            os.kill(os.getpid(), signal.SIGINT)
        return super().__call__(x)


@dataclass
class Ending(Quadratic):
    """Ends its process at the fifth query."""

    def __call__(self, x):
        if self.queries == 5:
            os._exit(3)
        return super().__call__(x)


@dataclass
class Picky(Quadratic):
    """Raises what cannot be sent between processes."""

    def __call__(self, x):
        error = ArithmeticError("no value")
        error.held = lambda: None
        raise error


def test_workers_that_end_or_raise_are_reported():
    fork = {"workers": 2, "start_method": "fork", "rounds": 1}
    with pytest.raises(WorkerError, match="a worker ended"):
        simulate("fedzo", [Quadratic(0), Ending(1)], X0, **fork, **OPTIONS)
    with pytest.raises((RuntimeError, ArithmeticError), match="no value"):
        simulate("fedzo", [Quadratic(0), Picky(1)], X0, on_failure="raise", **fork, **OPTIONS)


def test_what_cannot_be_pickled_is_said_before_a_worker_starts():
    with pytest.raises(TypeError, match="start_method='fork'"):
        simulate("fedzo", [lambda x: x.sum()] * 2, X0, rounds=1, workers=2, **OPTIONS)
    with pytest.raises(ValueError, match="start_method"):
        simulate("fedzo", clients(), X0, rounds=1, workers=2, start_method="thread", **OPTIONS)


@pytest.mark.parametrize(
    "start_method",
    [
        "fork",
        pytest.param("spawn", marks=pytest.mark.slow),
        pytest.param("forkserver", marks=pytest.mark.slow),
    ],
)
def test_a_run_goes_on_from_one_process_in_several(start_method, tmp_path):
    path = tmp_path / "f.pt"
    whole = simulate("scaffold2", clients(), X0, rounds=4, **OPTIONS)
    simulate("scaffold2", clients(), X0, rounds=2, checkpoint=path, **OPTIONS)
    spread = {"workers": 3, "start_method": start_method}
    resumed = simulate("scaffold2", clients(), X0, rounds=4, checkpoint=path, **spread, **OPTIONS)
    assert torch.equal(resumed.x, whole.x)
    alone = make_federation("scaffold2", clients(), X0, **OPTIONS)
    for _ in range(4):
        alone.run_round()
    assert states_equal(read_checkpoint(path)[0], alone.state_dict())


def test_float32_stays_float32_with_any_default():
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    try:
        doubled = simulate("scaffold1", clients(), X0, rounds=2, **OPTIONS)
    finally:
        torch.set_default_dtype(before)
    assert torch.equal(doubled.x, simulate("scaffold1", clients(), X0, rounds=2, **OPTIONS).x)


class Sequenced(Sequence):
    """Clients that are made when they are asked for, and those that were."""

    def __init__(self, count):
        self.count, self.made = count, []

    def __len__(self):
        return self.count

    def __getitem__(self, i):
        if i >= self.count:
            raise IndexError(i)
        self.made.append(i)
        return Quadratic(i)


@pytest.mark.parametrize("name", ["fzoos", "scaffold2", "hiso", "fedavg"])
def test_clients_that_are_not_sampled_are_not_touched(name):
    small = {"num_features": 16, "initial_queries": 2, "active_queries": 1, "candidates": 2} if name == "fzoos" else {}
    options = {"local_steps": 1, "participation": 2} | small
    objectives = Sequenced(10_000)
    made = make_federation(name, objectives, X0, **options)
    assert objectives.made == []
    for _ in range(3):
        made.run_round()
    asked = sorted({client for record in made.history for client in record.participants})
    assert sorted(objectives.made) == asked == sorted(made.host.states()) and len(asked) == 6
    listed = make_federation(name, [Quadratic(i) for i in range(10_000)], X0, **options)
    for _ in range(3):
        listed.run_round()
    assert trace(listed) == trace(made)


def test_a_client_that_is_made_late_is_checked():
    objectives = Sequenced(3)
    objectives.__class__ = type("Wrong", (Sequenced,), {"__getitem__": lambda self, i: Quadratic(i, 3)})
    with pytest.raises(ValueError, match=r"client 0 has dimension 3, .*x0 has 5"):
        simulate("fedzo", objectives, X0, rounds=1, **OPTIONS)


@pytest.mark.parametrize("given", [None, 5, "ab", {0: abs, 1: abs}, [], [1, 2]])
def test_objectives_that_are_none_are_named(given):
    says = (
        "there are no clients" if given == [] else "callable" if given == [1, 2] else "must be a sequence of functions"
    )
    with pytest.raises((TypeError, ValueError), match=says):
        make_federation("fedzo", given, X0)


def test_a_personal_broadcast_is_encoded_once_for_those_who_get_the_same_to_the_bit():
    """Zeros of either sign, dtypes, shapes, and values that Python calls equal are not the same."""
    zero = torch.zeros(2, 2, dtype=torch.float64)
    tensors = [zero, zero.clone(), -zero, zero.float(), zero.flatten(), zero.to(torch.bfloat16)]
    sent = [({"x": x}, {"n": 1}) for x in tensors] + [({"x": zero}, {"n": n}) for n in (True, 1.0, 0.0, -0.0)]
    federation = make_federation("fzoos", [lambda x: x.sum()] * len(sent), torch.zeros(4).double(), num_features=8)
    head = {"algorithm": "fzoos", "fingerprint": "", "round": 1, "phase": "local"}
    messages = [Broadcast(**head, tensors=held, values=values) for held, values in sent]
    federation.server.broadcast, made = messages.__getitem__, {}
    got = [federation._personal(client, made)[0] for client in range(len(sent))]
    assert got == [encode(message) for message in messages]
    assert got[1] is got[0] and len(made) == len(sent) - 1
