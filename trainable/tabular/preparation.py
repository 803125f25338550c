"""Preparation: rows of a frame to what a network takes, with the statistics of the train rows alone; and back.

Numbers: a missing one is the median, and says so in a feature of its own; then mean 0 and deviation 1.
Categories: one indicator each; one that the file does not have is none of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy
import pandas
import torch
from pandas.api import types
from torch import Tensor

from trainable.tabular.schema import Schema, as_category


@dataclass(frozen=True)
class Preparation:
    """Fitted, of plain values. One for each number of the schema: `medians`, and `means` and `deviations` with the gaps
    filled. `centre` and `scale` are the target's mean and deviation where it is a quantity."""

    schema: Schema
    medians: tuple[float, ...]
    means: tuple[float, ...]
    deviations: tuple[float, ...]
    centre: float
    scale: float

    @classmethod
    def fitted(cls, schema: Schema, rows: pandas.DataFrame) -> Preparation:
        """With the statistics of `rows`, which should be the train rows and no others."""
        from sklearn.impute import SimpleImputer
        from sklearn.preprocessing import StandardScaler

        moments: list[tuple[float, ...]] = [(), (), ()]
        if schema.numbers:
            imputer = SimpleImputer(strategy="median", keep_empty_features=True)
            scaler = StandardScaler().fit(imputer.fit_transform(_numbers(schema, rows)))
            moments = [tuple(found.tolist()) for found in (imputer.statistics_, scaler.mean_, scaler.scale_)]
        medians, means, deviations = moments
        if schema.classes is not None:
            return cls(schema, medians, means, deviations, 0.0, 1.0)
        target = rows[schema.target].astype(float)
        centre, scale = float(target.mean()), float(target.std(ddof=0)) or 1.0
        return cls(schema, medians, means, deviations, centre, scale)

    @classmethod
    def from_plain(cls, saved: Mapping[str, Any]) -> Preparation:
        """What `plain` made, also after a way through JSON."""
        columns: Mapping[str, Any] = saved["schema"]
        schema = Schema(
            target=columns["target"],
            numbers=tuple(columns["numbers"]),
            with_missing=tuple(columns["with_missing"]),
            categories={name: tuple(known) for name, known in columns["categories"].items()},
            classes=None if columns["classes"] is None else tuple(columns["classes"]),
        )
        moments = {name: tuple(saved[name]) for name in ("medians", "means", "deviations")}
        return cls(schema=schema, **moments, centre=saved["centre"], scale=saved["scale"])

    def plain(self) -> dict[str, Any]:
        """All of it as JSON has it."""
        return asdict(self)

    def features(self, frame: pandas.DataFrame) -> Tensor:
        """(N, num_features) float, of any frame that has the columns; the target may be missing.

        Raises ValueError for a column that is missing, and for text where the file has numbers.
        """
        schema = self.schema
        missing = [name for name in schema.columns if name not in frame.columns]
        if missing:
            raise ValueError(f"the rows lack {len(missing)} columns of the training data: {', '.join(missing[:5])}")
        numbers = _numbers(schema, frame)
        gaps = numpy.isnan(numbers)
        scaled = (numpy.where(gaps, self.medians, numbers) - self.means) / numpy.asarray(self.deviations, float)
        indicators = [gaps[:, [schema.numbers.index(name) for name in schema.with_missing]]]
        for name, known in schema.categories.items():
            codes = pandas.Index(known, dtype=object).get_indexer(as_category(frame[name]))
            indicators.append(codes[:, None] == numpy.arange(len(known)))
        return torch.as_tensor(numpy.concatenate([scaled, *indicators], axis=1), dtype=torch.float32)

    def columns(self, features: Tensor) -> dict[str, Tensor]:
        """The file's columns from features (N, F): numbers in their own unit, a gap is NaN where training had gaps too;
        categories by their number, one that training did not know last."""
        schema = self.schema
        num_numbers, num_gaps = len(schema.numbers), len(schema.with_missing)
        means, deviations = (torch.tensor(values, dtype=torch.float64) for values in (self.means, self.deviations))
        numbers = features[:, :num_numbers].double() * deviations + means
        found = dict(zip(schema.numbers, numbers.unbind(1), strict=True))
        for name, gap in zip(schema.with_missing, features[:, num_numbers:].unbind(1), strict=False):
            found[name] = found[name].masked_fill(gap > 0, float("nan"))
        first = num_numbers + num_gaps
        for name, known in schema.categories.items():
            indicators = features[:, first : first + len(known)]
            found[name] = torch.where(indicators.any(1), indicators.argmax(1), len(known))
            first += len(known)
        return found

    def targets(self, frame: pandas.DataFrame) -> Tensor:
        """(N,) long, the number of each row's class; or (N,) float, the quantity in its own unit.

        Raises ValueError for a class that the training data do not have, a gap, and what is no finite number.
        """
        column = frame[self.schema.target]
        num_missing = int(column.isna().sum())
        if num_missing:
            raise ValueError(
                f"the target {self.schema.target!r} is missing in {num_missing:,} of {len(column):,} rows; leave these "
                "rows out, or the whole column where no row has it yet"
            )
        if self.schema.classes is None:
            if not types.is_numeric_dtype(column) or not numpy.isfinite(column.to_numpy(float)).all():
                raise ValueError(f"the target {self.schema.target!r} must hold finite numbers, as in training")
            return torch.tensor(column.to_numpy(float), dtype=torch.float32)
        numbers = {value: number for number, value in enumerate(self.schema.classes)}
        unknown = [value for value in column.unique().tolist() if value not in numbers]
        if unknown:
            raise ValueError(
                f"the target {self.schema.target!r} has labels that training did not: "
                f"{', '.join(map(repr, unknown[:5]))}; known are {', '.join(map(repr, self.schema.classes[:20]))}"
            )
        return torch.tensor([numbers[value] for value in column.tolist()])

    def answers(self, outputs: Tensor) -> list[Any]:
        """What the model's outputs say: the class of each row, or the quantity in its own unit."""
        if self.schema.classes is None:
            quantities: list[Any] = (outputs.double() * self.scale + self.centre).tolist()
            return quantities
        return [self.schema.classes[number] for number in outputs.argmax(1).tolist()]


def _numbers(schema: Schema, frame: pandas.DataFrame) -> numpy.ndarray[Any, Any]:
    """(N, M): the columns of numbers, as floats."""
    found = numpy.empty((len(frame), len(schema.numbers)))
    for place, name in enumerate(schema.numbers):
        try:
            found[:, place] = frame[name].astype(float)
        except (TypeError, ValueError) as error:
            raise ValueError(f"column {name!r} must hold numbers, as in training: {error}") from error
    return found
