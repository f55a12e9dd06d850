"""The verdict function: every word is reached, and a flipped direction is not smoothed over."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest
from synthetic import ROWS, write_run

from dgc_repro.paper import dynamic
from dgc_repro.paper.claim import Check, Claim, Contradiction, Source
from dgc_repro.report.records import Run, load_runs
from dgc_repro.report.verdict import (
    Verdict,
    Word,
    bootstrap_interval,
    paired_differences,
    verdict,
    verdict_of_values,
)

CLAIM = Claim(
    "x",
    "dynamic ends above static",
    Source("synthetic", "nowhere"),
    (Check("test_accuracy", "dynamic", "static8", magnitude=5.0, tolerance=1.0),),
    "final test accuracy",
)


def records(
    tmp_path: Path, accuracies: dict[str, list[float]], seeds: dict[str, list[int]] | None = None
) -> list[Run]:
    """Runs whose final test accuracies are given, seed by seed (synthetic adds the same offset)."""
    folders = [
        write_run(tmp_path, row, seed, numbers=(value, *ROWS[row][1:]))
        for row, values in accuracies.items()
        for seed, value in zip((seeds or {}).get(row, range(len(values))), values, strict=True)
    ]
    return load_runs(folders)[0]


def test_direction_and_magnitude_within_tolerance_agree(tmp_path: Path) -> None:
    runs = records(tmp_path, {"dynamic": [91.0, 91.4, 90.8], "static8": [86.0, 86.0, 86.0]})
    judged = verdict(CLAIM, runs, "paper")
    assert (judged.word, judged.n, judged.scale) == ("agrees", 3, "paper")
    assert judged.text == "agrees (paper scale)"
    assert "+5.07 points" in judged.detail


def test_a_flipped_direction_differs_and_says_reversed(tmp_path: Path) -> None:
    runs = records(tmp_path, {"dynamic": [86.0, 86.2, 86.1], "static8": [91.0, 91.0, 91.0]})
    judged = verdict(CLAIM, runs, "paper")
    assert judged.word == "differs"
    assert "reversed" in judged.detail


def test_seeds_that_point_both_ways_differ_as_not_established(tmp_path: Path) -> None:
    runs = records(tmp_path, {"dynamic": [91.0, 85.0, 87.0], "static8": [86.0, 86.0, 86.0]})
    judged = verdict(CLAIM, runs, "paper")
    assert judged.word == "differs"
    assert "not established" in judged.detail


def test_a_difference_far_from_the_printed_one_differs_although_the_direction_holds(
    tmp_path: Path,
) -> None:
    runs = records(tmp_path, {"dynamic": [86.4, 86.5, 86.6], "static8": [86.0, 86.0, 86.0]})
    judged = verdict(CLAIM, runs, "paper")
    assert judged.word == "differs"
    assert "direction holds, magnitude does not" in judged.detail


@pytest.mark.parametrize("n", [1, 2])
@pytest.mark.parametrize(
    ("dynamic_accuracy", "points"), [(91.0, "points the claim's way"), (80.0, "the other way")]
)
def test_fewer_than_three_seeds_are_indicative_and_say_which_way_they_point(
    tmp_path: Path, n: int, dynamic_accuracy: float, points: str
) -> None:
    runs = records(tmp_path, {"dynamic": [dynamic_accuracy] * n, "static8": [86.0] * n})
    judged = verdict(CLAIM, runs, "paper")
    assert (judged.word, judged.n) == ("indicative", n)
    assert points in judged.detail


def test_a_missing_row_is_not_run_and_is_named(tmp_path: Path) -> None:
    judged = verdict(CLAIM, records(tmp_path, {"dynamic": [91.0] * 3}), "quick")
    assert (judged.word, judged.n) == ("not run", 0)
    assert judged.detail == "no finished run of static8"


def test_rows_without_a_common_seed_are_not_run(tmp_path: Path) -> None:
    runs = records(
        tmp_path, {"dynamic": [91.0], "static8": [86.0]}, seeds={"dynamic": [1], "static8": [2]}
    )
    judged = verdict(CLAIM, runs, "quick")
    assert judged.word == "not run"
    assert "no seed" in judged.detail


def test_numbers_that_contradict_each_other_cannot_follow_and_print_the_arithmetic(
    tmp_path: Path,
) -> None:
    claim = replace(CLAIM, cannot_follow=Contradiction("no", "1 + 1 = 2, printed 3."))
    runs = records(tmp_path, {"dynamic": [91.0] * 3, "static8": [86.0] * 3})
    judged = verdict(claim, runs, "quick")
    assert judged.word == "cannot follow"
    assert judged.detail.startswith("1 + 1 = 2, printed 3. Measured: test accuracy")
    assert "not run" in verdict(claim, [], "quick").detail


@pytest.mark.parametrize("word", get_args(Word))
def test_every_word_carries_its_scale(word: str) -> None:
    reduced = Verdict(word, "small", 3, "")  # type: ignore[arg-type]
    assert reduced.text == f"{word} (reduced scale: small)"
    assert replace(reduced, scale="paper").text == f"{word} (paper scale)"


def test_differences_are_paired_by_seed_and_not_by_order(tmp_path: Path) -> None:
    runs = records(
        tmp_path,
        {"dynamic": [91.0, 80.0], "static8": [79.0, 90.0]},
        seeds={"dynamic": [1, 2], "static8": [2, 1]},
    )
    assert paired_differences(CLAIM.checks[0], runs) == pytest.approx([1.0, 1.0])


def test_a_relative_difference_is_a_share_of_the_greater_row(tmp_path: Path) -> None:
    runs = records(tmp_path, {"none": [92.0], "static8": [86.0]})
    check = Check("payload_bytes", "none", "static8", relative=True)
    assert paired_differences(check, runs) == pytest.approx([0.75])


def test_a_run_that_diverged_never_agrees(tmp_path: Path) -> None:
    runs = records(tmp_path, {"dynamic": [91.0, math.nan, 91.0], "static8": [86.0] * 3})
    judged = verdict(CLAIM, runs, "paper")
    assert judged.word == "differs"
    assert "not finite" in judged.detail


def test_a_gap_outside_a_two_sided_range_differs(tmp_path: Path) -> None:
    claim = next(claim for claim in dynamic.CLAIMS if claim.id == "2")
    near = records(tmp_path / "near", {"none": [92.0] * 3, "dynamic": [90.5] * 3})
    far = records(tmp_path / "far", {"none": [92.0] * 3, "dynamic": [89.0] * 3})
    assert verdict(claim, near, "paper").word == "agrees"
    assert verdict(claim, far, "paper").word == "differs"
    assert "outside the range" in verdict(claim, far, "paper").detail


def test_the_interval_is_the_same_every_time_and_lies_between_the_extremes() -> None:
    first = bootstrap_interval([1.0, 2.0, 4.0])
    assert first == bootstrap_interval([1.0, 2.0, 4.0])
    assert 1.0 <= first[0] < 7 / 3 < first[1] <= 4.0


def test_the_interval_of_three_equal_differences_is_that_difference() -> None:
    assert bootstrap_interval([0.5, 0.5, 0.5]) == (0.5, 0.5)


def test_the_synthetic_paper_agrees_with_every_claim_of_the_paper_that_can_follow(
    tmp_path: Path,
) -> None:
    folders = [write_run(tmp_path, row, seed) for row in ROWS for seed in range(3)]
    runs, _ = load_runs(folders)
    words = {claim.id: verdict(claim, runs, "small").word for claim in dynamic.CLAIMS}
    assert words.pop("3b") == "cannot follow"
    assert words.pop("4b") == "not run"  # its premise, a network of a stated rate, is not met
    assert set(words.values()) == {"agrees"}


@pytest.mark.parametrize("seeds", [1, 3])
@pytest.mark.parametrize(("below", "word"), [(91.5, None), (91.0, "not tested")])
def test_what_does_not_meet_a_premise_is_not_tested(
    tmp_path: Path, seeds: int, below: float, word: str | None
) -> None:
    premise = Check("test_accuracy", "dynamic", "0", below=below)
    claim = replace(CLAIM, premises=(premise,))
    values = {
        "test_accuracy": {
            "dynamic": dict.fromkeys(range(seeds), 91.0),
            "static8": dict.fromkeys(range(seeds), 86.0),
            "0": dict.fromkeys(range(seeds), 0.0),
        }
    }
    judged = verdict_of_values(claim, values, "small")
    assert judged.word == (word or ("agrees" if seeds == 3 else "indicative"))
    runs = records(tmp_path, {"dynamic": [91.0] * seeds, "static8": [86.0] * seeds})
    of_runs = replace(claim, premises=(replace(premise, lesser="static8", below=below - 86.0),))
    assert (verdict(of_runs, runs, "small").word == "not tested") == (word is not None)
    if word is not None:
        assert judged.detail.startswith("its premise does not hold: ")
        assert "Measured: " in judged.detail
    unknown = replace(claim, premises=(replace(premise, quantity="train_accuracy"),))
    assert "its premise is unknown" in verdict_of_values(unknown, values, "small").detail


def test_a_claim_with_a_premise_is_judged_where_the_runs_meet_it(tmp_path: Path) -> None:
    folders = [write_run(tmp_path, row, seed) for row in ROWS for seed in range(3)]
    runs, _ = load_runs(folders)
    slow = [replace(run, config={**run.config, "network": {"rate": "100mbit"}}) for run in runs]
    claim = next(claim for claim in dynamic.CLAIMS if claim.id == "4b")
    assert verdict(claim, runs, "small").word == "not run"
    assert verdict(claim, slow, "small").word == "differs"  # the opposite of the paper's 4


@pytest.mark.parametrize(
    ("claim_id", "row", "numbers"),
    [
        ("1", "static8", (93.0, 0.25, 30.0, 1.2, 1.0)),  # static above dynamic
        ("2", "dynamic", (80.0, 0.35, 20.0, 1.6, 4.0)),  # dynamic far below none
        ("3", "dynamic", (91.0, 0.2, 20.0, 1.6, 4.0)),  # dynamic sends less than static
        ("4", "none", (92.0, 1.0, 25.0, 1.0, 4.0)),  # none slower than dynamic
        ("5", "dynamic", (91.0, 0.35, 20.0, 0.7, 4.0)),  # dynamic faster at first
        ("6", "static8", (86.0, 0.25, 30.0, 1.2, 3.9)),  # static's updates hardly slow down
    ],
)
def test_each_claim_differs_when_its_direction_is_flipped(
    tmp_path: Path, claim_id: str, row: str, numbers: tuple[float, ...]
) -> None:
    changed = {**ROWS, row: numbers}
    folders = [
        write_run(tmp_path, name, seed, numbers=values)
        for name, values in changed.items()
        for seed in range(3)
    ]
    runs, _ = load_runs(folders)
    claim = next(claim for claim in dynamic.CLAIMS if claim.id == claim_id)
    assert verdict(claim, runs, "paper").word == "differs"


@pytest.mark.parametrize(
    ("values", "word", "reason"),
    [
        ([0.1, 0.2, 0.3], "agrees", "magnitude holds"),
        ([-0.1, -0.2, -0.3], "agrees", "magnitude holds"),
        ([2.1, 2.2, 2.3], "differs", "magnitude does not hold"),
        ([0.2], "indicative", "magnitude holds"),
        ([2.2], "indicative", "magnitude does not hold"),
    ],
)
def test_a_magnitude_alone_is_judged_whichever_way_it_lies(
    values: list[float], word: str, reason: str
) -> None:
    check = Check("density", "a", "b", above=-math.inf, magnitude=0.2, tolerance=0.5)
    zeros = dict.fromkeys(range(len(values)), 0.0)
    found = verdict_of_values(
        replace(CLAIM, checks=(check,)),
        {"density": {"a": dict(enumerate(values)), "b": zeros}},
        "small",
    )
    assert (found.word, found.detail.rpartition(": ")[2]) == (word, reason)
    assert "claim:" not in found.detail, "no range was asked for"


def test_values_of_numbers_that_contradict_each_other_cannot_follow_either() -> None:
    claim = replace(CLAIM, cannot_follow=Contradiction("no", "1 + 1 = 2, printed 3."))
    quantity = claim.checks[0].quantity
    rows = {check.greater: {0: 2.0} for check in claim.checks}
    rows |= {check.lesser: {0: 1.0} for check in claim.checks}
    for values in ({quantity: rows}, {}):
        found = verdict_of_values(claim, values, "small")
        assert found.word == "cannot follow"
        assert found.detail.startswith("1 + 1 = 2, printed 3. Measured: ")
    assert found.detail.endswith("not run.")
