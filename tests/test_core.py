"""The exchange computes what it has computed: hashes that outlive every redesign (tests/golden/core.py)."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

sys.path.insert(0, str(Path(__file__).resolve().parent / "golden"))

import core
import core_loops
from tiny_run import SETTINGS

from dgc_repro.selfcheck.law_settings import SETTINGS as LAWS

GOLDEN: dict[str, Any] = json.loads(core.FILE.read_text(encoding="utf-8"))


@pytest.fixture(autouse=True, scope="module")
def same_machine() -> None:
    torch.set_num_threads(1)
    if (here := core.machine()) != GOLDEN["machine"]:
        pytest.skip(f"the hashes are of {GOLDEN['machine']}, and this is {here}")


@pytest.mark.slow
@pytest.mark.parametrize("name", SETTINGS)
def test_a_tiny_training(name: str) -> None:
    assert core.training(name) == GOLDEN["trainings"][name]


@pytest.mark.parametrize("place", range(len(LAWS)), ids=lambda place: f"{place} {LAWS[place]}")
def test_the_worlds_of_a_law_setting(place: int) -> None:
    assert core.law_worlds(LAWS[place]) == GOLDEN["worlds"][f"{place} {LAWS[place]}"]


@pytest.mark.slow
def test_loops_with_ddp() -> None:
    assert core_loops.played(core_loops.WHOLE) == GOLDEN["loops"]


@pytest.mark.slow
def test_loops_with_fully_shard() -> None:
    assert core_loops.played(core_loops.SHARDED) == GOLDEN["sharded"]


@pytest.mark.parametrize("name", core.NESTS)
def test_states_of_november_2026_continue(name: str) -> None:
    assert core.continued(name) == GOLDEN["saved"][name]


def test_a_checkpoint_of_november_2026_continues(tmp_path: Path) -> None:
    shutil.copytree(core.CHECKPOINT, tmp_path, dirs_exist_ok=True)
    assert core.checkpointed(tmp_path) == GOLDEN["saved"]["a run's checkpoint"]
