"""Rows ``compile``: each kernel variant that a step launches compiles, and what its binary needs.

On a GPU all variants are compiled for it, of the methods of conf/compressor/ and of the settings table; later
rows then find them in Triton's cache. Without a GPU those of conf/compressor/ are compiled, for four
architectures in turn. (The kernel tests compile each for all four.)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import torch

from dgc_repro.bench.launches import methods
from dgc_repro.compressor.interface import Compressor
from dgc_repro.exchange.ahead import variants
from dgc_repro.kernel.batch import on_gpu
from dgc_repro.launch.overrides import composed
from dgc_repro.launch.settings import build_compressor, build_policy
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
    targets = [GPUTarget("cuda", number, 32) for number in ARCHITECTURES]
    needs: dict[str, Any] = {}
    for number, one in enumerate(sorted(found, key=str)):
        on, name = torch.device(CUDA, 0), str(one)
        if device != CUDA:
            on = targets[number % len(targets)]
            name += f" for sm_{on.arch}"
        yield name, partial(resources_of, one, on, needs, name)
    where = "this GPU" if device == CUDA else f"sm_{', '.join(map(str, ARCHITECTURES))} in turn"
    return f"{len(found)} variants for {where}; {summary(needs)}"


def summary(needs: Mapping[str, Any]) -> str:
    """How many variants need memory beside registers, how many bytes in all, and the one that needs most."""
    told = []
    for field, what in (("spilled_bytes", "spill registers"), ("stack_bytes", "use the stack")):
        found = {name: getattr(one, field) for name, one in needs.items() if getattr(one, field)}
        told.append(f"{len(found)} {what}")
        if found:
            worst = max(found, key=lambda name: found[name])
            told[-1] += (
                f" ({sum(found.values())} bytes a thread in all, most {worst}: {found[worst]})"
            )
    return ", ".join(told)


def compressors(device: str) -> Iterator[Compressor]:
    """Whose kernels are compiled."""
    for own in methods().values():
        config = composed(["scale=none", "train.epochs=1", *own, "policy=fixed"])
        yield build_compressor(config, build_policy(config))
    if device == CUDA:
        for setting in SETTINGS:
            yield setting.compressor


def resources_of(one: Any, on: Any, needs: dict[str, Any], name: str) -> str:
    """Compile a variant, note what it needs, and say it."""
    from dgc_repro.kernel.gpu.compiling import compiled, resources

    ((_, binary),) = compiled([one], on)
    found = needs[name] = resources(binary)
    return (
        f"{found.registers} registers, {found.stack_bytes} bytes of stack, {found.spilled_bytes} spilled, "
        f"{found.shared_bytes} shared"
    )
