"""Compact files of the papers' data are read like the originals, and downloads go to the same place."""

import gzip
import json
import sys
import types
from pathlib import Path

import numpy as np
import pytest
import torch

from experiments.workloads import data, llm
from experiments.workloads.covertype import covertype, load_points
from experiments.workloads.data import DataError, fetch, folder_of
from experiments.workloads.images import cifar10, load_images, mnist
from experiments.workloads.victims import predict, supplied
from tests.experiments.mnist import write_mnist

REAL = Path(__file__).parents[2] / "../shared/data"
needs_real = pytest.mark.skipif(not REAL.is_dir(), reason="the papers' data are not here")


def test_mnist_is_found_where_torchvision_stores_it(tmp_path):
    write_mnist(tmp_path / "flat")
    (tmp_path / "mnist" / "MNIST").mkdir(parents=True)
    write_mnist(tmp_path / "mnist" / "MNIST" / "raw")
    assert torch.equal(load_images("mnist", str(tmp_path)).test, mnist(tmp_path / "flat").test)


def test_compact_cifar_has_the_channels_last(tmp_path):
    pixels = np.random.default_rng(0).integers(256, size=(3, 32, 32, 3), dtype=np.uint8)
    for split in ("train_some", "test_first3"):
        np.savez(tmp_path / f"{split}.npz", X=pixels, y=np.array([3, 8, 0], dtype=np.uint8))
    found = cifar10(tmp_path)
    assert found.test.shape == (3, 3, 32, 32) and found.train_labels.tolist() == [3, 8, 0]
    assert float(found.test[1, 2, 5, 7]) == pytest.approx(pixels[1, 5, 7, 2] / 255.0)


def test_compact_covertype_keeps_each_row_once(tmp_path):
    rows = np.random.default_rng(0).integers(9, size=(6, 54), dtype=np.int16)
    folder = tmp_path / "covtype"
    folder.mkdir()
    np.savez(folder / "natural_4.npz", X=rows[:4], y=np.array([1, 2, 7, 2], dtype=np.uint8))
    np.savez(folder / "balanced_3.npz", X=rows[3:], y=np.array([2, 5, 6], dtype=np.uint8))
    assert load_points(str(tmp_path)).labels.tolist() == [0, 1, 6, 1]
    pooled = load_points(str(tmp_path), every_class=True)
    assert pooled.labels.tolist() == [0, 1, 6, 1, 4, 5]
    own = rows.astype(float)
    scale = np.where(own.std(0) > 0, own.std(0), 1.0)
    assert torch.allclose(pooled.inputs, torch.from_numpy((own - own.mean(0)) / scale))


@pytest.mark.parametrize("arrays", [{"X": np.zeros((2, 54))}, {"X": np.zeros((2, 54)), "y": np.zeros(3)}])
def test_a_compact_file_without_its_arrays_is_refused(tmp_path, arrays):
    np.savez(tmp_path / "natural.npz", **arrays)
    with pytest.raises(DataError, match=r"natural\.npz must"):
        covertype(tmp_path)


def test_compact_sentences_and_squad_are_rows(tmp_path):
    for task in ("sst2", "qqp", "squad"):
        (tmp_path / task).mkdir()
    for split in ("train", "dev"):
        with gzip.open(tmp_path / "sst2" / f"{split}.tsv.gz", "wt") as file:
            file.write(f'sentence\tlabel\na "{split} film\t1\n')
    with gzip.open(tmp_path / "qqp" / "train_sample.tsv.gz", "wt") as file:
        file.write("question1\tquestion2\tis_duplicate\nwhy ?\thow ?\t0\n")
    asked = {"question": "who ?", "answers": [{"text": "ann", "answer_start": 0}]}
    squad = {"data": [{"title": "t", "paragraphs": [{"context": "ann sat", "qas": [asked]}]}]}
    (tmp_path / "squad" / "dev_sample.json.gz").write_bytes(gzip.compress(json.dumps(squad).encode()))
    assert llm.load_task(tmp_path / "sst2", "validation") == [{"sentence": 'a "dev film', "label": 1}]
    assert llm.load_task(tmp_path / "qqp", "train")[0]["label"] == 0
    (row,) = llm.load_task(tmp_path / "squad", "validation")
    assert row == {"title": "t", "context": "ann sat", "question": "who ?", "answers": {"text": ["ann"]}}
    (tmp_path / "sst2" / "train.tsv.gz").write_bytes(b"plain")
    with pytest.raises(DataError, match="cannot be read"):
        llm.load_task(tmp_path / "sst2", "train")


