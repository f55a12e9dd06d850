"""Start a Triton kernel once for all tensors of a batch.

The programs of a launch are the tiles of all tensors. A kernel finds its tensor in a table of the tiles,
and addresses, sizes and places of that tensor in other tables on the device. Tables are kept for each
stream (`Tables`): they are uploaded again only when an address or a size has changed, and no upload waits for
the GPU.

`Launches.count` says how many kernels were started. On tensors of `FakeTensorMode` launches are counted and
skipped, so that they can be counted without a GPU (bench/counting.py).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import triton.language as tl
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from triton import jit

from dgc_repro.kernel.batch import Batch, starts
from dgc_repro.kernel.cached import cached

Numbers = tuple[int, ...]
OPTIONS = {"num_warps": 4, "enable_fp_fusion": False}
TYPES = {
    np.dtype(np.int32): "*i32", np.dtype(np.int64): "*i64", np.dtype(np.uint64): "*u64",
    torch.int16: "*i16", torch.int32: "*i32", torch.int64: "*i64", torch.float32: "*fp32",
    torch.float64: "*fp64",
}  # fmt: skip


class Launches:
    """How many kernels this process has started; an estimate of the bytes that those on fake tensors would
    read and write (`_touched`); and how often it has waited for numbers of a GPU."""

    count = 0
    touched = 0
    reads = 0
    record: set[Variant] | None = None  # where it is a set, each launch adds its variant


@dataclass(frozen=True)
class Variant:
    """What Triton compiles a kernel for. Launches of one variant share one binary: kernels are declared with
    `kernel`. ``types``: of each argument, as Triton writes them ("*i64", "i32", "fp32", or "constexpr");
    ``constants``: names and values of the last; ``num_warps``: of a program."""

    kernel: Any
    types: tuple[str, ...]
    constants: tuple[tuple[str, Any], ...]
    num_warps: int

    def __str__(self) -> str:
        constants = ", ".join(f"{name}={value}" for name, value in self.constants)
        kinds = [kind.strip("*") for kind in self.types if kind not in ("constexpr", "*i64")]
        return f"{self.kernel.fn.__name__}[{', '.join(kinds)}]({constants})"


def kernel(function: Callable[..., None]) -> Any:
    """Declare a kernel for `launch`. No number and no address is compiled in: without this, Triton compiles
    again for a number that is 1 or a multiple of 16, and for an address that is none."""
    parameters = inspect.signature(function).parameters
    names = [name for name, one in parameters.items() if "constexpr" not in str(one.annotation)]
    return jit(do_not_specialize=names, do_not_specialize_on_alignment=names)(function)


def launch(on: Tensor, kernel: Any, counts: Numbers, *arguments: Any, **options: Any) -> None:
    """Start ``kernel(owner, first, *arguments, **options)`` with counts[s] programs for tensor s.

    ``on``: a tensor of the device. Arguments: a batch or a list of tensors becomes their addresses, a tuple
    a table (i64), and an array is uploaded. Products and sums are rounded one by one, as in C."""
    if not any(counts):
        return
    Launches.count += 1
    if Launches.record is not None:
        Launches.record.add(variant(kernel, arguments, options))
    if isinstance(on, FakeTensor):
        Launches.touched += sum(_touched(argument, counts, options) for argument in arguments)
        return
    device = on.device
    stream = torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else 0
    tables = _tables(device, stream)
    given = [tables.given(argument) for argument in arguments]
    programs, owner, first = tables.tiles(counts)
    if device.type == "cuda" and device.index != torch.cuda.current_device():
        with torch.cuda.device(device):
            _start(kernel, programs, device.index, (owner, first, *given), options)
    else:
        _start(kernel, programs, device.index, (owner, first, *given), options)


_BINARIES: dict[tuple[Any, ...], tuple[Any, list[Any]]] = {}
"""By kernel, device, types and constants: the binary, and the constants in their order."""


def _start(
    kernel: Any, programs: int, device: int | None, given: tuple[Any, ...], options: dict[str, Any]
) -> None:
    """Start a kernel on the current device. Triton's own way to its binary takes 25 microseconds; nothing but
    types and constants is compiled in (`kernel`), so they lead to it as well."""
    kinds = [x.dtype if isinstance(x, Tensor) else _number(x) for x in given]
    key = (id(kernel), device, *kinds, *options.items())
    known = _BINARIES.get(key)
    if known is not None:
        binary, constants = known
        binary[programs, 1, 1](*given, *constants)
        return
    binary = kernel[(programs,)](*given, **{**OPTIONS, **options})
    if binary is not None:  # Triton's interpreter has none
        _BINARIES[key] = binary, [options[name] for name in kernel.arg_names[len(given) :]]


def _number(argument: Any) -> Any:
    """A type that Triton gives to a number; None is a constant."""
    wide = isinstance(argument, int) and not -(2**31) <= argument < 2**31
    return "i64" if wide else type(argument)


def variant(kernel: Any, arguments: Sequence[Any], options: Mapping[str, Any]) -> Variant:
    """What a launch with these arguments needs. Counts and numbers of tensors must have 32 bits."""
    names = kernel.arg_names
    types = ["*i32", "*i64", *map(_type, arguments)]  # of owner and first
    constants = {
        name: None for name, kind in zip(names, types, strict=False) if kind == "constexpr"
    }
    constants |= {name: options[name] for name in names[len(types) :]}
    types += ["constexpr"] * (len(names) - len(types))
    return Variant(
        kernel,
        tuple(types),
        tuple(constants.items()),
        options.get("num_warps", OPTIONS["num_warps"]),
    )


def _type(argument: Any) -> str:
    if argument is None:
        return "constexpr"
    if isinstance(argument, Tensor | np.ndarray):
        return TYPES[argument.dtype]
    if isinstance(argument, float):
        return "fp32"
    if isinstance(argument, int):
        assert abs(argument) < 2**31
        return "i32"
    return "*i64"  # a table


def listing(on: Tensor) -> bool:
    """Whether launches are only listed: then those that depend on values are made as well."""
    return Launches.record is not None and isinstance(on, FakeTensor)


@dataclass(frozen=True)
class Each:
    """An argument of `launch`: the addresses of tensors, each of them so many ``times``."""

    tensors: Sequence[Tensor]
    times: int


class Unread:
    """Numbers on the device that the host has not read yet. ``expected``: those of fake tensors."""

    def __init__(self, numbers: Tensor, expected: Numbers) -> None:
        self.numbers = numbers  # i64
        self._expected = expected
        self._known: Numbers | None = None

    def read(self) -> Numbers:
        """The numbers. The first call waits for the device, unless `tell` came before."""
        if self._known is None:
            Launches.reads += 1
            self.tell(self.numbers)
        assert self._known is not None
        return self._known

    def tell(self, numbers: Tensor) -> None:
        """Take the numbers from a copy on the host."""
        is_fake = isinstance(self.numbers, FakeTensor)
        self._known = self._expected if is_fake else tuple(numbers.tolist())


@cached(1024)
def tiles(sizes: Numbers, width: int) -> Numbers:
    """How many tiles of so many values each tensor has."""
    return tuple([-(-n // width) for n in sizes])


def peaks_of(x: Batch, counts: Numbers) -> Tensor:
    """A place for the bits of the largest magnitude in each tile (i32), which a kernel that reads every value
    fills. ``counts``: tiles of each tensor."""
    found = x.tensors[0].new_empty(sum(counts), dtype=torch.int32)
    if x.peaks is not None:
        x.peaks.append((x.names, counts, found.view(torch.float32)))
    return found


def upload(numbers: npt.NDArray[Any], device: torch.device) -> Tensor:
    """An array on the device, without waiting for it."""
    return torch.from_numpy(numbers).to(device, non_blocking=True)


def _touched(argument: Any, counts: Numbers, options: dict[str, Any]) -> int:
    """Bytes of an argument that a kernel reads and writes: all of it, but of a batch no more values than its
    tiles hold (a kernel that visits k entries has tiles for k). Sums that are added to count twice."""
    if isinstance(argument, Batch):
        sizes = argument.sizes
        # The words of a sparse payload hold two places each (a bitmap's up to 32, which is not counted).
        tile = options.get("TILE", 2 * options.get("WORDS_EACH", 0)) * options.get("TILES", 1)
        if tile and len(counts) == len(sizes):
            sizes = tuple([min(n, count * tile) for n, count in zip(sizes, counts, strict=True)])
        twice = options.get("ACCUMULATE", False) or not options.get("ZERO", True)
        return 4 * sum(sizes) * (1 + twice)
    if isinstance(argument, Each):
        argument = list(argument.tensors)
    if isinstance(argument, list):
        return sum(tensor.nbytes for tensor in dict.fromkeys(argument))
    return argument.nbytes if isinstance(argument, Tensor | np.ndarray) else 0


class Tables:
    """The tables of a device and a stream. A tuple that comes again is recognized as the same object, or else
    by its content, which takes longer; an array only as the same object, and where it is `fixed`."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._by_content = cached(1024)(self._uploaded)
        self._by_counts = cached(1024)(self._tiled)
        self._numbers = Recognized(self._by_content)
        self._arrays = Recognized(lambda array: upload(array.copy(), device))
        self._tiles = Recognized(self._by_counts)

    def given(self, argument: Any) -> Any:
        """An argument of `launch` as one of a kernel."""
        if isinstance(argument, Tensor):
            return argument
        if isinstance(argument, Batch):
            return self._numbers(argument.addresses)
        if isinstance(argument, tuple):
            return self._numbers(argument)
        if isinstance(argument, list):
            return self._by_content(_addresses(argument))
        if isinstance(argument, Each):
            return self._by_content(_addresses(argument.tensors), argument.times)
        if isinstance(argument, np.ndarray):
            is_fixed = not argument.flags.writeable
            return self._arrays(argument) if is_fixed else upload(argument, self._device)
        return argument

    def tiles(self, counts: Numbers) -> tuple[int, Tensor, Tensor]:
        """How many tiles there are, the tensor of each (i32), and the first tile of each tensor (i64)."""
        found: tuple[int, Tensor, Tensor] = self._tiles(counts)
        return found

    def _uploaded(self, numbers: Numbers, times: int = 1) -> Tensor:
        return upload(np.repeat(np.array(numbers, dtype=np.int64), times), self._device)

    def _tiled(self, counts: Numbers) -> tuple[int, Tensor, Tensor]:
        numbers = np.array(counts, dtype=np.int64)
        owner = np.repeat(np.arange(len(counts), dtype=np.int32), numbers)
        first = upload(np.cumsum(numbers) - numbers, self._device)
        return len(owner), upload(owner, self._device), first


