"""What a case of the GPU kernels is: its frame, its comparison with C, and its inputs."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from dgc_repro.exchange import finite, junction
from dgc_repro.kernel import batch as batches
from dgc_repro.kernel import native
from dgc_repro.kernel.batch import Batch
from dgc_repro.kernel.gpu.launch import Launches
from dgc_repro.kernel.workspace import Workspace
from dgc_repro.payload import sparse as sparse_payload
from dgc_repro.selfcheck.rows import Mismatch

CPU = torch.device("cpu")
SIZES = (700, 0, 1, 2100, 33, 4100)
NAMES = tuple(map(str, SIZES))
CODED = (700, 0, 1, 1100, 33, 70)
"""Values of each tensor that are quantized: the interpreter takes a while for each row."""
SHAPES = ((66, 130), (1, 1), (3, 700), (40, 5), (200, 1))
Run = Callable[[torch.device], list[Tensor]]
"""Gives its results for tensors on a device."""


@dataclass(frozen=True)
class Case:
    """A case and the arguments with which it is called. ``is_short``: the interpreter takes about a second;
    of each function one such case is part of the row ``kernels-cpu``."""

    function: Callable[..., None]
    arguments: Mapping[str, Any]
    is_short: bool

    def __str__(self) -> str:
        """``topk(odd=True)``."""
        given = ", ".join(f"{name}={_said(value)}" for name, value in self.arguments.items())
        return f"{self.function.__name__}({given})" if given else self.function.__name__

    def run(self, device: torch.device) -> None:
        """Raise Mismatch where the kernels on ``device`` and those in C differ."""
        self.function(device, **self.arguments)


CASES: list[Case] = []
_Function = Callable[..., None]


def each(*, is_slow: bool = False, **arguments: Sequence[Any]) -> Callable[[_Function], _Function]:
    """Make a case of a function for each combination of arguments. ``is_slow``: the interpreter takes many
    seconds for every one."""

    def made(function: _Function) -> _Function:
        for number, values in enumerate(itertools.product(*arguments.values())):
            given = dict(zip(arguments, values, strict=True))
            CASES.append(Case(function, given, number == 0 and not is_slow))
        return function

    return made


@contextmanager
def on_gpu(device: torch.device) -> Iterator[None]:
    """Kernels of the GPU must be launched. On the CPU its tensors take them, in the interpreter."""
    before = Launches.count
    if device.type == "cuda":
        yield
    else:
        with (
            patch.object(native, "usable", lambda tensor: False),
            patch.object(native, "library", lambda: None),
            patch.object(batches, "on_gpu", lambda tensors: True),
            patch.object(sparse_payload, "on_gpu", lambda tensors: True),
            patch.object(finite, "on_cpu", lambda tensor: False),
            patch.object(junction, "on_cpu", lambda tensor: False),
        ):
            yield
    expect(Launches.count > before, "no kernel of the GPU was launched")


def expect(good: bool, otherwise: str) -> None:
    """Raise Mismatch with these words, unless all is well."""
    if not good:
        raise Mismatch(otherwise)


def same(ours: Tensor, theirs: Tensor, what: str = "") -> None:
    """Raise Mismatch unless both have equal bits; of a NaN the place alone counts."""
    ours, theirs = ours.detach().cpu(), theirs.detach().cpu()
    expect(ours.shape == theirs.shape, f"{what}{tuple(ours.shape)} for {tuple(theirs.shape)}")
    if ours.is_floating_point():
        differ = ours.isnan() != theirs.isnan()
        kind = {2: torch.int16, 4: torch.int32, 8: torch.int64}[ours.element_size()]
        a, b = (x.nan_to_num(nan=1.0).contiguous().view(kind) for x in (ours, theirs))
        differ |= a != b
    else:
        differ = ours != theirs
    if number := int(differ.sum()):
        place = tuple(int(x) for x in differ.nonzero()[0])
        first = f"{ours[place].item()!r} for {theirs[place].item()!r} at {place}"
        raise Mismatch(f"{what}{number} of {ours.numel()} values differ; the first is {first}")


def close(ours: Tensor, theirs: Tensor, rtol: float, atol: float = 0.0) -> None:
    """Raise Mismatch unless both are equal to such errors."""
    try:
        torch.testing.assert_close(ours.cpu(), theirs.cpu(), rtol=rtol, atol=atol, equal_nan=True)
    except AssertionError as error:
        raise Mismatch(" ".join(str(error).split())) from error


def both(device: torch.device, run: Run) -> list[Tensor]:
    """Run with C and on the device, compare, and return the results of C."""
    expect(
        native.library() is not None, "the C kernels are not compiled here: there is no C compiler"
    )
    theirs = run(CPU)
    with on_gpu(device):
        ours = run(device)
    expect(len(ours) == len(theirs), f"{len(ours)} results for {len(theirs)}")
    for number, (one, other) in enumerate(zip(ours, theirs, strict=True)):
        same(one, other, f"result {number} of {len(ours)}: ")
    return theirs


# Inputs


def tensors(on: torch.device, seed: int = 0, *, odd: bool = True) -> list[Tensor]:
    """Heavy-tailed values with ties, zeros of both signs and denormal numbers; ``odd``: with what is not
    finite in some tensors too. One begins 4 bytes behind a multiple of 16, as in a bucket of DDP's."""
    source = torch.Generator().manual_seed(seed)
    found = [torch.randn(n, generator=source) ** 3 for n in SIZES]
    found[0][100:200] = 0.5
    found[0][200:210] = -0.5
    found[3][:3] = torch.tensor([0.0, -0.0, 1e-40])
    found[4].mul_(1e-38)  # denormal numbers among them
    found[5][4000:] = found[5][:100]
    if odd:
        found[0][5] = math.nan
        found[5][7] = math.inf
        found[5][70] = -math.inf
    found[3] = torch.cat([torch.zeros(1), found[3]])
    return [x.to(on)[1:] if i == 3 else x.to(on) for i, x in enumerate(found)]


def batch(on: torch.device, seed: int = 0, *, odd: bool = True) -> Batch:
    """The same as a batch."""
    return Batch(NAMES, tensors(on, seed, odd=odd))


def normal(on: torch.device, *shape: int, source: torch.Generator) -> Tensor:
    """Normal values that are the same on every device."""
    return torch.randn(*shape, generator=source).to(on)


def scratch(label: str, size: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """A new buffer, as methods get from their workspace."""
    return Workspace().scratch((label,), size, dtype, device).zero_()


def listed(selections: Sequence[Any]) -> list[Tensor]:
    """Values and places of some selections."""
    return [part for one in selections for part in (one.values, one.indices)]


def _said(value: object) -> str:
    return repr(value).replace(", factor=None", "")
