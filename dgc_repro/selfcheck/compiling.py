"""Rows ``compile``: each kernel variant that a step launches compiles, and what its binary needs.

On a GPU all variants are compiled for it, of the methods of conf/compressor/ and of the settings table; later
rows then find them in Triton's cache. Without a GPU those of conf/compressor/ are compiled, for four
architectures in turn. (The kernel tests compile each for all four.)
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch

from dgc_repro.bench.launches import methods
from dgc_repro.compressor.interface import Compressor
from dgc_repro.exchange.ahead import variants
from dgc_repro.kernel.batch import on_gpu
from dgc_repro.launch.components import build_compressor, build_policy
from dgc_repro.launch.overrides import composed
from dgc_repro.selfcheck.law_settings import SETTINGS
from dgc_repro.selfcheck.rows import CUDA, Checks, Skip

ARCHITECTURES = (70, 75, 80, 90)  # V100, T4, A100, H100
SHAPES = {"conv": (64, 3, 7, 7), "bias": (64,), "linear": (1000, 512)}


def checks(device: str) -> Checks:
    """A case for each variant."""
    if not on_gpu(()):
        raise Skip("no Triton, or DGC_REPRO_COMPILE=0 switches it off")
    from dgc_repro.kernel.gpu.compiling import GPUTarget  # type: ignore[attr-defined]  # Triton's

    parameters = {n: torch.empty(shape, device="meta") for n, shape in SHAPES.items()}
    found: set[Any] = set()
    for compressor in compressors(device):
        found |= variants(compressor, parameters)
    most = (0, "")
    targets = [GPUTarget("cuda", number, 32) for number in ARCHITECTURES]
    stacks: dict[str, int] = {}
    for number, one in enumerate(sorted(found, key=str)):
        if device == CUDA:
            yield str(one), partial(resources_of, one, torch.device(CUDA, 0), stacks)
        else:
            target = targets[number % len(targets)]
            yield f"{one} for sm_{target.arch}", partial(resources_of, one, target, stacks)
    most = max(((stack, name) for name, stack in stacks.items()), default=most)
    spilled = f"; {sum(map(bool, stacks.values()))} use the stack, most {most[1]}: {most[0]} bytes"
    where = "this GPU" if device == CUDA else f"sm_{', '.join(map(str, ARCHITECTURES))} in turn"
    return f"{len(found)} variants for {where}{spilled if most[0] else ', none spills'}"


def compressors(device: str) -> Iterator[Compressor]:
    """Whose kernels are compiled."""
    for own in methods().values():
        config = composed(["scale=none", "train.epochs=1", *own, "policy=fixed"])
        yield build_compressor(config, build_policy(config))
    if device == CUDA:
        for setting in SETTINGS:
            yield setting.compressor


def resources_of(one: Any, on: Any, stacks: dict[str, int]) -> str:
    """Compile a variant and note its stack, which holds spilled registers."""
    from dgc_repro.kernel.gpu.compiling import compiled, resources

    ((_, binary),) = compiled([one], on)
    found = resources(binary)
    name = one.kernel.fn.__name__
    stacks[name] = max(found.stack_bytes, stacks.get(name, 0))
    text = f"{found.registers} registers, {found.stack_bytes} bytes of stack"
    spills = getattr(binary, "n_spills", None)  # known once it is loaded
    return text if spills is None else f"{text}, {spills} spills"
