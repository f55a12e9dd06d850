"""How large sparse payloads of whole models are, counted on the models as built: nothing is trained.

    k = max(1, round(n density)) of every tensor; payload = header, places and values (payload/sparse.py)

Models: torchvision's ResNet-50 for ImageNet; a bidirectional 5-layer GRU with a linear layer to 29
characters, as in DeepSpeech 2 without its convolutions; the tied 2-layer LSTM of model/lstm.py for 10,000
words. DGC's sampled threshold may send up to a fifth fewer entries than k (compressor/dgc_sampled.py).

Paper: Lin, Han, Mao, Wang, Dally, "Deep Gradient Compression", ICLR 2018 (arXiv:1712.01887), as the lecture
quotes it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated

import torch
import torchvision
from torch import nn

from dgc_repro.checked import Count, checked, within
from dgc_repro.model.lstm import LSTM
from dgc_repro.payload.sparse import SparseLayout

MIB, VALUE_BYTES = 2**20, 4
CODINGS = ("int32", "auto")
"""Of places: 4 bytes each, or whatever takes the fewest bytes (16-bit distances at 0.1 %)."""
CHARACTERS, GRU_LAYERS, WORDS = 29, 5, 10_000


@checked
class Payloads:
    """``density``: the share of entries that is sent; ``gru_inputs``, ``gru_hidden``: sizes of the GRU."""

    density: Annotated[float, within(0, 1)]
    gru_inputs: Count
    gru_hidden: Count
    takes = "nothing"  # of a config's model: a component of launch/study.py

    def run(self, seed: int) -> list[dict[str, float | int | str]]:
        """A row for each model and coding, the same for every seed."""
        models: dict[str, Callable[[], nn.Module]] = {
            "resnet50": torchvision.models.resnet50,
            "deepspeech": lambda: gru(self.gru_inputs, self.gru_hidden),
            "lstm_ptb": lambda: LSTM(width=1500, tied=True).build(WORDS),
        }
        rows: list[dict[str, float | int | str]] = []
        for name, build in models.items():
            with torch.device("meta"):  # sizes alone
                sizes = tuple(p.numel() for p in build().parameters())
            gradient = VALUE_BYTES * sum(sizes)
            for coding in CODINGS:
                payload = payload_bytes(sizes, self.density, coding)
                rows.append(
                    {
                        "model": name,
                        "coding": coding,
                        "parameters": sum(sizes),
                        "tensors": len(sizes),
                        "gradient_mib": gradient / MIB,
                        "payload_mib": payload / MIB,
                        "ratio": gradient / payload,
                    }
                )
        return rows


def payload_bytes(sizes: Sequence[int], density: float, coding: str) -> int:
    """Bytes of the payload of tensors of these sizes, as the ledger counts them: filling included.
    ``coding``: of `CODINGS`."""
    counts = tuple(max(1, round(n * density)) for n in sizes)
    return SparseLayout(tuple(sizes), counts, coding).size


def gru(inputs: int, hidden: int) -> nn.Module:
    """A bidirectional GRU of 5 layers, and the characters' layer."""
    layers = nn.GRU(inputs, hidden, GRU_LAYERS, bidirectional=True)
    return nn.ModuleList([layers, nn.Linear(2 * hidden, CHARACTERS)])
