"""GraVAC's figure 11: which gain explains it follows from the runs, the printed one cannot be followed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from made_up_decisions import decisions, read, stretches, write_run

from dgc_repro.report import gravac_randomk
from dgc_repro.report.gravac_course import course
from dgc_repro.report.gravac_randomk import conclusion, numbers
from dgc_repro.report.study import Page, markdown

FED, RAW, ACCORDION = "randomk_gravac_fed", "randomk_gravac_raw", "randomk_accordion"
DENSE_ALL = [1.0] * 1000
USED = stretches((100, 1.5), (100, 3), (150, 6), (400, 12), (150, 24), (100, 48))


def write(
    runs: Path,
    *,
    fed: Sequence[float] = DENSE_ALL,
    raw: Sequence[float] = USED,
    raw_final: float = 78.0,
    less: float = 18.0,
    seeds: int = 3,
    methods: Sequence[str] = ("dense", FED, RAW, ACCORDION),
) -> list[str]:
    gain = {FED: 2 / 3, RAW: 1.0}
    for seed in range(seeds):
        for method in methods:
            factors = {FED: fed, RAW: raw}.get(method)
            write_run(
                runs, f"resnet101.{method}", seed=seed,
                final={"dense": 80.0, FED: 80.0, RAW: raw_final, ACCORDION: 20.0}[method],
                floats=1 / less if method in (RAW, ACCORDION) else 1.0,
                decided=None if factors is None else decisions(
                    factors, theta_min=1.5, gain=lambda s, m=method: gain[m] + 0 * s
                ),
            )  # fmt: skip
    return [run.row for run in read(runs)]


def words(page: Page) -> dict[str, str]:
    return {claim.id: verdict.word for claim, verdict in page.verdicts}


def test_the_printed_gain_cannot_be_followed_and_the_raw_one_is_judged(tmp_path: Path) -> None:
    write(tmp_path)
    page = gravac_randomk.page(read(tmp_path), "small")
    found = words(page)
    assert {word for claim, word in found.items() if claim.endswith(".fed")} == {"cannot follow"}
    assert {w for c, w in found.items() if not c.endswith(".fed")} == {"agrees"}
    text = markdown(page)
    assert "1/1.5 = 0.667" in text
    assert "eps = 0.7, so that every step is dense" in text
    assert "| 1.5x | 0.667 | no |" in text
    assert "The raw gain explains the figure, the printed one does not" in text


def test_measured_numbers_stand_beside_what_cannot_be_followed(tmp_path: Path) -> None:
    write(tmp_path)
    page = gravac_randomk.page(read(tmp_path), "small")
    detail = {claim.id: verdict.detail for claim, verdict in page.verdicts}["quality.fed"]
    assert "Measured: " in detail
    assert "+60" in detail


@pytest.mark.parametrize(
    ("changed", "claims"),
    [
        ({"raw": DENSE_ALL}, {"factors.raw", "raw.compresses"}),
        ({"raw_final": 15.0}, {"better.raw", "quality.raw"}),
        ({"less": 100.0}, {"reduction.raw"}),
        ({"fed": USED}, {"fed.dense"}),
        ({"raw": stretches((500, 12), (500, 1000))}, {"factors.raw"}),
    ],
)
def test_each_verdict_turns_with_its_number(
    tmp_path: Path, changed: dict[str, object], claims: set[str]
) -> None:
    write(tmp_path, **changed)  # type: ignore[arg-type]
    found = words(gravac_randomk.page(read(tmp_path), "small"))
    assert {claim for claim, word in found.items() if word == "differs"} == claims


def test_the_conclusion_follows_from_the_runs(tmp_path: Path) -> None:
    for name, changed, said in (
        ("neither", {"raw_final": 15.0}, "Neither gain explains"),
        ("raw", {}, "The raw gain explains"),
        ("missing", {"methods": ("dense", RAW)}, "cannot be said"),
    ):
        write(tmp_path / name, **changed)  # type: ignore[arg-type]
        assert said in conclusion(numbers(course(read(tmp_path / name), "resnet101", "small")))


def test_rows_say_how_dense_they_were_and_missing_ones_are_dashes(tmp_path: Path) -> None:
    write(tmp_path, methods=("dense", RAW), seeds=1)
    page = gravac_randomk.page(read(tmp_path), "small")
    rows = {row[0]: row[1:] for row in page.blocks[1].rows}
    assert rows["raw gain"] == ("1", "78", "0.0 %", "1", "48", "12x", "18.0x")
    assert rows["error-fed gain"] == ("0", *("-",) * 6)
    assert rows["Accordion"] == ("0", *("-",) * 6)
    assert rows["dense"] == ("1", "80", "-", "-", "-", "-", "-")
    assert all(axes.lines for axes in gravac_randomk.figure(read(tmp_path), "small").axes)
