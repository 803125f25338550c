"""mnist, fashion_mnist and cifar10: the real readers on small files of the real format, whole, damaged and absent."""

from __future__ import annotations

import functools
import gzip
import http.server
import itertools
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torchvision import datasets

from tests.trainable.tasks.formats import NUM_TEST, NUM_TRAIN, digits, md5_of, official
from tests.trainable.toys import train
from trainable.contract import TaskContract
from trainable.task import load_task
from trainable.tasks.cifar10 import Cifar10
from trainable.tasks.fashion_mnist import FashionMnist
from trainable.tasks.mnist import Mnist
from trainable.vision.moves import flipped, shifted
from trainable.vision.network import Pixels

CLASSES = {"mnist": Mnist, "fashion_mnist": FashionMnist, "cifar10": Cifar10}


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Any attempt at a connection is the test's failure, also where the machine has one."""

    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("the network was touched")

    monkeypatch.setattr("urllib.request.urlopen", refuse)


@pytest.fixture
def no_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine is offline."""

    def fail(*_: Any, **__: Any) -> None:
        raise OSError("Name or service not known")

    monkeypatch.setattr("urllib.request.urlopen", fail)


@pytest.mark.parametrize("name", CLASSES)
@pytest.mark.usefixtures("no_network")
def test_the_samples_are_those_of_the_files(name: str, tmp_path: Path) -> None:
    side = 32 if name == "cifar10" else 28
    images, labels = (torch.from_numpy(array) for array in digits(side))
    with official(CLASSES[name].name, tmp_path):
        task = load_task(name, {"root": str(tmp_path), "download": False})
        splits, test = task.splits(0), task.test(0)
    for part in ("train", "val"):
        rows = splits.indices[part]
        pixels, classes = getattr(splits, part)
        assert pixels.dtype == torch.uint8
        assert pixels.shape[2:] == (side, side)
        assert torch.equal(pixels[:, -1], images[rows])
        assert torch.equal(classes, labels[rows])
    assert sorted(splits.indices["train"] + splits.indices["val"]) == list(range(NUM_TRAIN))
    assert len(splits.indices["val"]) == pytest.approx(0.1 * NUM_TRAIN, abs=5)
    assert torch.equal(test[0][:, 0], images[NUM_TRAIN:])
    assert len(test[1]) == NUM_TEST


class SmallImagesContract(TaskContract):
    """On a small set in the real format."""

    kind: Any

    @pytest.fixture(autouse=True, scope="class")
    @classmethod
    def _task(cls, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
        with official(cls.kind.name, tmp_path_factory.mktemp("set")) as root:
            cls.task = cls.kind(root=root, width=8)
            yield


class TestMnist(SmallImagesContract):
    kind = Mnist


class TestFashionMnist(SmallImagesContract):
    kind = FashionMnist


class TestCifar10(SmallImagesContract):
    kind = Cifar10


def test_mnist_learns(tmp_path: Path) -> None:
    with official("MNIST", tmp_path):
        _, reports = train(Mnist(root=tmp_path, width=16), lr=1e-2, optimizer="adamw", epochs=10)
    assert reports[-1].metrics["val_accuracy"] > 0.8  # chance is 0.1


@pytest.mark.usefixtures("no_network")
def test_without_files_and_download_the_error_says_what_to_put_where(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="MNIST is not whole in") as caught:
        Mnist(root=tmp_path, download=False).splits(0)
    for name, md5 in datasets.MNIST.resources:  # the official ones
        assert f"MNIST/raw/{name} (md5 {md5})" in str(caught.value)
    assert "task.download=true" in str(caught.value)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ValueError, match=r"put there cifar-10-python.tar.gz \(md5 c58f30108f718f92721af3b95e74349a\)"):
        Cifar10(root=tmp_path, download=False).splits(0)


@pytest.mark.usefixtures("no_server")
def test_offline_the_error_says_so_and_what_to_put_where(tmp_path: Path) -> None:
    wanted = {FashionMnist: "FashionMNIST/raw/t10k-labels-idx1-ubyte.gz", Cifar10: "cifar-10-python.tar.gz"}
    for kind, file in wanted.items():
        with pytest.raises(ValueError, match=r"fetching failed: .*Name or service not known") as caught:
            kind(root=tmp_path).splits(0)
        assert file in str(caught.value)


@pytest.mark.usefixtures("no_network")
def test_a_damaged_archive_is_named(tmp_path: Path) -> None:
    with official("MNIST", tmp_path):
        path = tmp_path / "MNIST/raw/train-labels-idx1-ubyte.gz"
        path.write_bytes(path.read_bytes()[:-20])
        with pytest.raises(ValueError, match=r"train-labels-idx1-ubyte.gz .*the one there is damaged") as caught:
            Mnist(root=tmp_path, download=False).splits(0)
    assert "t10k" not in str(caught.value)


@pytest.mark.usefixtures("no_network")
def test_what_was_unpacked_in_part_is_unpacked_again(tmp_path: Path) -> None:
    """A process that was killed while it unpacked leaves a file that torchvision takes for a good one."""
    with official("MNIST", tmp_path):
        task = Mnist(root=tmp_path)
        whole = task.splits(0).fingerprint()
        path = tmp_path / "MNIST/raw/train-images-idx3-ubyte"
        content = path.read_bytes()
        for damage in (content[:1000], content[:500] + bytes([content[500] ^ 1]) + content[501:], b""):
            path.write_bytes(damage)
            assert task.splits(0).fingerprint() == whole


@pytest.mark.usefixtures("no_network")
def test_a_damaged_part_of_cifar10_is_unpacked_again(tmp_path: Path) -> None:
    with official("CIFAR10", tmp_path):
        task = Cifar10(root=tmp_path)
        whole = task.splits(0).fingerprint()
        part = tmp_path / "cifar-10-batches-py/data_batch_3"
        part.write_bytes(part.read_bytes()[:-1] + b"x")
        assert task.splits(0).fingerprint() == whole


@pytest.mark.usefixtures("no_network")
def test_files_that_are_whole_but_no_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with official("MNIST", tmp_path):
        path = tmp_path / "MNIST/raw/train-images-idx3-ubyte.gz"
        path.write_bytes(gzip.compress(b"not an idx file"))
        resources = [(name, md5_of(tmp_path / "MNIST/raw" / name)) for name, _ in datasets.MNIST.resources]
        monkeypatch.setattr(datasets.MNIST, "resources", resources)
        with pytest.raises(ValueError, match="what was unpacked from them is damaged"):
            Mnist(root=tmp_path).splits(0)


class Requests(http.server.SimpleHTTPRequestHandler):
    """Serves a folder, and counts what was fetched from it."""

    fetched: ClassVar[list[str]] = []

    def do_GET(self) -> None:
        self.fetched.append(self.path)
        super().do_GET()

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def server(tmp_path: Path) -> Iterator[str]:
    """The address of a server of tmp_path/published."""
    Requests.fetched.clear()
    handler = functools.partial(Requests, directory=str(tmp_path / "published"))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as running:
        threading.Thread(target=running.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{running.server_port}/"
        running.shutdown()


def test_a_set_is_fetched_once_by_however_many(
    server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    with official("MNIST", tmp_path / "published") as published:
        monkeypatch.setattr(datasets.MNIST, "mirrors", [f"{server}MNIST/raw/"])
        task = Mnist(root=tmp_path / "fetched")
        with ThreadPoolExecutor(4) as pool:  # as the trials of a sweep do
            fingerprints = {split.fingerprint() for split in pool.map(task.splits, [0] * 4)}
        assert fingerprints == {Mnist(root=published, download=False).splits(0).fingerprint()}
    assert set(Requests.fetched) == {f"/MNIST/raw/{name}" for name, _ in datasets.MNIST.resources}
    assert max(map(Requests.fetched.count, Requests.fetched)) <= 2  # torchvision asks once more, for redirections
    assert "100%" in capfd.readouterr().err  # torchvision's progress bar


def test_what_was_fetched_is_verified(server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with official("CIFAR10", tmp_path / "published") as published:
        monkeypatch.setattr(datasets.CIFAR10, "url", f"{server}cifar-10-python.tar.gz")
        archive = published / "cifar-10-python.tar.gz"
        good = archive.read_bytes()
        archive.write_bytes(good[:500] + bytes([good[500] ^ 1]) + good[501:])
        task = Cifar10(root=tmp_path / "fetched")
        with pytest.raises(ValueError, match=r"cifar-10-python.tar.gz .*the one there is damaged.*fetching failed"):
            task.splits(0)
        archive.write_bytes(good)  # what stands there damaged is fetched again
        assert task.splits(0).fingerprint() == Cifar10(root=published, download=False).splits(0).fingerprint()


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"val_share": 1.0}, "val_share=1.0 must be above 0 and below 1"),
        ({"depth": 5}, "depth=5 1 to 4"),
        ({"dropout": 1.0}, "dropout=1.0"),
        ({"shift": 0.7}, "shift=0.7 must be 0 to 0.5"),
    ],
)
def test_refused_settings(values: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        load_task("mnist", values)


def test_pixels_have_mean_0_and_deviation_1() -> None:
    images = torch.randint(0, 256, (64, 3, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    shares = images.float() / 255
    layer = Pixels(shares.mean((0, 2, 3)).tolist(), shares.std((0, 2, 3)).tolist())
    scaled = layer(images)
    assert scaled.mean((0, 2, 3)).tolist() == pytest.approx([0, 0, 0], abs=1e-4)
    assert scaled.std((0, 2, 3)).tolist() == pytest.approx([1, 1, 1], abs=1e-4)


@settings(max_examples=30)
@given(st.integers(0, 2**32), st.integers(1, 3), st.floats(0.0, 0.5))
def test_moves_are_moves(seed: int, num_channels: int, share: float) -> None:
    """A shifted image is the image, moved by some whole number of pixels, and black where nothing came from."""
    draw = torch.Generator().manual_seed(seed)
    images = torch.randint(1, 256, (4, num_channels, 8, 6), dtype=torch.uint8, generator=draw)
    moved = shifted(images, share, draw)
    assert moved.shape == images.shape
    reach = round(share * 8), round(share * 6)
    for before, after in zip(images, moved, strict=True):
        framed = torch.nn.functional.pad(before, (reach[1], reach[1], reach[0], reach[0]))
        corners = itertools.product(range(2 * reach[0] + 1), range(2 * reach[1] + 1))
        views = [framed[:, top : top + 8, left : left + 6] for top, left in corners]
        assert any(torch.equal(after, view) for view in views)
    for before, after in zip(images, flipped(images, draw), strict=True):
        assert torch.equal(after, before) or torch.equal(after, before.flip(-1))


def test_moves_differ_from_image_to_image() -> None:
    draw = torch.Generator().manual_seed(0)
    images = torch.arange(64, dtype=torch.uint8).reshape(1, 1, 8, 8).expand(400, 1, 8, 8)
    kept = sum(torch.equal(image, images[0]) for image in flipped(images, draw))
    assert 150 < kept < 250  # half of them
    corners = {int(image[0, 4, 4]) for image in shifted(images, 0.25, draw)}
    assert len(corners) == 25  # 2 pixels up or down, left or right: all of them turn up
