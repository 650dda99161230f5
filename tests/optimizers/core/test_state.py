from dataclasses import dataclass
from typing import Any

import pytest
import torch

from optimizers import FirstOrder
from optimizers.core.state import check_match, load_fields, save_fields

CPU = torch.device("cpu")


@dataclass(frozen=True)
class Part:
    number: int
    y: torch.Tensor


@dataclass
class Everything:
    x: torch.Tensor
    rule: FirstOrder
    numbers: Any = None
    part: Part | None = None
    parts: tuple[Part, ...] = ()


def make(start=0):
    x = torch.arange(3.0)
    parts = [Part(start + i, x + start + i) for i in range(3)]
    rule = FirstOrder(lambda p: torch.optim.Adam([p]), x)
    return Everything(x, rule, {"a": [x + 1, 2], "b": (None, "c")}, parts[0], tuple(parts[1:]))


def test_fields_come_back_and_share_nothing():
    state = make()
    saved = save_fields(state)
    state.x += 1.0
    state.numbers["a"][0] += 1.0
    loaded = load_fields(make(), saved, CPU)
    assert loaded.x.tolist() == [0.0, 1.0, 2.0] and loaded.numbers["a"][0].tolist() == [1.0, 2.0, 3.0]
    assert loaded.numbers["b"] == (None, "c") and isinstance(loaded.rule, FirstOrder)
    loaded.x.zero_()
    loaded.numbers["a"][0].zero_()
    assert saved["x"].tolist() == [0.0, 1.0, 2.0] and saved["numbers"]["a"][0].tolist() == [1.0, 2.0, 3.0]


def test_dataclasses_come_back_as_such_also_in_sequences():
    state = make(start=5)
    saved = save_fields(state)
    assert saved["part"]["number"] == 5 and saved["parts"][1]["y"].tolist() == [7.0, 8.0, 9.0]
    state.part.y.zero_()
    loaded = load_fields(make(), saved, CPU)
    assert isinstance(loaded.part, Part) and loaded.part.number == 5 and loaded.part.y.tolist() == [5.0, 6.0, 7.0]
    assert [type(part) for part in loaded.parts] == [Part, Part]
    assert [part.number for part in loaded.parts] == [6, 7] and loaded.parts[1].y.tolist() == [7.0, 8.0, 9.0]


def test_what_cannot_be_saved_is_refused():
    state = make()
    state.numbers = [lambda: None]
    with pytest.raises(TypeError, match="cannot hold a function"):
        save_fields(state)
    with pytest.raises(ValueError, match="fields"):
        load_fields(make(), {"x": torch.zeros(3)}, CPU)


def test_the_first_difference_is_named():
    check_match({"a": 1, "b": None}, {"a": 1})
    with pytest.raises(ValueError, match="the state has b 2, this optimizer has None"):
        check_match({"a": 1, "b": 2}, {"a": 1})
    with pytest.raises(ValueError, match="the state has c None, this optimizer has 3"):
        check_match({"a": 1}, {"a": 1, "c": 3})
