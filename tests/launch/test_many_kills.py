"""kill -9 of a rank, of all ranks, of the parent or of all: the same bits in the end, and nothing hangs.

Eight methods: two with real ranks, killed twice each, and six simulated ones, killed three times each.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from commands import PATIENCE_SECONDS, Command, assert_ends_as_simulated, wait_for
from ranks import processes_of
from tiny_run import PLAIN, SETTINGS, TINY, configured

from dgc_repro.launch.parent import OWN_TARGETS
from dgc_repro.launch.single import prepare
from dgc_repro.launch.worker import run_worker

pytestmark = [pytest.mark.slow, pytest.mark.timeout(4 * PATIENCE_SECONDS)]

EPOCHS, STEPS_PER_EPOCH = 8, 40
RUN = (
    *(*TINY, *PLAIN, "dataset.train_size=640", "train.batch_size=8", f"train.epochs={EPOCHS}"),
    *("launch.timeout_seconds=60", "sink.every_steps=1"),
)
AT_ONCE = "at once"  # the command is given again before what is left has ended
CHAINS = (
    ("error feedback", ("rank 0", ""), ("damaged", AT_ONCE)),
    ("dgc", ("worker", ""), ("parent", "")),
)
FORKED = (
    *("topk", "uniform stochastic", "randomk", "powersgd", "gravac"),
    "stepwise over a ladder with one residual",
)


def kill(command: Command, step: int, who: str, then: str) -> None:
    command.start()
    command.wait_for_step(step)
    found = {f"rank {rank}": [pid] for rank, pid in command.ranks().items()}
    found |= {"parent": [command.process.pid], "worker": list(command.ranks().values())}
    for pid in found.get(who, [*found["parent"], *found["worker"]]):
        os.kill(pid, signal.SIGKILL)
    command.process.communicate(timeout=PATIENCE_SECONDS)
    if not then:
        wait_for(lambda: processes_of(command.runs) == {}, "the others to end")
    if who == "damaged":  # on the disk of rank 1, say
        path = max((command.run_folder() / "checkpoints").glob("step-*")) / "worker-1.pt"
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 4
        path.write_bytes(bytes(content))


@pytest.mark.parametrize(("name", "first", "second"), CHAINS, ids=[c[0] for c in CHAINS])
def test_a_run_of_real_ranks_that_is_killed_twice_ends_with_the_same_bits(
    name: str,
    first: tuple[str, str],
    second: tuple[str, str],
    commands: Callable[..., Command],
) -> None:
    command = commands(*RUN, *SETTINGS[name], "launch=local")
    kill(command, 2 * STEPS_PER_EPOCH + 7, *first)
    kill(command, 5 * STEPS_PER_EPOCH + 3, *second)
    command.start()
    assert command.end() == (0, [])
    assert_ends_as_simulated(command.run_folder(), *RUN, *SETTINGS[name])
    told = (command.run_folder() / "metrics.jsonl").read_text()
    assert ("worker-1.pt is damaged" in told) == (second[0] == "damaged")


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.parametrize("name", FORKED)
def test_a_simulated_run_that_is_killed_three_times_ends_with_the_same_bits(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "run"
    config = configured(*RUN, *SETTINGS[name])
    prepare(folder, config)
    monkeypatch.setenv(OWN_TARGETS, config["model"]["_target_"])
    for step in (30, 130, 210, None):  # before the first checkpoint, and between two
        pid = os.fork()
        if not pid:  # a process that has imported torch already
            code = 1
            with contextlib.suppress(BaseException):
                code = run_worker(folder)
            os._exit(code)
        if step is not None:
            wait_for(lambda step=step: last_step(folder) >= step, f"step {step}")
            os.kill(pid, signal.SIGKILL)
        assert os.waitpid(pid, 0)[1] == (0 if step is None else signal.SIGKILL)
    assert_ends_as_simulated(folder, *RUN, *SETTINGS[name])


def last_step(folder: Path) -> int:
    lines = folder / "steps.jsonl"
    whole = lines.read_text().rpartition("\n")[0] if lines.is_file() else ""
    return int(json.loads(whole.rpartition("\n")[2])["step"]) if whole else 0
