"""table: scikit-learn's tables as CSV files, columns of every kind, and every way in which a file can be bad."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import numpy
import pandas
import pytest
import torch
from sklearn.compose import ColumnTransformer
from sklearn.impute import MissingIndicator, SimpleImputer
from sklearn.linear_model import LinearRegression
from sklearn.metrics import accuracy_score, mean_absolute_error, mean_squared_error
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from tests.trainable.tasks.formats import write_table
from tests.trainable.toys import train
from trainable.__main__ import main
from trainable.contract import TaskContract
from trainable.tabular.preparation import Preparation
from trainable.task import load_task
from trainable.tasks.table import Table

MIXED = """\
size,colour,open,weight,price
1.0,red,True,,10.5
2.0,blue,False,3.0,20.0
,red,True,4.0,31.0
4.0,,False,5.0,39.5
5.0,green,True,,50.25
"""


def mixed(folder: Path, repeat: int = 8) -> Path:
    """40 rows: a number with gaps, a category with gaps, a truth value, another number with gaps, a quantity."""
    path = folder / "mixed.csv"
    header, *rows = MIXED.splitlines()
    path.write_text("\n".join([header, *rows * repeat]))
    return path


class TestClasses(TaskContract):
    @pytest.fixture(autouse=True, scope="class")
    @classmethod
    def _task(cls, tmp_path_factory: pytest.TempPathFactory) -> None:
        cls.task = Table(path=write_table(tmp_path_factory.mktemp("table"), "iris"), target="target")


class TestQuantity(TaskContract):
    @pytest.fixture(autouse=True, scope="class")
    @classmethod
    def _task(cls, tmp_path_factory: pytest.TempPathFactory) -> None:
        cls.task = Table(path=write_table(tmp_path_factory.mktemp("table"), "diabetes"), target="target")


@pytest.mark.parametrize(
    ("name", "bar"), [("iris", 0.9), ("wine", 0.92), ("breast_cancer", 0.94), ("digits", 0.93), ("diabetes", None)]
)
def test_it_learns_what_scikit_learn_ships(name: str, bar: float | None, tmp_path: Path) -> None:
    """Of the test part, by scikit-learn's measures; a quantity at least as well as a line through the train rows."""
    task = Table(path=write_table(tmp_path, name), target="target")
    epochs = 10 if name == "digits" else 20
    run, reports = train(task, lr=3e-3, optimizer="adamw", weight_decay=0.1, epochs=epochs)
    frame = pandas.read_csv(task.path).iloc[rest_of(task)]
    preparation = task.preparation(0)
    with torch.no_grad():
        batch = (preparation.features(frame), preparation.targets(frame))
        answers = preparation.answers(task.predict(run.state.model.eval(), batch))
    if bar is not None:
        assert accuracy_score(frame["target"], answers) >= bar
        return
    assert answers == pytest.approx(frame["target"], abs=250)  # in the unit of the file
    train_x, train_y, _ = task.splits(0).train
    val_x, val_y, _ = task.splits(0).val
    line = LinearRegression().fit(train_x, train_y)
    assert reports[-1].metrics["val_mse"] < 1.15 * mean_squared_error(val_y, line.predict(val_x))
    with torch.no_grad():
        said = preparation.answers(task.predict(run.state.model, task.splits(0).val))
    assert reports[-1].metrics["val_mae"] == pytest.approx(mean_absolute_error(val_y, said), rel=1e-4)
    assert reports[-1].metrics["val_mse"] == pytest.approx(mean_squared_error(val_y, said), rel=1e-4)


def rest_of(task: Table) -> list[int]:
    """The rows that are neither train nor val."""
    splits = task.splits(0)
    num_rows = len(pandas.read_csv(task.path))
    rest = sorted(set(range(num_rows)) - set(splits.indices["train"]) - set(splits.indices["val"]))
    assert len(rest) == len(task.test(0)[0])
    return rest


