"""What every test shares: one thread a process, a fixed hypothesis profile, the real data's folder.

One thread, because comparisons bit for bit across worlds need the same order of summation, and
because two workers a test already fill a small machine.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

# Before torch is imported, and inherited by every process that a test starts.
os.environ["OMP_NUM_THREADS"] = "1"

import pytest
import torch
from hypothesis import settings
from processes import World

REPOSITORY = Path(__file__).resolve().parent.parent

torch.set_num_threads(1)
# No deadline: the first call may compile a kernel. Derandomized: a red test is red again tomorrow.
settings.register_profile("dgc_repro", deadline=None, derandomize=True)
settings.load_profile("dgc_repro")


@pytest.fixture(params=["c", "tensors"])
def kernels(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both implementations, one after the other; without a C compiler the second twice."""
    if request.param == "tensors":
        monkeypatch.setattr("dgc_repro.kernel.native.library", lambda: None)


@pytest.fixture(scope="session")
def repository() -> Path:
    """The checkout's root."""
    return REPOSITORY


@pytest.fixture(scope="session")
def data_root() -> Path:
    """The folder of real data sets (cifar10/, ptb/); tests that need it skip where there is none.

    A folder that DGC_REPRO_DATA names and that is missing is a mistake, not a reason to skip.
    """
    named = os.environ.get("DGC_REPRO_DATA")
    root = Path(named) if named else REPOSITORY.parent / "shared" / "data"
    if root.is_dir():
        return root
    if named:
        pytest.fail(f"DGC_REPRO_DATA: a folder that exists, got {named}; unset it to skip")
    pytest.skip("no real data here; name its folder in DGC_REPRO_DATA")


def _world(size: int) -> Iterator[World]:
    world = World(size)
    yield world
    world.stop()


@pytest.fixture(scope="session")
def two_workers() -> Iterator[World]:
    """A world of real processes, started when the first test asks."""
    yield from _world(2)


@pytest.fixture(scope="session")
def three_workers() -> Iterator[World]:
    yield from _world(3)


@pytest.fixture(scope="session")
def four_workers() -> Iterator[World]:
    yield from _world(4)
