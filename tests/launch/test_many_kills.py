"""kill -9 of a rank, of the parent or of all, of real ranks and of a simulated run: the same bits in the end,
and nothing hangs."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import pytest
from commands import PATIENCE_SECONDS, Command, assert_ends_as_simulated, wait_for
from ranks import processes_of
from tiny_run import PLAIN, SETTINGS, TINY

pytestmark = [pytest.mark.slow, pytest.mark.timeout(4 * PATIENCE_SECONDS)]

EPOCHS, STEPS_PER_EPOCH = 8, 40
RUN = (
    *(*TINY, *PLAIN, "dataset.train_size=640", "train.batch_size=8", f"train.epochs={EPOCHS}"),
    *("launch.timeout_seconds=60", "sink.every_steps=1"),
)
AT_ONCE = "at once"  # the command is given again before what is left has ended


def kill(command: Command, step: int, who: str, then: str) -> None:
    command.start()
    command.wait_for_step(step)
    found = {f"rank {rank}": [pid] for rank, pid in command.ranks().items()}
    found |= {"parent": [command.process.pid]}
    for pid in found.get(who, [command.process.pid, *command.ranks().values()]):
        os.kill(pid, signal.SIGKILL)
    command.process.communicate(timeout=PATIENCE_SECONDS)
    if not then:
        wait_for(lambda: processes_of(command.runs) == {}, "the others to end")
    if who == "damaged":  # on the disk of rank 1, say
        path = max((command.run_folder() / "checkpoints").glob("step-*")) / "worker-1.pt"
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 4
        path.write_bytes(bytes(content))


@pytest.mark.parametrize(
    ("name", "launch", "kills"),
    [
        ("error feedback", "local", [("rank 0", ""), ("damaged", AT_ONCE), ("parent", "")]),
        ("gravac", "simulated", [("parent", "")] * 3),
    ],
)
def test_a_run_that_is_killed_again_and_again_ends_with_the_same_bits(
    name: str, launch: str, kills: list[tuple[str, str]], commands: Callable[..., Command]
) -> None:
    command = commands(*RUN, *SETTINGS[name], f"launch={launch}")
    for number, (who, then) in enumerate(kills):
        step = 2 * number * STEPS_PER_EPOCH + 30  # before the first checkpoint, then between two
        kill(command, step, who, then)
    command.start()
    assert command.end() == (0, [])
    assert_ends_as_simulated(command.run_folder(), *RUN, *SETTINGS[name])
    notes = (command.run_folder() / "metrics.jsonl").read_text()
    assert ("worker-1.pt is damaged" in notes) == (("damaged", AT_ONCE) in kills)
