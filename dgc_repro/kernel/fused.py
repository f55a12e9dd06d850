"""Run a function of tensors fused by torch.compile, or eagerly with the same values.

Fusing pays on large tensors only: below ``MIN_FUSED_ELEMENTS`` the call overhead of a compiled
function exceeds the passes it saves (measured: about 1e5 elements on CPU). Only tensors on the
devices of ``FUSED_ON`` are fused: on the CPU the C kernels serve (kernel/native.py), and where they
cannot be compiled, torch's could not either.

The eager path is not a second implementation: it is the same Python function. Inductor's C++
backend keeps multiplications and additions apart (no contraction to fma) and rounds as eager does,
so both give the same bits there; tests/kernel compares them. Of its GPU backend this has not been
verified yet (no GPU was at hand).
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from types import FunctionType
from typing import Any

import torch

MIN_FUSED_ELEMENTS = 100_000
FUSED_ON = ("cuda",)
LOG = logging.getLogger(__name__)


class Compiler:
    """Whether kernels are compiled in this process; found out at the first large tensor.

    ``DGC_REPRO_COMPILE=0`` switches compilation off. A missing C++ compiler or missing Python
    headers is reported once and switches it off too.
    """

    enabled: bool = os.environ.get("DGC_REPRO_COMPILE", "1") != "0"

    @classmethod
    def give_up(cls, error: Exception) -> None:
        """Fall back to eager kernels for the rest of the process, and say why, once."""
        if cls.enabled:
            reason = (
                str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
            )
            LOG.warning("kernels run eagerly, slower but with equal values: %s", reason)
        cls.enabled = False


class Fused:
    """A function of tensors with a compiled twin. The first argument decides by its size.

    The kernel writes whole outputs from its inputs. ``name`` tells closures of one function apart:
    dynamo counts recompilations by code object, so each kernel is given a code object of its own.
    """

    def __init__(self, function: Callable[..., None], name: str) -> None:
        assert isinstance(function, FunctionType)
        code = function.__code__.replace(co_name=name)
        self.eager = FunctionType(
            code, function.__globals__, name, function.__defaults__, function.__closure__
        )
        self.compiled: Callable[..., Any] | None = None

    def __call__(self, *arguments: Any) -> Any:
        first = arguments[0]
        suits = first.device.type in FUSED_ON and first.numel() >= MIN_FUSED_ELEMENTS
        if not (Compiler.enabled and suits):
            return self.eager(*arguments)
        if self.compiled is not None:
            return self.compiled(*arguments)
        return self._first_call(arguments)

    def _first_call(self, arguments: tuple[Any, ...]) -> Any:
        try:
            compiled = torch.compile(self.eager, dynamic=True, fullgraph=True)
            result = compiled(*arguments)
        except Exception as error:
            # The kernels write whole outputs from their inputs, so that starting again is safe.
            Compiler.give_up(error)
            return self.eager(*arguments)
        self.compiled = compiled
        return result
