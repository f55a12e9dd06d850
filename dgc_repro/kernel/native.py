"""The CPU's kernels in C, compiled on first use and kept in the user's cache.

Why not torch.compile here: a compiled graph costs 50 microseconds a call and seconds to build for
each setting; a network has dozens of small tensors. A C function called through ctypes costs a few
microseconds, builds once a machine in some seconds, and needs a C compiler and nothing else.

Every file of kernel/c becomes part of one library. Without a compiler, or with
``DGC_REPRO_COMPILE=0``, `library` is None and callers take the tensor kernels of kernel/*.py, which
give the same bits; this is said once. The process that compiles prints a line (`note_compiling`). To
compile beforehand: ``python -m dgc_repro.kernel``.
"""

from __future__ import annotations

import ctypes
import fcntl
import hashlib
import logging
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

LOG = logging.getLogger(__name__)
FOLDER = Path(__file__).with_name("c")
FLAGS = (
    "-O2", "-ftree-vectorize", "-march=native", "-fopenmp", "-shared", "-fPIC", "-std=gnu11",
    # No contraction to fma: the same bits as the tensor kernels. The other two change no value; they
    # let rint and floor become vector instructions.
    "-ffp-contract=off", "-fno-trapping-math", "-fno-math-errno",
    # Without AVX, GCC 12 copies through MMX registers, after which each long double is NaN.
    *(("-mno-mmx",) if platform.machine() == "x86_64" else ()),
)  # fmt: skip
COMPILE_TIMEOUT_S = 120
COMMAND = "python -m dgc_repro.kernel"


class CompilerFailed(RuntimeError):
    """The compiler would not take the sources; the message has its last line."""


class Layout(ctypes.Structure):
    """`layout_t` of c/codes.c."""

    _fields_ = (
        ("n", ctypes.c_int64),
        ("width", ctypes.c_int64),
        ("body_rows", ctypes.c_int64),
        ("tail_rows", ctypes.c_int64),
        ("tail_width", ctypes.c_int64),
        ("bits", ctypes.c_int32),
        ("group_codes", ctypes.c_int32),
        ("group_bytes", ctypes.c_int32),
        ("per_row", ctypes.c_int32),
    )


POINTER, INT32, INT64, FLOAT = (
    ctypes.c_void_p,
    ctypes.c_int32,
    ctypes.c_int64,
    ctypes.c_float,
)


@lru_cache(maxsize=1)
def library() -> ctypes.CDLL | None:
    """The compiled kernels, or None where they cannot be had."""
    if os.environ.get("DGC_REPRO_COMPILE", "1") == "0":
        return None
    try:
        loaded = ctypes.CDLL(str(compiled()))
    except (OSError, subprocess.SubprocessError, CompilerFailed) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        LOG.warning("kernels run as tensor operations, slower but with equal values: %s", reason)
        return None
    return loaded


class Function:
    """A function of kernel/c by name, looked up at its first call. Its types are read from its C source.
    Pointers are given as addresses. The number of threads, the last parameter where there is one, is
    torch's and is not given."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._found: Any = None
        self._takes_threads = False

    def __call__(self, *given: Any) -> Any:
        if self._found is None:
            self._look_up()
        if self._takes_threads:
            return self._found(*given, torch.get_num_threads())
        return self._found(*given)

    def _look_up(self) -> None:
        kernels = library()
        assert kernels is not None, "call it only where native.usable says so"
        found, (result, parameters) = kernels[self._name], _prototypes()[self._name]
        found.restype, found.argtypes = _TYPES[result], list(map(_type, parameters))
        self._takes_threads = parameters[-1] == "int threads"
        self._found = found  # last: the communication thread may be calling it too


_PROTOTYPE = re.compile(r"^(\w+) (dgc_\w+)\(([^)]*)\)\s*\{", re.MULTILINE)
_TYPES = {
    "void": None, "int": ctypes.c_int, "int32_t": ctypes.c_int32, "int64_t": ctypes.c_int64,
    "float": ctypes.c_float, "double": ctypes.c_double,
}  # fmt: skip


@lru_cache(maxsize=1)
def _prototypes() -> dict[str, tuple[str, list[str]]]:
    """The result's type and the parameters of each function in kernel/c, as they are written there."""
    text = "\n".join(path.read_text(encoding="utf-8") for path in FOLDER.glob("*.c"))
    found = _PROTOTYPE.findall(text)
    return {
        name: (result, [" ".join(p.split()) for p in given.split(",")])
        for result, name, given in found
    }


