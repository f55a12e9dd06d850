"""Bytes of whole models and of MLS-Bench's methods: the counted ones against those that an exchange books."""

from __future__ import annotations

import math
from collections.abc import Mapping

import pytest
import torch
from laws import play, simulation
from numeric import encoded
from torch import Tensor

from dgc_repro import QSGD, TopK
from dgc_repro.compressor.ef_signsgd import EFSignSGD
from dgc_repro.compressor.interface import Compressor
from dgc_repro.compressor.qsgd import elias_bits
from dgc_repro.exchange.ledger import Ledger
from dgc_repro.selfcheck.law_settings.base import Setting
from dgc_repro.study.given import Tensors
from dgc_repro.study.nominal import Nominal, elias_bytes
from dgc_repro.study.payloads import Payloads, gru, payload_bytes


def booked(compressor: Compressor, like: Mapping[str, Tensor]) -> Ledger:
    """The ledger after one step of two workers."""
    setting = Setting("", compressor)
    exchange = simulation(setting, 2, like)
    play(exchange, setting, [{n: torch.randn(x.shape) for n, x in like.items()} for _ in range(2)])
    return exchange.world.ledger


def test_counted_bytes_are_those_in_the_ledger() -> None:
    like = {name: p.detach() for name, p in gru(5, 20).named_parameters()}
    counted = payload_bytes([p.numel() for p in like.values()], 0.01, "auto")
    assert booked(TopK(density=0.01), like).payload_bytes == counted


def test_models_have_the_sizes_that_are_printed() -> None:
    rows = {(row["model"], row["coding"]): row for row in Payloads(0.001, 161, 1274).run(0)}
    assert rows["resnet50", "auto"]["parameters"] == 25_557_032  # torchvision's documentation
    assert rows["deepspeech", "auto"]["gradient_mib"] == pytest.approx(488, abs=0.5)
    assert rows["lstm_ptb", "auto"]["parameters"] == 51_034_000  # model/lstm.py
    # 3 gates x (inputs + hidden + 2 biases), both ways; the second layer reads both ways
    first, second = 2 * 3 * 7 * (5 + 7 + 2), 4 * 2 * 3 * 7 * (14 + 7 + 2)
    assert sum(p.numel() for p in gru(5, 7).parameters()) == first + second + 14 * 29 + 29


# Methods of MLS-Bench.

SIZES = (400, 16, 7, 3000)  # k has no rounding here: the task rounds down, our top-k to the nearest
QSGD64 = QSGD(levels=64, bucket=None)
STUDY = Nominal(0.01, 64, [2, 8])


@pytest.mark.parametrize(
    ("method", "compressor"),
    [("topk", TopK(density=0.01)), ("qsgd", QSGD64), ("signsgd", EFSignSGD())],
)
def test_payload_and_wire_are_those_in_the_ledger(method: str, compressor: Compressor) -> None:
    ledger = booked(compressor, {str(i): torch.randn(n) for i, n in enumerate(SIZES)})
    rows = {(r["method"], r["workers"]): r for r in STUDY.run(0, Tensors("", SIZES))}
    assert rows[method, 2]["payload_bytes"] == ledger.payload_bytes
    assert rows[method, 2]["wire_bytes"] == ledger.metrics()["comm/wire_bytes"]
    assert rows[method, 8]["wire_bytes"] == 7 * ledger.payload_bytes


def test_returned_tensors_are_those_of_the_tasks_code() -> None:
    rows = {r["method"]: r for r in STUDY.run(0, Tensors("", SIZES)) if r["workers"] == 8}
    assert rows["topk"]["values"] == 4 + 1 + 1 + 30  # at least one value of each tensor
    assert rows["topk"]["tensor_bytes"] == 36 * (4 + 8)
    assert rows["qsgd"]["tensor_bytes"] == 2 * sum(SIZES) + 4 * 4
    assert rows["signsgd"]["tensor_bytes"] == sum(SIZES) + 4 * 4
    assert rows["dense"]["wire_bytes"] == 2 * 7 / 8 * 4 * sum(SIZES)


def test_elias_bytes_are_those_of_the_compressors_codes() -> None:
    sizes = (1000, 20_000, 9)
    values = [torch.randn(n, generator=torch.Generator().manual_seed(n)) for n in sizes]
    codes = sum(elias_bits(encoded(QSGD64, x)) for x in values) / 8
    # Other values of the same distribution, and some 2,300 codes that are not 0.
    assert elias_bytes(sizes, 64, 0) == pytest.approx(codes, rel=0.05)
    assert elias_bytes((1,), 64, 0) == math.ceil((32 + 1 + 1 + 13) / 8)  # one code, of level 64
