"""What the tests of one trial share."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True, scope="module")
def _small_heap() -> Iterator[None]:
    """The loop collects garbage where memory is short and where loaders end. After hundreds of tests with Ray and
    MLflow in one process that takes half a second each time: what they left is set aside."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()
