"""A word-level transformer language model of any size.

Paper: Vaswani et al., "Attention is all you need", 2017, arXiv:1706.03762, as a language model: a stack of
self-attention layers that see earlier words only, with the sinusoidal positions of section 3.5.

Differs: the layers normalize their input and not their output (Xiong et al., 2020, arXiv:2002.04745), which
trains without a warm-up. Embedding and decoder share no weights. Initialization: torch's; the embedding
uniform in +-0.1 and the decoder's bias 0, as for the LSTM.

The model sees the words of one step (``dataset.bptt``) and carries nothing on to the next step.

Legend: B = columns of text, T = tokens of a step, V = vocabulary, H = width.
"""

from __future__ import annotations

import math
from typing import Annotated, ClassVar

import torch
from torch import Tensor, nn

from dgc_repro.checked import Count, checked, within
from dgc_repro.model.lstm import INIT_RANGE, MOST_LAYERS


@checked
class Transformer:
    """Settings of a transformer language model.

    width: of the embedding and of every layer, a multiple of 2 heads. layers: of attention. heads: of each
    layer. The feed-forward part is 4 widths wide. dropout: probability of a zero, after the embedding and in
    every layer. num_classes: words of the vocabulary; None takes the data set's.

    Raises ValueError for a value out of range.
    """

    width: Count = 256
    layers: Annotated[int, within(1, MOST_LAYERS)] = 2
    heads: Count = 4
    dropout: Annotated[float, within(0, below=1), "it is the share that is zeroed"] = 0.1
    num_classes: Annotated[int, within(2), "null takes the vocabulary of the dataset"] | None = None

    reads: ClassVar[str] = "words"

    def __post_init__(self) -> None:
        if self.width % (2 * self.heads):
            raise ValueError(
                f"width: a multiple of 2 x model.heads = {2 * self.heads}, got {self.width}"
            )

    def build(self, num_classes: int) -> nn.Module:
        """Return a freshly initialized network; `num_classes` is the data set's vocabulary. The field of the
        same name wins over it."""
        words = num_classes if self.num_classes is None else self.num_classes
        return _Transformer(words, self.width, self.layers, self.heads, self.dropout)


class _Transformer(nn.Module):
    """Embedding, attention layers, decoder."""

    def __init__(self, words: int, width: int, layers: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, width)
        # nn.TransformerEncoder would begin with the same weights in every layer.
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(
                width, heads, 4 * width, dropout, batch_first=True, norm_first=True
            )
            for _ in range(layers)
        )
        self.norm = nn.LayerNorm(width)
        self.decoder = nn.Linear(width, words)
        self.dropout = nn.Dropout(dropout)
        nn.init.uniform_(self.embedding.weight, -INIT_RANGE, INIT_RANGE)
        nn.init.zeros_(self.decoder.bias)

    def forward(self, tokens: Tensor, state: object = None) -> tuple[Tensor, tuple[()]]:
        """i64[B,T] -> (logits f32[B,T,V], nothing to carry on)."""
        embedded = self.embedding(tokens)
        width, length = embedded.shape[-1], tokens.shape[1]
        embedded = embedded * math.sqrt(width) + positions(length, width, tokens.device)
        mask = nn.Transformer.generate_square_subsequent_mask(length, tokens.device)
        hidden = self.dropout(embedded)
        for layer in self.layers:
            hidden = layer(hidden, mask, is_causal=True)
        return self.decoder(self.norm(hidden)), ()


def positions(length: int, width: int, device: torch.device | None = None) -> Tensor:
    """Sines and cosines of section 3.5, f32[length,width]."""
    rates = torch.exp(-math.log(1e4) * torch.arange(0, width, 2, device=device) / width)
    angles = torch.arange(length, device=device)[:, None] * rates
    return torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(1)
