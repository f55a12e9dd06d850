"""The dynamic paper as data: the printed numbers, and arithmetic that is made from them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from dgc_repro.paper import dynamic
from dgc_repro.paper.claim import Check, PublishedColumn, PublishedRow, PublishedTable, Source
from dgc_repro.report.quantities import QUANTITIES

# papers.md, Table A1, written out once more: a slip in the package's copy shows here.
PRINTED = """
| none | 70 | 96.09 | 92.96 | 65.12 | 2.31 |
| static 8-bit | 70 | 82.03 | 85.97 | 122.13 | 1.82 |
| dynamic 4-16-bit | 70 | 94.53 | 91.40 | 101.64 | 2.03 |
"""


def test_the_published_numbers_are_those_of_the_printed_table() -> None:
    rows = [re.findall(r"\| ([\d.]+)(?= \|)", line) for line in PRINTED.strip().splitlines()]
    assert [list(row.cells) for row in dynamic.TABLE_1.rows] == [
        [float(cell) for cell in row] for row in rows
    ]


def test_the_published_numbers_are_those_of_the_shared_notes(repository: Path) -> None:
    notes = repository.parent / "shared" / "papers.md"
    if not notes.is_file():
        pytest.skip("no shared/papers.md beside the checkout")
    text = notes.read_text(encoding="utf-8")
    for line in PRINTED.strip().splitlines():
        assert line in text


def test_a_row_of_our_own_has_no_printed_number() -> None:
    table = PublishedTable(
        "T",
        Source("P", "T"),
        (PublishedColumn("accuracy", "accuracy", "%"),),
        (PublishedRow("ours", "ours"),),
    )
    assert table.value("ours", "accuracy") is None
    with pytest.raises(KeyError, match="not printed"):
        table.printed("ours", "accuracy")


def test_a_row_with_a_cell_too_few_is_refused() -> None:
    columns = (PublishedColumn("a", "a", ""), PublishedColumn("b", "b", ""))
    with pytest.raises(ValueError, match="^rows: 2 cells a row, got 1 in 'x'"):
        PublishedTable("T", Source("P", "T"), columns, (PublishedRow("x", "x", (1.0,)),))


def test_a_magnitude_without_a_tolerance_is_refused() -> None:
    with pytest.raises(ValueError, match="^tolerance: "):
        Check("test_accuracy", "a", "b", magnitude=1.0)


def test_an_empty_range_is_refused() -> None:
    with pytest.raises(ValueError, match="^above: "):
        Check("test_accuracy", "a", "b", above=2.0, below=-2.0)


def test_the_six_claims_are_there_and_name_rows_and_quantities_that_exist() -> None:
    ids = {row.id for row in dynamic.TABLE_1.rows}
    assert [claim.id for claim in dynamic.CLAIMS if claim.id.isdigit()] == list("123456")
    for claim in dynamic.CLAIMS:
        for check in claim.checks:
            assert {check.greater, check.lesser} <= ids
            assert check.quantity in QUANTITIES


def test_the_paper_agrees_with_its_own_claims_on_its_own_numbers() -> None:
    """The directions are written the right way round: the printed table satisfies them."""
    columns = {"test_accuracy": "test_accuracy", "payload_bytes": "data", "train_minutes": "time"}
    judged = 0
    for claim in dynamic.CLAIMS:
        for check in claim.checks:
            if check.quantity not in columns or claim.source == dynamic.OURS:
                continue
            greater = dynamic.TABLE_1.printed(check.greater, columns[check.quantity])
            lesser = dynamic.TABLE_1.printed(check.lesser, columns[check.quantity])
            assert check.above < greater - lesser < check.below, claim.id
            judged += 1
    assert judged == 8  # claims 1 and 2 one check each, 3, 3b and 4 two each


def test_the_data_columns_arithmetic_is_that_of_the_bit_widths() -> None:
    text = dynamic.DATA_CONTRADICTION.arithmetic
    assert f"{2.31 * 8 / 32:.2f} TB" in text
    assert f"{2.31 * 4 / 32:.2f} to {2.31 * 16 / 32:.2f} TB" in text
    assert f"{100 * 1.82 / 2.31:.1f} %" in text
    assert f"{100 * 2.03 / 2.31:.1f} %" in text
    # A share f of the epochs dense and the rest at w bits: f + (1 - f) w / 32 = 2.03 / 2.31.
    for width in (4, 16):
        dense = (2.03 / 2.31 - width / 32) / (1 - width / 32)
        assert dense + (1 - dense) * width / 32 == pytest.approx(2.03 / 2.31, abs=1e-12)
        assert f"{100 * dense:.0f}" in text


def test_the_readings_of_the_dense_volume_are_those_of_the_parameter_counts() -> None:
    volumes = [volume for _, volume in dynamic.data_readings()]
    assert volumes == [
        4 * 11_173_962 * 782 * 70,
        4 * 11_689_512 * 782 * 70,
        4 * 11_689_512 * 704 * 70,
    ]
    text = " ".join(contradiction.arithmetic for contradiction in dynamic.CONTRADICTIONS)
    for printed in ("2.447 TB", "2.225 TiB", "2.328 TiB", "2.304 TB"):  # papers.md's readings
        assert printed in text


def test_the_other_contradictions_carry_their_arithmetic() -> None:
    text = " ".join(contradiction.arithmetic for contradiction in dynamic.CONTRADICTIONS)
    assert f"{82.03 - 85.97:+.2f} points" in text
    assert f"= {122.13 / 101.64:.2f}" in text
