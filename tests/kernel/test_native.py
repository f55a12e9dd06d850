"""Without a C compiler the tensor kernels serve, with equal values (tests/compressor/test_encoders.py); one
line says so."""

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
    environment = os.environ | {"CC": str(compiler), "XDG_CACHE_HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr
