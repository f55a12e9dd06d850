"""Packing: every width there and back, really packed."""

from __future__ import annotations

import pytest
import torch

from dgc_repro.kernel.codes import group, pack, unpack


@pytest.mark.parametrize("bits", range(2, 17))
def test_every_width_comes_back_from_its_bytes(bits: int) -> None:
    codes, size = group(bits)
    assert codes * bits == size * 8
    source = torch.Generator().manual_seed(bits)
    parts = list(torch.randint(0, 2**bits, (codes, 1000), generator=source, dtype=torch.int32))
    parts[0][:2] = torch.tensor([0, 2**bits - 1])
    rows = pack(parts, bits)
    assert len(rows) == size
    assert all(int(row.min()) >= 0 and int(row.max()) <= 255 for row in rows)
    travelled = [row.to(torch.uint8).to(torch.int32) for row in rows]
    for sent, received in zip(parts, unpack(travelled, bits), strict=True):
        assert torch.equal(sent, received)


@pytest.mark.parametrize("bits", range(2, 17))
def test_codes_lie_in_the_bytes_lowest_bits_first(bits: int) -> None:
    """The bytes of a group, read as one little-endian number, hold code i at bit i b."""
    codes, _ = group(bits)
    parts = [torch.tensor([(37 * i + 5) % 2**bits], dtype=torch.int32) for i in range(codes)]
    rows = pack(parts, bits)
    number = int.from_bytes(bytes(int(row) for row in rows), "little")
    assert number == sum(int(part) << (i * bits) for i, part in enumerate(parts))