def _addresses(tensors: Sequence[Tensor]) -> Numbers:
    return tuple([tensor.data_ptr() for tensor in tensors])


class Recognized:
    """The results of a function of objects that do not change, by object. The objects are kept, so that no
    other one gets their id."""

    def __init__(self, function: Callable[[Any], Any], most: int = 1024) -> None:
        self._function = function
        self._most = most
        self._known: dict[int, tuple[Any, Any]] = {}

    def __call__(self, given: Any) -> Any:
        known = self._known.get(id(given))
        if known is None:
            if len(self._known) >= self._most:
                self._known.clear()
            known = self._known[id(given)] = given, self._function(given)
        return known[1]


@lru_cache(maxsize=64)
def _tables(device: torch.device, stream: int) -> Tables:
    return Tables(device)


def fixed(numbers: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """An array that is not written to any more: `Tables` then recognizes it."""
    numbers.setflags(write=False)
    return numbers


@jit
def tile(owner, first):
    """The tensor of this program, and the number of its tile within the tensor (i64)."""
    s = tl.load(owner + tl.program_id(0))
    return s, tl.program_id(0) - tl.load(first + s)


@jit
def floats(addresses, s):
    """The pointer to the values of tensor s."""
    return tl.load(addresses + s).to(tl.pointer_type(tl.float32))


@jit
def in_fours(start):
    """Whether a thread may access four values at once from a pointer on: its address is a multiple of their
    bytes. Tensors in a bucket of DDP's and parts of a payload begin anywhere.

    `tl.multiple_of` promises that to the compiler, which does not check it: it belongs behind this condition,
    and on the sum of a pointer and places (on an argument of a function it is lost)."""
    four: tl.constexpr = start.dtype.element_ty.primitive_bitwidth // 2
    return start.to(tl.int64) % four == 0


@jit
def load_tile(start, t, n, other, TILE: tl.constexpr):
    """The values of tile t of n that begin at a pointer, and `other` beyond the end."""
    i = t * TILE + tl.arange(0, TILE)
    four: tl.constexpr = start.dtype.element_ty.primitive_bitwidth // 2
    if ((t + 1) * TILE <= n) & in_fours(start):
        value = tl.load(tl.multiple_of(start + i, four))
    else:
        value = tl.load(start + i, mask=i < n, other=other)
    return value


@jit
def store_tile(start, t, n, value, TILE: tl.constexpr):
    """Write the values of tile t of n that begin at a pointer, but none beyond the end."""
    i = t * TILE + tl.arange(0, TILE)
    four: tl.constexpr = start.dtype.element_ty.primitive_bitwidth // 2
    if ((t + 1) * TILE <= n) & in_fours(start):
        tl.store(tl.multiple_of(start + i, four), value)
    else:
        tl.store(start + i, value, mask=i < n)


@jit
def load_rows(start, place, there, whole, other):
    """The values at these places after a pointer, and `other` where they are not there. ``whole``: all are
    there, and each row (dimension 1) has neighbours whose first place is a multiple of 4."""
    four: tl.constexpr = start.dtype.element_ty.primitive_bitwidth // 2
    if place.shape[1] < 4:
        value = tl.load(start + place, mask=there, other=other)
    elif whole & in_fours(start):
        value = tl.load(tl.multiple_of(start + place, (1, four)))
    else:
        value = tl.load(start + place, mask=there, other=other)
    return value


@jit
def store_rows(start, place, value, there, whole):
    """Write values to these places after a pointer. ``whole``: see `load_rows`."""
    four: tl.constexpr = start.dtype.element_ty.primitive_bitwidth // 2
    if place.shape[1] < 4:
        tl.store(start + place, value, mask=there)
    elif whole & in_fours(start):
        tl.store(tl.multiple_of(start + place, (1, four)), value)
    else:
        tl.store(start + place, value, mask=there)


@jit
def magnitude(x):
    """The bits of |x|, which order as the magnitudes do; a NaN lies above infinity."""
    return x.to(tl.int32, bitcast=True) & 0x7FFFFFFF


@jit
def hashed(counter, key):
    """`counter.bits` of kernel/counter.py. u32."""
    h = counter ^ key
    h = (h ^ (h >> 16)) * 0x7FEB352D
    h = (h ^ (h >> 15) ^ (key * 0x7FEB352D)) * 0x846CA68B
    return h ^ (h >> 16)


@jit
def inverse(scale):
    """1 / scale, rounded as in C (`/` is not on a GPU, and drops denormal numbers)."""
    return tl.div_rn(1.0, scale)


def scan(sums: Tensor, counts: Numbers) -> None:
    """Each number becomes the sum of those before it, within a row and a tensor. sums: [rows, tiles of all
    tensors], i32 or i64; counts: tiles of each tensor."""
    rows, total = sums.shape
    launch(sums, _scan, (len(counts),) * rows, sums, starts(counts), counts, total, WIDTH=1024)


@kernel
def _scan(owner, first, sums, starts, counts, total, WIDTH: tl.constexpr):
    row, s = tile(owner, first)
    here = sums + row * total + tl.load(starts + s)
    count = tl.load(counts + s)
    before = tl.sum(tl.zeros((WIDTH,), sums.dtype.element_ty), 0)
    for at in range(0, count, WIDTH):
        i = at + tl.arange(0, WIDTH)
        number = tl.load(here + i, mask=i < count, other=0)
        tl.store(here + i, before + tl.cumsum(number, 0) - number, mask=i < count)
        before += tl.sum(number, 0)
