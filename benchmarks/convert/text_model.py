"""A small Transformer that predicts the next character."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.convert.grammar import ALPHABET


class CharTransformer(nn.Module):
    """Characters, their places, `nn.TransformerEncoderLayer`s that look back alone, and logits.

    Args:
        width: D.
        layers: How many.
        hidden: Units of a feed-forward layer.
        context: Characters of a window.
        heads: Of attention.
    """

    def __init__(self, width: int, layers: int, hidden: int, context: int, heads: int = 4) -> None:
        super().__init__()
        self.characters = nn.Embedding(len(ALPHABET), width)
        self.places_LD = nn.Parameter(0.02 * torch.randn(context, width))
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(
                width, heads, hidden, 0.0, F.gelu, batch_first=True, norm_first=True
            )
            for _ in range(layers)
        )
        self.norm = nn.LayerNorm(width)
        self.logits = nn.Linear(width, len(ALPHABET))
        nn.init.normal_(self.characters.weight, std=0.02)
        self.register_buffer("past_LL", nn.Transformer.generate_square_subsequent_mask(context))

    def forward(self, text_BL: Tensor) -> Tensor:
        """Characters' numbers `[B, L]` → logits of each next one, `[B, L, letters]`."""
        x_BLD = self.characters(text_BL) + self.places_LD
        for layer in self.layers:
            x_BLD = layer(x_BLD, src_mask=self.past_LL, is_causal=True)
        return self.logits(self.norm(x_BLD))
