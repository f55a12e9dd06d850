"""The pages of the dynamic paper: Table I and the sensitivity study, from made-up runs."""

from __future__ import annotations

import io
import re
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console
from synthetic import ROWS, quantizer, words, write_run

from dgc_repro.paper import pool
from dgc_repro.paper.dynamic import LOOKS, NONE, STATIC, sensitivity, table1
from dgc_repro.paper.page import OtherScale, Page, markdown, show
from dgc_repro.paper.publish import other_scales, page_of
from dgc_repro.paper.records import Run, read_run
from dgc_repro.paper.verdict import values

RESULTS = Path(__file__).resolve().parents[2] / "results"

# papers.md, Table A1, written out once more: a slip in the package's copy shows here.
PRINTED = """
| none | 70 | 96.09 | 92.96 | 65.12 | 2.31 |
| static 8-bit | 70 | 82.03 | 85.97 | 122.13 | 1.82 |
| dynamic 4-16-bit | 70 | 94.53 | 91.40 | 101.64 | 2.03 |
"""


def made(
    folder: Path, rows: Iterable[str] = ROWS, seeds: int = 3, accuracy: float | None = None
) -> list[Run]:
    """Runs of Table I. ``accuracy``: where dense training ends."""
    ends = {NONE: accuracy or ROWS[NONE][0]}
    return [
        read_run(
            write_run(folder, row, seed, numbers=(ends.get(row, ROWS[row][0]), *ROWS[row][1:]))
        )
        for row in rows
        for seed in range(seeds)
    ]


def test_the_printed_numbers_are_those_of_the_paper() -> None:
    rows = [re.findall(r"\| ([\d.]+)(?= \|)", line) for line in PRINTED.strip().splitlines()]
    assert list(table1.TABLE_1.rows.values()) == [tuple(map(float, row)) for row in rows]


def test_a_page_says_that_its_runs_trained_under_autocast(tmp_path: Path) -> None:
    runs = made(tmp_path, seeds=1)
    assert "- precision" not in markdown(table1.page(runs, "quick"))
    cast = {"train": {"epochs": 4, "precision": "bf16"}}
    runs = [replace(run, config=run.config | cast) for run in runs]
    assert "- precision: bf16 autocast" in markdown(table1.page(runs, "medium"))
    # What the device computed counts, where the config leaves it to the device.
    left = {"train": {"epochs": 4, "precision": "half"}}
    for computed in ("bf16", "fp16"):
        found = {"precision": computed}
        runs = [replace(r, config=r.config | left, environment=r.environment | found) for r in runs]
        text = markdown(table1.page(runs, "medium"))
        assert f"- precision: {computed} autocast in forward and backward" in text
        assert "train.precision" not in text  # no departure from the scale
    assert "of a scaled loss" in text


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
    page = table1.page(made(tmp_path), "quick")
    found = words(page)
    agreed = ("1", "1b", "1c", "2", "3", "4", "5", "6")
    assert {claim: found[claim] for claim in agreed} == dict.fromkeys(agreed, "agrees")
    assert found["3b"] == "cannot follow"
    for claim in table1.CLAIMS:
        for check in (*claim.checks, *claim.premises):
            for row in check.rows:
                assert len(values(page.frame, check.quantity, row, check.setting)) == 3, check
    text = markdown(page)
    assert "| static 8-bit | 3 | 70 | 9 " in text  # printed and ours stand side by side
    assert "18-layer ResNet, width 8" in text


def test_on_other_data_only_bytes_and_times_are_judged(tmp_path: Path) -> None:
    dataset = {"dataset": {"_target_": "dgc_repro.dataset.digits.Digits"}}
    runs = [replace(run, config=run.config | dataset) for run in made(tmp_path)]
    page = table1.page(runs, "quick")
    found = words(page)
    assert {found[claim] for claim in ("1", "1b", "1c", "2", "5", "5b", "6")} == {"not tested"}
    assert (found["3"], found["4"]) == ("agrees", "agrees")
    assert page.verdicts[0].detail.startswith(
        "data: digits, not CIFAR-10. Measured: test accuracy, "
    )
    assert "; data: digits, not CIFAR-10)" in markdown(page).partition("\n")[0]


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


