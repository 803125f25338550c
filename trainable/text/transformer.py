"""A small decoder-only transformer (GPT-2's shape with pre-norm blocks). Knows no text."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional


class Transformer(nn.Module):
    """tokens: (B, T) long, T <= context, to logits (B, T, num_tokens): each position sees itself and those before."""

    def __init__(self, num_tokens: int, context: int, width: int, depth: int, num_heads: int, dropout: float) -> None:
        super().__init__()
        self.tokens = nn.Embedding(num_tokens, width)
        self.positions = nn.Embedding(context, width)
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.Sequential(*(Block(width, num_heads, dropout) for _ in range(depth)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, num_tokens, bias=False)
        for module in self.modules():  # GPT-2's: torch's own embeddings are 50 times as large
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=0.02)
        for block in self.blocks:  # so that the sum over the blocks does not grow with their number
            assert isinstance(block, Block)
            for last in (block.attention_out, block.mlp_out):
                nn.init.normal_(last.weight, std=0.02 / (2 * depth) ** 0.5)

    def forward(self, tokens: Tensor) -> Tensor:
        positions = self.positions.weight[: tokens.shape[1]]
        hidden = self.dropout(self.tokens(tokens) + positions)
        logits: Tensor = self.head(self.norm(self.blocks(hidden)))
        return logits


class Block(nn.Module):
    """Causal self-attention, then a network of each position by itself; both added to what comes in."""

    def __init__(self, width: int, num_heads: int, dropout: float) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.attention_norm = nn.LayerNorm(width)
        self.attention_in = nn.Linear(width, 3 * width, bias=False)
        self.attention_out = nn.Linear(width, width, bias=False)
        self.mlp_norm = nn.LayerNorm(width)
        self.mlp_in = nn.Linear(width, 4 * width, bias=False)
        self.mlp_out = nn.Linear(4 * width, width, bias=False)
        self.dropout = nn.Dropout(dropout)

    def forward(self, hidden: Tensor) -> Tensor:
        hidden = hidden + self.dropout(self.attention_out(self._attention(self.attention_norm(hidden))))
        inner = functional.gelu(self.mlp_in(self.mlp_norm(hidden)))
        result: Tensor = hidden + self.dropout(self.mlp_out(inner))
        return result

    def _attention(self, hidden: Tensor) -> Tensor:
        batch, length, width = hidden.shape
        heads = self.attention_in(hidden).view(batch, length, 3, self.num_heads, width // self.num_heads)
        query, key, value = heads.permute(2, 0, 3, 1, 4)  # each (B, heads, T, width / heads)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return mixed.transpose(1, 2).reshape(batch, length, width)
