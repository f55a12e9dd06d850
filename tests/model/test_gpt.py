"""The GPT, with nanoGPT's shape and size, against the formulas written out one position after the other; and
the small transformer."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dgc_repro.model.gpt import GPT
from dgc_repro.model.transformer import Transformer

SMALL = GPT(width=12, layers=2, heads=3, context=10)
WORDS = 7


def normalized(x: Tensor, weight: Tensor) -> Tensor:
    return (x - x.mean()) / torch.sqrt(x.var(correction=0) + 1e-5) * weight


def written_out(network: nn.Module, tokens: list[int], heads: int) -> Tensor:
    """Logits f64[T,V] of one text, by the network's weights in float64."""
    w = {name: value.double() for name, value in network.state_dict().items()}
    width = w["embedding.weight"].shape[1]
    size = width // heads
    hidden = [w["embedding.weight"][t] + w["positions.weight"][i] for i, t in enumerate(tokens)]
    for number in range(sum(name.endswith(".attention.weight") for name in w)):
        part = {
            k.removeprefix(f"layers.{number}."): v for k, v in w.items() if f"layers.{number}." in k
        }
        rows = [
            part["attention.weight"] @ normalized(x, part["norm_attention.weight"]) for x in hidden
        ]
        attended = []
        for i in range(len(tokens)):
            heads_out = []
            for head in range(heads):
                own = slice(head * size, head * size + size)
                q = rows[i][:width][own]
                k = [rows[j][width : 2 * width][own] for j in range(i + 1)]  # itself and earlier
                v = [rows[j][2 * width :][own] for j in range(i + 1)]
                scores = torch.stack([q @ key / math.sqrt(size) for key in k])
                share = torch.exp(scores) / torch.exp(scores).sum()
                heads_out.append(sum(s * value for s, value in zip(share, v, strict=True)))
            attended.append(torch.cat(heads_out))  # type: ignore[arg-type]
        hidden = [
            x + part["attention_projection.weight"] @ a
            for x, a in zip(hidden, attended, strict=True)
        ]
        for i, x in enumerate(hidden):
            wide = part["feed_forward.weight"] @ normalized(x, part["norm_feed_forward.weight"])
            wide = wide * 0.5 * (1 + torch.erf(wide / math.sqrt(2)))
            hidden[i] = x + part["feed_forward_projection.weight"] @ wide
    return torch.stack([w["embedding.weight"] @ normalized(x, w["norm.weight"]) for x in hidden])


@pytest.mark.parametrize("length", [1, 6, 10])
def test_it_is_the_formulas(length: int) -> None:
    torch.manual_seed(0)
    network = SMALL.build(WORDS)
    for parameter in network.parameters():  # norms too, so that their places count
        nn.init.normal_(parameter, std=0.5)
    tokens = torch.randint(WORDS, (3, length))
    logits, carried = network(tokens)
    assert carried == ()
    expected = torch.stack([written_out(network, row.tolist(), SMALL.heads) for row in tokens])
    # float32 against float64: logits of about 10, sums of 12 to 48 products, two layers deep
    torch.testing.assert_close(logits.double(), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("model", [GPT(), Transformer(width=16, layers=2, heads=2)])
def test_a_later_token_changes_no_earlier_logits(model: GPT | Transformer) -> None:
    torch.manual_seed(0)
    network = model.build(65).eval()
    tokens = torch.randint(65, (2, 64))
    before, carried = network(tokens)
    assert (before.shape, carried) == ((2, 64, 65), ())
    for place in (0, 31, 63):
        changed = tokens.clone()
        changed[:, place] = (changed[:, place] + 1) % 65
        after = network(changed)[0]
        assert torch.equal(after[:, :place], before[:, :place])
        assert not torch.allclose(after[:, place], before[:, place])


def test_nanogpts_sizes_have_800_thousand_parameters() -> None:
    network = GPT().build(65)
    layer = 12 * 128**2 + 2 * 128  # no biases
    expected = {"embedding": 65 * 128, "positions": 64 * 128, "layers": 4 * layer, "norm": 128}
    sizes = {
        name: sum(p.numel() for p in module.parameters())
        for name, module in network.named_children()
    }
    assert {name: sizes[name] for name in expected} == expected
    total = sum(p.numel() for p in network.parameters())
    assert total == sum(expected.values()) == 804_096
    assert round((total - 64 * 128) / 1e6, 2) == 0.80  # nanoGPT prints it without the positions


def test_it_begins_as_nanogpt_does() -> None:
    torch.manual_seed(0)
    network = GPT(layers=8).build(65)
    for name, parameter in network.named_parameters():
        if parameter.ndim == 1:
            assert torch.equal(parameter, torch.ones_like(parameter)), name
        else:
            std = 0.02 / (4 if name.endswith("projection.weight") else 1)  # sqrt(2 * 8)
            # 8,192 draws at least: the standard deviation's own is 0.8 %
            assert parameter.std().item() == pytest.approx(std, rel=0.04), name
    loss = F.cross_entropy(
        network(torch.randint(65, (4, 64)))[0].flatten(0, 1), torch.arange(256) % 65
    )
    assert loss.item() == pytest.approx(math.log(65), rel=0.02)  # it knows nothing


def test_sizes_that_do_not_fit_are_said() -> None:
    with pytest.raises(ValueError, match=r"^width: a multiple of model\.heads = 5, got 12"):
        GPT(width=12, heads=5)
    with pytest.raises(ValueError, match=r"^model\.context: at least .* 11 tokens, got 10"):
        SMALL.build(WORDS)(torch.zeros(1, 11, dtype=torch.int64))
