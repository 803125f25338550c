"""char_lm: the next character of any text, and a small transformer.

Without a file the text is prose that scikit-learn ships. The parts are contiguous, so that no window lies in two.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainable.limits import check_network
from trainable.task import Splits, Task

if TYPE_CHECKING:
    from torch import Tensor, nn

    from trainable.release.fresh import Fresh
    from trainable.text.corpus import Corpus

SHARES = {"train": 0.8, "val": 0.1, "test": 0.1}  # in the order of the text
MIN_CONTEXTS = 2  # that each part must hold


@dataclass(frozen=True)
class CharLm(Task):
    """Which character comes next? windows: (B, context + 1) int32, filled with -1 at the end of a part.

    Loss and accuracy are per character, each predicted once. The vocabulary is the train part's; a character that
    it does not have is one unknown symbol, which a model never learns to predict. The split is the same for any seed.
    """

    path: Path | None = None  # text file in UTF-8; null: prose that scikit-learn ships
    context: int = 64  # characters that the model sees at most
    width: int = 64  # of the embeddings
    depth: int = 2  # blocks
    num_heads: int = 4  # of attention in each block; they share the width
    dropout: float = 0.0

    def __post_init__(self) -> None:
        check_network(self.width, self.depth, self.dropout)
        if self.context < 2:
            raise ValueError(f"context={self.context} must be at least 2")
        if self.num_heads < 1 or self.width % self.num_heads:
            raise ValueError(f"width={self.width} must be a multiple of num_heads={self.num_heads}")

    def model(self) -> nn.Module:
        from trainable.text.corpus import UNKNOWN
        from trainable.text.transformer import Transformer

        num_tokens = UNKNOWN + 1 + len(self._corpus().vocabulary)
        return Transformer(num_tokens, self.context, self.width, self.depth, self.num_heads, self.dropout)

    def space(self) -> dict[str, Any]:
        return {
            "lr": {"log": [1e-4, 1e-1]},
            "batch_size": {"choice": [16, 32, 64]},
            "weight_decay": {"log": [1e-4, 1e0]},
            "task.width": {"choice": [32, 64, 128]},
            "task.depth": {"int": [1, 4]},
            "task.dropout": {"float": [0.0, 0.3]},
        }

    def splits(self, seed: int) -> Splits:
        corpus = self._corpus()
        return Splits(
            train=(corpus.windows("train", self.context),),
            val=(corpus.windows("val", self.context),),
            indices={name: corpus.window_starts(name, self.context) for name in ("train", "val")},
            source=corpus.vocabulary,
        )

    def test(self, seed: int) -> tuple[Tensor, ...]:
        return (self._corpus().windows("test", self.context),)

    def predict(self, model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
        # What fills a window up stands behind every character, and attention looks back only.
        outputs: Tensor = model(batch[0][:, :-1].clamp(min=0).long())
        return outputs

    def loss(self, outputs: Any, batch: tuple[Tensor, ...]) -> Tensor:
        from torch.nn import functional

        from trainable.text.corpus import NOTHING

        targets = batch[0][:, 1:].long().flatten()
        return functional.cross_entropy(outputs.flatten(0, 1), targets, reduction="sum", ignore_index=NOTHING)

    def weight(self, batch: tuple[Tensor, ...]) -> Tensor:
        return (batch[0][:, 1:] >= 0).sum()

    def metrics(self, outputs: Any, batch: tuple[Tensor, ...]) -> dict[str, Tensor]:
        return {"accuracy": (outputs.argmax(2) == batch[0][:, 1:]).sum()}

    def preparing(self, seed: int) -> dict[str, Any]:
        return {"vocabulary": self._corpus().vocabulary}

    def fresh(self, path: Path, preparing: Mapping[str, Any]) -> Fresh:
        """Any text in UTF-8; every text is its own labels."""
        from trainable.release.fresh import Fresh
        from trainable.text.corpus import numbered, read_text, windows_of

        text = read_text(path, "the fresh data of char_lm are a text file")
        if len(text) < 2:
            raise ValueError(f"{path} holds {len(text)} characters; nothing can be predicted: give a text")
        return Fresh((windows_of(numbered(text, preparing["vocabulary"]), self.context),), labelled=True)

    def features(self, batch: tuple[Tensor, ...], preparing: Mapping[str, Any]) -> Mapping[str, Tensor]:
        return {"characters": batch[0][:, 1:]}

    def code_names(self, preparing: Mapping[str, Any]) -> Mapping[str, list[str]]:
        return {"characters": ["unknown", *map(repr, preparing["vocabulary"])]}

    def _corpus(self) -> Corpus:
        from trainable.text.corpus import Corpus, read_text

        text = read_text(self.path)
        corpus = Corpus.of(text, SHARES)
        shortest = min(len(part) for part in corpus.parts.values())
        if shortest < MIN_CONTEXTS * self.context:
            needed = round(MIN_CONTEXTS * self.context / min(SHARES.values()))
            raise ValueError(
                f"{self.path or 'the text'} has {len(text):,} characters; task.context={self.context} needs "
                f"{needed:,}: give a longer text or a smaller context"
            )
        return corpus
