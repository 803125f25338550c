"""image_folder: real image files of every kind, arranged in every way, and torchvision's models on them."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path
from typing import Any, ClassVar

import numpy
import pytest
import torch
from PIL import Image
from torch import nn
from torchvision import models

from tests.trainable.tasks.formats import write_images
from tests.trainable.toys import start, train
from trainable.contract import TaskContract
from trainable.task import load_task
from trainable.tasks.image_folder import ImageFolder
from trainable.vision.backbone import all_but_head, backbone, head_of
from trainable.vision.images import pixels_of

SIZE = 32


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return write_images(tmp_path / "pictures")


def task_of(root: Path, **settings: Any) -> ImageFolder:
    return ImageFolder(root=root, size=SIZE, **settings)


class TestImageFolder(TaskContract):
    config: ClassVar[dict[str, Any]] = {"lr": 1e-3, "batch_size": 8}

    @pytest.fixture(autouse=True, scope="class")
    @classmethod
    def _task(cls, tmp_path_factory: pytest.TempPathFactory) -> None:
        cls.task = task_of(write_images(tmp_path_factory.mktemp("pictures")), arch="squeezenet1_1", flip=False)


def test_a_folder_is_split_by_the_seed_and_stratified(root: Path) -> None:
    task = task_of(root)
    splits, test = task.splits(0), task.test(0)
    parts = {"train": splits.train, "val": splits.val, "test": test}
    files = [path for part in parts.values() for path in part.files]
    assert sorted(files) == sorted(path for path in root.rglob("*.*") if path.is_file())  # each in one part, once
    for name, part in parts.items():
        assert {part.labels.count(label) for label in (0, 1, 2)} == {{"train": 8, "val": 2, "test": 2}[name]}
        assert all(path.parent.name == f"digit{label}" for path, label in zip(part.files, part.labels, strict=True))
    assert task.splits(1).fingerprint() != splits.fingerprint() == task_of(root).splits(0).fingerprint()


def test_a_copy_elsewhere_is_the_same_source_and_a_changed_file_another(root: Path, tmp_path: Path) -> None:
    before = task_of(root).splits(0).fingerprint()
    copied = tmp_path / "copied"
    shutil.copytree(root, copied)
    assert task_of(copied).splits(0).fingerprint() == before
    Image.new("L", (50, 50), 99).save(task_of(copied).splits(0).train.files[0])
    assert task_of(copied).splits(0).fingerprint() != before


@pytest.mark.parametrize("val_name", ["val", "valid", "validation"])
def test_parts_that_are_arranged_are_respected(tmp_path: Path, val_name: str) -> None:
    write_images(tmp_path / "train", 6)
    write_images(tmp_path / val_name, 3)
    task = task_of(tmp_path)
    splits = task.splits(0)
    assert {path.parts[-3] for path in splits.train.files} == {"train"}
    assert {path.parts[-3] for path in splits.val.files} == {val_name}
    assert (len(splits.train), len(splits.val)) == (18, 9)
    assert sorted(splits.indices["train"] + splits.indices["val"]) == list(range(27))
    with pytest.raises(NotImplementedError, match="has no test part"):
        task.test(0)


def test_train_and_test_alone_take_val_from_train(tmp_path: Path) -> None:
    write_images(tmp_path / "train", 10)
    write_images(tmp_path / "test", 2)
    (tmp_path / "test/digit0/bad.png").write_bytes(b"no image")  # the test part is not even looked into
    task = task_of(tmp_path, val_share=0.2)
    splits = task.splits(0)
    assert (len(splits.train), len(splits.val)) == (24, 6)
    assert not set(splits.train.files) & set(splits.val.files)
    with pytest.raises(ValueError, match=r"1 of 7 images in .*test cannot be read: test/digit0/bad.png"):
        task.test(0)


WHITE, BLACK = [255, 255, 255], [0, 0, 0]


@pytest.mark.parametrize(
    ("image", "suffix", "colour"),
    [
        (Image.new("RGB", (9, 9), (200, 100, 50)), "png", [200, 100, 50]),
        (Image.new("L", (9, 9), 77), "png", [77, 77, 77]),
        (Image.new("1", (9, 9), 1), "png", WHITE),
        (Image.new("RGBA", (9, 9), (255, 0, 0, 255)), "png", [255, 0, 0]),
        (Image.new("RGBA", (9, 9), (255, 0, 0, 0)), "png", WHITE),
        (Image.new("LA", (9, 9), (0, 255)), "png", BLACK),
        (Image.new("RGB", (9, 9), (0, 0, 255)).convert("P"), "png", [0, 0, 255]),
        (Image.fromarray(numpy.full((9, 9), 40000, numpy.uint16)), "png", [156, 156, 156]),  # 40000 / 256
        (Image.new("CMYK", (9, 9), (0, 0, 0, 0)), "jpg", WHITE),
        (Image.new("RGB", (9, 9), (10, 20, 30)), "webp", [10, 20, 30]),
        (Image.new("RGB", (9, 9), (10, 20, 30)), "bmp", [10, 20, 30]),
    ],
    ids=lambda value: getattr(value, "mode", value) if not isinstance(value, list) else "",
)
def test_every_kind_of_image_is_made_rgb(image: Image.Image, suffix: str, colour: list[int], tmp_path: Path) -> None:
    path = tmp_path / f"image.{suffix}"
    image.save(path, **({"lossless": True} if suffix == "webp" else {}))
    pixels = pixels_of(path, 4)
    assert pixels.dtype == torch.uint8
    assert pixels.shape == (3, 4, 4)
    for channel, value in enumerate(colour):
        assert (pixels[channel].int() - value).abs().max() <= 1


def test_a_palette_with_a_transparent_colour_and_a_rotated_photograph(tmp_path: Path) -> None:
    palette = Image.new("P", (8, 8), 0)
    palette.putpalette([255, 0, 0, 0, 255, 0])
    palette.save(tmp_path / "palette.png", transparency=0)
    assert pixels_of(tmp_path / "palette.png", 2).unique().tolist() == [255]
    photograph = Image.new("RGB", (16, 16), "black")
    photograph.paste("white", (0, 0, 16, 8))  # bright above
    exif = Image.Exif()
    exif[0x0112] = 3  # the camera was held upside down
    photograph.save(tmp_path / "photograph.jpg", exif=exif, quality=95)
    pixels = pixels_of(tmp_path / "photograph.jpg", 16).float()
    assert pixels[:, :6].mean() < 20
    assert pixels[:, 10:].mean() > 235


def test_the_middle_of_the_image_fills_the_square(tmp_path: Path) -> None:
    wide = Image.new("RGB", (300, 100), "red")
    wide.paste("lime", (100, 0, 200, 100))
    wide.save(tmp_path / "wide.png")
    pixels = pixels_of(tmp_path / "wide.png", 10)
    assert pixels[1, :, 1:-1].float().mean() > 250  # the middle third, and next to nothing of what is beside it
    assert pixels[0, :, 1:-1].float().mean() < 5


def test_an_unreadable_image_is_named_or_skipped(root: Path) -> None:
    (root / "digit1/3.jpg").write_bytes(b"\xff\xd8 no more than a beginning")
    (root / "digit2/0.png").write_bytes(b"")
    with pytest.raises(ValueError, match=r"2 of 36 images in .* cannot be read: digit1/3.jpg, digit2/0.png; .*skip"):
        task_of(root).splits(0)
    with pytest.warns(UserWarning, match=r"2 of 36 images cannot be read and are left out: digit1/3.jpg"):
        splits = task_of(root, on_unreadable="skip", test_share=0.0).splits(0)
    files = [*splits.train.files, *splits.val.files]
    assert len(files) == 34
    assert not {root / "digit1/3.jpg", root / "digit2/0.png"} & set(files)


def test_an_image_that_breaks_off_counts_for_nothing_or_is_named(root: Path) -> None:
    """Its header is good, so only decoding shows it."""
    path = root / "digit0/1.jpg"
    path.write_bytes(path.read_bytes()[:-200])
    refusing, skipping = (
        task_of(root, val_share=0.1, test_share=0.0, on_unreadable=wish) for wish in ("refuse", "skip")
    )
    splits = refusing.splits(0)
    part = splits.train if path in splits.train.files else splits.val
    position = list(part.files).index(path)
    with pytest.raises(ValueError, match=r"digit0/1.jpg cannot be read .*task.on_unreadable=skip"):
        part[position]
    splits = skipping.splits(0)
    part = splits.train if path in splits.train.files else splits.val
    others = [part[index] for index in range(len(part)) if index != position][:4]
    good = tuple(torch.stack(column) for column in zip(*others, strict=True))
    both = tuple(torch.cat([column, extra[None]]) for column, extra in zip(good, part[position], strict=True))
    outputs = torch.randn(5, 3, generator=torch.Generator().manual_seed(0))
    assert skipping.weight(both) == skipping.weight(good) == 4
    assert torch.equal(skipping.loss(outputs, both), skipping.loss(outputs[:4], good))
    assert torch.equal(skipping.metrics(outputs, both)["accuracy"], skipping.metrics(outputs[:4], good)["accuracy"])


def bad_folder(kind: str, folder: Path) -> Path:
    if kind == "nowhere":
        return folder / "nowhere"
    if kind == "loose":
        write_images(folder)
        return folder / "digit0"
    if kind == "one":
        return write_images(folder, classes=(1,))
    if kind == "empty class":
        write_images(folder)
        (folder / "digit7").mkdir()
        (folder / "digit7/notes.txt").write_text("none yet")
        return folder
    if kind == "unknown class":
        write_images(folder / "train")
        return write_images(folder / "val", 1, classes=(0, 5)).parent
    if kind == "few":
        return write_images(folder, 1)
    (folder / "empty").mkdir()
    return folder / "empty"


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("nowhere", "there is no folder .*nowhere; set task.root"),
        ("empty", "holds no class folders; arrange the images as empty/<class>/<image>"),
        ("loose", "holds no class folders, and 12 images in none"),
        ("one", "holds only one class folder, 'digit1'"),
        ("empty class", "has class folders without images: digit7; fill or remove them"),
        ("unknown class", "val has classes that train/ has not: digit5"),
        ("few", "too few images: none is left for val"),
    ],
)
def test_a_folder_that_cannot_be_learned_from(kind: str, words: str, tmp_path: Path) -> None:
    task = task_of(bad_folder(kind, tmp_path))
    with pytest.raises(ValueError, match=words):
        task.splits(0)


def test_an_unknown_model_and_a_size_it_cannot_take(root: Path) -> None:
    with pytest.raises(ValueError, match=r"unknown task.arch 'resnet19'; did you mean resnet18"):
        task_of(root, arch="resnet19").model()
    with pytest.raises(ValueError, match=r"task.arch=vit_b_32 cannot take images of task.size=33 pixels"):
        ImageFolder(root=root, arch="vit_b_32", size=33).model()
    with pytest.raises(ValueError, match="must be one of refuse, skip"):
        load_task("image_folder", {"root": str(root), "on_unreadable": "delete"})


@pytest.mark.parametrize(
    ("arch", "head"),
    [
        ("resnet18", "fc"),
        ("vgg11", "classifier.6"),
        ("densenet121", "classifier"),
        ("squeezenet1_1", "classifier.1"),
        ("mobilenet_v3_small", "classifier.3"),
        ("vit_b_32", "heads.head"),
        ("googlenet", "fc"),
        ("regnet_x_400mf", "fc"),
    ],
)
def test_the_head_is_the_layer_that_gives_the_classes(arch: str, head: str) -> None:
    with torch.device("cpu" if arch.startswith("regnet") else "meta"):
        model = backbone(arch, 7, 224, pretrained=False)
    assert head_of(model) == head
    layer = model.get_submodule(head)
    assert 7 in (getattr(layer, "out_features", None), getattr(layer, "out_channels", None))
    frozen = all_but_head(arch, 7, 224)
    names = [name for name, _ in model.named_parameters()]
    left = {name for name in names if not any(name == one or name.startswith(f"{one}.") for one in frozen)}
    assert left == {name for name in names if name.startswith(f"{head}.")}


@pytest.fixture
def published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, torch.Tensor]:
    """Weights of a resnet18 with 1,000 classes, at a place of their own, named by their hash as torchvision's are."""
    torch.manual_seed(5)
    weights = models.get_model("resnet18").state_dict()
    made = tmp_path / "made.pth"
    torch.save(weights, made)
    path = made.rename(tmp_path / f"resnet18-{hashlib.sha256(made.read_bytes()).hexdigest()[:8]}.pth")
    monkeypatch.setattr(models.ResNet18_Weights.DEFAULT.value, "url", path.as_uri())
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "cache"))
    return weights


