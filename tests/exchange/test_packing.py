"""Where parts lie in the one buffer that travels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from laws import play, simulation, tensors
from torch import Tensor

from dgc_repro.exchange.packing import places, read_parts, write_parts
from dgc_repro.exchange.simulated import SimulatedWire
from dgc_repro.selfcheck.law_settings import SETTINGS
from dgc_repro.selfcheck.law_settings.base import Setting

DTYPES = [torch.uint8, torch.int16, torch.bfloat16, torch.float32, torch.int64, torch.float64]


def test_parts_begin_at_multiples_of_their_element_size() -> None:
    layout, size = places(
        [(3, torch.uint8), (2, torch.float32), (1, torch.uint8), (1, torch.int64)]
    )
    assert [(start, end) for start, end, _ in layout] == [(0, 3), (4, 12), (12, 13), (16, 24)]
    assert size == 24
    assert places([(3, torch.uint8)])[1] == 8
    assert places([(0, torch.float32)]) == ([(0, 0, torch.float32)], 0)
    assert places([]) == ([], 0)


@given(st.lists(st.tuples(st.integers(0, 9), st.sampled_from(DTYPES)), max_size=8))
def test_whatever_is_packed_comes_back(parts: list[tuple[int, torch.dtype]]) -> None:
    layout, size = places(parts)
    assert size % 8 == 0
    tensors = [torch.arange(numel).add(i).to(dtype) for i, (numel, dtype) in enumerate(parts)]
    # Two rows, as they lie in a gathered buffer: the second must be readable too.
    flat = torch.full((2 * size,), 0xAB, dtype=torch.uint8)
    ends = 0
    for (start, end, dtype), (numel, _) in zip(layout, parts, strict=True):
        assert start >= ends
        assert start % dtype.itemsize == 0
        assert end - start == numel * dtype.itemsize
        ends = end
    assert ends <= size < ends + 8
    for row in (flat[:size], flat[size:]):
        write_parts(row, tensors, layout)
        assert all(map(torch.equal, read_parts(row, layout), tensors))


@pytest.mark.parametrize("setting", SETTINGS, ids=str)
def test_what_fills_gaps_is_the_same_in_every_run(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No byte of the process's memory that nobody has written travels."""
    made, collect = torch.empty, SimulatedWire.collect

    def sent(fill: int) -> list[bytes]:
        found: list[bytes] = []

        def empty(*size: Any, **kind: Any) -> Tensor:
            fresh: Tensor = made(*size, **kind)
            fresh.view(-1).view(torch.uint8).fill_(fill)
            return fresh

        def noting(self: SimulatedWire, flats: Sequence[Tensor], *rest: Any) -> Any:
            found.extend(flat.numpy().tobytes() for flat in flats)
            return collect(self, flats, *rest)

        monkeypatch.setattr(torch, "empty", empty)
        monkeypatch.setattr(SimulatedWire, "collect", noting)
        exchange = simulation(setting, 2, tensors(0, 0))
        for step in range(2):
            play(exchange, setting, [tensors(worker, step) for worker in range(2)])
        return found

    assert sent(0xAB) == sent(0x54)
