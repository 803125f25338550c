"""char_lm: windows of a text, a loss per character, a transformer that looks back only."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from tests.trainable.toys import train
from trainable.contract import TaskContract
from trainable.task import load_task
from trainable.tasks.char_lm import SHARES, CharLm
from trainable.text.corpus import NOTHING, UNKNOWN, Corpus
from trainable.text.transformer import Transformer

SMALL = CharLm(context=48, width=16, depth=1, num_heads=2)


class TestCharLm(TaskContract):
    task = SMALL


def spelled(corpus: Corpus, numbers: torch.Tensor) -> str:
    return "".join("?" if number == UNKNOWN else corpus.vocabulary[number - 1] for number in numbers.tolist())


@settings(max_examples=60)
@given(st.text(st.characters(codec="utf-8"), min_size=20, max_size=300), st.integers(1, 12))
def test_every_character_of_a_part_is_predicted_once_and_none_of_another(text: str, context: int) -> None:
    corpus = Corpus.of(text, SHARES)
    assert sum(len(part) for part in corpus.parts.values()) == len(text)
    bounds = [0, round(0.8 * len(text)), round(0.9 * len(text)), len(text)]
    assert corpus.vocabulary == "".join(sorted(set(text[: bounds[1]])))  # of the train part alone
    for name, start, stop in zip(SHARES, bounds, bounds[1:], strict=False):
        wanted = "".join(letter if letter in corpus.vocabulary else "?" for letter in text[start:stop])
        windows = corpus.windows(name, context)
        assert windows.shape[1] == context + 1
        targets = windows[:, 1:][windows[:, 1:] != NOTHING]
        assert len(targets) == max(0, stop - start - 1)
        known = [letter for letter in corpus.vocabulary if letter != "?"]
        if "?" not in text:
            assert spelled(corpus, targets) == wanted[1:]
        assert all(number <= len(known) + 1 for number in targets.tolist())
        for window, begin in zip(windows, corpus.window_starts(name, context), strict=True):
            length = int((window != NOTHING).sum())
            assert start <= begin
            assert begin + length <= stop
            if "?" not in text:
                assert spelled(corpus, window[:length]) == wanted[begin - start : begin - start + length]


def test_a_model_looks_back_only_and_padding_changes_nothing() -> None:
    torch.manual_seed(0)
    model = Transformer(num_tokens=11, context=12, width=16, depth=2, num_heads=4, dropout=0.0).eval()
    tokens = torch.randint(0, 11, (2, 12))
    changed = tokens.clone()
    changed[:, 7:] = (changed[:, 7:] + 1) % 11
    with torch.no_grad():
        before, after = model(tokens), model(changed)
        assert torch.allclose(before[:, :7], after[:, :7], atol=1e-6)
        assert not torch.allclose(before[:, 7:], after[:, 7:], atol=1e-3)
        assert torch.allclose(model(tokens[:, :5]), before[:, :5], atol=1e-5)


def test_a_block_is_torchs_own_attention() -> None:
    """The same weights in nn.TransformerEncoderLayer give the same numbers."""
    torch.manual_seed(0)
    model = Transformer(num_tokens=5, context=9, width=8, depth=1, num_heads=2, dropout=0.0).eval()
    block = model.blocks[0]
    torchs = nn.TransformerEncoderLayer(8, 2, 32, 0.0, "gelu", batch_first=True, norm_first=True, bias=False).eval()
    torchs.load_state_dict(
        {
            "self_attn.in_proj_weight": block.attention_in.weight,
            "self_attn.out_proj.weight": block.attention_out.weight,
            "linear1.weight": block.mlp_in.weight,
            "linear2.weight": block.mlp_out.weight,
            "norm1.weight": block.attention_norm.weight,
            "norm2.weight": block.mlp_norm.weight,
        }
    )
    hidden = torch.randn(3, 9, 8)
    mask = nn.Transformer.generate_square_subsequent_mask(9)
    with torch.no_grad():
        assert torch.allclose(block(hidden), torchs(hidden, src_mask=mask, is_causal=True), atol=1e-5)


def test_loss_and_accuracy_are_per_character() -> None:
    batch = (torch.tensor([[1, 2, 3], [2, 1, NOTHING]], dtype=torch.int32),)
    outputs = torch.zeros(2, 2, 4)
    outputs[0, 0, 2] = outputs[0, 1, 0] = outputs[1, 0, 1] = 50.0  # right, wrong, right
    outputs[1, 1, 3] = 50.0  # where nothing stands
    assert SMALL.weight(batch) == 3
    assert SMALL.loss(outputs, batch).item() == pytest.approx(50.0)
    assert SMALL.metrics(outputs, batch)["accuracy"] == 2


def test_it_learns_more_than_the_frequency_of_characters() -> None:
    task = CharLm(context=32, width=32, depth=1)
    tokens = task.splits(0).train[0][:, 1:]
    counts = torch.bincount(tokens[tokens >= 0].long()).double()
    shares = counts[counts > 0] / counts.sum()
    entropy = -(shares * shares.log()).sum().item()
    _, reports = train(task, lr=1e-2, optimizer="adamw", epochs=4)
    assert reports[-1].metrics["val_loss"] < entropy - 0.3
    assert 0.25 < reports[-1].metrics["val_accuracy"] < 0.6


def test_a_text_of_ones_own(tmp_path: Path) -> None:
    path = tmp_path / "text.txt"
    path.write_text("\ufeff" + "häß 日本 " * 200, encoding="utf-8")  # a byte order mark is no text
    splits = CharLm(path=path).splits(0)
    assert splits.fingerprint() == CharLm(path=path).splits(1).fingerprint()  # contiguous for any seed
    assert CharLm(path=path).model().head.out_features == len(set("häß 日本 ")) + 1


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", r"has 0 characters; task.context=64 needs 1,280"),
        (b"short" * 100, r"has 500 characters; task.context=64 needs 1,280: give a longer text or a smaller context"),
        ("für".encode("latin1") * 500, r"is not a text in UTF-8 .*iconv"),
        (None, r"there is no file .*text.txt; set task.path"),
    ],
)
def test_a_text_that_cannot_be_learned_from(content: bytes | None, words: str, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "text.txt").write_bytes(content)
    with pytest.raises(ValueError, match=words):
        CharLm(path=tmp_path / "text.txt").splits(0)


def test_refused_settings() -> None:
    with pytest.raises(ValueError, match="width=30 must be a multiple of num_heads=4"):
        load_task("char_lm", {"width": 30})
    with pytest.raises(ValueError, match="context=1 must be at least 2"):
        load_task("char_lm", {"context": 1})
