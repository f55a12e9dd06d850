"""One method beside its authors' code: the same gradients in, the answers of both out.

The authors' code stays outside this repository. A case names the repository, imports what it needs from a
checkout of it, and hands over what both must share: signs, random numbers, first directions.
"""

from __future__ import annotations

import importlib
import math
import sys
import threading
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor

from dgc_repro.compressor.interface import Compressor, Context
from dgc_repro.exchange.exchange import Exchange
from dgc_repro.exchange.world import World as Workers
from dgc_repro.policy.interface import Plan

Gradients = dict[str, Tensor]
Given = list[list[Gradients]]
"""Gradients by step and worker."""
Answers = list[Tensor]
"""What both sides tell, in the same order."""
Found = TypeVar("Found")
SEED = 7
ROUNDINGS = 32 * 2.0**-24
"""Bound of arithmetic in float32 that only adds up in another order: some roundings."""
CPU = torch.device("cpu")


@dataclass(frozen=True)
class Case:
    """A row of the page. ``method``: as ``compressor=``, ``policy=`` or ``optimizer=`` has it; ``setting``:
    what was compared; ``repository``: on GitHub; ``whose``: who wrote it; ``injected``: what both sides were
    given; ``compared``: what they told; ``bound``: the largest difference that is still agreement, relative
    to the largest value of the answer; ``note``: a departure that the case leaves out, or a fault of the
    authors' code that it goes around."""

    name: str
    method: str
    setting: str
    repository: str
    whose: str
    injected: str
    compared: str
    bound: float
    theirs: Callable[[Path], Answers]
    ours: Callable[[], Answers]
    steps: int
    note: str = ""
    compressor: Compressor | None = None
    given: Given = field(default_factory=list, repr=False)


CASES: dict[str, Case] = {}


def case(
    method: str,
    setting: str,
    repository: str,
    *,
    compared: str,
    injected: str = "nothing",
    whose: str = "authors",
    bound: float = ROUNDINGS,
    compressor: Compressor | None = None,
    given: Given | None = None,
    ours: Callable[[], Answers] | None = None,
    steps: int = 0,
    note: str = "",
    name: str = "",
) -> Callable[[Callable[..., Answers]], Callable[..., Answers]]:
    """Make a row of a function that runs the authors' code. With a compressor the function takes the checkout
    and the gradients, and the answers of this side are the means of simulated workers."""

    def register(theirs: Callable[..., Answers]) -> Callable[..., Answers]:
        told, own = theirs, ours
        if compressor is not None:
            told = lambda checkout: theirs(checkout, given)  # noqa: E731
            own = own or (lambda: means(compressor, given or []))
        assert own is not None
        row = name or theirs.__name__.rstrip("_")
        CASES[row] = Case(
            row, method, setting, repository, whose, injected, compared, bound, told, own,
            steps or len(given or []), note, compressor, given or [],
        )  # fmt: skip
        return theirs

    return register


def difference(ours: Answers, theirs: Answers) -> float:
    """The largest difference of a value, relative to the largest value of its tensor. Infinite where one side
    tells something else."""
    if not ours or [one.shape for one in ours] != [one.shape for one in theirs]:
        return float("inf")
    largest = 0.0
    for own, other in zip(ours, theirs, strict=True):
        apart = float((own.double() - other.double()).abs().max())
        if math.isnan(apart):
            return float("inf")
        if apart:
            largest = max(largest, apart / max(float(other.double().abs().max()), 2.0**-149))
    return largest


def values(seed: int, *shape: int, spread: int = 2) -> Tensor:
    """Nearly Gaussian values times powers of two of up to 2^``spread``: the same bits on every machine,
    because sums of whole numbers and one division make them. f32[shape]."""
    source = np.random.Generator(np.random.PCG64(seed))
    total = source.integers(0, 1 << 32, (12, *shape), dtype=np.int64).sum(0) - 6 * (1 << 32)
    power = source.integers(-spread, spread + 1, shape)
    return torch.from_numpy(np.ldexp(total.astype(np.float64), power - 32)).float()


def gradients(
    shapes: Mapping[str, tuple[int, ...]], *, steps: int, workers: int, spread: int = 2
) -> Given:
    """Gradients of so many steps and workers."""
    return [
        [
            {
                name: values(1000 * step + 100 * worker + i, *shape, spread=spread)
                for i, (name, shape) in enumerate(shapes.items())
            }
            for worker in range(workers)
        ]
        for step in range(steps)
    ]


def simulation(compressor: Compressor, given: Given) -> Exchange:
    """The exchange of simulated workers."""
    return Exchange(compressor, given[0][0], Workers(len(given[0])), seed=SEED)


