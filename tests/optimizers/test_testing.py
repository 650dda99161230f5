import time
from dataclasses import replace

import numpy as np
import pytest
import torch

from optimizers import RGF, Optimizer
from optimizers.testing import CHECKS, Promises, check_optimizer, method_factory


class Overspends(RGF):
    def _next_queries(self):
        return self.directions + 1

    @property
    def remaining(self):
        return 10**6


class AskMoves(RGF):
    def _ask(self):
        self._x = self._x + 1e-9
        return super()._ask()

    def ask(self):
        self.cancel()
        return super().ask()


class FirstAskMoves(RGF):
    def _ask(self):
        self._x = self._x + 1e-9
        return super()._ask()


class HiddenState(RGF):
    hidden = 0

    def _tell(self, batch, values):
        self.hidden += 1
        super()._tell(batch, values)
        self._x = self._x + 1e-6 * self.hidden


class GlobalNumbers(RGF):
    def _tell(self, batch, values):
        super()._tell(batch, values)
        self._x = self._x + 1e-3 * torch.randn(5).to(self._x)


class MovesGlobalNumbers(RGF):
    def _tell(self, batch, values):
        super()._tell(batch, values)
        np.random.rand()  # noqa: NPY002


class OneSeed(RGF):
    def _start(self):
        self.seed = 0
        super()._start()


class KeepsFailures(RGF):
    def _tell(self, batch, values):
        self._x = self._x - 0.1 * batch.combine((values - values[0]).clamp(-1, 1))
        if values.isnan().any():
            self._x = self._x * torch.nan


class LeavesTheBox(RGF):
    def _prox(self, z, step):
        return z

    def _to_user(self, z):
        return z if self.domain is None else replace(self.domain, confine=False).to_user(z)


class Climbs(RGF):
    def _descend(self, rule, gradient):
        super()._descend(rule, -gradient)


class Swallows(RGF):
    def __init__(self, x0, *, max_queries, targt=None, **common):
        super().__init__(x0, max_queries=max_queries, **common)


class Float64Only(RGF):
    def _start(self):
        self._x = self._x.double()
        super()._start()


class DefaultDtype(RGF):
    def _ask(self):
        self.smoothing_radius = float(torch.tensor(0.01))
        return super()._ask()


class OrderOfArrival(RGF):
    def _tell(self, batch, values):
        super()._tell(batch, values)
        self._x = self._x + 1e-9 * (time.monotonic_ns() % 1000)


class ChangesInPlace(RGF):
    def _tell(self, batch, values):
        self._x.add_(1e-9)
        super()._tell(batch, values)


class AsksByTheClock(RGF):
    def _ask_another(self, pending, spare):
        return self._directions_batch([0], [1e-9 * (time.monotonic_ns() % 1000)])


class OneNumber(RGF):
    def _ask_another(self, pending, spare):
        return replace(self._directions_batch([0], [1.0]), id=pending[-1].id)


class Overflows(RGF):
    default_directions = 10

    def _tell(self, batch, values):
        self._x = self._x - (values.nan_to_num().to(self._x).sum()) * 1e10


class IgnoresRetries(RGF):
    def tell(self, batch, values=None, *, which=None, retries=0):
        if not retries:
            super().tell(batch, values, which=which)


class DividesByDifferences(RGF):
    def _tell(self, batch, values):
        self._x = self._x * (1.0 / float(values[~values.isnan()].max() - values.min()))


class DividesByDimensions(RGF):
    def _ask(self):
        return self._directions_batch([0] * (self.directions + 1), [1.0 / (self.dimension - 1)] * (self.directions + 1))


class KeepsTheBudget(RGF):
    def _start(self):
        self.first_budget = self.max_queries
        super()._start()

    def _state(self):
        return {"first_budget": self.first_budget}

    def _load_state(self, state):
        self.first_budget = state["first_budget"]

    def _next_queries(self):
        return super()._next_queries() if self.queries + self.directions < self.first_budget else 0


class SharesItsState(RGF):
    def _start(self):
        self.moved = torch.zeros(5)

    def _state(self):
        return {"moved": self.moved}

    def _load_state(self, state):
        self.moved = state["moved"]

    def _tell(self, batch, values):
        self.moved += 1e-3
        self._x = self._x + self.moved.to(self._x)


class Verbatim(Optimizer):
    method = "verbatim"

    def _next_queries(self):
        return 1

    def _ask(self):
        return self._directions_batch([0], [0.0])

    def _tell(self, batch, values):
        pass


CHECK = {check.__name__: check for check in CHECKS}
BROKEN = [
    (Overspends, "check_budget"),
    (AskMoves, "check_ask_is_idempotent"),
    (FirstAskMoves, "check_ask_is_idempotent"),
    (HiddenState, "check_resume"),
    (GlobalNumbers, "check_seeds"),
    (MovesGlobalNumbers, "check_seeds"),
    (OneSeed, "check_seeds"),
    (KeepsFailures, "check_failures_are_survived"),
    (LeavesTheBox, "check_bounds"),
    (Climbs, "check_quadratic"),
    (Climbs, "check_rosenbrock"),
    (Swallows, "check_bad_arguments"),
    (Float64Only, "check_dtypes"),
    (DefaultDtype, "check_dtypes"),
    (OrderOfArrival, "check_executor"),
    (ChangesInPlace, "check_tell_is_atomic"),
    (AsksByTheClock, "check_several_points_are_out"),
    (OneNumber, "check_several_points_are_out"),
    (Overflows, "check_enormous_values"),
    (Verbatim, "check_quadratic"),
    (IgnoresRetries, "check_retries"),
    (DividesByDifferences, "check_constant"),
    (DividesByDifferences, "check_all_failed"),
    (DividesByDimensions, "check_one_dimension"),
    (KeepsTheBudget, "check_extended_budget"),
    (SharesItsState, "check_states_are_copies"),
]


@pytest.mark.parametrize(("broken", "check"), BROKEN, ids=lambda v: getattr(v, "__name__", v))
def test_the_battery_finds_what_is_broken(broken, check):
    with pytest.raises((AssertionError, ArithmeticError, RuntimeError)):
        CHECK[check](method_factory(broken), Promises())


def test_every_check_finds_a_broken_method():
    assert {check for _, check in BROKEN} == set(CHECK)


def test_the_whole_battery_names_the_check():
    with pytest.raises(AssertionError) as caught:
        check_optimizer(Overspends)
    assert "in check_" in caught.value.__notes__[0]


def test_an_optimizer_that_promises_nothing_passes():
    check_optimizer(Verbatim, Promises(descent=False, seeded=False))
    check_optimizer("gld", Promises(max_queries=16, convergence_queries=200))
