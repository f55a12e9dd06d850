"""Compile variants of kernels before they are launched, and say what their binaries need."""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia.compiler import get_ptxas, sm_arch_from_capability
from triton.compiler import ASTSource

from dgc_repro.kernel.gpu.launch import OPTIONS, TYPES, Variant
from dgc_repro.kernel.native import note_compiling

COMMAND = "python -m dgc_repro selfcheck rows=compile-cuda"
DTYPES = {kind: dtype for dtype, kind in TYPES.items() if isinstance(dtype, torch.dtype)}


class Resources(NamedTuple):
    """What a thread of a binary needs. ``stack_bytes``: local memory, for spilled registers and for arrays of
    the library's functions; ``spilled_bytes``: that it stores there for lack of registers; ``shared_bytes``:
    of a program."""

    registers: int
    stack_bytes: int
    spilled_bytes: int
    shared_bytes: int


def compiled(
    variants: Iterable[Variant], on: torch.device | GPUTarget
) -> Iterator[tuple[Variant, Any]]:
    """Each variant with its binary (`CompiledKernel` of Triton), in the order of names.

    ``on``: a GPU, which loads the binary too, so that a launch finds it there; nothing is launched. Or a
    target, for which no GPU is needed."""
    for one in sorted(variants, key=str):
        yield one, _for_target(one, on) if isinstance(on, GPUTarget) else _for_gpu(one, on)


@contextmanager
def announced() -> Iterator[None]:
    """Print a line when Triton has compiled a first kernel in here that its cache did not have. The first
    rank of each machine prints it. Triton reports this from 3.4 on."""
    knobs = getattr(triton, "knobs", None)
    if knobs is None or os.environ.get("LOCAL_RANK", "0") != "0":
        yield
        return
    before = knobs.compilation.listener

    def listen(*, cache_hit: bool, **of_a_kernel: Any) -> None:
        if not cache_hit:
            note_compiling("the GPU kernels", knobs.cache.dir, COMMAND)
        if before is not None:
            before(cache_hit=cache_hit, **of_a_kernel)

    knobs.compilation.listener = listen
    try:
        yield
    finally:
        knobs.compilation.listener = before


def resources(binary: Any) -> Resources:
    """Registers and memory of a binary, as the tools of Triton's own package see them."""
    tool = triton.knobs.nvidia.cuobjdump.path
    text = _said(tool, "--dump-resource-usage", given=binary.asm["cubin"])
    found = {name: int(number) for name, number in re.findall(r"\b(REG|STACK):(\d+)", text)}
    spilled = 0
    if found["STACK"]:  # assembled once more, for what is said about it
        arch = binary.metadata.target.arch
        gpu = f"--gpu-name={sm_arch_from_capability(arch)}"
        text = _said(
            get_ptxas(arch).path, "-v", gpu, "-o", os.devnull, given=binary.asm["ptx"].encode()
        )
        spilled = sum(map(int, re.findall(r"(\d+) bytes spill stores", text)))
    return Resources(found["REG"], found["STACK"], spilled, binary.metadata.shared)


def _said(*command: str, given: bytes) -> str:
    """What a program says about a file with this content."""
    with tempfile.NamedTemporaryFile() as file:
        file.write(given)
        file.flush()
        done = subprocess.run([*command, file.name], capture_output=True, text=True, check=True)
    return done.stdout + done.stderr


def _for_target(one: Variant, target: GPUTarget) -> Any:
    names = one.kernel.arg_names
    places = {name: place for place, name in enumerate(names)}
    return triton.compile(
        ASTSource(
            fn=one.kernel,
            signature=dict(zip(names, one.types, strict=True)),
            constexprs={(places[name],): value for name, value in one.constants},
        ),
        target=target,
        options={**OPTIONS, "num_warps": one.num_warps},
    )


def _for_gpu(one: Variant, device: torch.device) -> Any:
    constants = dict(one.constants)
    given = [
        constants[name] if name in constants else _like(kind)
        for name, kind in zip(one.kernel.arg_names, one.types, strict=True)
    ]
    with torch.cuda.device(device):
        binary = one.kernel.warmup(*given, grid=(1,), **{**OPTIONS, "num_warps": one.num_warps})
        assert binary.run is not None  # this loads it
    return binary


def _like(kind: str) -> Any:
    """An argument of a type. Numbers and addresses are not compiled in."""
    if kind.startswith("*"):
        return torch.uint64 if kind == "*u64" else DTYPES[kind]
    return {"i32": 2, "fp32": 0.5}[kind]
