"""The small networks: the CNN of Shallue et al. and the transformer language model."""

from __future__ import annotations

import pytest
import torch

from dgc_repro.model.cnn import CNN
from dgc_repro.model.transformer import Transformer


def test_the_papers_cnn_has_4259274_parameters() -> None:
    with torch.device("meta"):
        network = CNN().build(10)
    convolutions = 3 * 32 * 25 + 32 + 32 * 64 * 25 + 64
    head = 64 * 8 * 8 * 1024 + 1024 + 1024 * 10 + 10
    assert sum(p.numel() for p in network.parameters()) == convolutions + head == 4_259_274


@pytest.mark.parametrize("layers", [1, 3, 5])
def test_a_cnn_of_any_depth_reads_images(layers: int) -> None:
    network = CNN(width=4, layers=layers, hidden=8, dropout=0.5).build(7)
    assert network(torch.randn(2, 3, 32, 32)).shape == (2, 7)


def test_a_transformer_sees_earlier_words_only() -> None:
    torch.manual_seed(0)
    network = Transformer(width=16, layers=2, heads=2).build(30).eval()
    tokens = torch.randint(30, (2, 9))
    logits, carried = network(tokens)
    assert logits.shape == (2, 9, 30)
    assert carried == ()
    changed = tokens.clone()
    changed[:, 5] = (tokens[:, 5] + 1) % 30
    other, _ = network(changed)
    torch.testing.assert_close(other[:, :5], logits[:, :5])
    assert not torch.allclose(other[:, 5:], logits[:, 5:])
