"""GPT as in nanoGPT: a decoder-only transformer over characters or words, of any size.

Papers: Radford, Wu, Child, Luan, Amodei, Sutskever, "Language models are unsupervised multitask learners",
2019 (GPT-2): normalization before each part and at the end, learned positions, residual projections that
begin 1 / sqrt(2 layers) smaller. Shape, initialization and the lack of biases are those of nanoGPT (Karpathy,
2022) with ``bias=False``. Its ``shakespeare_char`` on a CPU has 4 layers, 4 heads, width 128, context 64 and
no dropout: 0.80 M parameters, validation loss 1.88 nats a character after 2,000 iterations.

Differs: nothing is known to differ. Embedding and decoder share one matrix.

The model sees the tokens of one step (``dataset.bptt``) and carries nothing on to the next step.

Legend: B = columns of text, T = tokens of a step, V = vocabulary, H = width.
"""

from __future__ import annotations

import math
from typing import Annotated, ClassVar

import torch.nn.functional as F
from torch import Tensor, nn

from dgc_repro.checked import Count, checked, within
from dgc_repro.model.lstm import MOST_LAYERS

INIT_STD = 0.02


@checked
class GPT:
    """Settings of a GPT.

    width: of the embedding and of every layer, a multiple of heads. layers: of attention. heads: of each
    layer. context: the most tokens of a step; `dataset.bptt` must not exceed it. dropout: probability of a
    zero, after the embedding and at the end of both parts of a layer. num_classes: the vocabulary; None takes
    the data set's.

    Raises ValueError for a value out of range.
    """

    width: Count = 128
    layers: Annotated[int, within(1, MOST_LAYERS)] = 4
    heads: Count = 4
    context: Count = 64
    dropout: Annotated[float, within(0, below=1), "it is the share that is zeroed"] = 0.0
    num_classes: Annotated[int, within(2), "null takes the vocabulary of the dataset"] | None = None

    reads: ClassVar[str] = "words"

    def __post_init__(self) -> None:
        if self.width % self.heads:
            raise ValueError(f"width: a multiple of model.heads = {self.heads}, got {self.width}")

    def build(self, num_classes: int) -> nn.Module:
        """Return a freshly initialized network; `num_classes` is the data set's vocabulary. The field of the
        same name wins over it."""
        tokens = num_classes if self.num_classes is None else self.num_classes
        return _GPT(tokens, self.width, self.layers, self.heads, self.context, self.dropout)


class _GPT(nn.Module):
    def __init__(
        self, tokens: int, width: int, layers: int, heads: int, context: int, dropout: float
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(tokens, width)
        self.positions = nn.Embedding(context, width)
        self.dropout = nn.Dropout(dropout)
        self.layers = nn.ModuleList(_Layer(width, heads, dropout) for _ in range(layers))
        self.norm = nn.LayerNorm(width, bias=False)
        self.decoder = nn.Linear(width, tokens, bias=False)
        for name, parameter in self.named_parameters():
            if parameter.ndim == 2:
                small = name.endswith("projection.weight")
                nn.init.normal_(parameter, std=INIT_STD / math.sqrt(2 * layers if small else 1))
        self.decoder.weight = self.embedding.weight

    def forward(self, tokens: Tensor, state: object = None) -> tuple[Tensor, tuple[()]]:
        """i64[B,T] -> (logits f32[B,T,V], nothing to carry on)."""
        length, context = tokens.shape[1], self.positions.num_embeddings
        if length > context:
            raise ValueError(
                f"model.context: at least dataset.bptt, which is {length} tokens, got {context}"
            )
        hidden = self.embedding(tokens) + self.positions.weight[:length]
        hidden = self.dropout(hidden)
        for layer in self.layers:
            hidden = layer(hidden)
        return self.decoder(self.norm(hidden)), ()


class _Layer(nn.Module):
    """Causal self-attention and a feed-forward part, each added to its input."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.norm_attention = nn.LayerNorm(width, bias=False)
        self.attention = nn.Linear(width, 3 * width, bias=False)
        self.attention_projection = nn.Linear(width, width, bias=False)
        self.norm_feed_forward = nn.LayerNorm(width, bias=False)
        self.feed_forward = nn.Linear(width, 4 * width, bias=False)
        self.feed_forward_projection = nn.Linear(4 * width, width, bias=False)
        self.dropout = nn.Dropout(dropout)
        self.dropout_share = dropout

    def forward(self, hidden: Tensor) -> Tensor:
        """f32[B,T,H] -> f32[B,T,H]."""
        attended = self.attention_projection(self._attend(self.norm_attention(hidden)))
        hidden = hidden + self.dropout(attended)
        wide = F.gelu(self.feed_forward(self.norm_feed_forward(hidden)))
        added: Tensor = self.dropout(self.feed_forward_projection(wide))
        return hidden + added

    def _attend(self, hidden: Tensor) -> Tensor:
        columns, length, width = hidden.shape
        query, key, value = (
            part.view(columns, length, self.heads, width // self.heads).transpose(1, 2)
            for part in self.attention(hidden).split(width, dim=2)
        )
        share = self.dropout_share if self.training else 0.0
        mixed = F.scaled_dot_product_attention(query, key, value, dropout_p=share, is_causal=True)
        return mixed.transpose(1, 2).reshape(columns, length, width)
