"""The LSTM language model: the papers' sizes, and a hidden state that goes in and comes out."""

from __future__ import annotations

import torch
from torch import nn

from dgc_repro.model.lstm import LSTM


def parameters(network: nn.Module) -> int:
    return sum(p.numel() for p in network.parameters())


def on_meta(settings: LSTM, words: int) -> nn.Module:
    with torch.device("meta"):
        return settings.build(words)


def test_gravacs_network_has_66034000_parameters() -> None:
    network = on_meta(LSTM(), 10_000)
    sizes = {name: parameters(module) for name, module in network.named_children()}
    recurrence = 2 * (4 * 1500 * (1500 + 1500) + 2 * 4 * 1500)
    assert sizes == {
        "embedding": 15_000_000, "lstm": recurrence, "decoder": 15_010_000, "dropout": 0
    }  # fmt: skip
    assert recurrence == 36_024_000
    assert parameters(network) == 66_034_000
    # the paper prints 252 "MB", which are MiB
    assert round(66_034_000 * 4 / 2**20) == 252


def test_tied_it_is_lin_et_als_network_of_194_7_mebibytes() -> None:
    network = on_meta(LSTM(tied=True), 10_000)
    assert parameters(network) == 51_034_000
    # Lin et al., table 3, prints 194.68 MB as the size of the baseline's gradient
    assert round(51_034_000 * 4 / 2**20, 2) == 194.68
    network = LSTM(width=8, tied=True).build(50)
    assert network.get_parameter("decoder.weight") is network.get_parameter("embedding.weight")


def test_two_halves_with_the_state_carried_are_the_whole() -> None:
    torch.manual_seed(0)
    network = LSTM(width=12, layers=2).build(40).eval()
    tokens = torch.randint(40, (3, 10))
    whole, last = network(tokens)
    first, carried = network(tokens[:, :4])
    second, ended = network(tokens[:, 4:], carried)
    assert whole.shape == (3, 10, 40)
    # the same recurrence in two calls; the matrix products of other shapes may sum in another order
    torch.testing.assert_close(torch.cat([first, second], 1), whole, rtol=1e-5, atol=1e-6)
    for here, there in zip(ended, last, strict=True):
        assert here.shape == (2, 3, 12)
        torch.testing.assert_close(here, there, rtol=1e-5, atol=1e-6)
    from_zeros, _ = network(tokens[:, 4:])
    assert not torch.allclose(from_zeros, second, atol=1e-4)


def test_dropout_acts_in_training_and_not_in_evaluation() -> None:
    torch.manual_seed(0)
    tokens = torch.randint(40, (2, 5))
    with_dropout = LSTM(width=12, dropout=0.5).build(40)
    without = LSTM(width=12, dropout=0.0).build(40)
    assert not torch.equal(with_dropout(tokens)[0], with_dropout(tokens)[0])
    assert torch.equal(without(tokens)[0], without(tokens)[0])
    with_dropout.eval()
    assert torch.equal(with_dropout(tokens)[0], with_dropout(tokens)[0])
