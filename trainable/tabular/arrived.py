"""Rows that came after release: a CSV file beside what the training file was. Errors name the columns.

Knows no task.
"""

from __future__ import annotations

from pathlib import Path

import numpy
import pandas
from pandas.api import types

from trainable.tabular.preparation import Preparation
from trainable.tabular.schema import as_category, read_csv

MOST_NAMED = 5


def read_rows(path: Path, separator: str, preparation: Preparation, dropped: tuple[str, ...]) -> pandas.DataFrame:
    """The rows, as they can be prepared. Raises ValueError for no rows, other columns and other types."""
    schema = preparation.schema
    if path.is_file() and not path.stat().st_size:
        raise ValueError(
            f"{path.absolute()} is empty; give a CSV file with a line of column names and at least one row"
        )
    frame = read_csv(path, separator, "fresh data of this task are a CSV file with the columns of the training data")
    given = [str(name) for name in frame.columns]
    missing = [name for name in schema.columns if name not in given]
    extra = _extra(frame, preparation, dropped)
    if missing:
        beside = f", and has others: {_some(extra)}" if extra else ""
        raise ValueError(
            f"{path.name} lacks {len(missing)} of the {len(schema.columns)} columns of the training data: "
            f"{_some(missing)}{beside}; give all of them, under their names"
        )
    if frame.empty:
        raise ValueError(f"{path.name} has column names and no rows; give at least one")
    for name in schema.numbers:
        column = frame[name]
        if not (types.is_numeric_dtype(column) or column.isna().all()):
            texts = column[pandas.to_numeric(column, errors="coerce").isna() & column.notna()]
            raise ValueError(
                f"column {name!r} of {path.name} must hold numbers, as in training; {len(texts):,} of {len(column):,} "
                f"are none, such as {texts.iloc[0]!r}"
            )
        if numpy.isinf(column.to_numpy(float, na_value=0.0)).any():
            raise ValueError(f"column {name!r} of {path.name} has infinite values; mend these rows")
    for name, known in schema.categories.items():
        column = frame[name]
        numbers = types.is_numeric_dtype(column) and not types.is_bool_dtype(column) and column.notna().any()
        if numbers and not set(as_category(column[column.notna()])) & set(known):
            raise ValueError(
                f"column {name!r} of {path.name} holds numbers; in training it held texts: {_some(list(known))}"
            )
    return frame


def remarks(frame: pandas.DataFrame, preparation: Preparation, dropped: tuple[str, ...]) -> tuple[str, ...]:
    """What of the rows the model does not see as it stands there."""
    found = []
    extra = _extra(frame, preparation, dropped)
    if extra:
        found.append(f"columns that the training data did not have are left out: {_some(extra)}")
    schema = preparation.schema
    for name, median in zip(schema.numbers, preparation.medians, strict=True):
        gaps = int(frame[name].isna().sum())
        if gaps and name not in schema.with_missing:
            found.append(
                f"{name} is missing in {gaps:,} of {len(frame):,} rows, which it never was in training; the model "
                f"takes its median there, {median:.4g}"
            )
    return tuple(found)


def _extra(frame: pandas.DataFrame, preparation: Preparation, dropped: tuple[str, ...]) -> list[str]:
    used = {*preparation.schema.columns, preparation.schema.target, *dropped}
    return [str(name) for name in frame.columns if str(name) not in used]


def _some(names: list[str]) -> str:
    rest = len(names) - MOST_NAMED
    return ", ".join(names[:MOST_NAMED]) + (f" and {rest} more" if rest > 0 else "")
