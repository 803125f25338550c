"""table: the rows of any CSV file and an MLP; the target a class or a quantity.

Which columns, categories and classes there are is taken from the whole file, since the model must know its width;
every statistic (medians, means, deviations) from the train rows alone.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from trainable.limits import check_network, check_shares
from trainable.task import Splits, Task

if TYPE_CHECKING:
    import pandas
    import torch
    from torch import Tensor, nn

    from trainable.release.fresh import Fresh
    from trainable.tabular.preparation import Preparation
    from trainable.tabular.schema import Schema

MIN_ROWS = 10


@dataclass(frozen=True)
class Table(Task):
    """What is `target`, given the other columns? features: (B, F) float, see `Preparation`.

    A class: labels (B,) long, loss cross-entropy, metric accuracy. A quantity: targets (B,) float in their own unit
    and (B, 2) their mean and deviation over the train rows, which the loss (squared error) is measured in; metrics
    mae and mse in the target's own unit. The split is by the seed, for classes stratified.
    """

    path: Path  # CSV file, the first line names the columns
    target: str  # column to predict
    kind: Literal["auto", "classification", "regression"] = "auto"  # auto: numbers with a fraction, or more than 20
    # different ones, are a quantity
    drop: tuple[str, ...] = ()  # columns to leave out
    separator: str = ","  # between the columns
    val_share: float = 0.15
    test_share: float = 0.15
    width: int = 64  # units of each hidden layer
    depth: int = 2  # hidden layers
    dropout: float = 0.0  # share of hidden units switched off in training

    def __post_init__(self) -> None:
        check_network(self.width, self.depth, self.dropout)
        check_shares(self.val_share, self.test_share)

    def model(self) -> nn.Module:
        from trainable.mlp import mlp

        schema = self._schema()
        num_outputs = 1 if schema.classes is None else len(schema.classes)
        return mlp(schema.num_features, num_outputs, self.width, self.depth, self.dropout)

    def space(self) -> dict[str, Any]:
        return {
            "lr": {"log": [1e-4, 1e-1]},
            "batch_size": {"choice": [32, 64, 128]},
            "weight_decay": {"log": [1e-5, 1e-1]},
            "task.width": {"choice": [32, 64, 128, 256]},
            "task.depth": {"int": [1, 4]},
            "task.dropout": {"float": [0.0, 0.5]},
        }

    def splits(self, seed: int) -> Splits:
        frame, parts = self._rows(seed)
        preparation = self._fitted(frame, parts)
        return Splits(
            train=_tensors(preparation, frame.iloc[parts["train"]]),
            val=_tensors(preparation, frame.iloc[parts["val"]]),
            indices={name: parts[name] for name in ("train", "val")},
        )

    def test(self, seed: int) -> tuple[Tensor, ...]:
        frame, parts = self._rows(seed)
        return _tensors(self._fitted(frame, parts), frame.iloc[parts["test"]])

    def preparation(self, seed: int) -> Preparation:
        """What turns rows of any frame into the model's inputs, and its outputs into answers, as in training.

        `preparation.features(frame)` and `preparation.answers(outputs)`; it can be pickled.
        """
        return self._fitted(*self._rows(seed))

    def preparing(self, seed: int) -> dict[str, Any]:
        return self.preparation(seed).plain()

    def fresh(self, path: Path, preparing: Mapping[str, Any]) -> Fresh:
        """A CSV file with the columns of the training data; the target may be missing."""
        from trainable.release.fresh import Fresh
        from trainable.tabular.arrived import read_rows, remarks
        from trainable.tabular.preparation import Preparation

        preparation = Preparation.from_plain(preparing)
        rows = read_rows(path, self.separator, preparation, self.drop)
        said, labelled = remarks(rows, preparation, self.drop), self.target in rows
        if not labelled:
            classes = preparation.schema.classes
            rows = rows.assign(**{self.target: 0.0 if classes is None else classes[0]})
        return Fresh(_tensors(preparation, rows), labelled, said)

    def features(self, batch: tuple[Tensor, ...], preparing: Mapping[str, Any]) -> Mapping[str, Tensor]:
        from trainable.tabular.preparation import Preparation

        return Preparation.from_plain(preparing).columns(batch[0])

    def code_names(self, preparing: Mapping[str, Any]) -> Mapping[str, list[str]]:
        categories = preparing["schema"]["categories"]
        return {name: [value or "missing" for value in known] for name, known in categories.items()}

    def predict(self, model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
        outputs: Tensor = model(batch[0])
        return outputs.squeeze(1) if batch[1].is_floating_point() else outputs

    def loss(self, outputs: Any, batch: tuple[Tensor, ...]) -> Tensor:
        from torch.nn import functional

        if not batch[1].is_floating_point():
            return functional.cross_entropy(outputs, batch[1], reduction="sum")
        centre, scale = batch[2].unbind(1)
        return functional.mse_loss(outputs, (batch[1] - centre) / scale, reduction="sum")

    def metrics(self, outputs: Any, batch: tuple[Tensor, ...]) -> dict[str, torch.Tensor]:
        if not batch[1].is_floating_point():
            return {"accuracy": (outputs.argmax(1) == batch[1]).sum()}
        answers, truth = self.answers(outputs, batch)
        errors = answers - truth
        return {"mae": errors.abs().sum(), "mse": errors.square().sum()}

    def answers(self, outputs: Any, batch: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
        if not batch[1].is_floating_point():
            return outputs.argmax(1), batch[1]
        centre, scale = batch[2].unbind(1)
        return outputs.float() * scale + centre, batch[1]

    def _rows(self, seed: int) -> tuple[pandas.DataFrame, dict[str, list[int]]]:
        """The file, and which of its rows are for what."""
        import torch

        from trainable.data import stratified_split
        from trainable.tabular.schema import read_csv

        frame = read_csv(self.path, self.separator)
        schema = self._schema()
        if len(frame) < MIN_ROWS:
            raise ValueError(f"{self.path.name} has {len(frame)} rows: too few to split; give at least {MIN_ROWS}")
        labels = torch.zeros(len(frame), dtype=torch.long)
        if schema.classes is not None:
            numbers = {value: number for number, value in enumerate(schema.classes)}
            labels = torch.tensor([numbers[value] for value in frame[self.target].tolist()])
        shares = {"train": 1 - self.val_share - self.test_share, "val": self.val_share, "test": self.test_share}
        parts = {name: rows.tolist() for name, rows in stratified_split(labels, shares, seed).items()}
        empty = [name for name, rows in parts.items() if not rows and shares[name]]
        if empty:
            raise ValueError(
                f"{self.path.name} has {len(frame)} rows: too few to split, none is left "
                f"for {' and '.join(empty)}; give more rows, or other shares"
            )
        return frame, parts

    def _fitted(self, frame: pandas.DataFrame, parts: dict[str, list[int]]) -> Preparation:
        from trainable.tabular.preparation import Preparation

        return Preparation.fitted(self._schema(), frame.iloc[parts["train"]])

    def _schema(self) -> Schema:
        path = self.path.expanduser()
        changed = path.stat().st_mtime_ns if path.is_file() else 0
        return _schema_of(path, changed, self.separator, self.target, self.kind, self.drop)


@functools.lru_cache(maxsize=1)
def _schema_of(path: Path, changed: int, separator: str, target: str, kind: str, drop: tuple[str, ...]) -> Schema:
    """Every trial of a sweep asks for the same file's."""
    from trainable.tabular.schema import read_csv, schema_of

    return schema_of(read_csv(path, separator), path, target, kind, drop)


def _tensors(preparation: Preparation, rows: pandas.DataFrame) -> tuple[Tensor, ...]:
    import torch

    features, targets = preparation.features(rows), preparation.targets(rows)
    if preparation.schema.classes is not None:
        return features, targets
    return features, targets, torch.tensor([[preparation.centre, preparation.scale]]).repeat(len(rows), 1)
