"""Launches that go all the way through Triton's launcher and start nothing, for the time that the host needs
(bench/host.py). No GPU is needed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.compiler import CompiledKernel
from triton.runtime.driver import driver
from triton.runtime.jit import JITFunction

from dgc_repro.kernel.gpu import launch

DEVICE = -1  # the number under which Triton keeps these kernels


@contextmanager
def idle() -> Iterator[None]:
    """Inside, kernels do nothing, and numbers of a GPU are answered as those of fake tensors."""
    with (
        patch.object(driver, "_active", _Driver()),
        patch.object(JITFunction, "_do_compile", _compiled),
        patch.object(launch, "_BINARIES", {}),
        patch.object(launch.Unread, "tell", _expected),
    ):
        yield


class _Driver:
    """Of a GPU that is not there."""

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 70, 32)

    def get_current_device(self) -> int:
        return DEVICE

    def get_current_stream(self, device: int) -> int:
        return 0


class _Binary(CompiledKernel):  # type: ignore[misc]
    """A kernel that does nothing."""

    def __init__(self) -> None:
        self.name = self.src = self.function = self.packed_metadata = None
        self._run = lambda *_: None

    def _init_handles(self) -> None:
        pass


def _compiled(function: Any, key: Any, signature: Any, device: int, *_: Any) -> Any:
    """In place of Triton's compiler."""
    function.device_caches[device][0][key] = binary = _Binary()
    return binary


def _expected(unread: Any, numbers: Tensor) -> None:
    unread._known = unread._expected
