"""Preparation: rows of a frame to what a network takes, with the statistics of the train rows alone; and back.

Numbers: a missing one is the median, and says so in a feature of its own; then mean 0 and deviation 1.
Categories: one indicator each; one that the file does not have is none of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pandas
import torch
from sklearn.compose import ColumnTransformer
from sklearn.impute import MissingIndicator, SimpleImputer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from torch import Tensor

from trainable.tabular.schema import Schema, as_category


@dataclass(frozen=True)
class Preparation:
    """Fitted. `centre` and `scale` are the target's mean and deviation where it is a quantity."""

    schema: Schema
    transformer: ColumnTransformer
    centre: float
    scale: float

    @classmethod
    def fitted(cls, schema: Schema, rows: pandas.DataFrame) -> Preparation:
        """With the statistics of `rows`, which should be the train rows and no others."""
        numbers = make_pipeline(SimpleImputer(strategy="median", keep_empty_features=True), StandardScaler())
        encoder = OneHotEncoder(categories=list(schema.categories.values()), handle_unknown="ignore")
        transformer = ColumnTransformer(
            [
                ("numbers", numbers, list(schema.numbers)),
                ("missing", MissingIndicator(features="all"), list(schema.with_missing)),
                ("categories", encoder, list(schema.categories)),
            ],
            sparse_threshold=0,
        )
        transformer.fit(_columns(schema, rows))
        if schema.classes is not None:
            return cls(schema, transformer, 0.0, 1.0)
        target = rows[schema.target].astype(float)
        return cls(schema, transformer, float(target.mean()), float(target.std(ddof=0)) or 1.0)

    def features(self, frame: pandas.DataFrame) -> Tensor:
        """(N, num_features) float, of any frame that has the columns; the target may be missing.

        Raises ValueError for a column that is missing, and for text where the file has numbers.
        """
        rows = self.transformer.transform(_columns(self.schema, frame))
        return torch.as_tensor(rows, dtype=torch.float32)

    def targets(self, frame: pandas.DataFrame) -> Tensor:
        """(N,) long, the number of each row's class; or (N,) float, the quantity in its own unit."""
        column = frame[self.schema.target]
        if self.schema.classes is None:
            return torch.tensor(column.to_numpy(float), dtype=torch.float32)
        numbers = {value: number for number, value in enumerate(self.schema.classes)}
        return torch.tensor([numbers[value] for value in column.tolist()])

    def answers(self, outputs: Tensor) -> list[Any]:
        """What the model's outputs say: the class of each row, or the quantity in its own unit."""
        if self.schema.classes is None:
            quantities: list[Any] = (outputs.double() * self.scale + self.centre).tolist()
            return quantities
        return [self.schema.classes[number] for number in outputs.argmax(1).tolist()]


def _columns(schema: Schema, frame: pandas.DataFrame) -> pandas.DataFrame:
    """The columns that are used, as floats and as texts."""
    missing = [name for name in schema.columns if name not in frame.columns]
    if missing:
        raise ValueError(f"the rows lack {len(missing)} columns of the training data: {', '.join(missing[:5])}")
    found = {}
    for name in schema.numbers:
        try:
            found[name] = frame[name].astype(float)
        except (TypeError, ValueError) as error:
            raise ValueError(f"column {name!r} must hold numbers, as in training: {error}") from error
    found |= {name: as_category(frame[name]) for name in schema.categories}
    return pandas.DataFrame(found, index=frame.index)
