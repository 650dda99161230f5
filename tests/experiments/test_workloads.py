"""Loaders refuse what they do not expect, victims are the same every time, metrics are scikit-learn's."""

import pickle

import numpy as np
import pytest
import torch

from experiments.workloads import images as loaders
from experiments.workloads.attack import Attack, chosen, fooled, margin
from experiments.workloads.cache import cached
from experiments.workloads.data import DataError
from experiments.workloads.images import cifar10, digits, load_images, mnist, read_idx
from experiments.workloads.victims import Training, predict, shapes, trained_victim
from tests.experiments.mnist import idx, write_mnist

SMALL = Training(channels=(2, 3), hidden=4, epochs=1)


@pytest.fixture
def mnist_folder(tmp_path):
    return write_mnist(tmp_path)


@pytest.fixture
def cifar_folder(tmp_path):
    generator = np.random.default_rng(0)
    folder = tmp_path / loaders.CIFAR_FOLDER
    folder.mkdir()
    for name in sum(loaders.CIFAR_FILES.values(), ()):
        batch = {b"data": generator.integers(256, size=(3, 3072), dtype=np.uint8), b"labels": [0, 9, 4]}
        (folder / name).write_bytes(pickle.dumps(batch, protocol=2))
    return tmp_path


def test_mnist_is_read_from_its_idx_files(mnist_folder):
    found = mnist(mnist_folder)
    assert found.train.shape == (6, 1, 28, 28) and found.test.shape == (4, 1, 28, 28) and found.shape == (1, 28, 28)
    raw = read_idx(mnist_folder / "t10k-images-idx3-ubyte")
    assert torch.equal((found.test[:, 0] * 255).round().to(torch.uint8), torch.from_numpy(raw))
    assert found.train_labels.dtype == torch.int64 and int(found.train_labels.max()) <= 9


def test_cifar_is_read_from_its_batches_channels_first(cifar_folder):
    found = cifar10(cifar_folder)
    assert found.train.shape == (15, 3, 32, 32) and found.test_labels.tolist() == [0, 9, 4]
    batch = pickle.loads((cifar_folder / loaders.CIFAR_FOLDER / "test_batch").read_bytes())
    assert float(found.test[1, 2, 5, 7]) == pytest.approx(batch[b"data"][1, 2 * 1024 + 5 * 32 + 7] / 255.0)


def _missing(folder):
    (folder / "train-images-idx3-ubyte").unlink()


def _truncated(folder):
    path = folder / "train-images-idx3-ubyte"
    path.write_bytes(path.read_bytes()[:-5])


def _other(folder):
    (folder / "t10k-images-idx3-ubyte").write_bytes(b"PNG not idx")


def _swapped(folder):
    (folder / "train-images-idx3-ubyte").write_bytes(idx(np.zeros(6, dtype=np.uint8)))


def _not_gzip(folder):
    (folder / "train-labels-idx1-ubyte.gz").write_bytes(b"plain")


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (_missing, "neither"),
        (_truncated, "must have an array of shape .* bytes"),
        (_other, "not an IDX file"),
        (_swapped, "must hold n images"),
        (_not_gzip, "cannot be read"),
    ],
)
def test_a_folder_that_is_not_mnist_is_refused(mnist_folder, spoil, message):
    spoil(mnist_folder)
    with pytest.raises(DataError, match=message):
        mnist(mnist_folder)


def test_other_folders_and_names_are_refused(tmp_path):
    with pytest.raises(DataError, match="not a folder"):
        load_images("mnist", str(tmp_path))
    with pytest.raises(DataError, match="missing"):
        load_images("cifar10", str(tmp_path))
    with pytest.raises(ValueError, match="choose from"):
        load_images("imagenet")


class _Payload:
    def __reduce__(self):
        return print, ("this ran",)


@pytest.mark.parametrize("content", [b"text", pickle.dumps({b"data": 1}), pickle.dumps(_Payload())])
def test_a_file_that_is_no_batch_is_refused_and_runs_nothing(cifar_folder, content, capsys):
    (cifar_folder / loaders.CIFAR_FOLDER / "data_batch_3").write_bytes(content)
    with pytest.raises(DataError, match="not a batch"):
        cifar10(cifar_folder)
    assert "this ran" not in capsys.readouterr().out


