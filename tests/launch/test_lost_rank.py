"""A rank that dies, stops or raises ends the run on all ranks, with one line that names it."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import pytest
from commands import PATIENCE_SECONDS, Command, wait_for
from tiny_run import PLAIN

from dgc_repro.launch import local
from dgc_repro.launch.local import last_checkpoint

RUN = (
    *("launch=local", "launch.workers=2", "launch.threads=1", "launch.device=cpu", "sink=none"),
    *("dataset=digits", "dataset.train_size=128", "dataset.validation=51", "dataset.test_size=53"),
    *("train.batch_size=16", "train.epochs=2000", "sink.every_steps=1"),
)
Failing = Callable[..., str]

pytestmark = [pytest.mark.slow, pytest.mark.timeout(2 * PATIENCE_SECONDS)]


@pytest.fixture
def failing(commands: Callable[..., Command]) -> Failing:
    """Start two real ranks and see them fail: the line. ``hurt``: a signal for
    rank 1 once two epochs are saved."""

    def fail(*overrides: str, hurt: int | None = None) -> str:
        command = commands(*RUN, *overrides)
        command.start()
        if hurt is not None:
            wait_for(lambda: len(list(command.runs.glob("*/checkpoints/step-*"))) == 2, "2 epochs")
            os.kill(command.ranks()["1"], hurt)
        code, lines = command.end()
        assert len(lines) == 1, lines
        (line,) = lines
        assert code == 1
        folder = command.run_folder()
        assert line.endswith(f" (tracebacks: {folder / local.LOG_FILE})")
        kept = (
            f"the checkpoint of step {last_checkpoint(folder)} is kept, the same command continues"
        )
        assert ("no checkpoint yet" if hurt is None else kept) in line
        return line.removeprefix("error: ")

    return fail


def test_a_rank_killed_in_the_middle_is_named_with_its_signal_step_and_collective(
    failing: Failing,
) -> None:
    per_bucket = ("exchange.overlap=true", "compressor=topk", "wrap=[error_feedback]")
    line = failing(*PLAIN, *per_bucket, hurt=signal.SIGKILL)
    assert line.startswith("rank 1 did not come to the ")
    assert " of step " in line
    assert "(launch.timeout_seconds=600; torch says: " in line
    assert "rank 1 was killed by SIGKILL" in line


def test_a_rank_that_stands_still_ends_the_run_when_the_timeout_is_over(failing: Failing) -> None:
    dense = (*PLAIN, "compressor=dense", "wrap=[]", "launch.timeout_seconds=4")
    line = failing(*dense, hurt=signal.SIGSTOP)  # ends after 4 (timeout) + 4 (report) + 15
    assert line.startswith("rank 1 did not come to the ")
    assert "rank 1 does not answer: killed, stopped or cut off (launch.timeout_seconds=4; " in line
    assert "was killed by" not in line  # that was the launcher, at the end


def test_a_rank_that_raises_between_two_collectives_gives_its_reason_for_all(
    failing: Failing,
) -> None:
    line = failing("~model", "+model={_target_:odd_models.Raising,at_step:3}")
    assert line.startswith("FloatingPointError: the forward pass went wrong (rank 1, step 3); ")


def test_a_payload_that_one_rank_alone_receives_damaged_ends_the_run_with_its_reason(
    failing: Failing,
) -> None:
    """The sender waits in the next collective by then: the averages' gather, or the next step's signals."""
    damaged = (
        "+wrapper.damaged={_target_:damaged.OnItsWay,at_step:3}",
        "wrap=[error_feedback,damaged]",
    )
    topk = ("compressor=topk", "compressor.density=0.1", "exchange.aggregation=sharded")
    assert failing(*PLAIN, *topk, *damaged).startswith(
        "ValueError: sparse payload: 0x3039 is not a header of one: it was damaged on its way, or comes "
        "from another version of this package (rank 0, step 3); "
    )
