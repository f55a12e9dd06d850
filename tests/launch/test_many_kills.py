"""kill -9 of a rank, torchrun's agent, the parent or all: the same bits in the end, and nothing hangs.

Eight methods, in both worlds. Each run is killed twice and then ends as one that was not disturbed.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from ranks import processes_of, rank_of
from test_stop_and_continue import PATIENCE_SECONDS, Command, commands, wait_for
from tiny_run import PLAIN, SETTINGS, TINY, configured, play
from world import digest

from dgc_repro.exchange.gradients import tensors_of
from dgc_repro.launch.build import build_run
from dgc_repro.train.run import Run

__all__ = ["commands"]  # a fixture

pytestmark = [pytest.mark.slow, pytest.mark.timeout(4 * PATIENCE_SECONDS)]

EPOCHS, STEPS_PER_EPOCH = 12, 40
RUN = (
    *(*TINY, *PLAIN, "dataset.train_size=640", "train.batch_size=8", f"train.epochs={EPOCHS}"),
    *("launch.timeout_seconds=60", "sink.every_steps=1"),
)
REAL, SIMULATED = "launch=local", "launch=simulated"
AT_ONCE = "at once"  # the command is given again before what is left has ended
CHAINS = (
    ("error feedback", REAL, ("rank 0", ""), ("all", AT_ONCE)),
    ("powersgd", REAL, ("agent", ""), ("parent", "")),
    ("dgc", REAL, ("rank 1", ""), ("damaged", AT_ONCE)),
    ("topk", SIMULATED, ("parent", AT_ONCE), ("worker", "")),
    ("uniform stochastic", SIMULATED, ("all", AT_ONCE), ("parent", "")),
    ("randomk", SIMULATED, ("worker", ""), ("all", AT_ONCE)),
    ("gravac", SIMULATED, ("all", ""), ("parent", "")),
    ("stepwise over a ladder with one residual", SIMULATED, ("worker", ""), ("damaged", AT_ONCE)),
)


def victims(command: Command, who: str) -> list[int]:
    assert command.process is not None
    parent = command.process.pid
    others = {pid: line for pid, line in processes_of(command.runs).items() if pid != parent}
    agents = [pid for pid, line in others.items() if "torch.distributed.run" in line]
    workers = [pid for pid in others if pid not in agents]
    if who.startswith("rank"):
        return [pid for pid in workers if rank_of(pid) == who[-1]]
    found = {"parent": [parent], "agent": agents, "worker": workers}
    return found.get(who, [parent, *agents, *workers])


def kill(command: Command, step: int, who: str, then: str) -> None:
    command.start()
    command.wait_for_step(step)
    assert command.process is not None
    for pid in victims(command, who):
        os.kill(pid, signal.SIGKILL)
    command.process.communicate(timeout=PATIENCE_SECONDS)
    if not then:
        wait_for(lambda: processes_of(command.runs) == {}, "the others to end")
    if who == "damaged":  # on the disk of rank 1, say
        path = max((command.run_folder() / "checkpoints").glob("step-*")) / "worker-1.pt"
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 4
        path.write_bytes(bytes(content))


@pytest.mark.parametrize(("name", "world", "first", "second"), CHAINS, ids=[c[0] for c in CHAINS])
def test_a_run_that_is_killed_twice_ends_with_the_same_bits(
    name: str,
    world: str,
    first: tuple[str, str],
    second: tuple[str, str],
    commands: Callable[..., Command],
) -> None:
    command = commands(*RUN, *SETTINGS[name], world)
    kill(command, 2 * STEPS_PER_EPOCH + 7, *first)
    kill(command, 5 * STEPS_PER_EPOCH + 3, *second)
    command.start()
    assert command.end() == (0, [])
    folder = command.run_folder()
    steps = [json.loads(line)["step"] for line in (folder / "steps.jsonl").read_text().splitlines()]
    assert steps == list(range(1, EPOCHS * STEPS_PER_EPOCH + 1))
    told = (folder / "metrics.jsonl").read_text()
    assert ("worker-1.pt is damaged" in told) == ("damaged" in (first[0], second[0]))
    assert_ends_like(undisturbed(name), folder, told)


def undisturbed(name: str) -> tuple[Run, list[float]]:
    run = build_run(configured(*RUN, *SETTINGS[name]), torch.device("cpu"))
    return run, [record["train/loss"] for record in play(run).records]


def assert_ends_like(whole: tuple[Run, list[float]], folder: Path, told: str) -> None:
    run, losses = whole
    lines = [json.loads(line) for line in told.splitlines()]
    assert [line["train/loss"] for line in lines if line["kind"] == "epoch"] == losses
    saved = max((folder / "checkpoints").glob("step-*"))
    assert saved.name == f"step-{run.progress.step:08d}"
    model = torch.load(saved / "shared.pt", weights_only=True)["model"]
    assert digest(list(model.values())) == digest(list(run.module.state_dict().values()))
    for worker in (0, 1):
        state = torch.load(saved / f"worker-{worker}.pt", weights_only=True)["exchange"]
        assert digest(tensors_of(state)) == digest(tensors_of(run.exchange.state_dict(worker)))


def test_a_gradient_that_is_not_finite_on_one_real_rank_is_one_line(
    commands: Callable[..., Command],
) -> None:
    poisoned = (*RUN, "model.poisoned_steps=[50]", "launch=local")
    command = commands(*poisoned)
    command.start()
    code, errors = command.end()
    assert code == 2
    (line,) = errors
    assert "train.on_nonfinite: the gradient is not finite at step 51 (rank 1: head.weight)" in line
