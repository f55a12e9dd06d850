"""Without a C compiler the tensor kernels serve, with equal values (tests/compressor/test_encoders.py); one
line says so."""

from __future__ import annotations

import ctypes
import logging
import os
import re
import shutil

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