def test_downloads_go_where_the_loaders_look(tmp_path, monkeypatch):
    fetched = []
    datasets = types.ModuleType("torchvision.datasets")
    datasets.MNIST = datasets.CIFAR10 = lambda root, download: fetched.append((root, download))
    torchvision = types.ModuleType("torchvision")
    torchvision.datasets = datasets
    monkeypatch.setitem(sys.modules, "torchvision", torchvision)
    monkeypatch.setitem(sys.modules, "torchvision.datasets", datasets)
    assert fetch("mnist", tmp_path) == tmp_path / "mnist" and fetched == [(tmp_path / "mnist", True)]
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(DataError, match="sst2 cannot be downloaded"):
        fetch("sst2", tmp_path)


class Block(torch.nn.Module):
    """A residual block of He et al. (2016) with a shortcut of option A."""

    def __init__(self, inputs, outputs):
        super().__init__()
        self.stride = 2 if inputs != outputs else 1
        self.conv1 = torch.nn.Conv2d(inputs, outputs, 3, self.stride, 1, bias=False)
        self.conv2 = torch.nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn1, self.bn2 = torch.nn.BatchNorm2d(outputs), torch.nn.BatchNorm2d(outputs)

    def forward(self, x):
        inner = self.bn2(self.conv2(self.bn1(self.conv1(x)).relu()))
        short, missing = x[:, :, :: self.stride, :: self.stride], inner.shape[1] - x.shape[1]
        zeros = torch.zeros(len(x), missing // 2, *short.shape[2:])
        return (inner + torch.cat([zeros, short, zeros], 1)).relu()


@pytest.fixture
def seeded():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield


@pytest.mark.usefixtures("seeded")
def test_a_supplied_resnet_is_torchs(tmp_path):
    net = torch.nn.Module()
    net.conv1, net.bn1 = torch.nn.Conv2d(3, 16, 3, 1, 1, bias=False), torch.nn.BatchNorm2d(16)
    widths = [(16, 16), (16, 32), (32, 64)]
    for i, (inputs, outputs) in enumerate(widths):
        setattr(net, f"layer{i + 1}", torch.nn.Sequential(Block(inputs, outputs), Block(outputs, outputs)))
    net.linear = torch.nn.Linear(64, 10)
    for module in net.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.running_mean.normal_()
            module.running_var.uniform_(0.5, 2.0)
    state = {f"module.{name}": value for name, value in net.state_dict().items()}
    torch.save({"state_dict": state}, tmp_path / "resnet20-x.th")
    pixels, mean, deviation = torch.rand(2, 3, 32, 32), [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
    x = (pixels - torch.tensor(mean).view(3, 1, 1)) / torch.tensor(deviation).view(3, 1, 1)
    with torch.no_grad():
        x = net.eval().bn1(net.conv1(x)).relu()
        expected = net.linear(net.layer3(net.layer2(net.layer1(x))).mean((2, 3)))
        assert torch.allclose(supplied(tmp_path).logits(pixels.double()).float(), expected, rtol=1e-4, atol=1e-4)
    (tmp_path / "resnet20-x.th").write_bytes(b"text")
    with pytest.raises(DataError, match="no network"):
        supplied(tmp_path)
    assert supplied(tmp_path / "nothing") is None


@needs_real
@pytest.mark.parametrize(("name", "least"), [("mnist", 0.97), pytest.param("cifar10", 0.88, marks=pytest.mark.slow)])
def test_the_supplied_networks_are_as_accurate_as_published(name, least):
    images = load_images(name, str(REAL))
    found = predict(supplied(REAL / name), images.test[:100])
    assert float((found == images.test_labels[:100]).double().mean()) >= least


@needs_real
def test_the_real_files_hold_what_is_known_of_them():
    assert all(folder_of(REAL, name).is_dir() for name in data.NAMES)
    images = load_images("cifar10", str(REAL))
    assert len(images.test) == 1000 and images.test_labels[:10].tolist() == [3, 8, 8, 0, 6, 6, 1, 6, 3, 1]
    assert torch.bincount(load_images("mnist", str(REAL)).test_labels).tolist() == [
        *(980, 1135, 1032, 1010, 982),
        *(892, 958, 1028, 974, 1009),
    ]
    assert torch.bincount(load_points(str(REAL)).labels).tolist() == [9104, 12022, 1503, 107, 393, 786, 829]
    assert sum(row["label"] for row in llm.load_task(REAL / "sst2", "validation")) == 444
    assert len(llm.load_task(REAL / "squad", "train")) == 4373
    assert sum(row["label"] for row in llm.load_task(REAL / "qqp", "validation")) == 377
