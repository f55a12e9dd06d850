"""GraVAC's Table III as data: the printed numbers, and claims and arithmetic made from them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from dgc_repro.paper import gravac
from dgc_repro.paper.claim import Check
from dgc_repro.paper.gravac import DIRECT, MULTILEVEL, SPEEDUP

# papers.md, Table B3, written out once more: a slip in the package's copy shows here.
PRINTED = """
| ResNet101 | 606 / 332 (1.83x) | 90 / 59 (1.52x) | 33 / 29.8 (1.1x) | 23 / 14 (1.64x) |
| VGG16 | 181 / 121 (1.49x) | 122 / 95.5 (1.27x) | 101.4 / 87.7 (1.16x) | 41.6 / 31 (1.34x) |
| LSTM | 200 / 126 (1.59x) | 88 / 63 (1.4x) | 69.4 / 46.4 (1.5x) | 56.4 / 37.4 (1.5x) |
"""


def test_the_published_numbers_are_those_of_the_printed_table() -> None:
    rows = [re.findall(r"[\d.]+(?= /|x\)| \()", line) for line in PRINTED.strip().splitlines()]
    assert [list(row.cells) for row in gravac.TABLE_3.rows] == [
        [float(cell) for cell in row] for row in rows
    ]
    assert [row.label for row in gravac.TABLE_3.rows] == ["ResNet101", "VGG16", "LSTM"]
    assert [label for _, label in gravac.METHODS] == ["Top-k", "DGC", "Redsync", "Random-k"]


def test_the_published_numbers_are_those_of_the_shared_notes(repository: Path) -> None:
    notes = repository.parent / "shared" / "papers.md"
    if not notes.is_file():
        pytest.skip("no shared/papers.md beside the checkout")
    text = notes.read_text(encoding="utf-8")
    for line in PRINTED.strip().splitlines():
        assert line in text


def test_the_printed_speedups_are_the_quotients_of_the_printed_milliseconds() -> None:
    for model, _, _, _ in gravac.MODELS:
        for method, _ in gravac.METHODS:
            direct, multilevel, speedup = (
                gravac.printed(model, method, part) for part in (DIRECT, MULTILEVEL, SPEEDUP)
            )
            # printed with up to two decimals, some cut and some rounded
            assert direct / multilevel == pytest.approx(speedup, abs=0.01)


def test_the_sizes_of_the_models_are_the_printed_megabytes() -> None:
    for _, _, parameters, printed_mb in gravac.MODELS:
        assert round(parameters * 4 / 2**20) == printed_mb


def test_each_cell_has_a_claim_of_direction_and_one_of_magnitude() -> None:
    cells = [(m, c) for m, _, _, _ in gravac.MODELS for c, _ in gravac.METHODS]
    assert len(cells) == 12
    assert [claim.id for claim in gravac.CLAIMS] == [
        f"{model}.{method}.{what}" for model, method in cells for what in ("faster", "magnitude")
    ]
    for claim in gravac.CLAIMS:
        (check,) = claim.checks
        assert check.ratio
        assert (check.greater, check.lesser, check.above) == (DIRECT, MULTILEVEL, 1.0)
    magnitude = gravac.CLAIMS[1].checks[0]
    assert magnitude.magnitude == 1.83
    assert magnitude.tolerance == pytest.approx(0.83 / 2)
    assert "606 ms direct, 332 ms multi-level" in gravac.CLAIMS[1].text


def test_the_ceiling_is_the_quotient_of_the_values_looked_at() -> None:
    assert gravac.ceiling() == pytest.approx((1 + 1) / (1 + 1 / 10))
    assert "= 1.82; printed 1.1 to 1.83" in gravac.NOTES[0].arithmetic


def test_a_quotient_is_not_relative_too() -> None:
    with pytest.raises(ValueError, match="^ratio: "):
        Check("compress_ms", "a", "b", relative=True, ratio=True)