def stepped(exchange: Exchange, every: Sequence[Gradients], rung: int = 0) -> Gradients:
    """The means of one step."""
    given = [{name: one.clone() for name, one in own.items()} for own in every]
    exchange.average(given, Plan(rung))
    return given[0]


def means(compressor: Compressor, given: Given) -> Answers:
    """The means of all steps, tensor by tensor."""
    exchange = simulation(compressor, given)
    return [one for every in given for one in stepped(exchange, every).values()]


def drawn(compressor: Compressor, given: Given) -> list[list[dict[str, int]]]:
    """The keys of random numbers that this side draws: by step, worker and tensor."""
    found: list[dict[str, int]] = []
    original = Context.keys

    def keys(context: Context, names: tuple[str, ...], **how: Any) -> Any:
        own = original(context, names, **how)
        found.append(dict(zip(names, (int(one) for one in own), strict=True)))
        return own

    with patch.object(Context, "keys", keys):
        means(compressor, given)
    workers = len(given[0])
    assert len(found) == workers * len(given), "one draw a worker and step"
    return [found[i : i + workers] for i in range(0, len(found), workers)]


@contextmanager
def checkout(
    folder: Path, *, bare: Sequence[str] = (), stubs: Mapping[str, Any] | None = None
) -> Iterator[Callable[[str], Any]]:
    """Inside, the function imports a module of the authors' checkout. ``bare``: packages whose ``__init__``
    is not run; ``stubs``: modules that the authors import and the case does not need."""
    before = dict(sys.modules)
    sys.path.insert(0, str(folder))
    try:
        for name in bare:
            _module(name).__path__ = [str(folder.joinpath(*name.split(".")))]
        for name, stub in (stubs or {}).items():
            vars(_module(name)).update(stub)
        yield importlib.import_module
    finally:
        sys.path.remove(str(folder))
        of_theirs = {*bare, *(stubs or {})}
        for name in set(sys.modules) - set(before):
            origin = getattr(sys.modules[name], "__file__", None)
            if str(origin).startswith(f"{folder}/"):
                of_theirs.add(name)
        roots = {name.partition(".")[0] for name in of_theirs}
        for name in set(sys.modules) - set(before):
            if name.partition(".")[0] in roots:
                del sys.modules[name]
        sys.modules.update({name: before[name] for name in of_theirs if name in before})


def _module(name: str) -> Any:
    """A new module without content, known to Python and to its package."""
    found = sys.modules[name] = types.ModuleType(name)
    package, _, last = name.rpartition(".")
    if package in sys.modules:
        setattr(sys.modules[package], last, found)
    return found


class World:
    """Workers in threads. Stands in for torch.distributed where the authors' code calls it."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._here = threading.local()
        self._barrier = threading.Barrier(size)
        self._slots: list[Any] = [None] * size

    def run(self, job: Callable[[int], Found]) -> list[Found]:
        """What each worker's job returns."""

        def one(rank: int) -> Found:
            self._here.rank = rank
            try:
                return job(rank)
            except BaseException:
                self._barrier.abort()
                raise

        names = ("get_rank", "get_world_size", "all_reduce", "all_gather", "broadcast")
        with ExitStack() as stack:
            for name in (*names, "is_initialized", "is_available"):
                stack.enter_context(patch.object(torch.distributed, name, getattr(self, name)))
            with ThreadPoolExecutor(self.size) as pool:
                return list(pool.map(one, range(self.size)))

    def get_rank(self, group: Any = None) -> int:
        return int(self._here.rank)

    def get_world_size(self, group: Any = None) -> int:
        return self.size

    def is_initialized(self) -> bool:
        return True

    def is_available(self) -> bool:
        return True

    def gathered(self, own: Any) -> list[Any]:
        """What every worker hands over."""
        self._slots[self.get_rank()] = own
        self._barrier.wait()
        found = list(self._slots)
        self._barrier.wait()
        return found

    def all_reduce(self, tensor: Tensor, *_: Any, **__: Any) -> Any:
        total = sum(one.clone() for one in self.gathered(tensor.clone()))
        assert isinstance(total, Tensor)
        tensor.copy_(total)
        return types.SimpleNamespace(wait=lambda: None)

    def all_gather(self, into: list[Tensor], tensor: Tensor, *_: Any, **__: Any) -> Any:
        for place, one in zip(into, self.gathered(tensor.clone()), strict=True):
            place.copy_(one)
        return types.SimpleNamespace(wait=lambda: None)

    def broadcast(self, tensor: Tensor, src: int = 0, *_: Any, **__: Any) -> Any:
        tensor.copy_(self.gathered(tensor.clone())[src])
        return types.SimpleNamespace(wait=lambda: None)
