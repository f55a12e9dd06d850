"""Chance of a language model as GraVAC's tables have it, computed again from the texts."""

from __future__ import annotations

import math
import os
from pathlib import Path

import pytest
import torch

from dgc_repro.dataset.descriptions import Descriptions
from dgc_repro.dataset.ptb import Ptb
from dgc_repro.dataset.pydoc import Pydoc
from dgc_repro.dataset.text import Text
from dgc_repro.names import scale_of
from dgc_repro.paper.gravac.training import WORD_FREQUENCIES

REAL = os.environ.get("DGC_REPRO_DATA")


def settings(scale: str) -> dict[str, object]:
    """What GraVAC's scale says of the LSTM's text."""
    found = scale_of("gravac/lstm", scale)
    assert found is not None
    return dict(found["dataset"])


def compare(text: Text, train_size: object, test_size: object) -> None:
    known = {key[1:]: value for key, value in WORD_FREQUENCIES.items() if key[0] == text.label}
    if not known:
        pytest.skip(f"another text than the one that is known: {text.label}")
    found = known[train_size, test_size]  # type: ignore[index]
    # A word of the vocabulary that the training part lacks counts as seen once; the first word of the test
    # part is not asked for.
    counts = torch.bincount(text.train, minlength=text.num_classes).clamp(min=1).double()
    nats = -(counts / counts.sum()).log()[text.test[1:]]
    assert math.exp(float(nats.mean())) == pytest.approx(found, abs=0.05)


def test_of_the_embedded_descriptions() -> None:
    compare(Descriptions().load(), None, None)


def test_of_the_embedded_topics_as_scale_quick_has_them() -> None:
    sizes = settings("quick")
    compare(Pydoc(**sizes).load(), sizes["train_size"], sizes["test_size"])  # type: ignore[arg-type]


@pytest.mark.skipif(REAL is None, reason="no real data here; name its folder in DGC_REPRO_DATA")
def test_of_the_penn_treebank_as_scale_small_has_it() -> None:
    sizes = settings("small")
    text = Ptb(root=str(Path(str(REAL)) / "ptb"), **sizes).load()  # type: ignore[arg-type]
    compare(text, sizes["train_size"], sizes["test_size"])