def test_the_stand_in_is_named_and_the_data_are_not():
    assert digits(8).train.shape == (1437, 1, 8, 8) and digits(28).test.shape == (360, 1, 28, 28)
    assert float(digits(28).train.min()) >= 0.0 and float(digits(28).train.max()) <= 1.0
    assert loaders.stand_in(("mnist",), "data", 8) == ""
    assert "digits" in loaders.stand_in(("mnist", "cifar10"), "", 8)


def test_victims_are_functions_of_their_seed_and_touch_no_global_generator(tmp_path):
    state = torch.get_rng_state()
    first, again, other = (trained_victim(digits(8), SMALL, seed) for seed in (0, 0, 1))
    assert torch.equal(torch.get_rng_state(), state)
    kept = [trained_victim(digits(8), SMALL, 0, cache=str(tmp_path)) for _ in range(2)]
    assert len(list(tmp_path.iterdir())) == 1
    for found in (again, *kept):
        assert all(torch.equal(a, b) for a, b in zip(first.parameters, found.parameters, strict=True))
    assert not torch.equal(first.parameters[0], other.parameters[0])
    assert [tuple(p.shape) for p in first.parameters] == list(shapes((1, 8, 8), SMALL))


def test_a_victim_learns_the_classes_it_is_shown():
    training, task = Training(channels=(4, 8), hidden=16, epochs=5, rate=5e-3), digits(8)
    some = trained_victim(task, training, 0, classes=(1, 7))
    assert set(predict(some, task.test).tolist()) <= {1, 7}
    of_them = torch.isin(task.test_labels, torch.tensor([1, 7]))
    assert float((predict(some, task.test[of_them]) == task.test_labels[of_them]).double().mean()) > 0.9


def test_a_spoilt_cache_is_made_again(tmp_path):
    assert cached(str(tmp_path), "a b", lambda: 3) == 3
    (path,) = tmp_path.iterdir()
    path.write_bytes(b"cut")
    assert cached(str(tmp_path), "a b", lambda: 4) == 4 == cached(str(tmp_path), "a b", lambda: 5)


def test_margins_say_what_is_recognized():
    task, victim = digits(8), trained_victim(digits(8), SMALL, 0)
    attack = Attack(victim, task.test[3].double(), int(task.test_labels[3]), 0.2)
    deltas = 0.2 * (2 * torch.rand(50, 64, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) - 1)
    perturbed = attack.perturbed(deltas)
    assert float((perturbed - attack.image).abs().max()) <= 0.2
    assert float(perturbed.min()) >= 0.0 and float(perturbed.max()) <= 1.0
    wrong = predict(victim, perturbed) != attack.label
    assert torch.equal(attack(deltas) <= 0, wrong)
    logs = attack.logits(deltas).log_softmax(-1)
    best = torch.cat([logs[:, : attack.label], logs[:, attack.label + 1 :]], dim=1).amax(1)
    torch.testing.assert_close(margin(attack.logits(deltas), attack.label), logs[:, attack.label] - best)
    assert float(attack(deltas[0])) == pytest.approx(float(attack(deltas)[0]))


def test_victims_together_are_fooled_by_their_mean_probability():
    task = digits(8)
    image, label = task.test[3].double(), int(task.test_labels[3])
    victims = [trained_victim(task, SMALL, seed) for seed in (0, 1, 2)]
    attacks = [Attack(v, image, label, 0.2, smooth=True) for v in victims]
    for seed in range(5):
        delta = 0.2 * torch.randn(64, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)).sign()
        mean = torch.stack([attack.logits(delta)[0].softmax(-1) for attack in attacks]).mean(0)
        assert fooled(attacks, delta) == (int(mean.argmax()) != label)
        assert all(float(attack(delta)) > 0 for attack in attacks)


def test_chosen_images_are_recognized_and_differ_by_seed():
    task, recognized = digits(8), torch.arange(360) % 3 == 0
    first, again, other = (chosen(task, recognized, 5, seed) for seed in (0, 0, 1))
    assert all(torch.equal(a[0], b[0]) for a, b in zip(first, again, strict=True))
    assert any(not torch.equal(a[0], b[0]) for a, b in zip(first, other, strict=True))
    with pytest.raises(ValueError, match="recognized test images"):
        chosen(task, recognized, 121, 0)
