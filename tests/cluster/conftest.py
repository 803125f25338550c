"""A cluster of one node that asks for a token, for all tests here that join one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.helpers.nodes import TOKEN, head


@pytest.fixture(scope="package")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with head(tmp_path_factory.mktemp("cluster"), TOKEN, "--resources", '{"here": 1}') as found:
        yield found
