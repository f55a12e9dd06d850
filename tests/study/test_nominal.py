"""Bytes of MLS-Bench's methods: the counted ones against those that an exchange books."""

from __future__ import annotations

import math

import pytest
import torch
from laws import play, simulation
from numeric import encoded

from dgc_repro import QSGD, TopK
from dgc_repro.compressor.ef_signsgd import EFSignSGD
from dgc_repro.compressor.interface import Compressor
from dgc_repro.compressor.qsgd import elias_bits
from dgc_repro.selfcheck.law_settings.base import Setting
from dgc_repro.study.given import Tensors
from dgc_repro.study.nominal import Nominal, elias_bytes

SIZES = (400, 16, 7, 3000)  # k has no rounding here: the task rounds down, our top-k to the nearest
STUDY = Nominal(0.01, 64, [2, 8])


@pytest.mark.parametrize(
    ("method", "compressor"),
    [
        ("topk", TopK(density=0.01)),
        ("qsgd", QSGD(levels=64, bucket=None)),
        ("signsgd", EFSignSGD()),
    ],
)
def test_payload_and_wire_are_those_in_the_ledger(method: str, compressor: Compressor) -> None:
    like = {str(i): torch.randn(n) for i, n in enumerate(SIZES)}
    setting = Setting("", compressor)
    exchange = simulation(setting, 2, like)
    play(exchange, setting, [{name: x.clone() for name, x in like.items()} for _ in range(2)])
    rows = {(r["method"], r["workers"]): r for r in STUDY.run(0, Tensors("", SIZES))}
    ledger = exchange.world.ledger
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
    codes = sum(elias_bits(encoded(QSGD(levels=64, bucket=None), x)) for x in values) / 8
    # Other values of the same distribution, and some 2,300 codes that are not 0.
    assert elias_bytes(sizes, 64, 0) == pytest.approx(codes, rel=0.05)
    assert elias_bytes((1,), 64, 0) == math.ceil((32 + 1 + 1 + 13) / 8)  # one code, of level 64
