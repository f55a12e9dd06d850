"""A rank that dies, stops or raises ends the run on all ranks, with one line that names it."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

import pytest
import yaml
from ranks import processes_of, rank_of
from tiny_run import PLAIN, configured

from dgc_repro.launch import local
from dgc_repro.launch.local import RunFailed, last_checkpoint

TESTS = Path(__file__).resolve().parent.parent
PATIENCE_SECONDS = 150
"""For what takes 15 on an idle machine: a busy one starts Python slowly."""
RUN = (
    *("launch=local", "launch.workers=2", "launch.threads=1", "launch.device=cpu", "sink=none"),
    *("dataset=digits", "dataset.train_size=128", "dataset.validation=51", "dataset.test_size=53"),
    *("train.batch_size=16", "train.epochs=2000", "sink.every_steps=1"),
)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(PATIENCE_SECONDS + 20)]


def failing(
    folder: Path, *overrides: str, hurt: int | None = None, monkeypatch: pytest.MonkeyPatch
) -> tuple[str, float]:
    """Start two real ranks and see them fail: the line, and the seconds from the harm to the end.

    ``hurt``: a signal for rank 1 once two epochs are saved."""
    monkeypatch.setenv("PYTHONPATH", f"{TESTS.parent}:{TESTS}")
    config = configured(*RUN, *overrides)
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    harmed_at: list[float] = []

    def harm() -> None:
        end = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < end:
            if len(list(folder.glob("checkpoints/step-*"))) == 2:
                (pid,) = [pid for pid in processes_of(folder) if rank_of(pid) == "1"]
                os.kill(pid, hurt or 0)
                harmed_at.append(time.monotonic())
                return
            time.sleep(0.02)

    thread = threading.Thread(target=harm, daemon=True)
    if hurt is not None:
        thread.start()
    try:
        with pytest.raises(RunFailed) as raised:
            local.execute(config, folder)
    finally:
        left = processes_of(folder)
        for pid in left:
            os.kill(pid, signal.SIGKILL)
    assert left == {}, "a rank was left behind"
    line = str(raised.value)
    assert "\n" not in line
    assert line.endswith(f"(tracebacks: {folder / local.LOG_FILE})")
    return line, time.monotonic() - harmed_at[0] if harmed_at else 0.0


def keeps_its_checkpoint(line: str, folder: Path) -> bool:
    step = last_checkpoint(folder)
    return f"the checkpoint of step {step} is kept, the same command continues from it" in line


def test_a_rank_killed_in_the_middle_is_named_with_its_signal_step_and_collective(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    per_bucket = ("exchange.overlap=true", "compressor=topk", "wrap=[error_feedback]")
    line, _ = failing(tmp_path, *PLAIN, *per_bucket, hurt=signal.SIGKILL, monkeypatch=monkeypatch)
    assert line.startswith("rank 1 did not come to the ")
    assert " of step " in line
    assert "(launch.timeout_seconds=600)" in line
    assert "rank 1 was killed by SIGKILL" in line
    assert keeps_its_checkpoint(line, tmp_path)


def test_a_rank_that_stands_still_ends_the_run_when_the_timeout_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    line, seconds = failing(
        tmp_path,
        *(*PLAIN, "compressor=dense", "wrap=[]", "launch.timeout_seconds=4"),
        hurt=signal.SIGSTOP,
        monkeypatch=monkeypatch,
    )
    assert line.startswith("rank 1 did not come to the ")
    assert "nor answers: killed, stopped or cut off" in line
    assert "(launch.timeout_seconds=4)" in line
    assert "was killed by" not in line  # that was the launcher, at the end
    assert keeps_its_checkpoint(line, tmp_path)
    # 4 (timeout) + 5 (report) + 5 (kill)
    assert seconds < PATIENCE_SECONDS


def test_a_rank_that_raises_between_two_collectives_gives_its_reason_for_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    raising = ("~model", "+model={_target_:odd_models.Raising,at_step:3}")
    line, _ = failing(tmp_path, *raising, monkeypatch=monkeypatch)
    assert line.startswith("FloatingPointError: the forward pass went wrong (rank 1, at step 3); ")
    assert "no checkpoint yet, the same command starts again" in line


@pytest.mark.parametrize("way", ["sharded", "gtopk"])
def test_a_payload_that_one_rank_alone_receives_damaged_ends_the_run_with_its_reason(
    way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sender waits in the next collective by then: the averages' gather, or the next step's signals."""
    line, _ = failing(
        tmp_path,
        *PLAIN,
        *("compressor=topk", "compressor.density=0.1", f"exchange.aggregation={way}"),
        *(
            "+wrapper.damaged={_target_:damaged.OnItsWay,at_step:3}",
            "wrap=[error_feedback,damaged]",
        ),
        monkeypatch=monkeypatch,
    )
    assert line.startswith(
        "ValueError: sparse payload: 0x3039 is not a header of one: it was damaged on its way, or comes "
        "from another version of this package (rank 0, at step 3); "
    )
