"""The small networks: the CNN of Shallue et al. and the transformer language model."""

from __future__ import annotations

import math

import pytest
import torch
from tiny_run import TEXT, built, play

from dgc_repro.model.cnn import CNN
from dgc_repro.model.transformer import Transformer, positions


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


def test_the_layers_of_a_transformer_begin_with_different_weights() -> None:
    one, two = Transformer(width=8, layers=2, heads=1).build(5).layers
    assert not torch.equal(one.linear1.weight, two.linear1.weight)


def test_positions_are_the_papers() -> None:
    """Section 3.5: PE(p, 2i) = sin(p / 10000^(2i / d)), PE(p, 2i + 1) the cosine."""
    found = positions(7, 6)
    for p, i in ((0, 0), (3, 1), (6, 2)):
        angle = p / 10_000 ** (2 * i / 6)
        assert found[p, 2 * i] == pytest.approx(math.sin(angle), abs=1e-6)
        assert found[p, 2 * i + 1] == pytest.approx(math.cos(angle), abs=1e-6)


def test_a_width_that_heads_do_not_divide_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^width: a multiple of 2 x model.heads = 8, got 20$"):
        Transformer(width=20, heads=4)


def test_both_train() -> None:
    images = play(built("model=cnn", "model.width=4", "model.hidden=32", "compressor=topk"))
    text = [one for one in TEXT if not one.startswith(("model", "optimizer"))]
    words = play(
        built(*text, "model=transformer", "model.width=8", "model.heads=2", "compressor=topk")
    )
    for told in (images, words):
        assert told.finished
        assert told.losses[-1] < told.losses[0]
