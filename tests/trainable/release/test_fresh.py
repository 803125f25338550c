"""Samples that came after release: read as in training, and what is other is named."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import numpy
import pandas
import pytest
import torch
from PIL import Image

from tests.trainable.tasks.formats import write_images, write_table
from trainable.release.columns import columns_of
from trainable.release.fresh import Fresh
from trainable.task import Task
from trainable.tasks.char_lm import CharLm
from trainable.tasks.digits import Digits
from trainable.tasks.image_folder import ImageFolder
from trainable.tasks.table import Table

ONES, LABELS = numpy.ones((3, 64), numpy.float32), numpy.asarray([0, 5, 9])


def fresh(task: Task, path: Path) -> Fresh:
    """With what is kept, after a way through JSON."""
    return task.fresh(path, json.loads(json.dumps(task.preparing(0))))


def saved(folder: Path, *arrays: Any, **named: Any) -> Path:
    path = folder / "fresh.npz"
    numpy.savez(path, *arrays, **named)
    return path


def test_arrays_with_and_without_labels(tmp_path: Path) -> None:
    found = fresh(Digits(), saved(tmp_path, ONES.astype(float), LABELS.astype(numpy.uint8)))
    images, labels = found.examples
    assert found.labelled
    assert (images.dtype, labels.dtype) == (torch.float32, torch.int64)
    assert labels.tolist() == [0, 5, 9]
    alone = fresh(Digits(), saved(tmp_path, images=ONES))
    assert not alone.labelled
    assert torch.equal(alone.examples[0], images)
    assert len(alone.examples[1]) == 3  # as the model's batches have it


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ((ONES, LABELS, LABELS), "holds 3 arrays .*; give 2, one for each part of a batch in that order, or one"),
        ((ONES[:, :63], LABELS), r"arr_0 in .* has the shape \(3, 63\); in training it was \(N, 64\)"),
        ((ONES, LABELS[:, None]), r"arr_1 in .* has the shape \(3, 1\); in training it was \(N,\)"),
        ((ONES, LABELS[:2]), "differ in the number of samples: arr_0 3, arr_1 2"),
        ((ONES[:0], LABELS[:0]), "holds no samples"),
        ((numpy.full((3, 64), "a"), LABELS), "is of type <U1; in training it was float32"),
        ((ONES, LABELS + 0.5), "arr_1 in .* is of type float64; in training it was int64"),
        ((ONES, LABELS + 2), "labels that training did not: 11; known are 0 to 9"),
        ((numpy.where(ONES > 0, numpy.nan, 0), LABELS), "has 192 values that are missing or infinite"),
    ],
)
def test_other_arrays_are_named(arrays: tuple[Any, ...], words: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=words):
        fresh(Digits(), saved(tmp_path, *arrays))


def test_a_file_that_is_none_of_arrays(tmp_path: Path) -> None:
    task, path = Digits(), tmp_path / "fresh.npz"
    with pytest.raises(ValueError, match=r"is not there; this task's fresh samples are an .npz file"):
        fresh(task, path)
    with pytest.raises(ValueError, match="is a folder"):
        fresh(task, tmp_path)
    for content in (b"", b"PK\x03\x04 cut off", b"a,b\n1,2\n", pickle.dumps([1])):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=r"is no .npz file of arrays"):
            fresh(task, path)


def test_no_pickle_is_loaded(tmp_path: Path) -> None:
    """Objects in an array would run whatever code their sender likes."""
    trap = tmp_path / "trap"

    class Trap:
        def __reduce__(self) -> Any:
            return Path.touch, (trap,)

    path = saved(tmp_path, numpy.asarray([Trap()], dtype=object))
    with pytest.raises(ValueError, match="holds Python objects, which are not loaded"):
        fresh(Digits(), path)
    assert not trap.exists()


def test_a_table_needs_its_training_file_no_more(tmp_path: Path) -> None:
    task = Table(path=write_table(tmp_path, "iris"), target="target")
    frame = pandas.read_csv(task.path)
    kept = json.loads(json.dumps(task.preparing(0)))
    train = task.splits(0).train
    rows = frame.iloc[task.splits(0).indices["train"]]
    rows.to_csv(tmp_path / "fresh.csv", index=False)
    task.path.unlink()
    found = task.fresh(tmp_path / "fresh.csv", kept)
    assert found.labelled
    assert all(torch.equal(one, other) for one, other in zip(found.examples, train, strict=True))
    columns = task.features(found.examples, kept)
    for name in frame.columns[:-1]:  # in their own unit
        assert columns[name].tolist() == pytest.approx(rows[name].tolist(), rel=1e-5)
    rows.drop(columns="target").to_csv(tmp_path / "fresh.csv", index=False)
    unlabelled = task.fresh(tmp_path / "fresh.csv", kept)
    assert not unlabelled.labelled
    assert torch.equal(unlabelled.examples[0], train[0])


def mixed(folder: Path) -> tuple[Table, pandas.DataFrame]:
    frame = pandas.DataFrame(
        {
            "size": [1.0, 2.0, None, 4.0] * 10,
            "age": [float(n) for n in range(40)],
            "colour": ["red", "blue", "red", None] * 10,
            "note": ["x"] * 40,
            "price": [10.5, 20.0, 31.0, 39.5] * 10,
        }
    )
    frame.to_csv(folder / "train.csv", index=False)
    return Table(path=folder / "train.csv", target="price", drop=("note",)), frame


def test_columns_of_a_table(tmp_path: Path) -> None:
    task, frame = mixed(tmp_path)
    frame = frame.head(4).assign(colour=["violet", "blue", None, "red"], age=[None, 1.0, 2.0, 3.0], new=1)
    frame.to_csv(tmp_path / "fresh.csv", index=False)
    found = fresh(task, tmp_path / "fresh.csv")
    median = pandas.read_csv(task.path).iloc[task.splits(0).indices["train"]]["age"].median()
    assert found.remarks == (
        "columns that the training data did not have are left out: new",
        f"age is missing in 1 of 4 rows, which it never was in training; the model takes its median there, {median:g}",
    )
    columns = task.features(found.examples, task.preparing(0))
    assert columns["size"].isnan().tolist() == [False, False, True, False]
    names = [*task.code_names(task.preparing(0))["colour"], "other"]
    assert [names[code] for code in columns["colour"].tolist()] == ["other", "blue", "missing", "red"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda f: f.rename(columns={"age": "Age"}), "lacks 1 of the 3 columns .*: age, and has others: Age"),
        (lambda f: f.drop(columns=["size", "age"]), "lacks 2 of the 3 columns of the training data: size, age;"),
        (lambda f: f.assign(age="old"), "column 'age' of fresh.csv must hold numbers, .* 40 of 40 are none.*'old'"),
        (lambda f: f.assign(age=float("inf")), "column 'age' of fresh.csv has infinite values"),
        (lambda f: f.assign(colour=7), "column 'colour' of fresh.csv holds numbers; in training it held texts"),
        (lambda f: f.head(0), "has column names and no rows"),
        (lambda f: f.assign(price=[None, *[1.0] * 39]), "the target 'price' is missing in 1 of 40 rows"),
        (lambda f: f.assign(price="dear"), "the target 'price' must hold finite numbers"),
    ],
)
def test_another_table_is_named(change: Any, words: str, tmp_path: Path) -> None:
    task, frame = mixed(tmp_path)
    change(frame).to_csv(tmp_path / "fresh.csv", index=False)
    with pytest.raises(ValueError, match=words):
        fresh(task, tmp_path / "fresh.csv")


def test_a_table_that_is_none(tmp_path: Path) -> None:
    task, _ = mixed(tmp_path)
    path = tmp_path / "fresh.csv"
    with pytest.raises(ValueError, match=r"there is no file .*fresh.csv"):
        fresh(task, path)
    path.touch()
    with pytest.raises(ValueError, match=r"fresh.csv is empty"):
        fresh(task, path)
    path.write_bytes(b"\x89PNG\x00\xff")
    with pytest.raises(ValueError, match="is not a CSV file in UTF-8"):
        fresh(task, path)


def test_labels_that_a_table_did_not_have(tmp_path: Path) -> None:
    task = Table(path=write_table(tmp_path, "iris"), target="target")
    pandas.read_csv(task.path).assign(target="lily").to_csv(tmp_path / "fresh.csv", index=False)
    with pytest.raises(ValueError, match="labels that training did not: 'lily'; known are 'setosa', 'versicolor'"):
        fresh(task, tmp_path / "fresh.csv")


def test_a_text(tmp_path: Path) -> None:
    task = CharLm(context=16)
    (tmp_path / "a.txt").write_text("The data set.☃")
    found = fresh(task, tmp_path / "a.txt")
    vocabulary = task.preparing(0)["vocabulary"]
    numbers = [1 + vocabulary.index(letter) for letter in "The data set."]
    assert found.labelled
    assert found.examples[0].tolist() == [[*numbers, 0, -1, -1, -1]]  # one that was never seen, and nothing
    names = task.code_names(task.preparing(0))["characters"]
    assert names[0] == "unknown"
    assert names[numbers[0]] == "'T'"
    for content, words in ((b"", "holds 0 characters"), ("für".encode("latin1"), "is not a text in UTF-8")):
        (tmp_path / "a.txt").write_bytes(content)
        with pytest.raises(ValueError, match=words):
            fresh(task, tmp_path / "a.txt")


def test_images_with_and_without_classes(tmp_path: Path) -> None:
    task = ImageFolder(root=write_images(tmp_path / "train", 6), size=16)
    write_images(tmp_path / "labelled", 3, classes=(1, 2))
    found = fresh(task, tmp_path / "labelled")
    assert found.labelled
    assert [found.examples[row][1].item() for row in range(6)] == [1, 1, 1, 2, 2, 2]  # by training's classes
    loose = fresh(task, tmp_path / "labelled" / "digit1")
    assert (loose.labelled, len(loose.examples)) == (False, 3)
    one = fresh(task, tmp_path / "labelled" / "digit1" / "0.png")
    assert torch.equal(one.examples[0][0], found.examples[0][0])


def test_other_images_are_named(tmp_path: Path) -> None:
    task = ImageFolder(root=write_images(tmp_path / "train", 6), size=16)
    other = write_images(tmp_path / "other", 2, classes=(0, 5))
    with pytest.raises(ValueError, match="classes that training did not have: digit5; known are digit0, digit1"):
        fresh(task, other)
    (other / "digit5").rename(tmp_path / "elsewhere")
    (other / "digit0" / "0.png").write_bytes(b"no image")
    with pytest.raises(ValueError, match=r"1 of 2 images .* cannot be read: digit0/0.png"):
        fresh(task, other)
    Image.new("L", (8, 8)).save(other / "loose.png")
    with pytest.raises(ValueError, match=r"holds 1 images beside folders \(digit0\)"):
        fresh(task, other)
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="holds no images"):
        fresh(task, tmp_path / "empty")
    with pytest.raises(ValueError, match="there is no file or folder"):
        fresh(task, tmp_path / "gone")


def test_telling_numbers_of_images() -> None:
    image = torch.zeros(1, 1, 4, 4, dtype=torch.uint8)
    image[..., 2:] = 100  # a vertical edge: of 12 steps across, 4 are 100
    found = {name: value.item() for name, value in columns_of(image).items()}
    assert found == pytest.approx({"mean": 50, "spread": 50, "sharpness": 100 / 3})
    assert list(columns_of(torch.zeros(2, 3, 4, 4)))[:2] == ["red mean", "red spread"]


def test_columns_by_shape() -> None:
    assert columns_of(torch.arange(3)).keys() == {"value"}
    assert columns_of(torch.zeros(3, 7, dtype=torch.long))["tokens"].shape == (3, 7)
    assert list(columns_of(torch.zeros(3, 2, 2))) == [f"input {n}" for n in range(4)]
    wide = columns_of(torch.arange(2000.0).reshape(2, 1000))
    assert wide["mean"].tolist() == [499.5, 1499.5]
    assert len(wide) == 66
