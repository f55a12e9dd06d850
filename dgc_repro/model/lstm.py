"""The word-level LSTM language model of the compression papers, of any width.

Paper: Zaremba, Sutskever, Vinyals, "Recurrent Neural Network Regularization", 2014,
arXiv:1409.2329, sections 3 and 4.1 (the "large" model: 2 layers, 1500 wide, dropout 0.65 on the
non-recurrent connections). GraVAC (IEEE CLOUD 2023) and Lin et al. (arXiv:1712.01887, section 4.2)
train networks of this shape on the Penn Treebank.

Differs: the recurrence is torch's `nn.LSTM`, which has two bias vectors for each gate where the
paper's equations have one; GraVAC's 251.9 MiB are matched with both. Initialization is silent in
both papers: embedding and decoder uniform in +-0.1, decoder bias 0 (as PyTorch's own
word-language-model example), the recurrence torch's default.

Parameters at vocabulary 10,000 and width 1500: 66,034,000 (251.9 MiB, GraVAC's), of which
embedding 15,000,000, recurrence 36,024,000, decoder 15,010,000; tied 51,034,000 (194.7 MiB,
Lin et al.'s).

Legend: B = columns of text, T = tokens of a step, V = vocabulary, L = layers, H = width.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

from torch import Tensor, nn

from dgc_repro.checked import Count, checked, within

INIT_RANGE = 0.1
MOST_LAYERS = 1000  # each is built one after the other
State = tuple[Tensor, Tensor]  # hidden and cell state, f32[L,B,H] each


@checked
class LSTM:
    """Settings of an LSTM language model.

    width: of the embedding and of every layer. layers: of the LSTM. dropout: probability of a zero after
    the embedding, between layers and before the decoder. tied: the decoder's matrix is the embedding's.
    num_classes: words of the vocabulary; None takes the data set's.

    Raises ValueError for a value out of range.
    """

    width: Annotated[Count, "1500 is the papers'"] = 1500
    layers: Annotated[int, within(1, MOST_LAYERS), "2 are the papers'"] = 2
    dropout: Annotated[float, within(0, below=1), "it is the share that is zeroed"] = 0.65
    tied: bool = False
    num_classes: Annotated[int, within(2), "null takes the vocabulary of the dataset"] | None = None

    reads: ClassVar[str] = "words"

    def build(self, num_classes: int) -> nn.Module:
        """Return a freshly initialized network; `num_classes` is the data set's vocabulary.

        The field of the same name wins over it. Initialization draws from torch's global generator.
        """
        words = num_classes if self.num_classes is None else self.num_classes
        return _LSTM(words, self.width, self.layers, self.dropout, self.tied)


class _LSTM(nn.Module):
    """Embedding, LSTM, decoder. The hidden state goes in as an argument and comes out as a value."""

    def __init__(self, words: int, width: int, layers: int, dropout: float, tied: bool) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, width)
        # torch's dropout of nn.LSTM lies between layers, and warns where there is only one
        between = dropout if layers > 1 else 0.0
        self.lstm = nn.LSTM(width, width, layers, dropout=between, batch_first=True)
        self.decoder = nn.Linear(width, words)
        self.dropout = nn.Dropout(dropout)
        nn.init.uniform_(self.embedding.weight, -INIT_RANGE, INIT_RANGE)
        nn.init.uniform_(self.decoder.weight, -INIT_RANGE, INIT_RANGE)
        nn.init.zeros_(self.decoder.bias)
        if tied:
            self.decoder.weight = self.embedding.weight

    def forward(self, tokens: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        """(i64[B,T], state or None for zeros) -> (logits f32[B,T,V], state after the last token).

        The state returned still hangs on the graph: who carries it on detaches it.
        """
        embedded = self.dropout(self.embedding(tokens))
        outputs, state = self.lstm(embedded, state)
        return self.decoder(self.dropout(outputs)), state
