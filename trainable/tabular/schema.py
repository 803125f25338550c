"""A CSV file and what its columns are: numbers, categories, the target. Of the whole file: a model must know its width.

No statistic of a value is taken here but which categories and classes there are, and whether values are missing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy
import pandas
from pandas.api import types

from trainable.config import unknown_name

MAX_CLASSES = 20  # a target of whole numbers with more distinct values is a quantity, unless task.kind says otherwise
MAX_CATEGORIES = 1000  # a column of text with more distinct values is a name or free text
NO_VALUE = ""  # the category of a missing value


@dataclass(frozen=True)
class Schema:
    """The columns that are used. `classes` is None where the target is a quantity."""

    target: str
    numbers: tuple[str, ...]
    with_missing: tuple[str, ...]  # the numbers of which some are missing: that they are is a feature too
    categories: dict[str, tuple[str, ...]]  # of each other column, in order
    classes: tuple[Any, ...] | None

    @property
    def num_features(self) -> int:
        num_indicators = sum(len(values) for values in self.categories.values())
        return len(self.numbers) + len(self.with_missing) + num_indicators

    @property
    def columns(self) -> list[str]:
        return [*self.numbers, *self.categories]


def read_csv(path: Path, separator: str, advice: str = "set task.path to a CSV file") -> pandas.DataFrame:
    """The rows of the file. Raises ValueError where there is none, or it is no CSV."""
    path = path.expanduser()
    if not path.is_file():
        raise ValueError(f"there is no file {path.absolute()}; {advice}")
    try:
        frame = pandas.read_csv(path, sep=separator, low_memory=False)
    except (pandas.errors.ParserError, pandas.errors.EmptyDataError, UnicodeDecodeError) as error:
        raise ValueError(
            f"{path.absolute()} is not a CSV file in UTF-8: {' '.join(str(error).split())}; give one with a line of "
            f"column names, separated by {separator!r}, or set task.separator"
        ) from error
    # A column without a name is the row number that pandas writes along.
    unnamed = [name for name in frame.columns if str(name).startswith("Unnamed: ")]
    return frame.drop(columns=unnamed)


def schema_of(frame: pandas.DataFrame, path: Path, target: str, kind: str, drop: Sequence[str]) -> Schema:
    """What the columns are. Raises ValueError in words for what cannot be learned from."""
    known = [str(name) for name in frame.columns]
    for name, role in [(target, "target"), *((name, "drop") for name in drop)]:
        if name not in known:
            hint = "; is its separator another? set task.separator" if len(known) == 1 else ""
            raise ValueError(unknown_name(f"column for task.{role} in {path.name}", name, known) + hint)
    if target in drop:
        raise ValueError(f"task.drop={list(drop)} holds the target {target!r}; take it out")
    classes = _classes(frame[target], path, kind)
    features = frame.drop(columns=[target, *drop])
    if features.columns.empty:
        raise ValueError(f"{path.name} has no columns beside the target {target!r}" + " and those dropped" * bool(drop))
    empty = [name for name in features if features[name].isna().all()]
    if empty:
        raise ValueError(
            f"columns of {path.name} without a single value: {', '.join(empty)}; set task.drop=[{', '.join(empty)}]"
        )
    numbers = [name for name in features if types.is_numeric_dtype(features[name])]
    infinite = [name for name in numbers if numpy.isinf(features[name].to_numpy(float, na_value=0.0)).any()]
    if infinite:
        raise ValueError(f"columns of {path.name} with infinite values: {', '.join(infinite)}; mend or drop them")
    return Schema(
        target=target,
        numbers=tuple(numbers),
        with_missing=tuple(name for name in numbers if features[name].isna().any()),
        categories={name: _categories(features[name], path) for name in features if name not in numbers},
        classes=classes,
    )


def as_category(column: pandas.Series[Any]) -> pandas.Series[Any]:
    """The values as text, a missing one as `NO_VALUE`."""
    return column.astype(object).where(column.notna(), NO_VALUE).map(str)


def _categories(column: pandas.Series[Any], path: Path) -> tuple[str, ...]:
    values = sorted(set(as_category(column)))
    if len(values) > MAX_CATEGORIES:
        raise ValueError(
            f"column {column.name!r} of {path.name} has {len(values):,} different texts in {len(column):,} rows, more "
            f"than {MAX_CATEGORIES:,}: that is a name or free text, no category; set task.drop=[{column.name}]"
        )
    return tuple(values)


def _classes(column: pandas.Series[Any], path: Path, kind: str) -> tuple[Any, ...] | None:
    """The classes in order, or None for a quantity."""
    num_missing = int(column.isna().sum())
    if num_missing:
        raise ValueError(
            f"the target {column.name!r} of {path.name} is missing in {num_missing:,} of {len(column):,} rows; remove "
            "these rows or fill them"
        )
    is_number = types.is_numeric_dtype(column) and not types.is_bool_dtype(column)
    values = column.unique().tolist()
    if kind == "regression" and not is_number:
        raise ValueError(
            f"the target {column.name!r} of {path.name} holds {values[0]!r}, no number; set task.kind=classification"
        )
    whole = is_number and all(float(value).is_integer() for value in values)
    if kind == "regression" or (kind == "auto" and is_number and not (whole and len(values) <= MAX_CLASSES)):
        if is_number and not numpy.isfinite(column.to_numpy(float)).all():
            raise ValueError(f"the target {column.name!r} of {path.name} has infinite values; remove these rows")
        if len(values) < 2:
            raise ValueError(f"the target {column.name!r} of {path.name} never differs from {values[0]}")
        return None
    if len(values) < 2:
        raise ValueError(f"the target {column.name!r} of {path.name} has one class, {values[0]!r}: nothing to learn")
    if len(values) > MAX_CATEGORIES:
        raise ValueError(
            f"the target {column.name!r} of {path.name} has {len(values):,} classes in {len(column):,} rows, more than "
            f"{MAX_CATEGORIES:,}; is it a quantity (task.kind=regression), or a name?"
        )
    return tuple(sorted(values, key=lambda value: (isinstance(value, str), value)))