def test_columns_of_every_kind(tmp_path: Path) -> None:
    task = Table(path=mixed(tmp_path), target="price")
    preparation = task.preparation(0)
    schema = preparation.schema
    assert (schema.numbers, schema.with_missing) == (("size", "open", "weight"), ("size", "weight"))
    assert schema.categories == {"colour": ("", "blue", "green", "red")}
    assert schema.classes is None
    frame = pandas.read_csv(task.path)
    train_rows = frame.iloc[task.splits(0).indices["train"]]
    features = preparation.features(frame.head(5))
    assert features.shape == (5, schema.num_features) == (5, 9)
    for column, name in enumerate(("size", "open", "weight")):  # numbers: the gap is the median, then standardised
        seen = train_rows[name].astype(float)
        filled = seen.fillna(seen.median())
        wanted = (frame[name].head(5).astype(float).fillna(seen.median()) - filled.mean()) / filled.std(ddof=0)
        assert features[:, column].tolist() == pytest.approx(wanted.tolist(), abs=1e-5)
    assert features[:, 3:5].tolist() == [[0, 1], [0, 0], [1, 0], [0, 0], [0, 1]]  # which are missing
    assert features[:, 5:].tolist() == [[0, 0, 0, 1], [0, 1, 0, 0], [0, 0, 0, 1], [1, 0, 0, 0], [0, 0, 1, 0]]
    assert (preparation.centre, preparation.scale) == pytest.approx(
        (train_rows["price"].mean(), train_rows["price"].std(ddof=0))
    )


def test_it_is_what_scikit_learn_makes_of_the_rows(tmp_path: Path) -> None:
    """To the bit, also after a way through JSON."""
    task = Table(path=mixed(tmp_path), target="price")
    schema = task.preparation(0).schema
    frame = pandas.read_csv(task.path)
    columns = frame.assign(open=frame["open"].astype(float), colour=frame["colour"].fillna(""))
    numbers = make_pipeline(SimpleImputer(strategy="median"), StandardScaler())
    encoder = OneHotEncoder(categories=list(schema.categories.values()), handle_unknown="ignore")
    transformer = ColumnTransformer(
        [
            ("numbers", numbers, list(schema.numbers)),
            ("missing", MissingIndicator(features="all"), list(schema.with_missing)),
            ("categories", encoder, list(schema.categories)),
        ]
    ).fit(columns.iloc[task.splits(0).indices["train"]])
    wanted = torch.as_tensor(transformer.transform(columns), dtype=torch.float32)
    assert torch.equal(task.preparation(0).features(frame), wanted)
    kept = json.loads(json.dumps(task.preparing(0), allow_nan=False))
    assert Preparation.from_plain(kept) == task.preparation(0)


def test_statistics_are_of_the_train_rows_alone(tmp_path: Path) -> None:
    """What the other rows hold, however large, moves nothing."""
    task = Table(path=mixed(tmp_path), target="price")
    before = task.splits(0).train
    frame = pandas.read_csv(task.path)
    others = sorted(set(range(len(frame))) - set(task.splits(0).indices["train"]))
    frame.loc[others, ["size", "weight", "price"]] *= 1000
    frame.to_csv(task.path, index=False)
    assert all(torch.equal(one, other) for one, other in zip(before, task.splits(0).train, strict=True))
    _, targets, moments = task.splits(0).val
    assert targets.max() > 10_000  # in the file's own unit
    assert moments[0, 0] < 100


def test_rows_from_elsewhere(tmp_path: Path) -> None:
    """Inference: no target, other columns beside, a category that was never seen; the whole can be pickled."""
    task = Table(path=mixed(tmp_path), target="price")
    preparation = pickle.loads(pickle.dumps(task.preparation(0)))
    row = pandas.DataFrame({"colour": ["violet"], "size": [3], "weight": [3.5], "open": [True], "note": ["new"]})
    features = preparation.features(row)
    assert features[0, 3:].tolist() == [0, 0, 0, 0, 0, 0]
    with pytest.raises(ValueError, match="the rows lack 2 columns of the training data: size, open"):
        preparation.features(row.drop(columns=["size", "open"]))
    with pytest.raises(ValueError, match="column 'size' must hold numbers, as in training"):
        preparation.features(row.assign(size="large"))