def test_pretrained_weights_are_all_but_the_head(
    root: Path, published: dict[str, torch.Tensor], tmp_path: Path
) -> None:
    torch.manual_seed(0)
    found = task_of(root, pretrained=True).model().get_submodule("network").state_dict()
    for name, tensor in found.items():
        if not name.startswith("fc."):
            assert torch.equal(tensor, published[name]), name
    assert found["fc.weight"].shape == (3, 512)
    (cached,) = (tmp_path / "cache/hub/checkpoints").iterdir()
    content = cached.read_bytes()
    cached.write_bytes(content[:5000] + bytes([content[5000] ^ 1]) + content[5001:])
    with pytest.raises(ValueError, match=r"the pretrained weights in .* are damaged: remove them and put file:"):
        task_of(root, pretrained=True).model()


def test_pretrained_weights_that_are_not_to_be_had(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(models.ResNet18_Weights.DEFAULT.value, "url", (tmp_path / "gone-12345678.pth").as_uri())
    with pytest.raises(ValueError, match=r"resnet18 are not in .*cache/hub/checkpoints/gone-12345678.pth: put file:"):
        task_of(root, pretrained=True).model()


@pytest.mark.usefixtures("published")
def test_a_frozen_backbone_stays_and_the_head_learns(root: Path) -> None:
    task = task_of(root, pretrained=True, freeze_backbone=True)
    run = start(task, lr=0.1, batch_size=8)
    before = {name: tensor.clone() for name, tensor in run.state.model.state_dict().items()}
    run.close()
    run, _ = train(task, lr=0.1, batch_size=8, epochs=2)
    moved = {name for name, tensor in run.state.model.state_dict().items() if not torch.equal(tensor, before[name])}
    assert moved == {"network.fc.weight", "network.fc.bias"}
    norms = [module for module in run.state.model.modules() if isinstance(module, nn.BatchNorm2d)]
    assert norms
    assert not any(module.training for module in norms)


def test_random_features_are_warned_of(root: Path) -> None:
    with pytest.warns(UserWarning, match="freeze_backbone without pretrained"):
        task_of(root, freeze_backbone=True).model()


@pytest.mark.slow
def test_workers_change_nothing(root: Path) -> None:
    task = task_of(root, arch="squeezenet1_1")
    alone, _ = train(task, lr=1e-3, batch_size=8, epochs=2)
    helped, _ = train(task, lr=1e-3, batch_size=8, epochs=2, num_workers=2)
    assert alone.state.weights_sha256() == helped.state.weights_sha256()
