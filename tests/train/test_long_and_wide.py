"""Runs of many steps do not grow, and runs of many simulated workers end."""

from __future__ import annotations

import ctypes
import gc
import os
from pathlib import Path

import pytest
import torch
from tiny_run import PLAIN, SETTINGS, assert_continues, built, play

from dgc_repro.train import checkpoint
from dgc_repro.train.loop import train

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

STEPS = 3000
LONG = (*PLAIN, "dataset.train_size=1280", "train.epochs=75")  # 40 steps each
MOST_GROWTH_BYTES = 8_000_000


def used() -> tuple[int, int, int]:
    """Bytes in memory, tensors and open files of this process."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # what earlier tests left free is not this run's
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    tensors = sum(issubclass(type(thing), torch.Tensor) for thing in gc.get_objects())
    return pages * os.sysconf("SC_PAGE_SIZE"), tensors, len(os.listdir("/proc/self/fd"))


@pytest.mark.parametrize("name", ["powersgd", "stepwise over a ladder with one residual"])
def test_a_run_of_3000_steps_does_not_leak(name: str, tmp_path: Path) -> None:
    run = built(*SETTINGS[name], *LONG)
    seen: list[tuple[int, int, int]] = []

    def after_epoch() -> None:
        checkpoint.save(run, tmp_path, "a config")
        if run.progress.epoch in (15, 75):
            seen.append(used())

    assert train(run, lambda step: None, lambda epoch: None, after_epoch)
    assert run.progress.step == STEPS
    early, late = seen
    assert late[0] - early[0] < MOST_GROWTH_BYTES
    assert late[1:] == early[1:]


@pytest.mark.parametrize("name", ["topk", "powersgd"])
def test_256_simulated_workers_run_and_continue(name: str, tmp_path: Path) -> None:
    wide = (*SETTINGS[name], *PLAIN, "launch.workers=256", "dataset.train_size=768")
    small = (*wide, "train.batch_size=1", "train.epochs=1")  # 3 steps
    whole = built(*small)
    assert_continues(small, 1, tmp_path, whole, play(whole))