def test_classes_are_named_and_in_order(tmp_path: Path) -> None:
    path = tmp_path / "classes.csv"
    pandas.DataFrame({"x": range(40), "y": [10, 2, 10, 3] * 10}).to_csv(path, index=False)
    preparation = Table(path=path, target="y").preparation(0)
    assert preparation.schema.classes == (2, 3, 10)  # as numbers, not as texts
    assert preparation.answers(torch.tensor([[0.0, 0.0, 1.0], [1.0, 0.0, 0.0]])) == [10, 2]
    assert Table(path=path, target="y", kind="regression").preparation(0).schema.classes is None


@pytest.mark.parametrize(
    ("target", "classes"),
    [
        ([0, 1] * 20, 2),
        ([0.0, 1.0] * 20, 2),
        ([True, False] * 20, 2),
        (["a", "b", "c", "a"] * 10, 3),
        (list(range(40)), None),
        ([0.5, 1.0] * 20, None),
    ],
)
def test_what_kind_of_target_it_is(target: list[Any], classes: int | None, tmp_path: Path) -> None:
    path = tmp_path / "kind.csv"
    pandas.DataFrame({"x": range(40), "y": target}).to_csv(path, index=False)
    found = Table(path=path, target="y").preparation(0).schema.classes
    assert (None if found is None else len(found)) == classes


def test_a_column_that_is_empty_in_the_train_rows_only(tmp_path: Path) -> None:
    path = tmp_path / "sparse.csv"
    frame = pandas.DataFrame({"x": range(40), "rare": [None] * 40, "y": [0.5 * n for n in range(40)]})
    frame.to_csv(path, index=False)
    with pytest.raises(ValueError, match="rare"):
        Table(path=path, target="y").splits(0)
    val = Table(path=path, target="y", drop=("rare",)).splits(0).indices["val"]
    frame.loc[val, "rare"] = 7.0
    frame.to_csv(path, index=False)
    features = Table(path=path, target="y").splits(0).train[0]
    assert torch.isfinite(features).all()
    assert features.shape[1] == 3  # x, rare, and that rare is missing


def test_row_numbers_and_other_separators(tmp_path: Path) -> None:
    frame = pandas.DataFrame({"x": range(40), "y": [0, 1] * 20})
    frame.to_csv(tmp_path / "numbered.csv")  # pandas writes the row numbers along, without a name
    assert Table(path=tmp_path / "numbered.csv", target="y").preparation(0).schema.columns == ["x"]
    frame.to_csv(tmp_path / "semicolons.csv", sep=";", index=False)
    with pytest.raises(ValueError, match=r"column for task.target in semicolons.csv 'y'.*is its separator another"):
        Table(path=tmp_path / "semicolons.csv", target="y").splits(0)
    assert len(Table(path=tmp_path / "semicolons.csv", target="y", separator=";").splits(0).train[0]) == 28


GOOD = {"x": [float(n) for n in range(40)], "z": ["a", "b"] * 20, "y": [0, 1] * 20}


@pytest.mark.parametrize(
    ("columns", "settings", "words"),
    [
        ({}, {"target": "Y "}, "unknown column for task.target in bad.csv 'Y '; .*known: x, z, y"),
        ({}, {"drop": ("zz",)}, "unknown column for task.drop in bad.csv 'zz'; did you mean z"),
        ({}, {"drop": ("y",)}, r"task.drop=\['y'\] holds the target 'y'"),
        ({}, {"drop": ("x", "z")}, "has no columns beside the target 'y' and those dropped"),
        ({"y": [1] * 40}, {}, "the target 'y' of bad.csv has one class, 1"),
        ({"y": [0.5] * 40}, {}, "the target 'y' of bad.csv never differs from 0.5"),
        ({"y": [None, 1] * 20}, {}, "the target 'y' of bad.csv is missing in 20 of 40 rows"),
        ({"y": ["a", "b"] * 20}, {"kind": "regression"}, "holds 'a', no number; set task.kind=classification"),
        ({"y": [float("inf"), 1.5] * 20}, {}, "the target 'y' of bad.csv has infinite values"),
        ({"x": [None] * 40}, {}, r"columns of bad.csv without a single value: x; set task.drop=\[x\]"),
        ({"x": [float("inf")] + [1.0] * 39}, {}, "columns of bad.csv with infinite values: x"),
        ({name: values[:8] for name, values in GOOD.items()}, {}, "bad.csv has 8 rows: too few to split"),
        ({name: values[:10] for name, values in GOOD.items()}, {"val_share": 0.02}, "none is left for val"),
    ],
)
def test_a_table_that_cannot_be_learned_from(
    columns: dict[str, Any], settings: dict[str, Any], words: str, tmp_path: Path
) -> None:
    path = tmp_path / "bad.csv"
    length = len(next(iter(columns.values()), GOOD["x"]))
    pandas.DataFrame({name: values[:length] for name, values in {**GOOD, **columns}.items()}).to_csv(path, index=False)
    with pytest.raises(ValueError, match=words):
        Table(**{"path": path, "target": "y", **settings}).splits(0)


