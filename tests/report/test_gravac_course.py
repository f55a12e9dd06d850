"""When a run meets its target, when it improves no further, and when it has failed."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from made_up_pool import Made, write_made

from dgc_repro.errors import UserError
from dgc_repro.paper import gravac_training as printed
from dgc_repro.report.gravac_course import (
    MEASURED,
    MODELLED,
    WORKERS_HERE,
    Chance,
    chance,
    clocks_text,
    course,
    differences,
    failed_text,
    has_failed,
    met_at,
    plateau_at,
    seconds_at,
    seconds_to_plateau,
    seconds_to_target,
    shown_clocks,
    wire_reduction,
)
from dgc_repro.report.gravac_pool import METRICS, metric_of, written
from dgc_repro.report.records import Run, load_run, load_runs

ACCURACY, PERPLEXITY = METRICS["accuracy"], METRICS["perplexity"]
UNKNOWN = Chance(10_000.0, "the vocabulary: word frequencies of this text are not known")


def made(tmp_path: Path, row: str, *runs: Made, scale: str = "small") -> list[Run]:
    """The runs of one row, a seed each."""
    folders = [write_made(tmp_path, row, seed, one, scale=scale) for seed, one in enumerate(runs)]
    return load_runs(folders)[0]


@pytest.mark.parametrize(
    ("values", "target", "sign", "place"),
    [
        ([10, 50, 80, 70], 80, 1, 2),
        ([10, 50, 79.9], 80, 1, None),
        ([300, 120, 100], 120, -1, 1),
        ([300, 120.1], 120, -1, None),
        ([math.nan, 90], 80, 1, 1),
    ],
)
def test_a_target_is_met_at_the_first_epoch_that_is_as_good(
    values: list[float], target: float, sign: int, place: int | None
) -> None:
    assert met_at(np.array(values), target, sign) == place


@pytest.mark.parametrize(
    ("values", "sign", "share", "place"),
    [
        ([10, 50, 80, 80.5, 80.7], 1, 0.01, 2),  # 0.7 of 80.7 is below 1 %
        ([10, 50, 80, 80.5, 81.0], 1, 0.01, 4),  # 1.0 over the last that counted, 80
        ([300, 120, 100, 99.5], -1, 0.01, 2),
        ([300, 120, 100, 98], -1, 0.01, 3),
        ([80, 70, 60], 1, 0.01, 0),  # the first counts
        ([50, 40, 80, 30], 1, 0.01, 2),  # what comes after the best is no improvement
        ([math.nan, math.nan], 1, 0.01, 0),
    ],
)
def test_the_plateau_begins_at_the_last_improvement_that_counts(
    values: list[float], sign: int, share: float, place: int
) -> None:
    assert plateau_at(np.array(values), sign, share) == place


def test_small_steps_add_up_to_an_improvement() -> None:
    creeping = np.array([50 + 0.4 * epoch for epoch in range(50)])  # each step below 1 % of 69.6
    assert plateau_at(creeping, 1, 0.01) > 40


def test_the_target_is_dense_less_its_spread_and_of_a_perplexity_plus(tmp_path: Path) -> None:
    finals = (70.0, 72.0, 74.0)
    images = course(
        made(tmp_path / "a", "resnet101.dense", *map(Made, finals)), "resnet101", "small"
    )
    words = course(made(tmp_path / "b", "lstm.dense", *map(Made, finals)), "lstm", "small")
    assert images.target is not None
    assert words.target is not None
    assert images.target.value == pytest.approx(72 - 2)
    assert words.target.value == pytest.approx(72 + 2)
    assert words.metric == PERPLEXITY


def test_of_one_dense_seed_the_target_is_its_value_and_without_one_there_is_none(
    tmp_path: Path,
) -> None:
    alone = course(made(tmp_path / "a", "vgg16.dense", Made(60.0)), "vgg16", "small")
    assert alone.target is not None
    assert alone.target.value == 60.0
    assert alone.metric == METRICS["top5"]
    without = course(made(tmp_path / "b", "vgg16.topk10", Made(60.0)), "vgg16", "small")
    assert without.targets == ()


def test_the_papers_target_stands_beside_ours_at_scale_paper_only(tmp_path: Path) -> None:
    small = course(made(tmp_path / "a", "lstm.dense", Made(90.0)), "lstm", "small")
    paper = course(made(tmp_path / "b", "lstm.dense", Made(90.0), scale="paper"), "lstm", "paper")
    assert [t.value for t in small.targets] == [90.0]
    assert [t.value for t in paper.targets] == [90.0, 22.0]


def test_better_than_a_target_is_positive_of_a_perplexity_too(tmp_path: Path) -> None:
    runs = made(tmp_path, "lstm.dense", Made(100.0))
    runs += made(tmp_path, "lstm.gravac07", Made(96.0))
    one = course(runs, "lstm", "small")
    assert one.target is not None
    assert differences(one, "gravac07", one.target) == [4.0]


def test_seconds_go_by_three_clocks(tmp_path: Path) -> None:
    runs = made(tmp_path, "resnet101.dense", Made(80.0, plateau=5, seconds=3.0))
    one = course(runs, "resnet101", "small")
    assert one.target is not None
    assert seconds_to_plateau(runs[0], one, MODELLED) == 15.0
    # 5 epochs of 50 steps of 3 ((40 + 20) / 4 + 5) ms, and 3 x 0.25 s of communication each
    assert seconds_to_plateau(runs[0], one, WORKERS_HERE) == pytest.approx(15.0 + 3.75)
    assert seconds_to_plateau(runs[0], one, MEASURED) == 50.0
    assert seconds_to_target(runs[0], one, one.target, MODELLED) == 15.0
    missed = replace(one.target, value=80.1)
    assert seconds_to_target(runs[0], one, missed, MODELLED) == math.inf


def timed(tmp_path: Path, scale: float | None = 1.0, kind: str = "simulated") -> Run:
    """Three epochs, the last one shorter, of 4 workers."""
    (run,) = made(tmp_path, "resnet101.dense", Made(80.0))
    run.config["launch"]["kind"] = kind
    if scale is not None:
        run.config["network"]["message_scale"] = scale
    times = {
        "step": [50, 100, 140],
        "time/compute_ms": [40.0, 80.0, 40.0],
        "time/compress_ms": [20.0, 20.0, 0.0],
        "time/decompress_ms": [5.0, 5.0, 10.0],
        "time/modelled_communicate_seconds": [7.0, 9.0, 12.0],  # since the start
    }
    return replace(run, epochs=run.epochs.head(3).assign(**times))


@pytest.mark.parametrize(
    ("scale", "kind", "seconds"),
    [
        # 50 x (60 / 4 + 5) ms = 1 s; 50 x (100 / 4 + 5) = 1.5 s; 40 x (40 / 4 + 10) = 0.8 s
        (1.0, "simulated", [1 + 7, 2.5 + 9, 3.3 + 12]),
        (None, "simulated", [1 + 7, 2.5 + 9, 3.3 + 12]),
        # a real process times one worker: 50 x 65 ms = 3.25 s, 50 x 105 = 5.25 s, 40 x 50 = 2 s
        (1.0, "local", [3.25 + 7, 8.5 + 9, 10.5 + 12]),
    ],
)
def test_workers_as_here_on_the_modelled_network_by_hand(
    tmp_path: Path, scale: float | None, kind: str, seconds: list[float]
) -> None:
    run = timed(tmp_path, scale, kind)
    found = [seconds_at(run, place, WORKERS_HERE) for place in range(3)]
    assert found == pytest.approx(seconds)
    assert seconds_at(run, -1, WORKERS_HERE) == found[-1]


@pytest.mark.parametrize(
    "name",
    [
        *("time/compute_ms", "time/compress_ms", "time/decompress_ms"),
        "time/modelled_communicate_seconds",
    ],
)
def test_without_one_of_its_columns_a_run_has_no_such_clock(tmp_path: Path, name: str) -> None:
    run = timed(tmp_path)
    without = replace(run, epochs=run.epochs.drop(columns=name))
    assert math.isnan(seconds_at(without, 0, WORKERS_HERE))
    assert math.isnan(seconds_at(without, -1, WORKERS_HERE))
    assert seconds_at(without, -1, MODELLED) == 3.0


def test_from_an_epoch_that_was_all_warm_up_on_nothing_is_known(tmp_path: Path) -> None:
    run = timed(tmp_path)
    run.epochs.loc[1, "time/compute_ms"] = math.nan
    found = [seconds_at(run, place, WORKERS_HERE) for place in range(3)]
    assert found == pytest.approx([8.0, math.nan, math.nan], nan_ok=True)


def test_a_slim_model_has_no_clock_of_workers_as_here(tmp_path: Path) -> None:
    """A full one does not take so many times longer as its messages are larger."""
    full, slim = timed(tmp_path / "a"), timed(tmp_path / "b", scale=10.0)
    assert math.isnan(seconds_at(slim, -1, WORKERS_HERE))
    assert seconds_at(slim, -1, MODELLED) == 3.0
    courses = [course([run], "resnet101", "small") for run in (full, slim)]
    assert shown_clocks(courses[:1]) == shown_clocks(courses) == (MODELLED, WORKERS_HERE, MEASURED)
    assert shown_clocks(courses[1:]) == (MODELLED, MEASURED)
    assert WORKERS_HERE in clocks_text(shown_clocks(courses))
    assert WORKERS_HERE not in clocks_text(shown_clocks(courses[1:]))


def test_a_share_for_the_plateau_is_the_runs_own(tmp_path: Path) -> None:
    (run,) = made(tmp_path, "resnet101.dense", Made(80.0, plateau=5))
    one = course([run], "resnet101", "small")
    run.config["goal"]["plateau"] = 0.5  # epochs 1, 4: each more than 40 over the last that counted
    assert seconds_to_plateau(run, one, MODELLED) == 4.0


@pytest.mark.parametrize(
    ("final", "target", "failed"), [(19.9, 80.0, True), (20.1, 80.0, False), (9.0, 5.0, True)]
)
def test_twenty_percent_of_ten_classes_is_where_failing_ends(
    tmp_path: Path, final: float, target: float, failed: bool
) -> None:
    dense = made(tmp_path, "resnet101.dense", Made(target))
    (run,) = made(tmp_path, "resnet101.randomk10", Made(final))
    one = course([*dense, run], "resnet101", "small")
    assert has_failed(run, one.metric, one.target) is failed
    assert (seconds_to_plateau(run, one, MODELLED) == math.inf) is failed


def on_ptb(run: Run) -> Run:
    """As scale small trains: a text whose word frequencies are known."""
    run.environment["data"] = "ptb (valid as train)"
    run.config["dataset"] |= {"train_size": 63_720, "test_size": 20_000}
    return run


@pytest.mark.parametrize(
    ("final", "failed"), [(1470.0, True), (573.0, True), (410.0, True), (390.0, False)]
)
def test_a_perplexity_near_that_of_word_frequencies_has_failed(
    tmp_path: Path, final: float, failed: bool
) -> None:
    """ln(447.2 / 210) = 0.756 nats, of which a seventh is 0.108: failing ends at 401."""
    dense = made(tmp_path, "lstm.dense", Made(210.0))
    (run,) = made(tmp_path, "lstm.randomk10", Made(final))
    one = course([*map(on_ptb, dense), on_ptb(run)], "lstm", "small")
    assert has_failed(run, one.metric, one.target) is failed
    assert "(447.2, perplexity of the training part's word frequencies)" in failed_text(one)
    assert "no better than chance" not in failed_text(one)
    run.config["dataset"]["train_size"] = 100  # of another part they are not known
    assert chance(run, PERPLEXITY) == UNKNOWN


def test_where_dense_itself_guesses_all_have_failed_and_the_page_says_so(tmp_path: Path) -> None:
    dense = [on_ptb(run) for run in made(tmp_path, "lstm.dense", Made(670.0))]
    one = course(dense, "lstm", "small")
    assert has_failed(dense[0], one.metric, one.target)
    assert failed_text(one).endswith("The target itself is no better than chance.")


@pytest.mark.parametrize(("final", "failed"), [(6000.0, True), (500.0, False), (math.inf, True)])
def test_a_perplexity_near_the_size_of_the_vocabulary_has_failed(
    tmp_path: Path, final: float, failed: bool
) -> None:
    dense = made(tmp_path, "lstm.dense", Made(120.0))
    (run,) = made(tmp_path, "lstm.randomk1000", Made(final))
    one = course([*dense, run], "lstm", "small")
    assert has_failed(run, one.metric, one.target) is failed


def test_a_loss_that_is_not_finite_has_failed_however_good_the_last_epoch(tmp_path: Path) -> None:
    folder = write_made(tmp_path, "resnet101.topk10", 0, Made(80.0), **{"train/loss": math.nan})
    assert has_failed(load_run(folder), ACCURACY, None)


def test_guessing_is_known_by_the_data_or_the_summary(tmp_path: Path) -> None:
    (image,) = made(tmp_path / "a", "vgg16.dense", Made(80.0))
    (words,) = made(tmp_path / "b", "lstm.dense", Made(80.0))
    assert chance(image, METRICS["top5"]) == Chance(5.0, "5 of 100 classes")
    assert chance(image, ACCURACY) == Chance(1.0, "1 of 100 classes")
    assert chance(words, PERPLEXITY) == UNKNOWN
    words.summary["classes"] = 321
    assert chance(words, PERPLEXITY) == replace(UNKNOWN, value=321.0)
    words.summary.pop("classes")
    words.config["dataset"]["_target_"] = "my_data.Mine"
    assert chance(words, PERPLEXITY) is None
    assert not has_failed(words, PERPLEXITY, None)


def test_the_wire_of_many_workers_follows_from_what_was_counted(tmp_path: Path) -> None:
    (dense,) = made(tmp_path, "resnet101.dense", Made(80.0, averaged=True))
    (gathered,) = made(tmp_path, "resnet101.topk10", Made(80.0, reduction=10.0))
    (averaged,) = made(tmp_path, "resnet101.accordion", Made(80.0, reduction=10.0, averaged=True))
    # 10x in floats is 5x in payload; a gathered one is handed on 31 times, dense 2 x 31 / 32 times
    assert wire_reduction(gathered, dense, 32) == pytest.approx(5 * 2 / 32)
    assert wire_reduction(averaged, dense, 32) == pytest.approx(10.0)
    assert wire_reduction(gathered, dense, 4) == pytest.approx(5 * 2 / 4)
    gathered.config["launch"]["workers"] = 2
    assert math.isnan(wire_reduction(gathered, dense, 32))


def test_runs_of_another_batch_are_not_rows_of_one_table(tmp_path: Path) -> None:
    runs = made(tmp_path, "resnet101.dense", Made(80.0))
    runs += made(tmp_path, "resnet101.topk10", Made(80.0))
    runs[1].config["train"]["batch_size"] = 33
    with pytest.raises(UserError, match=r"^train\.batch_size: the same in every run"):
        course(runs, "resnet101", "small")


def test_without_a_goal_a_run_is_judged_by_what_it_has(tmp_path: Path) -> None:
    (words,) = made(tmp_path / "a", "lstm.dense", Made(80.0))
    (image,) = made(tmp_path / "b", "vgg16.dense", Made(80.0))
    for run in (words, image):
        run.config["goal"] = {}
    assert metric_of([words]) == PERPLEXITY
    assert metric_of([image]) == ACCURACY


def test_numbers_are_written_with_their_spread() -> None:
    assert written([]) == "-"
    assert written([1.234], "x") == "1.23x"
    assert written([10.0, 12.0], "x") == "11.0x +- 1.4"
    assert written([163.0, 163.0], "x") == "163x +- 0"
    assert printed.failed_share() < 0.2
