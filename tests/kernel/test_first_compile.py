"""The first step of a machine compiles kernels: one line says so, and a warm cache says nothing."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from dgc_repro.kernel import native

REPOSITORY = Path(__file__).resolve().parents[2]
LOOP = """
import gc, sys
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from dgc_repro import ErrorFeedback, Uniform, attach

rank, meeting = int(sys.argv[1]), sys.argv[2]
dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=2)
model = DistributedDataParallel(torch.nn.Linear(8, 4))
exchange = attach(model, ErrorFeedback(Uniform(bits=4)))
for _ in range(2):
    model.zero_grad()
    model(torch.ones(2, 8)).sum().backward()
exchange.detach()
del model, exchange
gc.collect()
dist.destroy_process_group()
"""
TRITON = """
from triton.backends.compiler import GPUTarget

from dgc_repro.kernel.gpu.compiling import announced, compiled
from dgc_repro.exchange.ahead import variants
from dgc_repro import Uniform
import torch

found = sorted(variants(Uniform(8), {"x": torch.empty(9, 9, device="meta")}), key=str)[:2]
assert len(found) == 2
for _ in range(2):
    with announced():
        assert len(list(compiled(found, GPUTarget("cuda", 80, 32)))) == 2
"""


def environment(cache: Path, **more: str) -> dict[str, str]:
    """That of this process, with caches of its own."""
    kept = {k: v for k, v in os.environ.items() if k not in ("DGC_REPRO_COMPILE", "LOCAL_RANK")}
    own = {"XDG_CACHE_HOME": str(cache), "TRITON_CACHE_DIR": str(cache / "triton")}
    paths = os.pathsep.join(filter(None, (str(REPOSITORY), kept.get("PYTHONPATH"))))
    return kept | own | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1"} | more


def said(cache: Path, *commands: list[str], **more: str) -> list[str]:
    """The lines about compiling that processes, started at once, print on stderr."""
    ranks = [
        subprocess.Popen(
            [sys.executable, *command],
            env=environment(cache, **more),
            stderr=subprocess.PIPE,
            text=True,
        )
        for command in commands
    ]
    errors = [rank.communicate(timeout=250)[1] for rank in ranks]
    assert not any(rank.returncode for rank in ranks), errors
    return [line for text in errors for line in text.splitlines() if "compiling" in line]


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.skipif(native.library() is None, reason="no C compiler here")
def test_the_first_step_says_once_that_it_compiles_and_the_next_process_says_nothing(
    tmp_path: Path,
) -> None:
    def said_by_ranks(meeting: str) -> list[str]:
        ranks = [["-c", LOOP, str(rank), str(tmp_path / meeting)] for rank in range(2)]
        return said(tmp_path / "cache", *ranks)

    (line,) = said_by_ranks("first")
    folder = tmp_path / "cache" / "dgc_repro"
    assert line == (
        f"dgc_repro: compiling the C kernels, once per machine; they are kept in {folder} (to compile them "
        "beforehand: python -m dgc_repro.kernel)"
    )
    assert said_by_ranks("second") == []


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.skipif(native.library() is None, reason="no C compiler here")
def test_the_command_of_the_line_compiles_the_file_that_a_step_loads(tmp_path: Path) -> None:
    command = re.sub(r"^python ", "", native.COMMAND).split()
    assert len(said(tmp_path, command)) == 1
    assert [path.name for path in (tmp_path / "dgc_repro").glob("native-*")] == [
        native.compiled().name
    ]
    assert said(tmp_path, command) == []


def test_without_kernels_the_command_says_so_and_fails(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "dgc_repro.kernel"],
        env=environment(tmp_path, CC="/nonexistent/cc"),
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == "no C kernels: tensor operations serve the CPU"


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_triton_kernels_that_are_compiled_are_said_once_and_cached_ones_are_not(
    tmp_path: Path,
) -> None:
    triton = pytest.importorskip("triton")
    if not hasattr(triton, "knobs"):
        pytest.skip("this Triton does not report what it compiles")
    cache = tmp_path / "cache"
    (line,) = [one for one in said(cache, ["-c", TRITON]) if "GPU" in one]
    assert line == (
        f"dgc_repro: compiling the GPU kernels, once per machine; they are kept in {cache / 'triton'} (to "
        "compile them beforehand: python -m dgc_repro selfcheck rows=compile-cuda)"
    )
    assert said(cache, ["-c", TRITON]) == []
    other = said(tmp_path / "other", ["-c", TRITON], LOCAL_RANK="1")
    assert [one for one in other if "GPU" in one] == []
