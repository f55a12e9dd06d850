"""Without a C compiler the tensor kernels serve, with equal values (tests/compressor/test_encoders.py); one
line says so."""

from __future__ import annotations

import logging
import os
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
