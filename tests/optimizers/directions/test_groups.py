import pytest
import torch

from optimizers import Directions, ModuleObjective
from optimizers.directions import metric
from optimizers.directions.groups import GroupDiagonal, Groups
from optimizers.directions.metric import over_root, squared_norm
from optimizers.methods.hiso.update import update

D = 700


def net():
    torch.manual_seed(0)
    layers = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Linear(3, 2, bias=False))
    layers[1].weight.requires_grad_(True)
    return layers


PARTITIONS = {
    "single": None,
    "one": 1,
    "runs": 7,
    "ranges": [range(300), slice(300, 301), range(301, D)],
    "indices": [list(range(0, D, 2)), torch.arange(1, D, 2)],
    "labels": torch.arange(D) % 5,
    "reordered": [range(10, D), range(10)],
}


@pytest.mark.parametrize("name", PARTITIONS)
def test_each_coordinate_has_the_value_of_its_group(name):
    groups = Groups(PARTITIONS[name], D)
    assert int(groups.sizes.sum()) == groups.dimension == D
    values = torch.arange(1.0, len(groups) + 1)
    whole = groups.expand(values, 0, D)
    assert torch.equal(torch.bincount(whole.long() - 1), groups.sizes)
    for low, high in ((0, 1), (5, 5), (299, 302), (100, 650), (699, 700)):
        assert torch.equal(groups.expand(values, low, high), whole[low:high])
    again = Groups(groups, D)
    assert again.fingerprint == groups.fingerprint and torch.equal(again.expand(values, 0, D), whole)
    assert groups.single == (name == "single")


def test_fingerprints_tell_partitions_apart():
    found = [Groups(given, D).fingerprint for given in PARTITIONS.values()]
    assert len(set(found)) == len(found)
    assert Groups(2, D).fingerprint == Groups([range(350), range(350, D)], D).fingerprint
    assert Groups(1, 5).fingerprint != Groups(1, 6).fingerprint


def test_a_modules_tensors_are_groups():
    module = net()
    assert Groups(module, 21).sizes.tolist() == [12, 3, 6]
    assert Groups(ModuleObjective(module, lambda m: 0.0), 21).sizes.tolist() == [12, 3, 6]
    chosen = ModuleObjective(module, lambda m: 0.0, parameters=["0.bias", "1.weight"])
    assert Groups(chosen, 9).sizes.tolist() == [3, 6]
    with pytest.raises(ValueError, match="21 coordinates in all, the point has 20"):
        Groups(module, 20)


@pytest.mark.parametrize(
    ("given", "kind", "message"),
    [
        ([range(3), range(2, 6)], ValueError, "overlap: coordinate 2"),
        ([range(3), range(4, 6)], ValueError, "do not cover 1 of 6 coordinates, the first is 3"),
        ([range(3), range(3, 7)], ValueError, "name coordinate 6"),
        ([range(6), []], ValueError, "group 1 is empty"),
        (torch.tensor([0, 0, 2, 2, 2, 2]), ValueError, "group 1 is empty"),
        (torch.zeros(5, dtype=torch.int64), ValueError, "shape"),
        (torch.zeros(6), ValueError, "integers"),
        (torch.tensor([0, 0, -1, 1, 1, 1]), ValueError, "must be at least 0"),
        (0, ValueError, "groups"),
        (7, ValueError, "at most .* got 7"),
        ("tensors", TypeError, "groups must be"),
        ([[0.5, 1.0]], TypeError, "a group must be"),
        (True, TypeError, "groups must be"),
    ],
)
def test_what_is_no_partition_is_refused(given, kind, message):
    with pytest.raises(kind, match=message):
        Groups(given, 6)


@pytest.mark.parametrize("name", PARTITIONS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_a_grouped_hessian_is_the_dense_one_bitwise(name, dtype, monkeypatch):
    groups = Groups(PARTITIONS[name], D)
    values = torch.linspace(0.3, 4.0, len(groups), dtype=dtype)
    diagonal, directions = GroupDiagonal(groups, values), Directions(3, D)
    dense = diagonal.tensor()
    runs = []
    for hessian in (diagonal, dense):
        x = torch.ones(D, dtype=dtype)
        with monkeypatch.context() as patched:
            patched.setattr(metric, "CHUNK", 100)
            update(x, directions, [(1, 0, 0.3), (1, 1, -2.0)], 0.1, hessian=hessian)
        runs.append(x)
    assert torch.equal(*runs)
    assert squared_norm(directions, 2, 1, diagonal) == squared_norm(directions, 2, 1, dense)
    u = directions.block(0, 2, dtype=dtype)
    assert torch.equal(over_root(u, diagonal), over_root(u, dense))
    loaded = GroupDiagonal.from_state_dict(diagonal.state_dict(), values.device)
    assert torch.equal(loaded.tensor(), diagonal.tensor())


def test_infinite_curvature_holds_a_coordinate():
    groups = Groups(3, 9)
    only = GroupDiagonal(groups, torch.tensor([torch.inf, 1.0, torch.inf], dtype=torch.float64))
    x = torch.linspace(-1.0, 1.0, 9, dtype=torch.float64)
    moved = x.clone()
    update(moved, Directions(0, 9, "rademacher"), [(4, 0, 0.25)], 1.0, hessian=only)
    assert (moved - x).abs().tolist() == pytest.approx([0.0] * 3 + [0.25] * 3 + [0.0] * 3)


def test_only_slices_in_steps_of_1_are_taken():
    with pytest.raises(ValueError, match="steps of 1"):
        GroupDiagonal(Groups(3, 9), torch.ones(3, dtype=torch.float64))[::2]
