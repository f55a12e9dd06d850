"""The dynamic paper's Table I: its arithmetic, a page whose claims agree, and what the terminal shows."""

from __future__ import annotations

import io
import re
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from published_results import RESULTS
from rich.console import Console
from synthetic import ROWS, require_golden, write_run

from dgc_repro.paper import pool
from dgc_repro.paper.dynamic import table1
from dgc_repro.paper.page import Page, markdown
from dgc_repro.paper.publish import other_scales, page_of
from dgc_repro.paper.records import Run, read_run
from dgc_repro.paper.screen import OtherScale, show


def made(folder: Path) -> list[Run]:
    """Three seeds of each row of Table I."""
    return [read_run(write_run(folder, row, seed)) for row in ROWS for seed in range(3)]


def test_the_data_columns_arithmetic_is_that_of_the_bit_widths() -> None:
    text = table1.NOTES[0].arithmetic
    for number in ("0.58 TB", "78.8 %", "25.2 bits a value", "0.29 to 1.16 TB", "87.9 %"):
        assert number in text
    # A share f of the epochs dense and the rest at w bits: f + (1 - f) w / 32 = 2.03 / 2.31.
    for width in (4, 16):
        dense = (2.03 / 2.31 - width / 32) / (1 - width / 32)
        assert dense + (1 - dense) * width / 32 == pytest.approx(2.03 / 2.31, abs=1e-12)
        assert f"{100 * dense:.0f}" in text
    text = " ".join(note.arithmetic for note in table1.NOTES)
    # papers.md's readings of the dense volume: 4 bytes x parameters x steps x 70 epochs.
    for number in ("2.447 TB", "2.225 TiB", "2.328 TiB", "2.304 TB"):
        assert number in text
    assert "-3.94 points" in text
    assert "122.13 min / 101.64 min = 1.20" in text


def test_the_paper_agrees_with_its_own_claims_on_its_own_numbers() -> None:
    """The directions are written the right way round: the printed table satisfies them."""
    columns = {name: name for name in (table1.TEST, table1.TRAIN, table1.MINUTES)}
    columns["payload"] = "data"
    judged = 0
    for claim in table1.CLAIMS:
        for check in claim.checks:
            if check.quantity not in columns:
                continue
            a, b = (table1.TABLE_1(row, columns[check.quantity]) for row in check.rows)
            assert check.above < (a / b if check.ratio else a - b) < check.below, claim.id
            judged += 1
    assert judged == 8  # one check each of 1, 1b, 1c and 2, two of 3 and 4


def test_the_printed_order_agrees_where_dense_training_comes_as_far_as_the_papers(
    tmp_path: Path,
) -> None:
    require_golden(table1.page(made(tmp_path / "runs"), "quick"), "dynamic.md", tmp_path)


def shown(page: Page, others: Sequence[OtherScale] = ()) -> str:
    """What the terminal shows of a page."""
    screen = io.StringIO()
    show(page, Console(file=screen, width=100), None, others)
    return screen.getvalue()


def test_a_screen_has_what_was_shown_first_and_what_untested_claims_need_in_a_line(
    tmp_path: Path,
) -> None:
    runs = made(tmp_path)
    whole = shown(table1.page(runs, "small"))
    assert "printed" in whole
    assert " need" not in whole
    assert "dynamic 4-16-bit minus static 8-bit: +" in whole
    dataset = {"dataset": {"_target_": "dgc_repro.dataset.digits.Digits"}}
    page = table1.page([replace(run, config=run.config | dataset) for run in runs], "quick")
    others = [
        OtherScale("small", frozenset({"2", "3", "5"}), 4000.0),
        OtherScale("slow", frozenset({"2", "3"}), 5000.0),
        OtherScale("medium", frozenset({"1", "2", "5"}), 14400.0),
    ]
    text = shown(page, others)
    table, _, rest = text.partition("  agrees ")
    assert "Table I (data: " in table
    quick = shown(page_of(RESULTS / "dynamic" / "quick" / "table1"))
    assert re.search(r"payload, \n.*n  test accuracy %  % of none", quick)  # no printed numbers
    assert "printed" not in table
    assert "not tested  " not in text
    assert (
        "7 claims need CIFAR-10: scale=small tests 2 (about 67 min), scale=medium tests 3 (about 4.0 h)\n"
        "Of 10 claims: "
    ) in rest
    assert "7 claims need CIFAR-10\nOf 10 claims: " in shown(page)
    assert "not tested" in markdown(page)


def test_the_scales_that_test_a_claim_are_those_of_the_published_verdicts(tmp_path: Path) -> None:
    root = shutil.copytree(RESULTS / "dynamic", tmp_path / "dynamic").parent
    found = other_scales(root / "dynamic" / "quick" / "table1", root)
    (small,) = (one for one in found if one.scale == "small")
    record = pool.records(root / "dynamic" / "small")["table1"]
    assert small.claims == {
        one["claim"] for one in record["verdicts"] if not one["verdict"].startswith("not ")
    }
    runs = pool.read(root / "dynamic" / "small", record["runs"])
    assert small.seconds == sum(run.last("time/train_seconds") for run in runs) > 60
    assert [one.seconds for one in found] == sorted(one.seconds for one in found)
    assert {"quick", "small"} & {one.scale for one in found} == {"small"}
    (root / "dynamic" / "small" / "runs.parquet").write_bytes(b"")
    less = other_scales(root / "dynamic" / "quick" / "table1", root)
    assert [one for one in found if one.scale != "small"] == less
    assert other_scales(root / "dynamic" / "quick" / "table1", tmp_path / "none") == []