def test_text_that_is_no_category(tmp_path: Path) -> None:
    path = tmp_path / "names.csv"
    count = 1500
    names = [f"person {n}" for n in range(count)]
    pandas.DataFrame({"name": names, "x": numpy.arange(count), "y": [0, 1] * (count // 2)}).to_csv(path, index=False)
    with pytest.raises(ValueError, match=r"column 'name' .* has 1,500 different texts.*task.drop=\[name\]"):
        Table(path=path, target="y").splits(0)
    with pytest.raises(ValueError, match=r"the target 'name' .* has 1,500 classes in 1,500 rows"):
        Table(path=path, target="name").splits(0)


@pytest.mark.parametrize("content", [b"", b"\x89PNG\r\n\x1a\n\x00\xff", b'a,b\n1,2\n"3,4,5\n', b"a,b\n1,2\n1,2,3,4\n"])
def test_a_file_that_is_no_csv(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "odd.csv"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"odd.csv is not a CSV file in UTF-8: .*task.separator"):
        Table(path=path, target="a").model()
    with pytest.raises(ValueError, match=r"there is no file .*gone.csv"):
        Table(path=tmp_path / "gone.csv", target="a").model()


def test_a_run_goes_on_from_another_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A relative path among the settings means what it meant where the run began."""
    write_table(tmp_path, "iris")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    arguments = ["--set", "task.path=iris.csv", "--set", "task.target=target", "--set", "device=cpu", "--out", "run"]
    assert main(["--task", "table", *arguments]) == 0
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert main(["--resume", "../run", "--epochs", "2"]) == 0
    monkeypatch.chdir(tmp_path)
    assert main(["--resume", "run", "--epochs", "3", "--set", "task.path=iris.csv"]) == 0


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (["task.path=gone.csv", "task.target=y"], "there is no file"),
        (["task.path=iris.csv", "task.target=sort"], "unknown column for task.target"),
        (["task.path=iris.csv", "task.target=target", "task.depth=deep"], "task.depth='deep' must be a whole number"),
        (["task.path=iris.csv"], "needs task.target"),
    ],
)
def test_bad_input_is_one_line_and_nothing_is_written(
    settings: list[str], words: str, launch_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_table(launch_folder, "iris")
    assert main(["--task", "table", *(part for setting in settings for part in ("--set", setting))]) == 2
    said = capsys.readouterr().err
    assert words in said
    assert len(said.splitlines()) == 1
    assert [path.name for path in launch_folder.iterdir()] == ["iris.csv"]


def test_refused_settings() -> None:
    with pytest.raises(ValueError, match=r"needs task.path and task.target: say --set task.path=... --set task.target"):
        load_task("table")
    for values, words in (
        ({"kind": "ranking"}, "must be one of auto, classification, regression"),
        ({"val_share": 0.6, "test_share": 0.4}, "together below 1"),
        ({"depth": -1}, "depth=-1"),
    ):
        with pytest.raises(ValueError, match=words):
            load_task("table", {"path": "x.csv", "target": "y", **values})