def _type(parameter: str) -> Any:
    """The ctypes type of a parameter, such as `const float *x` or `int64_t n`."""
    return ctypes.c_void_p if "*" in parameter else _TYPES[parameter.split()[-2]]


def usable(tensor: Tensor) -> bool:
    """Whether the kernels can work on this tensor."""
    return tensor.device.type == "cpu" and tensor.dtype == torch.float32 and library() is not None


_all_finite = Function("dgc_all_finite")


def all_finite(x: Tensor) -> bool:
    """Whether no value is a NaN or an infinity. x: f32, contiguous."""
    return bool(_all_finite(x.data_ptr(), x.numel()))


def pointers(tensors: Sequence[Tensor]) -> ctypes.Array[ctypes.c_void_p]:
    """Where they lie, as an argument of a C function."""
    return (ctypes.c_void_p * len(tensors))(*(tensor.data_ptr() for tensor in tensors))


def compiled() -> Path:
    """The shared library for this source and this processor, built if it is not in the cache."""
    compiler = (
        os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    )
    if compiler is None:
        raise OSError("no C compiler (cc, gcc or clang) found")
    sources = sorted(FOLDER.glob("*.c"))
    texts = [path.read_text(encoding="utf-8") for path in (*sources, *sorted(FOLDER.glob("*.h")))]
    text = "\0".join((*texts, compiler, *FLAGS, _processor()))
    name = f"native-{hashlib.sha256(text.encode()).hexdigest()[:16]}.so"
    for folder in cache_folders():
        target = folder / name
        try:
            if target.is_file():
                return target
            with _one_at_a_time(folder / "building.lock"):
                if not target.is_file():
                    _build(compiler, sources, target)
        except OSError:  # not ours, read-only, full: the next one may do
            continue
        return target
    raise OSError("no folder to keep the compiled kernels in")


def _build(compiler: str, sources: Sequence[Path], target: Path) -> None:
    """Raises CompilerFailed; OSError where the folder cannot be written to."""
    with tempfile.TemporaryDirectory(dir=target.parent) as building:
        built = Path(building) / target.name
        command = [compiler, *FLAGS, "-o", str(built), *map(str, sources), "-lm"]
        note_compiling("the C kernels", target.parent, COMMAND)
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=COMPILE_TIMEOUT_S, check=False
            )
        except OSError as error:
            raise CompilerFailed(f"{compiler}: {error.strerror}") from error
        if done.returncode != 0:
            raise CompilerFailed(f"{compiler} failed: {done.stderr.strip().splitlines()[-1:]}")
        built.replace(target)


@lru_cache
def note_compiling(what: str, folder: Path | str, command: str) -> None:
    """Print, on stderr and once a process, what is compiled, where it is kept, and what compiles it
    beforehand."""
    print(
        f"dgc_repro: compiling {what}, once per machine; they are kept in {folder} (to compile them "
        f"beforehand: {command})",
        file=sys.stderr,
        flush=True,
    )


@contextmanager
def _one_at_a_time(lock: Path) -> Iterator[None]:
    """Ranks of one machine start together: one builds, the others wait for it. On a file system without
    locks each builds its own; the files are the same."""
    with lock.open("w") as file:
        with suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def cache_folders() -> Iterator[Path]:
    """Yield the folders in which this user may keep files from one command to the next, the best one first,
    and make each if it is not there."""
    places = [Path(tempfile.gettempdir()) / f"dgc_repro-{os.getuid()}"]
    if cache := os.environ.get("XDG_CACHE_HOME"):
        places.insert(0, Path(cache) / "dgc_repro")
    else:
        with suppress(RuntimeError):  # a user without a home
            places.insert(0, Path.home() / ".cache" / "dgc_repro")
    for folder in places:
        with suppress(OSError):  # not ours, read-only, full: the next one may do
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            if folder.stat().st_uid == os.getuid():  # else another user may have put anything there
                yield folder


def _processor() -> str:
    """What -march=native depends on: a cache shared by unlike machines must not mix them."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(line for line in lines if line.startswith(("flags", "Features")))
    except (OSError, StopIteration):
        return platform.machine() + platform.processor()
