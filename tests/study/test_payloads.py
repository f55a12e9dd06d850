"""Payloads of whole models: the counted bytes against those that an exchange books."""

from __future__ import annotations

import pytest
import torch
from laws import play, simulation

from dgc_repro import TopK
from dgc_repro.selfcheck.law_settings.base import Setting
from dgc_repro.study.payloads import Payloads, gru, payload_bytes


def test_counted_bytes_are_those_in_the_ledger() -> None:
    network = gru(5, 20)
    like = {name: p.detach() for name, p in network.named_parameters()}
    setting = Setting("", TopK(density=0.01))
    exchange = simulation(setting, 2, like)
    play(exchange, setting, [{n: torch.randn(p.shape) for n, p in like.items()} for _ in range(2)])
    sizes = [p.numel() for p in like.values()]
    assert exchange.world.ledger.payload_bytes == payload_bytes(sizes, 0.01, "auto")


def test_models_have_the_sizes_that_are_printed() -> None:
    rows = {(row["model"], row["coding"]): row for row in Payloads(0.001, 161, 1274).run(0)}
    assert rows["resnet50", "auto"]["parameters"] == 25_557_032  # torchvision's documentation
    assert rows["deepspeech", "auto"]["gradient_mib"] == pytest.approx(488, abs=0.5)
    assert rows["lstm_ptb", "auto"]["parameters"] == 51_034_000  # model/lstm.py
    # 3 gates x (inputs + hidden + 2 biases), both ways; the second layer reads both ways
    first, second = 2 * 3 * 7 * (5 + 7 + 2), 4 * 2 * 3 * 7 * (14 + 7 + 2)
    assert sum(p.numel() for p in gru(5, 7).parameters()) == first + second + 14 * 29 + 29
