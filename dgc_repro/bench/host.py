"""The host's time of a step on a GPU: what Python and torch do until everything is launched.

Measured without a GPU. The tensors lie on the CPU, take the paths of a GPU's, and are never touched: Triton's
launcher runs up to the compiled kernel, which does nothing, and operations of torch on large tensors are
replaced by functions that do nothing (`skipped`). Their time does not count. A launch is charged
separately (bench/launches.py), and so is a wait for the device. Left out are CUDA events, and what nccl does
on the host.

The time is that of the process (`time.process_time`), so other work on the machine disturbs little.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map_only

from dgc_repro.bench.counting import LARGE
from dgc_repro.exchange import junction as junctions
from dgc_repro.kernel import batch as batches
from dgc_repro.kernel import native
from dgc_repro.kernel.cached import forget
from dgc_repro.payload import sparse as sparse_payload


class Untimed:
    """Seconds of this process that do not count."""

    def __init__(self) -> None:
        self.seconds = 0.0

    @contextmanager
    def __call__(self) -> Iterator[None]:
        begin = time.process_time()
        yield
        self.seconds += time.process_time() - begin


def seconds(step: Callable[[], object], untimed: Untimed) -> float:
    """Of one step, without what does not count."""
    before, begin = untimed.seconds, time.process_time()
    step()
    return time.process_time() - begin - (untimed.seconds - before)


@contextmanager
def pretended(large: Iterable[Any], untimed: Untimed) -> Iterator[None]:
    """Inside, float32 tensors on the CPU take the paths of a GPU. ``large``: the operations of torch
    (`OpOverload`) that are skipped on large tensors. Collectives are those of the `fake` process group; every
    worker is taken to send what this one sends."""
    from dgc_repro.kernel.gpu.idle import idle

    gather, finite = dist.all_gather_into_tensor, junctions.Junction.finite
    announced = sparse_payload.Sparse.announced

    def on_gpu(tensors: Sequence[Tensor]) -> bool:
        return all(x.is_cpu and x.dtype == torch.float32 for x in tensors)

    def gathered(everybody: Tensor, own: Tensor, **how: Any) -> Any:
        with untimed():
            if own.numel() < LARGE:
                everybody.view(-1, own.numel()).copy_(own)
            nothing = own[:0]
        return gather(nothing, nothing, **how)  # the group would copy everything

    def differing(payload: Any, lengths: Any) -> Any:
        with untimed():
            forget(sparse_payload.sparse_layout)  # really all workers send other numbers
        return announced(payload, lengths)

    def all_finite(junction: Any) -> Any:
        found = finite(junction)
        return None if found is None else found.fill_(True)

    with ExitStack() as inside:
        for owner, name, instead in (
            (native, "usable", lambda tensor: False),
            (native, "library", lambda: None),
            (batches, "on_gpu", on_gpu),
            (sparse_payload, "on_gpu", on_gpu),
            (sparse_payload.Sparse, "check", lambda payload: None),
            (sparse_payload.Sparse, "announced", differing),
            (dist, "all_gather_into_tensor", gathered),
            (junctions.Junction, "finite", all_finite),
            (junctions, "on_cpu", lambda tensor: False),
            (junctions, "SEND_FIRST", {"cpu"}),
        ):
            inside.enter_context(patch.object(owner, name, instead))
        inside.enter_context(idle())
        inside.enter_context(skipped(large, untimed))
        yield


@contextmanager
def skipped(operations: Iterable[Any], untimed: Untimed) -> Iterator[None]:
    """Inside, these operations (`OpOverload`) do nothing on large tensors of the CPU, and their results are
    not filled."""
    library = torch.library.Library("aten", "IMPL")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns of kernels that are replaced
        for operation in operations:
            kernel = torch.library.get_kernel(operation, "CPU")
            skip = partial(_skip, operation, kernel, untimed)
            library.impl(operation, skip, "CPU", with_keyset=True)
    try:
        yield
    finally:
        library._destroy()


def _skip(
    operation: Any, kernel: Any, untimed: Untimed, keys: Any, *given: Any, **named: Any
) -> Any:
    with untimed():
        arguments = operation._schema.arguments
        given = tuple(  # a number that torch had made a tensor
            torch.tensor(one)
            if isinstance(one, float | int) and "Tensor" in str(argument.type)
            else one
            for one, argument in zip(given, arguments, strict=False)
        )
        tensors = [x for x in tree_leaves((given, named)) if isinstance(x, Tensor)]
        if all(x.numel() < LARGE for x in tensors):  # the host may need the result
            return kernel.call_boxed(keys, *given, **named)
        written = [
            named[argument.name] if argument.kwarg_only else given[place]
            for place, argument in enumerate(arguments)
            if argument.alias_info is not None and argument.alias_info.is_write
        ]
        if written:
            return written[0] if operation._schema.returns else None
        given, named = tree_map_only(Tensor, lambda x: x.to("meta"), (given, named))
        result = operation(*given, **named)
        return tree_map_only(Tensor, lambda x: torch.empty_like(x, device="cpu"), result)
