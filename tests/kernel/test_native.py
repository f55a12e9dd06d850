"""The C kernels: compiled at the first step, said in one line; without a compiler tensor operations serve."""

from __future__ import annotations

import ctypes
import logging
import os
import platform
import re
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
import torch
from numeric import dense, encoded

from dgc_repro import Uniform
from dgc_repro.kernel import native


def test_with_a_compiler_the_c_kernels_serve() -> None:
    if os.environ.get("DGC_REPRO_COMPILE") == "0" or shutil.which("cc") is None:
        pytest.skip("no C compiler here, or DGC_REPRO_COMPILE=0")
    assert native.library() is not None, "the compiler would not take kernel/c: see the warning"


def test_the_types_of_every_c_function_are_read_and_each_is_called() -> None:
    """A pointer that is taken for a number of 32 bits would crash."""
    package = native.FOLDER.parents[1]
    text = "\n".join(path.read_text(encoding="utf-8") for path in package.rglob("*.py"))
    sources = "\n".join(path.read_text(encoding="utf-8") for path in native.FOLDER.iterdir())
    called, known = set(re.findall(r'Function\("(\w+)"\)', text)), native._prototypes()
    assert called <= known.keys()
    for name, (_, parameters) in known.items():
        assert name in called or len(re.findall(rf"\b{name}\b", sources)) > 1
        for parameter in parameters:
            pointer = "*" in parameter
            assert (native._type(parameter) is ctypes.c_void_p) == pointer
    result, parameters = known["dgc_scale_all"]
    assert (result, parameters[-2:]) == ("int", ["float weight", "int threads"])


@pytest.mark.parametrize("compiler", ["/nonexistent/cc", "/bin/false"])
def test_without_a_working_compiler_one_line_says_so(
    compiler: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("CC", compiler)
    monkeypatch.delenv("DGC_REPRO_COMPILE", raising=False)
    caplog.set_level(logging.WARNING)
    native.library.cache_clear()
    try:
        x = torch.randn(100)
        assert torch.isfinite(dense(encoded(Uniform(4), x))).all()
        assert not native.usable(x)
    finally:
        native.library.cache_clear()
    (record,) = caplog.records
    assert record.getMessage().startswith(
        "kernels run as tensor operations, slower but with equal values: "
    )


@pytest.mark.slow
@pytest.mark.skipif(platform.machine() != "x86_64", reason="long double is x87's on x86-64 only")
@pytest.mark.skipif(shutil.which("gcc") is None, reason="no gcc here")
def test_on_a_processor_without_avx_the_kernels_leave_long_doubles_alone(tmp_path: Path) -> None:
    """GCC may copy eight bytes through an MMX register, which is one of x87's."""
    compiler = tmp_path / "gcc-without-avx"
    compiler.write_text('#!/bin/sh\nexec gcc "$@" -march=x86-64-v2\n', encoding="utf-8")
    compiler.chmod(0o700)
    program = """
        import numpy as np, torch
        from dgc_repro import RandomK, TopK, Uniform
        from dgc_repro.kernel import native
        from dgc_repro.kernel.batch import Batch
        from dgc_repro.selfcheck.values import context
        assert native.library() is not None
        x = torch.randn(4099)
        for size in range(1, 4099, 7):
            batch = Batch(("x",), [x[:size]])
            Uniform(8, block=2048).encode_batch(batch, context())
            TopK(0.1).encode(batch, context())
            RandomK(0.1, shared=False).encode(batch, context())
        assert np.longdouble(1) / 3 * 3 == 1
    """
    ((code, text),) = ran(tmp_path, ["-c", textwrap.dedent(program)], CC=str(compiler))
    assert code == 0, text


# The first step of a machine compiles kernels.

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


def ran(cache: Path, *commands: list[str], **more: str) -> list[tuple[int, str]]:
    """How processes of Python end that are started at once: their codes, and what they print on stderr."""
    given: dict[str, Any] = {
        "env": environment(cache, **more),
        "stderr": subprocess.PIPE,
        "text": True,
    }
    started = [subprocess.Popen([sys.executable, *command], **given) for command in commands]
    errors = [one.communicate(timeout=250)[1] for one in started]
    return [(one.returncode, text) for one, text in zip(started, errors, strict=True)]


def said(cache: Path, *commands: list[str], **more: str) -> list[str]:
    """The lines about compiling that processes print on stderr."""
    ended = ran(cache, *commands, **more)
    assert not any(code for code, _ in ended), ended
    return [line for _, text in ended for line in text.splitlines() if "compiling" in line]


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.skipif(native.library() is None, reason="no C compiler here")
def test_the_first_step_says_once_that_it_compiles_and_the_next_nothing(tmp_path: Path) -> None:
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
    ((code, text),) = ran(tmp_path, ["-m", "dgc_repro.kernel"], CC="/nonexistent/cc")
    assert code == 1
    assert text.splitlines()[-1] == "no C kernels: tensor operations serve the CPU"


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_compiled_triton_kernels_are_said_once_and_cached_ones_are_not(tmp_path: Path) -> None:
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
