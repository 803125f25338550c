"""A text in three contiguous parts, as numbers of its characters, and windows of a part.

The vocabulary is the train part's; any other character is one and the same unknown symbol. Knows no task.
"""

from __future__ import annotations

import importlib.util
import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

UNKNOWN = 0  # the number of every character that the train part does not have
NOTHING = -1  # fills the last window of a part: no character, counts for nothing


def read_text(path: Path | None, advice: str = "set task.path to a text file") -> str:
    """The text of a file; without one, the descriptions of its data sets that scikit-learn ships (English prose).

    Raises ValueError where there is no such file, or it is not UTF-8.
    """
    if path is None:
        return _descriptions()
    path = path.expanduser()
    if not path.is_file():
        raise ValueError(f"there is no file {path.absolute()}; {advice}")
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{path.absolute()} is not a text in UTF-8 ({error}); convert it, e.g. iconv -f latin1 -t utf-8"
        ) from error


def _descriptions() -> str:
    package = importlib.util.find_spec("sklearn")
    if package is None or not package.submodule_search_locations:
        raise ValueError("without task.path the text is scikit-learn's, which is not installed; set task.path")
    folder = Path(package.submodule_search_locations[0], "datasets", "descr")
    return "".join(path.read_text(encoding="utf-8") for path in sorted(folder.glob("*.rst")))


@dataclass(frozen=True)
class Corpus:
    """parts: (N,) int32 of each part, in the order of the text. `vocabulary`: its characters, from number 1 on."""

    parts: Mapping[str, Tensor]
    starts: Mapping[str, int]
    vocabulary: str

    @classmethod
    def of(cls, text: str, shares: Mapping[str, float]) -> Corpus:
        """`text` cut into contiguous parts of these shares; the first is the train part."""
        codes = _code_points(text)
        bounds = [0, *(round(share * len(codes)) for share in itertools.accumulate(shares.values()))]
        known = codes[: bounds[1]].unique(sorted=True)
        numbers = _numbers(codes, known)
        parts = {name: numbers[start:stop] for name, start, stop in zip(shares, bounds, bounds[1:], strict=False)}
        return cls(parts, dict(zip(shares, bounds, strict=False)), "".join(map(chr, known.tolist())))

    def windows(self, name: str, context: int) -> Tensor:
        """(M, context + 1) int32: each window's last character is the next one's first, so that each is predicted once.

        No window reaches into another part; the last one is filled up with `NOTHING`.
        """
        return windows_of(self.parts[name], context)

    def window_starts(self, name: str, context: int) -> list[int]:
        """Where in the text each window begins."""
        first = self.starts[name]
        return list(range(first, first + len(self.windows(name, context)) * context, context))


def windows_of(numbers: Tensor, context: int) -> Tensor:
    """(M, context + 1) int32 of (N,): see `Corpus.windows`."""
    num_windows = max(1, -(-(len(numbers) - 1) // context))
    filled = torch.nn.functional.pad(numbers, (0, num_windows * context + 1 - len(numbers)), value=NOTHING)
    return filled.unfold(0, context + 1, context).contiguous()


def numbered(text: str, vocabulary: str) -> Tensor:
    """(N,) int32: the number of each character in a vocabulary of earlier."""
    return _numbers(_code_points(text), _code_points(vocabulary))


def _code_points(text: str) -> Tensor:
    encoded = bytearray(text.encode("utf-32-le"))
    return torch.frombuffer(encoded, dtype=torch.int32) if text else torch.zeros(0, dtype=torch.int32)


def _numbers(codes: Tensor, known: Tensor) -> Tensor:
    """The place of each code among the `known`, which are in order."""
    places = torch.searchsorted(known, codes, out_int32=True)
    found = known[places.clamp(max=len(known) - 1)] == codes if len(known) else torch.zeros(0, dtype=torch.bool)
    return torch.where(found, places + UNKNOWN + 1, UNKNOWN).int()