def test_claims_need_runs_or_a_premise(tmp_path: Path) -> None:
    text = shown(table1.page(made(tmp_path, [NONE, STATIC]), "small"))
    assert re.search(r"^\d+ claims need runs that are not finished$", text, re.MULTILINE)
    text = shown(table1.page(made(tmp_path / "more", accuracy=50.0), "small"))
    assert re.search(r"^\d claims need a premise that these runs do not meet$", text, re.MULTILINE)
    assert shown(table1.page(made(tmp_path / "one", seeds=1), "small")).count("indicative") > 3


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


def test_simulated_workers_have_no_times_in_the_tables(tmp_path: Path) -> None:
    runs = made(tmp_path, seeds=1)
    timed = r"\| no compression \| 1 \|.*\| 100 \| 100.0 \| 100 \| 100.0 \|"
    assert re.search(timed, markdown(table1.page(runs, "quick")))
    launch = {"launch": {"kind": "simulated", "workers": 2}}
    simulated = [replace(run, config=run.config | launch) for run in runs]
    text = markdown(table1.page(simulated, "quick"))
    assert re.search(r"\| no compression \| 1 \|.*\| 100 \| - \| 100 \| 100.0 \|", text)


# -- sensitivity


@pytest.mark.parametrize(
    ("dense", "ends", "word"),
    [
        (93.0, 83.0, "agrees"),
        (93.0, 92.0, "differs"),
        (86.6, 85.9, "differs"),
        (85.0, 83.0, "not tested"),
    ],
)
def test_a_reading_has_a_plateau_where_it_ends_at_the_papers_accuracy_and_dense_above(
    tmp_path: Path, dense: float, ends: float, word: str
) -> None:
    """The runs of Table I stand for dense and for the plain reading; each other reading is named."""
    plain = quantizer(8)
    readings = {
        NONE: (dense, quantizer(None)),
        STATIC: (ends + 0.2, plain),
        "bits8_model": (ends, {**plain, "exchange": {"unit": "model"}}),
        "bits8_again": (ends, {**plain, "exchange": {"aggregation": "sharded"}}),
        "bits8_running": (ends, quantizer(8, target="running_uniform.RunningUniform")),
        "weights8": (ends, {**quantizer(None), "optimizer": {"weight_bits": 8}}),
    }
    runs = [
        read_run(
            write_run(
                tmp_path, row, seed, numbers=(accuracy, 1, 10, 1 + place, 4), settings=settings
            )
        )
        for place, (row, (accuracy, settings)) in enumerate(readings.items())
        for seed in range(3)
    ]
    page = sensitivity.page(runs, "medium")
    found = words(page)
    names = (sensitivity.PLAIN_8, "bits8_model", "bits8_again", "bits8_running", "weights8")
    assert {name: found[f"plateau.{name}"] for name in names} == dict.fromkeys(names, word)
    text = markdown(page)
    for label in (
        "one scale per model",
        "tensor, mean quantized again",
        "a scale that never falls",
    ):
        assert f"| 8-bit, nearest, {label} | 3 |" in text
    assert "| 8-bit weights, not gradients | 3 |" in text
    for draw in page.figures.values():
        draw()


def test_the_figure_draws_differences_from_the_uncompressed_run_of_the_same_seed(
    tmp_path: Path,
) -> None:
    runs = made(tmp_path, seeds=2)
    lone = read_run(write_run(tmp_path / "lone", "static8", 7))  # no uncompressed run of seed 7
    figure = table1.page([*runs, lone], "quick").figures["table1"]()
    for axes, metric in zip(
        figure.axes, ("train/accuracy_percent", "test/accuracy_percent", "train/loss"), strict=False
    ):
        lines = {line.get_label(): line for line in axes.get_lines()}
        rows = {row: look.label for row, look in LOOKS.items()}
        assert set(lines) == set(rows.values())
        assert list(lines.pop(rows.pop(NONE)).get_ydata()) == [0, 0]
        for row, label in rows.items():
            own, base = (
                [run.epochs[metric].to_numpy() for run in runs if run.row == name]
                for name in (row, NONE)
            )
            expected = (own[0] - base[0] + own[1] - base[1]) / 2
            assert lines[label].get_ydata() == pytest.approx(expected)
    bits = figure.axes[3]
    assert [label.get_text() for label in bits.get_yticklabels()] == [
        "32 (none)", "16", "12", "8", "6", "4"
    ]  # fmt: skip
    alone = table1.page([run for run in runs if run.row == STATIC], "quick").figures["table1"]()
    assert "no runs with an uncompressed run" in alone.axes[0].texts[0].get_text()
