"""A compressor whose all-to-alls are damaged on their way.

Named in a config as ``wrapper.damaged._target_: damaged.OnItsWay``; real processes need tests/ on
PYTHONPATH.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import Tensor

from dgc_repro.compressor.interface import Compressor, Context, State
from dgc_repro.payload import Payload, Sparse
from dgc_repro.payload.requests import AllToAll, Exchange


@dataclass(frozen=True)
class OnItsWay:
    """What rank ``sender`` writes to others at step ``at_step`` (from 1) has a broken header; what it
    keeps of it is whole."""

    inner: Compressor
    at_step: int = 1
    sender: int = 1

    def init(self, tensor: Tensor) -> State:
        return self.inner.init(tensor)

    def exchange(self, tensor: Tensor, state: State, context: Context) -> Exchange:
        is_here = (context.rank, context.step + 1) == (self.sender, self.at_step)
        exchange = self.inner.exchange(tensor, state, context)
        answer = None
        while True:
            try:
                request = exchange.send(answer)
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]
            if is_here and isinstance(request, AllToAll):
                payloads = tuple(
                    payload if rank == context.rank else _broken(payload)
                    for rank, payload in enumerate(request.payloads)
                )
                request = replace(request, payloads=payloads)
            answer = yield request


def _broken(payload: Payload | None) -> Payload | None:
    if not isinstance(payload, Sparse):
        return payload
    broken = replace(payload, buffer=payload.buffer.clone())
    broken.layout.view(broken.buffer, 0, 0).fill_(12345)
    return broken
