"""What Ray prints about its nodes, in one line each: the death of a node comes with pages of its inner state.

Knows nothing of what else is printed, and lets it through.
"""

from __future__ import annotations

import re
from typing import Any, TextIO, cast

_RAYS = re.compile(r"(\x1b\[\d+m)?\(raylet[^)]*\)")
_REST = re.compile(r"\s*(Possible reasons include|Last \d+ lines|To find more information)")


class RaysWords:
    """A stream in front of another that shortens Ray's own messages; each comes in one write."""

    def __init__(self, behind: TextIO) -> None:
        self._behind = behind

    def write(self, text: str) -> int:
        if _RAYS.match(text):
            first, newline, _ = text.partition("\n")
            self._behind.write(_REST.split(first)[0] + newline)
            return len(text)
        return self._behind.write(text)

    def __getattr__(self, name: str) -> Any:  # all else that a stream has
        return getattr(self._behind, name)


def shortened(behind: TextIO) -> TextIO:
    return cast(TextIO, RaysWords(behind))
