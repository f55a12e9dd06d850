"""Tensors that one exchange handles together, and what the kernels do to all of them in one call.

A kernel gets the addresses and the sizes of all tensors. They need not lie side by side: gradients stay
in DDP's buckets, and nothing is copied to form a batch or a part of one.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterable, Sequence
from functools import lru_cache
from importlib.util import find_spec
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dgc_repro.kernel import native, select
from dgc_repro.kernel.cached import cached
from dgc_repro.kernel.native import Function

_add = Function("dgc_add_all")
_scale = Function("dgc_scale_all")
_add_scaled = Function("dgc_add_scaled_all")
_finite = Function("dgc_finite_all")
_energies = Function("dgc_energy_all")

CPU = torch.device("cpu")
Peaks = tuple[tuple[str, ...], tuple[int, ...], Tensor]
Numbers = npt.NDArray[np.int64]


class Batch:
    """Contiguous tensors of one device, by name. They are float32, unless they are only averaged.

    ``energies``: see the function of this name; where they are known already, until the tensors are written
    to. ``peaks``: where kernels on a GPU note what they have read of this batch or of a part of it: names,
    how many tiles each tensor has, and the largest magnitude in each, f32."""

    __slots__ = (
        "_addresses",
        "_on_gpu",
        "_pointers",
        "energies",
        "names",
        "native",
        "peaks",
        "sizes",
        "tensors",
    )

    def __init__(self, names: tuple[str, ...], tensors: Sequence[Tensor]) -> None:
        self.names = names
        self.tensors = tensors
        self.sizes = tuple([tensor.numel() for tensor in tensors])
        self.native = _native(tensors)
        self.energies: Tensor | None = None
        self.peaks: list[Peaks] | None = None
        self._pointers: ctypes.Array[ctypes.c_void_p] | None = None
        self._addresses: tuple[int, ...] | None = None
        self._on_gpu: bool | None = None

    def __len__(self) -> int:
        return len(self.names)

    @property
    def device(self) -> torch.device:
        return self.tensors[0].device

    @property
    def pointers(self) -> ctypes.Array[ctypes.c_void_p]:
        """Where the tensors lie, as an argument of a C function."""
        if self._pointers is None:
            self._pointers = native.pointers(self.tensors)
        return self._pointers

    @property
    def addresses(self) -> tuple[int, ...]:
        """The same as numbers."""
        if self._addresses is None:
            self._addresses = tuple([tensor.data_ptr() for tensor in self.tensors])
        return self._addresses

    @property
    def on_gpu(self) -> bool:
        """Whether the kernels of kernel/gpu can work on these tensors."""
        if self._on_gpu is None:
            self._on_gpu = not self.native and on_gpu(self.tensors)
        return self._on_gpu

    @property
    def lengths(self) -> ctypes.Array[ctypes.c_int64]:
        """How many values each tensor has, as an argument of a C function."""
        return integers(self.sizes)

    @property
    def counts(self) -> Numbers:
        """The same as an array, read only."""
        return np.ctypeslib.as_array(self.lengths)

    def like(self, tensors: Sequence[Tensor]) -> Batch:
        """Other tensors of the same names."""
        return Batch(self.names, tensors)

    def part(self, places: Iterable[int]) -> Batch:
        """Some of the tensors."""
        chosen = list(places)
        part = Batch.__new__(Batch)
        part.names = tuple([self.names[i] for i in chosen])
        part.tensors = [self.tensors[i] for i in chosen]
        part.sizes = tuple([self.sizes[i] for i in chosen])
        part.native = self.native or _native(part.tensors)
        part.energies, part.peaks = None, self.peaks
        part._pointers = None
        part._addresses = None
        part._on_gpu = self._on_gpu or None  # a part of what is not may be
        return part

    def slices(self, starts: Sequence[int], ends: Sequence[int]) -> Batch:
        """A stretch of every tensor, flat."""
        cut = zip(self.tensors, starts, ends, strict=True)
        return Batch(self.names, [tensor.view(-1)[start:end] for tensor, start, end in cut])


class Stretches(Batch):
    """Stretches of one buffer, as the tensors of a batch. A stretch that begins at -1 is the whole tensor of
    the other batch. Tensors are made when they are asked for."""

    __slots__ = ("_buffer", "_made", "_of", "_starts")

    def __init__(self, of: Batch, buffer: Tensor, starts: Numbers, sizes: tuple[int, ...]) -> None:
        self.names = of.names
        self.sizes = sizes
        self.native = of.native
        self.energies = self.peaks = None
        self._on_gpu = of.on_gpu
        self._pointers = None
        self._addresses = None
        self._of, self._buffer, self._starts = of, buffer, starts
        self._made: list[Tensor] | None = None

    @property
    def tensors(self) -> Sequence[Tensor]:  # type: ignore[override]
        if self._made is None:
            stretches = enumerate(zip(self._starts.tolist(), self.sizes, strict=True))
            self._made = [
                self._of.tensors[i] if start < 0 else self._buffer[start : start + n]
                for i, (start, n) in stretches
            ]
        return self._made

    @property
    def device(self) -> torch.device:
        return self._buffer.device

    @property
    def addresses(self) -> tuple[int, ...]:
        if self._addresses is None:
            self._addresses = tuple(self._where().tolist())
        return self._addresses

    @property
    def pointers(self) -> ctypes.Array[ctypes.c_void_p]:
        if self._pointers is None:
            where: Any = self._where()
            self._pointers = (ctypes.c_void_p * len(self)).from_buffer(where)
        return self._pointers

    def _where(self) -> Numbers:
        """The address of each."""
        where: Numbers = self._buffer.data_ptr() + 4 * self._starts
        whole = self._starts < 0
        if whole.any():
            where[whole] = np.array(self._of.addresses)[whole]
        return where


def _native(tensors: Sequence[Tensor]) -> bool:
    """Whether the C kernels can work on these tensors."""
    return native.library() is not None and all(
        tensor.dtype == torch.float32 and tensor.device == CPU for tensor in tensors
    )


def narrow(x: Batch) -> bool:
    """Whether places and counts need 32 bits at most, which the kernels that select entries assume."""
    return max(x.sizes, default=0) < 2**31


def on_gpu(tensors: Sequence[Tensor]) -> bool:
    """Whether these are float32 tensors on a GPU, and Triton may be used."""
    may_compile = os.environ.get("DGC_REPRO_COMPILE", "1") != "0"
    return (
        may_compile
        and _has_triton()
        and all(x.is_cuda and x.dtype == torch.float32 for x in tensors)
    )


@lru_cache(maxsize=1)
def _has_triton() -> bool:
    return find_spec("triton") is not None


def add(
    a: Batch,
    b: Batch | Sequence[Tensor],
    to: Batch | Sequence[Tensor],
    weight: float = 1.0,
    *,
    measured: bool = False,
) -> Batch:
    """to = a + weight * b, as a batch. All f32 and contiguous; ``to`` may be ``a`` or ``b``. ``measured``:
    the energies of ``to`` will be needed; kernels find them in the same pass.

    Raises ValueError where the sizes differ."""
    total = to if isinstance(to, Batch) else a.like(to)
    term = b if isinstance(b, Batch) else a.like(b)
    total.energies = None
    if not a.sizes == term.sizes == total.sizes:
        wrong = next(i for i, n in enumerate(a.sizes) if not n == term.sizes[i] == total.sizes[i])
        raise ValueError(
            f"{a.names[wrong]}: a state of {term.sizes[wrong]} values for a tensor of {a.sizes[wrong]}"
        )
    if a.native and term.native and total.native:
        total.energies = torch.empty(len(a), dtype=torch.float64) if measured else None
        _add(
            len(a), a.lengths, total.pointers, a.pointers, term.pointers, weight,
            total.energies.data_ptr() if total.energies is not None else None,
        )  # fmt: skip
        return total
    if a.on_gpu:
        from dgc_repro.kernel.gpu import dense

        dense.add(a, term, total, weight, measured=measured)
        total._on_gpu = True
        return total
    for one, two, three in zip(a.tensors, term.tensors, total.tensors, strict=True):
        # A payload's values may have another shape than the state.
        torch.add(one.view(-1), two.view(-1), alpha=weight, out=three.view(-1))
    return total


def scale(x: Batch, weight: float | Tensor, to: Batch) -> None:
    """to = weight * x; may be one batch. A weight that is a tensor is f32[], on the GPU."""
    if x.native and to.native:
        _scale(len(x), x.lengths, to.pointers, x.pointers, weight)
        return
    if x.on_gpu:
        from dgc_repro.kernel.gpu import dense

        dense.scale(x, weight, to)
        return
    for one, two in zip(x.tensors, to.tensors, strict=True):
        torch.mul(one.view(-1), weight, out=two.view(-1))


def add_scaled(x: Batch, weight: float, to: Batch) -> None:
    """to += weight * x, with each product rounded before it is added (`add` with a weight rounds once)."""
    if x.native and to.native:
        _add_scaled(len(x), x.lengths, to.pointers, x.pointers, weight)
        return
    products = [torch.empty_like(tensor) for tensor in x.tensors]
    scale(x, weight, to.like(products))
    add(to, products, to.tensors)


def energies(x: Batch) -> Tensor:
    """||x||^2 of each tensor: f64[tensors]. No square overflows."""
    if x.energies is not None:
        return x.energies
    if x.on_gpu:
        from dgc_repro.kernel.gpu import dense

        return dense.summed(x, dense.SQUARES)[0]
    if not x.native:
        return torch.stack([select.energy(tensor.view(-1)) for tensor in x.tensors])
    found = torch.empty(len(x), dtype=torch.float64)
    _energies(len(x), x.lengths, x.pointers, found.data_ptr())
    return found


def all_finite(x: Batch) -> bool:
    """Whether no value is a NaN or an infinity, where the C kernels can be had."""
    return bool(_finite(len(x), x.lengths, x.pointers))


@cached(1024)
def integers(numbers: tuple[int, ...]) -> ctypes.Array[ctypes.c_int64]:
    """Numbers as an argument of a C function; cached, because layouts repeat in each step."""
    return (ctypes.c_int64 * len(numbers))(*numbers)


@cached(1024)
def starts(sizes: tuple[int, ...]) -> tuple[int, ...]:
    """Where stretches of such sizes begin that lie one after another."""
    return tuple(accumulate(sizes, initial=0))[:-1]
