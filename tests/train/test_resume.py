"""Stop, save, build anew, load, continue = uninterrupted, bit for bit, for every kind of state."""

from __future__ import annotations

from pathlib import Path

import pytest
from everyday import everyday
from tiny_run import (
    PLAIN,
    SETTINGS,
    STEPS_PER_EPOCH,
    TEXT,
    UNIFORM4_EF,
    Story,
    assert_continues,
    assert_same_state,
    built,
    play,
    without_times,
)

from dgc_repro.train import checkpoint
from dgc_repro.train.loop import train
from dgc_repro.train.run import Run

WITH_BUFFERS = ("dense", "stepwise over a ladder with one residual")
LIKE_TOPK = (
    *("threshold", "threshold, fixed", "dgc_sampled", "redsync", "sidco", "magnitude"),
    *("fp16", "bf16", "qsgd", "natural", "blockfloat", "eden", "drive", "terngrad", "onebit"),
    *("signsgd", "ef_signsgd", "randomk", "randomk apart", "uniform nearest"),
    *("uniform stochastic", "uniform in blocks", "fixed rung", "demo", "sparseloco"),
)
"""They keep a residual at most, or what another setting keeps; tests/compressor/test_laws.py resumes all."""
OFTEN = (*WITH_BUFFERS, "dgc", "gravac a step later")
IN_EPOCH, BEFORE_EVALUATION, IN_SECOND = 2, 4, 5
assert STEPS_PER_EPOCH == BEFORE_EVALUATION

RESNET, EIGHT_STEPS = ("model=resnet18", "model.width=4"), "train.batch_size=8"
ROUNDS = ("compressor=topk", "train.local_steps=3")
FRAGMENTS = ("compressor=topk", "train.local_steps=4", "train.fragments=2", "train.delay_steps=1")
FACTORIZES = "model.low_rank.from_epoch=1"
CNN = ("model=cnn", "model.hidden=32", "model.dropout=0.3", FACTORIZES, "train.epochs=3")
OTHERS: dict[str, tuple[tuple[str, ...], tuple[int, ...]]] = {
    "text": ((*TEXT, *UNIFORM4_EF), (3, 4)),
    "text, topk": ((*TEXT, *SETTINGS["topk"]), (6,)),
    "rounds of adam": ((*PLAIN, "optimizer=adam", *ROUNDS), (4,)),
    "rounds, batch norm": ((*RESNET, *ROUNDS), (3,)),
    "rounds, carried state": ((*TEXT, *ROUNDS), (3,)),
    "rounds, factorized": ((*RESNET, FACTORIZES, *ROUNDS), (4,)),
    "fragments of adam": ((*PLAIN, "optimizer=adam", EIGHT_STEPS, *FRAGMENTS), (5,)),
    "fragments of muon": (
        (*PLAIN, "optimizer=muon", "train.mixing=0.5", EIGHT_STEPS, *FRAGMENTS),
        (8,),
    ),
    "fragments, batch norm": ((*RESNET, *FRAGMENTS), (3,)),
    "fragments, carried state": ((*TEXT, *FRAGMENTS), (3,)),
    "fragments, factorized": ((*RESNET, FACTORIZES, *FRAGMENTS), (4,)),
    "powersgd, factorized": ((*CNN, *SETTINGS["powersgd"]), (3, 4, 6)),
}
SLOW = {
    **{f"{name}, factorized": (*CNN, *SETTINGS[name]) for name in ("dense", "accordion", "gravac")},
    "sam, factorized": (*CNN, *UNIFORM4_EF, "optimizer=sam", "optimizer.compressed=first"),
}
STATES = {
    # Buffers are the same affair for all; the model without them is 10 times as fast.
    **{n: given if n in WITH_BUFFERS else (*given, *PLAIN) for n, given in SETTINGS.items()},
    **{name: given for name, (given, _) in OTHERS.items()},
    **SLOW,
}


@pytest.fixture(scope="module")
def uninterrupted() -> dict[str, tuple[Run, Story]]:
    """By setting; made when the first test of the setting asks."""
    return {}


@pytest.mark.parametrize(
    ("name", "stop_after"),
    [
        *((name, IN_EPOCH) for name in SETTINGS if name not in LIKE_TOPK),
        *((name, stop) for name in OFTEN for stop in (BEFORE_EVALUATION, IN_SECOND)),
        *((name, stop) for name, (_, stops) in OTHERS.items() for stop in stops),
        *everyday((name, stop) for name in SLOW for stop in (3, 4, 6)),
    ],
)
def test_a_stopped_run_continues_as_if_it_had_not_stopped(
    name: str, stop_after: int, tmp_path: Path, uninterrupted: dict[str, tuple[Run, Story]]
) -> None:
    overrides = STATES[name]
    if name not in uninterrupted:
        whole = built(*overrides)
        uninterrupted[name] = (whole, play(whole))
    whole, told = uninterrupted[name]
    assert told.finished
    assert whole.progress.is_low_rank == ("factorized" in name)
    assert_continues(overrides, stop_after, tmp_path, whole, told)


def test_a_run_continues_after_an_epoch_that_is_over(tmp_path: Path) -> None:
    """The process dies after its first checkpoint."""
    overrides = (*SETTINGS["stepwise over a ladder with one residual"], *PLAIN, "train.epochs=3")
    whole, first, second = (built(*overrides) for _ in range(3))
    told = play(whole)

    def save_and_die() -> None:
        checkpoint.save(first, tmp_path, "a config")
        raise InterruptedError

    with pytest.raises(InterruptedError):
        train(first, lambda step: None, lambda epoch: None, save_and_die)

    checkpoint.load(second, tmp_path, "a config")
    assert (second.progress.step, second.progress.epoch) == (STEPS_PER_EPOCH, 1)
    after = play(second)
    assert after.losses == told.losses[STEPS_PER_EPOCH:]
    assert [without_times(r) for r in after.records] == [without_times(r) for r in told.records[1:]]
    assert_same_state(whole, second)


def test_the_policy_of_the_table_really_changes_rungs() -> None:
    told = play(built(*SETTINGS["stepwise over a ladder with one residual"], "train.epochs=3"))
    assert len({record["policy/rung"] for record in told.records}) > 1
