"""scripts/aggregation_table.py makes the table of docs/methods.md: few values here, and the page."""

from __future__ import annotations

import pytest
from numeric import dense_bytes

from dgc_repro.bench.aggregation_table import (
    BEGIN,
    COLUMNS,
    END,
    METHODS,
    NAME,
    NUM_VALUES,
    PAGE,
    WORKERS,
    megabytes,
    rows,
    table,
)
from dgc_repro.exchange.aggregation import AUTO, choose, wire_bytes


def test_the_table_holds_what_the_formulas_say() -> None:
    n = 50_000
    made = rows(n, (2, 5))
    assert [row[:2] for row in made] == [(name, str(w)) for name in METHODS for w in (2, 5)]
    for title, workers, dense, *cells, auto in made:
        expected = wire_bytes(METHODS[title], {NAME: n}, int(workers))
        assert dense == megabytes(dense_bytes(n, int(workers)))
        assert cells == [megabytes(expected[way]) if way in expected else "" for way in COLUMNS]
        assert auto == choose(METHODS[title], {NAME: n}, int(workers)).way


def test_the_page_has_the_table_of_the_script() -> None:
    """Of a tensor this large the formulas know sizes from a sample of 0.38 of it. Which half of a
    selection stays with two workers' owner is random, of 4,194 entries in the sample 2,097 +- 32, of
    11,174 here 5,587 +- 53: together 1 % of the smallest cell."""
    shown = PAGE.read_text(encoding="utf-8").partition(BEGIN)[2].partition(END)[0].splitlines()
    heads, cells = (
        [cell.strip() for cell in shown[0].strip("|").split("|")],
        [[cell.strip() for cell in line.strip("|").split("|")] for line in shown[2:]],
    )
    assert heads == ["payload", "N", "dense", *COLUMNS, AUTO]
    assert [row[:2] for row in cells] == [[name, str(w)] for name in METHODS for w in WORKERS]
    for title, workers, dense, *sizes, auto in cells:
        choice = choose(METHODS[title], {NAME: NUM_VALUES}, int(workers))
        assert dense == megabytes(dense_bytes(NUM_VALUES, int(workers)))
        assert auto == choice.way
        for way, size in zip(COLUMNS, sizes, strict=True):
            if way in choice.wire_bytes:
                assert float(size) == pytest.approx(choice.wire_bytes[way] / 1e6, rel=0.02)
            else:
                assert size == ""


def test_the_table_is_lines_of_the_page() -> None:
    assert all(line.count("|") == 8 for line in table(1000).splitlines())
