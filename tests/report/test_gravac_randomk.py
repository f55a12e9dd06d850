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

ENERGY, NORM, ACCORDION = "randomk_gravac_fed", "randomk_gravac_norm", "randomk_accordion"
DENSE_ALL = [1.0] * 1000
USED = stretches((100, 1.5), (100, 3), (150, 6), (400, 12), (150, 24), (100, 48))


def write(
    runs: Path,
    *,
    energy: Sequence[float] = DENSE_ALL,
    norm: Sequence[float] = USED,
    norm_final: float = 78.0,
    less: float = 18.0,
    seeds: int = 3,
    methods: Sequence[str] = ("dense", ENERGY, NORM, ACCORDION),
) -> list[str]:
    gain = {ENERGY: 2 / 3, NORM: 1.0}
    for seed in range(seeds):
        for method in methods:
            factors = {ENERGY: energy, NORM: norm}.get(method)
            write_run(
                runs, f"resnet101.{method}", seed=seed,
                final={"dense": 80.0, ENERGY: 80.0, NORM: norm_final, ACCORDION: 20.0}[method],
                floats=1 / less if method in (NORM, ACCORDION) else 1.0,
                decided=None if factors is None else decisions(
                    factors, theta_min=1.5, gain=lambda s, m=method: gain[m] + 0 * s
                ),
            )  # fmt: skip
    return [run.row for run in read(runs)]


def words(page: Page) -> dict[str, str]:
    return {claim.id: verdict.word for claim, verdict in page.verdicts}


def test_the_printed_gain_cannot_be_followed_and_the_norm_one_is_judged(tmp_path: Path) -> None:
    write(tmp_path)
    page = gravac_randomk.page(read(tmp_path), "small")
    found = words(page)
    assert {word for claim, word in found.items() if claim.endswith(".energy")} == {"cannot follow"}
    assert {w for c, w in found.items() if not c.endswith(".energy")} == {"agrees"}
    text = markdown(page)
    assert "1/1.5 = 0.667" in text
    assert "eps = 0.7: every step is dense" in text
    assert "| 1.5x | 0.667 | no |" in text
    assert "The norm gain of the authors' code explains the figure." in text


def test_measured_numbers_stand_beside_what_cannot_be_followed(tmp_path: Path) -> None:
    write(tmp_path)
    page = gravac_randomk.page(read(tmp_path), "small")
    detail = {claim.id: verdict.detail for claim, verdict in page.verdicts}["quality.energy"]
    assert "Measured: " in detail
    assert "+60" in detail


@pytest.mark.parametrize(
    ("changed", "claims"),
    [
        ({"norm": DENSE_ALL}, {"factors.norm", "norm.compresses"}),
        ({"norm_final": 15.0}, {"better.norm", "quality.norm"}),
        ({"less": 100.0}, {"reduction.norm"}),
        ({"energy": USED}, {"energy.dense"}),
        ({"norm": stretches((500, 12), (500, 1000))}, {"factors.norm"}),
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
        ("neither", {"norm_final": 15.0}, "Neither gain explains"),
        ("norm", {}, "The norm gain of the authors' code explains"),
        ("missing", {"methods": ("dense", NORM)}, "is unknown"),
    ):
        write(tmp_path / name, **changed)  # type: ignore[arg-type]
        assert said in conclusion(numbers(course(read(tmp_path / name), "resnet101", "small")))


def test_rows_say_how_dense_they_were_and_missing_ones_are_dashes(tmp_path: Path) -> None:
    write(tmp_path, methods=("dense", NORM), seeds=1)
    page = gravac_randomk.page(read(tmp_path), "small")
    rows = {row[0]: row[1:] for row in page.blocks[1].rows}
    assert rows["norm gain"] == ("1", "78", "0.0 %", "1", "48", "12x", "18.0x")
    assert rows["energy gain"] == ("0", *("-",) * 6)
    assert rows["Accordion"] == ("0", *("-",) * 6)
    assert rows["dense"] == ("1", "80", "-", "-", "-", "-", "-")
    assert all(axes.lines for axes in gravac_randomk.figure(read(tmp_path), "small").axes)
