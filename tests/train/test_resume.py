"""Stop, save, build anew, load, continue = uninterrupted, bit for bit, for every kind of state."""

from __future__ import annotations

from pathlib import Path

import pytest
from tiny_run import (
    PLAIN,
    SETTINGS,
    STEPS_PER_EPOCH,
    Story,
    assert_continues,
    assert_same_state,
    built,
    play,
    without_times,
)

from dgc_repro.train import checkpoint
from dgc_repro.train.run import Run

WITH_BUFFERS = ("dense", "stepwise over a ladder with one residual")


@pytest.fixture(scope="module")
def uninterrupted() -> dict[str, tuple[Run, Story]]:
    """By setting; made when the first test of the setting asks."""
    return {}


IN_EPOCH, BEFORE_EVALUATION, IN_SECOND = (
    STEPS_PER_EPOCH - 2,
    STEPS_PER_EPOCH,
    STEPS_PER_EPOCH + 1,
)
LIKE_TOPK = (
    *(
        "threshold",
        "threshold, fixed",
        "dgc_sampled",
        "redsync",
        "sidco",
        "magnitude",
    ),
    *(
        "fp16",
        "bf16",
        "qsgd",
        "natural",
        "blockfloat",
        "eden",
        "drive",
        "terngrad",
        "onebit",
        "signsgd",
        "ef_signsgd",
    ),
    *("randomk", "randomk apart"),
)
"""They keep a residual at most, or what another setting keeps; tests/compressor/test_laws.py resumes all."""
OFTEN = (*WITH_BUFFERS, "dgc", "gravac a step later")


@pytest.mark.parametrize(
    ("name", "stop_after"),
    [
        *((name, IN_EPOCH) for name in SETTINGS if name not in LIKE_TOPK),
        *((name, stop) for name in OFTEN for stop in (BEFORE_EVALUATION, IN_SECOND)),
    ],
)
def test_a_stopped_run_continues_as_if_it_had_not_stopped(
    name: str, stop_after: int, tmp_path: Path, uninterrupted: dict[str, tuple[Run, Story]]
) -> None:
    # Buffers are the same affair for all; the model without them is 10 times as fast.
    overrides = (*SETTINGS[name], *(() if name in WITH_BUFFERS else PLAIN))
    if name not in uninterrupted:
        whole = built(*overrides)
        uninterrupted[name] = (whole, play(whole))
    whole, told = uninterrupted[name]
    assert told.finished
    assert_continues(overrides, stop_after, tmp_path, whole, told)


def test_a_run_continues_after_an_epoch_that_is_over(tmp_path: Path) -> None:
    overrides = (*SETTINGS["stepwise over a ladder with one residual"], *PLAIN)
    whole = built(*overrides, "train.epochs=3")
    told = play(whole)

    first = built(*overrides, "train.epochs=3")

    class EndOfEpochError(Exception):
        """The process dies after its first checkpoint."""

    def save_and_die() -> None:
        checkpoint.save(first, tmp_path, "a config")
        raise EndOfEpochError

    from dgc_repro.train.loop import train

    with pytest.raises(EndOfEpochError):
        train(first, lambda step: None, lambda epoch: None, save_and_die)

    second = built(*overrides, "train.epochs=3")
    checkpoint.load(second, tmp_path, "a config")
    assert (second.progress.step, second.progress.epoch) == (STEPS_PER_EPOCH, 1)
    after = play(second)
    assert after.losses == told.losses[STEPS_PER_EPOCH:]
    assert [without_times(r) for r in after.records] == [without_times(r) for r in told.records[1:]]
    assert_same_state(whole, second)


def test_the_policy_of_the_table_really_changes_rungs() -> None:
    told = play(built(*SETTINGS["stepwise over a ladder with one residual"], "train.epochs=3"))
    assert len({record["policy/rung"] for record in told.records}) > 1
